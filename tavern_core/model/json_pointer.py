"""JSON pointers (RFC 6901): the path of a part of a JSON value as text."""

from __future__ import annotations

from collections.abc import Iterable


def exact_pointer(parts: Iterable[object]) -> str:
    """The pointer of a path.

    >>> exact_pointer(["a/b", 0])
    '/a~1b/0'
    """
    names = [str(part) for part in parts]
    text = "/".join(("", *names))
    if "~" not in text and text.count("/") == len(names):
        return text
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


def split_pointer(text: str) -> list[str]:
    """The parts of a pointer; "" has none."""
    parts = text.removeprefix("/").split("/") if text else []
    return [part.replace("~1", "/").replace("~0", "~") for part in parts] if "~" in text else parts
