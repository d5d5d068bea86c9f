"""Diagnostics about plugins during a command, in one line, because the command is rarely about them."""

from __future__ import annotations

import logging


class PluginNotices:
    """Collects the log records of diagnostics about plugins."""

    def __init__(self) -> None:
        self.are_gathered = False
        """False if all of them are wanted."""
        self._lasting: dict[str, None] = {}
        self._passing: list[str] = []

    def takes(self, record: logging.LogRecord) -> bool:
        """True if a record is collected for the line instead of being printed."""
        plugin = getattr(record, "plugin", "")
        if not self.are_gathered or not plugin or not hasattr(record, "is_lasting"):
            return False
        if record.is_lasting:
            self._lasting[plugin] = None
        else:
            self._passing.append(f"{record.levelname.lower()}: {record.getMessage()}")
        return True

    def line(self, has_failed: bool) -> str:
        """A line about problems that `tavern plugins doctor` shows again, and one about events of this run only.

        No other command can show the latter: a single message is printed itself, and ``-v`` prints more of them.
        Empty if there is nothing to report.

        Args:
            has_failed: the command has printed an error, which is most likely that one message.
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
