"""Whether a failed call may be made again, and when.

    outcome none                                 nothing happened: retry a transient failure
    outcome unknown, the tool is idempotent      calling twice has the effect of once: retry a transient failure
    outcome unknown, its upstream has the key    the upstream makes it once: retry a transient failure
    outcome unknown, any other tool              never retry
    outcome done                                 never retry

Transient failures are those marked `retryable` and failures of an upstream: a lost connection, an error, a time limit.
Delays grow with each attempt and are random between zero and their bound ("full jitter"); `retry_after_ms` is
the minimum.
"""

from __future__ import annotations

import random
from typing import Final

from tavern_core.errors import CallError
from tavern_core.model.exponential_delay import exponential_delay
from tavern_core.model.result import ToolError
from tavern_core.model.tool import ToolSpec

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
LONGEST_WAIT_S: Final = 300.0
"""The longest wait before another attempt of a node or a call without a deadline, whatever an upstream requests."""
_PASSING: Final = frozenset({"UPSTREAM_ERROR", "CONNECTION_LOST", "TIMEOUT"})
_OURS: Final = frozenset(
    {"BUDGET_EXCEEDED", "CIRCUIT_OPEN", "POLICY_DENIED", "APPROVAL_REQUIRED", "IDEMPOTENCY_CONFLICT"}
)
"""Refusals by the host itself: another attempt would be refused again."""


def is_harmless_again(error: CallError | ToolError, tool: ToolSpec, *, has_key: bool = False) -> bool:
    """Whether another attempt cannot repeat an effect.

    Args:
        has_key: whether the call has an idempotency key, which another attempt would also use.
    """
    return error.outcome == "none" or (error.outcome == "unknown" and tool.may_be_repeated(has_key=has_key))


def may_pass(error: CallError | ToolError) -> bool:
    """Whether the same call may succeed later."""
    kind = error.kind if isinstance(error, ToolError) else error.code
    return kind not in _OURS and (error.retryable or kind in _PASSING)


def pause_before(attempt: int, error: CallError) -> float:
    """Seconds to wait before attempt 2, 3 and so on."""
    drawn = random.uniform(0, exponential_delay(attempt - 1, FIRST_PAUSE_S, LONGEST_PAUSE_S))
    return max(drawn, (error.retry_after_ms or 0) / 1000)
