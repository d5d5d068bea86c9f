"""Tools behind a namespace that a plugin resolves: lists and reviews hold for them as for any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, ToolSpec, deny, hookimpl


class Shelf:
    """Resolves leniently, as people write."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def resolve(self, local: str) -> ToolSpec | None:
        def page() -> str:
            self.read.append(local)
            return "page"

        return ToolSpec("shelf:page", impl=page) if local.strip().casefold() == "page" else None

    def names(self) -> list[str]:
        return ["page"]

    @hookimpl
    def tavern_register_namespaces(self) -> Any:
        return {"shelf": self}


class Review:
    @hookimpl
    def tavern_before_register_tool(self, tool: Any, owner: str) -> Any:
        return deny("nobody reads") if owner == "books" else None


SPELLINGS = ["shelf:page", "shelf: page", " shelf:page", "shelf:page ", "shelf:\u3000page", "shelf:PAGE"]


@pytest.mark.parametrize("written", SPELLINGS)
@pytest.mark.parametrize("how", ["free", "denied", "reviewed"])
def test_no_spelling_parts_a_tool_of_a_namespace_from_its_lists_and_reviews(tmp_path: Path, how: str, written: str) -> None:
    plugins = [Plugin(shelf := Shelf(), name="books"), *([Plugin(Review(), name="review")] if how == "reviewed" else [])]
    config = {"tools": {"deny": ["shelf:page"]}} if how == "denied" else {}
    with Tavern.open(config, plugins=plugins, home=tmp_path, activate="all") as tavern:
        result = tavern.invoke_sync(written)
    assert (result.ok, len(shelf.read)) == (how == "free", how == "free")
    assert result.ok or (result.error is not None and result.error.kind == "POLICY_DENIED")
