"""Docstrings in the three usual styles, in any language, say what a tool and its parameters are."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tavern_core.schema.docstring import docstring_of, parse_docstring
from tests.rows import each_row


@each_row(
    ("text", "description", "parameters", "returns"),
    [
        ("", "", {}, ""),
        ("Count words.", "Count words.", {}, ""),
        ("Count.\n\n    More about it.\n    Second line.\n    ", "Count.\n\nMore about it.\nSecond line.", {}, ""),
        (
            "Do.\n\nArgs:\n    a: first\n    b (int, optional): second\n        goes on\n    *items: many\n\nReturns:\n    the number\n",
            "Do.", {"a": "first", "b": "second goes on", "items": "many"}, "the number",
        ),
        ("Do.\n\nArguments:\n  path (str): with: colon\n\nRaises:\n  ValueError: never\n", "Do.", {"path": "with: colon"}, ""),
        ("Do.\n\nReturns: a number.\n", "Do.", {}, "a number."),
        (
            "Do.\n\nParameters\n----------\na : int\n    First\n    line.\nb, c : str, optional\n    Both.\n\nReturns\n-------\nint\n    The sum.\n",
            "Do.", {"a": "First line.", "b": "Both.", "c": "Both."}, "The sum.",
        ),
        (
            "Do.\n\n:param a: first\n    goes on\n:param int b: second\n:type b: int\n:returns: the sum\n:raises ValueError: x\n",
            "Do.", {"a": "first goes on", "b": "second"}, "the sum",
        ),
        ("计算字数。\n\n参数：\n    text：要计算的文本\n    unit（可选）：单位\n\n返回：\n    数量\n", "计算字数。", {"text": "要计算的文本", "unit": "单位"}, "数量"),
        ("计算。\n\nArgs:\n    文本: 内容\n", "计算。", {"文本": "内容"}, ""),
        ("Note: this is text.\n\nArgs:\n    a: x", "Note: this is text.", {"a": "x"}, ""),
        ("Do.\n\nExample:\n    >>> f(a=1)\n    2\n\nArgs:\n    a: x\n", "Do.", {"a": "x"}, ""),
        ("Do.\n\nArgs:\n", "Do.", {}, ""),
    ],
)  # fmt: skip
def test_styles(text: str, description: str, parameters: dict[str, str], returns: str) -> None:
    found = parse_docstring(text)
    assert (found.description, dict(found.parameters), found.returns) == (description, parameters, returns)


class Called:
    """The class."""

    def __call__(self) -> None:
        """The call."""


class CalledSilently:
    def __call__(self) -> None:
        """The call."""


def documented() -> None:
    """The function."""


@each_row(
    ("function", "text"),
    [
        (documented, "The function."),
        (functools.partial(documented), "The function."),
        (Called(), "The class."),
        (CalledSilently(), "The call."),
        (CalledSilently().__call__, "The call."),
        (lambda: None, ""),
    ],
)
def test_each_kind_of_callable_has_its_own_text(function: object, text: str) -> None:
    assert docstring_of(function).description == text  # type: ignore[arg-type]


@pytest.mark.slow
@given(st.text("abc:-()\n \t*，：Args参数Returns", max_size=200))
def test_any_text_is_a_docstring(text: str) -> None:
    parse_docstring(text)
