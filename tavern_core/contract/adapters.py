"""Adapters: how the tools of another system become tools of this host.

    upstreams: {clock: {kind: mcp, command: [mcp-server-time]}}      what the operator configures in tavern.yaml
    adapter.connect(upstream) → connection                           on first use, and again after the connection was lost
    connection.list_tools() → Listing                                for the catalogue, which the host stores on disk
    connection.invoke(tool, arguments, call) → the answer            for each call that passed the pipeline

An adapter translates and decides nothing. The pipeline handles permissions, validation, defaults, approval, limits, retries, deadlines,
redaction and the log, as for every other tool. An adapter opens connections and starts programs only through `Upstream`, which gives
access to what the operator granted. Everything that an upstream sends is untrusted (SECURITY §6): the host limits and checks what an adapter returns.

An adapter needs no base class. Contribute it with ``tavern_register_adapters`` as ``{kind: adapter}``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, runtime_checkable

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.tool import Example

if TYPE_CHECKING:
    from tavern_core.contract.tool_context import ToolContext
    from tavern_core.model.call import ToolCall
    from tavern_core.model.tool import Example


T = TypeVar("T")
Target = Literal["url", "command", "package", "folder"]
"""How the host connects to an upstream; each is a key of its entry in tavern.yaml."""


@dataclass(frozen=True, slots=True)
class UpstreamTool:
    """One tool as the upstream describes it."""

    name: str
    """In the spelling of the upstream: 1 to 256 printable characters. The host derives the id from it, reversibly."""
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    output_schema: Mapping[str, Any] | None = None
    display_name: str = ""
    tags: tuple[str, ...] = ()
    version: str = ""
    examples: tuple[Example, ...] = ()
    read_only: bool | None = None
    """A claim of the upstream, like the next two; None: no claim. A claim raises the risk; it lowers it only if the operator
    wrote ``trustAnnotations: true``."""
    destructive: bool | None = None
    idempotent: bool | None = None
    capabilities: frozenset[str] = frozenset()
    """Capabilities that it needs besides those that the upstream was granted."""
    is_job: bool = False
    """It takes long, so a call becomes a job."""
    timeout_ms: int | None = None
    forwards_key: bool = False
    """The adapter sends the idempotency key of a call on, in the way in which the operator says that the upstream honours it. So a
    call with a key may be made again when its outcome is unknown."""
    finds_by_key: bool = False
    """The adapter asks the upstream for the call of a key before it makes it. So a call with a key whose process ended before its answer
    may be made again; see `UpstreamCall.is_again`."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON of the adapter; stored with the catalogue and passed back with each call."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of an upstream at one moment."""

    tools: Sequence[UpstreamTool] = ()
    ttl_ms: int | None = None
    """The validity that the upstream states; None: until it reports a change, or the host's own time is over."""
    etag: str = ""
    """Identifies this state, for `Connection.list_tools`."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Name → why it is not available. One invalid tool never affects the others."""
    description: str = ""
    version: str = ""
    """`description` and `version` are what the upstream says about itself."""


def etag_of(tools: Iterable[UpstreamTool], left_out: Mapping[str, str]) -> str:
    """An etag for `Listing.etag` that is the same for the same tools, in any order: for upstreams that have none themselves."""
    import hashlib

    from pydantic_core import to_json  # few adapters need it, and it loads slowly

    fields = (
        (getattr(tool, name) for name in UpstreamTool.__slots__) for tool in sorted(tools, key=attrgetter("name"))
    )
    rows = [[sorted(each) if isinstance(each, frozenset) else each for each in row] for row in fields]
    return hashlib.sha256(to_json([rows, sorted(left_out.items())])).hexdigest()


class UpstreamCall(Protocol):
    """The call for which an upstream is used."""

    @property
    def call(self) -> ToolCall:
        """Caller, purpose, rights, call id, budget."""
        ...

    @property
    def context(self) -> ToolContext:
        """Deadline, cancellation, progress, and artifacts that belong to the caller."""
        ...

    @property
    def key(self) -> str | None:
        """The idempotency key of the call, to be forwarded if the upstream supports one."""
        ...

    @property
    def is_again(self) -> bool:
        """Whether a call with this key was begun before, by a process that has ended: it may have taken effect."""
        ...

    @property
    def resume_point(self) -> str:
        """The text of `keep_resume_point`, if this call is a job resumed after the end of its process; else empty."""
        ...

    @property
    def will_be_resumed(self) -> bool:
        """Whether the call is cancelled because the host closes, and can be resumed: what it started goes on."""
        ...

    async def keep_resume_point(self, text: str, *, only_followed: bool = False) -> None:
        """Store what finds the work that this call started, such as its number at the upstream. No effect if the call is not a job.

        A job that has one can be resumed: the adapter then follows that work and does not start it again.

        Args:
            only_followed: a resumed call follows that work, or fails; in no case does it start it again. So it needs no second
                approval.
        """
        ...

    async def ask(self, message: str, schema: Mapping[str, Any], name: str = "answer") -> Mapping[str, Any] | None:
        """Ask the caller's user a question of the upstream.

        Args:
            message: the text of the upstream; displayed as untrusted data.
            schema: JSON Schema of the answer, an object.
            name: of the question, for callers that answer several.

        Returns:
            the answer; None: the person declined.

        Raises:
            CallError: no one can be asked, or no one answered in time.
        """
        ...

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run blocking code in one of the threads for tools, with the context variables of the caller.

        It takes from the plugin's share of them, so an upstream that blocks does not hold up others. A call whose time is over
        no longer waits for it.
        """
        ...


class Process(Protocol):
    """A program that the host started for an upstream; its standard streams, as bytes."""

    async def write(self, data: bytes) -> None:
        """Write to its stdin. Raises ConnectionLost: it has ended (CONNECTION_LOST)."""
        ...

    def lines(self, most: int) -> AsyncIterator[bytes]:
        """Lines of its stdout, without the line break; a line with more than `most` bytes raises OutputTooLarge (OUTPUT_TOO_LARGE)."""
        ...

    @property
    def errors(self) -> str:
        """The end of what it wrote to stderr, redacted."""
        ...

    async def close(self, grace_s: float = 2.0) -> None:
        """Close its stdin, wait, then end it and all processes that it started."""
        ...


class Upstream(Protocol):
    """One configured upstream, as its adapter sees it: its facts, and the only access to it."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str:
        """The URL, whose origin was granted; empty if the upstream has none."""
        ...

    @property
    def command(self) -> tuple[str, ...]: ...

    @property
    def package(self) -> str:
        """The installed distribution that contains the tools; the operator trusts its code."""
        ...

    @property
    def folder(self) -> Path | None: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """The values for `Adapter.settings`, with defaults, resolved secrets and the credentials of the caller."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers to send with each request, secrets resolved."""
        ...

    @property
    def idempotency_header(self) -> str | None:
        """The header in which the upstream honours idempotency keys; None: the operator names none."""
        ...

    @property
    def log(self) -> logging.Logger: ...

    def path(self, written: str) -> Path:
        """The absolute form of a path in the settings; a relative path is relative to the folder of tavern.yaml."""
        ...

    def changed(self) -> None:
        """Report that the list of tools changed: the host lists again soon. From any thread."""
        ...

    def http(self, url: str = "", *, timeout_s: float = 30.0, max_bytes: int = 64_000_000) -> Any:
        """An `httpx2.AsyncClient` that connects only to the granted origin, without proxies and cookies; redirects are not followed.

        `headers` are sent with each request. Close it in `Connection.close`.

        Args:
            url: of another origin that was granted (`origins` of the entry); `headers` are not sent to it. Empty: the upstream's own.
            timeout_s: of connecting, and of the silence between two pieces of an answer.
            max_bytes: of one answer, compressed and decompressed.

        Raises:
            ToolFailed: the extra ``http`` is not installed (TOOL_ERROR).
            PolicyDenied: the origin was not granted (POLICY_DENIED).
        """
        ...

    async def start(self) -> Process:
        """Start the configured command: in the sandbox with what was granted to the upstream, or outside of it if that was granted.

        Raises:
            PolicyDenied: it may not be started this way (POLICY_DENIED).
            UpstreamError: it cannot be started (UPSTREAM_ERROR).
        """
        ...

    def load(self, name: str) -> str | None:
        """The text that `save` stored for this connection's credential, such as a token; None: there is none."""
        ...

    def save(self, name: str, text: str | None) -> None:
        """Store a secret text for this connection's credential in the state folder, readable only by this user; None removes it."""
        ...

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """``async with upstream.lock(name):`` for changing what `save` stored: one connection at a time, in all processes of the home.

        Raises:
            StateDamaged: another process does not release it (STATE_DAMAGED).
        """
        ...


class Connection(Protocol):
    """An open connection.

    The host opens and closes it in one task, and calls it from other tasks of the same event loop.
    """

    async def list_tools(self, etag: str = "") -> Listing | None:
        """List the tools of all pages.

        Args:
            etag: of the listing that the host has.

        Returns:
            None if nothing has changed since.
        """
        ...

    async def invoke(self, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> Any:
        """Make one call. Cancelling it ends the work at the upstream, if its protocol supports that.

        Returns:
            plain data, or a `ToolResult` with content and evidence.

        Raises:
            CallError: `UpstreamError`, `ConnectionLost`, `CallTimeout` … with the known `outcome`: ``none`` only if
                the upstream cannot have started.
        """
        ...

    async def check(self) -> None:
        """Check cheaply whether the upstream answers. Raises CallError: it does not."""
        ...

    async def close(self) -> None:
        """Close it; calls that still wait for an answer fail with ConnectionLost (CONNECTION_LOST)."""
        ...


@runtime_checkable
class Adapter(Protocol):
    """The adapter of one kind of upstream."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """JSON Schema of the entry's `settings`: an object; an undescribed key is an error with its place."""
        ...

    @property
    def targets(self) -> frozenset[Target]:
        """The ways to connect to such an upstream; the entry names exactly one. Empty: none."""
        ...

    async def connect(self, upstream: Upstream) -> Connection:
        """Open a connection.

        Raises:
            CallError: the upstream cannot be reached (outcome ``none``).
        """
        ...


@runtime_checkable
class Documents(Protocol):
    """Further methods of a connection to a system with resources and prompts (MCP)."""

    async def list_resources(self) -> Sequence[Mapping[str, Any]]: ...

    async def read_resource(self, uri: str) -> Mapping[str, Any]: ...

    async def list_prompts(self) -> Sequence[Mapping[str, Any]]: ...

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> Mapping[str, Any]: ...


@runtime_checkable
class LogsIn(Protocol):
    """Further method of an adapter for upstreams that may require a person to log in."""

    async def log_in(self, upstream: Upstream, show: Callable[[str], None]) -> None:
        """Log in if the upstream asks for it, and store the resulting credentials with `Upstream.save`.

        Args:
            show: shows the person an address to open in a browser.

        Raises:
            CallError: the upstream cannot be reached, or no one logged in.
        """
        ...


_FIELDS: Final[Mapping[str, str]] = {
    "name": "name", "description": "description", "inputSchema": "input_schema", "outputSchema": "output_schema",
    "displayName": "display_name", "tags": "tags", "version": "version", "examples": "examples", "readOnly": "read_only",
    "destructive": "destructive", "idempotent": "idempotent", "capabilities": "capabilities", "job": "is_job",
    "timeoutMs": "timeout_ms", "forwardsKey": "forwards_key", "findsByKey": "finds_by_key", "data": "data",
}  # fmt: skip
"""Key → field of `UpstreamTool`."""


def tool_json(tool: UpstreamTool) -> dict[str, Any]:
    """A tool as JSON: for the cache of listings, and for messages between the process of an adapter and the host."""
    data = {key: getattr(tool, name) for key, name in _FIELDS.items()}
    data |= {"tags": list(tool.tags), "capabilities": sorted(tool.capabilities)}
    data["examples"] = [
        {"arguments": e.arguments, "description": e.description, "result": e.result} for e in tool.examples
    ]
    return data


def tool_of(data: Mapping[str, Any]) -> UpstreamTool:
    """The inverse of `tool_json`, with defaults for missing keys. Raises KeyError or TypeError: it is not a tool."""
    values = {"name": data["name"], "inputSchema": data["inputSchema"], **data}
    values["tags"] = tuple(values.get("tags", ()))
    values["capabilities"] = frozenset(values.get("capabilities", ()))
    values["examples"] = tuple(
        Example(e["arguments"], e["description"], e["result"]) for e in values.get("examples", ())
    )
    return UpstreamTool(**{name: values[key] for key, name in _FIELDS.items() if key in values})
