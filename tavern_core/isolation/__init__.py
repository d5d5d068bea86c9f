"""Plugins and programs that are held by the kernel of the system, not by good will."""
