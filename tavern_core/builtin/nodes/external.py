"""Nodes with access outside of the workflow: tools, language models, addresses."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.llm import LLMAnswer, StreamingLLM
from tavern_core.contract.nodes import Final, NodeContext, Out, Port, Stream, node
from tavern_core.errors import CallError, ToolFailed, UpstreamError, call_error_of
from tavern_core.schema.json_reader import NotJson, read_json


@hookimpl(fast=True)
def tavern_register_nodes() -> list[Any]:
    return [call_tool, ask_model, fetch]


@node("core:CallTool", display_name="调用工具", category="tools")
async def call_tool(ctx: NodeContext, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Out(  # type: ignore[valid-type]
    value=Any
):
    """Calls a tool for the caller of the workflow. 以工作流调用者的身份调用工具。

    Args:
        tool: its id.
        arguments: by name; further inputs are arguments, too.
    """
    result = await ctx.invoke(tool, {**(arguments or {}), **more})
    if result.error is not None:
        error = result.error
        facts = {name: fact for name in ("approval", "limit") if (fact := error.details.get(name)) is not None}
        raise call_error_of(error.kind)(
            error.message if error.message.startswith(tool) else f"{tool}: {error.message}", hint=error.fix, retryable=error.retryable, outcome=error.outcome,
            retry_after_ms=error.retry_after_ms, tool=tool, **facts,
        )  # fmt: skip
    return {"value": result.value}


@node("core:LLM", display_name="语言模型", category="llm", capabilities=["network"])
async def ask_model(
    ctx: NodeContext,
    prompt: Annotated[str, Port(multiline=True)],
    system: Annotated[str, Port(multiline=True)] = "",
    messages: list[Any] | None = None,
    model: str = "",
    options: dict[str, Any] | None = None,
) -> Out(text=str, chunks=Stream[str]):  # type: ignore[valid-type]
    """Calls a language model of a plugin. 调用语言模型，生成回答。

    Args:
        prompt: the prompt.
        system: how it should behave.
        messages: the conversation before.
        model: its name; empty: the only one.
        options: temperature, max_tokens and the like.
    """
    conversation = [
        *([{"role": "system", "content": system}] if system else []),
        *(messages or []),
        {"role": "user", "content": prompt},
    ]
    llm = ctx.llm(model)
    if isinstance(llm, StreamingLLM):
        answer = ""
        async for chunk in llm.stream(conversation, **(options or {})):
            if not isinstance(chunk, LLMAnswer):
                answer += chunk
                yield chunk
    else:
        answer = (await llm.complete(conversation, **(options or {}))).text
        yield answer
    yield Final(text=answer)


@node("core:HttpFetch", display_name="HTTP 请求", category="net", capabilities=["read:web"])
async def fetch(
    ctx: NodeContext,
    url: Annotated[str, Port(categories=["Url"])],
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET",
    headers: dict[str, Any] | None = None,
    body: Any = None,
) -> Out(text=str, status=int, headers=dict, json=Any):  # type: ignore[valid-type]
    """Fetches an address through the host's `net` service, which checks the address. 从网址获取内容（HTTP 下载、请求）。

    Args:
        url: http or https.
        method: of the request.
        headers: name to text.
        body: text, or a value to send as JSON.
    """
    text = body if isinstance(body, str) or body is None else json.dumps(body, ensure_ascii=False)
    try:
        answer = await ctx.service("net").fetch(url, method=method, headers=headers or {}, body=text)
    except CallError:
        raise
    except Exception as error:
        raise UpstreamError(f"{url} cannot be fetched: {error}") from error
    if not isinstance(answer, dict):
        raise ToolFailed("the net service answered something unexpected")
    content = answer.get("text") or ""
    try:
        data = await asyncio.to_thread(read_json, content)  # megabytes would hold up other nodes
    except NotJson:
        data = None
    return {"text": content, "status": answer.get("status", 0), "headers": answer.get("headers", {}), "json": data}
