"""References to secrets, as settings and tavern.yaml hold them: where a secret is, and not the secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

REFERENCES: Final = ("$env", "$file", "$keyring")
"""The keys of a reference to a secret that is stored outside of the configuration: ``{"$env": "NAME"}``."""
SECRET: Final = "$secret"
"""The key of a reference to a name of the host's `secrets`, for what an operator configures."""


def is_reference(value: Any) -> bool:
    """Whether a value says where a secret is, not what it is: ``{"$env": "NAME"}``."""
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in REFERENCES


def is_operators_reference(value: Any) -> bool:
    """As `is_reference`, for values of an operator, who may also write ``{"$secret": "name"}``."""
    return is_reference(value) or (isinstance(value, Mapping) and len(value) == 1 and SECRET in value)
