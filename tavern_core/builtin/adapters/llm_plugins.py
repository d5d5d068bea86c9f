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
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tavern_core.contract.adapters import Listing, Target, Upstream, UpstreamCall, UpstreamTool
from tavern_core.contract.exchange import with_interrupts_as_failures
from tavern_core.contract.installed_tools import InstalledTools, distribution_of
from tavern_core.errors import CallError, OutputTooLarge, ToolFailed, UpstreamError
from tavern_core.model.result import ToolResult
from tavern_core.model.safe_printing import printed

GROUP: Final = "llm"
HOOK: Final = "register_tools"
MAX_TOOLS: Final = 1_000
"""Limit for one toolbox."""
MAX_ATTACHMENTS: Final = 100
"""Limit for one answer."""


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

    async def connect(self, upstream: Upstream) -> LlmPluginTools:
        """Import the package and let it register its tools; in a thread, because it may take seconds."""
        arguments = upstream.settings.get("toolboxes") or {}
        things, left_out = await asyncio.to_thread(_register, upstream.package)
        tools: dict[str, Any] = {}
        found: list[UpstreamTool] = []
        for registered, name in things:
            label = _label(registered, name)
            try:
                thing = await asyncio.to_thread(
                    with_interrupts_as_failures, _prepare, registered, arguments.get(label, {})
                )
                if callable(prepare := getattr(thing, "prepare_async", None)):
                    await prepare()
                await asyncio.to_thread(with_interrupts_as_failures, _describe, thing, name, tools, found)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a failing one does not affect the others
                left_out[label] = printed(error)
        for label in arguments.keys() - {_label(thing, name) for thing, name in things}:
            left_out[label] = f"{upstream.package} registers no {label}; correct settings.toolboxes"
        return LlmPluginTools(
            upstream.package, tools, Listing(found, left_out=left_out, version=metadata.version(upstream.package))
        )


class LlmPluginTools(InstalledTools):
    """The registered tools, as a connection."""

    async def invoke(self, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> Any:
        registered = self._tools.get(tool.name)
        if registered is None or not callable(registered.implementation):
            raise self.gone(tool.name)
        try:
            if inspect.iscoroutinefunction(registered.implementation):
                answer = await registered.implementation(**arguments)
            else:
                answer = await call.in_thread(partial(registered.implementation, **arguments))
        except Exception as error:
            raise ToolFailed(f"{tool.name} failed with {printed(error)}", outcome="unknown") from error
        return await _with_attachments(answer, tool.name, call) if type(answer).__name__ == "ToolOutput" else answer


async def _with_attachments(answer: Any, tool: str, call: UpstreamCall) -> Any:
    """The output of a tool; its attachments become blocks: bytes and files as artifacts of the caller, addresses as links.

    Raises:
        OutputTooLarge: there are too many, or one is larger than an artifact may be (OUTPUT_TOO_LARGE).
    """
    output, attachments = answer.output, list(islice(answer.attachments or (), MAX_ATTACHMENTS + 1))
    if not attachments:
        return output
    if len(attachments) > MAX_ATTACHMENTS:
        text = f"{tool} answered with more than {MAX_ATTACHMENTS} attachments"
        raise OutputTooLarge(text, outcome="done", limit=MAX_ATTACHMENTS)
    blocks = [
        await call.in_thread(_block, attachment, f"{tool}-{number}", call)
        for number, attachment in enumerate(attachments, 1)
    ]
    return ToolResult(True, output, content=(*ToolResult(True, output).content, *blocks))


def _block(attachment: Any, name: str, call: UpstreamCall) -> Mapping[str, Any]:
    """The block of an attachment. An unreadable one becomes a text that says so: the others are useful without it."""
    try:
        content = attachment.content or (Path(attachment.path) if attachment.path else None)
        if isinstance(content, Path) and not content.is_file():  # a pipe or a device may have no end
            raise FileNotFoundError(f"{content} is not a file")
        if content:
            kind = attachment.resolve_type() or "application/octet-stream"
            return call.context.keep(content, kind, getattr(content, "name", name))
        if isinstance(url := attachment.url, str) and url.startswith(("http://", "https://")):  # nothing is fetched
            link = {"type": "resource_link", "uri": url, "name": name}
            return {**link, "mimeType": attachment.type} if isinstance(attachment.type, str) else link
        why = "it has neither content nor path nor address"
    except CallError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the package put there
        why = printed(error)
    return {"type": "text", "text": f"[the attachment {name} cannot be read: {why[:200]}]"}


def _register(package: str) -> tuple[list[tuple[Any, str | None]], dict[str, str]]:
    """Let a package register its tools: each object with its name, and entry point → why it failed.

    Raises:
        UpstreamError: it is not installed, is not a plugin of `llm`, or nothing of it could be registered (UPSTREAM_ERROR).
    """
    points = [p for p in distribution_of(package).entry_points if p.group == GROUP]
    if not points:
        raise UpstreamError(f"{package} is not a plugin of llm: it has no entry point in {GROUP!r}", outcome="none")
    things: list[tuple[Any, str | None]] = []
    left_out: dict[str, str] = {}

    def register(thing: Any, name: str | None = None) -> None:
        things.append((thing, name))

    for point in points:
        try:
            hook: Callable[..., Any] | None = getattr(point.load(), HOOK, None)
            if callable(hook):
                hook(register)
        except BaseException as error:
            left_out[point.value] = printed(error)
            if not things and point is points[-1]:
                text = f"{package} cannot be imported: {left_out[point.value]}"
                raise UpstreamError(text, outcome="none") from error
    return things, left_out


def _label(thing: Any, name: str | None) -> str:
    """The name of a registered object in settings and errors."""
    named = thing if isinstance(thing, type) or inspect.isroutine(thing) else type(thing)
    return name or str(named.__name__)


def _prepare(thing: Any, arguments: Mapping[str, Any]) -> Any:
    """Prepare a registered object for use: a toolbox class is instantiated, and a toolbox is prepared."""
    llm: Any = importlib.import_module(GROUP)
    if isinstance(thing, type) and issubclass(thing, llm.Toolbox):
        thing = thing(**arguments)
    if isinstance(thing, llm.Toolbox):
        thing.prepare()
    return thing


def _describe(thing: Any, name: str | None, tools: dict[str, Any], found: list[UpstreamTool]) -> None:
    """Add the tools of a registered object to `tools` and `found`. If one fails, those before it stay added."""
    llm: Any = importlib.import_module(GROUP)
    if isinstance(thing, llm.Toolbox):
        offered: Iterable[Any] = thing.tools()
    else:
        offered = [thing if isinstance(thing, llm.Tool) else llm.Tool.function(thing, name=name)]
    for tool in islice(offered, MAX_TOOLS):
        if tool.name not in tools:
            schema = {"type": "object", "properties": {}, **(tool.input_schema or {})}
            found.append(UpstreamTool(tool.name, str(tool.description or ""), schema))
            tools[tool.name] = tool


adapter: Final = LlmPlugins()
