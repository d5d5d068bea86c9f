"""From calls back to text.

Every value is written so that parsing returns it exactly, whatever it contains:

    a string                                        `key:「始」…「末」`, verbatim
    a string with delimiters in it                  `key:「始ESCAPE」…「末ESCAPE」`
    a string with even those                        base64, with `type_hint_key:»»»base64«««`
    a string that spells a number, null, a list …   verbatim, with `type_hint_key:»»»text«««`
    anything else                                   JSON, with `type_hint_key:»»»json«««`

A hint is omitted if the tool's schema (if given) makes it unnecessary. Calls of one block with different step numbers
are written as one chain, everything else as separate blocks.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from tavern_core.errors import UsageError
from tavern_core.model.text_call import TamCall
from tavern_core.schema.json_reader import NotJson, read_json
from tavern_core.schema.problem import json_type
from tavern_core.tam.bound_call_plan import Reference, read_reference
from tavern_core.tam.callable_tool_lookup import CallableTools, Schemas
from tavern_core.tam.field_key_interpretation import command_number, read_modifier
from tavern_core.tam.field_step_assignment import MOST_RETRIES, is_request_id
from tavern_core.tam.grammar import (
    ARROW_HEAD,
    ARROW_TAIL,
    END,
    ESCAPE_HEAD,
    ESCAPE_TAIL,
    HEAD,
    KEY_CHAR,
    MAX_KEY,
    START,
    TAIL,
)

_KEY: Final = re.compile(rf"{KEY_CHAR}(?:(?:{KEY_CHAR}|[ \t])*{KEY_CHAR})?")


class WritableCall(Protocol):
    """Anything that can be written: a `TamCall`, or anything with a tool id and arguments."""

    @property
    def tool(self) -> str: ...

    @property
    def arguments(self) -> Any: ...


def render(calls: WritableCall | Iterable[WritableCall], schemas: Schemas | None = None) -> str:
    """Write calls as blocks; `bind(parse(render(calls)), …)` returns the same tools and arguments.

    Args:
        calls: one call or several.
        schemas: as for `bind`; omits type hints that a tool's schema makes unnecessary.

    Raises:
        UsageError: an argument is not a JSON value, its name cannot be a key, a modifier has the name of a parameter, or
            the id, the step or a modifier of a call is none that a text can give.
    """
    several: list[Any] = list(calls) if isinstance(calls, Iterable) else [calls]
    catalogue = CallableTools(schemas if schemas is not None else {}, None, None)
    return "\n\n".join(
        _BlockWriter(group, catalogue).block() for group in _groups([_as_call(call) for call in several])
    )


def _as_call(call: Any) -> TamCall:
    made = call if isinstance(call, TamCall) else _copied(call)
    if not isinstance(made.tool, str) or not made.tool or made.tool != made.tool.strip():
        raise UsageError(f"{made.tool!r:.300} cannot be the id of a tool")
    fits = {
        "index": _is_whole(made.index) and 0 <= made.index < 10**100,
        "arguments": isinstance(made.arguments, Mapping),
        "retry": made.retry is None or (_is_whole(made.retry) and 0 <= made.retry <= MOST_RETRIES),
        "on_error": made.on_error in ("stop", "continue"),
        "request_id": not made.request_id
        or (
            isinstance(made.request_id, str)
            and is_request_id(made.request_id)
            and not any(sign in made.request_id for sign in (ARROW_HEAD, ARROW_TAIL))
        ),
    }
    for name, fit in fits.items():
        if not fit:
            raise UsageError(
                f"{made.tool}: {name} cannot be {getattr(made, name)!r:.300}", hint="docs/tam.md lists what it can be."
            )
    return made


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _copied(call: Any) -> TamCall:
    return TamCall(
        getattr(call, "index", 1) or 1,
        getattr(call, "block", 0) or 0,
        call.tool,
        call.arguments,
        getattr(call, "request_id", None),
        getattr(call, "on_error", "stop"),
        getattr(call, "retry", 0),
    )


def _groups(calls: list[TamCall]) -> Iterator[list[TamCall]]:
    group: list[TamCall] = []
    for call in calls:
        if (
            group
            and (call.block, call.request_id) == (group[-1].block, group[-1].request_id)
            and call.index > group[-1].index
        ):
            group.append(call)
            continue
        if group:
            yield group
        group = [call]
    if group:
        yield group


class _BlockWriter:
    """Writes one block."""

    def __init__(self, calls: list[TamCall], catalogue: CallableTools) -> None:
        self._calls = calls
        self._catalogue = catalogue
        self._chain = len(calls) > 1 or calls[0].index != 1
        self._lines: list[str] = []
        self._modifiers: list[str] = []

    def block(self) -> str:
        request_id = self._calls[0].request_id
        if request_id:
            self._modify("request_id", request_id, self._calls)
        for call in self._calls:
            self._write(call)
        return "\n".join([START, *self._lines, *self._modifiers, END])

    def _write(self, call: TamCall) -> None:
        suffix = f"_{call.index}" if self._chain else ""
        self._lines.append(_field(f"command{suffix}", call.tool))
        if call.on_error != "stop":
            self._modify("on_error", call.on_error, [call], suffix)
        if call.retry:
            self._modify("retry", str(call.retry), [call], suffix)
        for name, value in call.arguments.items():
            self._argument(call, name, value, suffix)

    def _modify(self, name: str, value: str, calls: list[TamCall], suffix: str = "") -> None:
        for call in calls:
            tool = self._catalogue.tool(call.tool)
            if tool is not None and any(tool.parameters.meaning(key).declared for key in (name, f"{name}{suffix}")):
                raise UsageError(
                    f"{call.tool}: the modifier {name!r} cannot be written, because the tool has a parameter of this name",
                    hint="Write the call without the modifier, or rename the parameter.",
                )
        self._modifiers.append(f"{name}{suffix}:{ARROW_HEAD}{value}{ARROW_TAIL}")

    def _argument(self, call: TamCall, name: str, value: Any, suffix: str) -> None:
        key = f"{name}{suffix}"
        text, hint = _as_text(call, name, value)
        if hint in ("json", "text") and self._needless(call, name, text, value):
            hint = ""
        if self._is_keyword(call, name, key):
            if self._chain:
                raise UsageError(
                    f"{call.tool}: the argument {name!r} cannot be distinguished from a keyword in a chain",
                    hint="Write the call as a block of its own.",
                )
            # A hint turns the block into the second dialect, where `common_` says that an argument follows.
            key, hint = f"common_{name}", hint or "text"
        if not (isinstance(name, str) and _KEY.fullmatch(name)) or len(f"type_hint_{key}" if hint else key) > MAX_KEY:
            raise UsageError(
                f"{call.tool}: {name!r} cannot be written as a key",
                hint="Keys are letters, digits, `_ - .` and inner blanks.",
            )
        self._lines.append(_field(key, text))
        if hint:
            self._modify(f"type_hint_{name}", hint, [call], suffix)

    def _is_keyword(self, call: TamCall, name: str, key: str) -> bool:
        """Whether `key` would be read as a command or a modifier; a declared parameter of that name is not."""
        if command_number(key) is None and read_modifier(key) is None:
            return False
        tool = self._catalogue.tool(call.tool)
        declared = tool is not None and name in tool.parameters.names
        return not declared or command_number(key) == "single" or (self._chain and command_number(key) is not None)

    def _needless(self, call: TamCall, name: str, text: str, value: Any) -> bool:
        tool = self._catalogue.tool(call.tool)
        reader = tool.parameters.reader(name) if tool else None
        if reader is None or read_reference(text):
            return False
        read, unread = reader.read(text)
        return unread is None and json_type(read) == json_type(value) and bool(read == value)


def _as_text(call: TamCall, name: str, value: Any) -> tuple[str, str]:
    """The text of a value and the hint that reads it back."""
    if isinstance(value, Reference):
        return str(value), ""
    if isinstance(value, str):
        if not _fits_a_form(value):
            return base64.b64encode(value.encode("utf-8", "surrogatepass")).decode("ascii"), "base64"
        return value, "text" if _spells_json(value) or "{{" in value else ""
    try:
        return json.dumps(value, ensure_ascii=True, allow_nan=False), "json"
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{call.tool}: the argument {name!r} is not a JSON value: {error}") from error


def _spells_json(text: str) -> bool:
    try:
        return not isinstance(read_json(text.strip()), str)
    except NotJson:
        return False


def _fits_a_form(value: str) -> bool:
    return _is_plain(value) or (ESCAPE_HEAD not in value and ESCAPE_TAIL not in value)


def _is_plain(value: str) -> bool:
    return "「始" not in value and "「末" not in value


def _field(key: str, value: str) -> str:
    if _is_plain(value):
        return f"{key}:{HEAD}{value}{TAIL}"
    if _fits_a_form(value):
        return f"{key}:{ESCAPE_HEAD}{value}{ESCAPE_TAIL}"
    raise UsageError(f"{value!r} cannot be the id of a tool")
