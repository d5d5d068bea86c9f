"""The pipeline that every call passes, and reading the calls in a model's text."""
