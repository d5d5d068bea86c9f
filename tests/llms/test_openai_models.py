"""Models behind an OpenAI-compatible API: answers, every failure, and cancellation, against a real server."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.contract.llm import LLMAnswer, ModelCall
from tavern_core.errors import CallError, ConfigInvalid
from tests.rows import each_row

from .conftest import Open
from .openai_server import OpenAIServer, Reply, Request

KEY = "sk-test-0123456789"
USER = [{"role": "user", "content": "hi"}]
CALLS = Reply("Let me look.", calls=[("text_count", {"text": "ä"}), ("text_find", "{not json")])


def entry(server: OpenAIServer, **more: Any) -> dict[str, Any]:
    return {"kind": "openai", "baseUrl": server.url, "model": "m1", "timeoutMs": 20_000, **more}


def ask(
    opened: Open, server: OpenAIServer, stream: bool, messages: Any = USER, more: Any = None, options: Any = None
) -> tuple[LLMAnswer, list[str]]:
    pieces: list[str] = []
    with opened({"far": entry(server, **(more or {}))}) as host:
        asked = host.llms.complete(messages, "far", options or {}, on_text=pieces.append if stream else None)
        return host.wait(asked), pieces


class Far:
    """A server and a host that tests share: each gives the replies to its own requests.

    The models of the host: `far`, `once`, which asks once, and `hasty` and `small`, which also wait half a second and read a megabyte.
    """

    def __init__(self, server: OpenAIServer, folder: Path) -> None:
        self.server = server
        self.replies: list[Reply | str] = []
        once = {"retries": 0, "maxBytes": 1_000_000}
        llms = {
            "far": entry(server),
            "once": entry(server, retries=0),
            "hasty": entry(server, timeoutMs=500, **once),
            "small": entry(server, timeoutMs=60_000, **once),
        }
        config = {"plugins": {"roots": [], "entryPoints": False}, "llms": llms}
        self.host = Tavern.open(config, home=folder / "home")

    def reply(self, request: Request) -> Reply | str:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def ask(
        self, replies: Sequence[Reply | str], stream: bool, model: str = "far", options: Any = None
    ) -> tuple[LLMAnswer, list[str]]:
        """The answer, and its pieces, where the server replies so; the last reply is for all further requests."""
        pieces: list[str] = []
        self.replies = list(replies)
        self.server.requests.clear()
        asked = self.host.llms.complete(USER, model, options or {}, on_text=pieces.append if stream else None)
        return self.host.wait(asked), pieces


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    with OpenAIServer(lambda request: shared.reply(request)) as server:
        shared = Far(server, tmp_path_factory.mktemp("far"))
        with shared.host:
            yield shared


@pytest.mark.parametrize("stream", [False, True])
def test_text_calls_and_usage_arrive_whole_and_in_pieces(far: Far, stream: bool) -> None:
    answer, pieces = far.ask([CALLS], stream)
    calls = (ModelCall("call_0", "text_count", '{"text": "ä"}'), ModelCall("call_1", "text_find", "{not json"))
    assert answer == LLMAnswer("Let me look.", "tool_calls", {"input": 7, "output": 5}, "m1", calls)
    assert pieces == (["Let me", " look."] if stream else [])


def test_a_request_is_written_in_the_form_of_the_api(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", f"{KEY}\n")
    tools = [{"type": "function", "function": {"name": "text_count", "parameters": {"type": "object"}}}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "", "toolCalls": [{"id": "c1", "name": "text_count", "arguments": "{}"}]},
        {"role": "tool", "toolCallId": "c1", "content": "2"},
    ]
    more = {"key": {"$env": "MODEL_KEY"}, "headers": {"X-Team": "blue"}, "options": {"temperature": 0, "top_p": 0.5}}
    with OpenAIServer(["ok"], key=KEY) as server:
        options = {"temperature": 0.7, "max_tokens": 9, "stop": ["END"], "tools": tools}
        ask(opened, server, True, messages, more, options)
        [request] = server.requests
    assert request.body == {
        "model": "m1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "top_p": 0.5,
        "max_tokens": 9,
        "stop": ["END"],
        "tools": tools,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "text_count", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ],
    }
    assert (request.headers["authorization"], request.headers["x-team"]) == (f"Bearer {KEY}", "blue")


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize("stream", [False, True])
def test_a_structured_answer_arrives_as_data(far: Far, stream: bool) -> None:
    assert far.ask([Reply('{"a": 1}')], stream, options={"schema": SCHEMA})[0].data == {"a": 1}
    asked = far.server.requests[0].body["response_format"]
    assert asked == {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


@each_row("stream", [False, True])
@each_row(
    ("text", "finish", "said"),
    [
        ('{"a": "x"}', "stop", "does not fit the schema: /a"),
        ("Sure! Here it is", "stop", "is not JSON"),
        ('{"a": NaN}', "stop", "is not JSON"),
        ('{"a": 1e999}', "stop", "is not JSON: the number is too large"),
        ('{"a": 1, "a": 2}', "stop", "is not JSON: 'a' appears twice"),
        ('{"a": 1', "length", "it was cut at max_tokens"),
        ("[" * 100_000, "stop", "is not JSON"),
    ],
)
def test_a_structured_answer_that_does_not_fit_is_one_clear_error(
    far: Far, stream: bool, text: str, finish: str, said: str
) -> None:
    with pytest.raises(CallError) as caught:
        far.ask([Reply(text, finish=finish, piece=5_000)], stream, options={"schema": SCHEMA})
    assert (caught.value.code, caught.value.retryable) == ("UPSTREAM_ERROR", True)
    assert said in caught.value.message


@pytest.mark.parametrize("schema", ["text", {"type": "objekt"}])
def test_a_schema_that_is_none_is_refused_before_the_request(far: Far, schema: Any) -> None:
    with pytest.raises(CallError) as caught:
        far.ask(["ok"], False, options={"schema": schema})
    assert (caught.value.code, far.server.requests) == ("INPUT_SCHEMA_INVALID", [])


FAILURES: dict[str, tuple[Reply, tuple[str, str, str]]] = {
    "a bad key": (Reply(status=401), ("UPSTREAM_ERROR", "none", "refuses the key (401)")),
    "a forbidden key": (Reply(status=403), ("UPSTREAM_ERROR", "none", "refuses the key (403)")),
    "an unknown model": (Reply(status=404), ("UPSTREAM_ERROR", "none", "does not know the model 'm1' (404)")),
    "a bad request": (
        Reply(status=400, error="too long"),
        ("UPSTREAM_ERROR", "none", "refuses the request (400): too long"),
    ),
    "a redirect": (Reply(status=302), ("UPSTREAM_ERROR", "none", "refuses the request (302)")),
    "a limit without an end": (
        Reply(status=429),
        ("BUDGET_EXCEEDED", "none", "accepts no more requests for now (429)"),
    ),
    "a broken server": (Reply(status=503), ("UPSTREAM_ERROR", "none", "failed (503)")),
    "silence": (Reply(fault="timeout"), ("TIMEOUT", "unknown", "was silent for 0.5 s")),
    "a cut answer": (Reply("hello there", fault="cut"), ("UPSTREAM_ERROR", "unknown", "broke off")),
    "no JSON": (Reply("hello", fault="malformed"), ("UPSTREAM_ERROR", "unknown", "is not JSON")),
    "an error inside": (Reply("hello", fault="error_in_stream"), ("UPSTREAM_ERROR", "unknown", "the engine broke")),
    "no UTF-8": (Reply("hello", fault="invalid_utf8"), ("UPSTREAM_ERROR", "unknown", "not UTF-8")),
    "a huge answer": (Reply("hello", fault="huge"), ("OUTPUT_TOO_LARGE", "unknown", "more than 1,000,000 bytes")),
}
STREAMED: dict[str, tuple[Reply, tuple[str, str, str]]] = {
    "comments alone": (Reply("hello there", fault="drip"), ("TIMEOUT", "unknown", "was silent for 0.5 s")),
    "no end": (Reply("hello", fault="endless"), ("OUTPUT_TOO_LARGE", "unknown", "more than 1,000,000 bytes")),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "stream"),
    [*((name, stream) for name in FAILURES for stream in (False, True)), *((n, True) for n in STREAMED)],
)
def test_every_failure_is_an_error_that_says_what_happened(far: Far, what: str, stream: bool) -> None:
    reply, (code, outcome, said) = (FAILURES | STREAMED)[what]
    with pytest.raises(CallError) as caught:
        far.ask([reply], stream, "hasty" if code == "TIMEOUT" else "small")
    assert (caught.value.code, caught.value.outcome) == (code, outcome)
    assert said in caught.value.message
    assert far.server.url in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_breaks_off_may_be_asked_for_again(far: Far, stream: bool) -> None:
    with pytest.raises(CallError) as caught:
        far.ask([Reply("hello there", fault="cut")], stream, "once")
    assert (caught.value.retryable, caught.value.hint) == (True, "ask again")


@each_row("stream", [False, True])
@each_row("body", [b"", b"\xc3", b"[" * 200_000, b'{"choices": [\xff]}'])
def test_bytes_that_are_no_json_are_an_error(far: Far, body: bytes, stream: bool) -> None:
    with pytest.raises(CallError, match=r"is not JSON|not UTF-8") as caught:
        far.ask([Reply(body=body)], stream)
    assert (caught.value.code, caught.value.outcome) == ("UPSTREAM_ERROR", "unknown")


def test_a_compressed_answer_is_refused(far: Far) -> None:
    reply = Reply(body=gzip.compress(b"{}"), headers={"content-encoding": "gzip"})
    with pytest.raises(CallError, match="compresses its answers") as caught:
        far.ask([reply], False)
    assert "turn compression off" in caught.value.hint


ODD: dict[str, tuple[Any, str]] = {
    "a list": ([], "no object"),
    "a text": ("hello", "no object"),
    "nothing": ({}, "no `choices`"),
    "no choice": ({"choices": []}, "no choice"),
    "a choice that is none": ({"choices": ["a"]}, "a choice without a message"),
    "a message that is none": ({"choices": [{"message": "a"}]}, "a choice without a message"),
    "calls that are not a list": ({"choices": [{"message": {"tool_calls": 5}}]}, "`tool_calls` that are not a list"),
    "a call that is none": ({"choices": [{"message": {"tool_calls": [5]}}]}, "a tool call without a function"),
    "an error that is a text": ({"error": "out of memory"}, "reports an error: out of memory"),
    "an error object alone": (
        {"object": "error", "message": "out of memory", "code": 500},
        "reports an error: out of memory",
    ),
}


@each_row("what", ODD)
def test_json_that_is_no_completion_is_an_error_that_says_so(far: Far, what: str) -> None:
    body, said = ODD[what]
    with pytest.raises(CallError) as caught:
        far.ask([Reply(body=json.dumps(body).encode())], False)
    assert (caught.value.code, caught.value.outcome) == ("UPSTREAM_ERROR", "unknown")
    assert said in caught.value.message


LOOSE: dict[str, tuple[Any, LLMAnswer]] = {
    "the least": ({"choices": [{"message": {"content": "a"}}]}, LLMAnswer("a")),
    "text in parts": ({"choices": [{"message": {"content": [{"text": "a"}, {"text": "b"}, 5]}}]}, LLMAnswer("ab")),
    "odd usage": (
        {"usage": {"prompt_tokens": "many", "completion_tokens": -1}, "choices": [{"message": {"content": "a"}}]},
        LLMAnswer("a"),
    ),
    "arguments as an object": (
        {"choices": [{"message": {"tool_calls": [{"function": {"name": "t", "arguments": {"a": 1}}}]}}]},
        LLMAnswer("", tool_calls=(ModelCall("call_0", "t", '{"a": 1}'),)),
    ),
    "a refusal in its own field": (
        {"choices": [{"message": {"content": None, "refusal": "I cannot help with that."}}]},
        LLMAnswer("I cannot help with that."),
    ),
    "a call without a name": (
        {"choices": [{"message": {"tool_calls": [{"id": "c", "function": {}}]}}]},
        LLMAnswer("", tool_calls=(ModelCall("c", "", ""),)),
    ),
}  # fmt: skip


@each_row("what", LOOSE)
def test_small_deviations_of_other_servers_are_understood(far: Far, what: str) -> None:
    body, expected = LOOSE[what]
    assert far.ask([Reply(body=json.dumps(body).encode())], False)[0] == expected


def test_usage_in_a_chunk_without_choices_is_counted(far: Far) -> None:
    chunks = [
        {"choices": [{"delta": {"content": "hello"}, "finish_reason": "stop"}]},
        {"usage": {"prompt_tokens": 3, "completion_tokens": 1}},
    ]
    answer, _ = far.ask([streamed(chunks)], True)
    assert answer == LLMAnswer("hello", usage={"input": 3, "output": 1})


def test_calls_with_ids_of_their_own_stay_apart_where_all_have_one_index(far: Far) -> None:
    calls = [{"index": 0, "id": id_, "function": {"name": name, "arguments": "{}"}} for id_, name in ("ax", "by")]
    chunks = [{"choices": [{"delta": {"tool_calls": [call]}}]} for call in calls]
    answer, _ = far.ask([streamed([*chunks, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}])], True)
    assert answer.tool_calls == (ModelCall("a", "x", "{}"), ModelCall("b", "y", "{}"))


def test_a_name_that_is_repeated_in_each_piece_of_a_call_counts_once(far: Far) -> None:
    parts = [{"index": 0, "id": "a", "function": {"name": "x__y", "arguments": piece}} for piece in ('{"t":', "1}")]
    chunks: list[Any] = [{"choices": [{"delta": {"tool_calls": [part]}}]} for part in parts]
    answer, _ = far.ask([streamed([*chunks, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}])], True)
    assert answer.tool_calls == (ModelCall("a", "x__y", '{"t":1}'),)


def streamed(chunks: list[Any]) -> Reply:
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"
    return Reply(body=body, headers={"content-type": "text/event-stream"})


def test_half_characters_of_two_pieces_are_joined_and_a_lone_half_is_replaced(far: Far) -> None:
    deltas = [{"content": "a \ud83d"}, {"content": "\ude00 b"}, {"content": "\ud83d c \ude00"}, {"content": "\ud83d"}]
    parts = [{"name": "x", "arguments": '"\ud83d'}, {"arguments": '\ude00"'}]
    calls = [{"tool_calls": [{"index": 0, "function": part}]} for part in parts]
    chunks = [{"choices": [{"delta": delta}]} for delta in [*deltas, *calls]]
    answer, pieces = far.ask([streamed([*chunks, {"choices": [{"delta": {}, "finish_reason": "stop"}]}])], True)
    assert (answer.text, pieces) == ("a 😀 b� c ��", ["a ", "😀 b", "� c �"])
    assert answer.tool_calls == (ModelCall("call_0", "x", '"😀"'),)


STREAMS: dict[str, tuple[bytes, str]] = {
    "a byte order mark in front": (b'\xef\xbb\xbfdata: {"choices": [{"delta": {"content": "hello"}}]}', "text/event-stream"),
    "no reason to stop": (b'data: {"choices": [{"delta": {"content": "hello"}, "finish_reason": null}]}', "text/event-stream"),
    "a media type in capitals": (b'data: {"choices": [{"delta": {"content": "hello"}}]}', "Text/Event-Stream"),
}  # fmt: skip


@each_row("what", STREAMS)
def test_a_stream_that_ends_with_its_last_line_is_whole(far: Far, what: str) -> None:
    event, media_type = STREAMS[what]
    reply = Reply(body=event + b"\n\ndata: [DONE]\n\n", headers={"content-type": media_type})
    answer, pieces = far.ask([reply], True)
    assert (answer.text, answer.finish_reason, pieces) == ("hello", "stop", ["hello"])


@each_row("status", [400, 422])
def test_a_server_that_refuses_the_request_for_usage_is_asked_without_it(opened: Open, status: int) -> None:
    refused = Reply(status=status, error={"message": "Unrecognized request argument supplied: stream_options"})
    with OpenAIServer([refused, Reply("hello")]) as server:
        assert ask(opened, server, True)[0].text == "hello"
        assert ["stream_options" in request.body for request in server.requests] == [True, False]
    with OpenAIServer([refused, refused, Reply("hello")]) as server:
        with pytest.raises(CallError, match="stream_options"):
            ask(opened, server, True)
        assert len(server.requests) == 2


def test_a_server_that_cannot_stream_answers_as_a_whole(far: Far) -> None:
    body = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
    answer, pieces = far.ask([Reply(body=json.dumps(body).encode())], True)
    assert (answer.text, pieces) == ("hello", ["hello"])


@pytest.mark.slow
@pytest.mark.parametrize("size", [80_000, pytest.param(400_000, marks=pytest.mark.soak)])
def test_a_call_in_very_many_pieces_is_put_together_in_time(opened: Open, size: int) -> None:
    deltas = [
        {"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "x" * 20}}]}}
        for _ in range(size // 20)
    ]
    events = [f"data: {json.dumps({'choices': [delta]})}\n\n" for delta in deltas]
    events.append(f"data: {json.dumps({'choices': [{'delta': {}, 'finish_reason': 'tool_calls'}]})}\n\n")
    reply = Reply(body="".join(events).encode(), headers={"content-type": "text/event-stream"})
    with OpenAIServer([reply]) as server:
        [call] = ask(opened, server, True)[0].tool_calls
    assert len(call.arguments) == size


@pytest.mark.parametrize("key", ["clé", "two\nlines"])
def test_a_key_that_cannot_be_sent_is_an_error_without_the_key(
    opened: Open, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("MODEL_KEY", key)
    with OpenAIServer() as server, pytest.raises(CallError, match="not plain ASCII") as caught:
        ask(opened, server, False, more={"key": {"$env": "MODEL_KEY"}})
    assert key not in str(caught.value)


def test_a_server_that_does_not_run_is_named(opened: Open) -> None:
    with OpenAIServer() as server:
        pass
    with pytest.raises(CallError, match="cannot be reached") as caught:
        ask(opened, server, False)
    assert (caught.value.code, caught.value.outcome, caught.value.retryable) == ("UPSTREAM_ERROR", "none", True)


@each_row("stream", [False, True])
@each_row("status", [429, 500, 503])
def test_a_passing_failure_is_tried_again(far: Far, status: int, stream: bool) -> None:
    busy = Reply(status=status, headers={"Retry-After": "0.01"})
    assert far.ask([busy, busy, Reply("at last")], stream)[0].text == "at last"
    assert len(far.server.requests) == 3


def test_a_limit_that_ends_soon_is_waited_for(far: Far) -> None:
    replies = [Reply(status=429, headers={"Retry-After": "0.05"}), Reply("at last")]
    assert far.ask(replies, False)[0].text == "at last"


def in_fifty_minutes() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(minutes=50), usegmt=True)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("300", 300_000, 300_000),
        (in_fifty_minutes, 2_900_000, 3_000_000),
        ("999999999999", 3_600_000, 3_600_000),
        ("soon", 0, 0),
    ],
)
def test_a_limit_that_lasts_longer_than_the_caller_waits_is_reported_at_once(
    opened: Open, header: str | Callable[[], str], least: int, most: int
) -> None:
    header = header() if callable(header) else header
    with OpenAIServer([Reply(status=429, headers={"Retry-After": header})]) as server:
        with pytest.raises(CallError) as caught:
            ask(opened, server, False, more={"retries": 1})
        assert len(server.requests) == (2 if header == "soon" else 1)
    assert (caught.value.code, caught.value.retryable) == ("BUDGET_EXCEEDED", True)
    assert least <= (caught.value.retry_after_ms or 0) <= most


def test_a_wait_within_the_time_limit_of_the_model_but_beyond_the_deadline_of_the_call_is_not_begun(
    opened: Open,
) -> None:
    more = {"timeoutMs": 600_000}
    with OpenAIServer([Reply(status=429, headers={"Retry-After": "60"})]) as server:
        host = opened({"far": entry(server, **more)}, limits={"timeoutMs": 30_000})
        with host, pytest.raises(CallError) as caught:
            host.wait(host.llms.complete("hi"))
    assert caught.value.code == "BUDGET_EXCEEDED"


def test_nothing_is_tried_again_once_text_has_arrived(opened: Open) -> None:
    with OpenAIServer([Reply("hello there", fault="error_in_stream"), Reply("again")]) as server:
        with pytest.raises(CallError):
            ask(opened, server, True)
        assert len(server.requests) == 1


def test_a_stream_without_its_last_line_is_whole_if_the_model_has_stopped(opened: Open) -> None:
    with OpenAIServer([Reply("hello there", fault="no_end")]) as server:
        assert ask(opened, server, True)[0].text == "hello there"


def test_the_key_is_in_no_error_and_in_no_record(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    with OpenAIServer(["ok"], key="another") as server:
        host = opened({"far": entry(server, key={"$env": "MODEL_KEY"})})
        events: list[Any] = []
        host.events.subscribe(lambda event: events.append(event.to_json()))
        with host, pytest.raises(CallError) as caught:
            host.wait(host.llms.complete("hi"))
    assert "refuses the key (401): bad key Bearer ***" in caught.value.message
    assert KEY not in f"{caught.value!r} {caught.value.details} {events} {caught.value.__cause__!r}"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ({"$env": "NOT_SET"}, "NOT_SET"),
        ({"$secret": "nowhere"}, "no secret 'nowhere' add it to `secrets` in tavern.yaml as a reference: {$env: NAME}"),
        ({"$file": "none.txt"}, "none.txt"),
    ],
)
def test_a_key_that_cannot_be_found_is_an_error_of_the_request(opened: Open, key: Any, said: str) -> None:
    with OpenAIServer() as server:
        with pytest.raises(CallError, match="'far'") as caught:
            ask(opened, server, False, more={"key": key})
        assert server.requests == []
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_a_key_can_be_a_secret_of_the_host(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    with OpenAIServer(["ok"], key=KEY) as server:
        far = entry(server, key={"$secret": "model"})
        with opened({"far": far}, secrets={"model": {"$env": "MODEL_KEY"}}) as host:
            assert host.wait(host.llms.complete("hi")).text == "ok"


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_closes_the_request(opened: Open, stream: bool) -> None:
    reply = Reply("hello there", fault="drip") if stream else Reply(fault="timeout")

    async def main(server: OpenAIServer) -> bool:
        async with opened({"far": entry(server)}) as host:
            arrived = asyncio.Event()
            on_text = (lambda _: arrived.set()) if stream else None
            asking = asyncio.create_task(host.llms.complete("hi", on_text=on_text))
            await (arrived.wait() if stream else asyncio.to_thread(server.asked.wait, 30))
            asking.cancel()
            await asyncio.wait([asking])
            return asking.cancelled() and await asyncio.to_thread(server.disconnected.wait, 30)

    with OpenAIServer([reply]) as server:
        assert asyncio.run(main(server))


def test_leaving_a_stream_early_closes_the_request(opened: Open) -> None:
    async def main(server: OpenAIServer) -> bool:
        async with opened({"far": entry(server)}) as host:
            pieces = host.llms.find("far").stream(USER)  # type: ignore[attr-defined]
            assert await anext(pieces) == "hello "
            await pieces.aclose()
            return await asyncio.to_thread(server.disconnected.wait, 30)

    with OpenAIServer([Reply("hello there", fault="drip")]) as server:
        assert asyncio.run(main(server))


def test_many_requests_at_once_get_their_own_answers(opened: Open) -> None:
    def echo(request: Request) -> Reply:
        return Reply(f"to {request.body['messages'][0]['content']}")

    async def main(server: OpenAIServer) -> list[str]:
        async with opened({"far": entry(server)}) as host:
            return [answer.text for answer in await asyncio.gather(*(host.llms.complete(str(n)) for n in range(12)))]

    with OpenAIServer(echo) as server:
        assert asyncio.run(main(server)) == [f"to {n}" for n in range(12)]


@each_row("option", ["model", "messages", "stream", "response_format"])
def test_an_option_cannot_replace_what_the_host_sets(far: Far, option: str) -> None:
    with pytest.raises(CallError, match=f"the option '{option}' is set by the host"):
        far.ask(["ok"], False, options={option: "x"})
    assert far.server.requests == []


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown kind": ({"kind": "opnai"}, "llms.far.kind: 'opnai' is not one of openai"),
    "no address": ({"kind": "openai"}, "needs 'baseUrl'"),
    "no web address": ({"kind": "openai", "baseUrl": "ftp://host"}, "llms.far.baseUrl: 'ftp://host' is not the address"),
    "a key in plain text": ({"kind": "openai", "baseUrl": "http://h/v1", "key": KEY}, "llms.far.key: a key is written as a reference"),
    "a key in the address": ({"kind": "openai", "baseUrl": "http://u:p@h/v1"}, "is not the address of an API"),
    "a misspelt key": ({"kind": "openai", "baseUrl": "http://h/v1", "modle": "x"}, "unknown key 'modle'"),
    "a key of another kind": ({"kind": "scripted", "answers": ["a"], "retries": 1}, "scripted has no 'retries'"),
    "no answers": ({"kind": "scripted"}, "needs `answers` or `file`"),
    "no provider": ({"kind": "pydantic-ai"}, "needs 'model'"),
    "a recording of nothing": ({"kind": "recorded", "file": "x", "record": True}, "needs `source`"),
    "a recording of itself": ({"kind": "recorded", "file": "x", "source": "far"}, "names a recorded model"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_entry_is_refused_at_its_place_and_shows_no_key(opened: Open, what: str) -> None:
    written, said = WRONG[what]
    with pytest.raises(ConfigInvalid) as caught:
        opened({"far": written})
    assert said in str(caught.value)
    assert KEY not in str(caught.value)
