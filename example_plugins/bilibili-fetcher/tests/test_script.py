"""The script as a process, against the endpoint that the package ships. No network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tavern_plugin_bilibili_fetcher
from tavern_plugin_bilibili_fetcher.fake_endpoint import FakeEndpoint

FOLDER = Path(tavern_plugin_bilibili_fetcher.__file__).parent
SCRIPT = "scripts/BilibiliFetch.py"
ONE_AFTER_THE_OTHER = """
import io, json, runpy, sys

for asked in json.load(sys.stdin):
    sys.stdin = io.StringIO(json.dumps(asked))
    runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs the script once for each question, in one process: most of what one costs is its start."""


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as served:
        yield served


def asked(url: str, endpoint: FakeEndpoint | str, cookie: str = "", **more: str) -> dict[str, Any]:
    config = {"endpoint": endpoint if isinstance(endpoint, str) else endpoint.url, "bilibiliCookie": cookie}
    return {"url": url, **more, "config": config}


def run(given: Any, *words: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, *words], input=json.dumps(given).encode(), capture_output=True, cwd=FOLDER, check=True
    )
    assert done.stderr == b""
    return [json.loads(line) for line in done.stdout.splitlines()]


def fetch(url: str, endpoint: FakeEndpoint, cookie: str = "", **more: str) -> Any:
    (answer,) = run(asked(url, endpoint, cookie, **more), SCRIPT)
    return answer


def fetch_all(questions: Iterable[dict[str, Any]]) -> list[Any]:
    return run(list(questions), "-c", ONE_AFTER_THE_OTHER, SCRIPT)


URLS = (
    "BV1xx411c7mD",
    " BV1xx411c7mD\n",
    "av170001",
    "https://www.bilibili.com/video/BV1xx411c7mD",
    "https://www.bilibili.com/video/BV1xx411c7mD/?spm_id_from=333.1007&p=1#reply",
    "http://m.bilibili.com/video/BV1xx411c7mD",
    "www.bilibili.com/video/av170001",
    "https://www.bilibili.com/list/watchlater/BV1xx411c7mD?p=nonsense",
)


def test_a_url_or_a_number_gives_the_subtitles(endpoint: FakeEndpoint) -> None:
    answers = fetch_all(asked(url, endpoint) for url in URLS)
    for url, got in zip(URLS, answers, strict=True):
        found = (got["bvid"], got["title"], got["page"], got["language"])
        assert found == ("BV1xx411c7mD", "字幕君交流场所", 1, "zh-CN"), url
        assert got["text"] == "大家好\n今天我们来看一个插件\n谢谢观看", url
        assert got["lines"][0] == {"from": 0.0, "to": 1.5, "content": "大家好"}, url


def test_another_language_and_another_part(endpoint: FakeEndpoint) -> None:
    got = fetch("https://www.bilibili.com/video/BV1xx411c7mD?p=2", endpoint, language="en")
    assert (got["page"], got["language"], got["text"]) == (2, "en", "Hello everyone")


FAILURES: tuple[tuple[str, dict[str, str], str, str], ...] = (
    ("BV1No00000SS", {}, "NO_SUBTITLE", "没有字幕"),
    ("BV1Log1nOn1y", {}, "NO_SUBTITLE", "没有字幕"),
    ("BV1xx411c7mD", {"language": "fr"}, "NO_LANGUAGE", "'fr'"),
    ("https://www.bilibili.com/video/BV1xx411c7mD?p=9", {}, "NO_PAGE", "no part 9"),
    ("BV0000000000", {}, "-404", "no such video"),
    ("BV1B10cked11", {}, "HTTP_412", "HTTP 412"),
    ("BV1Br0ken000", {}, "BAD_ANSWER", "not JSON"),
    ("BV1Red1rect0", {}, "HTTP_302", "HTTP 302"),
    ("BV1F0re1gnHs", {}, "BAD_ANSWER", "foreign host"),
    ("BV123", {}, "BAD_URL", "names no video"),
    ("", {}, "BAD_URL", "names no video"),
    ("BV1xx411c7mD/../../x", {}, "BAD_URL", "not Bilibili"),
    ("https://www.bilibili.com/", {}, "BAD_URL", "names no video"),
    ("https://bilibili.com.evil.example/video/BV1xx411c7mD", {}, "BAD_URL", "not Bilibili"),
    ("https://www.bilibili.com@evil.example/video/BV1xx411c7mD", {}, "BAD_URL", "not Bilibili"),
    ("https://b23.tv/abc", {}, "BAD_URL", "short link"),
)
"""A URL, further arguments, and the code and words of the error."""


def test_what_cannot_be_had_is_said(endpoint: FakeEndpoint) -> None:
    answers = fetch_all(asked(url, endpoint, **more) for url, more, _, _ in FAILURES)
    for (url, _, code, words), answer in zip(FAILURES, answers, strict=True):
        assert answer["error"]["code"] == code, url
        assert words in answer["error"]["message"], url


def test_the_cookie_goes_to_the_api_and_not_to_the_subtitle_host(endpoint: FakeEndpoint) -> None:
    assert fetch("BV1Log1nOn1y", endpoint, "SESSDATA=abc; x=1")["text"].startswith("大家好")
    assert endpoint.seen == [
        ("/x/web-interface/view", "SESSDATA=abc; x=1"),
        ("/x/player/v2", "SESSDATA=abc; x=1"),
        ("/bfs/subtitle/zh-CN-3724723.json", ""),
    ]


WRONG: tuple[tuple[str, str, str], ...] = (
    ("http://127.0.0.1:1", "", "UNREACHABLE"),
    ("nonsense", "", "BAD_SETTING"),
    ("file:///etc", "", "BAD_SETTING"),
    ("http://127.0.0.1:1", "a\r\nX-Evil: 1", "BAD_SETTING"),
    ("http://127.0.0.1:1", "甲", "BAD_SETTING"),
)
"""An address, a cookie, and the code of the error."""


def test_wrong_settings_and_no_network_are_said() -> None:
    answers = fetch_all(asked("BV1xx411c7mD", address, cookie) for address, cookie, _ in WRONG)
    for (address, cookie, code), answer in zip(WRONG, answers, strict=True):
        assert answer["error"]["code"] == code, (address, cookie)
