"""JSON and YAML as data with places: small safe dialects, and what is refused in plain words."""
