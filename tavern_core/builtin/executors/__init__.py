"""The executors of tools, one per kind."""
