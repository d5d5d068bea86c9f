"""Every hook a plugin may implement. Read this file first.

Each function below is one row of the table `HOOKS`: its name and arguments are the hook's, its docstring is the hook's
contract (when it is called, what it may return, what an error means, what it must not do), and the decorator gives the
rest. The pluggy hookspecs, the permission names of the manifest, the consent texts and docs/hooks.md are generated from it.

    kind        meaning                                                on error
    contribute  returns what the plugin contributes                    the plugin fails to activate, others unaffected
    modify      returns a changed copy or None, or `deny(...)`         change dropped; in a before-hook the call is denied
    gate        checks the final values: None, deny, require_approval  the call is denied
    observe     its result is ignored                                  a diagnostic, nothing else
    claim       the first answer that is not None wins                 skipped with a diagnostic

All may be `def` or `async def`. An implementation takes only the arguments it needs. pluggy wrappers are refused.
"""
# mypy: disable-error-code=empty-body

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, overload

import pluggy

from tavern_core.errors import UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.nearest import did_you_mean

if TYPE_CHECKING:  # they use pydantic, which takes as long to load as everything else together
    from tavern_core.contract.adapters import Adapter
    from tavern_core.contract.context import PluginContext
    from tavern_core.contract.decisions import Decision, Deny
    from tavern_core.contract.llm import LLM
    from tavern_core.contract.protocols import (
        Command,
        Contribution,
        Executor,
        NamespaceResolver,
        Prompt,
        Resource,
        Service,
    )
    from tavern_core.contract.ranking import Ranker
    from tavern_core.contract.tools import ToolOffer
    from tavern_core.model.agent_profile import AgentProfile
    from tavern_core.model.call import CallContext, ToolCall
    from tavern_core.model.capability import Risk
    from tavern_core.model.event import Event
    from tavern_core.model.node import NodeSpec
    from tavern_core.model.result import ToolResult
    from tavern_core.model.run import NodeInfo, RunInfo
    from tavern_core.model.setting_declaration import SettingItem
    from tavern_core.model.tool import ToolSpec

PROJECT: Final = "tavern"
F = TypeVar("F", bound=Callable[..., Any])
HookKind = Literal["contribute", "modify", "gate", "observe", "claim"]


class Asked(NamedTuple):
    """The risk of a hook's permission, and the sentence that a person consents to."""

    risk: Risk
    sentence: str
    sentence_zh: str


@dataclass(frozen=True, slots=True)
class Hook:
    """A row of the table `HOOKS`."""

    name: str
    arguments: tuple[str, ...]
    kind: HookKind
    contract: str
    """The docstring."""
    permissions: tuple[str, ...] = ()
    """Permission ids, any of which allows it; empty for hooks that a manifest section or the plugin's own lifecycle grants."""
    aliases: tuple[str, ...] = ()
    """Older names of the permission, accepted in manifests."""
    section: str = ""
    """The manifest section (camelCase) that grants a contribute-hook."""
    sensitive: Mapping[str, str] | None = None
    """Argument → the ``data:…`` right it needs."""
    risk: Risk = "low"
    sentence: str = ""
    sentence_zh: str = ""
    since: str = "1.0"
    """The host version from which it is called; empty: the name is reserved and not called yet."""

    @property
    def is_called(self) -> bool:
        """False for reserved names."""
        return bool(self.since)


HOOKS: Final[dict[str, Hook]] = {}
"""Hook name → row, in the order of this file."""

_spec = pluggy.HookspecMarker(PROJECT)
_impl = pluggy.HookimplMarker(PROJECT)
WHEN = "__tavern_when__"
FAST = "__tavern_fast__"


@overload
def hookimpl(function: F, /) -> F: ...


@overload
def hookimpl(
    *,
    tryfirst: bool = False,
    trylast: bool = False,
    specname: str | None = None,
    when: Callable[[ToolSpec], bool] | None = None,
    fast: bool = False,
) -> Callable[[F], F]: ...


def hookimpl(
    function: F | None = None,
    /,
    *,
    tryfirst: bool = False,
    trylast: bool = False,
    specname: str | None = None,
    when: Callable[[ToolSpec], bool] | None = None,
    fast: bool = False,
    **other: Any,
) -> F | Callable[[F], F]:
    """Mark a function of a plugin as the implementation of the hook of its name.

    Args:
        tryfirst: run before implementations without it (needs ``permissions.tryfirst: true``).
        trylast: run after all others.
        specname: the hook's name, where the function has another.
        when: called once per tool when its plan is compiled: False leaves the implementation out for that tool.
        fast: the author promises that a sync function never blocks: it runs on the caller's thread. Others run in
            a worker thread, so that the time-out of hooks holds.

    Raises:
        UsageError: an unknown option, including pluggy's wrappers (USAGE).
    """
    if other:
        raise _no_option(next(iter(other)))
    if function is not None and not callable(function):
        raise UsageError(
            f"@hookimpl marks a function, got {function!r:.80}", hint="options go by name: @hookimpl(tryfirst=True)"
        )

    def mark(marked: F) -> F:
        if when is not None:
            setattr(marked, WHEN, when)
        if fast:
            setattr(marked, FAST, True)
        return _impl(tryfirst=tryfirst, trylast=trylast, specname=specname)(marked)

    return mark if function is None else mark(function)


def _no_option(name: str) -> UsageError:
    if name in ("wrapper", "hookwrapper"):
        return UsageError(
            f"hookimpl({name}=True): pluggy wrappers are not allowed",
            hint="use tavern_before_execute, tavern_transform_result or tavern_after_execute instead",
        )
    options = ("tryfirst", "trylast", "specname", "when", "fast")
    return UsageError(f"hookimpl has no option {name!r}", hint=did_you_mean(name, options) or ", ".join(options))


def _hook(
    kind: HookKind,
    *permissions: str,
    aliases: tuple[str, ...] = (),
    section: str = "",
    sensitive: Mapping[str, str] | None = None,
    asks: Asked = Asked("low", "", ""),  # noqa: B008 - frozen
    since: str = "1.0",
) -> Callable[[F], F]:
    def add(function: F) -> F:
        name = function.__name__
        arguments = tuple(inspect.signature(function).parameters)
        HOOKS[name] = Hook(
            name, arguments, kind, inspect.getdoc(function) or "", permissions, aliases, section, sensitive,
            *asks, since,
        )  # fmt: skip
        return _spec(function)

    return add


# The plugin's own lifecycle --------------------------------------------------------------------------------------------


@_hook("contribute")
def tavern_start(ctx: PluginContext) -> None:
    """Called once when the plugin is activated, after the host accepted its contributions.

    Return nothing. An error fails the activation and nothing of the plugin stays registered. Do not start work that
    `tavern_stop` cannot end.
    """


@_hook("contribute")
def tavern_stop(ctx: PluginContext) -> None:
    """Called once when the plugin is disabled, reloaded or the host closes, after running calls had time to finish.

    Return nothing. An error is a diagnostic; the host stops the plugin anyway. Do not call tools from it.
    """


# Contributions ---------------------------------------------------------------------------------------------------------


@_hook("contribute", section="tools")
def tavern_register_tools(ctx: PluginContext) -> Iterable[ToolOffer]:
    """Called when the plugin is activated: return its tools.

    Items are functions marked with `@tool`, `Tool`, `ToolSpec`, objects with `execute`, `offer(...)`, `factory(...)`,
    mappings in the tool-file format or toolboxes. An error fails the activation. Do not import heavy libraries before a
    tool that needs them is called.
    """


@_hook("contribute", section="executors")
def tavern_register_executors(ctx: PluginContext) -> Mapping[str, Executor]:
    """Called when the plugin is activated: return ``{kind: executor}`` for further kinds of tools.

    The kinds must be declared in the manifest's `executors`. An error fails the activation. An existing kind is
    a conflict; do not replace one of the host's.
    """


@_hook("contribute", section="services")
def tavern_register_services(ctx: PluginContext) -> Iterable[Service] | Mapping[str, Any]:
    """Called when the plugin is activated: return its services.

    ``[Service("name", object)]``, or ``{name: object}`` for objects that need no start. Each is started in the order
    given and stopped in reverse. An error fails the activation. Do not do long work before `Service.start`.
    """


@_hook("contribute", section="settings")
def tavern_register_settings(ctx: PluginContext) -> Iterable[SettingItem | Mapping[str, Any]]:
    """Called when the plugin is activated: return settings that are only known at run time.

    Items are ``SettingItem(key="extensions.name.option", type="string")``, or mappings with the keys of plugin.yaml.
    Declare all other settings as `configOptions`. Keys follow the same rule as in the manifest. An error fails the
    activation. Do not read settings here that are not declared yet.
    """


@_hook("contribute", section="commands")
def tavern_register_commands(ctx: PluginContext) -> Iterable[Command]:
    """Called when the command line needs the plugin's sub-commands: return them.

    Names must be declared in the manifest's `commands`. An error fails the activation. Do not import click at module
    level; `Command.build` is called when the command runs.
    """


@_hook("contribute", section="profiles")
def tavern_register_profiles(ctx: PluginContext) -> Iterable[AgentProfile | Mapping[str, Any]]:
    """Called when the plugin is activated: return agent profiles.

    Names must be unique. An error fails the activation. A profile lists tools and grants nothing.
    """


@_hook("contribute", section="namespaces")
def tavern_register_namespaces(ctx: PluginContext) -> Mapping[str, NamespaceResolver]:
    """Called when the plugin is activated: return ``{prefix: resolver}`` for prefixes of a profile's inventory.

    An existing prefix is a conflict, and so is a prefix of the host (``kb``, ``skill`` …), unless the plugin is an object
    passed to `Tavern.open`. An error fails the activation. Resolvers, sync or async, must be quick: the host calls them
    each time it loads a profile, within the time limit of hooks. If one fails, only its own tools are missing; if one
    hangs, the host does not call it for `limits.hookRestMs`.
    """


@_hook("contribute", section="channels")
def tavern_register_channels(ctx: PluginContext) -> Iterable[Contribution | Mapping[str, Any]] | Mapping[str, Any]:
    """Called when the plugin is activated: return channels that a host application may read.

    ``{name: object}``, or items with a name: `Contribution`, mappings (``{"name": "x", ...}``), objects with a `name`. The
    host wraps each in a `Contribution`, whose `object` is the item. Names must be unique among channels. An error fails the
    activation. The host only stores them.
    """


@_hook("contribute", section="providers")
def tavern_register_providers(ctx: PluginContext) -> Iterable[Contribution | Mapping[str, Any]] | Mapping[str, Any]:
    """Called when the plugin is activated: return providers that a host application may read.

    ``{name: object}``, or items with a name: `Contribution`, mappings (``{"name": "x", ...}``), objects with a `name`. The
    host wraps each in a `Contribution`, whose `object` is the item. Names must be unique among providers. An error fails
    the activation. The host only stores them.
    """


@_hook("contribute", section="resources")
def tavern_register_resources(ctx: PluginContext) -> Iterable[Resource]:
    """Called when the plugin is activated: return what clients of an MCP server may read: ``[Resource("manual", "docs://manual", "read")]``.

    Names must be unique among resources. An error fails the activation. A tool gives the content, and every caller of that tool may read it.
    """


@_hook("contribute", section="prompts")
def tavern_register_prompts(ctx: PluginContext) -> Iterable[Prompt]:
    """Called when the plugin is activated: return prompts that clients of an MCP server may choose: ``[Prompt("review", "review_prompt")]``.

    Names must be unique among prompts. An error fails the activation. A tool gives the messages, and every caller of that tool may get them.
    """


@_hook("contribute", section="nodes")
def tavern_register_nodes(ctx: PluginContext) -> Iterable[Any]:
    """Called when the plugin is activated: return its nodes: functions marked with `@node`, subclasses of `Node`, or lists.

    Types start with the plugin's name (``text:Template``). An error fails the activation. Modules below `nodes.entry`
    need no hook: the host finds what is marked in them.
    """


@_hook("contribute", section="workflows")
def tavern_register_workflows(ctx: PluginContext) -> Mapping[str, Mapping[str, Any] | str | Path]:
    """Called when the plugin is activated: return ``{id: workflow}``: the content or the path of a workflow file.

    The workflow's id is ``<plugin>.<id>``, its tool ``workflow:<plugin>.<id>``. An error fails the activation.
    """


@_hook("contribute", section="adapters")
def tavern_register_adapters(ctx: PluginContext) -> Mapping[str, Adapter]:
    """Called at the first use of an upstream of the plugin's kind: return ``{kind: adapter}``.

    An adapter makes the tools of another system available (`contract/adapters.py`). An existing kind is a conflict. An
    error fails the activation. Do not connect here: the host calls `Adapter.connect` for that.
    """


@_hook("contribute", section="routes", since="")
def tavern_register_routes(ctx: PluginContext) -> Iterable[Any]:
    """Reserved for routes of the server."""


@_hook("contribute", section="ui", since="")
def tavern_register_ui(ctx: PluginContext) -> Iterable[Any]:
    """Reserved for parts of the console."""


@_hook("contribute", section="llms")
def tavern_register_llms(ctx: PluginContext) -> Mapping[str, LLM]:
    """Called when the plugin is activated: return ``{name: model}``: language models for nodes and agents.

    A model is an object with ``async complete(messages, **options) -> LLMAnswer``. An existing name is a conflict. An error
    fails the activation. Do not connect here.
    """


@_hook("contribute", section="rankers")
def tavern_register_rankers(ctx: PluginContext) -> Mapping[str, Ranker]:
    """Called when the plugin is activated: return ``{name: ranker}``: further evidence for the search for node types.

    A ranker is an object with ``rank(query, documents, limit)``, sync or async, which returns ids of documents, best first. An
    existing name is a conflict. An error fails the activation. A ranker that fails or takes too long is left out of the answer.
    """


@_hook("contribute", section="jobStores", since="")
def tavern_register_job_stores(ctx: PluginContext) -> Iterable[Any]:
    """Reserved for stores of background jobs."""


@_hook("contribute", section="hookspecs", since="")
def tavern_register_hookspecs(ctx: PluginContext) -> Iterable[Any]:
    """Reserved for hooks that plugins define for each other."""


# Tools -----------------------------------------------------------------------------------------------------------------


@_hook(
    "modify",
    "hook:server:tools:before-register",
    asks=Asked("high", "change the definition of any tool before it is registered", "在任何工具注册之前修改其定义"),
)
def tavern_before_register_tool(tool: ToolSpec, owner: str, ctx: PluginContext) -> ToolSpec | Deny | None:
    """Called for each tool of another plugin (`owner`) before it is registered.

    Return a changed copy (``dataclasses.replace``), `deny(why)` to leave the tool out, or None. The host validates the
    result again and records who changed what. The tool's id, owner and code cannot change. Capabilities, approval,
    `destructive`, `untrusted`, `optional`, settings, time-out and limits of calls can be tightened, not loosened, and
    `read_only` cannot be added. Marks of secret and guarded parameters stay. An error leaves the tool out.
    """


@_hook(
    "modify",
    "hook:server:tool:before-execute",
    asks=Asked("high", "see and change the arguments of every tool call", "查看并修改每次工具调用的参数"),
)
def tavern_before_execute(
    call: ToolCall, tool: ToolSpec, ctx: PluginContext
) -> ToolCall | Mapping[str, Any] | Deny | None:
    """Called for each call before defaults, validation and every gate.

    Return a changed copy of `call`, a mapping with the new arguments, `deny(why)`, or None. Only `arguments` and `purpose`
    may change; the host validates the result again. An error, or a change of anything else, denies the call. The hook gets a
    copy of the arguments: changing it in place has no effect.
    """


@_hook(
    "gate",
    "hook:server:tool:check",
    asks=Asked("medium", "see the arguments of every tool call and refuse it", "查看每次工具调用的参数并可拒绝该调用"),
)
def tavern_check_call(call: ToolCall, tool: ToolSpec, ctx: PluginContext) -> Decision | None:
    """Called for each call after the arguments are final and valid.

    Return None to let it pass, `deny(why)` or `require_approval(why)`. A denial is final. An error or a time-out denies
    the call. Do not change anything: use `tavern_before_execute` for that.
    """


@_hook(
    "modify",
    "hook:server:tool:transform-result",
    asks=Asked("high", "see and change the answer of every tool call", "查看并修改每次工具调用的结果"),
)
def tavern_transform_result(call: ToolCall, result: ToolResult, ctx: PluginContext) -> ToolResult | Deny | None:
    """Called for each finished call, failed ones too, before the answer is recorded and returned.

    Return a changed copy (``result.replace(...)``), `deny(why)` to withhold the answer (POLICY_DENIED), or None. A
    successful answer is validated against the output schema again. An error drops the change and is a diagnostic. A
    failure cannot be turned into a success.
    """


@_hook(
    "observe",
    "hook:server:tool:after-execute",
    asks=Asked("medium", "see the arguments and the answer of every tool call", "查看每次工具调用的参数和结果"),
)
def tavern_after_execute(call: ToolCall, result: ToolResult, ctx: PluginContext) -> None:
    """Called after each call, refused and failed ones too.

    The result is ignored. An error is a diagnostic and changes nothing. Do not block: the caller waits.
    """


# Workflows and nodes ------------------------------------------------------------------


@_hook(
    "modify",
    "hook:server:nodemanager:before-register",
    asks=Asked("high", "change the definition of any node before it is registered", "在任何节点注册之前修改其定义"),
)
def tavern_before_register_node(definition: NodeSpec, owner: str, ctx: PluginContext) -> NodeSpec | Deny | None:
    """Called for each node type of another plugin (`owner`) before it is registered.

    Return a changed copy (``dataclasses.replace``), `deny(why)` to leave the node out, or None. The host validates the
    result again and records who changed what; type, owner and code cannot change, and no capability can be removed.
    An error leaves the node out.
    """


@_hook(
    "modify",
    "hook:client:workflow:before-execute",
    "hook:server:workflow:before-execute",
    aliases=("workflow:before-execute",),
    asks=Asked("high", "see and change the inputs of every workflow", "查看并修改每个工作流的输入"),
)
def tavern_before_workflow(
    run: RunInfo, inputs: Mapping[str, Any], ctx: PluginContext
) -> Mapping[str, Any] | Deny | None:
    """Called for each run of a workflow before its first node.

    Return the changed inputs, `deny(why)`, or None. The hook gets a copy of the inputs; the host validates the result
    against the interface again, and the host records who changed what. An error denies the run.
    """


@_hook(
    "observe",
    "hook:server:workflow:after-execute",
    asks=Asked("medium", "see the outputs of every workflow", "查看每个工作流的输出"),
)
def tavern_after_workflow(run: RunInfo, outputs: Mapping[str, Any], ctx: PluginContext) -> None:
    """Called after each run, failed and cancelled ones too (`run.state`).

    The result is ignored. An error is a diagnostic and changes nothing.
    """


@_hook(
    "modify",
    "hook:server:node:before-execute",
    asks=Asked("high", "see and change the inputs of every node", "查看并修改每个节点的输入"),
)
def tavern_before_node(
    node: NodeInfo, inputs: Mapping[str, Any], run: RunInfo, ctx: PluginContext
) -> Mapping[str, Any] | Deny | None:
    """Called for each node before it runs, at each attempt.

    Return the changed inputs, `deny(why)`, or None. The hook gets a copy of the inputs if they are plain data; the host
    checks the result against the node's slots again, and the run records who changed what. An error fails the node.
    """


@_hook(
    "observe",
    "hook:server:node:after-execute",
    asks=Asked("medium", "see the outputs of every node", "查看每个节点的输出"),
)
def tavern_after_node(node: NodeInfo, outputs: Mapping[str, Any], run: RunInfo, ctx: PluginContext) -> None:
    """Called after each node that ran to its end.

    The result is ignored. An error is a diagnostic and changes nothing. Do not block: the node's followers wait.
    """


@_hook(
    "modify",
    "hook:server:workflow:before-patch",
    asks=Asked("high", "see and change edits of workflows", "查看并修改对工作流的编辑"),
)
def tavern_before_patch(
    patch: Sequence[Mapping[str, Any]], workflow: Mapping[str, Any], ctx: PluginContext
) -> Sequence[Mapping[str, Any]] | Deny | None:
    """Called for each patch of a workflow before it is applied.

    `patch` is the list of operations (RFC 6902), `workflow` the content of the file before it; both are copies. Return the
    changed list of operations, `deny(why)`, or None. The host checks the result like any patch and records who changed it.
    An error denies the patch. Do not patch workflows from it.
    """


# Settings, agents, installation, users ---------------------------------------------------------------------------------


@_hook(
    "modify",
    "hook:client:settings:before-save",
    aliases=("settings:save:before",),
    asks=Asked("medium", "see and change settings before they are saved", "在保存设置之前查看并修改设置"),
)
def tavern_before_save_settings(changes: Mapping[str, Any], ctx: PluginContext) -> Mapping[str, Any] | Deny | None:
    """Called before changed settings are validated and saved; `changes` is key → new value, secrets masked.

    Return a mapping with the changes to save instead, `deny(why)`, or None. The result is validated; a masked secret that
    is returned keeps its real value. An error refuses the change. Keys of other plugins that were not among the changes
    cannot be added.
    """


@_hook(
    "modify",
    "hook:server:agent:before-prompt",
    asks=Asked("high", "see and change what is sent to a language model", "查看并修改发送给语言模型的内容"),
    sensitive={"conversation": "data:conversation"},
)
def tavern_before_prompt(
    prompt: Mapping[str, Any], ctx: PluginContext, conversation: Iterable[Mapping[str, Any]]
) -> Mapping[str, Any] | Deny | None:
    """Called for each request to a language model, from a node, a plugin or an agent, before its gates and its budget.

    `prompt` has `system` (the system messages), `model` (its name; empty: the only one), `purpose`, and `tools` if there are
    any; `conversation` has all other messages. Return a changed copy of `prompt`, `deny(why)`, or None. A plugin that takes
    `conversation` may add a changed copy under the key `conversation`. Everything but the purpose may change; the host
    validates the result again and records who changed what. An error denies the request. Requests that the plugin makes
    itself do not come here.
    """


@_hook(
    "gate",
    "hook:server:plugin:before-install",
    asks=Asked("medium", "refuse the installation of plugins", "拒绝安装插件"),
    since="",
)
def tavern_before_install(candidate: Any, ctx: PluginContext) -> Decision | None:
    """Reserved: checks a plugin before it is installed."""


@_hook(
    "observe",
    "hook:client:auth:login",
    aliases=("auth:login",),
    asks=Asked("medium", "see who logs in", "查看谁登录"),
)
def tavern_on_login(user: CallContext, ctx: PluginContext) -> None:
    """Called when the application reports a login (`Tavern.user_logged_in`).

    `user` says who: principal, user id, roles, profile. It has no permissions, so calls with it cannot use
    capabilities. The result is ignored. An error is a diagnostic and changes nothing.
    """


@_hook(
    "observe",
    "hook:server:events",
    asks=Asked("medium", "see the redacted event of everything that happens", "查看所有已脱敏的事件"),
)
def tavern_on_event(event: Event, ctx: PluginContext) -> None:
    """Called for every event of the host: calls, denials, plugin states, changed settings. Secrets are masked.

    The result is ignored. An error is a diagnostic and changes nothing. Do not call tools from it: their events come
    here again.
    """


BROWSER_PERMISSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "hook:client:node:render-after": ("node:render:after",),
}
"""Hooks that only exist in the browser: permission → aliases."""


def permission_names() -> dict[str, str]:
    """Every spelling of a hook permission → its canonical id: what ``permissions.hooks`` of a manifest may name."""
    names: dict[str, str] = {}
    for hook in HOOKS.values():
        for permission in hook.permissions:
            names[permission] = permission
        for alias in hook.aliases:
            names[alias] = hook.permissions[0]
    for permission, aliases in BROWSER_PERMISSIONS.items():
        names |= dict.fromkeys((permission, *aliases), permission)
    return names
