"""The layers that this machine offers to this user: a short-lived process, which runs this file by its path, tries them once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

if __name__ == "__main__":  # without site-packages
    sys.path.append(__file__.rpartition("/tavern_core/")[0])

from tavern_core.box import landlock, namespaces, privileges, rlimits, seccomp
from tavern_core.box.policy import LANDLOCK, LAYERS, LIMITS, NAMESPACES, PRIVILEGES, PROCESSES, SECCOMP, BoxPolicy

_PATIENCE_S: Final = 20


@cache
def available_layers() -> Mapping[str, str]:
    """Layer → empty if it is available, else the reason.

    Every layer is really tried in its own process: even if the kernel has it, a container, a system policy or
    a limit may forbid it.
    """
    if not sys.platform.startswith("linux"):
        return dict.fromkeys(LAYERS, f"it needs Linux, this is {sys.platform}")
    command = [sys.executable, "-I", "-S", __file__]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=True)
        found = json.loads(done.stdout)
        return {layer: str(found[layer]) for layer in LAYERS}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        return dict.fromkeys(LAYERS, f"it could not be tried: {error}")


def print_probe() -> None:
    """The program of `available_layers`. It forks, so it needs its own process."""
    policy = BoxPolicy()
    steps: dict[str, Callable[[], object]] = {
        LIMITS: lambda: rlimits.apply(policy.limits),
        NAMESPACES: lambda: namespaces.apply(namespaces.IPC | namespaces.NET),
        PROCESSES: lambda: namespaces.apply(namespaces.PID),
        PRIVILEGES: privileges.apply,
        LANDLOCK: lambda: landlock.apply(policy),
        SECCOMP: lambda: seccomp.apply(policy),
    }
    print(json.dumps({layer: _try(steps[layer]) for layer in LAYERS}))


def _try(step: Callable[[], object]) -> str:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            step()
            result = ""
        except OSError as error:
            result = error.strerror or str(error)
        except BaseException as error:  # noqa: BLE001 - a forked copy reports any error and ends
            result = repr(error)
        os.write(writer, result.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:  # noqa: PTH123 - a descriptor
        result = answer.read().decode(errors="replace")
    status = os.waitpid(pid, 0)[1]
    return result if status == 0 else f"trying it ended with {status}"


if __name__ == "__main__":
    print_probe()
