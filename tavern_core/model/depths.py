"""How many levels of what is nested are taken. Everything here is walked recursively somewhere, so these also protect the stack."""

from __future__ import annotations

from typing import Final

VALUE: Final = 64
"""A JSON value, a schema, a YAML document, groups in groups of a workflow."""
WRAPPED: Final = 100
"""A value with what may be around it: JSON text, a frame of a worker, what nodes hand on, the words of an error."""
SHOWN: Final = 24
"""A value that is shown redacted, in the log and to observers; what lies deeper is cut."""
ANNOTATION: Final = 32
"""Types in types of a Python annotation."""
COMPILED: Final = 12
"""Containers that are checked by generated code: Python's compiler has a limit of twenty blocks."""
GEMINI: Final = 12
"""References that are written out for the Gemini dialect, which has none."""
BRANCHES: Final = 8
"""Alternatives inside alternatives, where they are taken apart or explained."""
CAUSES: Final = 8
"""Errors that an error names as its cause."""
MANUAL: Final = 3
"""Parameters inside parameters in a manual for a model."""
