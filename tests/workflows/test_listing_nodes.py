"""Node types are listed from the index, without importing the plugins that they come from, as tools are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tavern_core import Plugin, deny, hookimpl
from tavern_core.errors import NodeNotFound
from tests.host.workshop import Workshop

NODES = """
from tavern_core import hookimpl, node

@node(replaces=["old:Upper"], capabilities=["read:fs"])
def Upper(text: str = "a", picture: bytes = b"\\x00\\x01") -> str:
    "Large letters."
    return text.upper()

@hookimpl
def tavern_register_nodes():
    return [Upper]
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    made = Workshop(tmp_path, monkeypatch)
    made.folder("letters", NODES, "nodes: {entry: nodes}\npermissions: {capabilities: [read:fs]}", nodes__x="")
    made.folder("plain", "", "tools: []")
    yield made
    made.end()


def listed(shop: Workshop, *plugins: Plugin) -> dict[str, dict[str, object]]:
    """The plugin's node types, as a new host lists them."""
    host = shop.open(*plugins)
    try:
        return {spec.type: spec.to_json() for spec in host.nodes.list(query="letters")}
    finally:
        shop.close(host)


@pytest.mark.slow
def test_a_host_lists_what_an_earlier_one_has_seen_without_importing_it(shop: Workshop) -> None:
    first = listed(shop)
    assert list(first) == ["letters:Upper"]
    assert first["letters:Upper"]["replaces"] == ["old:Upper"]
    imports = shop.notes()
    assert listed(shop) == first
    assert shop.notes() == imports


@pytest.mark.slow
def test_an_edited_plugin_is_imported_again(shop: Workshop) -> None:
    listed(shop)
    code = shop.plugins / "letters" / "__init__.py"
    code.write_text(code.read_text().replace("Upper", "Capital"))
    assert list(listed(shop)) == ["letters:Capital"]


def test_a_disabled_plugin_has_no_nodes_in_the_list(shop: Workshop) -> None:
    listed(shop)
    host = shop.open()
    host.plugins.disable_sync("letters")
    assert "letters:Upper" not in host.nodes


class Strict:
    @hookimpl
    def tavern_before_register_node(self, definition: object, owner: str) -> object:
        return deny("not here") if owner == "letters" else None


@pytest.mark.slow
def test_a_hook_that_leaves_a_node_out_leaves_it_out_of_the_list(shop: Workshop) -> None:
    listed(shop)
    assert listed(shop, Plugin(Strict(), name="strict")) == {}


@pytest.mark.parametrize("type_", ["letters:Upper", "old:Upper"])
def test_a_workflow_activates_the_plugin_that_has_a_type_now_and_no_other(shop: Workshop, type_: str) -> None:
    shop.grant("letters")
    listed(shop)
    imports = shop.notes()
    host = shop.open()
    content = {"nodes": [{"id": "a", "type": type_, "inputValues": {"text": "b"}}], "edges": []}
    result = host.workflows.run_sync(content)
    assert result.ok, result.error
    assert shop.notes() == [*imports, "import letters"]


def test_a_misspelt_type_is_answered_with_the_nearest_without_an_import(shop: Workshop) -> None:
    listed(shop)
    imports = shop.notes()
    host = shop.open()
    with pytest.raises(NodeNotFound, match="lettrs:Upper"):
        host.nodes.get_node("lettrs:Upper")
    assert shop.notes() == imports
