"""`tavern_register_tools` returns a mapping of kind `node` or `workflow`: a tool as good as one in a tool file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, hookimpl, node

NODES = '''\
from tavern_core import Out, node


@node("math:Add")
def add(a: int, b: int = 2) -> Out(sum=int):
    """Adds two numbers."""
    return a + b
'''
DOUBLE = {
    "description": "Doubles a number.",
    "nodes": [
        {"id": "in", "type": "core:GroupInput"},
        {"id": "add", "type": "math:Add"},
        {"id": "out", "type": "core:GroupOutput"},
    ],
    "edges": [
        {"id": "1", "source": "in", "sourceHandle": "number", "target": "add", "targetHandle": "a"},
        {"id": "2", "source": "in", "sourceHandle": "number", "target": "add", "targetHandle": "b"},
        {"id": "3", "source": "add", "sourceHandle": "sum", "target": "out", "targetHandle": "result"},
    ],
    "interfaceInputs": {"number": {"dataFlowType": "INTEGER", "required": True}},
    "interfaceOutputs": {"result": {"dataFlowType": "INTEGER"}},
}
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
    "required": ["a"],
}
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
NODE = '{"id": "tool", "implementation": {"type": "node", "nodeType": "math:Add"}}'
RETURNED: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("", NODE, ADD, {"a": 1}, "Adds two numbers."),
    ("", NODE.replace("math:Add", "Add"), ADD, {"a": 1}, "Adds two numbers."),
    (
        "tools: [{id: tool, description: Mine., implementation: {type: python}}]\n",
        NODE,
        ADD,
        {"a": 1},
        "Adds two numbers.",
    ),
    ("", NODE.replace('"id": "tool"', '"id": "tool", "description": "Mine."'), ADD, {"a": 1}, "Mine."),
    ("", f'offer({NODE.replace("tool", "other", 1)}, name="tool", optional=True)', ADD, {"a": 1}, "Adds two numbers."),
    (
        "",
        '{"id": "tool", "implementation": {"type": "workflow", "workflowId": "flows/double.json"}}',
        NUMBER,
        {"number": 2},
        "Doubles a number.",
    ),
    ("", '{"id": "tool", "implementation": {"type": "python", "handler": "math_code:plus"}}', ADD, {"a": 1}, "Adds."),
]


def math(folder: Path, manifest: str, returned: str) -> None:
    files = {
        "plugin.yaml": f'name: math\nversion: "1"\nnodes: {{entry: nodes}}\n{manifest}',
        "__init__.py": f"from tavern_core import hookimpl, offer\n\n\n@hookimpl\ndef tavern_register_tools(ctx):\n    return [{returned}]\n",
        "math_code.py": 'def plus(a: int, b: int = 2) -> int:\n    """Adds."""\n    return a + b\n',
        "nodes/numbers.py": NODES,
        "flows/double.json": json.dumps(DOUBLE),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def opened(tmp_path: Path) -> Tavern:
    config = {
        "plugins": {"roots": [str(tmp_path / "plugins")], "entryPoints": False},
        "tools": {"allow": ["math:tool"]},
    }
    return Tavern.open(config, home=tmp_path / "home", activate="all")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["", "isolation: process\n"])
@pytest.mark.parametrize(("manifest", "returned", "schema", "arguments", "description"), RETURNED)
def test_a_returned_mapping_gets_its_parameters_from_what_it_runs(
    tmp_path: Path,
    manifest: str,
    returned: str,
    schema: dict[str, Any],
    arguments: dict[str, Any],
    description: str,
    isolation: str,
) -> None:
    math(tmp_path / "plugins" / "math", manifest + isolation, returned)
    with opened(tmp_path) as tavern:
        assert tavern.plugins["math"].state == "active", tavern.plugins["math"].reason
        spec = tavern.tools["math:tool"]
        assert ({**spec.input_schema, "additionalProperties": False}, spec.description) == (
            {**schema, "additionalProperties": False},
            description,
        )
        result = tavern.invoke_sync("math:tool", arguments)
        assert (result.ok, result.value) == (True, 4 if "number" in arguments else 3), result.error
        wrong = tavern.invoke_sync("math:tool", {"a": "one"})
        assert wrong.error is not None and wrong.error.kind == "INPUT_SCHEMA_INVALID"


def test_an_object_that_returns_a_mapping_of_its_own_node_is_a_plugin(tmp_path: Path) -> None:
    @node("objects:Add")
    def add(a: int, b: int = 2) -> int:
        """Adds two numbers."""
        return a + b

    class Offering:
        @hookimpl
        def tavern_register_nodes(self) -> list[Any]:
            return [add]

        @hookimpl
        def tavern_register_tools(self) -> list[Any]:
            return [{"id": "tool", "implementation": {"type": "node", "nodeType": "objects:Add"}}]

    with Tavern.open(
        {"plugins": {"entryPoints": False}}, plugins=[Plugin(Offering(), name="objects")], home=tmp_path / "home"
    ) as tavern:
        assert tavern.invoke_sync("objects:tool", {"a": 1}).value == 3


REFUSED = [
    ('{"id": "tool", "implementation": {"type": "python"}}', "has no parameters"),
    ('{"id": "tool", "implementation": {"type": "node"}}', "needs `nodeType`"),
    ('{"id": "tool", "implementation": {"type": "script", "command": ["python", "x.py"]}}', "parameters"),
    (f"{NODE}, {NODE}", "two tools are called"),
]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["", "isolation: process\n"])
@pytest.mark.parametrize(("returned", "said"), REFUSED)
def test_what_says_no_parameters_anywhere_is_refused(tmp_path: Path, returned: str, said: str, isolation: str) -> None:
    math(tmp_path / "plugins" / "math", isolation, returned)
    with opened(tmp_path) as tavern:
        result = tavern.invoke_sync("math:tool", {"a": 1})
        assert not result.ok and result.error is not None
        reasons = " ".join([tavern.plugins["math"].reason, str(result.error), *(str(d) for d in tavern.diagnostics)])
        assert said in reasons, reasons
