"""What may stand in a parameter that is a path, an address or a statement; who approves a call; what `net` fetches."""
