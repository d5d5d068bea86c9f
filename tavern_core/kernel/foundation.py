"""The objects that every part of one host uses. Complete before the first part is built, and passed to each as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.config.configuration import LoadedConfig, prepare_home
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.execution.sync_async_drivers import InlineMode, LoopMode
from tavern_core.kernel.execution.threads import StuckThreads, ThreadPool
from tavern_core.kernel.log.event_log import EventLog
from tavern_core.kernel.log.log_files import audit_log
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.kernel.settings.secret_masking import KnownSecrets
from tavern_core.kernel.signal import Signal
from tavern_core.model.config import HostConfig


@dataclass(frozen=True, slots=True)
class Signals:
    """The signals between the parts of a host."""

    tools: Signal
    """Cached results about tools are stale: registry, hooks, lists, grants or listeners have changed."""
    rights: Signal
    """Objects passed to plugins are stale: services, grants or states have changed."""
    lookup: Signal
    """A listing of tools is about to start: tools read from files are updated, and upstreams are listed."""
    workflow_lookup: Signal
    """A name may be that of a workflow: only tools read from files are updated."""
    answers: Signal
    """Cached answers of tools are stale: a setting or the code of a plugin has changed."""


class Foundation:
    """Configuration, records of events, and the ways to run code."""

    def __init__(self, loaded: LoadedConfig, *, version: str, is_safe_mode: bool) -> None:
        """Prepare the state folder and create the parts that all others need; no plugin code runs.

        Raises:
            StateDamaged: the state folder cannot be used (STATE_DAMAGED).
        """
        config = loaded.config
        prepare_home(loaded)
        self.loaded: Final = loaded
        self.version: Final = version
        self.is_safe_mode: Final = is_safe_mode
        self.known_secrets: Final = KnownSecrets()
        self.diagnostics: Final = Diagnostics(self.known_secrets)
        for finding in loaded.findings:
            self.diagnostics.add_finding(finding, severity="warning")
        self.known_secrets.add(*(value for value in config.secrets.values() if isinstance(value, str)))
        self.signals: Final = Signals(Signal(), Signal(), Signal(), Signal(), Signal())
        audit = config.audit
        self.log: Final = _event_log(loaded, self.diagnostics, self.known_secrets) if audit.enabled else None
        self.recorder: Final = Recorder(
            self.log, self.diagnostics, self.signals.tools, required=audit.required, arguments=audit.arguments
        )
        self.portal: Final = Portal()
        stuck, threads = StuckThreads(self.diagnostics, self.recorder), config.limits.threads
        self.tool_threads: Final = ThreadPool(threads, "tavern-tool", stuck.report)
        self.hook_threads: Final = ThreadPool(threads, "tavern-hook", stuck.report)
        self.mode: Final = LoopMode(self.tool_threads, self.hook_threads)
        """Runs code for callers in an event loop."""
        self.inline: Final = InlineMode(self.hook_threads, self.portal)
        """Runs code for sync callers."""

    @property
    def config(self) -> HostConfig:
        """The host's configuration."""
        return self.loaded.config

    @property
    def home(self) -> Path:
        """The state folder."""
        return self.loaded.home

    @property
    def unpacked(self) -> Path:
        """The folder in which zipped plugins are unpacked."""
        return self.home / "cache" / "unpacked"

    @property
    def file(self) -> str:
        """The name of the configuration in messages."""
        return self.loaded.project_file.name if self.loaded.project_file else "tavern.yaml"

    def become_copy(self, owner: int) -> None:
        """In a forked child: it has no threads, and all else belongs to process `owner`, which opened the host."""
        self.portal.become_copy(owner)
        self.tool_threads.become_copy(owner)
        self.hook_threads.become_copy(owner)

    def release(self) -> None:
        """End threads."""
        self.portal.close()
        self.tool_threads.close()
        self.hook_threads.close()


def _event_log(loaded: LoadedConfig, diagnostics: Diagnostics, known: KnownSecrets) -> EventLog:
    audit = loaded.config.audit
    return EventLog(
        audit_log(loaded.home),
        fsync=audit.fsync,
        max_bytes=audit.max_bytes,
        known_secrets=known,
        on_finding=diagnostics.add_finding,
    )
