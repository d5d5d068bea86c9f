"""Several processes share one state folder: they call, grant, save, switch and are killed; nothing is lost that was said to be done."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from random import Random
from subprocess import PIPE
from typing import IO

import pytest

from tavern_core import Tavern
from tavern_core.kernel.log.log_files import audit_log
from tavern_core.kernel.log.reader import read
from tavern_core.kernel.log.verify import verify
from tests.forked_programs import ForkedProgram
from tests.state.processes import ENVIRONMENT

from .watch import ends

MANIFEST = """\
name: {name}
version: "1.0"
tools:
  - {{id: t, implementation: {{type: python}}}}
permissions:
  capabilities: [{capabilities}]
configOptions:
{options}
"""
CODE = """\
from tavern_core import hookimpl, tool

@tool
def t(n: int) -> int:
    return n

@hookimpl
def tavern_register_tools():
    return [t]
"""
CAPABILITIES = [f"acme/do{n}:x" for n in range(12)]
WORKER = """\
import sys
from tavern_core import Tavern

home, config, me, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])

def did(*what):
    print(*what, flush=True)

with Tavern.open(config, home=home) as tavern:
    did("ready")
    for n in range(rounds):
        result = tavern.invoke_sync("one:t", {"n": n}, purpose=f"{me}-{n}")
        assert result.ok and result.value == n, result.error
        did("called", f"{me}-{n}")
        tavern.settings.save({f"extensions.one.{me}{n % 8}": n})
        did("saved", f"extensions.one.{me}{n % 8}", n)
        capability = f"acme/do{n % 12}:x"
        if n % 12 % 2 == (me == "b"):
            tavern.grant("one", capability)
            did("granted", capability)
        name = f"switch-{me}"
        if n % 2:
            tavern.plugins.enable_sync(name)
        else:
            tavern.plugins.disable_sync(name, reason=f"{me} {n}")
        did("switched", name, n % 2)
"""


def make(folder: Path) -> Path:
    for name in ("one", "switch-a", "switch-b"):
        plugin = folder / "plugins" / name
        plugin.mkdir(parents=True)
        keys = [f"{me}{n}" for me in "ab" for n in range(8)] if name == "one" else ["x"]
        options = "\n".join(f"  - {{key: extensions.{name}.{key}, type: number, defaultValue: -1}}" for key in keys)
        capabilities = ", ".join(f'{{name: "{c}"}}' for c in CAPABILITIES)
        (plugin / "plugin.yaml").write_text(MANIFEST.format(name=name, options=options, capabilities=capabilities))
        (plugin / "__init__.py").write_text(CODE)
    (folder / "tavern.yaml").write_text("plugins: {entryPoints: false}\n")
    return folder / "tavern.yaml"


def start(folder: Path, config: Path, me: str, rounds: int, out: IO[str] | int = PIPE) -> ForkedProgram:
    words = ("-c", WORKER, folder / "home", config, me, rounds)
    return ForkedProgram(words, env=ENVIRONMENT, stdout=out, stderr=PIPE)


def check(folder: Path, config: Path, done: list[str]) -> None:
    """Everything that was acknowledged is there, in files that are whole."""
    home = folder / "home"
    said = [line.split() for line in done]
    saved = {key: int(n) for what, key, n in (w for w in said if w[0] == "saved")}
    switched = {name: int(on) for what, name, on in (w for w in said if w[0] == "switched")}
    with Tavern.open(config, home=home) as tavern:
        assert not [
            d.message for d in tavern.diagnostics if d.code == "STATE_DAMAGED" and "half-written" not in d.message
        ]
        for key, n in saved.items():
            value = tavern.settings.get(key)
            assert value >= n, (key, value, n)  # a later save may have been done and not been acknowledged
        granted = tavern.plugins["one"].granted
        assert {w[1] for w in said if w[0] == "granted"} <= granted
        for name, on in switched.items():
            assert name in tavern.plugins, on
        assert tavern.invoke_sync("one:t", {"n": 1}).ok
    report = verify(audit_log(home))
    assert report.ok, report.problems[:5]
    logged = {record.get("purpose") for record in read(audit_log(home), types={"TOOL_CALLED"})}
    assert {w[1] for w in said if w[0] == "called"} <= logged
    for state in (home / "settings.json", home / "plugins.json"):
        json.loads(state.read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [12, pytest.param(400, marks=pytest.mark.soak)])
def test_two_processes_lose_nothing(tmp_path: Path, rounds: int) -> None:
    config = make(tmp_path)
    workers = [start(tmp_path, config, me, rounds) for me in "ab"]
    done: list[str] = []
    for worker in workers:
        out, err = worker.communicate(timeout=300)
        assert worker.returncode == 0, err[-3_000:]
        done += out.splitlines()
    assert len([line for line in done if line.startswith("called")]) == 2 * rounds
    check(tmp_path, config, done)
    with Tavern.open(
        config, home=tmp_path / "home"
    ) as tavern:  # nobody was killed: the last word of each counts exactly
        for me in "ab":
            for n in range(rounds - 8, rounds):
                assert tavern.settings.get(f"extensions.one.{me}{n % 8}") == n
        assert {name: tavern.plugins[name].state == "disabled" for name in ("switch-a", "switch-b")} == {
            "switch-a": (rounds - 1) % 2 == 0,
            "switch-b": (rounds - 1) % 2 == 0,
        }


@pytest.mark.parametrize("kills", [pytest.param(3, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.soak)])
def test_processes_that_are_killed_lose_nothing_they_acknowledged(tmp_path: Path, kills: int) -> None:
    config, pick = make(tmp_path), Random(kills)
    said = tmp_path / "said"  # a pipe that nobody empties would stop the bystander
    with said.open("w") as file:
        bystander = start(tmp_path, config, "b", 1_000_000, file)
    done: list[str] = []
    try:
        for number in range(kills):
            victim = start(tmp_path, config, "a", 100_000)
            assert victim.stdout is not None
            try:
                with ends(("kill", number)):
                    lines = [victim.stdout.readline() for _ in range(pick.randint(1, 40))]
            finally:
                victim.send_signal(signal.SIGKILL)
            rest, err = victim.communicate(timeout=60)
            lines += rest.splitlines(keepends=True)
            assert victim.returncode == -signal.SIGKILL, err[-3_000:]
            # Rounds begin anew with each process: of its own settings only the last process can tell.
            done = [line for line in done if not line.startswith(("saved", "switched"))] + [
                line for line in lines if line.endswith("\n")
            ]
        assert bystander.poll() is None, bystander.communicate()[1][-3_000:]
    finally:
        bystander.kill()
        bystander.communicate(timeout=60)
    theirs = [line for line in said.read_text("utf-8").splitlines(keepends=True) if line.endswith("\n")]
    assert len(theirs) > 10
    check(tmp_path, config, [*done, *theirs])
