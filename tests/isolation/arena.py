"""Where attacks are tried: a program that forks one process for each, without a box and in it.

Reads one JSON object from stdin, ``{uid, policy, tries: [[name, code, is_boxed]], facts}``, prints ``{name: [without, within]}``:
empty for what worked, else why it did not. Everything is imported beforehand, for an ordinary user may not be able to read
the interpreter of this one.
"""

from __future__ import annotations

import asyncio
import ctypes
import encodings.idna  # noqa: F401 - looked for when the first name is connected to
import fcntl
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from typing import Any

from tavern_core.box import seccomp, syscalls
from tavern_core.box.confine import close_others, confine
from tavern_core.box.policy import BoxPolicy
from tavern_core.box.syscall_numbers import NUMBERS

COLUMN = 1 if syscalls.MACHINE == "aarch64" else 0
NR = {name: row[COLUMN] for name, row in NUMBERS.items()}
IN_REACH: dict[str, Any] = {
    "asyncio": asyncio, "ctypes": ctypes, "fcntl": fcntl, "mmap": mmap, "os": os, "resource": resource, "signal": signal,
    "socket": socket, "struct": struct, "threading": threading, "time": time, "prctl": syscalls.prctl, "NR": NR,
}  # fmt: skip


def syscall(number: int | None, *arguments: Any) -> int:
    """Call the kernel; a call that this architecture does not have is refused by it."""
    if number is None:
        raise OSError(38, "no such call here")
    return syscalls.syscall(number, *(a if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments))


def machine_code(code: bytes) -> None:
    """Run a few instructions."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()


def name_to_handle(path: str) -> None:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128))
    syscalls.syscall(
        NR["name_to_handle_at"], -100, ctypes.c_char_p(path.encode()), handle, ctypes.byref(ctypes.c_int()), 0
    )


def become(uid: int) -> None:
    if uid != os.geteuid():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        syscalls.prctl(4, 1)  # or its own files in /proc would belong to root


def attempt(code: str, facts: dict[str, Any], policy: BoxPolicy | None) -> str:
    """Try one thing in a process of its own, in an empty folder. Empty when it worked."""
    work = tempfile.mkdtemp(dir=facts["work"])
    facts = {**facts, "work": work, "name": work.rpartition("/")[2]}
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "it did not even begin"
        try:
            scope = {
                **IN_REACH,
                **facts,
                "syscall": syscall,
                "machine_code": machine_code,
                "name_to_handle": name_to_handle,
            }
            scope["inotify"] = syscall(NR["inotify_init1"], 0)
            scope["socket_pair"] = socket.socketpair()[0]
            scope["terminal"] = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
            scope["held"] = os.open(facts["secret"], os.O_RDONLY)
            scope["held_folder"] = os.open(facts["outside"], os.O_RDONLY)
            keep = [writer, scope["inotify"], scope["socket_pair"].fileno(), scope["terminal"]]
            os.chdir(facts["work"])
            if policy is not None:
                close_others(keep)
                said = f"confined by {confine(policy)}"
            exec(code, scope)
            said = ""
        except BaseException as error:
            said = (
                f"{type(error).__name__}: {error}"
                if isinstance(error, OSError | MemoryError | ValueError)
                else traceback.format_exc()
            )
        os.write(writer, said.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        said = answer.read().decode()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return said or ("" if status == 0 else f"status {status}")


def main() -> None:
    asked = json.load(sys.stdin)
    become(asked["uid"])
    policy = BoxPolicy.from_json(json.dumps(asked["policy"]))
    seccomp.prepare(policy)  # as who forks boxed processes does; test_seccomp.py: it is the filter that each would make
    victim = os.fork()
    if victim == 0:
        signal.pause()
        os._exit(0)
    facts = {**asked["facts"], "victim": victim}
    try:
        tried = {
            name: [attempt(code, facts, None) if is_tried else None, attempt(code, facts, policy)]
            for name, code, is_tried in asked["tries"]
        }
    finally:
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
    print(json.dumps(tried))


if __name__ == "__main__":
    main()
