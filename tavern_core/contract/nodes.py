"""How a plugin defines a node: as a decorated function or a class.

```python
@node("text:Template", display_name="模板", category="文本", version=2, cache=True)
async def template(ctx: NodeContext, template: Annotated[str, Port(multiline=True)], style: Literal["简短", "详细"] = "简短",
                   parts: Annotated[list[str], Port(multi=True)] = ()) -> Out(text=str): ...
```

str is STRING, int INTEGER, float FLOAT, bool BOOLEAN, dict or a model OBJECT, list ARRAY, bytes BINARY, Any WILDCARD, Literal
and Enum a combo with suggestions. Nothing here registers anything; the marks are read when the plugin returns its nodes.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload
from typing import Final as FinalType

from tavern_core.errors import UsageError
from tavern_core.frozen_dataclass import dataclass

if TYPE_CHECKING:
    from tavern_core.contract.llm import LLM
    from tavern_core.model.node import Bypass, NodeMode
    from tavern_core.model.result import ToolResult

T = TypeVar("T")
C = TypeVar("C")
NODE_MARK: FinalType = "__tavern_node__"


class Port:
    """Properties of an input besides its type: ``Annotated[str, Port(multiline=True)]``.

    Args:
        display_name: for people; default: the parameter's name.
        description: default: the docstring's line for the parameter.
        type: a `dataFlowType` instead of the one of the annotation.
        categories: `matchCategories`.
        multi: accepts several edges; the parameter is a list and the slot has the type of its items.
        lazy: computed only when the node requests it (`NodeContext.need`, `Node.needs`).
        required: a bool, or a function of the node's configuration. Default: required if it has no default.
        suggestions: values, or ``{value, label}``.
        min, max: bounds of a number.
        hide_handle: accepts a value of the file, never an edge.
        max_connections: of a `multi` input.
        config: further properties for an editor: ``multiline=True``.
    """

    __slots__ = (
        "categories", "config", "description", "display_name", "hide_handle", "lazy", "max_connections", "multi",
        "required", "type",
    )  # fmt: skip

    def __init__(
        self,
        display_name: str = "",
        *,
        description: str = "",
        type: str = "",  # noqa: A002 - the name of the slot's field
        categories: Iterable[str] = (),
        multi: bool = False,
        lazy: bool = False,
        required: bool | Callable[[Mapping[str, Any]], bool] | None = None,
        suggestions: Iterable[Any] | None = None,
        min: float | None = None,  # noqa: A002
        max: float | None = None,  # noqa: A002
        hide_handle: bool = False,
        max_connections: int | None = None,
        **config: Any,
    ) -> None:
        if isinstance(categories, str):
            raise UsageError(f"Port(categories=...) takes a list of names, got the string {categories!r}")
        self.display_name: str = display_name
        self.description: str = description
        self.type: str = type
        self.categories: tuple[str, ...] = tuple(categories)
        self.multi: bool = multi
        self.lazy: bool = lazy
        self.required: bool | Callable[[Mapping[str, Any]], bool] | None = required
        self.hide_handle: bool = hide_handle
        self.max_connections: int | None = max_connections
        properties = {"suggestions": None if suggestions is None else list(suggestions), "min": min, "max": max}
        self.config: dict[str, Any] = {key: value for key, value in properties.items() if value is not None} | config


class Stream(Generic[T]):
    """Chunks that come one by one: ``Out(text=str, chunks=Stream[str])``; as an input ``chunks: Stream[str]``.

    A node that reads a stream gets an async iterator; a slow reader slows the writer down.
    """

    __slots__ = ("of",)

    def __init__(self, of: Any = Any) -> None:
        self.of: Any = of

    if TYPE_CHECKING:  # a node gets the host's own iterator

        def __aiter__(self) -> AsyncIterator[T]: ...


class Out:
    """The outputs of a node, as an annotation (``-> Out(text=str, count=int)``) and as an answer (``return Out(text="")``)."""

    __slots__ = ("slots",)

    def __init__(self, **slots: Any) -> None:
        self.slots: dict[str, Any] = slots

    def __repr__(self) -> str:
        return f"Out({', '.join(f'{key}={value!r}' for key, value in self.slots.items())})"


class Final:
    """The last value that a streaming node yields: its other outputs. ``yield Final(text=whole)``."""

    __slots__ = ("values",)

    def __init__(self, value: Any = ..., /, **values: Any) -> None:
        if value is not ... and values:
            raise UsageError("Final takes one value or named ones, not both")
        self.values: Any = values if value is ... else value


class _Skip:
    """A node returns it as its answer or as one output: nodes that depend on it are skipped."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Skip"

    def __reduce__(self) -> str:
        return "Skip"


Skip: FinalType = _Skip()


class MismatchedInput(Exception):
    """The value of one input does not fit."""

    def __init__(self, slot: str, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.slot: str = slot
        self.why: str = why
        self.hint: str = hint


MisfitInput = MismatchedInput
"""Deprecated: the name that `MismatchedInput` had before."""


class NothingCame(Exception):
    """A node requested a lazy input whose source was skipped or failed."""

    def __init__(self, slot: str) -> None:
        super().__init__(f"input {slot!r} has no value {slot!r}")


class NodeContext(ABC):
    """The context of one run of a node: what it may know and do. The host passes one for each run."""

    run_id: str
    path: str
    """The node's id, after the ids of its groups: ``g1/a``."""
    type: str
    config: Mapping[str, Any]
    """`configValues` of the node, without ``$exec``."""
    mode: str
    """The current mode; empty for a node without modes."""
    attempt: int
    """1, or more if the node is retried."""
    logger: logging.Logger

    @property
    @abstractmethod
    def is_cancelled(self) -> bool:
        """True when the run is being cancelled: a sync node that loops should check it."""

    @abstractmethod
    def progress(self, done: float, total: float = 1.0, text: str = "") -> None:
        """Report the progress of the node to subscribers."""

    @abstractmethod
    def keep(
        self, data: bytes | str | Path | Iterable[bytes], media_type: str = "application/octet-stream", name: str = ""
    ) -> dict[str, Any]:
        """Store large data as an artifact of the workflow's caller and return the content block that links to it.

        See `ToolContext.keep`. A node of an isolated plugin can store only what crosses to the host at once
        (limits.outputBytes): return larger data as bytes in an output.
        """

    @abstractmethod
    async def need(self, key: str) -> Any:
        """The value of a lazy input: its sources run now if they have not run yet."""

    @abstractmethod
    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        purpose: str = "",
        idempotency_key: str | None = None,
    ) -> ToolResult:
        """Call a tool for the caller of the workflow, within the permissions of both.

        Args:
            tool: its id.
            arguments: by name.
            purpose: the reason, for the audit log; empty: the node.
            idempotency_key: equal calls with the same key run once (docs/governance.md), also if the run is resumed.
        """

    @abstractmethod
    async def ask(
        self,
        *question: str | Mapping[str, Any],
        prompt: str | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> Any:
        """Ask a person: ``await ctx.ask("Which colour?", {"type": "string"})``. Other branches continue meanwhile.

        The question is stored with the run. If the host ends before the answer arrives, the node later runs again from its
        beginning, and this call returns at once.

        Args:
            question: the prompt, which may be left out, and the JSON Schema of the answer, in either order.
            prompt: the prompt by name.
            schema: the schema by name.
        """

    @abstractmethod
    def llm(self, name: str = "") -> LLM:
        """A language model of a plugin; without a name, the only one.

        Raises:
            ToolFailed: there is none with that name, or more than one and no name (TOOL_ERROR).
        """

    @abstractmethod
    def service(self, name: str) -> Any:
        """A view of a service, as `PluginContext.service` of the node's plugin."""


class Node:
    """The class form of a node: each run of the node creates an object.

    ```python
    class Pick(Node):
        type = "text:Pick"
        def needs(self, ctx, *, which, **_): return [which]
        async def run(self, ctx: NodeContext, which: str, a: Annotated[str, Port(lazy=True)], b: ...) -> Out(text=str): ...
    ```
    """

    type: ClassVar[str] = ""
    display_name: ClassVar[str] = ""
    description: ClassVar[str] = ""
    category: ClassVar[str] = ""
    version: ClassVar[int] = 1
    cache: ClassVar[bool] = False
    modes: ClassVar[Mapping[str, NodeMode]] = {}
    options: ClassVar[Mapping[str, Any]] = {}
    """Further options of `node`, by name."""

    run: ClassVar[Callable[..., Any]]
    """Does the work: sync, async, or an async generator that ends in `Final`. Gets the inputs by name."""

    def needs(self, *args: Any, **inputs: Any) -> Iterable[str]:
        """``needs(ctx, **inputs)``: the lazy inputs that this run needs, given the others; called again until it adds nothing."""
        return ()

    def fingerprint(self, *args: Any, **inputs: Any) -> Any:
        """``fingerprint(ctx, **inputs)``: JSON for the cache key, such as a file's time and size. None: nothing."""
        return None

    @classmethod
    def validate(cls, inputs: Mapping[str, Any], config: Mapping[str, Any]) -> Iterable[str]:
        """Problems of the values of the file, before anything runs; one sentence each.

        It may also be a plain method.
        """
        return ()

    @classmethod
    def upgrade(cls, node: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """Convert a node of a file for an older `version` to this one. It may also be a plain method."""
        return node


def method_without_run(cls: type[Node], name: str) -> Callable[..., Any] | None:
    """`validate` or `upgrade` of a class, which need no run: a plain method is bound to a new object.

    None: not overridden.
    """
    attribute = inspect.getattr_static(cls, name)
    if attribute is inspect.getattr_static(Node, name):
        return None
    method: Callable[..., Any] = getattr(cls if isinstance(attribute, classmethod | staticmethod) else cls(), name)
    return method


@dataclass(frozen=True, slots=True)
class NodeMark:
    """The options of `@node`; everything else comes from the signature and the docstring."""

    type: str = ""
    display_name: str = ""
    description: str = ""
    category: str = ""
    version: int = 1
    cache: bool = False
    idempotent: bool = False
    fast: bool = False
    timeout_ms: int | None = None
    limit: int | None = None
    resource: str = ""
    capabilities: frozenset[str] = frozenset()
    deprecated: bool = False
    replaced_by: str = ""
    replaces: tuple[str, ...] = ()
    experimental: bool = False
    dynamic_slots: bool = False
    config_schema: Mapping[str, Any] | None = None
    config_values: Mapping[str, Any] | None = None
    bypass: Bypass = None
    modes: Mapping[str, NodeMode] | None = None
    default_mode: str = ""
    mode_config_key: str = ""
    client_script_url: str = ""
    width: int | None = None
    is_ui_node: bool = False
    is_preview_unsafe: bool = False


@overload
def node(target: C, /) -> C: ...


@overload
def node(type_: str = "", /, **options: Any) -> Callable[[C], C]: ...


def node(target: Any = "", /, **options: Any) -> Any:
    """Mark a function, or a subclass of `Node`, as a node, without changing it.

    Args:
        target: the node type, ``namespace:Type`` or its local part; default: the function's name.
        display_name, description, category: for the catalogue; the description is the docstring by default.
        version: increase it if files of the old form need `Node.upgrade`.
        cache: equal inputs give equal outputs.
        idempotent: a second run with the same inputs has no further effect, so it may be retried.
        fast: a sync function that never blocks; it runs on the event loop's own thread.
        timeout_ms: deadline of one attempt, in milliseconds.
        limit: how many of this type run at the same time in one run.
        resource: a tag such as ``gpu`` whose limit the run sets.
        capabilities: what it may access, e.g. ``["network"]``.
        config_schema: JSON Schema of `configValues`; config_values: their defaults.
        bypass: the outputs of a bypassed node: ``"mute"`` or `PassThrough`.
        modes, default_mode, mode_config_key: for a node with several modes.
        dynamic_slots: each instance has its own slots; the function takes ``**inputs``.
        replaces: full types that this one replaces in workflows.
        deprecated, replaced_by, experimental, is_ui_node, is_preview_unsafe, client_script_url, width: for editors.

    Raises:
        UsageError: an option that does not exist (USAGE).
    """
    if not isinstance(target, str):
        return _mark(target, NodeMark())
    for key in ("capabilities", "replaces"):
        if isinstance(options.get(key), str):
            raise UsageError(f"@node({key}=...) takes a list of names, got the string {options[key]!r}")
    known = [name for name in NodeMark.__dataclass_fields__ if name != "type"]
    if unknown := sorted(options.keys() - {*known}):
        from tavern_core.model.nearest import did_you_mean

        hint = did_you_mean(unknown[0], known) or f"its options: {', '.join(known)}"
        raise UsageError(f"@node has no option {unknown[0]!r}", hint=hint)
    options["capabilities"] = frozenset(options.get("capabilities", ()))
    options["replaces"] = tuple(options.get("replaces", ()))
    mark = NodeMark(type=target, **options)
    return lambda marked: _mark(marked, mark)


def _mark(target: C, mark: NodeMark) -> C:
    if not callable(target):
        raise UsageError(f"@node marks a function or a class, got {target!r}")
    setattr(target, NODE_MARK, mark)
    return target


def node_mark_of(offer: Any) -> NodeMark | None:
    """The mark that `@node` left on a function or class; for an unmarked subclass of `Node`, its attributes."""
    mark = vars(offer).get(NODE_MARK) if isinstance(offer, type) else getattr(offer, NODE_MARK, None)
    if isinstance(mark, NodeMark):
        return mark
    if isinstance(offer, type) and issubclass(offer, Node) and offer is not Node:
        options = dict(offer.options)
        options["capabilities"] = frozenset(options.get("capabilities", ()))
        return NodeMark(
            offer.type, offer.display_name, offer.description, offer.category, offer.version, offer.cache,
            modes=offer.modes, **options,
        )  # fmt: skip
    return None
