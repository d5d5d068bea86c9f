"""Agent profiles: which tools one agent may see and call, and nothing else (seed 000 §4.4.1, §11.1).

    agent_profile.json → AgentProfile (as written) → Profile (its inventory resolved to tools that exist)

`tool_ids_inventory` is the only declaration. It lists tools one by one: a wildcard would give an agent tools that no one
chose for it each time a plugin is installed, so it is refused and reported. An unknown id is reported with the nearest
one, the rest of the inventory stands. A profile grants nothing: it narrows what host, plugin and caller allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field
from itertools import islice
from os import PathLike
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from tavern_core.contract.protocols import NamespaceResolver
from tavern_core.errors import CallError, Finding, Location, ProfileInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.text.json_document import read_json
from tavern_core.model.agent_profile import AgentBudget, AgentProfile
from tavern_core.model.capability import is_capability, known_capability
from tavern_core.model.file_model_base import describe_fields
from tavern_core.model.knowledge import KB
from tavern_core.model.message_translation import Language
from tavern_core.model.naming_rules import RESERVED_NAMESPACES, UNLISTED_TOOLS, split_id
from tavern_core.model.nearest import did_you_mean, nearest, suggestion
from tavern_core.model.pydantic_errors import explain
from tavern_core.model.safe_printing import printed
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.provider_tool_export import wire_name

CODE: Final = ProfileInvalid.code
INVENTORY: Final = "tool_ids_inventory"
MOST_TOOLS: Final = 10_000
_MOST_KEYS: Final = 200
_MOST_HINTS: Final = 20
"""Missing tools for which a similar name is looked up: that takes long in a large inventory."""
_MOST_FINDINGS: Final = 100
"""Reported items of one inventory."""
_LONGEST_ID: Final = 300
CALL_TOOL: Final = "call_tool"
"""The tool with which MCP clients call a found tool, if only the search is listed."""
_WIRE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
_FIELDS: Final = tuple(AgentProfile.model_fields)
_OTHER_SPELLINGS: Final = {to_camel(name): name for name in _FIELDS if name != INVENTORY}
"""Camel case → the field."""


@dataclass(frozen=True, slots=True)
class Profile:
    """An agent profile whose inventory is resolved."""

    name: str
    tools: tuple[str, ...]
    """Ids of the tools that exist, in the order of the inventory, each once."""
    capabilities: frozenset[str] | None = None
    """The capabilities that the agent's calls may use; None: the profile sets no limit."""
    description: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    resolved: Mapping[str, ToolSpec] = field(default_factory=dict)
    """Tools that came from the resolver of their prefix and not from a plugin: id → tool."""
    findings: tuple[Finding, ...] = ()
    """The parts of the inventory that could not be used, with reasons."""
    is_partial: bool = False
    """A resolver failed; a later request may succeed."""
    language: Language | None = None
    """The language of its manual and feedback; None: that of the host."""
    wire_names: Mapping[str, str] = field(default_factory=dict)
    """Tool id → the name under which MCP clients see it; only names that can be used."""
    listing: Literal["all", "search"] = "all"
    """The tools that MCP clients see: every tool, or one that finds tools and one that calls them."""
    written: AgentProfile = AgentProfile()
    """As written: model, prompt, budget and the rest."""
    _members: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_members", frozenset(self.tools))

    def allows(self, tool_id: str) -> bool:
        """Whether the inventory lists the tool with this id."""
        return tool_id in self._members


ProfileLike = str | PathLike[str] | Mapping[str, Any] | AgentProfile | Profile
"""A program's reference to a profile: a name, the path of an agent_profile.json, its content, or a resolved one."""


def parse_profile(text: str | bytes, file: str, name: str) -> tuple[AgentProfile, tuple[Finding, ...]]:
    """Read agent_profile.json.

    Args:
        text: the file's content; UTF-8, at most 1 MB.
        file: the name of the file in messages.
        name: the profile's name if the file sets none.

    Returns:
        the profile, and warnings (keys that look like misspelt ones of ours).

    Raises:
        ProfileInvalid: PROFILE_INVALID, with each problem located by line and column.
    """
    document = read_json(text, file, code=CODE)
    findings = [*document.findings]
    if not findings and not isinstance(document.data, dict):
        findings.append(
            Finding(CODE, "a profile is a JSON object", 'write {"tool_ids_inventory": [...]}', Location(file, 1, 1))
        )
    if not findings:
        try:
            profile = AgentProfile.model_validate(document.data)
        except ValidationError as error:
            findings += [each.finding(CODE, document) for each in explain(error, document.data, AgentProfile)]
    if findings:
        raise ProfileInvalid(findings[0].located, hint=findings[0].hint, findings=tuple(findings), file=file)
    return profile.model_copy(update={"name": profile.name or name}), tuple(
        misspelt(document.data, lambda key: document.locate((key,), key=True), Location(file, 1, 1))
    )


def misspelt(data: Mapping[str, Any], locate: Callable[[str], Location], whole: Location) -> Iterator[Finding]:
    """Warnings about keys that have no effect, which would be ignored silently: unknown ones, and second spellings.

    Args:
        data: a profile as written.
        locate: returns the place of one of its keys.
        whole: the place of the profile.
    """
    for key in islice(data, _MOST_KEYS):
        field_name = _OTHER_SPELLINGS.get(key, key)
        if field_name != key and field_name in data:
            message = f"the key {key!r} is not read, because {field_name!r} is here, too"
            yield Finding(CODE, message, "keep one of them", locate(key), "warning")
        if field_name in _FIELDS or key.startswith("$"):
            continue
        close = [name for name in nearest(key, _FIELDS, 1) if name not in data]
        hint = suggestion(close) or "remove it, or move it into `config`, which holds values of your own"
        yield Finding(CODE, f"the key {key!r:.100} is not read", hint, locate(key), "warning")
    if INVENTORY not in data:
        message = f"the profile has no {INVENTORY}: its agent may use no tool"
        yield Finding(CODE, message, f'add "{INVENTORY}": ["plugin:tool"]', whole, "warning")


def _listed(search: _InventorySearch) -> tuple[dict[str, None], list[Finding]]:
    """The tools of the inventory, in its order, and the problems of its entries."""
    tools: dict[str, None] = {}
    findings: list[Finding] = []
    for index, written in enumerate(search.profile.tool_ids_inventory[:MOST_TOOLS]):
        where = Location(search.file, pointer=f"{INVENTORY}[{index}]")
        found = search.look_up(written.strip())
        if isinstance(found, UnresolvedItem):
            findings.append(Finding(CODE, found.message, found.hint, where, "warning", {"id": written[:_LONGEST_ID]}))
        elif found in tools:
            message = f"{written!r} is listed twice, here and before as {found!r}"
            findings.append(Finding(CODE, message, "remove one of them", where, "warning"))
        else:
            tools[found] = None
    if more := len(findings[_MOST_FINDINGS:]):
        where = Location(search.file, pointer=INVENTORY)
        message = f"{more:,} further items of {INVENTORY} cannot be used either"
        findings[_MOST_FINDINGS:] = [Finding(CODE, message, "correct the ones above first", where, "warning")]
    return tools, findings


def inventory_findings(profile: AgentProfile, lookup: ToolLookup) -> list[Finding]:
    """The items of an inventory that cannot be used, with reasons."""
    return _listed(_InventorySearch(profile, lookup, lookup.ids(), lookup.resolvers()))[1]


class ToolLookup(Protocol):
    """Looks up the tools of an inventory."""

    def find(self, written: str, /) -> str | None:
        """The id of a registered tool for any accepted spelling of it."""

    def ids(self) -> Iterable[str]:
        """The ids of all registered tools, for suggestions."""

    def resolvers(self) -> Mapping[str, NamespaceResolver]:
        """Prefix → resolver, for tools that no plugin registers (`workflow`, `kb` ...)."""

    def absent(self, written: str, /) -> UnresolvedItem | None:
        """Why a tool is missing, if it is known."""


def resolve_profile(profile: AgentProfile, lookup: ToolLookup) -> Profile:
    """Find the tools of an inventory. Never fails: what cannot be found is a finding, the rest is used.

    Args:
        profile: as written.
    """
    search = _InventorySearch(profile, lookup, lookup.ids(), lookup.resolvers())
    tools, findings = _listed(search)
    findings += _overlong(profile, search.file)
    findings += _unknown_capabilities(profile, search.file)
    wire_names, unusable = usable_wire_names(profile, tools, lookup.find)
    findings += unusable
    return Profile(
        profile.name,
        tuple(tools),
        None if profile.capabilities is None else frozenset(profile.capabilities),
        profile.description,
        MappingProxyType(profile.config),
        MappingProxyType(search.resolved),
        tuple(findings),
        search.is_partial,
        profile.language,
        MappingProxyType(wire_names),
        profile.listing,
        profile,
    )


@dataclass(frozen=True, slots=True)
class UnresolvedItem:
    """Why an item of the inventory names no tool."""

    message: str
    hint: str


@dataclass(slots=True)
class _InventorySearch:
    """Looks up the items of one inventory; see `resolve_profile`."""

    profile: AgentProfile
    lookup: ToolLookup
    known: Iterable[str]
    namespaces: Mapping[str, NamespaceResolver]
    resolved: dict[str, ToolSpec] = field(default_factory=dict)
    is_partial: bool = False
    missing: int = 0
    """Items for which a similar name was looked up."""

    @property
    def file(self) -> str:
        """Its place in findings."""
        return f"profile {self.profile.name}"

    def look_up(self, written: str) -> str | UnresolvedItem:
        """The id that `written` names: a registered tool, else a tool that the resolver of its prefix knows."""
        if not written:
            return UnresolvedItem("an empty id", "remove it")
        if len(written) > _LONGEST_ID:
            return UnresolvedItem(f"an id of {len(written):,} characters", f"ids have at most {_LONGEST_ID}")
        if (found := self.lookup.find(written)) is not None:
            return found
        if "*" in written:
            return UnresolvedItem(
                f"{written!r} is a wildcard; an inventory lists its tools one by one", self._examples(written)
            )
        prefix, local = split_id(written)
        if prefix in self.namespaces:
            return self._ask(self.namespaces[prefix], prefix, local)
        return self._unknown(written, prefix)

    def _ask(self, resolver: NamespaceResolver, prefix: str, local: str) -> str | UnresolvedItem:
        """Ask a resolver. It is a plugin's code: any error it raises affects only this item."""
        try:
            tool = resolver.resolve(local)
            names = [] if tool is not None else [f"{prefix}:{name}" for name in resolver.names()]
        except CallError as error:
            self.is_partial = True
            return UnresolvedItem(f"{prefix}:{local} cannot be used: {error.message}", error.hint)
        except Exception as error:  # noqa: BLE001 - reported as the reason why the item is missing
            return UnresolvedItem(
                f"the resolver of {prefix + ':'!r} failed for {local!r}: {printed(error):.300}",
                "see the plugin that contributes it",
            )
        if tool is None:
            return UnresolvedItem(f"{prefix + ':'!r} has no {local!r}", self._similar(f"{prefix}:{local}", names))
        tool_id = f"{prefix}:{local}"
        if tool.id != tool_id:
            return UnresolvedItem(
                f"the resolver of {prefix + ':'!r} answered {tool.id!r} for {tool_id!r}",
                "see the plugin that contributes it",
            )
        self.resolved[tool_id] = tool
        return tool_id

    def _unknown(self, written: str, prefix: str) -> UnresolvedItem:
        if (known := self.lookup.absent(written)) is not None:
            return known
        close = self._similar(written, self.known)
        if prefix == "workflow":
            message = f"there is no tool {written!r}: neither a workflow folder nor a plugin has this workflow"
            return UnresolvedItem(message, close or "`tavern workflows list` shows what there is")
        if prefix == KB:
            hint = "name one in tavern.yaml: `knowledge: {handbook: {path: handbook}}`"
            return UnresolvedItem(f"there is no tool {written!r}: the host has no such knowledge base", close or hint)
        if prefix in RESERVED_NAMESPACES:
            return UnresolvedItem(
                f"there is no tool {written!r}: the host has no tool of this name, and no resolver for {prefix + ':'!r}",
                close or "install a plugin that contributes it, or remove the item",
            )
        return UnresolvedItem(f"there is no tool {written!r}", close or "`tavern tools list` shows what there is")

    def _similar(self, written: str, known: Iterable[str]) -> str:
        self.missing += 1
        return did_you_mean(written, known) if self.missing <= _MOST_HINTS else ""

    def _examples(self, pattern: str) -> str:
        start = pattern.partition("*")[0]
        ids = sorted(tool_id for tool_id in self.known if tool_id.startswith(start))[:5]
        return f"write their ids, e.g. {', '.join(ids)}" if ids else "write their ids"


def _overlong(profile: AgentProfile, file: str) -> Iterator[Finding]:
    if (count := len(profile.tool_ids_inventory)) > MOST_TOOLS:
        message = f"the inventory has {count:,} items; only the first {MOST_TOOLS:,} are read"
        yield Finding(
            CODE, message, "an agent cannot choose among so many", Location(file, pointer=INVENTORY), "warning"
        )


def _unknown_capabilities(profile: AgentProfile, file: str) -> Iterator[Finding]:
    for index, name in enumerate(profile.capabilities or ()):
        if not is_capability(name) and not name.endswith("*"):
            where = Location(file, pointer=f"capabilities[{index}]")
            yield Finding(
                CODE,
                f"{name!r} is not a capability; it allows nothing",
                known_capability(name),
                where,
                "warning",
            )


def usable_wire_names(
    profile: AgentProfile, tools: Collection[str], find: Callable[[str], str | None] = lambda written: None
) -> tuple[dict[str, str], list[Finding]]:
    """The entries of `wire_names` that can be used, and the reasons against the others.

    Args:
        tools: ids of the tools of the inventory.
        find: as in `ToolLookup`.
    """
    used: dict[str, str] = {}
    problems: list[Finding] = []

    def leave_out(tool: str, message: str, hint: str) -> None:
        where = Location(f"profile {profile.name}", pointer=f"wire_names.{tool[:_LONGEST_ID]}")
        problems.append(Finding(CODE, message, hint, where, "warning"))

    for written, name in islice(profile.wire_names.items(), MOST_TOOLS):
        tool = written if written in tools else find(written) or written
        if tool not in tools:
            near = did_you_mean(written[:_LONGEST_ID], tools) if len(problems) < _MOST_HINTS else ""
            leave_out(written, "the inventory has no such tool", near)
        elif not _WIRE_NAME.fullmatch(name):
            leave_out(written, f"{name!r:.150} is not a name for MCP clients", "write 1 to 128 of A-Z a-z 0-9 _ . -")
        else:
            used[tool] = name
    reserved = {wire_name(tool): tool for tool in UNLISTED_TOOLS}
    if profile.listing == "search":
        reserved[CALL_TOOL] = CALL_TOOL
    tool_by_name = reserved | {wire_name(tool): tool for tool in tools if tool not in used}
    for tool, name in tuple(used.items()):
        loser, other = tool, tool_by_name.setdefault(name, tool)
        while loser != other:
            leave_out(loser, f"{name!r} is the name of {other:.{_LONGEST_ID}}", "give each tool a name of its own")
            del used[loser]
            name = wire_name(loser)  # its own again, which an entry may have given to another tool
            if (holder := tool_by_name.setdefault(name, loser)) not in used:
                break
            tool_by_name[name] = loser
            loser, other = holder, loser
    return used, problems


def profile_schema() -> dict[str, Any]:
    """The JSON Schema of agent_profile.json, for editors."""
    schema = AgentProfile.model_json_schema()
    describe_fields(schema["properties"], AgentProfile)
    describe_fields(schema["$defs"]["AgentBudget"]["properties"], AgentBudget)
    text = {"type": "string", "minLength": 1, "maxLength": _LONGEST_ID, "pattern": r"^[^*]*$"}
    properties = dict(schema["properties"])
    properties[INVENTORY] = {
        "description": "The tools that this agent may see and call, by id, one by one. The only declaration of them.",
        "type": "array",
        "items": text,
        "uniqueItems": True,
        "maxItems": MOST_TOOLS,
        "default": [],
        "examples": [["system:get_current_time", "text:count", "workflow:summarize_text"]],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "agent_profile.json",
        "description": "An agent profile of tavern-core. Keys of other systems are stored and ignored.",
        "type": "object",
        "properties": {
            "$schema": {"type": "string", "description": "The address of this schema; for editors."},
            **properties,
        },
        "$defs": schema["$defs"],
        "required": [INVENTORY],
        "additionalProperties": True,
    }
