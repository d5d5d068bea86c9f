"""Validates tools from the code of plugins and programs by the rules of tool files.

Annotations guarantee nothing: a decorator accepts any value, and a misspelt capability could never be granted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tavern_core.contract.langchain_tools import is_tool
from tavern_core.contract.python_targets import BindsItself
from tavern_core.errors import ActivationFailed
from tavern_core.model.call_limits import ToolLimits
from tavern_core.model.capability import is_capability, known_capability
from tavern_core.model.tool import CostHints, Example, ToolSpec

LONGEST_TIMEOUT_MS: Final = 86_400_000
_UPSTREAMS: Final = {"comfyui": "url", "langchain": "package", "llm": "package", "mcp": "url", "n8n": "url"}
"""Kinds whose tools belong to an upstream → the key for its location in its entry."""
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "python": ("handler",),
    "script": ("command",),
    "service": ("service", "method"),
    "node": ("nodeType",),
    "workflow": ("workflowId",),
}
"""Kinds → the keys of `implementation` that they need to run."""
_SAMPLES: Final[Mapping[str, str]] = {
    "handler": "module:function",
    "command": "python scripts/run.py",
    "service": "clock",
    "method": "now",
    "nodeType": "my-plugin:MyNode",
    "workflowId": "workflows/my-workflow.json",
}
VERSION: Final = re.compile(r"v?[0-9][0-9A-Za-z.+!_-]{0,99}")
"""The common part of PEP 440 and Semantic Versioning."""

_OF: Final[Mapping[str, tuple[type | tuple[type, ...], str, str]]] = {
    **dict.fromkeys(("description", "display_name", "kind", "source"), (str, "text", '"..."')),
    **dict.fromkeys(("endpoint", "resource_id"), ((str, type(None)), "text or None", '"..."')),
    **dict.fromkeys(
        ("optional", "read_only", "destructive", "idempotent", "fast", "requires_approval", "job", "untrusted"),
        (bool, "True or False", "True"),
    ),
    "capabilities": (frozenset, "a list of names", '["read:fs"]'),
    **dict.fromkeys(("tags", "aliases"), (tuple, "a list of texts", '["a", "b"]')),
    "examples": (tuple, "a list of examples", '[Example({"name": "value"})]'),
    "cost_hints": (CostHints, "CostHints", "CostHints(latency_ms_p50=200)"),
    "limits": (ToolLimits, "ToolLimits", 'ToolLimits(rate="10/minute")'),
    "implementation": (Mapping, "a mapping", '{"type": "python"}'),
}
"""Descriptions and examples of the fields of a tool."""


def refuse_unsound(spec: ToolSpec, *, has_code: bool = True, kinds: Collection[str] = ()) -> None:
    """Return if every field of a tool is valid, and the tool can run as written.

    Args:
        has_code: whether the specification has its code; False: it was left out for a hook that sees the tool.
        kinds: those for which plugins contribute executors; these check their own requirements.

    Raises:
        ActivationFailed: a field is invalid; the first is reported with its repair (ACTIVATION_FAILED).
    """
    for message, hint in _mistakes(spec, has_code and spec.executor not in kinds):
        raise ActivationFailed(f"{spec.name}: {message}", hint=hint)


def _mistakes(spec: ToolSpec, must_run: bool) -> Iterator[tuple[str, str]]:
    for field, (kind, words, sample) in _OF.items():
        if not isinstance(value := getattr(spec, field), kind):
            yield f"{field} must be {words}, got {value!r:.80}", f"write {field}={sample}"
    for name in sorted(spec.capabilities, key=repr):
        if not isinstance(name, str):
            yield f"a capability is text, got {name!r:.80}", 'for example capabilities=["read:fs"]'
        elif not is_capability(name):
            yield f"{name!r:.80} is not a capability", known_capability(name)
    if not spec.kind:
        yield "kind is empty", 'write kind="python", or leave it out'
    elif must_run and (hint := _what_to_write(spec)):
        yield f"a tool of kind {spec.kind!r} cannot run as it is written", hint
    elif spec.calls_endpoint:
        from tavern_core.kernel.manifest.implementation_validation import endpoint_problems

        for key, message, hint in endpoint_problems(spec.kind, str(spec.endpoint), spec.implementation):
            yield f"{key}: {message}", hint
    for field in ("tags", "aliases"):
        if odd := [item for item in getattr(spec, field) if not isinstance(item, str)]:
            yield f"{field} must be texts, one is {odd[0]!r:.80}", f'for example {field}=["a", "b"]'
    for example in spec.examples:
        if not isinstance(example, Example):
            yield f"examples must be Example, one is {example!r:.80}", 'write Example({"name": "value"})'
        elif not isinstance(example.arguments, Mapping):
            yield (
                f"the arguments of an example are named, got {example.arguments!r:.80}",
                'write {"arguments": {"name": value}}',
            )
    if not isinstance(spec.version, str) or VERSION.fullmatch(spec.version) is None:
        yield f"{spec.version!r:.80} is not a version", 'write version="1.0.0"'
    for field in ("latency_ms_p50", "latency_ms_p95"):
        if not _is_duration(value := getattr(spec.cost_hints, field)):
            yield f"{field} must be a number of milliseconds, got {value!r:.80}", f"write CostHints({field}=200)"
    if (limit := spec.timeout_ms) is not None and (type(limit) is not int or not 0 < limit <= LONGEST_TIMEOUT_MS):
        yield (
            f"timeout_ms must be a whole number from 1 to {LONGEST_TIMEOUT_MS:,}, got {limit!r:.80}",
            "leave it out for the host's limit",
        )


def _what_to_write(spec: ToolSpec) -> str:
    """The missing keys of a tool of a built-in kind; empty: it can run, or its kind is a plugin's."""
    kind, implementation = spec.kind, spec.implementation
    if kind in _UPSTREAMS and not spec.calls_endpoint:
        # Its tools belong to an entry of tavern.yaml, whatever upstream it names, and need what the entry needs.
        is_object = isinstance(spec.impl, BindsItself) or is_tool(spec.impl)
        if kind == "langchain" and is_object and "upstream" not in implementation:
            return ""
        instead = "give the object of LangChain as impl, or " if kind == "langchain" else ""
        instead = "name the address of its webhook as endpoint, or " if kind == "n8n" else instead
        return f"{instead}write into tavern.yaml: upstreams: {{{_entry(spec)}}}"
    if kind == "core":
        return 'write kind="python" and a function as impl'
    lacking = [key for key in _NEEDED.get(kind, ()) if not implementation.get(key)]
    if lacking and (kind != "python" or spec.impl is None):
        members = ", ".join([f'"type": "{kind}"', *(f'"{key}": "{_SAMPLES[key]}"' for key in lacking)])
        return f'add "implementation": {{{members}}}'
    return ""


def _entry(spec: ToolSpec) -> str:
    """The entry of tavern.yaml for the system behind a tool."""
    place, target = _UPSTREAMS[spec.kind], spec.endpoint or "https://..."
    if place == "package":
        return f"{spec.kind}: {{kind: {spec.kind}, package: NAME}}"
    return f"{spec.kind}: {{kind: {spec.kind}, url: {target!r}}}"


def _is_duration(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < float("inf"))
