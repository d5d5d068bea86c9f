"""The API between host and plugins. Built-in plugins use nothing else."""
