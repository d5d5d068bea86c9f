"""Plugins that want to do harm, in a worker: the call fails in time with a reason, the host goes on, the next call works."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tavern_core.package_location
from tavern_core import Budget, CallContext, Tavern, ToolResult
from tests.rows import each_row

from ..host.workshop import Workshop

pytestmark = pytest.mark.slow

BAD = '''
import asyncio, contextlib, ctypes, glob, io, json, os, signal, socket, stat, struct, subprocess, sys, threading, time, traceback
from pathlib import Path
from tavern_core import Service, hookimpl, tool

def sockets():
    """The numbers of the worker's own sockets."""
    found = []
    for fd in range(3, 200):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found.append(fd)
    return found

def owned(name):
    import gc
    return [thing for thing in gc.get_objects() if type(thing).__name__ == name]

def side(): return owned("HostClient")[0]._side.fileno()
def lane(): return owned("FrameChannel")[0].fd

def frame(data):
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return struct.pack(">I", len(body)) + body

@tool
def run(code: str):
    """Run any code; what `answer` is then."""
    scope = dict(globals())
    exec(code, scope)
    return scope.get("answer")

@tool
async def run_later(code: str):
    """The same, on the event loop."""
    scope = dict(globals())
    exec("async def main():\\n" + "\\n".join("    " + line for line in code.splitlines()) + "\\n", scope)
    return await scope["main"]()

@tool
def echo(text: str = "") -> str:
    """Echo."""
    return text

@hookimpl
def tavern_register_tools(ctx):
    ctx.data_dir
    return [run, run_later, echo]
'''
MANIFEST = """
tools: [{id: run, implementation: {type: python}}, {id: run_later, implementation: {type: python}}, {id: echo, implementation: {type: python}}]
isolation: process
"""
SOON = CallContext(principal="t", budget=Budget(timeout_ms=300))
IN_TIME = CallContext(principal="t", budget=Budget(timeout_ms=20_000))
"""For calls that end by themselves, also where a new worker starts first on a busy machine."""


@pytest.fixture(scope="module")
def shop(module_folder: Path) -> Iterator[Workshop]:
    with pytest.MonkeyPatch.context() as patch:
        shop = Workshop(module_folder, patch)
        folder = shop.folder("bad", None, MANIFEST)
        (folder / "__init__.py").write_text(BAD)
        yield shop
        shop.end()


@pytest.fixture(scope="module")
def host(shop: Workshop) -> Tavern:
    os.environ["PLANTED_SECRET"] = "planted-1414213562"
    return shop.open(
        config={"limits": {"outputBytes": 200_000, "hookTimeoutMs": 5_000}, "secrets": {"s": "canary-1732050807"}}
    )


def kind(result: ToolResult) -> str:
    return "ok" if result.error is None else result.error.kind


def run(host: Tavern, code: str, tool: str = "run", context: CallContext = IN_TIME) -> ToolResult:
    return host.invoke_sync(f"bad:{tool}", {"code": code}, context=context)


def assert_well(host: Tavern) -> None:
    """The next calls work, by both doors."""
    assert host.invoke_sync("bad:echo", {"text": "a"}).value == "a"
    assert asyncio.run(_await(host)).value == "b"


async def _await(host: Tavern) -> ToolResult:
    return await host.invoke("bad:echo", {"text": "b"})


DEADLY = {
    # what it does: (its code, the code of the error, a part of the message)
    "it exits": ("os._exit(3)", "UPSTREAM_ERROR", "exited with code 3"),
    "it exits well": ("os._exit(0)", "UPSTREAM_ERROR", "exited with code 0"),
    "it reads from nowhere": ("ctypes.string_at(0)", "UPSTREAM_ERROR", "SIGSEGV"),
    "it kills itself": ("os.kill(os.getpid(), 9)", "UPSTREAM_ERROR", "SIGKILL"),
    "it aborts": ("os.abort()", "UPSTREAM_ERROR", "SIGABRT"),
    "it never ends": ("while True: pass", "TIMEOUT", "did not finish in time"),
    "it sleeps": ("time.sleep(100)", "TIMEOUT", "did not finish in time"),
    "it holds the interpreter's lock": (
        "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
        "TIMEOUT",
        "did not finish in time",
    ),
    "it blocks signals": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: time.sleep(1)",
        "TIMEOUT",
        "did not finish",
    ),
    "it recurses without end": ("import sys; sys.setrecursionlimit(10**9)\nf = lambda: f()\nf()", "", ""),
    "it closes its sockets": ("[os.close(fd) for fd in sockets()]\ntime.sleep(100)", "", ""),
    "it shuts its sockets": (
        "[socket.socket(fileno=fd).shutdown(2) for fd in sockets()]\ntime.sleep(100)",
        "UPSTREAM_ERROR",
        "the worker of bad",
    ),
    "it prints on its sockets": ("[os.write(fd, b'garbage' * 100) for fd in sockets()]\ntime.sleep(100)", "", ""),
    "it sends a frame that never ends": (
        "os.write(lane(), struct.pack('>I', 2**31 - 1) + b'x')\ntime.sleep(100)",
        "OUTPUT_TOO_LARGE",
        "2,147,483,647",
    ),
    "it tells without end": (
        "os.write(side(), struct.pack('>I', 2**31 - 1) + b'x')\ntime.sleep(100)",
        "UPSTREAM_ERROR",
        "2,147,483,647",
    ),
    "it promises more than it sends": (
        "[os.write(fd, struct.pack('>I', 1000) + b'x') for fd in sockets()]\ntime.sleep(100)",
        "",
        "",
    ),
    "it sends deep JSON": (
        "os.write(lane(), frame(b'[' * 50000 + b']' * 50000))\ntime.sleep(100)",
        "UPSTREAM_ERROR",
        "an invalid message",
    ),
    "it sends a list": ("os.write(lane(), frame([1, 2]))\ntime.sleep(100)", "UPSTREAM_ERROR", "an invalid message"),
    "it sends NaN": (
        "os.write(lane(), frame(b'{\"id\": NaN}'))\ntime.sleep(100)",
        "UPSTREAM_ERROR",
        "an invalid message",
    ),
    "it answers for others": (
        "os.write(lane(), frame({'id': 999999, 'ok': ['json', 1]}))\ntime.sleep(100)",
        "UPSTREAM_ERROR",
        "without a request",
    ),
    "it answers without a number": (
        "os.write(lane(), frame({'ok': ['json', 1]}))\ntime.sleep(100)",
        "UPSTREAM_ERROR",
        "without a request",
    ),
    "it answers twice": (
        "os.write(lane(), frame({'id': 999999, 'ok': 1}) * 2)\ntime.sleep(100)",
        "UPSTREAM_ERROR",
        "more than",
    ),
    "it floods its output": ("while True: os.write(1, b'x' * 65536)", "UPSTREAM_ERROR", "printed too much"),
    "it floods the log": (
        "import logging\nfd = side()\nwhile True: os.write(fd, frame({'send': 'log', 'level': 30, 'logger': 'x', 'text': 'y' * 1000}))",
        "UPSTREAM_ERROR",
        "logged too much",
    ),
    "it logs what is not text": (
        "os.write(side(), frame({'send': 'log', 'level': 30, 'logger': 'x', 'text': 1}))\ntime.sleep(100)",
        "UPSTREAM_ERROR",
        "not text",
    ),
    "it asks without end": (
        "[os.write(fd, frame({'id': n, 'ask': 'service', 'call': 0, 'name': 'x'})) for n in range(5000) for fd in sockets()]\ntime.sleep(100)",
        "",
        "",
    ),
}


BESIDE = """
import sys, tavern_core
from pathlib import Path
from tavern_core import Tavern
place = Path(sys.argv[1])
assert Path(tavern_core.__file__).parents[1] == place
with Tavern.open({"plugins": {"roots": [sys.argv[2]], "entryPoints": False}}, home=place / "home") as host:
    for look in ("open(PATH + '/notes.txt').read()", "os.listdir(PATH)", "len(os.listdir(PATH + '/tavern_core'))"):
        result = host.invoke_sync("bad:run", {"code": f"PATH = {str(place)!r}; answer = {look}"})
        print("read" if result.ok else "refused" if "PermissionError" in result.error.message else result.error)
"""


def test_a_worker_reads_the_package_and_nothing_beside_it(shop: Workshop, tmp_path: Path) -> None:
    # A copy: what lies beside a project that is installed from where it is written may be another package.
    shutil.copytree(tavern_core.package_location.FOLDER, tmp_path / "tavern_core")
    (tmp_path / "notes.txt").write_text("private")
    shown = subprocess.run(
        [sys.executable, "-c", BESIDE, tmp_path, shop.root / "plugins"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert shown.stdout.splitlines() == ["refused", "refused", "read"]


@each_row("what", DEADLY)
def test_a_worker_that_misbehaves_costs_its_own_call(host: Tavern, what: str) -> None:
    code, error, text = DEADLY[what]
    patience = Budget(timeout_ms=4_000 if error == "UPSTREAM_ERROR" else 500)
    result = run(host, code, context=CallContext(principal="t", budget=patience))
    assert result.error is not None
    if error:
        assert (kind(result), text in result.error.message) == (error, True), result.error
    assert result.error.outcome == "unknown"
    assert_well(host)


LOOPED = {
    "it never ends": ("while True: pass", "TIMEOUT"),
    "it sleeps well": ("await asyncio.sleep(100)", "TIMEOUT"),
    "it will not be cancelled": (
        "while True:\n    try:\n        await asyncio.sleep(100)\n    except asyncio.CancelledError:\n        pass",
        "TIMEOUT",
    ),
    "it blocks its loop": ("time.sleep(100)", "TIMEOUT"),
    "it stops its loop": ("asyncio.get_running_loop().stop()\nawait asyncio.sleep(100)", "TIMEOUT"),
    "it exits": ("os._exit(1)", "UPSTREAM_ERROR"),
}


@each_row("door", ["sync", "async"])
@each_row("what", LOOPED)
def test_async_work_is_ended_too(host: Tavern, what: str, door: str) -> None:
    code, error = LOOPED[what]
    context = SOON if error == "TIMEOUT" else IN_TIME

    async def call() -> ToolResult:
        return await host.invoke("bad:run_later", {"code": code}, context=context)

    result = asyncio.run(call()) if door == "async" else run(host, code, "run_later", context)
    assert kind(result) == error, result.error
    assert result.error is not None
    if error == "TIMEOUT":
        assert result.error.details["stopped"] is True
    assert_well(host)


def test_work_that_is_cancelled_politely_does_not_cost_the_process(host: Tavern) -> None:
    pid = host.invoke_sync("bad:run", {"code": "answer = os.getpid()"}).value
    assert kind(run(host, "await asyncio.sleep(100)", "run_later", SOON)) == "TIMEOUT"
    assert host.invoke_sync("bad:run", {"code": "answer = os.getpid()"}).value == pid


DEAF = """
from tavern_core.isolation.worker.host_client import HostClient
HostClient.answered = lambda self, message: time.sleep(1000)
fd = side()
for n in range(100):  # until the way back is full: fewer than 64 of the answers find no room
    os.write(fd, frame({"id": 10**6 + n, "ask": "service", "call": 0, "name": "x" * 2000}))
    time.sleep(0.002)
"""


@pytest.mark.soak
def test_a_worker_that_does_not_listen_holds_up_no_event_loop(host: Tavern) -> None:
    async def main() -> float:
        worst = 0.0

        async def beat() -> None:
            nonlocal worst
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.01)
                worst = max(worst, time.perf_counter() - before)

        beating = asyncio.create_task(beat())
        assert (await host.invoke("bad:run", {"code": DEAF})).ok
        await asyncio.sleep(1)
        sleeping = {"code": "await asyncio.sleep(100)"}
        late = await asyncio.gather(*(host.invoke("bad:run_later", sleeping, context=SOON) for _ in range(12)))
        assert {kind(result) for result in late} == {"TIMEOUT"}
        beating.cancel()
        return worst

    assert asyncio.run(main()) < 1
    assert_well(host)


def test_a_worker_that_does_not_listen_keeps_no_other_from_asking(shop: Workshop) -> None:
    for name in ("deaf", "asks"):
        (shop.folder(name, None, MANIFEST) / "__init__.py").write_text(BAD)
    host = shop.open(home=shop.root / "home-of-two")
    assert host.invoke_sync("deaf:run", {"code": DEAF}).ok
    ask = "try: owned('PluginContext')[0].service('x')\nexcept Exception as error: answer = str(error)"
    patient = CallContext(principal="t", budget=Budget(timeout_ms=2_500))
    result = host.invoke_sync("asks:run", {"code": ask}, context=patient)
    assert "no service" in str(result.value), result.error


def test_a_cancelled_caller_ends_the_work(host: Tavern) -> None:
    async def main() -> None:
        task = asyncio.create_task(host.invoke("bad:run", {"code": "while True: pass"}))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert_well(host)


CONTAINED = {
    "the host's state": "answer = Path({home!r}, 'plugins.json').parent.joinpath('tavern.lock').exists() or os.listdir({home!r})",
    "the log": "answer = open({home!r} + '/audit/events.jsonl').read()",
    "secrets of the system": "answer = open('/etc/shadow').read()",
    "users": "answer = open('/etc/passwd').read()",
    "the host's environment": "answer = open('/proc/{host}/environ').read()",
    "the host's memory": "answer = open('/proc/{host}/mem', 'rb').read(1)",
    "the parent's environment": "answer = open(f'/proc/{{os.getppid()}}/environ').read()",
    "the project": "answer = os.listdir({root!r})",
    "root's folder": "answer = os.listdir(os.path.expanduser('~root'))",
    "writing elsewhere": "answer = open('/tmp/tavern-escape', 'w')",
    "writing its own code": "answer = open(__file__, 'a')",
    "an internet socket": "answer = socket.socket()",
    "a datagram socket": "answer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "a unix socket": "answer = socket.socket(socket.AF_UNIX)",
    "a netlink socket": "answer = socket.socket(16, 3)",
    "another program": "answer = subprocess.run(['/bin/true'])",
    "a fork": "answer = os.fork()",
    "exec": "os.execv('/bin/true', ['true'])",
    "a signal to the host": "os.kill({host}, 15); answer = 1",
    "a question to the host's process": "os.kill({host}, 0); answer = 1",
    "a signal to all": "os.kill(-1, 15); answer = 1",
    "ptrace": "answer = ctypes.CDLL(None, use_errno=True).ptrace(16, {host}, 0, 0); assert answer == 0, ctypes.get_errno()",
    "a namespace": "answer = ctypes.CDLL(None, use_errno=True).unshare(0x10000000); assert answer == 0, ctypes.get_errno()",
    "a link out of its folder": "os.symlink('/etc/shadow', 'x'); answer = open('x').read()",
}


@each_row("what", CONTAINED)
def test_what_was_not_granted_cannot_be_reached(host: Tavern, shop: Workshop, what: str) -> None:
    code = CONTAINED[what].format(home=str(shop.home), host=os.getpid(), root=str(shop.root))
    result = run(host, code)
    assert not result.ok, result
    assert kind(result) == "UPSTREAM_ERROR"
    assert_well(host)


def test_the_folder_of_the_program_and_others_on_its_path_are_not_in_reach(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python puts the folder of the script it runs on the path of modules, and programs put others there."""
    program, library, linked = (shop.root / name for name in ("program", "library", "linked"))
    for folder in (program, library, linked):
        folder.mkdir()
        (folder / f"of_{folder.name}.py").write_text("X = 'imported'\n")
        monkeypatch.syspath_prepend(str(folder))
    (program / ".env").write_text("TOKEN=1")
    (library / "it-1.0.dist-info").mkdir()  # as `pip install --target` leaves it
    (library / "editable.pth").write_text(f"import os\n# {program}\n{linked}\n")
    host = shop.open()
    for code in ("open({!r}).read()", "os.listdir({!r}.rpartition('/')[0])"):
        result = run(host, "answer = " + code.format(str(program / ".env")))
        assert result.error is not None
        assert "PermissionError" in result.error.message
        assert "in a box" in result.error.fix
        assert "tavern plugins review" in result.error.fix
    assert "No module named" in str(run(host, "import of_program").error)
    for name in ("library", "linked"):
        assert run(host, f"import of_{name}; answer = of_{name}.X").value == "imported"


def test_the_environment_of_a_worker_is_clean(host: Tavern) -> None:
    found = run(host, "answer = dict(os.environ)").value
    assert "planted" not in str(found)
    assert {name for name in found if not name.startswith("LC_")} <= {
        "HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "PATH",
        "TMPDIR",
        "TZ",
    }


def test_open_files_of_the_host_are_not_handed_on(host: Tavern, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        assert_well(host)
        run(host, "os._exit(1)")
        kinds = run(
            host,
            "answer = []\nfor fd in range(0, 300):\n    with contextlib.suppress(OSError):\n        answer.append(stat.S_IFMT(os.fstat(fd).st_mode))",
        ).value
        assert kinds
        assert 0o100000 not in kinds  # no ordinary file among them


@pytest.mark.slow
def test_memory_is_bounded(host: Tavern) -> None:
    result = run(
        host,
        "hog = []\nwhile True: hog.append(bytearray(50_000_000))",
    )
    assert kind(result) == "UPSTREAM_ERROR"
    assert_well(host)


def test_threads_that_stay_end_with_the_plugin(shop: Workshop, host: Tavern) -> None:
    code = "[threading.Thread(target=lambda: [time.sleep(0.01) for _ in iter(int, 1)]).start() for _ in range(20)]\nanswer = os.getpid()"
    pid = run(host, code).value
    host.plugins.reload_sync("bad")
    assert_well(host)
    assert run(host, "answer = os.getpid()").value != pid
    with pytest.raises(OSError):
        os.kill(pid, 0)


def test_what_it_prints_goes_to_the_log_and_not_to_the_hosts_output(
    host: Tavern, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(20, "tavern.plugin.bad")
    run(
        host,
        "print('to stdout', flush=True); os.write(2, b'to stderr\\n'); import logging; logging.getLogger('mine').warning('logged %s', 1)",
    )
    deadline = time.monotonic() + 5
    while "mine: logged 1" not in caplog.text or "to stderr" not in caplog.text:
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.01)
    assert "to stdout" in caplog.text
    assert capfd.readouterr() == ("", "")


def test_a_death_shows_the_end_of_what_was_printed(host: Tavern) -> None:
    error = run(host, "print('last words', flush=True); time.sleep(0.1); os._exit(4)").error
    assert error is not None
    assert error.details["printed"].endswith("last words")
    assert error.details["exitCode"] == 4


ODD_ERRORS = {
    # what it raises: (its code, a part of the error)
    "what ends the program": ("raise ToolFailed('x', data=Leaving())", {"message": "x", "details": {"data": "Leaving"}}),
    "a wait that cannot be written": ("raise ToolFailed('x', retry_after_ms=10**5000)", {"message": "x", "retryAfterMs": None}),
    "a number that cannot be written": (
        "raise ToolFailed('x', data=[10**5000])", {"message": "x", "details": {"data": ["integer of 16,610 bits"]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD_ERRORS)
def test_whatever_is_in_an_error_comes_as_plain_json_from_the_same_worker(host: Tavern, what: str) -> None:
    code, shown = ODD_ERRORS[what]
    leaving = "class Leaving:\n    def __repr__(self): raise SystemExit(3)\n"
    worker = run(host, "answer = os.getpid()").value
    result = run(host, f"from tavern_core import ToolFailed\n{leaving}{code}")
    assert result.error is not None
    error = result.error.to_json()
    assert {**error, **shown, "details": {**error["details"], **shown.get("details", {})}} == error
    assert run(host, "answer = os.getpid()").value == worker is not None
    assert_well(host)
