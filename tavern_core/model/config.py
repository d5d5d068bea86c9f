"""tavern.yaml as a type: how one host is set up.

Layers: defaults < user `config.yaml` < project `tavern.yaml` or `[tool.tavern]` < `TAVERN_SECTION__KEY` < flags.
"""

# Annotations are not texts here: pydantic would have to read each, which takes an eighth of this import.

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator

from tavern_core.model.call_limits import MOST_RETRIES
from tavern_core.model.capability import unknown_capability
from tavern_core.model.capability_scope import entry_problem
from tavern_core.model.file_model_base import FilePart, refused
from tavern_core.model.naming_rules import is_reserved, split_id
from tavern_core.model.nearest import fold
from tavern_core.model.tool_limits_file_model import WrittenLimits


def _host_entry(entry: str) -> str:
    if problem := entry_problem("network", entry):
        raise ValueError(f"{entry!r:.60}: {problem}")
    return entry


def _alias(written: str) -> str:
    """An alias of a tool, which has no other meaning in a list or a call."""
    prefix = split_id(written)[0]
    if not written.strip() or written != written.strip() or len(written) > 160 or not written.isprintable():
        raise ValueError("an alias has 1 to 160 printable characters, without blanks around them")
    if "*" in written or prefix == "group":
        raise ValueError(
            f"{written!r} means something else in lists of tools: an alias holds no `*` and does not begin with `group:`"
        )
    if is_reserved(prefix or written):
        raise ValueError(f"the name {(prefix or written)!r} is reserved for the host")
    return written


def _target(written: str) -> str:
    if not all(split_id(written)):
        raise ValueError(f"{written!r} is not an id of a tool: write plugin:tool")
    return written


def _capability(name: str) -> str:
    if (unknown := unknown_capability([name])) is not None:
        raise refused(f"{unknown[0]!r:.80} is not a capability", unknown[1])
    return name


def _approval_entry(entry: str) -> str:
    if entry.startswith("capability:"):
        _capability(entry.removeprefix("capability:"))
    return entry


CapabilityName = Annotated[str, AfterValidator(_capability)]
ApprovalEntry = Annotated[str, AfterValidator(_approval_entry)]


class PluginsConfig(FilePart):
    roots: tuple[str, ...] = ("plugins",)
    """Folders with ``<name>/plugin.yaml``, relative to the file that names them."""
    vcp: tuple[str, ...] = ()
    """Folders that hold VCP plugins (``<name>/plugin-manifest.json``)."""
    entry_points: bool = True
    """Find installed packages with an entry point in ``tavern.plugins``."""
    load: tuple[str, ...] | None = None
    """Only these, if given (``TAVERN_LOAD_PLUGINS``)."""
    disable: tuple[str, ...] = ()
    """Plugins that are disabled."""
    probe: Literal["never", "suspect", "new"] = "new"
    """The plugins whose import is probed in a separate process first: `never` none, `suspect` those during
    whose import an earlier process ended, `new` every new plugin."""
    locked: bool = False
    """Refuse plugins that differ from the lock file (``--locked``), and never change that file."""
    on_failure: dict[str, Literal["open", "closed"]] = Field(default_factory=dict)
    """For plugins with a gate: whether calls pass if it cannot be activated. Default: closed."""


class AccessRule(FilePart):
    """Tools by id, plugin name, ``group:plugins``, a named group, or a wildcard such as ``text:*``."""

    allow: tuple[str, ...] | None = None
    """None: no list. An empty list allows nothing."""
    deny: tuple[str, ...] = ()
    """These are refused, whatever else allows them."""


class ToolsConfig(FilePart):
    allow: tuple[str, ...] = ()
    """Enables optional tools (seed 002); other tools need no entry here."""
    only: tuple[str, ...] | None = None
    """If given, no other tool exists for any caller. An empty list allows nothing."""
    deny: tuple[str, ...] = ()
    """Tools that cannot be used."""
    pin: tuple[str, ...] = ()
    """Tools whose definition is pinned; a tool whose definition changes is quarantined."""
    trusted: tuple[str, ...] = ()
    """Tools whose answers are not untrusted content, although they read files, the web or an upstream: what they read is your own."""
    untrusted: tuple[str, ...] = ()
    """Tools whose answers are untrusted content, whatever their definition says; wins over `trusted`."""
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Named groups: ``group:<name>`` in any list."""
    aliases: dict[Annotated[str, AfterValidator(_alias)], Annotated[str, AfterValidator(_target)]] = Field(
        default_factory=dict
    )
    """Other names of tools: alias → id. Lists, grants and the log use the id."""

    @field_validator("aliases")
    @classmethod
    def _no_chains(cls, aliases: dict[str, str]) -> dict[str, str]:
        names = {fold(alias): alias for alias in aliases}
        for alias, target in aliases.items():
            if (further := names.get(fold(target))) is not None:
                raise ValueError(f"{alias!r} leads to {further!r}, which is an alias itself: write the id of the tool")
        if len(names) < len(aliases):
            twice = next(alias for alias in aliases if names[fold(alias)] != alias)
            raise ValueError(f"{twice!r} and {names[fold(twice)]!r} read alike: keep one")
        return aliases


class CapabilitiesConfig(FilePart):
    allow: tuple[CapabilityName, ...] | None = None
    """The capabilities that calls in this host may use at most; None: the host sets no limit."""
    deny: tuple[CapabilityName, ...] = ()
    """Capabilities that no call may use."""


class ApprovalConfig(FilePart):
    """The tools whose calls need approval (docs/configuration.md). Entries as in `tools`, or ``capability:<name>``."""

    ask: tuple[ApprovalEntry, ...] = ()
    """Calls of these tools need approval."""
    allow: tuple[ApprovalEntry, ...] = ()
    """Run without approval; an entry that names a tool overrides the tool's own request for approval."""
    deny: tuple[ApprovalEntry, ...] = ()
    """Calls of these tools are never approved."""
    timeout_ms: Annotated[int, Field(gt=0)] = 300_000
    """Time for an answer; after that, the call is refused."""
    keep_ms: Annotated[int, Field(gt=0, le=31_536_000_000)] = 86_400_000
    """The lifetime of a stored request without an answer, and of an unused approval."""
    plan_ms: Annotated[int, Field(gt=0, le=31_536_000_000)] = 600_000
    """The lifetime of the token of a dry run."""


class ModelBudget(FilePart):
    """Limits for the requests of one plugin to language models."""

    calls: Annotated[int, Field(ge=0)] | None = None
    """Requests; None: no limit."""
    tokens: Annotated[int, Field(ge=0)] | None = None
    """Input and output together."""
    money: Annotated[float, Field(ge=0)] | None = None
    """By the `price` of the models; those without a price are refused."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """Three letters of ISO 4217."""


class LimitsConfig(FilePart):
    timeout_ms: Annotated[int, Field(gt=0)] | None = None
    """Deadline of a call whose tool and caller set none; None: no deadline."""
    hook_timeout_ms: Annotated[int, Field(gt=0)] = 10_000
    """Deadline of one hook."""
    import_timeout_ms: Annotated[int, Field(gt=0)] = 60_000
    """How long the import of a plugin may take."""
    hook_failures: Annotated[int, Field(ge=0)] = 5
    """Failures in a row after which a hook implementation is quarantined; 0: never."""
    hook_rest_ms: Annotated[int, Field(gt=0)] = 300_000
    """The duration of the quarantine."""
    drain_ms: Annotated[int, Field(ge=0)] = 5_000
    """The time that disable, reload and close wait for running calls."""
    depth: Annotated[int, Field(gt=0)] = 16
    """Maximum depth of tools that call tools."""
    threads: Annotated[int, Field(gt=0, le=1024)] = 32
    """Threads for sync tools and nodes, and as many again for hooks; one plugin uses at most three quarters of them."""
    output_bytes: Annotated[int, Field(gt=0)] = 4_000_000
    """Largest answer of one tool: bytes of a script's output, characters of text in a value."""
    argument_bytes: Annotated[int, Field(gt=0)] = 16_000_000
    """Largest arguments of one call."""
    stderr_bytes: Annotated[int, Field(ge=0)] = 64_000
    """How much of a script's stderr is stored."""
    keep_raw: bool = False
    """Store the tool's own answer in `ToolResult.raw`."""
    script_timeout_ms: Annotated[int, Field(gt=0)] = 30_000
    """Deadline of a script without one of its own."""
    retries: Annotated[int, Field(ge=0, le=MOST_RETRIES)] = 0
    """Further attempts of a call after a temporary failure, if a retry does no harm; tools and callers can override it."""
    tools: dict[str, WrittenLimits] = Field(default_factory=dict)
    """Rate, concurrency, retries, cache and breaker of tools; entries as in lists of tools."""
    plugins: dict[str, WrittenLimits] = Field(default_factory=dict)
    """Shared by all tools of a plugin."""
    callers: dict[str, WrittenLimits] = Field(default_factory=dict)
    """For each caller separately; keys as in `callers`."""
    upstreams: dict[str, WrittenLimits] = Field(default_factory=dict)
    """Shared by all tools with one upstream, by its name or by its host and port."""
    llms: dict[str, ModelBudget] = Field(default_factory=dict)
    """Plugin → what its requests to language models may use from the start of the host; ``*`` for each other plugin."""
    cache_bytes: Annotated[int, Field(ge=0)] = 64_000_000
    """Total size of the answers that are cached for `cacheMs`."""
    manual_chars: Annotated[int, Field(gt=0)] = 60_000
    """Largest tool manual."""


class NetConfig(FilePart):
    """Addresses that the host's own plugins (nodes such as ``core:HttpFetch``) may fetch; grants decide for others."""

    allow: tuple[Annotated[str, AfterValidator(_host_entry)], ...] = ()
    """Besides public names at the ports 80 and 443: entries as in a scope of ``network``: ``localhost:8080``, ``10.0.0.0/8:*``."""


class SqlConfig(FilePart):
    """Functions that statements may call in parameters that are marked as SQL (docs/tools.md)."""

    functions: tuple[
        Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)*$")], ...
    ] = ()
    """Functions and types of the application that only compute: ``app.net_price``."""


class AuditConfig(FilePart):
    enabled: bool = True
    """Write the audit log."""
    fsync: bool = False
    """Force each record to the disk: survives a power cut, costs milliseconds. Without it a record survives the process."""
    required: bool = False
    """Refuse calls that cannot be recorded."""
    arguments: bool = True
    """Record arguments and answers, redacted and shortened."""
    max_bytes: Annotated[int, Field(ge=4096)] = 64_000_000
    """Size at which the log is rotated."""


class WorkflowsConfig(FilePart):
    roots: tuple[str, ...] = ("workflows",)
    """Folders with workflow files (``<id>.json``), relative to the file that names them."""
    concurrency: Annotated[int, Field(gt=0)] | None = 64
    """Nodes of one run that run at the same time; None: no limit."""
    resources: dict[str, Annotated[int, Field(gt=0)]] = Field(default_factory=dict)
    """Resource tag of nodes → how many nodes with it run at the same time in one run: ``gpu: 1``."""
    as_tools: bool = True
    """Offer every workflow as the tool ``workflow:<id>``."""


class SkillsConfig(FilePart):
    """Folders in which skills (folders with a SKILL.md) are searched, besides those of plugins."""

    roots: tuple[str, ...] = (".agents/skills", "skills")
    """The project's folders; each of their skills needs the operator's trust once."""
    user: tuple[str, ...] = ("~/.agents/skills",)
    """The operator's folders, for all projects."""


class AssistantConfig(FilePart):
    """The creation assistant, and the search for node types (docs/node-retrieval.md)."""

    examples: tuple[str, ...] = ()
    """Folders with further example workflows, relative to the file that names them; they are read, and never run."""


class KnowledgeConfig(FilePart):
    """A knowledge base: folders of Markdown (``.md``) and text (``.txt``), for `kb:` and the prompts of agents."""

    path: str = ""
    """Its folder."""
    paths: tuple[str, ...] = ()
    """Its folders, if there are several."""
    description: str = ""
    """Its subject, for models."""
    trusted: bool = True
    """False: its documents were fetched from elsewhere."""

    @property
    def folders(self) -> tuple[str, ...]:
        """All its folders."""
        return (*((self.path,) if self.path else ()), *self.paths)


def _knowledge_name(name: str) -> str:
    if re.fullmatch(r"[^\W_][\w-]{0,63}", name) is None:
        raise ValueError(f"{name!r:.80} is not the name of a knowledge base: use letters, digits, _ and -")
    return name


class TamConfig(FilePart):
    references: bool = False
    """Let a chain step use the answer of an earlier step (docs/tam.md)."""
    ignore_fenced: bool = False
    """Ignore blocks inside code fences."""
    thoughts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")], ...] = ()
    """Further tags that hide their content, besides ``think`` and ``thinking``."""
    max_block: Annotated[int, Field(gt=0)] = 1_000_000
    """Characters of one block."""
    max_text: Annotated[int, Field(gt=0)] = 8_000_000
    """Characters of one text; a longer one is not read."""
    max_calls: Annotated[int, Field(gt=0)] = 10_000
    """Blocks of one text, and calls in them; nothing of a text with more runs."""


class IsolationConfig(FilePart):
    """The box around scripts, code and isolated plugins (docs/security.md)."""

    level: Literal["required", "best-effort", "none"] | None = None
    """`required`: nothing runs if a layer is missing; `best-effort`: with the available layers; `none`: without a
    box. None: best-effort for plugins with grants, required for all others."""
    scripts: Literal["granted", "tier"] = "granted"
    """The rights of scripts: `granted`: only what was granted to their plugin; `tier`: for isolated plugins
    the same, for others everything that the host itself may do."""
    without: tuple[Literal["limits", "namespaces", "pid-namespace", "privileges", "landlock", "seccomp"], ...] = ()
    """Layers that are disabled."""
    memory_bytes: Annotated[int, Field(ge=67_108_864)] = 2_147_483_648
    """Memory of one process."""
    processes: Annotated[int, Field(gt=0, le=30_000)] = 128
    """Processes and threads of one box."""
    open_files: Annotated[int, Field(ge=16)] = 256
    """Open files of one process."""
    file_bytes: Annotated[int, Field(ge=0)] = 1_073_741_824
    """Size of one file that a process writes."""
    connections: Annotated[int, Field(gt=0, le=64)] = 16
    """Simultaneous connections of the programs of one call, through the gateway of their box."""
    network_bytes: Annotated[int, Field(ge=0)] = 1_073_741_824
    """Bytes that the programs of one call may send and receive through the gateway."""
    plugins: tuple[str, ...] = ()
    """Plugins that run in their own process, whatever their plugin.yaml says."""
    raise_for: Annotated[tuple[str, ...], Field(alias="raise")] = ()
    """Permissions; a plugin that requests one of them runs in its own process."""
    start_timeout_ms: Annotated[int, Field(gt=0)] = 30_000
    """How long the import of such a plugin may take."""


class IdempotencyConfig(FilePart):
    """Calls with a key (docs/tools.md)."""

    ttl_ms: Annotated[int, Field(gt=0, le=31_536_000_000)] = 86_400_000
    """Storage time of the answer to a key."""


class JobsConfig(FilePart):
    """Background calls (docs/governance.md)."""

    concurrency: Annotated[int, Field(gt=0, le=10_000)] = 16
    """Jobs of one process that run at the same time; callers take turns."""
    poll_ms: Annotated[int, Field(gt=0, le=3_600_000)] = 500
    """The poll interval that callers should use."""
    ttl_ms: Annotated[int, Field(gt=0, le=31_536_000_000)] = 604_800_000
    """Storage time of a job after its end."""


class ArtifactsConfig(FilePart):
    """Data that is too large for an answer (docs/governance.md)."""

    over: Annotated[int, Field(ge=1_000)] | None = None
    """An answer with more bytes becomes a preview and an artifact; None: answers stay complete."""
    preview: Annotated[int, Field(ge=0, le=100_000)] = 2_000
    """Characters of the preview."""
    max_bytes: Annotated[int, Field(gt=0)] = 1_073_741_824
    """Size of one artifact."""
    ttl_ms: Annotated[int, Field(gt=0, le=31_536_000_000)] = 604_800_000
    """Storage time of an artifact."""


class MetricsConfig(FilePart):
    """Metrics for Prometheus and spans for OpenTelemetry (docs/governance.md)."""

    enabled: bool = False
    """Count calls (extra ``metrics``); `tavern.metrics.text()` returns the metrics."""
    spans: bool | None = None
    """A span for each call (extra ``otel``); None: as soon as the program has loaded the OpenTelemetry SDK."""


class McpConfig(FilePart):
    """The MCP server (docs/mcp.md)."""

    audience: Annotated[str, Field(min_length=1, max_length=500)] = "mcp"
    """The audience of the tokens that it accepts."""
    hosts: tuple[str, ...] = ()
    """Values of ``Host`` to accept besides this machine's names: ``tools.example.com``, ``tools.example.com:*``."""
    origins: tuple[str, ...] = ()
    """Web pages whose scripts may call it: ``https://app.example.com``."""
    issuer: str | None = None
    """The OAuth authorization server that hands out tokens; with `resource` it is published to clients (RFC 9728)."""
    resource: str | None = None
    """The address of this server as clients know it: ``https://tools.example.com/mcp``."""
    page: Annotated[int, Field(gt=0, le=10_000)] = 1_000
    """Tools on one page of the list."""
    body_bytes: Annotated[int, Field(gt=0)] = 4_000_000
    """Largest request."""
    sessions: Annotated[int, Field(gt=0)] = 1_000
    """Sessions of clients of the older protocol at a time."""
    session_idle_ms: Annotated[int, Field(gt=0)] = 1_800_000
    """The time after which an unused session ends."""
    wait_ms: Annotated[int, Field(gt=0)] = 300_000
    """The time that a client without support for tasks waits for a job before it gets the job's id."""
    poll_after_ms: Annotated[int, Field(gt=0)] | None = None
    """The time after which the stream of an older protocol's call is closed, and its client resumes it; None: never."""
    state_ms: Annotated[int, Field(gt=0)] = 600_000
    """The lifetime of the state of a call that waits for input."""


class ServerConfig(FilePart):
    """The HTTP server (docs/server.md)."""

    address: str = "127.0.0.1:8188"
    """The address on which `tavern serve` listens: HOST:PORT; port 0 is a free one."""
    hosts: tuple[str, ...] = ()
    """Values of ``Host`` to accept besides this machine's names: ``tavern.example.com``, ``tavern.example.com:*``."""
    origins: tuple[str, ...] = ()
    """Web pages whose scripts may call it: ``https://app.example.com``."""
    body_bytes: Annotated[int, Field(gt=0)] = 4_000_000
    """Largest body of a request."""
    client_ms: Annotated[int, Field(gt=0)] = 30_000
    """The time that a client may take to send the head or the body of a request, and to read a part of the answer."""
    connections: Annotated[int, Field(gt=0)] = 1_000
    """Connections at a time."""
    streams: Annotated[int, Field(gt=0)] = 100
    """Event streams at a time: WebSockets and SSE together."""
    events: Annotated[int, Field(gt=0, le=1_000_000)] = 2_000
    """Events that are kept for clients that reconnect; a client that falls further behind loses its connection."""
    event_bytes: Annotated[int, Field(gt=0)] = 32_000_000
    """The limit of `events` in bytes."""


def _store(written: str) -> str:
    if written not in ("sqlite", "memory") and not _is_address(written):
        raise refused("is not a store", "write sqlite, memory or redis://localhost:6379/0")
    return written


def _is_address(written: str) -> bool:
    """Whether it is the address of a Redis server. The client would take number 0 for a database that is not a number."""
    if re.fullmatch(r"unix://.+|rediss?://(?=.)[^/?]*(/\d*)?(\?.*)?", written) is None:
        return False
    try:
        return urlsplit(written).port != 0
    except ValueError:  # its port, or an IPv6 address
        return False


class StateConfig(FilePart):
    """The store of keys, approvals, jobs and rates."""

    store: Annotated[str, AfterValidator(_store)] = "sqlite"
    """``sqlite`` (a file of the state folder), ``memory`` (of this process), or the address of a Redis server (extra ``redis``)."""


class HostConfig(FilePart):
    """tavern.yaml."""

    # The sections are made without validation, which would compile twenty validators at the import.
    language: Literal["zh", "en"] | None = None
    """Of manuals and feedback for models; None: that of the locale. An agent profile can set its own. Texts of tools are not translated."""
    plugins: PluginsConfig = PluginsConfig.model_construct()
    """The plugins of this host, and how they are loaded."""
    tools: ToolsConfig = ToolsConfig.model_construct()
    """The tools that can be used, and other names for them."""
    callers: dict[str, AccessRule] = Field(default_factory=dict)
    """Per caller: ``user:alice``, ``role:guest``, ``profile:writer``, a principal; ``*`` for all others."""
    capabilities: CapabilitiesConfig = CapabilitiesConfig.model_construct()
    """What calls may do outside the host."""
    approval: ApprovalConfig = ApprovalConfig.model_construct()
    """Calls that need approval."""
    limits: LimitsConfig = LimitsConfig.model_construct()
    """Deadlines, sizes and rates."""
    idempotency: IdempotencyConfig = IdempotencyConfig.model_construct()
    """Calls with an idempotency key."""
    jobs: JobsConfig = JobsConfig.model_construct()
    """Calls in the background."""
    artifacts: ArtifactsConfig = ArtifactsConfig.model_construct()
    """Data that is too large for an answer."""
    metrics: MetricsConfig = MetricsConfig.model_construct()
    """Metrics for Prometheus and spans for OpenTelemetry."""
    state: StateConfig = StateConfig.model_construct()
    """The store of keys, approvals, jobs and rates."""
    mcp: McpConfig = McpConfig.model_construct()
    """The MCP server."""
    server: ServerConfig = ServerConfig.model_construct()
    """The HTTP server."""
    isolation: IsolationConfig = IsolationConfig.model_construct()
    """The box around scripts, code and isolated plugins."""
    net: NetConfig = NetConfig.model_construct()
    """Addresses that the host's own plugins may fetch."""
    sql: SqlConfig = SqlConfig.model_construct()
    """Functions that statements may call."""
    audit: AuditConfig = AuditConfig.model_construct()
    """The audit log."""
    tam: TamConfig = TamConfig.model_construct()
    """Calls in the text of a model."""
    workflows: WorkflowsConfig = WorkflowsConfig.model_construct()
    """Workflows, and how they run."""
    skills: SkillsConfig = SkillsConfig.model_construct()
    """Folders with skills."""
    assistant: AssistantConfig = AssistantConfig.model_construct()
    """The creation assistant, and the search for node types."""
    knowledge: dict[Annotated[str, AfterValidator(_knowledge_name)], KnowledgeConfig] = Field(default_factory=dict)
    """Knowledge bases by name."""
    # The models of these two are imported only if they are needed: `config_key_lookup.model_for`.
    upstreams: dict[str, Any] = Field(default_factory=dict)
    """Systems whose tools become tools of this host, by name (docs/upstreams.md)."""
    llms: dict[str, Any] = Field(default_factory=dict)
    """Language models, by name (docs/llms.md)."""
    slots: dict[str, str] = Field(default_factory=dict)
    """Exclusive slot → the plugin that fills it."""
    profiles: tuple[str, ...] = ("profiles",)
    """Folders with agent profiles (``*.json``)."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Values of plugin settings for this instance: ``extensions.my-plugin.option: value``."""
    secrets: dict[str, Any] = Field(default_factory=dict)
    """Named secrets for plugins that were granted ``secrets:<name>``: ``name: {$env: VARIABLE}`` or ``{$file: path}``."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Free-form; what plugins see as ``ctx.config`` (seed 002)."""
