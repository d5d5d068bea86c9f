"""Run a program in a box, in its own process tree, which ends as a whole.

    the starter      ──fork──> init (process 1 of a PID namespace) ──fork──> the program ──> its processes
      ^                           │
      └─── how it ended ──────────┘

When init ends, the kernel ends every process of the namespace; `setsid` or double forks do not help. Init ends when
the program ends, and when the starter ends. Without PID namespaces the program is started directly.

A process that is only forked to watch over a program (the guard of a script) becomes init itself, which saves two processes and half
the time: `fork_init`, then `start_as_init` in the copy.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

from tavern_core.box import landlock, namespaces, privileges, rlimits, seccomp
from tavern_core.box.confine import apply_layers, close_others, require_one_thread
from tavern_core.box.egress_proxy_socket import EgressListener, listen
from tavern_core.box.namespaces import own_places
from tavern_core.box.policy import (
    LANDLOCK,
    LIMITS,
    NAMESPACES,
    PRIVILEGES,
    PROCESSES,
    SECCOMP,
    BoxPolicy,
    BoxUnavailable,
)
from tavern_core.box.syscalls import MACHINE, fork_into, prctl, unshare
from tavern_core.box.write_broker import judges

_SET_PDEATHSIG: Final = 1
_LARGEST_REPORT: Final = 65_536
_DEFAULT_SIGNALS: Final = (signal.SIGPIPE, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGXFSZ)


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """The end of a program."""

    status: int = 0
    """Wait status."""
    errno: int = 0
    """Why it could not be run; 0 if it was."""
    missing: tuple[str, str] | None = None
    """(layer, reason) if the box could not be created and nothing ran."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Layer → why the program ran without it, if the level allowed that."""


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """A started program."""

    pid: int
    """The child to wait for and to send signals to: init, which forwards SIGTERM, or the program itself."""
    report: int = -1
    """Reports the end of init or the program; -1: its wait status is enough."""
    gateway: EgressListener | None = None
    """The gateway, to pass to its server and to close here."""
    asking: int = -1
    """Descriptor on which the host decides about writes (`write_broker.py`); handled in the same way."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Layer → why it runs without it, as far as known."""

    def ending(self, status: int) -> ProgramExit:
        """The program's end; call it once, after the child `pid` has ended.

        Args:
            status: the wait status of `pid`.
        """
        if self.report < 0:
            return ProgramExit(status, skipped=self.skipped)
        try:
            report = os.read(self.report, _LARGEST_REPORT)
        except BlockingIOError:
            report = b""
        os.close(self.report)
        reported: dict[str, Any] = {}
        for line in report.splitlines():
            reported.update(json.loads(line))
        if "layer" in reported:
            return ProgramExit(missing=(reported["layer"], reported["reason"]))
        if "errno" in reported:
            return ProgramExit(errno=reported["errno"])
        return ProgramExit(reported.get("status", status), skipped=reported.get("skipped", {}))


def warm(policy: BoxPolicy) -> None:
    """Compute what forked processes can share."""
    if MACHINE in seccomp.MACHINES:
        seccomp.assemble(policy, MACHINE, 0, is_program=True, asks=judges(policy))


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run."""

    argv: Sequence[str]
    """The absolute path of the program first."""
    environment: Mapping[str, str]
    folder: str
    """Working directory."""
    streams: tuple[int, int, int] = (0, 1, 2)
    """The descriptors for its first three; it gets no others."""


def start(policy: BoxPolicy, program: Program) -> StartedProgram:
    """Fork a program into its box. The calling process changes its own namespaces; it should exist only for this.

    Raises:
        BoxUnavailable: the level is ``required`` and namespaces are missing (PLUGIN_FAILED). `StartedProgram.ending` reports the
            other missing layers.
        OSError: no more processes or descriptors.
    """
    layers, skipped, gateway = _namespaces(policy)
    if gateway is not None:
        program = replace(program, environment={**program.environment, **gateway.environment()})
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reader, False)
    try:
        pid = os.fork()
        if pid == 0:
            port = gateway.port if gateway is not None and NAMESPACES not in layers else None
            _child(policy, layers, skipped, program, writer, port)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return StartedProgram(pid, reader, gateway)


def fork_init(policy: BoxPolicy) -> int:
    """Fork the calling process into new namespaces, where the copy is process 1 and starts the program with `start_as_init`.

    In one step: `start` needs one more process, and changes its caller.

    Returns:
        The process id; 0 in the copy.

    Raises:
        OSError: not on this machine, not for this user or not with this policy; `start` reports the reason.
    """
    may_start = policy.may_fork or policy.may_execute  # else the confined copy could not start anything
    if (
        policy.level == "none"
        or not may_start
        or {NAMESPACES, PROCESSES}.intersection((*policy.without, *policy.left_out))
    ):
        raise OSError(errno.ENOTSUP, "only for a program that may start others, with all namespaces")
    require_one_thread()
    return fork_into(namespaces.USER | namespaces.PID | namespaces.MOUNT | namespaces.unshare_flags(policy))


def start_as_init(policy: BoxPolicy, program: Program, user: tuple[int, int]) -> StartedProgram:
    """Start a program from the process of `fork_init`. When that process ends, the kernel ends all of its descendants.

    The process confines itself permanently, and its children with it: no process is forked only to be confined.

    Args:
        user: the user and group ids of the process outside.

    Raises:
        BoxUnavailable: the level is ``required`` and a layer is missing (PLUGIN_FAILED).
        OSError: the program cannot run, or no process can be created.
    """
    opened: EgressListener | None = None

    def own_namespaces() -> None:
        nonlocal opened
        namespaces.map_user(*user)
        opened = _gateway(policy, has_own_network=True)

    skipped = apply_layers(policy, [(NAMESPACES, own_namespaces)])[1]
    has_namespaces, private_places = not skipped, own_places(policy)
    gateway = opened or _gateway(policy, has_own_network=False)
    environment = {**program.environment, **(gateway.environment() if gateway is not None else {})}
    os.chdir(program.folder)
    with contextlib.suppress(OSError):
        privileges.apply()  # no process inside may read this one's memory
    asking: list[int] = []
    skipped |= _confine(
        policy, has_namespaces=has_namespaces, own=private_places, asking=asking if judges(policy) else None
    )
    pid = spawn(replace(program, environment=environment))
    return StartedProgram(pid, gateway=gateway, asking=asking[0] if asking else -1, skipped=skipped)


def spawn(program: Program) -> int:
    """Start a program in its own session as this process is now; returns its process id. Raises OSError: it cannot run."""
    streams = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(program.streams)]
    return os.posix_spawn(
        program.argv[0], list(program.argv), program.environment, file_actions=streams, setsid=True, setsigmask=(),
        setsigdef=_DEFAULT_SIGNALS,
    )  # fmt: skip


def _namespaces(policy: BoxPolicy) -> tuple[tuple[str, ...], dict[str, str], EgressListener | None]:
    """Enter them, and open the gateway in them. Returns (applied layers, layer → why it is missing, the gateway)."""
    opened: EgressListener | None = None
    if policy.level == "none":
        return (), {}, _gateway(policy, has_own_network=False)
    require_one_thread()
    done: list[str] = []

    def own_processes() -> None:
        if done:
            unshare(namespaces.PID)
        else:
            namespaces.apply(namespaces.PID)

    def own_namespaces() -> None:
        nonlocal opened
        namespaces.apply(namespaces.unshare_flags(policy))
        done.append(NAMESPACES)
        opened = _gateway(policy, has_own_network=True)

    layers, skipped = apply_layers(policy, [(NAMESPACES, own_namespaces), (PROCESSES, own_processes)])
    return layers, skipped, opened or _gateway(policy, has_own_network=False)


def _gateway(policy: BoxPolicy, *, has_own_network: bool) -> EgressListener | None:
    return listen(has_own_network=has_own_network) if policy.has_gateway else None


def _child(
    policy: BoxPolicy, layers: tuple[str, ...], skipped: dict[str, str], program: Program, report: int, port: int | None
) -> NoReturn:
    """Init and program; never returns into the code of the caller. `port` is as for `landlock.begin`."""
    with _reporting(report):
        private_places: tuple[str, ...] = ()
        prctl(_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1 and PROCESSES not in layers:  # it ended before that took effect
            os._exit(0)
        if PROCESSES in layers:
            os.setsid()
            with contextlib.suppress(OSError):
                unshare(namespaces.MOUNT)
                private_places = own_places(policy)
            if (inside := os.fork()) != 0:
                _be_init(inside, report)
        _become(policy, program, skipped, report, has_namespaces=NAMESPACES in layers, own=private_places, port=port)
    os._exit(127)


@contextlib.contextmanager
def _reporting(report: int) -> Iterator[None]:
    """Report errors in a forked copy, which must not continue as the caller."""
    try:
        yield
    except BoxUnavailable as error:
        _send_report(report, layer=error.layer, reason=error.reason)
    except OSError as error:
        _send_report(report, errno=error.errno or errno.EIO)
    except BaseException as error:  # noqa: BLE001 - any error
        _send_report(report, layer=LIMITS, reason=repr(error))
    os._exit(127)


def _become(
    policy: BoxPolicy, program: Program, skipped: dict[str, str], report: int, *,
    has_namespaces: bool, own: tuple[str, ...], port: int | None,
) -> None:  # fmt: skip
    """Turn this process into the program.

    Raises:
        BoxUnavailable: a required layer is missing (PLUGIN_FAILED).
        OSError: it cannot run.
    """
    _prepare(program)
    skipped = skipped | _confine(policy, has_namespaces=has_namespaces, own=own, port=port)
    if skipped:
        _send_report(report, skipped=skipped)
    os.execve(program.argv[0], list(program.argv), dict(program.environment))


def _be_init(program: int, report: int) -> NoReturn:
    """Wait for the program and for orphans; forward SIGTERM; end with the program."""
    close_others([report])
    for descriptor in range(3):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    with contextlib.suppress(OSError):
        privileges.apply()  # no process inside may read this one's memory

    def hand_on(number: int, _: object) -> None:
        with contextlib.suppress(OSError):
            os.killpg(program, number)

    signal.signal(signal.SIGTERM, hand_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the starter may have blocked it until there is a handler
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            os._exit(0)
        if pid == program:
            _send_report(report, status=status)
            os._exit(0)


def _prepare(program: Program) -> None:
    """The initial state of a program: its own session and streams, a folder, default signals."""
    with contextlib.suppress(PermissionError):  # it is already a session leader
        os.setsid()
    for number in _DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir(program.folder)
    for target, source in enumerate([os.dup(descriptor) for descriptor in program.streams]):
        os.dup2(source, target)


def _confine(
    policy: BoxPolicy,
    *,
    has_namespaces: bool,
    own: tuple[str, ...],
    port: int | None = None,
    asking: list[int] | None = None,
) -> dict[str, str]:
    """Apply the layers of the program itself. Returns the missing ones.

    Args:
        asking: called with the descriptor on which the host decides about writes; None: the host does not decide.
    """
    asks = asking is not None
    if policy.level == "none":
        return {}

    def limits() -> None:
        rlimits.apply(policy.limits)
        if has_namespaces:
            rlimits.bound_processes(policy.limits)

    def filter_calls() -> None:
        if (listener := seccomp.apply(policy, is_program=True, asks=asks)) >= 0 and asking is not None:
            asking.append(listener)

    steps = [
        (LIMITS, limits),
        (PRIVILEGES, privileges.apply),
        (LANDLOCK, lambda: landlock.apply(policy, own=own, port=port, asks=asks)),
        (SECCOMP, filter_calls),
    ]
    return apply_layers(policy, steps)[1]


def _send_report(report: int, **facts: Any) -> None:
    with contextlib.suppress(OSError):
        os.write(report, json.dumps(facts).encode() + b"\n")
