"""From fields to calls: look up tools, match keys to parameters, convert texts to their declared types.

    commands → tools → each field to its step and parameter → modifiers → typed arguments → missing, unknown, validated

A block is bound as a whole: if it has an error, none of its calls is in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias

from tavern_core.errors import UsageError
from tavern_core.model.text_call import TamCall, TextProblem
from tavern_core.tam.block_binding import BlockBinding
from tavern_core.tam.bound_call_plan import Plan, read_reference
from tavern_core.tam.callable_tool_lookup import LONGEST_ID, CallableTools, Schemas
from tavern_core.tam.document import Block, Document
from tavern_core.tam.field_key_interpretation import commands_of
from tavern_core.tam.machine import parse
from tavern_core.tam.malformed_field_repair import command_hint, corrected, has_command, undelimited
from tavern_core.tam.near_misses import CallReader, fenced_blocks, has_signs, near_misses
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
    """Bind the calls of a text; returns them with all problems of the text. Never raises.

    Args:
        document: what `parse` or a `Scanner` read.
        schemas: the JSON Schema of the parameters of each tool, by id; or a function that gives it (None: no such tool).
        known: all ids, for suggestions, where `schemas` is a function.
        destructive: says of a tool id whether the tool destroys things; such a tool refuses a value without its tail,
            and a block in a code fence.
        references: a whole value `{{step1.path}}` in a chain becomes a `Reference` to that step's result.
        validate: judges the arguments of a tool, given its id, instead of its schema alone. It yields each problem: a
            message, or (JSON pointer, message). It is not called for arguments with references or `$uri`s.
    """
    catalogue = CallableTools(schemas, known, destructive)
    binder = _Binder(catalogue, references, validate or catalogue.problems)

    def written(text: str) -> str:
        again, wrong = binder.bind(parse(text).blocks)
        if not again or any(problem.severity == "error" for problem in wrong):
            return ""
        try:
            return render(again, schemas)
        except UsageError:  # an argument with the name of a keyword in a chain
            return ""

    reader = CallReader(lambda name: tool.id if (tool := catalogue.tool(name)) is not None else "", written)
    calls, problems = binder.bind(document.blocks, reader, fenced_blocks(document) if destructive else ())
    return Plan(tuple(calls), (*problems, *near_misses(document, reader)))


def named_tools(document: Document) -> list[str]:
    """Every name in a text that may be the name of a tool, so that they can be looked up before binding; binds nothing."""
    found: dict[str, None] = {}
    is_plain = not document.problems and not has_signs(document.prose)
    for block in document.blocks:
        commands = commands_of(block)
        found.update(dict.fromkeys(commands))
        is_plain = is_plain and bool(commands)
    if not is_plain:
        _note_near_misses(document, found)
    return list(found)


def _note_near_misses(document: Document, found: dict[str, None]) -> None:
    """Note the names that `bind` looks up because of near misses.

    Binding without tools would find most of them, but takes several times as long and ends a block at its first unknown
    step.
    """

    def no_tool(name: str) -> None:
        if len(name) <= LONGEST_ID:
            found[name] = None

    def no_id(name: str) -> str:
        no_tool(name)
        return ""

    def not_written(text: str) -> str:
        for block in parse(text).blocks:
            for name in commands_of(block) if block.ok else ():
                no_tool(name)
            undelimited(block, no_tool)
        return ""

    reader = CallReader(no_id, not_written)
    for block in document.blocks:
        lines = undelimited(block, no_tool)
        if block.ok and not commands_of(block) and not has_command(lines):
            command_hint(block, reader, no_tool)
    near_misses(document, reader)


class _Binder:
    """Binds blocks; the arguments are those of `bind`."""

    def __init__(self, catalogue: CallableTools, references: bool, validate: Validate) -> None:
        self._catalogue = catalogue
        self._references = references
        self._validate = validate

    def bind(
        self, blocks: Iterable[Block], reader: CallReader | None = None, fenced: Collection[int] = ()
    ) -> tuple[list[TamCall], list[TextProblem]]:
        """Bind blocks; returns calls and problems.

        Args:
            blocks: of one text.
            reader: near misses show how to write the call.
            fenced: the numbers of the blocks in a code fence, in which nothing destructive is called.
        """
        calls: list[TamCall] = []
        problems: list[TextProblem] = []
        for block in blocks:
            is_fenced = block.number in fenced
            is_plain = not (self._references or block.problems or is_fenced)
            common = _bind_common(block, self._catalogue) if is_plain else None
            refused: list[str | tuple[str, str]] = []
            if common is not None:
                refused = list(self._validate(common.tool, common.arguments))
                if not refused:
                    calls.append(common)
                    continue
            found, wrong = self._bind_step_by_step(block, refused, reader, is_fenced=is_fenced)
            calls += found
            problems += wrong
        return calls, problems

    def _bind_step_by_step(
        self, block: Block, refused: list[str | tuple[str, str]], reader: CallReader | None, *, is_fenced: bool
    ) -> tuple[list[TamCall], list[TextProblem]]:
        """Bind any block; `refused` is what the validator has already refused of it."""
        catalogue = self._catalogue
        lines = undelimited(block, catalogue.tool)
        calls, problems = [], list(block.problems)
        if block.ok:
            validate = (lambda tool, arguments: refused) if refused else self._validate
            binding = BlockBinding(
                block, catalogue, references=self._references, validate=validate, is_fenced=is_fenced
            )
            binding.has_mentioned({name for line in lines for name in (line.name, line.name.rstrip("0123456789"))})
            calls = binding.bind()
            problems += binding.problems
        if problems and reader is not None:
            problems = corrected(block, problems, lines, reader, catalogue.tool)
        is_wrong = bool(lines) or any(problem.severity == "error" for problem in problems)
        return [] if is_wrong else calls, problems


def _bind_common(block: Block, catalogue: CallableTools) -> TamCall | None:
    """Bind a common block: one `command`, declared parameters, exactly spelled, once each, with values that fit.

    None: use the general path.
    """
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
        if key in arguments or (key == "command" and catalogue.tool(field[1].strip()) is not None):
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
