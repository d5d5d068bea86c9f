"""``net``: fetches for plugins, as far as they were granted ``read:web`` or ``network`` (SECURITY §4, §5).

service.py   who asks, what may be asked for, redirects
hop.py       one request to one address that was judged
reading.py   an answer within bounds, unpacked within bounds
"""

from __future__ import annotations

from collections.abc import Iterable

from tavern_core.builtin.services.net.service import WholeNet
from tavern_core.contract.context import PluginContext
from tavern_core.contract.core_services import NET, Net
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import Service

_DESCRIPTION = "Fetch from the web: names resolved once, every address and every redirect judged by what the plugin was granted."


@hookimpl
def tavern_register_services(ctx: PluginContext) -> Iterable[Service]:
    whole = WholeNet()
    return [Service(NET, whole.alone, Net, description=_DESCRIPTION, for_plugin=whole.for_plugin)]
