"""Attribution of audit events to the plugin's code.

The plugin is responsible if the nearest known frame is its own, not one of the host, the import system or a test.

open ← pathlib ← the plugin                          the plugin's
open ← the import system ← the plugin                no one's: a late import
open ← tavern_core ← the plugin                      the host's: it works on request
open ← a test's callback ← the plugin                the test's
open ← urllib ← the bottom of a thread               the code that started the thread
"""

from __future__ import annotations

import os
import sysconfig
import threading
from collections.abc import Collection, Iterable
from enum import Enum
from pathlib import Path
from types import CodeType, FrameType
from typing import Final
from weakref import WeakKeyDictionary

from tavern_core import package_location
from tavern_core.box import runtime_paths
from tavern_core.box.protected_path_splitting import is_in

SourcePosition = tuple[str, int]
"""File relative to the plugin's folder, line."""


class CodeOwner(Enum):
    """The owner of the code in a file."""

    OWN = 1
    """The plugin."""
    STOP = 2
    """Independent code: host, tests, test runner, import system."""
    STANDARD = 3
    """The standard library: acts for its caller."""
    OTHER = 4
    """Other packages: act for their caller, too."""


_PACKAGE: Final = str(package_location.FOLDER)
_HERE: Final = str(Path(__file__).parent)
_FOR_PLUGINS: Final = tuple(
    str(Path(_PACKAGE, "contract", *names)) for names in (("guards", "folder.py"), ("context.py",))
)
"""Modules of the host whose use counts as the plugin's own."""
_RUNNERS: Final = (
    "_pytest",
    "pytest",
    "pluggy",
    "hypothesis",
    "xdist",
    "coverage",
    "pytest_asyncio",
    "anyio/pytest_plugin",
)
_READ_SOURCES: Final = ("linecache.py", "tokenize.py")
"""They read sources to show a traceback or a warning."""
_ASK_THE_MACHINE: Final = ("platform.py", "uuid.py")
"""They run programs such as `uname`, and work without them if that is forbidden."""
_METADATA: Final = "/importlib/metadata/"
"""Part of the import system: it lists the folders of `sys.path` to find installed packages."""
_TEST_FOLDERS: Final = ("tests", "test")
ENVIRONMENT: Final = frozenset(
    {"<frozen os>", "<frozen _collections_abc>", os.__file__, str(Path(os.__file__).with_name("_collections_abc.py"))}
)


class StackAttribution:
    """Knows the plugin's files.

    Args:
        folder: of the plugin.
        tests: files and folders of tests; other files in the plugin's own folder belong to the plugin.
    """

    def __init__(self, folder: str, tests: Iterable[str] = ()) -> None:
        self._folders = tuple({os.path.abspath(folder), os.path.realpath(folder)})  # noqa: PTH100
        self._tests = tuple({os.path.realpath(path) for path in tests})
        self._sides: dict[str, CodeOwner] = {}
        installed = sysconfig.get_paths()
        self._standard = tuple({installed["stdlib"], installed["platstdlib"], os.path.dirname(os.__file__)})  # noqa: PTH120
        self._packages = tuple(
            {
                installed["purelib"],
                installed["platlib"],
                *(p for p in runtime_paths.interpreter() if p.endswith("-packages")),
            }
        )
        self._runners = tuple(f"{folder}/{name}" for folder in self._packages for name in _RUNNERS)
        self._threads: WeakKeyDictionary[threading.Thread, SourcePosition] = WeakKeyDictionary()
        self._functions: dict[CodeType, SourcePosition] = {}

    def owner(self, frame: FrameType | None) -> SourcePosition | None:
        """The responsible line of the plugin for an event in `frame`; None: there is none."""
        sides = self._sides
        last = frame
        while frame is not None:
            file = frame.f_code.co_filename
            side = sides.get(file) or self.side(file)
            if side is CodeOwner.OWN:
                return self._relative(file), frame.f_lineno
            if side is CodeOwner.STOP:
                return None
            last, frame = frame, frame.f_back
        return self._begun(last) if last is not None else None

    def caller_of_host(self, frame: FrameType | None) -> SourcePosition | None:
        """The same for work of the host on request: its own frames are skipped."""
        while frame is not None and package_location.is_own(frame.f_code.co_filename):
            frame = frame.f_back
        return self.owner(frame)

    def reader_of_environment(self, frame: FrameType | None) -> SourcePosition | None:
        """The same for variables: look-ups of the standard library for itself do not count."""
        while frame is not None and (
            frame.f_code.co_filename in ENVIRONMENT or frame.f_code.co_filename.startswith(_HERE)
        ):
            frame = frame.f_back
        if frame is None or self.side(frame.f_code.co_filename) is CodeOwner.STANDARD:
            return None
        return self.owner(frame)

    def thread_begun(self, thread: threading.Thread, by: SourcePosition) -> None:
        """The plugin started a thread: unattributed events in it belong to the plugin."""
        self._threads[thread] = by

    def function_begun(self, function: object, by: SourcePosition) -> None:
        """The same for a thread without an object."""
        if isinstance(code := getattr(function, "__code__", None), CodeType):
            self._functions[code] = by

    def is_own(self, file: str) -> bool:
        """True for a file of the plugin's code."""
        return self.side(file) is CodeOwner.OWN

    def place(self, code: CodeType) -> SourcePosition:
        """The place of a function of the plugin."""
        return self._relative(code.co_filename), code.co_firstlineno

    def side(self, file: str) -> CodeOwner:
        """The owner of the code in a file."""
        if (known := self._sides.get(file)) is None:
            known = self._sides[file] = self._judged(file)
        return known

    def _judged(self, file: str) -> CodeOwner:
        if file.startswith(("<frozen importlib", "<frozen zipimport")):
            return CodeOwner.STOP
        if file.startswith("<"):
            return CodeOwner.STANDARD if file.startswith("<frozen") else CodeOwner.OTHER
        path = os.path.abspath(file)  # noqa: PTH100
        for folder in self._folders:
            if is_in(path, folder):
                return CodeOwner.STOP if _is_test(path[len(folder) :].strip("/").split("/")) else CodeOwner.OWN
        if is_in(path, _PACKAGE):
            return CodeOwner.STANDARD if path in _FOR_PLUGINS or is_in(path, _HERE) else CodeOwner.STOP
        if any(is_in(path, runner) or path == f"{runner}.py" for runner in self._runners):
            return CodeOwner.STOP
        if any(is_in(path, folder) for folder in self._packages):
            return CodeOwner.OTHER
        if any(is_in(path, folder) for folder in self._standard):
            return (
                CodeOwner.STOP
                if path.endswith((*_READ_SOURCES, *_ASK_THE_MACHINE)) or _METADATA in path
                else CodeOwner.STANDARD
            )
        real = os.path.realpath(path)
        return CodeOwner.STOP if any(is_in(real, tests) for tests in self._tests) else CodeOwner.OTHER

    def _begun(self, bottom: FrameType) -> SourcePosition | None:
        if bottom.f_code.co_name == "_bootstrap" and isinstance(
            thread := bottom.f_locals.get("self"), threading.Thread
        ):
            return self._threads.get(thread)
        return self._functions.get(bottom.f_code)

    def _relative(self, file: str) -> str:
        path = os.path.abspath(file)  # noqa: PTH100
        for folder in self._folders:
            if is_in(path, folder):
                return path[len(folder) :].strip("/")
        return path


def _is_test(parts: Collection[str]) -> bool:
    *folders, name = parts
    is_named = name == "conftest.py" or name.startswith("test_") or name.endswith("_test.py")
    return is_named or any(folder in _TEST_FOLDERS for folder in folders)
