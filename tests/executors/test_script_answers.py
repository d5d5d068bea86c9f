"""Reading answers and striking out secrets, without processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tavern_core.box.fork_server_client import ending
from tavern_core.box.output import HeadAndTail, OutputHead
from tavern_core.builtin.executors.script.executor import request
from tavern_core.builtin.executors.script.masking import ScriptMasking, secrets_of
from tavern_core.builtin.executors.script.queue import ScriptSlots
from tavern_core.builtin.executors.script.script_output import Unreadable, error_in, parse
from tavern_core.errors import InputInvalid, UpstreamError

from .workbench import Scripts, failing

pytestmark = pytest.mark.slow

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.slow
@given(json_values)
def test_every_json_value_is_read_back(value: Any) -> None:
    assert parse(json.dumps(value).encode()) == value
    assert parse(b"\xef\xbb\xbf " + json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\r\n\n") == value


@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"-" * 10)
def test_no_output_does_more_than_be_unreadable(output: bytes) -> None:
    with contextlib.suppress(Unreadable):
        json.dumps(parse(output), ensure_ascii=False).encode()


@pytest.mark.slow
@given(json_values)
def test_no_answer_breaks_the_search_for_an_error(value: Any) -> None:
    for shape in (
        value,
        {"error": value},
        {"ok": False, "error": value, "content": value},
        {"error": {"message": value}},
    ):
        error = error_in(shape, "unknown")
        assert error is None or error.message


@pytest.mark.slow
@given(st.dictionaries(st.text(), json_values, max_size=4), st.dictionaries(st.text(), json_values, max_size=2))
def test_every_request_is_one_json_object_that_holds_the_arguments_whole(arguments: Any, config: Any) -> None:
    read = json.loads(request(arguments, config, "c", "p:t", 5))
    assert (read["arguments"], read["config"]) == (arguments, config)


@given(
    st.text(),
    st.floats() | st.text(alphabet=st.characters(), max_size=3) | st.binary(max_size=2) | st.sets(st.integers()),
)
def test_a_request_is_written_or_refused(key: str, value: Any) -> None:
    with contextlib.suppress(InputInvalid):
        json.loads(request({"a": [{key: value}]}, {}, "c", "p:t", 5))


def test_a_signal_without_a_name_is_called_by_its_number() -> None:
    assert (ending(-9), ending(-40)) == ("SIGKILL", "signal 40")


# Limits ------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(0, 60))
def test_a_head_keeps_exactly_its_limit(pieces: list[bytes], limit: int) -> None:
    head, whole = OutputHead(limit), b"".join(pieces)
    fits = [head.add(piece) for piece in pieces]
    assert head.content() == whole[:limit]
    assert all(fits) == (len(whole) <= limit)


@given(st.lists(st.binary(max_size=30_000), max_size=12), st.integers(0, 60_000))
def test_head_and_tail_keep_both_ends_and_count_the_rest(pieces: list[bytes], half: int) -> None:
    kept, whole = HeadAndTail(half), b"".join(pieces)
    for piece in pieces:
        kept.add(piece)
    ends = kept.content()
    assert whole.startswith(ends.head)
    assert whole.endswith(ends.tail)
    assert len(ends.head) + ends.dropped + len(ends.tail) == len(whole)
    assert len(ends.head) <= half
    assert len(ends.tail) <= half


# Secrets -----------------------------------------------------------------------------------------------------------------

SCHEMA = [
    {"key": "pin", "type": "string", "secret": True},
    {"key": "bilibiliCookie", "type": "string"},
    {"key": "endpoint"},
]


def test_secrets_are_what_is_marked_or_named_like_one() -> None:
    values = {
        "pin": 12345678,
        "bilibiliCookie": "SESSDATA=abc",
        "endpoint": "http://x",
        "apiKey": ["k1", {"a": "k2"}],
        "token": "",
    }
    assert set(secrets_of(SCHEMA, values)) == {"12345678", "SESSDATA=abc", "k1", "k2"}


_SECRETS = st.text(st.characters(codec="utf-8"), min_size=4, max_size=40).filter(
    lambda s: s == s.strip() and set(s) - {"*"}
)


@pytest.mark.slow
@given(_SECRETS)
def test_no_spelling_of_a_secret_stays(secret: str) -> None:
    masking = ScriptMasking([secret])
    in_json = json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]
    for spelling in (secret, *in_json, repr(secret)[1:-1], quote(secret)):
        assert masking.text(spelling) == "***"
        assert masking.value([spelling, {spelling: spelling}]) == ["***", {"***": "***"}]
    assert masking.value({"n": 3}) == {"n": 3}


@pytest.mark.slow
@given(_SECRETS | st.text("ab", min_size=4, max_size=6), st.integers(1, 60), st.integers(0, 3))
@example("abca", 9, 0)
@example("abab", 9, 0)
@example("abab", 7, 1)
def test_no_half_of_a_secret_stays_where_a_text_was_cut(secret: str, cut: int, times: int) -> None:
    masking = ScriptMasking([secret])
    whole = secret * times + "|" + secret
    shown = whole.encode()[:cut].decode(errors="replace"), whole.encode()[-cut:].decode(errors="replace")
    assert set(masking.beginning(shown[0])) <= {"*", "|"}
    assert set(masking.end(shown[1])) <= {"*", "|"}


def test_a_short_secret_spoils_no_other_text() -> None:
    masking = ScriptMasking(["1"])
    assert masking.value({"a": "1", "b": "2021", "c": 1}) == {"a": "***", "b": "2021", "c": 1}
    assert masking.text("pin 1") == "pin ***"


def test_the_longer_of_two_secrets_goes_first() -> None:
    assert ScriptMasking(["abcd", "abcdefgh"]).text("abcdefgh abcd") == "*** ***"


PLANTED = "s3cr3t-Käse\"'/?"
LEAK = """
import json, sys, urllib.parse
d = json.load(sys.stdin); s = d["config"]["bilibiliCookie"]
for form in (s * 50, json.dumps(s), repr(s), urllib.parse.quote(s)): print("x" * 90 + form, file=sys.stderr)
"""


def leak(scripts: Scripts, end: str, **limits: int) -> Any:
    home = scripts.home(settings={"bilibiliCookie": PLANTED}, **limits)
    return scripts.call(LEAK + end, home=home, tool={"config_schema": tuple(SCHEMA)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(s)",
        "print(s)",
        "print(json.dumps({'error': s}))",
        "raise KeyError(s)",
        "print('{\"a\": 1, ' + repr(s))",
    ],
)
@pytest.mark.parametrize("stderr_bytes", [64_000, 200, 193, 30, 1, 0])
def test_a_secret_never_comes_back_in_an_error(scripts: Scripts, end: str, stderr_bytes: int) -> None:
    error = failing(Exception, leak(scripts, end, stderr_bytes=stderr_bytes))
    shown = f"{error.message} {error.hint} {json.dumps(error.details, ensure_ascii=False)}"
    for part in ("s3cr3t", "Käse", "K\\u00e4se", "K%C3%A4se"):
        assert part not in shown
    assert isinstance(error, UpstreamError) or "***" in error.message


def test_a_secret_never_comes_back_in_an_answer(scripts: Scripts) -> None:
    answer = asyncio.run(leak(scripts, "print(json.dumps({'echo': d, s: [s + '!']}))"))
    assert "s3cr3t" not in json.dumps(answer)
    assert answer["***"] == ["***!"]
    assert answer["echo"]["config"] == {"bilibiliCookie": "***"}


def test_a_secret_is_in_no_command_line_and_no_environment(scripts: Scripts) -> None:
    seen = f"print(json.dumps([*(open('/proc/self/' + f).read() for f in ('cmdline', 'environ')), s == {PLANTED!r}]))"
    line, environ, same = asyncio.run(leak(scripts, seen))
    assert same
    assert "***" not in line + environ
    assert "s3cr3t" not in line + environ
    assert "s3cr3t" not in json.dumps(dict(os.environ))


# Places ------------------------------------------------------------------------------------------------------------------


def test_places_are_given_in_order_and_given_back_by_the_cancelled() -> None:
    async def scenario() -> list[int]:
        places, order = ScriptSlots(1), []

        async def hold(number: int, release: asyncio.Event) -> None:
            async with places.one():
                order.append(number)
                await release.wait()

        releases = [asyncio.Event() for _ in range(4)]
        tasks = [asyncio.ensure_future(hold(n, releases[n])) for n in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()  # while it waits
        releases[0].set()
        await tasks[0]
        tasks[2].cancel()  # just when its turn has come
        releases[3].set()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with places.one():
            order.append(9)
        return order

    assert [n for n in asyncio.run(scenario()) if n != 2] == [0, 3, 9]


def test_a_place_is_not_given_to_a_loop_that_is_gone() -> None:
    places = ScriptSlots(1)
    loop = asyncio.new_event_loop()
    held = places.one()
    loop.run_until_complete(held.__aenter__())
    other = asyncio.new_event_loop()
    other.set_exception_handler(lambda *_: None)  # it would complain about the task that waits for ever
    waiting = other.create_task(places.one().__aenter__())
    other.run_until_complete(asyncio.sleep(0))
    other.close()
    loop.run_until_complete(held.__aexit__(None, None, None))
    done = threading.Event()

    async def take() -> None:
        async with places.one():
            done.set()

    loop.run_until_complete(take())
    loop.close()
    assert done.is_set()
    assert not waiting.done()
