"""From the text of a workflow file to a Workflow, or to findings that name line and column; and back, untouched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from tavern_core.errors import Finding, WorkflowInvalid
from tavern_core.kernel.texts.explain import explain
from tavern_core.kernel.texts.json_reader import JsonDocument, read_json
from tavern_core.model.workflow import Workflow

CODE: Final = "WORKFLOW_INVALID"
SUFFIX: Final = ".json"
LARGEST_FILE: Final = 64_000_000
"""Bytes of one workflow file."""
MOST_VALUES: Final = 5_000_000
_KEYS: Final = ("nodes", "edges")


def read_workflow(text: str | bytes, file: str, id_: str) -> Workflow:
    """Read one workflow file.

    Args:
        text: characters, or bytes in UTF-8.
        file: its name in findings.
        id_: the id it goes by, usually the file's name without its ending.

    Raises:
        WorkflowInvalid: it is no workflow; one finding for each thing that is wrong, with line and column.
    """
    document = read_json(text, file, code=CODE, largest=LARGEST_FILE, most_values=MOST_VALUES)
    if document.findings:
        raise _invalid(id_, document.findings)
    return workflow_of(document.data, id_, document)


def workflow_of(data: Any, id_: str = "", document: JsonDocument | None = None) -> Workflow:
    """A workflow that is data already. Raises as `read_workflow`."""
    if not isinstance(data, Mapping) or not any(key in data for key in _KEYS):
        hint = 'a workflow file holds {"nodes": [...], "edges": [...]}'
        where = document.locate(()) if document is not None else None
        raise _invalid(id_, (Finding(CODE, "this is no workflow", hint, where),))
    try:
        found = Workflow.model_validate(data)
    except ValidationError as error:
        refusals = explain(error, data, Workflow)
        findings = tuple(
            Finding(CODE, each.message, each.hint, document.locate(each.path) if document is not None else None)
            for each in refusals
        )
        raise _invalid(id_, findings) from None
    return found.model_copy(update={"id": id_ or found.name, "raw": data})


def write_workflow(workflow: Workflow) -> str:
    """The text of its file: the document as it was read, in the form that editors write."""
    return json.dumps(workflow.raw, ensure_ascii=False, indent=2) + "\n"


def _invalid(id_: str, findings: tuple[Finding, ...]) -> WorkflowInvalid:
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    return WorkflowInvalid(
        f"workflow {id_ or 'without a name'}: {findings[0].located}{more}", hint=findings[0].hint, findings=findings,
        problems=[{"code": CODE, "message": f.message, "hint": f.hint, "where": str(f.where or "")} for f in findings],
    )  # fmt: skip
