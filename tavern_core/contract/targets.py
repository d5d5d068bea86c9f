"""What a tool of kind `python` runs: `ToolSpec.impl` for tools that live in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """A Python callable and how to call it.

    Args:
        function: sync or async.
        convert: turns validated JSON arguments into what the annotations ask for (models, enums, dates); None when
            they are the same.
        inject: parameter → what the host fills in: the `ToolCall` or the `CallContext` of the call.
        annotation: JSON Schema of the function's return annotation; None when it has none.
        style: ``keywords`` calls ``function(**arguments)``; ``execute`` calls ``function(call_id, arguments)`` (seed 002).
    """

    function: Callable[..., Any]
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    inject: Mapping[str, Literal["call", "context"]] = field(default_factory=dict)
    style: Literal["keywords", "execute"] = "keywords"
    annotation: Mapping[str, Any] | None = None
