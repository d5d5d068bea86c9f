"""How tools are run: one executor per kind."""
