"""What a tool of kind `python` runs: `ToolSpec.impl` for tools that live in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from tavern_core.frozen import dataclass

if TYPE_CHECKING:
    from tavern_core.contract.protocols import BoundTool
    from tavern_core.model.tool import ToolSpec


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """A Python callable and how to call it.

    Args:
        function: sync or async.
        convert: turns validated JSON arguments into what the annotations ask for (models, enums, dates); None when
            they are the same.
        inject: parameter → what the host fills in: the `ToolCall`, the `CallContext` or the `ToolContext` of the
            call, the `ToolHome` of its plugin.
        annotation: JSON Schema of the function's return annotation; None when it has none.
        style: ``keywords`` calls ``function(**arguments)``; ``execute`` calls ``function(call_id, arguments)`` (seed 002).
    """

    function: Callable[..., Any]
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    inject: Mapping[str, Literal["call", "context", "control", "home"]] = field(default_factory=dict)
    style: Literal["keywords", "execute"] = "keywords"
    annotation: Mapping[str, Any] | None = None
    preview: Callable[..., Any] | None = None
    """Says what a call would do, and does nothing; with the parameters of `function`."""


class BindsItself(ABC):
    """`ToolSpec.impl`, or what a `handler` names, for code that lives elsewhere and knows itself how it is called."""

    @abstractmethod
    def bind(self, tool: ToolSpec, /) -> BoundTool:
        """Prepare `tool`; raise what an executor would raise when it cannot be called."""
