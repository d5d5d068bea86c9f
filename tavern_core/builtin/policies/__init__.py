"""Built-in policies."""
