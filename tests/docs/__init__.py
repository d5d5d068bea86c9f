"""The manual is run: every program, command and file of its pages."""
