"""The process that starts programs (scripts of tools, code) and sees to it that nothing of them stays behind. A program of its own.

    host ──(argv, environment, five descriptors)──> keeper ──fork──> guard ──exec──> script ──> whatever it starts
      ^                                                                │
      └──────── "taken", "started", "ended <status> <why>" ────────────┘

Why not kill the process group? A grandchild that called `setsid` is in no group of ours, and once its parent has ended
nothing of it points back to the call. Here each script has a guard that is a *child subreaper*: whatever loses its parent
becomes the guard's child. The guard kills its children until it has none; no descendant can slip away, as root or as
anybody. A guard that is killed hands its children on to the keeper, which kills them too.

Why a keeper? A guard forked from this small warm process costs about a millisecond; a fresh interpreter costs ten.

The guard watches its descriptor to the host: the word "stop" ends the script politely, "kill" or the end of the host at
once. It also watches the time, so that a host whose event loop is stuck cannot prolong a script's life.

A guard puts its script into the box that the request describes (`tavern_core/box`). Where the system has PID namespaces the guard
is forked as number 1 of one: then whatever is in it is the guard's to kill at once, and the kernel's when the guard ends.

Runs with ``python -I -S``, imports only the standard library and the box, and never reads what a script says.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

if __name__ == "__main__":  # run by its path, without site-packages
    sys.path.append(__file__.rpartition("/tavern_core/")[0])

if TYPE_CHECKING:
    from tavern_core.box.listener import Listener
    from tavern_core.box.policy import BoxPolicy
    from tavern_core.box.program import Ending, Started

GRACE_S = 0.1
"""Between SIGTERM and SIGKILL. Less than the host waits for cancelled work (0.25 s)."""
GIVE_UP_S = 5.0
"""After this long with children that cannot be killed (stuck in the kernel, or of another user) the guard reports them."""
LARGEST_REQUEST = 192_000
_EVERYBODY = -1
_MOST_DESCRIPTORS = 1 << 20
_REAPED_AT_ONCE = 1000
_PR_SET_CHILD_SUBREAPER = 36
_RECEIVE = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGXFSZ)


def main(control: socket.socket) -> None:
    """Fork a guard for each request until the host is gone."""
    # What the host left inheritable is none of a script's business.
    os.closerange(control.fileno() + 1, _MOST_DESCRIPTORS)
    os.chdir("/")  # the folder the host was started in can be removed
    # A script's memory holds secrets. Not 0: for that a core handler behind a pipe is run all the same, for 1 it is not.
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    become_subreaper()
    wake = wake_on_children()
    guards: set[int] = set()
    while True:
        wait_for([control, wake])
        reap(guards, wake)
        try:
            body, descriptors = receive(control)
        except BlockingIOError:
            continue
        if not body:
            return
        if len(descriptors) == 5:  # fewer when our own descriptors are used up: the host hears nothing and tries again
            guard = start_guard(control, body, descriptors)
            guards.add(guard)
        for descriptor in descriptors:
            os.close(descriptor)


def start_guard(control: socket.socket, body: bytes, descriptors: list[int]) -> int:
    """Fork a guard for one request. Returns its process id, 0 when there can be no more processes."""
    status = descriptors[3]
    request = json.loads(body)
    with open(descriptors.pop(), encoding="utf-8") as rules:  # noqa: PTH123
        policy = rules.read()
    request["policy"] = warmed_up(policy) if policy else None
    with contextlib.suppress(OSError):
        os.write(status, b"taken")  # without this word the host knows that nothing was run
    user = os.geteuid(), os.getegid()
    try:
        pid, is_init = fork_guard(request["policy"])
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(status, f"failed {error.errno}".encode())
        return 0
    if pid == 0:
        control.close()
        guard_script(request, descriptors, user if is_init else None)
    return pid


def fork_guard(policy: BoxPolicy | None) -> tuple[int, bool]:
    """(process id, 0 in the guard; whether the guard is number 1 of namespaces of its own).

    Raises:
        OSError: there can be no more processes.
    """
    if policy is not None:
        from tavern_core.box import program

        with contextlib.suppress(OSError):  # the guard finds out what is missing
            return program.fork_init(policy), True
    return os.fork(), False


def warmed_up(rules: str) -> BoxPolicy:
    """Import and work out here, once, what the guards need that are forked from this process. Returns the policy."""
    from tavern_core.box import program
    from tavern_core.box.policy import BoxPolicy

    policy = BoxPolicy.from_json(rules)
    program.warm(policy)
    gc.freeze()  # nothing of it is written to only to be counted
    return policy


def receive(line: socket.socket, size: int = LARGEST_REQUEST, most: int = 5) -> tuple[bytes, list[int]]:
    """A message and its descriptors; of a request: three streams, the status, the policy of the box.

    By hand: `socket.recv_fds` of Python 3.11 ignores its flags.

    Args:
        size: bytes of the longest message.
        most: descriptors that come with one.

    Raises:
        BlockingIOError: there is none.
    """
    numbers = array.array("i")
    body, ancillary, _, _ = line.recvmsg(size, socket.CMSG_LEN(most * numbers.itemsize), _RECEIVE)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return body, list(numbers)


def reap(guards: set[int], wake: int) -> None:
    """Take note of ended guards; kill what a guard that was itself killed left to us."""
    drain(wake)
    while (ended := next_ended()) is not None:
        guards.discard(ended[0])
    for child in children():
        if child not in guards:
            kill(child)


def guard_script(request: dict[str, Any], descriptors: list[int], init: tuple[int, int] | None) -> NoReturn:
    """Start one script, wait for its end or for a reason to end it, kill what is left, report.

    Args:
        init: this is number 1 of namespaces of its own, and was this user and group outside; None: it is not.
    """
    status = socket.socket(fileno=descriptors[3])
    os.setsid()  # a script that kills its guard's process group hits no other call
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a script may still send to number 1 of its namespace
    become_subreaper()  # not inherited from the keeper
    wake = wake_on_children()
    boxed = None
    try:
        os.chdir(request["cwd"])
        if request["policy"] is not None:
            boxed = start_boxed(request, descriptors, status, init)
            script = boxed.pid
        else:
            script = start(request, descriptors)
    except OSError as error:
        say(status, f"failed {error.errno or 0}")
        os._exit(0)
    for descriptor in descriptors[:3]:
        os.close(descriptor)
    say(status, f"started {script}")
    code, why = watch(script, status, wake, request["seconds"])
    if why in ("stop", "time"):
        code = end_politely(script, status, wake)
    code, left = end_all(script, code, wake, is_init=init is not None)
    if boxed is not None:
        code = tell_of_box(boxed.ending(code), status)
    say(status, f"ended {code} {why or 'exit'} {left}")
    os._exit(0)


def start_boxed(
    request: dict[str, Any], descriptors: list[int], status: socket.socket, init: tuple[int, int] | None
) -> Started:
    """As `start`, in a box. Ends this process when a layer is required that is not there."""
    from tavern_core.box import policy, program

    streams = descriptors[0], descriptors[1], descriptors[2]
    what = program.Program(request["argv"], request["env"], request["cwd"], streams)
    try:
        if init is not None:
            started = program.start_as_init(request["policy"], what, init)
        else:
            started = program.start(request["policy"], what)
    except policy.BoxUnavailable as error:
        say(status, f"boxless {error.layer} {error.reason}")
        os._exit(0)
    if started.gateway is not None:
        hand_over(started.gateway, status)
    if started.asking >= 0:  # where that fails nothing is written: there is nobody to ask
        with contextlib.suppress(OSError):
            socket.send_fds(status, [b"asking"], [started.asking])
        os.close(started.asking)
    return started


def hand_over(gateway: Listener, status: socket.socket) -> None:
    """Give the socket to the host, which serves it; the script finds nobody there when that fails."""
    with gateway.socket as listening, contextlib.suppress(OSError):
        socket.send_fds(status, [f"gateway {gateway.token}".encode()], [listening.fileno()])


def tell_of_box(ending: Ending, status: socket.socket) -> int:
    """Tell what kept the script from running, which ends this process, or what it ran without. Returns its wait status."""
    if ending.missing is not None:
        say(status, f"boxless {ending.missing[0]} {ending.missing[1]}")
        os._exit(0)
    if ending.errno:
        say(status, f"failed {ending.errno}")
        os._exit(0)
    if ending.skipped:
        say(status, f"weak {json.dumps(dict(ending.skipped))}")
    return ending.status


def start(request: dict[str, Any], descriptors: list[int]) -> int:
    """Run the script in a session of its own, with three descriptors and nothing else of ours."""
    actions = [(os.POSIX_SPAWN_DUP2, descriptors[number], number) for number in range(3)]
    argv = [os.fsencode(word) for word in request["argv"]]
    environment = {os.fsencode(name): os.fsencode(value) for name, value in request["env"].items()}
    return os.posix_spawn(
        argv[0], argv, environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_DEFAULT_SIGNALS
    )


def watch(script: int, status: socket.socket, wake: int, seconds: float) -> tuple[int | None, str]:
    """Wait for the script's end, the host's word, or the end of the time.

    Returns:
        (the wait status or None while it runs, why it must end: ``""``, ``stop``, ``time`` or ``kill``).
    """
    deadline = time.monotonic() + seconds
    while True:
        readable = wait_for([status, wake], max(0.0, deadline - time.monotonic()))
        if (code := look_for(script, wake)) is not None:
            return code, ""
        if status in readable:
            return None, "stop" if hear(status) == b"stop" else "kill"
        if time.monotonic() >= deadline:  # whatever was readable: a storm of ending children must not stop the clock
            return None, "time"


def end_politely(script: int, status: socket.socket, wake: int) -> int | None:
    """SIGTERM to the script's own group and a moment to tidy up. Returns its wait status when it ended."""
    with contextlib.suppress(OSError):
        os.killpg(script, signal.SIGTERM)
    return watch(script, status, wake, GRACE_S)[0]


def end_all(script: int, code: int | None, wake: int, *, is_init: bool) -> tuple[int, int]:
    """Kill children until there are none. Returns (the script's wait status, how many could not be killed).

    Args:
        is_init: this process is number 1: one call reaches every other one of its namespace, and nobody forks away from it.
    """
    deadline = time.monotonic() + GIVE_UP_S
    while is_init:
        kill(_EVERYBODY)
        try:
            while (one := os.waitpid(-1, os.WNOHANG))[0]:
                code = one[1] if one[0] == script else code
        except ChildProcessError:
            return code if code is not None else -1, 0
        if time.monotonic() > deadline:
            return code if code is not None else -1, 1
        drain(wake)
        wait_for([wake], 0.05)
    while True:
        # Only direct children are killed: their ids cannot be reused before we reap them, and when they are dead their
        # own children become ours. So the loop reaches every depth and never hits a stranger.
        for child in children():
            kill(child)
        if (ended := look_for(script, wake)) is not None:
            code = ended
        left = children()
        if not left or time.monotonic() > deadline:
            return code if code is not None else -1, len(left)
        wait_for([wake], 0.05)


def wait_for(sources: list[Any], seconds: float | None = None) -> list[Any]:
    """Those of `sources` that can be read, as soon as one can or the time is over."""
    return select.select(sources, [], [], seconds)[0]


def look_for(script: int, wake: int) -> int | None:
    """Reap everything that ended; the wait status of the script when it was among it."""
    drain(wake)
    found = None
    for _ in range(_REAPED_AT_ONCE):
        if (ended := next_ended()) is None:
            break
        if ended[0] == script:
            found = ended[1]
    return found


def next_ended() -> tuple[int, int] | None:
    """(process, wait status) of a child that ended; None when there is none at the moment."""
    try:
        pid, code = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, code) if pid else None


def children() -> list[int]:
    """The ids of our direct children, zombies included."""
    me = os.getpid()
    try:
        with open(f"/proc/self/task/{me}/children", "rb") as listing:  # noqa: PTH123 - pathlib costs a warm start 3 ms
            return [int(word) for word in listing.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(pid) == me]  # noqa: PTH208


def parent_of(pid: int) -> int:
    """The parent of a process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def kill(pid: int) -> None:
    with contextlib.suppress(OSError):  # gone already, or of another user: `end_all` counts what is left
        os.kill(pid, signal.SIGKILL)


def become_subreaper() -> None:
    """From now on descendants that lose their parent become our children."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def wake_on_children() -> int:
    """A descriptor that becomes readable whenever a child ends."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def hear(status: socket.socket) -> bytes:
    """A word from the host; empty when the host is gone."""
    try:
        return status.recv(16)
    except OSError:
        return b""


def say(status: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError):  # the host is gone and nobody listens; the killing goes on
        status.send(text.encode())


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
