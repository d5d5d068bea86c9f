"""Programs that run an agent's code, inside of the box. Nothing in them protects anything: the box does."""
