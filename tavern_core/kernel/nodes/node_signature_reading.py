"""Reads node specifications from a plugin's objects: the signature gives the slots, the docstring their texts."""

from __future__ import annotations

import enum
import functools
import inspect
import types
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, Optional, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaMode

from tavern_core.contract.nodes import Node, NodeContext, NodeMark, Out, Port, Stream, node_mark_of
from tavern_core.errors import ActivationFailed
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.nodes.annotation_coercion import coerce, why_not
from tavern_core.kernel.nodes.annotation_coercion import plain as plain_of
from tavern_core.kernel.nodes.node_callable import CallForm, NodeCode, code_hash
from tavern_core.kernel.nodes.node_rules import definition_mismatch
from tavern_core.model.naming_rules import RESERVED_NAMESPACES, is_local_name
from tavern_core.model.node import COMBO, JSON_TYPES, NodeSpec, Slot
from tavern_core.schema.annotations import (
    ConstraintInvalid,
    NoSchema,
    description_in,
    only_describes,
    simple,
    standing_alone,
)
from tavern_core.schema.docstring import docstring_of

SINGLE_OUTPUT: Final = "result"
"""The output of a node that does not name its outputs."""
_AS_MARKED: Final = (
    "display_name", "category", "version", "deprecated", "replaced_by", "replaces", "experimental", "is_preview_unsafe",
    "bypass", "default_mode", "mode_config_key", "client_script_url", "width", "is_ui_node", "cache", "idempotent", "fast",
    "timeout_ms", "limit", "resource", "capabilities",
)  # fmt: skip
"""The fields that a specification takes from the mark unchanged."""
_SCALARS: Final[Mapping[Any, str]] = {
    str: "STRING",
    int: "INTEGER",
    float: "FLOAT",
    bool: "BOOLEAN",
    bytes: "BINARY",
    bytearray: "BINARY",
    dict: "OBJECT",
    list: "ARRAY",
    tuple: "ARRAY",
    set: "ARRAY",
    frozenset: "ARRAY",
    Any: "WILDCARD",
    object: "WILDCARD",
    None: "WILDCARD",
    inspect.Parameter.empty: "WILDCARD",
}


@dataclass(frozen=True, slots=True)
class NodeOwner:
    """The plugin that contributes a node."""

    name: str
    version: str
    is_builtin: bool = False
    artifact: str = ""
    """The hash of its files; empty: of an object that a program made."""


def describe_nodes(offer: Any, owner: NodeOwner) -> list[NodeSpec]:
    """The nodes in what `tavern_register_nodes` returned: one, or any number in lists.

    Raises:
        ActivationFailed: something is not a node, or its name or signature cannot be used (ACTIVATION_FAILED).
    """
    if offer is None:
        return []
    if isinstance(offer, NodeSpec):
        spec = _owned(offer, owner)
        return [spec if owner.is_builtin else _judged(spec, None)]  # those of the host are checked by its tests
    if node_mark_of(offer) is not None:
        return [describe_node(offer, owner)]
    if isinstance(offer, Iterable) and not isinstance(offer, str | bytes | Mapping):
        return [spec for item in offer for spec in describe_nodes(item, owner)]
    raise ActivationFailed(
        f"{owner.name} offers {offer!r:.100} as a node",
        hint="return functions marked with @node, or subclasses of Node",
    )


def describe_node(offer: Any, owner: NodeOwner) -> NodeSpec:
    """Describe a marked function or class as a specification. Raises as `describe_nodes`."""
    return _described_once(offer, owner) if owner.is_builtin else _described(offer, owner)


def _described(offer: Any, owner: NodeOwner) -> NodeSpec:
    mark = node_mark_of(offer)
    assert mark is not None
    return _NodeReader(offer, mark, owner).spec()


_described_once = functools.cache(_described)
"""The built-in nodes are the same in every host of a process."""


def _owned(spec: NodeSpec, owner: NodeOwner) -> NodeSpec:
    return replace(
        spec,
        type=_full_type(spec.type, owner),
        plugin=owner.name,
        plugin_version=owner.version,
        code_hash=owner.artifact,
    )


def _judged(spec: NodeSpec, takes: Collection[str] | None) -> NodeSpec:
    """`spec`, unless something is wrong with it. Raises as `describe_nodes`."""
    if why := definition_mismatch(spec, takes):
        where = f" at {spec.source}" if spec.source else ""
        raise ActivationFailed(
            f"{spec.plugin}: {spec.type}{where} cannot be a node: {why}", hint="correct its definition"
        )
    return spec


def _full_type(written: str, owner: NodeOwner) -> str:
    namespace, colon, local = written.rpartition(":")
    own_namespace = "core" if owner.is_builtin else owner.name
    if not is_local_name(local):
        raise ActivationFailed(
            f"{owner.name}: {written!r} is not a node type",
            hint=f"write {own_namespace}:Name; a name has 1 to 64 of A-Z a-z 0-9 _ . -",
        )
    if colon and namespace != own_namespace:
        why = "is reserved for the host" if namespace in RESERVED_NAMESPACES else "belongs to another plugin"
        raise ActivationFailed(
            f"{owner.name}: the namespace of node type {written!r} {why}",
            hint=f"write {own_namespace}:{local}, or {local} alone",
        )
    return f"{own_namespace}:{local}"


@dataclass(frozen=True, slots=True)
class _ValueType:
    """The type of values by their annotation: `dataFlowType`, schema, conversion from plain data, allowed values."""

    type: str
    schema: Mapping[str, Any] | None = None
    adapter: TypeAdapter[Any] | None = None
    choices: tuple[Any, ...] | None = None

    @property
    def says_no_more(self) -> bool:
        """True if type, bounds and choices of a slot express all of it."""
        return self.adapter is None or self.choices is not None


class _NodeReader:
    """Reads one marked function or class."""

    def __init__(self, offer: Any, mark: NodeMark, owner: NodeOwner) -> None:
        self.mark, self.owner = mark, owner
        self.cls = offer if isinstance(offer, type) else None
        self.name = mark.type or getattr(offer, "__name__", type(offer).__name__)
        self.where = ""
        if self.cls is not None and not issubclass(self.cls, Node):
            raise self._refuse("it is a class, but none derived from Node", f"class {self.cls.__name__}(Node): ...")
        if self.cls is not None and not callable(getattr(self.cls, "run", None)):
            raise self._refuse("it has no method run", "async def run(self, ctx: NodeContext, ...) -> Out(...): ...")
        self.function: Callable[..., Any] = offer.run if self.cls else offer
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        self.where = f"{code.co_filename}:{code.co_firstlineno}" if code else ""

    def _check_mark(self) -> None:
        for key in ("config_schema", "config_values", "modes"):
            if not isinstance(getattr(self.mark, key) or {}, Mapping):
                raise self._refuse(f"{key} is not a mapping", f"{key}={{...}}")

    def _inputs(
        self, hints: Mapping[str, Any], words: Mapping[str, str]
    ) -> tuple[dict[str, Slot], dict[str, TypeAdapter[Any]], str, bool]:
        """The inputs, their converters, the parameter that gets the context, and whether it takes any others.

        Args:
            words: the descriptions of the parameters in the docstring.
        """
        inputs: dict[str, Slot] = {}
        adapters: dict[str, TypeAdapter[Any]] = {}
        context, takes_all = "", False
        for name, parameter in self._parameters():
            hint = hints.get(name, parameter.annotation)
            if _is_context(hint) or (name == "ctx" and hint is inspect.Parameter.empty):
                context = name
                continue
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                takes_all = True
                continue
            if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
                raise self._refuse(f"parameter {name!r} cannot be given by name", "use plain parameters")
            hint = Any if hint is inspect.Parameter.empty else hint
            inputs[name], adapter = self._input(name, hint, parameter.default, words.get(name, ""))
            if adapter is not None:
                adapters[name] = adapter
        return inputs, adapters, context, takes_all

    def spec(self) -> NodeSpec:
        mark = self.mark
        hints = self._hints()
        words = docstring_of(self.function)
        inputs, adapters, context, takes_all = self._inputs(hints, words.parameters)
        form = _form(self.function)
        named = isinstance(_bare(hints.get("return")), Out)
        outputs, answers = self._outputs(hints.get("return", inspect.Signature.empty))
        code = NodeCode(self.function, form, context, adapters, self.cls, takes_all, named, self.where, answers)
        self._check_mark()
        doc = words.description or (inspect.getdoc(self.cls) if self.cls and self.cls.__doc__ else "") or ""
        spec = NodeSpec(
            _full_type(self.name, self.owner),
            inputs,
            outputs,
            description=mark.description or doc,
            dynamic_slots=mark.dynamic_slots or takes_all,
            config_schema=dict(mark.config_schema or {}),
            config_values=dict(mark.config_values or {}),
            modes=dict(mark.modes or {}),
            plugin=self.owner.name,
            plugin_version=self.owner.version,
            code_hash=self.owner.artifact or ("" if self.owner.is_builtin else code_hash(self.cls or self.function)),
            source=self.where,
            impl=code,
            **{name: getattr(mark, name) for name in _AS_MARKED},
        )
        return _judged(spec, None if takes_all else inputs)

    def _hints(self) -> dict[str, Any]:
        target = inspect.unwrap(self.function)
        try:
            return typing.get_type_hints(target, include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            raise self._refuse(
                f"an annotation cannot be read ({error})", "import what it names at the top of the module"
            ) from error

    def _parameters(self) -> list[tuple[str, inspect.Parameter]]:
        found = list(inspect.signature(self.function).parameters.items())
        return found[1:] if self.cls is not None else found

    def _input(self, name: str, hint: Any, default: Any, words: str) -> tuple[Slot, TypeAdapter[Any] | None]:
        hint = _lifted(hint)
        port = _port_in(hint) or Port()
        bounds = _bounds_in(hint)
        plain, optional = _without_none(_bare(hint))
        is_stream = plain is Stream or get_origin(plain) is Stream
        part = next(iter(get_args(plain)), Any) if port.multi or is_stream else plain
        typed = self._type_of(part, () if port.multi or is_stream else _constraints_in(hint), name, "validation")
        adapter = typed.adapter
        if port.multi and not is_stream and (adapter is not None or _constraints_in(hint)):
            adapter = self._type_of(list[part], _constraints_in(hint), name, "validation").adapter  # type: ignore[valid-type]
        config = {**bounds, **port.config}
        if typed.choices is not None and "suggestions" not in config:
            config["suggestions"] = [{"value": choice, "label": str(choice)} for choice in typed.choices]
        categories = port.categories
        if typed.choices is not None and COMBO not in categories:
            categories = (*categories, COMBO)
        has_default = default is not inspect.Parameter.empty
        if has_default and default is not None:
            config["default"] = plain_of(default)
            self._judge_default(name, adapter, config["default"])
        required = port.required if port.required is not None else not (has_default or optional or port.lazy)
        slot = Slot(
            name, port.type or typed.type, port.display_name, port.description or description_in(hint) or words, required,
            categories, config, port.multi, is_stream, port.lazy, hide_handle=port.hide_handle,
            max_connections=port.max_connections, schema=None if port.type or typed.says_no_more else typed.schema,
        )  # fmt: skip
        if slot.type not in JSON_TYPES:
            raise self._refuse(
                f"Port(type={slot.type!r}) of {name!r} is not a dataFlowType", f"one of {', '.join(JSON_TYPES)}"
            )
        return slot, adapter

    def _judge_default(self, name: str, adapter: TypeAdapter[Any] | None, default: Any) -> None:
        try:
            if adapter is not None:
                coerce(adapter, default)
        except ValidationError as error:
            raise self._refuse(
                f"the default of {name!r} does not fit its annotation: {why_not(error)}", "correct the default"
            ) from None

    def _type_of(self, hint: Any, constraints: tuple[Any, ...], name: str, mode: JsonSchemaMode) -> _ValueType:
        """The type of values by their annotation.

        Args:
            hint: without Annotated and None around it.
            constraints: the rest of Annotated.
        """
        origin = get_origin(hint) or hint
        choices = get_args(hint) if origin is Literal else None
        if isinstance(origin, type) and issubclass(origin, enum.Enum):
            choices = tuple(member.value for member in origin)
        if choices is not None:
            kinds = {type(choice) for choice in choices}
            kind = _SCALARS.get(kinds.pop(), "WILDCARD") if len(kinds) == 1 else "WILDCARD"
            schema = {"enum": list(choices)}
            return _ValueType(kind, schema, None if origin is Literal else TypeAdapter(hint), choices)
        annotation = Annotated[(hint, *constraints)] if constraints else hint
        simply = simple(annotation)
        if simply is not None and (not simply or (simply.keys() == {"type"} and isinstance(simply["type"], str))):
            return _ValueType(_SCALARS.get(origin, "WILDCARD"), simply)
        try:
            found, adapter = standing_alone(annotation, mode)
        except NoSchema as error:
            hint = error.hint if isinstance(error, ConstraintInvalid) else "use a plain type or a model"
            raise self._refuse(f"the annotation of {name!r} cannot be used ({error})", hint) from error
        kind = _flow_of(origin, found)
        if kind == "BINARY" or (
            found is not None and kind in ("INTEGER", "FLOAT") and found.keys() <= {"type", "minimum", "maximum"}
        ):
            return _ValueType(kind, found)  # the slot itself says all of it
        return _ValueType(kind, found, adapter)

    def _outputs(self, hint: Any) -> tuple[dict[str, Slot], dict[str, TypeAdapter[Any]]]:
        """The outputs, and the checks of objects among them."""
        hint = _bare(hint)
        if isinstance(hint, Out):
            found = {key: self._output(key, part) for key, part in hint.slots.items()}
        elif hint is Out or hint is inspect.Signature.empty:
            found = {SINGLE_OUTPUT: (Slot(SINGLE_OUTPUT), None)}
        elif hint is None or hint is type(None):
            found = {}
        elif get_origin(hint) in (AsyncIterator, AsyncGenerator) or (isinstance(hint, type) and hint is AsyncIterator):
            slot, adapter = self._output(SINGLE_OUTPUT, next(iter(get_args(hint)), Any))
            found = {SINGLE_OUTPUT: (replace(slot, is_stream=True), adapter)}
        else:
            found = {SINGLE_OUTPUT: self._output(SINGLE_OUTPUT, hint)}
        return {key: slot for key, (slot, _) in found.items()}, {
            k: adapter for k, (_, adapter) in found.items() if adapter is not None
        }

    def _output(self, key: str, hint: Any) -> tuple[Slot, TypeAdapter[Any] | None]:
        hint = _lifted(hint)
        port = _port_in(hint) or Port()
        plain, optional = _without_none(_bare(hint))
        is_stream = plain is Stream or get_origin(plain) is Stream or isinstance(plain, Stream)
        constraints = _constraints_in(hint)
        if is_stream:
            plain, optional = _without_none(plain.of if isinstance(plain, Stream) else next(iter(get_args(plain)), Any))
            constraints = ()
        typed = self._type_of(plain, constraints, key, "serialization")
        schema = None if port.type else typed.schema
        if schema and optional:
            definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
            schema = {"anyOf": [{k: v for k, v in schema.items() if k != "$defs"}, {"type": "null"}], **definitions}
        slot = Slot(
            key, port.type or typed.type, port.display_name, port.description or description_in(hint), False, port.categories,
            port.config, False, is_stream, schema=schema or None,
        )  # fmt: skip
        return slot, typed.adapter

    def _refuse(self, what: str, hint: str) -> ActivationFailed:
        where = f" at {self.where}" if self.where else ""
        return ActivationFailed(f"{self.owner.name}: {self.name}{where} cannot be a node: {what}", hint=hint)


def _form(function: Callable[..., Any]) -> CallForm:
    plain = inspect.unwrap(function)
    if inspect.isasyncgenfunction(plain):
        return "stream"
    if inspect.isgeneratorfunction(plain):
        return "sync_stream"
    return "async" if inspect.iscoroutinefunction(plain) else "sync"


def _is_context(hint: Any) -> bool:
    return isinstance(_bare(hint), type) and issubclass(_bare(hint), NodeContext)


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _lifted(hint: Any) -> Any:
    """``Annotated[str, Port()] | None`` as ``Annotated[str | None, Port()]``: both are written, and mean the same."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
        if len(parts) == 1 and len(get_args(hint)) == 2 and get_origin(parts[0]) is Annotated:
            plain, *extras = get_args(parts[0])
            return Annotated[(Optional[plain], *extras)]  # noqa: UP045
    return hint


def _port_in(hint: Any) -> Port | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((extra for extra in get_args(hint)[1:] if isinstance(extra, Port)), None)


def _bounds_in(hint: Any) -> dict[str, Any]:
    """Bounds written for pydantic: ``Annotated[int, Field(ge=1, le=9)]``."""
    found: dict[str, Any] = {}
    if get_origin(hint) is Annotated:
        for extra in get_args(hint)[1:]:
            for part in extra.metadata if isinstance(extra, FieldInfo) else (extra,):
                for key, name in (("ge", "min"), ("le", "max")):
                    if (bound := getattr(part, key, None)) is not None:
                        found[name] = bound
    return found


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
        if len(parts) < len(get_args(hint)):
            return (parts[0] if len(parts) == 1 else Union[tuple(parts)]), True  # noqa: UP007
    return hint, False


def _constraints_in(hint: Any) -> tuple[Any, ...]:
    """The constraints in Annotated: neither texts nor parts for the slot."""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return tuple(extra for extra in extras if not isinstance(extra, Port) and not only_describes(extra))


def _flow_of(origin: Any, schema: Mapping[str, Any] | None) -> str:
    """The `dataFlowType` of an annotation."""
    try:
        if origin in _SCALARS:
            return _SCALARS[origin]
    except TypeError:
        pass
    if schema is None:
        return "WILDCARD"  # the plugin's own type, passed between its nodes
    if isinstance(origin, type) and issubclass(origin, typing.cast("type", Mapping)):
        return "OBJECT"
    reference = str(schema.get("$ref", "")).rpartition("/")[2]
    found = schema["$defs"][reference] if reference else schema
    return next(
        (flow for flow, kind in JSON_TYPES.items() if kind is not None and kind == found.get("type")), "WILDCARD"
    )
