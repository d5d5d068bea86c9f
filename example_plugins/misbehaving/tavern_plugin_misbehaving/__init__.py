"""A plugin that misbehaves on purpose: misdeeds.py has one tool for each misdeed, at_import.py what it does when it is imported.

It asks for nothing in its plugin.yaml, so that nothing of what it does is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tavern_core import PluginContext, hookimpl

from . import at_import, misdeeds

tavern_before_execute = at_import.hidden_hook()
"""An undeclared hook, made where no reader of the source sees it; None unless it is switched on."""


@hookimpl
def tavern_register_tools(ctx: PluginContext) -> list[Callable[..., Any]]:
    """Offer every misdeed."""
    return misdeeds.tools(ctx)


at_import.misbehave()
