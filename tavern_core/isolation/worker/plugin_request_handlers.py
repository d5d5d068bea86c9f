"""The plugin in its worker: imported, inspected and called on behalf of the host.

Each public method of `WorkerPlugin` answers one kind of request; it returns JSON. Inspection and checks use the
same code as for plugins in the host, so that a plugin is the same here and there.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import io
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from tavern_core.contract.protocols import Command, Contribution, Prompt, Resource, Service
from tavern_core.contract.published_methods import published_methods
from tavern_core.contract.tools import ToolFactory
from tavern_core.errors import ActivationFailed, ToolFailed
from tavern_core.isolation.codec import CannotCross, WorkerSetup, unpack_tool
from tavern_core.isolation.node_codec import HOOK_VALUES
from tavern_core.isolation.worker.facilities import WorkerFacilities, as_in_a_view, context_of, method_facts
from tavern_core.isolation.worker.host_client import HostClient
from tavern_core.isolation.worker.loop_thread import LoopThread
from tavern_core.isolation.worker.nodes import WorkerNodes
from tavern_core.isolation.worker.running_call import WorkerCalls
from tavern_core.isolation.worker.tools import WorkerTools
from tavern_core.kernel.hooks.table import HookImplementation, read_implementations, unmarked_lookalikes
from tavern_core.kernel.nodes.node_signature_reading import NodeOwner
from tavern_core.kernel.plugins.contribution_registry import checked_contributions
from tavern_core.kernel.plugins.plugin_code import FolderCode
from tavern_core.kernel.plugins.plugin_errors import as_activation_error
from tavern_core.kernel.plugins.tool_spec_reading import describe
from tavern_core.model.config import LimitsConfig
from tavern_core.model.safe_printing import encodable
from tavern_core.model.setting_declaration import SettingItem
from tavern_core.schema.bounded_json_copying import json_copy

DESCRIBED: Final = frozenset(
    {"services", "commands", "profiles", "channels", "providers", "workflows", "resources", "prompts"}
)
"""Sections whose contents can be reported to the host, besides tools, settings and nodes."""
MOST_OFFERED: Final = 20_000


class WorkerPlugin:
    """A plugin in its worker; imported when it is created.

    Args:
        loop: awaits the awaitables that sync code of the plugin returned.

    Raises:
        PluginError: any error; names the place in the plugin's code.
    """

    def __init__(self, setup: WorkerSetup, host_client: HostClient, calls: WorkerCalls, loop: LoopThread) -> None:
        self._setup = setup
        self._host_client = host_client
        self._calls = calls
        self._loop = loop
        self._services: dict[str, Service] = {}
        self._commands: dict[str, Command] = {}
        self._facilities = WorkerFacilities(host_client, Path(setup.data_dir))
        self._folder = Path(setup.folder) if setup.folder else None
        self._ctx = context_of(setup.context, self._facilities, self._folder)
        self.nodes = WorkerNodes(NodeOwner(setup.plugin, setup.version), host_client, self._facilities.service)
        self._package = self._honestly(lambda: imported(setup))
        self._limits = LimitsConfig.model_validate(setup.limits)
        record = SimpleNamespace(name=setup.plugin, thing=self._package)
        self.tools = WorkerTools(setup, self._folder, self._limits, record, calls)
        self._implementations = read_implementations(self._package, setup.plugin)

    # Import and inspection ---------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Its hooks, and functions that look like hooks and are not marked."""
        return {
            "hooks": [_description(impl) for impl in self._implementations],
            "unmarked": unmarked_lookalikes(self._package),
        }

    def _honestly(self, work: Callable[[], Any]) -> Any:
        """Run code of the plugin; an error becomes the activation error of a plugin in the host."""
        try:
            return work()
        except BaseException as error:
            raise self.honest(error) from error

    def honest(self, error: BaseException) -> BaseException:
        """The activation error of a plugin in the host for an error of the plugin's code."""
        candidate: Any = SimpleNamespace(name=self._setup.plugin, folder=self._folder)
        return as_activation_error(error, candidate)

    # Hooks --------------------------------------------------------------------------------------------------------------

    def hook(self, number: int, given: Mapping[str, Any]) -> Any:
        """Start one hook implementation; its answer, or an awaitable of it."""
        impl = self._implementations[number]
        return impl.function(*self._arguments(impl, given))

    def answer(self, answer: Any) -> Any:
        """The answer of a hook for the host; for other values, their description, which the host refuses."""
        try:
            return HOOK_VALUES.encode(answer)
        except CannotCross:
            return ["other", type(answer).__name__]

    def name_of(self, number: int) -> str:
        """The name of an implementation's hook."""
        return self._implementations[number].hook.name

    def wants(self, number: int, tool: Any) -> bool:
        """The result of `when` of an implementation for a tool."""
        when = self._implementations[number].when
        return when is None or bool(when(unpack_tool(tool)))

    def _arguments(self, impl: HookImplementation, given: Mapping[str, Any]) -> list[Any]:
        values = {name: HOOK_VALUES.decode(value, {"trusted": True}) for name, value in given.items()}
        return [self._ctx if name == "ctx" else values[name] for name in impl.arguments]

    # Contributions ------------------------------------------------------------------------------------------------------

    def offer(self, number: int) -> Any:
        """Call a contribute hook; returns its contributions, if they can be transferred.

        Raises:
            PluginError: it failed, or returned something that cannot be transferred; names the section.
        """
        impl = self._implementations[number]

        def ask() -> Any:
            answer = impl.function(*self._arguments(impl, {}))
            if inspect.isawaitable(answer):
                answer = self._loop.wait(answer)
            if isinstance(answer, Iterable) and not isinstance(answer, str | bytes | Mapping) and not _is_one(answer):
                answer = list(islice(answer, MOST_OFFERED + 1))
                if len(answer) > MOST_OFFERED:
                    text = f"more than {MOST_OFFERED} things were offered at once"
                    raise ActivationFailed(text, hint="does a generator never end?")
            return self._offered(impl, number, answer)

        return self._honestly(ask)

    def _offered(self, impl: HookImplementation, number: int, answer: Any) -> Any:
        hook = impl.hook
        if hook.name == "tavern_register_tools":
            return [
                self.tools.report(item, f"{number}.{place}")
                for place, item in enumerate(describe(answer, self.tools.owner(), drafts=True))
            ]
        if hook.name == "tavern_register_settings":
            return [_setting(item) for item in answer or ()]
        if hook.section == "nodes":
            return self.nodes.offered(answer)
        if hook.section == "adapters":
            return self._adapters(checked_contributions(hook.section, answer, self._setup.plugin, impl.where))
        if hook.section not in DESCRIBED:
            if answer:
                raise self._cannot_cross(hook.section, "objects that the host would have to call")
            return None
        found = checked_contributions(hook.section, answer, self._setup.plugin, impl.where)
        reported = [self._reported_offer(hook.section, name, thing) for name, thing in found.items()]
        return dict(reported) if hook.section == "workflows" else reported

    def _adapters(self, found: Mapping[str, Any]) -> Any:
        from tavern_core.isolation.worker.adapters import DESK, WorkerAdapters

        known = self._services.get(DESK)
        desk = WorkerAdapters(self._host_client, self._calls) if known is None else known.object
        self._services[DESK] = Service(DESK, desk)
        return self._data("adapters", "settings of", desk.offered(found))

    def _reported_offer(self, section: str, name: str, thing: Any) -> Any:
        if isinstance(thing, Service):
            self._services[name] = thing
            marked_in = (thing.interface or type(thing.object)).__name__
            facts = method_facts(thing)
            return [name, thing.description, marked_in, facts, thing.start is not None, thing.stop is not None]
        if isinstance(thing, Resource | Prompt):
            return {field.name: getattr(thing, field.name) for field in fields(thing)}
        if isinstance(thing, Command):
            self._commands[name] = thing
            return [name, thing.help]
        if section == "workflows":
            return [name, self._data(section, f"{name!r}, of", str(thing) if isinstance(thing, Path) else thing)]
        if section == "profiles":
            return thing.model_dump(mode="json")
        assert isinstance(thing, Contribution)
        return self._data(section, f"{name!r}, of", [thing.name, thing.object, thing.description, dict(thing.data)])

    def _data(self, section: str, what: str, value: Any) -> Any:
        """A copy of `value`. Raises ActivationFailed: it is not JSON (ACTIVATION_FAILED)."""
        copy, problem = json_copy(value)
        if problem is not None:
            raise self._cannot_cross(section, f"{what} which {problem}")
        return copy

    def _cannot_cross(self, section: str, what: str) -> ActivationFailed:
        return ActivationFailed(
            f"{self._setup.plugin}: {section}: an isolated plugin cannot offer {what}",
            hint=f"offer data, or take `isolation: process` out of plugin.yaml; {section} of this kind need the host's own process",
            section=section,
        )

    def nodes_below(self, entry: str) -> list[Any]:
        """The nodes below `nodes.entry` of plugin.yaml."""
        return self.nodes.below(self._package, self._folder, entry)

    # Services, settings, commands -----------------------------------------------------------------------------------------

    def service_life(self, name: str, end: bool) -> Any:
        """Start or stop a service; None, or an awaitable."""
        service = self._services[name]
        work = service.stop if end else service.start
        return None if work is None else work()

    def service(self, name: str, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Start a published method; its answer, or an awaitable of it."""
        service = self._services[name]
        if method not in published_methods(service):
            raise ToolFailed(f"service {name!r} publishes no method {method!r}")
        found = getattr(service.object, method, None)
        if not callable(found):
            raise ToolFailed(f"service {name!r} lacks the method {method!r} that it promised", service=name)
        return found(*args, **kwargs)

    def served(self, answer: Any) -> Any:
        """The answer of a service's method."""
        return as_in_a_view("the answer of the service", answer, "done")

    def setting_changed(self, watch: int, value: Any) -> Any:
        """Call the callback of a setting."""
        callback = self._facilities.watches.get(watch)
        return None if callback is None else callback(value)

    def command(self, name: str, arguments: list[str]) -> dict[str, Any]:
        """Run a command of the command line; returns its output and its exit code."""

        return run_command(self._commands[name], arguments, self._limits.output_bytes)


def _is_one(answer: Any) -> bool:
    """True for a single contribution that is iterable."""
    return callable(answer) or isinstance(answer, Service | Command | Contribution | ToolFactory)


def _description(impl: HookImplementation) -> dict[str, Any]:
    return {
        "hook": impl.hook.name,
        "arguments": list(impl.arguments),
        "where": impl.where,
        "async": impl.is_async,
        "tryfirst": impl.tryfirst,
        "trylast": impl.trylast,
        "when": impl.when is not None,
    }


def _setting(item: Any) -> Any:
    return (
        item.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        if isinstance(item, SettingItem)
        else dict(item)
    )


SHORTENED: Final = "… (shortened)\n"


def run_command(command: Command, arguments: list[str], limit: int) -> dict[str, Any]:
    """Run it with `arguments`; returns its output, at most `limit` characters, and its exit code.

    Raises:
        ActivationFailed: the plugin did not build a click command (ACTIVATION_FAILED).
    """
    import click

    built = command.build()
    if not isinstance(built, click.Command):
        text = f"the command {command.name!r} is not a click command but {type(built).__name__}"
        raise ActivationFailed(text, hint="return it from `build`")
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            built.main(args=arguments, prog_name=f"tavern {command.name}")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            if isinstance(ended.code, str):
                err.write(f"{ended.code}\n")
    return {"out": _bounded(out, limit), "err": _bounded(err, limit), "code": code}


def _bounded(written: io.StringIO, limit: int) -> str:
    text = encodable(written.getvalue())
    return text if len(text) <= limit else text[:limit] + SHORTENED


# Plugin import --------------------------------------------------------------------------------------------------------
# The plugin's package, imported in its worker from any kind of installation.


def imported(setup: WorkerSetup) -> ModuleType:
    """The plugin's package. Errors of its code are raised.

    An installed one that is not on the path (an editable install with its own import hook) is found at its
    plugin.yaml.
    """
    if setup.module:
        folder = Path(setup.folder) if setup.folder else None
        if folder is not None and _origin(setup.module) is None:
            sys.meta_path.append(_PackageFinder(setup.module, folder))
        return importlib.import_module(setup.module)
    return FolderCode(setup.plugin, Path(setup.folder)).load()


def _origin(module: str) -> Any:
    try:
        return importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None


class _PackageFinder:
    """Finds one package in a folder outside of the path."""

    def __init__(self, module: str, folder: Path) -> None:
        parts = module.split(".")
        self._roots = {".".join(parts[: n + 1]): folder.parents[len(parts) - n - 2] if n + 1 < len(parts) else folder
                       for n in range(len(parts))}  # fmt: skip

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if (folder := self._roots.get(name)) is None:
            return None
        init = folder / "__init__.py"
        places = [str(folder)]
        if init.is_file():
            return importlib.util.spec_from_file_location(name, init, submodule_search_locations=places)
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = places
        return spec
