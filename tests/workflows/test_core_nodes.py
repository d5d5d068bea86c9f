"""The host's own nodes: what each gives for each of its inputs, and how it refuses the others; bounded in time and size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.errors import WorkflowInvalid
from tavern_core.kernel.nodes.node_rules import definition_mismatch
from tests.rows import each_row
from tests.workflows.folder import Flows

pytestmark = pytest.mark.anyio

TEXT = "x" * 10_000
DATA = {"items": [{"name": "名"}], "a/b": 1, "m~n": 2, "": 3, "0": "zero"}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tavern]:
    with Flows(tmp_path_factory.mktemp("flows")).open() as tavern:
        yield tavern


def came(host: Tavern, type_: str, **inputs: Any) -> Any:
    """The outputs of one node, or the message of its error."""
    result = host.workflows.run_sync(
        {"nodes": [{"id": "n", "type": type_, "inputValues": inputs}], "edges": []}, keep=False
    )
    return result.errors[0].message if result.errors else dict(result.outputs["n"])


def test_the_definition_of_each_is_valid(host: Tavern) -> None:
    own = [spec for spec in host.nodes.list() if spec.type.startswith("core:")]
    assert len(own) > 20
    assert {spec.type: why for spec in own if (why := definition_mismatch(spec))} == {}


EXPRESSIONS: list[tuple[str, dict[str, Any], Any]] = [
    ("1 + 2 * 3", {}, 7), ("(1 + 2) * 3", {}, 9), ("-2 ** 2", {}, -4), ("2 ** 3 ** 2", {}, 512), ("-7 // 2", {}, -4), ("-7 % 3", {}, 2),
    ("7 / 2", {}, 3.5), ("1 < 2 < 3", {}, True), ("1 < 2 > 5", {}, False), ("not 1 or 2", {}, 2), ("1 if 0 else 2", {}, 2), ("0 and 1 / 0", {}, 0),
    ("单价 * 数量", {"单价": 3, "数量": 4}, 12), ("Ａ + 1", {"Ａ": 2}, 3), ("'中' in 文", {"文": "中文"}, True), ("len(文)", {"文": "中文"}, 2),
    ("d['k'][0]", {"d": {"k": [5]}}, 5), ("max(a)", {"a": [1, 5]}, 5), ("min(2, 1)", {}, 1), ("round(123, -2)", {}, 100), ("int('12')", {}, 12),
    ("sqrt(9) + floor(1.5) + ceil(1.5)", {}, 6.0), ("[1, 2] + [a]", {"a": 3}, [1, 2, 3]), ("10 ** 4299 > 1", {}, True), ("1" + " + 1" * 400, {}, 401),
    ("1 / 0", {}, "division by zero"), ("1 % 0", {}, "modulo by zero"), ("0 ** -1", {}, "negative power"), ("(-8) ** 0.5", {}, "not a real number"),
    ("1e308 * 10", {}, "too large"), ("1e400", {}, "too large"), ("float('nan')", {}, "too large, or is none"), ("10 ** 10000", {}, "too large"),
    ("9 ** 9 ** 9 ** 9", {}, "too large"), ("a * a", {"a": 10**4_000}, "too large"), ("round(5, -1000000000)", {}, "at most 400"),
    ("round(a, b)", {"a": 5, "b": -(10**9)}, "at most 400"), ("int(a, 16)", {"a": "f" * 100_000}, "not a number"), ("float(a)", {"a": "1" * 100_000}, "not a number"),
    ("'a' * 1000000000", {}, "cannot be multiplied"), ("[1] * 1000000000", {}, "cannot be multiplied"), ("a % b", {"a": "%s", "b": 1}, "% is for numbers"),
    ("a" + " + a" * 15, {"a": "x" * 5_000_000}, "more than 64,000,000"), ("-" * 1_900 + "1", {}, "nested too deeply"), ("(" * 900 + "1" + ")" * 900, {}, "cannot be read"),
    ("1" * 3_000, {}, "more than 2,000 characters"), ("", {}, "cannot be read"), ("1 +", {}, "cannot be read"), ("1; 2", {}, "cannot be read"), ("a\0", {}, "cannot be read"),
    ("价格 × 2", {"价格": 1}, "cannot be read"), ("b", {"a": 1}, "names 'b'"), ("d['z']", {"d": {}}, "no item 'z'"), ("1 < 'a'", {}, "not supported"),
    ("().__class__", {}, "not allowed in an expression"), ("a.real", {"a": 1}, "not allowed in an expression"), ("__import__('os')", {}, "not allowed in an expression"), ("lambda: 1", {}, "not allowed in an expression"),
    ("f'{1}'", {}, "not allowed in an expression"), ("1j", {}, "not allowed in an expression"), ("[x for x in a]", {"a": []}, "not allowed in an expression"), ("max(*a)", {"a": [1]}, "not allowed in an expression"),
]  # fmt: skip


@pytest.mark.slow
@each_row("at", range(len(EXPRESSIONS)))
def test_an_expression_gives_its_value_or_says_what_is_wrong(host: Tavern, at: int) -> None:
    text, values, expected = EXPRESSIONS[at]
    found = came(host, "core:Expression", expression=text, **values)
    if isinstance(found, str):
        assert isinstance(expected, str)
        assert expected in found
    else:
        assert found["value"] == expected
        assert type(found["value"]) is type(expected)


NODES: list[tuple[str, dict[str, Any], Any]] = [
    ("Text", {}, {"text": ""}), ("Text", {"text": "中"}, {"text": "中"}), ("Value", {}, {"value": None}), ("Value", {"value": [1]}, {"value": [1]}),
    ("Template", {"template": "{{ 名 }}{{x}}{b}{{ {{", "名": "值", "x": {"k": [1, None, True]}}, {"text": '值{"k": [1, null, true]}{b}{{ {{'}),
    ("Template", {"template": "{{a}}", "a": "{{b}}", "b": 1}, {"text": "{{b}}"}), ("Template", {"template": "{{a}}", "b": 1}, "names 'a'"),
    ("Template", {"template": "{{a}}" * 10_000, "a": TEXT}, "characters; at most 64,000,000"),
    ("Join", {}, {"text": ""}), ("Join", {"parts": ["a", 1, None, {"k": 1}], "separator": "-"}, {"text": 'a-1--{"k": 1}'}),
    ("Join", {"parts": [["甲", "乙"]]}, {"text": "甲\n乙"}), ("Join", {"parts": [TEXT] * 1_000, "separator": TEXT * 10}, "at most 64,000,000"),
    ("Split", {"text": "a\n\nb"}, {"parts": ["a", "b"]}), ("Split", {"text": " a  b", "separator": ""}, {"parts": ["a", "b"]}),
    ("Split", {"text": "a,,b", "separator": ",", "keep_empty": True}, {"parts": ["a", "", "b"]}),
    ("Replace", {"text": "aXa", "old": "a"}, {"text": "X", "count": 2}), ("Replace", {"text": "a", "old": ""}, "is empty"),
    ("Replace", {"text": TEXT, "old": "x", "new": TEXT}, "100,000,000 characters; at most"),
    ("Case", {"text": " aB "}, {"text": "aB"}), ("Case", {"text": " aB ", "form": {"value": "upper", "label": "U"}}, {"text": " AB "}),
    ("Length", {"value": "中文"}, {"length": 2}), ("Length", {"value": {"a": 1}}, {"length": 1}), ("Length", {"value": 5}, "int has no length"),
    ("JsonParse", {"text": '\ufeff{"a": [1, 1.5, "中"]}'}, {"value": {"a": [1, 1.5, "中"]}}), ("JsonParse", {"text": '"\\ud83d\\ude00"'}, {"value": "😀"}),
    ("JsonParse", {"text": '"\\ud800"'}, "half of a surrogate pair"), ("JsonParse", {"text": "NaN"}, "NaN is not JSON"), ("JsonParse", {"text": "1e999"}, "too large"),
    ("JsonParse", {"text": "9" * 5_000}, "too large to be held"), ("JsonParse", {"text": "[" * 100_000}, "nested too deeply"), ("JsonParse", {"text": ""}, "not JSON"),
    ("JsonWrite", {"value": {"中": 1}, "indent": 2}, {"text": '{\n  "中": 1\n}'}), ("JsonWrite", {"value": None}, {"text": "null"}),
    ("JsonGet", {"value": DATA, "path": "/items/0/name"}, {"value": "名", "found": True}), ("JsonGet", {"value": DATA, "path": "items.-1.name"}, {"value": "名", "found": True}),
    ("JsonGet", {"value": DATA, "path": "/a~1b"}, {"value": 1, "found": True}), ("JsonGet", {"value": DATA, "path": "/m~0n"}, {"value": 2, "found": True}),
    ("JsonGet", {"value": DATA, "path": "/"}, {"value": 3, "found": True}), ("JsonGet", {"value": DATA, "path": ""}, {"value": DATA, "found": True}),
    ("JsonGet", {"value": DATA, "path": "items.--1"}, {"value": None, "found": False}), ("JsonGet", {"value": DATA, "path": "/items/" + "9" * 5_000}, {"value": None, "found": False}),
    ("JsonGet", {"value": DATA, "path": "/0/x", "default": 7}, {"value": 7, "found": False}),
    ("JsonSet", {"target": {"a": [1]}, "path": "/a/-", "value": 2}, {"value": {"a": [1, 2]}}), ("JsonSet", {"target": None, "path": "x.y", "value": 2}, {"value": {"x": {"y": 2}}}),
    ("JsonSet", {"target": {"a": [1]}, "path": "/a/5", "value": 2}, "no item '5'"), ("JsonSet", {"target": 5, "path": "a"}, "has no parts"),
    ("JsonSet", {"target": {}, "path": "a." * 100_000 + "b"}, "at most 64"), ("JsonSet", {"target": [1], "path": "--1", "value": 2}, "no item '--1'"),
    ("Switch", {"condition": True, "value": 3}, {"yes": 3}), ("Switch", {"condition": False}, {"no": False}), ("Switch", {"condition": False, "value": 0}, {"no": 0}),
    ("Merge", {}, {"all": []}), ("Merge", {"values": [1, 2]}, {"value": 1, "all": [1, 2]}), ("Choose", {"condition": False, "yes": 1, "no": 2}, {"value": 2}),
    ("Delay", {"value": 1, "ms": 0}, {"value": 1}), ("Random", {"seed": 1, "low": 1, "high": 1, "choices": ["甲"]}, {"number": 1.0, "choice": "甲"}),
    ("Random", {"low": 5, "high": 1}, "low is 5"), ("Random", {"low": -1e308, "high": 1e308}, "too far apart"),
    ("CallTool", {"tool": "system:nothing"}, "there is no tool"), ("CallTool", {"tool": "system:get_current_time", "arguments": {"zz": 1}}, "unknown argument 'zz'"),
    ("LLM", {"prompt": "x", "model": "m"}, "no language model 'm'"), ("HttpFetch", {"url": "file:///etc/passwd"}, "scheme"), ("HttpFetch", {"url": ""}, "no scheme"),
    ("GroupInput", {}, {}), ("GroupOutput", {}, {}),
]  # fmt: skip


@each_row("at", range(len(NODES)))
def test_a_node_gives_its_outputs_or_says_what_is_wrong(host: Tavern, at: int) -> None:
    name, inputs, expected = NODES[at]
    found = came(host, f"core:{name}", **inputs)
    if isinstance(expected, str):
        assert isinstance(found, str)
        assert expected in found
    else:
        assert found == expected


BAD_VALUES = [
    ("Case", {"text": "a", "form": "zz"}, "form"), ("Delay", {"ms": -1}, "ms"), ("Delay", {"ms": 10**9}, "ms"), ("Delay", {"ms": True}, "ms"), ("Delay", {"ms": 1.5}, "ms"),
    ("JsonWrite", {"value": 1, "indent": 10**9}, "indent"), ("JsonWrite", {"value": 1, "indent": -1}, "indent"), ("Join", {"parts": "ab"}, "parts"),
    ("Switch", {"condition": "yes"}, "condition"), ("Random", {"seed": 1.5}, "seed"), ("HttpFetch", {"url": "x", "method": "GETT"}, "method"), ("Text", {"text": 5}, "text"),
]  # fmt: skip


@each_row("at", range(len(BAD_VALUES)))
def test_a_value_that_a_node_refuses_is_reported_before_any_node_runs(host: Tavern, at: int) -> None:
    name, inputs, slot = BAD_VALUES[at]
    [problem] = host.workflows.check({"nodes": [{"id": "n", "type": f"core:{name}", "inputValues": inputs}]})
    assert (problem.code, problem.node, problem.slot) == ("BAD_VALUE", "n", slot)


INNER = {
    "interfaceInputs": {"item": {"dataFlowType": "STRING"}}, "interfaceOutputs": {"done": {"dataFlowType": "BOOLEAN"}},
    "nodes": [{"id": "o", "type": "core:GroupOutput"}, {"id": "v", "type": "core:Value", "inputValues": {"value": True}}],
    "edges": [{"id": "e", "source": "v", "sourceHandle": "value", "target": "o", "targetHandle": "done"}],
}  # fmt: skip
CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("Map", {"concurrency": 1}, ""), ("Map", {"concurrency": None}, ""), ("Map", {"itemInput": "item", "indexInput": ""}, ""), ("Map", {"concurrency": 0}, "/concurrency: must be at least 1"),
    ("Map", {"concurrency": "4"}, "/concurrency: must be integer"), ("Map", {"itemInput": "itme"}, "itemInput names 'itme'"), ("Map", {"itemInput": 5}, "/itemInput: must be string"),
    ("Map", {"indexInput": "index"}, "indexInput names 'index'"), ("Loop", {"maxIterations": 1, "until": "done"}, ""), ("Loop", {"maxIterations": 0}, "must be at least 1"),
    ("Loop", {"maxIterations": True}, "must be integer"), ("Loop", {"until": "doen"}, "until names 'doen'"), ("NodeGroup", {"anything": 5}, ""),
    ("NodeGroup", {"referencedWorkflowId": 5}, "/referencedWorkflowId: must be string"),
]  # fmt: skip


def test_the_configuration_of_groups_is_checked(flows: Flows) -> None:
    (flows.folder / "inner.json").write_text(json.dumps(INNER), "utf-8")
    with flows.open() as tavern:
        for name, config, wrong in CONFIGS:
            node = {
                "id": "n",
                "type": f"core:{name}",
                "inputValues": {"items": ["a"]} if name == "Map" else {},
                "configValues": {"referencedWorkflowId": "inner", **config},
            }
            problems = [p for p in tavern.workflows.check({"nodes": [node]}) if p.code != "GROUP_MISSING"]
            assert [(p.code, p.node) for p in problems] == ([("BAD_CONFIG", "n")] if wrong else []), config
            assert all(wrong in p.message for p in problems), config
            if not wrong:
                assert tavern.workflows.run_sync({"nodes": [node]}, keep=False).ok, config


def test_every_node_of_the_host_is_tried_here(tmp_path: Path) -> None:
    elsewhere = {"Note", "frame", "Ask"}  # drawn only; asked in tests of runs
    tried = {name for name, _, _ in [*NODES, *CONFIGS]} | {"Expression"}
    with Tavern.open({"plugins": {"entryPoints": False}}, home=tmp_path) as tavern:
        assert {spec.name for spec in tavern.nodes.list() if spec.namespace == "core"} == tried | elsewhere


def test_no_node_of_an_unreadable_group_is_run(flows: Flows) -> None:
    with flows.open() as tavern, pytest.raises(WorkflowInvalid):
        tavern.workflows.run_sync({"nodes": [{"id": "g", "type": "core:NodeGroup"}, {"id": "t", "type": "core:Text"}]})
