"""The entries of `upstreams:` in tavern.yaml as plugins without code: listed, reviewed, granted, disabled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Final

from tavern_core.contract.adapters import UpstreamTool
from tavern_core.errors import Finding, UpstreamNotFound
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.config.configuration import LoadedConfig
from tavern_core.kernel.discovery.manifest_facts import ManifestFacts
from tavern_core.kernel.manifest.declared_tools import DeclaredTools
from tavern_core.kernel.plugins.candidate import PluginCandidate, PluginOrigin
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.signal import Signal
from tavern_core.model.call import Rights
from tavern_core.model.capability_scope import Scope
from tavern_core.model.manifest import Manifest, Permissions
from tavern_core.model.nearest import did_you_mean, fold
from tavern_core.model.plugin_status import Diagnostic
from tavern_core.model.safe_printing import seen
from tavern_core.model.tool import ToolSpec
from tavern_core.model.upstream_config import UpstreamConfig, endpoint_config, origin_entry
from tavern_core.model.wildcard import matches
from tavern_core.upstreams.listing_cache import ListingCache, UpstreamDefinitions, definition, digest, lock_form
from tavern_core.upstreams.tool_specs import is_allowed, local_name, quarantined_spec, spec_of

_MOST_REPORTED: Final = 100
"""Patterns of one upstream that are reported as diagnostics; its status lists more."""


class UpstreamSystem:
    """A system behind connections."""

    def __init__(self, name: str, config: UpstreamConfig, plugin: str) -> None:
        self.name = name
        self.config = config
        self.plugin = plugin
        """The plugin whose grants apply to it."""
        self.list_changed = Signal()
        """Emitted when the upstream reports a change of its tools."""

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the entry: with another one it is another upstream, whose tools are not known yet."""
        return digest(self.config.model_dump(mode="json", exclude_defaults=True))

    @cached_property
    def requested(self) -> Permissions:
        """The permissions that it requests from the operator."""
        return self.config.requested()

    @cached_property
    def permissions(self) -> tuple[str, ...]:
        """The permissions that must be granted before it is used."""
        return tuple(request.name for request in self.requested.capabilities)

    def is_plugin(self, candidate: PluginCandidate) -> bool:
        """Whether this is the plugin whose grants apply to it."""
        return candidate.name == self.plugin

    def network(self, record: PluginRecord, rights: Rights) -> Scope:
        """The scope to which it may connect: the granted one, because the entry may request more."""
        return rights.scope("network")


class UpstreamEntry(UpstreamSystem):
    """A configured upstream with its known tools; `plugin` is the part of their ids before the colon.

    Args:
        quarantined: the names of its tools that are in quarantine.
    """

    def __init__(
        self,
        name: str,
        config: UpstreamConfig,
        cache: ListingCache,
        quarantined: Callable[[UpstreamEntry], Collection[str]],
    ) -> None:
        super().__init__(name, config, config.plugin_name(name))
        self._cache = cache
        self._quarantined = quarantined

    @property
    def is_listed(self) -> bool:
        """Whether it was listed with its current configuration."""
        listed = self._cache.listed(self.name)
        return listed is not None and listed.fingerprint == self.fingerprint

    @property
    def definitions(self) -> UpstreamDefinitions:
        """Its known tools."""
        return self._cache.definitions(self.name) if self.is_listed else UpstreamDefinitions()

    def tools(self) -> Mapping[str, UpstreamTool]:
        """Its tools that the operator allows, by name."""
        known = self.definitions.tools
        return {name: tool for name, tool in known.items() if is_allowed(name, self.config)}

    def hashes(self) -> dict[str, str]:
        """Tool → hash of its definition."""
        return {name: digest(definition(tool)) for name, tool in self.tools().items()}

    def specs(self) -> tuple[ToolSpec, ...]:
        needs, quarantined = self.config.capabilities(self.permissions), self._quarantined(self)
        tools = (quarantined_spec(tool) if name in quarantined else tool for name, tool in self.tools().items())
        return tuple(spec_of(tool, self.name, self.config, needs, self.definitions.version) for tool in tools)

    def declared(self, names: Sequence[str]) -> DeclaredTools:
        """Its tools; if a definition was lost, the tool is not failed, but listed again."""
        specs = self.specs()
        ids = {f"{self.plugin}:{local_name(name)}" for name in names} - {spec.name for spec in specs}
        text, hint = "its definition was lost from the catalogue", f"tavern upstreams refresh {self.name}"
        lost = (
            Finding("UPSTREAM_FAILED", f"{id_}: {text}", hint, severity="warning", details={"tool": id_})
            for id_ in sorted(ids)
        )
        return DeclaredTools(specs, findings=tuple(lost))

    def quarantined(self, local: str) -> tuple[str, str]:
        """See `PluginOrigin.quarantined`."""
        if local not in map(local_name, self._quarantined(self)):
            return "", ""
        why = "it is in quarantine: its definition is not the one that was reviewed"
        return why, f"tavern upstreams show {self.name}; if it is what you want: tavern upstreams accept {self.name}"

    def left_out(self, local: str) -> tuple[str, str]:
        """See `PluginOrigin.left_out`."""
        place = f"upstreams.{self.name}"
        if pattern := next((pattern for pattern in self.config.deny if matches(pattern, local)), ""):
            return (
                f"it is denied by the entry {pattern!r} of {place}.deny in tavern.yaml",
                f"take it out of {place}.deny",
            )
        for name, why in self.definitions.left_out.items():
            if name == local or fold(local_name(name)) == fold(local):
                return f"it is left out: {why}", f"tavern upstreams show {self.name}"
        if not is_allowed(local, self.config):
            hint = did_you_mean(local, self.tools()) or f"add it to {place}.allow if {self.name} has such a tool"
            return f"no entry of {place}.allow in tavern.yaml names it", hint
        return "", ""

    def unchecked(self) -> tuple[Diagnostic, ...]:
        """The parts of its tools' schemas that the host does not validate."""
        return tuple(islice(self._unchecked(), _MOST_REPORTED))

    def _unchecked(self) -> Iterator[Diagnostic]:
        for name, patterns in (self.definitions.unchecked or {}).items():
            id_ = f"{self.plugin}:{local_name(name)}"
            for pattern in patterns if is_allowed(name, self.config) else ():
                text = f'{id_}: the pattern "{pattern.pattern}" at {pattern.pointer} is not validated: {pattern.reason}'
                hint = "you need not do anything: the upstream can check the values itself"
                details = {"upstream": self.name, "tool": id_, "pointer": pattern.pointer, "pattern": pattern.pattern}
                yield Diagnostic("PATTERN_UNCHECKED", text, self.plugin, hint, "info", details)

    def is_plugin(self, candidate: PluginCandidate) -> bool:
        """Whether the plugin with this upstream's name is this upstream, so that its grants apply."""
        return candidate.source == "upstream" and candidate.stamp == (self.fingerprint,)

    def candidate(self) -> PluginCandidate:
        """The upstream as a plugin of the host."""
        config, listed = self.config, self._cache.listed(self.name) if self.is_listed else None
        names = [name for name in (listed.tools if listed else ()) if is_allowed(name, config)]
        ids = {name: local_name(name) for name in names}
        manifest = Manifest(
            name=self.plugin,
            version="0",
            display_name=self.name,
            description=config.description or seen(f"{config.kind}: {config.target}"[:500]),
            permissions=self.requested,
        )
        facts = ManifestFacts(
            self.plugin,
            "0",
            self.name,
            manifest.description,
            frozenset(self.permissions),
            sections=frozenset({"tools"}),
            aliases={f"{self.plugin}:{name}": local for name, local in ids.items() if local != name},
        )
        return PluginCandidate(
            self.plugin,
            "upstream",
            _UpstreamOrigin(self, manifest, names),
            facts,
            location=config.target,
            tool_ids=tuple(f"{self.plugin}:{local}" for local in ids.values()),
            has_code=False,
            manifest_hash=self.fingerprint,
            stamp=(self.fingerprint,),
            target=config.target,
        )


@dataclass(frozen=True, slots=True)
class _UpstreamOrigin(PluginOrigin):
    """An upstream: without code, with the tools of its last listing."""

    entry: UpstreamEntry
    written: Manifest
    names: Sequence[str]

    why_not_reloaded = "is an upstream, which has no files"
    instead_of_reload = "`tavern upstreams refresh` lists its tools again; a changed entry of tavern.yaml applies to hosts that open afterwards"

    def load(self) -> None:
        return None

    def manifest(self) -> Manifest:
        return self.written

    def tools(self) -> DeclaredTools:
        return self.entry.declared(self.names)

    def artifact(self) -> str:
        return digest(self.entry.config.target)

    def left_out(self, local: str) -> tuple[str, str]:
        return self.entry.left_out(local)

    def quarantined(self, local: str) -> tuple[str, str]:
        return self.entry.quarantined(local)

    def tool_hashes(self) -> Mapping[str, str]:
        return lock_form(self.entry.hashes()) if self.entry.is_listed else {}


class ToolEndpoint(UpstreamSystem):
    """The system behind one tool with an `endpoint`: known to that tool only, covered by its plugin's grants."""

    def __init__(self, tool: ToolSpec) -> None:
        # A factory may give each caller another endpoint.
        config = endpoint_config(tool.kind, tool.endpoint or "", tool.implementation)
        super().__init__(f"{tool.id} at {tool.endpoint}", config, tool.plugin)
        self.tool = UpstreamTool(
            tool.resource_id or tool.local_name,
            input_schema=tool.input_schema,
            data={**tool.implementation, "endpoint": tool.endpoint},
        )

    def network(self, record: PluginRecord, rights: Rights) -> Scope:
        """For an object without a manifest, the program vouches for the endpoint, private addresses included."""
        if record.candidate.implicit and self.config.url is not None:
            return (origin_entry(self.config.url),)
        return super().network(record, rights)


def entry_of(entries: Mapping[str, UpstreamEntry], name: str) -> UpstreamEntry:
    """The upstream with that name.

    Raises:
        UpstreamNotFound: it does not exist; names the nearest (UPSTREAM_NOT_FOUND).
    """
    if (entry := entries.get(name)) is None:
        hint = did_you_mean(name, entries) or "`tavern upstreams list` shows them"
        raise UpstreamNotFound(f"there is no upstream {name!r:.80}", hint=hint)
    return entry


def read_entries(
    loaded: LoadedConfig, cache: ListingCache, quarantined: Callable[[UpstreamEntry], Collection[str]]
) -> dict[str, UpstreamEntry]:
    """The upstreams of a configuration, by name."""
    return {name: UpstreamEntry(name, config, cache, quarantined) for name, config in loaded.config.upstreams.items()}
