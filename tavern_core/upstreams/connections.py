"""The connections of one host to its upstreams: they choose the session and the loop for each caller."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from tavern_core.contract.adapters import Adapter, Connection, LogsIn
from tavern_core.errors import (
    CallError,
    CallTimeout,
    ConfigInvalid,
    ConnectionLost,
    Finding,
    Location,
    Outcome,
    PluginError,
    PolicyDenied,
    TavernError,
    UpstreamError,
    UsageError,
)
from tavern_core.kernel.access.tool_access import own_keys
from tavern_core.kernel.execution.sync_async_drivers import TimeLimit, wait_bounded
from tavern_core.kernel.plugins.candidate import PluginCandidate
from tavern_core.kernel.plugins.plugin_record import PluginCondition, PluginRecord
from tavern_core.kernel.settings.result_redaction import redact_result, redact_values
from tavern_core.kernel.settings.secret_masking import KnownSecrets
from tavern_core.model.call import CallContext
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import ToolResult
from tavern_core.model.safe_printing import with_type
from tavern_core.model.upstream_config import origin_entry
from tavern_core.schema.secret_encodings import secret_redactor
from tavern_core.upstreams.facilities import UpstreamFacility, UpstreamGrants
from tavern_core.upstreams.loop_task import LoopTask
from tavern_core.upstreams.session import ConnectionState, UpstreamSession
from tavern_core.upstreams.upstream_plugin_candidates import ToolEndpoint, UpstreamEntry, UpstreamSystem

T = TypeVar("T")
MAX_SESSIONS: Final = 64
"""Connections of one upstream: one for each set of credentials."""
MAX_UNUSED: Final = 64
"""Open connections to endpoints of tools that no call uses; beyond that number, the least recently used are closed."""
_TARGETS: Final = ("url", "command", "package", "folder")
_METHODS: Final = ("list_tools", "invoke", "check", "close")
"""The methods of `contract.adapters.Connection`."""


class UpstreamConnections:
    """Opens connections when they are used and closes them with the host. Safe for threads and event loops."""

    def __init__(self, entries: Mapping[str, UpstreamEntry], granted: UpstreamGrants) -> None:
        self.secrets: defaultdict[str, KnownSecrets] = defaultdict(KnownSecrets)
        """Upstream → the resolved secrets of its entry."""
        self._entries: dict[str, UpstreamSystem] = dict(entries)
        """The systems of the configuration, and the endpoints of tools."""
        self._lifecycle = granted.specs.lifecycle
        self._base = granted.specs.base
        self._granted = granted
        self._sessions: dict[str, dict[str, UpstreamSession]] = {}
        self._ending: set[UpstreamSession] = set()
        """Sessions for no further calls, closed after their last one."""
        self._in_process: dict[str, dict[str, tuple[Adapter, Connection]]] = {}
        """Upstream → credential → an adapter that runs in this process, and its open connection."""
        self._fitting: dict[str, Adapter] = {}
        """Upstream → the adapter of its kind, if that accepts its target."""
        self._granted_states: dict[str, tuple[PluginRecord, PluginCondition, PluginCandidate]] = {}
        """Upstream → the state of its plugin when it was last found to have all required grants."""
        self._are_closed = False
        """Whether the host is closing: no further connection is opened."""
        self._base.signals.rights.subscribe(self._close_revoked)

    def session(self, entry: UpstreamSystem, context: CallContext | None = None) -> UpstreamSession:
        """The session for a caller: the one with the credentials that apply to it.

        Raises:
            UpstreamError: there are too many sessions (UPSTREAM_ERROR).
        """
        credential = credential_of(entry, context)
        sessions = self._sessions.setdefault(entry.name, {})
        if (session := sessions.get(credential)) is None:
            if sum(one.state != "idle" for one in list(sessions.values())) >= MAX_SESSIONS:
                raise UpstreamError(
                    f"{entry.name} has {MAX_SESSIONS} connections already", outcome="none", retryable=True
                )

            async def connect() -> Connection:
                return await self._open(entry, credential, await self.adapter(entry))

            is_listed = not isinstance(entry, ToolEndpoint)
            opened = UpstreamSession(entry.name, connect, entry.config.close_after_ms / 1000, is_listed=is_listed)
            session = sessions.setdefault(credential, opened)
        return session

    def check_endpoint(self, entry: ToolEndpoint) -> None:
        """Return if a tool's plugin may connect to its endpoint.

        Raises:
            PolicyDenied: it may not (POLICY_DENIED).
        """
        from tavern_core.contract.guards.addresses import read_url, target_flaw

        record, url = self._lifecycle.records[entry.plugin], entry.config.url or ""
        scope = entry.network(record, self._granted.rights(record))
        if flaw := target_flaw(scope, read_url(url)):
            line = f"permissions: {{capabilities: [{{name: network, scope: ['{origin_entry(url)}']}}]}}"
            raise PolicyDenied(
                f"{entry.name} may not connect to {origin_entry(url)}: {flaw}",
                hint=f"write into plugin.yaml of {entry.plugin}: {line}; then tavern plugins review {entry.plugin}",
                missing=["network"],
                side="plugin",
            )

    def _register(self, entry: UpstreamSystem) -> None:
        """Register an endpoint that is called. Runs on the host's loop."""
        if isinstance(entry, ToolEndpoint):
            if entry.name not in self._entries:
                self._close_unused()
            self._entries[entry.name] = entry

    def _close_unused(self) -> None:
        """Close unused connections to endpoints, except for `MAX_UNUSED`, and forget those endpoints."""
        unused = sorted(
            (since, name, key)
            for name, sessions in list(self._sessions.items())
            if isinstance(self._entries.get(name), ToolEndpoint)
            for key, session in list(sessions.items())
            if (since := session.unused_since) is not None
        )
        closed = []
        for _, name, key in unused[:-MAX_UNUSED]:
            closed.append(self._sessions[name].pop(key))
            if not self._sessions[name]:
                for table in (self._sessions, self._entries, self._granted_states, self._fitting, self.secrets):
                    table.pop(name, None)
        if closed:
            asyncio.run_coroutine_threadsafe(_close_all(closed), self._base.portal.loop())

    def state(self, entry: UpstreamSystem) -> ConnectionState:
        """The state of the connection for calls of the host itself."""
        return "open" if "" in self._in_process.get(entry.name, ()) else self.session(entry).state

    def was_used(self, entry: UpstreamSystem) -> bool:
        """Whether this process has connected to it, or tried to."""
        sessions = self._sessions.get(entry.name, {})
        return entry.name in self._in_process or any(session.was_used for session in list(sessions.values()))

    async def use(
        self, entry: UpstreamSystem, context: CallContext | None, work: Callable[[Connection], Awaitable[T]]
    ) -> T:
        """Do some work with the connection of a caller.

        An adapter that runs in this process (`in_process`) works on the caller's own loop; all others on the host's.

        Raises:
            CallError: the error of the upstream, or why it cannot be used.
        """
        self._check_granted(entry)
        local = self._in_process.get(entry.name)
        if local is not None and (opened := local.get(credential_of(entry, context))) is not None:
            opener, connection = opened
            if opener is self._lifecycle.tables.contributions.get("adapters", entry.config.kind):
                return await work(connection)
        adapter = await self.adapter(entry)
        if getattr(adapter, "in_process", False):
            return await work(await self._local(entry, adapter, credential_of(entry, context)))

        async def used() -> T:  # on the host's loop, so that the session cannot be closed before it is used
            self._register(entry)
            return await self.session(entry, context).use(work)

        return await self.on_loop(used())

    async def ask(
        self,
        entry: UpstreamSystem,
        work: Callable[[Connection], Awaitable[T]],
        seconds: float,
        context: CallContext | None = None,
    ) -> T:
        """Send an upstream a request that is not a call; any exception of its adapter becomes an error of the upstream.

        Raises:
            CallError: as `use`; CallTimeout: it took too long (TIMEOUT).
        """

        async def timed(connection: Connection) -> T:
            began = time.monotonic()
            try:
                answer = await wait_bounded(work(connection), seconds)
                self.session(entry).note_answer(began)  # even if no session is used
                return answer
            except TimeLimit:
                text = f"{entry.name} did not answer within {seconds:g} s"
                raise CallTimeout(text, outcome="none", retryable=True) from None
            except (TavernError, asyncio.CancelledError):
                raise
            except BaseException as error:
                raise _failed(entry, error) from error

        with self.errors_masked(entry):
            return await self.use(entry, context, timed)

    @contextmanager
    def errors_masked(self, entry: UpstreamSystem, outcome: Outcome = "none") -> Iterator[None]:
        """Remove the host's secrets and the adapter's own from errors, because an upstream may repeat them.

        Args:
            outcome: for an error of foreign code that contains a secret, which becomes an UpstreamError.
        """
        try:
            yield
        except TavernError as error:
            secrets = self._secrets_of(entry)
            mask = secret_redactor(secrets)
            error.message, error.hint = mask(error.message), mask(error.hint)
            error.args = (error.message,)
            error.__notes__ = [mask(note) for note in getattr(error, "__notes__", ())]
            error.details = {
                key: redact_values(value, secrets) if isinstance(value, str | dict | list) else value
                for key, value in error.details.items()
            }
            raise
        except Exception as error:
            text = with_type(error)
            if (masked := secret_redactor(self._secrets_of(entry))(text)) != text:
                raise UpstreamError(f"{entry.name} failed: {masked}", outcome=outcome) from None
            raise

    def _secrets_of(self, entry: UpstreamSystem) -> frozenset[str]:
        return self._base.known_secrets.values | self.secrets[entry.name].renewed

    async def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in a task of the host's loop, from any loop; cancelling the caller cancels the work."""
        try:
            loop = self._base.portal.loop()
        except UsageError:  # the host is closed
            work.close()
            raise
        return await LoopTask(work, loop).answer()

    async def log_in(self, entry: UpstreamSystem, show: Callable[[str], None]) -> None:
        """Let a person log in, if the kind supports that; open connections are closed, so that new ones use it."""
        self._check_granted(entry)
        adapter = await self.adapter(entry)
        if isinstance(adapter, LogsIn):
            with self.errors_masked(entry):
                await self.on_loop(adapter.log_in(self._facility(entry, "", adapter), show))
            await self.close(entry.name)

    async def close(self, *names: str) -> None:
        """Close the connections to these upstreams; without names: to all, permanently, after their calls."""
        self._are_closed = self._are_closed or not names
        chosen = names or tuple({*self._sessions, *self._in_process})
        sessions = [s for name in chosen for s in self._sessions.pop(name, {}).values()]
        if not names:
            sessions += self._ending
        if sessions:
            await self.on_loop(_close_all(sessions) if names else self._close_all_after_calls(sessions))
        await self._close_in_process(*chosen)

    async def _close_in_process(self, *names: str) -> None:
        for connection in [each for name in names for _, each in self._in_process.pop(name, {}).values()]:
            await _without_error(connection)

    async def _close_after_calls(self, name: str) -> None:
        """Use the connections to an upstream for no further calls; close them after the running ones, within `limits.drainMs`."""
        sessions = list(self._sessions.pop(name, {}).values())
        self._ending.update(sessions)
        await self._close_in_process(name)
        await self._close_all_after_calls(sessions)
        self._ending.difference_update(sessions)

    async def _close_all_after_calls(self, sessions: Sequence[UpstreamSession]) -> None:
        within_s = self._base.config.limits.drain_ms / 1000
        await asyncio.gather(*(session.close_after_calls(within_s) for session in sessions))

    async def adapter(self, entry: UpstreamSystem) -> Adapter:
        """The adapter for an upstream's kind, after activating its plugin.

        Raises:
            UpstreamError: there is none, or it does not accept the entry's target (UPSTREAM_ERROR).
        """
        kind, contributions = entry.config.kind, self._lifecycle.tables.contributions
        if (found := contributions.get("adapters", kind)) is None:
            await self._activate(entry)
            found = contributions.get("adapters", kind)
        if found is None:
            raise self._no_adapter(entry)
        adapter: Adapter = found
        before = self._fitting.get(entry.name)
        if before is not adapter:
            self._check_target(entry, adapter)
            self._fitting[entry.name] = adapter
            if before is not None:  # its plugin was restarted
                await self.close(entry.name)
        return adapter

    def flaw(self, entry: UpstreamSystem) -> UpstreamError | None:
        """Why the entry cannot be used as written, as far as that is known before its adapter's plugin is activated."""
        adapter = self._lifecycle.tables.contributions.get("adapters", entry.config.kind)
        if adapter is None:
            return None if entry.config.kind in self._declared_kinds() else self._no_adapter(entry)
        try:
            self._check_target(entry, adapter)
        except UpstreamError as flaw:
            return flaw
        return None

    def _declared_kinds(self) -> set[str]:
        records = self._lifecycle.records.values()
        return {kind for record in records for kind in record.candidate.facts.declared.get("adapters", ())}

    def _no_adapter(self, entry: UpstreamSystem) -> UpstreamError:
        kind = entry.config.kind
        for record in list(self._lifecycle.records.values()):
            if kind in record.candidate.facts.declared.get("adapters", ()):
                text = f"the adapter of kind {kind!r} is that of plugin {record.name}, which is {record.state}"
                return self._misconfigured(
                    entry, ".kind", f"{text}: {record.reason}" if record.reason else text, record.fix
                )
        known = {*self._lifecycle.tables.contributions.all("adapters"), *self._declared_kinds()}
        hint = did_you_mean(kind, known) or f"kinds: {', '.join(sorted(known))}"
        return self._misconfigured(entry, ".kind", f"there is no adapter of kind {kind!r}", hint)

    def _check_target(self, entry: UpstreamSystem, adapter: Adapter) -> None:
        """Raise UpstreamError if the adapter does not accept the entry's target (UPSTREAM_ERROR)."""
        named = next((key for key in _TARGETS if getattr(entry.config, key) is not None), "")
        try:
            targets = frozenset(adapter.targets)
        except Exception as error:
            raise _failed(entry, error) from error
        if targets and named not in targets:
            takes = " or ".join(f"`{target}`" for target in sorted(map(str, targets)))
            text = f"an upstream of kind {entry.config.kind} is reached by {takes}"
            raise self._misconfigured(entry, "", text, f"write {takes} in tavern.yaml")

    def _misconfigured(self, entry: UpstreamSystem, key: str, text: str, hint: str) -> UpstreamError:
        """The error of an entry, with its location."""
        path = f"upstreams.{entry.name}{key}"
        file, _, line = self._base.loaded.origins.get(f"upstreams.{entry.name}.kind", "").rpartition(":")
        where = (
            (Finding(ConfigInvalid.code, text, hint, Location(file, int(line), 1, path)),) if line.isdecimal() else ()
        )
        return UpstreamError(f"{path}: {text}", hint=hint, outcome="none", findings=where, code=ConfigInvalid.code)

    def missing(self, entry: UpstreamSystem) -> tuple[str, ...]:
        """The permissions that the upstream lacks; all required ones if its plugin is not usable."""
        record = self._lifecycle.records.get(entry.plugin)
        if record is None or not record.usable or not entry.is_plugin(record.candidate):
            return entry.permissions or ("?",)
        return tuple(permission for permission in entry.permissions if not record.may(permission))

    def _check_granted(self, entry: UpstreamSystem) -> None:
        """Raise PolicyDenied if the upstream is disabled, or a required grant is missing (POLICY_DENIED)."""
        record = self._lifecycle.records.get(entry.plugin)
        now = None if record is None else (record, record.condition, record.candidate)
        if now is not None and self._granted_states.get(entry.name) == now:
            return
        if record is not None and not record.usable and record.state != "pending_consent":
            raise PolicyDenied(f"{entry.name} is not used: {record.reason or record.state}", hint=record.fix)
        if missing := self.missing(entry):
            if (flaw := self.flaw(entry)) is not None:  # a grant would not help
                raise flaw
            raise PolicyDenied(
                f"{entry.name} is not used: {', '.join(missing)} was not granted to it",
                hint=f"tavern plugins review {entry.plugin}; then tavern plugins grant {entry.plugin}",
                missing=list(missing),
            )
        if now is not None:
            self._granted_states[entry.name] = now

    def _close_revoked(self) -> None:
        """After a change of rights, close the connections to upstreams that may no longer be used, after their calls."""
        if self._are_closed:  # the host is closing, and with it these plugins: no connection is open any more
            return
        for name in {*self._sessions, *self._in_process}:
            if (entry := self._entries.get(name)) is not None and self.missing(entry):
                asyncio.run_coroutine_threadsafe(self._close_after_calls(name), self._base.portal.loop())

    async def _activate(self, entry: UpstreamSystem) -> None:
        for record in list(self._lifecycle.records.values()):
            declared = record.candidate.facts.declared.get("adapters", ())
            may_start = record.usable or self._lifecycle.is_changing(record.name)  # calls wait while it is reloaded
            if not record.active and may_start and entry.config.kind in declared:
                try:
                    await self._lifecycle.activate(record.name)
                except PluginError as error:
                    text = f"{entry.name} cannot be used: {error.message}"
                    raise UpstreamError(text, hint=error.hint, outcome="none") from error

    def _facility(self, entry: UpstreamSystem, credential: str, adapter: Adapter) -> UpstreamFacility:
        with _settings_read():
            return UpstreamFacility(entry, adapter.settings, credential, self._granted, self.secrets[entry.name])

    async def _local(self, entry: UpstreamSystem, adapter: Adapter, credential: str) -> Connection:
        cached = self._in_process.get(entry.name, {}).get(credential)
        if cached is not None and cached[0] is not adapter:  # opened by code that has been replaced
            await self.close(entry.name)
            cached = None
        if cached is None:
            try:
                opened = await self._open(entry, credential, adapter)
            except (TavernError, asyncio.CancelledError):
                raise
            except BaseException as error:
                raise _failed(entry, error) from error
            cached = self._in_process.setdefault(entry.name, {}).setdefault(credential, (adapter, opened))
            if cached[1] is not opened:  # another first call was faster
                await _without_error(opened)
        return cached[1]

    async def _open(self, entry: UpstreamSystem, credential: str, adapter: Adapter) -> Connection:
        closed = ConnectionLost(f"{entry.name} is not connected to: the host is being closed", outcome="none")
        if self._are_closed:
            raise closed
        with self.errors_masked(entry), _settings_read():
            connection = await adapter.connect(self._facility(entry, credential, adapter))
        if lacking := [name for name in _METHODS if not callable(getattr(connection, name, None))]:
            raise _failed(entry, f"what it opened has no method {lacking[0]}")
        if self._are_closed:  # in the meantime
            await _without_error(connection)
            raise closed
        return connection


def credential_of(entry: UpstreamSystem, context: CallContext | None) -> str:
    """The key of `credentials` that applies to a caller; empty: the credentials of the entry itself."""
    if isinstance(entry, ToolEndpoint):
        return entry.fingerprint  # a factory may give each caller another header for its key
    known = entry.config.credentials
    if not known or context is None or context.is_host:
        return ""
    return next((key for key in own_keys(context) if key in known), "*" if "*" in known else "")


@contextmanager
def _settings_read() -> Iterator[None]:
    """Turns errors in the settings of an upstream, such as its certificate, into errors of the upstream."""
    try:
        yield
    except CallError:
        raise
    except TavernError as error:
        raise UpstreamError(error.message, hint=error.hint, outcome="none", code=error.code) from error


def _failed(entry: UpstreamSystem, why: BaseException | str) -> UpstreamError:
    text = with_type(why) if isinstance(why, BaseException) else why
    return UpstreamError(f"{entry.name} cannot be used: its adapter failed: {text}", outcome="none")


async def _without_error(connection: Connection) -> None:
    """Close a connection that is no longer needed, ignoring any exception of its adapter."""
    with suppress(Exception, SystemExit):
        await connection.close()


async def _close_all(sessions: list[UpstreamSession]) -> None:
    await asyncio.gather(*(session.close() for session in sessions))


def without_secrets(answer: Any, secrets: frozenset[str]) -> Any:
    """An answer of an upstream, without these secrets."""
    if isinstance(answer, ToolResult):
        return redact_result(answer, secrets)
    return redact_values(answer, secrets) if isinstance(answer, str | dict | list) else answer
