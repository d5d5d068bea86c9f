"""Findings of the host that a person should know. Never raised, never unbounded."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tavern_core.errors import Finding, Severity, sayable
from tavern_core.model.plugin_status import Diagnostic
from tavern_core.schema.secret_scanning import redact_sentence

if TYPE_CHECKING:
    from tavern_core.kernel.settings.secret_masking import KnownSecrets

log = logging.getLogger("tavern.diagnostics")
_MOST = 1000


class Diagnostics:
    """The newest thousand distinct diagnostics; a repeated one is stored once.

    Args:
        known_secrets: the secrets that were resolved so far; no diagnostic shows them.
    """

    def __init__(self, known_secrets: KnownSecrets | None = None) -> None:
        self._known_secrets = known_secrets
        self._lock = threading.Lock()
        self._diagnostics: OrderedDict[tuple[str, str, str], Diagnostic] = OrderedDict()
        self._found: set[tuple[str, str, str]] = set()
        self._checked: set[tuple[str, str, str]] = set()

    def add(
        self,
        code: str,
        message: str,
        *,
        plugin: str = "",
        hint: str = "",
        severity: Severity = "warning",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Store a diagnostic and log it."""
        self.put(Diagnostic(code, message, plugin, hint, severity, details or {}))

    def add_finding(self, finding: Finding, *, plugin: str = "", severity: Severity | None = None) -> None:
        """Store a problem of a file.

        Args:
            severity: None: the finding's own.
        """
        severity = severity or finding.severity
        self.add(finding.code, finding.located, plugin=plugin, hint=finding.hint, severity=severity)

    def of_damage(self, lost: str, hint: str = "check what was running") -> Callable[[Path, Path], None]:
        """Return a callback that reports a corrupt store: it gets the old name, and that of the renamed file or copy.

        Args:
            lost: the content of the store.
        """

        def damaged(path: Path, aside: Path) -> None:
            text = f"{path} was corrupt and was renamed to {aside.name}; {lost}"
            if path.name.endswith("-wal"):
                text = f"{path} was corrupt and was copied to {aside.name}; changes that were stored last are lost"
            self.add("STATE_DAMAGED", text, hint=hint, severity="error")

        return damaged

    def put(self, diagnostic: Diagnostic, *, found: bool = False, judged: bool = False, quiet: bool = False) -> None:
        """Store a diagnostic and log it.

        Args:
            quiet: only on request: in the log at level DEBUG, whatever its severity.
            found: it is about the files on disk, and stays until the next search.
            judged: it is part of a check of all plugins; the next check reports it again.
        """
        diagnostic = self._without_secrets(diagnostic)
        key = _key(diagnostic)
        with self._lock:
            if found:
                self._found.add(key)
            if key in self._diagnostics:
                return
            self._diagnostics[key] = diagnostic
            if len(self._diagnostics) > _MOST:
                oldest, _ = self._diagnostics.popitem(last=False)
                self._found.discard(oldest)
        level = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}[diagnostic.severity]
        extra = {"plugin": diagnostic.plugin, "is_lasting": found or judged}
        log.log(
            logging.DEBUG if quiet else level,
            "%s: %s%s%s",
            diagnostic.code,
            _owner(diagnostic),
            diagnostic.message,
            f" ({diagnostic.hint})" if diagnostic.hint and diagnostic.hint not in diagnostic.message else "",
            extra=extra,
        )

    def replace_checked(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Store the findings of the latest check of all plugins in place of those of the previous one."""
        fresh = {_key(d): d for d in map(self._without_secrets, diagnostics)}
        with self._lock:
            for key in self._checked - fresh.keys():
                self._diagnostics.pop(key, None)
            self._checked = set(fresh)
        for diagnostic in fresh.values():
            self.put(diagnostic, judged=True)

    def _without_secrets(self, diagnostic: Diagnostic) -> Diagnostic:
        """Remove secrets. A diagnostic may quote anything: an exception of a plugin, a line of a file."""
        known = () if self._known_secrets is None else tuple(self._known_secrets.values)
        message, hint = (
            sayable(redact_sentence(diagnostic.message, known)),
            sayable(redact_sentence(diagnostic.hint, known)),
        )
        if (message, hint) == (diagnostic.message, diagnostic.hint):
            return diagnostic
        return replace(diagnostic, message=message, hint=hint)

    def forget(self, plugin: str) -> None:
        """Drop the diagnostics of a plugin, e.g. before it is activated again; those about its files stay."""
        with self._lock:
            stays = self._found | self._checked
            for key in [k for k, d in self._diagnostics.items() if d.plugin == plugin and k not in stays]:
                del self._diagnostics[key]

    def withdraw(self, code: str, **details: Any) -> None:
        """Drop the diagnostics of a code with these details: they no longer apply."""
        with self._lock:
            for key in [
                k for k, d in self._diagnostics.items() if d.code == code and details.items() <= d.details.items()
            ]:
                del self._diagnostics[key]

    def has(self, code: str, **details: Any) -> bool:
        """Whether there is a diagnostic of a code with these details."""
        with self._lock:
            return any(d.code == code and details.items() <= d.details.items() for d in self._diagnostics.values())

    def forget_found(self) -> None:
        """Drop findings about files on disk, before the next search."""
        with self._lock:
            for key in self._found:
                self._diagnostics.pop(key, None)
            self._found.clear()

    def all(self) -> tuple[Diagnostic, ...]:
        """Oldest first."""
        with self._lock:
            return tuple(self._diagnostics.values())


def _key(diagnostic: Diagnostic) -> tuple[str, str, str]:
    return diagnostic.code, diagnostic.plugin, diagnostic.message


def _owner(diagnostic: Diagnostic) -> str:
    """The owner of a diagnostic, as a prefix for a message that does not begin with it."""
    prefix = f"{diagnostic.plugin}: " if diagnostic.plugin else ""
    return "" if diagnostic.message.startswith(prefix) else prefix
