"""``CodeInterpreter:execute``: off until it is allowed, in the whole box or not at all, with the rights of the call."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Tavern, ToolResult
from tavern_core.box.policy import LAYERS
from tests.rows import each_row

from ..executors.workbench import in_use, left_since, processes_with, until

pytestmark = pytest.mark.slow

ID = "CodeInterpreter:execute"
ALLOWED = {"plugins": {"entryPoints": False}, "tools": {"allow": [ID]}}
HAS_NODE = shutil.which("node") is not None


@pytest.fixture(scope="module")
def tavern(module_folder: Path) -> Iterator[Tavern]:
    with Tavern.open(ALLOWED, home=module_folder / "home") as opened:
        yield opened


def run(tavern: Tavern, code: str, language: str = "python", **context: Any) -> ToolResult:
    given = {"context": CallContext(**context)} if context else {}
    return tavern.invoke_sync(ID, {"language": language, "code": code}, **given)


def test_it_is_off_until_it_is_allowed(tmp_path: Path) -> None:
    with Tavern.open({"plugins": {"entryPoints": False}}, home=tmp_path) as tavern:
        assert ID not in [spec.id for spec in tavern.tools.list()]
        error = run(tavern, "1").error
        why = tavern.tools.why(ID)
    assert error is not None
    assert (error.kind, "tools.allow" in why.reason) == ("POLICY_DENIED", True)


@each_row("spelling", [ID, "CodeInterpreter.execute", "code-interpreter:execute", "code_interpreter/Execute"])
def test_it_is_found_by_every_spelling(tavern: Tavern, spelling: str) -> None:
    result = tavern.invoke_sync(spelling, {"language": "python", "code": "6 * 7"})
    assert (result.ok, result.value["value"]) == (True, 42)


@each_row(
    ("code", "stdout", "value", "exit_code"),
    [
        ("print('hi')", "hi\n", None, 0),
        ("x = 2\nx ** 10", "", 1024, 0),
        ("{'a': [1, None]}", "", {"a": [1, None]}, 0),
        ("{1, 2} | {3}", "", "{1, 2, 3}", 0),
        ("float('nan')", "", "nan", 0),
        ("class A:\n    def __repr__(self): return '<A>'\nA()", "", "<A>", 0),
        ("print('中文'); '好'", "中文\n", "好", 0),
        ("def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nf(15)", "", 610, 0),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nP(1).x", "", 1, 0),
        ("import sys; sys.exit(3)", "", None, 3),
        ("import os; os._exit(9)", "", None, 9),
        ("import os; os.kill(os.getpid(), 9)", "", None, -9),
        ("open('data.txt', 'w').write('x' * 5); len(open('data.txt').read())", "", 5, 0),
        ("import sys; sys.stdin.read()", "", "", 0),
        ("if __name__ == '__main__': print('main')", "main\n", None, 0),
        ("# nothing", "", None, 0),
    ],
)
def test_python_is_run_as_a_notebook_runs_a_cell(
    tavern: Tavern, code: str, stdout: str, value: Any, exit_code: int
) -> None:
    result = run(tavern, code)
    assert result.ok, result.error
    assert result.value == {"stdout": stdout, "stderr": "", "exitCode": exit_code, "value": value}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def f():\n    return 1 / 0\nf()", ["main.py", "line 2, in f", "ZeroDivisionError: division by zero"]),
        ("1 +", ["main.py", "SyntaxError"]),
        ("raise SystemExit('no')", ["no"]),
    ],
)
def test_an_error_of_the_code_is_an_answer_that_shows_its_own_lines(
    tavern: Tavern, code: str, words: list[str]
) -> None:
    result = run(tavern, code)
    assert result.ok
    assert result.value["exitCode"] == 1
    assert all(word in result.value["stderr"] for word in words)
    assert "python_driver" not in result.value["stderr"]


@pytest.mark.parametrize("language", ["javascript", "node"])
def test_javascript_is_run_where_node_is_installed(tavern: Tavern, language: str) -> None:
    result = run(tavern, "console.log('hi'); [1, 2].map(n => n * 2)", language)
    if HAS_NODE:
        assert result.value == {"stdout": "hi\n", "stderr": "", "exitCode": 0, "value": [2, 4]}
        if language != "node":  # the same program under its other name
            return
        assert run(tavern, "Promise.resolve({a: 1})", language).value["value"] == {"a": 1}
        failed = run(tavern, "null.x", language).value
        assert (failed["exitCode"], "TypeError" in failed["stderr"]) == (1, True)
        assert "EACCES" in run(tavern, "require('fs').readFileSync('/etc/passwd')", language).value["stderr"]
        assert run(tavern, "fetch('http://127.0.0.1:1')", language).value["exitCode"] == 1
    else:
        assert result.error is not None
        assert (result.error.kind, "not installed" in result.error.message) == ("TOOL_ERROR", True)


def test_a_language_that_is_not_installed_is_reported(
    tavern: Tavern, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = run(tavern, "1", "javascript").error
    assert error is not None
    assert (error.kind, "Node.js" in error.fix) == ("TOOL_ERROR", True)


@each_row(
    "code",
    [
        "open('/etc/passwd')", "import os; os.listdir('/')", "import os; os.listdir(os.path.dirname(os.getcwd()))",
        "import socket; socket.create_connection(('127.0.0.1', 1))", "import subprocess; subprocess.run(['/bin/sh', '-c', ':'])",
        "import os; os.symlink('/etc/passwd', 'value.json')", "import os; os.chmod('main.py', 0)", "open(HOME + '/settings.json')",
    ],
)  # fmt: skip
def test_code_reaches_nothing_but_its_own_folder(tavern: Tavern, code: str) -> None:
    home = tavern.logs.path.parents[1]
    (home / "settings.json").write_text("{}")
    answer = run(tavern, f"HOME = {str(home)!r}\n{code}").value
    assert answer["exitCode"] == 1
    assert "PermissionError" in answer["stderr"]


def test_it_sees_no_variable_of_the_host(tavern: Tavern, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush")
    names = run(tavern, "import os; sorted(os.environ)").value["value"]
    assert set(names) <= {
        "HOME",
        "LANG",
        "LC_CTYPE",
        "NO_COLOR",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUTF8",
        "TMPDIR",
    }


READ = "import os; open(os.environ['TAVERN_WORKSPACE'] + '/note').read()"
WRITE = "import os; open(os.environ['TAVERN_WORKSPACE'] + '/new', 'w').write('x')"
CONNECT = "import socket; socket.create_connection(('127.0.0.1', PORT)).close()"


@each_row(
    ("permissions", "code", "may"),
    [
        (["read:fs"], READ, True),
        (["read:fs"], WRITE, False),
        (["write:fs"], READ, False),
        (["write:fs"], WRITE, True),
        (["network"], CONNECT, False),
        (["network", "network:host"], CONNECT, False),
        (["network"], READ, False),
        ([], CONNECT, False),
        (["read:web"], CONNECT, False),
        (["read:fs", "write:fs"], "open('/etc/passwd')", False),
    ],
)
def test_code_may_what_its_caller_may_and_only_in_the_workspace(
    tavern: Tavern, tmp_path: Path, permissions: list[str], code: str, may: bool
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "note").write_text("hello")
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = run(
            tavern,
            code.replace("PORT", str(server.getsockname()[1])),
            principal="user:agent",
            permissions=frozenset({"process:spawn", *permissions}),
            workspace_dir=str(workspace),
        )
    assert result.ok, result.error
    assert (result.value["exitCode"] == 0) is may, result.value


SUB = "import os; open(os.environ['TAVERN_WORKSPACE'] + '/sub/note').read()"


@each_row(
    ("scopes", "may"),
    [
        ({}, "note sub new"),
        ({"read:fs": ["$workspace"]}, "note sub new"),
        ({"read:fs": ["$workspace/sub"]}, "sub new"),
        ({"read:fs": ["WORKSPACE/sub"]}, "sub new"),
        ({"read:fs": ["WORKSPACE/su"]}, "new"),
        ({"read:fs": ["/etc", "/"]}, "note sub new"),
        ({"read:fs": ["/etc"]}, "new"),
        ({"read:fs": []}, "new"),
        ({"read:fs": ["$data", "$nowhere", "../x"]}, "new"),
        ({"write:fs": []}, "note sub"),
        ({"write:fs": ["$workspace/sub"]}, "note sub"),
        ({"process:spawn": ["python"]}, "note sub new"),
        ({"process:spawn": ["node", "git"]}, ""),
        ({"process:spawn": []}, ""),
    ],
)
def test_code_reaches_no_further_than_the_scopes_of_its_caller(
    tavern: Tavern, tmp_path: Path, scopes: dict[str, list[str]], may: str
) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "sub").mkdir(parents=True)
    for folder in (workspace, workspace / "sub"):
        (folder / "note").write_text("hello")
    given = {name: [entry.replace("WORKSPACE", str(workspace)) for entry in scope] for name, scope in scopes.items()}
    context = {
        "permissions": frozenset({"process:spawn", "read:fs", "write:fs"}),
        "workspace_dir": str(workspace),
        "scopes": given,
    }
    codes = {"note": READ, "sub": SUB, "new": WRITE}
    tried = (
        f"import traceback\ndone = []\nfor name, code in {codes!r}.items():\n    try: exec(code); done.append(name)\n"
    )
    tried += "    except PermissionError: traceback.print_exc()\n' '.join(done)"
    result = run(tavern, tried, principal="user:agent", **context)
    if may:
        assert (result.ok, result.value["exitCode"], result.value["value"]) == (True, 0, may), result
    else:
        assert result.error is not None
        assert result.error.kind == "POLICY_DENIED"


@pytest.mark.parametrize("where", ["host", "caller", "profile"])
def test_a_caller_that_may_not_start_programs_may_not_run_code(tmp_path: Path, where: str) -> None:
    config: dict[str, Any] = {**ALLOWED, "profiles": [str(tmp_path / "profiles")]}
    context: dict[str, Any] = {"principal": "user:agent", "permissions": frozenset({"process:spawn"})}
    (tmp_path / "profiles").mkdir()
    profile = {"name": "quiet", "tool_ids_inventory": [ID], "capabilities": ["read:fs"]}
    (tmp_path / "profiles" / "quiet.json").write_text(json.dumps(profile))
    if where == "host":
        config["capabilities"] = {"deny": ["process:spawn"]}
    elif where == "caller":
        context["permissions"] = frozenset({"read:fs"})
    else:
        context["profile"] = "quiet"
    with Tavern.open(config, home=tmp_path / "home") as tavern:
        error = run(tavern, "1", **context).error
    assert error is not None
    assert (error.kind, error.details.get("side")) == ("POLICY_DENIED", where)


@pytest.mark.parametrize(
    "isolation",
    [*({"without": [layer]} for layer in LAYERS), {"level": "none"}, {"level": "best-effort", "without": ["landlock"]}],
    ids=str,
)
def test_without_a_whole_box_no_code_is_run_whatever_the_level(tmp_path: Path, isolation: dict[str, Any]) -> None:
    with Tavern.open({**ALLOWED, "isolation": isolation}, home=tmp_path / "home") as tavern:
        error = run(tavern, f"open({str(tmp_path / 'ran')!r}, 'w')").error
    assert error is not None
    assert (error.kind, error.outcome, error.details["side"]) == ("POLICY_DENIED", "none", "isolation")
    assert next(iter(isolation.get("without", ["level is none"]))) in error.message
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("code", "limits", "kind"),
    [
        ("import time; print('begun', flush=True); time.sleep(60)", {"scriptTimeoutMs": 1500}, "TIMEOUT"),
        ("while True: print('x' * 10000)", {"outputBytes": 100_000}, "OUTPUT_TOO_LARGE"),
    ],
)
def test_what_takes_too_long_or_says_too_much_is_stopped(
    tmp_path: Path, code: str, limits: dict[str, int], kind: str
) -> None:
    with Tavern.open({**ALLOWED, "limits": limits}, home=tmp_path) as tavern:
        result = run(tavern, code)
        assert result.error is not None
        assert result.error.kind == kind
        assert result.error.details["limit"] == {"TIMEOUT": "limits.scriptTimeoutMs", "OUTPUT_TOO_LARGE": 100_000}[kind]
        assert result.error.details["stdout"].startswith(("begun", "xxx"))
        assert run(tavern, "1").value["value"] == 1


def test_stderr_is_kept_up_to_its_bound(tmp_path: Path) -> None:
    with Tavern.open({**ALLOWED, "limits": {"stderrBytes": 1000}}, home=tmp_path) as tavern:
        answer = run(tavern, "import sys; sys.stderr.write('e' * 1_000_000); print('on')").value
    assert (answer["stdout"], len(answer["stderr"])) == ("on\n", 1000)


@pytest.mark.parametrize(
    "code",
    [
        "open('value.json', 'w').write('x' * 100)",
        "import os; os.mkdir('value.json')",
        "open('value.json', 'w').write('[' * 100000)",
    ],
)
def test_a_value_that_is_none_is_none(tavern: Tavern, code: str) -> None:
    assert run(tavern, f"{code}\nNone").value["value"] is None


@each_row(
    ("code", "value"),
    [
        ("class A:\n    def __repr__(self): raise ValueError('no')\nA()", "<A>"),
        ("class A:\n    def __repr__(self): return 5\nA()", "<A>"),
        ("deep = []\nfor _ in range(100_000): deep = [deep]\ndeep", "<list>"),
        ("{(1, 2): 3}", "{(1, 2): 3}"),
    ],
)
def test_a_value_that_cannot_be_printed_is_no_error_of_the_code(tavern: Tavern, code: str, value: str) -> None:
    answer = run(tavern, code).value
    assert (answer["exitCode"], answer["value"], answer["stderr"]) == (0, value, "")


def test_cancelling_ends_the_code_and_nothing_is_left(tmp_path: Path) -> None:
    marker = f"mark-{os.getpid()}-{tmp_path.name}"
    code = (
        "import subprocess, sys, time\n"
        f"me = [sys.executable, '-S', '-c', 'import time; time.sleep(300)', {marker!r}]\n"
        "for _ in range(3): subprocess.Popen(me, start_new_session=True)\n"
        "time.sleep(300)"
    )

    async def cancel() -> None:
        async with Tavern.open(ALLOWED, home=tmp_path) as tavern:
            assert (await tavern.invoke(ID, {"language": "python", "code": "1"})).ok
            before = in_use()
            work = asyncio.ensure_future(tavern.invoke(ID, {"language": "python", "code": code}))
            await until(lambda: len(processes_with(marker)) >= 3)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert processes_with(marker) == []
            assert left_since(before) == []

    asyncio.run(cancel())


def test_a_model_runs_code_by_text(tavern: Tavern) -> None:
    text = (
        "<|[REQUEST_TOOL]|>\ncommand:「始」CodeInterpreter:execute「末」,\nlanguage:「始」python「末」,\n"
        "code:「始」numbers = [3, 1, 2]\nprint(sorted(numbers))「末」\n<|[END_TOOL]|>\n"
    )
    outcome = tavern.run_text_sync(text)
    assert [result.value["stdout"] for result in outcome.results] == ["[1, 2, 3]\n"]
