"""From a patch as it is written to operations on ids: both forms of naming nodes and edges, and the rules for new ones.

    by id       /nodes/<id>, and for a new node /nodes/<localId>
    by place    /nodes/-, /nodes/<place in the original list>; the value of a new node has its `localId`

An existing id is never taken for a place. In a patch of the second form, a number that is both is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tavern_core.graph.json_patch import Operation, PointerParts
from tavern_core.graph.patch_problems import PatchProblem, PatchRefused, unknown_name_problem
from tavern_core.graph.patch_view import DOCUMENT_KEYS, EDGE_KEYS, NODE_KEYS, SECTIONS
from tavern_core.model.json_pointer import exact_pointer
from tavern_core.model.workflow import Workflow

_WHAT: Final = {"nodes": "node", "edges": "edge"}
_KEYS: Final = {"nodes": NODE_KEYS, "edges": EDGE_KEYS}
_IGNORED: Final = {"nodes": ("id", "position", "localId"), "edges": ("id", "localId")}
_LOCAL: Final = ("localId", "sourceLocalId", "targetLocalId")
_ENDS: Final = (("source", "sourceLocalId"), ("target", "targetLocalId"))
UNSAFE_KEY: Final = "__proto__"
MOST_CHARACTERS: Final = 16_000_000
"""In the values of one patch: as much as a workflow file holds."""


class PatchLocalIds:
    """The new nodes and edges of a patch."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}
        """Key → the operation that adds it."""
        self.edges: dict[str, int] = {}
        self.written: set[str] = set()
        """Keys that are localIds; the others have no name in the patch."""
        self._ignored: dict[str, tuple[int, str]] = {}

    def of(self, section: str) -> dict[str, int]:
        """The local ids of one section."""
        return self.nodes if section == "nodes" else self.edges

    def ignore(self, id_: Any, at: int, key: str) -> None:
        """Remember an `id` in the value of a new node, which has no meaning."""
        if isinstance(id_, str):
            self._ignored.setdefault(id_, (at, key))

    def advice(self, node: str) -> str:
        """Advice for an edge that names a node by the ignored `id` of its value; else empty."""
        if node not in self._ignored:
            return ""
        at, key = self._ignored[node]
        if key in self.written:
            return f"operation {at} adds this node with the localId {key!r}; its `id` is ignored"
        return f'give the node of operation {at} a name: "localId": {node!r}; its `id` is ignored'


def resolve_local_ids(
    workflow: Workflow, operations: Sequence[Operation]
) -> tuple[PatchLocalIds, tuple[Operation, ...]]:
    """The operations on ids, and the new names. Raises PatchRefused: with the problems of all operations."""
    reader = _PatchReader(workflow, operations)
    found: list[Operation] = []
    problems: list[PatchProblem] = []
    for operation in operations:
        try:
            found.append(reader.read(operation))
        except PatchRefused as refused:
            problems.extend(refused.problems)
    if problems:
        raise PatchRefused(*problems)
    return reader.names, tuple(found)


class _PatchReader:
    def __init__(self, workflow: Workflow, operations: Sequence[Operation]) -> None:
        self.names = PatchLocalIds()
        self._listed = {"nodes": [node.id for node in workflow.nodes], "edges": [edge.id for edge in workflow.edges]}
        self._ids = {section: set(ids) for section, ids in self._listed.items()}
        self._is_by_place = any(map(_is_by_place, operations))
        self._characters = MOST_CHARACTERS

    def read(self, operation: Operation) -> Operation:
        self._characters -= _characters(operation)
        if self._characters < 0:
            text = f"the values of the patch hold more than {MOST_CHARACTERS:,} characters"
            raise _refused("PATCH_TOO_LARGE", text, operation, "split the patch")
        source = operation.source
        if source is not None:
            source = self._known(operation, source)
            if operation.op == "move":
                self._judge_change(operation, source)
        if operation.op == "test" or operation.path[:1] not in (("nodes",), ("edges",)):
            self._judge_top(operation, operation.path)
            return replace(operation, path=self._known(operation, operation.path), source=source)
        if len(operation.path) == 2 and operation.op in ("add", "copy", "move"):
            return self._added(operation, source)
        path = self._known(operation, operation.path)
        self._judge_change(operation, path)
        value = operation.value
        if operation.op == "replace" and len(path) == 2:
            value = self._value(operation, path[0], path[1])
        if path[0] == "edges" and len(path) == 3 and path[2] in ("sourceLocalId", "targetLocalId"):
            path = (*path[:2], path[2].removesuffix("LocalId"))
        return replace(operation, path=path, source=source, value=value)

    def _added(self, operation: Operation, source: PointerParts | None) -> Operation:
        """An operation that makes a new node or edge."""
        section, key = operation.path[0], operation.path[1]
        if operation.op == "move":
            text = f"a {_WHAT[section]} keeps its id"
            raise _refused("READ_ONLY", text, operation, "set displayName, or copy and remove it")
        if operation.op == "copy" and (source is None or source[:1] != (section,) or len(source) != 2):
            raise _refused(
                "BAD_SHAPE", f"only a {_WHAT[section]} can be copied here", operation, f"from: /{section}/<id>"
            )
        local_id = operation.value.get("localId") if isinstance(operation.value, dict) else None
        is_place = key == "-" or (self._is_by_place and key.isdecimal() and key not in self._ids[section])
        if is_place:
            key = f"op {operation.at}" if local_id is None else local_id
        self._judge_local_id(operation, section, key, local_id, is_place)
        if not is_place or local_id is not None:
            self.names.written.add(key)
        self.names.of(section)[key] = operation.at
        value = operation.value
        if operation.op == "add":
            if section == "nodes" and isinstance(value, dict):
                self.names.ignore(value.get("id"), operation.at, key)
            value = self._value(operation, section, key)
        return replace(operation, path=(section, key), source=source, value=value)

    def _judge_local_id(self, operation: Operation, section: str, key: Any, local_id: Any, is_place: bool) -> None:
        what = _WHAT[section]
        for name in (key, local_id):
            if name is not None and (not isinstance(name, str) or not 1 <= len(name) <= 100 or "/" in name):
                text = f"the localId of a {what} is text of 1 to 100 characters without a slash, got {name!r:.120}"
                raise _refused("BAD_LOCAL_ID", text, operation, f'for example "{what}1"')
        if not is_place and local_id is not None and local_id != key:
            text = f"the new {what} is called {key!r} in the path and {local_id!r} in `localId`"
            raise _refused("LOCAL_ID_MISMATCH", text, operation, "use one name, or leave `localId` out")
        if key in self._ids[section]:
            fix = f"choose another localId; to change the {what}, replace its parts: {exact_pointer((section, key))}/…"
            if is_place:
                raise _refused("LOCAL_ID_TAKEN", f"there is a {what} with the id {key!r} already", operation, fix)
            text = f"there is a {what} {key!r} already"
            raise _refused(f"{what.upper()}_EXISTS", text, operation, fix)
        if key in self.names.of(section):
            text = f"operation {self.names.of(section)[key]} adds a {what} with the localId {key!r}, too"
            raise _refused("DUPLICATE_LOCAL_ID", text, operation, "choose another localId")

    def _value(self, operation: Operation, section: str, key: str) -> dict[str, Any]:
        """The value of a whole node or edge, without what the host sets."""
        value, what = operation.value, _WHAT[section]
        if not isinstance(value, dict):
            raise _refused("BAD_SHAPE", f"a {what} is an object", operation, f"keys: {', '.join(_KEYS[section])}")
        found = {name: item for name, item in value.items() if name not in _IGNORED[section]}
        if section == "edges":
            for end, local in _ENDS:
                if local in found:
                    name = found.pop(local)
                    if found.get(end, name) != name:
                        text = f"the edge has the {end} {found[end]!r:.100} and the {local} {name!r:.100}"
                        raise _refused("CONFLICTING_END", text, operation, f"leave {local} out")
                    found[end] = name
                if not isinstance(found.get(end), str):
                    text = f"the edge has no {end}"
                    raise _refused("MISSING_END", text, operation, f'"{end}": "<id or localId of a node>"')
        elif not isinstance(found.get("type"), str) or not found["type"]:
            text = f"the node {key!r} has no type"
            raise _refused("MISSING_TYPE", text, operation, '"type": "<namespace>:<name>"')
        for name in found:
            if name not in _KEYS[section]:
                wrong = unknown_name_problem(
                    "UNKNOWN_KEY", f"a {what} has no key", name, _KEYS[section], op=operation.at
                )
                raise PatchRefused(replace(wrong, pointer=exact_pointer((*operation.path, name))))
        return found

    def _known(self, operation: Operation, parts: PointerParts) -> PointerParts:
        """A path with the id in place of a number."""
        self._judge_top(operation, parts)
        if len(parts) < 2 or parts[0] not in SECTIONS:
            return parts
        section, key = parts[0], parts[1]
        listed, new = self._listed[section], self.names.of(section)
        is_place = key.isdecimal() and len(key) < 10 and int(key) < len(listed)
        if key in self._ids[section] or key in new:
            if is_place and self._is_by_place and listed[int(key)] != key:
                text = f"{key!r} is the id of one {_WHAT[section]} and the place of another, {listed[int(key)]!r}"
                raise _refused(
                    "AMBIGUOUS_PATH", text, operation, f"write {exact_pointer((section, listed[int(key)]))}", parts
                )
            return parts
        if is_place:
            return (section, listed[int(key)], *parts[2:])
        known = [*listed[:1_000], *new]
        wrong = unknown_name_problem("PATH_MISSING", f"there is no {_WHAT[section]}", key, known, op=operation.at)
        code = "TEST_FAILED" if operation.op == "test" else "PATH_MISSING"
        raise PatchRefused(replace(wrong, code=code, pointer=exact_pointer(parts)))

    def _judge_top(self, operation: Operation, parts: PointerParts) -> None:
        if parts and parts[0] not in DOCUMENT_KEYS:
            wrong = unknown_name_problem(
                "UNKNOWN_KEY", "a workflow has no key", parts[0], DOCUMENT_KEYS, op=operation.at
            )
            raise PatchRefused(replace(wrong, pointer=exact_pointer(parts)))
        if operation.op != "test" and parts is operation.path and (not parts or parts[0] == "rev"):
            what = "`rev` is counted by the host" if parts else "a workflow is not replaced as a whole"
            raise _refused("READ_ONLY", what, operation, "patch single nodes and edges")

    def _judge_change(self, operation: Operation, path: PointerParts) -> None:
        """Refuse changes of what the host sets, and unknown keys of nodes and edges."""
        section = path[0] if path else ""
        if section in SECTIONS and len(path) == 1:
            text = f"{section} are not replaced as a whole"
            raise _refused("READ_ONLY", text, operation, f"patch single ones: /{section}/<id or localId>")
        if path == operation.source:
            return
        if section in SECTIONS and len(path) > 2:
            if path[2] in _IGNORED[section]:
                text = f"`{path[2]}` is set by the host"
                raise _refused("READ_ONLY", text, operation, "leave the operation out")
            local = ("sourceLocalId", "targetLocalId") if section == "edges" else ()
            if path[2] not in (*_KEYS[section], *local):
                what = f"a {_WHAT[section]} has no key"
                wrong = unknown_name_problem("UNKNOWN_KEY", what, path[2], _KEYS[section], op=operation.at)
                raise PatchRefused(replace(wrong, pointer=exact_pointer(path)))


def _is_by_place(operation: Operation) -> bool:
    path, value = operation.path, operation.value
    if len(path) == 2 and path[0] in SECTIONS:
        return path[1] == "-" or (path[1].isdecimal() and isinstance(value, dict) and any(k in value for k in _LOCAL))
    return False


def _characters(operation: Operation) -> int:
    """The characters in the value. Raises PatchRefused: a name that programs in a browser take for something else."""
    level: list[Any] = [dict.fromkeys((*operation.path, *(operation.source or ()))), operation.value]
    count = 0
    while level:
        deeper: list[Any] = []
        for item in level:
            if type(item) is str:
                count += len(item)
            elif type(item) is dict:
                if UNSAFE_KEY in item:
                    raise _refused("UNSAFE_KEY", f"{UNSAFE_KEY!r} is not a name", operation, "choose another key")
                count += sum(map(len, item))
                deeper.extend(item.values())
            elif type(item) is list:
                deeper.extend(item)
        level = deeper
    return count


def _refused(
    code: str, text: str, operation: Operation, fix: str = "", parts: PointerParts | None = None
) -> PatchRefused:
    return PatchRefused(
        PatchProblem(
            code, text, op=operation.at, pointer=exact_pointer(operation.path if parts is None else parts), hint=fix
        )
    )
