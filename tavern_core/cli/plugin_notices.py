"""What the host noticed about plugins while a command ran, told in one line: it is seldom what the command is about."""

from __future__ import annotations

import logging


class Troubles:
    """Gathers the log records of diagnostics about plugins."""

    def __init__(self) -> None:
        self.are_gathered = False
        """False where somebody wants to read every one of them."""
        self._lasting: dict[str, None] = {}
        self._passing: list[str] = []

    def takes(self, record: logging.LogRecord) -> bool:
        """True when a record is kept for the line instead of being shown."""
        plugin = getattr(record, "plugin", "")
        if not self.are_gathered or not plugin or not hasattr(record, "is_lasting"):
            return False
        if record.is_lasting:
            self._lasting[plugin] = None
        else:
            self._passing.append(f"{record.levelname.lower()}: {record.getMessage()}")
        return True

    def line(self, has_failed: bool) -> str:
        """A line about what `tavern plugins doctor` shows again, and one about what only happened in this run.

        No other command can show the latter: it is shown itself when it is one message, and ``-v`` shows more of them.
        Empty when there is nothing to tell.

        Args:
            has_failed: the command has shown an error, which is most likely that one message.
        """
        lines = []
        names, passing = list(self._lasting), self._passing
        if names:
            who = f"plugin {names[0]} has" if len(names) == 1 else f"{len(names)} plugins have"
            lines.append(f"warning: {who} problems: tavern plugins doctor")
        if len(passing) > 1:
            lines.append(f"warning: {len(passing)} messages about plugins: this command with -v shows them")
        elif passing and not has_failed:
            lines += passing
        return "\n".join(lines)
