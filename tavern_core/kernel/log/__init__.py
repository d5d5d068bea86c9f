"""The event log: appended, chained by hashes, verified; and its recorder."""
