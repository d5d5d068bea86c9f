"""The grants of plugins: the lock file, and the rule that enforces it."""
