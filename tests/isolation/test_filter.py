"""The filter of system calls, run in an interpreter of its own: every number of every architecture, every argument that matters.

The system runs only the filter of its own machine; here both are run, against a table that was written by itself.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from tavern_core.box import seccomp
from tavern_core.box.policy import BoxLimits, BoxPolicy
from tests.rows import each_row

from .system_calls import BY_NUMBER, VERDICTS

OWN = 4711
LAST = 469
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FOREIGN = {
    "i386": 0x40000003,
    "arm": 0x40000028,
    "x86_64": 0xC000003E,
    "aarch64": 0xC00000B7,
    "riscv64": 0xC00000F3,
    "none": 0,
}
POLICIES = {
    "nothing": BoxPolicy(),
    "children": BoxPolicy(may_fork=True),
    "programs": BoxPolicy(may_execute=True),
    "a network": BoxPolicy(may_network=True),
    "everything": BoxPolicy(may_fork=True, may_execute=True, may_network=True),
    "reserved memory": BoxPolicy(limits=BoxLimits(is_address_space=False)),
}
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
EVERY_MACHINE = pytest.mark.parametrize("machine", ARCHITECTURES)
WORDS = {
    0x7FFF0000: "let", 0x80000000: "kill", 0x00050000 | errno.EPERM: "EPERM", 0x00050000 | errno.ENOSYS: "ENOSYS",
    0x00050000 | errno.EOPNOTSUPP: "EOPNOTSUPP",
}  # fmt: skip
BITS = [0, *(1 << n for n in range(32))]


class Program:
    """A filter, run as the kernel would run it (net/core/filter.c)."""

    def __init__(self, code: bytes) -> None:
        self._code = list(struct.iter_unpack("=HBBI", code))
        self._known: dict[tuple[int, int], tuple[int, int]] = {}
        """Call and architecture → the first instruction that looks at an argument, or answers, and the value before it."""

    def answer(self, number: int, architecture: int, arguments: Iterable[int] = ()) -> str:
        """What classic BPF answers to a system call."""
        head = [number % (1 << 32), architecture, 0, 0]
        if (known := self._known.get((number, architecture))) is None:
            known = self._known[number, architecture] = self._run(head, 0, 0, until_argument=True)
        at, value = known
        if self._code[at][0] != 0x06:
            words = (word for argument in arguments for word in (argument % (1 << 32), argument >> 32 & 0xFFFFFFFF))
            at, _ = self._run([*head, *words, *[0] * 12], at, value, until_argument=False)
        return WORDS[self._code[at][3]]

    def _run(self, data: list[int], at: int, value: int, *, until_argument: bool) -> tuple[int, int]:
        """(the instruction that answers or, if wanted, that is the first to look at an argument; the value before it)."""
        code = self._code
        while True:
            kind, yes, no, constant = code[at]
            if kind == 0x15:
                at += 1 + (yes if value == constant else no)
            elif kind == 0x20:  # load a word
                if until_argument and constant >= 8:
                    return at, value
                value = data[constant >> 2]
                at += 1
            elif kind == 0x45:
                at += 1 + (yes if value & constant else no)
            elif kind == 0x35:
                at += 1 + (yes if value >= constant else no)
            elif kind == 0x06:
                return at, value
            elif kind == 0x05:
                at += 1 + constant
            elif kind == 0x25:
                at += 1 + (yes if value > constant else no)
            else:
                raise AssertionError(f"instruction {kind:#x}")


@cache
def program(policy: BoxPolicy, machine: str, is_program: bool) -> Program:
    return Program(seccomp.assemble(policy, machine, OWN, is_program=is_program))


def only(*is_let: bool) -> str:
    return "let" if all(is_let) else "EPERM"


def expected(policy: BoxPolicy, name: str, given: tuple[int, ...] = (), *, is_program: bool = False) -> str:
    """What a call should be answered, by the words of docs/security.md."""
    a, b, c, d = (argument % (1 << 32) for argument in (*given, 0, 0, 0, 0)[:4])
    forks = policy.may_fork or policy.may_execute
    match name:
        case "clone":
            return only(not a & 0x7E020000, forks or bool(a & 0x10000))
        case "fork" | "vfork" | "tkill" | "pidfd_open":
            return only(forks)
        case "kill" | "tgkill" | "rt_sigqueueinfo" | "rt_tgsigqueueinfo":
            return only(forks or a == OWN)
        case "execve" | "execveat":
            return only(policy.may_execute or is_program)
        case (
            "get_robust_list"
            | "prlimit64"
            | "sched_setparam"
            | "sched_setscheduler"
            | "sched_setattr"
            | "sched_setaffinity"
        ):
            return only(a == 0 or (not forks and a == OWN))
        case "setpriority":
            return only(a == 0, b == 0)
        case "ioprio_set":
            return only(a == 1, b == 0)
        case "socketpair":
            return only(a == 1, b & ~0o2004000 == 1)
        case "socket":
            return only(policy.may_network, a in (2, 10), b & ~0o2004000 in (1, 2), c in (0, 6, 17))
        case "connect" | "bind" | "listen" | "accept" | "accept4":
            return only(policy.may_network)
        case "mmap":
            return only(policy.limits.is_address_space or not (d & 1 and d & 0x20))
        case "ioctl":
            terminal, waiting, copying = (
                (0x5401, 0x802C542A, 0x5413, 0x540F, 0x5411),
                (0x541B, 0x5421, 0x5450, 0x5451),
                (0x40049409, 0x4020940D),
            )
            return only(b in terminal + waiting + copying)
        case "fcntl":
            return only(b not in (8, 10, 15, 1024, 1026))
        case "prctl":
            return only(a not in (1, 4, 22, 28, 35, 62, 0x59616D61))
        case "personality":
            return only(a in (0, 0xFFFFFFFF))
        case "open":
            return only(not (b & 0o20000100 and c & 0o6000))
        case "openat":
            return only(not (c & 0o20000100 and d & 0o6000))
        case "creat":
            return only(not b & 0o6000)
    return VERDICTS[name]


def arguments(name: str) -> Iterator[tuple[int, ...]]:
    """Everything that may matter for a call: each value that is known to somebody, each bit, and what is beside them."""
    whom = (0, OWN, OWN + 1, OWN - 1, 1, -1, -OWN, 0x7FFFFFFE, 1 << 31, OWN | 1 << 32)
    match name:
        case "clone":
            yield from (
                (bit | others,) for bit in BITS for others in (0, 0x10000, 17, 0x3D0F00, 0x4011, 0xFFFFFFFF, 1 << 40)
            )
        case "setpriority" | "ioprio_set":
            yield from ((kind, who, 5) for kind in (*range(-1, 6), 1 << 31) for who in whom)
        case "socket" | "socketpair":
            kinds = [kind | flags for kind in range(12) for flags in (0, 0o4000, 0o2000000, 0o2004000, 0o100000)]
            protocols = (0, 1, 2, 6, 17, 41, 132, 136, 255, 262, -1)
            yield from (
                (family, kind, protocol) for family in (*range(48), -1) for kind in kinds for protocol in protocols
            )
        case "mmap":
            yield from ((0, 4096, 3, bit | others) for bit in BITS for others in (0, 1, 2, 0x20, 0x21, 0x22))
        case "ioctl":
            known = (0x5401, 0x802C542A, 0x5413, 0x540F, 0x5411, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409, 0x4020940D)
            yield from ((3, number) for number in (*range(0x5300, 0x5500), *(k ^ bit for k in known for bit in BITS)))
        case "fcntl":
            yield from ((3, number) for number in (-1, *range(1100), *(8 ^ bit for bit in BITS)))
        case "prctl":
            yield from ((number, 1) for number in (-1, *range(128), *(0x59616D61 ^ bit for bit in BITS)))
        case "personality":
            yield from ((number,) for number in (-1, 0xFFFFFFFE, *BITS))
        case "open" | "openat" | "creat":
            before = {"open": (0,), "openat": (-100, 0), "creat": ()}[name]
            flags = (0, 0o100, 0o102, 0o1102, 0o20200000, 0o20000000, 0o200000, 2)
            yield from ((*before, *([flag] if name != "creat" else [0]), bit | 0o755) for flag in flags for bit in BITS)
        case _:
            yield from ((who, other, other) for who in whom for other in (0, 9, OWN))


@EVERY_MACHINE
@EVERY_POLICY
def test_every_number_is_answered_as_the_table_says(policy: BoxPolicy, machine: str) -> None:
    code, names = program(policy, machine, False), BY_NUMBER[machine]
    wrong = []
    for number in (*range(1100), *(1 << bit for bit in range(9, 30)), 0x3FFFFFFF):
        name = names.get(number)
        says = code.answer(number, ARCHITECTURES[machine])
        should = "ENOSYS" if name is None else expected(policy, name)
        wrong += [] if says == should else [f"{number} ({name}): {says} instead of {should}"]
    assert wrong == []


@pytest.mark.slow
@EVERY_MACHINE
@EVERY_POLICY
@each_row("name", [name for name in VERDICTS if VERDICTS[name] == "asked" or name in ("mmap", "socket")])
def test_arguments_are_judged_as_the_manual_says(policy: BoxPolicy, machine: str, name: str) -> None:
    code = program(policy, machine, False)
    numbers = [number for number, its in BY_NUMBER[machine].items() if its == name]
    for given in arguments(name) if numbers else ():
        should = expected(policy, name, given)
        for number in numbers:
            assert code.answer(number, ARCHITECTURES[machine], given) == should, (name, given)


@EVERY_MACHINE
@EVERY_POLICY
def test_before_a_program_is_run_it_may_be_run_and_nothing_else_is_different(policy: BoxPolicy, machine: str) -> None:
    for number, name in BY_NUMBER[machine].items():
        assert program(policy, machine, True).answer(number, ARCHITECTURES[machine]) == expected(
            policy, name, is_program=True
        ), name


@EVERY_MACHINE
@EVERY_POLICY
def test_a_call_of_another_architecture_ends_the_process(policy: BoxPolicy, machine: str) -> None:
    code = program(policy, machine, False)
    for architecture in {*FOREIGN.values()} - {ARCHITECTURES[machine]}:
        assert {code.answer(number, architecture) for number in range(600)} == {"kill"}


@EVERY_POLICY
def test_a_call_in_the_x32_convention_ends_the_process(policy: BoxPolicy) -> None:
    code = program(policy, "x86_64", False)
    for bits in (0x40000000, 0x80000000, 0xC0000000, 0xFFFFFC00):
        assert {code.answer(bits | number, ARCHITECTURES["x86_64"]) for number in range(1024)} == {"kill"}


@EVERY_POLICY
def test_high_numbers_are_unknown_where_there_is_no_other_convention(policy: BoxPolicy) -> None:
    code = program(policy, "aarch64", False)
    assert {
        code.answer(bits | number, ARCHITECTURES["aarch64"]) for bits in (1 << 30, 1 << 31) for number in range(600)
    } == {"ENOSYS"}


def test_the_table_knows_every_number_but_those_that_no_call_has() -> None:
    unused = {"x86_64": set(range(336, 424)), "aarch64": {*range(244, 260), *range(295, 424)}}
    for machine, names in BY_NUMBER.items():
        assert set(range(LAST + 1)) - names.keys() == unused[machine]


@EVERY_MACHINE
def test_the_filter_has_the_numbers_of_the_table(machine: str) -> None:
    from tavern_core.box.syscall_numbers import NUMBERS

    column = list(ARCHITECTURES).index(machine)
    known = {name: numbers[column] for name, numbers in NUMBERS.items() if numbers[column] is not None}
    assert {number: name for name, number in known.items()}.items() <= BY_NUMBER[machine].items()


@each_row("own", [1, 2, 31, 4_194_303])
def test_a_filter_knows_its_own_process_from_all_others(own: int) -> None:
    for machine, architecture in ARCHITECTURES.items():
        code = Program(seccomp.assemble(BoxPolicy(), machine, own))
        kill = next(number for number, name in BY_NUMBER[machine].items() if name == "kill")
        answers = {
            target: code.answer(kill, architecture, (target, 9))
            for target in (own, own + 1, own - 1, 0, -1, -own, 0x7FFFFFFE)
        }
        assert [target for target, said in answers.items() if said == "let"] == [own]
