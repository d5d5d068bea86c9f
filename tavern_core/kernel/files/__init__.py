"""Files of the host and of plugins: replaced whole, locked, confined, opened with care."""
