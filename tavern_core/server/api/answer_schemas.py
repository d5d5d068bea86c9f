"""The JSON Schemas of answers, for the OpenAPI document. A test validates real answers against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tavern_core.model.job import JOB_STATUSES

Schema = Mapping[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
_NUMBER_OR_NULL: Final[Schema] = {"type": ["number", "null"]}
_FLAG: Final[Schema] = {"type": "boolean"}
_OBJECT: Final[Schema] = {"type": "object"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_OUTCOME: Final[Schema] = {
    "enum": ["none", "done", "unknown"],
    "description": "Whether the call had an effect.",
}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _or_null(schema: Schema) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def list_of(schema: Schema) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": schema}


def component(name: str) -> dict[str, str]:
    """A reference to one of `COMPONENTS`."""
    return {"$ref": f"#/components/schemas/{name}"}


_JOB: Final[Mapping[str, Schema]] = {
    "jobId": _TEXT,
    "status": {"enum": list(JOB_STATUSES)},
    "tool": _TEXT,
    "progress": {
        "type": ["object", "null"],
        "description": "`done`, `total` and `message`, as the tool last reported them.",
    },
    "questions": {**list_of(_OBJECT), "description": "What it waits for: approvals and questions."},
    "error": _or_null(component("Error")),
    "principal": _TEXT,
    "callId": _TEXT_OR_NULL,
    "createdAt": _TIME,
    "updatedAt": _TIME,
    "pollIntervalMs": {"type": "integer"},
    "ttlMs": {"type": "integer", "description": "How long it is stored after its end."},
    "purpose": _TEXT,
    "requestId": _TEXT,
    "taskId": _TEXT,
    "trace": _OBJECT,
}
COMPONENTS: Final[Mapping[str, dict[str, Any]]] = {
    "Problem": _object(
        {
            "title": _TEXT,
            "status": {"type": "integer"},
            "code": {"type": "string", "description": "A code of the manual page errors.md."},
            "detail": _TEXT,
        },
        {
            "fix": {"type": ["string", "null"], "description": "How to repair it."},
            "findings": {**list_of(_OBJECT), "description": "The places in the body that are wrong."},
            "callId": _TEXT,
            "details": {"type": "object", "description": "More, by the code; `problems` has a JSON Pointer for each."},
            "retryable": _FLAG,
            "retryAfterMs": _NUMBER_OR_NULL,
            "outcome": _OUTCOME,
        },
    ),
    "Error": _object(
        {
            "kind": {"type": "string", "description": "A code of the manual page errors.md."},
            "message": _TEXT,
            "details": _OBJECT,
            "retryable": _FLAG,
            "outcome": _OUTCOME,
            "retryAfterMs": _NUMBER_OR_NULL,
            "fix": {"type": "string", "description": "How to repair it."},
        }
    ),
    "Result": _object(
        {
            "ok": _FLAG,
            "status": {"enum": ["ok", "error", "input_required", "job"]},
            "value": {"description": "The answer of the tool."},
            "content": {**list_of(_OBJECT), "description": "Blocks for a model to read, as in MCP."},
            "evidence": list_of(_object({"type": _TEXT, "ref": _TEXT, "summary": _TEXT, "createdAt": _TEXT})),
            "error": _or_null(component("Error")),
            "job": {"type": ["string", "null"], "description": "The id of the call's job."},
            "meta": _object({}, {"callId": _TEXT, "tool": _TEXT, "startedAt": _TIME, "durationMs": {"type": "number"}}),
        }
    ),
    "Job": _object(_JOB),
    "JobWithResult": _object({**_JOB, "result": _or_null(component("Result"))}),
    "Tool": _object(
        {
            "id": _TEXT,
            "displayName": _TEXT,
            "description": _TEXT,
            "kind": _TEXT,
            "version": _TEXT,
            "plugin": _TEXT,
            "tags": list_of(_TEXT),
            "inputSchema": {"type": "object", "description": "The JSON Schema of its arguments."},
            "outputSchema": {"type": ["object", "null"], "description": "The JSON Schema of its answer."},
            "capabilities": list_of(_TEXT),
            "aliases": list_of(_TEXT),
            "examples": list_of({}),
            "optional": _FLAG,
            "readOnly": _FLAG,
            "destructive": _FLAG,
            "idempotent": _FLAG,
            "requiresApproval": _FLAG,
            "timeoutMs": _NUMBER_OR_NULL,
        },
        {
            "lacks": {
                **_object({"missing": list_of(_TEXT), "certain": _FLAG, "reason": _TEXT, "fix": _TEXT}),
                "description": "The permissions that the caller needs before it can call the tool.",
            }
        },
    ),
    "NodeType": _object(
        {
            "id": _TEXT,
            "type": _TEXT,
            "namespace": _TEXT,
            "category": _TEXT,
            "displayName": _TEXT,
            "description": _TEXT,
            "inputs": {"type": "object", "additionalProperties": _object({"dataFlowType": _TEXT})},
            "outputs": {"type": "object", "additionalProperties": _object({"dataFlowType": _TEXT})},
        }
    ),
    "TextOutcome": _object(
        {
            "ok": _FLAG,
            "text": {"type": "string", "description": "The prose around the calls."},
            "steps": list_of(_OBJECT),
            "results": list_of(component("Result")),
            "problems": {**list_of(_OBJECT), "description": "Blocks that were not run, and why."},
            "feedback": {"type": "string", "description": "A text for the model."},
        }
    ),
}
