"""Splits text into the words that search compares: Chinese, Japanese, Korean, and languages with spaces.

    "getSubtitle 获取字幕"  →  getsubtitl get subtitl 获 取 字 幕 获取 取字 字幕

Scripts without spaces give single characters and pairs. Other words are lower-cased, freed of accents, split where
the case changes, and cut to a stem, so that "translation" finds "translate". Only letters and digits become part of
a word: quotes, operators, NUL and lone surrogates of a hostile query disappear here.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

LONGEST_TEXT: Final = 20_000
"""Characters of a text that are indexed; later ones cannot be found."""
_LONGEST_WORD: Final = 64
_SHORTEST_STEM: Final = 3
_WORD: Final = re.compile(r"[^\W_]+")
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_SUFFIXES: Final = ("ingly", "ions", "ings", "ers", "ors", "ion", "ing", "ied", "ies", "ed", "er", "or", "es")
_VOWELS: Final = frozenset("aeiouy")
_ENGLISH: Final = (
    "a an and are as at be by can do for from how i in is it me my of on or please that the this to want what with"
)
_CHINESE: Final = "的 了 吗 呢 我 你 请 在 是 把 和 与 个 我想 怎么 如何 什么 一个 我要 怎样 可以"
STOPWORDS: Final = frozenset(f"{_ENGLISH} {_CHINESE}".split())
"""Stop words; a query drops them unless no other word is left."""
# CJK ideographs with extensions A-H and compatibility forms, kana, hangul syllables and jamo, bopomofo, iteration marks.
_SPACELESS: Final = re.compile(
    "[\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\u1100-\u11ff\uf900-\ufaff\U00020000-\U000323af]+"
)


def words_of(text: str) -> list[str]:
    """Every word to index for `text`, with repetitions; the module describes the rules."""
    found: list[str] = []
    for chunk, spaceless in _chunks(text):
        if spaceless:
            found += chunk
            found += pairs(chunk)
        else:
            found += _spaced(chunk)
    return found


def query_words(text: str, most: int = 32) -> list[str]:
    """The distinct words to search for, at most `most`, in order; pairs replace single characters where possible.

    A pair is far rarer than its characters: searching 字 of 字幕 would find every document about characters.
    """
    found: dict[str, None] = {}
    for chunk, spaceless in _chunks(text[:2_000]):
        if not spaceless:
            found.update(dict.fromkeys(_spaced(chunk)))
        elif len(chunk) == 1:
            found[chunk] = None
        else:
            found.update(dict.fromkeys(pairs(chunk)))
    content_words = [word for word in found if word not in STOPWORDS]
    return (content_words or list(found))[:most]


def pairs(run: str) -> list[str]:
    """Every two neighbours of `run`.

    >>> pairs("取字幕")
    ['取字', '字幕']
    """
    return [run[at : at + 2] for at in range(len(run) - 1)]


def is_spaceless(word: str) -> bool:
    """Whether a word belongs to a script that is written without spaces."""
    return _SPACELESS.match(word) is not None


def _chunks(text: str) -> list[tuple[str, bool]]:
    """`text` in order, as runs of spaceless script (True) and the text between them (False)."""
    text = text[:LONGEST_TEXT]
    if text.isascii():
        return [(text, False)]
    text = unicodedata.normalize("NFKC", text)[:LONGEST_TEXT]  # full-width letters become plain ones
    found: list[tuple[str, bool]] = []
    at = 0
    for run in _SPACELESS.finditer(text):
        letters = "".join(filter(str.isalnum, run.group()))  # the blocks also contain dots, marks and unassigned places
        found += [(text[at : run.start()], False), (letters, True)]
        at = run.end()
    return [*found, (text[at:], False)]


def _spaced(text: str) -> list[str]:
    if not text.isascii():
        text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    return [form for word in _WORD.findall(text) for form in _forms(word[:_LONGEST_WORD])]


@lru_cache(maxsize=20_000)
def _forms(word: str) -> tuple[str, ...]:
    """The stems of a word's parts, then its own: a catalogue repeats its words many times."""
    parts = _PARTS.findall(word)
    return tuple(stem(part.casefold()) for part in (*parts, word)) if len(parts) > 1 else (stem(word.casefold()),)


def stem(word: str) -> str:
    """The part of an English word that its forms share; words of other languages mostly stay as they are.

    >>> [stem(w) for w in ("translate", "translation", "queries", "query", "running", "status", "string")]
    ['translat', 'translat', 'queri', 'queri', 'run', 'status', 'string']
    """
    if not word.isascii() or not word.isalpha() or len(word) <= _SHORTEST_STEM:
        return word
    for suffix in _SUFFIXES:
        cut = word[: -len(suffix)]
        if word.endswith(suffix) and len(cut) >= _SHORTEST_STEM and not _VOWELS.isdisjoint(cut):
            return cut + "i" if suffix in ("ies", "ied") else _single(cut)
    if word.endswith("s") and word[-2] not in "sui":
        word = word[:-1]
    if word.endswith("e") and len(word) > _SHORTEST_STEM:
        word = word[:-1]
    return word[:-1] + "i" if word.endswith("y") and word[-2] not in _VOWELS else word


def _single(cut: str) -> str:
    """`runn` → `run`; double l, s and z belong to the word (`call`, `process`, `buzz`)."""
    if len(cut) > _SHORTEST_STEM and cut[-1] == cut[-2] and cut[-1] not in "aeiolsuz":
        cut = cut[:-1]
    return cut[:-1] if cut.endswith("e") and len(cut) > _SHORTEST_STEM else cut
