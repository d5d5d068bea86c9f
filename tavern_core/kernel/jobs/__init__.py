"""Calls in the background: stored, observed, answered and cancelled from any process."""
