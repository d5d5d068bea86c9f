"""A host of a small shop: two tools, a handbook in two languages, a skill; and profiles that use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tavern_core import Plugin, Tavern
from tavern_core.agents.profile_resolution import KnownNames
from tavern_core.agents.prompt import PromptBuilder
from tavern_core.model.tool import Example, ToolSpec

LATE = "After 30 days a manager decides about refunds."
LATE_ZH = "超过三十天的退款由经理决定。"
HANDBOOK = {
    "refunds.md": f"# Refunds\n\nCustomers may return goods within 30 days.\n\n## Late refunds\n\n{LATE}\n",
    "zh/tuikuan.md": f"# 退款\n\n三十天内可以退款。\n\n## 逾期\n\n{LATE_ZH}\n",
    "opening.txt": "The shop opens at nine and closes at six.\n",
    "web/prices.md": "---\ntrusted: false\n---\n# Prices elsewhere\n\nA competitor sells tea for 3 euros.\n",
}
TOOLS = (
    ToolSpec(
        "find_order",
        "Finds an order by its number.",
        input_schema={
            "type": "object",
            "properties": {"number": {"type": "string", "description": "Number of the order."}},
            "required": ["number"],
        },
        examples=(
            Example({"number": "A-17"}, "an order to be refunded"),
            Example({"number": "B-1"}, "a delivery to trace"),
        ),
        impl=lambda number: {"number": number},
    ),
    ToolSpec(
        "pay_back",
        "Pays money back to a customer.",
        input_schema={"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]},
        impl=lambda amount: amount,
    ),
)
CLERK = {
    "description": "You work for a tea shop.",
    "tool_ids_inventory": ["shop:find_order", "shop:pay_back", "kb:handbook", "skill:letters"],
    "knowledge": ["kb:handbook"],
    "skills": ["letters"],
}


def write(folder: Path, files: dict[str, str | bytes | dict[str, Any]]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False), "utf-8")
    return folder


@contextmanager
def shop(folder: Path, language: str = "en", **profiles: dict[str, Any]) -> Iterator[tuple[Tavern, PromptBuilder]]:
    """An open host in `folder`, and what builds its prompts."""
    write(folder / "handbook", dict(HANDBOOK))
    skill = "---\nname: letters\ndescription: Writes polite letters to customers.\n---\nBegin with a greeting.\n"
    write(folder, {"user/letters/SKILL.md": skill})
    write(folder / "profiles", {f"{name}.json": profile for name, profile in {"clerk": CLERK, **profiles}.items()})
    config = {
        "plugins": {"entryPoints": False},
        "language": language,
        "profiles": [str(folder / "profiles")],
        "skills": {"roots": [], "user": [str(folder / "user")]},
        "knowledge": {"handbook": {"path": str(folder / "handbook"), "description": "Rules of the shop."}},
    }
    with Tavern.open(config, home=folder / "home", plugins=[Plugin(TOOLS, name="shop")]) as tavern:
        host = tavern._host
        yield tavern, PromptBuilder(host.catalogue, KnownNames(host.flow, host.plugins.skills, host.knowledge))
