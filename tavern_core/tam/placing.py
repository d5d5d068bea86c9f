"""Placing the fields of one block: which step each belongs to, as argument or as modifier."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from tavern_core.model.nearest import nearest
from tavern_core.tam.alternatives import shown
from tavern_core.tam.calls import OnError
from tavern_core.tam.document import Block, Field
from tavern_core.tam.parameters import Meaning, Parameters
from tavern_core.tam.problems import PROBLEM_CODES, Problem, Severity
from tavern_core.tam.steps import SHARED, Modifier, Place, Tool, place_in_chain, read_modifier

MOST_RETRIES: Final = 100
MOST_ERRORS: Final = 20
"""Problems kept per code and block: enough to repair it, too few to fill the memory with."""
_LONGEST_REQUEST_ID: Final = 256
_HINTS: Final = ("json", "base64", "text")


class Tools(Protocol):
    """Where tools are looked up; see `binder.Catalogue`."""

    def tool(self, name: str) -> Tool | None: ...

    def nearest(self, name: str) -> list[str]: ...


@dataclass(slots=True)
class Step:
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


class FieldPlacing:
    """The steps of one block and what belongs to each; `problems` holds what is wrong."""

    def __init__(self, block: Block, tools: Tools) -> None:
        self._block = block
        self._tools = tools
        self._steps: dict[int, Step] = {}
        self._chain = False
        self._chain_tools: dict[int, Tool] = {}
        self._kinds: list[Parameters] = []
        self._on_error: OnError = "stop"
        self._retry = 0
        self._request_id: str | None = None
        self._given: set[tuple[object, ...]] = set()
        self._suggested: set[str] = set()
        self._seen: dict[str, int] = {}
        self.problems: list[Problem] = []

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

    def _named(self, number: int) -> str:
        return f"step {number}" if self._chain else "the block"

    def _place(self, key: str) -> Place:
        if self._chain:
            if not self._chain_tools:
                self._chain_tools = {number: step.tool for number, step in self._steps.items()}
                self._kinds = list(
                    {id(tool.parameters): tool.parameters for tool in self._chain_tools.values()}.values()
                )
            return place_in_chain(key, self._chain_tools, self._kinds)
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

    def _is_full(self, code: str) -> bool:
        """Whether nothing more of this kind is worth working out."""
        return self._seen.get(code, 0) >= MOST_ERRORS

    def _report_place(self, place: Place, given: Field) -> None:
        if self._is_full(place.problem):
            return
        if place.problem == "orphan_parameter":
            steps = shortened_list(sorted(self._steps))
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

    def _put(self, fields: dict[str, Field], name: str, given: Field, step: Step) -> None:
        if name in fields:
            if (name, id(given)) not in self._given:
                self._given.add((name, id(given)))
                where = f" of step {step.number}" if self._chain else ""
                self._report(
                    "duplicate_key",
                    f"{fields[name].key!r} and {given.key!r} both mean the parameter {name!r}{where}.",
                    at=given,
                    step=step.number,
                )
            return
        fields[name] = given

    def _report_unknown(self, given: Field, meaning: Meaning, steps: list[Step]) -> None:
        if self._is_full("invalid_arguments"):
            return
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
            self._report(
                "invalid_modifier",
                f"request_id: expected 1 to {_LONGEST_REQUEST_ID} printable characters, got {shown(value)}.",
                at=given,
            )
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
                self._report(
                    "invalid_modifier", f"{given.key}: expected stop or continue, got {shown(value)}.", at=given
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
                f"{given.key}: expected a whole number from 0 to {MOST_RETRIES}, got {shown(value)}.",
                at=given,
            )
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
            self._report(
                "invalid_modifier", f"{given.key}: expected json, base64 or text, got {shown(given.value)}.", at=given
            )
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
            self._report(
                "orphan_parameter",
                f"{given.key!r} is about {modifier.of!r}, which the block does not have.",
                f"Add `{modifier.of}`, or take {given.key!r} away.",
                at=given,
            )


def shortened_list(numbers: list[int]) -> str:
    """Step numbers for a message."""
    return ", ".join(map(str, numbers[:12])) + (", …" if len(numbers) > 12 else "")
