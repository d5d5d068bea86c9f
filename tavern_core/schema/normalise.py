"""One spelling for keywords that other documents spell differently: `defaultValue` (plugin.yaml examples) is `default`."""

from __future__ import annotations

from typing import Any

from tavern_core.schema.limits import json_copy
from tavern_core.schema.tree import nodes_of


def normalise_schema(schema: Any) -> Any:
    """A copy in which `defaultValue` is `default`; if both exist, `default` wins.

    Args:
        schema: any value; a value that is not JSON is returned unchanged, for the checks to refuse.
    """
    copy, problem = json_copy(schema)
    if problem is not None:
        return schema
    for node in nodes_of(copy):
        if "defaultValue" in node:
            value = node.pop("defaultValue")
            node.setdefault("default", value)
    return copy
