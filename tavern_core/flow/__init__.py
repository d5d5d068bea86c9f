"""Workflows of one host: their files, their runs, and workflow tools."""
