"""Nodes that work on text."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final, Literal

from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.nodes import Out, Port, node
from tavern_core.errors import ToolFailed

_LONGEST: Final = 64_000_000
"""Characters of a text that a node builds, because a short template can use a long text many times."""
_PLACE: Final = re.compile(r"\{\{\s*([^{}\s]{1,100})\s*\}\}")


@hookimpl(fast=True)
def tavern_register_nodes() -> list[Any]:
    return [text, template, join, split, replace, case, length]


@node("core:Text", display_name="文本", category="text", fast=True, cache=True)
def text(text: Annotated[str, Port(multiline=True)] = "") -> Out(text=str):  # type: ignore[valid-type]
    """A text. 一段文本。"""
    return {"text": text}


@node("core:Template", display_name="模板", category="text", fast=True, cache=True)
def template(template: Annotated[str, Port(multiline=True)], **values: Any) -> Out(text=str):  # type: ignore[valid-type]
    """Fills a text: `{{name}}` becomes the value of the input `name`. Values are inserted verbatim and never read as a template. 用输入的值填充文本模板。

    Args:
        template: the text; any further input may be named in it.
    """

    texts: dict[str, str] = {}
    size = 0

    def value(found: re.Match[str]) -> str:
        nonlocal size
        name = found[1]
        if name not in values:
            known = ", ".join(values) or "none"
            raise ToolFailed(f"the template names {name!r}, and the node has no such input", hint=f"inputs: {known}")
        if name not in texts:
            texts[name] = _as_text(values[name])
        size += len(texts[name])
        _check_size(size)
        return texts[name]

    return {"text": _PLACE.sub(value, template)}


@node("core:Join", display_name="连接文本", category="text", fast=True, cache=True)
def join(parts: Annotated[list[Any], Port(multi=True)] = (), separator: str = "\n") -> Out(text=str):  # type: ignore[valid-type, assignment]
    """Joins texts, or the items of a single list. 连接多段文本，或列表的各项。

    Args:
        parts: the texts, in order.
        separator: the text between them.
    """
    items = parts[0] if len(parts) == 1 and isinstance(parts[0], list) else parts
    texts = [_as_text(item) for item in items]
    _check_size(sum(map(len, texts)) + len(separator) * len(texts))
    return {"text": separator.join(texts)}


@node("core:Split", display_name="拆分文本", category="text", fast=True, cache=True)
def split(text: str, separator: str = "\n", keep_empty: bool = False) -> Out(parts=list):  # type: ignore[valid-type]
    """Splits a text. 按分隔符拆分、分割文本为列表。

    Args:
        text: the text to split.
        separator: where; empty: at white space.
        keep_empty: keep empty parts.
    """
    parts = text.split(separator) if separator else text.split()
    return {"parts": parts if keep_empty else [part for part in parts if part.strip()]}


@node("core:Replace", display_name="替换文本", category="text", fast=True, cache=True)
def replace(text: str, old: str, new: str = "") -> Out(text=str, count=int):  # type: ignore[valid-type]
    """Replaces every occurrence of one text by another. 把文本中的每一处替换为另一段文本。

    Args:
        text: the text.
        old: the text to replace.
        new: the replacement.
    """
    if not old:
        raise ToolFailed("the text to replace is empty", hint="give `old`")
    count = text.count(old)
    _check_size(len(text) + count * (len(new) - len(old)))
    return {"text": text.replace(old, new), "count": count}


@node("core:Case", display_name="大小写", category="text", fast=True, cache=True)
def case(text: str, form: Literal["upper", "lower", "title", "trim"] = "trim") -> Out(text=str):  # type: ignore[valid-type]
    """Changes a text to upper case, lower case or title case, or trims white space around it. 转换大小写：大写、小写、标题格式，或去除首尾空白。"""
    forms = {"upper": text.upper, "lower": text.lower, "title": text.title, "trim": text.strip}
    return {"text": forms[form]()}


@node("core:Length", display_name="长度", category="text", fast=True, cache=True)
def length(value: Any) -> Out(length=int):  # type: ignore[valid-type]
    """How many characters a text has, how many items a list or an object. 统计文本字数，或列表、对象的项数。"""
    if not isinstance(value, str | list | tuple | dict | bytes):
        raise ToolFailed(f"{type(value).__name__} has no length", hint="give a text, a list or an object")
    return {"length": len(value)}


def _check_size(characters: int) -> None:
    if characters > _LONGEST:
        raise ToolFailed(
            f"the result would have {characters:,} characters; at most {_LONGEST:,}", hint="put less together"
        )


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, default=str)
