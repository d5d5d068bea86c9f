"""The targets of tools of kind `python`: `ToolSpec.impl` for tools in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from tavern_core.frozen_dataclass import dataclass

if TYPE_CHECKING:
    from tavern_core.contract.protocols import BoundTool
    from tavern_core.model.tool import ToolSpec


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """A Python callable and how to call it.

    Args:
        function: sync or async.
        convert: converts validated JSON arguments to the annotated types (models, enums, dates); None if
            they are the same.
        inject: parameter → the value that the host fills in: the `ToolCall`, the `CallContext` or the `ToolContext` of the
            call, the `ToolHome` of its plugin.
        annotation: JSON Schema of the function's return annotation; None if there is none.
        style: ``keywords`` calls ``function(**arguments)``; ``execute`` calls ``function(call_id, arguments)`` (seed 002).
    """

    function: Callable[..., Any]
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    inject: Mapping[str, Literal["call", "context", "control", "home"]] = field(default_factory=dict)
    style: Literal["keywords", "execute"] = "keywords"
    annotation: Mapping[str, Any] | None = None
    preview: Callable[..., Any] | None = None
    """Describes what a call would do, and does nothing; with the parameters of `function`."""


class BindsItself(ABC):
    """`ToolSpec.impl`, or the target of a `handler`, for code in another process, which prepares its own call."""

    @abstractmethod
    def bind(self, tool: ToolSpec, /) -> BoundTool:
        """Prepare `tool`; raise what an executor would raise if it cannot be called."""

    @property
    def preview(self) -> BindsItself | None:
        """The target that describes a call instead of making it; None if there is none."""
        return None
