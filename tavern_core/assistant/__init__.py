"""The creation assistant: a sentence becomes a checked change of a workflow (seed 003)."""
