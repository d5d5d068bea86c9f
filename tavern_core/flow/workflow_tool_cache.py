"""A stored cache of the facts that workflow files give about themselves as tools: a start reads only changed files."""

from __future__ import annotations

import os
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tavern_core.errors import StateDamaged
from tavern_core.kernel.files.file_stamp import Stamp, stamp_at

if TYPE_CHECKING:
    from tavern_core.model.workflow import Workflow

_LARGEST: Final = 64_000_000
"""Bytes of the stored file; a larger one is not read."""
_LAYOUT: Final = {"position", "display_name", "custom_description", "custom_slot_descriptions"}


class ToolFacts(NamedTuple):
    """The facts of a workflow file that its tool needs."""

    name: str
    description: str
    version: str
    content: str
    """A hash of the steps, whatever their layout: an approval, a plan or a pin holds for exactly these."""
    input_schema: dict[str, Any]

    @classmethod
    def of(cls, workflow: Workflow) -> ToolFacts:
        from tavern_core.schema.slot_to_schema import workflow_schema

        steps = workflow.model_dump_json(
            include={"nodes", "edges", "interface_outputs"}, exclude={"nodes": {"__all__": _LAYOUT}}
        )
        content = blake2b(steps.encode(), digest_size=16).hexdigest()
        return cls(workflow.name, workflow.description, workflow.version, content, workflow_schema(workflow.inputs()))


class WorkflowToolCache:
    """`ToolFacts` of files, by path and id. A damaged stored file counts as empty.

    Args:
        file: the stored file.
        version: of the host; another version reads all workflow files again.
    """

    def __init__(self, file: Path, version: str) -> None:
        self._file = file
        self._version = version
        self._has_changed = False

    def get(self, path: Path, id_: str) -> ToolFacts | None:
        """The facts of a file; None: it is new or has changed."""
        row = self._rows.get(_key(path, id_))
        if row is None or (stamp := stamp_at(path)) is None or tuple(row[0]) != stamp:
            return None
        return ToolFacts(*row[1:])

    def put(self, path: Path, id_: str, stamp: Stamp | None, facts: ToolFacts) -> None:
        """Store the facts of a file. `stamp` was taken before the file was read; None: it may still change unseen."""
        if stamp is not None:
            self._rows[_key(path, id_)] = [stamp, *facts]
            self._has_changed = True

    def save(self) -> None:
        """Write new facts, keeping those of other projects with this state folder. An unwritable folder is no error."""
        if not self._has_changed:
            return
        from pydantic_core import PydanticSerializationError, to_json

        from tavern_core.kernel.files.atomic_file import write_atomic

        self._has_changed = False
        self._rows = {key: row for key, row in self._rows.items() if os.path.exists(key.partition("\n")[2])}  # noqa: PTH110
        try:
            write_atomic(self._file, to_json({"version": self._version, "files": self._rows}).decode(), durable=False)
        except (StateDamaged, PydanticSerializationError, ValueError):
            return

    @cached_property
    def _rows(self) -> dict[str, list[Any]]:
        from pydantic_core import from_json

        from tavern_core.kernel.files.regular_file import open_regular

        try:
            with open_regular(self._file) as file:
                data = from_json(file.read(min(os.fstat(file.fileno()).st_size, _LARGEST)))
            rows: dict[str, list[Any]] = data["files"] if data["version"] == self._version else {}
            return {key: row for key, row in rows.items() if _is_row(row)}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}


def _key(path: Path, id_: str) -> str:
    return f"{id_}\n{path}"


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 1 + len(ToolFacts._fields)
        and isinstance(row[0], list)
        and all(isinstance(text, str) for text in row[1:5])
        and isinstance(row[5], dict)
    )
