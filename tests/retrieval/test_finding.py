"""Which node types are found for a request, and why."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tavern_core.errors import TavernError
from tests.retrieval.kitchen import KITCHEN, Kitchen, a_flow, a_node, types_of
from tests.rows import row

QUESTIONS = [
    ("heat the dough in an oven", "kitchen:Bake"),
    ("cutting bread", "kitchen:Slice"),
    ("stir flour and water", "kitchen:Mix"),
    ("把面团揉光滑", "kitchen:Knead"),
    ("怎么把水加热到沸腾？", "kitchen:Boil"),
    ("端给客人", "kitchen:Serve"),
    ("kitchen:Tap", "kitchen:Tap"),
    ("call a language model", "core:LLM"),
    ("fetch a web page by HTTP", "core:HttpFetch"),
    ("语言模型", "core:LLM"),
    ("Bake 面包 in the oven", "kitchen:Bake"),
    ("thing number 217", "kitchen:Other217"),
]


@pytest.mark.slow
def test_words_of_both_languages_find_the_node_type_that_says_them(kitchen: Kitchen) -> None:
    with kitchen.open() as host:
        for request, expected in QUESTIONS:
            assert types_of(host, request, limit=3)[:1] == [expected], request


def test_a_request_finds_what_its_nearest_examples_use(kitchen: Kitchen) -> None:
    kitchen.example("sandwich", ["kitchen:Slice", "kitchen:Other7"], "A snack for the road.")
    kitchen.example("soup", ["kitchen:Boil", "kitchen:Other8"], "Something warm for the evening.")
    with kitchen.open() as host:
        found = host.nodes.retrieve("a snack for two", limit=2)
        assert [match.type for match in found] == ["kitchen:Other7", "kitchen:Slice"]
        assert found[0].why == ("used in similar examples: sandwich",)
        assert found[0].to_json() == {
            "type": "kitchen:Other7",
            "score": round(found[0].score, 6),
            "why": list(found[0].why),
        }
        assert types_of(host, "something warm", limit=2) == ["kitchen:Boil", "kitchen:Other8"]


def test_without_a_word_in_common_the_most_popular_types_are_named(kitchen: Kitchen) -> None:
    for name in ("one", "two", "three"):
        kitchen.example(name, ["kitchen:Tap", "core:Note", *(["kitchen:Boil"] if name == "one" else [])])
    with kitchen.open() as host:
        found = host.nodes.retrieve("zzz")
        assert [match.type for match in found] == ["kitchen:Tap", "kitchen:Boil"]
        assert [match.why for match in found] == [("used in 3 of 3 examples",), ("used in 1 of 3 examples",)]


def test_each_step_of_a_plan_finds_its_own_type(kitchen: Kitchen) -> None:
    for number in range(30):
        kitchen.example(f"popular{number}", [f"kitchen:Other{number + k}" for k in range(40)], "dinner for guests")
    plan = ["flour and water become a dough", "cut bread into pieces", "端给客人"]
    with kitchen.open() as host:
        assert not {"kitchen:Mix", "kitchen:Slice"} & set(types_of(host, "dinner for guests"))
        found = host.nodes.retrieve("dinner for guests", plan=plan)
        assert {"kitchen:Mix", "kitchen:Slice", "kitchen:Serve"} <= {match.type for match in found}
        why = next(match.why for match in found if match.type == "kitchen:Slice")
        assert why == ("matches step 2 of the plan",)


def test_what_feeds_an_input_that_nothing_feeds_is_found_by_its_port(kitchen: Kitchen) -> None:
    with kitchen.open() as host:
        found = {match.type: match.why for match in host.nodes.retrieve("沸腾")}
        assert found["kitchen:Tap"] == ("gives water to kitchen:Boil",)


@pytest.mark.parametrize("form", ["content", "id", "file"])
def test_the_current_workflow_adds_what_fits_its_open_ends(kitchen: Kitchen, form: str) -> None:
    flow: Any = a_flow(["kitchen:Bake"])
    path = kitchen.example("mine", ["kitchen:Bake"])
    given = {"content": flow, "id": "mine", "file": str(path)}[form]
    with kitchen.open(workflows={"roots": [str(kitchen.examples)]}, assistant={"examples": []}) as host:
        found = {match.type: match.why for match in host.nodes.retrieve("zzz", workflow=given)}
        assert found["kitchen:Mix"] == ("gives dough to kitchen:Bake",)
        assert found["kitchen:Slice"] == ("takes bread of kitchen:Bake",)


def test_an_input_with_an_edge_or_a_value_is_not_open(kitchen: Kitchen) -> None:
    edge = {"source": "n0", "sourceHandle": "dough", "target": "n1", "targetHandle": "dough"}
    flow = a_flow(["kitchen:Mix", "kitchen:Bake"], [edge])
    with kitchen.open() as host:
        found = {match.type: match.why for match in host.nodes.retrieve("zzz", workflow=flow)}
        assert found == {
            "kitchen:Slice": ("takes bread of kitchen:Bake",),
            "kitchen:Bake": ("gives bread to kitchen:Slice",),
        }


def test_deprecated_types_are_never_found_and_notes_are_not_popular(kitchen: Kitchen) -> None:
    kitchen.example("one", ["kitchen:OldOven", "core:Note", "gone:Type"])
    with kitchen.open() as host:
        assert types_of(host, "zzz") == []
        assert "kitchen:OldOven" not in types_of(host, "heat dough in the oven")


def test_the_answer_follows_examples_that_come_change_and_go(kitchen: Kitchen) -> None:
    with kitchen.open() as host:
        assert types_of(host, "picnic", limit=1) == []
        path = kitchen.example("picnic", ["kitchen:Slice"])
        assert types_of(host, "picnic", limit=1) == ["kitchen:Slice"]
        kitchen.example("picnic", ["kitchen:Tap"])
        assert types_of(host, "picnic", limit=1) == ["kitchen:Tap"]
        settled = path.stat().st_mtime - 60
        os.utime(path, (settled, settled))
        os.utime(kitchen.examples, (settled, settled))
        assert types_of(host, "picnic", limit=1) == types_of(host, "picnic", limit=1) == ["kitchen:Tap"]
        path.write_text("{ broken", "utf-8")
        assert types_of(host, "picnic") == []
        path.unlink()
        assert types_of(host, "picnic") == []


def test_the_answer_follows_plugins_that_are_disabled_and_enabled(kitchen: Kitchen) -> None:
    from tavern_core import Plugin
    from tests.retrieval.kitchen import Nodes

    garden = Plugin(Nodes(a_node("garden:Rake", "Rake", "Gathers autumn leaves.")), name="garden")
    with kitchen.open(garden) as host:
        assert types_of(host, "autumn leaves", limit=1) == ["garden:Rake"]
        host.plugins.disable_sync("garden")
        assert "garden:Rake" not in types_of(host, "autumn leaves")
        host.plugins.enable_sync("garden")
        assert types_of(host, "autumn leaves", limit=1) == ["garden:Rake"]


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(
        st.tuples(st.text(max_size=80), st.lists(st.text(max_size=20), max_size=4), st.integers(-2, 2_000)),
        min_size=1,
        max_size=20,
    )
)
def test_any_request_is_answered_the_same_way_twice_and_within_its_limit(
    kitchen: Kitchen, requests: list[tuple[str, list[str], int]]
) -> None:
    if not any(kitchen.examples.iterdir()):
        kitchen.example("bread", ["kitchen:Mix", "kitchen:Knead", "kitchen:Bake"], "Bread 面包")
    with kitchen.open(nodes=KITCHEN) as host:
        for request, plan, limit in requests:
            found = host.nodes.retrieve(request, plan=plan, limit=limit)
            assert found == host.nodes.retrieve(request, plan=plan, limit=limit)
            assert len(found) <= max(min(limit, 1_000), 0)
            assert len({match.type for match in found}) == len(found)
            assert [m.score for m in found] == sorted((m.score for m in found), reverse=True)


NO_REQUESTS: list[tuple[Any, dict[str, Any], str]] = [
    (7, {}, "USAGE"),
    ("x", {"plan": "one text"}, "USAGE"),
    ("x", {"plan": [1]}, "USAGE"),
    ("x", {"plan": None}, "USAGE"),
    ("x", {"limit": "3"}, "USAGE"),
    ("x", {"workflow": "no-such"}, "WORKFLOW_NOT_FOUND"),
    ("x", {"workflow": {"neither": "nor"}}, "WORKFLOW_INVALID"),
    ("x", {"workflow": 3}, "USAGE"),
]


def test_what_is_no_request_is_refused(kitchen: Kitchen) -> None:
    with kitchen.open(nodes=KITCHEN) as host:
        for request, options, code in NO_REQUESTS:
            with row((request, options)), pytest.raises(TavernError) as refused:
                host.nodes.retrieve(request, **options)
            assert refused.value.code == code, (request, options)


@pytest.mark.slow
def test_huge_and_hostile_documents_are_bounded_and_others_are_still_found(kitchen: Kitchen) -> None:
    hostile = [
        a_node("kitchen:Long", "L" * 10_000_000, "\x00\x1b[31m\u202edough " * 800_000, "dough"),
        a_node("kitchen:Wide", "Wide", "oven", " ".join(f"k{n}" for n in range(2_000))),
        a_node("kitchen:Odd", 'x" OR "y NEAR(', "* ( ) : ^ - AND NOT \ufffd \u200b"),
    ]
    kitchen.example("long", ["kitchen:Bake"] * 2_000, "dough " * 500_000)
    with kitchen.open(nodes=[*KITCHEN, *hostile]) as host:
        assert types_of(host, "Heats dough in the oven until it is bread", limit=1) == ["kitchen:Bake"]
        assert types_of(host, 'NEAR(" OR * dough ' * 100_000, plan=["\x00" * 100_000] * 1_000, limit=5)
        assert all(len(str(match)) < 2_000 for match in host.nodes.retrieve("dough", limit=400))


@pytest.mark.slow
def test_threads_and_event_loops_get_the_same_answer_at_the_same_time(kitchen: Kitchen) -> None:
    kitchen.example("bread", ["kitchen:Mix", "kitchen:Knead", "kitchen:Bake"], "Bread 面包")
    requests = [request for request, _ in QUESTIONS] * 3

    async def in_a_loop(host: Any) -> list[list[str]]:
        found = await asyncio.gather(*(host.nodes.retrieved(request) for request in requests))
        return [[match.type for match in each] for each in found]

    with kitchen.open() as host, ThreadPoolExecutor(4) as pool:
        waiting = pool.map(lambda request: types_of(host, request), requests)
        assert asyncio.run(in_a_loop(host)) == list(waiting)


def test_what_one_far_example_uses_does_not_hide_what_the_words_say(kitchen: Kitchen) -> None:
    kitchen.example("soup", ["kitchen:Boil", "kitchen:Other8", "kitchen:Tap"], "Something warm for the evening.")
    with kitchen.open() as host:
        assert types_of(host, "bread pieces")[0] == "kitchen:Slice"
