"""The catalogues of nodes and tools: kept as bytes, filtered, without paths of the machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, hookimpl, tool
from tavern_core.model.node import NodeSpec, Slot
from tests.rows import each_row
from tests.server.desk import Served, served


class Many:
    """A plugin with 3,000 node types."""

    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        async def work(text: str = "") -> str:
            return text

        slots = {"text": Slot("text", "STRING")}
        return [
            NodeSpec(f"Node{number}", inputs=slots, category="many", description=f"Number {number}.", impl=work)
            for number in range(3_000)
        ]


@pytest.mark.slow
def test_three_thousand_node_types_are_written_once_and_sent_as_the_same_bytes(tmp_path: Path) -> None:
    with served(tmp_path, None, Plugin(Many(), name="many")) as desk:
        token = desk.token()
        first = desk.send("GET", "/api/nodes", token)
        listed = {each["id"]: each for each in first.json()}
        assert len([id_ for id_ in listed if id_.startswith("many:")]) == 3_000
        assert listed == {
            spec["id"]: {k: v for k, v in spec.items() if k != "source"} for spec in desk.tavern.nodes.catalogue()
        }
        kept = desk.app.state.kept.get("nodes", desk.tavern.nodes.list())
        assert kept is not None and kept.body == first.content
        again = desk.send("GET", "/api/nodes", desk.token("agent:y"))
        assert again.content == first.content and again.headers["etag"] == first.headers["etag"]
        assert desk.app.state.kept.get("nodes", desk.tavern.nodes.list()) is kept
        same = desk.send("GET", "/api/nodes", token, if_none_match=f'"other", W/{first.headers["etag"]}')
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"])
        few = desk.send("GET", "/api/nodes?query=number%202999", token).json()
        assert [each["id"] for each in few] == ["many:Node2999"]
        assert len(desk.send("GET", "/api/nodes?plugin=many", token).json()) == 3_000
        desk.tavern.wait(desk.tavern.plugins.disable("many"))
        after = desk.send("GET", "/api/nodes", token, if_none_match=first.headers["etag"])
        assert after.status_code == 200
        assert [each for each in after.json() if each["plugin"] == "many"] == []


@pytest.mark.slow
def test_the_list_of_tools_is_of_the_caller_and_changes_with_them(desk: Served) -> None:
    profile = {"tool_ids_inventory": ["desk:echo"]}
    token, other = desk.token("agent:a"), desk.token("agent:b")
    first = desk.send("GET", "/api/tools", token)
    etag = first.headers["etag"]
    assert desk.send("GET", "/api/tools", token, if_none_match=etag).status_code == 304
    assert {each["id"] for each in first.json()} >= {f"desk:{name}" for name in ("echo", "pay", "stock")}
    assert profile["tool_ids_inventory"][0] in {each["id"] for each in desk.send("GET", "/api/tools", other).json()}

    @tool
    def fresh() -> int:
        """New."""
        return 1

    desk.tavern.tools.register(fresh)
    after = desk.send("GET", "/api/tools", token, if_none_match=etag)
    assert after.status_code == 200 and "app:fresh" in {each["id"] for each in after.json()}


@each_row(
    ("permissions", "query", "has_stock"),
    [
        ([], "", True),
        ([], "?usable=false", True),
        ([], "?usable=true", False),
        ([], "?usable=true&query=needs%20a%20capability", False),
        (["read:fs"], "?usable=true", True),
        (["read:fs"], "?usable=true&query=needs%20a%20capability", True),
    ],
)
def test_tools_that_a_caller_can_never_use_are_left_out_on_request(
    desk: Served, permissions: list[str], query: str, has_stock: bool
) -> None:
    listed = {
        each["id"]: each for each in desk.send("GET", f"/api/tools{query}", desk.token(permissions=permissions)).json()
    }
    assert ("desk:stock" in listed) is has_stock
    if not query:
        assert listed["desk:stock"]["lacks"]["missing"] == ["read:fs"] and "desk:echo" in listed


def test_a_caller_without_a_permission_learns_which_token_has_it(desk: Served) -> None:
    token = desk.token("agent:x", permissions=["network"])
    listed = {each["id"]: each for each in desk.send("GET", "/api/tools", token).json()}
    fix = listed["desk:stock"]["lacks"]["fix"]
    assert fix == desk.call(token, "desk:stock").json()["fix"]
    ((principal, names),) = re.findall(r": tavern tokens create (\S+) --permissions (\S+)$", fix)
    assert names == "network,read:fs"
    assert desk.call(desk.token(principal, permissions=names.split(",")), "desk:stock").json()["value"] == 7


def test_a_flag_of_a_query_is_true_or_false(desk: Served) -> None:
    wrong = desk.send("GET", "/api/tools?usable=yes", desk.token())
    assert (wrong.status_code, wrong.json()["code"]) == (400, "USAGE")


@pytest.mark.slow
def test_tools_are_found_by_words_and_shown_however_they_are_spelt(desk: Served) -> None:
    token = desk.token()
    found = desk.send("GET", "/api/tools?query=repeats%20a%20text", token).json()
    whole = {each["id"]: each for each in desk.send("GET", "/api/tools", token).json()}
    assert found[0] == whole["desk:echo"] and len(found) < len(whole)
    assert desk.send("GET", "/api/tools?query=zzz", token).json() == []
    for spelling in ("desk.echo", "Desk:Echo"):
        assert desk.send("GET", f"/api/tools/{spelling}", token).json()["id"] == "desk:echo"
        assert desk.call(token, spelling, text="hi").json()["value"] == "hi"


@pytest.mark.slow
def test_a_profile_decides_what_its_token_sees_and_calls(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    (profiles / "small.json").write_text('{"tool_ids_inventory": ["desk:echo"]}', "utf-8")
    with served(tmp_path, profiles=[str(profiles)], callers={"agent:denied": {"deny": ["desk:echo"]}}) as desk:
        small, denied = desk.token(profile="small"), desk.token("agent:denied")
        assert [each["id"] for each in desk.send("GET", "/api/tools", small).json()] == ["desk:echo"]
        assert desk.send("GET", "/api/tools/desk:pay", small).status_code == 404
        assert desk.send("GET", "/api/tools/desk.pay", small).status_code == 404
        assert desk.send("GET", "/api/tools?query=pay%20approval", small).json() == []
        assert desk.call(small, "desk:crash").status_code == 403
        assert desk.call(small, "desk:echo", text="a").status_code == 200
        hidden = desk.send("GET", "/api/tools/desk:echo", denied)
        assert (hidden.status_code, hidden.json()["code"]) == (404, "TOOL_NOT_FOUND")
        (profiles / "small.json").write_text("{", "utf-8")
        broken = desk.send("GET", "/api/tools", small)
        assert (broken.status_code, broken.json()["code"]) == (500, "PROFILE_INVALID")
        assert str(tmp_path) not in broken.text


@pytest.mark.slow
def test_tools_are_shown_in_the_formats_of_model_apis(desk: Served) -> None:
    token = desk.token()
    for dialect in ("json", "openai", "anthropic", "gemini", "mcp"):
        shown = desk.send("GET", f"/api/tools/desk:echo?dialect={dialect}", token).json()
        assert shown == desk.tavern.tool_schema("desk:echo", dialect=dialect)
    wrong = desk.send("GET", "/api/tools/desk:echo?dialect=opnai", token)
    assert (wrong.status_code, wrong.json()["code"], wrong.json()["fix"]) == (400, "USAGE", "did you mean 'openai'?")


@pytest.mark.slow
def test_what_does_not_exist_is_named_with_what_was_meant(desk: Served) -> None:
    token = desk.token()
    for path, code, meant in (
        ("/api/nodes/core:Csae", "NODE_NOT_FOUND", "core:Case"),
        ("/api/tools/desk:ecko", "TOOL_NOT_FOUND", "desk:echo"),
    ):
        answer = desk.send("GET", path, token)
        assert (answer.status_code, answer.json()["code"]) == (404, code) and meant in answer.json()["fix"]
    for path in ("/api/nodes/none:None", "/api/tools/none:none", "/api/jobs/none"):
        assert desk.send("GET", path, token).json()["fix"] == f"GET {path.rpartition('/')[0]} lists them"
    for path in ("/api/jobs?status=nothing", "/api/jobs?limit=0", "/api/jobs?limit=x", "/api/jobs?limit=²"):
        assert (desk.send("GET", path, token).status_code, path) == (400, path)


@pytest.mark.slow
def test_no_answer_names_a_path_of_the_machine(desk: Served) -> None:
    token = desk.token(roles=["operator"])
    for path in ("/api/nodes", "/api/tools", "/api/nodes/core:Case", "/api/tools/desk:echo", "/api/tools/none:none"):
        assert str(Path(__file__).parents[2]) not in desk.send("GET", path, token).text
