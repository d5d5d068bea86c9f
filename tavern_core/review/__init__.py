"""`tavern plugins check`: a plugin's source against its manifest, read as text."""
