"""What the host noticed about plugins while a command ran, told in one line: it is seldom what the command is about."""

from __future__ import annotations

import logging


class Troubles:
    """Gathers the log records of diagnostics about plugins."""

    def __init__(self) -> None:
        self.are_gathered = False
        """False where somebody wants to read every one of them."""
        self._plugins: dict[str, None] = {}
        self._passing: list[str] = []

    def takes(self, record: logging.LogRecord) -> bool:
        """True when a record is kept for the line instead of being shown."""
        plugin = getattr(record, "plugin", "")
        if not self.are_gathered or not plugin or not hasattr(record, "is_lasting"):
            return False
        self._plugins[plugin] = None
        if not record.is_lasting:
            self._passing.append(f"{record.levelname.lower()}: {record.getMessage()}")
        return True

    def line(self, has_failed: bool) -> str:
        """One line about all of them, empty when there is nothing to tell.

        What only happened in this run no other command can show: it is told itself when it is the only thing, and
        ``-v`` shows it otherwise.

        Args:
            has_failed: the command has told an error, which is most likely that only thing.
        """
        names = list(self._plugins)
        if not names:
            return ""
        if len(names) == len(self._passing) == 1:
            return "" if has_failed else self._passing[0]
        who = f"plugin {names[0]} has" if len(names) == 1 else f"{len(names)} plugins have"
        return f"warning: {who} problems: tavern plugins doctor" + (", or this command with -v" if self._passing else "")
