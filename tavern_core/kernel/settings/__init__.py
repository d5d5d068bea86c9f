"""The settings of plugins and tools, and their secrets."""
