"""Tools of LangChain: objects with `name`, `description`, `args_schema` and `invoke`, of a package or of the program itself.

langchain-core is not needed to see that, and not imported. Validation and defaults are the pipeline's. Callbacks of a surrounding
LangChain run reach the tool, because it is called in the caller's own context.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from tavern_core.errors import InputInvalid, ToolFailed, UpstreamError
from tavern_core.model.result import ToolResult
from tavern_core.model.safe_printing import printed, said
from tavern_core.schema.bounded_json_copying import TOO_MUCH, from_python, json_copy

_ANYTHING: Final[Mapping[str, Any]] = {"type": "object", "additionalProperties": True}


def is_tool(thing: Any) -> bool:
    """Whether an object has the shape of a LangChain tool; False if its attributes cannot be read (unbound proxy)."""
    if isinstance(thing, type):
        return False
    try:
        return (
            isinstance(getattr(thing, "name", None), str)
            and isinstance(getattr(thing, "description", None), str)
            and hasattr(thing, "args_schema")
            and (callable(getattr(thing, "invoke", None)) or callable(getattr(thing, "ainvoke", None)))
        )
    except BaseException:  # noqa: BLE001 - whatever an object raises costs this object, also an exit
        return False


def schema_of(tool: Any) -> Mapping[str, Any]:
    """JSON Schema of a tool's parameters, without those that LangChain fills in itself."""
    library = _langchain_of(tool)
    if library is not None and isinstance(tool, library.Tool) and tool.args_schema is None:  # it takes one text
        return {"type": "object", "properties": tool.args, "required": [*tool.args]}
    if _is_of_pydantic_v1(tool.args_schema):  # LangChain loses its constraints, or refuses them
        return dict(tool.args_schema.schema())
    for described in (getattr(tool, "tool_call_schema", None), getattr(tool, "args_schema", None)):
        if isinstance(described, Mapping):
            return described
        if callable(make := getattr(described, "model_json_schema", None)):
            schema: Mapping[str, Any] = make()
            return schema
    return _ANYTHING


def _is_of_pydantic_v1(model: Any) -> bool:
    return isinstance(model, type) and not hasattr(model, "model_fields") and hasattr(model, "__fields__")


def only_for_langchain(tool: Any) -> list[str]:
    """The required parameters that no caller can give: an agent of LangChain fills them in (`InjectedToolArg`)."""
    library = _langchain_of(tool)
    fields = getattr(tool.args_schema, "model_fields", {})
    if library is None or not fields:
        return []
    shown, call_id_type = tool.args, library.base.InjectedToolCallId
    return [
        name
        for name, field in fields.items()
        if name not in shown
        and field.is_required()
        and not any(m is call_id_type or isinstance(m, call_id_type) for m in field.metadata)
    ]


def runner(tool: Any) -> Callable[[str, Mapping[str, Any]], Any]:
    """A function ``run(call_id, arguments)`` that calls the tool: sync if the tool is sync code alone, otherwise async.

    It returns the answer as it is, a `ToolResult` for content and artifacts, and raises CallError.
    """
    library = _langchain_of(tool)

    @cache
    def needs_envelope() -> bool:  # at the first call: LangChain makes a schema for it
        return library is not None and _needs_envelope(tool)

    def tool_input(call_id: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        args = dict(arguments)
        if not needs_envelope() and (library is None or args.get("type") != "tool_call"):
            return args
        return {"type": "tool_call", "name": tool.name, "args": args, "id": call_id or "call"}

    def run(call_id: str, arguments: Mapping[str, Any]) -> Any:
        try:
            return _answer(tool.invoke(tool_input(call_id, arguments)), library)
        except Exception as error:
            raise _as_call_error(error, tool) from error

    async def run_async(call_id: str, arguments: Mapping[str, Any]) -> Any:
        try:
            return _answer(await tool.ainvoke(tool_input(call_id, arguments)), library)
        except Exception as error:
            raise _as_call_error(error, tool) from error

    return run if _blocks(tool, library) else run_async


def _langchain_of(thing: Any) -> Any:
    """The module of langchain-core, for its own tools; None for others of that shape."""
    loaded = sys.modules.get("langchain_core.tools")
    return loaded if loaded is not None and isinstance(thing, loaded.BaseTool) else None


def _blocks(thing: Any, library: Any) -> bool:
    """Whether a tool is sync code alone.

    Its `ainvoke`, if any, would run `invoke` in one of the few threads of the loop.
    """
    ainvoke = getattr(type(thing), "ainvoke", None)
    if library is None or ainvoke is None:
        return not callable(getattr(thing, "ainvoke", None))
    if ainvoke is library.BaseTool.ainvoke:
        return type(thing)._arun is library.BaseTool._arun
    return ainvoke in (library.StructuredTool.ainvoke, library.Tool.ainvoke) and not thing.coroutine


def _needs_envelope(tool: Any) -> bool:
    """Whether a tool must be called with a whole tool call.

    The answer then becomes text, so others get only their arguments.
    """
    return bool(
        tool.response_format == "content_and_artifact"
        or tool.handle_tool_error
        or tool.handle_validation_error
        or getattr(tool, "_injected_args_keys", None)
        or (
            (fields := getattr(tool.args_schema, "model_fields", {})) and fields.keys() - tool.args.keys()
        )  # some are injected
    )


def _answer(answer: Any, library: Any) -> Any:
    """A ToolMessage, or a list of content blocks, as a result; anything else as it is, or as text if it is not JSON."""
    if not hasattr(answer, "tool_call_id") or not hasattr(answer, "content"):
        if library is None:
            return answer
        if isinstance(answer, list) and answer and all(_is_block(item, library) for item in answer):
            return ToolResult(True, answer, content=tuple(answer))
        return _json_or_text(answer)
    content = answer.content
    if getattr(answer, "status", "success") == "error":
        raise ToolFailed(str(content)[:2000] or "the tool failed", outcome="unknown")
    artifact = _json_or_text(getattr(answer, "artifact", None))
    meta = None if artifact is None else {"artifact": artifact}
    if isinstance(content, str):
        return content if meta is None else ToolResult(True, content, meta=meta)
    blocks = tuple(block if isinstance(block, Mapping) else {"type": "text", "text": str(block)} for block in content)
    return ToolResult(True, content, content=blocks, meta=meta)


def _is_block(item: Any, library: Any) -> bool:
    return isinstance(item, Mapping) and item.get("type") in library.base.TOOL_MESSAGE_BLOCK_TYPES


def _json_or_text(answer: Any) -> Any:
    copy, problem = json_copy(answer)
    if problem is None:
        return copy
    if problem.message.startswith(TOO_MUCH):
        return answer  # refused by the pipeline
    try:
        copy, problem = json_copy(from_python(answer, by_alias=True))
    except Exception:  # noqa: BLE001 - whatever an object of the tool's raises: LangChain would show its text
        return said(answer)
    return copy if problem is None else said(answer)


def _as_call_error(error: Exception, thing: Any) -> Exception:
    kind, tool = type(error).__name__, thing.name
    if isinstance(error, ToolFailed):
        return error
    if kind == "ToolException":
        return ToolFailed(str(error)[:2000] or f"{tool} failed", outcome="unknown")
    if kind == "ValidationError" and _is_of_arguments(error, getattr(thing, "args_schema", None)):
        problems = _problems(error)
        reasons = "; ".join(f"{problem['pointer']}: {problem['message']}" for problem in problems)
        return InputInvalid(
            f"{tool} refused its arguments: {reasons or printed(error)}", outcome="none", problems=problems
        )
    return UpstreamError(f"{tool} failed with {printed(error)}", outcome="unknown")


def _is_of_arguments(error: Any, model: Any) -> bool:
    """Whether the model of the arguments refused them.

    If another model failed in the tool, the call may have taken effect.
    """
    if _is_of_pydantic_v1(model):
        return getattr(error, "model", None) is model
    return isinstance(model, type) and error.title == getattr(model, "model_config", {}).get("title", model.__name__)


def _problems(error: Any) -> list[dict[str, str]]:
    """The problems that a model of pydantic found in arguments, each with its JSON pointer."""
    try:
        found = error.errors()[:20]
        return [
            {"pointer": "".join(f"/{part!s:.200}" for part in one["loc"]) or "/", "message": f"{one['msg']!s:.500}"}
            for one in found
        ]
    except Exception:  # noqa: BLE001 - a model of the tool's own
        return []
