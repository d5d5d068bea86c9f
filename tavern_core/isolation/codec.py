"""The JSON form of values that cross between host and worker: `Codec`, and its table for calls and results.

The first request to a worker, `WorkerSetup`, is plain JSON.

    CALLS.decode(CALLS.encode(call))            `node_codec` has the tables of nodes and of hooks, `error_codec` the errors

A packed value is ``[tag, data]``. The host decodes data of hostile code: every field is checked, and a value that does
not match its tag raises a ValueError. Values that are not JSON and in no table cannot cross.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tavern_core.contract.decisions import Deny, RequireApproval
from tavern_core.errors import Outcome, ToolFailed, sayable
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.result_serialization import result_json, result_of
from tavern_core.model.call import Budget, CallContext, Ledger, Rights, ToolCall
from tavern_core.model.event import Event
from tavern_core.model.result import ToolResult
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.bounded_json_copying import from_python, json_copy, json_or

Packed = list[Any]
"""``[tag, data]``"""
SharedObjects = Mapping[str, Any]
"""Sent values by name: an answer that repeats one gives the same object. `trusted`: the other side is the host."""

_TEXTS: Final = (
    "principal", "profile", "request_id", "task_id", "trace_id", "user_id", "workspace_dir", "agent_dir", "agent_id",
    "session_key", "message_channel", "agent_account_id", "after_untrusted",
)  # fmt: skip
_OWN: Final = frozenset({"permissions", "roles", "scopes", "budget", "ledger", "config", "sandboxed"})
assert _OWN.union(_TEXTS) == {f.name for f in fields(CallContext)}


class CannotCross(ToolFailed):
    """A value that cannot be transferred to another process (TOOL_ERROR)."""

    def __init__(self, message: str, outcome: Outcome = "unknown") -> None:
        super().__init__(
            message, hint="pass plain JSON: numbers, text, lists, mappings with text keys", outcome=outcome
        )


class TypeCodec(NamedTuple):
    """The transfer of values of some types: their tag, a function to JSON (None: never sent), and a function back."""

    tag: str
    types: tuple[type, ...]
    encode: Callable[[Any], Any] | None
    decode: Callable[[Any, SharedObjects], Any]


class Codec:
    """Packs plain JSON and values of some types as ``[tag, data]``, and unpacks them.

    Args:
        coded: the table of types.
        rest: packs values that are neither JSON nor in the table, or raises CannotCross.
    """

    def __init__(self, *coded: TypeCodec, rest: TypeCodec | None = None) -> None:
        self._rest = rest
        self._coded = {type_: each for each in coded for type_ in each.types}
        self._decoders = {each.tag: each.decode for each in (*coded, *((rest,) if rest else ()))}

    def encode(self, value: Any) -> Packed:
        """`value` in packed form. Raises CannotCross: it is neither JSON nor of a type in the table."""
        if (coded := self._coded.get(type(value))) is not None and coded.encode is not None:
            return [coded.tag, coded.encode(value)]
        copy, problem = json_copy(dict(value) if isinstance(value, Mapping) else value)
        if problem is None:
            return ["json", copy]
        if self._rest is not None and self._rest.encode is not None:
            return [self._rest.tag, self._rest.encode(value)]
        raise CannotCross(f"{type(value).__name__} cannot cross to another process: {problem}")

    def decode(self, packed: Any, known: SharedObjects = MappingProxyType({})) -> Any:
        """The inverse of `encode`. Raises ValueError: `encode` cannot have made it."""
        if type(packed) is not list or len(packed) != 2 or type(packed[0]) is not str:
            raise ValueError("no packed value")
        tag, data = packed
        if tag == "json":
            return data
        if (decoder := self._decoders.get(tag)) is None:
            raise ValueError(f"no packed value: {sayable(tag, 40)!r}")
        try:
            return decoder(data, known)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"an invalid {tag}: {error!r}") from error


# Fields of received data ----------------------------------------------------------------------------------------------


def text_of(data: Any) -> str:
    """`data`, which must be text. Raises ValueError."""
    if type(data) is not str:
        raise ValueError("no text")
    return data


def names_of(data: Any) -> list[str]:
    """`data`, which must be a list of texts. Raises ValueError."""
    if type(data) is not list or not all(type(name) is str for name in data):
        raise ValueError("no list of names")
    return data


def mapping_of(data: Any) -> dict[str, Any]:
    """`data`, which must be an object. Raises ValueError."""
    if type(data) is not dict:
        raise ValueError("no mapping")
    return data


def decode_items(data: Any, *readers: Callable[[Any], Any]) -> list[Any]:
    """The items of a list, each read by its own reader. Raises ValueError: one is refused, or the count differs."""
    return [reader(item) for reader, item in zip(readers, data, strict=True)]


def as_json(value: Any) -> Any:
    """`value` as JSON; parts without a JSON form become text, as in the record of a call."""
    copy, problem = json_copy(value)
    return copy if problem is None else crossing("it", from_python(value, fallback=repr, inf_nan_mode="strings"))


def crossing(what: str, value: Any) -> Any:
    """`value`, which must be JSON.

    Args:
        what: a name for the value, for the message.

    Raises:
        CannotCross: it is not JSON.
    """
    copy, problem = json_copy(value)
    if problem is not None:
        raise CannotCross(f"{what} cannot cross to another process: {problem}")
    return copy


# Calls ------------------------------------------------------------------------------------------------------------------


def pack_context(context: CallContext) -> dict[str, Any]:
    """A context as a plugin in the host would see it."""
    data: dict[str, Any] = {name: value for name in _TEXTS if (value := getattr(context, name)) is not None}
    data["permissions"] = sorted(context.permissions)
    data["roles"] = sorted(context.roles)
    data["budget"] = [context.budget.timeout_ms, context.budget.max_retries, context.budget.max_tool_calls]
    data["sandboxed"] = context.sandboxed
    if context.scopes:
        data["scopes"] = {name: list(scope) for name, scope in context.scopes.items()}
    if context.config is not None:
        data["config"] = json_or(dict(context.config), {})
    return data


def unpack_context(data: Any) -> CallContext:
    """The inverse of `pack_context`, with its own ledger."""
    texts = {name: data.get(name) for name in _TEXTS if name in data}
    if not all(type(value) is str for value in texts.values()):
        raise ValueError("an invalid context")
    return CallContext(
        permissions=frozenset(names_of(data["permissions"])),
        roles=frozenset(names_of(data["roles"])),
        scopes={name: tuple(names_of(scope)) for name, scope in mapping_of(data.get("scopes", {})).items()},
        budget=Budget(*data["budget"]),
        config=mapping_of(data["config"]) if "config" in data else None,
        sandboxed=data["sandboxed"] is True,
        ledger=Ledger(),
        **texts,
    )


def _pack_call(call: ToolCall) -> dict[str, Any]:
    rights = call.rights
    return {
        "tool": call.tool, "arguments": dict(call.arguments), "context": pack_context(call.context), "id": call.id,
        "purpose": call.purpose, "key": call.idempotency_key, "depth": call.depth, "door": call.door, "parent": call.parent,
        "rights": [_sorted(rights.plugin), _sorted(rights.caller), _sorted(rights.host), _sorted(rights.host_denied),
                   _sorted(rights.profile)],
        "reach": [[[name, list(scope)] for name, scope in rights.scopes], [list(place) for place in rights.places]],
    }  # fmt: skip


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _unpack_call(data: Any, known: SharedObjects) -> ToolCall:
    shown = known.get("call")
    arguments = mapping_of(data["arguments"])
    if isinstance(shown, ToolCall):  # an answer: it may change some fields, and the others must be the same
        same = _pack_call(replace(shown, arguments={})) == {**data, "arguments": {}, "purpose": shown.purpose}
        if same:
            return replace(shown, arguments=arguments, purpose=text_of(data["purpose"]))
    plugin, caller, host, denied, profile = (None if r is None else frozenset(names_of(r)) for r in data["rights"])
    scopes = tuple((text_of(name), tuple(names_of(scope))) for name, scope in data["reach"][0])
    places = tuple((text_of(name), text_of(place)) for name, place in data["reach"][1])
    return ToolCall(
        text_of(data["tool"]), arguments, unpack_context(data["context"]), text_of(data["id"]), text_of(data["purpose"]),
        data["key"], int(data["depth"]), text_of(data["door"]), data["parent"],
        Rights(plugin or frozenset(), caller or frozenset(), host, denied or frozenset(), profile, scopes, places),
    )  # fmt: skip


# Results ----------------------------------------------------------------------------------------------------------------


def _pack_result(result: ToolResult) -> Any:
    """A result without `raw`."""
    data = result_json(result, with_call=True)
    if result.error is not None:
        data["error"]["details"] = as_json(data["error"]["details"])
    return crossing("a ToolResult", data)


def _unpack_result(data: Any, known: SharedObjects) -> ToolResult:
    """A result; the data about its call come from the host only."""
    shown = known.get("result")
    is_trusted = known.get("trusted") and not isinstance(shown, ToolResult)
    result = result_of(data if is_trusted else {**mapping_of(data), "call": None})
    if isinstance(shown, ToolResult):
        result = result.replace(trace=shown._trace)
    if result.error is not None:
        result = result.replace(error=replace(result.error, kind=sayable(result.error.kind, 64)))
    return result


# Events, decisions, tools -----------------------------------------------------------------------------------------------


def _pack_event(event: Event) -> list[Any]:
    return [event.type, event.time, as_json(dict(event.data)), event.call_id, event.plugin, event.seq]


def _unpack_event(data: Any, known: SharedObjects) -> Event:
    return Event(*decode_items(data, text_of, float, mapping_of, text_of, text_of, int))


def _unpack_deny(data: Any, known: SharedObjects) -> Deny:
    return Deny(*decode_items(data, text_of, text_of, mapping_of))


def _unpack_approval(data: Any, known: SharedObjects) -> RequireApproval:
    return RequireApproval(*decode_items(data, text_of, mapping_of))


def _unpack_other(data: Any, known: SharedObjects) -> object:
    """An object that only has the name of the original's type."""
    name = text_of(data)
    return type(name if name.isidentifier() and len(name) <= 100 else "object", (), {})()


def preview_key(key: str) -> str:
    """The key for the preview of a tool."""
    return f"preview {key}"


def pack_tool(spec: ToolSpec) -> Any:
    """A tool without its code."""
    return as_json(spec.marked_json())


def unpack_tool(data: Any) -> ToolSpec:
    """A tool as the other side describes it; ``impl`` is None. Raises ValueError: it is invalid."""
    try:
        spec = ToolSpec.from_json(mapping_of(data))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an invalid tool: {error!r}") from error
    texts = (spec.name, spec.description, spec.kind, spec.version, spec.display_name, spec.plugin, spec.source)
    is_valid = all(type(text) is str for text in texts) and all(
        type(tag) is str for tag in (*spec.tags, *spec.capabilities)
    )
    if not is_valid or type(spec.timeout_ms) not in (int, type(None)) or not isinstance(spec.input_schema, dict):
        raise ValueError("an invalid tool")
    return spec


def _unpack_changed_tool(data: Any, known: SharedObjects) -> ToolSpec:
    """A tool that was sent and returned changed; fields that did not cross keep their values."""
    unpacked, shown = unpack_tool(data), known.get("tool")
    if not isinstance(shown, ToolSpec):
        return unpacked
    crossed = unpack_tool(pack_tool(shown))
    changed = {f.name: new for f in fields(ToolSpec) if (new := getattr(unpacked, f.name)) != getattr(crossed, f.name)}
    return replace(shown, **changed)


CALL_TABLE: Final = (
    TypeCodec("call", (ToolCall,), _pack_call, _unpack_call),
    TypeCodec("context", (CallContext,), pack_context, lambda data, known: unpack_context(data)),
    TypeCodec("result", (ToolResult,), _pack_result, _unpack_result),
    TypeCodec("event", (Event,), _pack_event, _unpack_event),
    TypeCodec("tool", (ToolSpec,), pack_tool, _unpack_changed_tool),
    TypeCodec("deny", (Deny,), lambda deny: [deny.reason, deny.hint, as_json(dict(deny.details))], _unpack_deny),
    TypeCodec(
        "approval", (RequireApproval,), lambda asked: [asked.reason, as_json(dict(asked.details))], _unpack_approval
    ),
    TypeCodec("other", (), None, _unpack_other),
)
CALLS: Final = Codec(*CALL_TABLE)
"""The table for calls, their answers, and the answers of hooks on calls."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The first request to a worker."""

    plugin: str
    version: str
    module: str
    """The importable package of an installed plugin; empty for one in a folder."""
    folder: str
    """The folder of plugin.yaml; empty for a package in a zip."""
    data_dir: str
    executor: tuple[str, str]
    """Module and class of the executor for tools of kind ``python``, as in the host."""
    aliases: Mapping[str, str]
    manifest: Mapping[str, Any]
    limits: Mapping[str, Any]
    """`LimitsConfig` as JSON."""
    context: Mapping[str, Any]
    """The facts of its `PluginContext`."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkerSetup:
        """The inverse of `to_json`."""
        module, name = data["executor"]
        return cls(**{**data, "executor": (module, name)})
