"""Imports one plugin in its own process and reports the result. Never returns.

The import sees the host's environment, path, working folder and command line. Its output is discarded; a crash
leaves a trace.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import sys
import threading
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NoReturn

from tavern_core.kernel.plugins.plugin_code import FolderCode, PackageCode, handler_in

_LONGEST: Final = 65_536


def import_plugin(asked: dict[str, Any], report: int, traces: int, memory: int, families: Sequence[str]) -> NoReturn:
    """Import what `asked` names, report the result, and exit.

    Args:
        report: the descriptor of the report: one JSON line.
        traces: the descriptor of a crash's trace.
        memory: bytes that this process may use.
        families: packages whose needed modules are reported.
    """
    faulthandler.enable(traces)
    loaded = len(sys.modules)
    _as_in_the_host(asked)
    me, forks = os.getpid(), list[int]()
    os.register_at_fork(before=lambda: forks.append(1))
    uses: list[dict[str, Any]] = []
    hooks: list[tuple[str, str]] = []
    if asked["guarded"]:
        _listen(asked["folder"], uses)
    threads = threading.active_count()
    error, greed = "", ""
    try:
        thing = _imported(asked)
        if asked["guarded"]:
            hooks += _hooks(thing, asked["name"])
    except BaseException as raised:  # noqa: BLE001 - reported to the caller
        if isinstance(raised, MemoryError) or (isinstance(raised, OSError) and raised.errno == errno.ENOMEM):
            greed = f"it takes more than {memory >> 20} MiB of memory"
        else:
            error = _report(raised)
    if os.getpid() != me:
        os._exit(0)  # a fork of this process by the plugin
    result = {"error": error, "greed": greed, "forks": len(forks), "threads": threading.active_count() - threads, "uses": uses, "hooks": hooks,
              "needed": _added(loaded, families)}  # fmt: skip
    while len(line := json.dumps(result).encode()) >= _LONGEST and (uses or result["needed"]):
        result["needed"] = []
        del uses[-1:]
    os.write(report, line + b"\n")
    os._exit(0)  # without waiting for threads and exit handlers of the plugin


def _as_in_the_host(asked: dict[str, Any]) -> None:
    environment = asked["environment"]
    if os.environ != environment:  # it is usually unchanged, and each change costs
        os.environ.clear()
        os.environ.update(environment)
    sys.path[:] = asked["path"]
    sys.argv[:] = asked["argv"]
    sys.dont_write_bytecode = asked["no_bytecode"]
    sys.pycache_prefix = asked["bytecode"]
    with contextlib.suppress(OSError):  # removed meanwhile, so the host has none either
        os.chdir(asked["cwd"])


def _imported(asked: dict[str, Any]) -> Any:
    """Import everything that a host would: the package, what is below `nodes.entry`, and the modules of handlers."""
    name, folder = asked["name"], Path(asked["folder"]) if asked["folder"] else None
    code = PackageCode(asked["module"]) if asked["module"] else FolderCode(name, folder)
    thing = code.load() if asked["has_code"] else None
    if asked["nodes"]:
        from tavern_core.kernel.nodes.node_discovery import nodes_in

        nodes_in(thing, folder, asked["nodes"], name)
    for handler in asked["handlers"]:
        try:
            handler_in(thing, handler, name)
        except Exception:  # noqa: BLE001, S110 - the real import reports it; try the others
            pass
    return thing


def _added(loaded: int, families: Sequence[str]) -> list[str]:
    """The modules of these packages that are new; only the new ones are accessed, because accessing an old one copies memory."""
    new = list(islice(reversed(sys.modules), max(0, len(sys.modules) - loaded)))
    return [
        name
        for name in reversed(new)
        if isinstance(name, str) and name.partition(".")[0] in families and name != "tavern_core.__main__"
    ]


def _report(raised: BaseException) -> str:
    try:
        return f"{type(raised).__name__}: {raised}"[:2000]
    except BaseException:  # noqa: BLE001 - its `__str__` is the plugin's code, too
        return type(raised).__name__


def _hooks(module: object, name: str) -> list[tuple[str, str]]:
    """The hooks that the imported module implements, with their places; also those that its source does not show."""
    from tavern_core.kernel.hooks.table import read_implementations

    return [(found.hook.name, found.where) for found in read_implementations(module, name)]


def _listen(folder: str, uses: list[dict[str, Any]]) -> None:
    """Install the audit guard; it adds to `uses`."""
    from tavern_core.review.audit.attribution import StackAttribution
    from tavern_core.review.audit.guard import AuditGuard
    from tavern_core.review.audit.path_names import PathNames

    AuditGuard(StackAttribution(folder), PathNames(folder), lambda use: uses.append(use.to_json())).start()
