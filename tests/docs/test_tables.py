"""The tables of the manual hold everything that they are about, and the values of the code."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

from tavern_core import CallContext, Tavern
from tavern_core.assistant.form_widgets import OUTPUT_WIDGETS, TEXT_WIDGETS
from tavern_core.assistant.repair_cycle import ANSWER_CODES
from tavern_core.builtin.executors.script.executor import MOST_AT_ONCE
from tavern_core.contract.nodes import NodeMark, Port
from tavern_core.contract.permissions import permission_table, requested_permissions
from tavern_core.contract.tools import ToolMark
from tavern_core.flow.engine.run_options import RunOptions
from tavern_core.flow.patching import PatchOutcome
from tavern_core.flow.workflows import Workflows
from tavern_core.graph.patch_problems import PATCH_CODES
from tavern_core.graph.problems import PROBLEM_CODES
from tavern_core.kernel.manifest.manifest_reader import read_manifest
from tavern_core.kernel.manifest.tool_ids import IdRefusal, canonical_id
from tavern_core.kernel.manifest.workflow_schema_completion import WORKFLOW_TEXTS
from tavern_core.model.capability import CAPABILITIES
from tavern_core.model.environment_variables import FIXED, PASSED
from tavern_core.model.naming_rules import RESERVED_NAMESPACES
from tavern_core.model.plugin_status import PluginState
from tavern_core.model.run import NodeState
from tavern_core.schema.provider_tool_export import DIALECTS
from tests.rows import each_row

from .blocks import DOCS


def text(page: str, section: str = "") -> str:
    """A page, or one of its sections of level two."""
    whole = (DOCS / page).read_text(encoding="utf-8")
    return whole if not section else re.split(r"^## ", whole.partition(f"\n## {section}\n")[2], flags=re.MULTILINE)[0]


def cells(part: str, column: int = 0) -> list[str]:
    """What stands between back-quotes in one column of all tables."""
    rows = [line.strip("|").split(" | ") for line in part.replace("\\|", "¦").splitlines() if line.startswith("|")]
    return [name for row in rows if len(row) > column for name in re.findall(r"`([^`]+)`", row[column])]


EVERYTHING = {
    "options of @tool": ({f.name for f in fields(ToolMark)}, cells(text("tools.md", "A Python function"))),
    "variables of scripts": (
        {*PASSED, *FIXED, "LC_*", "TAVERN_TOOL", "TAVERN_CALL_ID"},
        [found.partition("=")[0] for found in re.findall(r"`([A-Z0-9_*]+(?:=[^`]*)?)`", text("tools.md", "Scripts"))],
    ),
    "dialects": (set(DIALECTS), cells(text("tools.md", "For the APIs of models"))),
    "reserved namespaces": (set(RESERVED_NAMESPACES), re.findall(r"`(\w+)`", text("tools.md", "Ids and aliases"))),
    "arguments of open": (
        set(inspect.signature(Tavern.open).parameters), cells(text("hosting.md", "Opening")),
    ),
    "arguments of invoke": (
        set(inspect.signature(Tavern.invoke).parameters) - {"self"}, cells(text("hosting.md", "Calling")),
    ),
    "fields of CallContext": (
        {f.name for f in fields(CallContext)} - {"ledger"}, cells(text("hosting.md", "Who calls")),
    ),
    "states of plugins": (
        set(PluginState.__args__), re.findall(r"`(\w+)`", text("hosting.md", "Plugins while the host runs")),
    ),
    "what Tavern can do": (
        {name for name in vars(Tavern) if not name.startswith("_")} - {"close"},
        re.findall(r"(?:tavern|host|Tavern|other)\.(\w+)", text("hosting.md") + text("tools.md")),
    ),
    "capabilities": (set(CAPABILITIES), cells(text("permissions.md", "Capabilities"))),
    "options of @node": (
        {f.name for f in fields(NodeMark)} - {"type"}, cells(text("workflows.md", "Writing nodes")),
    ),
    "options of Port": (
        set(inspect.signature(Port.__init__).parameters) - {"self"}, cells(text("workflows.md", "Writing nodes")),
    ),
    "options of runs": (
        {f.name for f in fields(RunOptions)} | set(inspect.signature(Workflows.run).parameters) - {"self", "what", "inputs", "options"},
        cells(text("workflows.md", "Running")),
    ),
    "kinds of events of nodes": (set(NodeState.__args__), re.findall(r"`(\w+)`", text("workflows.md", "Running"))),
    "keys of workflow files": (
        {key.partition(".")[2] for key in WORKFLOW_TEXTS} - {"times", "delayMs", "backoff", "maxDelayMs"}, cells(text("workflows.md", "Files")),
    ),
    "problem codes": (set(PROBLEM_CODES), cells(text("workflows.md", "Problems"))),
    "codes of patches": (set(PATCH_CODES), cells(text("workflows.md", "Patches"))),
    "fields of the outcome of a patch": (
        {name for name in dir(PatchOutcome) if not name.startswith("_")} | {f.name for f in fields(PatchOutcome)} - {"to_json"}, [*cells(text("workflows.md", "Patches")), "to_json"],
    ),
}  # fmt: skip


@each_row("what", EVERYTHING)
def test_nothing_is_left_out(what: str) -> None:
    expected, found = EVERYTHING[what]
    assert expected - set(found) == set()


def test_every_permission_has_its_risk_and_the_words_of_the_table() -> None:
    page = text("permissions.md")
    for row in permission_table().values():
        assert f"| `{row.id}` | {row.risk} | {row.sentence} {row.sentence_zh} |" in page


def test_each_line_of_plugin_yaml_on_the_page_requests_what_it_says() -> None:
    lines = re.findall(r"`(permissions: [^`]+)` requests `([^`]+)`", text("permissions.md"))
    assert len(lines) == len({row.yaml.partition("[")[0] for row in permission_table().values()})
    for line, name in [*lines, *((row.yaml, row.id) for row in permission_table().values())]:
        for hole, word in {
            "<name>": "key",
            "<word>": "wipe",
            "<owner>": "acme",
            "<verb>": "read",
            "<object>": "thing",
        }.items():
            name, line = name.replace(hole, word), line.replace(hole, word)
        reading = read_manifest(f'name: x\nversion: "1"\n{line}\n'.encode(), "plugin.yaml", strict=False)
        assert not [f for f in reading.findings if f.severity == "error"], (line, reading.findings)
        assert reading.manifest is not None
        assert requested_permissions(reading.manifest) == {name}, line


def test_the_number_of_scripts_at_once_is_right() -> None:
    assert f"At most {MOST_AT_ONCE} scripts" in text("tools.md", "Scripts")


def test_ids_become_what_the_page_says() -> None:
    table = re.findall(
        r"^\| `([^`]+)`([^|]*)\| `([a-z-]+)` \| (`?)([^|`]+)`? \|([^|]*)\|$",
        text("tools.md", "Ids and aliases"),
        re.MULTILINE,
    )
    assert len(table) == 6
    for written, note, plugin, known, expected, alias in table:
        local = written.partition(":")[2]
        found = canonical_id(written, plugin, {written: local} if "aliases:" in note else {})
        if known:
            assert (found.id, bool(found.alias)) == (expected, "alias" in alias), written
        else:
            assert isinstance(found, IdRefusal), written


def test_every_page_is_in_the_index() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", text("README.md")))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} == listed


def test_the_core_nodes_on_the_page_are_those_that_there_are(tmp_path: Path) -> None:
    with Tavern.open({"plugins": {"roots": [], "entryPoints": False}}, home=tmp_path) as tavern:
        there = {spec.type for spec in tavern.nodes.list() if spec.namespace == "core"}
    assert set(cells(text("workflows.md", "Core nodes"))) == there


def test_every_problem_has_the_words_of_its_table() -> None:
    page = text("workflows.md", "Problems")
    for code, meaning in PROBLEM_CODES.items():
        assert f"| `{code}` | {meaning} |" in page


def test_the_codes_of_reports_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (.*) \|$", text("assistant.md", "How a change is made"), re.MULTILINE))
    assert rows == dict(ANSWER_CODES)


def test_the_widgets_of_forms_are_those_of_the_code() -> None:
    page = text("assistant.md", "Form layouts")
    assert [widget for widget in (*TEXT_WIDGETS, *OUTPUT_WIDGETS) if f"`{widget}`" not in page] == []
