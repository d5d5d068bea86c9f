"""The script as a process, against the endpoint that the package ships. No network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tavern_plugin_bilibili_fetcher
from tavern_plugin_bilibili_fetcher.fake_endpoint import FakeEndpoint

FOLDER = Path(tavern_plugin_bilibili_fetcher.__file__).parent


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as served:
        yield served


def fetch(url: str, endpoint: FakeEndpoint | str, cookie: str = "", **more: str) -> Any:
    config = {"endpoint": endpoint if isinstance(endpoint, str) else endpoint.url, "bilibiliCookie": cookie}
    done = subprocess.run(
        [sys.executable, "scripts/BilibiliFetch.py"],
        input=json.dumps({"url": url, **more, "config": config}).encode(),
        capture_output=True,
        cwd=FOLDER,
        check=True,
    )
    assert done.stderr == b""
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "url",
    [
        "BV1xx411c7mD",
        " BV1xx411c7mD\n",
        "av170001",
        "https://www.bilibili.com/video/BV1xx411c7mD",
        "https://www.bilibili.com/video/BV1xx411c7mD/?spm_id_from=333.1007&p=1#reply",
        "http://m.bilibili.com/video/BV1xx411c7mD",
        "www.bilibili.com/video/av170001",
        "https://www.bilibili.com/list/watchlater/BV1xx411c7mD?p=nonsense",
    ],
)
def test_a_url_or_a_number_gives_the_subtitles(endpoint: FakeEndpoint, url: str) -> None:
    got = fetch(url, endpoint)
    assert (got["bvid"], got["title"], got["page"], got["language"]) == ("BV1xx411c7mD", "字幕君交流场所", 1, "zh-CN")
    assert got["text"] == "大家好\n今天我们来看一个插件\n谢谢观看"
    assert got["lines"][0] == {"from": 0.0, "to": 1.5, "content": "大家好"}


def test_another_language_and_another_part(endpoint: FakeEndpoint) -> None:
    got = fetch("https://www.bilibili.com/video/BV1xx411c7mD?p=2", endpoint, language="en")
    assert (got["page"], got["language"], got["text"]) == (2, "en", "Hello everyone")


@pytest.mark.parametrize(
    ("url", "more", "code", "words"),
    [
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
    ],
)
def test_what_cannot_be_had_is_said(
    endpoint: FakeEndpoint, url: str, more: dict[str, str], code: str, words: str
) -> None:
    error = fetch(url, endpoint, **more)["error"]
    assert error["code"] == code
    assert words in error["message"]


def test_the_cookie_goes_to_the_api_and_not_to_the_subtitle_host(endpoint: FakeEndpoint) -> None:
    assert fetch("BV1Log1nOn1y", endpoint, "SESSDATA=abc; x=1")["text"].startswith("大家好")
    assert endpoint.seen == [
        ("/x/web-interface/view", "SESSDATA=abc; x=1"),
        ("/x/player/v2", "SESSDATA=abc; x=1"),
        ("/bfs/subtitle/zh-CN-3724723.json", ""),
    ]


@pytest.mark.parametrize(
    ("address", "cookie", "code"),
    [
        ("http://127.0.0.1:1", "", "UNREACHABLE"),
        ("nonsense", "", "BAD_SETTING"),
        ("file:///etc", "", "BAD_SETTING"),
        ("http://127.0.0.1:1", "a\r\nX-Evil: 1", "BAD_SETTING"),
        ("http://127.0.0.1:1", "甲", "BAD_SETTING"),
    ],
)
def test_wrong_settings_and_no_network_are_said(address: str, cookie: str, code: str) -> None:
    assert fetch("BV1xx411c7mD", address, cookie)["error"]["code"] == code
