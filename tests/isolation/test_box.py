"""A process in its box: what hostile code tries is refused by the system, and works without the box."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tavern_core.box import runtime_paths, seccomp
from tavern_core.box.layer_probe import available_layers
from tavern_core.box.policy import LAYERS, PROCESSES, BoxLimits, BoxPolicy, BoxUnavailable, GrantedPaths
from tavern_core.box.syscalls import MACHINE
from tests.forked_programs import run_forked
from tests.rows import each_row

from .attacks import ATTACKS, FOREIGN, HARMLESS

pytestmark = pytest.mark.slow

ARENA = Path(__file__).with_name("arena.py")
ROOT = Path(__file__).parents[2]
NOBODY = 65534
USERS = [pytest.param(0, marks=pytest.mark.slow), NOBODY] if os.geteuid() == 0 else [os.geteuid()]
"""As root both are tried, while you work the one that has no rights of its own; an ordinary user can only be itself."""
Tried = Mapping[str, tuple[str | None, str]]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Somebody's files and servers, open to every user of the machine; the folders of pytest are its own user's."""
    with tempfile.TemporaryDirectory(prefix="box-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class Ground:
    """The facts that attacks need."""

    def __init__(self, root: Path, uid: int, stack: ExitStack) -> None:
        self.outside, self.work = root / f"outside-{uid}", root / f"work-{uid}"
        for folder in (self.outside, self.work):
            folder.mkdir()
            os.chown(folder, uid, uid) if os.geteuid() == 0 else None
        for name in ("secret", "secret2", "secret3", "secret4"):
            (self.outside / name).write_text("hush")
            (self.outside / name).chmod(0o755)
            os.chown(self.outside / name, uid, uid) if os.geteuid() == 0 else None
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        abstract, unix, datagrams = (
            f"\0box-{os.getpid()}-{uid}",
            str(self.outside / "stream"),
            str(self.outside / "dgram"),
        )
        for address, kind in (
            (abstract, socket.SOCK_STREAM),
            (unix, socket.SOCK_STREAM),
            (datagrams, socket.SOCK_DGRAM),
        ):
            server = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            server.bind(address)
            if kind == socket.SOCK_STREAM:
                server.listen(50)
            if address[0] == "/":
                Path(address).chmod(0o777)
        self.facts = {
            "secret": str(self.outside / "secret"), "outside": str(self.outside), "work": str(self.work),
            "tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1],
            "unix": unix, "abstract": abstract, "unix_datagrams": datagrams,
        }  # fmt: skip

    def policy(self, **changes: Any) -> BoxPolicy:
        read = (*runtime_paths.machine(), *runtime_paths.interpreter(), str(self.work))
        made = BoxPolicy(read, (str(self.work),), limits=BoxLimits(memory_bytes=512 << 20))
        return replace(made, **changes)


def fight(ground: Ground, uid: int, policy: BoxPolicy, tries: list[tuple[str, str, bool]]) -> Tried:
    asked = {"uid": uid, "policy": json.loads(policy.to_json()), "tries": tries, "facts": ground.facts}
    env = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, str(ARENA)], input=json.dumps(asked), capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    found: Tried = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module", params=USERS, ids=lambda uid: "as root" if uid == 0 else "as anybody")
def fought(request: pytest.FixtureRequest, place: Path) -> Iterator[tuple[int, Tried]]:
    """Every row, tried once for each user."""
    uid: int = request.param
    foreign = FOREIGN if MACHINE == "x86_64" else {}
    with ExitStack() as stack:
        ground = Ground(place, uid, stack)
        tries = [(name, attack.code, attack.control != "never") for name, attack in {**ATTACKS, **foreign}.items()]
        tries += [(name, code, True) for name, code in HARMLESS.items()]
        yield uid, fight(ground, uid, ground.policy(), tries)


@each_row("name", ATTACKS)
def test_an_attack_is_refused_in_the_box_and_works_without(fought: tuple[int, Tried], name: str) -> None:
    uid, tried = fought
    without, within = tried[name]
    assert re.match(r"(Permission|Memory|OS|Value|FileNotFound|BlockingIO)Error: ", within), within
    if ATTACKS[name].control == "works" or (ATTACKS[name].control == "root" and uid == 0):
        assert without == "", without


@pytest.mark.parametrize("name", FOREIGN if MACHINE == "x86_64" else [])
def test_a_call_in_a_foreign_convention_ends_the_process(fought: tuple[int, Tried], name: str) -> None:
    assert fought[1][name][1] == "ended by SIGSYS"


@each_row("name", HARMLESS)
def test_what_every_program_needs_works_in_the_box(fought: tuple[int, Tried], name: str) -> None:
    uid, tried = fought
    without, within = tried[name]
    assert (without, within) == ("", "") or (uid != os.geteuid() and "No module named" in str(without) + within)


LAYER_NAMES = [name for name in LAYERS if name != PROCESSES]


def confined(policy: BoxPolicy) -> tuple[str, ...] | BoxUnavailable:
    """What `confine` answers, in a process of its own."""
    program = (
        "import sys, json; from tavern_core.box.policy import *; from tavern_core.box.confine import confine\n"
        "try: said = ['', *confine(BoxPolicy.from_json(sys.argv[1]))]\n"
        "except BoxUnavailable as error: said = ['missing', error.layer, error.reason]\n"
        "print(json.dumps(said))"
    )
    done = run_forked(["-c", program, policy.to_json()])
    assert done.returncode == 0, done.stderr
    kind, *said = json.loads(done.stdout)
    return BoxUnavailable(*said) if kind else tuple(said)


def test_all_layers_hold_here() -> None:
    assert confined(BoxPolicy()) == tuple(LAYER_NAMES)
    assert set(available_layers()) == set(LAYERS)
    assert set(available_layers().values()) == {""}


@each_row("layer", LAYER_NAMES)
def test_without_a_layer_required_refuses_and_best_effort_does_without(layer: str) -> None:
    refused = confined(BoxPolicy(without=(layer,)))
    assert isinstance(refused, BoxUnavailable)
    assert (refused.layer, layer in refused.message, "best-effort" in refused.hint) == (layer, True, True)
    assert confined(BoxPolicy(without=(layer,), level="best-effort")) == tuple(n for n in LAYER_NAMES if n != layer)


def test_without_a_level_nothing_is_done() -> None:
    assert confined(BoxPolicy(level="none")) == ()


WITHOUT_A_CALL = """
import struct, sys, json
from tavern_core.box import seccomp, syscalls
from tavern_core.box.confine import confine
from tavern_core.box.syscall_numbers import NUMBERS
from tavern_core.box.policy import BoxPolicy, BoxUnavailable

number = NUMBERS[sys.argv[2]][syscalls.MACHINE == "aarch64"]
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7FFF0000)]
seccomp.install(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
try:
    said = ["", *confine(BoxPolicy.from_json(sys.argv[1]))]
except BoxUnavailable as error:
    said = ["missing", error.layer, error.reason]
print(json.dumps(said))
"""


@pytest.mark.parametrize(("call", "layer"), [("unshare", "namespaces"), ("landlock_create_ruleset", "landlock")])
def test_a_layer_that_the_system_does_not_have_is_named(call: str, layer: str) -> None:
    """A filter makes the system look as if it had no such call, as containers do."""
    found = {}
    for level in ("required", "best-effort"):
        done = run_forked(["-c", WITHOUT_A_CALL, replace(BoxPolicy(), level=level).to_json(), call])
        assert done.returncode == 0, done.stderr
        found[level] = json.loads(done.stdout)
    assert found["required"] == ["missing", layer, "Function not implemented"]
    assert found["best-effort"] == ["", *(name for name in LAYER_NAMES if name != layer)]


def test_a_process_with_several_threads_is_not_confined() -> None:
    program = (
        "import threading; from tavern_core.box.confine import confine; from tavern_core.box.policy import BoxPolicy, BoxUnavailable\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "try: confine(BoxPolicy())\n"
        "except BoxUnavailable as error: print(error.reason)"
    )
    done = run_forked(["-c", program])
    assert "has 2 threads" in done.stdout


def test_a_policy_survives_json_and_refuses_what_it_does_not_know() -> None:
    policy = BoxPolicy(
        ("/a",), ("/b",), ("/c",), True, True, True, True, BoxLimits(1, False, 2, 3, None, 5), "best-effort", ("seccomp",), ("landlock",),
        GrantedPaths(("/d",), ("/e",), ("/f",), ("/g",), "/h"),
    )  # fmt: skip
    assert BoxPolicy.from_json(policy.to_json()) == policy
    for text in (
        "[]", '{"reed": []}', '{"limits": {"memory": 1}}', '{"level": "some"}', '{"read": ["a"]}', '{"without": ["x"]}', '{"limits": 3}', "{",
        '{"read": "/etc"}', '{"may_fork": "no"}', '{"has_gateway": 1}', '{"read": [1]}', '{"limits": {"memory_bytes": "1"}}',
        '{"granted": []}', '{"granted": {"reed": []}}', '{"granted": {"shut": ["a"]}}', '{"granted": {"own": ["/a"]}}', '{"left_out": ["x"]}',
    ):  # fmt: skip
        with pytest.raises(ValueError):
            BoxPolicy.from_json(text)


@each_row("machine", ["x86_64", "aarch64"])
@each_row("may", [(), ("may_fork",), ("may_execute",), ("may_network",), ("has_gateway",)])
def test_the_filter_of_every_policy_is_one_the_kernel_takes(machine: str, may: tuple[str, ...]) -> None:
    """Every jump lands inside, every path ends with an answer, and it is short enough."""
    policy = replace(BoxPolicy(limits=BoxLimits(is_address_space=False)), **dict.fromkeys(may, True))
    code = seccomp.assemble(policy, machine, 7)
    instructions = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    assert len(instructions) < 4096
    assert instructions[-1][0] == 0x06
    for at, (kind, yes, no, _) in enumerate(instructions):
        if kind & 7 == 5:
            assert at + 1 + max(yes, no) < len(instructions)
