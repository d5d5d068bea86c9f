"""Calls in the background: stored, followed, answered, cancelled, from any process."""
