"""Node documents and workflows of ComfyUI, read from wheels of PyPI: nothing of them was written for this project.

The wheels are read as they are; nothing of them is installed or run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Final
from zipfile import ZipFile

DOCS, WORKFLOWS, NAMES = "comfyui-embedded-docs", "comfyui-workflow-templates-json", "comfyui-manager"
PINS: Final = {DOCS: "0.5.15", WORKFLOWS: "0.1.123", NAMES: "4.3"}
"""Package → version: 1,024 documented node types, 644 workflows, and the names of 26,786 node types of 3,341 extensions."""
NO_CODE: Final = frozenset({"Note", "MarkdownNote", "PrimitiveNode", "Reroute"})
"""Types that only the editor knows: no workflow needs them."""
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]")
_STEP: Final = re.compile(r"^step\s*\d+\W*", re.IGNORECASE)
_ROW: Final = re.compile(r"^\s*\|(.+)\|\s*$")


@dataclass(frozen=True)
class NodeDocument:
    """One node type in one language."""

    type: str
    title: str
    description: str
    inputs: tuple[tuple[str, str, str, bool], ...] = ()
    """(key, data type, description, required)"""
    outputs: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Template:
    """One workflow with its own title and description."""

    name: str
    family: str
    """The model it is about: workflows of one family resemble each other."""
    texts: Mapping[str, tuple[str, str]]
    """Language → title and description."""
    types: frozenset[str]
    plan: tuple[str, ...] = ()
    """The titles of the groups that its author drew: the closest thing to a plan that people wrote."""

    def share(self, salt: str, by_family: bool = False) -> float:
        """A number in [0, 1) by the hash of its name or its family: which part of a split it belongs to."""
        key = self.family or self.name if by_family else self.name
        return int(sha256(f"{salt}/{key}".encode()).hexdigest()[:8], 16) / 16**8


def wheel(folder: Path, package: str) -> ZipFile:
    """The pinned wheel of a package in a folder."""
    stem = f"{package.replace('-', '_')}-{PINS[package]}-"
    return ZipFile(next(path for path in sorted(folder.glob("*.whl")) if path.name.startswith(stem)))


def plain(type_: str) -> str:
    """A node type with the letters that this host allows: ``Epsilon Scaling`` has a space."""
    return _NO_NAME.sub("_", type_)[:64]


def documents(folder: Path, language: str) -> dict[str, NodeDocument]:
    """Type → its document in `language` (``en``, ``zh``)."""
    found = {}
    with wheel(folder, DOCS) as archive:
        for name in sorted(archive.namelist()):
            path = PurePosixPath(name)
            type_ = plain(path.parent.name)
            if path.name == f"{language}.md" and path.parent.parent.name == "docs":
                found[type_] = _document(type_, archive.read(name).decode("utf-8"))
    return found


def _document(type_: str, text: str) -> NodeDocument:
    title, description, section = type_, "", ""
    inputs: list[tuple[str, str, str, bool]] = []
    outputs: list[tuple[str, str, str]] = []
    for line in text.splitlines():
        if line.startswith("# ") and title == type_:
            title = line[2:].strip()
        elif line.startswith("#"):
            section = line.strip("# ").casefold()
        elif line.startswith("```"):
            break
        elif (row := _ROW.match(line)) is not None:
            cells = [cell.strip().strip("`") for cell in row.group(1).split("|")]
            if len(cells) < 3 or set(cells[0]) <= set(":- ") or _is_head(cells):
                continue
            if "output" in section or "输出" in section:
                outputs.append((cells[0], cells[2], cells[1]))
            else:
                needed = len(cells) > 3 and cells[3].casefold() in ("yes", "是")
                inputs.append((cells[0], cells[2], cells[1], needed))
        elif not section and line.strip() and not line.startswith(">"):
            description += line.strip() + "\n"
    return NodeDocument(type_, title, description.strip(), tuple(inputs), tuple(outputs))


def _is_head(cells: list[str]) -> bool:
    return bool({"data type", "comfy dtype", "数据类型", "data_type"} & {cell.casefold() for cell in cells})


def undocumented(folder: Path, most: int) -> list[NodeDocument]:
    """Names of further node types, with what their extension says of itself: `most` of them, chosen by hash."""
    with wheel(folder, NAMES) as archive:
        names = json.loads(archive.read("comfyui_manager/extension-node-map.json"))
        listed = json.loads(archive.read("comfyui_manager/custom-node-list.json"))["custom_nodes"]
    texts = {file: entry.get("description", "") for entry in listed for file in entry.get("files", ())}
    found = {plain(type_): (place, about) for place, (types, about) in sorted(names.items()) for type_ in types}
    chosen = sorted(found, key=lambda type_: sha256(type_.encode(errors="replace")).hexdigest())[:most]
    return [NodeDocument(type_, type_, f"{found[type_][1].get('title_aux', '')}. {texts.get(found[type_][0], '')}") for type_ in chosen]  # fmt: skip


def templates(folder: Path) -> list[Template]:
    """The workflows that have a title and a description in English and in Chinese, by name."""
    with wheel(folder, WORKFLOWS) as archive:
        root = "comfyui_workflow_templates_json/templates"
        there = set(archive.namelist())
        texts: dict[str, dict[str, tuple[str, str]]] = {}
        facts: dict[str, Mapping[str, Any]] = {}
        for language, file in (("en", "index.json"), ("zh", "index.zh.json")):
            for entry in _entries(json.loads(archive.read(f"{root}/{file}"))):
                texts.setdefault(entry["name"], {})[language] = entry.get("title", ""), entry.get("description", "")
                facts.setdefault(entry["name"], entry)
        found = []
        for name in sorted(name for name in texts if f"{root}/{name}.json" in there and len(texts[name]) == 2):
            workflow = json.loads(archive.read(f"{root}/{name}.json"))
            family = next(iter(facts[name].get("models") or ()), "")
            found.append(Template(name, family, texts[name], frozenset(_types(workflow)), tuple(_groups(workflow))))
        return found


def _entries(index: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for group in index:
        yield from group["templates"]


def _types(workflow: Mapping[str, Any]) -> Iterator[str]:
    """The node types of a workflow and its subgraphs."""
    parts = _parts(workflow)
    own = {part["id"] for part in parts[1:]} | NO_CODE
    for part in parts:
        yield from (plain(node["type"]) for node in part.get("nodes", ()) if node["type"] not in own)


def _groups(workflow: Mapping[str, Any]) -> dict[str, None]:
    """The titles of its groups, without ``Step 1 - ``."""
    titles = (group.get("title") or "" for part in _parts(workflow) for group in part.get("groups", ()))
    return dict.fromkeys(filter(None, (_STEP.sub("", title).strip() for title in titles)))


def _parts(workflow: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [workflow, *workflow.get("definitions", {}).get("subgraphs", [])]
