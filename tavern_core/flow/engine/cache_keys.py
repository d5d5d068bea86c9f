"""Cache keys: a hash of everything that a node's answer depends on.

    key  = H(type, type version, plugin version and code, mode, configuration, values of the file, fingerprint, content keys of its sources)
    content key = key                if the answer is a function of the key: nodes with `cache`, and inputs of a run
           H(key, run)        for every other node, so that later nodes never reuse answers of another run by mistake

Values without a text form have no key; nodes with such inputs are not cached.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from tavern_core.graph.plan import FlowStep
from tavern_core.model.node import PassThrough

SIZE: Final = 16


def fixed_key(step: FlowStep, inside: bytes = b"") -> bytes:
    """The half of a step's key that is the same in all runs.

    Args:
        inside: for a group, the key of its workflow.
    """
    spec, bypass = step.spec, step.bypass
    bypass_values = [dict(bypass.outputs), dict(bypass.defaults)] if isinstance(bypass, PassThrough) else bypass
    key_parts = [
        spec.type,
        spec.version,
        spec.plugin,
        spec.plugin_version,
        spec.code_hash,
        step.mode,
        step.kind,
        inside.hex(),
        bypass_values,
    ]
    return value_key([key_parts, dict(step.config), dict(step.values)])


def value_key(value: Any) -> bytes:
    """The hash of a value; for one that JSON cannot express, a unique random hash."""
    kinds: list[str] = []

    def written(value: Any) -> Any:
        kinds.append(type(value).__qualname__)  # a converted value must not equal the same JSON
        return _written(value)

    try:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=written)
    except (TypeError, ValueError, RecursionError):
        return secrets.token_bytes(SIZE)
    if kinds:
        text = f"{text}\0{','.join(kinds)}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=SIZE).digest()


def joined_key(fixed: bytes, parts: list[bytes]) -> bytes:
    """The key from its fixed half and the values of this run, in a fixed order."""
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
