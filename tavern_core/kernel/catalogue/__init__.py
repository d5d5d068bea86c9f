"""The tools of a host: listed, searched, explained, described."""
