"""Tools for models and agents of other parties: native calls of model APIs, and tools for LangChain's agents.

Both go down the one path of every call; a profile decides what is offered, a context what may be done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tavern_core.errors import ProfileInvalid, ToolNotFound, UsageError
from tavern_core.kernel.calls.native_calls import NativeCall, NativeOutcome, not_an_object, read_calls, write_results
from tavern_core.kernel.calls.text_call_report import failure_text, next_step
from tavern_core.kernel.catalogue.descriptions import Descriptions, export_for_model
from tavern_core.model.call import CallContext
from tavern_core.model.message_translation import Language
from tavern_core.model.result import ToolResult, failure
from tavern_core.model.tool import ToolSpec

Invoke = Callable[..., Awaitable[ToolResult]]


async def run_native_calls(
    response: Any, context: CallContext | None, descriptions: Descriptions, invoke: Invoke
) -> NativeOutcome:
    """Make the calls of a model's response, in their order; see `Tavern.run_tool_calls`."""
    api, calls = read_calls(response)
    if api is None:
        return NativeOutcome(None)
    results = [await _made(call, context, descriptions, invoke) for call in calls]
    try:
        language = descriptions.language(None, context)
    except ProfileInvalid:  # as the results say
        language = descriptions.language(None, None)

    def named(tool: str) -> str | None:
        return descriptions.callable_name(tool, context)

    return NativeOutcome(api, tuple(results), write_results(api, calls, results, language, named))


async def _made(
    call: NativeCall, context: CallContext | None, descriptions: Descriptions, invoke: Invoke
) -> ToolResult:
    try:
        tool = descriptions.tool_id(call.name)
    except ToolNotFound as error:
        return failure(error)
    if call.arguments is None:
        return failure(not_an_object(tool, call.written))
    return await invoke("native", tool, dict(call.arguments), context=context)


def _tool_class(
    context: CallContext | None,
    invoke: Invoke,
    invoke_sync: Callable[..., ToolResult],
    then: Callable[[ToolResult], str],
    language: Language,
) -> Any:
    try:
        from langchain_core.tools import BaseTool, ToolException
    except ImportError:
        raise UsageError("langchain-core is not installed", hint="pip install 'tavern-core[langchain]'") from None

    class TavernTool(BaseTool):  # type: ignore[misc, unused-ignore]
        """A tool of a tavern_core host: validated, judged and recorded there."""

        tool_id: str
        response_format: Any = "content_and_artifact"

        def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[tuple[()], dict[str, Any]]:
            # One argument of ours, so that no parameter of a tool can be mistaken for one of LangChain's.
            return (), {"tavern_arguments": dict(tool_input) if isinstance(tool_input, dict) else {"input": tool_input}}

        async def _arun(self, tavern_arguments: dict[str, Any], **_: Any) -> tuple[Any, ToolResult]:
            return self._answer(await invoke("langchain", self.tool_id, tavern_arguments, context=context))

        def _run(self, tavern_arguments: dict[str, Any], **_: Any) -> tuple[Any, ToolResult]:
            return self._answer(invoke_sync("langchain", self.tool_id, tavern_arguments, context=context))

        def _answer(self, result: ToolResult) -> tuple[Any, ToolResult]:
            if result.error is not None:
                for_program = result.error.kind == "USAGE"  # what a model cannot repair
                usage_text = f"USAGE: {result.error.message} ({result.error.fix})"
                raise ToolException(usage_text if for_program else failure_text(result.error, language))
            blocks = [dict(block) for block in result.content]
            if next_text := then(result):
                blocks.append({"type": "text", "text": next_text})
            texts = [block.get("text", "") for block in blocks if block.get("type") == "text"]
            return "\n".join(texts) if len(texts) == len(blocks) else blocks, result

    return TavernTool


def langchain_tools(
    specs: list[ToolSpec],
    context: CallContext | None,
    invoke: Invoke,
    invoke_sync: Callable[..., ToolResult],
    language: Language,
) -> list[Any]:
    """The tools as objects of LangChain; see `Tavern.langchain_tools`.

    Raises:
        UsageError: the extra ``langchain`` is not installed (USAGE).
    """
    names: dict[str, str] = {}
    tool_class = _tool_class(
        context, invoke, invoke_sync, lambda result: next_step(result, language, names.get), language
    )
    made = []
    for spec in specs:
        shown = export_for_model(spec, "openai")["function"]
        names[spec.id] = shown["name"]
        made.append(
            tool_class(
                name=shown["name"],
                description=shown["description"] or spec.id,
                args_schema=shown["parameters"],
                tool_id=spec.id,
                metadata={"tavern_tool": spec.id, "capabilities": sorted(spec.capabilities)},
            )
        )
    return made
