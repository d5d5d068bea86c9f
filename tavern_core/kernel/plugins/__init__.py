"""The lifecycle of plugins: checked, activated, stopped; and their contributions."""
