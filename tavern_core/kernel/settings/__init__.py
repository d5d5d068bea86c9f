"""The settings of plugins and tools, and what of them is secret."""
