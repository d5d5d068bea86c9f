"""Finding plugins, and remembering what was found. Nothing is imported."""
