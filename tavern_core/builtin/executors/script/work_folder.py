"""The folders that one call of a script has to itself; gone when the call is over.

home    its home and its temporary files, empty at first
out     what it leaves here is kept as artifacts of the caller (`script_artifacts.py`)
in      artifacts that it was given; only where there are some
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator

from tavern_core.contract.protocols import Sandbox
from tavern_core.errors import UpstreamError
from tavern_core.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """Paths; empty outside of a host."""

    place: str = ""
    home: str = ""
    """Empty where there is no box: the script sees the host's own home."""
    out: str = ""

    @property
    def given(self) -> str:
        """Where artifacts are put that the script is given; made by who needs it."""
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
        await _removed(folder)


async def _removed(folder: WorkFolder) -> None:
    try:
        for path in filter(None, (folder.out, folder.home, folder.place)):
            os.rmdir(path)  # noqa: PTH106 - most scripts leave nothing, and then this takes no thread
    except OSError:
        # In a thread, for a script can leave a million files; to the end, also when the call is cancelled meanwhile.
        place = folder.place
        removing = asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(place, ignore_errors=True))
        await asyncio.shield(removing)
