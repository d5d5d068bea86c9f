"""The tool inside a real host, offline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tavern_plugin_bilibili_fetcher
from tavern_plugin_bilibili_fetcher.fake_endpoint import FakeEndpoint

from tavern_core import CallContext, Tavern

SETTINGS = "extensions.bilibili-fetcher.getSubtitle"
CALL = """<|[REQUEST_TOOL]|>
command:「始」BilibiliFetch:getSubtitle「末」
url:「始」https://www.bilibili.com/video/BV1xx411c7mD「末」
<|[END_TOOL]|>"""


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as served:
        yield served


def host(tmp_path: Path, endpoint: FakeEndpoint, **settings: Any) -> Tavern:
    given = {f"{SETTINGS}.{key}": value for key, value in {"endpoint": endpoint.url, **settings}.items()}
    # The endpoint of the tests is on this machine, where no scope of the plugin leads; so its scripts may what its code may.
    config = {"plugins": {"roots": [], "entryPoints": False}, "settings": given, "isolation": {"scripts": "tier"}}
    return Tavern.open(config=config, plugins=[tavern_plugin_bilibili_fetcher], home=tmp_path)


@pytest.mark.parametrize(
    "tool", ["bilibili-fetcher:getSubtitle", "BilibiliFetch:getSubtitle", "BilibiliFetch.getSubtitle"]
)
def test_every_spelling_of_the_tool_fetches_subtitles(tmp_path: Path, endpoint: FakeEndpoint, tool: str) -> None:
    with host(tmp_path, endpoint) as tavern:
        result = tavern.invoke_sync(tool, {"url": "BV1xx411c7mD", "language": "en"})
    assert result.ok, result.error
    assert result.value["text"].startswith("Hello everyone")


def test_a_models_text_fetches_subtitles(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    with host(tmp_path, endpoint) as tavern:
        outcome = tavern.run_text_sync(CALL)
    assert "谢谢观看" in outcome.results[0].value["text"]


def test_the_cookie_reaches_the_script_and_nobody_else(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    cookie = "SESSDATA=planted-secret-7"
    with host(tmp_path, endpoint, bilibiliCookie=cookie) as tavern:
        result = tavern.invoke_sync("bilibili-fetcher:getSubtitle", {"url": "BV1Log1nOn1y"})
        shown = json.dumps([result.to_json(), [spec.to_json() for spec in tavern.tools.list()]])
    assert result.ok, result.error
    assert [seen for _, seen in endpoint.seen] == [cookie, cookie, ""]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "planted-secret-7" not in shown
    assert b"planted-secret-7" not in kept


@pytest.mark.parametrize(
    ("arguments", "permissions", "kind"),
    [
        ({"url": "BV1No00000SS"}, {"read:web"}, "TOOL_ERROR"),
        ({"url": "BV1xx411c7mD"}, set(), "POLICY_DENIED"),
        ({"url": ""}, {"read:web"}, "INPUT_SCHEMA_INVALID"),
        ({"uri": "BV1xx411c7mD"}, {"read:web"}, "INPUT_SCHEMA_INVALID"),
    ],
)
def test_what_cannot_be_done_is_one_clear_error(
    tmp_path: Path, endpoint: FakeEndpoint, arguments: dict[str, Any], permissions: set[str], kind: str
) -> None:
    with host(tmp_path, endpoint) as tavern:
        caller = CallContext(permissions=frozenset(permissions))
        result = tavern.invoke_sync("bilibili-fetcher:getSubtitle", arguments, context=caller)
    assert result.error is not None
    assert result.error.kind == kind


def test_the_script_reaches_nothing_but_the_hosts_of_its_scope(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    given = {f"{SETTINGS}.endpoint": endpoint.url}
    config = {"plugins": {"roots": [], "entryPoints": False}, "settings": given}
    with Tavern.open(config=config, plugins=[tavern_plugin_bilibili_fetcher], home=tmp_path) as tavern:
        result = tavern.invoke_sync("bilibili-fetcher:getSubtitle", {"url": "BV1GJ411x7h7"})
    assert result.error is not None
    assert "bilibili-fetcher may not connect to 127.0.0.1" in result.error.fix
    assert endpoint.seen == []
