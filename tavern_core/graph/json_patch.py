"""JSON Patch (RFC 6902) for plain documents: reads operations, applies each in place, and explains what fails.

The library `jsonpatch` applies them. Before that, what a copy or move would add is measured, so that a short patch cannot
make a large document; afterwards, a failure is explained with the names that exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.patch_problems import PatchProblem, PatchRefused, unknown_name_problem
from tavern_core.model import depths
from tavern_core.model.json_pointer import exact_pointer, split_pointer
from tavern_core.model.safe_printing import printed, said

MOST_OPERATIONS: Final = 10_000
MOST_VALUES: Final = 500_000
"""Values in all operations of a patch together, and values that it copies and moves."""
OPS: Final = ("add", "remove", "replace", "move", "copy", "test")
_NEEDS: Final = {"add": "value", "replace": "value", "test": "value", "move": "from", "copy": "from"}
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")
PointerParts = tuple[str, ...]
"""A JSON Pointer, parted and unescaped."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a patch."""

    at: int
    """Its place in the patch, from 0."""
    op: str
    path: PointerParts
    source: PointerParts | None = None
    """`from`."""
    value: Any = None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"op": self.op, "path": exact_pointer(self.path)}
        if self.source is not None:
            data["from"] = exact_pointer(self.source)
        if _NEEDS.get(self.op) == "value":
            data["value"] = self.value
        return data


class PatchCopyBudget:
    """The number of values that the operations of a patch may still copy and move."""

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def take(self, operation: Operation, value: Any) -> None:
        """Count `value`, which will be at the path of `operation`. Raises PatchRefused."""
        count, depth = measure_json(value, self._left)
        self._left -= count
        if self._left < 0:
            text = f"the operations copy and move more than {MOST_VALUES:,} values"
            raise PatchRefused(PatchProblem("PATCH_TOO_LARGE", text, op=operation.at, hint="copy less"))
        if depth + len(operation.path) > depths.VALUE:
            text = f"a value would be nested more than {depths.VALUE} levels deep"
            place = exact_pointer(operation.path[:10])
            raise PatchRefused(
                PatchProblem("PATCH_TOO_DEEP", text, op=operation.at, pointer=place, hint="write it flatter")
            )


def measure_json(value: Any, most: int) -> tuple[int, int]:
    """(values, levels) of JSON; the walk ends after `most` values."""
    if type(value) not in (dict, list):
        return 1, 0
    count, depth, level = 1, 0, [value]
    while level and count <= most:
        deeper: list[Any] = []
        for item in level:
            if type(item) is dict:
                deeper.extend(item.values())
            elif type(item) is list:
                deeper.extend(item)
            else:
                continue
        if not deeper and not any(type(item) in (dict, list) for item in level):
            break
        depth += 1
        count += len(deeper)
        level = deeper
    return count, depth


def read_operations(patch: Any) -> tuple[Operation, ...]:
    """The operations of a patch, which must be JSON already. Unknown members are ignored, as RFC 6902 requires.

    Raises:
        PatchRefused: with the problems of all operations.
    """
    if not isinstance(patch, list | tuple):
        text = f"a patch is a list of operations, got {_kind(patch)}"
        raise PatchRefused(
            PatchProblem("NOT_A_PATCH", text, hint='[{"op": "add", "path": "/nodes/<localId>", "value": {...}}]')
        )
    if len(patch) > MOST_OPERATIONS:
        text = f"{len(patch):,} operations; at most {MOST_OPERATIONS:,}"
        raise PatchRefused(PatchProblem("TOO_MANY_OPERATIONS", text, hint="split the patch"))
    found: list[Operation] = []
    problems: list[PatchProblem] = []
    for at, written in enumerate(patch):
        try:
            found.append(_read(at, written))
        except PatchRefused as refused:
            problems.extend(refused.problems)
    if problems:
        raise PatchRefused(*problems)
    return tuple(found)


def _read(at: int, written: Any) -> Operation:
    if not isinstance(written, dict):
        text = f"an operation is an object, got {_kind(written)}"
        raise PatchRefused(PatchProblem("NOT_A_PATCH", text, op=at, hint='{"op": "remove", "path": "/edges/<id>"}'))
    op = written.get("op")
    if not isinstance(op, str) or op not in OPS:
        if "op" not in written or not isinstance(op, str):
            text = "`op` is missing" if "op" not in written else f"`op` is text, got {_kind(op)}"
            raise PatchRefused(PatchProblem("UNKNOWN_OP", text, op=at, hint=f"one of {', '.join(OPS)}", allowed=OPS))
        raise PatchRefused(unknown_name_problem("UNKNOWN_OP", "there is no operation", op, OPS, op=at))
    path = _parts(at, written, "path")
    source = _parts(at, written, "from") if _NEEDS.get(op) == "from" else None
    if _NEEDS.get(op) == "value" and "value" not in written:
        raise _lacks(at, op, "value")
    return Operation(at, op, path, source, written.get("value"))


def _parts(at: int, written: dict[str, Any], member: str) -> PointerParts:
    if member not in written:
        raise _lacks(at, str(written["op"]), member)
    text = written[member]
    if not isinstance(text, str):
        raise PatchRefused(
            PatchProblem("BAD_POINTER", f"`{member}` is text, got {_kind(text)}", op=at, hint='for example "/nodes/a"')
        )
    if text and not text.startswith("/"):
        fix = f"write {'/' + text!r:.200}"
        raise PatchRefused(
            PatchProblem("BAD_POINTER", f"`{member}` must begin with a slash, got {text!r:.200}", op=at, hint=fix)
        )
    if "~" in text and _BAD_ESCAPE.search(text):
        raise PatchRefused(
            PatchProblem("BAD_POINTER", f"{text!r:.200}: ~ must be written as ~0, / as ~1", op=at, hint="escape it")
        )
    if text.count("/") > depths.VALUE:
        raise PatchRefused(PatchProblem("PATCH_TOO_DEEP", f"`{member}` has more than {depths.VALUE} parts", op=at))
    return tuple(split_pointer(text))


def _lacks(at: int, op: str, member: str) -> PatchRefused:
    return PatchRefused(PatchProblem("MISSING_MEMBER", f"{op!r} needs `{member}`", op=at, hint=f'add "{member}": ...'))


def apply_operation(document: Any, operation: Operation, allowance: PatchCopyBudget) -> Any:
    """Apply one operation in place; the new document, which is another object only if its root is replaced.

    Raises:
        PatchRefused: it fails; then the document may be half changed.
    """
    from jsonpatch import JsonPatch, JsonPatchException, JsonPatchTestFailed
    from jsonpointer import JsonPointerException

    _measure(document, operation, allowance)
    try:
        return JsonPatch.operations[operation.op](operation.to_json()).apply(document)
    except JsonPatchTestFailed:
        raise PatchRefused(_failed_test(document, operation)) from None
    except (JsonPatchException, JsonPointerException) as error:
        raise PatchRefused(_explained(document, operation, error)) from None


def apply_patch(document: Any, patch: Any) -> Any:
    """A patched copy of any JSON document. Raises PatchRefused; the document never changes."""
    operations, allowance, changed = read_operations(patch), PatchCopyBudget(), plain_copy(document)
    for operation in operations:
        changed = apply_operation(changed, operation, allowance)
    return changed


def plain_copy(value: Any) -> Any:
    """A copy of JSON of bounded depth."""
    if type(value) is dict:
        return {k: v if type(v) not in (dict, list) else plain_copy(v) for k, v in value.items()}
    return [plain_copy(item) for item in value] if type(value) is list else value


def _measure(document: Any, operation: Operation, allowance: PatchCopyBudget) -> None:
    if operation.source is None:
        if operation.op in ("add", "replace"):
            allowance.take(operation, operation.value)
        return
    if operation.op == "move" and operation.path[: len(operation.source)] == operation.source != operation.path:
        text = f"{exact_pointer(operation.source)!r:.200} cannot be moved into itself"
        raise PatchRefused(
            PatchProblem(
                "MOVE_INTO_ITSELF", text, op=operation.at, pointer=exact_pointer(operation.path), hint="copy it instead"
            )
        )
    for value in _reached(document, operation.source):
        allowance.take(operation, value)


def _reached(document: Any, parts: PointerParts) -> Iterator[Any]:
    """The value at a path, if there is one."""
    for part in parts:
        if type(document) is dict and part in document:
            document = document[part]
        elif type(document) is list and _INDEX.fullmatch(part) and int(part) < len(document):
            document = document[int(part)]
        else:
            return
    yield document


def _failed_test(document: Any, operation: Operation) -> PatchProblem:
    found = list(_reached(document, operation.path))
    place = exact_pointer(operation.path)
    if found:
        text = f"{place!r:.200} is {_short(found[0])}, not {_short(operation.value)}"
        hint = "read the workflow again, and test what is there"
        return PatchProblem("TEST_FAILED", text, op=operation.at, pointer=place, hint=hint)
    failed = PatchProblem("TEST_FAILED", f"there is nothing at {place!r:.200} to test", op=operation.at, pointer=place)
    missing = _missing(document, operation.at, operation.path, must_exist=True)
    if missing is None or missing.code != "PATH_MISSING":
        return failed
    return replace(failed, hint=missing.hint, allowed=missing.allowed, nearest=missing.nearest)


def _explained(document: Any, operation: Operation, error: Exception) -> PatchProblem:
    """Why an operation failed; the library's own words if nothing better is found."""
    at = operation.at
    if operation.source is not None and (why := _missing(document, at, operation.source, must_exist=True)):
        return why
    must_exist = operation.op in ("remove", "replace")
    if (why := _missing(document, at, operation.path, must_exist=must_exist)) is not None:
        if why.pointer != exact_pointer(operation.path) or why.code != "PATH_MISSING":
            return why
        other = 'use "add" for a new one' if operation.op == "replace" else "leave the operation out"
        return replace(why, hint=f"{why.hint}; else {other}" if why.hint else other)
    return PatchProblem("PATH_MISSING", said(error), op=at, pointer=exact_pointer(operation.path))


def _missing(document: Any, at: int, parts: PointerParts, *, must_exist: bool) -> PatchProblem | None:
    """The first part of a path that leads nowhere.

    Args:
        must_exist: also the last part must exist; else its value may be new.
    """
    for number, part in enumerate(parts):
        place, is_last = exact_pointer(parts[: number + 1]), number == len(parts) - 1
        may_be_new = is_last and not must_exist
        if type(document) is dict:
            if part not in document:
                if may_be_new:
                    return None
                text = f"there is nothing at {place!r:.200}:" + (" it" if number else " the document") + " has no"
                return unknown_name_problem("PATH_MISSING", text, part, document, op=at, pointer=place)
            document = document[part]
        elif type(document) is list:
            most = len(document) if may_be_new else len(document) - 1
            if may_be_new and part == "-":
                return None
            if not _INDEX.fullmatch(part) or int(part) > most:
                names = f"0 to {most}" if most >= 0 else "none"
                text = f"{place!r:.200}: the list has {len(document)} items, {part!r:.100} is not one of them"
                return PatchProblem("BAD_INDEX", text, op=at, pointer=place, hint=f"places: {names}; - for the end")
            if is_last:
                return None
            document = document[int(part)]
        else:
            text = f"{exact_pointer(parts[:number])!r:.200} is {_short(document)} and holds nothing"
            return PatchProblem("NOT_A_CONTAINER", text, op=at, pointer=place, hint="replace it by an object first")
    return None


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{_kind(value)} with {len(value)} {'members' if isinstance(value, dict) else 'items'}"
    return f"{_kind(value)} {printed(value):.80}" if isinstance(value, str) else f"{printed(value):.80}"
