"""``kind: n8n``: workflows of an n8n instance as tools.

    upstreams:
      n8n:
        kind: n8n
        url: https://n8n.example.com
        idempotencyHeader: Idempotency-Key
        settings:
          apiKey: {$secret: n8n}                       finds active workflows that begin with a webhook, and follows what they run
          webhooks: {send_slack_message: {path: slack}}    or: what the operator lists

n8n starts a workflow by its webhook alone; its API has no operation for that. What takes long answers 202 ``{"jobId": "<execution id>"}``
at once and is followed over the API.

webhook_discovery.py   the webhooks that become tools
calls.py               one call of a webhook
api_client.py          the API, over which a run is followed
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tavern_core.builtin.adapters.n8n.api_client import N8nApi
from tavern_core.builtin.adapters.n8n.calls import call_webhook
from tavern_core.builtin.adapters.n8n.webhook_discovery import CONFIGURED, configured, discovered
from tavern_core.contract.adapters import Listing, Target, Upstream, UpstreamCall, UpstreamTool, etag_of
from tavern_core.contract.exchange import exchange, header_of_key
from tavern_core.errors import UpstreamError

SETTINGS: Final[Mapping[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "apiKey": {
            "type": "string",
            "minLength": 1,
            "x-tavern": {"secret": True},
            "description": "Of n8n's public API: workflows are found, and long runs followed. Sent to the API alone.",
        },
        "discover": {
            "type": "boolean",
            "default": True,
            "description": "With an apiKey: every active workflow that begins with a webhook is a tool.",
        },
        "idempotencyField": {
            "type": "string",
            "minLength": 1,
            "description": "The key of a call is sent as this field of its body, for workflows that look for it there.",
        },
        "webhooks": {
            "type": "object",
            "additionalProperties": CONFIGURED,
            "default": {},
            "description": "Name of the tool → its webhook.",
        },
    },
}


class N8n:
    """The adapter; see `contract.adapters.Adapter`."""

    settings: Mapping[str, Any] = SETTINGS
    targets: frozenset[Target] = frozenset({"url"})

    async def connect(self, upstream: Upstream) -> N8nConnection:
        return N8nConnection(upstream, await asyncio.to_thread(upstream.http))


class N8nConnection:
    """It has no state: HTTP keeps no connection open between two calls."""

    def __init__(self, upstream: Upstream, http: Any) -> None:
        self._upstream = upstream
        self._http = http
        key = upstream.settings.get("apiKey")
        self._api = N8nApi(self._http, upstream.url, str(key)) if key else None

    async def list_tools(self, etag: str = "") -> Listing | None:
        tools, left_out = configured(self._upstream.settings.get("webhooks", {}))
        if self._api is not None and self._upstream.settings.get("discover", True):
            found, flaws = discovered(await self._api.workflows(), taken=frozenset(tools))
            tools |= found
            left_out |= flaws
        if self._upstream.idempotency_header or self._upstream.settings.get("idempotencyField"):
            tools = {name: replace(tool, forwards_key=True) for name, tool in tools.items()}
        listing = Listing(tuple(tools.values()), etag=etag_of(tools.values(), left_out), left_out=left_out)
        return None if etag and etag == listing.etag else listing

    async def invoke(self, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> Any:
        header, field = self._upstream.idempotency_header, self._upstream.settings.get("idempotencyField")
        key = {header: header_of_key(call.key)} if header and call.key else {}
        body = {**arguments, field: call.key} if field and call.key else arguments
        return await call_webhook(self._http, self._api, tool, body, key, call)

    async def check(self) -> None:
        answer = await exchange(self._http, "GET", "/healthz")
        if answer.status >= 500:
            raise UpstreamError(
                f"{self._upstream.url.partition('?')[0]} answers {answer.status}",
                hint="look at n8n's log",
                retryable=True,
            )

    async def close(self) -> None:
        await self._http.aclose()


adapter = N8n()
