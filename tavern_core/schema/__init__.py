"""Pure functions on JSON Schemas: check, validate, explain, defaults, coercion, signatures, redaction, dialects.

Nothing here does I/O. For any content, the only error is `SchemaInvalid`, for an unusable schema.
Import from the modules; each contains one idea.
"""
