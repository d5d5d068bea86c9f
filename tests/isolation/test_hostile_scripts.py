"""A hostile script of a plugin whose code runs in the host, under the defaults: nothing granted, nothing to be had."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern

from ..executors.workbench import processes_with
from .conftest import EACH, Place

pytestmark = pytest.mark.slow

FILES: list[Any] = ["read:fs", "write:fs"]
LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\ndef call(*a):\n    if libc.syscall(*a) < 0: raise OSError(ctypes.get_errno(), 'refused')\n"
UNIX = "s = socket.socket(socket.AF_UNIX); s.connect(%s)"
ATTACKS: dict[str, tuple[str, list[Any] | None]] = {
    # what it tries, and the grant with which the same works; None: no grant does
    "the keys of whoever runs the host": ("open(person + '/.ssh/id_ed25519').read()", FILES),
    "the accounts of the machine": ("open('/etc/shadow').read(); raise PermissionError('an ordinary user may not, anyway')", None),
    "who is on the machine": ("open('/etc/passwd').read()", FILES),
    "the project around it": ("open(project + '/notes').read()", FILES),
    "the folder of another plugin": ("open(other + '/plugin.yaml').read()", FILES),
    "a link that it brought along": ("open('leak').read()", FILES),
    "a folder by way of its own": ("os.listdir(plugin + '/..')", FILES),
    "the root by way of /proc": ("open('/proc/self/root' + outside + '/secret').read()", FILES),
    "the temporary files of others": ("os.listdir(outside)", FILES),
    "shared memory of others": ("open('/dev/shm/' + name).read()", FILES),
    "the state of the host": ("os.listdir(home)", None),
    "the state of the host by way of /proc": ("os.listdir('/proc/self/root' + home)", None),
    "what another plugin keeps": ("open(home + '/data/other/kept').read()", None),
    "changing its own code": ("open('try.py', 'a')", None),
    "leaving something in a temporary folder": ("open('/var/tmp/left-' + name, 'w'); os.remove('/var/tmp/left-' + name)", FILES),
    "a second name of a file": ("os.link(granted + '/note', os.environ['HOME'] + '/x')", FILES),
    "a second name of its own code": ("os.link(plugin + '/own', os.environ['HOME'] + '/x')", None),
    "a link for the next one to follow": ("os.symlink('/etc/passwd', os.environ['HOME'] + '/x')", None),
    "a device": ("os.mknod(os.environ['HOME'] + '/x', 0o60600, 0x800)", None),
    "a pipe with a name": ("os.mkfifo(os.environ['HOME'] + '/x')", None),
    "a program that becomes somebody else": ("os.chmod('own', 0o4755)", None),
    "a disk": ("open('/dev/sda', 'rb')", None),
    "the memory of the machine": ("open('/proc/kcore', 'rb')", None),
    "settings of the kernel": ("open('/proc/sys/kernel/core_pattern', 'w')", None),
    "connecting by TCP": ("socket.create_connection(('127.0.0.1', port)).close()", ["network:host"]),
    "sending by UDP": ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))", ["network:host"]),
    "listening": ("socket.create_server(('127.0.0.1', 0)).close()", ["network"]),
    "a socket of the machine": (UNIX % "unix", None),
    "a socket without a file": (UNIX % r"'\0' + name", None),
    "packets by hand": ("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", None),
    "talking to the kernel": ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", None),
    "talking to the hypervisor": ("socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)", None),
    "a shell": ("subprocess.run(['/bin/sh', '-c', ':'], check=True)", ["process:spawn"]),
    "a program of its own making": (
        "p = os.environ['HOME'] + '/x'; open(p, 'wb').write(open(sys.executable, 'rb').read(64)); os.execv(p, [p])", None
    ),
    "a program in memory": ("os.execve(os.memfd_create('x'), ['x'], {})", None),
    "tracing its parent": (LIBC + "call(101 if os.uname().machine == 'x86_64' else 117, 16, os.getppid(), 0, 0)", None),
    "reading its parent's memory": ("open(f'/proc/{os.getppid()}/mem', 'rb')", None),
    "its parent's environment": ("open(f'/proc/{os.getppid()}/environ', 'rb').read()", None),
    "its parent's open files": ("[os.readlink(f'/proc/{os.getppid()}/fd/{n}') for n in range(64) if os.path.lexists(f'/proc/{os.getppid()}/fd/{n}')]; open(f'/proc/{os.getppid()}/fd/0')", None),
    "a signal to the host": ("os.kill(host, 0)", None),
    "namespaces of its own": (LIBC + "\nif libc.unshare(0x10000000): raise OSError(ctypes.get_errno(), 'refused')", None),
    "mounting": (LIBC + "\nif libc.mount(b'none', b'/mnt', b'tmpfs', 0, None): raise OSError(ctypes.get_errno(), 'refused')", None),
    "another root": ("os.chroot('/')", None),
    "another user": ("os.setuid(os.getuid() + 1)", None),
    "rings of the kernel": (LIBC + "call(425, 1, bytes(120))", None),
    "keys of the kernel": (LIBC + "call(250 if os.uname().machine == 'x86_64' else 219, 0, -3, 0)", None),
}  # fmt: skip


@pytest.fixture(scope="module")
def neighbours() -> Iterator[dict[str, Any]]:
    """Servers and memory of others, and a secret in the environment of the host."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("A_CANARY_OF_THE_HOST", "canary-in-the-environment")
        shared = Path("/dev/shm", f"tavern-{os.getpid()}-{threading.get_ident()}")
        shared.write_text("text")
        stack.callback(shared.unlink)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listening = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        name = shared.name
        places = (f"/tmp/{name}.sock", f"\0{name}")
        for each, where in zip(listening, places, strict=True):
            each.bind(where)
            each.listen()
        stack.callback(os.unlink, places[0])
        yield {"port": tcp.getsockname()[1], "unix": places[0], "name": name, "host": os.getpid()}


Opened = Callable[..., tuple[Place, Tavern]]


@pytest.fixture(scope="module")
def opened(module_folder: Path, neighbours: dict[str, Any]) -> Iterator[Opened]:
    """`opened(*capabilities, timeout_ms=20_000)`: a place among others, and its host, for all tests with these grants."""
    with ExitStack() as stack:
        made: dict[str, tuple[Place, Tavern]] = {}

        def host(*capabilities: Any, timeout_ms: int = 20_000) -> tuple[Place, Tavern]:
            key = str([timeout_ms, *capabilities])
            if key not in made:
                place = Place(module_folder / f"项目{len(made)}")
                person, other, kept = (
                    place.root / "person",
                    place.plugin.parent / "other",
                    place.home / "data" / "other",
                )
                for folder in (person / ".ssh", other, kept, place.home / "data" / "demo"):
                    folder.mkdir(parents=True)
                for file in (
                    place.root / "notes",
                    person / ".ssh" / "id_ed25519",
                    kept / "kept",
                    other / "plugin.yaml",
                ):
                    file.write_text("name: other\nversion: '1.0'\n")
                (place.plugin / "leak").symlink_to(place.outside / "secret")
                tool = place.plugin / "tools" / "try.tool.json"
                tool.write_text(tool.read_text().replace("20000", str(timeout_ms)))
                place.facts |= {**neighbours, "person": str(person), "other": str(other)}
                made[key] = place, stack.enter_context(place.open(*capabilities, tier="none"))
            return made[key]

        yield host


GRANTS = {str(grants): grants for _, grants in ATTACKS.values()}


OWN_FOLDER = "os.environ['HOME'] = tempfile.mkdtemp(dir=os.environ['HOME'])"


def attacked(place: Place, tavern: Tavern, attacks: dict[str, str]) -> dict[str, Any]:
    """What came of each attack: whether it was done; each is tried with an empty folder of its own, which can be written."""
    found: dict[str, Any] = {}
    alone = {
        attack: code for attack, code in attacks.items() if "getppid" in code
    }  # the parent of a copy is the script
    for attack, code in alone.items():
        result = place.run(tavern, code)
        assert result.ok, (attack, result.error)
        found[attack] = result.value["did"]
    together = {attack: code for attack, code in attacks.items() if attack not in alone}
    if together:
        codes = [f"{OWN_FOLDER}\n{code}" for code in ("open(os.environ['HOME'] + '/x', 'w')", *together.values())]
        result = tavern.invoke_sync("demo:try", {"code": EACH, "facts": {**place.facts, "codes": codes}})
        assert result.ok, result.error
        (may_write, error), *rest = result.value["answer"]
        assert may_write, error  # so what is refused below is the attack
        found |= {attack: did for attack, (did, _) in zip(together, rest, strict=True)}
    return found


@pytest.mark.parametrize("grants", GRANTS.values(), ids=GRANTS)
def test_what_was_not_granted_is_refused_and_with_the_grant_it_works(opened: Opened, grants: list[Any] | None) -> None:
    attacks = {attack: code for attack, (code, helps) in ATTACKS.items() if helps == grants}
    place, tavern = opened()
    assert attacked(place, tavern, attacks) == dict.fromkeys(attacks, False)
    assert not [d for d in tavern.diagnostics if d.code == "ISOLATION_WEAK"]
    place, tavern = opened(*(grants or [*FILES, "network", "process:spawn"]))
    assert attacked(place, tavern, attacks) == dict.fromkeys(attacks, grants is not None)


def test_the_environment_of_the_host_is_nowhere_to_be_found(opened: Opened) -> None:
    look = """
def all_of(path):
    try: return open(path, 'rb').read()
    except OSError: return b''
found = [os.environ.get('A_CANARY_OF_THE_HOST')]
found += [n for n in os.listdir('/proc') if b'canary' in all_of(f'/proc/{n}/environ') + all_of(f'/proc/{n}/cmdline')]
answer = found
"""
    place, tavern = opened("read:fs")
    assert place.run(tavern, look).value["answer"] == [None]


def test_it_is_handed_nothing_but_its_three_streams(opened: Opened) -> None:
    code = "answer = sorted(int(n) for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}'))"
    place, tavern = opened()
    assert place.run(tavern, code).value["answer"] == [0, 1, 2]


@pytest.mark.parametrize(
    "escape",
    [
        "if os.fork() == 0: os.setsid(); os.execv(sys.executable, me)",
        "if os.fork() == 0:\n    if os.fork(): os._exit(0)\n    os.setsid(); os.execv(sys.executable, me)",
        "subprocess.Popen(me, start_new_session=True)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); subprocess.Popen(me, preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)); time.sleep(60)",
    ],
)
def test_nothing_of_it_stays_behind(opened: Opened, escape: str) -> None:
    place, tavern = opened(timeout_ms=1500)
    marker = f"mark-{uuid.uuid4().hex}"
    body = f"import signal, time\nmarker = {marker!r}\nme = [sys.executable, '-S', '-c', 'import time; time.sleep(60)', marker]\n{escape}\n"
    place.run(tavern, body)
    assert processes_with(marker) == []


def test_what_it_leaves_in_shared_memory_is_invisible_to_others(opened: Opened) -> None:
    place, tavern = opened()
    left = f"left-{place.facts['name']}"
    answer = place.run(tavern, f"open('/dev/shm/{left}', 'w').write('x'); answer = os.listdir('/dev/shm')").value[
        "answer"
    ]
    assert answer == [left]
    assert not Path("/dev/shm", left).exists()
    assert place.run(tavern, "answer = os.listdir('/dev/shm')").value["answer"] == []
    full = place.run(tavern, f"open('/dev/shm/{left}', 'wb').write(bytes(1 << 29))")
    assert full.value["did"] is False
    assert "No space left" in full.value["answer"]


def test_a_script_cannot_disturb_the_process_that_watches_over_it(opened: Opened) -> None:
    code = "import signal\nfor number in set(signal.Signals) - {signal.SIGTERM}:\n    try: os.kill(1, number)\n    except OSError: pass\nanswer = os.getppid()"
    place, tavern = opened()
    assert place.run(tavern, code).value == {"did": True, "answer": 1}
