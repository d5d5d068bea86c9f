"""The previous versions of files that `tavern assist` changed, in the state folder, so that a change can be taken back."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import StateDamaged, UsageError
from tavern_core.kernel.files.atomic_file import kept_mode, write_atomic
from tavern_core.kernel.files.file_lock import locked

_MOST_KEPT: Final = 20
_REPAIR: Final = "delete it; then earlier changes of the file cannot be undone"


class PreviousVersions:
    """The versions of one file, newest last.

    Args:
        home: the folder of the host's state.
    """

    def __init__(self, home: Path, file: Path) -> None:
        self._file = file.absolute().parent.resolve() / file.name  # one file, however its path is written
        name = sha256(str(self._file).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._path = home / "assist" / f"{name}.json"

    def now(self) -> str | None:
        """The current text of the file, with its line endings; bytes that are no text are kept as surrogates. None: there is no file."""
        return self._file.read_bytes().decode("utf-8", "surrogateescape") if self._file.is_file() else None

    def keep(self, before: str | None) -> None:
        """Store the change of the file from `before` to what it holds now. Raises StateDamaged (STATE_DAMAGED).

        Args:
            before: `now` before the change.
        """
        with locked(self._path):
            self._write([*self._read(), {"before": before, "after": _hash(self.now() or "")}][-_MOST_KEPT:])

    def restore(self) -> bool:
        """Take the last change back; False: the file was new and is deleted again.

        Raises:
            UsageError: there is none, or the file was changed since (USAGE).
            StateDamaged: the stored versions cannot be read (STATE_DAMAGED).
        """
        with locked(self._path):
            kept = self._read()
            if not kept:
                raise UsageError(
                    f"{self._file} has no change to undo", hint="only changes by `tavern assist` can be undone"
                )
            last = kept[-1]
            if _hash(self.now() or "") != last["after"]:
                raise UsageError(
                    f"{self._file} was changed since, so its previous version is not restored",
                    hint=f"the previous version is in {self._path}",
                )
            if last["before"] is None:
                self._file.unlink()
            else:
                write_atomic(self._file, last["before"].encode("utf-8", "surrogateescape"), kept_mode(self._file))
            self._write(kept[:-1])
            return last["before"] is not None

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with suppress(OSError, ValueError, RecursionError):
            data = json.loads(self._path.read_text("utf-8"))
            versions = data.get("versions") if isinstance(data, dict) else None
            if isinstance(versions, list) and all(_is_version(each) for each in versions):
                return versions
        raise StateDamaged(f"{self._path} cannot be read", hint=_REPAIR)

    def _write(self, versions: list[dict[str, Any]]) -> None:
        write_atomic(self._path, json.dumps({"file": str(self._file), "versions": versions}))


def _is_version(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("before"), str | None) and isinstance(data.get("after"), str)


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
