"""The event log: appended, chained by hashes, verified; and who tells it."""
