"""``tavern agent``: streams, exit codes, approvals, resuming, completion."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests import programs
from tests.forked_programs import ForkedProgram

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


Done = subprocess.CompletedProcess[str]
Tavern = Callable[..., Done]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in [name for name in os.environ if name.startswith("TAVERN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def tavern(project: Path) -> Tavern:
    """``tavern("agent", "runs")``, each time with a new host."""

    def run(*words: str, stdin: str = "") -> Done:
        return programs.tavern(*words, cwd=project, home=project.parent / "home", given=stdin.encode())

    return run


def as_json(done: Done) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["clerk", "profiles/clerk.json"])
def test_the_answer_is_on_stdout_and_the_steps_are_on_stderr(tavern: Tavern, profile: str) -> None:
    done = tavern("agent", "run", profile, "-", stdin="count")
    assert (done.returncode, done.stdout) == (0, "There are 3 words.\n")
    assert "call demo:count" in done.stderr
    assert "done, 2 steps, 1 calls" in done.stderr
    assert "USD" in done.stderr


@pytest.mark.slow
def test_what_is_odd_about_a_profile_is_said_once(project: Path, tavern: Tavern) -> None:
    odd = {"model": "cheap", "tool_ids_inventory": ["demo:count", "demo:send"], "modell": "x", "skills": ["none"]}
    (project / "profiles/odd.json").write_text(json.dumps(odd))
    done = tavern("agent", "run", "odd", "count")
    assert done.returncode == 0
    assert [done.stderr.count(key) for key in ("the key 'modell'", "'none'")] == [1, 1], done.stderr


@pytest.mark.slow
def test_approvals_and_resuming_work_across_hosts(
    project: Path, tavern: Tavern, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = tavern("agent", "run", "clerk", "send it", "--json")
    assert waiting.returncode == 3
    outcome = as_json(waiting)
    assert (outcome["state"], outcome["code"]) == ("waiting", "APPROVAL_REQUIRED")
    run, approval = outcome["runId"], outcome["waitingFor"]["id"]
    assert [row["runId"] for row in as_json(tavern("agent", "runs", "--json"))] == [run]
    assert tavern("agent", "resume", run).returncode == 3
    assert tavern("approvals", "approve", approval).returncode == 0
    done = tavern("agent", "resume", run)
    assert (done.returncode, done.stdout) == (0, "There are 3 words.\n")
    assert tavern("agent", "replay", run).returncode == 0
    shown = tavern("agent", "show", run).stdout
    assert "send it" in shown
    assert "sent to bob" in shown
    events = as_json(tavern("agent", "show", run, "--json"))["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert run in tavern("agent", "runs").stdout
    monkeypatch.setenv("_TAVERN_COMPLETE", "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", f"tavern --home {project.parent / 'home'} agent show ")
    monkeypatch.setenv("COMP_CWORD", "5")
    assert run in tavern().stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "clerk", "be stuck"), 1, "error[AGENT_STUCK]"),
        (("run", "clerk", "count", "--budget", "steps=1"), 1, "error[BUDGET_EXCEEDED]"),
        (("run", "clerk", "wait for ever", "--budget", "seconds=0.2"), 124, "error[TIMEOUT]"),
        (("run", "clerk", "count", "--budget", "step=1"), 2, "--budget has no 'step'"),
        (("run", "clerk", "count", "--budget", "5"), 2, "for example --budget steps=20"),
        (("resume", "agent-nothing", "--answer", "yes"), 2, "for example --answer ID=VALUE"),
        (("run", "clerk", "count", "--budget", "money=1,currency=EUR"), 2, "budget is in EUR"),
        (("run", "clerk", " "), 2, "a task is text"),
        (("run", "clark", "count"), 2, "clerk"),
        (("run", "clerk", "count", "--model", "cheep"), 1, "cheap"),
        (("show", "agent-nothing"), 5, "no agent run"),
        (("resume", "agent-nothing"), 5, "no agent run"),
    ],
)  # fmt: skip
def test_the_exit_code_says_how_a_command_ended(tavern: Tavern, words: tuple[str, ...], code: int, said: str) -> None:
    done = tavern("agent", *words)
    assert (done.returncode, done.stdout.count("\n") <= 4) == (code, True), done.stderr
    assert said in done.stderr


def test_the_prompt_can_be_looked_at(tavern: Tavern) -> None:
    done = tavern("agent", "prompt", "clerk", "count")
    assert done.returncode == 0
    assert "demo:count" in done.stdout, done.stderr + done.stdout


@pytest.mark.slow
def test_an_interrupted_run_is_cancelled_and_can_be_resumed(project: Path, tavern: Tavern) -> None:
    command = [
        "-m",
        "tavern_core",
        "--home",
        str(project.parent / "home"),
        "agent",
        "run",
        "clerk",
        "wait for ever",
    ]
    with ForkedProgram(command, stdout=PIPE, stderr=PIPE) as program:
        rows: list[Any] = []
        while not rows or rows[0]["state"] != "running":
            rows = as_json(tavern("agent", "runs", "--json"))
        assert tavern("agent", "resume", rows[0]["runId"]).returncode == 2
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=60)
        assert (program.returncode, f"tavern agent resume {rows[0]['runId']}" in err) == (130, True)
    (row,) = as_json(tavern("agent", "runs", "--json"))
    assert row["state"] == "cancelled"


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["agents", "agents/helper.json"])
def test_the_profiles_of_a_plugin_may_stand_in_a_folder(project: Path, tavern: Tavern, entry: str) -> None:
    folder = project / "plugins" / "team"
    (folder / "agents").mkdir(parents=True)
    (folder / "plugin.yaml").write_text(f'name: team\nversion: "1.0"\nprofiles: {{entry: {entry}}}\n')
    helper = {"model": "cheap", "tool_ids_inventory": ["demo:count"], "prompt": "file:rules.md", "bugdet": {}}
    (folder / "agents" / "helper.json").write_text(json.dumps(helper))
    (folder / "agents" / "rules.md").write_text("Count. {{{system:available_tools}}}")
    if entry == "agents":
        (folder / "agents" / "broken.json").write_text("{")
    done = tavern("-v", "agent", "run", "helper", "count")
    assert (done.returncode, done.stdout) == (0, "There are 3 words.\n"), done.stderr
    assert "helper.json:1:" in done.stderr and "bugdet" in done.stderr
    assert ("broken.json:1:" in done.stderr) is (entry == "agents")
    assert tavern("agent", "prompt", "helper").stdout.startswith("Count. ")


@pytest.mark.parametrize("entry", ["nowhere", "agents"])
def test_a_folder_of_profiles_that_is_not_in_the_plugin_fails_it(project: Path, tavern: Tavern, entry: str) -> None:
    folder = project / "plugins" / "team"
    folder.mkdir(parents=True)
    (folder / "agents").symlink_to(project / "profiles")
    (folder / "plugin.yaml").write_text(f'name: team\nversion: "1.0"\nprofiles: {{entry: {entry}}}\n')
    done = tavern("agent", "run", "helper", "count")
    assert done.returncode == 2
    assert tavern("agent", "run", "profiles/clerk.json", "count").returncode == 0
    assert "profiles.entry" in done.stderr


@pytest.mark.slow
def test_the_doctor_shows_what_is_odd_about_profiles(project: Path, tavern: Tavern) -> None:
    def examined() -> list[tuple[str, str, str]]:
        rows = as_json(tavern("doctor", "--json"))["host"]
        return [(row["what"], row["verdict"], row["found"]) for row in rows if row["what"].startswith("profile")]

    assert examined() == [], "its model belongs to a plugin that is asleep"
    odd = {"tool_ids_inventory": [], "bugdet": {}, "knowledge": ["kb:nowhere"], "deliberation_workflow": "none"}
    (project / "profiles" / "odd.json").write_text(json.dumps(odd))
    (project / "profiles" / "torn.json").write_text('{"budget": {"steps": -1}}')
    names, verdicts, found = zip(*examined(), strict=True)
    assert set(names) == {"profile odd", "profile torn"}
    assert set(verdicts) == {"warning", "error"}
    for said in ("bugdet", "kb:nowhere", "'none'", "torn.json:1:"):
        assert any(said in each for each in found), found
    assert tavern("doctor").returncode == 1
