"""The webhooks of an n8n instance that become tools: those that the operator lists, and those of active workflows.

A workflow describes its parameters in a sticky note with a block of the language ``tavern``, or in ``meta.tavern``:

    Sends a message to Slack.
    ```tavern
    {"parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}
    ```

Without one its tool takes any object, with the names in the path of the webhook.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tavern_core.contract.adapters import UpstreamTool
from tavern_core.contract.exchange import object_at
from tavern_core.errors import sayable
from tavern_core.schema.json_reader import NotJson, read_json
from tavern_core.schema.prepare import untried_reason

METHODS: Final = ("POST", "GET", "PUT", "PATCH", "DELETE", "HEAD")
MARK: Final[Mapping[str, Any]] = {
    "description": {"type": "string"},
    "parameters": {"type": "object", "description": "JSON Schema of the arguments: an object."},
    "output": {"type": "object", "description": "JSON Schema of the answer."},
    "job": {"type": "boolean", "description": "It takes long: a call becomes a job."},
    "readOnly": {"type": "boolean"},
    "destructive": {"type": "boolean"},
    "idempotent": {"type": "boolean", "description": "It may be called twice with the same idempotency key."},
}
CONFIGURED: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["path"],
    "properties": {
        "path": {"type": "string", "minLength": 1, "description": "What follows /webhook/ in the production URL."},
        "method": {"enum": list(METHODS), "default": "POST"},
        **MARK,
    },
}
_ANYTHING: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
_IN_PATH: Final[Mapping[str, Any]] = {"type": ["string", "number"], "description": "Part of the address."}
_WEBHOOK: Final = "n8n-nodes-base.webhook"
_NOTE: Final = "n8n-nodes-base.stickyNote"
_BLOCK: Final = re.compile(r"^```tavern[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_JOB_MS: Final = 1_800_000
_LONGEST_NOTE: Final = 100_000
_LONGEST_PATH: Final = 500


class _NoTool(Exception):
    """A webhook is not a tool; the message says why."""


FoundWebhooks = tuple[dict[str, UpstreamTool], dict[str, str]]
"""The tools by name, and name → why it is not a tool."""


def configured(webhooks: Mapping[str, Mapping[str, Any]]) -> FoundWebhooks:
    """The webhooks of the settings, which fit `CONFIGURED`."""
    tools: dict[str, UpstreamTool] = {}
    flaws: dict[str, str] = {}
    for name, entry in webhooks.items():
        try:
            tools[name] = _tool(name, entry["path"], entry.get("method", "POST"), entry)
        except _NoTool as flaw:
            flaws[name] = str(flaw)
    return tools, flaws


def discovered(workflows: Iterable[Any], taken: frozenset[str]) -> FoundWebhooks:
    """The webhooks of workflows as the API returns them; if two have the same name, neither becomes a tool.

    Args:
        taken: names that the operator gave to others.
    """
    tools: dict[str, UpstreamTool] = {}
    flaws: dict[str, str] = {}
    for workflow in workflows:
        if not isinstance(workflow, Mapping) or workflow.get("active") is not True:
            continue
        for name, node, owner in _webhooks(workflow):
            if name in tools or name in flaws:
                tools.pop(name, None)
                flaws[name] = "two webhooks of n8n have this name; rename one of the workflows"
            elif name not in taken:
                try:
                    tools[name] = _of_node(name, node, owner)
                except _NoTool as flaw:
                    flaws[name] = str(flaw)
    return tools, flaws


def _webhooks(workflow: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """(name of the tool, node, workflow) for each webhook of one workflow."""
    nodes = [node for node in _items(workflow.get("nodes")) if isinstance(node, Mapping)]
    hooks = [node for node in nodes if node.get("type") == _WEBHOOK and not node.get("disabled")]
    for node in hooks:
        name = str(workflow.get("name") or workflow.get("id") or "")
        yield (name if len(hooks) == 1 else f"{name}/{node.get('name')}")[:256], node, workflow


def _of_node(name: str, node: Mapping[str, Any], workflow: Mapping[str, Any]) -> UpstreamTool:
    parameters = object_at(node, "parameters")
    webhook_id = node.get("webhookId")
    path = parameters.get("path") or webhook_id
    if not isinstance(path, str):
        raise _NoTool("its webhook has no path")
    if isinstance(webhook_id, str) and re.search(r"(?:^|/):", path):
        path = f"{webhook_id}/{path}"  # as n8n registers paths with parameters
    methods = parameters.get("httpMethod", "GET")
    method = next((m for m in METHODS if m in methods), "") if isinstance(methods, list) else methods
    return _tool(name, path, method, _mark(workflow))


def _tool(name: str, path: str, method: Any, mark: Mapping[str, Any]) -> UpstreamTool:
    if method not in METHODS:
        raise _NoTool(f"its webhook is called with {method!r:.40}, which is not known")
    parts = path.strip("/").split("/")
    if len(path) > _LONGEST_PATH or not path.isprintable() or {"", ".", ".."} & set(parts):
        raise _NoTool(f"{path!r:.80} is not the path of a webhook")
    parameters = mark.get("parameters") or _ANYTHING
    if parameters.get("type", "object") != "object":
        raise _NoTool("its parameters are not an object; write {type: object, properties: …}")
    for part, schema in (("parameters", parameters), ("output", mark.get("output", {}))):
        if why := untried_reason(schema):  # n8n validates nothing
            raise _NoTool(f"the schema of its {part} is refused: {why}")
    return UpstreamTool(
        name=name,
        description=mark.get("description", ""),
        input_schema={"type": "object", **_with_path(parameters, parts)},
        output_schema=mark.get("output"),
        read_only=mark.get("readOnly"),
        destructive=mark.get("destructive"),
        idempotent=mark.get("idempotent"),
        is_job=mark.get("job", False),
        timeout_ms=_JOB_MS if mark.get("job") else None,
        data={"path": path.strip("/"), "method": method},
    )


def _with_path(parameters: Mapping[str, Any], parts: Iterable[str]) -> Mapping[str, Any]:
    """The parameters with what the path needs, which is required whether it is declared or not."""
    needed = {part[1:]: _IN_PATH for part in parts if part[:1] == ":" and part[1:]}
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if (
        not needed or not isinstance(properties, Mapping) or not isinstance(required, list)
    ):  # the host refuses such a schema
        return parameters
    required = [*required, *(name for name in needed if name not in required)]
    return {**parameters, "properties": {**needed, **properties}, "required": required}


def _mark(workflow: Mapping[str, Any]) -> Mapping[str, Any]:
    """The self-description of a workflow, if it has the right types."""
    description = object_at(workflow, "meta").get("tavern")
    text = workflow.get("description")
    place, mark = "meta.tavern", {"description": text} if isinstance(text, str) and text else {}
    for note in _notes(workflow):
        if found := _BLOCK.search(note):
            place, description = "its sticky note", _read(found[1])
            mark["description"] = (note[: found.start()] + note[found.end() :]).strip()
            break
    if description is None:
        return mark
    if isinstance(description, Mapping) and "parameters" not in description and description.get("type") == "object":
        description = {"parameters": description}
    if not isinstance(description, Mapping):
        raise _NoTool(f"{place} holds no object")
    for key, value in description.items():
        kinds = {"string": str, "object": Mapping, "boolean": bool}
        if key not in MARK:
            raise _NoTool(f"{place} has {sayable(str(key), 60)!r}; known are {', '.join(MARK)}")
        if not isinstance(value, kinds[MARK[key]["type"]]):
            raise _NoTool(f"{place}: {key} is no {MARK[key]['type']}")
    return {**mark, **description}


def _read(text: str) -> Any:
    try:
        return read_json(text)
    except NotJson as error:
        raise _NoTool(f"the block in its sticky note is not JSON: {error}") from None


def _notes(workflow: Mapping[str, Any]) -> Iterator[str]:
    for node in _items(workflow.get("nodes")):
        if isinstance(node, Mapping) and node.get("type") == _NOTE:
            content = object_at(node, "parameters").get("content")
            if isinstance(content, str) and len(content) <= _LONGEST_NOTE:
                yield content


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()
