"""`tavern plugins check`: compares a plugin's source with its manifest, without running it."""
