"""Results of calls as MCP has them: content blocks, structured content, errors, resources and messages of prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from tavern_core.model.result import ToolError, ToolResult

_BLOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource": ("resource",),
    "resource_link": ("uri", "name"),
}
"""Type of a block → its required fields."""
_KINDS: Final[Mapping[str, type]] = {"resource": Mapping}
"""Types of fields that are not text."""
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
CALL_ID: Final = "tavern/callId"
IDEMPOTENCY: Final = "tavern/idempotency"
"""Whether the answer is another call's with the same key: ``replayed`` or ``joined``."""
ERROR: Final = "tavern/error"


def call_result(result: ToolResult, *, is_structured: bool = False) -> dict[str, Any]:
    """The response to `tools/call`.

    Args:
        is_structured: the tool is listed with an output schema, so that clients insist on structured content.
    """
    meta = {CALL_ID: result.call_id} if result.call_id else {}
    if (idempotency := result.meta.get("idempotency")) is not None:
        meta[IDEMPOTENCY] = idempotency
    if result.error is not None:
        content = _blocks(result.error.details.get("content") or ()) or [_text(error_text(result.error))]
        return complete(content=content, isError=True, _meta={**meta, ERROR: result.error.to_json()})
    value = result.value
    is_link = not result.has_content and isinstance(value, Mapping) and value.get("type") == "resource_link"
    answer = complete(content=_blocks([value] if is_link else result.content), isError=False)
    if isinstance(value, Mapping):
        answer["structuredContent"] = value
    elif is_structured:
        answer["structuredContent"] = {"content": answer["content"]}
    if meta:
        answer["_meta"] = meta
    return answer


def error_text(error: ToolError) -> str:
    """An error for a model: its message and its fix."""
    return f"{error.message}\n{error.fix}" if error.fix else error.message


def error_result(text: str) -> dict[str, Any]:
    """A failed call that never reached the pipeline."""
    return complete(content=[_text(text)], isError=True)


def in_ascii(uri: str) -> str:
    """An address or its template, with characters beyond ASCII percent-encoded, so that both spellings are equal."""
    return _NOT_ASCII.sub(lambda found: quote(found[0], errors="replace"), uri)


def complete(**members: Any) -> dict[str, Any]:
    """A complete answer, as opposed to one that asks for input."""
    return {"resultType": "complete", **members}


def resource_contents(uri: str, media_type: str, result: ToolResult) -> list[dict[str, Any]]:
    """The response to `resources/read` for a tool that returned the resource."""
    contents = [_contents(uri, media_type, block) for block in result.content] if result.has_content else []
    if contents:
        return contents
    if isinstance(result.value, str):
        return [{"uri": uri, "mimeType": media_type or "text/plain", "text": result.value}]
    return [{"uri": uri, "mimeType": media_type or "application/json", "text": _json(result.value)}]


def _contents(uri: str, media_type: str, block: Mapping[str, Any]) -> dict[str, Any]:
    if block.get("type") == "resource" and isinstance(block.get("resource"), Mapping):
        return {"uri": uri, **block["resource"]}
    if isinstance(block.get("data"), str):
        return {"uri": uri, "mimeType": media_type or block.get("mimeType"), "blob": block["data"]}
    return {"uri": uri, "mimeType": media_type or "text/plain", "text": str(block.get("text", ""))}


def prompt_messages(result: ToolResult) -> list[dict[str, Any]]:
    """The messages for `prompts/get` from a tool's result: a text, content blocks, or messages with a role."""
    value = result.value
    if isinstance(value, list) and all(isinstance(item, Mapping) and "role" in item for item in value):
        return [message for item in value for message in _messages(item)]
    return [{"role": "user", "content": block} for block in _blocks(result.content)]


def _messages(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A message as the protocol has it: of a person or a model, with one block each."""
    role, content = "assistant" if item["role"] == "assistant" else "user", item.get("content", "")
    for part in content if isinstance(content, list | tuple) else [content]:
        text = part if isinstance(part, str) else _json(part)
        yield {"role": role, "content": _block(part) if isinstance(part, Mapping) else _text(text)}


def _blocks(blocks: Iterable[Any]) -> list[dict[str, Any]]:
    return [_block(block) for block in blocks if isinstance(block, Mapping)]


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block as the protocol has it; one of another type as JSON in a text."""
    needed = _BLOCKS.get(str(block.get("type")))
    if needed is None or not all(isinstance(block.get(name), _KINDS.get(name, str)) for name in needed):
        return _text(_json(block))
    return dict(block)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
