"""A template: a workflow in ComfyUI's API format with places for arguments.

    txt2img.json          {"6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a photo of {{subject}}", …}}, …}
    txt2img.tool.json     {"description": "…", "inputs": {"steps": {"node": "3", "input": "steps", "maximum": 40}}}

Each ``{{name}}`` is a parameter, and so is each input that the file beside it lists. `read_templates` reads a folder; the rest is pure.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from tavern_core.contract.exchange import object_at
from tavern_core.contract.guards.folder import Folder
from tavern_core.errors import ToolFailed
from tavern_core.frozen_dataclass import dataclass
from tavern_core.schema.json_reader import NotJson, read_json
from tavern_core.schema.validate import compile_validator

Graph = dict[str, Any]
_MARK: Final = re.compile(r"\{\{([^{}]*)\}\}")
_LONGEST_NAME: Final = 64
_SIDECAR: Final = ".tool.json"
_MOST_BYTES: Final = 1_000_000
_MOST_FILES: Final = 1_000
_WRITTEN: Final = ("description", "type", "default", "minimum", "maximum", "enum", "maxLength", "pattern")
SIDECAR: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "description": {"type": "string"},
        "displayName": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "job": {"type": "boolean", "default": True},
        "timeoutMs": {"type": "integer", "minimum": 1},
        "outputs": {"type": "array", "items": {"type": "string"}},
        "inputs": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "node": {"type": "string"},
                    "input": {"type": "string"},
                    "file": {"type": "boolean"},
                    **dict.fromkeys(_WRITTEN, True),
                },
            },
        },
    },
}


class BadTemplate(ValueError):
    """A file is not a template; the message says why."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a template."""

    name: str
    places: tuple[tuple[str, str], ...]
    """(node, input) of each place where its value goes."""
    is_whole: bool = True
    """False: it only occurs within texts."""
    is_file: bool = False
    written: Mapping[str, Any] = field(default_factory=dict)
    """Its JSON Schema in the file beside the template."""


@dataclass(frozen=True, slots=True)
class Template:
    """A workflow with its parameters."""

    name: str
    graph: Mapping[str, Any]
    parameters: tuple[Parameter, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    """The file beside it, without `inputs`."""


def read_templates(folder: Path) -> tuple[list[Template], dict[str, str]]:
    """The templates of a folder by name, and file name → why it is not a template.

    Raises:
        ToolFailed: the folder cannot be read (TOOL_ERROR).
    """
    templates: list[Template] = []
    flaws: dict[str, str] = {}
    with Folder(folder) as opened:
        names = [entry.name for entry in opened.entries() if entry.name.endswith(".json")][:_MOST_FILES]
        for file in names:
            if file.endswith(_SIDECAR) or file == OBJECT_INFO:
                continue
            beside = file.removesuffix(".json") + _SIDECAR
            try:
                sidecar = _file(opened, beside) if beside in names else {}
                templates.append(template(file.removesuffix(".json"), _file(opened, file), sidecar))
            except (BadTemplate, ToolFailed) as flaw:
                flaws[file] = str(flaw)
    return templates, flaws


OBJECT_INFO: Final = "object_info.json"
"""A stored answer of ``GET /object_info``, for servers that do not offer it."""


def read_object_info(folder: Path) -> Mapping[str, Any]:
    """The node types of `OBJECT_INFO`; empty without such a file.

    Raises:
        ToolFailed: the file cannot be used (TOOL_ERROR).
    """
    with Folder(folder) as opened:
        if all(entry.name != OBJECT_INFO for entry in opened.entries()):
            return {}
        try:
            value = _file(opened, OBJECT_INFO, most=64 * _MOST_BYTES)
        except BadTemplate as error:
            raise ToolFailed(f"{OBJECT_INFO}: {error}") from None
    return value if isinstance(value, Mapping) else {}


def template(name: str, graph: Any, sidecar: Any) -> Template:
    """Make a template of a workflow and the file beside it. Raises BadTemplate: they are invalid."""
    _check(graph)
    if problems := compile_validator(SIDECAR, name=f"{name}{_SIDECAR}").problems(sidecar):
        raise BadTemplate(f"{name}{_SIDECAR}{problems[0].path}: {problems[0].message}")
    for parameter in sidecar.get("inputs", {}):
        if not _is_name(parameter):
            raise BadTemplate(f"{name}{_SIDECAR}/inputs: {parameter!r:.80} is no {_NAME}")
    about = {key: value for key, value in sidecar.items() if key != "inputs"}
    for node in about.get("outputs", ()):
        _node(graph, node)
    return Template(name, graph, tuple(_parameters(graph, sidecar.get("inputs", {}))), about)


def fill(graph: Mapping[str, Any], places: Mapping[str, Any], values: Mapping[str, Any]) -> Graph:
    """The workflow with `values` in their places.

    Args:
        places: parameter → ``[[node, input], …]``.

    Raises:
        ToolFailed: a value is missing (TOOL_ERROR).
    """
    filled = copy.deepcopy(dict(graph))
    for name, spots in places.items():
        for node, slot in spots:
            original = graph[node]["inputs"].get(slot)
            if isinstance(original, str) and (marks := _names_in(original)):
                if missing := [mark for mark in marks if values.get(mark) is None]:
                    raise ToolFailed(f"a value for {missing[0]} is needed")
                filled[node]["inputs"][slot] = (
                    values[name]
                    if _MARK.fullmatch(original.strip())
                    else _MARK.sub(lambda found: str(values[found[1].strip()]), original)
                )
            elif values.get(name) is not None:
                filled[node]["inputs"][slot] = values[name]
    return filled


def _names_in(text: str) -> list[str]:
    return [name.strip() for name in _MARK.findall(text)]


def _check(graph: Any) -> None:
    if isinstance(graph, Mapping) and isinstance(graph.get("nodes"), list):
        raise BadTemplate("is a workflow as the editor saves it; export it in API format: Workflow → Export (API)")
    if not isinstance(graph, Mapping) or not graph:
        raise BadTemplate("is not a workflow in API format: {node: {class_type, inputs}}")
    for node, content in graph.items():
        if not (
            isinstance(content, Mapping)
            and isinstance(content.get("class_type"), str)
            and isinstance(content.get("inputs"), Mapping)
        ):
            raise BadTemplate(f"node {node!r:.40} is no {{class_type, inputs}}; export the workflow in API format")


def _parameters(graph: Mapping[str, Any], listed: Mapping[str, Any]) -> Iterator[Parameter]:
    marked: dict[str, list[tuple[str, str]]] = {}
    whole_names: set[str] = set()
    for node, content in graph.items():
        for slot, value in content["inputs"].items():
            if not isinstance(value, str) and (mark := _MARK.search(str(value))):
                raise BadTemplate(
                    f"node {node}, {slot}: {mark[0]:.80} is inside a list or an object; mark whole inputs or texts"
                )
            for name in _names_in(value) if isinstance(value, str) else ():
                if not _is_name(name):
                    raise BadTemplate(f"node {node}, {slot}: {{{{{name:.80}}}}} holds no {_NAME}")
                marked.setdefault(name, []).append((node, slot))
                if _MARK.fullmatch(value.strip()):
                    whole_names.add(name)
    for name in sorted(marked.keys() | listed.keys()):
        row = listed.get(name, {})
        places = list(dict.fromkeys(marked.get(name, ())))
        if "input" in row:
            place = (_node(graph, row.get("node", "")), row["input"])
            if isinstance(graph[place[0]]["inputs"].get(place[1]), list):
                raise BadTemplate(f"inputs.{name}: {place[1]} of node {place[0]} comes from another node")
            places = list(dict.fromkeys([*places, place]))
        if not places:
            raise BadTemplate(f"inputs.{name} names no node and input, and the workflow has no {{{{{name}}}}}")
        schema = {key: row[key] for key in _WRITTEN if key in row}
        yield Parameter(name, tuple(places), name in whole_names or name not in marked, bool(row.get("file")), schema)


_NAME: Final = f"name of a parameter: letters, digits and _ of any script, at most {_LONGEST_NAME}, no digit first"


def _is_name(text: str) -> bool:
    return text.isidentifier() and len(text) <= _LONGEST_NAME


def _node(graph: Mapping[str, Any], id_or_title: str) -> str:
    """The id of a node, by its id or its title."""
    if id_or_title in graph:
        return id_or_title
    titled = [node for node, content in graph.items() if object_at(content, "_meta").get("title") == id_or_title]
    if len(titled) != 1:
        raise BadTemplate(f"{'no' if not titled else 'more than one'} node has the id or title {id_or_title!r:.60}")
    return titled[0]


def _file(folder: Folder, name: str, most: int = _MOST_BYTES) -> Any:
    with folder.open(name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise BadTemplate(f"has more than {most:,} bytes")
    try:
        return read_json(data.decode("utf-8-sig"))
    except (NotJson, UnicodeDecodeError) as error:
        raise BadTemplate(f"is not JSON: {error}") from None
