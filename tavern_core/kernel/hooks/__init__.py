"""The hooks: their implementations, and how these are called."""
