"""`tavern hooks`, `tavern --version`, names of commands to come, `tools list --plugin`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tavern_core import __version__
from tavern_core.contract.hookspecs import HOOKS
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow

GUARD = """\
from tavern_core import hookimpl

@hookimpl{mark}
def tavern_check_call(call, tool, ctx):
    {body}
"""


@pytest.fixture
def guards(project: Path, tavern: Run) -> None:
    """Four plugins that check calls: one that asks to be first, one without a grant, one that fails."""
    for name, mark, body, more in (
        ("guard-a", "", "return None", ""),
        ("guard-b", "(tryfirst=True)", "return None", "  tryfirst: true\n"),
        ("guard-c", "", "return None", ""),
        ("guard-d", "(trylast=True)", "raise RuntimeError('broken')", ""),
    ):
        folder = project / "plugins" / name
        folder.mkdir()
        (folder / "plugin.yaml").write_text(
            f'name: {name}\nversion: "1"\npermissions:\n  hooks: ["hook:server:tool:check"]\n{more}', "utf-8"
        )
        (folder / "__init__.py").write_text(GUARD.format(mark=mark, body=body), "utf-8")
        if name != "guard-c":
            granted = ["hook:server:tool:check", *(["tryfirst"] if more else [])]
            assert tavern("plugins", "grant", name, *granted).code == 0


def check_call(tavern: Run, *words: str) -> list[dict[str, Any]]:
    [row] = [row for row in tavern("hooks", *words, "--json").json if row["hook"] == "tavern_check_call"]
    return [p for p in row["plugins"] if not p["plugin"].startswith("core-")]


@pytest.mark.slow
@pytest.mark.usefixtures("guards")
def test_who_implements_a_hook_stands_in_the_order_of_the_calls_with_its_state(tavern: Run) -> None:
    for _ in range(5):  # as often as a hook may fail in a row
        tavern("tools", "call", "text:escape")
    rows = check_call(tavern)
    assert [(p["plugin"], p["state"]) for p in rows][:3] == [
        ("guard-b", "runs"),
        ("guard-a", "runs"),
        ("guard-d", "resting"),
    ]
    assert [(p["plugin"], p["state"]) for p in rows][3:] == [("bomb", "not granted"), ("guard-c", "not granted")]
    assert "broken" in rows[2]["reason"] and rows[4]["reason"] == "tavern plugins grant guard-c hook:server:tool:check"
    assert check_call(tavern, "tavern_check_call") == rows == check_call(tavern, "--plugin", "guard-a")
    [line] = [line for line in tavern("hooks").out.splitlines() if line.startswith("tavern_check_call ")]
    assert "guard-b, guard-a, " in re.sub(r"\bcore-[a-z]+, ", "", line)  # those of the host stand between
    assert "guard-d (resting), bomb (not granted), guard-c (not granted)" in line
    reported = tavern("hooks", "tavern_check_call").out
    assert (
        "guard-d" in reported
        and "tavern plugins grant guard-c hook:server:tool:check" in reported
        and HOOKS["tavern_check_call"].contract in reported
    )


def test_every_hook_is_listed_once_and_a_misspelt_one_is_refused(tavern: Run) -> None:
    rows = tavern("hooks", "--json").json
    assert [row["hook"] for row in rows] == list(HOOKS)
    assert {row["hook"] for row in rows if not row["isCalled"]} == {
        hook.name for hook in HOOKS.values() if not hook.is_called
    }
    assert [row["hook"] for row in tavern("hooks", "--plugin", "bomb", "--json").json] == [
        "tavern_check_call",
        "tavern_on_event",
    ]
    assert tavern("hooks", "tavern_on_event", "--plugin", "text", "--json").json == []
    assert "no plugin implements it" in tavern("hooks", "tavern_on_event", "--plugin", "text").err
    for words, code, said in ((("tavern_chek_call",), 5, "tavern_check_call"), (("--plugin", "bmob"), 5, "'bomb'")):
        answer = tavern("hooks", *words)
        assert (answer.code, answer.out, said in answer.err) == (code, "", True)


def test_the_version_is_an_option_too(tavern: Run) -> None:
    for word in ("--version", "-V", "version"):
        answer = tavern(word)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith(f"tavern-core {__version__} (Python 3.")


COMING = ["cluster", "state", "kb"]


OURS = ["agent", "assist", "hooks", "knowledge", "llms", "mcp", "serve", "tokens", "upstreams"]


def offering(project: Path, plugin: str, names: list[str]) -> None:
    """A plugin with commands of these names."""
    folder = project / "plugins" / plugin
    folder.mkdir()
    (folder / "plugin.yaml").write_text(
        f'name: {plugin}\nversion: "1"\ncommands: {json.dumps(names, ensure_ascii=False)}\n', "utf-8"
    )
    (folder / "__init__.py").write_text(
        "from tavern_core import Command, hookimpl\nimport click\n"
        "def made(name):\n    return Command(name, lambda: click.Command(name, callback=lambda: print('mine')))\n"
        f"@hookimpl\ndef tavern_register_commands():\n    return [{', '.join(f'made({name!r})' for name in names)}]\n",
        "utf-8",
    )


@pytest.mark.parametrize("name", [*COMING, *OURS, "help"])
def test_names_of_commands_to_come_are_nobodys_and_say_so(tavern: Run, project: Path, name: str) -> None:
    offering(project, "thief", [name])
    answer = tavern(name, "--help") if name in OURS else tavern(name, "start")
    assert "mine" not in answer.out
    if name in COMING:
        assert (answer.code, f"has no command '{name}'" in answer.err, "reserved" in answer.err) == (2, True, True)
    answer = tavern("plugins", "activate", "thief")
    assert (answer.code, "is reserved for the host" in answer.err) == (4, True), answer


def test_every_reserved_name_of_a_command_is_a_finding(tavern: Run, project: Path) -> None:
    names = [*COMING, *OURS, "help"]
    offering(project, "thief", names)
    answer = tavern("plugins", "check", "thief")
    assert answer.code == 4
    assert [name for name in names if f"'{name}' is reserved for the host" not in answer.err] == [], answer.err


@pytest.mark.parametrize("name", ["--help", "-x", "two words", "a/b", "_hidden"])
def test_a_command_has_a_name_that_can_be_typed(tavern: Run, project: Path, name: str) -> None:
    offering(project, "odd", [name])
    for words in (("activate", "odd"), ("check", "odd")):
        answer = tavern("plugins", *words)
        assert (answer.code, f"{name!r} cannot be a command" in answer.err) == (4, True), answer


def test_a_command_may_have_a_chinese_name(tavern: Run, project: Path) -> None:
    offering(project, "odd", ["问候"])
    assert tavern("问候").out == "mine\n"


def test_tools_of_one_plugin_are_listed(tavern: Run) -> None:
    assert {row["id"].partition(":")[0] for row in tavern("tools", "list", "--plugin", "text", "--json").json} == {
        "text"
    }
    assert [row["id"] for row in tavern("tools", "list", "--plugin", "bomb", "--all", "--json").json] == ["bomb:boom"]
    assert tavern("tools", "list", "--plugin", "looks", "--json").json == []
    answer = tavern("tools", "list", "--plugin", "txet")
    assert (answer.code, "did you mean 'text'?" in answer.err) == (5, True)
