"""Scripted and recorded models, and those of pydantic-ai: configured, listed, asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tavern_core import Plugin, ScriptedLLM, hookimpl
from tavern_core.contract.llm import LLMAnswer, ModelCall
from tavern_core.errors import CallError
from tavern_core.model.call import CallContext

from .conftest import Open
from .openai_server import OpenAIServer, Reply

if TYPE_CHECKING:  # importing it takes a second of every worker that collects these tests
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models.function import AgentInfo

    from tavern_core.builtin.llms.pydantic_ai import PydanticAILLM

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


class Brings:
    """A plugin with models."""

    def __init__(self, **models: Any) -> None:
        self._models = models

    @hookimpl
    def tavern_register_llms(self) -> Any:
        return self._models


ANSWERS = [
    "Hello!",
    {"text": "Let me look.", "toolCalls": [{"name": "text_count", "arguments": {"text": "ü"}}], "usage": {"input": 3}},
    '{"a": 1}',
]


@pytest.mark.parametrize("form", ["inline", "yaml", "json", "mapping"])
def test_a_scripted_model_gives_its_answers_in_order(opened: Open, tmp_path: Path, form: str) -> None:
    file = tmp_path / ("answers.json" if form == "json" else "answers.yaml")
    file.write_text(json.dumps({"answers": ANSWERS} if form == "mapping" else ANSWERS, ensure_ascii=False), "utf-8")
    where = {"answers": ANSWERS} if form == "inline" else {"file": str(file)}
    with opened({"s": {"kind": "scripted", **where}}) as host:
        found = [host.wait(host.llms.complete("hi")) for _ in range(2)]
        data = host.wait(host.llms.complete("hi", "s", {"schema": SCHEMA})).data
        last = host.wait(host.llms.complete("hi")).text
    calls = (ModelCall("call_0", "text_count", '{"text": "ü"}'),)
    assert found[0] == LLMAnswer("Hello!", model="scripted")
    assert found[1] == LLMAnswer("Let me look.", "tool_calls", {"input": 3}, "scripted", calls)
    assert (data, last) == ({"a": 1}, '{"a": 1}')


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("- {texd: x}", "unknown key 'texd'"),
        ("- 5", "an answer is a text or a mapping"),
        ("answers: {}", "holds no answers"),
        ("- {toolCalls: [{arguments: {}}]}", "a call has a name and arguments"),
        ("- {text: x, usage: many}", "expected numbers of tokens"),
        ("- [", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_script_is_an_error_that_names_the_file(
    opened: Open, tmp_path: Path, written: str | None, said: str
) -> None:
    file = tmp_path / "answers.yaml"
    if written is not None:
        file.write_text(written)
    with opened({"s": {"kind": "scripted", "file": str(file)}}) as host, pytest.raises(CallError) as caught:
        host.wait(host.llms.complete("hi"))
    assert said in caught.value.message
    assert "answers.yaml" in caught.value.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_recording_replays_the_answers_of_a_model_without_it(opened: Open, tmp_path: Path, stream: bool) -> None:
    file = str(tmp_path / "talk.jsonl")
    pieces: list[str] = []
    asked = ["one", "two", "two"]
    calls = [("text_count", {"a": 1})]
    with OpenAIServer([Reply("first"), Reply("second", calls=calls), Reply("third")]) as server:
        far = {"kind": "openai", "baseUrl": server.url}
        with opened({"far": far, "tape": {"kind": "recorded", "file": file, "source": "far", "record": True}}) as host:
            on_text = pieces.append if stream else None
            recorded = [host.wait(host.llms.complete(text, "tape", {"seed": 1}, on_text=on_text)) for text in asked]
    with opened({"tape": {"kind": "recorded", "file": file}}) as host:
        replayed = [host.wait(host.llms.complete(text, "tape", {"seed": 1})) for text in asked]
        with pytest.raises(CallError) as caught:
            host.wait(host.llms.complete("three", "tape", {"seed": 1}))
    assert [answer.text for answer in recorded] == ["first", "second", "third"]
    assert replayed == recorded
    assert "".join(pieces) == ("firstsecondthird" if stream else "")
    assert caught.value.code == "UPSTREAM_ERROR"
    assert "talk.jsonl has no answer to this request" in caught.value.message


@pytest.mark.parametrize(
    ("written", "said"),
    [(None, "cannot be read"), ("{}\n", ":1 is not a recorded answer"), ("\n[\n", ":2 is not a recorded")],
)
def test_a_recording_that_cannot_be_used_is_an_error_that_names_the_file(
    opened: Open, tmp_path: Path, written: str | None, said: str
) -> None:
    file = tmp_path / "talk.jsonl"
    if written is not None:
        file.write_text(written)
    with opened({"tape": {"kind": "recorded", "file": str(file)}}) as host, pytest.raises(CallError) as caught:
        host.wait(host.llms.complete("hi"))
    assert f"talk.jsonl{said}" in caught.value.message or f"talk.jsonl {said}" in caught.value.message
    assert caught.value.hint


def far(function: Any, **options: Any) -> PydanticAILLM:
    """A model of pydantic-ai that answers as a function does."""
    from pydantic_ai.models.function import FunctionModel

    from tavern_core.builtin.llms.pydantic_ai import PydanticAILLM

    return PydanticAILLM(FunctionModel(function, **options))


def reply(messages: Any, info: AgentInfo) -> ModelResponse:
    """A model that answers with what it was asked."""
    from pydantic_ai.messages import ModelResponse, TextPart

    parts = [[part.part_kind for part in message.parts] for message in messages]
    tools = [tool.name for tool in info.function_tools]
    settings: dict[str, Any] = dict(info.model_settings or {})
    return ModelResponse(parts=[TextPart(json.dumps({"parts": parts, "tools": tools, **settings}))])


async def streamed(messages: Any, info: AgentInfo) -> Any:
    from pydantic_ai.models.function import DeltaToolCall

    yield "one "
    yield "two"
    yield {0: DeltaToolCall("text_count", '{"a"', tool_call_id="c")}
    yield {0: DeltaToolCall(json_args=": 1}")}


def limited(messages: Any, info: AgentInfo) -> ModelResponse:
    from pydantic_ai.exceptions import ModelHTTPError

    raise ModelHTTPError(429, "far", {"message": "slow down"})


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "", "toolCalls": [{"id": "c1", "name": "t", "arguments": "{}"}]},
    {"role": "tool", "toolCallId": "c1", "content": "2"},
]
TOOLS = [{"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {}}}}]


def test_a_model_of_pydantic_ai_gets_messages_tools_and_options(opened: Open) -> None:
    model = far(reply)
    options = {"temperature": 0.5, "stop": "END", "tools": TOOLS, "schema": {"type": "object"}}
    with opened({}, [Plugin(Brings(far=model), name="brings")]) as host:
        answer = host.wait(host.llms.complete(CONVERSATION, "far", options))
    assert answer.data == {
        "parts": [["system-prompt", "user-prompt"], ["tool-call"], ["tool-return"]],
        "tools": ["t"],
        "temperature": 0.5,
        "stop_sequences": ["END"],
    }
    assert answer.usage["input"] > 0
    assert answer.usage["output"] > 0


def test_a_model_of_pydantic_ai_streams_text_and_calls(opened: Open) -> None:
    pieces: list[str] = []
    model = far(reply, stream_function=streamed)
    with opened({}, [Plugin(Brings(far=model), name="brings")]) as host:
        answer = host.wait(host.llms.complete(CONVERSATION, "far", on_text=pieces.append))
    assert pieces == ["one ", "two"]
    assert (answer.text, answer.finish_reason) == ("one two", "tool_calls")
    assert answer.tool_calls == (ModelCall("c", "text_count", '{"a": 1}'),)


@pytest.mark.parametrize(
    ("is_named", "code", "said"),
    [
        (True, "TOOL_ERROR", "pydantic-ai cannot use 'nobody:x'"),
        (False, "BUDGET_EXCEEDED", "far answers 429: {'message': 'slow down'}"),
    ],
)
def test_a_failure_of_pydantic_ai_is_an_error_of_the_request(
    opened: Open, is_named: bool, code: str, said: str
) -> None:
    from tavern_core.builtin.llms.pydantic_ai import PydanticAILLM

    brings = Plugin(Brings(far=PydanticAILLM("nobody:x") if is_named else far(limited)), name="brings")
    with opened({}, [brings]) as host, pytest.raises(CallError) as caught:
        host.wait(host.llms.complete("hi"))
    assert caught.value.code == code
    assert said in caught.value.message


def test_a_model_of_pydantic_ai_can_be_configured_by_its_name(opened: Open) -> None:
    with opened({"t": {"kind": "pydantic-ai", "model": "test"}}) as host:
        assert host.wait(host.llms.complete("hi")).model == "test"


LISTED = {
    "far": {"kind": "openai", "baseUrl": "http://127.0.0.1:9/v1", "model": "m", "contextTokens": 8_000,
            "price": {"input": 1, "output": 2.5, "currency": "EUR"}},
    "s": {"kind": "scripted", "answers": ["a"]},
}  # fmt: skip


def test_models_of_tavern_yaml_and_of_plugins_are_described(opened: Open) -> None:
    with opened(LISTED, [Plugin(Brings(own=ScriptedLLM(["x"])), name="brings")]) as host:
        assert host.llms.names() == ["far", "own", "s"]
        far, own, scripted = host.llms.describe()
    assert far == {
        "name": "far", "kind": "openai", "plugin": "core-llms", "model": "m", "streams": True, "local": False,
        "contextTokens": 8_000, "price": {"input": 1.0, "output": 2.5, "currency": "EUR"},
    }  # fmt: skip
    assert (own["plugin"], own["kind"], own["local"]) == ("brings", "scripted", True)
    assert (scripted["plugin"], scripted["price"], scripted["contextTokens"]) == ("core-llms", None, None)


def test_a_plugin_that_only_declares_its_models_is_activated_for_the_first_request(
    opened: Open, tmp_path: Path
) -> None:
    folder = tmp_path / "plugins" / "brings"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text('name: brings\nversion: "1"\nllms: [own]\n')
    (folder / "__init__.py").write_text(
        "from tavern_core import ScriptedLLM, hookimpl\n\n"
        "@hookimpl\ndef tavern_register_llms():\n    return {'own': ScriptedLLM(['of the plugin'])}\n"
    )
    with opened({}, roots=[tmp_path / "plugins"]) as host:
        assert host.wait(host.llms.complete("hi", "own")).text == "of the plugin"


NOBODY = CallContext(principal="guest")


@pytest.mark.parametrize(
    ("name", "code"), [("s", ""), ("tape", ""), ("own", ""), ("far", "POLICY_DENIED"), ("plain", "POLICY_DENIED")]
)
def test_only_models_that_reach_out_need_the_network(opened: Open, tmp_path: Path, name: str, code: str) -> None:
    class Plain:
        async def complete(self, messages: Any, /, **options: Any) -> LLMAnswer:
            return LLMAnswer("x")

    tape = tmp_path / "talk.jsonl"
    llms = {**LISTED, "tape": {"kind": "recorded", "file": str(tape), "source": "s", "record": True}}
    with opened(llms) as host:
        host.wait(host.llms.complete("hi", "tape"))
    llms = {**LISTED, "tape": {"kind": "recorded", "file": str(tape)}}
    with opened(llms, [Plugin(Brings(own=ScriptedLLM(["x"]), plain=Plain()), name="brings")]) as host:
        try:
            answer = host.wait(host.llms.complete("hi", name, context=NOBODY))
        except CallError as error:
            answer = error
    assert getattr(answer, "code", "") == code


@pytest.mark.parametrize(("name", "said"), [("fra", "did you mean 'far'"), ("", "name one of far, s")])
def test_a_model_that_does_not_exist_is_an_error_with_the_closest_name(opened: Open, name: str, said: str) -> None:
    with opened(LISTED) as host, pytest.raises(CallError) as caught:
        host.wait(host.llms.complete("hi", name))
    assert said in caught.value.hint
