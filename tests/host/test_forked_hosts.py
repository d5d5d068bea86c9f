"""The copy of an open host in a forked process says what it is, at once, and leaves everything of the first host alone."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from tests.forked_programs import run_forked
from tests.governance import redis_server

from .workshop import Workshop

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, json, multiprocessing, os, sys
from tavern_core import CallContext, Plugin, Tavern, tool

@tool
def add(a: int = 1) -> int:
    "Add."
    return a

@tool
async def add_later(a: int = 1) -> int:
    "Add."
    return a

FLOW = {"nodes": [{"id": "a", "type": "core:Text", "inputValues": {}}], "edges": []}
CALLS = ["near:add", "near:add_later", "far:pid", "slow:answer"]

def refused(result):
    return [result.error.kind, result.error.outcome, result.error.message, result.error.fix]

def answer_of(work):
    try:
        answer = work()
        return asyncio.run(answer) if asyncio.iscoroutine(answer) else answer
    except Exception as error:
        return [error.code, "none", error.message, error.hint]

def asked(host):
    found = {f"sync {name}": refused(host.invoke_sync(name)) for name in CALLS}
    found |= {f"async {name}": refused(asyncio.run(invoked(host, name))) for name in CALLS}
    found["text"] = refused(asyncio.run(host.run_text("hello")).results[0])
    found |= {
        "text sync": answer_of(lambda: host.run_text_sync("hello")),
        "run": answer_of(lambda: host.workflows.run(FLOW)),
        "start": answer_of(lambda: host.workflows.start(FLOW)),
        "resume": answer_of(lambda: host.workflows.resume("run-1")),
        "run sync": answer_of(lambda: host.workflows.run_sync(FLOW)),
        "refresh": answer_of(lambda: host.refresh()),
        "activate": answer_of(lambda: host.plugins.activate("near")),
        "disable": answer_of(lambda: host.plugins.disable_sync("near")),
        "register": answer_of(lambda: host.tools.register(add)),
        "grant": answer_of(lambda: host.grant("near", all_requested=True)),
        "login": answer_of(lambda: host.user_logged_in(CallContext())),
        "enter": answer_of(lambda: host.__enter__()),
        "start it": answer_of(lambda: host.start()),
        "cancel": answer_of(lambda: host.cancel("1-1")),
        "jobs": answer_of(lambda: host.jobs.list()),
        "job": answer_of(lambda: host.jobs.find(JOB)),
        "result": answer_of(lambda: host.jobs.result(JOB)),
        "start job": answer_of(lambda: host.jobs.start("near:add")),
        "cancel job": answer_of(lambda: host.jobs.cancel(JOB)),
        "resume job": answer_of(lambda: host.jobs.resume(JOB)),
        "approvals": answer_of(lambda: host.approvals.list()),
        "approve": answer_of(lambda: host.approvals.approve("a")),
        "limits": answer_of(lambda: host.limits.list()),
        "artifacts": answer_of(lambda: host.artifacts.list()),
        "put": answer_of(lambda: host.artifacts.put(b"x")),
        "runs": answer_of(lambda: host.workflows.runs()),
        "cancel run": answer_of(lambda: host.workflows.cancel(RUN)),
        "agents": answer_of(lambda: AGENTS.runs()),
        "records": answer_of(lambda: host.records.list("job")),
    }
    asyncio.run(host.close())
    return found

async def invoked(host, name):
    return await host.invoke(name)

def in_fork(host, writer):
    os.write(writer, json.dumps(asked(host)).encode())
    os.close(writer)

def main(how):
    global AGENTS, JOB, RUN
    config = {"plugins": {"entryPoints": False, "roots": [sys.argv[2]]}, "isolation": {"level": "none"},
              "state": {"store": sys.argv[4]}, "limits": {"tools": {"near:add": {"rate": "1000/minute"}}}}
    with Tavern.open(config, plugins=[Plugin([add, add_later], name="near")], home=sys.argv[3]) as host:
        before = [host.invoke_sync(name).unwrap() for name in CALLS]
        JOB, RUN, AGENTS = host.wait(host.jobs.start("near:add")).id, host.workflows.run_sync(FLOW).run_id, host.agents
        AGENTS.runs()
        reader, writer = os.pipe()
        if how == "multiprocessing":
            child = multiprocessing.get_context("fork").Process(target=in_fork, args=(host, writer))
            child.start()
        elif (pid := os.fork()) == 0:
            in_fork(host, writer)
            if how == "exit at once":
                os._exit(0)
            return  # leaves the `with`, and ends as every program does
        os.close(writer)
        said = b""
        while part := os.read(reader, 65536):
            said += part
        code = child.join() or child.exitcode if how == "multiprocessing" else os.waitpid(pid, 0)[1]
        assert len(host.jobs) == 2 and not host.artifacts.list()
        after = [host.invoke_sync(name).unwrap() for name in CALLS]
        assert host.workflows.run_sync(FLOW).ok
        print(json.dumps({"pid": os.getpid(), "code": code, "same": before == after, "said": json.loads(said)}))

main(sys.argv[1])
"""
FAR = """
    import os
    @tool
    def pid() -> int:
        "Which process it is."
        return os.getpid()
    @hookimpl
    def tavern_register_tools(): return [pid]
"""
SLOW = "tools: [{id: answer, description: Answer., parameters: {type: object}, implementation: {type: script, command: python answer.py}}]"


@pytest.mark.parametrize(
    ("how", "store"),
    [
        ("exit at once", "sqlite"),
        ("end as a program", "memory"),
        ("multiprocessing", "sqlite"),
        ("exit at once", "redis"),
    ],
)
def test_a_forked_copy_of_a_host_says_so_at_once_and_leaves_the_first_alone(
    workshop: Workshop, tmp_path: Path, how: str, store: str
) -> None:
    workshop.folder("far", FAR, "isolation: process\ntools: [{id: pid, implementation: {type: python}}]")
    workshop.folder("slow", None, SLOW, **{"answer.py": "print(5)\n"})
    with redis_server.running(tmp_path) if store == "redis" else contextlib.nullcontext(store) as where:
        done = run_forked(["-c", PROGRAM, how, workshop.plugins, tmp_path / "home", where])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["code"], found["same"]) == (0, True)
    message = f"this host belongs to process {found['pid']}, and this is a forked copy of it"
    hint = "open a separate host in the forked process"
    assert found["said"] == {what: ["USAGE", "none", message, hint] for what in found["said"]}
