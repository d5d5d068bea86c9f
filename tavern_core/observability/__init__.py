"""Metrics and traces of a running host. None of it is loaded while it is off."""
