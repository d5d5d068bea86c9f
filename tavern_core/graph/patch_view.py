"""A workflow as a model sees and patches it: nodes and edges by id, without positions and what only editors need.

    {rev, nodes: {id: {type, displayName, inputValues, configValues}}, edges: {id: {source, sourceHandle, target,
     targetHandle}}, interfaceInputs, interfaceOutputs}

A workflow's name and description, and further keys of a node that decide what it does, are shown where the file has them.
The way back keeps every key that is not shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import eq
from typing import Any, Final

from tavern_core.graph.json_patch import plain_copy
from tavern_core.graph.patch_problems import PatchProblem, PatchRefused
from tavern_core.model.workflow import Workflow

SECTIONS: Final = ("nodes", "edges")
INTERFACE: Final = ("interfaceInputs", "interfaceOutputs")
DOCUMENT_KEYS: Final = ("rev", "name", "description", *SECTIONS, *INTERFACE)
NODE_KEYS: Final = (
    "type", "displayName", "inputValues", "configValues", "data", "parentNode", "customDescription",
    "customSlotDescriptions", "inputConnectionOrders",
)  # fmt: skip
EDGE_KEYS: Final = ("source", "sourceHandle", "target", "targetHandle")
_SHOWN_ALWAYS: Final[Mapping[str, Any]] = {"displayName": "", "inputValues": {}, "configValues": {}}
"""Keys of a node that are shown with this value where the file has none."""
_TEXTS: Final = ("name", "description")


def project(workflow: Workflow) -> dict[str, Any]:
    """The projection of a workflow; a copy.

    Raises:
        PatchRefused: two nodes or two edges have the same id (DUPLICATE_NODE, DUPLICATE_EDGE).
    """
    shown = by_id(workflow)
    show(shown, (), set())
    return shown


def by_id(workflow: Workflow) -> dict[str, Any]:
    """The projection before anything is shown: nodes and edges are those of the file. Do not change them before `show`.

    Raises:
        PatchRefused: as `project`.
    """
    raw = workflow.raw
    found: dict[str, Any] = {"rev": workflow.rev}
    found |= {key: raw[key] for key in _TEXTS if raw.get(key)}
    for section in SECTIONS:
        items = raw.get(section) or ()
        found[section] = {item["id"]: item for item in items}
        if len(found[section]) != len(items):
            raise PatchRefused(_twice(section, [item["id"] for item in items]))
    found |= {key: raw.get(key) or {} for key in INTERFACE}
    return found


def show(shown: dict[str, Any], parts: Sequence[str], done: set[tuple[str, str]]) -> None:
    """Replace what a path leads to (a node, an edge, an interface, or all) by a copy of what is shown of it, once.

    Args:
        shown: from `by_id`, changed in place.
        done: what is a copy already; is added to.
    """
    for section in SECTIONS if not parts else parts[:1]:
        if section in INTERFACE:
            if (section, "") not in done:
                done.add((section, ""))
                shown[section] = plain_copy(shown[section])
        elif section in SECTIONS:
            items = shown[section]
            for id_ in list(items) if len(parts) < 2 else parts[1:2]:
                if (section, id_) not in done and id_ in items:
                    item = shown_node(items[id_]) if section == "nodes" else shown_edge(items[id_])
                    items[id_] = plain_copy(item)
                done.add((section, id_))
    if not parts:
        for key in INTERFACE:
            show(shown, (key,), done)


def _twice(section: str, ids: Sequence[str]) -> PatchProblem:
    what, twice = section[:-1], next(id_ for id_ in ids if ids.count(id_) > 1)
    text = f"two {section} have the id {twice!r:.200}, so a patch cannot name them"
    return PatchProblem(f"DUPLICATE_{what.upper()}", text, hint="correct the file")


def shown_node(node: Mapping[str, Any]) -> dict[str, Any]:
    """The projection of a node of the file."""
    found: dict[str, Any] = {"type": node["type"]}
    for key in NODE_KEYS[1:]:
        value = node.get(key)
        if value or (key in node and value is not None and key not in _SHOWN_ALWAYS):
            found[key] = value
        elif key in _SHOWN_ALWAYS:
            found[key] = "" if key == "displayName" else {}
    return found


def shown_edge(edge: Mapping[str, Any]) -> dict[str, Any]:
    """The projection of an edge of the file."""
    return {key: edge.get(key) for key in EDGE_KEYS}


def merge_projection(workflow: Workflow, shown: Mapping[str, Any], done: Collection[tuple[str, str]]) -> dict[str, Any]:
    """The document of `workflow` with a changed projection: keys that are not shown stay, and so does the order.

    Args:
        shown: the changed projection; new nodes and edges are under their ids.
        done: (section, id) of what is shown; all else is the element of the file itself.
    """
    raw = dict(workflow.raw)
    for key in (*_TEXTS, *INTERFACE):
        if (value := shown.get(key)) or key in raw:
            raw[key] = value if value is not None else ("" if key in _TEXTS else {})
    for section, back in (("nodes", _node_back), ("edges", _edge_back)):
        old = {id_: item for item in workflow.raw.get(section) or () if (section, id_ := item["id"]) in done}
        raw[section] = [
            item if (section, id_) not in done else back(old.get(id_) or {"id": id_}, item)
            for id_, item in _in_order(workflow, section, shown[section])
        ]
    return raw


def _in_order(workflow: Workflow, section: str, items: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The elements in the order of the file, new ones last; a replaced one moved to the end of the mapping."""
    if all(map(eq, items, (item["id"] for item in workflow.raw.get(section) or ()))):
        return items.items()
    listed = [item["id"] for item in workflow.raw.get(section) or () if item["id"] in items]
    old = set(listed)
    return [*((id_, items[id_]) for id_ in listed), *((id_, item) for id_, item in items.items() if id_ not in old)]


def _node_back(old: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    hidden = {key: value for key, value in old.items() if key not in NODE_KEYS}
    if old.get("type") not in (None, shown.get("type")):
        hidden.pop("typeVersion", None)  # it counts the versions of the other type
    hidden_members = {
        key: value
        for key, value in shown.items()
        if key in old or key not in _SHOWN_ALWAYS or value != _SHOWN_ALWAYS[key]
    }
    return {"id": old["id"], **hidden_members, **{key: value for key, value in hidden.items() if key != "id"}}


def _edge_back(old: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in shown.items() if value is not None or key in old}
    hidden = {key: value for key, value in old.items() if key not in EDGE_KEYS and key != "id"}
    return {"id": old["id"], **kept, **hidden}
