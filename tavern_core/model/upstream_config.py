"""The entry of one upstream in tavern.yaml: a system whose tools become tools of this host.

    upstreams:
      clock:
        kind: mcp
        command: [mcp-server-time]
      n8n:
        kind: n8n
        url: http://127.0.0.1:5678
        settings: {apiKey: {$secret: n8n}}

An entry says everything that a reviewer must know: what the host connects to, what it starts, and with which permissions. No adapter decides that.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from tavern_core.model.capability import is_capability, known_capability
from tavern_core.model.environment_variables import is_name, is_refused
from tavern_core.model.file_model_base import FilePart, refused
from tavern_core.model.manifest import CapabilityRequest, Permissions
from tavern_core.model.naming_rules import CALLER_KEYS, caller_key_flaw, is_plugin_name, is_reserved
from tavern_core.model.safe_printing import quoted_address
from tavern_core.model.secret_references import SECRET
from tavern_core.model.setting_declaration import Line
from tavern_core.model.tool_limits_file_model import WrittenLimits

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
INSTALLERS: Final = frozenset({"uvx", "uv", "npx", "npm", "pnpx", "pnpm", "yarn", "bunx", "pipx"})
"""Programs that fetch code and run it: that code was not reviewed, so they always need full trust."""
FULL_TRUST: Final = "process:host"
"""The permission to run code of an upstream with the rights of the host itself."""
_LONGEST_ENTRY: Final = 200
_NEEDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "headers": ("headers", "url", "delete it; a command reads secrets from `environment`"),
    "certificate": ("certificate", "url", "delete it"),
    "idempotency_header": ("idempotencyHeader", "url", "delete it: only requests to a `url` have headers"),
    "environment": ("environment", "command", "delete it; a `url` gets secrets in `headers`"),
}
"""Attribute of an entry → its key, the target without which it has no effect, and the repair."""
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}\Z")


def _origin_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise refused(f"{quoted_address(url)} is not an address", "write http://host:port or https://host") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0 or parts.username is not None:
        raise refused(
            f"{quoted_address(url)} is not an address of an upstream",
            "write http://host:port/path or https://host/path; credentials belong into `headers` or `settings`",
        )
    return url


def _variable(name: str) -> str:
    if not is_name(name) or is_refused(name):
        raise refused(f"{name!r:.60} is never passed to a program", "delete the line")
    return name


def _word(written: str) -> str:
    if not written.isprintable():
        raise refused(f"{written!r:.60} has signs that cannot be reviewed", "delete line breaks and control characters")
    return written


def _header_name(name: str) -> str:
    if not _HEADER.match(name) or name.lower() in ("host", "content-length", "transfer-encoding", "connection"):
        raise refused(f"{name!r:.60} is not a header that can be set", "delete the line")
    return name


def _capability_name(name: str) -> str:
    if not is_capability(name):
        raise refused(f"{name!r:.80} is not a capability", known_capability(name))
    return name


def _caller(key: str) -> str:
    if flaw := caller_key_flaw(key):
        raise refused(flaw, CALLER_KEYS)
    return key


def _upstream_name(name: str) -> str:
    if not is_plugin_name(name) or is_reserved(name):
        raise refused(
            f"{name!r:.80} is not the name of an upstream",
            "use lower-case letters, digits and hyphens; no name of the host's own",
        )
    return name


def _permission(item: Any) -> Any:
    if isinstance(item, str):
        return CapabilityRequest(name=item)
    if isinstance(item, Mapping) and isinstance(scope := item.get("scope"), list):
        return {**item, "scope": tuple(scope)}  # what a validator returns is not JSON any more, where a list is a tuple
    return item


class ToolOverride(FilePart):
    """The operator's statements about one tool of an upstream, which override those of the upstream."""

    description: str | None = None
    """Replaces its description for models."""
    capabilities: tuple[Annotated[str, AfterValidator(_capability_name)], ...] | None = None
    """Replace those of the whole upstream."""
    read_only: bool | None = None
    """Whether it changes nothing."""
    destructive: bool | None = None
    """Whether it may destroy something."""
    idempotent: bool | None = None
    """Whether the same call twice has the effect of one."""
    requires_approval: bool | None = None
    """Whether each call needs approval."""
    optional: bool | None = None
    """Whether it is disabled until `tools.allow` names it."""
    timeout_ms: Annotated[int, Field(gt=0)] | None = None
    """The time limit of a call."""
    job: bool | None = None
    """Whether its calls run in the background."""
    limits: WrittenLimits | None = None
    """Rate, concurrency, retries, cache and breaker."""


_Variables = dict[Annotated[str, AfterValidator(_variable)], Any]
_Headers = dict[Annotated[str, AfterValidator(_header_name)], Any]


class Credentials(FilePart):
    """Settings, headers and variables for the calls of one caller; see `UpstreamConfig`."""

    environment: _Variables = Field(default_factory=dict)
    """Variables of the command."""
    headers: _Headers = Field(default_factory=dict)
    """Headers of requests."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Options of the adapter."""


class UpstreamConfig(FilePart):
    """An entry of `upstreams:`."""

    kind: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
    """The adapter, by its name: ``mcp``, ``n8n``, ``langchain``, ``comfyui``, or one of a plugin."""
    url: Annotated[str, AfterValidator(_origin_url)] | None = None
    """The only origin of this upstream; private addresses are possible."""
    origins: tuple[Annotated[str, AfterValidator(_origin_url)], ...] = ()
    """Further origins that it needs, such as that of its authorization server. `headers` are not sent there."""
    command: tuple[Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_word)], ...] | None = None
    """Program and arguments, never a shell."""
    package: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None = None
    """An installed distribution; its code runs in the host, so it needs full trust."""
    folder: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Relative to tavern.yaml."""
    namespace: Annotated[str, AfterValidator(_upstream_name)] | None = None
    """The part of the ids before the colon; default: the name of the entry."""
    description: Line = ""
    """What it is for."""
    environment: _Variables = Field(default_factory=dict)
    """Variables of the command; values may be references: ``{$secret: name}``, ``{$env: NAME}``."""
    headers: _Headers = Field(default_factory=dict)
    """Headers of requests; values may be references, as in `environment`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Options of the adapter; values may be references."""
    credentials: dict[Annotated[str, AfterValidator(_caller)], Credentials] = Field(default_factory=dict)
    """Caller (``user:alice``, ``role:…``, a principal, ``*``) → settings, headers and variables for its calls."""
    permissions: tuple[CapabilityRequest, ...] = ()
    """The permissions of the command in its sandbox."""
    trusted: bool = False
    """Run the command outside of the sandbox, with the rights of the host."""
    allow: tuple[str, ...] | None = None
    """Names of tools, with ``*`` as a wildcard; None: all. An empty list allows nothing."""
    deny: tuple[str, ...] = ()
    """Names of tools that are left out, with ``*`` as a wildcard."""
    tools: dict[str, ToolOverride] = Field(default_factory=dict)
    """Tool → the operator's statements about it."""
    trust_annotations: bool = False
    """Trust the upstream's claims about which tools are read-only or idempotent."""
    pin: bool = False
    """Quarantine tools that are new or changed since the upstream was granted."""
    idempotency_header: Annotated[str, AfterValidator(_header_name)] | None = None
    """The header in which the upstream accepts idempotency keys."""
    timeout_ms: Annotated[int, Field(gt=0)] | None = None
    """The time limit of a call; None: 60 s."""
    idle_ms: Annotated[int, Field(gt=0)] | None = None
    """The time that a call may be silent; progress resets it."""
    close_after_ms: Annotated[int, Field(gt=0)] = 300_000
    """The time that an unused connection stays open."""
    refresh_ms: Annotated[int, Field(gt=0)] = 3_600_000
    """The time that the catalogue is valid if the upstream sets none."""
    certificate: Any = None
    """A client certificate, by reference: ``{cert: {$file: …}, key: {$file: …}}``; and ``ca`` for a private certification authority."""

    @field_validator("permissions", mode="before")
    @classmethod
    def _short_permissions(cls, value: Any) -> Any:
        """``[network]`` is short for ``[{name: network}]``."""
        return tuple(map(_permission, value)) if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        named = [key for key in ("url", "command", "package", "folder") if getattr(self, key) is not None]
        if len(named) > 1:
            raise refused(f"an upstream is reached by one thing, not by {' and '.join(named)}", "keep one of them")
        if self.command is not None and not self.command:
            raise refused("the command is empty", "write [program, argument, …]")
        if self.command and self.needs_full_trust and not self.trusted:
            raise refused(
                f"{self.command[0]} fetches code and runs it, which no sandbox was reviewed for",
                "add `trusted: true` to run it with the rights of the host, or name an installed program",
            )
        if self.origins and not self.url:
            raise refused("`origins` are those beside the one of `url`", "delete them, or write `url`")
        if self.permissions and not self.command:
            raise refused("`permissions` are those of a command in its sandbox", "delete them")
        if named:
            self._refuse_useless(named[0])
        return self

    def _refuse_useless(self, target: str) -> None:
        """Raise the error of `refused` if a key of the entry has no effect on its target."""
        for attribute, (key, needed, hint) in _NEEDS.items():
            if needed == target:
                continue
            if getattr(self, attribute):
                raise refused(f"`{key}` has no effect without `{needed}`", hint, key)
            for caller, credentials in self.credentials.items():
                if getattr(credentials, attribute, None):
                    raise refused(f"`{key}` of {caller} has no effect without `{needed}`", hint, "credentials")

    @property
    def needs_full_trust(self) -> bool:
        """Whether its code runs with the rights of the host, whatever the entry says."""
        program = (self.command or ("",))[0].replace("\\", "/").rpartition("/")[2]
        return self.package is not None or program.removesuffix(".exe") in INSTALLERS

    @property
    def target(self) -> str:
        """The exact address, command line, distribution or folder, as review and lock file show it."""
        if self.command:
            return shlex.join(self.command)
        return self.url or self.package or self.folder or ""

    def plugin_name(self, name: str) -> str:
        """The part of the ids before the colon."""
        return self.namespace or name

    def requested(self) -> Permissions:
        """The permissions that the upstream requests from the operator, as a plugin does."""
        return Permissions(capabilities=tuple(self._requests()))

    def capabilities(self, requested: Iterable[str]) -> frozenset[str]:
        """The capabilities of its tools, which their callers need: without its secrets and its own program's start.

        Args:
            requested: names of the capabilities that it requests.
        """
        own_start = (
            {"process:spawn"} if self.command and all(p.name != "process:spawn" for p in self.permissions) else set()
        )
        return frozenset(name for name in requested if name not in own_start and not name.startswith("secrets:"))

    def _requests(self) -> Iterator[CapabilityRequest]:
        if self.url is not None:
            scope = dict.fromkeys(origin_entry(url) for url in (self.url, *self.origins))
            yield CapabilityRequest(name="network", scope=tuple(scope), reason=f"connect to {self.target}")
        if self.package is not None or (self.command and self.trusted):
            yield CapabilityRequest(
                name=FULL_TRUST,
                scope=(entry_of(self.target),),
                reason=f"full trust: runs {self.target} outside of every sandbox",
            )
        elif self.command:
            others = next((p.scope or () for p in self.permissions if p.name == "process:spawn"), ())
            yield CapabilityRequest(
                name="process:spawn", scope=(entry_of(self.target), *others), reason=f"start {self.target}"
            )
            yield from (p for p in self.permissions if p.name not in ("process:spawn", FULL_TRUST))
        for secret in sorted(
            set(
                secrets_in(
                    self.model_dump(include={"settings", "headers", "environment", "credentials", "certificate"})
                )
            )
        ):
            yield CapabilityRequest(name=f"secrets:{secret}")


def endpoint_config(kind: str, endpoint: str, implementation: Mapping[str, Any]) -> UpstreamConfig:
    """The upstream that a tool with an `endpoint` has for itself.

    Only keys that cannot refer to a secret are read: such a tool may come from a plugin.

    Raises:
        ValidationError: the address, or a key of `implementation` about idempotency keys, is wrong.
    """
    field = implementation.get("idempotencyField")
    return UpstreamConfig(
        kind=kind,
        url=endpoint,
        idempotency_header=implementation.get("idempotencyHeader"),
        settings={} if field is None else {"idempotencyField": field},
    )


def entry_of(target: str) -> str:
    """A command line or name as an entry of a scope of names; its hash if it cannot be part of one."""
    if len(target) <= _LONGEST_ENTRY and target.isprintable() and "*" not in target:
        return target
    return f"sha256:{hashlib.sha256(target.encode('utf-8', 'surrogatepass')).hexdigest()}"


def origin_entry(url: str) -> str:
    """The origin of an address as an entry of a scope: ``example.org:443``, ``[::1]:8080``."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or DEFAULT_PORTS[parts.scheme]}"


def secrets_in(value: Any) -> Iterator[str]:
    """The names of all secrets that `value` references with ``{$secret: name}``."""
    if isinstance(value, Mapping):
        if set(value) == {SECRET} and isinstance(value[SECRET], str):
            yield value[SECRET]
            return
        for item in value.values():
            yield from secrets_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from secrets_in(item)


def _own_namespaces(upstreams: dict[str, UpstreamConfig]) -> dict[str, UpstreamConfig]:
    """Two upstreams with the same ids would share their grants as well."""
    taken: dict[str, str] = {}
    for name, entry in upstreams.items():
        if (other := taken.setdefault(entry.plugin_name(name), name)) != name:
            raise refused(
                f"{other} and {name} have the same namespace {entry.plugin_name(name)!r}",
                f"give {name} another `namespace`",
                name,
            )
    return upstreams


Upstreams = Annotated[
    dict[Annotated[str, AfterValidator(_upstream_name)], UpstreamConfig], AfterValidator(_own_namespaces)
]
"""The section. Building its model takes 9 ms, so only a host that has one does it."""
