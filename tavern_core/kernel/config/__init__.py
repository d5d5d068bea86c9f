"""tavern.yaml and its variables: every source read, checked where it stands, laid over the ones before."""
