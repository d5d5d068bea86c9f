"""Files of the host and of plugins: replaced as a whole, locked, confined, opened with care."""
