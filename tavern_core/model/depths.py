"""Maximum nesting depths. Most of these values are walked recursively somewhere, so the limits also protect the stack."""

from __future__ import annotations

from typing import Final

VALUE: Final = 64
"""A JSON value or a path into one, a schema, a YAML document, groups in groups of a workflow."""
WRAPPED: Final = 100
"""A value with its envelope: JSON text, a frame of a worker, values between nodes, the details of an error."""
SHOWN: Final = 24
"""A value that is shown redacted, in the log and to observers; deeper parts are cut."""
ANNOTATION: Final = 32
"""Types in types of a Python annotation."""
COMPILED: Final = 12
"""Containers that generated code checks: Python's compiler has a limit of twenty blocks."""
GEMINI: Final = 12
"""References that are expanded for the Gemini dialect, which has none."""
BRANCHES: Final = 8
"""Alternatives inside alternatives, when they are split or explained."""
CAUSES: Final = 8
"""Errors that an error names as its cause."""
MANUAL: Final = 3
"""Parameters inside parameters in a manual for a model."""
SAMPLE: Final = 10
"""A value that a dry run makes up from a schema."""
EFFECTS: Final = 20
"""Groups in groups in which a dry run looks for nodes with effects."""
KNOWLEDGE_FOLDERS: Final = 12
"""Folders inside folders of a knowledge base."""
SKILL_FOLDERS: Final = 8
"""Folders inside folders of a skill."""
