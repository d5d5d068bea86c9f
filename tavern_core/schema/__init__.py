"""Pure functions on JSON Schemas: check, validate, explain, defaults, coercion, signatures, redaction, dialects.

Nothing here does I/O, and no content makes it raise anything but `SchemaInvalid` for a schema that cannot be used.
Import from the modules; each names one idea.
"""
