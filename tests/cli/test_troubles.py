"""What is wrong with plugins that a command is not about: a line for what `tavern doctor` shows, and one for what it cannot show."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
ONE = "warning: plugin bad has problems: tavern plugins doctor\n"
TWO = "warning: 2 plugins have problems: tavern plugins doctor\n"
OBSERVER = """
from tavern_core import hookimpl

@hookimpl
def tavern_after_execute(call, result, ctx):
    raise RuntimeError("lost sight of it")
"""


def add(project: Path, name: str, manifest: str, code: str = "") -> None:
    folder = project / "plugins" / name
    folder.mkdir()
    (folder / "plugin.yaml").write_text(f'name: {name}\nversion: "1"\n{manifest}\n')
    (folder / "__init__.py").write_text(code)


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("tools list", ONE),
        ("tools call system:get_current_time", ONE),
        ("tools search time", ONE),
        ("tools list --json", ""),
        ("tools call system:get_current_time --json", ""),
        ("-q tools list", ""),
        ("plugins list", ""),
    ],
)
def test_one_line_names_the_plugin_and_a_json_document_none(tavern: Run, line: str, reported: str) -> None:
    answer = tavern(*line.split())
    assert (answer.code, answer.err) == (0, reported)


def test_several_are_counted_and_shown_one_by_one_when_asked_for(tavern: Run, project: Path) -> None:
    add(project, "odd", "tols: []")
    assert tavern("tools", "list").err == TWO
    shown = tavern("tools", "list", "-v").err
    assert "bad: plugin.yaml:8:7" in shown and "unknown key 'tols'" in shown and "problems" not in shown
    doctor = tavern("plugins", "doctor").out
    assert "plugin.yaml:8:7" in doctor and "tols" in doctor


@pytest.mark.slow
def test_what_only_this_run_knows_is_reported_itself_if_it_is_all(tavern: Run, project: Path) -> None:
    add(project, "watcher", "permissions: {hooks: ['hook:server:tool:after-execute']}", OBSERVER)
    assert tavern("plugins", "grant", "watcher", "hook:server:tool:after-execute").code == 0
    crowd = tavern("tools", "call", "system:get_current_time")
    assert (
        crowd.err.startswith(ONE + "error: HOOK_FAILED")
        and "lost sight of it" in crowd.err
        and crowd.err.count("\n") == 2
    )
    add(project, "blind", "permissions: {hooks: ['hook:server:tool:after-execute']}", OBSERVER)
    assert tavern("plugins", "grant", "blind", "hook:server:tool:after-execute").code == 0
    more = ("tools", "call", "system:get_current_time")
    assert tavern(*more).err == ONE + "warning: 2 messages about plugins: this command with -v shows them\n"
    assert tavern(*more, "-v").err.count("lost sight of it") == 2
    assert tavern("plugins", "disable", "blind").code == 0
    assert tavern("plugins", "disable", "bad").code == 0
    alone = tavern("tools", "call", "system:get_current_time")
    assert alone.err.startswith("error: HOOK_FAILED") and "lost sight of it" in alone.err and alone.err.count("\n") == 1


def test_a_failed_call_says_once_what_is_wrong_with_its_plugin(tavern: Run, project: Path) -> None:
    add(project, "torn", "tools: [{id: x, implementation: {type: python}}]", "import nothing_of_this_name\n")
    assert tavern("plugins", "disable", "bad").code == 0
    answer = tavern("tools", "call", "torn:x")
    assert answer.code != 0 and answer.err.count("nothing_of_this_name'") == 2, "the message and its hint"
    assert "warning:" not in answer.err


NOTICED = {
    "an unknown key": ("tols: []", ""),
    "an unknown permission": ("permissions: {capabilities: [{name: 'read:fz'}]}", ""),
    "a hook that is not declared": ("", OBSERVER),
    "code that cannot be imported": ("start: true", "import nothing_of_this_name\n"),
    "two of one name": (
        "tools: [{id: a-b, implementation: {type: python}}, {id: a_b, implementation: {type: python}}]",
        "",
    ),
    "a tool file that is not there": ("tools: {entry: ./nowhere}", ""),
}


@pytest.mark.slow
def test_doctor_shows_what_a_warning_sends_to_it(tavern: Run, project: Path) -> None:
    assert tavern("plugins", "disable", "bad").code == 0
    for number, (manifest, code) in enumerate(NOTICED.values()):
        add(project, f"odd{number}", manifest, code)
    said = [tavern(*words).err for words in (("tools", "list"), ("tools", "call", "system:get_current_time"))]
    report = tavern("doctor", "--json").json
    reported = {d["plugin"] for d in report["diagnostics"] if d["message"]}
    failed = {p["name"] for p in report["plugins"] if p["state"] == "failed" and p["reason"]}
    shown = {name for name in reported | failed if name.startswith("odd")}
    assert shown >= {"odd0", "odd1", "odd4", "odd5"}
    for each in said:  # the others are reported where they happen
        assert f"warning: {len(shown)} plugins have problems: tavern plugins doctor\n" in each, (shown, each)


def test_doctor_knows_the_tools_of_workflows(tavern: Run, project: Path) -> None:
    (project / "workflows").mkdir()
    for name in ("fine", "Fine", "denied", "a b"):
        (project / "workflows" / f"{name}.json").write_text('{"nodes": [], "edges": []}')
    (project / "workflows" / "broken.json").write_text("{")
    config = project / "tavern.yaml"
    lists = "tools: {deny: ['workflow:denied', 'workflow:gone']}\n"
    config.write_text((config.read_text() if config.is_file() else "") + lists)
    report = tavern("doctor", "--json").json
    assert [tool["id"] for tool in report["hiddenTools"]] == ["workflow:denied"]
    assert [d["hint"] for d in report["diagnostics"] if d["code"] == "NAME_CONFLICT"] == [
        "rename one: names that differ only in case or punctuation are equal"
    ]
    found = [(d["code"], d["message"].partition(":")[0]) for d in report["diagnostics"] if d["plugin"] in ("", None)]
    assert [code for code, _ in found].count("WORKFLOW_UNDESCRIBED") == 3, found
    assert [d["message"] for d in report["diagnostics"] if d["code"] == "CONFIG_INVALID"] == [
        "tavern.yaml: tools.deny[1]: no tool, plugin or alias fits 'workflow:gone'; the entry has no effect"
    ]
    assert {"WORKFLOW_NAME"} <= {code for code, _ in found} and "WORKFLOW_INVALID" not in {code for code, _ in found}
    assert [row["verdict"] for row in report["host"] if row["what"] == "workflows"] == ["error"]


def test_doctor_names_tools_of_profiles_that_no_plugin_can_have(tavern: Run, project: Path) -> None:
    (project / "profiles").mkdir()
    inventory = ["text:count", "text:cuont", "nowhere:x", "text:*"]
    (project / "profiles" / "clerk.json").write_text(json.dumps({"tool_ids_inventory": inventory}))

    def reported(*options: str) -> list[str]:
        rows = [row for row in tavern(*options, "doctor", "--json").json["host"] if row["what"] == "profile clerk"]
        return [row["found"].removeprefix("profile clerk: tool_ids_inventory") for row in rows]

    assert reported() == [  # a plugin that names no tools may have `nowhere:x`
        "[1]: there is no tool 'text:cuont'",
        "[3]: 'text:*' is a wildcard; an inventory lists its tools one by one",
    ]
    assert "[2]: there is no tool 'nowhere:x'" in reported("--no-plugins")


def test_doctor_names_tool_files_that_are_not_read(tavern: Run, project: Path) -> None:
    add(project, "late", "")
    (project / "plugins" / "late" / "tools").mkdir()
    (project / "plugins" / "late" / "tools" / "count.tool.json").write_text("{}")
    found = [d for d in tavern("doctor", "--json").json["diagnostics"] if d["plugin"] == "late"]
    assert [(d["severity"], d["message"], d["hint"]) for d in found] == [
        ("warning", "tools/count.tool.json:1:1: this tool file is not read", "tools: {entry: ./tools}")
    ]


def test_doctor_knows_every_extra_of_the_package(tavern: Run) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    row = next(row for row in tavern("doctor", "--json").json["host"] if row["what"] == "extras")
    assert {*row["found"].replace("; not installed:", ",").split(", ")} == declared.keys() - {"dev"}
    for extra in filter(None, row["found"].partition("; not installed: ")[2].split(", ")):
        assert f"pip install 'tavern-core[{extra}]'" in (row["fix"] or "")
