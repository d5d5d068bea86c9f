"""``net``: fetches for plugins, within their grants of ``read:web`` or ``network`` (SECURITY §4, §5).

service.py   callers, allowed requests, redirects
request.py   one request to one checked address; its answer with size limits, before and after decompression

They are loaded at the first use of the service.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from tavern_core.contract.context import PluginContext
from tavern_core.contract.core_services import NET, Net
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import Service

if TYPE_CHECKING:
    from tavern_core.builtin.services.net.service import NetService

_DESCRIPTION = "Fetch from the web: names resolved once, every address and every redirect checked against the grants of the plugin."


class HostNet:
    """For the host itself: public names, ports 80 and 443."""

    async def fetch(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return await _service().alone.fetch(*args, **kwargs)

    def fetch_sync(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return _service().alone.fetch_sync(*args, **kwargs)


@hookimpl(fast=True)
def tavern_register_services(ctx: PluginContext) -> Iterable[Service]:
    return [Service(NET, HostNet(), Net, description=_DESCRIPTION, for_plugin=lambda user: _service().for_plugin(user))]


@cache
def _service() -> NetService:
    from tavern_core.builtin.services.net.service import NetService

    return NetService()
