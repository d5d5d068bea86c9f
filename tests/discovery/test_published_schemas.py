"""The shipped JSON Schemas and the manual page say what the models and tables say."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from tavern_core.cli.schema import KINDS, schema_of
from tavern_core.contract.permissions import hook_spellings
from tavern_core.kernel.manifest.field_descriptions import TEXTS
from tavern_core.kernel.manifest.manifest_reader import read_manifest
from tavern_core.kernel.manifest.published_schemas import FILES, FileKind, published_schema, render
from tavern_core.kernel.manifest.workflow_schema_completion import WORKFLOW_TEXTS
from tavern_core.kernel.text.yaml_reader import read_yaml
from tavern_core.model.capability import CAPABILITIES
from tavern_core.model.manifest import Manifest
from tavern_core.model.pydantic_errors import _models
from tavern_core.model.toolfile import ToolDefinition
from tavern_core.model.ui_extension_points import COMPONENTS, OUTLETS
from tavern_core.model.workflow import NodeExec, Retry, Workflow
from tests.rows import each_row

from .test_manifests import EVERYTHING, WRONG
from .test_tool_files import BILIBILI

ROOT = Path(__file__).resolve().parents[2]
MANUAL = (ROOT / "docs/manifest.md").read_text(encoding="utf-8")


def models(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """`model` and every model inside it."""
    found = {model.__name__: model}
    for field in model.model_fields.values():
        for inner in _models(field.annotation):
            if inner.__name__ not in found:
                found |= models(inner)
    return found


def fields() -> set[str]:
    everything = models(Manifest) | models(ToolDefinition)
    return {f"{name}.{f.alias or key}" for name, m in everything.items() for key, f in m.model_fields.items()}


def workflow_fields() -> set[str]:
    everything = models(Workflow) | {"NodeExec": NodeExec, "Retry": Retry}
    return {f"{name}.{f.alias or key}" for name, m in everything.items() for key, f in m.model_fields.items()} - {
        "Workflow.id",
        "Workflow.raw",
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_the_shipped_file_is_the_one_that_models_and_tables_make(kind: FileKind) -> None:
    shipped = (ROOT / "tavern_core/schemas" / FILES[kind]).read_text(encoding="utf-8")
    assert shipped == render(kind), "run: python -m tavern_core.kernel.manifest.published_schemas"
    Draft202012Validator.check_schema(published_schema(kind))


def test_every_field_has_its_sentence_and_every_sentence_its_field() -> None:
    assert fields() == set(TEXTS), "write its sentence in tavern_core/kernel/manifest/field_descriptions.py"
    assert workflow_fields() == set(WORKFLOW_TEXTS), "write its sentence in workflow_schema_completion.py"


def test_every_field_stands_in_the_manual() -> None:
    words = set(
        re.findall(r"[A-Za-z]+", " ".join(re.findall(r"`([^`\n]*)`", MANUAL)) + " ".join(MANUAL.split("```")[1::2]))
    )
    missing = sorted(name for name in fields() if name.rpartition(".")[2] not in words)
    assert missing == [], "describe the keys in docs/manifest.md"


def test_the_manual_names_no_key_that_is_none() -> None:
    known = {name.rpartition(".")[2] for name in fields()} | {"python", "script", "service", "node", "workflow"}
    tables = [line for line in MANUAL.splitlines() if line.startswith("| `")]
    keys = [key for line in tables for key in re.findall(r"`([A-Za-z.]+)`", line.split("|")[1])]
    assert [key for key in keys if key.rpartition(".")[2] not in known] == []


@each_row("block", re.findall(r"```yaml\n(.*?)```", MANUAL, re.DOTALL))
def test_the_examples_of_the_manual_are_right(block: str) -> None:
    text = block if "\nname:" in block or block.startswith("name:") else f'name: text\nversion: "1"\n{block}'
    reading = read_manifest(text.replace("BilibiliFetch", "Bilibili"), "plugin.yaml", strict=True)
    assert [str(f) for f in reading.findings if f.severity != "info"] == []


def problems(kind: FileKind, data: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(published_schema(kind)).iter_errors(data)]


def test_what_the_reader_accepts_the_schema_accepts() -> None:
    assert problems("manifest", read_yaml(EVERYTHING, "x").data) == []
    assert problems("tool", {"$schema": "https://example.org", **json.loads(BILIBILI)}) == []
    assert problems("manifest", {"name": "a", "version": "1", "tools": None, "services": True, "frontend": None}) == []


SHAPES = re.compile(
    r"unknown key|must be|is not one of|is missing|unknown hook|unknown component|unknown outlet|no capability"
)


@each_row("text", [text for text, expected in WRONG if SHAPES.search(expected) and "defaultValue" not in expected])
def test_what_the_reader_refuses_by_its_shape_the_schema_refuses(text: str) -> None:
    data = read_yaml(text, "x").data
    assert problems("manifest", data)


def test_an_editor_gets_every_name_with_its_description() -> None:
    text = str(published_schema("manifest"))
    for name in (*hook_spellings(), *COMPONENTS, *OUTLETS, *CAPABILITIES):
        assert f"'const': '{name}'" in text, f"{name}: run python -m tavern_core.kernel.manifest.published_schemas"
    assert text.count("(risk: ") >= len(hook_spellings()) + len(CAPABILITIES)


judge = functools.cache(lambda kind: Draft202012Validator(schema_of(kind)))


def keys_without_sentence(schema: Any) -> list[str]:
    parts = [schema, *schema.get("$defs", {}).values()]
    return [name for part in parts for name, key in part.get("properties", {}).items() if not key.get("description")]


@each_row("kind", KINDS)
def test_an_editor_explains_every_key_in_words_of_the_file(kind: str) -> None:
    schema = judge(kind).schema
    Draft202012Validator.check_schema(schema)
    assert keys_without_sentence(schema) == [], "write a docstring below the field in tavern_core/model"
    assert not re.search(r"``|tavern_core\.|\bmodel[./]\w", json.dumps(schema, ensure_ascii=False))


CONFIG_PAGES = {page.name: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}
CONFIGS = [
    (f"{name}: {block[:40]}", block)
    for name, page in CONFIG_PAGES.items()
    for block in re.findall(r"`tavern\.yaml`\n```yaml\n(.*?)```", page, re.DOTALL)
]


@each_row("where, text", [*CONFIGS, ("empty", "{}"), ("sections of comments", "plugins:\nlimits:\n")])
def test_an_editor_accepts_the_configurations_of_the_manual(where: str, text: str) -> None:
    found = judge("config").iter_errors(read_yaml(text, where).data)
    assert [error.message for error in found] == []


@each_row(
    "text",
    [
        "plugin: {}", "limits: {depht: 4}", "limits: {depth: four}", "upstreams: {a: {}}", "upstreams: {a: {kind: mcp, folde: x}}",
        "llms: {a: {kind: openia}}", "capabilities: []", "state: null\nlanguage: de",
    ],
)  # fmt: skip
def test_an_editor_marks_a_wrong_configuration(text: str) -> None:
    assert not judge("config").is_valid(read_yaml(text, "x").data)
