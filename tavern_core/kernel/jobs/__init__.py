"""Calls in the background: stored, observed, answered, cancelled, from any process."""
