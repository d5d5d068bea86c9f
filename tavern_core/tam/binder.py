"""From fields to calls: look up tools, match keys to parameters, convert texts to their declared types.

    commands → tools → each field to its step and parameter → modifiers → typed arguments → missing, unknown, validated

A block is bound as a whole: if it has an error, none of its calls is in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from tavern_core.errors import UsageError
from tavern_core.model.text_call import TamCall, TextProblem
from tavern_core.tam.block_binding import BlockBinding
from tavern_core.tam.bound_call_plan import Plan, read_reference
from tavern_core.tam.callable_tool_lookup import Catalogue, Schemas
from tavern_core.tam.document import Block, Document
from tavern_core.tam.field_key_interpretation import command_number
from tavern_core.tam.machine import parse
from tavern_core.tam.malformed_field_repair import body_of, corrected, undelimited
from tavern_core.tam.near_misses import Reading, has_signs, near_misses, read_body
from tavern_core.tam.writer import render

Validate: TypeAlias = Callable[[str, Mapping[str, Any]], Iterable[str | tuple[str, str]]]


def bind(
    document: Document,
    schemas: Schemas,
    *,
    known: Iterable[str] | None = None,
    destructive: Callable[[str], bool] | None = None,
    references: bool = False,
    validate: Validate | None = None,
) -> Plan:
    """The requested calls of a text, and all its problems. Never raises.

    Args:
        document: what `parse` or a `Scanner` read.
        schemas: the JSON Schema of the parameters of each tool, by id; or a function that gives it (None: no such tool).
        known: all ids, for suggestions, where `schemas` is a function.
        destructive: says of a tool id whether the tool destroys things; such a tool refuses a value without its tail.
        references: a whole value `{{step1.path}}` in a chain becomes a `Reference` to that step's result.
        validate: what judges the arguments of a tool, given its id, in place of its schema alone. It yields what is wrong: a
            message, or (JSON pointer, message). It is not asked about arguments with references or `$uri`s.
    """
    catalogue = Catalogue(schemas, known, destructive)
    validate = validate or catalogue.problems

    def tool_id(name: str) -> str:
        tool = catalogue.tool(name)
        return "" if tool is None else tool.id

    def written(text: str) -> str:
        again, wrong = _bound(
            parse(text).blocks, catalogue, references=references, validate=validate
        )  # without its own repairs
        if not again or any(problem.severity == "error" for problem in wrong):
            return ""
        try:
            return render(again, schemas)
        except UsageError:  # an argument with the name of a keyword in a chain
            return ""

    def meant(block: Block) -> Reading:
        return read_body(body_of(block), tool_id, written)

    calls, problems = _bound(document.blocks, catalogue, references=references, validate=validate, meant=meant)
    problems += near_misses(document, tool_id, written)
    return Plan(tuple(calls), tuple(problems))


def named_tools(document: Document) -> list[str]:
    """Every name in a text that may be the name of a tool, so that they can be looked up before binding."""
    found: dict[str, None] = {}
    is_plain = not document.problems and not has_signs(document.prose)
    for block in document.blocks:
        commands = [field.value.strip() for field in block.fields if command_number(field.key) is not None]
        found.update(dict.fromkeys(commands))
        is_plain = is_plain and bool(commands)
    if not is_plain:  # near misses also name tools

        def note(tool: str) -> None:
            found[tool] = None

        bind(document, note, known=())  # without known tools, it looks up every one
    return list(found)


def _bound(
    blocks: Iterable[Block],
    catalogue: Catalogue,
    *,
    references: bool,
    validate: Validate,
    meant: Callable[[Block], Reading] | None = None,
) -> tuple[list[TamCall], list[TextProblem]]:
    calls: list[TamCall] = []
    problems: list[TextProblem] = []
    for block in blocks:
        bound = _bind_common(block, catalogue) if not references and not block.problems else None
        refused: list[str | tuple[str, str]] = []
        if bound is not None:
            refused = list(validate(bound.tool, bound.arguments))
            if not refused:
                calls.append(bound)
                continue
        lines = undelimited(block, catalogue.tool)
        found, wrong = [], list(block.problems)
        if block.ok:
            binding = BlockBinding(
                block, catalogue, references=references, validate=_saying(refused) if refused else validate
            )
            binding.has_mentioned({name for line in lines for name in (line.name, line.name.rstrip("0123456789"))})
            found = binding.bind()
            wrong += binding.problems
        if wrong and meant is not None:
            wrong = corrected(block, wrong, lines, partial(meant, block), catalogue.tool)
        problems += wrong
        if not lines and not any(problem.severity == "error" for problem in wrong):
            calls += found
    return calls, problems


def _saying(problems: list[str | tuple[str, str]]) -> Validate:
    """A validator with cached results."""
    return lambda tool, arguments: problems


def _bind_common(block: Block, catalogue: Catalogue) -> TamCall | None:
    """The common block: one `command`, declared parameters exactly spelled, once each, that fit. None: use the general path."""
    if block.dialect != "tam1":
        return None
    fields = block.fields
    if not fields or fields[0].key != "command":
        return None
    tool = catalogue.tool(fields[0].value.strip())
    if tool is None:
        return None
    parameters = tool.parameters
    verbatim = parameters.verbatim
    arguments: dict[str, Any] = {}
    for field in fields[1:]:
        key = field[0]
        if key in arguments:
            return None
        if "{{" in field[1] and read_reference(field[1]) is not None:
            return None
        if key in verbatim:
            arguments[key] = field[1]
            continue
        reader = parameters.declared(key)
        if reader is None:
            return None
        arguments[key], wrong = reader.read(field[1])
        if wrong:
            return None
    if parameters.requires_more(arguments):
        return None
    return TamCall(1, block.number, tool.id, arguments)
