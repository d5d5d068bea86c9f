"""Fill in missing arguments from the `default`s of a schema. Compiled once; None if there is nothing to fill.

The rules are those of AJV's `useDefaults`, which most tool authors know:
- an absent property gets its `default`; a given one keeps its value, including an explicit null;
- defaults inside an object or array item apply if that object or item exists (given, or itself a default):
  an absent parent without its own `default` is not created;
- `$ref` and `allOf` are followed; `anyOf`, `oneOf`, `if` and `not` are not, because the valid branch is not known yet.
Every call gets fresh copies. A `default` is completed with the defaults inside it once, at compile time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from tavern_core.errors import SchemaInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model import depths
from tavern_core.schema.bounded_json_copying import MAX_NODES, count_values, json_copy
from tavern_core.schema.tree import SchemaReferences, leading_to, nodes_of, normalise_schema

Fill = Callable[[Mapping[str, Any]], dict[str, Any]]
_MAX_DEFAULT_NODES = 20_000
_MAX_PLANS = 5_000
_BUSY: Any = object()


@dataclass(slots=True)
class _DefaultsPlan:
    """The defaults of one place; filled in while compiling, constant afterwards."""

    defaults: dict[str, Any] = field(default_factory=dict)
    members: dict[str, _DefaultsPlan] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()
    others: _DefaultsPlan | None = None
    """For members that are not `declared`."""
    first_items: list[_DefaultsPlan] = field(default_factory=list)
    items: _DefaultsPlan | None = None
    useful: bool = False

    def inner(self) -> Iterator[_DefaultsPlan]:
        yield from (*self.members.values(), *self.first_items)
        yield from (part for part in (self.others, self.items) if part is not None)


def compile_defaults(schema: Mapping[str, Any] | bool) -> Fill | None:
    """A function that returns arguments with the defaults filled in, or None if the schema has none.

    Args:
        schema: a checked JSON Schema (`defaultValue` counts as `default`).

    Returns:
        ``fill(arguments) -> dict``: a new dict; the arguments are not changed, parts without defaults are
        shared with the result. It never raises; a value that is not an object is returned unchanged, for the validation to refuse.

    Raises:
        SchemaInvalid: the defaults of the schema grow without bound.
    """
    if not isinstance(schema, dict) or not any(
        "default" in node or "defaultValue" in node for node in nodes_of(schema)
    ):
        return None
    return _Compiler(normalise_schema(schema)).fill()


class _Compiler:
    """Turns the schema's places into plans; one plan for one set of schemas, so recursion ends."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.refs = SchemaReferences(schema)
        self.root = schema
        self.plans: dict[tuple[int, ...], _DefaultsPlan] = {}
        self.waiting: list[tuple[_DefaultsPlan, list[dict[str, Any]]]] = []
        self.budget = _MAX_DEFAULT_NODES
        self.depth = 0

    def fill(self) -> Fill | None:
        plan = self.plan([self.root])
        while self.waiting:  # not recursive: a chain of `$ref`s may be longer than the stack
            self.compile(*self.waiting.pop())
        self.mark_useful()
        self.complete()
        if not plan.useful:
            return None
        scalars = all(not isinstance(value, dict | list) for value in plan.defaults.values())
        return _flat(plan.defaults) if scalars and not plan.members and plan.others is None else _nested(plan)

    def plan(self, schemas: list[Any]) -> _DefaultsPlan:
        """The plan for a place to which all of `schemas` apply; compiled later."""
        nodes = list(self.together(schemas))
        key = tuple(sorted(id(node) for node in nodes))
        if key not in self.plans:
            if len(self.plans) >= _MAX_PLANS:
                raise SchemaInvalid(
                    "too many combinations of `allOf` and `$ref`", hint="refer to shared parts less often"
                )
            self.plans[key] = _DefaultsPlan()
            self.waiting.append((self.plans[key], nodes))
        return self.plans[key]

    def compile(self, plan: _DefaultsPlan, nodes: list[dict[str, Any]]) -> None:
        members = _members(nodes)
        plan.declared = frozenset(members)
        for name, parts in members.items():
            for part in self.together(parts):
                if "default" in part:
                    plan.defaults.setdefault(name, part["default"])
            plan.members[name] = self.plan(parts)
        others = [node["additionalProperties"] for node in nodes if _is_schema(node.get("additionalProperties"))]
        if others and not any("patternProperties" in node for node in nodes):
            plan.others = self.plan(others)
        for node in nodes:
            first = node.get("prefixItems", node["items"] if isinstance(node.get("items"), list) else [])
            plan.first_items = plan.first_items or [self.plan([item]) for item in first]
        if items := [node["items"] for node in nodes if _is_schema(node.get("items"))]:
            plan.items = self.plan(items)

    def together(self, schemas: list[Any]) -> Iterator[dict[str, Any]]:
        """The schemas that certainly apply to one place: themselves, their references, their `allOf`."""
        return self.refs.together(schemas, ("allOf",))

    def mark_useful(self) -> None:
        """Keep only plans that lead to a default, walking back from the defaults."""
        plans = self.plans.values()
        useful = leading_to((plan for plan in plans if plan.defaults), plans, _DefaultsPlan.inner)
        for plan in plans:
            plan.useful = id(plan) in useful
        for plan in plans:
            plan.members = {name: part for name, part in plan.members.items() if part.useful}
            plan.others = plan.others if plan.others and plan.others.useful else None
            plan.items = plan.items if plan.items and plan.items.useful else None
            if not any(part.useful for part in plan.first_items):
                plan.first_items = []

    def complete(self) -> None:
        """Fill each default with the defaults inside it, so that a call only copies."""
        done: dict[tuple[int, str], Any] = {}
        for plan in list(self.plans.values()):
            for name in plan.defaults:
                self.completed(plan, name, done)
        for plan in self.plans.values():
            plan.defaults = {name: done[id(plan), name] for name in plan.defaults}

    def completed(self, plan: _DefaultsPlan, name: str, done: dict[tuple[int, str], Any]) -> Any:
        key = (id(plan), name)
        if done.get(key, plan) is _BUSY:
            raise SchemaInvalid(f"the default of {name!r} contains itself", hint="leave out the inner default")
        if key not in done:
            done[key] = _BUSY
            self.depth += 1
            if self.depth > depths.VALUE:
                raise SchemaInvalid(f"defaults inside defaults, more than {depths.VALUE} deep", hint="flatten them")
            value = json_copy(plan.defaults[name])[0]
            done[key] = self.inside(plan.members[name], value, done) if name in plan.members else value
            self.depth -= 1
        return json_copy(done[key])[0]

    def inside(self, plan: _DefaultsPlan, value: Any, done: dict[tuple[int, str], Any]) -> Any:
        """`value`, which is part of a default, completed."""
        self.budget -= 1
        if self.budget < 0:
            raise SchemaInvalid("the defaults inside the defaults grow without bound", hint="write them out once")
        if isinstance(value, dict):
            for name, item in value.items():
                if (part := _member_plan(plan, name)) is not None:
                    value[name] = self.inside(part, item, done)
            for name in [name for name in plan.defaults if name not in value]:
                value[name] = self.completed(plan, name, done)
                self.budget -= count_values(value[name])
        elif isinstance(value, list):
            for at, item in enumerate(value):
                if (part := _item_plan(plan, at)) is not None:
                    value[at] = self.inside(part, item, done)
        return value


def _members(nodes: list[dict[str, Any]]) -> dict[str, list[Any]]:
    members: dict[str, list[Any]] = {}
    for node in nodes:
        for name, part in node.get("properties", {}).items():
            members.setdefault(name, []).append(part)
    return members


def _is_schema(held: object) -> bool:
    return isinstance(held, dict)


def _member_plan(plan: _DefaultsPlan, name: str) -> _DefaultsPlan | None:
    return plan.members.get(name) if name in plan.declared else plan.others


def _item_plan(plan: _DefaultsPlan, at: int) -> _DefaultsPlan | None:
    return plan.first_items[at] if at < len(plan.first_items) else plan.items


def _flat(defaults: dict[str, Any]) -> Fill:
    """Fill only scalars at the top, which is enough for most tools."""

    def fill(arguments: Any) -> Any:
        return {**defaults, **arguments} if isinstance(arguments, dict) else arguments

    return fill


def _nested(plan: _DefaultsPlan) -> Fill:
    def fill(arguments: Any) -> Any:
        return _fill(plan, arguments, depths.VALUE, [MAX_NODES]) if isinstance(arguments, dict | list) else arguments

    return fill


def _fill(plan: _DefaultsPlan, value: Any, depth: int, budget: list[int]) -> Any:
    """`value`, completed; parts without a plan are shared. Stops at the limits: then validation refuses."""
    budget[0] -= len(value) + 1
    if depth == 0 or budget[0] < 0:
        return value
    if isinstance(value, dict):
        filled = dict(value)
        for name, default in plan.defaults.items():
            if name not in filled:
                filled[name] = json_copy(default)[0] if isinstance(default, dict | list) else default
        if plan.members or plan.others:
            for name, item in value.items():
                part = _member_plan(plan, name)
                if part is not None and isinstance(item, dict | list):
                    filled[name] = _fill(part, item, depth - 1, budget)
        return filled
    return [
        _fill(part, item, depth - 1, budget)
        if isinstance(item, dict | list) and (part := _item_plan(plan, at)) is not None
        else item
        for at, item in enumerate(value)
    ]
