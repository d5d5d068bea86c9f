"""What a running host tells monitoring: metrics and traces. Nothing of it exists while it is off."""
