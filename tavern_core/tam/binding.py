"""Binding one block."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tavern_core.model.nearest import nearest
from tavern_core.tam.calls import OnError, Reference, TamCall, read_reference
from tavern_core.tam.document import Block, Field
from tavern_core.tam.parameters import Meaning
from tavern_core.tam.problems import PROBLEM_CODES, Problem, Severity
from tavern_core.tam.steps import SHARED, Modifier, Place, Tool, command_number, place_in_chain, read_modifier
from tavern_core.tam.typed import NotJson, read_json, shown

MOST_RETRIES = 100
_LONGEST_REQUEST_ID = 256
_HINTS = ("json", "base64", "text")


class Tools(Protocol):
    """Where tools are looked up; see `binder.Catalogue`."""

    def tool(self, name: str) -> Tool | None: ...

    def nearest(self, name: str) -> list[str]: ...


@dataclass(slots=True)
class _Step:
    """One step while its block is bound."""

    number: int
    tool: Tool
    command: Field
    own: dict[str, Field] = field(default_factory=dict)
    shared: dict[str, Field] = field(default_factory=dict)
    hints: dict[str, tuple[str, Field]] = field(default_factory=dict)
    uris: dict[str, Field] = field(default_factory=dict)
    on_error: OnError | None = None
    retry: int | None = None


class BlockBinding:
    """Binds one block; `problems` holds what is wrong with it."""

    def __init__(
        self,
        block: Block,
        tools: Tools,
        *,
        references: bool,
        validate: Callable[[str, Mapping[str, Any]], Iterable[str | tuple[str, str]]] | None,
    ) -> None:
        self._block = block
        self._tools = tools
        self._references = references
        self._validate = validate
        self._steps: dict[int, _Step] = {}
        self._chain = False
        self._on_error: OnError = "stop"
        self._retry = 0
        self._request_id: str | None = None
        self._given: set[tuple[object, ...]] = set()
        self._suggested: set[str] = set()
        self.problems: list[Problem] = []

    def bind(self) -> list[TamCall]:
        """The block's calls; they count only if no problem is an error."""
        rest = self._read_commands()
        if not self._steps:
            return []
        modifiers = self._place_fields(rest)
        for modifier, given in sorted(modifiers, key=lambda pair: pair[0].kind != "common"):
            self._apply(modifier, given)
        self._check_tails()
        calls = [self._call(step) for _, step in sorted(self._steps.items())]
        return calls

    # --- problems -----------------------------------------------------------------------------------------------

    def _report(
        self, code: str, message: str, hint: str = "", *, at: Field | None = None, step: int = 0, severity: Severity | None = None
    ) -> None:
        row = PROBLEM_CODES[code]
        line, column = self._block.place(at.start) if at else (self._block.line, self._block.column)
        self.problems.append(
            Problem(
                severity or row.severity,
                code,
                message,
                hint or row.repair,
                self._block.number,
                line,
                column,
                at.key if at else "",
                step if self._chain else 0,
            )
        )

    # --- commands -----------------------------------------------------------------------------------------------

    def _read_commands(self) -> list[Field]:
        """Find the steps and their tools; what is left are parameters and modifiers. No steps: the block cannot be bound."""
        numbers = [command_number(given.key) for given in self._block.fields]
        single = [given for given, number in zip(self._block.fields, numbers, strict=True) if number == "single"]
        numbered = [(number, given) for given, number in zip(self._block.fields, numbers, strict=True) if isinstance(number, int)]
        if single and numbered:
            tool = self._tools.tool(single[0].value.strip())
            if tool and all(given.key in tool.parameters.names for _, given in numbered):
                numbered = []  # parameters that happen to be called command2
            else:
                names = ", ".join(given.key for _, given in numbered[:5])
                self._report("mixed_command_forms", f"`command` stands beside {names}.", at=single[0])
                return []
        commands = [(1, given) for given in single] if single else [(int(number), given) for number, given in numbered]
        self._chain = not single
        if not commands:
            self._report("missing_command", f"The block on line {self._block.line} names no tool: it has no `command` field.")
            return []
        taken = {id(given) for _, given in commands}
        self._read_tools(commands)
        return [given for given in self._block.fields if id(given) not in taken]

    def _read_tools(self, commands: list[tuple[int, Field]]) -> None:
        steps: dict[int, _Step] = {}
        complete = True
        for number, given in commands:
            if number in steps:
                self._report("duplicate_key", f"Two fields are the command of {self._named(number)}: {steps[number].command.key!r} and {given.key!r}.", at=given, step=number)
                complete = False
                continue
            name = given.value.strip()
            tool = self._tools.tool(name) if name else None
            if tool is None:
                self._report_no_tool(name, given, number)
                complete = False
                continue
            steps[number] = _Step(number, tool, given)
        if complete:
            self._steps = steps

    def _named(self, number: int) -> str:
        return f"step {number}" if self._chain else "the block"

    def _report_no_tool(self, name: str, given: Field, number: int) -> None:
        if not name:
            self._report("missing_command", f"{given.key!r} is empty: {self._named(number)} names no tool.", at=given, step=number)
            return
        near = self._tools.nearest(name)
        hint = f"Did you mean {' or '.join(repr(one) for one in near)}?" if near else "Use an id from the list of tools."
        self._report("unknown_tool", f"No tool is called {shown(name)}.", hint, at=given, step=number)

    # --- placing ------------------------------------------------------------------------------------------------

    def _place(self, key: str) -> Place:
        if self._chain:
            return place_in_chain(key, {number: step.tool for number, step in self._steps.items()})
        (step,) = self._steps.values()
        meaning = step.tool.parameters.meaning(key)
        return Place(step.number, meaning, "ambiguous_key" if meaning.ambiguous else "")

    def _place_fields(self, rest: list[Field]) -> list[tuple[Modifier, Field]]:
        modifiers: list[tuple[Modifier, Field]] = []
        for given in rest:
            place = self._place(given.key)
            if self._block.dialect == "tam2" and not place.meaning.declared and (modifier := read_modifier(given.key)):
                modifiers.append((modifier, given))
            elif place.problem:
                self._report_place(place, given)
            else:
                self._give(place, given)
        return modifiers

    def _report_place(self, place: Place, given: Field) -> None:
        if place.problem == "orphan_parameter":
            steps = ", ".join(map(str, sorted(self._steps)))
            self._report(
                "orphan_parameter",
                f"{given.key!r} belongs to step {place.step}, which has no command; the steps are {steps}.",
                f"Add `command{place.step}`, or number it for one of the steps {steps}.",
                at=given,
            )
            return
        names = " and ".join(repr(name) for name in place.meaning.ambiguous)
        self._report("ambiguous_key", f"{given.key!r} could mean {names}.", at=given)

    def _give(self, place: Place, given: Field) -> None:
        """Hand a field to the step it belongs to, or to every step that takes it."""
        if place.step is not SHARED:
            step = self._steps[place.step]
            self._put(step.own, place.meaning.name, given, step)
            return
        takers = [(step, step.tool.parameters.meaning(given.key)) for step in self._steps.values()]
        chosen = [(step, meaning) for step, meaning in takers if meaning.declared]
        chosen = chosen or [(step, meaning) for step, meaning in takers if step.tool.parameters.takes(given.key)]
        if not chosen:
            self._report_unknown(given, Meaning(given.key, False), list(self._steps.values()))
        for step, meaning in chosen:
            self._put(step.shared, meaning.name, given, step)

    def _put(self, fields: dict[str, Field], name: str, given: Field, step: _Step) -> None:
        if name in fields:
            if (name, id(given)) not in self._given:
                self._given.add((name, id(given)))
                where = f" of step {step.number}" if self._chain else ""
                self._report("duplicate_key", f"{fields[name].key!r} and {given.key!r} both mean the parameter {name!r}{where}.", at=given, step=step.number)
            return
        fields[name] = given

    def _report_unknown(self, given: Field, meaning: Meaning, steps: list[_Step]) -> None:
        names = [name for step in steps for name in step.tool.parameters.names]
        near = nearest(meaning.name, names)
        self._suggested.update(near)
        tools = " and ".join(dict.fromkeys(repr(step.tool.id) for step in steps[:5]))
        hint = f"Did you mean {' or '.join(repr(one) for one in near)}? " if near else ""
        self._report(
            "invalid_arguments",
            f"{tools} has no parameter {given.key!r}.",
            hint + steps[0].tool.parameters.described(),
            at=given,
            step=steps[0].number,
        )

    # --- modifiers ----------------------------------------------------------------------------------------------

    def _apply(self, modifier: Modifier, given: Field) -> None:
        match modifier.kind:
            case "comment":
                return
            case "request_id":
                self._apply_request_id(given)
            case "on_error" | "retry":
                self._apply_to_step(modifier, given)
            case "common":
                self._apply_common(modifier.of, given)
            case _:
                self._apply_to_parameter(modifier, given)

    def _once(self, what: tuple[object, ...], given: Field) -> bool:
        if what in self._given:
            self._report("duplicate_key", f"{given.key!r} is given twice.", at=given)
            return False
        self._given.add(what)
        return True

    def _apply_request_id(self, given: Field) -> None:
        value = given.value.strip()
        if not value or len(value) > _LONGEST_REQUEST_ID or not value.isprintable():
            self._report("invalid_modifier", f"request_id: expected 1 to {_LONGEST_REQUEST_ID} printable characters, got {shown(value)}.", at=given)
        elif self._once(("request_id",), given):
            self._request_id = value

    def _apply_to_step(self, modifier: Modifier, given: Field) -> None:
        number = int(modifier.number) if modifier.number else None
        if number is not None and number not in self._steps:
            self._report_place(Place(number, Meaning(given.key, False), "orphan_parameter"), given)
            return
        if not self._once((modifier.kind, number), given):
            return
        value = given.value.strip()
        if modifier.kind == "on_error":
            answer = value.lower()
            if answer not in ("stop", "continue"):
                self._report("invalid_modifier", f"{given.key}: expected stop or continue, got {shown(value)}.", at=given)
                return
            policy: OnError = "continue" if answer == "continue" else "stop"
            if number is None:
                self._on_error = policy
            else:
                self._steps[number].on_error = policy
            return
        if not (value.isascii() and value.isdecimal() and len(value) < 6 and int(value) <= MOST_RETRIES):
            self._report("invalid_modifier", f"{given.key}: expected a whole number from 0 to {MOST_RETRIES}, got {shown(value)}.", at=given)
        elif number is None:
            self._retry = int(value)
        else:
            self._steps[number].retry = int(value)

    def _apply_common(self, key: str, given: Field) -> None:
        if not self._chain:
            (step,) = self._steps.values()
            meaning = step.tool.parameters.meaning(key)
            if meaning.ambiguous:
                self._report_place(Place(SHARED, meaning, "ambiguous_key"), given)
            else:
                self._put(step.own, meaning.name, given, step)
            return
        self._give(Place(SHARED, Meaning(key, False)), given._replace(key=key))

    def _apply_to_parameter(self, modifier: Modifier, given: Field) -> None:
        place = self._place(modifier.of)
        if place.problem:
            self._report_place(place, given)
            return
        steps = list(self._steps.values()) if place.step is SHARED else [self._steps[place.step]]
        hint = given.value.strip().lower()
        if modifier.kind == "type_hint" and hint not in _HINTS:
            self._report("invalid_modifier", f"{given.key}: expected json, base64 or text, got {shown(given.value)}.", at=given)
            return
        used = False
        for step in steps:
            name = step.tool.parameters.meaning(modifier.of).name if place.step is SHARED else place.meaning.name
            if modifier.kind == "uri":
                if place.step is SHARED and len(steps) > 1 and not step.tool.parameters.meaning(modifier.of).declared:
                    continue
                used = self._once(("uri", step.number, name), given) or used
                step.uris[name] = given
            elif name in step.own or name in step.shared:
                used = self._once(("type_hint", step.number, name), given) or used
                step.hints[name] = (hint, given)
        if not used:
            self._report("orphan_parameter", f"{given.key!r} is about {modifier.of!r}, which the block does not have.", f"Add `{modifier.of}`, or take {given.key!r} away.", at=given)

    def _check_tails(self) -> None:
        """Tools that destroy things do not run on values whose end was guessed."""
        tools = [step.tool.id for step in self._steps.values() if step.tool.destructive]
        for given in self._block.fields:
            if tools and not given.closed:
                self._report(
                    "missing_value_end",
                    f"The value of {given.key!r} has no tail, and {tools[0]!r} is destructive.",
                    at=given,
                    severity="error",
                )

    # --- arguments ----------------------------------------------------------------------------------------------

    def _call(self, step: _Step) -> TamCall:
        arguments: dict[str, Any] = {}
        wrong = len(self.problems)
        for name, given in {**step.shared, **step.own}.items():
            if name in step.uris:
                self._report("duplicate_key", f"{given.key!r} and {step.uris[name].key!r} both give the parameter {name!r}.", at=given, step=step.number)
                continue
            ok, value = self._argument(step, name, given)
            if ok:
                arguments[name] = value
        for name, given in step.uris.items():
            if not step.tool.parameters.takes(name):
                self._report_unknown(given, Meaning(name, False), [step])
            arguments[name] = {"$uri": given.value.strip()}
        for name in step.tool.parameters.missing({**arguments, **step.shared, **step.own}):
            if name not in self._suggested:  # a misspelt key has said so already
                self._report_missing(step, name)
        if len(self.problems) == wrong:
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

    def _argument(self, step: _Step, name: str, given: Field) -> tuple[bool, Any]:
        reader = step.tool.parameters.reader(name)
        if reader is None:
            self._report_unknown(given, Meaning(name, False), [step])
            return False, None
        hint = step.hints[name][0] if name in step.hints else ""
        text = given.value
        if self._references and not hint and (reference := read_reference(text)):
            self._check_reference(step, reference, given)
            return True, reference
        wrong = ""
        value: Any = text
        if hint == "base64":
            decoded, wrong = _from_base64(text)
            if not wrong:
                value, wrong = (decoded, reader.check(decoded)) if reader.takes_strings else reader.read(decoded)
        elif hint == "json":
            try:
                value = read_json(text.strip())
                wrong = reader.check(value)
            except NotJson as error:
                wrong = f"expected JSON, got {shown(text)} ({error})"
        elif hint == "text":
            wrong = reader.check(text)
        else:
            value, wrong = reader.read(text)
        if wrong:
            where = f" of step {step.number}" if self._chain else ""
            self._report(
                "invalid_arguments",
                f"Parameter {name!r}{where}: {wrong}.",
                f"{name!r} of {step.tool.id!r} expects {reader.expected}.",
                at=given,
                step=step.number,
            )
        return not wrong, value

    def _check_reference(self, step: _Step, reference: Reference, given: Field) -> None:
        if reference.step in self._steps and reference.step < step.number and self._chain:
            return
        earlier = ", ".join(str(number) for number in sorted(self._steps) if number < step.number and self._chain) or "none"
        self._report(
            "invalid_reference",
            f"{given.key!r} refers to step {reference.step}, which is no earlier step; the earlier steps are: {earlier}.",
            at=given,
            step=step.number,
        )

    def _report_missing(self, step: _Step, name: str) -> None:
        reader = step.tool.parameters.reader(name)
        key = f"{name}{step.number}" if self._chain else name
        self._report(
            "invalid_arguments",
            f"{step.tool.id!r} needs the parameter {name!r} ({reader.expected if reader else 'string'}), which is missing.",
            f"Add `{key}:「始」…「末」`.",
            at=step.command,
            step=step.number,
        )

    def _ask_validator(self, step: _Step, arguments: dict[str, Any]) -> None:
        open_values = step.uris or any(isinstance(value, Reference) for value in arguments.values())
        if self._validate is None or open_values:
            return
        for found in self._validate(step.tool.id, arguments):
            pointer, message = found if isinstance(found, tuple) else ("", found)
            name = pointer.lstrip("/").split("/")[0].replace("~1", "/").replace("~0", "~")
            given = step.own.get(name) or step.shared.get(name)
            self._report(
                "invalid_arguments", f"{pointer}: {message}" if pointer else message, at=given or step.command, step=step.number
            )


def _from_base64(text: str) -> tuple[str, str]:
    """The text that `text` encodes, and what is wrong with it."""
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode("utf-8", "surrogatepass"), ""
    except (binascii.Error, ValueError) as error:
        return "", f"expected base64 of UTF-8 text, got {shown(text)} ({error})"

