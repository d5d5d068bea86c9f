"""From the text of a workflow file to a Workflow, or to findings that name line and column; and back, untouched.

Workflow files of other products are recognised by the shape that each product's export always has, and that no file of
ours can have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import Finding, Location, WorkflowInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model import depths
from tavern_core.model.safe_printing import and_more
from tavern_core.schema.bounded_json_copying import json_copy

if TYPE_CHECKING:
    from tavern_core.kernel.text.json_document import JsonDocument
    from tavern_core.model.workflow import Workflow


CODE: Final = "WORKFLOW_INVALID"
SUFFIX: Final = ".json"
LARGEST_FILE: Final = 16_000_000
"""Bytes of one workflow file; 10,000 nodes take about three million."""
MOST_VALUES: Final = 2_000_000
KEYS: Final = ("nodes", "edges", "interfaceInputs", "interfaceOutputs")
"""A workflow file has one of these keys at least: an interface alone is a workflow that is not yet built."""


def read_workflow(text: str | bytes, file: str, id_: str) -> Workflow:
    """Read one workflow file.

    Args:
        text: characters, or bytes in UTF-8.
        file: its name in findings.
        id_: the id it goes by, usually the file's name without its ending.

    Raises:
        WorkflowInvalid: it is not a workflow; one finding for each thing that is wrong, with line and column.
    """
    from tavern_core.kernel.text.json_document import read_json

    document = read_json(text, file, code=CODE, largest=LARGEST_FILE, most_values=MOST_VALUES)
    if document.findings:
        other = foreign_text(text if isinstance(text, str) else text.decode("utf-8", "replace"))
        raise _invalid(id_, document.findings if other is None else (_of_another(other, Location(file, 1, 1)),))
    return workflow_of(document.data, id_, document)


def workflow_of(data: Any, id_: str = "", document: JsonDocument | None = None) -> Workflow:
    """A workflow that is data already; it shares no objects with `data`, which must be JSON. Raises as `read_workflow`.

    Args:
        document: the document from which `data` was just read; `data` is then checked in place and not shared.
    """
    from pydantic import ValidationError

    from tavern_core.model.pydantic_errors import explain
    from tavern_core.model.workflow import Workflow  # here: its models take as long to load as all of this package

    if document is None and isinstance(data, Mapping):
        data, problem = json_copy(dict(data), max_depth=depths.VALUE, max_nodes=MOST_VALUES)
        if problem is not None:
            raise _invalid(id_, (Finding(CODE, f"{problem.path or 'it'} {problem.message}", problem.hint),))
    if (other := foreign(data)) is not None:
        raise _invalid(id_, (_of_another(other, None if document is None else document.locate(other.place)),))
    if not isinstance(data, Mapping) or not any(key in data for key in KEYS):
        hint = 'a workflow file holds {"nodes": [...], "edges": [...]}'
        where = document.locate(()) if document is not None else None
        raise _invalid(id_, (Finding(CODE, "this is not a workflow", hint, where),))
    try:
        found = Workflow.model_validate(data)
    except ValidationError as error:
        refusals = explain(error, data, Workflow)
        findings = tuple(
            Finding(CODE, each.message, each.hint, document.locate(each.path))
            if document is not None
            else Finding(CODE, each.located, each.hint)
            for each in refusals
        )
        raise _invalid(id_, findings) from None
    return found.model_copy(update={"id": id_ or found.name, "raw": data})


def _of_another(other: ForeignFormat, where: Location | None) -> Finding:
    hint = f'run it with {other.product}; a workflow of this host holds {{"nodes": [...], "edges": [...]}} (docs/workflows.md), with types of `tavern nodes list`'
    return Finding(CODE, f"this is {other.what}, not a workflow of this host", hint, where)


def document_of(workflow: Workflow) -> Mapping[str, Any]:
    """The document of a workflow: as it was read, or made from a workflow that a program created."""
    if workflow.raw:
        return workflow.raw
    found: dict[str, Any] = workflow.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"nodes": [], "edges": [], **found}


def write_workflow(workflow: Workflow) -> str:
    """The text of its file: the document as it was read, in the form that editors write."""
    return json.dumps(document_of(workflow), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _invalid(id_: str, findings: tuple[Finding, ...]) -> WorkflowInvalid:
    return WorkflowInvalid(
        f"workflow {id_ or 'without a name'}: {findings[0].located}{and_more(len(findings) - 1)}", hint=findings[0].hint, findings=findings,
        problems=[{"code": CODE, "message": f.message, "hint": f.hint, "where": str(f.where or "")} for f in findings],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """A format of another product."""

    product: str
    what: str
    """``a workflow as the editor of ComfyUI saves it``"""
    place: tuple[str | int, ...] = ()
    """The place in the document that identifies the format."""


def foreign(data: Any) -> ForeignFormat | None:
    """The product that wrote `data`, which is JSON; None: unknown, or ours."""
    if isinstance(data, Mapping) and "nodes" in data and "edges" in data:
        return None
    return next(
        (
            ForeignFormat(product, what, place)
            for product, what, recognise in _FORMATS
            if (place := recognise(data)) is not None
        ),
        None,
    )


def foreign_text(text: str) -> ForeignFormat | None:
    """The same for a text that is not JSON: Dify exports YAML."""
    begun = text[:100_000].removeprefix("\ufeff")
    if all(re.search(pattern, begun, re.MULTILINE) for pattern in (r"^app:\s*$", r"^workflow:\s*$", r"^\s+graph:\s*$")):
        return ForeignFormat("Dify", _DIFY)
    return None


_Tell = Callable[[Any], "tuple[str | int, ...] | None"]
_DIFY: Final = "an app exported from Dify"


def _has(data: Any, **members: type) -> bool:
    """Whether it is an object with these members, each of its type."""
    return isinstance(data, Mapping) and all(isinstance(data.get(name), kind) for name, kind in members.items())


def _comfy_editor(data: Any) -> tuple[str | int, ...] | None:
    if not _has(data, nodes=list, links=list):
        return None
    has = any(isinstance(link, list) or (isinstance(link, Mapping) and "origin_id" in link) for link in data["links"])
    return ("links",) if has or any(isinstance(node, Mapping) and "pos" in node for node in data["nodes"]) else None


def _comfy_api(data: Any) -> tuple[str | int, ...] | None:
    if not isinstance(data, Mapping) or not data:
        return None
    if isinstance(data.get("prompt"), Mapping):
        found = _comfy_api(data["prompt"])
        return None if found is None else ("prompt", *found)
    is_graph = all(_has(node, class_type=str, inputs=Mapping) for node in data.values())
    return (next(iter(data)), "class_type") if is_graph else None


def _n8n(data: Any) -> tuple[str | int, ...] | None:
    if isinstance(data, list) and data:  # `n8n export:workflow --all` writes a list
        found = _n8n(data[0])
        return None if found is None else (0, *found)
    if not _has(data, nodes=list, connections=Mapping):
        return None
    has = any(_has(node, parameters=Mapping) for node in data["nodes"])
    return ("connections",) if has else None


def _langflow(data: Any) -> tuple[str | int, ...] | None:
    if _has(data, flows=list) and data["flows"]:
        found = _langflow(data["flows"][0])
        return None if found is None else ("flows", 0, *found)
    inner = data.get("data") if isinstance(data, Mapping) and "nodes" not in data else None
    return ("data", "nodes") if _has(inner, nodes=list, edges=list) else None


def _dify(data: Any) -> tuple[str | int, ...] | None:
    is_app = _has(data, app=Mapping) and _has(data.get("workflow"), graph=Mapping)
    return ("workflow", "graph") if is_app else None


_FORMATS: Final[tuple[tuple[str, str, _Tell], ...]] = (
    ("ComfyUI", "a workflow as the editor of ComfyUI saves it", _comfy_editor),
    ("ComfyUI", "a workflow in the API format of ComfyUI", _comfy_api),
    ("n8n", "a workflow exported from n8n", _n8n),
    ("Langflow", "a flow exported from Langflow", _langflow),
    ("Dify", _DIFY, _dify),
)
