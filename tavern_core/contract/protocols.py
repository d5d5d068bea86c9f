"""What plugins may bring besides tools, as Protocols.

A plugin returns these from its ``tavern_register_*`` hooks; the host checks them against the Protocol and calls them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tavern_core.frozen import dataclass

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tavern_core.box.output import Serve
    from tavern_core.box.policy import BoxPolicy, Level
    from tavern_core.box.script_client import Child, Launch
    from tavern_core.model.call import CallContext, Rights, ToolCall
    from tavern_core.model.config import LimitsConfig
    from tavern_core.model.job import Job
    from tavern_core.model.result import ToolResult
    from tavern_core.model.scope import Scope
    from tavern_core.model.tool import ToolSpec


@dataclass(frozen=True, slots=True)
class BoundTool:
    """One tool, ready to run. Made once per tool by its executor, called for each call."""

    run: Callable[[Mapping[str, Any], ToolCall | None], Any]
    """``run(arguments, call)`` → the answer, or an awaitable of it when `is_async`.

    `arguments` are validated, complete with defaults, and the runner's own to keep. `call` is None unless `wants_call`.
    An error with ``begun = False`` says that the work still waited for its turn, so that it has changed nothing.
    """
    is_async: bool
    blocking: bool = True
    """For sync work: True moves it off the event loop into a thread."""
    wants_call: bool = False
    stoppable: bool = False
    """True where cancelling (async) really ends the work."""
    wants_control: bool = False
    """Whether it says how far it is, or looks whether it was cancelled (`ToolContext`)."""


class Calls(Protocol):
    """Makes a call that belongs to a job already; see `Tavern.invoke`."""

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

    def list(self, statuses: Collection[str], most: int) -> Sequence[Job]: ...

    def cancel(self, run_id: str) -> bool: ...

    def answer(self, run_id: str, question: str, value: Any) -> bool: ...

    def owner(self, run_id: str) -> tuple[str, str] | None:
        """(principal, user) of its caller."""
        ...

    async def outcome(self, run_id: str) -> ToolResult:
        """What comes of a run of this host that asked a person something."""
        ...


class Sandbox(Protocol):
    """The box of one plugin: what its programs may still do. Made from what the plugin was granted and the call may do."""

    @property
    def level(self) -> Level:
        """How much of it is needed; ``none``: programs run without a box."""
        ...

    @property
    def missing(self) -> str:
        """Why no whole box can be had: the layers that are not there. Empty when it can. The first time it takes 0.1 s."""
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
        """What one program may do.

        Args:
            program: absolute path of what is run; with its interpreter and its libraries.
            rights: of the call (`ToolCall.rights`): paths and network as far as plugin, host, profile and caller all allow.
            readable: further absolute paths for this run.
            writable: as `readable`, to write to and to read.
            workspace: what ``$workspace`` in a scope stands for.
            is_own: the program is the caller's, not the plugin's: only a whole box will do, whatever the level.
        """
        ...

    def what_would_allow(self, rights: Rights, wanted: Sequence[str]) -> str:
        """For an error: what a program of this call had in its box, and the lines and commands that would give it more.

        Args:
            wanted: capabilities, any of which may be the one that is missing.

        Returns:
            One sentence; empty where none of them could have been refused.
        """
        ...

    def work_folder(self) -> str:
        """A new empty folder for one call, to be removed by whoever asked; the next host removes what a killed one left.

        Raises:
            OSError: none can be made.
        """
        ...

    def start(self, launch: Launch) -> Child:
        """Start a program under the policy that `launch` names; `tavern_core.box.output` listens to it.

        Raises:
            UpstreamError: the command line is too long, or processes are used up (UPSTREAM_ERROR).
            ConnectionLost: what starts programs cannot be reached (CONNECTION_LOST).
        """
        ...

    def gateway(
        self, rights: Rights, call: ToolCall | None, told: Callable[[str], object] | None = None
    ) -> AbstractAsyncContextManager[Serve | None]:
        """What answers where the box of a program has a gateway: for `tavern_core.box.output`, as long as the program runs.

        Args:
            rights: as for `policy`: the hosts and ports that all sides allow.
            call: for which it runs; what is refused is recorded with it.
            told: is called for each refusal with a sentence that says what, why and what would allow it, from another thread.
        """
        ...

    def weak(self, layers: Mapping[str, str]) -> None:
        """Note that something ran without these layers (layer → why): a diagnostic, once."""
        ...


class FlowEngine(Protocol):
    """What executors of workflows and nodes have of the engine."""

    async def run_workflow(
        self, what: str, arguments: Mapping[str, Any], call: ToolCall | None, plugin: str = "", /
    ) -> ToolResult:
        """Run a workflow (its id, or the path of a file of `plugin`) for whoever made `call`; raises a CallError."""
        ...

    async def run_node(self, type_: str, arguments: Mapping[str, Any], call: ToolCall | None, /) -> ToolResult:
        """Run a workflow of this one node; raises a CallError."""
        ...


@dataclass(frozen=True, slots=True)
class ToolHome:
    """What an executor may know of the plugin whose tool it runs."""

    plugin: str
    folder: Path | None
    """The plugin's own folder (where plugin.yaml is); None for a plugin passed as an object."""
    limits: LimitsConfig
    service: Callable[[str], Any]
    """``service(name)`` → a view of the service, with the rights of the tool's plugin; raises a ToolFailed (TOOL_ERROR) that names the nearest, or PolicyDenied."""
    settings: Callable[[], Mapping[str, Any]]
    """Values of the tool's own `configSchema`, secrets resolved; raises when a required one is missing."""
    load: Callable[[str], Any]
    """``load("module:name")`` → the object, imported from the plugin's package."""
    sandbox: Sandbox | None = None
    """Where programs of the plugin run; None only outside of a host."""
    engine: FlowEngine | None = None
    """Runs workflows and nodes; None only outside of a host."""
    depends_on: frozenset[str] = frozenset()
    """The plugins that it says it needs."""
    plugin_settings: Callable[[], Mapping[str, Any]] = dict
    """Values of the plugin's own settings (`configOptions`), as `settings`; for programs that all tools of a plugin share."""
    delegate: Callable[[ToolSpec], BoundTool] | None = None
    """Binds a tool of another kind for the same plugin, for the host's own executors; raises a PluginError or CallError."""
    is_intact: Callable[[], bool] = lambda: True
    """False when files of the plugin that were trusted as they are have changed since: then nothing of them may be used."""


@runtime_checkable
class Executor(Protocol):
    """Runs tools of one kind. Contributed with ``tavern_register_executors`` as ``{kind: executor}``.

    An executor that keeps processes or connections also has ``close()``, sync or async: called once its plugin has stopped.
    """

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        """Check the tool's `implementation` and prepare it; raise ToolFileInvalid (TOOL_FILE_INVALID) when it is wrong."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """Whoever uses a service, as `Service.for_plugin` is told."""

    plugin: str
    scope: Callable[[str], Scope]
    """``scope(capability)`` → how far it reaches now (`model/scope.py`), for the plugin and for whoever calls its tool; None without limit, empty:
    not granted."""
    is_builtin: bool = False
    """One of the host's own plugins."""


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
    """Makes what one plugin uses instead of `object`; for services whose answer depends on who asks. Only the host's own."""


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command of the command line: ``tavern <name> …``. `build` returns a click command, when it is needed."""

    name: str
    build: Callable[[], Any]
    help: str = ""


@dataclass(frozen=True, slots=True)
class Contribution:
    """A generic, named offer that a host application reads: a channel, a provider, a namespace …"""

    name: str
    object: Any = None
    description: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class NamespaceResolver(Protocol):
    """Finds the tools behind one prefix of a profile's inventory, e.g. ``kb:``."""

    def resolve(self, local: str, /) -> ToolSpec | None:
        """The tool behind ``prefix:local``, or None when there is none."""
        ...

    def names(self) -> list[str]:
        """The local names that exist, for suggestions."""
        ...
