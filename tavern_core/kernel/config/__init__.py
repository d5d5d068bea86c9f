"""tavern.yaml and its variables: reads and checks every source, and merges them in order."""
