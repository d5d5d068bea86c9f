"""`requestState`: data that a client of the 2026 era carries from one round of a call to the next.

The library's `RequestStateBoundary` seals it with a key of the state folder (AES-GCM), binds it to method, tool or
prompt, arguments and caller, and lets it expire. This module makes sure that it works only once: its number is kept
when it comes back.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from pydantic_core import to_json

from tavern_core.contract.stores import Record, RecordStore
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.tokens import Token

_KEY: Final = "mcp-key"
_USED: Final = "mcp-state"


@dataclass(frozen=True, slots=True)
class RequestState:
    """The data from earlier rounds of a call."""

    answers: Mapping[str, Any]
    """Key of a question → its answer."""
    approval: str = ""
    """The request for approval that the client was asked about."""
    job: str = ""
    """The job that waits for the answers; empty: the call is made again with them."""


NO_ROUND: Final = RequestState({})


class RequestStates:
    """The states of one host, over all its processes.

    Args:
        seconds: how long a state is valid.
    """

    def __init__(self, records: RecordStore, seconds: float) -> None:
        self._records = records
        self._seconds = seconds

    def boundary(self, audience: str) -> RequestStateBoundary:
        """The middleware that seals outgoing states, and refuses those of others or of other calls, and old ones."""
        key = bytes.fromhex(self._key())
        security = RequestStateSecurity(keys=[key], ttl=self._seconds, bind_principal=_principal)
        return RequestStateBoundary(security, default_audience=audience)

    def state(self, known: RequestState) -> str:
        """The state for the next round, before it is sealed."""
        contents = {"n": secrets.token_hex(16), "a": dict(known.answers), "p": known.approval, "j": known.job}
        return to_json(contents, inf_nan_mode="strings").decode()

    async def used(self, state: str | None) -> RequestState:
        """Read a state that came back, and mark it as used. Raises MCPError: it was used before (-32602)."""
        if state is None:
            return NO_ROUND
        data, now = json.loads(state), time.time()
        mark = Record(_USED, data["n"], "", "used", "{}", now, now + 2 * self._seconds)
        quick = self._records.is_quick
        earlier = self._records.add(mark) if quick else await asyncio.to_thread(self._records.add, mark)
        if earlier is not None:
            raise MCPError(INVALID_PARAMS, "This requestState was used before", {"reason": "used_request_state"})
        return RequestState(data["a"], data["p"], data.get("j", ""))

    def _key(self) -> str:
        """The key of the state folder, made when it is first needed."""
        new = Record(_KEY, "1", "", "kept", json.dumps({"key": secrets.token_hex(32)}), time.time())
        stored = self._records.add(new) or new
        return str(json.loads(stored.data)["key"])


def holder_of(ctx: ServerRequestContext[Any, Any]) -> Token:
    """The token of the request."""
    holder = ctx.lifespan_context if ctx.request is None else ctx.request.scope["tavern.holder"]
    assert isinstance(holder, Token)
    return holder


def session_of(ctx: ServerRequestContext[Any, Any]) -> str:
    """The id of the session in the older protocol; empty without one."""
    return "" if ctx.request is None else str(ctx.request.headers.get("mcp-session-id", ""))


def _principal(ctx: ServerRequestContext[Any, Any]) -> str:
    holder = holder_of(ctx)
    return f"{holder.id}\x1f{holder.principal}\x1f{holder.user_id}"
