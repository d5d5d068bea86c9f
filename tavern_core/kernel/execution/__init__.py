"""Running code: in a loop or without one, in threads, within a time limit."""
