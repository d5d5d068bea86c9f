"""The objects that an adapter gets: a configured upstream, and the call to serve (`contract.adapters`)."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tavern_core.contract.adapters import Process
from tavern_core.contract.exchange import with_interrupts_as_failures
from tavern_core.contract.tool_context import RUNNING, ToolContext
from tavern_core.errors import PolicyDenied, SettingsInvalid, ToolFailed
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.tool_context_control import CallControl
from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
from tavern_core.kernel.execution.sync_async_drivers import in_thread
from tavern_core.kernel.execution.threads import Owner, ThreadPool
from tavern_core.kernel.files.atomic_file import make_private_folder, write_atomic
from tavern_core.kernel.files.file_lock import locked_async
from tavern_core.kernel.plugins.effective_scopes import EffectiveScopes
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.plugins.tool_homes import SandboxSource
from tavern_core.kernel.settings.secret_masking import KnownSecrets, MaskingFilter, is_everyday
from tavern_core.model.call import Rights, ToolCall
from tavern_core.model.secret_references import SECRET, is_operators_reference
from tavern_core.model.tool import ToolSpec
from tavern_core.model.upstream_config import origin_entry
from tavern_core.schema.redact import compile_marked, named_secrets
from tavern_core.schema.secret_names import is_secret_name
from tavern_core.upstreams.upstream_plugin_candidates import UpstreamSystem

_TOKEN: Final = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9._~+/=-]{20,}")
_MOST_SECRETS: Final = 32
"""Secrets in one text that an adapter stores."""
_LONGEST_SECRET: Final = 16_000
LOCK_S: Final = 60.0
"""Seconds that an adapter waits for another process of this home that works with the same credential."""


@dataclass(frozen=True, slots=True)
class UpstreamGrants:
    """The grants of upstreams, secrets included; read again for each connection."""

    specs: ToolSpecs
    reach: EffectiveScopes
    sandboxes: SandboxSource

    def record(self, plugin: str) -> PluginRecord:
        """The plugin of an upstream; for an endpoint, the plugin of its tool."""
        return self.specs.lifecycle.records[plugin]

    def rights(self, record: PluginRecord) -> Rights:
        """The rights of a plugin's upstream."""
        rights = self.specs.rights(record, ToolSpec(record.name))
        scopes, places = tuple(self.reach.scopes(record).items()), tuple(self.reach.places(record).items())
        return replace(rights, scopes=scopes, places=places)

    def secret(self, name: str, reference: Any) -> str:
        """The text behind a reference; None as the reference: the secret `name` of tavern.yaml. Raises CallError."""
        secrets = self.specs.base.config.secrets if reference is None else {name: reference}
        return self.specs.lifecycle.tables.settings.secret(name, secrets)


class UpstreamFacility:
    """`contract.adapters.Upstream` for one connection.

    Args:
        schema: the schema of the adapter's settings.
        credential: the key of `credentials` for this connection; empty: none.
        secrets: receives the resolved references of the entry, and the texts that the adapter stores.

    Raises:
        SettingsInvalid: a setting is invalid, or a reference cannot be resolved (SETTINGS_INVALID).
        PolicyDenied: a secret was not granted (POLICY_DENIED).
    """

    def __init__(
        self,
        entry: UpstreamSystem,
        schema: Mapping[str, Any],
        credential: str,
        granted: UpstreamGrants,
        secrets: KnownSecrets,
    ) -> None:
        base, config = granted.specs.base, entry.config
        self.name = entry.name
        self.url = config.url or ""
        self.command = config.command or ()
        self.package = config.package or ""
        self.idempotency_header = config.idempotency_header
        self._base_dir = base.loaded.base_dir
        """The folder of tavern.yaml."""
        self.folder = None if config.folder is None else self.path(config.folder)
        self.changed = entry.list_changed.emit
        self.log = logging.getLogger(f"tavern.upstream.{entry.name}")
        self._entry = entry
        self._config = config
        self._credential = credential
        self._granted = granted
        self._secrets = secrets
        self._known = base.known_secrets
        """The secrets of the whole host; texts of the adapter that can only be tokens are added."""
        for hidden in (self._known, secrets):
            MaskingFilter.put_on(self.log, hidden)
        self._store = base.home / "upstreams" / entry.name
        """The private folder for the adapter's texts."""
        self.settings, self.headers, self._environment = self._resolved(schema)

    def path(self, written: str) -> Path:
        return (self._base_dir / Path(written).expanduser()).absolute()

    def _resolved(self, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, str], dict[str, str]]:
        """Settings, headers and environment variables, validated, with resolved references."""
        credentials = self._config.credentials.get(self._credential)
        overrides = {} if credentials is None else credentials.model_dump(mode="json")
        written = self._config.model_dump(mode="json", include={"settings", "headers", "environment"})
        for key in ("settings", "headers", "environment"):
            written[key] = {**written[key], **overrides.get(key, {})}
        place = f"upstreams.{self.name}"
        settings_given = self._resolve(written["settings"], f"{place}.settings")
        settings = _checked(settings_given, schema, f"{place}.settings")
        followed = self._resolve(written["headers"], f"{place}.headers")
        headers = {name: _header(str(value), f"{place}.headers.{name}") for name, value in followed.items()}
        environment = self._resolve(written["environment"], f"{place}.environment")
        marked = compile_marked(schema)
        in_plain_text = [
            *named_secrets([settings_given, followed, environment]),
            *(marked(settings) if marked is not None else ()),
            *_of_cookies(headers),
        ]
        for masked in (self._secrets, self._known):
            masked.add(*(text for text in in_plain_text if not is_everyday(text)))
        return settings, headers, {name: str(value) for name, value in environment.items()}

    def http(self, url: str = "", *, timeout_s: float = 30.0, max_bytes: int = 64_000_000) -> Any:
        from tavern_core.upstreams.http_client import client

        if not self.url:
            raise ToolFailed(f"{self.name} has no url in tavern.yaml, so nothing can be fetched from it")
        certificate = self._resolve(self._config.certificate, f"upstreams.{self.name}.certificate")
        origin, is_own = origin_entry(url or self.url), not url or origin_entry(url) == origin_entry(self.url)
        if not is_own and origin not in map(origin_entry, self._config.origins):
            raise PolicyDenied(
                f"{self.name} leads to {origin}, which was not granted to it",
                hint=f"write `origins: [{url.partition('?')[0]!r:.200}]` into its entry in tavern.yaml, if that is where it may lead",
            )
        record = self._granted.record(self._entry.plugin)
        return client(
            url or self.url,
            self._entry.network(record, self._granted.rights(record)),
            headers=self.headers if is_own else None,
            certificate=certificate if is_own else None,
            timeout_s=timeout_s,
            max_bytes=max_bytes,
        )

    async def start(self) -> Process:
        from tavern_core.upstreams.process import ProcessEnvironment, start_process

        if not self.command:
            raise ToolFailed(f"{self.name} has no command in tavern.yaml, so nothing can be started for it")
        record = self._granted.record(self._entry.plugin)
        env = ProcessEnvironment(str(self._base_dir), self._environment, tuple(self._environment.values()))
        sandbox, rights = self._granted.sandboxes.of(record), self._granted.rights(record)
        return await start_process(self.command, env, sandbox, rights, trusted=self._config.trusted)

    def load(self, name: str) -> str | None:
        try:
            text = self._path_of(name).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        self._remember(name, text)
        return text

    def save(self, name: str, text: str | None) -> None:
        path = self._path_of(name)
        make_private_folder(path.parent)
        if text is None:
            path.unlink(missing_ok=True)
        else:
            self._remember(name, text)
            write_atomic(path, text)

    def _remember(self, name: str, text: str) -> None:
        """Hide a stored text of the adapter in all data of its upstream, which may repeat it.

        Only what cannot be ordinary text is hidden in the whole host: a server could otherwise choose texts to be
        hidden.
        """
        found = list(islice((one for one in _secrets_of(text) if len(one) <= _LONGEST_SECRET), _MOST_SECRETS))
        owner = f"{self.name}\n{self._credential}\n{name}"
        self._secrets.renew(owner, *found)
        self._known.renew(owner, *filter(_TOKEN.fullmatch, found))

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        return locked_async(self._path_of(name), LOCK_S)

    def _path_of(self, name: str) -> Path:
        from tavern_core.upstreams.listing_cache import digest

        return self._store / digest([self._credential, name]).removeprefix("sha256:")

    def _resolve(self, value: Any, place: str) -> Any:
        if isinstance(value, Mapping):
            if is_operators_reference(value):
                return self._secret_of(next(iter(value)), value, place)
            return {key: self._resolve(item, f"{place}.{key}") for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._resolve(item, f"{place}.{index}") for index, item in enumerate(value)]
        return value

    def _secret_of(self, kind: str, reference: Mapping[str, Any], place: str) -> str:
        named = (str(reference[kind]), None) if kind == SECRET else (place, reference)
        found = self._granted.secret(*named)
        self._secrets.add(found)
        return found


def _secrets_of(text: str) -> Iterator[str]:
    """The secret parts of a text that an adapter stores: values of a JSON object with secret names; or all of it."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = text
    if not isinstance(content, dict | list):
        yield content if isinstance(content, str) else text
        return
    waiting: list[tuple[Any, bool]] = [(content, False)]
    while waiting:
        value, is_secret = waiting.pop()
        if isinstance(value, dict):
            waiting += [(item, is_secret_name(key)) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(item, is_secret) for item in value]
        elif is_secret and isinstance(value, str):
            yield value


def _of_cookies(headers: Mapping[str, str]) -> Iterator[str]:
    """Cookie values that are secret by name, or cannot be ordinary text."""
    for name, value in headers.items():
        for cookie in value.split(";") if name.lower() == "cookie" else ():
            key, _, content = cookie.strip().partition("=")
            if is_secret_name(key) or _TOKEN.fullmatch(content):
                yield content


def _header(value: str, place: str) -> str:
    """A value that can be sent in a header, without surrounding blanks and line breaks, which files often have.

    Raises:
        SettingsInvalid: it cannot be sent; the message does not show it (SETTINGS_INVALID).
    """
    value = value.strip()
    if not value.isascii() or not value.isprintable():
        raise SettingsInvalid(f"{place}: a header cannot have this value", hint="use printable ASCII signs alone")
    return value


def _checked(settings: Mapping[str, Any], schema: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    from tavern_core.schema.defaults import compile_defaults
    from tavern_core.schema.validate import compile_validator

    fill = compile_defaults(schema)
    filled: dict[str, Any] = dict(settings) if fill is None else fill(dict(settings))
    validator = compile_validator(schema, name=place).build()
    if problems := validator.problems(filled):
        first = problems[0]
        raise SettingsInvalid(f"{place}{first.path}: {first.message}", hint=first.hint)
    return filled


class CallFacility:
    """`contract.adapters.UpstreamCall` for one call.

    Args:
        threads: runs blocking code of the adapter.
        owner: plugin and id of the tool, whose threads are used.
        secrets: the texts that the adapter stores; they are removed from its messages during the call, too.
    """

    __slots__ = ("_control", "_loop", "_owner", "_point", "_threads", "call", "context")

    def __init__(self, call: ToolCall, threads: ThreadPool, owner: Owner, secrets: KnownSecrets) -> None:
        self.call = call
        self._threads = threads
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        """The caller's loop: answers to questions are awaited there, and not on the connection's loop."""
        self.context = ToolContext(call.id)
        self._control = control = RUNNING.get(call.id)
        self._point = None
        if isinstance(control, CallControl):
            control.hide(secrets)
            self._point = control.resume_point

    @property
    def key(self) -> str | None:
        return self.call.idempotency_key

    @property
    def is_again(self) -> bool:
        return self._control is not None and self._control.is_again

    @property
    def resume_point(self) -> str:
        return "" if self._point is None else self._point.text

    @property
    def will_be_resumed(self) -> bool:
        return self._point is not None and self._point.is_left

    async def keep_resume_point(self, text: str, *, only_followed: bool = False) -> None:
        if self._point is not None:
            control = self._control
            await self._point.store(
                text, control.definition if only_followed and isinstance(control, CallControl) else ""
            )

    async def ask(self, message: str, schema: Mapping[str, Any], name: str = "answer") -> Mapping[str, Any] | None:
        question = self.context.ask(message, schema, key=name)
        if asyncio.get_running_loop() is self._loop:
            return await question
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(question, self._loop))

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        return in_thread(self._threads, with_interrupts_as_failures, (function, *args), None, self._owner)
