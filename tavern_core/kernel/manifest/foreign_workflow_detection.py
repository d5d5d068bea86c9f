"""Recognises workflow files of other products.

Recognised by the shape that each product's export always has, and that no file of ours can have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """A format of another product."""

    product: str
    what: str
    """``a workflow as the editor of ComfyUI saves it``"""
    place: tuple[str | int, ...] = ()
    """Where the document gives itself away."""


def foreign(data: Any) -> ForeignFormat | None:
    """The product that wrote `data`, which is JSON; None: unknown, or ours."""
    if isinstance(data, Mapping) and "nodes" in data and "edges" in data:
        return None
    return next(
        (
            ForeignFormat(product, what, place)
            for product, what, recognise in _FORMATS
            if (place := recognise(data)) is not None
        ),
        None,
    )


def foreign_text(text: str) -> ForeignFormat | None:
    """The same for a text that is not JSON: Dify exports YAML."""
    begun = text[:100_000].removeprefix("\ufeff")
    if all(re.search(pattern, begun, re.MULTILINE) for pattern in (r"^app:\s*$", r"^workflow:\s*$", r"^\s+graph:\s*$")):
        return ForeignFormat("Dify", _DIFY)
    return None


_Tell = Callable[[Any], "tuple[str | int, ...] | None"]
_DIFY: Final = "an app exported from Dify"


def _has(data: Any, **members: type) -> bool:
    """Whether it is an object with these members, each of its type."""
    return isinstance(data, Mapping) and all(isinstance(data.get(name), kind) for name, kind in members.items())


def _comfy_editor(data: Any) -> tuple[str | int, ...] | None:
    if not _has(data, nodes=list, links=list):
        return None
    has = any(isinstance(link, list) or (isinstance(link, Mapping) and "origin_id" in link) for link in data["links"])
    return ("links",) if has or any(isinstance(node, Mapping) and "pos" in node for node in data["nodes"]) else None


def _comfy_api(data: Any) -> tuple[str | int, ...] | None:
    if not isinstance(data, Mapping) or not data:
        return None
    if isinstance(data.get("prompt"), Mapping):
        found = _comfy_api(data["prompt"])
        return None if found is None else ("prompt", *found)
    is_graph = all(_has(node, class_type=str, inputs=Mapping) for node in data.values())
    return (next(iter(data)), "class_type") if is_graph else None


def _n8n(data: Any) -> tuple[str | int, ...] | None:
    if isinstance(data, list) and data:  # `n8n export:workflow --all` writes a list
        found = _n8n(data[0])
        return None if found is None else (0, *found)
    if not _has(data, nodes=list, connections=Mapping):
        return None
    has = any(_has(node, parameters=Mapping) for node in data["nodes"])
    return ("connections",) if has else None


def _langflow(data: Any) -> tuple[str | int, ...] | None:
    if _has(data, flows=list) and data["flows"]:
        found = _langflow(data["flows"][0])
        return None if found is None else ("flows", 0, *found)
    inner = data.get("data") if isinstance(data, Mapping) and "nodes" not in data else None
    return ("data", "nodes") if _has(inner, nodes=list, edges=list) else None


def _dify(data: Any) -> tuple[str | int, ...] | None:
    is_app = _has(data, app=Mapping) and _has(data.get("workflow"), graph=Mapping)
    return ("workflow", "graph") if is_app else None


_FORMATS: Final[tuple[tuple[str, str, _Tell], ...]] = (
    ("ComfyUI", "a workflow as the editor of ComfyUI saves it", _comfy_editor),
    ("ComfyUI", "a workflow in the API format of ComfyUI", _comfy_api),
    ("n8n", "a workflow exported from n8n", _n8n),
    ("Langflow", "a flow exported from Langflow", _langflow),
    ("Dify", _DIFY, _dify),
)
