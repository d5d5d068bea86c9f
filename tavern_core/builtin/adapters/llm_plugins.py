"""`llm`: the tools that a plugin of the command line tool `llm` registers, functions and toolboxes, called in this process.

upstreams:
  simpleeval:
    kind: llm
    package: llm-tools-simpleeval
    settings: {toolboxes: {Datasette: {url: "https://datasette.io/content"}}}      arguments of toolboxes that need some
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import metadata
from typing import Any, Final

from tavern_core.contract.adapters import Listing, Target, Upstream, UpstreamCall, UpstreamTool
from tavern_core.errors import ToolFailed, UpstreamError
from tavern_core.model.safe_text import printed

GROUP: Final = "llm"
HOOK: Final = "register_tools"


class LlmPlugins:
    """The adapter."""

    targets: Final[frozenset[Target]] = frozenset({"package"})
    in_process: Final = True
    settings: Final[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "toolboxes": {
                "type": "object",
                "additionalProperties": {"type": "object"},
                "description": "toolbox → arguments of its constructor",
            }
        },
        "additionalProperties": False,
    }

    async def connect(self, upstream: Upstream) -> Tools:
        """Import the package and let it register its tools; in a thread, because it may take seconds."""
        return await asyncio.to_thread(_registered, upstream.package, upstream.settings.get("toolboxes") or {})


class Tools:
    """The registered tools, as a connection."""

    def __init__(self, package: str, tools: Mapping[str, Any], left_out: Mapping[str, str]) -> None:
        self._package = package
        self._tools = tools
        self._left_out = left_out

    async def list_tools(self, etag: str = "") -> Listing | None:
        found = [UpstreamTool(name, str(tool.description or ""), _schema(tool)) for name, tool in self._tools.items()]
        return Listing(found, left_out=self._left_out, version=metadata.version(self._package))

    async def invoke(self, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> Any:
        known = self._tools.get(tool.name)
        if known is None or not callable(known.implementation):
            raise UpstreamError(f"{self._package} has no tool {tool.name!r} any more", outcome="none")
        try:
            if inspect.iscoroutinefunction(known.implementation):
                answer = await known.implementation(**arguments)
            else:
                answer = await call.in_thread(partial(known.implementation, **arguments))
        except Exception as error:
            raise ToolFailed(f"{tool.name} failed with {printed(error)}", outcome="unknown") from error
        return answer.output if type(answer).__name__ == "ToolOutput" else answer

    async def check(self) -> None:
        """It is in this process: there is nothing to ask."""

    async def close(self) -> None:
        """Nothing is open."""


def _registered(package: str, toolboxes: Mapping[str, Mapping[str, Any]]) -> Tools:
    tools: dict[str, Any] = {}
    left_out: dict[str, str] = {}

    def register(thing: Any, name: str | None = None) -> None:
        try:
            for tool in _tools_of(thing, name, toolboxes):
                tools.setdefault(tool.name, tool)
        except Exception as error:  # noqa: BLE001 - one tool never costs the others
            left_out[name or str(getattr(thing, "__name__", repr(thing)[:100]))] = printed(error)

    for module in _modules(package):
        hook: Callable[..., Any] | None = getattr(module, HOOK, None)
        if callable(hook):
            hook(register)
    return Tools(package, tools, left_out)


def _tools_of(thing: Any, name: str | None, toolboxes: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    llm: Any = importlib.import_module(GROUP)
    if isinstance(thing, llm.Tool):
        yield thing
    elif isinstance(thing, type) and issubclass(thing, llm.Toolbox):
        yield from thing(**toolboxes.get(name or thing.__name__, {})).tools()
    elif isinstance(thing, llm.Toolbox):
        yield from thing.tools()
    else:
        yield llm.Tool.function(thing, name=name)


def _modules(package: str) -> list[Any]:
    """Raises UpstreamError: it is not installed, is not a plugin of `llm`, or its import failed (UPSTREAM_ERROR)."""
    try:
        points = [p for p in metadata.distribution(package).entry_points if p.group == GROUP]
    except metadata.PackageNotFoundError:
        raise UpstreamError(f"{package} is not installed", hint=f"pip install {package}", outcome="none") from None
    if not points:
        raise UpstreamError(f"{package} is not a plugin of llm: it has no entry point in {GROUP!r}", outcome="none")
    try:
        return [point.load() for point in points]
    except Exception as error:
        raise UpstreamError(f"{package} cannot be imported: {printed(error)}", outcome="none") from error


def _schema(tool: Any) -> Mapping[str, Any]:
    schema = dict(tool.input_schema or {})
    return {"type": "object", "properties": {}, **schema}


adapter: Final = LlmPlugins()
