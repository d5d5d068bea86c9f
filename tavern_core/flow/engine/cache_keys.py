"""Cache keys: what a node's answer depends on, as a hash.

    key  = H(type, type version, plugin version and code, mode, configuration, values of the file, fingerprint, marks of what feeds it)
    mark = key                where the answer is a function of the key: nodes with `cache`, and what a run starts from
           H(key, run)        for every other node, so that nothing behind it is taken from another run by mistake

Values that no text can hold have no key of their own; a node fed by them is not cached.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from tavern_core.graph.plan import Step
from tavern_core.model.node import PassThrough

SIZE: Final = 16


def fixed_key(step: Step, inside: bytes = b"") -> bytes:
    """The half of a step's key that no run changes.

    Args:
        inside: of a group, the key of what it stands for.
    """
    spec, bypass = step.spec, step.bypass
    given = [dict(bypass.outputs), dict(bypass.defaults)] if isinstance(bypass, PassThrough) else bypass
    said = [
        spec.type,
        spec.version,
        spec.plugin,
        spec.plugin_version,
        spec.code_hash,
        step.mode,
        step.kind,
        inside.hex(),
        given,
    ]
    return value_key([said, dict(step.config), dict(step.values)])


def value_key(value: Any) -> bytes:
    """The hash of a value; of one that JSON cannot hold a random one, equal to no other."""
    kinds: list[str] = []

    def written(value: Any) -> Any:
        kinds.append(type(value).__qualname__)  # what is written as JSON must not equal JSON of the same looks
        return _written(value)

    try:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=written)
    except (TypeError, ValueError, RecursionError):
        return secrets.token_bytes(SIZE)
    if kinds:
        text = f"{text}\0{','.join(kinds)}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=SIZE).digest()


def joined_key(fixed: bytes, parts: list[bytes]) -> bytes:
    """A key of its fixed half and what this run adds, in a fixed order."""
    return blake2b(b"".join((fixed, *parts)), digest_size=SIZE).digest()


def _written(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, set | frozenset):
        return {"$set": sorted(map(repr, value))}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        return {type(value).__qualname__: value.model_dump(mode="json")}
    raise TypeError(type(value).__name__)
