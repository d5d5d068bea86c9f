"""The process in which a plugin is imported to see whether that ends well; run as a script by `probe.py`.

Reads what to import from stdin (JSON) and writes one line of JSON to the pipe that was its stdout. What the plugin prints goes
nowhere; what kills the process leaves a trace on stderr.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
from pathlib import Path

READY = b"!"


def main() -> None:
    """Import what stdin names and say how it went."""
    given = json.loads(sys.stdin.buffer.read())
    report = os.dup(1)
    os.set_inheritable(report, False)
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123 - a descriptor is wanted, nothing else
        os.dup2(nothing.fileno(), 1)
    faulthandler.enable()
    sys.path[:] = given["path"]
    me, forks = os.getpid(), []
    os.register_at_fork(before=lambda: forks.append(1))
    from tavern_core.kernel.life.plugin_code import FolderCode, PackageCode

    os.write(report, READY)  # from now on it is the plugin's own time
    before = threading.active_count()
    error = ""
    try:
        if given["module"]:
            PackageCode(given["module"]).load()
        else:
            FolderCode(given["name"], Path(given["folder"])).load()
    except BaseException as raised:  # noqa: BLE001 - told to whoever asked
        error = f"{type(raised).__name__}: {raised}"[:2000]
    if os.getpid() != me:
        os._exit(0)  # a copy that the plugin made of this process
    said = {"error": error, "forks": len(forks), "threads": threading.active_count() - before}
    os.write(report, json.dumps(said).encode() + b"\n")
    os._exit(0)  # threads and exit handlers of the plugin are not waited for


if __name__ == "__main__":
    main()
