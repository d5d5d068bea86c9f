"""The proxy of an isolated plugin: an ordinary plugin object, built from the description of the worker.

The hook table, grants, the activation, listings and the pipeline see hookimpls, tools, factories, services and commands as
those of any other plugin; each of them calls the worker. Under an event loop they return an awaitable, on their own
thread they wait; so they never block a loop and need none.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from types import CodeType, FunctionType
from typing import Any

from tavern_core.contract.hookspecs import HOOKS, hookimpl
from tavern_core.contract.protocols import Command, Contribution, Prompt, Resource, Service
from tavern_core.contract.published_methods import MUTATES
from tavern_core.contract.tools import ToolFactory
from tavern_core.errors import HookRefused, PluginError, sayable
from tavern_core.isolation.codec import pack_context, pack_tool
from tavern_core.isolation.node_codec import HOOK_VALUES
from tavern_core.isolation.proxy_nodes import proxy_node
from tavern_core.isolation.proxy_tools import FactoryCall, RemoteTool, reported_tool, unpacked
from tavern_core.isolation.supervisor import Supervisor
from tavern_core.isolation.transport import validated_message
from tavern_core.isolation.worker.facilities import LONGEST_DOC, remote_method
from tavern_core.isolation.worker_connections import ConnectionKind
from tavern_core.kernel.plugins.permitted_hooks import LIFE
from tavern_core.kernel.plugins.remote_plugin_interface import RemotePlugin
from tavern_core.model.call import CallContext
from tavern_core.model.node import NodeSpec
from tavern_core.model.tool import ToolSpec

_running_loop = asyncio._get_running_loop
Unpack = Callable[[Any], Any]


class IsolatedPlugin(RemotePlugin):
    """The plugin object that the lifecycle gets. Each plugin has its own class, so that inspecting it shows its hooks."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def handler(self, target: str) -> RemoteTool:
        """The tool that ``module:name`` of the plugin's package names."""
        return RemoteTool(self._supervisor, "", target)

    def nodes(self, entry: str) -> list[NodeSpec]:
        """The nodes below `nodes.entry`, found and imported in the worker."""
        request = {"entry": entry, "honest": True}
        report = validated_message(self._supervisor.request("nodes_below", request, seconds=self._supervisor.hook_s))
        self._supervisor.remember({"do": "nodes_below", **request})
        return [proxy_node(self._supervisor, item) for item in report]

    def close(self) -> None:
        """End its worker."""
        self._supervisor.close()


def plugin_proxy(supervisor: Supervisor, report: Mapping[str, Any]) -> IsolatedPlugin:
    """The object for a plugin that a worker reported as `report`.

    Raises:
        PluginError: the description makes no sense.
    """
    try:
        return _made(supervisor, report)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PluginError(f"{supervisor.plugin} described itself in a way that makes no sense: {error!r}") from error


def _made(supervisor: Supervisor, report: Mapping[str, Any]) -> IsolatedPlugin:
    forgotten = {}
    for place in report["unmarked"]:
        where, _, name = str(place).rpartition(" ")
        if name in HOOKS:
            forgotten[name] = _placed(lambda: None, name, where)
    plugin: IsolatedPlugin = type("IsolatedPlugin", (IsolatedPlugin,), forgotten)(supervisor)
    for number, described in enumerate(report["hooks"]):
        name = f"h{number:04}_{described['hook']}"
        setattr(plugin, name, _hook(supervisor, number, described))
    return plugin


# Hooks ------------------------------------------------------------------------------------------------------------------


def _hook(supervisor: Supervisor, number: int, report: Mapping[str, Any]) -> Callable[..., Any]:
    """A marked function with the arguments and the source place of the implementation."""
    hook = HOOKS.get(str(report["hook"]))
    if hook is None:
        raise HookRefused(f"{supervisor.plugin}: there is no hook {sayable(str(report['hook']), 100)!r}")
    arguments = [str(name) for name in report["arguments"]]
    if not set(arguments) <= set(hook.arguments):
        raise ValueError(f"{hook.name} has other arguments")
    kind: ConnectionKind = "loop" if report["async"] is True else "sync"
    if hook.kind == "contribute" and hook.name not in LIFE:
        ask = _offer(supervisor, number, hook.name)
    else:
        ask = _hook_call(supervisor, number, hook.name, kind)
    # `read_implementations` reads names and place from the function itself; the names are those of our own table.
    pairs = ", ".join(f"{name!r}: {name}" for name in arguments)
    function = eval(f"lambda {', '.join(arguments)}: ask({{{pairs}}})", {"ask": ask})
    function = _placed(function, hook.name, str(report["where"]))
    when = _when(supervisor, number) if report["when"] is True else None
    marked: Callable[..., Any] = hookimpl(
        tryfirst=report["tryfirst"] is True, trylast=report["trylast"] is True, specname=hook.name, when=when, fast=True
    )(function)
    return marked


def _placed(function: Any, name: str, where: str) -> FunctionType:
    """`function`, with the source place of the plugin's own function, for messages and tracebacks."""
    file, _, line = where.rpartition(":")
    number = int(line) if line.isdecimal() and len(line) < 8 else 1
    code: CodeType = function.__code__.replace(
        co_filename=sayable(file or where, 500), co_firstlineno=number, co_name=name
    )
    return FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)


def _hook_call(supervisor: Supervisor, number: int, name: str, kind: ConnectionKind) -> Callable[[dict[str, Any]], Any]:
    honest = {"honest": True} if name == "tavern_start" else {}

    def ask(values: dict[str, Any]) -> Any:
        arguments = {key: HOOK_VALUES.encode(value) for key, value in values.items() if key != "ctx"}
        request = {"impl": number, "given": arguments, **honest}

        def answer(packed: Any) -> Any:
            if name == "tavern_start":
                supervisor.remember({"do": "hook", **request})
            return unpacked(packed, values, HOOK_VALUES)

        return _asked(supervisor, "hook", request, kind, f"hook {number}", answer, supervisor.hook_s)

    return ask


def _offer(supervisor: Supervisor, number: int, name: str) -> Callable[[dict[str, Any]], Any]:
    def ask(values: dict[str, Any]) -> Any:
        request = {"impl": number}

        def answer(report: Any) -> Any:
            supervisor.remember({"do": "offer", **request})
            return _offered(supervisor, HOOKS[name].section, validated_message(report))

        return _asked(supervisor, "offer", request, "sync", "offer", answer, supervisor.hook_s)

    return ask


def _when(supervisor: Supervisor, number: int) -> Callable[[ToolSpec], bool]:
    def when(tool: ToolSpec) -> bool:
        return supervisor.request("wants", {"impl": number, "tool": pack_tool(tool)}, seconds=supervisor.hook_s) is True

    return when


def _asked(
    supervisor: Supervisor,
    do: str,
    request: Mapping[str, Any],
    kind: ConnectionKind,
    what: str,
    answer: Unpack,
    seconds: float,
) -> Any:
    """The answer, or an awaitable of it under an event loop (whose caller limits the time)."""
    if _running_loop() is None:
        return answer(supervisor.request(do, request, kind, seconds))

    async def later() -> Any:
        return answer(await supervisor.request_later(do, request, kind, what))

    return later()


# Contributions ------------------------------------------------------------------------------------------------------------


def _offered(supervisor: Supervisor, section: str, report: Any) -> Any:
    if report is None or section in ("settings", "profiles", "workflows"):
        return report
    if section == "adapters":
        from tavern_core.isolation.proxy_adapters import proxy_adapter

        return dict(proxy_adapter(supervisor, item) for item in report)
    makers: dict[str, Callable[[Supervisor, Any], Any]] = {
        "tools": _tool, "services": _service, "commands": _command, "channels": _contribution, "providers": _contribution,
        "nodes": proxy_node, "resources": _resource, "prompts": _prompt,
    }  # fmt: skip
    return [makers[section](supervisor, item) for item in report]


def _tool(supervisor: Supervisor, report: Any) -> ToolSpec | ToolFactory:
    if "factory" in report:
        return _factory(supervisor, report)
    return reported_tool(supervisor, report)


def _factory(supervisor: Supervisor, report: Any) -> ToolFactory:
    place, kind = str(report["factory"]), "loop" if report["async"] is True else "sync"

    def make(context: CallContext) -> Any:
        context_json = pack_context(context)
        request = {"factory": place, "context": context_json, "drop": supervisor.unused()}

        def answer(tools: Any) -> Any:
            if tools is None or (worker := supervisor.worker_client) is None:
                return None
            made = FactoryCall(place, context_json, worker)
            return [reported_tool(supervisor, item, made) for item in validated_message(tools)]

        return _asked(supervisor, "make", request, kind, f"factory {place}", answer, supervisor.hook_s)  # type: ignore[arg-type]

    names = None if report["names"] is None else tuple(str(name) for name in report["names"])
    return ToolFactory(make, names, report["optional"] is True, None if report["name"] is None else str(report["name"]))


def _resource(supervisor: Supervisor, report: Any) -> Resource:
    return Resource(*(str(report[name]) for name in ("name", "uri", "tool", "description", "title", "media_type")))


def _prompt(supervisor: Supervisor, report: Any) -> Prompt:
    return Prompt(*(str(report[name]) for name in ("name", "tool", "description", "title")))


# Services and the rest ----------------------------------------------------------------------------------------------------


def _service(supervisor: Supervisor, report: Any) -> Service:
    name, description, marked_in, methods, starts, stops = report
    name, description = str(name), str(description)
    start, stop = _life(supervisor, name, False), _life(supervisor, name, True)
    thing = proxy_service(supervisor, name, description, sayable(str(marked_in), 200), methods)
    return Service(name, thing, None, start if starts is True else None, stop if stops is True else None, description)


def _life(supervisor: Supervisor, name: str, end: bool) -> Callable[[], Coroutine[Any, Any, None]]:
    request = {"name": name, "end": False, "honest": True}

    async def change() -> None:
        arguments = {**request, "end": end, "honest": not end}
        await supervisor.request_later("service_life", arguments, "loop", f"service {name}")
        if end:
            supervisor.forget({"do": "service_life", **request})
        else:
            supervisor.remember({"do": "service_life", **request})

    return change


def _command(supervisor: Supervisor, report: Any) -> Command:

    name, text = (str(part) for part in report)
    return Command(
        name,
        lambda: proxy_command(name, text, lambda args: supervisor.request("command", {"name": name, "args": args})),
        text,
    )


def _contribution(supervisor: Supervisor, report: Any) -> Contribution:
    name, thing, description, data = report
    return Contribution(str(name), thing, str(description), dict(data))


def proxy_command(name: str, text: str, run: Callable[[list[str]], Any]) -> Any:
    """A click command that passes everything to the worker, including ``--help``.

    Args:
        text: one line about it.
        run: passes the arguments; returns ``{"out", "err", "code"}``.
    """
    import click

    @click.command(
        name,
        help=text,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def command(context: click.Context, arguments: tuple[str, ...]) -> None:
        done = run(list(arguments))
        click.echo(str(done["out"]), nl=False)
        click.echo(str(done["err"]), nl=False, err=True)
        context.exit(int(done["code"]))

    return command


# Proxy services -------------------------------------------------------------------------------------------------------
# The methods of a service in a worker, built from its description and equal to the originals on inspection.


def proxy_service(supervisor: Supervisor, service: str, doc: str, marked_in: str, facts: Mapping[str, Any]) -> Any:
    """An object whose methods call the worker.

    Args:
        marked_in: the name of the class whose methods the plugin's author marks.
    """
    services = WorkerServices(supervisor)
    body: dict[str, Any] = {"__slots__": (), "__doc__": doc}
    for name, described in facts.items():
        if str(name).isidentifier() and not name.startswith("_"):
            method = remote_method(services, service, name, described["async"] is True)
            body[name] = _dressed(method, described)
    return type(marked_in if marked_in.isidentifier() else "Service", (), body)()


class WorkerServices:
    """The services of a worker."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def call(self, given: dict[str, Any]) -> Any:
        """See `RemoteServices`."""
        return validated_message(self._supervisor.request("service", given))

    async def call_later(self, given: dict[str, Any]) -> Any:
        """See `RemoteServices`."""
        what = f"{given['name']}.{given['method']}"
        return validated_message(await self._supervisor.request_later("service", given, "loop", what))


def _dressed(method: Any, described: Mapping[str, Any]) -> Callable[..., Any]:
    """`method` with the docstring, the mark and the parameters of the original."""
    method.__doc__ = sayable(str(described["doc"]), LONGEST_DOC)
    if type(described["mutates"]) is bool:
        setattr(method, MUTATES, described["mutates"])
    if described["parameters"] is not None:
        empty = inspect.Parameter.empty
        parameters = [
            inspect.Parameter(str(n), inspect._ParameterKind(kind), default=... if optional is True else empty)
            for n, kind, optional in described["parameters"]
        ]
        method.__signature__ = inspect.Signature(parameters)
    return method  # type: ignore[no-any-return]
