"""How code is run: in a loop or without one, in threads, within a time."""
