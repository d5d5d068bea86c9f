"""The event log: one line per event, appended and never changed.

    append: lock --> did others write? --> is it still our file? --> is it full? --> one write() --> anchor --> unlock
                           | no: open again        | read them       | rename it

A full file is renamed before its last record is written: the other writers see that it has grown, and look up its new name.
Otherwise a writer looks up the name of the file only every 16 records and once a second, so it detects with that delay
that the file was moved by hand.

Several threads and processes share one file. A record is complete before `append` returns, so it survives the death of
the process (and a power cut, with `fsync`). A line that a killed process left incomplete is stored in a side file and a
record reports it. Complete lines are never removed: a corrupt line stays in its place, and `verify` names it.

Next to ``audit.jsonl`` are ``audit.head`` (number and hash of the last record when the log was closed, or of one at most
15 records before: so records missing at the end are detected) and older files ``audit-<first>-<last>.jsonl``. The chain
runs through all of them. Anyone who can write the folder can forge the whole log; as a protection, copy the head that
`verify` prints to another place.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tavern_core.errors import Finding, Location, StateDamaged
from tavern_core.kernel.files import file_lock
from tavern_core.kernel.files.atomic_file import (
    PRIVATE_FILE,
    cannot,
    keep_aside,
    make_private_folder,
    state_errors,
    sync_folder,
    write_all,
)
from tavern_core.kernel.log.log_files import (
    LogTail,
    cut_off,
    head_line,
    head_path,
    newest_rotated,
    read_head,
    read_tail,
    rotated_path,
)
from tavern_core.kernel.log.record import GENESIS, ChainLink, encode, encode_members
from tavern_core.kernel.settings.secret_masking import KnownSecrets
from tavern_core.model.event import LOG_DAMAGED, LOG_REPAIRED, Event
from tavern_core.schema.redact import compile_redactor

_ATTEMPTS: Final = 100
_ANCHOR_EVERY: Final = 16
_LOOK_EVERY: Final = 16
_LONGEST_UNSEEN: Final = 1.0
_OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_OLDER_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_sync: Final = getattr(os, "fdatasync", os.fsync)
_all_logs: Final[weakref.WeakSet[EventLog]] = weakref.WeakSet()


class EventLog:
    """Append-only, hash-chained, shared by threads and processes; opened when the first event comes.

    Args:
        path: ``audit.jsonl`` in its own folder; created private.
        fsync: force each record to the disk before `append` returns.
        max_bytes: a file that has reached this size is closed and a new one started.
        lock_seconds: how long to wait for another process that writes.
        known_secrets: strings that must never get into the log.
        on_finding: called once per detected damage.
    """

    def __init__(
        self,
        path: Path,
        *,
        fsync: bool = False,
        max_bytes: int = 64_000_000,
        lock_seconds: float = 5.0,
        known_secrets: KnownSecrets | None = None,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        self.path = path
        self._path = os.fspath(path)
        self._fsync = fsync
        self._max_bytes = max_bytes
        self._lock_seconds = lock_seconds
        self._known_secrets = known_secrets or KnownSecrets()
        self._on_finding = on_finding
        self._thread = threading.Lock()
        self._findings: list[Finding] = []
        self._unreported: list[Finding] = []
        self._descriptor = -1
        self._head = -1
        self._inode = 0
        self._size = 0
        self._seq = 0
        self._hash = GENESIS
        self._checked_at = -math.inf
        self._renamed_to = ""
        _all_logs.add(self)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Damage found since this log was opened, oldest first."""
        return tuple(self._findings)

    def append(self, event: Event) -> int:
        """Write one event and return its number; it is in the file when this returns.

        Raises:
            StateDamaged: it could not be written (disk full, no permission, locked). The log is as it was before.
        """
        try:
            with self._thread:
                if not self._lock_at_once(event.time):
                    self._lock()
                try:
                    return self._write(*encode(event, self._seq + 1, self._hash), event)
                finally:
                    self._unlock()
        finally:
            if self._unreported:
                self._report_all()

    def append_members(self, kind: str, time: float, own: str, call_id: str, plugin: str) -> None:
        """`append`, for an event whose data and whose call's id are JSON already (`record.encode_members`)."""
        with self._thread:
            if self._lock_at_once(time):
                try:
                    line, digest = encode_members(kind, time, own, call_id, plugin, self._seq + 1, self._hash)
                    self._write(
                        line,
                        digest,
                        None if not self._known_secrets.needles else _event_of(kind, time, own, call_id, plugin),
                    )
                finally:
                    if self._descriptor >= 0:
                        file_lock.release(self._descriptor)
                return
        self.append(_event_of(kind, time, own, call_id, plugin))

    def check(self) -> tuple[Finding, ...]:
        """Open the log if necessary, repair an incomplete end, and return the findings."""
        try:
            with self._thread:
                self._lock()
                self._unlock()
        finally:
            self._report_all()
        return self.findings

    def close(self) -> None:
        """Close the files; a later `append` opens them again."""
        with self._thread:
            if self._seq and self._descriptor >= 0:
                with contextlib.suppress(StateDamaged):  # no loss: the records are in the file
                    self._lock()
                    self._anchor()
            self._drop()
        self._report_all()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Under the lock ------------------------------------------------------------------------------------------------

    def _lock_at_once(self, time: float) -> bool:
        """The quick path of `_lock`: no other writer, and the file is unchanged. False: not locked.

        Args:
            time: of the event, seconds since the epoch.
        """
        descriptor = self._descriptor
        try:
            if descriptor < 0 or not file_lock.take_at_once(descriptor):
                return False
            if os.lseek(descriptor, 0, os.SEEK_END) == self._size:
                if self._seq % _LOOK_EVERY and 0 <= time - self._checked_at < _LONGEST_UNSEEN:
                    return True
                if os.stat(self._path).st_ino == self._inode:  # noqa: PTH116 - a Path costs as much as the call
                    self._checked_at = time
                    return True
            file_lock.release(descriptor)
        except OSError:
            self._drop()  # gives the lock back; the long way says what is wrong
        except BaseException:  # Ctrl-C while the lock is ours
            self._drop()
            raise
        return False

    def _lock(self) -> None:
        """Hold the lock of the file that is the current one *now*, and know its end."""
        for _ in range(_ATTEMPTS):
            if self._descriptor < 0:
                self._open()
            try:
                if self._lock_current():
                    return
            except BaseException:
                self._drop()  # closing gives the lock back, too
                raise
            self._drop()
        raise StateDamaged(f"{self.path} is replaced again and again by another program", hint="find out by which one")

    def _lock_current(self) -> bool:
        """Lock the open file and check whether it is still the log. False: open it again."""
        with state_errors(self.path, "lock"):
            if not file_lock.take(self._descriptor, self._lock_seconds):
                raise StateDamaged(
                    f"{self.path} has been locked by another process for {self._lock_seconds:g} seconds",
                    hint="end the process that holds it; `fuser` names it",
                    path=self._path,
                )
            try:
                now = self.path.stat()
            except FileNotFoundError:
                return False
        if now.st_ino != self._inode:
            return False  # rotated by another process, or replaced by hand
        return (now.st_size == self._size and self._seq > 0) or self._catch_up(now.st_size)

    def _unlock(self) -> None:
        if self._descriptor >= 0:
            file_lock.release(self._descriptor)

    def _write(self, line: bytes, digest: str, event: Event | None, *, rotates: bool = True) -> int:
        seq = self._seq + 1
        if event is not None:
            for secret in self._known_secrets.needles:  # the last net: events are redacted before they come here
                if secret in line:
                    line, digest = encode(_without_secrets(event, self._known_secrets), seq, self._hash)
                    break
        renamed = self._rename(seq) if rotates and self._size + len(line) >= self._max_bytes else None
        try:
            written = os.write(self._descriptor, line)
            if written != len(line):
                write_all(self._descriptor, line[written:])  # goes on, or learns why it cannot
            if self._fsync:
                _sync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):  # making a file shorter needs no space
                os.ftruncate(self._descriptor, self._size)
            if renamed is not None:
                self._rename_back(renamed)
            raise cannot("write", self.path, error) from error
        self._size += len(line)
        self._seq, self._hash = seq, digest
        if not seq % _ANCHOR_EVERY:
            self._anchor()
        if renamed is not None:
            self._drop()
            with contextlib.suppress(OSError):  # this record is in its file; the next one says what is wrong
                os.close(os.open(self._path, _OPEN_FLAGS, PRIVATE_FILE))
        return seq

    def _rename(self, last: int) -> Path:
        """Give a full file its last name, before its last record is written.

        Other writers compare the size of the file that they have open with the size that they know. It grows after it was
        renamed, so they look up its new name, whatever their own limit is.
        """
        with state_errors(self.path, "rotate"):
            name = rotated_path(self.path, self._descriptor, last)
            return self.path.rename(name)

    def _rename_back(self, renamed: Path) -> None:
        """Undo a rename if the last record cannot be written. A file that another process has begun meanwhile stays."""
        with contextlib.suppress(OSError):
            self.path.hardlink_to(renamed)
            renamed.unlink()

    def _anchor(self) -> None:
        """Store the last record in the anchor. Doing so each time would cost a third more; a late one detects less."""
        try:
            os.pwrite(self._head, head_line(self._seq, self._hash), 0)
        except OSError as error:
            self._report(f"{head_path(self.path).name} cannot be written: {error.strerror}")

    def _open(self) -> None:
        make_private_folder(self.path.parent)
        with state_errors(self.path, "open"):
            self._descriptor = os.open(self._path, _OPEN_FLAGS, PRIVATE_FILE)
            now = os.fstat(self._descriptor)
            if not stat.S_ISREG(now.st_mode):
                raise OSError(errno.EINVAL, "is not a regular file")
            self._inode = now.st_ino
            self._size = 0
            self._seq, self._hash = 0, GENESIS
            self._head = os.open(head_path(self.path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, PRIVATE_FILE)
            if self._fsync:
                sync_folder(self.path.parent)  # a new file is only safe when its name is

    def _drop(self) -> None:
        for descriptor in (self._descriptor, self._head):
            if descriptor >= 0:
                with contextlib.suppress(OSError):  # closed by others, as daemons do with inherited files
                    os.close(descriptor)
        self._descriptor = self._head = -1

    # When the file is not as we left it ------------------------------------------------------------------------------

    def _catch_up(self, size: int) -> bool:
        """Read the part after the known one. False: the file contained no record and was renamed."""
        fresh = not self._seq or size < self._size
        with state_errors(self.path, "read"):
            tail = read_tail(self._descriptor, 0 if fresh else self._size, size)
            if not fresh and not tail.is_clean:
                fresh, tail = True, read_tail(self._descriptor, 0, size)
            if tail.is_hopeless:
                self._renamed_to = keep_aside(self.path).name
                return False
            cut = self._cut(self._descriptor, tail)
            self._size = tail.end
            before, cut_before = (
                self._end_before() if fresh and tail.last is None else (ChainLink(0, GENESIS, GENESIS), None)
            )
            missing = self._resume(tail, before) if fresh else ()
        if not fresh and tail.last is not None:
            self._seq, self._hash = tail.last.seq, tail.last.hash
        for repair in filter(None, (cut_before, cut)):
            name, count = repair
            self._report_and_log(
                LOG_REPAIRED, f"a half-written record was cut off: {count} bytes, stored in {name}", keptIn=name
            )
        if self._renamed_to:
            self._report_and_log(
                LOG_REPAIRED,
                f"a file without a readable record was renamed to {self._renamed_to}",
                keptIn=self._renamed_to,
            )
            self._renamed_to = ""
        if missing:
            self._report_and_log(
                LOG_DAMAGED, f"the records {missing[0]} to {missing[1]} are missing at the end", missing=missing
            )
        if tail.damaged:
            first, last = tail.damaged[0], tail.damaged[-1]
            text = f"corrupt lines:  {len(tail.damaged)}, the first at byte {first}"
            self._report_and_log(LOG_DAMAGED, text, lines=len(tail.damaged), between=[first, last])
        return True

    def _cut(self, descriptor: int, tail: LogTail) -> tuple[str, int] | None:
        """Store an incomplete end in a side file: its name and its bytes. None: there is none."""
        if not tail.torn:
            return None
        return cut_off(self.path, descriptor, tail.end, tail.torn, time.time()), len(tail.torn)

    def _end_before(self) -> tuple[ChainLink, tuple[str, int] | None]:
        """The end of the chain in the file before this one, and the part that was cut off there.

        The process that renamed it then writes its last record, and holds its lock until then; if it was killed, that record is
        incomplete.
        """
        nothing = ChainLink(0, GENESIS, GENESIS), None
        if (older := newest_rotated(self.path)) is None:
            return nothing
        is_sealed = not os.access(older, os.W_OK)  # older files may be read-only: then their end is not repaired
        descriptor = os.open(older, (os.O_RDONLY if is_sealed else os.O_RDWR) | _OLDER_FLAGS)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return nothing
            if not file_lock.take(descriptor, self._lock_seconds):
                raise StateDamaged(
                    f"{older} is locked by another process", hint="end the process that holds it; `fuser` names it"
                )
            tail = read_tail(descriptor, 0, os.fstat(descriptor).st_size)
            return tail.last or nothing[0], None if is_sealed else self._cut(descriptor, tail)
        finally:
            os.close(descriptor)

    def _resume(self, tail: LogTail, before: ChainLink) -> tuple[int, int] | tuple[()]:
        """Find the end of the chain in an unknown file; returns the first and last number of missing records.

        It is the last record of the file, or of the file before it. The anchor knows more if records are missing, and
        when the last line is corrupt: that line's number is used up, and only the anchor has its hash.
        """
        last = tail.last or before
        used = last.seq + tail.damaged_at_end
        anchor = read_head(self._head)
        if anchor is None or anchor.seq < used or anchor.seq == last.seq:
            self._seq, self._hash = used, last.hash if used == last.seq else GENESIS
            return ()
        self._seq, self._hash = anchor.seq, anchor.hash
        return (used + 1, anchor.seq) if anchor.seq > used else ()

    def _report_and_log(self, kind: str, message: str, **data: Any) -> None:
        self._report(message)
        event = Event(kind, time.time(), {"message": message, **data})
        self._write(*encode(event, self._seq + 1, self._hash), event, rotates=False)  # the record to come follows in it

    def _report(self, message: str) -> None:
        finding = Finding(
            StateDamaged.code,
            f"the event log {self.path}: {message}",
            hint="`tavern logs verify` lists every corrupt line",
            where=Location(self._path),
            severity="warning",
        )
        self._findings.append(finding)
        self._unreported.append(finding)

    def _report_all(self) -> None:
        """Pass findings on, outside the lock: the receiver may log."""
        while self._unreported:
            finding = self._unreported.pop(0)
            if self._on_finding is not None:
                self._on_finding(finding)

    def _after_fork(self) -> None:
        """In a forked child: the parent's opening of the file, and so its lock, is not ours to use."""
        self._thread = threading.Lock()
        self._drop()


def _event_of(kind: str, time: float, own: str, call_id: str, plugin: str) -> Event:
    return Event(kind, time, json.loads(f"{{{own[1:]}}}"), json.loads(call_id) or "", plugin)


def _without_secrets(event: Event, known: KnownSecrets) -> Event:
    redact = compile_redactor(known_secrets=known.values)
    kind, call_id, plugin = (known.mask_text(text) for text in (event.type, event.call_id, event.plugin))
    return Event(kind, event.time, redact(dict(event.data)), call_id, plugin)


def _reopen_in_child() -> None:
    for log in list(_all_logs):
        log._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reopen_in_child)
