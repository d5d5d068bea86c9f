"""What plugins are handed instead of the host's own objects: nothing behind it can be reached from it."""
