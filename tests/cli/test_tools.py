"""`tavern tools` and `tavern run`: what there is, why, and calls whose arguments are words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.slow

START, END = "<|[REQUEST_TOOL]|>", "<|[END_TOOL]|>"


@pytest.fixture
def granted(tavern: Run) -> Run:
    assert tavern("plugins", "grant", "text", "read:fs").code == 0
    return tavern


def test_the_list_can_be_narrowed_and_shows_hidden_tools_with_reasons(tavern: Run, project: Path) -> None:
    ids = [t["id"] for t in tavern("tools", "list", "--json").json]
    assert ids == sorted(ids)
    assert "text:count" in ids
    assert [t["id"] for t in tavern("tools", "list", "--tag", "统计", "--json").json] == ["text:count"]
    assert [t["id"] for t in tavern("tools", "list", "--capability", "read:fs", "--json").json] == ["text:count"]
    hidden = {t["id"]: t for t in tavern("tools", "list", "--all", "--json", "--set", "tools.deny=text:fail").json}
    assert (hidden["text:fail"]["visible"], hidden["text:count"]["visible"]) == (False, True)
    assert "tools.deny" in hidden["text:fail"]["reason"]
    assert "hidden" in tavern("tools", "list", "--all", "--set", "tools.deny=text:fail").out


def test_the_list_shows_what_a_caller_with_these_permissions_can_use(granted: Run) -> None:
    for permissions, is_there in (("", False), ("read:web", False), ("read:fs", True), ("read:fs,read:web", True)):
        ids = [t["id"] for t in granted("tools", "list", "--permissions", permissions, "--json").json]
        assert ("text:count" in ids, "text:fail" in ids) == (is_there, True), permissions
        rows = granted("tools", "list", "--permissions", permissions, "--all", "--json").json
        row = {t["id"]: t for t in rows}["text:count"]
        assert (row["visible"], "read:fs" in row["reason"]) == (is_there, not is_there), permissions


@pytest.mark.slow
def test_a_profile_narrows_the_list_the_manual_and_the_call(granted: Run, project: Path) -> None:
    (project / "profiles").mkdir()
    (project / "profiles" / "writer.json").write_text('{"tool_ids_inventory": ["text:count"]}', "utf-8")
    assert [t["id"] for t in granted("tools", "list", "--profile", "writer", "--json").json] == ["text:count"]
    assert "text:fail" not in granted("tools", "manual", "--profile", "writer").out
    call = ("tools", "call", "text:count", "text=a b", "--profile", "writer")
    assert granted(*call, "--permissions", "read:fs").out == "2\n"
    assert granted(*call).code == 3  # an explicit caller has exactly its permissions
    assert granted("tools", "call", "text:escape", "--profile", "writer").code == 3
    assert not granted("tools", "why", "text:fail", "--profile", "writer", "--json").json["visible"]


WORDS = {
    ("text=one two",): 2,
    ("--arg", "text=one two", "-a", "times=3"): 6,
    ("text=中文 字", "unit=characters"): 4,
    ("text=1",): 1,  # text stays text
    ("text=a=b",): 1,
    ("text=",): 0,
    ("text=x", 'flags=["a","b"]'): 1,
    ("--json-args", '{"text": "a b c"}'): 3,
    ("--json-args", '{"text": "a b c"}', "times=2"): 6,
    ("--json-args", "@args.json"): 4,
    ("--json-args", "-"): 5,
}


def test_words_become_typed_arguments(granted: Run, project: Path) -> None:
    (project / "args.json").write_text('\ufeff{"text": "1 2 3 4"}', "utf-8")
    for words, answer in WORDS.items():
        done = granted("tools", "call", "text:count", *words, stdin='{"text": "1 2 3 4 5"}')
        assert done.out == f"{answer}\n", words


@pytest.mark.slow
def test_the_json_of_a_call_is_the_whole_result_also_when_it_fails(granted: Run) -> None:
    good = granted("tools", "call", "text:count", "text=a", "--json")
    assert (good.code, good.json["ok"], good.json["value"]) == (0, True, 1)
    bad = granted("tools", "call", "text:count", "times=x", "--json")
    assert (bad.code, bad.json["ok"], bad.json["error"]["kind"]) == (1, False, "INPUT_SCHEMA_INVALID")
    assert "INPUT_SCHEMA_INVALID" not in bad.err  # it stands in the JSON


def test_a_call_is_on_record_as_one_of_this_door(granted: Run) -> None:
    granted("tools", "call", "text:count", "text=a", "--purpose", "为了测试")
    record = granted("logs", "--type", "tool_called", "--last", "1", "--json").json[0]
    assert (record["tool"], record["door"], record["purpose"]) == ("text:count", "cli", "为了测试")


@pytest.mark.slow
def test_show_renders_one_definition_in_every_dialect(tavern: Run) -> None:
    shown = tavern("tools", "show", "text.count").out
    assert "统计字数" in shown
    assert "words | characters" in shown
    assert tavern("tools", "show", "text:count", "--json").json["tags"] == ["统计", "words"]
    for dialect in ("json", "openai", "anthropic", "gemini", "mcp"):
        assert "text" in json.dumps(tavern("tools", "show", "text:count", "--dialect", dialect).json)


def test_search_and_why_answer_for_people_and_programs(tavern: Run) -> None:
    assert tavern("tools", "search", "统计", "--json").json[0]["id"] == "text:count"
    assert "text:count" in tavern("tools", "search", "count words").out
    assert tavern("tools", "search", "count", "words").out == tavern("tools", "search", "count words").out
    for command in (("search", "count"), ("list",)):
        wrong = tavern("tools", *command, "--capability", "read:fss")
        assert (wrong.code, "'read:fss' is not a capability" in wrong.err, "did you mean 'read:fs'?" in wrong.err) == (
            2,
            True,
            True,
        )
    why = tavern("tools", "why", "text:count", "--json").json
    assert (why["visible"], why["fix"]) == (True, "tavern plugins grant text read:fs")
    missing = tavern("tools", "why", "text:nothing", "--json")
    assert (missing.code, missing.json["visible"]) == (5, False)


@pytest.mark.slow
@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_manual_is_for_models(tavern: Run, language: str) -> None:
    manual = tavern("tools", "manual", "--lang", language).out
    assert "text:count" in manual
    assert len(tavern("tools", "manual", "--max-chars", "400").out) <= 401


def block(command: str, **fields: str) -> str:
    inside = "\n".join(f"{key}:「始」{value}「末」" for key, value in {"command": command, **fields}.items())
    return f"{START}\n{inside}\n{END}"


def test_a_text_ends_with_the_highest_code_of_its_results(granted: Run) -> None:
    for text, code in (
        ("nothing to do", 0),
        (block("text:count", text="a b"), 0),
        (block("text:fail"), 1),
        (block("text:count", text="a", times="x"), 1),
        (f"{START}\ncommand:「始」text:count「末」\n", 1),
        (block("text:cuont", text="a"), 5),
        (block("text:fail") + block("text:cuont"), 5),
    ):
        answer = granted("run", stdin=text)
        assert answer.code == code, (text, answer)
        as_json = granted("run", "-", "--json", stdin=text)
        assert (as_json.code, as_json.json["ok"]) == (code, code == 0), text


@pytest.mark.slow
def test_run_shows_prose_calls_and_feedback(granted: Run, project: Path) -> None:
    (project / "说.txt").write_text(f"先数一数。\n{block('text:count', text='一 二')}\n好了。\n", "utf-8")
    answer = granted("run", "说.txt")
    assert "先数一数。" in answer.out
    assert "好了。" in answer.out
    row = next(line for line in answer.out.splitlines() if "text:count" in line and " ok " in line)
    assert row.split()[-1] == "2"
    feedback = granted("run", "说.txt", "--feedback").out.strip()
    assert feedback
    assert feedback in answer.out
    report = granted("run", "说.txt", "--json").json
    assert (report["feedback"].strip(), report["steps"][0]["arguments"]["text"]) == (feedback, "一 二")


def test_run_has_the_rights_it_was_given(granted: Run) -> None:
    text = block("text:count", text="a")
    assert granted("run", "--permissions", "read:fs", stdin=text).code == 0
    assert granted("run", "--permissions", "network", stdin=text).code == 3


def test_input_that_is_no_text_is_refused_with_its_line(tavern: Run, project: Path) -> None:
    (project / "raw.txt").write_bytes(b"fine\n\xff\xfe\n")
    answer = tavern("run", "raw.txt")
    assert (answer.code, "line 2" in answer.err) == (2, True)


def test_a_reason_names_the_file_that_the_list_stands_in(tavern: Run, project: Path) -> None:
    (project / "tavern.yaml").unlink()
    (project / "pyproject.toml").write_text(
        '[tool.tavern.plugins]\nroots = ["plugins"]\nentryPoints = false\n[tool.tavern.tools]\ndeny = ["text"]\n'
    )
    answer = tavern("tools", "why", "text:count", "--json").json
    assert answer["reason"].endswith("is denied by the entry 'text' at tools.deny[0] in pyproject.toml")
    assert answer["fix"] == "remove that entry from tools.deny in pyproject.toml"


@pytest.mark.slow
def test_the_command_line_serves_a_profile_and_a_namespace_of_plugins_that_are_not_active_yet(
    tavern: Run, project: Path
) -> None:
    for name, section, code in (
        ("shelf", "namespaces: [books]", "def tavern_register_namespaces(ctx):\n    return {'books': Pages()}"),
        (
            "team",
            "profiles: [reader]",
            "def tavern_register_profiles(ctx):\n    return [{'name': 'reader', 'tool_ids_inventory': ['books:page']}]",
        ),
    ):
        folder = project / "plugins" / name
        folder.mkdir()
        (folder / "plugin.yaml").write_text(f'name: {name}\nversion: "1.0"\n{section}\n')
        pages = "class Pages:\n    def resolve(self, local):\n        return ToolSpec('books:' + local, impl=lambda: 'a page')\n    def names(self):\n        return []\n"
        (folder / "__init__.py").write_text(f"from tavern_core import ToolSpec, hookimpl\n{pages}\n@hookimpl\n{code}\n")
    text = "<|[REQUEST_TOOL]|>\ncommand:「始」books:page「末」\n<|[END_TOOL]|>"
    ran = tavern("run", "--profile", "reader", "--json", stdin=text)
    assert [result["value"] for result in ran.json["results"]] == ["a page"]
    assert tavern("tools", "call", "books:page", "--profile", "reader").out == "a page\n"
    assert [spec["id"] for spec in tavern("tools", "list", "--profile", "reader", "--json").json] == ["books:page"]
    assert tavern("tools", "show", "books:page", "--json").json["plugin"] == "shelf"
    why = tavern("tools", "why", "books:page", "--profile", "reader", "--json")
    assert (why.code, why.json["visible"]) == (0, True)
    assert "books:page" in tavern("tools", "manual", "--profile", "reader").out


# What a tool lacks, from every side -------------------------------------------------------------------------------------------


def lacking(project: Path, asked: str = "") -> None:
    """A plugin whose tool needs read:fs, and a profile with it."""
    folder = project / "plugins" / "reads"
    folder.mkdir()
    manifest = (
        'name: reads\nversion: "1.0"\ntools: [{id: look, capabilities: ["read:fs"], implementation: {type: python}}]\n'
    )
    (folder / "plugin.yaml").write_text(manifest + asked)
    (folder / "__init__.py").write_text(
        "from tavern_core import hookimpl, tool\n\n@tool(capabilities=['read:fs'])\ndef look() -> str:\n    return 'seen'\n\n"
        "@hookimpl\ndef tavern_register_tools():\n    return [look]\n"
    )
    (project / "profiles").mkdir()
    (project / "profiles" / "narrow.json").write_text(
        '{"tool_ids_inventory": ["reads:look"], "capabilities": ["read:web"]}'
    )


ASKED = 'permissions: {capabilities: ["read:fs"]}\n'
SIDES: dict[str, tuple[str, list[str], str, str]] = {
    "undeclared": (
        "",
        [],
        "",
        'plugin.yaml of reads: permissions: {capabilities: ["read:fs"]}, then tavern plugins grant reads read:fs',
    ),
    "undecided": (ASKED, [], "", "tavern plugins grant reads read:fs"),
    "denied by the host": (ASKED, ["grant"], "capabilities: {deny: ['read:*']}", "capabilities.deny in tavern.yaml"),
    "not allowed by the host": (
        ASKED,
        ["grant"],
        "capabilities: {allow: []}",
        'add "read:fs" to capabilities.allow in tavern.yaml',
    ),
    "not allowed by the profile": (
        ASKED,
        ["grant", "--profile"],
        "",
        "add \"read:fs\" to capabilities of the profile 'narrow'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_a_capability_that_one_side_does_not_allow_shows_in_list_manual_and_why_as_in_the_call(
    tavern: Run, project: Path, side: str
) -> None:
    asked, how, config, fix = SIDES[side]
    lacking(project, asked)
    (project / "tavern.yaml").write_text((project / "tavern.yaml").read_text() + config)
    if "grant" in how:
        assert tavern("plugins", "grant", "reads", "read:fs").code == 0
    as_agent = ("--profile", "narrow") if "--profile" in how else ()
    [listed] = [spec for spec in tavern("tools", "list", *as_agent, "--json").json if spec["id"] == "reads:look"]
    found = tavern("tools", "search", "look", *as_agent, "--json").json[0]
    why = tavern("tools", "why", "reads:look", *as_agent, "--json").json
    called = tavern("tools", "call", "reads:look", *as_agent, "--permissions", "read:fs", "--json").json
    assert listed["needs"]["missing"] == found["needs"]["missing"] == ["read:fs"]
    assert "read:fs" in why["reason"]
    assert called["error"]["kind"] == "POLICY_DENIED"
    for said in (listed["needs"]["fix"], found["needs"]["fix"], why["fix"], called["error"]["fix"]):
        assert fix in said
    assert fix in tavern("tools", "list", *as_agent).out
    assert "Not permitted, calls are refused: read:fs" in tavern("tools", "manual", *as_agent, "--lang", "en").out
    assert "无权限，调用会被拒绝: read:fs" in tavern("tools", "manual", *as_agent, "--lang", "zh").out


@pytest.mark.slow
def test_a_capability_that_the_caller_lacks_is_said_by_why(tavern: Run, project: Path) -> None:
    lacking(project, ASKED)
    tavern("plugins", "grant", "reads", "read:fs")
    why = tavern("tools", "why", "reads:look", "--permissions", "read:web", "--json").json
    assert "read:fs" in why["reason"]
    assert tavern("tools", "why", "reads:look", "--permissions", "read:fs", "--json").json["fix"] is None
    assert tavern("tools", "call", "reads:look", "--permissions", "read:fs").out == "seen\n"


@pytest.mark.slow
def test_the_repair_of_an_undeclared_capability_repairs_it(tavern: Run, project: Path) -> None:
    lacking(project)
    refused = tavern("plugins", "grant", "reads", "read:fs")
    assert refused.code != 0  # a grant of what nobody asked for is not a repair
    fix = tavern("tools", "why", "reads:look", "--json").json["fix"]
    line, command = fix.removeprefix("add to plugin.yaml of reads: ").split(", then tavern ")
    manifest = project / "plugins" / "reads" / "plugin.yaml"
    manifest.write_text(manifest.read_text() + line + "\n")
    assert tavern(*command.split()).code == 0
    assert tavern("tools", "call", "reads:look").out == "seen\n"
    assert tavern("tools", "why", "reads:look", "--json").json["fix"] is None


def test_a_call_that_becomes_a_job_is_followed_to_its_end(granted: Run, project: Path) -> None:
    with (project / "tavern.yaml").open("a") as file:
        file.write("limits: {tools: {'text:count': {inlineMs: 0}, 'text:fail': {inlineMs: 0}}}\n")
    done = granted("tools", "call", "text:count", "text=a b")
    assert (done.code, done.out) == (0, "2\n")
    assert "completed" in done.err
    assert granted("tools", "call", "text:count", "text=a b", "--json").json["value"] == 2
    failed = granted("tools", "call", "text:fail")
    assert failed.code == 1
    assert "not today" in failed.err


PICTURES = """\
from tavern_core import ToolResult, hookimpl, tool

LINK = {"type": "resource_link", "uri": "file:///a.png", "name": "a"}


@tool
def both() -> ToolResult:
    "A text and a link."
    return ToolResult(True, "Here it is.", content=({"type": "text", "text": "Here it is."}, LINK))


@tool
def link() -> ToolResult:
    "A link, which is the value, too."
    return ToolResult(True, LINK, content=(LINK,))


@hookimpl
def tavern_register_tools(ctx):
    return [both, link]
"""


def test_links_and_images_of_an_answer_are_printed_once(tavern: Run, project: Path) -> None:
    folder = project / "plugins" / "pictures"
    folder.mkdir()
    (folder / "plugin.yaml").write_text(
        'name: pictures\nversion: "1"\ntools: [{id: both, implementation: {type: python}}, '
        "{id: link, implementation: {type: python}}]\n"
    )
    (folder / "__init__.py").write_text(PICTURES)
    text, link = tavern("tools", "call", "pictures:both").out.splitlines()
    assert (text, json.loads(link)["uri"]) == ("Here it is.", "file:///a.png")
    assert json.loads(tavern("tools", "call", "pictures:link").out)["uri"] == "file:///a.png"


def test_findings_about_skills_name_their_folders(tavern: Run, project: Path) -> None:
    for name in ("one", "two"):
        folder = project / "skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\nname: {name}\n---\nNothing describes it.\n")
    checked = tavern("skills", "check")
    assert checked.code == 4
    assert all(f"skills/{name}/SKILL.md:2:1" in checked.err for name in ("one", "two"))
