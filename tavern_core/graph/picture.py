"""Pictures of a workflow: Mermaid for documents and terminals, SVG for everything else."""

from __future__ import annotations

import re
from html import escape
from typing import Final

from tavern_core.graph.layout import layout
from tavern_core.model.workflow import Workflow, WorkflowNode

_WIDTH: Final = 200
_HEIGHT: Final = 60
_MARGIN: Final = 40
_UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
"""Characters that control terminals, reverse the writing direction, end lines, or are not allowed in XML."""
_SPECIAL: Final = re.compile('["&<>#%`]')
"""What ends a label of Mermaid, begins HTML, an entity, a directive (``%%{init}%%``) or Markdown."""


def mermaid(workflow: Workflow) -> str:
    """The workflow as a Mermaid flowchart."""
    lines = ["flowchart LR"]
    names = {node.id: f"n{at}" for at, node in enumerate(workflow.nodes)}
    for node in workflow.nodes:
        lines.append(f'    {names[node.id]}["{_label(node)}"]')
    for edge in workflow.edges:
        if edge.source in names and edge.target in names:
            wire = " → ".join(_plain(h) for h in (edge.source_handle, edge.target_handle) if h)
            middle = f'-- "{wire}" -->' if wire else "-->"
            lines.append(f"    {names[edge.source]} {middle} {names[edge.target]}")
    return "\n".join(lines) + "\n"


def svg(workflow: Workflow) -> str:
    """The workflow as an SVG document, with nodes at their positions, or laid out if they have none."""
    places = layout(workflow)
    left = min((x for x, _ in places.values()), default=0.0) - _MARGIN
    top = min((y for _, y in places.values()), default=0.0) - _MARGIN
    width = max((x for x, _ in places.values()), default=0.0) + _WIDTH + _MARGIN - left
    height = max((y for _, y in places.values()), default=0.0) + _HEIGHT + _MARGIN - top
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:g} {top:g} {width:g} {height:g}" font-family="sans-serif" font-size="13">'
    ]
    for edge in workflow.edges:
        if edge.source in places and edge.target in places:
            (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
            x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT / 2, y2 + _HEIGHT / 2
            bend = max(40.0, abs(x2 - x1) / 2)
            parts.append(
                f'<path d="M{x1:g},{y1:g} C{x1 + bend:g},{y1:g} {x2 - bend:g},{y2:g} {x2:g},{y2:g}" fill="none" stroke="#888" stroke-width="1.5"/>'
            )
    for node in workflow.nodes:
        x, y = places[node.id]
        title, type_ = escape(_short(node.display_name or node.id)), escape(_short(node.type))
        parts.append(
            f'<g><title>{type_}</title><rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#fff" stroke="#555"/>'
            f'<text x="{x + 12:g}" y="{y + 25:g}" font-weight="bold">{title}</text>'
            f'<text x="{x + 12:g}" y="{y + 44:g}" fill="#666">{type_}</text></g>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _label(node: WorkflowNode) -> str:
    first = _plain(node.display_name or node.id)
    return f"{first}<br/>{_plain(node.type)}"


def _plain(text: str) -> str:
    """Text that is only text to Mermaid and terminals: entities as Mermaid writes them, ``#34;``."""
    return _SPECIAL.sub(lambda found: f"#{ord(found[0])};", _short(text))


def _short(text: str) -> str:
    return _UNSEEN.sub(" ", text)[:60]
