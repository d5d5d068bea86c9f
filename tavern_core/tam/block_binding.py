"""Binding one block: its commands, and the typed arguments of every step."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tavern_core.model.json_pointer import split_pointer
from tavern_core.model.message_translation import say
from tavern_core.model.nearest import suggestion
from tavern_core.model.safe_printing import listed
from tavern_core.model.text_call import TamCall
from tavern_core.schema.json_reader import NotJson, read_json
from tavern_core.schema.text_coercion import TextReader
from tavern_core.tam.bound_call_plan import Reference, read_reference
from tavern_core.tam.callable_tool_lookup import CallableTools
from tavern_core.tam.document import Block, Field
from tavern_core.tam.expected import ANY_KIND, display_value, expected, repair, why_unread
from tavern_core.tam.field_key_interpretation import KeyMeaning, command_number
from tavern_core.tam.field_step_assignment import MOST_STEPS_SHOWN, FieldPlacing, StepBinding
from tavern_core.tam.wording import WORDS

_MOST_PLACES: Final = 1_000_000
"""Steps times shared fields of one block: a shared key goes to every step, so the product bounds time and memory."""


class BlockBinding(FieldPlacing):
    """Binds one block; `problems` holds its problems."""

    def __init__(
        self,
        block: Block,
        tools: CallableTools,
        *,
        references: bool,
        validate: Callable[[str, Mapping[str, Any]], Iterable[str | tuple[str, str]]],
        is_fenced: bool,
    ) -> None:
        super().__init__(block, tools)
        self._is_fenced = is_fenced
        self._references = references
        self._validate = validate

    def bind(self) -> list[TamCall]:
        """The block's calls; they count only if no problem is an error."""
        rest = self._read_commands()
        if not self._steps:
            return []
        modifiers = self._place_fields(rest)
        for modifier, field in sorted(modifiers, key=lambda pair: pair[0].kind != "common"):
            self._apply(modifier, field)
        self._check_destructive()
        return [self._call(step) for _, step in sorted(self._steps.items())]

    def _read_commands(self) -> list[Field]:
        """Find the steps and their tools; the rest are parameters and modifiers. No steps: the block cannot be bound."""
        keyed = [(command_number(field.key), field) for field in self._block.fields]
        single = [field for number, field in keyed if number == "single"]
        numbered = [(number, field) for number, field in keyed if isinstance(number, int)]
        if single and numbered:
            tool = self._tools.tool(single[0].value.strip())
            if tool and all(field.key in tool.parameters.names for _, field in numbered):
                numbered = []  # parameters that happen to be called command2
            else:
                names = ", ".join(field.key for _, field in numbered[:5])
                self._report("mixed_command_forms", say(WORDS["mixed_commands"], names=names), at=single[0])
                return []
        commands = self._without_parameters([(1, field) for field in single] or numbered)
        self._chain = not single
        if not commands:
            self._report("missing_command", say(WORDS["no_command"], line=self._block.line))
            return []
        command_ids = {id(field) for _, field in commands}
        shared = sum(not field.key[-1:].isdecimal() for field in self._block.fields)
        if len(commands) * shared > _MOST_PLACES:
            self._report("block_too_large", say(WORDS["too_many_places"], steps=len(commands), shared=shared))
            return []
        self._read_tools(commands)
        return [field for field in self._block.fields if id(field) not in command_ids]

    def _without_parameters(self, commands: list[tuple[int, Field]]) -> list[tuple[int, Field]]:
        """Leave out the parameter `command` of a tool that declares one: a later `command` of its step that names no tool."""
        first: dict[int, Field] = {}
        found = []
        for number, field in commands:
            tool = self._tools.tool(first.setdefault(number, field).value.strip())
            is_later = field is not first[number] and tool is not None and "command" in tool.parameters.names
            if not (is_later and self._tools.tool(field.value.strip()) is None):
                found.append((number, field))
        return found

    def _read_tools(self, commands: list[tuple[int, Field]]) -> None:
        steps: dict[int, StepBinding] = {}
        complete = True
        for number, field in commands:
            if number in steps:
                self._report(
                    "duplicate_key",
                    say(
                        WORDS["two_commands"],
                        step=self._named(number),
                        first=steps[number].command.key,
                        second=field.key,
                    ),
                    at=field,
                    step=number,
                )
                complete = False
                continue
            name = field.value.strip()
            tool = self._tools.tool(name) if name else None
            if tool is None:
                self._report_no_tool(name, field, number)
                complete = False
                continue
            steps[number] = StepBinding(number, tool, field)
        if complete:
            self._steps = steps

    def _report_no_tool(self, name: str, field: Field, number: int) -> None:
        if not name:
            self._report(
                "missing_command",
                say(WORDS["empty_command"], key=field.key, step=self._named(number)),
                at=field,
                step=number,
            )
            return
        near = self._tools.nearest(name)
        hint = suggestion(near, WORDS["did_you_mean"]) or say(WORDS["use_list"])
        self._report("unknown_tool", say(WORDS["no_tool"], name=display_value(name)), hint, at=field, step=number)

    def _check_destructive(self) -> None:
        """Destructive tools run neither with values whose end was guessed nor from a code fence, which may be a quotation."""
        steps = [step for step in self._steps.values() if step.tool.destructive]
        for step in steps if self._is_fenced else ():
            message = say(WORDS["destructive_fence"], tool=step.tool.id)
            self._report("fenced_call", message, at=step.command, step=step.number)
        for field in self._block.fields:
            if steps and not field.closed:
                self._report(
                    "missing_value_end",
                    say(WORDS["destructive_tail"], key=field.key, tool=steps[0].tool.id),
                    at=field,
                    severity="error",
                )

    def _call(self, step: StepBinding) -> TamCall:
        arguments: dict[str, Any] = {}
        wrong = len(self.problems)
        for name, field in {**step.shared, **step.own}.items():
            if name in step.uris:
                self._report(
                    "duplicate_key",
                    say(WORDS["both_give"], first=field.key, second=step.uris[name].key, name=name),
                    at=field,
                    step=step.number,
                )
                continue
            ok, value = self._argument(step, name, field)
            if ok:
                arguments[name] = value
        for name, field in step.uris.items():
            if not step.tool.parameters.takes(name):
                self._report_unknown(field, KeyMeaning(name, False), [step])
            arguments[name] = {"$uri": field.value.strip()}
        missing = step.tool.parameters.missing({**arguments, **step.shared, **step.own})
        for name in missing:
            if name not in self._suggested:  # a misspelt key has said so already
                self._report_missing(step, name)
        if not missing and len(self.problems) == wrong:
            self._ask_validator(step, arguments)
        return TamCall(
            step.number,
            self._block.number,
            step.tool.id,
            arguments,
            self._request_id,
            step.on_error or self._on_error,
            self._retry if step.retry is None else step.retry,
        )

    def _argument(self, step: StepBinding, name: str, field: Field) -> tuple[bool, Any]:
        reader = step.tool.parameters.reader(name)
        if reader is None:
            self._report_unknown(field, KeyMeaning(name, False), [step])
            return False, None
        hint = step.hints[name][0] if name in step.hints else ""
        text = field.value
        if not hint and (reference := read_reference(text)):
            if self._references:
                self._check_reference(step, reference, field)
                return True, reference
            self._report(
                "invalid_reference",
                say(WORDS["references_off"], key=field.key),
                say(WORDS["write_value"], key=field.key),
                at=field,
                step=step.number,
            )
            return False, None
        value, wrong = _read(reader, text, hint)
        if wrong:
            where = say(WORDS["of_step"], number=step.number) if self._chain else ""
            self._report(
                "invalid_arguments",
                say(WORDS["wrong_value"], name=name, step=where, wrong=wrong),
                say(WORDS["expects"], name=name, tool=step.tool.id, expected=expected(reader)),
                at=field,
                step=step.number,
            )
        return not wrong, value

    def _check_reference(self, step: StepBinding, reference: Reference, field: Field) -> None:
        if reference.step in self._steps and reference.step < step.number and self._chain:
            return
        earlier = [number for number in sorted(self._steps) if number < step.number and self._chain]
        self._report(
            "invalid_reference",
            say(
                WORDS["no_earlier_step"],
                key=field.key,
                step=reference.step,
                steps=listed(earlier, MOST_STEPS_SHOWN) or say(WORDS["none"]),
            ),
            at=field,
            step=step.number,
        )

    def _report_missing(self, step: StepBinding, name: str) -> None:
        reader = step.tool.parameters.reader(name)
        key = f"{name}{step.number}" if self._chain else name
        self._report(
            "invalid_arguments",
            say(WORDS["missing"], tool=step.tool.id, name=name, expected=expected(reader) if reader else "string"),
            say(WORDS["add_field"], key=key),
            at=step.command,
            step=step.number,
        )

    def _ask_validator(self, step: StepBinding, arguments: dict[str, Any]) -> None:
        open_values = step.uris or any(isinstance(value, Reference) for value in arguments.values())
        if open_values:
            return
        for found in self._validate(step.tool.id, arguments):
            pointer, message = found if isinstance(found, tuple) else ("", found)
            name = next(iter(split_pointer(pointer)), "")
            field = step.own.get(name) or step.shared.get(name)
            reader = step.tool.parameters.reader(name) if field else None
            self._report(
                "invalid_arguments",
                say(WORDS["at"], path=pointer, what=message) if pointer else message,
                say(WORDS["expects"], name=name, tool=step.tool.id, expected=expected(reader)) if reader else "",
                at=field or step.command,
                step=step.number,
            )


def _read(reader: TextReader, text: str, hint: str) -> tuple[Any, str]:
    """The value of a text, and its problem (empty: none). `hint`: the notation of the value, if the block states it."""
    if hint == "text":
        return text, ""
    if hint == "json":
        try:
            return read_json(text.strip()), ""
        except NotJson as error:
            why = repair(text.strip(), ANY_KIND) or error.args[0]
            return None, say(WORDS["json_expected"], got=display_value(text), why=why)
    if hint == "base64":
        text, wrong = _from_base64(text)
        if wrong or reader.takes_strings:
            return text, wrong
    value, unread = reader.read(text)
    return value, why_unread(reader, text, unread) if unread else ""


def _from_base64(text: str) -> tuple[str, str]:
    """The text that `text` encodes, and its problem."""
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode("utf-8", "surrogatepass"), ""
    except (binascii.Error, ValueError) as error:
        return "", say(
            WORDS["because"], what=say(WORDS["base64_expected"], got=display_value(text)), why=f"{error!s:.100}"
        )
