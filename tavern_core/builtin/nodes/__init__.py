"""The host's own nodes. One file for each kind of work; none knows another."""
