"""Node types as a model reads them, within a budget: only what it needs to place a node and connect it.

    core:Case (Case): Changes the case of a text.
      in: text STRING required; form STRING one of "upper", "lower" = "lower"
      out: text STRING

Written from the definitions alone, so equal definitions give equal texts. Texts of plugins stay on their line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tavern_core.kernel.catalogue.parameter_text import fold_lines, harmless
from tavern_core.model.node import ABSENT, NodeSpec, Slot, plain_default
from tavern_core.model.safe_printing import listed
from tavern_core.model.token_estimate import tokens_of

_DESCRIPTION, _SLOT_DESCRIPTION, _SHORT_DESCRIPTION = 300, 100, 80
_MOST_SLOTS, _MOST_CHOICES, _LONGEST_VALUE = 40, 20, 60
_LONGEST_NAME: Final = 100


def node_documents(specs: Sequence[NodeSpec], tokens: int) -> list[str]:
    """One text for each node type, in the order given, at most `tokens` together.

    The last ones lose their descriptions first, then they are left out.

    Args:
        specs: the most important first.
    """
    long = [node_document(spec) for spec in specs]
    if sum(tokens_of(text) + 1 for text in long) <= tokens:
        return long
    short = [node_document(spec, short=True) for spec in specs]
    sizes = [(tokens_of(one) + 1, tokens_of(other) + 1) for one, other in zip(long, short, strict=True)]
    shown = _prefix([small for _, small in sizes], tokens)
    remaining = tokens - sum(small for _, small in sizes[:shown])
    complete = _prefix([max(large - small, 0) for large, small in sizes[:shown]], remaining)
    return [*long[:complete], *short[complete:shown]]


def _prefix(sizes: Iterable[int], most: int) -> int:
    """The number of first `sizes` that add up to at most `most`."""
    count = total = 0
    for size in sizes:
        total += size
        if total > most:
            break
        count += 1
    return count


def node_document(spec: NodeSpec, *, short: bool = False) -> str:
    """A node type as text.

    Args:
        short: without the descriptions of its ports, and with the beginning of its own.
    """
    name = fold_lines(spec.display_name, _LONGEST_NAME)
    title = spec.type if name in ("", spec.name) else f"{spec.type} ({name})"
    description = fold_lines(spec.description, _SHORT_DESCRIPTION if short else _DESCRIPTION)
    lines = [f"{title}: {description}" if description else title]
    for mode in (None, *spec.modes.values()):
        where = "" if mode is None else f" of mode {mode.id}"
        inputs = spec.inputs if mode is None else mode.inputs or {}
        outputs = spec.outputs if mode is None else mode.outputs or {}
        lines += [f"  in{where}: {_slots(inputs, True, short)}"] if inputs else []
        lines += [f"  out{where}: {_slots(outputs, False, short)}"] if outputs else []
    if spec.config_schema:
        keys = ", ".join(fold_lines(str(key), _LONGEST_NAME) for key in list(_properties(spec))[:_MOST_SLOTS])
        lines += [f"  configValues: {keys}"] if keys else []
    if spec.dynamic_slots:
        lines.append("  an instance may have further inputs and outputs")
    return "\n".join(map(harmless, lines))


def _properties(spec: NodeSpec) -> Mapping[str, Any]:
    found = spec.config_schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _slots(slots: Mapping[str, Slot], is_input: bool, short: bool) -> str:
    shown = [" ".join(_slot(slot, is_input, short)) for slot in list(slots.values())[:_MOST_SLOTS]]
    more = len(slots) - len(shown)
    return "; ".join([*shown, *([f"and {more} more"] if more else [])])


def _slot(slot: Slot, is_input: bool, short: bool) -> Iterator[str]:
    yield fold_lines(slot.key, _LONGEST_NAME)
    kind = f"{slot.type}<{'|'.join(slot.categories[:3])}>" if slot.categories and not slot.is_closed else slot.type
    yield fold_lines(("stream of " if slot.is_stream else "list of " if slot.multi else "") + kind, _LONGEST_NAME)
    if is_input:
        if slot.required is True and slot.default is ABSENT:
            yield "required"
        if slot.choices:
            yield f"{'one of' if slot.is_closed else 'such as'} {listed(slot.choices, _MOST_CHOICES, _value)}"
        if (default := plain_default(slot)) is not ABSENT and default not in (None, ""):
            yield f"= {_value(default)}"
    if slot.description and not short:
        yield f"({fold_lines(slot.description, _SLOT_DESCRIPTION)})"


def _value(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # JSON cannot express it, and neither can a patch
        return "…"
    return fold_lines(text, _LONGEST_VALUE)
