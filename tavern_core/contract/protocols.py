"""Protocols and records of what plugins can contribute besides tools.

A plugin returns these from its ``tavern_register_*`` hooks; the host checks them against the Protocol and calls them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tavern_core.frozen_dataclass import dataclass

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tavern_core.box.output import Serve
    from tavern_core.box.policy import BoxPolicy, Level
    from tavern_core.box.script_spawner import ScriptLaunch, ScriptProcess
    from tavern_core.model.call import CallContext, Rights, ToolCall
    from tavern_core.model.capability_scope import Scope
    from tavern_core.model.config import LimitsConfig
    from tavern_core.model.job import Job
    from tavern_core.model.result import ToolResult
    from tavern_core.model.tool import ToolSpec


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool that is ready to run. Its executor creates it once per tool; it runs each call."""

    run: Callable[[Mapping[str, Any], ToolCall | None], Any]
    """``run(arguments, call)`` → the answer, or an awaitable of it when `is_async`.

    `arguments` are validated, complete with defaults, and not shared. `call` is None unless `wants_call`.
    An error with ``begun = False`` says that the work had not started, so it has changed nothing.
    """
    is_async: bool
    blocking: bool = True
    """For sync work: True runs it in a thread instead of the event loop."""
    wants_call: bool = False
    stoppable: bool = False
    """True if cancelling (async) really ends the work."""
    wants_control: bool = False
    """Whether it reports progress or checks for cancellation (`ToolContext`)."""
    stop: Callable[[str], bool] | None = None
    """Ends a call by its id while a thread of the caller waits for it; False: it does not run. None: it cannot be
    ended."""
    function: tuple[Callable[..., Any], Callable[..., Any]] | None = None
    """``(run, function)``: ``function(**arguments)`` does what this `run` does, without a call in between. It counts only
    as long as `run` is the same, so a copy with another `run`, around this one, needs no further change."""
    place: str = ""
    """Where the work runs, for plans: ``in the workflow engine``; empty: on the event loop or in a thread of the host."""


class Calls(Protocol):
    """Makes a call that already belongs to a job; see `Tavern.invoke`."""

    async def __call__(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        context: CallContext | None,
        purpose: str,
        key: str | None,
        door: str,
        /,
    ) -> ToolResult: ...


class RunJobs(Protocol):
    """The runs of workflows, which are jobs too."""

    def job(self, run_id: str) -> Job | None: ...

    def list(
        self, statuses: Collection[str], tools: Collection[str], owner: tuple[str, str] | None, most: int
    ) -> Sequence[Job]:
        """The stored runs, newest first.

        Args:
            statuses: only in one of these; empty: in any.
            tools: only calls of one of these ids; empty: of any.
            owner: only those of this (principal, user); None: of all.
        """
        ...

    def cancel(self, run_id: str) -> bool: ...

    def answer(self, run_id: str, question: str, value: Any) -> bool: ...

    async def resume(self, run_id: str) -> None:
        """Let a run that is not complete continue in this host. Raises UsageError: a process runs it (USAGE)."""
        ...

    def owner(self, run_id: str) -> tuple[str, str] | None:
        """(principal, user) of its caller."""
        ...

    async def outcome(self, run_id: str) -> ToolResult:
        """The result of a run of this host that asked a question."""
        ...

    def result(self, run_id: str, named: Collection[str] = ()) -> ToolResult | None:
        """The stored result of a run that asked a question, or was resumed, as its tool gives it; None: there is none.

        Args:
            named: see `FlowEngine.run_workflow`.
        """
        ...


class Sandbox(Protocol):
    """The box of one plugin: what its programs may do, given the grants of the plugin and the permissions of the call."""

    @property
    def level(self) -> Level:
        """The required isolation level; ``none``: programs run without a box."""
        ...

    @property
    def missing(self) -> str:
        """Why there is no complete box: the missing layers. Empty if it is complete. The first call takes 0.1 s."""
        ...

    def policy(
        self,
        program: str,
        rights: Rights,
        *,
        readable: Sequence[str] = (),
        writable: Sequence[str] = (),
        workspace: str = "",
        is_own: bool = False,
    ) -> BoxPolicy:
        """The policy for the box of one program.

        Args:
            program: absolute path of the program; allowed together with its interpreter and libraries.
            rights: of the call (`ToolCall.rights`): paths and network that plugin, host, profile and caller all allow.
            readable: further absolute paths for this run.
            writable: as `readable`, to write to and to read.
            workspace: the value of ``$workspace`` in a scope.
            is_own: the program belongs to the caller, not the plugin: it needs a complete box, whatever the level.
        """
        ...

    def what_would_allow(self, rights: Rights, wanted: Sequence[str]) -> str:
        """For an error message: what the box of this call allowed, and the lines and commands that would allow more.

        Args:
            wanted: capabilities, one of which may be missing.

        Returns:
            One sentence; empty if none of them can have been refused.
        """
        ...

    def work_folder(self) -> str:
        """A new empty folder for one call, which the caller removes; the next host removes those of a killed host.

        Raises:
            OSError: it cannot be created.
        """
        ...

    def start(self, launch: ScriptLaunch) -> ScriptProcess:
        """Start a program under the policy that `launch` names; `tavern_core.box.output` reads its output.

        Raises:
            UpstreamError: the command line is too long, or there are no more processes (UPSTREAM_ERROR).
            ConnectionLost: the server that starts programs does not answer (CONNECTION_LOST).
        """
        ...

    def gateway(
        self, rights: Rights, call: ToolCall | None, on_refusal: Callable[[str], object] | None = None
    ) -> AbstractAsyncContextManager[Serve | None]:
        """The gateway of a program's box, if it has one: for `tavern_core.box.output`, while the program runs.

        Args:
            rights: as for `policy`: the hosts and ports that all sides allow.
            call: the call of the program; refusals are recorded with it.
            on_refusal: called from another thread for each refusal, with a sentence: what, why and what would allow it.
        """
        ...

    def weak(self, layers: Mapping[str, str]) -> None:
        """Report a diagnostic, once: a program ran without these layers (layer → why)."""
        ...


class FlowEngine(Protocol):
    """The engine, for executors of workflows and nodes."""

    async def run_workflow(
        self,
        what: str,
        arguments: Mapping[str, Any],
        call: ToolCall | None,
        plugin: str = "",
        named: Collection[str] = (),
        /,
    ) -> ToolResult:
        """Run a workflow (its id, or the path of a file of `plugin`) for the caller of `call`; raises a CallError.

        A single output is the value itself, unless its name is one of `named`: then the value is an object with it.
        """
        ...

    async def run_node(
        self, type_: str, arguments: Mapping[str, Any], call: ToolCall | None, named: Collection[str] = (), /
    ) -> ToolResult:
        """Run a workflow of this one node; as `run_workflow`."""
        ...


@dataclass(frozen=True, slots=True)
class ToolHome:
    """The plugin of a tool, as its executor sees it.

    It holds functions instead of having methods: executors of plugins get each function sealed, and a method would lead
    to its object.
    """

    plugin: str
    folder: Path | None
    """The plugin's own folder (where plugin.yaml is); None for a plugin passed as an object."""
    limits: LimitsConfig
    service: Callable[[str], Any]
    """``service(name)`` → a view of the service, with the permissions of the tool's plugin; raises ToolFailed (TOOL_ERROR) with
    the closest name, or PolicyDenied."""
    settings: Callable[[], Mapping[str, Any]]
    """Values of the tool's own `configSchema`, secrets resolved; raises if a required one is missing."""
    load: Callable[[str], Any]
    """``load("module:name")`` → the object, imported from the plugin's package."""
    sandbox: Sandbox | None = None
    """The box in which programs of the plugin run; None only outside of a host."""
    engine: FlowEngine | None = None
    """Runs workflows and nodes; None only outside of a host."""
    depends_on: frozenset[str] = frozenset()
    """The plugins that it depends on."""
    plugin_settings: Callable[[], Mapping[str, Any]] = dict
    """Values of the plugin's own settings (`configOptions`), as `settings`; for programs that all tools of a plugin share."""
    delegate: Callable[[ToolSpec], BoundTool] | None = None
    """Binds a tool of another kind for the same plugin, for the host's own executors; raises a PluginError or CallError."""
    is_intact: Callable[[], bool] = lambda: True
    """False when files of the plugin that were trusted as they are have changed since: then nothing of them may be used."""


@runtime_checkable
class Executor(Protocol):
    """Runs tools of one kind. Contributed with ``tavern_register_executors`` as ``{kind: executor}``.

    An executor with processes or connections also has ``close()``, sync or async, called after its plugin has stopped.
    """

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        """Check the tool's `implementation` and prepare it; raise ToolFileInvalid (TOOL_FILE_INVALID) if it is wrong."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """The plugin that uses a service, for `Service.for_plugin`."""

    plugin: str
    scope: Callable[[str], Scope]
    """``scope(capability)`` → the effective scope (`model/capability_scope.py`) for the plugin and the caller of its tool; None: no limit, empty:
    not granted."""
    is_builtin: bool = False
    """Whether it is one of the host's own plugins."""
    may_act: Callable[[str], bool] = lambda capability: True
    """``may_act(capability)`` → False after the caller has read untrusted content, unless the tool that runs was judged as one with
    effects."""


@dataclass(frozen=True, slots=True)
class Service:
    """A named object with a published interface; tools of kind `service` call its methods, plugins use it through a view."""

    name: str
    object: Any
    interface: type | None = None
    """A Protocol or class whose public methods are the published ones; default: the object's own class."""
    start: Callable[[], Awaitable[None] | None] | None = None
    stop: Callable[[], Awaitable[None] | None] | None = None
    description: str = ""
    for_plugin: Callable[[ServiceUser], Any] | None = None
    """Creates the object for one plugin, for services whose answer depends on the plugin. Only for services of the host."""


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command of the command line: ``tavern <name> …``. `build` returns a click command when the command is used."""

    name: str
    build: Callable[[], Any]
    help: str = ""


@dataclass(frozen=True, slots=True)
class Contribution:
    """A generic, named contribution for a host application: a channel, a provider, a namespace …"""

    name: str
    object: Any = None
    description: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resource:
    """Content that clients read by its address. A tool of the plugin returns it: reading it is a call like any other.

    Args:
        uri: ``docs://manual``, or a template with variables that become the tool's arguments: ``docs://{page}``.
        tool: its id; without a plugin's name, of the plugin itself. It answers with text, JSON, or content blocks.
    """

    name: str
    uri: str
    tool: str
    description: str = ""
    title: str = ""
    media_type: str = ""
    """Empty: ``text/plain`` for texts, ``application/json`` for other values."""

    @property
    def is_template(self) -> bool:
        """Whether its address has variables."""
        return "{" in self.uri


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages that a person chooses for a conversation.

    A tool of the plugin returns them; the parameters of the prompt are those of this tool.

    Args:
        tool: as for `Resource`. It answers with a text, content blocks, or ``[{"role": "user", "content": ...}]``.
    """

    name: str
    tool: str
    description: str = ""
    title: str = ""


@runtime_checkable
class NamespaceResolver(Protocol):
    """Finds the tools of one prefix in a profile's inventory, e.g. ``kb:``."""

    def resolve(self, local: str, /) -> ToolSpec | None:
        """The tool behind ``prefix:local``, or None if there is none."""
        ...

    def names(self) -> list[str]:
        """The existing local names, for suggestions."""
        ...
