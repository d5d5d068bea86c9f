"""The changes that plugins made to a call, for the record: the plugin, and the values before and after, redacted.

{"plugin": "call-guard", "path": "/arguments/text", "before": "to ada@example.org", "after": "to [e-mail]"}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tavern_core.kernel.settings.result_redaction import redact_values
from tavern_core.model.safe_printing import with_length
from tavern_core.schema.problem import pointer
from tavern_core.schema.redact import named_secrets
from tavern_core.schema.secret_encodings import SHORTEST

MOST_ROWS: Final = 20
"""The most differences recorded per plugin; the rest is a count."""
LONGEST: Final = 200
"""Characters of a value that are written down."""
_MISSING: Final = object()


class CallChange(NamedTuple):
    """The changes of one plugin."""

    plugin: str
    changed: str
    """Names, for people: ``text, purpose``."""
    before: Mapping[str, Any]
    """Plain JSON: ``{"arguments": {...}, "purpose": "..."}``, or the parts of a result."""
    after: Mapping[str, Any]


def changed_by(changes: Sequence[CallChange]) -> list[dict[str, str]]:
    """The plugins, each with the names of its changes."""
    return [{"plugin": change.plugin, "changed": change.changed} for change in changes]


def diff(changes: Sequence[CallChange], redact: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """The differences that each plugin made, secrets masked and long values shortened.

    Args:
        redact: masks arguments that the tool's schema marks, and what looks like a secret.
    """
    rows: list[dict[str, Any]] = []
    for change in changes:
        before, after = _redacted(change.before, redact), _redacted(change.after, redact)
        secrets = sorted({*_masked(change.before, before), *_masked(change.after, after)}, key=len, reverse=True)
        found = list(
            _differences(change.before, change.after, redact_values(before, secrets), redact_values(after, secrets), ())
        )
        rows += [{"plugin": change.plugin, **row} for row in found[:MOST_ROWS]]
        if len(found) > MOST_ROWS:
            rows.append({"plugin": change.plugin, "more": len(found) - MOST_ROWS})
    return rows


def _redacted(parts: Mapping[str, Any], redact: Callable[[Any], Any]) -> dict[str, Any]:
    # Each part alone: marks of the schema apply to the arguments as a whole.
    return {name: redact(value) for name, value in parts.items()}


def _masked(raw: Any, redacted: Any) -> Iterator[str]:
    """The texts that were masked: a plugin may have copied one to another place."""
    if isinstance(raw, Mapping):
        yield from (text for text in named_secrets(raw) if len(text) >= SHORTEST)
        if isinstance(redacted, Mapping):
            for key, value in raw.items():
                yield from _masked(value, redacted.get(key))
        elif redacted != raw:
            yield from _texts(raw)
    elif isinstance(raw, list):
        if isinstance(redacted, list) and len(redacted) == len(raw):
            for one, other in zip(raw, redacted, strict=True):
                yield from _masked(one, other)
        elif redacted != raw:
            yield from _texts(raw)
    elif isinstance(raw, str) and redacted != raw and isinstance(redacted, str) and redacted.strip("*") == "":
        yield from _texts(raw)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) >= SHORTEST:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _differences(
    one: Any, two: Any, shown_one: Any, shown_two: Any, path: tuple[object, ...]
) -> Iterator[dict[str, Any]]:
    """The places at which two values differ; reports the redacted values."""
    if type(one) is type(two) and one == two:
        return
    if (
        isinstance(one, Mapping)
        and isinstance(two, Mapping)
        and isinstance(shown_one, Mapping)
        and isinstance(shown_two, Mapping)
    ):
        for key in [*one, *(key for key in two if key not in one)]:
            yield from _differences(
                one.get(key, _MISSING),
                two.get(key, _MISSING),
                shown_one.get(key, _MISSING),
                shown_two.get(key, _MISSING),
                (*path, key),
            )
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two) == len(shown_one) == len(shown_two):
        for at, parts in enumerate(zip(one, two, shown_one, shown_two, strict=True)):
            yield from _differences(*parts, (*path, at))
    else:
        row = {"path": pointer(path)}
        if shown_one is not _MISSING:
            row["before"] = _short(shown_one)
        if shown_two is not _MISSING:
            row["after"] = _short(shown_two)
        yield row


def _short(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= LONGEST else with_length(text, LONGEST)
