"""Ways to damage a file or a value, as people, disks, editors and attackers do. The same random numbers, the same damage."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

DEEP_LIST: Any = []
for _ in range(200):
    DEEP_LIST = [DEEP_LIST]
DEEP_MAP: Any = {}
for _ in range(200):
    DEEP_MAP = {"a": DEEP_MAP}

NASTY_TEXTS = [
    "", " ", "\n", "\x00", "\ufeff", "\u2028", "\u2029", "\u200b", "\u202eevil", "\x1b[31mred", "\x85", "\ud800", "\udfff",
    "é" * 3, "e\u0301", "ｆｕｌｌ", "中文", "𝒳", "../../etc/passwd", "/etc/passwd", "C:\\x", "~", "a" * 10_000, "%s%n{0}{a.b}",
    "${HOME}", "{{{system:available_tools}}}", "<|[REQUEST_TOOL]|>", "「始」", "*", "*:*", "danger:*", "danger:destructive", "yes",
    "null", "1e999", "0x10", "1_000", "2026-01-01", "a:b:c", "core", "system:x", "__class__", "__init__", "constructor", "$ref",
    "https://user:pw@[::1]:99999/", "(a+)+$", "(?<n>x)\\k<n>", "[", "latest", ">=", "1.0.0.0.0.0rc999999999999", "9" * 5_000, "1." * 3_000, ">=" + "9" * 5_000,
]  # fmt: skip
NASTY_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, -0.0, 0.5, 1e308, float("inf"), float("nan"), [], {}, [None], [[]], {"": None},
    {"a": {"b": []}}, [1, "a", None, {}], DEEP_LIST, DEEP_MAP, list(range(3_000)), {str(n): n for n in range(3_000)}, ["x"] * 300,
    {"$ref": "#"}, {"$ref": "http://127.0.0.1:9/x"}, {"type": ["object", "null"]}, {"pattern": "(a+)+$"}, {"$env": "HOME"},
    {"$file": "/etc/passwd"}, *NASTY_TEXTS,
]  # fmt: skip

NASTY_LINES = [
    "<<: *all", "&all", "*all", "!!python/object/apply:os.system [id]", "!include /etc/passwd", "? [a, b]\n: c", "? complex", "---", "...",
    "%YAML 1.3", "%TAG ! tag:x,2026:", "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]", "name: again", "name: [", "- - - - -", "key: |2\n x",
    "key: >-\n\n", "\t- x", "  bad indent: 1", "'", '"', '"\\ud800"', '"\\x"', "key: @x", "key: `x`", "{a: 1", "[1, 2", "}", "]", "x: .nan",
    "x: .inf", "x: 0o17", "x: 1e999", "x: !!int 'a'", "x: !!binary aGk=", "=", "#" * 100, "//", "/* x */", ":", ": :", "null: null", "true: 1",
    "1: 2", "? ", "tools: {entry: ../..}", "tools: {entry: /}", "version: 1", "name: core", "permissions: {hooks: ['*']}", "\ufeffname: x",
    "</script>", "\x00", "\ud83d", "a: " + "[" * 200, "a: " + "{a: " * 200, "a: " + "x" * 20_000,
]  # fmt: skip


def _at(pick: Random, content: bytes) -> int:
    return pick.randrange(len(content) + 1)


def flip(pick: Random, content: bytes) -> bytes:
    if not content:
        return b"\xff"
    changed = bytearray(content)
    for _ in range(pick.choice([1, 1, 1, 3, 20])):
        changed[pick.randrange(len(changed))] = pick.choice([pick.randrange(256), 0, 0xFF, 0x0A, 0x22, 0x3A])
    return bytes(changed)


def truncate(pick: Random, content: bytes) -> bytes:
    return content[: _at(pick, content)]


def cut_out(pick: Random, content: bytes) -> bytes:
    start = _at(pick, content)
    return content[:start] + content[start + pick.choice([1, 2, 5, 30, 200]) :]


def lines(pick: Random, content: bytes) -> bytes:
    """Delete, repeat or swap lines."""
    parts = content.splitlines(keepends=True) or [b""]
    at, other = pick.randrange(len(parts)), pick.randrange(len(parts))
    match pick.randrange(4):
        case 0:
            del parts[at]
        case 1:
            parts[at:at] = [parts[at]] * pick.choice([1, 1, 2, 500])
        case 2:
            parts[at], parts[other] = parts[other], parts[at]
        case _:
            parts[at:at] = parts[min(at, other) : max(at, other)]
    return b"".join(parts)


def insert(pick: Random, content: bytes) -> bytes:
    """Something nasty in the middle, or on a line of its own."""
    if pick.random() < 0.5:
        text = pick.choice(NASTY_TEXTS)
        at = _at(pick, content)
    else:
        text = "\n" + " " * pick.choice([0, 0, 2, 4]) + pick.choice(NASTY_LINES) + "\n"
        at = content.find(b"\n", _at(pick, content))
    return content[:at] + text.encode("utf-8", "surrogatepass") + content[at:]


def value(pick: Random, content: bytes) -> bytes:
    """What stands behind a colon on some line becomes something else."""
    parts = content.splitlines() or [b""]
    with_colon = [n for n, part in enumerate(parts) if b":" in part]
    if not with_colon:
        return content + b": x"
    number = pick.choice(with_colon)
    head, _, tail = parts[number].partition(b":")
    new = json.dumps(pick.choice(NASTY_VALUES), ensure_ascii=pick.random() < 0.7).encode("utf-8", "surrogatepass")
    comma = b"," if tail.rstrip().endswith(b",") else b""
    parts[number] = head + b": " + new + comma
    return b"\n".join(parts)


def encoding(pick: Random, content: bytes) -> bytes:
    match pick.randrange(7):
        case 0:
            return content.replace(b"\n", b"\r\n")
        case 1:
            return content.replace(b"\n", b"\r")
        case 2:
            return b"\xef\xbb\xbf" * pick.choice([1, 1, 2]) + content
        case 3:
            return content.decode("utf-8", "replace").encode(pick.choice(["utf-16", "utf-32", "utf-16-le"]))
        case 4:
            return content.decode("utf-8", "replace").encode("gb18030", "replace")
        case 5:
            return content.replace(b"  ", b"\t")
        case _:
            return content.replace(b"\n", pick.choice(["\u2028", "\x85", "\x0c", "\x0b"]).encode())


def grow(pick: Random, content: bytes) -> bytes:
    """Larger than anybody would write."""
    match pick.randrange(4):
        case 0:
            return content + b"\n# " + b"x" * 1_100_000
        case 1:
            return content * pick.choice([2, 50])
        case 2:
            return pick.choice([b"[", b"{", b"- ", b'{"a":', b"(", "「始」".encode(), b"<think>"]) * 20_000
        case _:
            return content + b"\n" * 200_000


def mixed(pick: Random, content: bytes) -> bytes:
    for _ in range(pick.randint(2, 4)):
        content = pick.choice(SMALL)(pick, content)
    return content


Mutation = Callable[[Random, bytes], bytes]
SMALL: list[Mutation] = [flip, truncate, cut_out, lines, insert, value, encoding]
_WEIGHTED: list[Mutation] = [*SMALL * 6, mixed, mixed, mixed, mixed]


def damaged(pick: Random, content: bytes, *, large: bool = True) -> bytes:
    """`content` damaged in one way or several."""
    if large and pick.random() < 0.01:
        return grow(pick, content)
    return pick.choice(_WEIGHTED)(pick, content)


def distorted(pick: Random, data: Any) -> Any:
    """A copy of JSON data in which something is of another type, missing, there twice or too much."""
    changed = copy.deepcopy(data)
    for _ in range(pick.choice([1, 1, 1, 2, 4])):
        places = list(_places(changed))
        if not places:
            return pick.choice(NASTY_VALUES)
        container, key = pick.choice(places)
        match pick.randrange(5):
            case 0:
                del container[key]
            case 1 if isinstance(container, dict):
                container[pick.choice(NASTY_TEXTS)] = container[key]
            case 1:
                container.insert(key, copy.deepcopy(container[key]))
            case 2 if isinstance(container, dict) and isinstance(key, str):
                container[_misspelt(pick, key)] = container.pop(key)
            case _:
                container[key] = copy.deepcopy(pick.choice(NASTY_VALUES))
    return changed


def _misspelt(pick: Random, word: str) -> str:
    at = pick.randrange(len(word) + 1)
    return pick.choice([word.upper(), word + "s", word[:at] + word[at + 1 :], f" {word}", word.replace("_", "-")])


def _places(data: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting and len(found) < 400:
        here = waiting.pop()
        if isinstance(here, dict | list):
            for key in list(here) if isinstance(here, dict) else range(len(here)):
                found.append((here, key))
                waiting.append(here[key])
    return found
