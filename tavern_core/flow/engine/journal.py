"""The outputs of a run's nodes, line by line: one file for each stored run.

A line is written before any dependent node begins, so a killed process loses nothing that
was complete. The file is locked while its run continues: a process that can lock it knows that the run has stopped.

    crc32 of the rest, as 8 hex digits · space · {"events", "path", "key", "mark", "outputs"}, {"events", "path", "why"}, {"calls"} or {"read"} · newline

The events of a node are stored with its outputs, or in a separate line if these are large; with the next state of the run, they
go into the database.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import threading
from binascii import hexlify
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from tavern_core.errors import UsageError
from tavern_core.flow.engine.node_value_encoding import encoded
from tavern_core.kernel.files.atomic_file import PRIVATE_FILE, cannot, make_private_folder, state_errors
from tavern_core.kernel.files.file_lock import release, take
from tavern_core.kernel.files.regular_file import open_regular

_ENDING: Final = ".steps"
_CANCEL_MARK: Final = ".cancel"
"""A file of another process next to it: a request to cancel the run."""
_ANSWER: Final = ".answer"
"""A file of another process next to it: an answer to a question, named by its hash."""
_HASH: Final = 16
_PATIENCE_S: Final = 0.01
"""A process that only checks whether a run continues also holds the lock for a moment."""
_EVENTS: Final = b'{"events":'
_LARGE: Final = 8_192
"""Bytes; a reader of events skips larger outputs."""
_FLAGS: Final = os.O_CREAT | os.O_APPEND | os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class RunContinuesElsewhere(UsageError):
    """The run continues in another process."""


class Journal:
    """The open file of one run.

    Raises:
        RunContinuesElsewhere: the same run continues, in this process or another (USAGE).
        StateDamaged: it cannot be created (STATE_DAMAGED).
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self.path = _place(folder, run_id)
        try:
            self._descriptor = os.open(self.path, _FLAGS, PRIVATE_FILE)
        except OSError:  # the first run here; or it cannot be written, and the second attempt says why
            make_private_folder(folder)
            with state_errors(self.path, "write"):
                self._descriptor = os.open(self.path, _FLAGS, PRIVATE_FILE)
        with state_errors(self.path, "write"):
            if not take(self._descriptor, _PATIENCE_S):
                os.close(self._descriptor)
                raise RunContinuesElsewhere(
                    f"{run_id} is still running", hint="answer its questions, or cancel it first"
                )
            size = os.lseek(self._descriptor, 0, os.SEEK_END)
            if (
                size
                and os.lseek(self._descriptor, size - 1, os.SEEK_SET) >= 0
                and os.read(self._descriptor, 1) != b"\n"
            ):
                os.write(self._descriptor, b"\n")  # its process was killed in the middle of a line
        self._is_open = True
        self._cancel_mark = _place(folder, run_id, _CANCEL_MARK)
        self._cancel_mark.unlink(missing_ok=True)  # of a process that has ended

    def add(self, *texts: bytes) -> None:
        """Write records, each as JSON, in one call. Raises StateDamaged (STATE_DAMAGED)."""
        text = texts[0]
        lines = b"%08x %b\n" % (crc32(text), text)
        if len(texts) > 1:
            lines += b"".join([b"%08x %b\n" % (crc32(text), text) for text in texts[1:]])
        try:
            if os.write(self._descriptor, lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # only a part was written
        except OSError as error:
            raise cannot("write", self.path, error) from error

    @property
    def is_asked_to_end(self) -> bool:
        """Whether another process requested to cancel the run."""
        return self._cancel_mark.exists()

    def answer_to(self, question: str) -> Any:
        """The answer of another process to a question, as {"question", "value"}; None: there is none.

        A corrupt answer is removed.
        """
        place = self._answer(question)
        if not place.exists():
            return None
        if (found := _left(place)) is None:
            place.unlink(missing_ok=True)
        return found

    def forget_answer(self, question: str) -> None:
        """Remove the answer of another process: the run is stored with it."""
        self._answer(question).unlink(missing_ok=True)

    def _answer(self, question: str) -> Path:
        return _answer(self.path.parent, self.path.name.removesuffix(_ENDING), question)

    def close(self) -> None:
        """Close it: the run is over."""
        if self._is_open:
            self._is_open = False
            with suppress(OSError):
                self._cancel_mark.unlink(missing_ok=True)
            os.close(self._descriptor)


def read(folder: Path, run_id: str) -> Iterator[dict[str, Any]]:
    """The records of a run, ended or not; corrupt and incomplete lines are skipped."""
    try:
        file = open_regular(_place(folder, run_id), follow=False)
    except OSError:
        return
    with file:
        for line in file:
            if (record := _record(line)) is not None:
                yield record


def events(folder: Path, run_id: str, place: int) -> tuple[list[Any], int]:
    """The events from `place` in the file, and their end. Large outputs are skipped unread."""
    found: list[Any] = []
    try:
        file = open_regular(_place(folder, run_id), follow=False)
    except OSError:
        return found, place
    with file:
        file.seek(place)
        for line in file:
            if not line.endswith(b"\n"):
                break  # it is still being written
            place += len(line)
            if line.startswith(_EVENTS, 9) and (record := _record(line)) is not None:
                found += record["events"]
    return found, place


def node_record(path: str, key: bytes, mark: bytes, made: bytes | str, rows: bytes) -> list[bytes]:
    """Records of a node's outputs, as JSON or the reason why they are not stored, preceded by events, whose JSON is `rows`."""
    if isinstance(made, str):
        return [b'%b[%b],"path":%b,"why":"%b"}' % (_EVENTS, rows, encoded(path), made.encode())]
    known = encoded(path), hexlify(key), hexlify(mark), made
    if len(made) > _LARGE:
        return [b"%b[%b]}" % (_EVENTS, rows), b'{"path":%b,"key":"%b","mark":"%b","outputs":%b}' % known]
    return [b'%b[%b],"path":%b,"key":"%b","mark":"%b","outputs":%b}' % (_EVENTS, rows, *known)]


def _record(line: bytes) -> dict[str, Any] | None:
    """The content of a line; None: it is corrupt or incomplete."""
    text = line[9:].rstrip(b"\n")
    try:
        if line[:9] == b"%08x " % crc32(text) and isinstance(
            record := json.loads(text.decode("utf-8", "surrogatepass")), dict
        ):
            return record
    except ValueError:
        pass
    return None


def is_going_on(folder: Path, run_id: str) -> bool:
    """Whether a process runs it now, this one included."""
    try:
        descriptor = os.open(_place(folder, run_id), os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        if not take(descriptor, _PATIENCE_S):
            return True
        release(descriptor)
        return False
    finally:
        os.close(descriptor)


def ask_to_end(folder: Path, run_id: str) -> None:
    """Request its process to cancel it. Raises StateDamaged (STATE_DAMAGED)."""
    place = _place(folder, run_id, _CANCEL_MARK)
    with state_errors(place, "write"):
        os.close(os.open(place, _FLAGS, PRIVATE_FILE))


def leave_answer(folder: Path, run_id: str, question: str, value: Any) -> bool:
    """Store an answer for the process that runs or resumes it; False: there is already one. Raises StateDamaged (STATE_DAMAGED)."""
    place = _answer(folder, run_id, question)
    temporary = place.with_suffix(f"{_ANSWER}.{os.getpid()}-{threading.get_ident()}")
    with state_errors(place, "write"):
        try:
            with os.fdopen(os.open(temporary, _FLAGS, PRIVATE_FILE), "wb") as file:
                file.write(json.dumps({"question": question, "value": value}).encode())
            os.link(temporary, place)  # completely or not at all; and only once
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
    return True


def answers(folder: Path, run_id: str) -> dict[str, Any]:
    """Question → its stored answer."""
    found = [_left(place) for place in _answers(folder, run_id)]
    return {str(each["question"]): each["value"] for each in found if each is not None}


def _answers(folder: Path, run_id: str, more: str = "") -> list[Path]:
    """The files of answers; with ``*``, also those that a killed process has not finished."""
    begin = len(run_id) + 1 + _HASH  # not of another run whose id has this one as prefix
    found = folder.glob(f"{glob.escape(run_id)}.*{_ANSWER}{more}")
    return [place for place in found if place.name.startswith(_ANSWER, begin)]


def _answer(folder: Path, run_id: str, question: str) -> Path:
    return (
        folder
        / f"{run_id}.{blake2b(question.encode('utf-8', 'surrogatepass'), digest_size=_HASH // 2).hexdigest()}{_ANSWER}"
    )


def _left(place: Path) -> dict[str, Any] | None:
    try:
        with open_regular(place, follow=False) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.keys() == {"question", "value"} else None


def size(folder: Path, run_id: str) -> int:
    """Bytes of its file; 0 if there is none."""
    try:
        return _place(folder, run_id).stat().st_size
    except OSError:
        return 0


def forget(folder: Path, run_id: str) -> None:
    """Remove all files of a run."""
    for place in (_place(folder, run_id), _place(folder, run_id, _CANCEL_MARK), *_answers(folder, run_id, "*")):
        place.unlink(missing_ok=True)


def _place(folder: Path, run_id: str, ending: str = _ENDING) -> Path:
    return folder / f"{run_id}{ending}"
