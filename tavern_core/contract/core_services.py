"""The services of the host itself, as plugins use them and as their replacements must implement them.

clock = ctx.service("systemClock")       # permissions: {services: {use: [systemClock]}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from tavern_core.contract.published_methods import mutates, read_only

SYSTEM_CLOCK: Final = "systemClock"
NET: Final = "net"
TOOL_MANAGER: Final = "toolManager"
NODE_MANAGER: Final = "nodeManager"
WORKFLOW_MANAGER: Final = "workflowManager"
LLMS: Final = "llms"
JOB_MANAGER: Final = "jobManager"
RESOURCE_MANAGER: Final = "resourceManager"
KNOWLEDGE: Final = "knowledge"

CORE_SERVICES: Final = (
    SYSTEM_CLOCK, NET, TOOL_MANAGER, NODE_MANAGER, WORKFLOW_MANAGER, LLMS, JOB_MANAGER, RESOURCE_MANAGER, KNOWLEDGE,
)  # fmt: skip


class SystemClock(Protocol):
    """The current time for tools and plugins: ``system:get_current_time`` uses it. The audit log uses the machine's own clock."""

    @read_only
    def now(self) -> float:
        """Seconds since the epoch, UTC. Does not block."""
        ...

    @read_only
    def timezone(self) -> str | None:
        """IANA name of the zone of times for callers that name none; None: the machine's own."""
        ...


class Net(Protocol):
    """Fetches from the web for the plugin that calls it, within its grants of ``read:web`` or ``network``.

    GET and HEAD need one of the two, other methods ``network``. Within a call, the caller must allow the capability too.
    """

    @read_only
    async def fetch(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        data: Any = None,
        timeout_ms: int = 30_000,
        max_bytes: int = 4_000_000,
        redirects: int = 5,
    ) -> dict[str, Any]:
        """Fetch one address. An answer with an error status is not an error.

        Args:
            headers: of the request; those of the connection (Host, Content-Length, Proxy-… ) are refused.
            body: sent as it is, in UTF-8.
            data: sent as JSON instead of `body`.
            timeout_ms: for everything together, redirects included; at most 300,000.
            max_bytes: of the answer, compressed and decompressed; at most 64,000,000.
            redirects: how many are followed, at most 10; each target is checked like the first address. Headers that may be
                secret are not sent to another origin.

        Returns:
            ``{url, status, headers, text, base64, bytes, redirects}``: `text` or `base64` holds the body, the other is None;
            names of headers are lower case, cookies are left out; `url` is the last address, `redirects` the earlier ones.

        Raises:
            PolicyDenied: an address, a redirect or what a name resolves to is not allowed (POLICY_DENIED).
            UpstreamError: no connection, or a broken answer (UPSTREAM_ERROR).
            CallTimeout, OutputTooLarge: it took too long, or is too large (TIMEOUT, OUTPUT_TOO_LARGE).
            ToolFailed: the arguments make no request, or httpx2 is not installed (TOOL_ERROR).
        """
        ...

    @read_only
    def fetch_sync(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        data: Any = None,
        timeout_ms: int = 30_000,
        max_bytes: int = 4_000_000,
        redirects: int = 5,
    ) -> dict[str, Any]:
        """`fetch` for tools that are not coroutines."""
        ...


class ToolManager(Protocol):
    """The tools of the host, as far as the calling plugin may see and call them."""

    @read_only
    def list(self, profile: str | None = None) -> list[dict[str, Any]]:
        """The visible tools, sorted by id; `profile` limits them to an agent profile's inventory."""
        ...

    @read_only
    def get(self, tool: str) -> dict[str, Any] | None:
        """One tool, as known without activating its plugin, or None."""
        ...

    @read_only
    def search(self, query: str, limit: int = 20) -> Sequence[dict[str, Any]]:
        """The tools that match a search, best first."""
        ...

    @read_only
    def why(self, tool: str) -> dict[str, Any]:
        """Why a tool can or cannot be called: ``{id, visible, reason, fix, plugin}``."""
        ...

    @mutates
    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        purpose: str = "",
        idempotency_key: str | None = None,
    ) -> dict[str, Any]:
        """Call a tool; its result as JSON, also that of a failure.

        The call has the grants of the plugin, limited by the permissions of its tool's caller. Equal calls with the same
        key run once (docs/governance.md).
        """
        ...


class NodeManager(Protocol):
    """The node types of the host and of active plugins."""

    @read_only
    def list(self, query: str = "", category: str = "") -> list[dict[str, Any]]:
        """The node types, as for the catalogue of an editor; with a query, only matching ones."""
        ...

    @read_only
    def get(self, node_type: str) -> dict[str, Any] | None:
        """One node type, or None."""
        ...

    @read_only
    async def retrieve(
        self, request: str, plan: Sequence[str] = (), workflow: Any = None, limit: int = 20
    ) -> Sequence[dict[str, Any]]:
        """The node types that a request may need: ``{type, score, why}``, best first; see `tavern.nodes.retrieve`."""
        ...


class WorkflowManager(Protocol):
    """The workflows of the host, and their runs for the calling plugin."""

    @read_only
    def list(self) -> list[dict[str, Any]]:
        """The available workflows: ``{id, name, description, plugin}``, sorted by id."""
        ...

    @read_only
    def get(self, workflow: str) -> dict[str, Any] | None:
        """The content of a workflow, or None."""
        ...

    @read_only
    async def check(self, workflow: str) -> Sequence[dict[str, Any]]:
        """All problems of a workflow; nothing is run."""
        ...

    @mutates
    async def run(self, workflow: str, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run a workflow to its end: ``{runId, state, outputs, errors}``; with the permissions of `ToolManager.invoke`."""
        ...

    @mutates
    def save(self, workflow: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a workflow into the first folder of `workflows.roots`; returns its new content."""
        ...

    @read_only
    def project(self, workflow: str | Mapping[str, Any]) -> dict[str, Any] | None:
        """A workflow (its id, or content) as a model sees and patches it, with nodes and edges by id; None: there is none."""
        ...

    @read_only
    async def try_patch(
        self, workflow: str | Mapping[str, Any], operations: Sequence[Mapping[str, Any]], seed: int | None = None
    ) -> dict[str, Any]:
        """The result that `patch` would have; writes nothing.

        `workflow` may also be content; the key `content` is the new one.

        Raises:
            PolicyDenied: a `tavern_before_patch` hook denied it (POLICY_DENIED).
        """
        ...

    @mutates
    async def patch(
        self, workflow: str, operations: Sequence[Mapping[str, Any]], rev: int | None = None
    ) -> dict[str, Any]:
        """Apply a JSON Patch (RFC 6902) to a workflow and write its file, completely or not at all.

        Args:
            workflow: the id of a workflow in a folder.
            operations: on the workflow as `project` returns it.
            rev: the revision for which they were written.

        Returns:
            ``{ok, rev, ids, removedEdges, problems, summary, changes, changedBy, content}``: `problems` say why it was refused.

        Raises:
            PolicyDenied: a `tavern_before_patch` hook denied it (POLICY_DENIED).
        """
        ...


class Llms(Protocol):
    """The language models of plugins. Nodes that use a model call the service of this name."""

    @read_only
    def names(self) -> list[str]:
        """The names of all models, sorted."""
        ...

    @read_only
    async def complete(
        self, messages: Sequence[Mapping[str, Any]], model: str = "", options: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Call a model; the permissions are those of `ToolManager.invoke`, and ``network`` is needed.

        Args:
            messages: ``{"role": "user", "content": text}``, oldest first.
            model: its name; empty: the only one.
            options: temperature, max_tokens and other options of the model.

        Returns:
            ``{text, finishReason, usage, model}``, and `toolCalls` or `data` if the model answered with any.

        Raises:
            CallError: it was refused, or failed.
        """
        ...


class JobManager(Protocol):
    """The jobs of the caller: the caller of the plugin's tool, or the plugin itself."""

    @read_only
    def list(self, status: str = "", limit: int = 100) -> Sequence[dict[str, Any]]:
        """Jobs, newest first; optionally only those of one status."""
        ...

    @read_only
    def get(self, job: str) -> dict[str, Any]:
        """One job as it is now. Raises JobNotFound (JOB_NOT_FOUND)."""
        ...

    @read_only
    def result(self, job: str) -> dict[str, Any]:
        """The result of a job as JSON, or its progress while it runs. Raises as `get`."""
        ...

    @mutates
    async def start(self, tool: str, arguments: Mapping[str, Any] | None = None, purpose: str = "") -> dict[str, Any]:
        """Make a call in the background, with the rights of `ToolManager.invoke`: the job as it is now.

        A tool that answers ``ToolResult(True, job, status="job", job=job["jobId"])`` hands it on to its own caller.

        Raises:
            CallError: it cannot be kept (INTERNAL).
        """
        ...

    @mutates
    def cancel(self, job: str) -> bool:
        """End a job; False: it was already over. Raises as `get`."""
        ...

    @mutates
    def answer(self, job: str, value: Any, question: str = "") -> bool:
        """Answer the question of a job; False: it has none. Only another person than its caller can approve it. Raises as `get`."""
        ...


class ResourceManager(Protocol):
    """The resources that plugins contribute for clients of an MCP server."""

    @mutates
    def changed(self, uri: str) -> None:
        """Report that a resource of the plugin changed: clients that subscribed to it are notified."""
        ...


class Knowledge(Protocol):
    """The knowledge bases of tavern.yaml. A passage is ``{citation, heading, text}``, and ``untrusted`` if it was fetched from elsewhere."""

    @read_only
    def list(self) -> Sequence[dict[str, Any]]:
        """The bases: ``{name, description}``, sorted by name."""
        ...

    @read_only
    def search(self, query: str, limit: int = 5, base: str = "") -> Sequence[dict[str, Any]]:
        """The passages that fit a query best, best first; from one base, or from all."""
        ...

    @read_only
    def read(self, citation: str) -> Sequence[dict[str, Any]]:
        """The passages of the section that a citation names, in order; empty: there is none."""
        ...
