"""A workflow as a model sees and patches it: nodes and edges by id, without positions and what only editors need.

    {rev, nodes: {id: {type, displayName, inputValues, configValues}}, edges: {id: {source, sourceHandle, target,
     targetHandle}}, interfaceInputs, interfaceOutputs}

A workflow's name and description, and further keys of a node that decide what it does, are shown where the file has them.
The way back keeps every key that is not shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from tavern_core.graph.operations import plain_copy
from tavern_core.graph.patch_problems import PatchProblem, PatchRefused
from tavern_core.model.workflow import Workflow

SECTIONS: Final = ("nodes", "edges")
DOCUMENT_KEYS: Final = ("rev", "name", "description", *SECTIONS, "interfaceInputs", "interfaceOutputs")
NODE_KEYS: Final = (
    "type", "displayName", "inputValues", "configValues", "data", "parentNode", "customDescription",
    "customSlotDescriptions", "inputConnectionOrders",
)  # fmt: skip
EDGE_KEYS: Final = ("source", "sourceHandle", "target", "targetHandle")
_SHOWN_ALWAYS: Final[Mapping[str, Any]] = {"displayName": "", "inputValues": {}, "configValues": {}}
"""Keys of a node that are shown with this value where the file has none."""
_TEXTS: Final = ("name", "description")
_INTERFACE: Final = ("interfaceInputs", "interfaceOutputs")


def project(workflow: Workflow) -> dict[str, Any]:
    """The projection of a workflow; a copy.

    Raises:
        PatchRefused: two nodes or two edges have the same id (DUPLICATE_NODE, DUPLICATE_EDGE).
    """
    found = plain_copy(view(workflow))
    assert isinstance(found, dict)
    return found


def view(workflow: Workflow) -> dict[str, Any]:
    """`project`, whose inner values are those of the workflow: do not change them. Raises as `project`."""
    raw = workflow.raw
    shown: dict[str, Any] = {"rev": workflow.rev}
    shown |= {key: raw[key] for key in _TEXTS if raw.get(key)}
    shown["nodes"] = _by_id("node", raw.get("nodes"), shown_node)
    shown["edges"] = _by_id("edge", raw.get("edges"), shown_edge)
    shown |= {key: dict(raw.get(key) or {}) for key in _INTERFACE}
    return shown


def shown_node(node: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a node of the file."""
    found: dict[str, Any] = {"type": node["type"]}
    for key in NODE_KEYS[1:]:
        value = node.get(key)
        if value or (key in node and value is not None and key not in _SHOWN_ALWAYS):
            found[key] = value
        elif key in _SHOWN_ALWAYS:
            found[key] = "" if key == "displayName" else {}
    return found


def shown_edge(edge: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of an edge of the file."""
    return {key: edge.get(key) for key in EDGE_KEYS}


def _by_id(what: str, written: Iterable[Mapping[str, Any]] | None, show: Any) -> dict[str, Any]:
    items = list(written or ())
    found = {item["id"]: show(item) for item in items}
    if len(found) != len(items):
        seen: set[str] = set()
        twice = next(item["id"] for item in items if item["id"] in seen or seen.add(item["id"]))  # type: ignore[func-returns-value]
        text = f"two {what}s have the id {twice!r:.200}, so a patch cannot name them"
        raise PatchRefused(PatchProblem(f"DUPLICATE_{what.upper()}", text, fix="correct the file"))
    return found


def merged(workflow: Workflow, shown: Mapping[str, Any], touched: Mapping[str, Collection[str]]) -> dict[str, Any]:
    """The document of `workflow` with a changed projection: keys that are not shown stay, and so does the order.

    Args:
        shown: the changed projection; new nodes and edges stand under their ids.
        touched: ``nodes`` and ``edges`` → ids of the elements that may have changed; others are not compared.
    """
    raw = dict(workflow.raw)
    for key in (*_TEXTS, *_INTERFACE):
        if (value := shown.get(key)) or key in raw:
            raw[key] = value if value is not None else ("" if key in _TEXTS else {})
    for section, back in (("nodes", _node_back), ("edges", _edge_back)):
        items, may_differ = shown[section], touched[section]
        old = {item["id"]: item for item in workflow.raw.get(section) or ()}
        raw[section] = [
            item if id_ not in may_differ else back(item, items[id_]) for id_, item in old.items() if id_ in items
        ] + [back({"id": id_}, items[id_]) for id_ in items if id_ not in old]
    return raw


def _node_back(old: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    hidden = {key: value for key, value in old.items() if key not in NODE_KEYS}
    if old.get("type") not in (None, shown.get("type")):
        hidden.pop("typeVersion", None)  # it counts the versions of the other type
    kept = {
        key: value
        for key, value in shown.items()
        if key in old or key not in _SHOWN_ALWAYS or value != _SHOWN_ALWAYS[key]
    }
    return {"id": old["id"], **kept, **{key: value for key, value in hidden.items() if key != "id"}}


def _edge_back(old: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in shown.items() if value is not None or key in old}
    hidden = {key: value for key, value in old.items() if key not in EDGE_KEYS and key != "id"}
    return {"id": old["id"], **kept, **hidden}
