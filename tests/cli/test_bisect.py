"""Which plugin makes something fail: found by switching halves of them off, with nothing stored."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tavern_core.__main__ import main
from tavern_core.review.bisection import dependencies_first, find_guilty, with_dependencies
from tests.cli.conftest import Run
from tests.forked_programs import ForkedProgram, run_forked
from tests.rows import each_row

NAMES = [f"p{n:02}" for n in range(17)]


@each_row("guilty", NAMES)
def test_one_of_many_is_found_in_few_tries(guilty: str) -> None:
    tries: list[frozenset[str]] = []

    def fails(on: frozenset[str]) -> bool:
        tries.append(on)
        return guilty in on

    assert find_guilty(dict.fromkeys(NAMES, ()), fails).plugins == (guilty,)
    assert len(tries) <= 8
    assert len(set(tries)) == len(tries)


@each_row("pair", list(itertools.combinations(NAMES[:6], 2)))
def test_two_that_fail_only_together_are_both_found(pair: tuple[str, str]) -> None:
    found = find_guilty(dict.fromkeys(NAMES[:6], ()), lambda on: on.issuperset(pair))
    assert sorted(found.plugins) == sorted(pair)


def test_what_is_needed_is_always_there() -> None:
    needs = {"a": ["c"], "b": ["a", "not-a-plugin"], "c": [], "d": ["b"], "e": []}
    tried: list[frozenset[str]] = []

    def fails(on: frozenset[str]) -> bool:
        tried.append(on)
        return "b" in on

    assert find_guilty(needs, fails).plugins == ("b",)
    assert all(with_dependencies(on, needs) == on for on in tried)
    assert dependencies_first(needs) == ["c", "a", "b", "d", "e"]


def test_circles_end() -> None:
    needs = {"a": ["b"], "b": ["a"], "c": ["a"]}
    assert find_guilty(needs, lambda on: "a" in on).plugins
    assert sorted(dependencies_first(needs)) == ["a", "b", "c"]


@pytest.mark.parametrize(("always", "why"), [(True, "without any plugin"), (False, "does not fail")])
def test_where_no_plugin_is_guilty_it_says_why(always: bool, why: str) -> None:
    found = find_guilty(dict.fromkeys(NAMES, ()), lambda on: always)
    assert (found.plugins, why in found.why_not) == ((), True)


# The command -------------------------------------------------------------------------------------------------------------

CODE = """
from tavern_core import hookimpl, tool
@tool
def ok() -> int:
    "One."
    return 1
@hookimpl
def tavern_register_tools():
    return [ok]
"""
GATE = (
    CODE
    + """
@hookimpl
def tavern_check_call(call, tool, ctx):
    raise RuntimeError("always")
"""
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("alpha", "beta", "gamma", "guard"):
        folder = tmp_path / "plugins" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(GATE if name == "guard" else CODE)
        more = 'permissions: {hooks: ["hook:server:tool:check"]}\ndependsOn: {beta: ""}' if name == "guard" else ""
        (folder / "plugin.yaml").write_text(
            f'name: {name}\nversion: "1"\ntools: [{{id: ok, implementation: {{type: python}}}}]\n{more}\n'
        )
    (tmp_path / "tavern.yaml").write_text("plugins: {roots: [plugins], entryPoints: false}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--home", str(tmp_path / "home"), "-q", "plugins", "grant", "guard", "hook:server:tool:check"]) == 0
    return tmp_path


def line(project: Path, *words: str) -> list[str]:
    return ["-m", "tavern_core", "--home", str(project / "home"), *words]


def stored(project: Path) -> dict[str, bytes]:
    """What a host keeps about its plugins, but for what came of trying their imports."""
    files = [
        *project.glob("tavern.*"),
        *(file for file in (project / "home").glob("*.json") if file.name != "probes.json"),
    ]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.slow
def test_a_tool_call_that_a_gate_breaks_leads_to_the_gate(project: Path) -> None:
    before = stored(project)
    done = run_forked(line(project, "plugins", "bisect", "--json", "alpha:ok"), cwd=project)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["guilty"] == ["guard"]
    assert all("beta" in each["on"] for each in reported["tries"] if "guard" in each["on"])
    assert stored(project) == before


@pytest.mark.slow
def test_a_command_is_judged_by_its_exit_code(tavern: Run) -> None:
    script = "import os, sys; sys.exit('gamma' not in os.environ['TAVERN_DISABLE_PLUGINS'])"
    done = tavern("plugins", "bisect", "--", sys.executable, "-c", script)
    assert (done.code, "it is gamma" in done.out) == (0, True), done.err
    assert "with alpha, beta, gamma, guard: fails (exit code 1)" in done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["true"], 1, "does not fail with all plugins"),
        (["false"], 1, "fails without any plugin"),
        (["--timeout", "0.01", "sleep", "5"], 1, "fails without any plugin"),
        (["no-such-command-anywhere"], 2, "cannot be run"),
    ],
    ids=["works", "always fails", "too slow", "unknown"],
)
def test_what_no_plugin_can_be_blamed_for(tavern: Run, words: list[str], code: int, said: str) -> None:
    done = tavern("plugins", "bisect", *words)
    assert (done.code, said in done.out + done.err) == (code, True), done.out + done.err


def test_a_person_may_answer_instead_of_a_command(tavern: Run) -> None:
    # all: bad; none: good; alpha+beta: good; with gamma: bad; gamma alone: bad
    done = tavern("plugins", "bisect", stdin="bad\ngood\ng\nb\nb\n")
    assert (done.code, "it is gamma" in done.out) == (0, True), done.out + done.err
    assert "TAVERN_DISABLE_PLUGINS=alpha,beta,gamma,guard" in done.err
    assert tavern("plugins", "bisect", stdin="bad\n").code == 130  # no more answers


@pytest.mark.slow
def test_an_interrupted_search_leaves_everything_as_it_was(project: Path) -> None:
    before, started = stored(project), project / "started"
    os.mkfifo(started)
    script = f"open({str(started)!r}, 'w').write('x'); import time; time.sleep(600)"
    command = line(project, "plugins", "bisect", "--", sys.executable, "-c", script)
    with ForkedProgram(
        command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as child:  # fmt: skip
        assert started.read_text() == "x"
        os.killpg(child.pid, signal.SIGINT)
        child.communicate(timeout=60)
    assert child.returncode == 130
    assert stored(project) == before
