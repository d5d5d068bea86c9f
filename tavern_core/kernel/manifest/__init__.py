"""Reads and validates plugin.yaml and tool files."""
