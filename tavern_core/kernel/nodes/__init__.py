"""Node types: what plugins return becomes one specification each, and the table of all."""
