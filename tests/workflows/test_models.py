"""What nodes ask language models takes the path of every call: rights, hooks, budget, record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import (
    Budget,
    CallContext,
    LLMAnswer,
    NodeContext,
    Plugin,
    PolicyDenied,
    ScriptedLLM,
    Tavern,
    deny,
    hookimpl,
    node,
)

ANSWER = "a long answer in several pieces of a model"
MAY = frozenset({"network"})


class Plain:
    """A model that does not stream."""

    async def complete(self, messages: Any, /, **options: Any) -> LLMAnswer:
        if options.get("fail"):
            raise RuntimeError("no connection")
        return LLMAnswer(f"{messages[-1]['content']}!", usage={"input": 3})


class Models:
    @hookimpl
    def tavern_register_llms(self) -> Any:
        return {"scripted": ScriptedLLM([ANSWER]), "plain": Plain()}


@node
async def Ask(ctx: NodeContext, prompt: str, model: str = "plain") -> str:
    """A plugin's own node that asks a model."""
    return (await ctx.llm(model).complete([{"role": "user", "content": prompt}])).text


class Nodes:
    @hookimpl
    def tavern_register_nodes(self) -> Any:
        return [Ask]


class Hooks:
    """Sees, changes, refuses and watches questions."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    @hookimpl
    def tavern_before_execute(self, call: Any) -> Any:
        self.seen.append(("before", call.tool, call.context.principal))
        return deny("not that") if "forbidden" in str(call.arguments) else None

    @hookimpl
    def tavern_after_execute(self, call: Any, result: Any) -> None:
        self.seen.append(("after", call.tool, str(result.ok)))


def asking(type_: str, prompt: str = "hi", model: str = "plain", **more: Any) -> dict[str, Any]:
    return {
        "nodes": [{"id": "a", "type": type_, "inputValues": {"prompt": prompt, "model": model, **more}}],
        "edges": [],
    }


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


@pytest.fixture
def opened(tmp_path: Path, hooks: Hooks) -> Callable[..., Tavern]:
    def made(**config: Any) -> Tavern:
        plugins = [Plugin(Models(), name="models"), Plugin(Nodes(), name="nodes"), Plugin(hooks, name="hooks")]
        return Tavern.open({"plugins": {"entryPoints": False}, **config}, plugins=plugins, home=tmp_path / "home")

    return made


TYPES = ["core:LLM", "nodes:Ask"]


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize(("model", "said"), [("plain", "hi!"), ("scripted", ANSWER)])
def test_a_question_is_hooked_and_recorded_like_a_call(
    opened: Callable[..., Tavern], hooks: Hooks, type_: str, model: str, said: str
) -> None:
    with opened() as host:
        reported: list[Any] = []
        host.events.subscribe(reported.append)
        assert next(iter(host.workflows.run_sync(asking(type_, model=model)).outputs["a"].values())) == said
    assert hooks.seen == [("before", "core:LLM", "host"), ("after", "core:LLM", "True")]
    assert [event.type for event in reported if event.data.get("tool") == "core:LLM"] == ["TOOL_CALLED", "TOOL_RESULT"]


def refusal(host: Tavern, workflow: dict[str, Any], context: CallContext) -> str:
    """Why a run was refused, before it began or in its node."""
    try:
        return host.workflows.run_sync(workflow, context=context).errors[0].kind
    except PolicyDenied as refused:
        return refused.code


REFUSED: list[tuple[CallContext, str]] = [
    (CallContext(principal="guest"), "POLICY_DENIED"),
    (CallContext(principal="guest", permissions={"read:fs"}), "POLICY_DENIED"),
    (CallContext(principal="guest", permissions=MAY, scopes={"network": ()}), "POLICY_DENIED"),
    (CallContext(principal="guest", permissions=MAY, budget=Budget(max_tool_calls=0)), "BUDGET_EXCEEDED"),
]


def test_who_lacks_the_permission_or_the_budget_asks_no_model(opened: Callable[..., Tavern]) -> None:
    with opened() as host:
        for type_ in TYPES:
            for context, kind in REFUSED:
                assert kind == refusal(host, asking(type_), context), (type_, context)


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize(
    "config",
    [
        {"tools": {"deny": ["core:LLM"]}},
        {"callers": {"guest": {"deny": ["core"]}}},
        {"approval": {"deny": ["core:LLM"]}},
    ],
)
def test_lists_that_deny_speak_of_questions_too(
    opened: Callable[..., Tavern], type_: str, config: dict[str, Any]
) -> None:
    with opened(**config) as host:
        result = host.workflows.run_sync(asking(type_), context=CallContext(principal="guest", permissions=MAY))
        assert [error.kind for error in result.errors] == ["POLICY_DENIED"]


def test_a_profile_that_limits_its_tools_may_run_workflows_that_ask(
    opened: Callable[..., Tavern], tmp_path: Path
) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "writer.json").write_text('{"tool_ids_inventory": []}')
    with opened(profiles=[str(tmp_path / "agents")], tools={"only": ["system"]}) as host:
        caller = CallContext(principal="guest", permissions=MAY, profile="writer")
        assert host.workflows.run_sync(asking("core:LLM"), context=caller).outputs["a"]["text"] == "hi!"


def test_a_hook_refuses_a_question_and_a_model_that_fails_is_an_error_of_the_node(
    opened: Callable[..., Tavern],
) -> None:
    with opened() as host:
        [refused] = host.workflows.run_sync(asking("core:LLM", "forbidden")).errors
        [failed] = host.workflows.run_sync(asking("core:LLM", options={"fail": True})).errors
    assert (refused.kind, failed.kind) == ("POLICY_DENIED", "UPSTREAM_ERROR")
    assert "not that" in refused.message
    assert "no connection" in failed.message


def test_what_asks_a_model_is_no_tool_that_anybody_could_call(opened: Callable[..., Tavern]) -> None:
    with opened() as host:
        refused = host.invoke_sync("core:LLM", {"model": "plain", "messages": []}).error
        assert refused is not None and refused.kind == "TOOL_NOT_FOUND"
        assert "core:LLM" not in host.tools
        assert "core:LLM" not in host.manual()


def test_an_answer_is_reported_in_chunks(opened: Callable[..., Tavern]) -> None:
    async def main() -> list[str]:
        async with opened() as host:
            run = await host.workflows.start(asking("core:LLM", model="scripted"))
            return [
                piece
                for event in [e async for e in run.events()]
                if event.kind == "chunk"
                for piece in event.data["chunks"]["chunks"]
            ]

    pieces = asyncio.run(main())
    assert len(pieces) > 1
    assert "".join(pieces) == ANSWER


def test_a_run_that_is_stopped_stops_asking(tmp_path: Path) -> None:
    async def main() -> bool:
        begun, closed = asyncio.Event(), asyncio.Event()

        class Endless:
            async def complete(self, messages: Any, /, **options: Any) -> LLMAnswer:
                return LLMAnswer("it streams")

            async def stream(self, messages: Any, /, **options: Any) -> Any:
                try:
                    yield "first"
                    begun.set()
                    await asyncio.Event().wait()
                finally:
                    closed.set()

        class Brings:
            @hookimpl
            def tavern_register_llms(self) -> Any:
                return {"endless": Endless()}

        async with Tavern.open(
            {"plugins": {"entryPoints": False}}, plugins=[Plugin(Brings(), name="brings")], home=tmp_path
        ) as host:
            run = await host.workflows.start(asking("core:LLM", model="endless"))
            await asyncio.wait_for(begun.wait(), 30)
            await run.stop()
            await asyncio.wait_for(closed.wait(), 30)
            return closed.is_set()

    assert asyncio.run(main())
