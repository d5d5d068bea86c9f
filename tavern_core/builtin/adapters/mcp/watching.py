"""Notifications about changes of the list of tools, in the 2026 era: the open answer of one request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

_AGAIN_S: Final = (1.0, 300.0)


@asynccontextmanager
async def watch_list(session: ClientSession, changed: Callable[[], None]) -> AsyncIterator[None]:
    """Call `changed` whenever the server reports that its list of tools changed. In the old era it does so without a subscription."""
    capabilities = session.server_capabilities
    tools = capabilities.tools if capabilities is not None else None
    if session.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
        yield
        return
    task = asyncio.create_task(_watch(session, changed))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _watch(session: ClientSession, changed: Callable[[], None]) -> None:
    delay = _AGAIN_S[0]
    while True:
        with contextlib.suppress(MCPError, SubscriptionLost, TimeoutError):
            async with listen(session, tools_list_changed=True) as subscription:
                if not subscription.honored.tools_list_changed:
                    return
                delay = _AGAIN_S[0]
                async for _ in subscription:
                    changed()
        await asyncio.sleep(delay)
        delay = min(delay * 2, _AGAIN_S[1])
        changed()  # changes may have been missed meanwhile
