"""Layer `seccomp`: a filter for system calls, as hand-written classic BPF.

The other layers leave gaps: metadata, UDP and Unix sockets, other processes, large parts of the kernel. Those
are refused here with EPERM, an ordinary error for a program. A call in another convention (x32, 32 bit) has
other numbers and only one purpose here, so it ends the process. Calls newer than this file get ENOSYS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Final

from tavern_core.box.policy import BoxLimits, BoxPolicy
from tavern_core.box.syscall_numbers import LAST, NUMBERS, UNUSED
from tavern_core.box.syscalls import MACHINE, prctl, syscall
from tavern_core.box.write_broker import CALLS, judges

MACHINES: Final = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""Machine → column of `NUMBERS`, AUDIT_ARCH, number of seccomp(2)."""
_X32: Final = 0x40000000
_KILL, _ALLOW, _ERRNO, _ASK = 0x80000000, 0x7FFF0000, 0x00050000, 0x7FC00000
_LISTEN, _WAIT_KILLABLE = 1 << 3, 1 << 5
_LOAD, _JUMP, _JUMP_EQUAL, _JUMP_NOT_LESS, _JUMP_ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_FURTHEST: Final = 255
"""Instructions that a conditional jump can skip."""
_NR, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_EPERM: Final = _ERRNO | errno.EPERM
_Instruction = tuple[int, int, int, int]
"""(code, jump if true, jump if false, operand)"""

_NEVER: Final = (
    # signals and other processes
    "pidfd_send_signal", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease",
    "pidfd_getfd", "kcmp", "migrate_pages", "move_pages", "mbind", "set_mempolicy", "set_mempolicy_home_node",
    # memory and queues that outlive a process or are shared by name; files in memory (they can be executed)
    "shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv", "msgctl",
    "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr", "memfd_create", "memfd_secret",
    # metadata: Landlock does not cover it
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "utimensat",
    "futimesat", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr", "setxattrat",
    "removexattrat", "file_setattr", "mknod", "mknodat",
    # files by other means than their path; notifications about files of others
    "name_to_handle_at", "open_by_handle_at", "inotify_add_watch", "inotify_init", "inotify_init1", "fanotify_init",
    "fanotify_mark",
    # mounts and namespaces
    "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig", "fsmount",
    "fspick", "mount_setattr", "statmount", "listmount", "setns", "unshare", "sethostname", "setdomainname", "swapon",
    "swapoff", "quotactl", "quotactl_fd",
    # the kernel itself
    "bpf", "io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup", "io_submit", "perf_event_open", "userfaultfd",
    "keyctl", "add_key", "request_key", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
    "create_module", "query_module", "get_kernel_syms", "reboot", "syslog", "acct", "settimeofday", "clock_settime",
    "clock_adjtime", "adjtimex", "iopl", "ioperm", "modify_ldt", "vhangup", "nfsservctl", "lookup_dcookie", "uselib",
    "_sysctl", "sysfs", "ustat", "afs_syscall", "vserver", "remap_file_pages", "seccomp", "lsm_set_self_attr",
)  # fmt: skip
_UNKNOWN_CALLS: Final = ("clone3", "openat2")
"""Their arguments are in memory that a filter cannot read; with ENOSYS, the C library uses the older call."""
_UNSUPPORTED: Final = (
    "getxattr",
    "lgetxattr",
    "fgetxattr",
    "listxattr",
    "llistxattr",
    "flistxattr",
    "getxattrat",
    "listxattrat",
)
"""Answered like a file system without extended attributes, so that copying continues."""
_OWN_ONLY: Final = (
    "get_robust_list",
    "prlimit64",
    "sched_setparam",
    "sched_setscheduler",
    "sched_setattr",
    "sched_setaffinity",
)
"""Calls whose first argument is a process, 0 for oneself."""
_SIGNALS: Final = ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")

_THREAD: Final = 0x00010000
_NEW_NAMESPACES: Final = 0x7E020000
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_DGRAM = 1, 2
_SOCK_FLAGS: Final = (0, 0o4000, 0o2000000, 0o2004000)  # SOCK_NONBLOCK, SOCK_CLOEXEC
_PROTOCOLS: Final = (0, 6, 17)  # any, TCP, UDP; not MPTCP, not SCTP
_CREATING: Final = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE
_WRITING: Final = 0o3 | 0o100 | 0o1000  # O_ACCMODE, O_CREAT, O_TRUNC
_SET_ID: Final = 0o6000
_IOCTLS: Final = (
    0x5401, 0x802C542A, 0x5413, 0x540F, 0x5411,  # TCGETS, TCGETS2, TIOCGWINSZ, TIOCGPGRP, TIOCOUTQ: is it a terminal?
    0x541B, 0x5421, 0x5450, 0x5451,  # FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    0x40049409, 0x4020940D,  # FICLONE, FICLONERANGE: copying a file
)  # fmt: skip
"""Everything else a device may understand is refused: TIOCSTI, TIOCLINUX, FIOSETOWN, FS_IOC_SETFLAGS …"""
_FCNTLS_REFUSED: Final = (8, 10, 15, 1024, 1026)  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY
_PRCTLS_REFUSED: Final = (1, 4, 22, 28, 35, 62, 0x59616D61)
"""PR_SET_PDEATHSIG, _DUMPABLE, _SECCOMP, _SECUREBITS, _MM, PR_SCHED_CORE, PR_SET_PTRACER."""
_ASK_PERSONALITY: Final = (0, 0xFFFFFFFF)
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


_PLACEHOLDER_PID: Final = 0x7FFF_FFFE
"""Stands for the process id until it is known; larger than every id of Linux."""


def apply(policy: BoxPolicy, *, is_program: bool = False, asks: bool = False) -> int:
    """Filter the system calls of this process from now on.

    Args:
        asks: the server of the returned descriptor decides about each call that writes by a path (`write_broker.py`).

    Returns:
        The descriptor; -1 if there is none.

    Raises:
        OSError: the kernel has no filters, or this machine is not x86_64 or aarch64.
    """
    if MACHINE not in MACHINES:
        raise OSError(errno.ENOSYS, f"not written for {MACHINE}")
    return install(
        assemble(policy, MACHINE, 0 if _forks(policy) else os.getpid(), is_program=is_program, asks=asks), asks=asks
    )


def install(code: bytes, *, asks: bool = False) -> int:
    """Install a filter; returns as `apply`. Raises OSError: the kernel has no filters, or refuses this one."""
    program = _Program(len(code) // 8, code)
    prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    call = MACHINES[MACHINE][2], 1  # SECCOMP_SET_MODE_FILTER
    if not asks:
        syscall(*call, 0, ctypes.byref(program))
        return -1
    try:
        return syscall(*call, _LISTEN | _WAIT_KILLABLE, ctypes.byref(program))
    except OSError as error:
        if error.errno != errno.EINVAL:  # before Linux 5.19, a signal restarts a call that waits for its answer
            raise
        return syscall(*call, _LISTEN, ctypes.byref(program))


def assemble(policy: BoxPolicy, machine: str, own: int, *, is_program: bool = False, asks: bool = False) -> bytes:
    """The filter for a policy.

    Args:
        machine: ``x86_64`` or ``aarch64``.
        own: the id of the process to confine, in its own namespace; 0 if it may start others, because then it is not needed.
        is_program: it still has to execute the program of the box; Landlock decides which.
        asks: as for `apply`.
    """
    bounded = replace(BoxPolicy(), limits=BoxLimits(is_address_space=policy.limits.is_address_space))
    needed = replace(
        bounded,
        may_fork=policy.may_fork,
        may_execute=policy.may_execute,
        may_network=policy.may_network,
        has_gateway=policy.has_gateway,
    )
    code, places = _assemble(needed, machine, _PLACEHOLDER_PID if own else 0, is_program, asks)
    if not own:
        return code
    filled = bytearray(code)
    for place in places:
        filled[place : place + 4] = struct.pack("=I", own)
    return bytes(filled)


def prepare(policy: BoxPolicy) -> None:
    """Assemble the filter of a policy, except for the process id, so that it can be shared by many forked processes."""
    if MACHINE in MACHINES:
        assemble(policy, MACHINE, 0 if _forks(policy) else _PLACEHOLDER_PID, asks=judges(policy))


@lru_cache(maxsize=32)
def _assemble(policy: BoxPolicy, machine: str, own: int, is_program: bool, asks: bool) -> tuple[bytes, tuple[int, ...]]:
    """The filter, and the positions of `own` in it."""
    column, architecture, _ = MACHINES[machine]
    code: list[_Instruction] = [(_LOAD, 0, 0, _ARCH), (_JUMP_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, _NR))
    if machine == "x86_64":
        code += [(_JUMP_NOT_LESS, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    code += _searched(list(_ranges(policy, column, own, is_program, asks)))
    places = tuple(8 * at + 4 for at, instruction in enumerate(code) if own and instruction[3] == own)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code), places


def _ranges(
    policy: BoxPolicy, column: int, own: int, is_program: bool, asks: bool
) -> Iterable[tuple[int, list[_Instruction]]]:
    """(first number, action for it and the following ones), in order, for all numbers."""
    actions = {
        number: block
        for name, block in _rules(policy, own, is_program, asks)
        if (number := NUMBERS[name][column]) is not None
    }
    for first, last in UNUSED[column]:
        actions |= dict.fromkeys(range(first, last + 1), _unknown())
    actions[LAST + 1] = _unknown()
    for block, numbers in groupby(range(LAST + 2), lambda number: actions.get(number) or _let()):
        yield next(numbers), block


def _searched(ranges: list[tuple[int, list[_Instruction]]]) -> list[_Instruction]:
    """Find the range of a number by bisection, because the filter runs for each call."""
    if len(ranges) == 1:
        return ranges[0][1]
    half = len(ranges) // 2
    low, high = _searched(ranges[:half]), _searched(ranges[half:])
    if len(low) <= _FURTHEST:
        return [(_JUMP_NOT_LESS, len(low), 0, ranges[half][0]), *low, *high]
    return [(_JUMP_NOT_LESS, 0, 1, ranges[half][0]), (_JUMP, 0, 0, len(low)), *low, *high]


def _rules(policy: BoxPolicy, own: int, is_program: bool, asks: bool) -> Iterable[tuple[str, list[_Instruction]]]:
    """Name of a call → action; calls without a rule are allowed."""
    yield from ((name, _refuse()) for name in _NEVER)
    yield from ((name, _unknown()) for name in _UNKNOWN_CALLS)
    yield from ((name, [(_RETURN, 0, 0, _ERRNO | errno.EOPNOTSUPP)]) for name in _UNSUPPORTED)
    yield from _processes(policy, own, is_program)
    yield from _sockets(policy)
    yield "ioctl", _only(1, _IOCTLS)
    yield "fcntl", _all_but(1, _FCNTLS_REFUSED)
    yield "prctl", _all_but(0, _PRCTLS_REFUSED)
    yield "personality", _only(0, _ASK_PERSONALITY)
    ask = [(_RETURN, 0, 0, _ASK)] if asks else _let()
    if asks:
        yield from ((name, ask) for name in CALLS)
    yield "open", _no_set_id(flags=1, mode=2, write=ask)
    yield "openat", _no_set_id(flags=2, mode=3, write=ask)
    yield "creat", [*_without_bits(1, _SET_ID)[:-1], *ask]
    if not policy.limits.is_address_space:  # RLIMIT_DATA does not count shared memory
        yield (
            "mmap",
            [
                *_argument(3),
                (_JUMP_ANY_BIT, 0, 2, _MAP_SHARED),
                (_JUMP_ANY_BIT, 0, 1, _MAP_ANONYMOUS),
                *_refuse(),
                *_let(),
            ],
        )


def _processes(policy: BoxPolicy, own: int, is_program: bool) -> Iterable[tuple[str, list[_Instruction]]]:
    forks = _forks(policy)
    if forks:
        yield "clone", _without_bits(0, _NEW_NAMESPACES)
    else:
        yield "fork", _refuse()
        yield "vfork", _refuse()
        yield (
            "clone",
            [
                *_argument(0),
                (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES),
                *_refuse(),
                (_JUMP_ANY_BIT, 1, 0, _THREAD),
                *_refuse(),
                *_let(),
            ],
        )
        # With children, signals are kept inside by the PID namespace and by Landlock, which know the process tree.
        yield from ((name, _only(0, (own,))) for name in _SIGNALS)
        yield "tkill", _refuse()
        yield "pidfd_open", _refuse()
    if not policy.may_execute and not is_program:
        yield "execve", _refuse()
        yield "execveat", _refuse()
    yield from ((name, _only(0, (0,) if forks else (0, own))) for name in _OWN_ONLY)
    for name, process in (
        ("setpriority", 0),
        ("ioprio_set", 1),
    ):  # (kind, whose, …): else all processes of this user, including the host
        yield name, _when(0, (process,), _only(1, (0,)))


def _forks(policy: BoxPolicy) -> bool:
    return policy.may_fork or policy.may_execute


def _sockets(policy: BoxPolicy) -> Iterable[tuple[str, list[_Instruction]]]:
    # A socket pair only connects its own process, and every event loop needs one.
    streams = [_SOCK_STREAM | flags for flags in _SOCK_FLAGS]
    yield "socketpair", _when(0, (_AF_UNIX,), _only(1, streams))
    if policy.may_network or policy.has_gateway:
        wanted = (_SOCK_STREAM, _SOCK_DGRAM) if policy.may_network else (_SOCK_STREAM,)
        kinds = [kind | flags for kind in wanted for flags in _SOCK_FLAGS]
        yield "socket", _when(0, (_AF_INET, _AF_INET6), _when(1, kinds, _only(2, _PROTOCOLS)))
    else:
        yield from ((name, _refuse()) for name in ("socket", "connect", "bind", "listen", "accept", "accept4"))


def _refuse() -> list[_Instruction]:
    return [(_RETURN, 0, 0, _EPERM)]


def _let() -> list[_Instruction]:
    return [(_RETURN, 0, 0, _ALLOW)]


def _unknown() -> list[_Instruction]:
    return [(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]


def _argument(index: int) -> list[_Instruction]:
    """Load the lower half of an argument; each checked argument is an int or has its meaning in the lower half."""
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * index)]


def _when(index: int, values: Iterable[int], block: list[_Instruction]) -> list[_Instruction]:
    """`block` where the argument is one of `values`, else EPERM."""
    values = list(values)
    tests = [(_JUMP_EQUAL, len(values) - n, 0, value) for n, value in enumerate(values)]
    return [*_argument(index), *tests, *_refuse(), *block]


def _only(index: int, values: Iterable[int]) -> list[_Instruction]:
    return _when(index, values, _let())


def _all_but(index: int, values: Iterable[int]) -> list[_Instruction]:
    values = list(values)
    tests = [(_JUMP_EQUAL, len(values) - n, 0, value) for n, value in enumerate(values)]
    return [*_argument(index), *tests, *_let(), *_refuse()]


def _without_bits(index: int, bits: int) -> list[_Instruction]:
    return [*_argument(index), (_JUMP_ANY_BIT, 0, 1, bits), *_refuse(), *_let()]


def _no_set_id(flags: int, mode: int, write: list[_Instruction]) -> list[_Instruction]:
    """No setuid program may be created. Calls that open for writing get the action `write`."""
    return [
        *_argument(flags),
        (_JUMP_ANY_BIT, 0, 3, _CREATING),
        *_argument(mode),
        (_JUMP_ANY_BIT, 0, 1, _SET_ID),
        *_refuse(),
        *(() if write == _let() else (*_argument(flags), (_JUMP_ANY_BIT, 0, 1, _WRITING), *write)),
        *_let(),
    ]
