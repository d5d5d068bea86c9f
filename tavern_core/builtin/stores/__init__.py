"""Stores besides the host's own."""
