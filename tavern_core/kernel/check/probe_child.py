"""The process in which imports are tried; run as a script by `probe.py`.

    stdin: one JSON line for each plugin to try  →  a copy of this process imports it  →  stdout: one JSON line with what came of it

It has imported what plugins need, so a copy is ready within milliseconds. A copy may crash, hang or end as it likes; what it
prints goes nowhere, what kills it leaves a trace. Ends with its stdin.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

READY: Final = b"!\n"
_TRACE_S: Final = 5.0
"""How long a hanging copy may take to say where it hangs."""
_LONGEST: Final = 65_536


def main() -> None:
    """Answer requests until stdin ends."""
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    import tavern_core.contract.hookspecs
    import tavern_core.contract.tools
    import tavern_core.kernel.life.plugin_code
    import tavern_core.schema.signature  # noqa: F401 - what nearly every plugin imports, so that copies need not

    os.write(answers, READY)
    for line in sys.stdin.buffer:
        answer = tried(json.loads(line), nothing)
        os.write(answers, json.dumps(answer).encode() + b"\n")


def tried(given: dict[str, Any], nothing: int) -> dict[str, Any]:
    """What came of one import, tried in a copy of this process."""
    told, tell = os.pipe()
    trace, traces = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.close(told)
        os.close(trace)
        _import(given, tell, traces, nothing)
    os.close(tell)
    os.close(traces)
    said, last_words, is_late = _read(copy, told, trace, float(given["seconds"]))
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(copy, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(copy, signal.SIGKILL)
    _, status = os.waitpid(copy, 0)
    os.close(told)
    os.close(trace)
    return {
        "said": said.decode("utf-8", "replace"), "trace": last_words.decode("utf-8", "replace"), "late": is_late,
        "code": os.waitstatus_to_exitcode(status),
    }  # fmt: skip


def _read(copy: int, told: int, trace: int, seconds: float) -> tuple[bytes, bytes, bool]:
    """What a copy said, and what it left on its stderr, until it ended or its time was over."""
    said, last_words = b"", b""
    deadline, is_late = time.monotonic() + seconds, False
    open_ends = {told, trace}
    while told in open_ends:  # its children may hold the other end open for ever
        ready = select.select(list(open_ends), [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready:
            if is_late:
                break
            is_late, deadline = True, time.monotonic() + _TRACE_S
            with suppress(ProcessLookupError):
                os.kill(copy, signal.SIGABRT)
            continue
        for end in ready:
            data = os.read(end, _LONGEST)
            if not data:
                open_ends.discard(end)
            elif end == told:
                said = (said + data)[:_LONGEST]
            else:
                last_words = (last_words + data)[:_LONGEST]
        if said.endswith(b"\n"):
            break
    while trace in open_ends and select.select([trace], [], [], 0.0)[0]:
        data = os.read(trace, _LONGEST)
        if not data:
            break
        last_words = (last_words + data)[:_LONGEST]
    return said, last_words, is_late


def _import(given: dict[str, Any], tell: int, traces: int, nothing: int) -> None:
    """In the copy: import the plugin, say how it went, and end."""
    with suppress(OSError):
        os.setsid()
    for stream, end in ((0, nothing), (1, nothing), (2, traces)):
        os.dup2(end, stream)
    faulthandler.enable()
    sys.path[:] = given["path"]
    me, forks = os.getpid(), []
    os.register_at_fork(before=lambda: forks.append(1))
    from tavern_core.kernel.life.plugin_code import FolderCode, PackageCode

    uses: list[dict[str, Any]] = []
    hooks: list[tuple[str, str]] = []
    if given.get("guarded"):
        _listen(given["folder"], uses)
    before = threading.active_count()
    error = ""
    try:
        code = PackageCode(given["module"]) if given["module"] else FolderCode(given["name"], Path(given["folder"]))
        module = code.load()
        if given.get("guarded"):
            hooks += _hooks(module, given["name"])
    except BaseException as raised:  # noqa: BLE001 - told to whoever asked
        error = f"{type(raised).__name__}: {raised}"[:2000]
    if os.getpid() != me:
        os._exit(0)  # a copy that the plugin made of this process
    said = {"error": error, "forks": len(forks), "threads": threading.active_count() - before, "uses": uses, "hooks": hooks}
    while len(line := json.dumps(said).encode()) >= _LONGEST and uses:
        uses.pop()
    os.write(tell, line + b"\n")
    os._exit(0)  # threads and exit handlers of the plugin are not waited for


def _hooks(module: object, name: str) -> list[tuple[str, str]]:
    """The hooks that the imported module implements, and where; also those that no reader of its source sees."""
    from tavern_core.kernel.hooks.table import read_implementations

    return [(found.hook.name, found.where) for found in read_implementations(module, name)]


def _listen(folder: str, uses: list[dict[str, Any]]) -> None:
    """Put the audit guard on; it adds to `uses`."""
    from tavern_core.kernel.tracing.guard import Guard
    from tavern_core.kernel.tracing.spelling import Spelling
    from tavern_core.kernel.tracing.stack import Stack

    Guard(Stack(folder), Spelling(folder), lambda use: uses.append(use.to_json())).start()


if __name__ == "__main__":
    main()
