"""The fork server's job for import probes: a copy of a process that has loaded what nearly every plugin imports.

    host ──(request, descriptors)──> fork server ──fork──> copy: imports the plugin
      ^                                                      │
      └────────────── one JSON line: the result ─────────────┘

A copy may crash, hang or end. It dies with the server, which kills everything that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, Final, NoReturn

from tavern_core.box.confine import close_others
from tavern_core.box.fork_server import import_for_children
from tavern_core.box.policy import BoxLimits
from tavern_core.box.process_tree import die_with_parent
from tavern_core.box.rlimits import apply

EARLY: Final = (
    "tavern_core.contract.hookspecs",
    "tavern_core.contract.tools",
    "tavern_core.review.probe_import",
)
FAMILIES: Final = ("asyncio", "pydantic", "tavern_core")
"""Modules of these packages that a copy needed are loaded here before the next fork."""
IDLE_S: Final = 20.0
"""After this long without a request the server ends."""
_MEMORY: Final = max(1 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
"""Bytes that a copy may use: half of the machine's memory."""


class ProbeForkJob:
    """Descriptors of a request: status, report, trace of a crash. See `fork_server.ForkJob`."""

    modules = EARLY
    descriptors = 3
    idle_s = IDLE_S
    ends_children = True
    reports = True

    def fork(self, request: bytes, descriptors: list[int], shed: Callable[[], None]) -> int:
        """Fork a copy."""
        asked, server = json.loads(request), os.getpid()
        import_for_children(name for name in asked["needed"] if name.partition(".")[0] in FAMILIES)
        pid = os.fork()
        if pid == 0:
            _become_copy(asked, server, shed, *descriptors[1:])
        return pid

    def forked(self) -> None:
        """Nothing to do."""


def _become_copy(asked: dict[str, Any], server: int, shed: Callable[[], None], report: int, traces: int) -> NoReturn:
    """In the copy: close the resources of the server, then import."""
    try:
        die_with_parent(server)
        shed()
        os.dup2(0, 2)  # its output is discarded
        close_others((report, traces))
        os.setsid()
        apply(BoxLimits(_MEMORY, is_address_space=False, open_files=None, processes=None, file_bytes=None))
        with contextlib.suppress(OSError):
            score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
            os.write(score, b"1000")  # if the machine runs out of memory, this process ends first
            os.close(score)
        from tavern_core.review.probe_import import import_plugin

        import_plugin(asked, report, traces, _MEMORY, FAMILIES)
    except BaseException as error:  # noqa: BLE001 - no plugin code has run yet, so it is not its fault
        os.write(report, json.dumps({"broken": str(error)[:2000]}).encode() + b"\n")
    finally:
        os._exit(0)
