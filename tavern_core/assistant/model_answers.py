"""Reads a model's answers: a patch, its needs and its reason, from text or structured data. No I/O; never raises."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tavern_core.contract.llm import LLMAnswer
from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.patch_problems import PatchProblem
from tavern_core.kernel.text.json_document import read_json
from tavern_core.model.nearest import did_you_mean

ANSWER_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "description": "The change in one sentence; for an empty patch, why."},
        "needs": {
            "type": "object",
            "description": "What the request needs: names of inputs and outputs of the workflow, and node types.",
            "properties": {
                key: {"type": "array", "items": {"type": "string"}} for key in ("inputs", "outputs", "nodes")
            },
        },
        "patch": {
            "type": "array",
            "description": "JSON Patch, RFC 6902.",
            "items": {
                "type": "object",
                "properties": {
                    "op": {"enum": ["add", "remove", "replace", "move", "copy", "test"]},
                    "path": {"type": "string"},
                    "from": {"type": "string"},
                    "value": {},
                },
                "required": ["op", "path"],
            },
        },
    },
    "required": ["patch"],
}
"""The schema of a structured answer (option `schema` of a model)."""
LONGEST: Final = 500_000
"""Characters of an answer that are read."""
_MOST_OPEN: Final = 3
"""Brackets in prose that never close: JSON that was cut off is one of the first."""
_KEYS: Final = ("patch", "needs", "reason")
_DOCUMENTS: Final = ("nodes", "groups")
"""Keys of a workflow and of a form layout, which are not answers."""
_THOUGHT: Final = re.compile(r"<(think|thinking|thought|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE: Final = re.compile(r"^[ \t]*(`{3,8}|~{3,8})[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_START: Final = re.compile(r"[\[{]")
_SAYS_PATCH: Final = re.compile(r'"(?:op|patch|nodes|steps|groups)"\s*:')
"""Marks JSON in prose; other brackets there are footnotes and examples."""
_TOKENS: Final = re.compile(r'\\.|["\[\]{}]', re.DOTALL)
_FILE: Final = "answer"


@dataclass(frozen=True, slots=True)
class RequestNeeds:
    """The needs of a request, as the model stated them."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    """Node types."""

    def __or__(self, other: RequestNeeds) -> RequestNeeds:
        return RequestNeeds(*(tuple(dict.fromkeys((*a, *b))) for a, b in zip(self._all(), other._all(), strict=True)))

    def _all(self) -> tuple[tuple[str, ...], ...]:
        return self.inputs, self.outputs, self.nodes


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """A readable answer."""

    patch: tuple[Any, ...]
    """The operations, as written."""
    needs: RequestNeeds = RequestNeeds()
    reason: str = ""


def read_answer(answer: LLMAnswer) -> ParsedAnswer | PatchProblem:
    """The patch in an answer, or why there is none.

    JSON may stand alone, in a code fence or in prose; thoughts (``<think>``) are skipped. Nothing is repaired silently:
    a trailing comma is refused with its line and column.
    """
    if answer.data is not None:
        return _answered(answer.data)
    text = _THOUGHT.sub(_blank, answer.text[:LONGEST])
    documents: list[Any] = []
    first_problem: PatchProblem | None = None
    for part in _candidates(text):
        document = read_json(part, _FILE, code="BAD_JSON")
        if document.findings:
            first = document.findings[0]
            first_problem = first_problem or PatchProblem("BAD_JSON", first.in_text, hint=first.hint)
        else:
            documents.append(document.data)
    patches = [data for data in documents if _is_patch(data)]
    if len(patches) > 1 and any(other != patches[0] for other in patches[1:]):
        return PatchProblem(
            "SEVERAL_PATCHES", f"there are {len(patches)} patches", hint="send one list with all operations"
        )
    if patches:
        return _answered(patches[0])
    if answer.finish_reason == "length" or len(answer.text) > LONGEST:
        return PatchProblem(
            "CUT_OFF", "the answer ended before its JSON did", hint="answer with fewer words and a smaller patch"
        )
    if first_problem is not None:
        return first_problem
    if not documents:
        return PatchProblem("NO_PATCH", "there is no JSON in the answer", hint=_FORM)
    return _answered(documents[0])


_FORM: Final = 'answer with {"reason": "…", "patch": [{"op": "add", "path": "/nodes/…", "value": {…}}]}'


def read_json_object(answer: LLMAnswer) -> Mapping[str, Any]:
    """The first JSON object of an answer that is not a patch (a plan, a guess); empty if there is none."""
    if isinstance(answer.data, Mapping):
        return answer.data
    for part in _candidates(_THOUGHT.sub(_blank, answer.text[:LONGEST])):
        document = read_json(part, _FILE, code="BAD_JSON")
        if not document.findings and isinstance(document.data, Mapping):
            return document.data
    return {}


def read_needs(data: Any) -> RequestNeeds:
    """Stated needs; entries are names, or objects with a `key` or `name`. Anything else is left out."""
    if not isinstance(data, Mapping):
        return RequestNeeds()
    return RequestNeeds(*(tuple(dict.fromkeys(_names(data.get(key)))) for key in ("inputs", "outputs", "nodes")))


def _names(listed: Any) -> Iterator[str]:
    for entry in listed if isinstance(listed, list) else list(listed) if isinstance(listed, Mapping) else ():
        name = next((entry[key] for key in ("key", "name", "type") if key in entry), None) if isinstance(entry, Mapping) else entry  # fmt: skip
        if isinstance(name, str) and name.strip():
            yield name.strip()[:200]


def _candidates(text: str) -> Iterator[str]:
    """Parts of the text that may be JSON, each with blanks instead of what precedes it, so that lines and columns stay."""
    bodies = [(found.start(2), found.end(2)) for found in _FENCE.finditer(text)]
    fenced = [(start, end) for start, end in bodies if text[start:end].lstrip()[:1] in ("{", "[")]
    if fenced:
        yield from (_blanked(text, start, end) for start, end in fenced)
        return
    stripped = text.strip()
    if stripped[:1] in ("{", "[") and stripped[-1:] in ("}", "]"):
        yield text
        return
    at, unclosed = 0, 0
    while unclosed < _MOST_OPEN and (found := _START.search(text, at)) is not None:
        end = _end(text, found.start())
        if _SAYS_PATCH.search(text, found.start(), end or len(text)) is not None:
            yield _blanked(text, found.start(), end or len(text))
            return  # what is inside of it, or follows it, is not an answer of its own
        unclosed += end is None
        at = found.end() if end is None else end


def _end(text: str, start: int) -> int | None:
    """The end of the brackets that open at `start`; None if they do not close."""
    depth, in_string = 0, False
    for found in _TOKENS.finditer(text, start):
        character = found[0]
        if character == '"':
            in_string = not in_string
        elif not in_string and character in "[{":
            depth += 1
        elif not in_string and character in "]}":
            depth -= 1
            if depth == 0:
                return found.end()
    return None


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _blanked(text: str, start: int, end: int) -> str:
    return re.sub(r"[^\n]", " ", text[:start]) + text[start:end]


def _is_patch(data: Any) -> bool:
    if isinstance(data, Mapping):
        return isinstance(data.get("patch"), list) or ("op" in data and "path" in data)
    return isinstance(data, list) and (not data or any(isinstance(each, Mapping) and "op" in each for each in data))


def _answered(data: Any) -> ParsedAnswer | PatchProblem:
    if not _is_patch(data):
        return _no_patch(data)
    if isinstance(data, list):
        return ParsedAnswer(tuple(data))
    if "op" in data:  # a single operation
        return ParsedAnswer((data,))
    for key, value in data.items():
        if key not in _KEYS and not isinstance(value, str):
            hint = did_you_mean(key, _KEYS) or "changes belong into the patch, as operations"
            return PatchProblem(
                "UNKNOWN_KEY", f"the answer has a key {key!r:.80}, which means nothing", hint=hint, pointer=f"/{key}"
            )
    reason = data.get("reason")
    return ParsedAnswer(
        tuple(data["patch"]), read_needs(data.get("needs")), reason[:2_000] if isinstance(reason, str) else ""
    )


def _no_patch(data: Any) -> PatchProblem:
    if isinstance(data, Mapping):
        inner = next((value for value in data.values() if isinstance(value, Mapping)), {})
        if any(key in data or key in inner for key in _DOCUMENTS):
            return PatchProblem(
                "WHOLE_WORKFLOW",
                "the answer is the whole document, not a patch",
                hint=f"send only what changes; {_FORM}",
            )
        keys = ", ".join(map(repr, list(data)[:8]))
        return PatchProblem(
            "NOT_A_PATCH", f"the answer is an object with the keys {keys or 'none'}, without `patch`", hint=_FORM
        )
    if isinstance(data, list):
        return PatchProblem("NOT_A_PATCH", "the answer is a list whose entries are not operations", hint=_FORM)
    return PatchProblem("NOT_A_PATCH", "the JSON of the answer is neither an object nor a list", hint=_FORM)
