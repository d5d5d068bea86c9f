"""The interface of a plugin whose code runs in another process, as the lifecycle needs it besides its hooks."""

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
        """The proxy of a tool file's ``module:name``: a `python_targets.BindsItself` that `DescribesItself`."""

    @abstractmethod
    def nodes(self, entry: str, /) -> list[NodeSpec]:
        """The nodes in `nodes.entry`; raises a PluginError if they cannot be read."""

    @abstractmethod
    def close(self) -> None:
        """End its process."""


class DescribesItself(ABC):
    """A handler that completes an incomplete declaration."""

    @abstractmethod
    def described(self, draft: ToolSpec, /) -> ToolSpec:
        """The complete tool; raises a PluginError if there is none."""
