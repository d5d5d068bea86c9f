"""How a plugin defines a tool: as a decorated function, an object, a factory or a toolbox.

Nothing here registers anything. The host reads the marks when the plugin returns its tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload, runtime_checkable

from tavern_core.errors import UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.call_limits import NO_LIMITS, ToolLimits
from tavern_core.model.tool import Example, ToolSpec

if TYPE_CHECKING:
    from tavern_core.model.call import CallContext

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__tavern_tool__"


@dataclass(frozen=True, slots=True)
class ToolMark:
    """The options of `@tool`; everything else comes from the signature and the docstring."""

    name: str = ""
    display_name: str = ""
    description: str = ""
    capabilities: frozenset[str] = frozenset()
    tags: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    fast: bool = False
    optional: bool = False
    timeout_ms: int | None = None
    requires_approval: bool = False
    parameters: Mapping[str, Any] | None = None
    output: Mapping[str, Any] | bool | None = None
    version: str = ""
    job: bool = False
    limits: ToolLimits = NO_LIMITS
    preview: Callable[..., Any] | None = None
    untrusted: bool = False


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str = "",
    display_name: str = "",
    description: str = "",
    capabilities: Iterable[str] = (),
    tags: Iterable[str] = (),
    examples: Iterable[Example | Mapping[str, Any]] = (),
    read_only: bool = False,
    destructive: bool = False,
    idempotent: bool = False,
    fast: bool = False,
    optional: bool = False,
    timeout_ms: int | None = None,
    requires_approval: bool = False,
    parameters: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | bool | None = None,
    version: str = "",
    job: bool = False,
    limits: ToolLimits | Mapping[str, Any] = NO_LIMITS,
    preview: Callable[..., Any] | None = None,
    untrusted: bool = False,
) -> Callable[[F], F]: ...


def tool(function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
    """Mark a function or method as a tool, without changing it.

    Args:
        name: local name; default: the function's.
        display_name: for people.
        description: default: the docstring without its argument section.
        capabilities: what it may access, e.g. ``["read:fs"]``.
        tags: for search.
        examples: sample calls: ``{"arguments": {...}, "description": "..."}``; a bare mapping without ``arguments`` is
            read as the arguments.
        read_only: it changes nothing.
        destructive: it cannot be undone; refused unless granted for the call.
        idempotent: a second identical call has no further effect.
        fast: a sync function that never blocks; it runs on the event loop's own thread.
        optional: disabled until an allow list names it.
        timeout_ms: deadline in milliseconds.
        requires_approval: each call needs approval.
        parameters: a JSON Schema instead of the one from the signature.
        output: JSON Schema of the answer instead of the one from the return annotation.
        version: default: the plugin's.
        job: every call runs in the background, and its caller gets a job.
        limits: ``{"rate": "10/minute", "concurrency": 2, "retries": 2, "cache_ms": 60_000}``; see `ToolLimits`.
        preview: a function with the same parameters that describes what a call would do, and does nothing; for dry runs.
        untrusted: its answers hold what others wrote; after a model has read one, calls with an effect need approval.
    """
    if function is not None:
        if not callable(function):
            raise UsageError(f"@tool marks a function, got {function!r}", hint="options go by name: @tool(name='x')")
        return _mark(function, ToolMark())
    _refuse_wrong(options)
    options["capabilities"] = frozenset(options.get("capabilities", ()))
    options["tags"] = tuple(options.get("tags", ()))
    options["examples"] = _examples(options.get("examples", ()))
    if not isinstance(limits := options.get("limits", NO_LIMITS), ToolLimits):
        options["limits"] = ToolLimits.from_json(dict(limits) if isinstance(limits, Mapping) else limits)
    mark = ToolMark(**options)
    return lambda marked: _mark(marked, mark)


def _refuse_wrong(options: Mapping[str, Any]) -> None:
    known = ToolMark.__dataclass_fields__
    if unknown := sorted(options.keys() - known.keys()):
        from tavern_core.model.nearest import did_you_mean

        hint = did_you_mean(unknown[0], known) or f"its options: {', '.join(known)}"
        raise UsageError(f"@tool has no option {unknown[0]!r}", hint=hint)
    for key in ("capabilities", "tags"):
        if isinstance(options.get(key), str):
            raise UsageError(f"@tool({key}=...) takes a list of names, got the string {options[key]!r}")


def _mark(function: F, mark: ToolMark) -> F:
    try:
        setattr(function, MARK, mark)
    except AttributeError as error:
        raise UsageError(f"cannot mark {function!r} as a tool: wrap it in a function") from error
    return function


def _examples(given: Iterable[Example | Mapping[str, Any]]) -> tuple[Example, ...]:
    if isinstance(given, Mapping | str) or not isinstance(given, Iterable):
        raise UsageError(
            f"@tool(examples=...) takes a list of examples, got {given!r:.80}", hint="put the example into a list"
        )
    return tuple(map(_example, given))


def _example(example: Example | Mapping[str, Any]) -> Example:
    if isinstance(example, Example):
        return example
    if isinstance(example, Mapping) and "arguments" in example:
        return Example(example["arguments"], example.get("description", ""), example.get("result"))
    return Example(example)


def mark_of(offer: Any) -> ToolMark | None:
    """The mark that `@tool` left on a function or bound method, or None."""
    mark = getattr(offer, MARK, None)
    return mark if isinstance(mark, ToolMark) else None


@runtime_checkable
class ToolObject(Protocol):
    """A tool as an object (seed 002): ``execute(tool_call_id, params)`` returns ``{"content": [...], "details": ...}``."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def execute(self, tool_call_id: str, params: Mapping[str, Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool defined by hand, for tools whose schema is not in a signature.

    Args:
        name: local name.
        run: called with the arguments as keywords; sync or async.
        parameters: JSON Schema; default: from the signature of `run`.
    """

    name: str
    run: Callable[..., Any]
    mark: ToolMark = ToolMark()


@dataclass(frozen=True, slots=True)
class Offer:
    """A contributed tool, with the options of seed 002: `name`, `names`, `optional`."""

    thing: Any
    """A marked function, a Tool, a ToolObject, a ToolSpec, a mapping in the tool-file format, or a toolbox."""
    name: str | None = None
    """Renames the tool."""
    names: tuple[str, ...] | None = None
    """The names of the tools, if `thing` contains several."""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ToolFactory:
    """Makes tools for one call context: returns None, one thing or a list of them."""

    make: Callable[[CallContext], Any]
    names: tuple[str, ...] | None = None
    """Must match the returned tools; a mismatch is a diagnostic, and that tool is left out."""
    optional: bool = False
    name: str | None = None


ToolOffer = Any
"""The possible items of `tavern_register_tools`: functions marked with `@tool`, Tool, ToolObject, ToolSpec, Offer,
ToolFactory, mappings in the tool-file format, and toolboxes (objects with marked methods)."""


def offer(
    thing: Any, *, name: str | None = None, names: Sequence[str] | None = None, optional: bool = False
) -> Offer | ToolFactory:
    """Offer `thing` under another name, or as optional: ``offer(my_tool, optional=True)``."""
    if isinstance(thing, Offer | ToolFactory):
        return replace(
            thing, name=name or thing.name, names=_names(names) or thing.names, optional=optional or thing.optional
        )
    return Offer(thing, name, _names(names), optional)


def factory(
    make: Callable[[CallContext], Any],
    *,
    name: str | None = None,
    names: Sequence[str] | None = None,
    optional: bool = False,
) -> ToolFactory:
    """Offer tools that depend on the caller: `make(call_context)` runs for each resolution.

    Args:
        make: gets the immutable call context (the eight fields of seed 002 among others); returns None (no tool), a
            tool, or a list of tools.
        name: renames the single returned tool.
        names: the names of the returned tools, so that the ids are known without a caller.
        optional: disabled until an allow list names it.
    """
    return ToolFactory(make, _names(names), optional, name)


def _names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(names, str):
        raise UsageError(f"names=... takes a list of names, got the string {names!r}")
    return None if names is None else tuple(names)


def toolbox_methods(box: object) -> list[Callable[..., Any]]:
    """The bound methods of `box` that are marked with `@tool`, in the order they were written; nothing is evaluated."""
    found: dict[str, Callable[..., Any]] = {}
    for cls in reversed(type(box).__mro__):
        for key, member in vars(cls).items():
            plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if mark_of(plain) is not None:
                found[key] = getattr(box, key)
            else:
                found.pop(key, None)  # a subclass that overrides a tool without the mark removes it
    return list(found.values())


__all__ = [
    "MARK",
    "Offer",
    "Tool",
    "ToolFactory",
    "ToolMark",
    "ToolObject",
    "ToolOffer",
    "ToolSpec",
    "factory",
    "mark_of",
    "offer",
    "tool",
    "toolbox_methods",
]
