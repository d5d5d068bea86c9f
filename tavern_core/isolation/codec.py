"""The values of the contract as JSON and back: calls, contexts, results, events, decisions, tools.

A packed value is ``[tag, data]``. The host may unpack data from hostile code: every field is checked, and a value that
does not match its tag raises a ValueError. Values that are neither JSON nor of the contract are not transferred.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from tavern_core.contract.decisions import Deny, RequireApproval
from tavern_core.errors import ToolFailed, sayable
from tavern_core.model.call import Budget, CallContext, Ledger, Rights, ToolCall
from tavern_core.model.event import Event
from tavern_core.model.result import Evidence, ToolError, ToolResult
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.limits import from_python, json_copy

Packed = list[Any]
"""``[tag, data]``"""

_TEXTS: Final = (
    "principal", "profile", "request_id", "task_id", "trace_id", "user_id", "workspace_dir", "agent_dir", "agent_id",
    "session_key", "message_channel", "agent_account_id",
)  # fmt: skip
_OWN: Final = frozenset({"permissions", "roles", "scopes", "budget", "ledger", "config", "sandboxed"})
assert _OWN.union(_TEXTS) == {f.name for f in fields(CallContext)}


class CannotCross(ToolFailed):
    """A value that cannot be transferred to another process (TOOL_ERROR)."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, hint="pass plain JSON: numbers, text, lists, mappings with text keys", outcome="unknown"
        )


def pack(value: Any) -> Packed:
    """`value` for the other side.

    Raises:
        CannotCross: it is neither JSON nor a value of the contract.
    """
    packer = _PACKERS.get(type(value))
    if packer is not None:
        return packer(value)
    copy, problem = json_copy(dict(value) if isinstance(value, Mapping) else value)
    if problem is not None:
        raise CannotCross(f"{type(value).__name__} cannot cross to another process: {problem}")
    return ["json", copy]


def unpack(packed: Any, known: Mapping[str, Any] | None = None) -> Any:
    """The inverse of `pack`.

    Args:
        known: values that the other side got, by tag: an answer that repeats one yields the same object.

    Raises:
        ValueError: it is not the output of `pack`.
    """
    if type(packed) is not list or len(packed) != 2 or type(packed[0]) is not str:
        raise ValueError("no packed value")
    tag, data = packed
    if tag == "json":
        return data
    if (unpacker := _UNPACKERS.get(tag)) is None:
        raise ValueError(f"no packed value: {sayable(tag, 40)!r}")
    try:
        return unpacker(data, known or {})
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"an invalid {tag}: {error!r}") from error


# Calls ------------------------------------------------------------------------------------------------------------------


def pack_context(context: CallContext) -> dict[str, Any]:
    """Everything that a plugin in the host would see of it."""
    data: dict[str, Any] = {name: value for name in _TEXTS if (value := getattr(context, name)) is not None}
    data["permissions"] = sorted(context.permissions)
    data["roles"] = sorted(context.roles)
    data["budget"] = [context.budget.timeout_ms, context.budget.max_retries, context.budget.max_tool_calls]
    data["sandboxed"] = context.sandboxed
    if context.scopes:
        data["scopes"] = {name: list(scope) for name, scope in context.scopes.items()}
    if context.config is not None:
        copy, problem = json_copy(dict(context.config))
        data["config"] = copy if problem is None else {}
    return data


def unpack_context(data: Any) -> CallContext:
    """The inverse of `pack_context`, with its own ledger."""
    texts = {name: data.get(name) for name in _TEXTS if name in data}
    if not all(type(value) is str for value in texts.values()):
        raise ValueError("an invalid context")
    return CallContext(
        permissions=frozenset(_names(data["permissions"])),
        roles=frozenset(_names(data["roles"])),
        scopes={name: tuple(_names(scope)) for name, scope in _mapping(data.get("scopes", {})).items()},
        budget=Budget(*data["budget"]),
        config=_mapping(data["config"]) if "config" in data else None,
        sandboxed=data["sandboxed"] is True,
        ledger=Ledger(),
        **texts,
    )


def _pack_call(call: ToolCall) -> Packed:
    rights = call.rights
    return ["call", {
        "tool": call.tool, "arguments": dict(call.arguments), "context": pack_context(call.context), "id": call.id,
        "purpose": call.purpose, "key": call.idempotency_key, "depth": call.depth, "door": call.door, "parent": call.parent,
        "rights": [_sorted(rights.plugin), _sorted(rights.caller), _sorted(rights.host), _sorted(rights.host_denied),
                   _sorted(rights.profile)],
        "reach": [[[name, list(scope)] for name, scope in rights.scopes], [list(place) for place in rights.places]],
    }]  # fmt: skip


def _unpack_call(data: Any, known: Mapping[str, Any]) -> ToolCall:
    shown = known.get("call")
    arguments = _mapping(data["arguments"])
    if isinstance(shown, ToolCall):  # an answer: changeable parts are new, and others must be verifiably equal
        same = _pack_call(replace(shown, arguments={}))[1] == {**data, "arguments": {}, "purpose": shown.purpose}
        if same:
            return replace(shown, arguments=arguments, purpose=_text(data["purpose"]))
    plugin, caller, host, denied, profile = (None if r is None else frozenset(_names(r)) for r in data["rights"])
    scopes = tuple((_text(name), tuple(_names(scope))) for name, scope in data["reach"][0])
    places = tuple((_text(name), _text(place)) for name, place in data["reach"][1])
    return ToolCall(
        _text(data["tool"]), arguments, unpack_context(data["context"]), _text(data["id"]), _text(data["purpose"]),
        data["key"], int(data["depth"]), _text(data["door"]), data["parent"],
        Rights(plugin or frozenset(), caller or frozenset(), host, denied or frozenset(), profile, scopes, places),
    )  # fmt: skip


# Results ----------------------------------------------------------------------------------------------------------------


def pack_result(result: ToolResult) -> Packed:
    """A result without `raw`."""
    error = result.error
    data = {
        "ok": result.ok, "value": result.value, "content": [dict(block) for block in result._content],
        "evidence": [[e.type, e.ref, e.summary, e.created] for e in result._evidence],
        "error": None if error is None else [
            error.kind, error.message, as_json(dict(error.details)), error.retryable, error.outcome, error.retry_after_ms, error.fix,
        ],
        "status": result.status, "job": result.job, "meta": None if result._meta is None else dict(result._meta),
        "trace": None if result._trace is None else list(result._trace),
    }  # fmt: skip
    copy, problem = json_copy(data)
    if problem is not None:
        raise CannotCross(f"a ToolResult cannot cross to another process: {problem}")
    return ["result", copy]


def _unpack_result(data: Any, known: Mapping[str, Any]) -> ToolResult:
    evidence = tuple(Evidence(_evidence_type(t), _text(r), _text(s), float(c)) for t, r, s, c in data["evidence"])
    error = None if data["error"] is None else _error(*data["error"])
    if data["status"] not in ("ok", "error", "input_required", "job"):
        raise ValueError("an invalid result")
    shown = known.get("result")
    trace = None if data["trace"] is None else tuple(data["trace"])
    return ToolResult(
        data["ok"] is True,
        data["value"],
        tuple(_mapping(block) for block in data["content"]),
        evidence,
        error,
        data["status"],
        None if data["job"] is None else _text(data["job"]),
        None if data["meta"] is None else _mapping(data["meta"]),
        trace=shown._trace if isinstance(shown, ToolResult) else trace if known.get("trusted") else None,
    )


def _error(
    kind: Any, message: Any, details: Any, retryable: Any, outcome: Any, retry_after: Any, fix: Any
) -> ToolError:
    if outcome not in ("none", "done", "unknown") or type(retry_after) not in (int, type(None)):
        raise ValueError("an invalid error")
    return ToolError(
        sayable(_text(kind), 64), _text(message), _mapping(details), retryable is True, outcome, retry_after, _text(fix)
    )


# Events, decisions, tools -----------------------------------------------------------------------------------------------


def _pack_event(event: Event) -> Packed:
    return ["event", [event.type, event.time, as_json(dict(event.data)), event.call_id, event.plugin, event.seq]]


def _unpack_event(data: Any, known: Mapping[str, Any]) -> Event:
    kind, time, values, call_id, plugin, seq = data
    return Event(_text(kind), float(time), _mapping(values), _text(call_id), _text(plugin), int(seq))


def _unpack_deny(data: Any, known: Mapping[str, Any]) -> Deny:
    reason, hint, details = data
    return Deny(_text(reason), _text(hint), _mapping(details))


def _unpack_approval(data: Any, known: Mapping[str, Any]) -> RequireApproval:
    reason, details = data
    return RequireApproval(_text(reason), _mapping(details))


def _unpack_other(data: Any, known: Mapping[str, Any]) -> object:
    """A placeholder with the name of the original."""
    name = _text(data)
    return type(name if name.isidentifier() and len(name) <= 100 else "object", (), {})()


def pack_tool(spec: ToolSpec) -> Packed:
    """A tool without its implementation."""
    return ["tool", as_json(spec.to_json())]


def unpack_tool(data: Any) -> ToolSpec:
    """A tool as described by the other side; ``impl`` is None.

    Raises:
        ValueError: it is invalid.
    """
    try:
        spec = ToolSpec.from_json(_mapping(data))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an invalid tool: {error!r}") from error
    texts = (spec.name, spec.description, spec.kind, spec.version, spec.display_name, spec.plugin, spec.source)
    whole = all(type(text) is str for text in texts) and all(
        type(tag) is str for tag in (*spec.tags, *spec.capabilities)
    )
    if not whole or type(spec.timeout_ms) not in (int, type(None)) or not isinstance(spec.input_schema, dict):
        raise ValueError("an invalid tool")
    return spec


def _unpack_changed_tool(data: Any, known: Mapping[str, Any]) -> ToolSpec:
    """A tool that comes back changed keeps the parts that were not transferred: its implementation and its source."""
    told, shown = unpack_tool(data), known.get("tool")
    if not isinstance(shown, ToolSpec):
        return told
    crossed = unpack_tool(pack_tool(shown)[1])
    changed = {f.name: new for f in fields(ToolSpec) if (new := getattr(told, f.name)) != getattr(crossed, f.name)}
    return replace(shown, **changed)


_PACKERS: Final[dict[type, Callable[[Any], Packed]]] = {
    ToolCall: _pack_call,
    CallContext: lambda context: ["context", pack_context(context)],
    ToolResult: pack_result,
    Event: _pack_event,
    ToolSpec: pack_tool,
    Deny: lambda deny: ["deny", [deny.reason, deny.hint, as_json(dict(deny.details))]],
    RequireApproval: lambda wish: ["approval", [wish.reason, as_json(dict(wish.details))]],
}

_UNPACKERS: Final[dict[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "call": _unpack_call,
    "context": lambda data, known: unpack_context(data),
    "result": _unpack_result,
    "event": _unpack_event,
    "tool": _unpack_changed_tool,
    "deny": _unpack_deny,
    "approval": _unpack_approval,
    "other": _unpack_other,
}


def as_json(value: Any) -> Any:
    """`value` as JSON; other parts become text, as in a record of the call."""
    copy, problem = json_copy(value)
    if problem is None:
        return copy
    copy, problem = json_copy(from_python(value, fallback=repr, inf_nan_mode="strings"))
    if problem is not None:
        raise CannotCross(f"it cannot cross to another process: {problem}")
    return copy


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _names(data: Any) -> list[str]:
    if type(data) is not list or not all(type(name) is str for name in data):
        raise ValueError("no list of names")
    return data


def _text(data: Any) -> str:
    if type(data) is not str:
        raise ValueError("no text")
    return data


def _mapping(data: Any) -> dict[str, Any]:
    if type(data) is not dict:
        raise ValueError("no mapping")
    return data


def _evidence_type(data: Any) -> Any:
    if data not in ("tool", "file", "url", "text", "metric"):
        raise ValueError("no kind of evidence")
    return data
