"""The tools of one plugin as registry entries: those that it declares, and those that its code offers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from tavern_core.errors import ActivationFailed, Finding
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.plugins.candidate import PluginCandidate
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.plugins.tool_spec_reading import OfferDescription, merge_declaration
from tavern_core.kernel.registry import RegistryEntry
from tavern_core.model.naming_rules import is_reserved_namespace, split_id
from tavern_core.model.nearest import fold
from tavern_core.model.tool import ToolSpec


def aliases_of(candidate: PluginCandidate, specs: Mapping[str, ToolSpec]) -> dict[str, str]:
    """Alias → id, from the manifest and the tools.

    Raises:
        ActivationFailed: an alias is in a namespace of the host (ACTIVATION_FAILED).
    """
    found = {
        alias: f"{candidate.name}:{target.rpartition(':')[2]}" for alias, target in candidate.facts.aliases.items()
    }
    for spec in specs.values():
        found |= dict.fromkeys(spec.aliases, spec.name)
    if candidate.source not in ("builtin", "object"):
        for alias in found:
            if is_reserved_namespace(owner := split_id(alias)[0]):
                raise ActivationFailed(
                    f"{candidate.name}: alias {alias!r}: the namespace {owner!r} is reserved for the host",
                    hint="choose another alias",
                )
    return found


def offered_entries(
    record: PluginRecord, described: Iterable[OfferDescription], diagnostics: Diagnostics
) -> list[RegistryEntry]:
    """The tools to register: those of files, then those of code, checked against the declarations.

    Raises:
        ActivationFailed: a declared id is missing, a tool has another kind, or a schema is invalid (ACTIVATION_FAILED).
    """
    candidate = record.candidate
    declared = dict.fromkeys(candidate.tool_ids)
    files = record.read_tools()
    written = {**{spec.name: spec for spec in files.specs}, **record.drafts}
    entries = {
        spec.name: RegistryEntry(spec.name, record.name, spec, optional=spec.optional)
        for spec in files.specs
        if spec.name not in record.drafts
    }
    for entry in (e for item in described for e in _entries_of(item, record)):
        local = split_id(entry.id)[1]
        if fold(local) in record.left_out:
            continue  # the error in its declaration was reported
        if not record.may_offer(entry.id):
            diagnostics.add(
                "TOOL_UNDECLARED",
                f"{entry.id} is not declared in plugin.yaml and was left out",
                plugin=record.name,
                details={"tool": entry.id},
                hint=f"add to tools: `- {{id: {local}, implementation: {{type: python}}}}`, or run "
                f"`tavern plugins check {record.name} --write`",
            )
        elif (draft := written.get(entry.id)) is None:
            entries[entry.id] = entry
        else:
            _refuse_other_kind(draft, entry)
            spec = None if entry.spec is None else merge_declaration(draft, entry.spec, candidate.version)
            entries[entry.id] = replace(entry, spec=spec, optional=entry.optional or draft.optional)
    if candidate.source != "upstream":  # an upstream's list may have changed since it was declared
        _refuse_missing(candidate, declared, entries, files.findings)
    return list(entries.values())


def _refuse_other_kind(declared: ToolSpec, entry: RegistryEntry) -> None:
    """Refuse that a tool which a reviewer reads as a script, service, node or workflow becomes something else."""
    spec = entry.spec
    if declared.kind == "python" or (
        spec is not None and spec.kind == declared.kind and spec.implementation in ({}, declared.implementation)
    ):
        return
    raise ActivationFailed(
        f"{declared.source} declares the tool {declared.id!r} as a {declared.kind}, and the code of the plugin returns "
        "another tool of this name",
        hint="rename one of them, or declare it with implementation: {type: python}",
    )


def _refuse_missing(
    candidate: PluginCandidate,
    declared: Iterable[str],
    entries: Mapping[str, RegistryEntry],
    findings: Iterable[Finding],
) -> None:
    broken = {finding.details.get("tool") for finding in findings if finding.severity == "error"}
    missing = [tool_id for tool_id in declared if tool_id not in entries and tool_id not in broken]
    if missing:
        returned = "return it from tavern_register_tools (a factory: with names=[...]), or take it out of plugin.yaml"
        raise ActivationFailed(
            f"{candidate.name} declares the tool {missing[0]!r} but does not offer it",
            hint=returned if candidate.has_code else f"the plugin has no __init__.py; add one, and {returned}",
            missing=missing,
        )


def _entries_of(item: OfferDescription, record: PluginRecord) -> Iterator[RegistryEntry]:
    if item.factory is not None:
        for name in item.names:
            yield RegistryEntry(name, record.name, factory=item.factory, optional=item.factory.optional)
    if item.spec is not None:
        if record.candidate.source != "builtin":  # the host's own are checked by its tests
            refuse_bad_schemas(item.spec, is_foreign=record.candidate.has_foreign_schemas)
        yield RegistryEntry(item.spec.name, record.name, item.spec, optional=item.spec.optional)


def schema_errors(spec: ToolSpec, *, is_foreign: bool = False) -> tuple[Finding, ...]:
    """Every error in the schemas of a tool.

    Args:
        is_foreign: see `PluginCandidate.has_foreign_schemas`.
    """
    from tavern_core.schema.schema_check import check_schema

    findings = check_schema(spec.input_schema, spec.name, is_foreign=is_foreign)
    if spec.output_schema is not None:
        output = check_schema(spec.output_schema, f"{spec.name} output", output=True, is_foreign=is_foreign)
        findings = [*findings, *output]
    return tuple(finding for finding in findings if finding.severity == "error")


def refuse_bad_schemas(spec: ToolSpec, *, is_foreign: bool = False) -> None:
    """Refuse a tool with an invalid schema. Raises ActivationFailed with every problem (ACTIVATION_FAILED)."""
    if errors := schema_errors(spec, is_foreign=is_foreign):
        raise ActivationFailed(errors[0].located, hint=errors[0].hint, findings=errors)
