"""What plugins were granted: the lock file, and the rule that makes it hold."""
