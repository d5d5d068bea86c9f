"""JSON Patch for plain documents: the cases of the standard, and what a failure says."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tavern_core.graph.json_patch import MOST_OPERATIONS, apply_patch, measure_json
from tavern_core.graph.patch_problems import PatchRefused
from tests.rows import each_row

CASES = json.loads((Path(__file__).parent / "json_patch_cases.json").read_text("utf-8"))["cases"]
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "~", "/"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab~/0-"), inner, max_size=3), max_leaves=8)  # fmt: skip


@each_row("case", CASES)
def test_a_case_of_the_standard(case: dict[str, Any]) -> None:
    document, patch = copy.deepcopy(case["doc"]), copy.deepcopy(case["patch"])
    if case.get("error"):
        with pytest.raises(PatchRefused):
            apply_patch(document, patch)
    else:
        result = apply_patch(document, patch)
        if "expected" in case:
            assert json.dumps(result, sort_keys=True) == json.dumps(case["expected"], sort_keys=True)
    assert (document, patch) == (case["doc"], case["patch"]), "neither the document nor the patch changes"


def test_there_are_more_than_a_hundred_cases() -> None:
    assert len(CASES) > 100


@pytest.mark.slow
@given(VALUES, VALUES)
def test_a_patch_from_one_document_to_another_leads_there_and_back(one: Any, other: Any) -> None:
    from jsonpatch import make_patch

    there, back = list(make_patch(one, other)), list(make_patch(other, one))
    assert json.dumps(apply_patch(one, there), sort_keys=True) == json.dumps(other, sort_keys=True)
    assert json.dumps(apply_patch(apply_patch(one, there), back), sort_keys=True) == json.dumps(one, sort_keys=True)


DOCUMENT = {"nodes": {"start": {"text": "x"}}, "list": [1, 2], "count": 3}
FAILURES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "no list": ({"op": "add"}, "NOT_A_PATCH", {}),
    "no object": ([5], "NOT_A_PATCH", {"op": 0}),
    "an operation that does not exist": ([{"op": "delete", "path": "/count"}], "UNKNOWN_OP", {"op": 0}),
    "a misspelt operation": ([{"op": "replce", "path": "/count"}], "UNKNOWN_OP", {"nearest": ("replace",)}),
    "no operation": ([{"path": "/count"}], "UNKNOWN_OP", {"allowed": ("add", "remove", "replace", "move", "copy", "test")}),
    "no path": ([{"op": "remove"}], "MISSING_MEMBER", {"op": 0}),
    "no value": ([{"op": "add", "path": "/x"}], "MISSING_MEMBER", {}),
    "no from": ([{"op": "move", "path": "/x"}], "MISSING_MEMBER", {}),
    "a path that is a number": ([{"op": "remove", "path": 5}], "BAD_POINTER", {}),
    "a path without a slash": ([{"op": "remove", "path": "count"}], "BAD_POINTER", {"fix": "write '/count'"}),
    "a path with a wrong escape": ([{"op": "remove", "path": "/a~b"}], "BAD_POINTER", {}),
    "a path that leads nowhere": ([{"op": "remove", "path": "/nodes/strat/text"}], "PATH_MISSING", {"nearest": ("start",), "pointer": "/nodes/strat"}),
    "a source that does not exist": ([{"op": "copy", "from": "/conut", "path": "/x"}], "PATH_MISSING", {"nearest": ("count",)}),
    "a place behind the end": ([{"op": "add", "path": "/list/5", "value": 1}], "BAD_INDEX", {"fix": "places: 0 to 2; - for the end"}),
    "a name in a list": ([{"op": "add", "path": "/list/first", "value": 1}], "BAD_INDEX", {}),
    "a way through a number": ([{"op": "add", "path": "/count/x", "value": 1}], "NOT_A_CONTAINER", {"pointer": "/count/x"}),
    "a test that fails": ([{"op": "test", "path": "/count", "value": 4}], "TEST_FAILED", {"pointer": "/count"}),
    "a test of nothing": ([{"op": "test", "path": "/cuont", "value": 3}], "TEST_FAILED", {"nearest": ("count",)}),
    "a move into itself": ([{"op": "move", "from": "/nodes", "path": "/nodes/start/all"}], "MOVE_INTO_ITSELF", {}),
    "the second of two operations": ([{"op": "remove", "path": "/count"}, {"op": "remove", "path": "/count"}], "PATH_MISSING", {"op": 1}),
}  # fmt: skip


@each_row("name", FAILURES)
def test_a_failure_says_what_is_wrong_and_what_to_write(name: str) -> None:
    patch, code, fields = FAILURES[name]
    with pytest.raises(PatchRefused) as caught:
        apply_patch(DOCUMENT, patch)
    problem = caught.value.problems[0]
    assert problem.code == code
    assert {key: getattr(problem, key) for key in fields} == fields
    assert problem.fix or problem.allowed, "there is a way out"


def test_all_malformed_operations_are_reported_at_once() -> None:
    with pytest.raises(PatchRefused) as caught:
        apply_patch({}, [{"op": "add"}, {"op": "nothing", "path": ""}, {"op": "remove", "path": "x"}])
    assert [(p.op, p.code) for p in caught.value.problems] == [
        (0, "MISSING_MEMBER"),
        (1, "UNKNOWN_OP"),
        (2, "BAD_POINTER"),
    ]


HOSTILE: dict[str, tuple[Any, str]] = {
    "copies of copies": ([{"op": "copy", "from": "", "path": "/x"}] + [{"op": "copy", "from": "/x", "path": f"/x/{n}"} for n in range(60)], "PATCH_TOO_"),
    "one copy inside of the other": ([{"op": "copy", "from": "", "path": "/x"}] * 100, "PATCH_TOO_DEEP"),
    "too many operations": ([{"op": "test", "path": "", "value": 1}] * (MOST_OPERATIONS + 1), "TOO_MANY_OPERATIONS"),
    "a long path": ([{"op": "add", "path": "/a" * 1_000, "value": 1}], "PATCH_TOO_DEEP"),
    "a thousand moves of a large value": ([{"op": "move", "from": "/big", "path": "/other"}, {"op": "move", "from": "/other", "path": "/big"}] * 500, "PATCH_TOO_LARGE"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_patch_is_bounded(name: str) -> None:
    patch, code = HOSTILE[name]
    document = {"big": list(range(10_000))} if "large" in name or "copies" in name else {"a": 1}
    with pytest.raises(PatchRefused) as caught:
        apply_patch(document, patch)
    assert caught.value.problems[0].code.startswith(code)


@each_row(
    ("value", "expected"), [(1, (1, 0)), ([], (1, 1)), ({"a": [1, {}]}, (4, 3)), ([[[]]], (3, 3)), ([1, 2], (3, 1))]
)
def test_values_and_levels_are_counted(value: Any, expected: tuple[int, int]) -> None:
    assert measure_json(value, 1_000) == expected
