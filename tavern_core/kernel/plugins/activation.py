"""Activates one plugin in a transaction: collects and checks all that it offers, then registers it at once.

context → import → hookimpls → ask what it offers → check → register → start services → tavern_start
   |         |          |              |               |         |            |               |
   +---------+----------+--------------+--- error -----+---------+------------+---------------+--> nothing is left of it
"""

from __future__ import annotations

import asyncio
import logging
import platform
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeVar

from tavern_core.contract.context import PluginContext, Runtime
from tavern_core.contract.tools import ToolFactory
from tavern_core.errors import ActivationFailed, NameConflict
from tavern_core.kernel.execution.sync_async_drivers import TimeLimit, cancellations
from tavern_core.kernel.hooks.argument_copies import copy_json
from tavern_core.kernel.plugins.candidate import has_nodes
from tavern_core.kernel.plugins.contribution_registry import SECTIONS, checked_contributions
from tavern_core.kernel.plugins.deactivation import forget, stop_started
from tavern_core.kernel.plugins.host_registries import HostRegistries, ImportGuard
from tavern_core.kernel.plugins.permitted_hooks import LIFE, permitted_implementations
from tavern_core.kernel.plugins.plugin_errors import as_activation_error
from tavern_core.kernel.plugins.plugin_facilities import GrantedFacilities
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.plugins.registry_entries import aliases_of, offered_entries
from tavern_core.kernel.plugins.remote_plugin_interface import RemotePlugin
from tavern_core.kernel.plugins.service_replacement import settle_overrides, split_overrides, without_ungranted
from tavern_core.kernel.plugins.tool_homes import load_handler
from tavern_core.kernel.plugins.tool_spec_reading import (
    DRAFT,
    OfferDescription,
    OfferingPlugin,
    assign_names,
    describe,
    ids_made,
    of_handler,
    refuse_twins,
    spec_from_mapping,
    with_cautions,
)
from tavern_core.kernel.registry import RegistryEntry
from tavern_core.kernel.settings.secret_masking import MaskingFilter
from tavern_core.model.call import host_context
from tavern_core.model.safe_printing import printed
from tavern_core.model.tool import ToolSpec

Offered = Mapping[str, Mapping[str, Any]]
"""Section → name → object."""
T = TypeVar("T")
MOST_OFFERS: Final = 20_000


async def activate(record: PluginRecord, tables: HostRegistries, imports: ImportGuard) -> None:
    """Import a plugin and register what it offers; on an error, undo everything.

    Raises:
        PluginError: any failure; names the location in the plugin's code.
    """
    began, before = time.perf_counter(), cancellations()
    record.claimed = True
    try:
        record.ctx = ctx = _context(record, tables)
        await _load(record, ctx, tables, imports)
        record.implementations = tuple(permitted_implementations(record, tables.diagnostics))
        _declare_settings(record, tables)
        offered, described = await _ask(record, tables)
        entries = offered_entries(record, described, tables.diagnostics)
        _say_what_is_undeclared(record, entries, tables)
        _register(record, offered, entries, tables)
        await _start(record, offered, tables)
        _remember(record, offered, tables)
    except BaseException as error:
        await stop_started(record, tables)
        forget(record, tables)
        if _is_from_outside(error, before):
            raise
        raise as_activation_error(error, record.candidate) from error
    record.timings["activate"] = (time.perf_counter() - began) * 1000


def _is_from_outside(error: BaseException, before: int) -> bool:
    """Whether the activating task is being cancelled, or Ctrl-C was pressed; a plugin may raise the same exceptions."""
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()  # only the main thread sees Ctrl-C
    return isinstance(error, asyncio.CancelledError) and cancellations() > before


async def _aside(
    record: PluginRecord, tables: HostRegistries, function: Callable[..., T], *args: Any, seconds: float | None = None
) -> T:
    """Run slow work in a thread, as part of the activation, so that it does not wait for a tool."""
    owner = record.name, "(activation)"
    return await tables.mode.blocking(function, *args, seconds=seconds, owner=owner)  # type: ignore[no-any-return]


async def _load(record: PluginRecord, ctx: PluginContext, tables: HostRegistries, imports: ImportGuard) -> None:
    """Import the code; in a thread, because it may take seconds."""
    candidate, began, inline = record.candidate, time.perf_counter(), record.candidate.is_given
    seconds = tables.base.config.limits.import_timeout_ms / 1000
    if not inline:
        try:
            await _aside(record, tables, imports.check, candidate)  # it has its own deadline
        finally:
            imports.look_after()
        record.timings["probe"] = (time.perf_counter() - began) * 1000
        began = time.perf_counter()
    if candidate.has_code:
        try:
            if inline:
                record.thing = candidate.load(ctx)
            else:
                record.thing = await _aside(record, tables, imports.load, candidate, ctx, seconds=seconds)
        except TimeLimit:
            text = f"{candidate.name} could not be activated: its import has not ended after {seconds:g} s"
            hint = (
                f"`tavern plugins check {candidate.name} --probe` says where it hangs; or raise limits.importTimeoutMs"
            )
            raise ActivationFailed(text, hint=hint) from None
        except KeyboardInterrupt as error:
            if inline:
                raise
            # Raised in a worker thread, so it comes from the plugin itself.
            raise as_activation_error(error, candidate) from error
    record.timings["import"] = (time.perf_counter() - began) * 1000


def _context(record: PluginRecord, tables: HostRegistries) -> PluginContext:
    candidate, base = record.candidate, tables.base
    facilities = record.facilities = GrantedFacilities(record, tables.services, tables.settings, base)
    # In tavern.yaml these sections belong to plugins of the host.
    configuration = {"core-sql": {"functions": base.config.sql.functions}} if candidate.source == "builtin" else {}
    return PluginContext(
        record.name,
        candidate.facts.display_name or record.name,
        candidate.version,
        candidate.facts.description,
        candidate.source,
        copy_json(configuration.get(record.name, base.config.config)),
        Runtime(base.version, platform.python_version(), base.is_safe_mode),
        MaskingFilter.put_on(logging.getLogger(f"tavern.plugin.{record.name}"), tables.settings.known_secrets),
        candidate.folder,
        facilities.view(),
    )


def _declare_settings(record: PluginRecord, tables: HostRegistries) -> None:
    tables.settings.outdate(record.name)
    declared = record.read_tools()
    for spec in (*declared.specs, *declared.drafts):  # first, so that none of their stored values looks unknown
        if spec.config_schema:
            tables.settings.declare(record.name, spec.config_schema, tool=spec.local_name, more=True)
    if "configOptions" in record.candidate.facts.sections:
        tables.settings.declare(record.name, record.candidate.origin.manifest().config_options, more=True)


async def _ask(record: PluginRecord, tables: HostRegistries) -> tuple[Offered, list[OfferDescription]]:
    """Collect and check everything that the plugin offers; register nothing yet."""
    answers: dict[str, list[tuple[str, Any]]] = {}
    for impl in record.implementations:
        if impl.hook.kind == "contribute" and impl.hook.name not in LIFE:
            answer = await tables.calls.call_one(impl, {}, tables.mode)
            if isinstance(answer, Iterator):  # reading it runs the plugin's code, so it is read in the thread
                answer = await tables.calls.work(impl.hook.name, _read, answer, mode=tables.mode)
            answers.setdefault(impl.hook.name, []).append((impl.where, answer))
    offered: dict[str, dict[str, Any]] = {}
    for section, hook in SECTIONS.items():
        for where, answer in answers.get(hook, ()):
            found = checked_contributions(section, answer, record.name, where)
            _refuse_undeclared(record, section, found)
            _offer(record, offered, section, found)
    await _add_profiles(record, offered, tables)
    if "services" in offered:
        offered["services"] = without_ungranted(record, offered["services"], tables)
    await _describe_nodes(record, offered, tables)
    record.coded_settings = tuple(
        item
        for _, answer in answers.get("tavern_register_settings", ())
        for item in tables.settings.declare(record.name, tuple(answer or ()), more=True)
    )
    owner = _owner(record, {*tables.contributions.kinds_of_plugins(), *offered.get("executors", ())})
    answered = [
        item for _, answer in answers.get("tavern_register_tools", ()) for item in describe(answer, owner, drafts=True)
    ]
    returned = [replace(i.spec, impl=None) for i in answered if i.spec is not None and i.spec.impl is DRAFT]
    drafts = [*record.read_tools().drafts, *returned]
    described = [item for item in answered if item.spec is None or item.spec.impl is not DRAFT]
    described = await _named_factories(record, described, owner, tables)
    described += await _handled(record, drafts, described, owner, tables)
    if drafts:
        described += await _aside(record, tables, _flow_tools, record, drafts, offered.get("nodes", {}), tables)
    refuse_twins(described, owner)
    return offered, described


def _offer(record: PluginRecord, offered: dict[str, dict[str, Any]], section: str, found: Mapping[str, Any]) -> None:
    """Add objects to one section of a plugin's offers. Raises NameConflict: the name is taken (NAME_CONFLICT)."""
    if twice := sorted(found.keys() & offered.get(section, {}).keys()):
        raise _twice(record, section, twice[0])
    if found:
        offered.setdefault(section, {}).update(found)


def _twice(record: PluginRecord, section: str, name: str) -> NameConflict:
    return NameConflict(f"{record.name} offers {section[:-1]} {name!r} twice", hint="leave one out")


async def _add_profiles(record: PluginRecord, offered: dict[str, dict[str, Any]], tables: HostRegistries) -> None:
    """Add the profiles in the folder `profiles.entry`."""
    if "profiles" not in record.candidate.facts.sections:
        return
    from tavern_core.kernel.plugins.agent_profile_loader import profiles_in

    found, findings = await _aside(record, tables, profiles_in, record.candidate, tables.base.unpacked)
    for finding in findings:
        tables.diagnostics.add_finding(finding, plugin=record.name)
    _offer(record, offered, "profiles", found)


async def _describe_nodes(record: PluginRecord, offered: dict[str, dict[str, Any]], tables: HostRegistries) -> None:
    """Make specifications of the nodes that hooks returned and of those in `nodes.entry`."""
    candidate = record.candidate
    contributed: list[Any] = list(offered.pop("nodes", {}).values())
    if "nodes" in candidate.facts.sections:
        contributed += await _nodes_in_files(record, tables)
    if not contributed:
        return
    from tavern_core.kernel.nodes.node_signature_reading import NodeOwner, describe_nodes

    unique = {id(item): item for item in contributed}  # a node may be found in `nodes.entry` and be returned as well
    artifact = "" if candidate.is_given else await _aside(record, tables, candidate.origin.artifact)
    owner = NodeOwner(record.name, candidate.version, candidate.source == "builtin", artifact)
    nodes: dict[str, Any] = {}
    for spec in describe_nodes(list(unique.values()), owner):
        if spec.type in nodes:
            raise _twice(record, "nodes", spec.type)
        nodes[spec.type] = spec
    offered["nodes"] = nodes


async def _nodes_in_files(record: PluginRecord, tables: HostRegistries) -> list[Any]:
    """The nodes in `nodes.entry` of plugin.yaml."""
    from tavern_core.kernel.nodes.node_discovery import nodes_in
    from tavern_core.model.manifest import Entry

    candidate = record.candidate
    if not isinstance(entry := candidate.origin.manifest().nodes, Entry):
        return []
    if isinstance(record.thing, RemotePlugin):  # its files are imported only in its own process
        return await _aside(record, tables, record.thing.nodes, entry.entry)
    return await _aside(record, tables, nodes_in, record.thing, candidate.folder, entry.entry, record.name)


def _flow_tools(
    record: PluginRecord, drafts: Sequence[ToolSpec], nodes: Mapping[str, Any], tables: HostRegistries
) -> list[OfferDescription]:
    """Tools of kind `node` and `workflow` that declare no parameters: they have those of the code that they run.

    If that code cannot be found, any argument is allowed. A diagnostic reports it now, and a call says why.
    """
    from tavern_core.kernel.nodes.node_tools import flow_tool, node_tool, workflow_behind

    found = []
    for draft in drafts:
        spec = replace(draft, input_schema={"type": "object", "additionalProperties": True})
        if draft.kind == "node":
            written = str(draft.implementation.get("nodeType") or "")
            node = (
                nodes.get(written)
                or nodes.get(f"{record.name}:{written}")
                or tables.contributions.all("nodes").get(written)
            )
            found.append(OfferDescription(spec if node is None else node_tool(draft, node)))
            if node is None:
                _report_missing(draft, f"node type {written!r:.100}", tables)
        elif draft.kind == "workflow":
            workflow = workflow_behind(draft, record.candidate.folder)
            found.append(OfferDescription(spec if workflow is None else flow_tool(draft, workflow)))
            if workflow is None:
                file = str(draft.implementation.get("workflowId"))
                _report_missing(draft, f"valid workflow file {file!r:.100}", tables)
    return found


def _report_missing(draft: ToolSpec, what: str, tables: HostRegistries) -> None:
    message = f"the tool {draft.id} cannot run: {draft.plugin} can use no {what}"
    hint = f"`tavern plugins check {draft.plugin}` and a call say why"
    tables.diagnostics.add("TOOL_FILE_INVALID", message, plugin=draft.plugin, hint=hint)


def _read(items: Iterator[Any]) -> list[Any]:
    found = list(islice(items, MOST_OFFERS + 1))
    if len(found) > MOST_OFFERS:
        raise ActivationFailed(
            f"more than {MOST_OFFERS} things were offered at once", hint="does a generator never end?"
        )
    return found


def _owner(record: PluginRecord, kinds: Collection[str]) -> OfferingPlugin:
    candidate = record.candidate
    return OfferingPlugin.of(
        candidate, from_mapping=lambda data: spec_from_mapping(data, candidate.origin.manifest()), kinds=kinds
    )


async def _handled(
    record: PluginRecord,
    drafts: Sequence[ToolSpec],
    described: list[OfferDescription],
    owner: OfferingPlugin,
    tables: HostRegistries,
) -> list[OfferDescription]:
    """Describe the tools that name a handler, from its signature and its mark.

    Handlers are imported in a thread, as the plugin itself is.
    """
    offered = {name for item in described for name in item.ids}
    found: list[OfferDescription] = []
    for draft in drafts:
        handler = draft.implementation.get("handler")
        if handler and draft.name not in offered:
            thing = await _aside(record, tables, load_handler, record, handler)
            found.append(OfferDescription(of_handler(thing, draft, owner)))
    for spec in record.read_tools().specs:
        handler = spec.implementation.get("handler")
        if handler and spec.kind == "python" and spec.name not in offered:
            seconds = tables.base.config.limits.import_timeout_ms / 1000
            try:
                thing = await _aside(record, tables, load_handler, record, handler, seconds=seconds)
                found.append(OfferDescription(with_cautions(spec, of_handler(thing, spec, owner))))
            except (Exception, SystemExit):  # noqa: BLE001 - of code that cannot be read nothing holds; a call reports what is wrong
                continue
    return found


async def _named_factories(
    record: PluginRecord, described: list[OfferDescription], owner: OfferingPlugin, tables: HostRegistries
) -> list[OfferDescription]:
    """Set the ids of each factory's tools: from its own names, from the tools it makes for the host, or as declared."""
    made: dict[int, tuple[str, ...]] = {}
    record.open_factories = tuple(i.factory for i in described if i.factory is not None and not i.names)
    for number, item in enumerate(described):
        if item.factory is not None and not item.names:
            made[number] = await _probe(record, item.factory, owner, tables)
    declared = (spec.name for spec in record.read_tools().of_code)
    named_now, unnamed = assign_names(described, made, declared)
    if unnamed:
        tables.diagnostics.add(
            "FACTORY_NAMES",
            "a factory without names made no tools for the host, so its tools are unknown",
            plugin=record.name,
            hint="write factory(..., names=[...])",
        )
    return named_now


async def _probe(
    record: PluginRecord, factory: ToolFactory, owner: OfferingPlugin, tables: HostRegistries
) -> tuple[str, ...]:
    """Names of the tools that a factory without `names` makes for the host; () if it fails, which harms no other."""
    context = host_context(record.ctx.config if record.ctx else None)
    try:
        made = await tables.calls.work(f"a factory of {record.name}", factory.make, context, mode=tables.mode)
        return ids_made(made, owner)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        text = f"a factory failed with {printed(error)} when the host called it"
        tables.diagnostics.add("FACTORY_FAILED", text, plugin=record.name, severity="error")
        return ()


def _refuse_undeclared(record: PluginRecord, section: str, found: Mapping[str, Any]) -> None:
    declared = record.candidate.facts.declared.get(section, ())
    known = {*declared, *(record.candidate.overrides if section == "services" else ())}
    extra = sorted(found.keys() - known)
    if extra and declared and not record.candidate.implicit:
        raise ActivationFailed(
            f"{record.name} offers {section[:-1]} {extra[0]!r}, which plugin.yaml does not declare",
            hint=f"add it: {section}: [{', '.join(sorted({*declared, *extra}))}]",
        )


def _say_what_is_undeclared(record: PluginRecord, entries: list[RegistryEntry], tables: HostRegistries) -> None:
    candidate = record.candidate
    if entries and not candidate.tool_ids and candidate.source in ("folder", "entry_point"):
        tables.diagnostics.add(
            "TOOLS_UNDECLARED",
            f"{record.name} is activated at every start: its code offers tools that plugin.yaml does not name",
            plugin=record.name,
            hint=f"tavern plugins check {record.name} --write",
            severity="info",
        )


def _register(record: PluginRecord, offered: Offered, entries: list[RegistryEntry], tables: HostRegistries) -> None:
    """Register everything at once; the only step whose result others see."""
    everything = offered
    candidate, facts = record.candidate, record.candidate.facts
    running = [i for i in record.implementations if i.hook.kind != "contribute"]
    specs = {e.id: e.spec for e in entries if e.spec is not None}
    for spec in specs.values():
        if spec.config_schema:
            tables.settings.declare(record.name, spec.config_schema, tool=spec.local_name, more=True)
    record.settings_complete = True  # only now: until here, those of its last activation can be saved, too
    tables.settings.drop_outdated(record.name)
    tables.settings.report_findings(record.name)
    offered, overriding = split_overrides(record, offered, tables)
    tables.contributions.add_all(record.name, offered, source=candidate.source, overriding=overriding)
    settle_overrides(offered.get("services", {}), overriding, tables)
    tables.hooks.add(record.name, running, before=facts.before, after=facts.after)
    record.specs = specs
    tables.registry.put(record.name, record.rank, entries, aliases_of(candidate, specs))
    record.provides = {section: tuple(sorted(things)) for section, things in everything.items() if things}
    if entries:
        record.provides["tools"] = tuple(e.id for e in entries)
    if running:
        record.provides["hooks"] = tuple(sorted({i.hook.name for i in running}))


def _remember(record: PluginRecord, offered: Offered, tables: HostRegistries) -> None:
    """Store for the next start what only the code declares."""
    candidate = record.candidate
    if candidate.tool_ids or record.coded_settings or has_nodes(candidate):
        nodes = tuple(offered.get("nodes", {}).values())
        tables.cache.store(candidate, tuple((record.specs or {}).values()), record.coded_settings or (), nodes)


async def _start(record: PluginRecord, offered: Offered, tables: HostRegistries) -> None:
    for service in offered.get("services", {}).values():
        record.started.append(service)
        if service.start is not None:
            what = f"the start of service {service.name!r}"
            await tables.calls.work(what, service.start, mode=tables.mode)
    for impl in record.implementations:
        if impl.hook.name == "tavern_start":
            await tables.calls.call_one(impl, {}, tables.mode)
