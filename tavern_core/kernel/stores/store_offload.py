"""Asking a store from the path of a call: at once, or in a worker thread where it is slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tavern_core.contract.stores import RecordStore
from tavern_core.errors import InternalError, StateDamaged
from tavern_core.kernel.execution.modes import Mode


async def ask(mode: Mode, records: RecordStore, method: Callable[..., Any], *args: Any) -> Any:
    """What a store says: at once where it is quick, else from a worker thread.

    Raises:
        InternalError: the store cannot be used; the call had no effect yet (INTERNAL).
    """
    if records.is_quick:
        return at_once(method, *args)
    try:
        return await mode.guarded(method, *args, seconds=None)
    except StateDamaged as error:
        raise _unusable(error) from error


def at_once(method: Callable[..., Any], *args: Any) -> Any:
    """`ask`, for a store that is quick."""
    try:
        return method(*args)
    except StateDamaged as error:
        raise _unusable(error) from error


def _unusable(error: StateDamaged) -> InternalError:
    return InternalError(f"the state of this host cannot be used: {error.message}", hint=error.hint)
