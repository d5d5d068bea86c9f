"""Hostile text: pieces of the protocol thrown together, for the property tests."""

from __future__ import annotations

import random

from hypothesis import strategies as st

TOKENS = [
    "<|[REQUEST_TOOL]|>", "<|[END_TOOL]|>", "<|[request_tool]|>", "<| [END_TOOL] |>", "「始」", "「末」", "「始ESCAPE」", "「末ESCAPE」",
    "»»»", "«««", ">>>", "<<<", "\ncommand:「始」any「末」", "\nx:「始」", "\ny:»»»", "\n  z: >>>", "key:「始」a「末」", "x1:「始」2「末」\n",
    "\ncommand1:「始」any「末」", "\ntype_hint_x:»»»json«««", "\nrequest_id:»»»r«««", " ", "\n", "\r\n", "\r", "\t", ",", "，", "：", ":",
    "#", "//", "(note)", "（注）", "(", "# c\n", "<think>", "</think>", "<thinking>", "<", "|", "[", "「", "末", "始", "」", "ESCAPE",
    "a", "中文", "\ud800", "😀", "e\u0301", "\u200b", "\0", "```\n", "~~~", "`", "\n```\n", "<|[", "<|[END_", "TOOL]|>", ".", "-", "_",
    "1", "a" * 130, " " * 300, "\n\n", "\nargs:\n「始」", "»", "«", ">", "END", "\u3000", "{{step1}}", "[1", '{"a":1}',
]  # fmt: skip
SKELETON = ["<|[REQUEST_TOOL]|>", "<|[END_TOOL]|>", "「始」", "「末」", "\nx:「始」", "key:「始」a「末」", "\n", " "]

soups = st.lists(st.sampled_from(TOKENS) | st.sampled_from(SKELETON), max_size=40).map("".join)
"""Texts made of protocol pieces; the shorter ones are what a failure shrinks to."""


def soup(chance: random.Random, pieces: int) -> str:
    """A text of `pieces` random protocol pieces, often beginning with a block."""
    words = [chance.choice(TOKENS if chance.random() < 0.6 else SKELETON) for _ in range(pieces)]
    return ("<|[REQUEST_TOOL]|>" if chance.random() < 0.7 else "") + "".join(words)


def cut(chance: random.Random, text: str) -> list[str]:
    """`text` in random pieces."""
    longest = chance.choice([1, 2, 3, 8, 40, 400])
    pieces, at = [], 0
    while at < len(text):
        size = chance.randint(1, longest)
        pieces.append(text[at : at + size])
        at += size
    return pieces
