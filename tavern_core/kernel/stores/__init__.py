"""What must survive a process, on the disk and in memory."""
