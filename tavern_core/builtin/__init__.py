"""The built-in plugins. Each is a module with hookimpls that uses the contract and the values, never the kernel."""

from __future__ import annotations

from typing import Final

BUILTIN: Final[tuple[tuple[str, str, bool], ...]] = (
    ("core-python", "tavern_core.builtin.executors.python", False),
    ("core-script", "tavern_core.builtin.executors.script", False),
    ("core-service", "tavern_core.builtin.executors.service_method", False),
    ("core-skills", "tavern_core.builtin.adapters.skill", False),
    ("core-adapters", "tavern_core.builtin.adapters", False),
    ("core-flows", "tavern_core.builtin.executors.workflow", False),
    ("core-nodes-structure", "tavern_core.builtin.nodes.structure", True),
    ("core-nodes-flow", "tavern_core.builtin.nodes.flow", True),
    ("core-nodes-text", "tavern_core.builtin.nodes.text", True),
    ("core-nodes-outside", "tavern_core.builtin.nodes.external", True),
    ("core-nodes-data", "tavern_core.builtin.nodes.json_data", True),
    ("core-nodes-expression", "tavern_core.builtin.nodes.expression", True),
    ("core-capabilities", "tavern_core.builtin.policies.capabilities", False),
    ("core-paths", "tavern_core.builtin.policies.paths", False),
    ("core-addresses", "tavern_core.builtin.policies.addresses", False),
    ("core-sql", "tavern_core.builtin.policies.sql", False),
    ("core-clock", "tavern_core.builtin.services.clock", False),
    ("core-net", "tavern_core.builtin.services.net", False),
    ("core-system", "tavern_core.builtin.tools.system", False),
    ("core-jobs", "tavern_core.builtin.tools.jobs", False),
    ("core-code", "tavern_core.builtin.tools.code_interpreter", False),
)
"""(plugin name, module, whether it contributes only node types), in the order of registration.

In a host without other plugins, those with only node types are activated at the first use of a node, the others at open.
"""
