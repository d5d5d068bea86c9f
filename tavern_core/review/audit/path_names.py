"""A path in the notation of a scope: ``$plugin/x``, ``$data/x``, ``$workspace/x``, ``./x``, ``~/x``, or the path itself.

``$TMP/x`` is a temporary file of the plugin; in a worker, it is in the data folder. Files that tests create in their own
temporary folders count as ``$workspace``: they are the input of a caller, with a new name each time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Final

from tavern_core.box import runtime_paths
from tavern_core.box.protected_path_splitting import is_in

DATA: Final = "$data"
TEMPORARY: Final = "$TMP"
WORKSPACE: Final = "$workspace"
PLUGIN: Final = "$plugin"
OWN: Final = (DATA, TEMPORARY)
"""The plugin's own places, which need no permission."""
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class PathNames:
    """Knows the places, and learns more while the plugin runs.

    Args:
        folder: of the plugin.
        project: the folder of ``./``; empty: none.
        scratch: folders for the files of tests.
    """

    def __init__(self, folder: str, project: str = "", scratch: Iterable[str] = ()) -> None:
        self._temporary: dict[str, None] = {}
        self._data: dict[str, None] = {}
        self._workspaces: dict[str, None] = {}
        self._scratch = [os.path.realpath(path) for path in scratch]
        self._plugin = os.path.realpath(folder)
        self._project = os.path.realpath(project) if project else ""
        self._home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 - text in, text out
        machine = (*runtime_paths.machine(), *runtime_paths.interpreter(), *runtime_paths.NETWORK)
        self._machine = tuple({*machine, *map(os.path.realpath, machine)} - {"/"})

    def learn_temporary(self, path: str) -> None:
        """The plugin's code created this with `tempfile`."""
        self._temporary[os.path.realpath(path)] = None

    def learn_data(self, path: str) -> None:
        """A data folder of the plugin: it differs per host."""
        self._data[os.path.realpath(path)] = None

    def learn_workspace(self, path: str) -> None:
        """The workspace of a call."""
        self._workspaces[os.path.realpath(path)] = None

    def of(self, path: str, *, writes: bool) -> str:
        """The spelling of an absolute path; empty for files that every program reads: the interpreter and system libraries."""
        real = os.path.realpath(path)
        if real in _DEVICES:
            return ""
        for root, spelled in (
            *((root, TEMPORARY) for root in self._temporary),
            *((root, DATA) for root in self._data),
            (self._plugin, PLUGIN),
            *((root, WORKSPACE) for root in (*self._workspaces, *self._scratch)),
        ):
            if is_in(real, root):
                return _joined(spelled, real, root)
        if not writes and any(is_in(real, root) or is_in(path, root) for root in self._machine):
            return ""
        if self._project and self._project != self._home and is_in(real, self._project):
            return _joined(".", real, self._project)
        if self._home not in ("/", "") and is_in(real, self._home):
            return _joined("~", real, self._home)
        return real


def absolute(path: str | bytes | int, folder: int) -> str:
    """The absolute path that a call means.

    Args:
        path: as passed; a number is a file descriptor.
        folder: the descriptor of the folder it is relative to; negative: the working folder.
    """
    if isinstance(path, int):
        return _of_descriptor(path)
    text = os.fsdecode(path)
    if os.path.isabs(text):  # noqa: PTH117
        return os.path.normpath(text)
    base = _of_descriptor(folder) if folder >= 0 else os.getcwd()  # noqa: PTH109
    return os.path.normpath(os.path.join(base, text))  # noqa: PTH118


def _of_descriptor(descriptor: int) -> str:
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115


def _joined(spelled: str, path: str, root: str) -> str:
    rest = path[len(root) :].strip("/")
    return f"{spelled}/{rest}" if rest else spelled
