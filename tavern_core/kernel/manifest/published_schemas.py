"""The JSON Schemas of plugin.yaml, *.tool.json and workflow files, for editors: made from the models and the tables, shipped as files.

    # yaml-language-server: $schema=...       first line of a plugin.yaml
    tavern schema manifest > plugin.schema.json

The files in tavern_core/schemas are generated; a test fails when they are not what `make_schema` makes. After a change of a
model or a table: ``python -m tavern_core.kernel.manifest.published_schemas``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Final, Literal

from pydantic import BaseModel

from tavern_core import package_location
from tavern_core.contract.hookspecs import permission_names
from tavern_core.contract.permissions import DATA_RIGHTS, describe_permission
from tavern_core.kernel.manifest.field_descriptions import TEXTS
from tavern_core.kernel.manifest.workflow_schema_completion import WORKFLOW_TEXTS, complete
from tavern_core.model.capability import CAPABILITIES
from tavern_core.model.manifest import Manifest
from tavern_core.model.naming_rules import SERVICE_NAME
from tavern_core.model.toolfile import ToolDefinition
from tavern_core.model.ui_extension_points import COMPONENTS, OUTLETS
from tavern_core.model.workflow import NodeExec, Retry, Workflow

FileKind = Literal["manifest", "tool", "workflow"]
FILES: Final[Mapping[FileKind, str]] = {
    "manifest": "plugin.schema.json",
    "tool": "tool.schema.json",
    "workflow": "workflow.schema.json",
}
_ROOTS: Final[Mapping[FileKind, tuple[type[BaseModel], str]]] = {
    "manifest": (Manifest, "plugin.yaml of a tavern plugin"),
    "tool": (ToolDefinition, "A tool of a tavern plugin (*.tool.json)"),
    "workflow": (Workflow, "A workflow, as tavern-core and ComfyTavern read it"),
}
_TEXTS: Final = {**TEXTS, **WORKFLOW_TEXTS}
_MANUALS: Final[Mapping[FileKind, str]] = {"manifest": "manifest", "tool": "manifest", "workflow": "workflows"}
_DECLARED: Final = "#/$defs/Declared"
_OTHER_CAPABILITIES: Final = (
    ("^secrets:[A-Za-z0-9_.-]{1,64}$", "use one secret by its name"),
    ("^danger:[a-z][a-z0-9-]*$", "do something dangerous"),
    ("^[a-z0-9][a-z0-9.-]*/[a-z][a-z0-9-]*(:[A-Za-z0-9_.-]+)?$", "a capability of some plugin or host"),
)


def published_schema(kind: FileKind) -> dict[str, Any]:
    """The shipped schema of ``manifest`` (plugin.yaml), ``tool`` (*.tool.json) or ``workflow``."""
    text = resources.files("tavern_core").joinpath("schemas", FILES[kind]).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def make_schema(kind: FileKind) -> dict[str, Any]:
    """The schema, generated from models and tables."""
    model, title = _ROOTS[kind]
    schema = model.model_json_schema(by_alias=True)
    definitions: dict[str, Any] = schema.setdefault("$defs", {})
    if kind == "workflow":
        for field in ("id", "raw"):  # the host's own: not of the file
            del schema["properties"][field]
        for part in (NodeExec, Retry):  # below configValues, which the model does not read
            definitions[part.__name__] = part.model_json_schema(by_alias=True) | {"$defs": {}}
            del definitions[part.__name__]["$defs"]
    for name, part in [(model.__name__, schema), *definitions.items()]:
        _describe(name, part)
    if kind == "manifest":
        _add_tables(definitions)
        _add_short_forms(schema, definitions)
    elif kind == "workflow":
        complete(schema, definitions)
    else:
        schema["properties"]["$schema"] = {"type": "string", "description": "The address of this schema; for editors."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": title,
        "description": f"Generated from tavern-core's models; see docs/{_MANUALS[kind]}.md.",
    }


def render(kind: FileKind) -> str:
    """The text of the shipped file."""
    return json.dumps(make_schema(kind), ensure_ascii=False, indent=2) + "\n"


def _describe(model: str, part: dict[str, Any]) -> None:
    """Replace pydantic's titles by our sentences; docstrings about Python are left out."""
    part.pop("title", None)
    part.pop("description", None)
    for field, schema in part.get("properties", {}).items():
        schema.pop("title", None)
        schema["description"] = _TEXTS[f"{model}.{field}"]


def _add_tables(definitions: dict[str, Any]) -> None:
    """Names that exist, each with the sentence that the operator will read."""
    permissions = definitions["Permissions"]["properties"]
    permissions["hooks"]["items"] = _one_of(
        (written, f"{describe_permission(canonical).sentence} (risk: {describe_permission(canonical).risk})")
        for written, canonical in permission_names().items()
    )
    permissions["data"]["items"] = _one_of((name, row.sentence) for name, row in DATA_RIGHTS.items())
    ui = definitions["UiPermissions"]["properties"]
    for asked in definitions["ServicePermissions"]["properties"].values():
        asked["items"] |= {"pattern": SERVICE_NAME}
    ui["wrap"]["items"] = _one_of(COMPONENTS.items())
    ui["override"]["items"] = _one_of(COMPONENTS.items())
    panel = {"pattern": r"^sidebar:panel:(header|footer)\[[A-Za-z0-9_-]{1,64}\]$", "description": "of one panel"}
    outlets = _one_of(OUTLETS.items())["oneOf"]
    ui["inject"]["items"] = {"type": "string", "oneOf": [*outlets, panel]}
    request = definitions["CapabilityRequest"]["properties"]
    known = _one_of((name, f"{row.sentence} (risk: {row.risk})") for name, row in CAPABILITIES.items())["oneOf"]
    others = [{"pattern": pattern, "description": text} for pattern, text in _OTHER_CAPABILITIES]
    # anyOf: danger:destructive is in the table and fits the pattern.
    request["name"] = {"type": "string", "description": request["name"]["description"], "anyOf": [*known, *others]}


def _add_short_forms(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Add the further forms that the model's validators accept: names alone, ``true`` for a section, empty sections."""
    asked = definitions["Permissions"]["properties"]["capabilities"]
    asked["items"] = {"anyOf": [definitions["CapabilityRequest"]["properties"]["name"], asked["items"]]}
    for field in schema["properties"].values():
        for branch in field.get("anyOf", []):
            if branch.get("items") == {"$ref": _DECLARED}:
                branch["items"] = {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 200}, {"$ref": _DECLARED}]}
                field["anyOf"] = [*field["anyOf"], {"const": True}]
                break
    for name, field in schema["properties"].items():
        if name not in schema["required"] and {"type": "null"} not in field.get("anyOf", []):
            text = field.pop("description")
            schema["properties"][name] = {"description": text, "anyOf": [field, {"type": "null"}]}


def _one_of(names: Iterable[tuple[str, str]]) -> dict[str, Any]:
    return {"type": "string", "oneOf": [{"const": name, "description": text} for name, text in names]}


def main() -> None:
    """Write the files again."""
    folder = package_location.FOLDER / "schemas"
    folder.mkdir(exist_ok=True)
    for kind, name in FILES.items():
        (folder / name).write_text(render(kind), encoding="utf-8")


if __name__ == "__main__":
    main()
