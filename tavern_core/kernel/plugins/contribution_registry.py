"""Everything besides tools and hooks that plugins contribute: executors, namespaces, profiles, commands, channels, providers.

One table holds all: section → name → (plugin, object). If a name is taken, the conflict names both plugins.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.adapters import Adapter
from tavern_core.contract.llm import LLM
from tavern_core.contract.protocols import Command, Contribution, Executor, NamespaceResolver, Prompt, Resource, Service
from tavern_core.contract.ranking import Ranker
from tavern_core.errors import ActivationFailed, NameConflict
from tavern_core.kernel.plugins.service_overrides import ServiceOverride, standing_in, winner
from tavern_core.kernel.signal import Signal
from tavern_core.model.naming_rules import (
    COMMAND_HINT,
    RESERVED_COMMANDS,
    is_command_name,
    is_reserved,
    is_reserved_namespace,
)

if TYPE_CHECKING:
    from tavern_core.model.plugin_status import Source


class Contributions:
    """The contributions of plugins. Reading needs no lock; changes are all or nothing.

    Args:
        changed: emitted after each change.
    """

    def __init__(self, changed: Signal) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._contributed: dict[str, dict[str, tuple[str, Any]]] = {section: {} for section in SECTIONS}
        self._overrides: dict[str, dict[str, ServiceOverride]] = {}
        self._used: dict[str, tuple[str, Any]] = {}  # services in use: overridden ones are replaced
        self._builtin: frozenset[str] = frozenset()
        self.generation = 0
        """A number that changes with the table."""

    def add_all(
        self,
        plugin: str,
        offered: Mapping[str, Mapping[str, Any]],
        *,
        source: Source = "folder",
        overriding: Iterable[ServiceOverride] = (),
    ) -> None:
        """Register all contributions of one plugin, or none.

        Args:
            offered: section → name → object.
            source: the source of the plugin. Only the host's own plugins and objects of the program may use its
                namespaces.
            overriding: services that replace others.

        Raises:
            NameConflict: a name is taken or reserved (NAME_CONFLICT).
            ActivationFailed: a name cannot be typed as a command (ACTIVATION_FAILED).
        """
        with self._lock:
            for section, things in offered.items():
                for name in things:
                    if _is_reserved(section, name, source):
                        raise NameConflict(f"{plugin}: {section[:-1]} {name!r} is reserved for the host")
                    if section == "commands" and not is_command_name(name):
                        raise ActivationFailed(f"{plugin}: {name!r:.100} cannot be a command", hint=COMMAND_HINT)
                    if (contributed := self._contributed[section].get(name)) is not None:
                        raise _taken(plugin, section, name, contributed[0])
            if source == "builtin":
                self._builtin |= {plugin}
            self._contributed = self._contributed | {
                section: self._contributed[section] | {name: (plugin, thing) for name, thing in things.items()}
                for section, things in offered.items()
            }
            for override in overriding:
                name = override.service.name
                self._overrides = {**self._overrides, name: {**self._overrides.get(name, {}), plugin: override}}
            self._update_used()
        self._changed.emit()

    def remove(self, plugin: str) -> None:
        """Remove everything of one plugin; the services that it replaced are used again."""
        with self._lock:
            self._contributed = {
                section: {name: entry for name, entry in known.items() if entry[0] != plugin}
                for section, known in self._contributed.items()
            }
            self._overrides = {
                name: remaining
                for name, known in self._overrides.items()
                if (remaining := {p: o for p, o in known.items() if p != plugin})
            }
            self._update_used()
        self._changed.emit()

    def _update_used(self) -> None:
        used = dict(self._contributed["services"])
        for name, overrides in self._overrides.items():
            best, beneath = winner(overrides), used.get(name)
            if best is not None:
                used[name] = best.plugin, standing_in(beneath[1] if beneath else None, best.service)
        self._used = used
        self.generation += 1

    def get(self, section: str, name: str) -> Any:
        """The object, or None."""
        entry = self._entries(section).get(name)
        return entry[1] if entry else None

    def owner(self, section: str, name: str) -> str | None:
        """The plugin that contributed it, or None."""
        entry = self._entries(section).get(name)
        return entry[0] if entry else None

    def all(self, section: str) -> dict[str, Any]:
        """Name → object in one section."""
        return {name: thing for name, (_, thing) in self._entries(section).items()}

    def kinds_of_plugins(self) -> frozenset[str]:
        """The kinds of tools whose executors are contributed by plugins that are not built in."""
        executors = self._entries("executors")
        return frozenset(kind for kind, (owner, _) in executors.items() if owner not in self._builtin)

    def overrides(self, name: str, plugin: str) -> bool:
        """Whether `plugin` contributes an override of this service, in use or not."""
        return plugin in self._overrides.get(name, ())

    def overriders(self, name: str) -> list[str]:
        """The plugins that override a service; the one in use comes first."""
        found = sorted(self._overrides.get(name, {}).values(), key=lambda o: (o.rank, o.plugin))
        return [override.plugin for override in found]

    def drop_override(self, name: str, plugin: str) -> None:
        """Stop using a plugin's override of one service."""
        with self._lock:
            left = {p: o for p, o in self._overrides.get(name, {}).items() if p != plugin}
            self._overrides = {**self._overrides, name: left}
            self._update_used()
        self._changed.emit()

    def override_of(self, name: str, plugin: str) -> Service:
        """A plugin's override of a service."""
        return self._overrides[name][plugin].service

    def is_builtin(self, plugin: str | None) -> bool:
        """Whether the plugin is built in and active."""
        return plugin in self._builtin

    def original(self, name: str) -> tuple[str, Service | None]:
        """The plugin that contributes a service, and the service without overrides; "" and None: there is none."""
        return self._contributed["services"].get(name, ("", None))

    def _entries(self, section: str) -> dict[str, tuple[str, Any]]:
        return self._used if section == "services" else self._contributed[section]


def _taken(plugin: str, section: str, name: str, by: str) -> NameConflict:
    hint = "choose another name" + ("" if is_reserved(by) else ", or disable one of the two plugins")
    if section == "services":
        hint = f"choose another name; to replace it: permissions: {{services: {{override: [{name}]}}}} in plugin.yaml"
    return NameConflict(f"{plugin}: {section[:-1]} {name!r} already comes from {by}", hint=hint)


def checked_contributions(section: str, answer: Any, plugin: str, where: str = "") -> dict[str, Any]:
    """The answer of a register hook as name → object, each checked against its Protocol.

    Args:
        where: ``file:line`` of the hook's implementation, for messages.

    Raises:
        ActivationFailed: it contains what the hook may not return (ACTIVATION_FAILED).
        NameConflict: it contains a name twice (NAME_CONFLICT).
    """
    if answer is None:
        return {}
    read, form = _READERS[section]
    place = f"{plugin}: {where}: {SECTIONS[section]}" if where else f"{plugin}: {SECTIONS[section]}"
    try:
        pairs = list(read(answer))
    except (TypeError, AttributeError, ValueError) as error:
        raise ActivationFailed(f"{place} answered {type(answer).__name__}: {error}", hint=f"return {form}") from error
    found: dict[str, Any] = {}
    for name, thing in pairs:
        if not isinstance(name, str) or not name or len(name) > 200:
            raise ActivationFailed(f"{place}: {name!r:.200} is not a name", hint=f"return {form}")
        name = str.__str__(name)  # a subclass could give the check of rights one name and the look-up another
        if name in found:
            raise NameConflict(f"{place} answered {name!r} twice", hint="leave one out")
        found[name] = _settled(name, thing, plugin)
    return found


def _settled(name: str, thing: Any, plugin: str) -> Any:
    """An object in the form in which the table holds it."""
    if isinstance(thing, Service):
        return _under(name, thing)
    if isinstance(thing, Resource | Prompt):
        if not isinstance(thing.tool, str):
            raise ActivationFailed(f"{plugin}: the tool of {name!r} is not text", hint="name a tool of the plugin")
        if ":" not in thing.tool:
            return replace(thing, tool=f"{plugin}:{thing.tool}")
    return thing


def _under(name: str, service: Service) -> Service:
    """`service` with exactly this name, regardless of its class."""
    return Service(**{f.name: getattr(service, f.name) for f in fields(Service)} | {"name": name})


def _mapping_of(kind: type, what: str) -> Callable[[Any], Iterable[tuple[str, Any]]]:
    def read(answer: Any) -> Iterable[tuple[str, Any]]:
        if not isinstance(answer, Mapping):
            raise TypeError(f"expected a mapping of name to {what}")
        for name, thing in answer.items():
            if not _has_form_of(thing, kind):
                article = "an" if what.startswith(("a", "e")) else "a"  # an adapter, an executor
                raise TypeError(f"{name!r} is not {article} {what}: {type(thing).__name__}")
            yield name, thing

    return read


def _has_form_of(thing: Any, protocol: type) -> bool:
    """`isinstance` as of Python 3.12: looks members up without running them, as a property may load a module."""
    members = [name for name in vars(protocol) if not name.startswith("_")]
    of_type = set().union(*map(vars, type(thing).__mro__))  # most members are there, and checking the types is quick
    return all(name in of_type or inspect.getattr_static(thing, name, protocol) is not protocol for name in members)


def _list_of(kind: type, what: str) -> Callable[[Any], Iterable[tuple[str, Any]]]:
    def read(answer: Any) -> Iterable[tuple[str, Any]]:
        if isinstance(answer, str | bytes | Mapping):
            raise TypeError(f"expected a list of {what}")
        for thing in [answer] if isinstance(answer, kind) else answer:
            if not isinstance(thing, kind):
                name = type(thing).__name__
                shown = f"{type(thing).__module__}.{name}" if name == what else name  # click also has a class Command
                raise TypeError(f"{shown} is not a {what}")
            yield thing.name, thing  # type: ignore[attr-defined]

    return read


def _services(answer: Any) -> Iterable[tuple[str, Any]]:
    """Services; or name → an object whose service needs neither start nor stop."""
    if isinstance(answer, Mapping):
        answer = [
            _under(name, thing) if isinstance(thing, Service) else Service(name, thing)
            for name, thing in _named(answer)
        ]
    return _list_of(Service, "Service")(answer)


def _profiles(answer: Any) -> Iterable[tuple[str, Any]]:
    from tavern_core.model.agent_profile import AgentProfile

    for item in [answer] if isinstance(answer, Mapping | AgentProfile) else answer:
        profile = item if isinstance(item, AgentProfile) else AgentProfile.model_validate(item)
        if not profile.name:
            raise ValueError("a profile of a plugin needs a name")
        yield profile.name, profile


def _contributions(answer: Any) -> Iterable[tuple[str, Contribution]]:
    """Name → object, or items with a name of their own (seed 002 passes plain objects)."""
    if isinstance(answer, str | bytes):
        raise TypeError("a text is not a list of contributions")
    if isinstance(answer, Mapping) and not isinstance(answer.get("name", answer.get("id")), str):
        for name, thing in _named(answer):
            yield name, thing if isinstance(thing, Contribution) else Contribution(name, thing)
        return
    is_one = isinstance(answer, Mapping | Contribution) or not isinstance(answer, Iterable)
    for item in [answer] if is_one else answer:
        contribution = _contribution(item)
        yield contribution.name, contribution


def _named(answer: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Name → object."""
    for name, thing in answer.items():
        if thing is None or isinstance(thing, str | bytes | int | float):
            raise TypeError(f"{name!r:.200} is {type(thing).__name__}, which a host cannot use")
        yield name, thing


def _contribution(item: Any) -> Contribution:
    if isinstance(item, Contribution):
        return item
    if isinstance(item, Mapping):
        name = item.get("name", item.get("id"))
        if not isinstance(name, str):
            raise TypeError("a mapping has no name")
        data = {key: value for key, value in item.items() if key not in ("name", "object", "description")}
        return Contribution(name, item.get("object", item), str(item.get("description") or ""), data)
    name = getattr(item, "name", None) or getattr(item, "id", None)
    if not isinstance(name, str):
        raise TypeError(f"{type(item).__name__} has no name")
    return Contribution(name, item)


def _offered_nodes(answer: Any) -> Iterable[tuple[str, Any]]:
    """Marked functions and classes, in nested lists. They are described later, when their owner is known."""
    from tavern_core.contract.nodes import node_mark_of
    from tavern_core.model.node import NodeSpec

    stack = [answer]
    while stack:
        item = stack.pop(0)
        if isinstance(item, NodeSpec):
            yield item.type, item
        elif (mark := node_mark_of(item)) is not None:
            yield mark.type or item.__name__, item
        elif isinstance(item, Iterable) and not isinstance(item, str | bytes | Mapping):
            stack[:0] = list(item)
        else:
            raise TypeError(f"{item!r:.100} is not a node; mark it with @node, or derive it from Node")


def _offered_workflows(answer: Any) -> Iterable[tuple[str, Any]]:
    from tavern_core.model.workflow import Workflow

    if not isinstance(answer, Mapping):
        raise TypeError("expected a mapping of id to workflow")
    for name, item in answer.items():
        if not isinstance(item, Mapping | str | Path | Workflow):
            raise TypeError(f"{name!r} is not a workflow: {type(item).__name__}")
        yield name, item


_CONTRIBUTIONS: Final = '{"name": object}, or a list of Contribution("name", object) or of {"name": "name", ...}'
_READERS: Final[Mapping[str, tuple[Callable[[Any], Iterable[tuple[str, Any]]], str]]] = {
    "executors": (_mapping_of(Executor, "executor with a bind method"), '{"kind": executor}'),
    "adapters": (_mapping_of(Adapter, "adapter with settings, targets and connect"), '{"kind": adapter}'),
    "services": (_services, '[Service("name", object)]'),
    "namespaces": (_mapping_of(NamespaceResolver, "resolver with resolve and names"), '{"prefix": resolver}'),
    "profiles": (_profiles, '[{"name": "name", "tool_ids_inventory": [...]}]'),
    "commands": (_list_of(Command, "Command"), '[Command("name", build)]'),
    "channels": (_contributions, _CONTRIBUTIONS),
    "providers": (_contributions, _CONTRIBUTIONS),
    "nodes": (_offered_nodes, "[node, ...]: functions marked with @node, subclasses of Node"),
    "workflows": (_offered_workflows, '{"id": the content or the path of a workflow file}'),
    "llms": (_mapping_of(LLM, "language model with a complete method"), '{"name": model}'),
    "rankers": (_mapping_of(Ranker, "ranker with a rank method"), '{"name": ranker}'),
    "resources": (_list_of(Resource, "Resource"), '[Resource("name", "docs://address", "tool")]'),
    "prompts": (_list_of(Prompt, "Prompt"), '[Prompt("name", "tool")]'),
}
"""Section → the reader of its hook's answer, and the form that messages recommend."""
SECTIONS: Final = {section: f"tavern_register_{section}" for section in _READERS}
"""Section of the manifest → the hook that fills it, for the sections of this table."""


def _is_reserved(section: str, name: str, source: Source) -> bool:
    if section == "commands":
        return name in RESERVED_COMMANDS and source != "builtin"
    return section == "namespaces" and is_reserved_namespace(name) and source not in ("builtin", "object")
