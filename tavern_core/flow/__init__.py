"""Workflows of one host: their files, their runs, and the tools they are."""
