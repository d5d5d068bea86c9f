"""The fakes for authors: a context without a host, and a web API on this machine."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tavern_core.errors import PolicyDenied, SettingsInvalid
from tavern_core.testing import FakeEndpoint, fake_context


def ask(url: str, data: bytes | None = None, method: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, data=data, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_fake_context_answers_what_it_was_given(tmp_path: Path) -> None:
    clock = object()
    ctx = fake_context(
        "text",
        settings={"mark": "!"},
        services={"clock": clock},
        secrets={"key": "k"},
        config={"a": 1},
        data_dir=tmp_path / "data",
        version="2.0",
    )
    assert (ctx.id, ctx.version, ctx.config) == ("text", "2.0", {"a": 1})
    assert ctx.get_config("mark") == ctx.get_config("extensions.text.mark") == "!"
    assert ctx.plugin_config == {"mark": "!"}
    assert ctx.service("clock") is clock
    assert ctx.secret("key") == "k"
    assert ctx.data_dir.is_dir()
    assert ctx.logger.name == "tavern.plugin.text"


def test_a_fake_context_refuses_what_it_was_not_given() -> None:
    ctx = fake_context("text", settings={"mark": "!"})
    with pytest.raises(SettingsInvalid) as setting:
        ctx.get_config("mrak")
    with pytest.raises(PolicyDenied):
        ctx.service("clock")
    with pytest.raises(PolicyDenied):
        ctx.secret("key")
    with pytest.raises(RuntimeError, match="data_dir"):
        _ = ctx.data_dir
    assert "mark" in setting.value.hint


def test_a_fake_context_tells_of_changed_settings() -> None:
    ctx = fake_context("text", settings={"mark": "!"})
    seen: list[Any] = []
    ctx.on_config_change("mark", seen.append)
    doors: Any = ctx._open()
    doors.change("mark", "?")
    assert (seen, ctx.get_config("mark")) == (["?"], "?")


@pytest.mark.slow
def test_an_endpoint_answers_in_order_and_then_stays(fake_endpoint: FakeEndpoint) -> None:
    fake_endpoint.reply("/a", json={"名": 1})
    fake_endpoint.reply("/a", text="busy", status=503, headers={"Retry-After": "1"})
    answers = [ask(f"{fake_endpoint.url}/a?q=天".encode().decode("ascii", "ignore")) for _ in range(3)]
    assert (answers[0][0], json.loads(answers[0][1])) == (200, {"名": 1})
    assert answers[1] == answers[2] == (503, "busy")
    assert [request.path for request in fake_endpoint.requests] == ["/a"] * 3


@pytest.mark.slow
def test_an_endpoint_remembers_what_it_was_asked(fake_endpoint: FakeEndpoint) -> None:
    fake_endpoint.reply("/items", json=[])
    ask(f"{fake_endpoint.url}/items?page=2&name=x%20y", data=b'{"a": 1}', method="PUT")
    (request,) = fake_endpoint.requests
    assert (request.method, request.path, request.query) == ("PUT", "/items", {"page": "2", "name": "x y"})
    assert request.json() == {"a": 1}
    assert "host" in request.headers


@pytest.mark.slow
def test_an_endpoint_names_the_paths_there_are(fake_endpoint: FakeEndpoint) -> None:
    fake_endpoint.reply("/there", json=1)
    status, text = ask(f"{fake_endpoint.url}/elsewhere")
    assert status == 404
    assert "/there" in text


@pytest.mark.slow
def test_many_may_ask_at_once() -> None:
    with FakeEndpoint() as endpoint, ThreadPoolExecutor(16) as pool:
        endpoint.reply("/n", json=7)
        answers = list(pool.map(lambda _: ask(f"{endpoint.url}/n"), range(100)))
        assert answers == [(200, "7")] * 100
        assert len(endpoint.requests) == 100
