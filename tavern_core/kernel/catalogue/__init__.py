"""The tools that exist now: listed, searched, explained, described."""
