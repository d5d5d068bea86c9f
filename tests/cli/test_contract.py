"""What holds for every command: its manual page, its JSON, its help, its speed of thought."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tavern_core.cli.app import COMMANDS, app
from tavern_core.cli.output import aligned, json_text, pad, shorten, visible, width
from tavern_core.cli.session import CliCommand, CliSession
from tests.cli.conftest import Run
from tests.rows import each_row

ROOT = Path(__file__).parents[2]
MANUAL = (ROOT / "docs" / "cli.md").read_text("utf-8")
GLOBAL = {
    "--config",
    "--home",
    "--set",
    "--safe-mode",
    "--no-plugins",
    "--debug",
    "--no-color",
    "--quiet",
    "--verbose",
    "--help",
}


def commands(group: click.Group = app, words: tuple[str, ...] = ("tavern",)) -> Iterator[tuple[str, click.Command]]:
    """Every command of the host with its full name."""
    ctx = click.Context(group, obj=CliSession())
    for name in group.commands | COMMANDS if group is app else group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


TREE = dict(commands())


def section(name: str) -> str:
    """The part of the manual under the heading of a command."""
    found = re.search(rf"^#+ `{re.escape(name)}[^`]*`\n(.*?)(?=^#+ |\Z)", MANUAL, re.M | re.S)
    assert found is not None, f"docs/cli.md has no heading for {name}"
    return found[0]


@each_row("name", [n for n in TREE if n != "tavern plugins doctor"])
def test_the_manual_has_every_command_with_every_option(name: str) -> None:
    text = section(name)
    for param in TREE[name].params:
        if isinstance(param, click.Option) and not param.hidden:
            longest = max(param.opts, key=len)
            assert f"`{longest}" in text, f"{name}: {longest} is not in docs/cli.md"


def test_the_usage_of_a_command_shows_which_words_may_be_left_out() -> None:
    for name, command in TREE.items():
        ctx = click.Context(command, obj=CliSession())
        optional = [param for param in command.params if isinstance(param, click.Argument) and not param.required]
        shown = [param.make_metavar(ctx) for param in optional]
        assert [word for word in shown if not word.startswith("[")] == [], name


def test_no_hint_names_a_command_or_an_option_that_does_not_exist() -> None:
    wrong = []
    for file in (ROOT / "tavern_core").rglob("*.py"):
        for hint in re.finditer(r"`(tavern [a-z]+(?: [a-z]+)?)\b([^`\n]*)", file.read_text("utf-8")):
            fitting = [name for name in TREE if f"{hint[1]} ".startswith(f"{name} ") or name.startswith(f"{hint[1]} ")]
            options = {option for name in fitting for param in TREE[name].params for option in param.opts} | GLOBAL
            if not fitting or not options.issuperset(re.findall(r" (--[a-z-]+)", hint[2])):
                wrong.append((file.name, hint[0]))
    assert not wrong


def test_the_manual_has_no_command_that_does_not_exist() -> None:
    reported = {m[1] for m in re.finditer(r"^#+ `(tavern(?: [a-z]+)+)", MANUAL, re.M)}
    assert {t for t in reported if not any(t == name or t.startswith(f"{name} ") for name in TREE)} == set()


PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "example_plugins").glob("*/README.md"),
        ROOT / "example_plugins" / "README.md",
    ]
)


@each_row("page", PAGES)
def test_every_command_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text("utf-8")
    lines = re.findall(r"^(?:\$ +|    )?tavern (.+)$", text, re.M) + re.findall(r"`tavern ([^`]+)`", text)
    ctx = click.Context(app, obj=CliSession())
    for line in lines:
        words = re.sub(r"^(--(set|home|config) \S+ +|--\S+ +|\\ *)+", "", line).split()
        command: click.Command | None = app
        while words and isinstance(command, click.Group) and re.fullmatch(r"[a-z]+", words[0]):
            command = command.get_command(ctx, words.pop(0))
        assert command is not None, f"{page.name}: tavern {line}"


def test_every_global_option_is_in_the_manual() -> None:
    assert {o for o in GLOBAL if f"`{o}" not in MANUAL} == set()


def test_every_command_takes_the_global_options_behind_its_words() -> None:
    for name, command in TREE.items():
        assert isinstance(command, CliCommand), f"{name}: define it with @command of tavern_core/cli/session.py"
        assert {o for p in command.params for o in p.opts} >= GLOBAL - {"--help"}, name


def test_every_command_has_json() -> None:
    without = {n for n, c in TREE.items() if "--json" not in {o for p in c.params for o in p.opts}}
    assert without == {"tavern completion", "tavern mcp", "tavern serve"}, (
        "all but a script for a shell, and what speaks protocols: @command of tavern_core/cli/session.py adds --json"
    )


@each_row("name", COMMANDS)
def test_the_short_help_of_a_command_is_its_own(name: str) -> None:
    command = app.get_command(click.Context(app, obj=CliSession()), name)
    assert command is not None
    assert COMMANDS[name].help == command.get_short_help_str(200)


def test_every_command_that_a_message_names_exists() -> None:
    """Hints are commands that people copy."""
    known = {
        *TREE,
        "tavern plugins",
        "tavern tools",
        "tavern config",
        "tavern logs",
        "tavern nodes",
        "tavern skills",
        "tavern knowledge",
        "tavern workflows",
        "tavern approvals",
        "tavern jobs",
        "tavern artifacts",
        "tavern tokens",
        "tavern upstreams",
        "tavern agent",
        "tavern llms",
    }
    wrong = []
    for file in (ROOT / "tavern_core").rglob("*.py"):
        for found in re.finditer(r"[`'\"](tavern(?: [a-z]+){1,2})\b", file.read_text("utf-8")):
            words = found[1].split()
            if " ".join(words[:3]) not in known and " ".join(words[:2]) not in known:
                wrong.append(f"{file.relative_to(ROOT)}: {found[1]}")
    assert wrong == []


JSON = [
    ("plugins", "list"), ("plugins", "info", "text"), ("plugins", "check", "text"), ("plugins", "assets"), ("plugins", "doctor"),
    ("plugins", "enable", "text"), ("plugins", "grant", "text", "read:fs"), ("plugins", "lock"), ("plugins", "activate", "text"),
    ("plugins", "reload", "text"),
    ("tools", "list"), ("tools", "list", "--all"), ("tools", "show", "text:escape"), ("tools", "search", "count"),
    ("tools", "why", "text:count"), ("tools", "call", "text:escape"), ("run",), ("config", "show"), ("config", "get", "limits"),
    ("config", "path"), ("config", "set", "extensions.text.level", "1"), ("logs",), ("logs", "verify"), ("doctor",), ("version",),
    ("tools", "manual"), ("plugins", "revoke", "text"), ("plugins", "disable", "text"),
]  # fmt: skip


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys(item)


@pytest.mark.slow
def test_json_is_one_document_in_camel_case_without_colour(tavern: Run) -> None:
    tavern("plugins", "grant", "text", "read:fs")
    tavern("tools", "call", "text:escape")  # a log without any record is not there
    for argv in JSON:
        answer = tavern(*argv, "--json")
        assert answer.code in (0, 4), (argv, answer)
        assert "\x1b" not in answer.out, argv
        value = answer.json
        assert json.loads(json.dumps(value)) == value, argv
        free = ("tools show", "config", "logs")  # schemas, keys and records are data of others
        if not " ".join(argv).startswith(free):
            assert {k for k in keys(value) if "_" in k and not k.startswith("hook:")} == set(), argv


@pytest.mark.slow
def test_streams_are_bytes_of_utf8_whatever_the_locale_says(project: Path, home: Path) -> None:
    """In a folder with a Chinese name, which Python cannot decode under this locale."""
    env = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PATH": "/usr/bin:/bin"}
    code = (
        "import sys; from tavern_core.__main__ import main\n"
        "for more in ((), ('--json',)): assert main([*sys.argv[1:], *more]) == 0"
    )
    command = [sys.executable, "-c", code, "--home", str(home), "tools", "show", "text:count"]
    done = subprocess.run(command, capture_output=True, env=env, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    text, brace, document = done.stdout.decode("utf-8").partition("\n{")
    assert "统计字数" in text
    assert "统计字数" in json.loads(brace + document)["description"]


@pytest.mark.slow
def test_version_help_and_a_table_in_a_pipe_import_only_what_they_need(project: Path, home: Path) -> None:
    """In one process, the most frugal first."""
    heavy = ["rich", "jsonschema", "cookiecutter", "tavern_core.host", "tavern_core.host.composition"]
    of_files = ["pydantic", "yaml", "tavern_core.kernel.config", "tavern_core.kernel.discovery.discover"]
    code = f"""
import sys
from tavern_core.__main__ import main
for words, unused in ((["version"], {[*heavy, *of_files]!r}), (["--help"], {heavy!r}), (["plugins", "list"], ["rich"])):
    assert main(["--home", sys.argv[1], *words]) == 0
    found = [name for name in unused if name in sys.modules]
    assert not found, (words, found)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(home)],
        capture_output=True, text=True, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")  # that a plugin is bad stands in its row
    assert "text" in done.stdout


@pytest.mark.slow
def test_doctor_says_state_reason_and_fix_of_everything(tavern: Run, home: Path) -> None:
    report = tavern("doctor", "--json", "--set", "tools.deny=text:fail").json
    assert report["ok"] is False
    assert {e["what"] for e in report["host"]} >= {
        "python",
        "tavern-core",
        "configuration",
        "state folder",
        "lock file",
        "audit log",
    }
    found = {row["name"]: row for row in report["plugins"]}
    assert found["bad"]["state"] == "failed"
    assert found["bad"]["fix"] == "did you mean 'hook:server:tool:check'?"
    assert found["text"]["fix"] == "tavern plugins grant text"
    assert [t["id"] for t in report["hiddenTools"]] == ["text:fail"]
    reported = tavern("doctor").out
    row = next(line for line in reported.splitlines() if line.startswith("bad "))
    assert re.search("unknown hook permission 'hook:server:tool:chek' +did you mean 'hook:server:tool:check'[?]$", row)
    for word in ("bad", "hook:server:tool:chek", "tavern plugins grant text", str(home)):
        assert word in reported


def test_doctor_is_content_where_nothing_is_wrong(tavern: Run, project: Path) -> None:
    (project / "plugins" / "bad" / "plugin.yaml").unlink()
    (project / "plugins" / "bad").rmdir()
    assert tavern("doctor").code == 0


@pytest.mark.slow
def test_doctor_and_the_list_tell_what_is_wrong_in_the_files_of_a_plugin_that_works(tavern: Run, project: Path) -> None:
    shutil.rmtree(project / "plugins" / "bad")
    folder = project / "plugins" / "half"
    (folder / "tools").mkdir(parents=True)
    (folder / "plugin.yaml").write_text('name: half\nversion: "1"\ntools: {entry: ./tools}\n', "utf-8")
    (folder / "tools" / "one.tool.json").write_text(
        '{\n  "id": "one",\n  "parameters": {"type": "objct"}\n}\n', "utf-8"
    )
    answer = tavern("doctor")
    [row] = [line for line in answer.out.splitlines() if "'objct' is not a JSON type" in line]
    assert answer.code == 4
    assert row.startswith("error     TOOL_FILE_INVALID  half    tools/one.tool.json:3:")
    assert row.endswith("did you mean 'object'?")
    assert "error: " not in answer.err  # told once
    report = tavern("doctor", "--json")
    assert (report.code, report.json["ok"]) == (4, False)
    [row] = [line for line in tavern("plugins", "list").out.splitlines() if line.startswith("half ")]
    assert "tools/one.tool.json:1:1: implementation: " in row
    tavern("plugins", "disable", "half")
    assert tavern("doctor").code == 0


def test_doctor_names_plugins_that_are_activated_for_want_of_a_declaration(tavern: Run, project: Path) -> None:
    manifest = project / "plugins" / "text" / "plugin.yaml"
    text = manifest.read_text("utf-8")
    start, end = text.index("tools:"), text.index("configOptions:")
    manifest.write_text(text[:start] + text[end:], "utf-8")
    assert "tavern plugins check text --write" in tavern("doctor").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_and_their_answers(tavern: Run, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    assert "_TAVERN_COMPLETE" in tavern("completion", shell).out
    monkeypatch.setenv("_TAVERN_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "tavern plugins di")
    monkeypatch.setenv("COMP_CWORD", "2" if shell != "fish" else "di")
    assert "disable" in tavern().out


def test_schemas_are_printed_for_editors(tavern: Run) -> None:
    for kind, key in (
        ("manifest", "permissions"),
        ("tool", "implementation"),
        ("profile", "tool_ids_inventory"),
        ("config", "limits"),
    ):
        assert key in tavern("schema", kind).json["properties"]


@each_row(
    ("text", "columns"), [("ab", 2), ("工具", 4), ("é", 1), ("e\u0301", 1), ("ｱ", 1), ("Ａ", 2), ("👍", 2), ("", 0)]
)
def test_widths_are_those_of_a_terminal(text: str, columns: int) -> None:
    assert width(text) == columns
    assert width(pad(text, 10)) == 10


def test_columns_stand_below_each_other_in_chinese_too() -> None:
    lines = aligned(("id", "说明"), [["工具", "甲"], ["b", "乙"]]).splitlines()
    assert [width(line[: line.index(word)]) for line, word in zip(lines[1:], "甲乙", strict=True)] == [6, 6]


def test_long_and_hostile_values_stay_one_short_line() -> None:
    assert shorten("一" * 1000, 10) == "一一一一…"
    assert width(shorten("x\n" * 10**6, 40)) <= 40
    assert visible("\x1b[31m\u202e\x00") == "\\x1b[31m\\u202e\\x00"
    assert json.loads(json_text({"a": "\ud800", "b": "中"})) == {"a": "\ud800", "b": "中"}
    json_text({"a": "\ud800"}).encode("utf-8")
