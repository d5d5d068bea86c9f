"""The difference between two states of a workflow: as data, and in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.message_translation import Language, Row, say, text_in
from tavern_core.model.safe_printing import printed, shortened
from tavern_core.model.workflow import Workflow

ChangeKind = Literal[
    "node added", "node removed", "node changed", "edge added", "edge removed", "edge changed", "workflow changed"
]
_WORDS: Final[Mapping[str, Row]] = {
    "node added": ("added {name}", "添加了{name}"),
    "node removed": ("removed {name}", "删除了{name}"),
    "node changed": ("set {key} of {name} to {after}", "将{name}的 {key} 设为 {after}"),
    "node unset": ("removed {key} of {name}", "删除了{name}的 {key}"),
    "edge added": ("connected {source} to {target}", "将 {source} 连接到 {target}"),
    "edge removed": ("disconnected {source} from {target}", "断开了 {source} 与 {target}"),
    "edge changed": ("reconnected {source} to {target}", "改为将 {source} 连接到 {target}"),
    "workflow changed": ("changed {key} of the workflow", "修改了工作流的 {key}"),
    "more": ("{count} more changes", "另有 {count} 处修改"),
    "none": ("nothing changed", "没有变化"),
}
_NAME: Final[Row] = ("{name} ({type})", "「{name}」({type})")
_MOST_SAID: Final = 40
"""Maximum number of changes in words; the rest are counted."""
_HIDDEN: Final = ("id", "position")
_SECTIONS: Final = ("inputValues", "configValues", "data")
"""Keys of a node that are compared member by member."""


@dataclass(frozen=True, slots=True)
class WorkflowChange:
    """A difference between two states of a workflow."""

    kind: ChangeKind
    id: str = ""
    """The node or edge."""
    name: str = ""
    """Display name of the node, else its id."""
    type: str = ""
    key: str = ""
    """The part that differs: ``inputValues.text``, ``displayName``, ``interfaceInputs.topic``."""
    before: Any = None
    after: Any = None

    def to_json(self) -> dict[str, Any]:
        data = {"change": self.kind, "id": self.id, "name": self.name, "type": self.type, "key": self.key}
        found: dict[str, Any] = {key: value for key, value in data.items() if value}
        return found | {
            key: value for key, value in (("before", self.before), ("after", self.after)) if value is not None
        }


def differences(before: Workflow, after: Workflow) -> tuple[WorkflowChange, ...]:
    """The changes from one state to the other, without positions. Elements that are the same object are skipped."""
    return (*_nodes(before, after), *_edges(before, after), *_rest(before.raw, after.raw))


def in_words(changes: Iterable[WorkflowChange], before: Workflow, after: Workflow) -> dict[Language, str]:
    """The changes as one sentence in each language."""
    names = {node.id: node.display_name or node.id for flow in (before, after) for node in flow.nodes}
    every = list(changes)
    sentences = [_said(change, names) for change in every[:_MOST_SAID]]
    if len(every) > _MOST_SAID:
        sentences.append(say(_WORDS["more"], count=len(every) - _MOST_SAID))
    sentences = sentences or [say(_WORDS["none"])]
    return {"en": "; ".join(sentences), "zh": "；".join(text_in(text, "zh") for text in sentences)}


def _said(change: WorkflowChange, names: Mapping[str, str]) -> Any:
    if change.kind.startswith("edge"):
        edge = change.before if change.kind == "edge removed" else change.after
        end_texts = {
            side: f"{_short(names.get(edge[side], edge[side]))}.{_short(edge.get(f'{side}Handle') or '?')}"
            for side in ("source", "target")
        }
        return say(_WORDS[change.kind], **end_texts)
    if change.kind == "workflow changed":
        return say(_WORDS[change.kind], key=_short(change.key))
    name = say(_NAME, name=_short(change.name), type=_short(change.type))
    if change.kind == "node changed":
        row = "node unset" if change.after is None else change.kind
        return say(_WORDS[row], name=name, key=_short(change.key), after=_value(change.after))
    return say(_WORDS[change.kind], name=name)


def _short(text: Any) -> str:
    return shortened(str(text), 60)


def _value(value: Any) -> str:
    return shortened(printed(value), 80)


def _nodes(before: Workflow, after: Workflow) -> Iterator[WorkflowChange]:
    old = {node["id"]: node for node in before.raw.get("nodes") or ()}
    new = {node["id"]: node for node in after.raw.get("nodes") or ()}
    for id_, node in old.items():
        if id_ not in new:
            yield WorkflowChange("node removed", id_, _title(node), node["type"], before=dict(node))
    for id_, node in new.items():
        if (was := old.get(id_)) is None:
            yield WorkflowChange("node added", id_, _title(node), node["type"], after=dict(node))
        elif was is not node:
            for key, one, other in _members(was, node):
                yield WorkflowChange("node changed", id_, _title(node), node["type"], key, one, other)


def _title(node: Mapping[str, Any]) -> str:
    return str(node.get("displayName") or node["id"])


def _edges(before: Workflow, after: Workflow) -> Iterator[WorkflowChange]:
    old = {edge["id"]: edge for edge in before.raw.get("edges") or ()}
    new = {edge["id"]: edge for edge in after.raw.get("edges") or ()}
    for id_, edge in old.items():
        if id_ not in new:
            yield WorkflowChange("edge removed", id_, before=dict(edge))
    for id_, edge in new.items():
        if (was := old.get(id_)) is None:
            yield WorkflowChange("edge added", id_, after=dict(edge))
        elif was is not edge and not _same(was, edge):
            yield WorkflowChange("edge changed", id_, before=dict(was), after=dict(edge))


def _rest(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[WorkflowChange]:
    for key in dict.fromkeys((*before, *after)):
        if key in ("nodes", "edges", "rev"):
            continue
        one, other = before.get(key), after.get(key)
        if key in ("interfaceInputs", "interfaceOutputs"):
            for name, was, is_now in _pairs(one or {}, other or {}):
                yield WorkflowChange("workflow changed", key=f"{key}.{name}", before=was, after=is_now)
        elif not _same(one, other):
            yield WorkflowChange("workflow changed", key=key, before=one, after=other)


def _members(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key, one, other in _pairs(before, after):
        if key in _HIDDEN:
            continue
        if key in _SECTIONS and isinstance(one, dict | None) and isinstance(other, dict | None):
            for name, was, is_now in _pairs(one or {}, other or {}):
                yield f"{key}.{name}", was, is_now
        else:
            yield key, one, other


def _pairs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(key, before, after) of each difference; None: it is missing."""
    for key in dict.fromkeys((*before, *after)):
        one, other = before.get(key), after.get(key)
        if not _same(one, other):
            yield key, one, other


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return one is other or (type(one) is type(other) and bool(one == other))
