"""The parameters of a VCP command, which its manifest mostly gives in prose: an example of the call block.

    <<<[TOOL_REQUEST]>>>
    tool_name:「始」Weather「末」,
    city:「始」Berlin「末」            city: a parameter
    <<<[END_TOOL_REQUEST]>>>

The fields are those of our own text protocol, so its parser reads them; only the markers differ. What it finds is a guess, and
is marked as one: nothing is required, and other parameters are let through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.naming_rules import is_local_name
from tavern_core.model.safe_printing import seen
from tavern_core.tam import parse
from tavern_core.tam.document import Field
from tavern_core.tam.grammar import END, START
from tavern_core.tam.neutralise import foreign_prose

INFERRED: Final = "Inferred from an example of the plugin; its manifest declares no parameters."
_START: Final = re.compile(r"<<<\[TOOL_REQUEST\]>>>", re.IGNORECASE)
_END: Final = re.compile(r"<<<\[END_TOOL_REQUEST\]>>>", re.IGNORECASE)
_BLOCK: Final = re.compile(r"<<<\[TOOL_REQUEST\]>>>.*?(?:<<<\[END_TOOL_REQUEST\]>>>|\Z)", re.IGNORECASE | re.DOTALL)
_NAME: Final = re.compile(r"[\w.-]{1,64}\Z")
_BATCH: Final = re.compile(r"command\d+\Z", re.IGNORECASE)
_NOT_ARGUMENTS: Final = frozenset({"tool_name", "command"})
"""The tool and the command, which the host sets itself."""
LONGEST_TEXT: Final = 50_000
"""Characters of one description that are read."""
MOST_PARAMETERS: Final = 64
_LONGEST_EXAMPLE: Final = 200
_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object")


@dataclass(frozen=True, slots=True)
class InferredArguments:
    """The arguments that the examples of one command show."""

    examples: Mapping[str, str]
    """Parameter → its value in the first example that has it."""
    command: str = ""
    """The value of `command` in them; empty if there is none."""


def infer(texts: Iterable[str], plugin: str, others: frozenset[str]) -> InferredArguments:
    """Read the call blocks in `texts`.

    Args:
        plugin: the `name` of the manifest; blocks that call another plugin show nothing.
        others: further commands of the same manifest; blocks that give one of these are theirs.
    """
    found: dict[str, str] = {}
    command = ""
    for text in texts:
        ours = _END.sub(END, _START.sub(START, text[:LONGEST_TEXT]))
        for block in parse(ours).blocks:
            fields = {field.key.strip(): field for field in block.fields}
            command_value = _value(fields.get("command"))
            if (
                _value(fields.get("tool_name")) not in ("", plugin)
                or command_value in others
                or any(map(_BATCH.match, fields))
            ):
                continue
            if not command and is_local_name(command_value):
                command = command_value
            for key, field in fields.items():
                if key not in _NOT_ARGUMENTS and _NAME.match(key) and len(found) < MOST_PARAMETERS:
                    found.setdefault(key, field.value.strip())
    return InferredArguments(found, command)


def _value(field: Field | None) -> str:
    return "" if field is None else field.value.strip()


def prose(text: str) -> str:
    """A description without its call blocks, which would teach a model another protocol, and harmless in every other."""
    return foreign_prose(_BLOCK.sub("…", text[:LONGEST_TEXT])).strip()


def inferred_schema(found: InferredArguments) -> dict[str, Any]:
    """JSON Schema of parameters that were found in examples."""
    properties = {}
    for name, example in found.examples.items():
        shown = foreign_prose(seen(example[:_LONGEST_EXAMPLE]))
        properties[name] = {"type": "string", "description": f"{INFERRED} There it is: {shown}"}
    return {"type": "object", "description": INFERRED, "properties": properties, "additionalProperties": True}


def declared_schema(written: Any) -> dict[str, Any] | None:
    """JSON Schema of parameters that a manifest does declare, in one of three forms; None for anything else.

    ``[{"name", "type", "description", "required"}]`` · ``{"name": {"type", "description"}}`` · an object schema.
    """
    if isinstance(written, Mapping) and isinstance(written.get("properties"), Mapping):
        required = written.get("required")
        wanted = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        items = [(name, part, name in wanted) for name, part in written["properties"].items()]
    elif isinstance(written, Mapping):
        items = [(name, part, _is_required(part)) for name, part in written.items()]
    elif isinstance(written, list):
        items = [(part.get("name"), part, _is_required(part)) for part in written if isinstance(part, Mapping)]
    else:
        return None
    sound = [(name, part, must) for name, part, must in items if isinstance(name, str) and _NAME.match(name)]
    if not sound:
        return None
    sound = sound[:MOST_PARAMETERS]
    schema: dict[str, Any] = {"type": "object", "properties": {name: _property(part) for name, part, _ in sound}}
    return schema | {"required": [name for name, _, must in sound if must], "additionalProperties": True}


def _is_required(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("required") is True


def _property(part: Any) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        return {"description": foreign_prose(seen(part[:_LONGEST_EXAMPLE]))} if isinstance(part, str) else {}
    made: dict[str, Any] = {}
    if part.get("type") in _TYPES:
        made["type"] = part["type"]
    if isinstance(text := part.get("description"), str):
        made["description"] = foreign_prose(seen(text[:2_000], lines=True))
    if isinstance(choices := part.get("enum"), list) and choices and all(isinstance(c, str) for c in choices):
        made["enum"] = list(dict.fromkeys(choices[:100]))
    return made
