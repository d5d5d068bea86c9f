"""The services of the host itself, as plugins use them and as a plugin that replaces one must offer them.

    clock = ctx.service("systemClock")       # permissions: {services: {use: [systemClock]}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from tavern_core.contract.effects import read_only

SYSTEM_CLOCK: Final = "systemClock"
NET: Final = "net"


class SystemClock(Protocol):
    """What time it is for tools and plugins: ``system:get_current_time`` asks it. The audit log keeps the machine's own."""

    @read_only
    def now(self) -> float:
        """Seconds since the epoch, UTC. Answers at once."""
        ...

    @read_only
    def timezone(self) -> str | None:
        """IANA name of the zone in which times are told to somebody who names none; None: the machine's own."""
        ...


class Net(Protocol):
    """Fetches from the web in the name of the plugin that asks, as far as it was granted ``read:web`` or ``network``.

    GET and HEAD need one of the two, other methods ``network``. Within a call, the caller must allow the capability too.
    """

    @read_only
    async def fetch(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        data: Any = None,
        timeout_ms: int = 30_000,
        max_bytes: int = 4_000_000,
        redirects: int = 5,
    ) -> dict[str, Any]:
        """Fetch one address. Answers of every status are answers.

        Args:
            headers: of the request; those of the connection (Host, Content-Length, Proxy-… ) are refused.
            body: sent as it is, in UTF-8.
            data: sent as JSON instead of `body`.
            timeout_ms: for everything together, redirects included; at most 300,000.
            max_bytes: of the answer, packed and unpacked; at most 64,000,000.
            redirects: how many are followed, at most 10; each is judged like the first address. Headers that may be meant for
                the first host only do not go along to another.

        Returns:
            ``{url, status, headers, text, base64, bytes, redirects}``: `text` or `base64` holds the body, the other is None;
            names of headers are lower case, cookies are left out; `url` is the last address, `redirects` those before.

        Raises:
            PolicyDenied: an address, a redirect or what a name resolves to is not allowed (POLICY_DENIED).
            UpstreamError: no connection, or a broken answer (UPSTREAM_ERROR).
            CallTimeout, OutputTooLarge: it took too long, or is too large (TIMEOUT, OUTPUT_TOO_LARGE).
            ToolFailed: the arguments make no request, or httpx2 is not installed (TOOL_ERROR).
        """
        ...

    @read_only
    def fetch_sync(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        data: Any = None,
        timeout_ms: int = 30_000,
        max_bytes: int = 4_000_000,
        redirects: int = 5,
    ) -> dict[str, Any]:
        """`fetch` for tools that are no coroutines."""
        ...
