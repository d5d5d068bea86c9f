"""The values of the pipeline: one request to run one tool, and its caller."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.capability import covers, forbids, missing, unknown_capability
from tavern_core.model.naming_rules import camel
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.plain_data import FrozenDict, frozen
from tavern_core.model.safe_printing import is_text
from tavern_core.model.untrusted_content_rules import STRICTNESS, AfterUntrusted, ContentRead

if TYPE_CHECKING:
    from tavern_core.model.capability_scope import Scope

HOST_PRINCIPAL = "host"
_LONGEST_NAME: Final = 1_000
_TEXTS: Final = (
    "principal", "user_id", "profile", "request_id", "task_id", "trace_id", "workspace_dir", "agent_dir", "agent_id",
    "session_key", "message_channel", "agent_account_id",
)  # fmt: skip
_OF_BUDGET: Final = ("timeout_ms", "max_retries", "max_tool_calls")
_ESCAPES: Final = str.maketrans({"\x1e": "\x1e0", "\x1f": "\x1e1"})


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a caller (seed 004 §4.2). None: the caller sets no limit.

    Args:
        timeout_ms: for each call, in milliseconds.
        max_retries: further attempts of one call after a retryable failure.
        max_tool_calls: total calls under one context (copies of it made with `dataclasses.replace` count together).
    """

    timeout_ms: int | None = None
    max_retries: int | None = None
    max_tool_calls: int | None = None

    def __post_init__(self) -> None:
        for name in _OF_BUDGET:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise UsageError(f"Budget.{name} must be a whole number from 0 up, got {value!r}")


class Ledger:
    """Counts the calls made under one context, from any thread, and records which untrusted content was read.

    Args:
        drawn: calls that were made before, by a process that has ended.
        content_read: the record of the untrusted content that they read.
    """

    __slots__ = ("_count", "content_read", "drawn", "listeners")

    def __init__(self, drawn: int = 0, content_read: ContentRead | None = None) -> None:
        self._count: itertools.count[int] = itertools.count(
            drawn + 1
        )  # next() on it is atomic under the GIL and with free threading
        self.drawn: int = drawn
        self.content_read: ContentRead = ContentRead() if content_read is None else content_read
        self.listeners: tuple[Callable[[int], None], ...] = ()
        """Called with the number of each call before it is made."""

    def draw(self) -> int:
        """The number of this call: 1, 2, 3 ..."""
        number = next(self._count)
        self.drawn = max(self.drawn, number)
        for listener in self.listeners:
            listener(number)
        return number


class HostLedger(Ledger):
    """The ledger of the host's own calls. It alone makes a context one of the host (`CallContext.is_host`): a name can be
    given to anyone, and copies of a context share its ledger."""

    __slots__ = ()


def _new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The caller of a call: identity, permissions and budget.

    Holds the fields of seed 004 §4.2, the eight of seed 002 (`config` … `sandboxed`), the principal and the profile.
    An explicit context has exactly its `permissions`: none by default.
    """

    permissions: frozenset[str] = frozenset()
    """Capabilities that the caller may use."""
    principal: str = "anonymous"
    """The name of the caller: ``user:alice``, ``agent:writer``. The embedding program itself calls without a context."""
    roles: frozenset[str] = frozenset()
    scopes: Mapping[str, tuple[str, ...]] = field(default_factory=FrozenDict)
    """Capability → the scope that this caller allows (`model/capability_scope.py`), at most the granted one; absent: no further limit."""
    profile: str | None = None
    """Name of the agent profile whose inventory limits the call."""
    request_id: str = field(default_factory=_new_id)
    task_id: str = ""
    trace_id: str = ""
    user_id: str = ""
    budget: Budget = Budget()
    """Also as a mapping: ``{"timeoutMs": 500}``."""
    # seed 002, MoltbotPluginToolContext
    config: Mapping[str, Any] | None = None
    """A read-only copy of what was given."""
    workspace_dir: str | None = None
    """A folder; a `Path` becomes text. `agent_dir` likewise."""
    agent_dir: str | None = None
    agent_id: str | None = None
    session_key: str | None = None
    message_channel: str | None = None
    agent_account_id: str | None = None
    sandboxed: bool = False
    after_untrusted: AfterUntrusted = "allow"
    """What happens to calls that write, send or destroy after a call under this context has read untrusted content. An agent's
    loop sets it from the profile. A call within another one has the stricter value of both."""
    ledger: Ledger = field(default_factory=Ledger, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("permissions", "roles"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        if self.permissions and (unknown := unknown_capability(sorted(self.permissions))) is not None:
            raise UsageError(f"CallContext.permissions: {unknown[0]!r:.80} is not a capability", hint=unknown[1])
        for name in ("workspace_dir", "agent_dir"):
            if (value := getattr(self, name)) is not None and hasattr(type(value), "__fspath__"):
                object.__setattr__(self, name, value.__fspath__())
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name == "principal"):
                raise UsageError(f"CallContext.{name} must be text, got {type(value).__name__}")
            if value and not value.isascii() and not is_text(value):
                raise _not_storable(name, value)
        for name in ("principal", "user_id", "profile"):  # what rules for callers match
            if (value := getattr(self, name)) and len(value) > _LONGEST_NAME:
                raise _not_storable(name, value)
        for role in self.roles:
            if not role.isascii() and not is_text(role):
                raise _not_storable("roles", role)
        if type(self.scopes) is not FrozenDict:  # tools and hooks see it, and must not widen what gates read
            object.__setattr__(self, "scopes", _scopes(self.scopes))
        if not isinstance(self.after_untrusted, str) or self.after_untrusted not in STRICTNESS:
            raise UsageError(
                f"CallContext.after_untrusted is {self.after_untrusted!r:.80}", hint=f"one of {', '.join(STRICTNESS)}"
            )
        if not isinstance(self.budget, Budget):
            object.__setattr__(self, "budget", _budget(self.budget))
        if self.config is not None and type(self.config) is not FrozenDict:
            object.__setattr__(self, "config", _config(self.config))
        if type(self.sandboxed) is not bool:
            raise UsageError(f"CallContext.sandboxed must be True or False, got {type(self.sandboxed).__name__}")
        if not isinstance(self.ledger, Ledger):
            raise UsageError(f"CallContext.ledger must be a Ledger, got {type(self.ledger).__name__}")

    @property
    def is_host(self) -> bool:
        """Whether the host itself calls. The principal `host` alone does not make a context one of the host."""
        return self.principal == HOST_PRINCIPAL and isinstance(self.ledger, HostLedger)

    def whose(self) -> dict[str, Any]:
        """The members of an event that name its owner: `principal`, and `userId` if there is one."""
        return {"principal": self.principal, "userId": self.user_id} if self.user_id else {"principal": self.principal}

    def to_json(self) -> dict[str, Any]:
        """The context as JSON, camelCase, without `config` and `sessionKey` (they may hold secrets).

        `contentRead` is there if untrusted content was read: a context made of this JSON continues from there.
        """
        more: dict[str, Any] = {} if self.after_untrusted == "allow" else {"afterUntrusted": self.after_untrusted}
        if self.ledger.content_read:
            more["contentRead"] = self.ledger.content_read.to_json()
        return {
            "permissions": sorted(self.permissions),
            "principal": self.principal,
            "roles": sorted(self.roles),
            "scopes": {name: list(scope) for name, scope in sorted(self.scopes.items())},
            "profile": self.profile,
            "requestId": self.request_id,
            "taskId": self.task_id,
            "traceId": self.trace_id,
            "userId": self.user_id,
            "budget": {camel(name): getattr(self.budget, name) for name in _OF_BUDGET},
            "workspaceDir": self.workspace_dir,
            "agentDir": self.agent_dir,
            "agentId": self.agent_id,
            "messageChannel": self.message_channel,
            "agentAccountId": self.agent_account_id,
            "sandboxed": self.sandboxed,
            **more,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CallContext:
        """A context from camelCase JSON; an unknown key raises a UsageError (USAGE) with the closest name."""
        if not isinstance(data, Mapping):
            raise UsageError(
                f"a context is a mapping, got {type(data).__name__}", hint='for example {"permissions": ["read:fs"]}'
            )
        names = {camel(f.name): f.name for f in fields(cls) if f.name != "ledger"}
        values: dict[str, Any] = {}
        for key, value in data.items():
            if key == "contentRead":
                values["ledger"] = Ledger(content_read=ContentRead.from_json(value))
                continue
            if key not in names:
                raise UsageError(f"unknown context field {key!r}", hint=did_you_mean(key, names))
            values[names[key]] = value
        return cls(**values)


def _not_storable(name: str, value: str) -> UsageError:
    return UsageError(
        f"CallContext.{name}: {value!r:.80} cannot be stored",
        hint=f"a name has at most {_LONGEST_NAME:,} characters; no text has halves of characters (lone surrogates)",
    )


def host_context(config: Mapping[str, Any] | None = None) -> CallContext:
    """A context of the host itself."""
    return CallContext(principal=HOST_PRINCIPAL, config=config, ledger=HostLedger())


_OF_HOST: Final = "isHost"


def stored_context(context: CallContext) -> dict[str, Any]:
    """A context for a state file of the host, which also says whether it is the host's own."""
    return {**context.to_json(), _OF_HOST: True} if context.is_host else context.to_json()


def restored_context(data: Mapping[str, Any], drawn: int = 0) -> CallContext:
    """The inverse of `stored_context`; raises what `CallContext.from_json` does.

    Args:
        drawn: calls that were made under it.
    """
    is_host = isinstance(data, Mapping) and data.get(_OF_HOST) is True
    context = CallContext.from_json({key: value for key, value in data.items() if key != _OF_HOST} if is_host else data)
    return replace(context, ledger=(HostLedger if is_host else Ledger)(drawn, context.ledger.content_read))


def check_caller(context: object) -> None:
    """Raise UsageError if `context` is not a caller (USAGE)."""
    if not isinstance(context, CallContext | None):
        raise UsageError(
            f"context= takes a CallContext, got {type(context).__name__}", hint='CallContext(principal="user:ann")'
        )


def check_most(most: object) -> None:
    """Raise UsageError if `most` is not a maximum number of records (USAGE)."""
    if type(most) is not int or not 0 <= most < 2**63:
        raise UsageError(f"most={most!r:.80} is not a number from 0 up", hint="most=100")


def owner_of(context: CallContext) -> str:
    """The owner of data that are stored for a caller.

    The text is unique for a principal and a user, whatever their names.
    """
    return owner_name(context.principal, context.user_id)


def owner_name(principal: str, user_id: str) -> str:
    """`owner_of`, from a principal and a user id."""
    principal = str(principal)  # None is one, too
    name = f"{principal}\x1f{user_id}"
    if name.count("\x1f") == 1 and "\x1e" not in name:  # as nearly always
        return name
    return f"{str(principal).translate(_ESCAPES)}\x1f{str(user_id).translate(_ESCAPES)}"


def _budget(written: Any) -> Budget:
    """A budget that is written as a mapping, with the names of Python or of JSON."""
    if not isinstance(written, Mapping):
        raise UsageError("CallContext.budget must be a Budget, e.g. Budget(timeout_ms=500)")
    spellings = {spelling: name for name in _OF_BUDGET for spelling in (name, camel(name))}
    if unknown := [key for key in written if key not in spellings]:
        raise UsageError(f"unknown budget field {unknown[0]!r}", hint=did_you_mean(str(unknown[0]), spellings))
    return Budget(**{spellings[key]: value for key, value in written.items()})


def _names(name: str, value: Any) -> frozenset[str]:
    """A set of names, or a UsageError that names the field."""
    if isinstance(value, str):  # it would silently become a set of letters
        raise UsageError(f"CallContext.{name} must be a set of names, got the string {value!r}; write {{{value!r}}}")
    if not isinstance(value, Iterable):
        raise UsageError(f"CallContext.{name} must be a set of names, got {type(value).__name__}")
    names = tuple(value)
    if not all(isinstance(item, str) for item in names):
        raise UsageError(f"CallContext.{name} must be a set of names, one of them is not text")
    return frozenset(names)


def _scopes(written: Any) -> FrozenDict[str, tuple[str, ...]]:
    """Scopes of a caller. Raises UsageError: anything but a mapping of names to lists of texts (USAGE)."""
    lists = isinstance(written, Mapping) and all(
        isinstance(scope, list | tuple) and all(isinstance(entry, str) for entry in scope) for scope in written.values()
    )
    if not lists:
        raise UsageError(
            f"CallContext.scopes must be a mapping of capabilities to lists of texts, got {written!r:.200}",
            hint='scopes={"read:fs": ["/srv/data"]}',
        )
    return FrozenDict({str(name): tuple(scope) for name, scope in written.items()})


def _config(config: Any) -> FrozenDict[str, Any]:
    """The `config` of a caller, which factories and tools read and must not change for others. Raises UsageError: no mapping."""
    if not isinstance(config, Mapping):
        raise UsageError(f"CallContext.config must be a mapping, got {type(config).__name__}")
    try:
        return frozen(config)  # type: ignore[no-any-return]
    except RecursionError:
        raise UsageError("CallContext.config holds itself, or is nested too deeply", hint="pass plain JSON") from None


@dataclass(frozen=True, slots=True)
class Rights:
    """The capabilities that each side allows; the call has those that all sides allow. None: that side sets no limit.

    ``danger:*`` must be named by `plugin` and `caller` literally.
    """

    plugin: frozenset[str] = frozenset()
    """Declared by the tool's plugin and granted by the operator."""
    caller: frozenset[str] = frozenset()
    host: frozenset[str] | None = None
    host_denied: frozenset[str] = frozenset()
    profile: frozenset[str] | None = None
    scopes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Limited capabilities of the plugin with their scopes, paths absolute; use `scope` to read them."""

    places: tuple[tuple[str, str], ...] = ()
    """The roots of paths: ``$data``, ``$plugin``, ``~`` and ``""`` for the project; ``$workspace`` is the context's."""

    asked: frozenset[str] | None = None
    """The permissions that plugin.yaml requests; None: there is no plugin.yaml, so none need to be requested."""

    def scope(self, capability: str) -> Scope:
        """The scope of the plugin's grant of `capability` (`model/capability_scope.py`): None: no limit, empty: not granted."""
        return dict(self.scopes).get(capability) if capability in self.plugin else ()

    def holds(self, capability: str) -> bool:
        """True if every side allows `capability`; plugin and caller must name ``danger:*`` literally."""
        sides = [side for side in (self.host, self.profile) if side is not None]
        return not forbids(self.host_denied, capability) and all(
            covers(side, capability) for side in (self.plugin, self.caller, *sides)
        )


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The capabilities that a tool needs and one side does not allow."""

    side: str
    """plugin, host, profile or caller."""
    missing: tuple[str, ...]
    reason: str
    fix: str
    """The change that would allow it, as a command or a line to write."""


def shortfall(
    plugin: str, wanted: Iterable[str], rights: Rights, context: CallContext, door: str = "api"
) -> Shortfall | None:
    """The first side that does not allow everything that a tool needs; None if all sides do.

    Args:
        plugin: the plugin of the tool.
        wanted: the capabilities that the tool needs.
        context: the caller.
        door: the entry point of the call.
    """
    wanted = tuple(wanted)
    if lacking := missing(rights.plugin, wanted):
        return _lack("plugin", lacking, f"plugin {plugin} was not granted", grant_fix(plugin, lacking, rights.asked))
    if rights.host_denied and (lacking := sorted(c for c in wanted if forbids(rights.host_denied, c))):
        return _lack("host", lacking, "this host denies", "take it out of capabilities.deny in tavern.yaml")
    if rights.host is not None and (lacking := missing(rights.host, wanted)):
        fix = f"add {_quoted(lacking)} to capabilities.allow in tavern.yaml"
        return _lack("host", lacking, "this host allows no", fix)
    if rights.profile is not None and (lacking := missing(rights.profile, wanted)):
        name = context.profile
        fix = f"add {_quoted(lacking)} to capabilities of the profile {name!r}"
        return _lack("profile", lacking, f"profile {name!r} allows no", fix)
    if lacking := missing(rights.caller, wanted):
        return _lack("caller", lacking, f"{context.principal} may not use", caller_fix(context, wanted, door))
    if context.scopes and (lacking := [c for c in sorted(wanted) if context.scopes.get(c) == ()]):
        reason = f"{context.principal} does not allow {', '.join(lacking)}: its scope is empty"
        fix = "name what it may reach in CallContext.scopes, or leave the scope out"
        return Shortfall("caller", tuple(lacking), reason, fix)
    return None


def _lack(side: str, lacking: list[str], reason: str, fix: str) -> Shortfall:
    return Shortfall(side, tuple(lacking), f"{reason} {', '.join(lacking)}", fix)


def caller_fix(context: CallContext, wanted: Iterable[str], door: str) -> str:
    """How a caller gets capabilities, by the entry point of its calls.

    A caller that is written out has exactly what is written, so the fix names all of them.
    """
    if door in ("http", "mcp"):
        from shlex import quote  # here: most programs never read this

        names = quote(",".join(sorted({*context.permissions, *wanted})))
        fix = (
            f"use a token with more permissions: tavern tokens create {quote(context.principal)} --permissions {names}"
        )
        return f"{fix}; over stdio: tavern mcp --permissions {names}" if door == "mcp" else fix
    permissions = sorted(set(wanted))
    if door == "cli":
        fix = f"--permissions {','.join(permissions)}"
    else:
        fix = f"pass CallContext(permissions={{{', '.join(map(repr, permissions))}}})"
    if context.principal == HOST_PRINCIPAL:
        fix += "; without a context the host itself calls, which never has danger:*"
    return fix


def grant_fix(plugin: str, names: Iterable[str], asked: Collection[str] | None) -> str:
    """The command that grants capabilities to a plugin, after the line of plugin.yaml if it does not request them all.

    Args:
        asked: the permissions that plugin.yaml requests; None: all.
    """
    names = tuple(names)
    command = f"tavern plugins grant {plugin} {' '.join(names)}"
    undeclared = [] if asked is None else [name for name in names if name not in asked]
    return (
        f"add to plugin.yaml of {plugin}: permissions: {{capabilities: [{_quoted(undeclared)}]}}, then {command}"
        if undeclared
        else command
    )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request to run a tool. Immutable: hooks return a changed copy (`dataclasses.replace`)."""

    tool: str
    """The canonical tool id."""
    arguments: Mapping[str, Any]
    context: CallContext
    id: str = ""
    """Unique within a host; names the call in results, events and the audit log."""
    purpose: str = ""
    idempotency_key: str | None = None
    depth: int = 0
    """0 for a call from outside, 1 for a call that a tool made, and so on."""
    door: str = "api"
    """The entry point of the call: api, tam, cli, http, mcp, workflow."""
    parent: str | None = None
    """The call that made this one."""
    rights: Rights = Rights()
    """Filled in by the pipeline; hooks cannot change it."""


class _Open:
    """A call while it is built."""

    __slots__ = tuple(ToolCall.__dataclass_fields__)


_new = object.__new__


def call_of(
    tool: str, arguments: Mapping[str, Any], context: CallContext, call_id: str, purpose: str, key: str | None,
    depth: int, door: str, parent: str | None, rights: Rights,
) -> ToolCall:  # fmt: skip
    """``ToolCall(...)`` for the hot path: a frozen dataclass takes three times as long to create."""
    call: Any = _new(_Open)
    call.tool = tool
    call.arguments = arguments
    call.context = context
    call.id = call_id
    call.purpose = purpose
    call.idempotency_key = key
    call.depth = depth
    call.door = door
    call.parent = parent
    call.rights = rights
    call.__class__ = ToolCall
    return call  # type: ignore[no-any-return]


def with_arguments(call: ToolCall, arguments: Mapping[str, Any]) -> ToolCall:
    """``replace(call, arguments=arguments)`` for the hot path; see `call_of`."""
    return call_of(
        call.tool, arguments, call.context, call.id, call.purpose, call.idempotency_key, call.depth, call.door,
        call.parent, call.rights,
    )  # fmt: skip
