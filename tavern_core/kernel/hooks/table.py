"""The hooks and their implementations.

Plugins are never registered with pluggy themselves: pluggy would evaluate their properties, accept unknown hooks and
wrappers, and stop at the first error without naming the plugin. Instead each plugin's implementations are read from the
outside (`read_implementations`), checked against the table and the grants, and registered as a facade that holds only
those that passed.
"""

from __future__ import annotations

import functools
import heapq
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from types import ModuleType
from typing import Any

import pluggy

from tavern_core.contract import hookspecs
from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import HOOKS, PROJECT, Hook
from tavern_core.errors import HookRefused
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.hooks.argument_copies import copy_for_plugin
from tavern_core.kernel.signal import Signal
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.plugin_status import RestingHook
from tavern_core.model.safe_printing import printed
from tavern_core.model.tool import ToolSpec

_MARK = f"{PROJECT}_impl"
_marker = pluggy.HookimplMarker(PROJECT)


class HookTiming:
    """Run counts and total time of an implementation."""

    __slots__ = ("count", "failed_in_a_row", "failures", "is_watched", "rest", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.failures = 0
        self.seconds = 0.0
        self.failed_in_a_row = 0
        self.rest: RestingHook | None = None
        """Why it is paused (`quarantine.py`)."""
        self.is_watched = True
        """False while the quarantine is not needed: it ran without an error."""


@dataclass(frozen=True, slots=True)
class HookImplementation:
    """A hookimpl of a plugin, ready to be called with the arguments that it names."""

    hook: Hook
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    where: str
    """file:line, for messages."""
    is_async: bool
    fast: bool
    tryfirst: bool = False
    trylast: bool = False
    when: Callable[[ToolSpec], bool] | None = None
    plugin: str = ""
    is_builtin: bool = False
    """Whether the plugin is built in."""
    ctx: PluginContext | None = None
    timing: HookTiming = field(default_factory=HookTiming, compare=False)

    def bind(self, values: Mapping[str, Any]) -> list[Any]:
        """The positional arguments, picked from `values` and the plugin's own `ctx`."""
        return [self.ctx if name == "ctx" else values[name] for name in self.arguments]


class _Facade:
    """A plugin as pluggy sees it: a function for each implementation."""

    def __init__(self, implementations: Iterable[HookImplementation]) -> None:
        for number, implementation in enumerate(implementations):
            setattr(self, f"h{number}_{implementation.hook.name}", _facade(implementation))

    def __dir__(self) -> Iterable[str]:
        return vars(self)  # what every object has is not a hook


class _Manager(pluggy.PluginManager):
    """A plugin manager that knows our hooks."""

    def __init__(self) -> None:
        super().__init__(PROJECT)
        for name, spec in _specifications().items():
            caller = pluggy.HookCaller(name, self._hookexec)
            caller.spec = spec
            setattr(self.hook, name, caller)


@functools.cache
def _specifications() -> Mapping[str, Any]:
    """The specifications that pluggy reads of our hooks: once, as this takes a tenth of the time to open a host."""
    reader = pluggy.PluginManager(PROJECT)
    reader.add_hookspecs(hookspecs)
    return {name: caller.spec for name, caller in vars(reader.hook).items()}


class HookTable:
    """The implementations of all active plugins, in order. A change is all or nothing; reading needs no lock.

    Args:
        changed: emitted after each change.
    """

    def __init__(self, diagnostics: Diagnostics, changed: Signal) -> None:
        self._diagnostics = diagnostics
        self._changed = changed
        self._manager = _Manager()
        self._lock = threading.Lock()
        self._order: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._cache: dict[str, tuple[HookImplementation, ...]] = {}
        self.generation = 0
        """A number that changes with the table."""

    def add(
        self,
        plugin: str,
        implementations: Iterable[HookImplementation],
        *,
        before: Iterable[str] = (),
        after: Iterable[str] = (),
    ) -> None:
        """Register the facade of one plugin, if it implements any hook."""
        facade = _Facade(implementations)
        with self._lock:
            if vars(facade):
                self._manager.register(facade, name=plugin)
            self._order[plugin] = frozenset(before), frozenset(after)
            self._cache = {}
            self.generation += 1
        self._changed.emit()

    def remove(self, plugin: str) -> None:
        """Remove a plugin; unknown names are allowed."""
        with self._lock:
            if self._manager.has_plugin(plugin):
                self._manager.unregister(name=plugin)
            self._order.pop(plugin, None)
            self._cache = {}
            self.generation += 1
        self._changed.emit()

    def of(self, hook: str) -> tuple[HookImplementation, ...]:
        """The implementations of a hook, in the order in which they run."""
        found = self._cache.get(hook)
        if found is None:
            with self._lock:
                generation = self.generation
                impls = [i.function.implementation for i in getattr(self._manager.hook, hook).get_hookimpls()]
                found = tuple(self._ordered(impls))
                if generation == self.generation:
                    self._cache[hook] = found
        return found

    def for_tool(self, hook: str, tool: ToolSpec) -> tuple[HookImplementation, ...]:
        """The hooks of `of` that apply to this tool; one whose `when` fails applies to every tool."""
        return tuple(i for i in self.of(hook) if i.when is None or self._wants(i, i.when, tool))

    def _wants(self, impl: HookImplementation, when: Callable[[ToolSpec], bool], tool: ToolSpec) -> bool:
        try:
            return bool(when(copy_for_plugin(tool)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything
            text = f"`when` of {impl.hook.name} failed with {printed(error)}; the hook is called for every tool"
            self._diagnostics.add("HOOK_FAILED", text, plugin=impl.plugin, hint=f"see {impl.where}", severity="error")
            return True

    def listing(self) -> dict[str, tuple[str, ...]]:
        """Hook → plugins that implement it, in the order in which they run."""
        return {name: tuple(i.plugin for i in found) for name in HOOKS if (found := self.of(name))}

    def _ordered(self, implementations: list[HookImplementation]) -> Iterator[HookImplementation]:
        """tryfirst, the rest, trylast; inside each `before`/`after`, then the plugin's name. Independent of install order."""
        for group in ((True, False), (False, False), (False, True)):
            members = [i for i in implementations if (i.tryfirst, i.trylast and not i.tryfirst) == group]
            by_plugin: dict[str, list[HookImplementation]] = {}
            for impl in sorted(members, key=lambda i: (i.plugin, i.where)):
                by_plugin.setdefault(impl.plugin, []).append(impl)
            for plugin in order_plugins(by_plugin, self._order):
                yield from by_plugin[plugin]


def order_plugins(
    names: Iterable[str], constraints: Mapping[str, tuple[frozenset[str], frozenset[str]]]
) -> Iterator[str]:
    """Names so that each stands before/after those it names, otherwise by name; a contradiction is broken by name.

    Args:
        constraints: plugin → (names it runs before, names it runs after).
    """
    remaining = set(names)
    waits_for: dict[str, set[str]] = {name: set() for name in remaining}
    for name in remaining:
        before, after = constraints.get(name, (frozenset(), frozenset()))
        waits_for[name] |= after & remaining - {name}
        for later in before & remaining - {name}:
            waits_for[later].add(name)
    ready = [name for name in remaining if not waits_for[name]]
    heapq.heapify(ready)
    while remaining:
        name = heapq.heappop(ready) if ready else min(remaining)  # a cycle: the first by name goes first
        if name not in remaining:
            continue
        remaining.discard(name)
        yield name
        for other in remaining:
            if name in waits_for[other]:
                waits_for[other].discard(name)
                if not waits_for[other]:
                    heapq.heappush(ready, other)


def read_implementations(plugin: object, name: str) -> list[HookImplementation]:
    """The marked functions of a module or object, without evaluating its properties.

    Raises:
        HookRefused: unknown hook, unknown argument, wrapper, generator … (HOOK_REFUSED); names file and line.
    """
    found = []
    for attribute, member, is_marked in _objects(_members(plugin)):
        if is_marked:
            text = f"{name}: {attribute} is an object of type {type(member).__name__} and carries @hookimpl; hooks are functions or methods"
            raise HookRefused(text, hint="write a function with @hookimpl that calls it")
    for attribute, function, bound in _marked(plugin):
        options: Mapping[str, Any] = getattr(function, _MARK)
        hook_name = options.get("specname") or attribute
        where = _where(function)
        if (hook := HOOKS.get(hook_name)) is None:
            hint = did_you_mean(hook_name, HOOKS) or "docs/hooks.md lists the hooks"
            raise HookRefused(f"{name}: {where}: there is no hook {hook_name!r}", hint=hint)
        if options.get("wrapper") or options.get("hookwrapper"):
            raise HookRefused(
                f"{name}: {where}: {hook_name} is a pluggy wrapper; wrappers are not allowed",
                hint="write a plain function; a modify-hook returns a changed copy",
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise HookRefused(f"{name}: {where}: {hook_name} is a generator", hint="return a value instead of yielding")
        arguments = _arguments(bound, hook, name, where)
        found.append(
            HookImplementation(
                hook,
                bound,
                arguments,
                where,
                inspect.iscoroutinefunction(function),
                bool(getattr(function, hookspecs.FAST, False)),
                bool(options.get("tryfirst")),
                bool(options.get("trylast")),
                getattr(function, hookspecs.WHEN, None),
            )
        )
    return found


def implements(plugin: object, hook: str) -> bool:
    """True when an object has a marked function for `hook`, well formed or not; without evaluating it."""
    return any((getattr(f, _MARK).get("specname") or name) == hook for name, f, _ in _marked(plugin))


def unmarked_lookalikes(plugin: object) -> list[str]:
    """Objects with the name of a hook and without `@hookimpl`: ``file:line name``; usually a forgotten decorator."""
    alike = {key: member for key, member in _members(plugin).items() if key in HOOKS}
    functions = [
        f"{_where(member)} {key}"
        for key, member in alike.items()
        if inspect.isfunction(member) and not hasattr(member, _MARK)
    ]
    objects = [f"{type(member).__name__} {key}" for key, member, is_marked in _objects(alike) if not is_marked]
    return functions + objects


def _marked(plugin: object) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """(name, function that carries the mark, function to call)."""
    attributes = dict(getattr(plugin, "__dict__", {}))
    for attribute, member in sorted(_members(plugin).items()):
        function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if not callable(function) or isinstance(function, type) or not inspect.isroutine(function):
            continue
        marks = getattr(function, _MARK, None)
        if isinstance(marks, Mapping):
            bound = member if attribute in attributes else getattr(plugin, attribute)
            yield attribute, function, bound


def _objects(members: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """(name, object, whether it carries the mark) of callables that are not functions; without evaluating them."""
    for attribute, member in members.items():
        if (  # the cheap questions first: a module holds many things that are not objects with code
            callable(member)
            and not isinstance(member, type | staticmethod | classmethod)
            and not inspect.isroutine(member)
        ):
            inner = member.func if isinstance(member, functools.partial) else member
            yield (
                attribute,
                member,
                any(isinstance(inspect.getattr_static(one, _MARK, None), Mapping) for one in (member, inner)),
            )


def _members(plugin: object) -> dict[str, Any]:
    """Everything that a module or an object has, by name, without evaluating it."""
    members: dict[str, Any] = {}
    if not isinstance(plugin, ModuleType):
        for cls in reversed(type(plugin).__mro__[:-1]):  # what every object has is not a hook
            members |= vars(cls)
    return members | _own(plugin)


def _own(plugin: object) -> dict[str, Any]:
    return {key: value for key, value in dict(getattr(plugin, "__dict__", {})).items() if isinstance(key, str)}


def _arguments(function: Callable[..., Any], hook: Hook, plugin: str, where: str) -> tuple[str, ...]:
    names = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise HookRefused(
                f"{plugin}: {where}: {hook.name} cannot take {parameter}",
                hint=f"name the arguments you want: {', '.join(hook.arguments)}",
            )
        if parameter.name in hook.arguments:
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            hint = did_you_mean(parameter.name, hook.arguments)
            raise HookRefused(
                f"{plugin}: {where}: {hook.name} has no argument {parameter.name!r}",
                hint=hint or f"its arguments are: {', '.join(hook.arguments)}",
            )
        else:
            break  # a parameter with a default that the hook does not know keeps its default
    return tuple(names)


def _where(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def _facade(implementation: HookImplementation) -> Callable[..., Any]:
    """The function that pluggy sees: without arguments, it carries the implementation, which only the host calls."""

    def facade() -> None: ...

    facade.implementation = implementation  # type: ignore[attr-defined]
    marked: Callable[..., Any] = _marker(
        facade, specname=implementation.hook.name, tryfirst=implementation.tryfirst, trylast=implementation.trylast
    )
    return marked
