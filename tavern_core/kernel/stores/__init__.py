"""Storage that survives a process, on disk and in memory."""
