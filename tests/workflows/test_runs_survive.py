"""What happens to a run must not be lost: killed processes, damaged files, secrets, questions, subscribers of every kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Out, Plugin, hookimpl, node
from tavern_core.errors import InputInvalid, RunNotFound, StateDamaged, UsageError
from tests.engine.workbench import flow, group
from tests.forked_programs import ForkedProgram, run_forked
from tests.workflows.folder import CALLS, Flows

pytestmark = pytest.mark.anyio

PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from typing import Any
from tavern_core import Plugin, Tavern, hookimpl, node, Out, NodeContext

root = Path(sys.argv[1])

@node("k:Note")
async def note(name: str, x: Any = None) -> Out(y=str):
    with (root / "ran.txt").open("a") as file:
        file.write(name + "\\n")
    return name

@node("k:Kill")
async def kill(x: Any = None) -> Out(y=str):
    if (root / "kill").exists():
        (root / "kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived"

class Nodes:
    @hookimpl
    def tavern_register_nodes(self):
        return [note, kill]

async def main() -> None:
    settings = {"workflows": {"roots": [str(root / "workflows")]}}
    async with Tavern.open(settings, plugins=[Plugin(Nodes(), name="k")], home=root / "home") as tavern:
        if sys.argv[2] == "run":
            await tavern.workflows.run("long")
        else:
            [kept] = tavern.workflows.kept("long")
            print(kept.state)
            result = await tavern.workflows.resume(kept.run_id)
            print(result.state, *(f"{path}={state}" for path, state in sorted(result.states.items())))

asyncio.run(main())
"""


def program(root: Path, what: str) -> subprocess.CompletedProcess[str]:
    path = root / "program.py"
    path.write_text(textwrap.dedent(PROGRAM), "utf-8")
    return run_forked([path, root, what])


@pytest.mark.slow
def test_a_killed_run_is_taken_up_where_it_was_and_nothing_complete_runs_twice(flows: Flows) -> None:
    flows.write("inner", {"i": "core:GroupInput", "n": {"type": "k:Note", "name": "item"}, "o": "core:GroupOutput"}, "i.item>n.x n.y>o.out",
                interfaceInputs={"item": {"dataFlowType": "INTEGER"}}, interfaceOutputs={"out": {"dataFlowType": "STRING"}})  # fmt: skip
    nodes = {
        "a": {"type": "k:Note", "name": "a"}, "m": group("inner", type="core:Map", items=[1, 2, 3]), "k": "k:Kill",
        "b": {"type": "k:Note", "name": "b"}, "f": {"type": "k:Note", "name": "free"},
    }  # fmt: skip
    flows.write("long", nodes, "a.y>k.x k.y>b.x")
    (flows.root / "kill").touch()
    assert program(flows.root, "run").returncode == -signal.SIGKILL
    ran = (flows.root / "ran.txt").read_text().split()
    assert "b" not in ran
    done = program(flows.root, "resume")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "interrupted"), done.stderr
    assert done.stdout.splitlines()[1].startswith("complete a=cached b=complete")
    assert sorted((flows.root / "ran.txt").read_text().split()) == ["a", "b", "free", "item", "item", "item"]


KILLED_WITH_AN_ANSWER = """
import asyncio, os, signal, sys, threading
from pathlib import Path
from tavern_core import Plugin, Tavern, hookimpl, node, Out

root, who = Path(sys.argv[1]), sys.argv[2]
unlink, is_busy, is_answered = Path.unlink, threading.Event(), threading.Event()

def end():
    os.kill(os.getpid(), signal.SIGKILL)

def unlink_and_end(path, *args, **options):
    unlink(path, *args, **options)
    if path.suffix == ".answer":
        end()

@node("k:Busy")
async def busy() -> Out(y=str):
    while not tavern.workflows.questions("r"):
        await asyncio.sleep(0)
    if who == "itself":
        is_busy.set()
        is_answered.wait()  # and the loop with it
        end()
    return "lived"

class Nodes:
    @hookimpl
    def tavern_register_nodes(self):
        return [busy]

settings = {"workflows": {"roots": [str(root / "workflows")]}}
with Tavern.open(settings, plugins=[Plugin(Nodes(), name="k")], home=root / "home") as tavern:
    run = threading.Thread(target=lambda: tavern.workflows.run_sync("asks", run_id="r"))
    if who == "another process":
        Path.unlink = unlink_and_end
    run.start()
    if who == "itself":
        is_busy.wait()
        assert tavern.workflows.answer("r", "q#1", "red")
        is_answered.set()
    run.join()
"""


class Lively:
    @hookimpl
    def tavern_register_nodes(self) -> Any:
        @node("k:Busy")
        async def busy() -> Out(y=str):
            return "lived"

        return [busy]


@pytest.mark.slow
@pytest.mark.parametrize("who", ["another process", "itself"])
async def test_an_answer_that_was_acknowledged_outlives_the_process_of_its_run(flows: Flows, who: str) -> None:
    flows.write("asks", {"q": {"type": "core:Ask", "prompt": "which?"}, "b": "k:Busy"})
    path = flows.root / "program.py"
    path.write_text(KILLED_WITH_AN_ANSWER, "utf-8")
    with ForkedProgram([path, flows.root, who]) as program:
        async with flows.open(Plugin(Lively(), name="k")) as tavern:
            while (kept := tavern.workflows.kept_run("r")) is None or not kept.questions:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
            if who == "another process":
                assert tavern.workflows.answer("r", "q#1", "red")
            assert await asyncio.to_thread(program.wait, 30) == -signal.SIGKILL
            result = await asyncio.wait_for(tavern.workflows.resume("r"), 30)
            assert result.outputs == {"q": {"answer": "red"}, "b": {"y": "lived"}}
            assert not list((flows.root / "home").rglob("*.answer*"))


@pytest.mark.slow
async def test_a_run_that_goes_on_elsewhere_is_not_taken_up_but_can_be_ended(flows: Flows) -> None:
    flows.write("waits", {"w": "t:Wait"})
    async with flows.open() as tavern, flows.open() as other:
        handle = await tavern.workflows.start("waits")
        async for event in handle.events():
            if event.kind == "running":
                break
        assert [run.state for run in other.workflows.kept("waits")] == ["running"]
        for host in (tavern, other):
            with pytest.raises(UsageError, match="still running"):
                await host.workflows.resume(handle.id)
        with pytest.raises(RunNotFound) as caught:
            other.workflows.answer(handle.id, "w#1", 1)
        assert "another process" in caught.value.hint
        assert other.workflows.cancel(handle.id)
        assert (await asyncio.wait_for(handle, 30)).states == {"w": "interrupted"}
        assert not other.workflows.cancel(handle.id)
        assert [run.state for run in other.workflows.kept("waits")] == ["cancelled"]


async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(flows: Flows) -> None:
    flows.write(
        "inner",
        {"q": "t:Ask", "o": "core:GroupOutput"},
        "q.answer>o.said",
        interfaceOutputs={"said": {"dataFlowType": "STRING"}},
    )
    flows.write("asks", {"g": group("inner"), "t": "core:Text"}, "g.said>t.text")
    async with flows.open() as tavern:
        handle = await tavern.workflows.start("asks")
        async for event in handle.events():
            if event.kind == "ask":
                break
        with pytest.raises(InputInvalid, match="does not fit"):
            tavern.workflows.answer(handle.id, "g/q#1", 7)
        assert not tavern.workflows.answer(handle.id, "g/q#2", "x")
        assert [question.id for question in tavern.workflows.questions(handle.id)] == ["g/q#1"]
    async with flows.open() as tavern:
        with pytest.raises(InputInvalid, match="does not fit"):
            await tavern.workflows.resume(handle.id, {"g/q#1": {}})
        result = await tavern.workflows.resume(handle.id, {"g/q#1": "yes"})
    assert (result.state, result.outputs["t"]) == ("complete", {"text": "yes"})


async def test_of_two_answers_the_first_counts(flows: Flows) -> None:
    flows.write("asks", {"q": "t:Ask"})
    async with flows.open() as tavern:
        handle = await tavern.workflows.start("asks")
        async for event in handle.events():
            if event.kind == "ask":
                break
        given = await asyncio.gather(
            *(asyncio.to_thread(tavern.workflows.answer, handle.id, "q#1", str(at)) for at in range(8))
        )
        result = await handle
        assert given.count(True) == 1
        assert result.outputs["q"] == {"answer": str(given.index(True))}
        assert [e.kind for e in tavern.workflows.events(handle.id) if e.path == "q"] == [
            "queued",
            "running",
            "ask",
            "answered",
            "complete",
        ]


SECRET = "hunter2-hunter2"  # a known one
TOKEN = "sk-abcdefghijklmnopqrstuvwx"  # one that looks like it


@node("leaky:Leak")
async def leak(text: str, x: Any = None) -> Out(y=str):
    CALLS.append("leak")
    return text


@node("leaky:Throw")
async def throw(text: str) -> Out(y=str):
    raise ValueError(f"could not log in with {text}")


class Leaky:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [leak, throw]


async def test_secrets_are_in_no_file(flows: Flows) -> None:
    text = {"dataFlowType": "STRING", "required": True}
    flows.write("leaks", {"i": "core:GroupInput", "a": "leaky:Leak", "d": {"type": "leaky:Leak", "exec": {"cache": "disk"}},
                          "b": {"type": "leaky:Leak", "text": f"key {TOKEN}"}, "c": "leaky:Leak", "e": "leaky:Throw"},
                "i.secret>a.text i.secret>d.text i.plain>c.text i.secret>e.text",
                interfaceInputs={"secret": text, "plain": text, "password": {"dataFlowType": "STRING"}})  # fmt: skip
    inputs = {"secret": f"it is {SECRET}", "plain": "the password is required", "password": "open-sesame"}
    settings = {"secrets": {"login": SECRET}}
    async with flows.open(Plugin(Leaky(), name="leaky"), **settings) as tavern:
        result = await tavern.workflows.run("leaks", inputs)
        assert SECRET not in json.dumps([error.to_json() for error in result.errors])
        log = [tavern.workflows.kept("leaks")[0].inputs, [e.to_json() for e in tavern.workflows.events(result.run_id)]]
        assert SECRET not in json.dumps(log[1])
    found = [file for file in (flows.root / "home").rglob("*") if file.is_file()]
    assert found
    for file in found:
        for word in (SECRET, TOKEN, "open-sesame"):
            assert word.encode() not in file.read_bytes(), file
    async with flows.open(Plugin(Leaky(), name="leaky"), **settings) as tavern:
        CALLS.clear()
        with pytest.raises(UsageError, match="not stored: secret, password") as caught:
            await tavern.workflows.resume(result.run_id)
        assert "inputs=" in caught.value.hint
        again = await tavern.workflows.resume(
            result.run_id, inputs={"secret": inputs["secret"], "password": inputs["password"]}
        )
        events = [(e.path, e.data["why"]) for e in tavern.workflows.events(again.run_id) if e.kind == "again"]
    assert (again.states["c"], again.states["a"], again.states["b"], CALLS.count("leak")) == (
        "cached",
        "complete",
        "complete",
        3,
    )
    assert sorted(events) == [("a", "secret"), ("b", "secret"), ("d", "secret")]


@pytest.mark.parametrize(
    ("slot", "secret"),
    [
        ({"dataFlowType": "STRING"}, ""),
        ({"dataFlowType": "STRING", "required": True, "displayName": "Your password", "config": {"min": 8}}, ""),
        *(
            ({"dataFlowType": "STRING", "config": {key: value}}, "open-sesame")
            for key in ("default", "suggestions", "options", "value", "example", "placeholder")
            for value in ("open-sesame", [{"label": "mine", "value": "open-sesame"}])
        ),
        *(({"dataFlowType": "STRING", key: "open-sesame"}, "open-sesame") for key in ("default", "value")),
        ({"dataFlowType": "STRING", "description": TOKEN}, TOKEN),
    ],
)
async def test_an_input_that_is_called_like_a_secret_does_not_make_the_document_secret(
    flows: Flows, slot: dict[str, Any], secret: str
) -> None:
    document = flow(
        {"i": "core:GroupInput", "t": "leaky:Throw"}, "i.password>t.text", interfaceInputs={"password": slot}
    ).raw
    async with flows.open(Plugin(Leaky(), name="leaky")) as tavern:
        run_id = (await tavern.workflows.run(dict(document), {"password": "hunter2-x"})).run_id
    for file in (flows.root / "home").rglob("*"):
        assert not file.is_file() or not secret or secret.encode() not in file.read_bytes(), file
    async with flows.open(Plugin(Leaky(), name="leaky")) as tavern:
        resumed = tavern.workflows.resume(run_id, inputs={"password": "hunter2-x"})
        if secret:
            with pytest.raises(UsageError, match="held secrets"):
                await resumed
        else:
            assert (await resumed).errors[0].path == "t"


async def test_outputs_that_no_file_can_hold_are_run_again_and_said_so(flows: Flows) -> None:
    class Thing:
        pass

    @node("things:Object")
    async def thing() -> Out(y=Any):
        CALLS.append("object")
        return Thing()

    @node("things:See")
    async def see(x: Any) -> Out(y=str):
        CALLS.append("see")
        return type(x).__name__

    class Nodes:
        @hookimpl
        def tavern_register_nodes(self) -> list[Any]:
            return [thing, see]

    flows.write("object", {"o": "things:Object", "s": "things:See", "a": "t:Plain"}, "o.y>s.x")
    async with flows.open(Plugin(Nodes(), name="things")) as tavern:
        first = await tavern.workflows.run("object")
        within = await tavern.workflows.run("object", again=first.run_id)
    async with flows.open(Plugin(Nodes(), name="things")) as tavern:
        after = await tavern.workflows.resume(first.run_id)
        again = [(e.path, e.data["why"]) for e in tavern.workflows.events(after.run_id) if e.kind == "again"]
    assert within.states == {"o": "cached", "s": "cached", "a": "cached"}
    assert (after.states, again) == ({"o": "complete", "s": "complete", "a": "cached"}, [("o", "object")])
    assert (CALLS, after.outputs["s"]) == (["object", "plain", "see", "object", "see"], {"y": "Thing"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "change"),
    [(24, lambda part: bytes(byte ^ 0x55 for byte in part)), (512, lambda part: bytes(len(part)))],
    ids=["other bytes", "zeros"],
)
async def test_a_store_corrupt_anywhere_never_gives_a_wrong_answer_and_never_stops_a_run(
    flows: Flows, length: int, change: Callable[[bytes], bytes]
) -> None:
    flows.write("chain", {"a": {"type": "t:Plain", "x": 1}, "b": "t:Plain", "c": "t:Plain"}, "a.y>b.x b.y>c.x")
    async with flows.open() as tavern:
        first = await tavern.workflows.run("chain")
    path = flows.root / "home" / "runs.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    whole = path.read_bytes()
    for at in [*range(0, 110, 9), *range(110, len(whole), max(1, len(whole) // 40))]:
        for leftover in path.parent.glob("runs.db*"):
            leftover.unlink()
        path.write_bytes(whole[:at] + change(whole[at : at + length]) + whole[at + length :])
        async with flows.open() as tavern:
            assert len(tavern.jobs.list()) <= 1, at
            try:
                result = await tavern.workflows.resume(first.run_id)
                assert result.outputs == {"c": {"y": 4}}, at
            except (RunNotFound, StateDamaged):
                pass
            assert (await tavern.workflows.run("chain")).ok, at
            is_renamed = path.with_name("runs.db.damaged").exists()
            assert not is_renamed or "STATE_DAMAGED" in {d.code for d in tavern.diagnostics}


async def test_a_store_that_cannot_be_written_holds_no_run_up(flows: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    flows.write("chain", {"a": "t:Plain"})
    (flows.root / "home").mkdir()
    (flows.root / "home" / "runs.db").mkdir()
    async with flows.open() as tavern:
        assert (await tavern.workflows.run("chain")).ok
        with pytest.raises(StateDamaged):
            tavern.workflows.kept()


async def test_a_run_whose_store_cannot_be_written_holds_no_answers_for_it(flows: Flows) -> None:
    (flows.root / "home").mkdir()
    (flows.root / "home" / "runs.db").mkdir()
    async with flows.open() as tavern:
        long = {
            "id": "long",
            "nodes": [{"id": "a", "type": "core:Text", "inputValues": {"text": "x" * 200_000}}],
            "edges": [],
        }
        result = await tavern.workflows.run(long)
        assert result.ok
        known = tavern.workflows._runs.get(result.run_id)
        assert known is not None
        assert (known[1].unwritten, known[1].encoded_answers) == (None, {})


async def test_who_runs_nothing_leaves_no_file_of_runs(flows: Flows) -> None:
    async with flows.open():
        pass
    assert [path.name for path in (flows.root / "home").glob("runs*")] == []


async def test_hosts_that_find_one_file_corrupt_rename_it_once(flows: Flows) -> None:
    flows.write("chain", {"a": "t:Plain"})
    path = flows.root / "home" / "runs.db"
    async with flows.open() as first, flows.open() as second:
        await first.workflows.run("chain")
        assert len(second.workflows.kept()) == 1
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            (version,) = db.execute("PRAGMA schema_version").fetchone()
            db.execute("PRAGMA writable_schema = ON")
            db.execute("UPDATE sqlite_master SET sql = 'nonsense' WHERE name = 'runs'")
            db.execute(f"PRAGMA schema_version = {version + 1}")
        with pytest.raises(StateDamaged, match="malformed"):
            first.workflows.kept()
        run = await first.workflows.run("chain")
        with contextlib.suppress(StateDamaged):  # if it has not seen yet that there is another file
            second.workflows.kept()
        for host in (first, second):
            assert [kept.run_id for kept in host.workflows.kept()] == [run.run_id]
    assert [one.name for one in path.parent.glob("runs.db.damaged*") if one.suffix == ".damaged"] == ["runs.db.damaged"]


async def test_a_host_soon_stores_its_runs_elsewhere_than_in_a_file_that_another_process_has_renamed(
    flows: Flows,
) -> None:
    flows.write("chain", {"a": "t:Plain"})
    path = flows.root / "home" / "runs.db"
    async with flows.open() as tavern:
        await tavern.workflows.run("chain")
        for file in path.parent.glob("runs.db*"):
            file.rename(file.with_name(file.name.replace("runs.db", "runs.db.damaged")))
        end = time.monotonic() + 30
        while not path.exists():
            assert time.monotonic() < end
            await tavern.workflows.run("chain")
        last = await tavern.workflows.run("chain")
    async with flows.open() as tavern:
        assert last.run_id in {run.run_id for run in tavern.workflows.kept()}


async def test_a_file_that_is_only_locked_is_not_put_aside(flows: Flows) -> None:
    flows.write("chain", {"a": "t:Plain"})
    async with flows.open() as tavern:
        first = await tavern.workflows.run("chain")
    path = flows.root / "home" / "runs.db"
    done = threading.Event()

    def hold() -> None:
        db = sqlite3.connect(path, check_same_thread=False)
        db.execute("BEGIN EXCLUSIVE")
        held.set()
        done.wait(30)
        db.rollback()
        db.close()

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    async with flows.open() as tavern:
        threading.Timer(0.05, done.set).start()
        await asyncio.to_thread(tavern.workflows.kept)
        assert [run.run_id for run in tavern.workflows.kept()] == [first.run_id]
    thread.join()
    assert not list(path.parent.glob("*.damaged*"))


@pytest.mark.slow
async def test_a_hundred_subscribers_slow_and_late_ones_too_see_every_event_in_order(flows: Flows) -> None:
    flows.write("wide", {f"n{at}": {"type": "t:Wait", "ms": at % 5} for at in range(100)})
    async with flows.open() as tavern:
        handle = await tavern.workflows.start("wide")

        async def follow(after: int, pause: int) -> list[int]:
            seen = []
            async for event in tavern.workflows.follow(handle.id, after):
                seen.append(event.seq)
                for _ in range(pause):
                    await asyncio.sleep(0)
            return seen

        def elsewhere() -> list[int]:
            return asyncio.run(follow(0, 0))

        seen = await asyncio.gather(*(follow(at % 7, at % 3) for at in range(100)), asyncio.to_thread(elsewhere))
        result = await handle
        last = tavern.workflows.events(handle.id)[-1]
    assert (result.ok, last.kind) == (True, "run:complete")
    assert all(numbers == list(range(at % 7 + 1 if at < 100 else 1, last.seq + 1)) for at, numbers in enumerate(seen))


async def test_the_log_tells_each_run_from_begin_to_end_however_it_ended(flows: Flows) -> None:
    flows.write("good", {"a": "t:Inc"})
    flows.write("bad", {"a": {"type": "core:JsonParse", "text": "{"}})
    flows.write("waits", {"w": "t:Wait"})
    reported: list[tuple[str, str]] = []
    async with flows.open() as tavern:
        tavern.events.subscribe(
            lambda e: reported.append((e.type, e.data.get("state", ""))), "WORKFLOW_STARTED", "WORKFLOW_FINISHED"
        )
        await tavern.workflows.run("good")
        await tavern.workflows.run("bad")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tavern.workflows.run("waits"), 0.05)
        handle = await tavern.workflows.start("waits")
        assert tavern.workflows.cancel(handle.id)
        assert (await handle).states == {"w": "interrupted"}
        with pytest.raises(UsageError):
            await tavern.workflows.run("good", to=("nowhere",))
    ends = [state for type_, state in reported if type_ == "WORKFLOW_FINISHED"]
    assert (ends, len(reported)) == (["complete", "error", "cancelled", "cancelled"], 8)


@pytest.mark.parametrize("run_id", ["../up", "", "a/b", "x" * 101, "taken"])
async def test_ids_of_runs_are_no_paths_and_no_others(flows: Flows, run_id: str) -> None:
    flows.write("good", {"a": "t:Inc"})
    async with flows.open() as tavern:
        await tavern.workflows.run("good", run_id="taken")
        if run_id:
            with pytest.raises(UsageError, match="cannot be the id"):
                await tavern.workflows.run("good", run_id=run_id)
        else:
            assert (await tavern.workflows.run("good", run_id=run_id)).ok
