"""Records in Redis, for processes that share no disk (extra ``redis``).

Each method is one round trip; those that read and write are scripts, which Redis runs one at a time. Whether a process is
alive is a key that it renews, so the end or disconnection of a process is detected within `_LIFE_S`; its end on the same
machine at once, because the key says which process it is.

    <prefix>r:<kind>:<key>    hash: owner, state, data, created, expires, version
    <prefix>i:<kind>          sorted set of keys by age; each new key removes a few that have expired
    <prefix>u:<key>           sorted set of uses by time
    <prefix>p:<process>       which process of which machine it is; expires unless renewed
"""

from __future__ import annotations

import builtins
import math
import os
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tavern_core.contract.stores import DAMAGED, Record
from tavern_core.errors import ConfigInvalid, StateDamaged, UsageError

_LIFE_S: Final = 6.0
_RENEW_S: Final = 2.0
_SILENT_S: Final = 2.0
"""Seconds that a server may be silent. With `_RENEW_S` they are less than `_LIFE_S`, so one lost answer makes no
process look dead."""
_PAGE: Final = 500
_PREFIX: Final = "tavern:"
_ADD: Final = """
local old = redis.call('HMGET', KEYS[1], 'owner', 'state', 'data', 'created', 'expires', 'version')
if old[1] and (tonumber(old[5]) == 0 or tonumber(old[5]) > tonumber(ARGV[4])) then return old end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'state', ARGV[2], 'data', ARGV[3], 'created', ARGV[4], 'expires', ARGV[5], 'version', ARGV[6])
if tonumber(ARGV[5]) > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[9]) end
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[7])
for _, key in ipairs(redis.call('ZRANDMEMBER', KEYS[2], 3)) do
    if redis.call('EXISTS', ARGV[8] .. key) == 0 then redis.call('ZREM', KEYS[2], key) end
end
return false
"""
_REPLACE: Final = """
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[4] then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[1], 'data', ARGV[2], 'expires', ARGV[3])
redis.call('HINCRBY', KEYS[1], 'version', 1)
if tonumber(ARGV[3]) > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[5]) else redis.call('PERSIST', KEYS[1]) end
return 1
"""
_TAKE: Final = """
local now, seconds, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[1], '+inf')) do redis.call('ZADD', KEYS[1], ARGV[1], member) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', tostring(now - seconds))
if redis.call('ZCARD', KEYS[1]) >= most then
    local oldest = redis.call('ZRANGE', KEYS[1], -most, -most, 'WITHSCORES')
    return tostring(tonumber(oldest[2]) + seconds - now)
end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
redis.call('PEXPIRE', KEYS[1], math.ceil(seconds * 1000) + 1000)
return '0'
"""


class RedisRecords:
    """A `RecordStore` in Redis.

    Args:
        address: ``redis://host:port/number``.
    """

    is_quick = False

    def __init__(self, address: str) -> None:
        try:
            import redis
        except ImportError as error:
            raise UsageError(
                "state.store names a Redis server, and the package redis is not installed",
                hint="pip install 'tavern-core[redis]'",
            ) from error
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._errors = redis.exceptions.RedisError
        self._is_away = False
        """Whether it did not answer last time."""
        try:
            self._redis: Any = redis.Redis.from_url(
                address,
                decode_responses=True,
                encoding_errors="surrogateescape",
                socket_timeout=_SILENT_S,
                socket_connect_timeout=_SILENT_S,
                retry=Retry(NoBackoff(), 0),  # a repeated command would find what the first one has written
            )
            self._redis.connection_pool.make_connection()  # connects to nothing
        except (ValueError, TypeError) as error:
            raise ConfigInvalid(
                f"state.store: a parameter behind `?` is none of the Redis client, or has a wrong value: {error}",
                hint="for example redis://localhost:6379/0?socket_timeout=1",
            ) from error
        self._add, self._replace, self._take = map(self._redis.register_script, (_ADD, _REPLACE, _TAKE))
        self._number = 0
        self._process = "alive"
        with suppress(OSError):
            self._process = _name_of(os.getpid())
        self._present: set[str] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._renewing: threading.Thread | None = None

    def add(self, record: Record) -> Record | None:
        keys = [_place(record.kind, record.key), f"{_PREFIX}i:{record.kind}"]
        args = [
            record.owner, record.state, record.data, repr(record.created), repr(record.expires), record.version, record.key,
            _place(record.kind, ""), _remaining_ms(record),
        ]  # fmt: skip
        row = self._run(self._add, keys=keys, args=args)
        return None if not row else _record(record.kind, record.key, row)

    def get(self, kind: str, key: str) -> Record | None:
        row = self._run(self._redis.hmget, _place(kind, key), _FIELDS)
        record = _record(kind, key, row) if row[0] is not None else None
        return None if record is None or 0 < record.expires <= time.time() else record

    def replace(self, record: Record) -> bool:
        args = [record.state, record.data, repr(record.expires), str(record.version), _remaining_ms(record)]
        return bool(self._run(self._replace, keys=[_place(record.kind, record.key)], args=args))

    def remove(self, kind: str, key: str) -> bool:
        self._run(self._redis.zrem, f"{_PREFIX}i:{kind}", key)
        return bool(self._run(self._redis.delete, _place(kind, key)))

    def list(
        self, kind: str, *, owner: str | None = None, states: Collection[str] = (), most: int = 100
    ) -> tuple[Record, ...]:
        index, found, at = f"{_PREFIX}i:{kind}", builtins.list[Record](), 0
        while len(found) < most:
            keys = self._run(self._redis.zrevrange, index, at, at + _PAGE - 1)
            if not keys:
                break
            at += len(keys)
            pipe = self._redis.pipeline(transaction=False)
            for key in keys:
                pipe.hmget(_place(kind, key), _FIELDS)
            expired = []
            for key, row in zip(keys, self._run(pipe.execute), strict=True):
                if row[0] is None:
                    expired.append(key)
                    continue
                record = _record(kind, key, row)
                if (owner is None or record.owner == owner) and (not states or record.state in states):
                    found.append(record)
            if expired:
                self._run(self._redis.zrem, index, *expired)
                at -= len(expired)
        return tuple(found[:most])

    def count(self, kind: str, *, owner: str, state: str, since: float) -> int:
        pipe = self._redis.pipeline(transaction=False)
        for key in self._run(self._redis.zrangebyscore, f"{_PREFIX}i:{kind}", f"({since!r}", "+inf"):
            pipe.hmget(_place(kind, key), "owner", "state")
        return int(self._run(pipe.execute).count([owner, state]))

    def take(self, key: str, most: int, seconds: float, now: float) -> float:
        with self._lock:
            self._number += 1
            use = f"{id(self):x}-{threading.get_ident():x}-{self._number}-{now!r}"
        args = [repr(now), repr(seconds), most, use]
        return float(self._run(self._take, keys=[f"{_PREFIX}u:{key}"], args=args))

    def used(self, key: str, most: int, seconds: float, now: float) -> int:
        return int(self._run(self._redis.zcount, f"{_PREFIX}u:{key}", f"({now - seconds!r}", "+inf"))

    def enter(self, process: str) -> None:
        self._renew(process)
        with self._lock:
            self._present.add(process)
            if self._renewing is None:
                self._renewing = threading.Thread(target=self._renew_all, name="tavern-redis", daemon=True)
                self._renewing.start()

    def leave(self, process: str) -> None:
        with self._lock:
            self._present.discard(process)
        if not self._is_away:  # else it expires by itself, without waiting for a server that is silent
            self._run(self._redis.delete, f"{_PREFIX}p:{process}")

    def is_present(self, process: str) -> bool:
        name = self._run(self._redis.get, f"{_PREFIX}p:{process}")
        return name is not None and not _has_ended(name, self._process)

    def close(self) -> None:
        self._closing.set()
        if self._renewing is not None:
            self._renewing.join(timeout=1)
        for process in builtins.list(self._present):
            try:
                self.leave(process)
            except StateDamaged:
                break  # the server is unavailable; the keys expire by themselves
        self._redis.close()

    def _renew(self, process: str) -> None:
        self._run(self._redis.set, f"{_PREFIX}p:{process}", self._process, px=round(_LIFE_S * 1000))

    def _renew_all(self) -> None:
        while not self._closing.wait(_RENEW_S):
            with self._lock:
                present = builtins.list(self._present)
            for process in present:
                try:
                    self._renew(process)
                except StateDamaged:
                    break  # tried again soon; calls meanwhile get the error

    def _run(self, command: Any, *args: Any, **options: Any) -> Any:
        try:
            answer = command(*args, **options)
            self._is_away = False
            return answer
        except self._errors as error:
            self._is_away = True
            raise StateDamaged(
                f"the Redis server of state.store cannot be used: {error}", hint="start it, or correct state.store"
            ) from error


_FIELDS: Final = ["owner", "state", "data", "created", "expires", "version"]


def _name_of(pid: int) -> str:
    """Names a process of this machine by its pid and its start; empty if it is a zombie.

    Raises:
        OSError: it has ended, or the system does not say.
    """
    state, *fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(") ")[2].split()
    machine = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return "" if state in "ZX" else f"{machine} {Path('/proc/self/ns/pid').stat().st_ino} {pid} {fields[18]}"


def _has_ended(name: str, own: str) -> bool:
    """Whether the process of this name has ended; False if its machine or PID namespace is not that of `own`."""
    *machine, pid, _ = name.split(" ") if name.count(" ") == 3 else ("", "", "")
    if machine != own.split(" ")[:2]:
        return False
    try:
        os.kill(int(pid), 0)
        return _name_of(int(pid)) != name
    except (ProcessLookupError, FileNotFoundError):
        return True
    except (OSError, ValueError, OverflowError):  # another user's: its key expires when it has ended
        return False


def _remaining_ms(record: Record) -> int:
    """Milliseconds until a record expires, by the clock of this machine: that of the server may differ."""
    return math.ceil((record.expires - time.time()) * 1000)


def _place(kind: str, key: str) -> str:
    return f"{_PREFIX}r:{kind}:{key}"


def _record(kind: str, key: str, row: builtins.list[str]) -> Record:
    owner, state, data, created, expires, version = row
    try:
        data.encode()
        return Record(kind, key, owner, state, data, float(created), float(expires), int(version))
    except (TypeError, ValueError, AttributeError):  # another program wrote it
        return Record(kind, key, owner, DAMAGED, "", 0.0, version=int(version) if (version or "").isdecimal() else 1)
