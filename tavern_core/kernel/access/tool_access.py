"""Decides which tools a caller may see and call. Every answer names the line of configuration that caused it.

    tools.deny   callers.<who>.deny   tools.only   tools.allow (optional tools)   inventory of the profile   callers.<who>.allow
        |                |                |                  |                             |                          |
     refuses          refuses        refuses what     refuses optional tools      refuses what is not          refuses what is
    what it names    what it names   is not in it     that are not in it          in the profile               not in it

A tool is available when nothing refuses it: no list overrides the refusal of another, and an unknown entry never
makes a list allow more. Of several rules that fit one caller, each must let the tool pass (least privilege). ``callers.*`` is
for callers that no other rule names; the host itself is not among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import Finding
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.approval_rules import ApprovalRule, ApprovalRules, tool_entries
from tavern_core.kernel.access.limit_rules import LimitRules
from tavern_core.kernel.access.list_review import ListReview
from tavern_core.kernel.access.tool_selectors import GROUP, SelectorTargets, ToolList, ToolNames, normalize_tool_name
from tavern_core.model.call import HOST_PRINCIPAL, CallContext
from tavern_core.model.config import AccessRule, HostConfig
from tavern_core.model.naming_rules import JOB_TOOLS, SEARCH_TOOLS, split_id
from tavern_core.model.tool import ToolSpec
from tavern_core.model.untrusted_content_rules import is_source

if TYPE_CHECKING:
    from tavern_core.kernel.access.profiles import Profile


@dataclass(frozen=True, slots=True)
class AccessVerdict:
    """Whether one caller may use one tool. True in a condition when allowed."""

    allowed: bool
    reason: str = ""
    """A sentence that names the entry of the list; empty when allowed."""
    rule: str = ""
    """The place of the rule: ``tools.deny[0]``, ``callers.role:guest.allow``, ``profile:writer``."""
    fix: str = ""
    """The change that would allow it."""

    def __bool__(self) -> bool:
        return self.allowed

    def __str__(self) -> str:
        return f"{self.reason}; {self.fix}" if self.fix else self.reason


ALLOWED: Final = AccessVerdict(True)
UNKNOWN: Final = "*"
"""The key of `callers` for callers that no other key names."""


@dataclass(frozen=True, slots=True)
class ToolAccess:
    """Which callers may use one tool, computed once; a check costs a few dictionary look-ups."""

    tool_id: str
    host: AccessVerdict
    """The answer for every caller."""
    denied: Mapping[str, AccessVerdict]
    """Caller key → its refusal, from `callers.<key>.deny`."""
    not_allowed: Mapping[str, AccessVerdict]
    """Caller key → its refusal, from a `callers.<key>.allow` that does not name the tool."""
    named: frozenset[str] = frozenset()
    """Every key of `callers`: a caller in none of them is unknown."""
    is_listed: bool = True
    """False for what is not a tool: only lists that deny speak of it, and no inventory."""

    def verdict(self, context: CallContext, profile: Profile | None = None) -> AccessVerdict:
        """Whether this caller may use the tool. A context without the profile it names is refused."""
        host = self.host
        if not host.allowed and host.rule.startswith("tools.deny"):
            return host
        keys = self._keys(context, profile) if self.denied or self.not_allowed else ()
        for key in keys:
            if key in self.denied:
                return self.denied[key]
        if not host.allowed:
            return host
        if self.is_listed and (context.profile is not None or profile is not None):
            inventory = _inventory_verdict(self.tool_id, context.profile, profile)
            if not inventory.allowed:
                return inventory
        for key in keys:
            if key in self.not_allowed:
                return self.not_allowed[key]
        return ALLOWED

    def _keys(self, context: CallContext, profile: Profile | None) -> list[str]:
        """The rules that fit this caller."""
        keys = caller_keys(context, profile)
        if context.is_host or any(key in self.named for key in own_keys(context, profile)):
            return keys
        return [*keys, UNKNOWN]


@dataclass(frozen=True, slots=True)
class PluginToolGroups:
    """Tool names per plugin (seed 002, `buildPluginToolGroups`)."""

    all: tuple[str, ...]
    by_plugin: Mapping[str, tuple[str, ...]]
    """Plugin → its tools; the host's own plugins are not in it."""
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name under `tools.groups` → the tools that ``group:<name>`` means in a list that allows; the host's own may be among them."""

    def to_json(self) -> dict[str, Any]:
        return {
            "all": list(self.all),
            "byPlugin": {name: list(ids) for name, ids in self.by_plugin.items()},
            "named": {name: list(ids) for name, ids in self.named.items()},
        }


@dataclass(frozen=True, slots=True)
class _CallerLists:
    key: str
    allow: ToolList | None
    deny: ToolList


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The lists of one host, compiled. Made by `compile_access`."""

    _allow: ToolList
    _only: ToolList | None
    _deny: ToolList
    _callers: tuple[_CallerLists, ...]
    _file: str
    _approval: ApprovalRules
    _targets: SelectorTargets
    limits: LimitRules
    pinned: ToolList | None
    """`tools.pin`; None: no list."""
    _trusted: ToolList
    _untrusted: ToolList
    diagnostics: tuple[Finding, ...] = field(default=())
    """Unknown entries, circular groups, ambiguous names. None of them widens a list."""

    def host_verdict(self, tool: ToolSpec | str) -> AccessVerdict:
        """The answer for every caller: `tools.deny`, `tools.only`, and `tools.allow` for optional tools."""
        names, tool_id = ToolNames.of(tool), _id_of(tool)
        if (index := self._deny.match(names)) is not None:
            return self._denied(tool_id, self._deny, index)
        if self._only is not None and self._only.match(names) is None:
            return self._not_in(tool_id, self._only)
        if not isinstance(tool, str) and tool.optional and self._allow.match(names) is None:
            reason = f"{tool_id} is an optional tool and no entry of tools.allow in {self._file} switches it on"
            return AccessVerdict(False, reason, "tools.allow", f"add {tool_id!r} to tools.allow in {self._file}")
        return ALLOWED

    def for_tool(self, tool: ToolSpec | str) -> ToolAccess:
        """Compute who may use `tool`; a tool of which only the id is known counts as not optional."""
        names, tool_id = ToolNames.of(tool), _id_of(tool)
        denied: dict[str, AccessVerdict] = {}
        not_allowed: dict[str, AccessVerdict] = {}
        for caller in self._callers:
            if (index := caller.deny.match(names)) is not None:
                denied[caller.key] = self._denied(tool_id, caller.deny, index)
            if caller.allow is not None and caller.allow.match(names) is None:
                not_allowed[caller.key] = self._not_in(tool_id, caller.allow)
        named = frozenset(caller.key for caller in self._callers) - {UNKNOWN}
        found = ToolAccess(tool_id, self.host_verdict(tool), denied, not_allowed, named)
        return _unless_denied(found) if tool_id in (SEARCH_TOOLS, *JOB_TOOLS) else found

    def for_inner(self, tool: ToolSpec) -> ToolAccess:
        """The same for an operation that runs like a tool but is none: a part of a workflow."""
        return _unless_denied(self.for_tool(tool))

    def verdict(self, tool: ToolSpec | str, context: CallContext, profile: Profile | None = None) -> AccessVerdict:
        """Whether this caller may use `tool`. Use `for_tool` where the same tool is checked often."""
        return self.for_tool(tool).verdict(context, profile)

    def approval(self, tool: ToolSpec) -> ApprovalRule | None:
        """Whether calls of `tool` need approval, or never get it; None when they run without it."""
        return self._approval.of(tool)

    def is_source(self, tool: ToolSpec) -> bool:
        """Whether the answers of `tool` are untrusted content: by the lists, else by its definition."""
        names = ToolNames.of(tool)
        if self._untrusted.match(names) is not None:
            return True
        return is_source(tool) and self._trusted.match(names) is None

    def tool_groups(self, tools: Iterable[ToolSpec]) -> PluginToolGroups:
        """The members of the groups in lists: ``group:plugins``, a plugin's name, named ones; names are normalised."""
        groups = {
            name: ToolList.compile(f"tools.groups.{name}", [f"{GROUP}{name}"], self._targets, wide=False)
            for name in self._targets.groups
        }
        everything: list[str] = []
        by_plugin: dict[str, list[str]] = {}
        named: dict[str, list[str]] = {name: [] for name in groups}
        for tool in tools:
            names, name = ToolNames.of(tool), normalize_tool_name(tool.id)
            if names.plugin not in self._targets.host:
                everything.append(name)
                by_plugin.setdefault((tool.plugin or split_id(tool.id)[0]).lower(), []).append(name)
            for group, entries in groups.items():
                if entries.match(names) is not None:
                    named[group].append(name)
        per_plugin, per_group = ({name: tuple(ids) for name, ids in each.items()} for each in (by_plugin, named))
        return PluginToolGroups(tuple(everything), per_plugin, per_group)

    def _denied(self, tool_id: str, rules: ToolList, index: int) -> AccessVerdict:
        place = f"{rules.place}[{index}]"
        reason = f"{tool_id} is denied by the entry {rules.entries[index]!r} at {place} in {self._file}"
        return AccessVerdict(False, reason, place, f"remove that entry from {rules.place} in {self._file}")

    def _not_in(self, tool_id: str, rules: ToolList) -> AccessVerdict:
        holds = "which is empty and allows no tool" if not rules.entries else "which allows no other tool"
        reason = f"no entry of {rules.place} in {self._file} names {tool_id}; the list is given, {holds}"
        return AccessVerdict(False, reason, rules.place, f"add {tool_id!r} to {rules.place} in {self._file}")


def compile_access(
    config: HostConfig,
    known_tools: Iterable[str],
    known_plugins: Iterable[str],
    *,
    aliases: Mapping[str, str] | None = None,
    file: str = "tavern.yaml",
    host: Iterable[str] = (),
) -> AccessPolicy:
    """Compile the lists of a host. Never fails: an invalid entry becomes a diagnostic and allows nothing.

    Args:
        config: tavern.yaml. A key of its section `callers` is a principal (``agent:writer``), ``user:<id>``,
            ``role:<role>``, ``profile:<name>``, or ``*`` for whom none of these names.
        known_tools: ids of all tools, also those whose plugin is not active.
        known_plugins: names of all plugins that are installed.
        aliases: other ids of tools → the real one (`aliases:` of the manifests), after clashes were settled.
        file: what messages call the configuration.
        host: names of the plugins that are the host's own.
    """
    tools, callers = config.tools, config.callers
    review = ListReview(config, known_tools, known_plugins, aliases or {}, file, host)
    known = review.targets
    return AccessPolicy(
        ToolList.compile("tools.allow", tools.allow, known, wide=False),
        None if tools.only is None else ToolList.compile("tools.only", tools.only, known, wide=False),
        ToolList.compile("tools.deny", tools.deny, known, wide=True),
        tuple(_caller_lists(key, rule, known) for key, rule in sorted(callers.items())),
        file,
        ApprovalRules(config.approval, known, file),
        known,
        LimitRules(config.limits, known),
        ToolList.compile("tools.pin", tools.pin, known, wide=True) if tools.pin else None,
        ToolList.compile("tools.trusted", tools.trusted, known, wide=False),
        ToolList.compile("tools.untrusted", tools.untrusted, known, wide=True),
        tuple(_findings(review, config)),
    )


def _caller_lists(key: str, rule: AccessRule, known: SelectorTargets) -> _CallerLists:
    allow = None if rule.allow is None else ToolList.compile(f"callers.{key}.allow", rule.allow, known, wide=False)
    return _CallerLists(key, allow, ToolList.compile(f"callers.{key}.deny", rule.deny, known, wide=True))


def _findings(review: ListReview, config: HostConfig) -> Iterator[Finding]:
    """Findings about the lists, and about other settings that name tools or callers."""
    tools = config.tools
    yield from review.findings()
    yield from review.further(tool_entries(config.approval))
    yield from review.further([("tools.pin", tools.pin, True)] if tools.pin else [])
    yield from review.further([("tools.trusted", tools.trusted, False), ("tools.untrusted", tools.untrusted, True)])
    yield from review.further((f"limits.tools.{entry}", [entry], True) for entry in config.limits.tools)
    for key in config.limits.callers:
        yield from review.caller("limits.callers", key)


def _unless_denied(access: ToolAccess) -> ToolAccess:
    is_denied = access.host.rule.startswith("tools.deny")
    return replace(access, host=access.host if is_denied else ALLOWED, not_allowed={}, is_listed=False)


def _id_of(tool: ToolSpec | str) -> str:
    return tool if isinstance(tool, str) else tool.id


def caller_keys(context: CallContext, profile: Profile | None) -> list[str]:
    """The keys of `callers` that this caller falls under, sorted by kind and name so that reasons are stable."""
    keys = [context.principal]
    if context.user_id:
        keys.append(f"user:{context.user_id}")
    keys += [f"role:{role}" for role in sorted(context.roles) if role]
    if context.profile is not None:
        keys.append(f"profile:{context.profile}")
    if profile is not None and profile.name != context.profile:  # the context named a file, the lists name profiles
        keys.append(f"profile:{profile.name}")
    return keys


def own_keys(context: CallContext, profile: Profile | None = None) -> list[str]:
    """`caller_keys` without keys that the caller does not own.

    A principal that reads like a role does not have that role, and a principal called `host` is not the host.
    """
    keys = caller_keys(context, profile)
    is_claim = context.principal.startswith(("role:", "profile:")) or (
        context.principal == HOST_PRINCIPAL and not context.is_host
    )
    return keys[1:] if is_claim else keys


def _inventory_verdict(tool_id: str, wanted: str | None, profile: Profile | None) -> AccessVerdict:
    if profile is None:
        reason = f"the caller's agent profile {wanted!r} is not loaded, so no tool of it is known"
        fix = f"add the profile {wanted!r}, or correct its name in the context"
        return AccessVerdict(False, reason, f"profile:{wanted}", fix)
    if profile.allows(tool_id):
        return ALLOWED
    reason = f"the agent profile {profile.name!r} does not list {tool_id} in its tool_ids_inventory"
    fix = f"add {tool_id!r} to tool_ids_inventory of the profile {profile.name!r}"
    return AccessVerdict(False, reason, f"profile:{profile.name}", fix)
