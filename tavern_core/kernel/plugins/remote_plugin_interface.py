"""A plugin object whose code runs in another process: what the life of a plugin needs of it besides its hooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.model.node import NodeSpec


class RemotePlugin(ABC):
    """`PluginRecord.thing` of an isolated plugin."""

    @abstractmethod
    def handler(self, target: str, /) -> Any:
        """The proxy of the ``module:name`` of a tool file: a `contract.python_targets.BindsItself` that `DescribesItself`."""

    @abstractmethod
    def nodes(self, entry: str, /) -> list[NodeSpec]:
        """The nodes below `nodes.entry`; raises a PluginError if they cannot be read."""

    @abstractmethod
    def close(self) -> None:
        """End its process."""


class DescribesItself(ABC):
    """A handler that knows the full tool of an incomplete declaration."""

    @abstractmethod
    def described(self, draft: ToolSpec, /) -> ToolSpec:
        """The tool; raises a PluginError if there is none."""
