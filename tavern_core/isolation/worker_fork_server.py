"""The fork server of workers: started with the first worker, shared by all hosts of the process."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tavern_core.box.fork_server_client import ForkedChild, ForkServer, ForkServerGone, by_import
from tavern_core.errors import PluginError
from tavern_core.package_location import module_path

PASSED: Final = frozenset({"LANG", "LANGUAGE", "PATH", "PYDANTIC_DISABLE_PLUGINS", "TZ"})
"""Variables of the host's environment that workers get; also ``LC_*``."""
START_S: Final = 30.0
"""Time in seconds in which the fork server must start, and fork."""


class WorkerServer:
    """`use` and `leave` count its users; it ends with the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._owner = os.getpid()
        self._server = ForkServer(
            lambda: by_import(
                ["-I", "-S", "-X", "utf8"], module_path(), "tavern_core.isolation.worker_fork_job:WorkerForkJob"
            ),
            lambda: environment(("LD_LIBRARY_PATH",)),  # some interpreters need it to start; workers do not get it
        )

    @property
    def pid(self) -> int | None:
        """Its process id if it runs."""
        return self._server.pid

    def use(self) -> None:
        """Register another host that needs it."""
        with self._lock:
            self._users = 1 + self._users_here()

    def leave(self) -> None:
        """Unregister a host that does not need it any more."""
        with self._lock:
            self._users = max(0, self._users_here() - 1)
            if self._users == 0:
                self._server.close()

    def spawn(self, request: Mapping[str, Any], fds: Sequence[int]) -> ForkedChild:
        """Fork a worker. A fork server that has died is replaced.

        Args:
            fds: output, side channel, connection; they stay open here.

        Raises:
            PluginError: no process can be started (PLUGIN_FAILED).
        """
        try:
            return self._server.fork(fds, json.dumps(request).encode(), START_S)
        except ForkServerGone as error:
            raise PluginError(f"the fork server did not start: {error}", hint="tavern doctor") from error
        except OSError as error:
            raise PluginError(
                f"no worker could be forked: {error.strerror or error}",
                hint="too many processes, or too little memory?",
            ) from error

    def _users_here(self) -> int:
        """The number of users in this process: a forked copy starts over, because that server belongs to its parent."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            return 0
        return self._users


worker_server: Final = WorkerServer()
"""The instance of this process."""


def environment(more: Iterable[str] = ()) -> dict[str, str]:
    """The passed variables of the host's environment: an allow list.

    Args:
        more: further names; unset ones are left out.
    """
    wanted = PASSED.union(more)
    return {name: value for name, value in os.environ.items() if name in wanted or name.startswith("LC_")}
