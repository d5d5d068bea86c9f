"""`tavern.artifacts`: bytes by their digest in a folder of the state folder, and a record for each owner of some.

    artifacts/ab/cdef…      the bytes, stored once for all owners; written to a temporary file and renamed, so never incomplete
    record `artifact`       owner, digest, size, type, name, expiry

A caller finds only its own artifacts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from pydantic_core import to_json

from tavern_core.contract.stores import Record, RecordStore
from tavern_core.errors import ArtifactNotFound, OutputTooLarge, StateDamaged, UsageError
from tavern_core.kernel.calls.running_call import current
from tavern_core.kernel.calls.taint_tracking import running_call_has_read, sources_of_running_call
from tavern_core.kernel.files.atomic_file import PRIVATE_FILE, make_private_folder, state_errors
from tavern_core.kernel.files.file_lock import locked
from tavern_core.model.artifact import MEDIA_TYPE, SCHEME, Artifact
from tavern_core.model.call import HOST_PRINCIPAL, CallContext, check_caller, check_most, owner_of
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.untrusted_content_rules import sources_in

KIND: Final = "artifact"
_CHUNK: Final = 1 << 20
_TYPE: Final = rf"(?i:{MEDIA_TYPE}(; ?[a-z0-9-]+=[\w.-]+)?)"
_LONGEST_NAME: Final = 200
_BEGUN: Final = ".new-"
"""Prefix of the names of files that are being written."""
_PURGE_EVERY: Final = 50


class Artifacts:
    """The artifacts of a state folder. Safe for threads and processes.

    Args:
        folder: of the bytes.
        seconds: how long an artifact is stored.
        most_bytes: of one artifact.
    """

    def __init__(self, folder: Path, records: RecordStore, seconds: float, most_bytes: int) -> None:
        self._folder = folder
        self._records = records
        self._seconds = seconds
        self._most = most_bytes
        self._put = 0

    def put(
        self,
        data: bytes | str | Path | Iterable[bytes],
        media_type: str = "application/octet-stream",
        *,
        name: str = "",
        context: CallContext | None = None,
        call_id: str = "",
        untrusted: Collection[str] = (),
    ) -> Artifact:
        """Store data.

        Args:
            data: bytes, text, the path of a file, or chunks of bytes.
            media_type: as in ``image/png``.
            name: a file name for people; folders in it are dropped.
            context: the owner; None: the caller of the tool that runs, else the host.
            untrusted: the sources of untrusted content in it, besides those that the running call has read.

        Raises:
            UsageError: no such data, or no media type (USAGE).
            OutputTooLarge: it is larger than `artifacts.maxBytes` (OUTPUT_TOO_LARGE).
            StateDamaged: it cannot be written (STATE_DAMAGED).
        """
        if not isinstance(media_type, str) or not re.fullmatch(_TYPE, media_type):
            raise UsageError(f"{media_type!r:.80} is not a media type", hint='for example "image/png"')
        temporary, digest, size = self._written(chunks_of(data))
        owner, now = _owner(context), time.time()
        made = Artifact(
            f"art-{secrets.token_hex(10)}", f"sha256:{digest}", size, media_type, _name(name), owner.partition("\x1f")[0], now,
            now + self._seconds, call_id, tuple(dict.fromkeys([*untrusted, *sources_of_running_call()])),
        )  # fmt: skip
        record = Record(KIND, made.id, owner, "kept", _written_about(made), now, made.expires)
        self._store(temporary, made.digest, record)
        self._put += 1
        if self._put % _PURGE_EVERY == 1:  # the first, too: most processes put few
            self.purge()
        return made

    def _store(self, temporary: Path, digest: str, record: Record) -> None:
        """Move a written file to its place, and write its record; on an error it is discarded."""
        try:
            with locked(self._folder), state_errors(self._folder, "write"):
                path = self._path(digest)
                make_private_folder(path.parent)
                temporary.replace(path)
                self._records.add(record)
        except BaseException:
            _discard(temporary)
            raise

    def get(self, id: str, *, context: CallContext | None = None) -> Artifact:  # noqa: A002 - the artifact's
        """The record of an artifact, by its id or its ``artifact:`` address.

        Args:
            context: the caller; None: the host, which sees all, or the caller of the running tool.

        Raises:
            ArtifactNotFound: it does not exist, has expired, or is another caller's (ARTIFACT_NOT_FOUND).
        """
        name = id.removeprefix(SCHEME) if isinstance(id, str) and id.isascii() and id.isprintable() else ""
        record = self._records.get(KIND, name)
        known = None if record is None else _artifact(record)
        if record is None or known is None or not _may_see(record.owner, context):
            near = [one.id for one in self.list(context=context)]
            raise ArtifactNotFound(
                f"there is no artifact {id!r:.80}",
                hint=did_you_mean(name, near) or "`tavern artifacts list` shows them",
            )
        return known

    def open(self, id: str, *, context: CallContext | None = None) -> BinaryIO:  # noqa: A002 - the artifact's
        """Its bytes, as a file to read from. Raises as `get`; StateDamaged: they are missing, or not as many (STATE_DAMAGED)."""
        known = self.get(id, context=context)
        running_call_has_read(known.untrusted)
        path = self._path(known.digest)
        try:
            file = path.open("rb")
        except OSError as error:
            self.get(id, context=context)  # it may have been removed meanwhile, or have expired
            raise _unusable(known, path, f"cannot be read: {error.strerror or error}") from error
        if os.fstat(file.fileno()).st_size != known.size:
            file.close()
            raise _unusable(known, path, "are not the stored ones")
        return file

    def read(self, id: str, start: int = 0, length: int = -1, *, context: CallContext | None = None) -> bytes:  # noqa: A002
        """A part of its bytes; all of them by default.

        Args:
            start: the first byte, from 0 up.
            length: how many at most; -1: all from there on.

        Raises:
            UsageError: `start` or `length` is no such number (USAGE).
            StateDamaged: all of them are read, and they are not those that were stored (STATE_DAMAGED). Else as `open`.
        """
        if type(start) is not int or type(length) is not int or start < 0:
            raise UsageError(
                f"read(start={start!r:.40}, length={length!r:.40}): both are whole numbers, and start is from 0 up",
                hint="read(id, 0, 1000) for the first 1,000 bytes",
            )
        with self.open(id, context=context) as file:
            available = max(file.seek(0, os.SEEK_END) - start, 0)
            file.seek(-available, os.SEEK_END)
            found = file.read(available if length < 0 else min(length, available))
        known = self.get(id, context=context)
        if len(found) == known.size and hashlib.sha256(found).hexdigest() != known.digest.removeprefix("sha256:"):
            raise _unusable(known, self._path(known.digest), "are not the stored ones")
        return found

    def list(self, *, context: CallContext | None = None, most: int = 100) -> tuple[Artifact, ...]:
        """Artifacts, newest first; with a context, that caller's alone.

        Raises:
            UsageError: `context` is not a CallContext, or `most` is not a number from 0 up (USAGE).
        """
        check_most(most)
        owner = None if context is None and current.get() is None else _owner(context)
        found = (_artifact(record) for record in self._records.list(KIND, owner=owner, most=most))
        return tuple([one for one in found if one is not None])

    def remove(self, id: str, *, context: CallContext | None = None) -> None:  # noqa: A002 - the artifact's
        """Remove an artifact before it expires. Raises as `get`."""
        known = self.get(id, context=context)
        self._records.remove(KIND, known.id)
        with locked(self._folder):  # else an equal one that is being stored could lose its bytes
            if all(one.digest != known.digest for one in self._all()):
                _discard(self._path(known.digest))

    def purge(self) -> int:
        """Remove bytes without an owner; returns the number of files.

        Files of the last hour stay: a record may follow. What a killed process was writing has no owner either.
        """
        owned = {one.digest.removeprefix("sha256:") for one in self._all()}
        unknown = (path for path in self._folder.glob("??/*") if path.parent.name + path.name not in owned)
        removed = 0
        for path in (*unknown, *self._folder.glob(f"{_BEGUN}*")):
            with contextlib.suppress(OSError), locked(self._folder):
                if path.stat().st_mtime < time.time() - 3600:
                    path.unlink()
                    removed += 1
        return removed

    def _all(self) -> Iterator[Artifact]:
        for record in self._records.list(KIND, most=1_000_000):
            if (one := _artifact(record)) is not None:
                yield one

    def _path(self, digest: str) -> Path:
        text = digest.removeprefix("sha256:")
        return self._folder / text[:2] / text[2:]

    def _written(self, chunks: Iterable[bytes]) -> tuple[Path, str, int]:
        """A new file with these bytes, not in its final place yet; their digest and number."""
        hashed, size = hashlib.sha256(), 0
        with state_errors(self._folder, "write"):
            make_private_folder(self._folder)
            descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=_BEGUN)
            temporary = Path(name)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    for chunk in chunks:
                        size += len(chunk)
                        if size > self._most:
                            raise too_large(self._most)
                        hashed.update(chunk)
                        file.write(chunk)
                temporary.chmod(PRIVATE_FILE)
            except BaseException:
                _discard(temporary)
                raise
        return temporary, hashed.hexdigest(), size


def _unusable(artifact: Artifact, path: Path, why: str) -> StateDamaged:
    hint = f"`tavern artifacts remove {artifact.id}`, and make it again"
    return StateDamaged(f"{path}: the bytes of {artifact.id} {why}", hint=hint, path=str(path))


def too_large(most: int) -> OutputTooLarge:
    """The error of data that are larger than an artifact may be."""
    hint = "make less of it, or raise artifacts.maxBytes"
    return OutputTooLarge(f"an artifact has at most {most:,} bytes", hint=hint, outcome="done", limit=most)


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def chunks_of(data: object) -> Iterator[bytes]:
    """The bytes of data to store. Raises UsageError: the data has another type (USAGE)."""
    if isinstance(data, str):
        yield data.encode("utf-8", "surrogatepass")
    elif isinstance(data, bytes | bytearray | memoryview):
        yield bytes(data)
    elif isinstance(data, Path):
        try:
            with data.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
        except OSError as error:
            hint = "see that the path is right, and that the file can be read"
            raise UsageError(f"{data} cannot be read: {error.strerror or error}", hint=hint) from error
    elif isinstance(data, Iterable):
        for part in data:
            if not isinstance(part, bytes | bytearray | memoryview):
                raise UsageError(f"chunks of an artifact are bytes, got {type(part).__name__}")
            yield bytes(part)
    else:
        raise UsageError(
            f"an artifact is made of bytes, got {type(data).__name__}", hint="bytes, text, a Path, or chunks"
        )


def _name(name: str) -> str:
    """The last part of a path, without characters that a name cannot have."""
    plain = re.split(r"[/\\]", str(name))[-1]
    return "".join(sign for sign in plain if sign.isprintable())[:_LONGEST_NAME].strip(". ")


def _owner(context: CallContext | None) -> str:
    check_caller(context)
    if context is None:
        frame = current.get()
        context = frame.caller if frame is not None else None
    return f"{HOST_PRINCIPAL}\x1f" if context is None else owner_of(context)


def _may_see(owner: str, context: CallContext | None) -> bool:
    frame = current.get()
    is_host = context is None and (frame is None or frame.caller is None)
    return is_host or owner == _owner(context)


def _artifact(record: Record) -> Artifact | None:
    try:
        data = json.loads(record.data)
        return Artifact(
            record.key, data["digest"], data["size"], data["mediaType"], data["name"], record.owner.partition("\x1f")[0],
            record.created, record.expires, data.get("callId", ""), sources_in(data.get("untrusted")),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return None


def _written_about(made: Artifact) -> str:
    """The content of an artifact's record, from which `_artifact` makes it again."""
    data: dict[str, Any] = {
        "digest": made.digest, "size": made.size, "mediaType": made.media_type, "name": made.name, "callId": made.call_id
    }  # fmt: skip
    if made.untrusted:
        data["untrusted"] = made.untrusted
    return to_json(data).decode()
