"""``tavern agent`` in real processes: streams, exit codes, approvals, resuming, completion."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Program

PLUGIN = """
import asyncio
from tavern_core import ScriptedLLM, hookimpl, tool
from tavern_core.contract.llm import Price

def block(name, **arguments):
    fields = "".join(f"{key}:「始」{value}「末」\\n" for key, value in arguments.items())
    return f"<|[REQUEST_TOOL]|>\\ncommand:「始」demo:{name}「末」\\n{fields}<|[END_TOOL]|>"

@tool(read_only=True)
def count(text: str) -> int:
    "Counts words."
    return len(text.split())

@tool
def send(to: str) -> str:
    "Sends."
    return "sent to " + to

async def model(messages):
    turn, task = sum(m["role"] == "assistant" for m in messages), messages[1]["content"]
    if "wait for ever" in task:
        await asyncio.Event().wait()
    if "stuck" in task:
        return block("count", text="a")
    return [block("count", text="a b c"), block("send", to="bob"), "There are 3 words."][turn if "send" in task else turn * 2]

class Cheap(ScriptedLLM):
    price = Price(1.0, 2.0)

@hookimpl
def tavern_register_llms():
    return {"cheap": Cheap(model)}

@hookimpl
def tavern_register_tools():
    return [count, send]
"""
FILES = {
    "tavern.yaml": 'plugins: {roots: [plugins], entryPoints: false}\nprofiles: [profiles]\napproval: {ask: ["demo:send"]}\n',
    "plugins/demo/plugin.yaml": 'name: demo\nversion: "1.0"\nllms: [cheap]\ntools:\n'
    "  - {id: count, implementation: {type: python}}\n  - {id: send, implementation: {type: python}}\n",
    "plugins/demo/__init__.py": PLUGIN,
    "profiles/clerk.json": json.dumps({"model": "cheap", "tool_ids_inventory": ["demo:count", "demo:send"]}),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def command(project: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "tavern_core", "--home", str(project.parent / "home"), *words]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TAVERN_")} | {"LC_ALL": "C.UTF-8"}


def tavern(project: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(project, *words), input=stdin, capture_output=True, text=True, cwd=project, env=environment(), timeout=120, check=False,
    )  # fmt: skip


def as_json(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("profile", ["clerk", "profiles/clerk.json"])
def test_the_answer_is_on_stdout_and_the_steps_are_on_stderr(project: Path, profile: str) -> None:
    done = tavern(project, "agent", "run", profile, "-", stdin="count")
    assert (done.returncode, done.stdout) == (0, "There are 3 words.\n")
    assert "call demo:count" in done.stderr
    assert "done, 2 steps, 1 calls" in done.stderr
    assert "USD" in done.stderr


def test_approvals_and_resuming_work_across_processes(project: Path) -> None:
    waiting = tavern(project, "agent", "run", "clerk", "send it", "--json")
    assert waiting.returncode == 3
    outcome = as_json(waiting)
    assert (outcome["state"], outcome["code"]) == ("waiting", "APPROVAL_REQUIRED")
    run, approval = outcome["runId"], outcome["waitingFor"]["id"]
    assert [row["runId"] for row in as_json(tavern(project, "agent", "runs", "--json"))] == [run]
    assert tavern(project, "agent", "resume", run).returncode == 3
    assert tavern(project, "approvals", "approve", approval).returncode == 0
    done = tavern(project, "agent", "resume", run)
    assert (done.returncode, done.stdout) == (0, "There are 3 words.\n")
    assert tavern(project, "agent", "replay", run).returncode == 0
    shown = tavern(project, "agent", "show", run).stdout
    assert "send it" in shown
    assert "sent to bob" in shown
    events = as_json(tavern(project, "agent", "show", run, "--json"))["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert run in tavern(project, "agent", "runs").stdout
    completed = environment() | {
        "_TAVERN_COMPLETE": "zsh_complete",
        "COMP_WORDS": "tavern agent show ",
        "COMP_CWORD": "3",
    }
    found = subprocess.run(
        command(project), capture_output=True, text=True, cwd=project, env=completed | {"TAVERN_HOME": str(project.parent / "home")},
        timeout=60, check=False,
    )  # fmt: skip
    assert run in found.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "clerk", "be stuck"), 1, "error[AGENT_STUCK]"),
        (("run", "clerk", "count", "--budget", "steps=1"), 1, "error[BUDGET_EXCEEDED]"),
        (("run", "clerk", "wait for ever", "--budget", "seconds=0.2"), 124, "error[TIMEOUT]"),
        (("run", "clerk", "count", "--budget", "step=1"), 2, "--budget has no 'step'"),
        (("run", "clerk", "count", "--budget", "money=1,currency=EUR"), 2, "budget is in EUR"),
        (("run", "clerk", " "), 2, "a task is text"),
        (("run", "clark", "count"), 2, "clerk"),
        (("run", "clerk", "count", "--model", "cheep"), 1, "cheap"),
        (("show", "agent-nothing"), 5, "no agent run"),
        (("resume", "agent-nothing"), 5, "no agent run"),
    ],
)  # fmt: skip
def test_the_exit_code_says_how_a_command_ended(project: Path, words: tuple[str, ...], code: int, said: str) -> None:
    done = tavern(project, "agent", *words)
    assert (done.returncode, done.stdout.count("\n") <= 4) == (code, True), done.stderr
    assert said in done.stderr


def test_the_prompt_can_be_looked_at(project: Path) -> None:
    done = tavern(project, "agent", "prompt", "clerk", "count")
    assert done.returncode == 0
    assert "demo:count" in done.stdout, done.stderr + done.stdout


def test_an_interrupted_run_is_cancelled_and_can_be_resumed(project: Path) -> None:
    with Program(
        command(project, "agent", "run", "clerk", "wait for ever"), cwd=project, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        while True:
            rows = as_json(tavern(project, "agent", "runs", "--json"))
            if rows and rows[0]["state"] == "running":
                break
        assert tavern(project, "agent", "resume", rows[0]["runId"]).returncode == 2
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
        assert program.returncode == 130
    (row,) = as_json(tavern(project, "agent", "runs", "--json"))
    assert row["state"] == "cancelled"
