"""Applies what other processes decide: grants and refusals in the lock file, disabled plugins, saved settings.

A thread checks the files twice a second, so calls do no work for this. A plugin whose rights another process
revoked loses them here a moment later.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import UsageError
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.plugins.enabled_state import PluginStates

_LOG: Final = logging.getLogger("tavern.plugins")
_LOOK_S: Final = 0.5
_CLOSE_S: Final = 1.0
Stamps = tuple[tuple[int, ...] | None, ...]


class DecisionFiles:
    """The two files of a host; created before either is read, so that no later change is missed."""

    def __init__(self, grants: GrantStore, states: PluginStates) -> None:
        self.grants, self.states = grants, states
        self.first_stamps = self.stamps()

    def stamps(self) -> Stamps:
        """A value that changes with each change of one of the files."""
        return _stamp(self.grants.path), _stamp(self.states.path)


class SettingsFile:
    """The file of saved settings. Created before the host reads the file, so that no later change is missed.

    Args:
        reload: reads the file again, and calls the callbacks of plugins for what has changed.
    """

    def __init__(self, path: Path, reload: Callable[[], object]) -> None:
        self._path = path
        self._reload = reload
        self._stamp = _stamp(path)
        self._reloading: threading.Thread | None = None

    def check(self) -> None:
        """Reload the file if it has changed. A callback that takes long delays only the next reload."""
        if (found := _stamp(self._path)) == self._stamp or (self._reloading and self._reloading.is_alive()):
            return
        reloading = threading.Thread(target=self._reload, name="tavern-settings", daemon=True)
        reloading.start()
        self._reloading, self._stamp = reloading, found


class DecisionWatch:
    """Watches the files while a host is open.

    Args:
        apply: applies the decisions; False: not all of them yet.
    """

    def __init__(
        self,
        decisions: DecisionFiles,
        settings: SettingsFile,
        portal: Portal,
        apply: Callable[[], Coroutine[Any, Any, bool]],
    ) -> None:
        self._decisions = decisions
        self._settings = settings
        self._stamps = decisions.first_stamps
        self._portal = portal
        self._apply = apply
        self._applying: list[Future[bool]] = []
        """Applications that were begun and not checked yet; several if a stopping plugin waits for its calls."""
        self._closing = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._watch, name="tavern-decisions", daemon=True)

    def start(self) -> None:
        """Start watching. Decisions are applied on the running loop: the one on which plugins are activated."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self) -> None:
        """Stop applying the decisions of other processes."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        for applying in self._applying:
            applying.cancel()

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_S):
            try:
                self._check_files()
                self._settings.check()
            except UsageError:
                return  # the host is closed
            except RuntimeError:  # it is being closed, or no thread can be started now
                self._stamps = ()

    def _check_files(self) -> None:
        for done in [applying for applying in self._applying if applying.done()]:
            self._applying.remove(done)
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is not None:
                _LOG.error("decisions about plugins could not be applied", exc_info=error)
            if error is not None or not done.result():
                self._stamps = ()
        if (found := self._decisions.stamps()) != self._stamps:
            self._applying.append(self._begin_applying())
            self._stamps = found

    def _begin_applying(self) -> Future[bool]:
        """Start applying decisions; on the host's own loop if the loop that opened the host has stopped."""
        self._portal.check()
        if self._loop is None or not self._loop.is_running():
            return self._portal.begin(self._apply())
        applying = self._apply()
        try:
            return asyncio.run_coroutine_threadsafe(applying, self._loop)
        except RuntimeError:
            applying.close()
            raise


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
