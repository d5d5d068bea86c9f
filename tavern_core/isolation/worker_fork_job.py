"""The fork server's job for workers of plugins.

    host ──(request, descriptors)──> fork server ──fork──> worker: confined first, then it runs the plugin
      ^                                   │
      └── its process id and handle, at last its exit status ──┘

The server has imported what a worker needs. It is started with a clean path and environment: no .pth file, variable or working
folder affects imports. Workers die with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NoReturn

from tavern_core.box.confine import PreparedBox, confine
from tavern_core.box.descriptor_passing import send
from tavern_core.box.fork_server import import_for_children
from tavern_core.box.policy import BoxPolicy, BoxUnavailable
from tavern_core.box.process_tree import die_with_parent
from tavern_core.errors import sayable
from tavern_core.isolation.transport import encode

CONFINED: Final = b"C"
NOT_CONFINED: Final = b"F"
"""First byte on the side channel: the worker is confined; or the box failed, and a frame says why."""

_MODULES: Final = (
    "asyncio", "concurrent.futures", "ctypes", "dataclasses", "decimal", "inspect", "json", "logging", "pydantic", "random",
    "tempfile", "typing", "uuid", "tavern_core.contract.hookspecs",
    "tavern_core.isolation.worker.main", "tavern_core.schema.signature",
)  # fmt: skip


class WorkerForkJob:
    """Descriptors of a request: status, output, side channel, first connection. See `fork_server.ForkJob`."""

    modules = _MODULES
    descriptors = 4
    idle_s = None
    ends_children = True
    reports = True

    def __init__(self) -> None:
        _use_once()
        self._policy: BoxPolicy | None = None

    def fork(self, request: bytes, descriptors: list[int], shed: Callable[[], None]) -> int:
        """Fork a worker."""
        asked = json.loads(request)
        import_for_children(asked["modules"])
        self._policy = policy = _policy(asked["policy"])
        server, prepared = os.getpid(), PreparedBox(policy)
        try:
            pid = os.fork()
            if pid == 0:
                _become_worker(asked, policy, prepared, descriptors, server, shed)
        finally:
            prepared.close()
        return pid

    def forked(self) -> None:
        """Write memory once for the next worker, because memory written after a fork is copied."""
        if self._policy is not None:
            PreparedBox(self._policy).close()


def _become_worker(
    asked: dict[str, Any],
    policy: BoxPolicy,
    prepared: PreparedBox,
    descriptors: list[int],
    server: int,
    shed: Callable[[], None],
) -> NoReturn:
    """The forked child: closes the resources of the server, is confined, runs the plugin. Never returns."""
    try:
        die_with_parent(server)
        shed()
        status, output, side, connection = descriptors
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for fd in (nothing, output, status):
            os.close(fd)
        os.chdir(asked["folder"])
        _confine(policy, prepared, side)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host handles Ctrl-C
        sys.path[:] = asked["path"]
        sys.dont_write_bytecode = True
        os.environ.clear()
        os.environ.update(asked["environment"])
        from tavern_core.isolation.worker.main import run

        run(socket.socket(fileno=side), socket.socket(fileno=connection), asked["longest"])
    except BaseException as error:  # noqa: BLE001 - no error may return into the server's code
        os.write(2, f"the worker could not start: {error!r}\n".encode("utf-8", "backslashreplace")[:4000])
    finally:
        os._exit(70)


def _confine(policy: BoxPolicy, prepared: PreparedBox, side: int) -> None:
    """Enter the box and report the applied layers; or report the error, and exit."""
    asking: list[int] = []
    try:
        layers = confine(policy, prepared=prepared, asking=asking.append)
    except Exception as error:  # noqa: BLE001 - a partial box is not a box
        layer, reason = (error.layer, error.reason) if isinstance(error, BoxUnavailable) else ("box", repr(error))
        os.write(side, NOT_CONFINED + encode({"layer": layer, "reason": sayable(reason)}))  # it is new and has space
        os._exit(0)
    with socket.socket(fileno=os.dup(side)) as line:
        send(line, CONFINED + encode({"layers": list(layers)}), asking)
    for descriptor in asking:
        os.close(descriptor)


@lru_cache(maxsize=64)
def _policy(text: str) -> BoxPolicy:
    """A cached policy, used whenever a worker is replaced."""
    return BoxPolicy.from_json(text)


def _use_once() -> None:
    """Run slow first-time code once, so that no worker pays for it."""
    from tavern_core.contract.tools import tool
    from tavern_core.kernel.plugins.tool_spec_reading import OfferingPlugin, describe

    @tool
    def warm(text: str, count: int = 1) -> list[str]:
        """Warm up."""
        return [text] * count

    describe([warm], OfferingPlugin("warm", "0", {}))
