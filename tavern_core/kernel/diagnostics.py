"""What the host noticed and a person should know. Never raised, never unbounded."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

from tavern_core.model.plugin import Diagnostic

log = logging.getLogger("tavern.diagnostics")
_MOST = 1000


class Diagnostics:
    """The newest thousand distinct diagnostics; the same one twice is kept once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, str], Diagnostic] = OrderedDict()

    def add(
        self,
        code: str,
        message: str,
        *,
        plugin: str = "",
        hint: str = "",
        severity: Literal["error", "warning", "info"] = "warning",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep one diagnostic and log it."""
        self.put(Diagnostic(code, message, plugin, hint, severity, details or {}))

    def put(self, diagnostic: Diagnostic) -> None:
        """Keep one diagnostic and log it."""
        key = (diagnostic.code, diagnostic.plugin, diagnostic.message)
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = diagnostic
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        level = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}[diagnostic.severity]
        log.log(level, "%s: %s%s", diagnostic.code, f"{diagnostic.plugin}: " if diagnostic.plugin else "", diagnostic.message)

    def forget(self, plugin: str) -> None:
        """Drop what concerns one plugin, e.g. before it is activated again."""
        with self._lock:
            for key in [k for k, d in self._kept.items() if d.plugin == plugin]:
                del self._kept[key]

    def all(self) -> tuple[Diagnostic, ...]:
        """Oldest first."""
        with self._lock:
            return tuple(self._kept.values())
