"""Limits on calls: how often, how many at a time, whether at all, and answers that still hold."""
