"""The private folder of one script call: its home and its temporary files; removed when the call is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator

from tavern_core.contract.protocols import Sandbox
from tavern_core.errors import UpstreamError


@contextlib.asynccontextmanager
async def work_folder(sandbox: Sandbox | None) -> AsyncIterator[str]:
    """An empty folder of the host's user, or an empty name without a box.

    Raises:
        UpstreamError: none can be created (UPSTREAM_ERROR).
    """
    if sandbox is None or sandbox.level == "none":
        yield ""
        return
    try:
        folder = sandbox.work_folder()
    except OSError as error:
        raise UpstreamError(
            f"there is no usable temporary folder: {error.strerror or error}", retryable=True
        ) from error
    try:
        yield folder
    finally:
        await _removed(folder)


async def _removed(folder: str) -> None:
    try:
        os.rmdir(folder)  # noqa: PTH106 - most scripts leave nothing, and then no thread is needed
    except OSError:
        # In a thread, because a script can leave a million files; completely, even if the call is cancelled meanwhile.
        removing = asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(folder, ignore_errors=True))
        await asyncio.shield(removing)
