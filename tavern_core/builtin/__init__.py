"""The plugins in the box. Each is a module with hookimpls that sees the contract and the values, never the kernel."""

from __future__ import annotations

from typing import Final

BUILTIN: Final[tuple[tuple[str, str], ...]] = (
    ("core-python", "tavern_core.builtin.executors.python"),
    ("core-script", "tavern_core.builtin.executors.script"),
    ("core-service", "tavern_core.builtin.executors.service"),
    ("core-flows", "tavern_core.builtin.executors.workflow"),
    ("core-nodes-structure", "tavern_core.builtin.nodes.structure"),
    ("core-nodes-flow", "tavern_core.builtin.nodes.flow"),
    ("core-nodes-text", "tavern_core.builtin.nodes.text"),
    ("core-nodes-outside", "tavern_core.builtin.nodes.external"),
    ("core-nodes-data", "tavern_core.builtin.nodes.data"),
    ("core-nodes-expression", "tavern_core.builtin.nodes.expression"),
    ("core-capabilities", "tavern_core.builtin.policies.capabilities"),
    ("core-paths", "tavern_core.builtin.policies.paths"),
    ("core-addresses", "tavern_core.builtin.policies.addresses"),
    ("core-sql", "tavern_core.builtin.policies.sql"),
    ("core-clock", "tavern_core.builtin.services.clock"),
    ("core-net", "tavern_core.builtin.services.net"),
    ("core-system", "tavern_core.builtin.tools.system"),
    ("core-code", "tavern_core.builtin.tools.code_interpreter"),
)
"""(plugin name, module), in the order in which they are registered."""
