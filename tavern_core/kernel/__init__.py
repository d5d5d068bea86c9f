"""The microkernel: finds plugins, keeps what they offer, runs calls."""
