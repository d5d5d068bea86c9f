"""Adapters: how the tools of another system become tools of this host.

    upstreams: {clock: {kind: mcp, command: [mcp-server-time]}}      what the operator configures in tavern.yaml
    adapter.connect(upstream) → connection                           on first use, and again after the connection was lost
    connection.list_tools() → Listing                                for the catalogue, which is kept on disk
    connection.invoke(tool, arguments, call) → the answer            for each call that the pipeline has let through

An adapter translates and decides nothing: rights, validation, defaults, approval, limits, retries, deadlines, redaction and the log are
the pipeline's, as for every other tool. It opens connections and starts programs only through `Upstream`, which reaches what the
operator granted and nothing else. Everything that an upstream sends is hostile (SECURITY §6): the host bounds and checks what an adapter returns.

An adapter needs no base class. Contribute it with ``tavern_register_adapters`` as ``{kind: adapter}``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from tavern_core.frozen import dataclass

if TYPE_CHECKING:
    from tavern_core.contract.running import ToolContext
    from tavern_core.model.call import ToolCall
    from tavern_core.model.tool import Example

Target = Literal["url", "command", "package", "folder"]
"""What an upstream may be reached by; each is a key of its entry in tavern.yaml."""


@dataclass(frozen=True, slots=True)
class UpstreamTool:
    """One tool as the upstream describes it."""

    name: str
    """As the upstream spells it: 1 to 256 printable characters. The host makes the id of it, reversibly."""
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    output_schema: Mapping[str, Any] | None = None
    display_name: str = ""
    tags: tuple[str, ...] = ()
    version: str = ""
    examples: tuple[Example, ...] = ()
    read_only: bool | None = None
    """A claim of the upstream's, like the next two; None: it says nothing. A claim raises the risk; it lowers it only where the operator
    wrote ``trustAnnotations: true``."""
    destructive: bool | None = None
    idempotent: bool | None = None
    capabilities: frozenset[str] = frozenset()
    """What it needs besides what the upstream was granted."""
    is_job: bool = False
    """It takes long: a call becomes a job."""
    timeout_ms: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """The adapter's own, plain JSON; kept with the catalogue and handed back with each call."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of an upstream at one moment."""

    tools: Sequence[UpstreamTool] = ()
    ttl_ms: int | None = None
    """How long the upstream says that it holds; None: until it says that something changed, or the host's own time is over."""
    etag: str = ""
    """Names this state, for `Connection.list_tools`."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Name → why it cannot be offered. One bad tool never costs the list."""
    description: str = ""
    version: str = ""
    """What the upstream says of itself."""


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
        """The idempotency key of the call, to be forwarded where the upstream honours one."""
        ...

    async def ask(self, message: str, schema: Mapping[str, Any], name: str = "answer") -> Mapping[str, Any] | None:
        """Ask the person behind the caller something that the upstream wants to know.

        Args:
            message: what the upstream says; shown as data from a stranger.
            schema: JSON Schema of the answer, an object.
            name: of the question, for callers that answer several.

        Returns:
            the answer; None: the person declined.

        Raises:
            CallError: no one can be asked, or no one answered in time.
        """
        ...


class Process(Protocol):
    """A program that the host started for an upstream; its standard streams, as bytes."""

    async def write(self, data: bytes) -> None:
        """To its stdin. Raises ConnectionLost: it has ended (CONNECTION_LOST)."""
        ...

    def lines(self, most: int) -> AsyncIterator[bytes]:
        """Lines of its stdout, without the line break; a line of more than `most` bytes raises OutputTooLarge (OUTPUT_TOO_LARGE)."""
        ...

    @property
    def errors(self) -> str:
        """The end of what it wrote to stderr, redacted."""
        ...

    async def close(self, grace_s: float = 2.0) -> None:
        """Close its stdin, wait, then end it and everything that it started."""
        ...


class Upstream(Protocol):
    """What an adapter knows of one configured upstream, and the only way to it."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str:
        """Of the origin that was granted; empty where the upstream is reached by something else."""
        ...

    @property
    def command(self) -> tuple[str, ...]: ...

    @property
    def package(self) -> str:
        """The installed distribution that holds the tools; the operator trusts its code."""
        ...

    @property
    def folder(self) -> Path | None: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """As `Adapter.settings` describes them, defaults filled in, secrets resolved, with the credentials of this connection's caller."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """To be sent with each request; secrets resolved."""
        ...

    @property
    def idempotency_header(self) -> str | None:
        """The header in which the upstream honours idempotency keys; None: the operator names none."""
        ...

    @property
    def log(self) -> logging.Logger: ...

    def changed(self) -> None:
        """Say that the list of tools is another one now: the host lists again soon. From any thread."""
        ...

    def http(self, *, timeout_s: float = 30.0, max_bytes: int = 64_000_000) -> Any:
        """An `httpx2.AsyncClient` that connects to the granted origin alone, without proxies and cookies; redirects are not followed.

        `headers` are sent with each request. Close it in `Connection.close`.

        Args:
            timeout_s: of connecting, and of the silence between two pieces of an answer.
            max_bytes: of one answer, as it comes and unpacked.

        Raises:
            ToolFailed: the extra ``http`` is not installed (TOOL_ERROR).
        """
        ...

    async def start(self) -> Process:
        """Start the configured command: in the sandbox with what was granted to the upstream, outside of it only where that was granted.

        Raises:
            PolicyDenied: it may not be started so (POLICY_DENIED).
            UpstreamError: it cannot be started (UPSTREAM_ERROR).
        """
        ...

    def load(self, name: str) -> str | None:
        """A small text that `save` kept for this connection's credential, such as a token; None: there is none."""
        ...

    def save(self, name: str, text: str | None) -> None:
        """Keep a secret text for this connection's credential in the state folder, readable by this user alone; None removes it."""
        ...


class Connection(Protocol):
    """One open connection. The host opens and closes it in one task, and calls it from others of the same event loop."""

    async def list_tools(self, etag: str = "") -> Listing | None:
        """Every tool, all pages.

        Args:
            etag: of the listing that the host has.

        Returns:
            None where nothing has changed since.
        """
        ...

    async def invoke(self, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> Any:
        """Make one call; cancelling it ends the work at the upstream, as far as its protocol can.

        Returns:
            plain data, or a `ToolResult` with content and evidence.

        Raises:
            CallError: `UpstreamError`, `ConnectionLost`, `CallTimeout` … with the `outcome` that is known: ``none`` only where
                the upstream cannot have begun.
        """
        ...

    async def check(self) -> None:
        """Ask whether the upstream answers, cheaply. Raises CallError: it does not."""
        ...

    async def close(self) -> None:
        """Close it; what still waits for an answer fails with ConnectionLost (CONNECTION_LOST)."""
        ...


@runtime_checkable
class Adapter(Protocol):
    """One kind of upstream."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """JSON Schema of the entry's `settings`: an object; what it does not describe is an error with its place."""
        ...

    @property
    def targets(self) -> frozenset[Target]:
        """By what such an upstream may be reached; the entry names exactly one of them. Empty: by none."""
        ...

    async def connect(self, upstream: Upstream) -> Connection:
        """Open a connection.

        Raises:
            CallError: the upstream cannot be reached (outcome ``none``).
        """
        ...


@runtime_checkable
class Documents(Protocol):
    """What a connection also has where its system knows resources and prompts (MCP)."""

    async def list_resources(self) -> Sequence[Mapping[str, Any]]: ...

    async def read_resource(self, uri: str) -> Mapping[str, Any]: ...

    async def list_prompts(self) -> Sequence[Mapping[str, Any]]: ...

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> Mapping[str, Any]: ...
