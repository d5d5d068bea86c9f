"""Reasons for an unknown tool id: the reason lies in the tool, its plugin, or the id.

lost a clash  >  its plugin cannot be used  >  its declaration is invalid  >  left out for another reason  >  unknown
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tavern_core.errors import ToolNotFound
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.manifest.tool_ids import plugin_name
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.registry import LostClash
from tavern_core.model.naming_rules import folded_id, spellings, split_id


@dataclass(frozen=True, slots=True)
class MissingTool:
    """Why a tool is missing."""

    reason: str
    fix: str = ""
    plugin: str = ""

    def error(self, written: str, unknown: ToolNotFound) -> ToolNotFound:
        """Convert the reason to an error; keeps the suggestions of `unknown`."""
        text = f"there is no tool {written[:200]!r}: {self.reason}"
        return ToolNotFound(text, hint=self.fix, plugin=self.plugin, nearest=unknown.details.get("nearest", []))


def absence(
    written: str, records: Mapping[str, PluginRecord], shadowed: Mapping[str, LostClash], diagnostics: Diagnostics
) -> MissingTool | None:
    """The known reason for which a tool is missing; None: none is known.

    Args:
        written: an id that the registry does not know.
        shadowed: id that lost a clash → reason and repair.
    """
    ids = spellings(written[:400])
    for tool_id in ids:
        if (lost := shadowed.get(tool_id)) is not None:
            return MissingTool(lost.reason, lost.hint, split_id(tool_id)[0])
    prefixes = dict.fromkeys(split_id(i)[0] for i in ids)
    owners = [records[name] for name in prefixes if name in records]
    owners += [
        r for r in records.values() if not prefixes.keys().isdisjoint(r.candidate.facts.declared.get("namespaces", ()))
    ]
    owners += [
        r for r in records.values() if not set(ids).isdisjoint(r.candidate.tool_ids)
    ]  # a skill has no such prefix
    named = {plugin_name(split_id(i)[1], "skill-") for i in ids if split_id(i)[0] == "skill"}
    owners += [r for r in records.values() if r.candidate.source == "skill" and r.name in named]
    for record in owners:
        if not record.usable or (record.candidate.source == "upstream" and record.state == "pending_consent"):
            return MissingTool(f"plugin {record.name} is {record.state}: {record.reason}", record.fix, record.name)
        if record.candidate.source == "upstream" and (why := _not_listed(record, diagnostics)):
            return why
        for tool_id in ids:
            reason, fix = record.candidate.origin.left_out(split_id(tool_id)[1])
            if reason:
                return MissingTool(reason, fix, record.name)
    wanted = {folded_id(i) for i in ids}
    return next(_broken(wanted, records), None) or next(_left_out(wanted, diagnostics), None)


def _not_listed(record: PluginRecord, diagnostics: Diagnostics) -> MissingTool | None:
    """Why the tools of an upstream are not known."""
    found = (d for d in diagnostics.all() if d.code == "UPSTREAM_FAILED" and d.plugin == record.name)
    return next((MissingTool(d.message, d.hint, record.name) for d in found), None)


def _broken(wanted: set[str], records: Mapping[str, PluginRecord]) -> Iterator[MissingTool]:
    """Invalid declarations of usable plugins, found by the id as written and as it would be."""
    for record in list(records.values()):
        for finding in record.tool_findings if record.usable else ():
            tool = finding.details.get("tool")
            if finding.severity != "error" or not isinstance(tool, str):
                continue
            if wanted & {folded_id(tool), folded_id(f"{record.name}:{tool.rpartition(':')[2]}")}:
                place = f"{finding.where}: " if finding.where else ""
                reason = f"its declaration in plugin {record.name} is wrong: {place}{finding.message}"
                yield MissingTool(reason, finding.hint, record.name)


def _left_out(wanted: set[str], diagnostics: Diagnostics) -> Iterator[MissingTool]:
    for diagnostic in diagnostics.all():
        tool = diagnostic.details.get("tool")
        if isinstance(tool, str) and folded_id(tool) in wanted:
            yield MissingTool(diagnostic.message, diagnostic.hint, diagnostic.plugin)
