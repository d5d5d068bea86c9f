"""Placing the fields of one block: which step each belongs to, as argument or as modifier."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from tavern_core.errors import Severity
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.message_translation import joined, say
from tavern_core.model.nearest import nearest, suggestion
from tavern_core.model.safe_printing import listed
from tavern_core.model.text_call import OnError, TextProblem
from tavern_core.tam.callable_tool_lookup import CallableTools
from tavern_core.tam.document import Block, Field
from tavern_core.tam.expected import display_value
from tavern_core.tam.field_key_interpretation import (
    SHARED,
    BindableTool,
    FieldTarget,
    KeyMeaning,
    Modifier,
    Parameters,
    place_in_chain,
    read_modifier,
)
from tavern_core.tam.problems import problem_of
from tavern_core.tam.wording import WORDS

MOST_RETRIES: Final = 100
MOST_ERRORS: Final = 20
"""Maximum problems per code and block: enough to repair it, too few to fill the memory."""
_LONGEST_REQUEST_ID: Final = 240
"""With the number of a step at its end it is still an idempotency key."""
MOST_STEPS_SHOWN: Final = 12
_HINTS: Final = ("json", "base64", "text")


def is_request_id(value: str) -> bool:
    """Whether a trimmed text can be the `request_id` of a block."""
    return 0 < len(value) <= _LONGEST_REQUEST_ID and value.isprintable() and value == value.strip()


@dataclass(slots=True)
class StepBinding:
    """A step during binding."""

    number: int
    tool: BindableTool
    command: Field
    own: dict[str, Field] = dataclasses.field(default_factory=dict)
    shared: dict[str, Field] = dataclasses.field(default_factory=dict)
    hints: dict[str, tuple[str, Field]] = dataclasses.field(default_factory=dict)
    uris: dict[str, Field] = dataclasses.field(default_factory=dict)
    on_error: OnError | None = None
    retry: int | None = None


class FieldPlacing:
    """The steps of one block and their fields; `problems` holds the problems."""

    def __init__(self, block: Block, tools: CallableTools) -> None:
        self._block = block
        self._tools = tools
        self._steps: dict[int, StepBinding] = {}
        self._chain = False
        self._chain_tools: dict[int, BindableTool] = {}
        self._kinds: list[Parameters] = []
        self._on_error: OnError = "stop"
        self._retry = 0
        self._request_id: str | None = None
        self._given: set[tuple[object, ...]] = set()
        self._suggested: set[str] = set()
        self._seen: dict[str, int] = {}
        self.problems: list[TextProblem] = []

    def has_mentioned(self, names: Iterable[str]) -> None:
        """Record parameters that were already reported, so that they are not also reported as missing."""
        self._suggested.update(names)

    def _report(
        self,
        code: str,
        message: str,
        hint: str = "",
        *,
        at: Field | None = None,
        step: int = 0,
        severity: Severity | None = None,
    ) -> None:
        self._seen[code] = self._seen.get(code, 0) + 1
        if self._seen[code] > MOST_ERRORS:
            return
        place = self._block.place(at.start) if at else (self._block.line, self._block.column)
        step, key = step if self._chain else 0, at.key if at else ""
        problem = problem_of(code, message, hint, block=self._block.number, place=place, key=key, step=step)
        self.problems.append(problem if severity is None else dataclasses.replace(problem, severity=severity))

    def _named(self, number: int) -> str:
        return say(WORDS["the_step"], number=number) if self._chain else say(WORDS["the_block"])

    def _place(self, key: str) -> FieldTarget:
        if self._chain:
            if not self._chain_tools:
                self._chain_tools = {number: step.tool for number, step in self._steps.items()}
                self._kinds = list(
                    {id(tool.parameters): tool.parameters for tool in self._chain_tools.values()}.values()
                )
            return place_in_chain(key, self._chain_tools, self._kinds)
        (step,) = self._steps.values()
        meaning = step.tool.parameters.meaning(key)
        return FieldTarget(step.number, meaning, "ambiguous_key" if meaning.ambiguous else "")

    def _place_fields(self, rest: list[Field]) -> list[tuple[Modifier, Field]]:
        modifiers: list[tuple[Modifier, Field]] = []
        for field in rest:
            place = self._place(field.key)
            if self._block.dialect == "tam2" and not place.meaning.declared and (modifier := read_modifier(field.key)):
                modifiers.append((modifier, field))
            elif place.problem:
                self._report_place(place, field)
            else:
                self._give(place, field)
        return modifiers

    def _is_full(self, code: str) -> bool:
        """Whether enough problems of this code were found."""
        return self._seen.get(code, 0) >= MOST_ERRORS

    def _report_place(self, place: FieldTarget, field: Field) -> None:
        if self._is_full(place.problem):
            return
        if place.problem == "orphan_parameter":
            steps = listed(sorted(self._steps), MOST_STEPS_SHOWN)
            self._report(
                "orphan_parameter",
                say(WORDS["orphan"], key=field.key, step=place.step, steps=steps),
                say(WORDS["renumber"], step=place.step, steps=steps),
                at=field,
            )
            return
        names = joined(WORDS["both"], map(repr, place.meaning.ambiguous))
        self._report("ambiguous_key", say(WORDS["could_mean"], key=field.key, names=names), at=field)

    def _give(self, place: FieldTarget, field: Field) -> None:
        """Pass a field to its step, or to every step that accepts it."""
        if place.step is not SHARED:
            step = self._steps[place.step]
            self._put(step.own, place.meaning.name, field, step)
            return
        takers = [(step, step.tool.parameters.meaning(field.key)) for step in self._steps.values()]
        chosen = [(step, meaning) for step, meaning in takers if meaning.declared]
        chosen = chosen or [(step, meaning) for step, meaning in takers if step.tool.parameters.takes(field.key)]
        if not chosen:
            self._report_unknown(field, KeyMeaning(field.key, False), list(self._steps.values()))
        for step, meaning in chosen:
            self._put(step.shared, meaning.name, field, step)

    def _put(self, fields: dict[str, Field], name: str, field: Field, step: StepBinding) -> None:
        if name in fields:
            if (name, id(field)) not in self._given:
                self._given.add((name, id(field)))
                where = say(WORDS["of_step"], number=step.number) if self._chain else ""
                self._report(
                    "duplicate_key",
                    say(WORDS["both_mean"], first=fields[name].key, second=field.key, name=name, step=where),
                    at=field,
                    step=step.number,
                )
            return
        fields[name] = field

    def _report_unknown(self, field: Field, meaning: KeyMeaning, steps: list[StepBinding]) -> None:
        if self._is_full("invalid_arguments"):
            return
        names = [name for step in steps for name in step.tool.parameters.names]
        near = nearest(meaning.name, names)
        self._suggested.update(near)
        tools = joined(WORDS["both"], dict.fromkeys(repr(step.tool.id) for step in steps[:5]))
        described = steps[0].tool.parameters.described()
        hint = (
            say(WORDS["hint_and"], hint=suggestion(near, WORDS["did_you_mean"]), rest=described) if near else described
        )
        self._report(
            "invalid_arguments",
            say(WORDS["no_parameter"], tools=tools, key=field.key),
            hint,
            at=field,
            step=steps[0].number,
        )

    def _apply(self, modifier: Modifier, field: Field) -> None:
        match modifier.kind:
            case "comment":
                return
            case "request_id":
                self._apply_request_id(field)
            case "on_error" | "retry":
                self._apply_to_step(modifier, field)
            case "common":
                self._apply_common(modifier.of, field)
            case _:
                self._apply_to_parameter(modifier, field)

    def _once(self, what: tuple[object, ...], given: Field) -> bool:
        if what in self._given:
            self._report("duplicate_key", say(WORDS["given_twice"], key=given.key), at=given)
            return False
        self._given.add(what)
        return True

    def _apply_request_id(self, field: Field) -> None:
        value = field.value.strip()
        if not is_request_id(value):
            self._report(
                "invalid_modifier",
                say(WORDS["bad_request_id"], most=_LONGEST_REQUEST_ID, got=display_value(value)),
                at=field,
            )
        elif self._once(("request_id",), field):
            self._request_id = value

    def _apply_to_step(self, modifier: Modifier, field: Field) -> None:
        number = int(modifier.number) if modifier.number else None
        if number is not None and number not in self._steps:
            self._report_place(FieldTarget(number, KeyMeaning(field.key, False), "orphan_parameter"), field)
            return
        if not self._once((modifier.kind, number), field):
            return
        value = field.value.strip()
        if modifier.kind == "on_error":
            answer = value.lower()
            if answer not in ("stop", "continue"):
                self._report(
                    "invalid_modifier", say(WORDS["bad_on_error"], key=field.key, got=display_value(value)), at=field
                )
                return
            policy: OnError = "continue" if answer == "continue" else "stop"
            if number is None:
                self._on_error = policy
            else:
                self._steps[number].on_error = policy
            return
        if not (value.isascii() and value.isdecimal() and len(value) < 6 and int(value) <= MOST_RETRIES):
            self._report(
                "invalid_modifier",
                say(WORDS["bad_retry"], key=field.key, most=MOST_RETRIES, got=display_value(value)),
                at=field,
            )
        elif number is None:
            self._retry = int(value)
        else:
            self._steps[number].retry = int(value)

    def _apply_common(self, key: str, field: Field) -> None:
        if not self._chain:
            (step,) = self._steps.values()
            meaning = step.tool.parameters.meaning(key)
            if meaning.ambiguous:
                self._report_place(FieldTarget(SHARED, meaning, "ambiguous_key"), field)
            else:
                self._put(step.own, meaning.name, field, step)
            return
        self._give(FieldTarget(SHARED, KeyMeaning(key, False)), field._replace(key=key))

    def _apply_to_parameter(self, modifier: Modifier, field: Field) -> None:
        place = self._place(modifier.of)
        if place.problem:
            self._report_place(place, field)
            return
        steps = list(self._steps.values()) if place.step is SHARED else [self._steps[place.step]]
        hint = field.value.strip().lower()
        if modifier.kind == "type_hint" and hint not in _HINTS:
            self._report(
                "invalid_modifier", say(WORDS["bad_hint"], key=field.key, got=display_value(field.value)), at=field
            )
            return
        used = False
        for step in steps:
            name = step.tool.parameters.meaning(modifier.of).name if place.step is SHARED else place.meaning.name
            if modifier.kind == "uri":
                if place.step is SHARED and len(steps) > 1 and not step.tool.parameters.meaning(modifier.of).declared:
                    continue
                used = self._once(("uri", step.number, name), field) or used
                step.uris[name] = field
            elif name in step.own or name in step.shared:
                used = self._once(("type_hint", step.number, name), field) or used
                step.hints[name] = (hint, field)
        if not used:
            self._report(
                "orphan_parameter",
                say(WORDS["about_nothing"], key=field.key, of=modifier.of),
                say(WORDS["add_or_drop"], key=field.key, of=modifier.of),
                at=field,
            )
