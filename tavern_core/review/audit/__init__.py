"""The audit guard: what a plugin's own code uses while its tests run, compared with what its plugin.yaml asks for."""
