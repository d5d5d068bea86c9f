"""Inputs of a command: words, files and stdin, as text and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from tavern_core.cli.errors import print_note
from tavern_core.errors import UsageError
from tavern_core.model.safe_printing import reason_of

LARGEST_INPUT: Final = 64_000_000
"""Bytes read from a file or stdin; the host's own limits are far below."""

WITH_VALUE: Final = {"ignore_unknown_options": True}
"""Settings of a command with a value that may be a negative number; see `CliCommand.parse_args`."""


class _Positive(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:  # a range takes `nan`, which is neither less nor greater than its ends
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


POSITIVE: Final = _Positive(min=0, min_open=True, max=1_000_000_000)
"""The type of every option that takes a number with decimals: finite and greater than 0."""


class _NotEmpty(click.types.StringParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(super().convert(value, param, ctx))
        if not text.strip():
            self.fail("the value is empty; leave the option out or give it a value", param, ctx)
        return text


NOT_EMPTY: Final = _NotEmpty()
"""The type of options for which an empty text, such as the value of an unset variable, must not mean the same as no option."""


def separated(text: str) -> list[str]:
    """The words of ``A,B`` without blanks around them."""
    return [word for part in text.split(",") if (word := part.strip())]


def named(words: Iterable[str], example: str = "text='one two'") -> dict[str, str]:
    """``name=value`` words as a mapping; a hint shows `example`. Raises UsageError: a word without ``=``, or a name given twice (USAGE)."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{word[:200]!r} is not name=value", hint=f"for example {example}")
        if name in found:
            raise UsageError(f"{name!r} is given twice", hint=f"for a list write {name}='[1, 2]'")
        found[name] = text
    return found


def json_arguments(source: str | None) -> dict[str, Any]:
    """The object of ``--json-args``: the text itself, ``@file`` or ``-``; empty without the option.

    Raises:
        UsageError: there is no such file, or it is not a JSON object (USAGE).
    """
    if source is None:
        return {}
    name, text = "--json-args", source
    if source == "-":
        name, text = "stdin", read_stdin()
    elif source.startswith("@"):
        name, text = source[1:], read_file(source[1:])
    value = json_of(text, name)
    if not isinstance(value, dict):
        raise UsageError(f"{name} must hold a JSON object, not {type(value).__name__}", hint='{"name": value}')
    return value


def json_of(text: str, name: str) -> Any:
    """The JSON of an input that is called `name`. Raises UsageError: it is none (USAGE)."""
    from tavern_core.kernel.text.json_document import read_json

    document = read_json(text, name, code=UsageError.code, largest=LARGEST_INPUT, most_values=1_000_000)
    if document.findings:
        first = document.findings[0]
        raise UsageError(f"{name}: {first.message}", hint=first.hint, findings=document.findings)
    return document.data


def read_file(name: str) -> str:
    """The text of a file that the command line names.

    Raises:
        UsageError: it cannot be read, is too large or not UTF-8 (USAGE).
    """
    try:
        with Path(name).open("rb") as file:
            content = file.read(LARGEST_INPUT + 1)
    except (OSError, ValueError) as error:
        hint = "see that the path is right, and that the file can be read"
        raise UsageError(f"{name} cannot be read: {reason_of(error)}", hint=hint) from error
    return _decoded(content, name)


def read_stdin() -> str:
    """Everything on stdin. Raises UsageError: too large, or not UTF-8 (USAGE)."""
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        print_note("reading from the terminal; end with Ctrl-D")
    buffer = getattr(sys.stdin, "buffer", None)
    if buffer is None:  # replaced by a program that embeds the command line
        return sys.stdin.read(LARGEST_INPUT)
    return _decoded(buffer.read(LARGEST_INPUT + 1), "stdin")


def _decoded(content: bytes, name: str) -> str:
    """Decode an input. Line ends are kept, because they may be part of a value."""
    if len(content) > LARGEST_INPUT:
        raise UsageError(f"{name} holds more than {LARGEST_INPUT:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name} is not UTF-8 text (line {line})", hint="save it as UTF-8") from error
