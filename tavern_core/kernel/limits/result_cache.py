"""Cached answers of tools that only read. In memory, separate for each caller, bounded in bytes."""

from __future__ import annotations

import asyncio
import marshal
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from tavern_core.model.call import CallContext
from tavern_core.model.result import CallTrace, ToolResult, success
from tavern_core.schema.bounded_json_copying import SCALARS

OF_ITS_CALLER: Final = ("CANCELLED", "TIMEOUT", "BUDGET_EXCEEDED")
"""Errors that are caused by the caller of a call: other callers do not get them."""
CACHED: Final = "cached"
"""The member of `meta` in an answer from the cache."""
_MOST_ARGUMENTS: Final = 64_000
"""Maximum bytes of the arguments and the caller's `config` of a cached call; with more, each call is made."""
_ROW: Final = 500
"""Approximate bytes of an entry besides its answer."""
Key = tuple[Any, ...]
PendingResult = Future[ToolResult | bool]
"""Done when a call has ended whose answer is cached: with its failure; False if its answer may be in the cache; True if
another call has to make it."""


class ResultCache:
    """The cached answers of one host.

    Args:
        most_bytes: of all entries; the least recently used ones are removed first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._clock = time.monotonic
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, tuple[float, object, bytes]] = OrderedDict()
        self._made_now: dict[Key, tuple[object, object, PendingResult]] = {}
        """Key → (the tool that makes the answer, the event loop, the newest of the calls)."""
        self.bytes = 0
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def key(self, tool: str, values: Mapping[str, Any], context: CallContext) -> Key | None:
        """The key of a call: tool, arguments, and every property of the caller that an answer may depend on."""
        try:
            is_flat = SCALARS.issuperset(map(type, values.values()))
            arguments = marshal.dumps(sorted(values.items()) if is_flat else _in_order(values), 2)
            config = marshal.dumps(_in_order(context.config), 2) if context.config else b""
        except (ValueError, TypeError):  # names of different types have no order
            return None
        if len(arguments) + len(config) > _MOST_ARGUMENTS:
            return None
        who = context.principal, context.is_host, context.user_id, context.profile, context.permissions, context.roles
        where = context.workspace_dir, context.agent_dir, context.agent_id, context.session_key
        more = context.message_channel, context.agent_account_id, context.sandboxed, config
        return (tool, arguments, *who, *where, *more, marshal.dumps(dict(context.scopes), 2) if context.scopes else b"")

    def get(self, key: Key, made_by: object, trace: CallTrace) -> ToolResult | None:
        """The cached answer, if `made_by` (the tool as it is now) made it and it is still valid."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self.misses += 1
                return None
            until, maker, data = entry
            if until <= self._clock() or (maker is not made_by and maker != made_by):
                self._drop(key)
                self.misses += 1
                return None
            self._entries.move_to_end(key)
            self.hits += 1
        value, content, meta = marshal.loads(data)
        if not content and meta is None:
            return success(value, trace, ("ok", None, (), (), {CACHED: True}, None))
        return ToolResult(True, value, content, meta={**(meta or {}), CACHED: True}, trace=trace)

    def begin(self, key: Key, made_by: object, *, joins: bool) -> tuple[PendingResult, bool]:
        """The call that makes this answer now, and True if it is the caller's own, which must `end` it.

        A call on another event loop is not awaited: that loop may have stopped, or wait for this thread.

        Args:
            joins: whether it may be the call of another caller.
        """
        here = asyncio._get_running_loop()
        with self._lock:
            if joins and (known := self._made_now.get(key)) is not None:
                maker, loop, pending = known
                if loop in (None, here) and (maker is made_by or maker == made_by):
                    return pending, False
            new_pending: PendingResult = Future()
            self._made_now[key] = made_by, here, new_pending
        return new_pending, True

    def end(self, key: Key, pending: PendingResult, made_by: object, result: ToolResult | None, seconds: float) -> None:
        """Cache the outcome of a call that has begun here, and wake the calls that wait for it.

        Args:
            result: None: nothing, so that another call has to make the answer.
        """
        outcome: ToolResult | bool = result is None
        data = None
        if result is not None and result.error is not None:
            outcome = result.error.kind in OF_ITS_CALLER or result
        elif result is not None:
            data = _written(result)
        with self._lock:
            if (known := self._made_now.get(key)) is not None and known[2] is pending:  # neither replaced nor forgotten
                del self._made_now[key]
                if data is not None:
                    self._put(key, made_by, data, seconds)
        pending.set_result(outcome)

    def _put(self, key: Key, made_by: object, data: bytes, seconds: float) -> None:
        """Cache an answer, unless it is larger than an eighth of the cache."""
        size = len(data) + len(key[1]) + _ROW
        if size > self._most // 8:
            return
        self._drop(key)
        self._entries[key] = self._clock() + seconds, made_by, data
        self.bytes += size
        while self.bytes > self._most:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Remove all answers, because something that they depend on has changed."""
        with self._lock:
            self._entries.clear()
            self._made_now.clear()
            self.bytes = 0

    def _drop(self, key: Key) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self.bytes -= len(entry[2]) + len(key[1]) + _ROW


def _written(result: ToolResult) -> bytes | None:
    """A successful answer as it is cached; None if it is not an answer yet, or not plain data."""
    if not result.ok or result.status != "ok":
        return None
    try:
        parts: Any = result.value, tuple(map(dict, result._content)), result._meta
        return marshal.dumps(parts, 2)
    except ValueError:
        return None


def _in_order(value: Any) -> Any:
    """Plain JSON with the members of its objects in the order of their names."""
    if isinstance(value, dict):
        return {name: _in_order(value[name]) for name in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value
