"""The facade `Tavern`: what a program sees of a host, which `composition.py` builds.

    async with Tavern.open(config="tavern.yaml") as tavern:
        result = await tavern.invoke("text:count", {"text": "one two"})

`open` reads the configuration and finds plugins; entering starts what must be started; leaving stops everything.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
import sysconfig
import threading
import weakref
from asyncio import _get_running_loop as _running_loop
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

from tavern_core import __version__
from tavern_core.builtin import BUILTIN
from tavern_core.contract.plugin import Plugin
from tavern_core.errors import CallMisused, ConnectionLost, UsageError
from tavern_core.host.composition import Options, agents_of, compose
from tavern_core.host.host import Host, OutsideCall
from tavern_core.kernel.access.tool_access import PluginToolGroups
from tavern_core.kernel.calls.pipeline import AS_JOB, DRY_RUN
from tavern_core.kernel.catalogue.call_plan import CallPlan, PlanStep
from tavern_core.kernel.catalogue.tools import ToolsDiff
from tavern_core.kernel.config import configuration
from tavern_core.kernel.execution.portal import COPIED_HINT, fork_problem
from tavern_core.kernel.execution.sync_async_drivers import step_by_hand
from tavern_core.kernel.grants.grants import GrantRecord
from tavern_core.kernel.log.audit_log_queries import AuditLog
from tavern_core.kernel.log.recorder import Events
from tavern_core.kernel.plugins.reconciler import Activate
from tavern_core.kernel.settings.setting_layers import DescribedSetting
from tavern_core.model.approval import Approver
from tavern_core.model.call import CallContext, check_caller
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.plugin_status import Diagnostic
from tavern_core.model.result import ToolResult, failure
from tavern_core.model.text_call import TextOutcome
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.agents.agents import Agents
    from tavern_core.assistant.assistant import Assistant
    from tavern_core.contract.stores import RecordStore
    from tavern_core.flow.node_catalogue import Nodes
    from tavern_core.flow.workflows import Workflows
    from tavern_core.host.language_models import LanguageModels
    from tavern_core.kernel.access.profiles import Profile, ProfileLike
    from tavern_core.kernel.access.tokens import Tokens
    from tavern_core.kernel.artifacts.artifacts import Artifacts
    from tavern_core.kernel.browser_assets import Extension
    from tavern_core.kernel.calls.native_calls import NativeOutcome
    from tavern_core.kernel.calls.pending_approval_store import StoredApprovals
    from tavern_core.kernel.catalogue.limit_status import HostLimits
    from tavern_core.kernel.catalogue.tools import Tools
    from tavern_core.kernel.grants.review import Review
    from tavern_core.kernel.jobs.jobs import Jobs
    from tavern_core.kernel.plugins.plugins import Plugins
    from tavern_core.kernel.plugins.services import Services
    from tavern_core.kernel.plugins.skill_catalogue import Skills
    from tavern_core.kernel.settings.store import SettingsStore
    from tavern_core.knowledge.knowledge import KnowledgeBases
    from tavern_core.model.config import HostConfig
    from tavern_core.observability.metrics import Metrics
    from tavern_core.upstreams.upstreams import Upstreams

__all__ = ["Plugin", "Tavern"]


class Tavern:
    """A host: plugins, their tools, and the pipeline of every call. Created by `Tavern.open`.

    Safe to use from several threads and tasks; several hosts may live in one process.
    """

    plugins: Plugins
    """The plugins by name, with their states; grant, enable, disable and reload them."""
    skills: Skills
    """The skills, and which of them are trusted."""
    tools: Tools
    """The tools: list, search, explain and register them."""
    settings: SettingsStore
    """The values of the settings of plugins and tools."""
    services: Services
    """The services that active plugins offer."""
    nodes: Nodes
    """The node types: list and run them."""
    workflows: Workflows
    """The workflows: run, resume and change them."""
    limits: HostLimits
    """The limits of this host, and how much of them is used."""
    metrics: Metrics
    """Counts and durations of calls, for Prometheus."""
    artifacts: Artifacts
    """Data that was too large for an answer, and files for calls."""
    knowledge: KnowledgeBases
    """The knowledge bases: folders of documents to search."""
    approvals: StoredApprovals
    """The calls that wait for approval."""
    jobs: Jobs
    """The background calls."""
    tokens: Tokens
    """The tokens of callers in other processes."""
    records: RecordStore
    """The store of keys, approvals, jobs and rates."""
    events: Events
    """The events of this host, for subscribers."""
    logs: AuditLog
    """The audit log of this host."""
    config: HostConfig
    """The configuration of this host."""

    def __init__(self, host: Host, activate: Activate) -> None:
        self._host = host
        self._activate: Activate = activate
        self._state: Literal["new", "open", "closed", "copied"] = "new"
        self._process = os.getpid()
        # The parts that every call needs, for fast access.
        self._run: Callable[..., Coroutine[Any, Any, ToolResult]] = self._refuse
        self._ready = host.compiler.ready
        self._loop_mode = host.base.mode
        self._inline_mode = host.base.inline
        plugins, calls = host.plugins, host.calls
        self.plugins = plugins.statuses
        self.skills = plugins.skills
        self.tools = host.catalogue.tools
        self.settings = host.tables.settings
        self.services = host.tables.services
        self.nodes = host.flow.nodes
        self.workflows = host.flow.workflows
        self.limits = calls.limits
        self.metrics = calls.metrics
        self.artifacts = host.state.artifacts
        self.knowledge = host.knowledge
        self.approvals = calls.pipeline.approvals.stored
        self.jobs = calls.jobs
        self.tokens = host.state.tokens
        self.records = host.state.records
        self.events = Events(host.base.recorder)
        self.logs = AuditLog(host.base.home)
        self.config = host.base.config
        self._agents: Agents | None = None
        self._making_agents = threading.Lock()

    @property
    def upstreams(self) -> Upstreams:
        """The systems whose tools are tools of this host."""
        return self._host.upstreams()

    @property
    def agents(self) -> Agents:
        """Runs of agents; imported at the first use.

        Raises:
            UsageError: this host is not open (USAGE).
        """
        if self._state != "open" and (error := self._not_open().error) is not None:
            raise UsageError(error.message, hint=error.fix)
        with self._making_agents:  # threads share one
            if self._agents is None:
                self._agents = agents_of(self._host, self.wait)
            return self._agents

    @classmethod
    def open(
        cls,
        config: str | Path | Mapping[str, Any] | None = None,
        *,
        plugins: Sequence[Any] | None = (),
        home: str | Path | None = None,
        activate: Activate = "needed",
        safe_mode: bool = False,
        locked: bool | None = None,
        overrides: Mapping[str, Any] | None = None,
        approve: Approver | None = None,
    ) -> Tavern:
        """A host to enter with ``async with`` or ``with``.

        Args:
            config: path of a tavern.yaml, or its content as a mapping; None: the one found in or above the working folder.
            plugins: objects that are plugins: modules, objects with hookimpls, `Plugin(...)`, functions marked `@tool`.
            home: folder of the host's state; None: ``$TAVERN_HOME``, else one of this project's own in the platform's user data
                folder: by the folder of its tavern.yaml, else of the script that was started, else the working folder.
            activate: ``needed`` (at the first use), ``all`` (now), or ``none`` (list only: no plugin code runs).
            safe_mode: only the host's own plugins and the ones passed here.
            locked: refuse plugins that differ from the lock file; None: as set by `plugins.locked`.
            overrides: dotted key → value, overrides every other layer of the configuration.
            approve: called for calls that need approval; sync or async, gets an `ApprovalRequest` and returns
                True, False, or an `Approval`. None: such calls do not run.

        Raises:
            ConfigInvalid: a configuration file or variable is wrong (CONFIG_INVALID).
            UsageError: something in `plugins` cannot be a plugin, `activate` is none of the three, or another argument has
                the wrong type (USAGE).
        """
        _refuse_odd(config, plugins, home)
        _refuse_odd_options(activate, approve)
        if locked is not None:
            overrides = {**(overrides or {}), "plugins.locked": locked}
        loaded = configuration.with_project_state(
            configuration.load(config, home=home, overrides=overrides), _program_folder()
        )
        options = Options(__version__, BUILTIN, tuple(plugins or ()), safe_mode, approve)
        return cls(compose(loaded, options), activate)

    # Lifecycle -------------------------------------------------------------------------------------------------------------

    async def start(self) -> Tavern:
        """Start the host; ``async with`` calls this.

        Raises:
            UsageError: it was already started or closed (USAGE).
        """
        self._begin()
        try:
            await self._host.start(self._activate)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Stop every plugin, services last started first; running calls get time to finish.

        If it is cancelled, it still stops everything, and raises CancelledError then. Cancelled again, it ends at once.
        """
        if self._state != "open":
            return
        self._shut()
        try:
            await self._close()
        except asyncio.CancelledError:
            await self._close()  # the rest, in this same task: what a plugin began in it may have to end in it
            raise
        finally:
            self._host.release()

    async def __aenter__(self) -> Tavern:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Tavern:
        self._begin()
        try:
            self._host.base.portal.run(self._host.start(self._activate))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state == "open":
            self._shut()
            self._host.base.portal.run(self._close())
            self._host.release()

    @cached_property
    def assistant(self) -> Assistant:
        """The creation assistant: a sentence becomes a checked change of a workflow, or a form layout."""
        from tavern_core.assistant.assistant import Assistant

        async def tool(id_: str) -> ToolSpec:
            return (await self._host.compiler.find(id_, None)).spec

        return Assistant(self._host.flow, self.config.language, tool)

    # Calls ------------------------------------------------------------------------------------------------------------

    def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        purpose: str = "",
        idempotency_key: str | None = None,
        dry_run: bool = False,
        job: bool = False,
    ) -> Coroutine[Any, Any, ToolResult]:
        """Call a tool. Errors are not raised but returned as a ToolResult.

        Args:
            tool: its id, ``plugin:tool``; ``plugin.tool`` and aliases are accepted.
            arguments: by name; plain JSON. Checked, never coerced.
            context: the caller and its permissions; None: the host itself, with the permissions that the tool's plugin was
                granted, except ``danger:*``. Inside a tool: the caller of that tool.
            purpose: the reason, for the audit log.
            idempotency_key: equal calls with the same key run once, however often and from whichever
                process they are requested; another call with it is IDEMPOTENCY_CONFLICT. A key belongs to this tool and this caller.
            dry_run: run hooks, checks and gates, but not the tool; `value` describes what would happen, and its `planToken` is for
                `commit`.
            job: run in the background: `result.job` is the id for `tavern.jobs`, `result.value` has the progress.
        """
        # Returns the pipeline's own coroutine, because wrapping it would cost a tenth of the call.
        run = self._run
        if dry_run or job:
            phase = DRY_RUN if dry_run else AS_JOB
            return run(self._loop_mode, tool, arguments, context, purpose, idempotency_key, "api", phase)
        return run(self._loop_mode, tool, arguments, context, purpose, idempotency_key)

    def invoke_sync(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        purpose: str = "",
        idempotency_key: str | None = None,
        dry_run: bool = False,
        job: bool = False,
    ) -> ToolResult:
        """`invoke` for code without an event loop; sync tools run on the caller's thread."""
        if self._state != "open":
            return self._not_open()
        if _running_loop() is not None:
            return _inside_a_loop("invoke_sync", f"invoke({tool!r:.80}, ...)")
        phase = DRY_RUN if dry_run else AS_JOB if job else None
        plan = (self._ready(tool) if isinstance(tool, str) else None) or self._prepared(tool, context)
        if plan is None or plan.needs_loop:
            # Async work needs an event loop; the portal has one.
            call = self._run(self._loop_mode, tool, arguments, context, purpose, idempotency_key, "api", phase)
            return self._answer(call)
        return step_by_hand(
            self._run(self._inline_mode, tool, arguments, context, purpose, idempotency_key, "api", phase)
        )

    def cancel(self, call_id: str, *, context: CallContext | None = None) -> bool:
        """Cancel a running call, from any thread and any process of the home; its result is CANCELLED.

        Scripts, workers and async code are stopped. Sync code in a worker thread continues (`details.stopped` is false) and occupies its
        slot in limits until it ends; it can check `ToolContext.is_cancelled`. Sync code on the thread of `invoke_sync` can only check that.
        A call of another process can be reached once it has run for half a second.

        Args:
            call_id: as in events, in the log, `result.call_id` and `ToolContext.call_id`.
            context: who cancels: only calls of this caller; None: the host, which may cancel any.

        Returns:
            Whether a call with this id runs in this host and was cancelled, or in another process, which was asked to end it.

        Raises:
            UsageError: `context` is not a CallContext, or this host is a forked copy (USAGE).
            StateDamaged: it is a call of another host, and the store cannot be used (STATE_DAMAGED).
        """
        check_caller(context)
        if self._state == "copied":
            self._host.base.portal.check()
        return self._state == "open" and self._host.compiler.cancellation.cancel(call_id, context)

    async def commit(
        self,
        plan_token: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        purpose: str = "",
        idempotency_key: str | None = None,
        door: str = "api",
        tool: str | None = None,
    ) -> ToolResult:
        """Make the call that a dry run planned, if it would still run as planned. Never raises.

        Args:
            plan_token: `planToken` of the dry run's value; it can be used once, by its caller, and again only under the same idempotency
                key, for the answer that there is.
            arguments: only if those of the dry run held secrets, which are not stored: the same again.
            context: as for `invoke`.
            tool: refuse a token that is for another tool.
        """
        if self._state != "open":
            return self._not_open()
        return await self._host.commit(plan_token, arguments, context, purpose, idempotency_key, door, tool)

    def commit_sync(
        self,
        plan_token: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        purpose: str = "",
        idempotency_key: str | None = None,
        door: str = "api",
        tool: str | None = None,
    ) -> ToolResult:
        """`commit` for code without an event loop."""
        if self._state != "open":
            return self._not_open()
        if _running_loop() is not None:
            return _inside_a_loop("commit_sync", "commit(...)")
        return self._answer(self._host.commit(plan_token, arguments, context, purpose, idempotency_key, door, tool))

    def invoke_from(
        self,
        door: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        purpose: str = "",
        timeout_ms: int | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
        job: bool = False,
        trace: bool = False,
    ) -> Coroutine[Any, Any, ToolResult]:
        """`invoke` for another entry point (a server, a chat bot); its name is in the audit log.

        Without a running event loop it behaves as `invoke_from_sync`, for compatibility; use that there.

        Args:
            door: name of the entry point.
            timeout_ms: a deadline for this call, in addition to those of the tool and the caller.
            idempotency_key, dry_run, job: as for `invoke`.
            trace: `result.meta["trace"]` lists the steps of the call with the milliseconds of each.
        """
        call = OutsideCall(door, tool, arguments, context, purpose, timeout_ms, idempotency_key, dry_run, job, trace)
        if _running_loop() is None:
            return self._from_outside_sync(call)  # type: ignore[return-value]
        if self._state != "open":
            return _as_coroutine(self._not_open())
        return self._host.invoke_from(call)

    def invoke_from_sync(
        self,
        door: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext | None = None,
        purpose: str = "",
        timeout_ms: int | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
        job: bool = False,
        trace: bool = False,
    ) -> ToolResult:
        """`invoke_from` for code without an event loop (a command line)."""
        return self._from_outside_sync(
            OutsideCall(door, tool, arguments, context, purpose, timeout_ms, idempotency_key, dry_run, job, trace)
        )

    def _from_outside_sync(self, call: OutsideCall) -> ToolResult:
        if self._state != "open":
            return self._not_open()
        if _running_loop() is not None:
            return _inside_a_loop("invoke_from_sync", f"invoke_from({call.door!r:.80}, {call.tool!r:.80}, ...)")
        return self._answer(self._host.invoke_from(call))

    async def run_text(self, text: str | bytes | None, *, context: CallContext | None = None) -> TextOutcome:
        """Run the TAM blocks in the text of a model; see docs/tam.md.

        Returns:
            `results` (one for each call that ran or was refused), `text` (the prose around the blocks), `feedback` (text
            for the model), `calls`, `problems`.

        Raises:
            UsageError: `text` is not text, or `context` is not a CallContext (USAGE). The content of a text never raises.
        """
        if isinstance(text, bytes | bytearray):
            text = bytes(text).decode("utf-8", "replace")
        if not isinstance(text, str | None):
            raise UsageError(f"run_text takes the text of a model, got {type(text).__name__}")
        if context is not None and not isinstance(context, CallContext):
            raise UsageError(f"the context of a call is a CallContext, got {type(context).__name__}")
        if self._state != "open":
            return TextOutcome(results=(self._not_open(),), text=text or "")
        return await self._host.run_text(text or "", context, self._invoke_tam)

    def run_text_sync(self, text: str | bytes | None, *, context: CallContext | None = None) -> TextOutcome:
        """`run_text` for code without an event loop."""
        return self.wait(self.run_text(text, context=context))  # type: ignore[no-any-return]

    async def run_tool_calls(self, response: Any, *, context: CallContext | None = None) -> NativeOutcome:
        """Make the tool calls in a model's response, in their order.

        Args:
            response: of OpenAI (Chat Completions or Responses), Anthropic or Gemini: a mapping, the object of their SDK, or the message in it.
            context: who calls; as in `invoke`.

        Returns:
            `results`, and `messages` to be appended to the conversation behind the response.

        Raises:
            UsageError: it is no such response (USAGE). A call that fails is a result, as everywhere.
        """
        from tavern_core.host.tool_calling import run_native_calls

        return await run_native_calls(response, context, self._host.catalogue.descriptions, self.invoke_from)

    @functools.cached_property
    def llms(self) -> LanguageModels:
        """The language models of tavern.yaml and of plugins."""
        from tavern_core.host.language_models import LanguageModels

        return LanguageModels(self._host.flow.models, self._host.base.portal.run)

    # Descriptions -----------------------------------------------------------------------------------------------------

    def tool_schema(self, tool: str, *, dialect: str = "json") -> dict[str, Any]:
        """A tool in the format of a model API.

        Args:
            dialect: json, openai, anthropic, gemini or mcp.

        Raises:
            ToolNotFound: no such tool (TOOL_NOT_FOUND).
            UsageError: no such dialect (USAGE).
        """
        return self._host.catalogue.descriptions.tool_schema(tool, dialect)

    def tool_plan(self, tool: str, *, context: CallContext | None = None) -> tuple[PlanStep, ...]:
        """The steps of each call of a tool, in order; activates its plugin if necessary.

        Args:
            context: the caller; None: the host itself.

        Raises:
            CallError: there is no such tool, or it cannot be used (TOOL_NOT_FOUND, POLICY_DENIED, UPSTREAM_ERROR).
        """
        return self._host.base.portal.run(self._host.compiler.find(tool, context)).steps()

    def tool_schemas(self, profile: ProfileLike | None = None, *, dialect: str = "json") -> list[dict[str, Any]]:
        """All tools that a profile may see, in the format of a model API."""
        return [
            self._host.catalogue.descriptions.tool_schema(spec, dialect)
            for spec in self._host.catalogue.descriptions.whole(profile, None)
        ]

    def tool_specs(
        self, profile: ProfileLike | None = None, *, context: CallContext | None = None
    ) -> tuple[ToolSpec, ...]:
        """The tools that a caller may see, sorted by id, each with everything that is known about it.

        Unlike `tools.list` it activates what is only declared; in async code call it in a thread.

        Args:
            profile, context: as for `tools.list`.
        """
        return tuple(self._host.catalogue.descriptions.whole(profile, context))

    def profile(self, profile: ProfileLike) -> Profile:
        """An agent profile with its inventory resolved: the same object until something of it changes.

        Raises:
            ProfileInvalid: there is no such profile, or it is wrong (PROFILE_INVALID).
        """
        return self._host.catalogue.profiles.resolved_sync(profile)

    def openai_tools(self, profile: ProfileLike | None = None) -> list[dict[str, Any]]:
        """All tools that a profile may see, for the `tools` parameter of OpenAI and the many APIs that speak its language."""
        return self.tool_schemas(profile, dialect="openai")

    def langchain_tools(self, profile: ProfileLike | None = None, *, context: CallContext | None = None) -> list[Any]:
        """All tools that a profile may see, as tools for agents of LangChain (extra ``langchain``).

        They validate and fill in defaults as everywhere here. The artifact of a `ToolMessage` is the `ToolResult`; a failed call raises LangChain's
        `ToolException`. If one of them may run as a job, the tools for jobs follow: an agent of LangChain calls only tools that it was given.

        Args:
            context: who calls; as in `invoke`.

        Raises:
            UsageError: the extra is not installed (USAGE).
        """
        from tavern_core.host.tool_calling import langchain_tools

        descriptions = self._host.catalogue.descriptions
        specs, language = descriptions.with_job_tools(profile, context), descriptions.language(profile, context)
        return langchain_tools(specs, context, self.invoke_from, self.invoke_from_sync, language)

    def tool_groups(self) -> PluginToolGroups:
        """The current members of the groups in the lists of tavern.yaml: ``group:plugins``, each plugin's name, named groups.

        Returns:
            `all` (every tool of a plugin, none of the host's own), `by_plugin`, `named`: names in lower case, as lists compare
            them, including disabled tools.
        """
        return self.tools.tool_groups()

    def tool_id(self, wire_name: str) -> str:
        """The tool id of the name in a model API; the inverse of `tool_schema`.

        Raises:
            ToolNotFound: no tool has that name (TOOL_NOT_FOUND).
        """
        return self._host.catalogue.descriptions.tool_id(wire_name)

    def manual(
        self,
        profile: ProfileLike | None = None,
        *,
        context: CallContext | None = None,
        query: str | None = None,
        language: Literal["zh", "en"] | None = None,
        max_chars: int | None = None,
    ) -> str:
        """The tool manual for a model: the replacement of ``{{{system:available_tools}}}`` in a prompt.

        Args:
            profile: only the inventory of this agent profile: its name, the path of an agent_profile.json, or a mapping
                ``{"tool_ids_inventory": [...]}``.
            query: keep the examples that fit it best.
            language: of the labels; None: the configured one.
            max_chars: size budget; None: `limits.manualChars`.
        """
        return self._host.catalogue.descriptions.manual(profile, context, query, language, max_chars)

    def fill_prompt(
        self, prompt: str, profile: ProfileLike | None = None, *, context: CallContext | None = None
    ) -> str:
        """`prompt` with ``{{{system:available_tools}}}`` replaced by the manual; other placeholders stay as they are."""
        return self._host.catalogue.descriptions.fill_prompt(prompt, profile, context)

    # Reading and changing ----------------------------------------------------------------------------------------------

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The diagnostics of the host, oldest first."""
        self._host.catalogue.specs.catch_up()
        self._host.tables.registry.entries()  # finds clashes, when it is first read after a change
        return self._host.base.diagnostics.all()

    @property
    def hooks(self) -> dict[str, tuple[str, ...]]:
        """Hook → the plugins that implement it, in the order in which they run."""
        return self._host.tables.hooks.listing()

    def contributions(self, section: str) -> dict[str, Any]:
        """Name → contribution to one section (channels, providers, commands …); activates the plugins that declare any.

        It may also be called in a running event loop, as `tools.get` may.

        Raises:
            UsageError: there is no such section (USAGE).
        """
        return self._host.plugins.sections.all(section)

    def describe_settings(self, plugin: str | None = None) -> list[DescribedSetting]:
        """Every setting of plugins and their tools with its value and origin, secrets masked; no code is imported."""
        return self.settings.describe(plugin)

    def extensions(self) -> tuple[Extension, ...]:
        """The browser contributions of each usable plugin: addresses of its files, settings; no code is imported."""
        return tuple(self._host.extensions())

    def contribution(self, section: str, name: str) -> Any:
        """A contribution to a section, or None; activates only the plugin that declares it.

        Raises:
            PluginError: its plugin cannot be activated.
        """
        return self._host.base.portal.run(self._host.plugins.sections.one(section, name))

    def review(self, plugin: str) -> Review:
        """The requests of a plugin and the decisions about them, for the operator.

        Raises:
            PluginNotFound: there is none (PLUGIN_NOT_FOUND).
        """
        return self._host.plugins.consent.review(plugin)

    def unlocked(self) -> dict[str, str]:
        """Installed plugins that differ from the lock file → why; empty if the file is up to date."""
        return self._host.plugins.consent.differences()

    def lock(self, *, prune: bool = False) -> Mapping[str, GrantRecord]:
        """Record the installed plugins in the lock file: version, plugin.yaml, code. Grants nothing.

        Args:
            prune: remove decisions about plugins that are not installed.

        Returns:
            Plugin → its new record in the file.

        Raises:
            UsageError: this host is locked (USAGE).
            StateDamaged: the file is corrupt or cannot be written (STATE_DAMAGED).
        """
        return self.wait(self._host.plugins.consent.lock(prune=prune))  # type: ignore[no-any-return]

    def grant(self, plugin: str, *permissions: str, all_requested: bool = False) -> None:
        """Grant requests of a plugin, in the lock file.

        Args:
            permissions: ids, aliases, or patterns such as ``hook:*``; ``danger:*`` only in full.
            all_requested: instead of naming them: all requests except ``danger:*``. A computed list may be
                empty, which must not mean the same.

        In async code: `await tavern.plugins.grant(...)`, and likewise for `refuse` and `revoke`.

        Raises:
            PluginNotFound, UsageError: no such plugin, it does not request that, or nothing is named.
        """
        self.wait(self.plugins.grant(plugin, *permissions, all_requested=all_requested))

    def refuse(self, plugin: str, *permissions: str) -> None:
        """Refuse requests of a plugin in the lock file, so that they do not wait for a decision any more.

        Raises:
            PluginNotFound, UsageError: no such plugin, or it does not request that.
        """
        self.wait(self.plugins.refuse(plugin, *permissions))

    def revoke(self, plugin: str, *permissions: str) -> None:
        """Revoke grants; all of them if no permission is named."""
        self.wait(self.plugins.revoke(plugin, *permissions))

    async def user_logged_in(self, user: CallContext) -> None:
        """Report a login to your application.

        Plugins with the grant `hook:client:auth:login` are notified, and the log gets a USER_LOGGED_IN. This allows or
        refuses nothing: the context of each call defines the caller and its permissions.

        Args:
            user: the user; principal, user id, roles and profile are passed on, permissions are not.

        Raises:
            UsageError: `user` is not a CallContext (USAGE).
        """
        if not isinstance(user, CallContext):
            raise UsageError(
                f"a login needs a CallContext, got {type(user).__name__}",
                hint='CallContext(principal="user:ann", user_id="ann")',
            )
        self._host.base.portal.check()
        await self._host.plugins.lifecycle.events.user_logged_in(user)

    async def refresh(self) -> ToolsDiff:
        """Discover plugins again: new ones appear, changed ones are reloaded, removed ones stop.

        Upstreams in use are listed again.
        """
        return await self.tools.look_again()

    def wait(self, coroutine: Awaitable[Any]) -> Any:
        """Run a coroutine of this host, or wait for its run, from code without an event loop: ``tavern.wait(tavern.refresh())``.

        Raises:
            UsageError: inside a running event loop, where you must use `await`; or it cannot be awaited (USAGE).
        """
        if not inspect.isawaitable(coroutine):
            raise UsageError(
                f"wait takes what you could `await`, got {type(coroutine).__name__}",
                hint="tavern.wait(tavern.refresh()); the answer of a method without `await` is there already",
            )
        if not asyncio.iscoroutine(coroutine):
            coroutine = _awaited(coroutine)
        if _running_loop() is not None:
            coroutine.close()
            raise UsageError(
                "a sync method was called inside a running event loop",
                hint="use `await` and the async method: tavern.run_text, tavern.refresh, tavern.plugins.grant …",
            )
        return self._host.base.portal.run(coroutine)

    # Internal ---------------------------------------------------------------------------------------------------------

    def _prepared(self, tool: str, context: CallContext | None) -> CallPlan | None:
        """The plan after activating and compiling what is needed; None if there is none to cache."""
        try:
            self._host.base.portal.run(self._host.compiler.find(tool, context))
        except Exception:  # noqa: BLE001 - the call itself reports why
            return None
        return self._ready(tool)

    async def _invoke_tam(
        self, tool: str, arguments: Mapping[str, Any], context: CallContext | None, key: str | None
    ) -> ToolResult:
        return await self._run(self._loop_mode, tool, arguments, context, "", key, "tam")

    async def _close(self) -> None:
        if self._agents is not None:
            await self._agents.close()
        await self._host.close()

    def _begin(self) -> None:
        if self._state != "new":
            self._host.base.portal.check()
            raise UsageError(f"this host is {self._state}", hint="open another with Tavern.open(...)")
        self._state, self._process = "open", os.getpid()
        _open_hosts.add(self)
        self._run = self._host.calls.pipeline.run

    def _shut(self) -> None:
        self._state = "closed"
        _open_hosts.discard(self)
        self._run = self._refuse

    def _become_copy(self) -> None:
        """In a forked child: the host belongs to the parent process, so its files, programs and plugins must not be touched."""
        self._state = "copied"
        self._run = self._refuse
        self._host.become_copy(self._process)

    async def _refuse(self, *_: Any, **__: Any) -> ToolResult:
        """Replaces the pipeline while the host is not open."""
        return self._not_open()

    def _answer(self, call: Coroutine[Any, Any, ToolResult]) -> ToolResult:
        """The result of a call, from the portal's loop."""
        try:
            return self._host.base.portal.run(call)
        except ConnectionLost as error:  # the host was closed meanwhile
            return failure(error)
        except UsageError:  # and before the call began
            if self._state == "open":
                raise
            return self._not_open()

    def _not_open(self) -> ToolResult:
        if self._state == "copied":
            return failure(CallMisused(fork_problem(self._process), hint=COPIED_HINT))
        how = "closed" if self._state == "closed" else "not open yet"
        return failure(
            CallMisused(
                f"this host is {how}", hint="use it inside `async with Tavern.open(...)` or `with Tavern.open(...)`"
            )
        )


def _program_folder() -> Path | None:
    """The folder of the script that was started; None for a module, a prompt and programs of the environment, such as pytest."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if not isinstance(file, str) or getattr(main, "__spec__", None) is not None:
        return None
    folder = Path(file).absolute().parent
    return None if folder == _scripts() else folder


@functools.cache
def _scripts() -> Path:
    """The folder of the environment's programs."""
    return Path(sysconfig.get_path("scripts"))


_open_hosts: weakref.WeakSet[Tavern] = weakref.WeakSet()


def _copied_by_fork() -> None:
    for host in list(_open_hosts):
        host._become_copy()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_copied_by_fork)


def _refuse_odd_options(activate: Activate, approve: Approver | None) -> None:
    if activate not in get_args(Activate):
        hint = did_you_mean(activate, get_args(Activate)) if isinstance(activate, str) else ""
        choices = ", ".join(get_args(Activate))
        raise UsageError(f"activate={activate!r:.80} is not one of {choices}", hint=hint or f"choose one of {choices}")
    if approve is not None and not callable(approve):
        raise UsageError(
            f"approve={approve!r:.80} cannot be called", hint="pass a function that takes an ApprovalRequest"
        )


def _refuse_odd(config: object, plugins: object, home: object) -> None:
    """Check the types of `Tavern.open`'s arguments.

    Raises:
        UsageError: one is wrong (USAGE).
    """
    if not isinstance(config, str | PathLike | Mapping | None):
        hint = 'Tavern.open("tavern.yaml"), or Tavern.open({"limits": {...}})'
        raise UsageError(f"config= takes the path of a file or a mapping, got {type(config).__name__}", hint=hint)
    if not isinstance(home, str | PathLike | None):
        raise UsageError(f"home= takes a folder, got {type(home).__name__}", hint='home="/var/lib/my-app"')
    if plugins is not None and (isinstance(plugins, str | bytes | Mapping) or not isinstance(plugins, Iterable)):
        raise UsageError(f"plugins= takes a list, got {type(plugins).__name__}", hint="plugins=[thing]")


async def _awaited(thing: Awaitable[Any]) -> Any:
    return await thing


async def _as_coroutine(result: ToolResult) -> ToolResult:
    return result


def _inside_a_loop(method: str, instead: str) -> ToolResult:
    text = f"{method} was called inside a running event loop, which it would block"
    return failure(CallMisused(text, hint=f"use `await tavern.{instead}`"))
