"""The built-in adapters. Each is imported with the first upstream of its kind."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from tavern_core.contract.adapters import Adapter, Connection, LogsIn, Target, Upstream
from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.frozen_dataclass import dataclass

MODULES: Final[Mapping[str, str]] = {
    "comfyui": "comfyui",
    "langchain": "langchain",
    "llm": "llm_plugins",
    "mcp": "mcp",
    "n8n": "n8n",
}
"""Kind → module below this package; its attribute ``adapter`` is the adapter."""


@dataclass(frozen=True, slots=True)
class LazyAdapter:
    """An adapter whose module is imported at its first use."""

    module: str

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._adapter.settings

    @property
    def targets(self) -> frozenset[Target]:
        return self._adapter.targets

    @property
    def in_process(self) -> bool:
        """Whether its tools run in this process, on the caller's own loop."""
        return bool(getattr(self._adapter, "in_process", False))

    async def connect(self, upstream: Upstream) -> Connection:
        return await self._adapter.connect(upstream)

    async def log_in(self, upstream: Upstream, show: Callable[[str], None]) -> None:
        """See `contract.adapters.LogsIn`; does nothing for kinds without a login."""
        if isinstance(adapter := self._adapter, LogsIn):
            await adapter.log_in(upstream, show)

    @property
    def _adapter(self) -> Adapter:
        return _loaded(self.module)


@cache
def _loaded(module: str) -> Adapter:
    return importlib.import_module(f"{__name__}.{module}").adapter  # type: ignore[no-any-return]


@hookimpl(fast=True)
def tavern_register_adapters(ctx: PluginContext) -> Mapping[str, Adapter]:
    return {kind: LazyAdapter(module) for kind, module in MODULES.items()}
