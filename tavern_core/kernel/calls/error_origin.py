"""Where the error of a tool came from: for its author, in the log at level DEBUG, never in a result.

Frames and source lines only. What the values were may be secret, and the message in the result was rid of secrets already.
"""

from __future__ import annotations

import logging
import traceback
from typing import Final

from tavern_core.model.result import ToolResult

log = logging.getLogger("tavern.calls")
_MOST_FRAMES: Final = 30
"""The innermost ones; an endless recursion has a thousand."""


def log_origin(result: ToolResult, error: BaseException) -> None:
    """Log the traceback of `error`, which `result` is about."""
    if result.error is not None and log.isEnabledFor(logging.DEBUG):
        frames = traceback.format_tb(error.__traceback__, limit=-_MOST_FRAMES)
        log.debug("%s\nTraceback (most recent call last):\n%s", result.error.message, "".join(frames).rstrip())
