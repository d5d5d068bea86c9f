"""The words, ports and uses of node types, kept for many requests and changed with the types.

The evidence for a request, as measured (docs/benchmarks.md): what its nearest example workflows use, what is popular
in all examples, and what the words of a request or of the steps of a plan find in the documents of node types.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.slot_compatibility import mismatch
from tavern_core.kernel.catalogue.full_text import FullText
from tavern_core.kernel.catalogue.tokenizer import query_words, words_of
from tavern_core.model.node import NodeMatch, NodeSpec, Slot
from tavern_core.model.workflow import Workflow

NEAREST: Final = 20
"""The number of example workflows that count; nearer ones count more."""
_NEARNESS: Final = 3
"""The power of their BM25 scores: the nearest three decide mostly."""
_MOST_WORDS: Final = 64
_MOST_TEXT: Final = 4_000
_MOST_SLOTS: Final = 200
_MOST_FROM_EXAMPLES: Final = 200
_MOST_FOUND: Final = 40
_MOST_CLAUSES: Final = 6
_MOST_STEPS: Final = 32
_EACH: Final = 5
"""The number of nodes that are chosen for one clause or one step."""
_BY_EXAMPLES, _BY_WORDS, _BY_CLAUSE, _BY_STEP = 1.0, 0.5, 0.1, 0.1
_ENOUGH_EXAMPLES: Final = 10
"""With fewer examples, their use of a node type says little about its popularity."""
_BEST_OF_STEP: Final = 0.5
"""The best match of a step comes before most of what is merely popular: the step was written to find it."""
_CLAUSE: Final = re.compile(r"[.,;:!?。，；：！？、\n]+|\b(?:and|then|with)\b")


@dataclass(frozen=True, slots=True)
class ExampleWorkflow:
    """The searchable parts of an example workflow."""

    types: frozenset[str]
    words: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, workflow: Workflow) -> ExampleWorkflow:
        slots = (*workflow.inputs().values(), *workflow.outputs().values())
        texts = {
            "name": f"{workflow.id} {workflow.name}",
            "description": workflow.description,
            "parameters": " ".join(_slot_texts(slots)),
        }
        types = frozenset(node.type for node in workflow.nodes)
        return cls(types, {key: words_of(text[:_MOST_TEXT]) for key, text in texts.items()})


class NodeIndex:
    """Node types and example workflows, searchable. Used by one thread at a time."""

    def __init__(self) -> None:
        self.specs: dict[str, NodeSpec] = {}
        """The searchable types, sorted."""
        self._synced: Sequence[NodeSpec] = ()
        self._words = FullText()
        self._examples: Mapping[str, ExampleWorkflow] = {}
        self._near = FullText()
        self._uses: Counter[str] = Counter()
        self.ports = Ports()

    def sync(self, specs: Sequence[NodeSpec], examples: Mapping[str, ExampleWorkflow]) -> bool:
        """Replace the content of the index; only changed entries are read again.

        Args:
            specs: the same object again means the same types.

        Returns:
            Whether a node type changed.
        """
        wanted = self.specs if specs is self._synced else {spec.type: spec for spec in specs if not spec.deprecated}
        stale, fresh = ([], []) if wanted is self.specs else _changes(self.specs, wanted)
        self._synced = specs
        if stale or fresh:
            self._words.drop(stale)
            self._words.put([(type_, _words_of_node(wanted[type_])) for type_ in fresh])
            self.specs = dict(sorted(wanted.items()))
        gone, new = _changes(self._examples, examples)
        if gone or new:
            self._near.drop(gone)
            self._near.put([(id_, examples[id_].words) for id_ in new])
        self._examples = examples
        if stale or fresh or gone or new:
            used = (type_ for example in examples.values() for type_ in example.types if self._counts(type_))
            self._uses = Counter(used)
            self.ports = Ports(sorted(self.specs.values(), key=lambda spec: (-self._uses[spec.type], spec.type)))
        return bool(stale or fresh)

    def _counts(self, type_: str) -> bool:
        """Whether a type counts; notes and frames occur everywhere and do nothing."""
        spec = self.specs.get(type_)
        return spec is not None and not spec.is_ui_node

    def evidence(self, request: str, plan: Sequence[str]) -> Iterator[Ranking]:
        """The evidence for node types: examples, the words of the request, its clauses and the steps of a plan."""
        near = self._near.rank(query_words(request, _MOST_WORDS), NEAREST, self._examples.__contains__)
        trust = 1.0 if near else min(1.0, len(self._examples) / _ENOUGH_EXAMPLES)
        yield Ranking(_BY_EXAMPLES * trust, self._by_examples(near))
        yield Ranking(_BY_WORDS, self.by_words(request, _MOST_FOUND, "matches the request"))
        clauses = [part for part in _CLAUSE.split(request[:_MOST_TEXT]) if part.strip()]
        for clause in clauses[:_MOST_CLAUSES] if len(clauses) > 1 else ():
            yield Ranking(_BY_CLAUSE, self.by_words(clause, _EACH, "matches a part of the request"))
        for number, step in enumerate(plan[:_MOST_STEPS], 1):
            found = self.by_words(step, _EACH, f"matches step {number} of the plan")
            yield Ranking(_BY_STEP, found)
            yield Ranking(_BEST_OF_STEP, dict(islice(found.items(), 1)))

    def by_words(self, text: str, most: int, why: str) -> dict[str, str]:
        words = query_words(text, _MOST_WORDS)
        return {type_: why for type_, _ in self._words.rank(words, most, self.specs.__contains__)}

    def _by_examples(self, near: Sequence[tuple[str, float]]) -> dict[str, str]:
        """The share of each type in the nearest examples, plus its share in all of them."""
        weights = [(id_, max(score, 1e-9) ** _NEARNESS) for id_, score in near]
        total = sum(weight for _, weight in weights)
        shares = {type_: uses / len(self._examples) for type_, uses in self._uses.items()}
        seen_in: dict[str, list[str]] = {}
        for id_, weight in weights:
            for type_ in self._examples[id_].types & self._uses.keys():
                shares[type_] += weight / total
                seen_in.setdefault(type_, []).append(id_)
        best = sorted(shares, key=lambda type_: (-shares[type_], type_))[:_MOST_FROM_EXAMPLES]
        return {type_: self._use(type_, seen_in.get(type_, ())) for type_ in best}

    def _use(self, type_: str, examples: Sequence[str]) -> str:
        if examples:
            return f"used in similar examples: {', '.join(examples[:3])}"
        return f"used in {self._uses[type_]} of {len(self._examples)} examples"


def document_text(spec: NodeSpec) -> str:
    """A node type as one text, for rankers."""
    ports = " ".join(_slot_texts((*spec.inputs.values(), *spec.outputs.values())))
    head = f"{spec.display_name or spec.name} ({spec.type}). {spec.category}\n{spec.description[:_MOST_TEXT]}"
    return f"{head}\n{ports}"[: 2 * _MOST_TEXT]


def _words_of_node(spec: NodeSpec) -> dict[str, list[str]]:
    texts = {
        "id": spec.type,
        "name": spec.display_name,
        "tags": spec.category,
        "parameters": " ".join((*_slot_texts((*spec.inputs.values(), *spec.outputs.values())), *_config_keys(spec))),
        "description": spec.description,
    }
    return {column: words_of(text[:_MOST_TEXT]) for column, text in texts.items()}


def _config_keys(spec: NodeSpec) -> Iterator[str]:
    yield from (key for key in list(spec.config_schema)[:_MOST_SLOTS] if isinstance(key, str))
    for mode in list(spec.modes.values())[:_MOST_SLOTS]:
        yield mode.display_name or mode.id


def _slot_texts(slots: Iterable[Slot]) -> Iterator[str]:
    for _, slot in zip(range(_MOST_SLOTS), slots, strict=False):
        yield from (slot.key, slot.display_name, slot.description[:_MOST_TEXT])
        yield from (choice for choice in slot.choices[:50] if isinstance(choice, str))


def _changes(known: Mapping[str, object], wanted: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """Keys to take out, and keys to put in."""
    fresh = [key for key, value in wanted.items() if (old := known.get(key)) is not value and old != value]
    return [key for key in known if key not in wanted] + [key for key in fresh if key in known], fresh


# Port matching --------------------------------------------------------------------------------------------------------
# The node types with an output that fits an input, and those with an input that fits an output.
#
# Only ports that say something count: everything fits a WILDCARD, and nearly every node has a STRING.

_SPECIFIC: Final = frozenset({"OBJECT", "BINARY", "ARRAY"})
_Form = tuple[str, tuple[str, ...], bool, bool]
"""The properties that decide whether two slots fit: type, categories, stream, multi."""
_Types = Mapping[_Form, tuple[Slot, tuple[str, ...]]]
"""Form → one such slot, and the types that have it. Types share few forms."""


class Ports:
    """The ports of many node types.

    Args:
        specs: in the order in which answers name types.
    """

    def __init__(self, specs: Iterable[NodeSpec] = ()) -> None:
        listed = list(specs)
        self._givers = _by_form((spec.type, spec.outputs) for spec in listed)
        self._takers = _by_form((spec.type, spec.inputs) for spec in listed)
        self._giving: dict[_Form, tuple[str, ...]] = {}
        self._taking: dict[_Form, tuple[str, ...]] = {}

    def giving(self, target: Slot) -> tuple[str, ...]:
        """The types with an output for the input `target`; none for an input that nearly everything fits."""
        form = _form(target)
        if form not in self._giving:
            self._giving[form] = _types(self._givers, lambda source: is_specific(target) and _fits(source, target))
        return self._giving[form]

    def taking(self, source: Slot) -> tuple[str, ...]:
        """The types with an input for the output `source`; none for an output that fits nearly everything."""
        form = _form(source)
        if form not in self._taking:
            self._taking[form] = _types(self._takers, lambda target: is_specific(source) and _fits(source, target))
        return self._taking[form]


def is_specific(slot: Slot) -> bool:
    """Whether few slots fit this one."""
    return bool(slot.categories) or slot.is_stream or slot.type in _SPECIFIC


def _form(slot: Slot) -> _Form:
    return slot.type, slot.categories, slot.is_stream, slot.multi


def _fits(source: Slot, target: Slot) -> bool:
    """Stricter than an edge: a slot with categories is only matched by one that shares a category."""
    return bool(source.categories) == bool(target.categories) and mismatch(source, target) is None


def _types(forms: _Types, fits: Callable[[Slot], bool]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(type_ for slot, types in forms.values() if fits(slot) for type_ in types))


def _by_form(sides: Iterable[tuple[str, Mapping[str, Slot]]]) -> _Types:
    found: dict[_Form, tuple[Slot, dict[str, None]]] = {}
    for type_, slots in sides:
        for slot in slots.values():
            if is_specific(slot):
                found.setdefault(_form(slot), (slot, {}))[1][type_] = None
    return {form: (slot, tuple(types)) for form, (slot, types) in found.items()}


# Rank fusion ----------------------------------------------------------------------------------------------------------
# Several orders of the same things become one: reciprocal rank fusion (Cormack, Clarke and Büttcher 2009), with weights.

_DAMPING: Final = 20
"""The larger, the less the first places differ; chosen on the development part of the benchmark, like the weights."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """An order of node types."""

    weight: float
    reasons: Mapping[str, str]
    """Node type → why, best first."""


def fuse_rankings(evidence: Iterable[Ranking], limit: int) -> list[NodeMatch]:
    """The best `limit` node types by all evidence; equal scores by type.

    >>> [m.type for m in fuse_rankings([Ranking(1.0, {"a": "x", "b": "x"}), Ranking(1.0, {"b": "y"})], 2)]
    ['b', 'a']
    """
    scores: dict[str, list[tuple[float, str]]] = {}
    for ranking in evidence:
        for place, (type_, why) in enumerate(ranking.reasons.items(), 1):
            scores.setdefault(type_, []).append((ranking.weight / (_DAMPING + place), why))
    totals = {type_: sum(sorted(score for score, _ in found)) for type_, found in scores.items()}
    best = sorted(totals, key=lambda type_: (-totals[type_], type_))[: max(limit, 0)]
    return [NodeMatch(type_, totals[type_], _why(scores[type_])) for type_ in best]


def _why(found: list[tuple[float, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(why for _, why in sorted(found, key=lambda item: -item[0])))
