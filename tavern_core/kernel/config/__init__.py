"""tavern.yaml and its variables: every source read, checked where it is, laid over the ones before."""
