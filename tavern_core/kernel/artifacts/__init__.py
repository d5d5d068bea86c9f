"""Data that is too large for an answer: stored by content, for its owner, for a limited time."""
