"""Finds plugins and caches what it found. Imports no plugin."""
