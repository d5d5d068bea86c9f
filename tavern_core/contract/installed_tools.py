"""The shared part of adapters that call the tools of an installed package in this process."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from tavern_core.contract.adapters import Listing
from tavern_core.errors import UpstreamError


class InstalledTools:
    """The methods of a connection except `invoke`. They do no I/O, because the tools are in this process.

    Args:
        tools: name → the object of the package.
    """

    def __init__(self, package: str, tools: Mapping[str, Any], listing: Listing) -> None:
        self._package = package
        self._tools = tools
        self._listing = listing

    async def list_tools(self, etag: str = "") -> Listing | None:
        return self._listing

    async def check(self) -> None:
        """Nothing to check."""

    async def close(self) -> None:
        """Nothing to close."""

    def gone(self, name: str) -> UpstreamError:
        """The error for a tool that the package does not have, although a stored listing has it."""
        return UpstreamError(f"{self._package} has no tool {name!r} any more", outcome="none")


def distribution_of(package: str) -> metadata.Distribution:
    """An installed distribution. Raises UpstreamError: it is not installed (UPSTREAM_ERROR)."""
    try:
        return metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise UpstreamError(f"{package} is not installed", hint=f"pip install {package}", outcome="none") from None
