"""The life of workers: begun again after a death, paused after many, ended with their plugin, their host, their fork server."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tavern_core import Budget, CallContext, Tavern, ToolResult
from tavern_core.errors import ActivationFailed
from tavern_core.isolation.worker_fork_server import worker_server
from tests.forked_programs import ForkedProgram, run_forked

from ..host.workshop import Workshop
from .conftest import too_many_files_on_their_way
from .waiting import until

pytestmark = pytest.mark.slow

CODE = '''
import asyncio, os, time
from tavern_core import Service, factory, hookimpl, tool
STATE = []

@tool
def pid() -> int:
    """Which process."""
    return os.getpid()

@tool
def die(code: int = 1):
    """Die."""
    os._exit(code)

@tool
def state() -> list:
    """What happened in this process."""
    return STATE

@tool
def wait(seconds: float) -> str:
    """Wait in a thread."""
    time.sleep(seconds)
    return "waited"

@tool
async def wait_later(seconds: float) -> str:
    """Wait on the loop."""
    await asyncio.sleep(seconds)
    return "waited"

def make(context):
    @tool(name="made")
    def made(n: int = 1) -> str:
        """Made."""
        return f"{context.principal} {n}"
    return made

@hookimpl
def tavern_register_tools(ctx):
    STATE.append("asked")
    return [pid, die, state, wait, wait_later, factory(make, names=["made"])]

@hookimpl
def tavern_register_services(ctx):
    async def start(): STATE.append("service")
    return [Service("s", object(), start=start)]

@hookimpl
def tavern_start(ctx):
    STATE.append(f"started {ctx.id}")

@hookimpl
def tavern_stop(ctx):
    (ctx.data_dir / "stopped").write_text("")
'''
TOOLS = ["pid", "die", "state", "wait", "wait_later", "made"]
MANIFEST = f"tools: [{', '.join(f'{{id: {t}, implementation: {{type: python}}}}' for t in TOOLS)}]\nservices: [s]\nisolation: process"


def folder(workshop: Workshop, name: str = "p", code: str = CODE, manifest: str = MANIFEST) -> None:
    made = workshop.folder(name, None, manifest.replace("services: [s]", f"services: [s-{name}]"))
    (made / "__init__.py").write_text(code.replace('Service("s"', f'Service("s-{name}"'))


def value(host: Tavern, tool: str, **arguments: Any) -> Any:
    result = host.invoke_sync(tool, arguments)
    assert result.ok, result.error
    return result.value


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children(pid: int | None) -> list[int]:
    return [int(c) for thread in Path(f"/proc/{pid}/task").iterdir() for c in (thread / "children").read_text().split()]


def test_a_new_worker_is_brought_to_where_the_old_one_was(workshop: Workshop) -> None:
    folder(workshop)
    host = workshop.open()
    first = value(host, "p:pid")
    assert value(host, "p:state") == ["asked", "service", "started p"]
    assert value(host, "p:made", n=2) == "host 2"
    lost = host.invoke_sync("p:die").error
    assert lost is not None
    assert (lost.kind, lost.outcome, lost.details["exitCode"]) == ("UPSTREAM_ERROR", "unknown", 1)
    assert value(host, "p:state") == ["asked", "service", "started p"]
    assert value(host, "p:made", n=3) == "host 3"
    assert value(host, "p:pid") != first
    assert value(host, "p:wait_later", seconds=0) == "waited"


@pytest.mark.slow
def test_calls_at_once_from_threads_and_tasks(workshop: Workshop) -> None:
    folder(workshop)
    host = workshop.open()
    answers: list[Any] = []

    def thread() -> None:
        answers.extend(value(host, tool, seconds=0.01) for tool in ("p:wait", "p:wait_later") for _ in range(5))

    threads = [threading.Thread(target=thread) for _ in range(8)]

    async def tasks() -> list[ToolResult]:
        return await asyncio.gather(
            *(host.invoke(f"p:{t}", {"seconds": 0.02}) for t in ("wait", "wait_later") for _ in range(40))
        )

    for each in threads:
        each.start()
    found = asyncio.run(tasks())
    for each in threads:
        each.join()
    assert [r.value for r in found] == ["waited"] * 80
    assert answers == ["waited"] * 80


@pytest.mark.slow
def test_other_calls_of_a_dead_worker_fail_and_nothing_else(workshop: Workshop) -> None:
    folder(workshop)
    folder(workshop, "q")
    host = workshop.open()
    value(host, "p:pid")

    async def main() -> list[ToolResult]:
        waiting = [
            asyncio.create_task(host.invoke(f"{p}:{t}", {"seconds": 0.5})) for p in "pq" for t in ("wait", "wait_later")
        ]
        await asyncio.sleep(0.2)
        await host.invoke("p:die")
        return await asyncio.gather(*waiting)

    results = asyncio.run(main())
    assert [r.error.kind if r.error else r.value for r in results] == [
        "UPSTREAM_ERROR",
        "UPSTREAM_ERROR",
        "waited",
        "waited",
    ]
    assert all(r.error is None or r.error.outcome == "unknown" for r in results)


@pytest.mark.slow
@pytest.mark.parametrize("door", ["sync", "async"])
def test_a_worker_that_does_not_come_up_again_keeps_no_call_longer_than_its_time(workshop: Workshop, door: str) -> None:
    folder(workshop, code=f"import os, time\nif os.path.exists(os.environ['HOME'] + '/flag'): time.sleep(1000)\n{CODE}")
    host = workshop.open(config={"limits": {"hookTimeoutMs": 1_000}})  # closing the host waits so long
    assert value(host, "p:pid")
    (workshop.home / "data" / "p" / "flag").write_text("")
    assert not host.invoke_sync("p:die").ok
    soon = CallContext(principal="t", budget=Budget(timeout_ms=200))

    async def later() -> ToolResult:
        return await host.invoke("p:pid", context=soon)

    result = host.invoke_sync("p:pid", context=soon) if door == "sync" else asyncio.run(later())
    assert result.error is not None
    assert (result.error.kind, result.error.details["stopped"]) == ("TIMEOUT", True)


@pytest.mark.slow
def test_a_restart_that_fails_when_no_call_waits_for_it_any_more_is_not_logged(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    folder(workshop, code=f"import os, time\nif os.path.exists(os.environ['HOME'] + '/flag'): time.sleep(1000)\n{CODE}")
    host = workshop.open(config={"limits": {"hookTimeoutMs": 1_000}})
    assert value(host, "p:pid")
    (workshop.home / "data" / "p" / "flag").write_text("")
    assert not host.invoke_sync("p:die").ok

    async def calls_and_closes() -> str:
        late = await host.invoke("p:pid", context=CallContext(principal="t", budget=Budget(timeout_ms=200)))
        await asyncio.to_thread(workshop.close, host)  # ends the restart, which fails
        assert late.error is not None
        return late.error.kind

    assert asyncio.run(calls_and_closes()) == "TIMEOUT"
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.slow
def test_a_plugin_that_dies_in_a_row_is_paused_and_says_so(workshop: Workshop) -> None:
    step = "\nfrom tavern_core import node\n@node('p:Step')\ndef step() -> int: return 1\n"
    hook = "@hookimpl\ndef tavern_register_nodes(): return [step]\n"
    tool = "tools: [{id: step, implementation: {type: node, nodeType: 'p:Step'}}, "
    folder(workshop, code=CODE + step + hook, manifest=f"nodes: [Step]\n{MANIFEST.replace('tools: [', tool)}")
    host = workshop.open()
    assert value(host, "p:step") == 1
    kinds = [error.kind for _ in range(6) if (error := host.invoke_sync("p:die").error)]
    assert kinds == ["UPSTREAM_ERROR"] * 5 + ["CIRCUIT_OPEN"]
    refused = host.invoke_sync("p:pid").error
    assert refused is not None
    assert (refused.kind, refused.outcome, refused.retryable) == ("CIRCUIT_OPEN", "none", True)
    assert 0 < (refused.retry_after_ms or 0) <= 30_000
    assert "5 times in a row" in refused.message
    nothing_ran = host.invoke_sync("p:step").error
    assert nothing_ran is not None
    assert (nothing_ran.kind, nothing_ran.outcome) == ("CIRCUIT_OPEN", "none")
    assert "paused until" in host.plugins["p"].reason
    look = workshop.open(activate="none")
    assert "paused until" in look.plugins["p"].reason  # another process is told as well
    assert host.plugins.reload_sync("p").state == "active"
    assert host.plugins["p"].reason == ""
    assert value(host, "p:pid")


@pytest.mark.slow
def test_a_worker_that_answers_in_between_is_never_paused(workshop: Workshop) -> None:
    folder(workshop)
    host = workshop.open()
    for _ in range(8):
        assert not host.invoke_sync("p:die").ok
        assert value(host, "p:pid")


@pytest.mark.slow
def test_stopping_and_starting_a_plugin(workshop: Workshop) -> None:
    folder(workshop)
    host = workshop.open()
    first = value(host, "p:pid")
    host.plugins.disable_sync("p")
    assert not lives(first)
    assert (workshop.home / "data" / "p" / "stopped").exists()
    host.plugins.enable_sync("p")
    second = value(host, "p:pid")
    (workshop.plugins / "p" / "__init__.py").write_text(CODE.replace('"waited"', '"changed"').replace('"s"', '"s-p"'))
    host.plugins.reload_sync("p")
    assert value(host, "p:wait", seconds=0) == "changed"
    assert not lives(second)
    third = value(host, "p:pid")
    workshop.close(host)
    assert not lives(third)


BROKEN = {
    "an endless import": ("while True: pass", "could not be imported within 1.5 s"),
    "an import that exits": ("import os; os._exit(5)", "exited with code 5"),
    "an import that crashes": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "an import that fails": ("1 / 0", "ZeroDivisionError"),
    "an import of nothing": ("import absent_module", "pip install what provides 'absent_module'"),
    "sys.exit": ("raise SystemExit(2)", "SystemExit"),
    "bad syntax": ("def", "SyntaxError"),
    "a register-hook that never ends": (
        "from tavern_core import hookimpl\n@hookimpl\ndef tavern_register_tools(ctx):\n    while True: pass", "took longer than 0.7 s",
    ),
    "a register-hook that exits": (
        "import os\nfrom tavern_core import hookimpl\n@hookimpl\ndef tavern_register_tools(ctx): os._exit(6)", "exited with code 6",
    ),
    "an endless list of tools": (
        "from tavern_core import hookimpl, tool\n@hookimpl\ndef tavern_register_tools(ctx): return iter(lambda: 1, 2)", "more than 20000",
    ),
    "a start that fails": ("from tavern_core import hookimpl\n@hookimpl\ndef tavern_start(ctx): raise ValueError('no')", "ValueError: no"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", BROKEN)
def test_a_plugin_that_cannot_begin_fails_with_its_reason(workshop: Workshop, what: str) -> None:
    code, text = BROKEN[what]
    folder(workshop, "p", code, "start: true\nisolation: process")
    folder(workshop, "q")
    host = workshop.open(config={"limits": {"hookTimeoutMs": 700}, "isolation": {"startTimeoutMs": 1500}})
    status = host.plugins["p"]
    assert (status.state, text in f"{status.reason}") == ("failed", True), status.reason
    assert value(host, "q:pid")


@pytest.mark.slow
def test_a_worker_that_could_not_begin_leaves_nothing_open(workshop: Workshop) -> None:
    folder(workshop, "p", "1 / 0", "start: true\nisolation: process")
    workshop.close(workshop.open())
    before = descriptors()
    for _ in range(5):
        workshop.close(workshop.open())
    assert descriptors() == before


@pytest.mark.slow
def test_a_host_that_closes_while_a_plugin_is_imported_leaves_nothing_behind(workshop: Workshop) -> None:
    folder = workshop.folder("p", None, "isolation: process\ntools: [{id: pid, implementation: {type: python}}]")
    (folder / "__init__.py").write_text(
        "import os, time\nopen(os.path.join(os.environ['HOME'], 'begun'), 'w').close()\ntime.sleep(600)\n"
    )
    host = workshop.open()
    answers: list[ToolResult] = []
    caller = threading.Thread(target=lambda: answers.append(host.invoke_sync("p:pid")))
    caller.start()
    until((workshop.home / "data" / "p" / "begun").exists)
    workshop.close(host)
    caller.join()
    assert answers[0].error is not None
    assert answers[0].error.kind in ("USAGE", "CONNECTION_LOST")
    assert "tavern-workers" not in {thread.name for thread in threading.enumerate()}
    until(lambda: not children(worker_server.pid))


def test_several_hosts_of_one_process_share_the_fork_server_and_nothing_else(workshop: Workshop) -> None:
    folder(workshop)
    one, two = workshop.open(), workshop.open(home=workshop.root / "home2")
    assert value(one, "p:pid") != value(two, "p:pid")
    assert len(children(worker_server.pid)) == 2
    workshop.close(one)
    assert value(two, "p:pid")
    assert len(children(worker_server.pid)) == 1


@pytest.mark.slow
def test_the_fork_server_may_die(workshop: Workshop) -> None:
    folder(workshop)
    host = workshop.open()
    worker, server = value(host, "p:pid"), worker_server.pid
    assert server is not None
    os.kill(server, signal.SIGKILL)
    until(lambda: not lives(worker))
    until(lambda: host.invoke_sync("p:pid").ok, 20)
    assert worker_server.pid != server


PROGRAM = """
import sys
from tavern_core import Tavern
with Tavern.open({config!r}, home={home!r}) as host:
    print(host.invoke_sync("p:pid").value, flush=True)
    sys.stdin.read()
"""


def program(workshop: Workshop) -> ForkedProgram:
    config = {"plugins": {"entryPoints": False, "roots": [str(workshop.plugins)]}}
    text = textwrap.dedent(PROGRAM).format(config=config, home=str(workshop.home))
    return ForkedProgram(["-c", text], stdin=PIPE, stdout=PIPE)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "closed", "interrupted"])
def test_no_worker_outlives_its_host(workshop: Workshop, end: str) -> None:
    folder(workshop)
    with program(workshop) as host:
        worker = int(host.stdout.readline())
        [server] = children(host.pid)
        assert lives(worker)
        assert lives(server)
        if end == "closed":
            host.stdin.close()
        else:
            host.send_signal(signal.SIGKILL if end == "killed" else signal.SIGINT)
        host.wait(20)
        until(lambda: not lives(worker) and not lives(server))


@pytest.mark.slow
def test_an_object_of_a_forked_host_has_a_fork_server_of_its_own() -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        worker_server.use()
        os.write(writer, str(worker_server.pid).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 100) == b"None"
    os.close(reader)
    os.close(writer)


FORKED = """
import os
from tavern_core import Tavern
with Tavern.open({config!r}, home={home!r}) as host:
    worker = host.invoke_sync("p:pid").value
    child = os.fork()
    if child == 0:
        for tool in ("p:pid", "p:state"):  # one that was called before, one that was not
            try:
                print(host.invoke_sync(tool).error.message, flush=True)
            except Exception as error:
                print(error, flush=True)
    else:
        os.waitpid(child, 0)
        print(host.invoke_sync("p:pid").value == worker)
"""


@pytest.mark.slow
def test_a_forked_copy_of_a_host_gets_an_error_and_leaves_the_workers_alone(workshop: Workshop) -> None:
    folder(workshop)
    config = {"plugins": {"entryPoints": False, "roots": [str(workshop.plugins)]}}
    text = textwrap.dedent(FORKED).format(config=config, home=str(workshop.home))
    done = run_forked(["-c", text])
    *refused, last = done.stdout.splitlines()
    assert ["this is a forked copy of it" in line for line in refused] == [True, True], done
    assert last == "True"


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["limits", "namespaces", "privileges", "landlock", "seccomp"])
def test_a_missing_layer_is_named_and_refused_unless_the_level_allows_it(workshop: Workshop, layer: str) -> None:
    folder(workshop)
    strict = workshop.open(config={"isolation": {"level": "required", "without": [layer]}})
    status = strict.plugins["p"]
    assert (status.state, f"no {layer} layer" in status.reason) == ("failed", True), status
    loose = workshop.open(
        config={"isolation": {"level": "best-effort", "without": [layer]}}, home=workshop.root / "home2"
    )
    assert value(loose, "p:pid")
    weak = [d for d in loose.diagnostics if d.code == "ISOLATION_WEAK"]
    assert [layer in d.message for d in weak] == [True]
    records = "".join(file.read_text() for file in (workshop.root / "home2").rglob("*.jsonl"))
    assert '"ISOLATION_WEAK"' in records


def test_without_a_level_no_layer_is_needed(workshop: Workshop) -> None:
    folder(workshop)
    assert value(workshop.open(config={"isolation": {"level": "none"}}), "p:pid")


@pytest.mark.slow
def test_policy_raises_a_plugin_into_a_worker(workshop: Workshop) -> None:
    plain = MANIFEST.replace(
        "isolation: process", 'permissions: {hooks: [hook:server:events], capabilities: ["read:fs"]}'
    )
    for name in "pqr":
        folder(workshop, name, CODE, plain.replace("read:fs", "gpu") if name == "r" else plain)
    workshop.grant("p", "q", "r")
    host = workshop.open(config={"isolation": {"plugins": ["p"], "raise": ["read:fs"]}})
    assert value(host, "p:pid") != os.getpid()
    assert value(host, "q:pid") != os.getpid()
    assert value(host, "r:pid") == os.getpid()
    assert [host.plugins[name].isolated for name in "pqr"] == [
        "isolation.plugins names it",
        "it asks for read:fs (isolation.raise)",
        "",
    ]


def test_an_installed_package_runs_in_a_worker(workshop: Workshop) -> None:
    package = workshop.installed("inst", "", MANIFEST)
    (package / "__init__.py").write_text(CODE + "\nfrom . import part\n")
    (package / "part.py").write_text("X = 1\n")
    host = workshop.open()
    assert value(host, "inst:pid") != os.getpid()
    assert f"tavern_plugin_{'inst'}" not in sys.modules


@pytest.mark.soak
def test_five_hundred_deaths_leave_nothing_behind(workshop: Workshop) -> None:
    folder(workshop)
    host = workshop.open()
    value(host, "p:pid")
    before, threads = descriptors(), threading.active_count()
    for number in range(500):
        began = time.monotonic()
        if number % 2:
            os.kill(value(host, "p:pid"), signal.SIGKILL)
        else:
            assert (
                host.invoke_sync("p:die", context=CallContext(principal="t", budget=Budget(timeout_ms=5000))).error
                is not None
            )
        assert time.monotonic() - began < 1
        until(lambda: host.invoke_sync("p:pid").ok, 5)
    until(lambda: len(children(worker_server.pid)) == 1)
    assert descriptors() <= before + 3
    until(lambda: threading.active_count() <= threads + 3)


def test_a_worker_is_not_started_again_while_its_host_is_being_closed(workshop: Workshop) -> None:
    folder(workshop)
    host = workshop.open()
    value(host, "p:pid")
    launch = host._host.isolation._supervisors["p"]._launch
    # The plugins of the host are stopped one after the other, and a worker may be starting meanwhile.
    launch.contributions.remove(str(launch.contributions.owner("executors", "python")))
    with pytest.raises(ActivationFailed, match="this host has no executor for Python tools any more"):
        launch.request()


def test_a_worker_that_may_write_starts_also_while_too_many_files_are_on_their_way(workshop: Workshop) -> None:
    asks = "permissions: {capabilities: [{name: write:fs, scope: [./free]}]}"
    (workshop.root / "free").mkdir()
    folder(workshop, manifest=f"{MANIFEST}\n{asks}")
    host = workshop.open()
    host.grant("p", "write:fs")
    first = value(host, "p:pid")
    with too_many_files_on_their_way() as take_all:
        assert not host.invoke_sync("p:die", {}).ok
        late = threading.Timer(0.3, take_all)
        late.start()
        assert value(host, "p:pid") != first
        late.join()
