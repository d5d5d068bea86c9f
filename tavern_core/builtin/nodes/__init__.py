"""The host's own nodes. One file for each kind of work, independent of the others."""
