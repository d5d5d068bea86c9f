"""A plugin that a program passes to `Tavern.open`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tavern_core.frozen_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Plugin:
    """An object that is a plugin, with the content of a plugin.yaml.

    Passing it also grants everything that it declares. Without a manifest, everything that the object
    implements counts as declared.

    Args:
        thing: a module, an object with hookimpls, or a list of tools (functions marked with `@tool` …).
        name: default: the manifest's, else derived from the object's name; for a list, from the module of its tools.
        manifest: a mapping, the path of a plugin.yaml or its text, or None. A package that contains a plugin.yaml needs none.
    """

    thing: Any
    name: str | None = None
    manifest: Mapping[str, Any] | str | Path | None = None
