"""What is recorded of a request to a model, what it costs, and how much plugins may ask."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Budget, CallContext, LLMAnswer, Plugin, Tavern, hookimpl, tool
from tavern_core.errors import CallError

from .conftest import Open
from .openai_server import OpenAIServer, Reply

PRICE = {"input": 2, "output": 10, "currency": "EUR"}


def scripted(**more: Any) -> dict[str, Any]:
    return {"s": {"kind": "scripted", "answers": [{"text": "ok", "usage": {"input": 1000, "output": 100}}], **more}}


class Asks:
    """A plugin whose tool asks a model through the service."""

    @hookimpl
    def tavern_register_tools(self, ctx: Any) -> Any:
        @tool
        async def ask(text: str = "hi") -> str:
            """Ask."""
            return str((await ctx.service("llms").complete([{"role": "user", "content": text}]))["text"])

        return [ask]


def test_a_request_is_an_event_with_its_tokens_and_its_cost_and_without_what_was_said(
    opened: Open, tmp_path: Path
) -> None:
    seen: list[Any] = []

    class Watches:
        @hookimpl
        def tavern_on_event(self, event: Any) -> None:
            if event.type == "MODEL_CALLED":
                seen.append(dict(event.data))

    host = opened(scripted(price=PRICE), [Plugin(Watches(), name="watches")])
    with host:
        host.wait(host.llms.complete("a secret talk", purpose="to greet"))
        logged = [json.dumps(record.to_json()) for record in host.logs if record.type == "MODEL_CALLED"]
    [data] = seen
    assert data.pop("ms") > 0
    assert data == {
        "name": "s", "model": "scripted", "purpose": "to greet", "principal": "host", "ok": True,
        "tokens": {"input": 1000, "output": 100}, "cost": 0.003, "currency": "EUR",
    }  # fmt: skip
    [line] = logged
    assert '"cost": 0.003' in line
    assert "talk" not in line


@pytest.mark.parametrize(
    ("reply", "ok", "error", "estimated"),
    [
        (Reply("four by four!", usage=None), True, None, True),
        (Reply("four by four!"), True, None, None),
        (Reply(status=401), False, "UPSTREAM_ERROR", None),
        (Reply("four by four!", fault="cut"), False, "UPSTREAM_ERROR", True),
    ],
)
def test_what_a_model_does_not_report_is_estimated(
    opened: Open, reply: Reply, ok: bool, error: str | None, estimated: bool | None
) -> None:
    events: list[Any] = []
    with OpenAIServer([reply]) as server:
        host = opened({"far": {"kind": "openai", "baseUrl": server.url}})
        host.events.subscribe(lambda event: events.append(event.data), "MODEL_CALLED")
        with host, suppress(CallError):
            host.wait(host.llms.complete("hi", on_text=lambda _: None))
    [event] = events
    assert (event["ok"], event.get("error"), event.get("estimated")) == (ok, error, estimated)
    assert ("cost" in event, event["tokens"]["input"] > 0) == (False, error is None or bool(estimated))


def test_an_endless_stream_of_any_model_ends_at_the_limit_of_answers(opened: Open) -> None:
    closed: list[bool] = []

    class Endless:
        async def complete(self, messages: Any, /, **options: Any) -> LLMAnswer:
            return LLMAnswer("")

        async def stream(self, messages: Any, /, **options: Any) -> Any:
            try:
                while True:
                    yield "and on " * 100
            finally:
                closed.append(True)

    class Brings:
        @hookimpl
        def tavern_register_llms(self) -> Any:
            return {"endless": Endless()}

    host = opened({}, [Plugin(Brings(), name="brings")], limits={"outputBytes": 100_000})
    with host, pytest.raises(CallError) as caught:
        host.wait(host.llms.complete("hi", on_text=lambda _: None))
    assert (caught.value.code, closed) == ("OUTPUT_TOO_LARGE", [True])


def test_requests_and_tokens_are_in_the_metrics(opened: Open) -> None:
    with opened(scripted(), metrics={"enabled": True}) as host:
        host.wait(host.llms.complete("hi"))
        lines = host.metrics.text().splitlines()
    assert 'llm_requests_total{llm="s",ok="true"} 1.0' in lines
    assert 'llm_tokens_total{direction="input",llm="s"} 1000.0' in lines


def test_odd_usage_of_a_model_is_not_believed(opened: Open) -> None:
    events: list[Any] = []

    class Odd:
        async def complete(self, messages: Any, /, **options: Any) -> LLMAnswer:
            return LLMAnswer("ok", usage={"input": "many", "output": -5})  # type: ignore[dict-item]

    class Brings:
        @hookimpl
        def tavern_register_llms(self) -> Any:
            return {"odd": Odd()}

    host = opened({}, [Plugin(Brings(), name="brings")], limits={"llms": {"*": {"tokens": 10_000}}})
    host.events.subscribe(lambda event: events.append(event.data), "MODEL_CALLED")
    with host:
        assert host.wait(host.llms.complete("hi")).text == "ok"
    assert (events[0]["tokens"]["input"] > 0, events[0]["tokens"]["output"], events[0]["estimated"]) == (True, 1, True)


NO_ANSWERS: dict[str, tuple[Any, list[Any], str]] = {
    "a text for an answer": ("ok", [], "answers str"),
    "no usage": (LLMAnswer("ok", usage=None), [], "reports the usage None"),  # type: ignore[arg-type]
    "calls of its own": (LLMAnswer("ok", tool_calls=({"name": "x"},)), [], "something else than `ModelCall`"),  # type: ignore[arg-type]
    "bytes in a stream": (LLMAnswer("ok"), [b"ok"], "streams bytes"),
    "no usage at the end of a stream": (LLMAnswer(""), ["ok", LLMAnswer("ok", usage=None)], "reports the usage"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("what", NO_ANSWERS)
def test_what_is_no_answer_is_an_error_that_names_the_model_and_the_repair(opened: Open, what: str) -> None:
    answer, pieces, said = NO_ANSWERS[what]

    class Whole:
        async def complete(self, messages: Any, /, **options: Any) -> Any:
            return answer

    class Streaming(Whole):
        async def stream(self, messages: Any, /, **options: Any) -> Any:
            for piece in pieces:
                yield piece

    class Brings:
        @hookimpl
        def tavern_register_llms(self) -> Any:
            return {"odd": Streaming() if pieces else Whole()}

    with opened({}, [Plugin(Brings(), name="brings")]) as host, pytest.raises(CallError) as caught:
        host.wait(host.llms.complete("hi", model="odd", on_text=lambda _: None))
    assert (caught.value.code, said in caught.value.message) == ("TOOL_ERROR", True)
    assert "the language model 'odd'" in caught.value.message
    assert "LLMAnswer" in caught.value.hint or "ModelCall(" in caught.value.hint


def test_an_answer_that_a_hook_spoils_is_not_used(opened: Open) -> None:
    class Spoils:
        @hookimpl
        def tavern_transform_result(self, call: Any, result: Any) -> Any:
            return result.replace(value={**result.value, "toolCalls": [{"name": "t"}]})

    with opened(scripted(), [Plugin(Spoils(), name="spoils")]) as host:
        answer = host.wait(host.llms.complete("hi"))
    assert (answer.text, answer.tool_calls) == ("ok", ())


@pytest.mark.parametrize("messages", [["hi"], [5], [None, {"role": "user", "content": "hi"}]])
def test_what_is_no_message_is_refused(opened: Open, messages: Any) -> None:
    with opened(scripted()) as host, pytest.raises(CallError) as caught:
        host.wait(host.llms.complete(messages))
    assert caught.value.code == "INPUT_SCHEMA_INVALID"


def test_names_that_do_not_exist_are_not_counted_one_by_one(opened: Open) -> None:
    with opened(scripted(), metrics={"enabled": True}) as host:
        for name in ("a", "b"):
            with pytest.raises(CallError):
                host.wait(host.llms.complete("hi", name))
        lines = [line for line in host.metrics.text().splitlines() if line.startswith("llm_requests_total")]
    assert lines == ['llm_requests_total{llm="",ok="false"} 2.0']


def test_a_request_never_becomes_a_job(opened: Open) -> None:
    with opened(scripted(), limits={"tools": {"*": {"inlineMs": 0}}}) as host:
        assert host.wait(host.llms.complete("hi")).text == "ok"
        assert not host.jobs


def test_a_cancelled_request_is_recorded(opened: Open) -> None:
    events: list[Any] = []

    async def main(server: OpenAIServer) -> None:
        host = opened({"far": {"kind": "openai", "baseUrl": server.url}})
        host.events.subscribe(lambda event: events.append(event.data), "MODEL_CALLED")
        async with host:
            asking = asyncio.create_task(host.llms.complete("hi"))
            await asyncio.to_thread(server.asked.wait, 30)
            asking.cancel()
            await asyncio.wait([asking])

    with OpenAIServer([Reply(fault="timeout")]) as server:
        asyncio.run(main(server))
    assert [(event["ok"], event["error"]) for event in events] == [(False, "CANCELLED")]


BUDGETS: dict[str, tuple[dict[str, Any], str]] = {
    "calls": ({"asks": {"calls": 2}}, "asks has used up limits.llms.asks.calls: 2 of 2"),
    "calls of each other plugin": ({"*": {"calls": 2}}, "limits.llms.*.calls: 2 of 2"),
    "tokens": ({"asks": {"tokens": 2000}}, "limits.llms.asks.tokens: 2200 of 2000"),
    "money": ({"asks": {"money": 0.005, "currency": "EUR"}}, "limits.llms.asks.money: 0.006 of 0.005"),
}


@pytest.mark.parametrize("what", BUDGETS)
def test_a_plugin_asks_models_until_its_budget_is_used_up(opened: Open, what: str) -> None:
    budget, said = BUDGETS[what]
    with opened(scripted(price=PRICE), [Plugin(Asks(), name="asks")], limits={"llms": budget}) as host:
        results = [host.invoke_sync("asks:ask") for _ in range(3)]
        own = host.wait(host.llms.complete("hi")).text
    assert [result.ok for result in results] == [True, True, False]
    error = results[2].error
    assert error is not None
    assert (error.kind, own) == ("BUDGET_EXCEEDED", "ok")
    assert said in error.message


@pytest.mark.parametrize("price", [None, {"input": 1, "output": 1, "currency": "USD"}])
def test_a_model_without_a_known_price_is_refused_where_money_is_limited(opened: Open, price: Any) -> None:
    limits = {"llms": {"asks": {"money": 1, "currency": "EUR"}}}
    with opened(scripted(price=price), [Plugin(Asks(), name="asks")], limits=limits) as host:
        error = host.invoke_sync("asks:ask").error
    assert error is not None
    assert (error.kind, error.details["limit"]) == ("BUDGET_EXCEEDED", "limits.llms.asks.money")


def test_the_budget_of_a_caller_counts_requests_as_calls(opened: Open) -> None:
    with opened(scripted()) as host:
        caller = CallContext(principal="guest", budget=Budget(max_tool_calls=1))
        assert host.wait(host.llms.complete("hi", context=caller)).text == "ok"
        with pytest.raises(CallError) as caught:
            host.wait(host.llms.complete("hi", context=caller))
    assert caught.value.code == "BUDGET_EXCEEDED"


YAML = """\
name: far
version: "1"
isolation: process
nodes: {entry: nodes.py}
permissions:
  capabilities: [{name: network}]
  services: {use: [llm, llms]}
tools: [{id: ask, implementation: {type: python}}]
"""
CODE = """\
import os
from tavern_core import hookimpl, tool

@hookimpl
def tavern_register_tools(ctx):
    @tool
    async def ask(text: str = "hi") -> dict:
        "Ask."
        answer = await ctx.service("llms").complete([{"role": "user", "content": text}], "far")
        return {**answer, "pid": os.getpid()}

    return [ask]
"""
NODES = """\
from tavern_core.contract.nodes import NodeContext, node

@node("far:Ask")
async def ask(ctx: NodeContext, text: str = "hi") -> dict:
    "Ask."
    answer = await ctx.llm("far").complete([{"role": "user", "content": text}])
    return {"text": answer.text, "calls": [c.name for c in answer.tool_calls], "usage": dict(answer.usage)}
"""


@pytest.mark.slow
def test_an_isolated_plugin_asks_models_from_its_worker_within_its_budget(opened: Open, tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "far"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(YAML)
    (folder / "__init__.py").write_text(CODE)
    (folder / "nodes.py").write_text(NODES)

    def host(url: str) -> Tavern:
        far = {"kind": "openai", "baseUrl": url}
        config: dict[str, Any] = {"isolation": {"level": "best-effort"}, "limits": {"llms": {"far": {"calls": 2}}}}
        return opened({"far": far}, roots=[folder.parent], **config)

    with OpenAIServer([Reply("hello", calls=[("t", {})])]) as server:
        with host(server.url) as first:
            first.wait(first.plugins.grant("far", "network", "service:use:llm", "service:use:llms"))
        with host(server.url) as tavern:
            called = tavern.invoke_sync("far:ask")
            run = tavern.workflows.run_sync({"nodes": [{"id": "a", "type": "far:Ask"}], "edges": []})
            refused = tavern.invoke_sync("far:ask")
        asked = len(server.requests)
    assert called.ok, called.error
    assert called.value["pid"] != os.getpid()
    assert (called.value["text"], called.value["toolCalls"][0]["name"]) == ("hello", "t")
    assert run.outputs["a"]["result"] == {"text": "hello", "calls": ["t"], "usage": {"input": 7, "output": 5}}
    assert refused.error is not None
    assert (refused.error.kind, refused.error.details["limit"], asked) == (
        "BUDGET_EXCEEDED",
        "limits.llms.far.calls",
        2,
    )
