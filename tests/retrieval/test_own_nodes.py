"""The host's own nodes are found in both languages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tavern_core import Tavern

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tavern]:
    with Tavern.open({"plugins": {"entryPoints": False}}, home=tmp_path_factory.mktemp("home")) as tavern:
        yield tavern


@pytest.mark.parametrize(
    ("request_", "type_"),
    [
        ("change the text to upper case", "core:Case"),
        ("把文本转成大写", "core:Case"),
        ("fetch a web address", "core:HttpFetch"),
        ("从网址下载内容", "core:HttpFetch"),
        ("split the text", "core:Split"),
        ("分割文本", "core:Split"),
        ("merge the branches", "core:Merge"),
        ("合并多个分支", "core:Merge"),
        ("a random number", "core:Random"),
        ("生成随机数", "core:Random"),
        ("ask a language model", "core:LLM"),
        ("让语言模型回答", "core:LLM"),
    ],
)
def test_a_node_of_the_host_is_among_the_first_three(host: Tavern, request_: str, type_: str) -> None:
    assert type_ in [match.type for match in host.nodes.retrieve(request_, limit=3)]
