"""Programs that run an agent's code, inside of the box. The box protects the host, not these programs."""
