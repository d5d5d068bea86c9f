"""Isolation of plugins and programs, enforced by the operating system."""
