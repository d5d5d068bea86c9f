"""The folder that one call of a script has to itself: its home, its temporary files; gone when the call is over."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def work_folder(*, is_wanted: bool) -> AsyncIterator[str]:
    """An empty folder of the host's user, or an empty name when none is wanted."""
    if not is_wanted:
        yield ""
        return
    folder = tempfile.mkdtemp(prefix="tavern-")
    try:
        yield folder
    finally:
        # In a thread, for a script can leave a million files; to the end, also when the call is cancelled meanwhile.
        removing = asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(folder, ignore_errors=True))
        await asyncio.shield(removing)
