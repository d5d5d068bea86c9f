"""What is different between two versions of a workflow: as data, and in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from tavern_core.errors import sayable
from tavern_core.frozen import dataclass
from tavern_core.model.language import Language, Row, say, text_in

_WORDS: Final[Mapping[str, Row]] = {
    "node.added": ("add node {id} ({type})", "新增节点 {id}（{type}）"),
    "node.removed": ("remove node {id} ({type})", "删除节点 {id}（{type}）"),
    "node.changed": ("node {id}: {key} {change}", "节点 {id}：{key} {change}"),
    "edge.added": ("connect {source} to {target}", "连接 {source} 到 {target}"),
    "edge.removed": ("disconnect {source} from {target}", "断开 {source} 到 {target} 的连接"),
    "input.added": ("add input {id} ({type})", "新增输入 {id}（{type}）"),
    "input.removed": ("remove input {id} ({type})", "删除输入 {id}（{type}）"),
    "input.changed": ("input {id}: {key} {change}", "输入 {id}：{key} {change}"),
    "output.added": ("add output {id} ({type})", "新增输出 {id}（{type}）"),
    "output.removed": ("remove output {id} ({type})", "删除输出 {id}（{type}）"),
    "output.changed": ("output {id}: {key} {change}", "输出 {id}：{key} {change}"),
    "workflow.changed": ("{key} {change}", "{key} {change}"),
}
_CHANGE: Final[Row] = ("from {before} to {after}", "由 {before} 改为 {after}")
_SET: Final[Row] = ("set to {after}", "设为 {after}")
_UNSET: Final[Row] = ("removed (it was {before})", "已删除（原为 {before}）")
_WITH: Final[Row] = ("{text} with {values}", "{text}，{values}")
_NOTHING: Final[Row] = ("nothing changes", "没有改变")
_LONGEST: Final = 80
_SKIPPED: Final = frozenset({"id", "position", "width", "height"})
"""Keys of a node that are only drawn, or are its name."""
_PARTS: Final = ("inputValues", "configValues")
"""Keys of a node whose members are compared one by one."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference."""

    kind: str
    """node, edge, input, output or workflow, and added, removed or changed: ``node.added``."""
    id: str = ""
    type: str = ""
    """Of a node, its type; of an input or output of the workflow, its dataFlowType."""
    key: str = ""
    """Of a changed value: ``inputValues.text``."""
    before: Any = None
    after: Any = None
    source: str = ""
    """Of an edge: ``node.handle``."""
    target: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Of a new node: its input and configuration values."""

    def to_json(self) -> dict[str, Any]:
        texts = {name: getattr(self, name) for name in ("kind", "id", "type", "key", "source", "target")}
        data: dict[str, Any] = {name: text for name, text in texts.items() if text}
        if self.values:
            data["values"] = dict(self.values)
        return data | {"before": self.before, "after": self.after} if self.key else data

    def words(self, language: Language) -> str:
        """The change as one line."""
        change = ""
        if self.key:
            row = _SET if self.before is None else _UNSET if self.after is None else _CHANGE
            change = say(row, before=_short(self.before), after=_short(self.after))
        text = say(
            _WORDS[self.kind], id=self.id, type=self.type, key=self.key, change=change, source=self.source, target=self.target,
        )  # fmt: skip
        if self.values:
            values = ", ".join(f"{key} = {_short(value)}" for key, value in self.values.items())
            text = say(_WITH, text=text, values=values)
        return sayable(text_in(text, language))


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """The differences of two workflow documents, in reading order; positions, ids of edges and `rev` do not count."""
    return (
        *_interface(before, after, "interfaceInputs", "input"),
        *_nodes(_by_id(before), _by_id(after)),
        *_edges(before, after),
        *_interface(before, after, "interfaceOutputs", "output"),
        *_texts(before, after),
    )


def in_words(changes: Sequence[Change], language: Language) -> str:
    """The changes, one a line."""
    return "\n".join(change.words(language) for change in changes) or text_in(say(_NOTHING), language)


def _by_id(workflow: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(node.get("id")): node for node in workflow.get("nodes") or () if isinstance(node, Mapping)}


def _nodes(old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]) -> Iterator[Change]:
    for id_, node in old.items():
        if id_ not in new:
            yield Change("node.removed", id_, str(node.get("type")))
    for id_, node in new.items():
        if id_ not in old:
            values = {key: value for part in _PARTS for key, value in (node.get(part) or {}).items()}
            yield Change("node.added", id_, str(node.get("type")), values=values)
        elif old[id_] != node:
            yield from _members("node.changed", id_, str(node.get("type")), old[id_], node)


def _members(kind: str, id_: str, type_: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for key in dict.fromkeys((*old, *new)):
        if key in _SKIPPED:
            continue
        one, other = old.get(key), new.get(key)
        if key in _PARTS:
            one, other = one or {}, other or {}
            for name in dict.fromkeys((*one, *other)):
                if one.get(name) != other.get(name):
                    yield Change(kind, id_, type_, f"{key}.{name}", one.get(name), other.get(name))
        elif one != other:
            yield Change(kind, id_, type_, key, one, other)


def _edges(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    old, new = _ends(before), _ends(after)
    for source, target in old:
        if (source, target) not in new:
            yield Change("edge.removed", source=source, target=target)
    for source, target in new:
        if (source, target) not in old:
            yield Change("edge.added", source=source, target=target)


def _ends(workflow: Mapping[str, Any]) -> dict[tuple[str, str], None]:
    return {
        (_end(edge, "source"), _end(edge, "target")): None
        for edge in workflow.get("edges") or ()
        if isinstance(edge, Mapping)
    }


def _end(edge: Mapping[str, Any], side: str) -> str:
    handle = edge.get(f"{side}Handle")
    return f"{edge.get(side)}.{handle}" if handle else str(edge.get(side))


def _interface(before: Mapping[str, Any], after: Mapping[str, Any], section: str, what: str) -> Iterator[Change]:
    old, new = before.get(section) or {}, after.get(section) or {}
    for key in old:
        if key not in new:
            yield Change(f"{what}.removed", key, str(old[key].get("dataFlowType", "WILDCARD")))
    for key, slot in new.items():
        type_ = str(slot.get("dataFlowType", "WILDCARD"))
        if key not in old:
            yield Change(f"{what}.added", key, type_)
        elif old[key] != slot:
            yield from _members(f"{what}.changed", key, type_, old[key], slot)


def _texts(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    for key in ("name", "description"):
        if (before.get(key) or "") != (after.get(key) or ""):
            yield Change("workflow.changed", key=key, before=before.get(key) or None, after=after.get(key) or None)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
