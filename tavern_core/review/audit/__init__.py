"""The audit guard: what a plugin's own code uses while its tests run, compared with the requests of its plugin.yaml."""
