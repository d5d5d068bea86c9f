"""JSON and YAML as data with places: small safe dialects, with readable refusals."""
