"""Policies in the box."""
