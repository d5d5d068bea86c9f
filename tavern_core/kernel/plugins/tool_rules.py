"""What the code of a plugin or of the program says of a tool is held to the rules that tool files are held to.

Annotations promise nothing: a decorator takes any value, and a misspelt capability could never be granted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tavern_core.errors import ActivationFailed
from tavern_core.model.capability import is_capability, known_capability
from tavern_core.model.tool import ToolSpec

LONGEST_TIMEOUT_MS: Final = 86_400_000
_VERSION: Final = re.compile(r"v?[0-9][0-9A-Za-z.+!_-]{0,99}")
"""What PEP 440 and Semantic Versioning have in common."""


def refuse_unsound(spec: ToolSpec) -> None:
    """Return when every field of a tool is of its kind.

    Raises:
        ActivationFailed: one is invalid; the first is reported with its repair (ACTIVATION_FAILED).
    """
    for message, hint in _mistakes(spec):
        raise ActivationFailed(f"{spec.name}: {message}", hint=hint)


def _mistakes(spec: ToolSpec) -> Iterator[tuple[str, str]]:
    for name in sorted(spec.capabilities, key=repr):
        if not isinstance(name, str):
            yield f"a capability is text, got {name!r:.80}", 'for example capabilities=["read:fs"]'
        elif not is_capability(name):
            yield f"{name!r:.80} is not a capability", known_capability(name)
    for field in ("description", "display_name", "kind"):
        if not isinstance(value := getattr(spec, field), str):
            yield f"{field} must be text, got {value!r:.80}", f'write {field}="..."'
    for field in ("tags", "aliases"):
        if odd := [item for item in getattr(spec, field) if not isinstance(item, str)]:
            yield f"{field} must be texts, one is {odd[0]!r:.80}", f'for example {field}=["a", "b"]'
    if odd := [example for example in spec.examples if not isinstance(example.arguments, Mapping)]:
        yield (
            f"the arguments of an example are named, got {odd[0].arguments!r:.80}",
            'write {"arguments": {"name": value}}',
        )
    if not isinstance(spec.version, str) or _VERSION.fullmatch(spec.version) is None:
        yield f"{spec.version!r:.80} is not a version", 'write version="1.0.0"'
    if (limit := spec.timeout_ms) is not None and (type(limit) is not int or not 0 < limit <= LONGEST_TIMEOUT_MS):
        yield (
            f"timeout_ms must be a whole number from 1 to {LONGEST_TIMEOUT_MS:,}, got {limit!r:.80}",
            "leave it out for the host's limit",
        )
