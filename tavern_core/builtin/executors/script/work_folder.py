"""The folders that one call of a script has to itself; gone when the call is over.

home    its home and its temporary files, empty at first
out     what it leaves here (`TAVERN_OUTPUT`) is kept as artifacts of the caller, and the answer links to them
in      copies of artifacts: an argument of ``"format": "artifact"`` names one, the script gets the path of the copy
"""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import os
import shutil
import stat
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_json

from tavern_core.contract.protocols import Sandbox
from tavern_core.contract.tool_context import ToolContext
from tavern_core.errors import OutputTooLarge, ToolFailed, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.artifact import FORMAT, SCHEME
from tavern_core.model.result import ToolResult
from tavern_core.model.tool import ToolSpec


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """Paths; empty outside of a host."""

    place: str = ""
    home: str = ""
    """Empty where there is no box: the script sees the host's own home."""
    out: str = ""

    @property
    def given(self) -> str:
        """The folder for copies of artifacts; `with_files` creates it."""
        return f"{self.place}/in"


@contextlib.asynccontextmanager
async def work_folder(sandbox: Sandbox | None) -> AsyncIterator[WorkFolder]:
    """Empty folders of the host's user. Raises UpstreamError: none can be created (UPSTREAM_ERROR)."""
    if sandbox is None:
        yield WorkFolder()
        return
    try:
        place = sandbox.work_folder()
        folder = WorkFolder(place, "" if sandbox.level == "none" else f"{place}/home", f"{place}/out")
        for path in filter(None, (folder.home, folder.out)):
            os.mkdir(path, 0o700)  # noqa: PTH102 - of strings, as the environment is
    except OSError as error:
        raise UpstreamError(
            f"there is no usable temporary folder: {error.strerror or error}", retryable=True
        ) from error
    try:
        yield folder
    finally:
        await _remove(folder)


async def _remove(folder: WorkFolder) -> None:
    try:
        for path in filter(None, (folder.out, folder.home, folder.place)):
            os.rmdir(path)  # noqa: PTH106 - most scripts leave nothing, and then this takes no thread
    except OSError:
        # In a thread, for a script can leave a million files; to the end, also when the call is cancelled meanwhile.
        place = folder.place
        removing = asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(place, ignore_errors=True))
        await asyncio.shield(removing)


MOST_FILES: Final = 100
"""Files that one call may leave."""
_CHUNK: Final = 1 << 20
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK: opening a pipe must not wait for its other end."""


def artifact_parameters(tool: ToolSpec) -> tuple[str, ...]:
    """Names of the parameters that take artifacts."""
    properties = tool.input_schema.get("properties")
    if not isinstance(properties, Mapping):
        return ()
    return tuple(name for name, one in properties.items() if isinstance(one, Mapping) and one.get("format") == FORMAT)


def with_files(
    arguments: Mapping[str, Any], names: Sequence[str], ctx: ToolContext, work: WorkFolder
) -> dict[str, Any]:
    """The arguments with the paths of copies in place of artifacts; to be called in a thread.

    Raises:
        ArtifactNotFound: there is no such artifact, or it is another caller's (ARTIFACT_NOT_FOUND).
        ToolFailed: there is no folder for them (TOOL_ERROR).
    """
    replaced = dict(arguments)
    for number, name in enumerate(names):
        link = replaced.get(name)
        if not isinstance(link, str):
            continue
        if not work.place:
            raise ToolFailed("there is no folder to put artifacts into", hint="call the tool through a host")
        folder = Path(work.given, str(number))
        folder.mkdir(parents=True, mode=0o700)
        facts = ctx.artifact_facts(link)
        path = folder / (facts["name"] or link.removeprefix(SCHEME))
        with path.open("xb") as file:
            for start in range(0, facts["size"], _CHUNK):
                file.write(ctx.read_artifact(link, start, _CHUNK))
        replaced[name] = str(path)
    return replaced


def with_links(value: Any, patterns: Sequence[str], ctx: ToolContext, work: WorkFolder) -> Any:
    """The answer with links to what the script left; to be called in a thread, when the script has ended.

    Args:
        patterns: names of the files to be kept, as in ``*.png``; none: all.

    Raises:
        ToolFailed: a declared file is missing, or something there is not a file (TOOL_ERROR).
        OutputTooLarge: too many files, or one that is larger than an artifact may be (OUTPUT_TOO_LARGE).
    """
    links = [] if not work.out else [ctx.keep(*one) for one in _kept_files(work.out, patterns)]
    if not links:
        return value
    text = value if isinstance(value, str) else to_json(value, inf_nan_mode="constants").decode()
    return ToolResult(True, value, content=({"type": "text", "text": text}, *links))


def _kept_files(out: str, patterns: Sequence[str]) -> Iterator[tuple[Iterator[bytes], str, str]]:
    """(bytes, media type, name) of each file in the folder.

    If the script replaced the folder by a link, that is not followed.
    """
    try:
        folder = os.open(out, _FOLDER)
    except OSError as error:
        raise ToolFailed(
            f"TAVERN_OUTPUT is not a folder any more: {error.strerror or error}", outcome="done"
        ) from error
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - of a descriptor
        missing = [
            pattern for pattern in patterns if not any(sign in pattern for sign in "*?[") and pattern not in names
        ]
        if missing:
            raise ToolFailed(
                f"the script left no file {missing[0]!r} in TAVERN_OUTPUT", hint="implementation.outputs says it does",
                outcome="done",
            )  # fmt: skip
        wanted = [name for name in names if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
        if len(wanted) > MOST_FILES:
            raise OutputTooLarge(
                f"the script left {len(wanted):,} files in TAVERN_OUTPUT; at most {MOST_FILES} are kept",
                hint="pack them into one, or declare implementation.outputs",
                outcome="done",
                limit=MOST_FILES,
            )
        for name in wanted:
            with _open(name, folder) as chunks:
                yield chunks, mimetypes.guess_type(name)[0] or "application/octet-stream", name
    finally:
        os.close(folder)


@contextmanager
def _open(name: str, folder: int) -> Iterator[Iterator[bytes]]:
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        raise ToolFailed(
            f"{name!r:.200} in TAVERN_OUTPUT cannot be kept: {error.strerror or error}", outcome="done"
        ) from error
    with ExitStack() as opened:
        opened.callback(os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ToolFailed(
                f"{name!r:.200} in TAVERN_OUTPUT is not a file",
                hint="leave files there, and no folders",
                outcome="done",
            )
        yield iter(lambda: os.read(descriptor, _CHUNK), b"")
