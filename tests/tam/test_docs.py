"""The manual page says what the code does: its examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tavern_core import tam

PAGE = (Path(__file__).parents[2] / "docs" / "tam.md").read_text(encoding="utf-8")


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_run() -> None:
    names: dict[str, Any] = {}
    for code in fenced("python"):
        exec(compile(code, "docs/tam.md", "exec"), names)
    assert names["plan"].calls


@pytest.mark.parametrize("text", fenced("tam"))
def test_the_samples_are_clean(text: str) -> None:
    plan = tam.bind(tam.parse(text), {"file.write": {}, "search": {}})
    assert plan.calls
    assert not plan.problems
