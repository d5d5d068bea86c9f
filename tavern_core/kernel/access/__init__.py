"""Decides which callers may use which tools: lists, profiles and the files of their inventories."""
