"""Requests of adapters over `Upstream.http()`: answers have a bounded size, and failures become errors of the call.

    answer = await exchange(http, "POST", "/webhook/slack", json={"text": "Hello"})
    answer.status, answer.json()

After a failure, an adapter needs to know whether the upstream may have begun: `CallError.outcome` says so.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from typing import Any, Final
from urllib.parse import quote

from tavern_core.contract.trace_context import trace_headers
from tavern_core.errors import CallError, CallTimeout, Outcome, OutputTooLarge, ToolFailed, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.safe_printing import reason_of, with_type
from tavern_core.schema.json_reader import read_json

MOST_JSON: Final = 4_000_000
"""Bytes of JSON in one answer: reading more at once would hold up the event loop."""
_LONGEST_WAIT_MS: Final = 3_600_000
_HINTS: Final[Mapping[Outcome, str]] = {
    "none": "see that it is well, and call again",
    "done": "it took effect; do not call again",
    "unknown": "look there whether it took effect before you call again",
}
_ODD_HEADER: Final = "a header has a value that cannot be sent"
_CHARSET: Final = re.compile(
    r"charset=[\"']?((?:utf-?16|gb|big5|iso-?8859|windows-|cp\d|shift_jis|euc-)[\w-]*)", re.IGNORECASE
)
"""The charsets of texts; Python also has codecs that are slow, or no charsets at all."""
_READING: Final = frozenset({"GET", "HEAD"})


def not_installed(needs: str, extra: str) -> ToolFailed:
    """The error for something that needs a library of an extra of this package, as in ``fetching needs httpx2``."""
    text, hint = f"{needs}, which is not installed", f"pip install 'tavern-core[{extra}]'"
    return ToolFailed(text, hint=hint, fixFor="operator")


def http_library(needs: str) -> Any:
    """httpx2, which is imported with the first request. Raises ToolFailed as `not_installed`."""
    try:
        return importlib.import_module("httpx2")
    except ImportError:
        raise not_installed(f"{needs} httpx2", "http") from None


def with_interrupts_as_failures(function: Callable[..., Any], *args: Any) -> Any:
    """Call code of an upstream in a worker thread. No Ctrl-C reaches that: a KeyboardInterrupt is the code's own failure."""
    try:
        return function(*args)
    except KeyboardInterrupt as error:
        raise RuntimeError(with_type(error)) from error


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """The wait that the header ``Retry-After`` (seconds or a date) asks for, at most an hour; None if it names none.

    Args:
        headers: names in lower case.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.replace(".", "", 1).isdigit():
        return min(int(float(value[:12]) * 1000), _LONGEST_WAIT_MS)
    from email.utils import parsedate_to_datetime  # dates are rare

    try:
        when = parsedate_to_datetime(value)
        left_s = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp() - time.time()
    except (ValueError, IndexError, OverflowError):
        return None
    return round(min(max(left_s * 1000, 0), _LONGEST_WAIT_MS))


def header_of_key(key: str) -> str:
    """An idempotency key as the value of a header; percent-encoded if it cannot be sent as it is."""
    return key if key.isascii() and key.isprintable() and key == key.strip() else quote(key)


def object_at(value: Any, *keys: str) -> Mapping[str, Any]:
    """The object at a place of a JSON value; empty where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def media_type(self) -> str:
        """The media type, such as ``image/png``; empty if the answer names none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def retry_after_ms(self) -> int | None:
        """The wait that the upstream asks for, at most an hour; None if it names none."""
        return retry_after_ms(self.headers)

    @property
    def text(self) -> str:
        """The body as text. Its declared charset is used only if it is not UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            charset = _CHARSET.search(self.headers.get("content-type", ""))
            try:
                return self.body.decode(charset[1] if charset else "utf-8", "replace")
            except LookupError:
                return self.body.decode("utf-8", "replace")

    def json(self, who: str = "the upstream", outcome: Outcome = "unknown") -> Any:
        """The body as JSON; None where it is empty.

        Raises:
            UpstreamError: it is not JSON, or an object in it has a key twice (UPSTREAM_ERROR).
            OutputTooLarge: it has more than `MOST_JSON` bytes (OUTPUT_TOO_LARGE).
        """
        if not self.body.strip():
            return None
        if len(self.body) > MOST_JSON:
            text = f"{who} answered more than {MOST_JSON:,} bytes of JSON"
            raise OutputTooLarge(text, hint="ask for less", outcome=outcome, limit=MOST_JSON)
        try:
            return read_json(self.body.decode(), allow_halves=False)
        except ValueError as error:
            raise UpstreamError(
                f"{who} answered {self.status} with something that is not JSON: {str(error).removeprefix('not valid JSON: ')}",
                hint="check its address, and that no proxy answers instead",
                outcome=outcome,
                start=self.body[:200].decode("utf-8", "replace"),
            ) from None

    @property
    def members(self) -> Mapping[str, Any]:
        """The members of the JSON object in the body; empty if the body is something else."""
        try:
            return object_at(self.json())
        except CallError:
            return {}


async def exchange(
    http: Any, method: str, path: str, *, most: int = MOST_JSON, outcome: Outcome | None = None, **options: Any
) -> Answer:
    """Send one request and read the whole answer. Every status is an answer.

    Args:
        http: what `Upstream.http()` returned.
        path: relative to the address of the upstream.
        most: the maximum size of the answer in bytes.
        outcome: what a request without an answer may have changed; default: ``none`` for GET, else ``unknown``.
        options: of ``httpx2.AsyncClient.stream``: params, json, headers, files, data, timeout.

    Raises:
        UpstreamError: ``details.reason`` is "unreachable" or "certificate" (with the outcome ``none``) or "broken off"
            (UPSTREAM_ERROR). Not ConnectionLost: the failure of one request does not end others in progress.
        CallTimeout: it was silent for too long (TIMEOUT).
        OutputTooLarge: the answer is (OUTPUT_TOO_LARGE).
    """
    if outcome is None:
        outcome = "none" if method in _READING else "unknown"
    who = str(http.base_url).partition("?")[0].rstrip("/")  # a query may hold a key
    if trace := trace_headers():
        options["headers"] = {**trace, **(options.get("headers") or {})}
    with failures(who, outcome):
        async with http.stream(method, path, **options) as response:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > most:
                    text = f"{who} answered more than {most:,} bytes"
                    raise OutputTooLarge(text, hint="ask for less", outcome=outcome, limit=most)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status_code, headers, bytes(body))


@contextmanager
def failures(who: str, outcome: Outcome, *, repeatable: bool = False) -> Iterator[None]:
    """Convert the exceptions of ``httpx2`` into errors of a call; see `exchange`.

    Args:
        repeatable: the request has no effect, so it may be made again when the connection broke off.
    """
    import httpx2

    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise UpstreamError(
            f"{who} cannot be reached: {reason_of(error):.200}",
            hint="check that it runs, and that its address is right",
            retryable=True,
            outcome="none",
            reason="unreachable",
        ) from error
    except httpx2.TimeoutException as error:
        text = f"{who} was silent for too long"
        raise CallTimeout(text, hint=_HINTS[outcome], retryable=outcome == "none", outcome=outcome) from error
    except UnicodeEncodeError:  # of a header, whose value the error shows
        raise UpstreamError(f"{who} cannot be asked: {_ODD_HEADER}", outcome="none") from None
    except httpx2.LocalProtocolError:  # in nearly all cases a header as above
        raise UpstreamError(f"{who} cannot be asked: {_ODD_HEADER}", outcome=outcome) from None
    except (httpx2.NetworkError, httpx2.ProtocolError) as error:
        raise UpstreamError(
            f"{who} broke off: {reason_of(error):.200}",
            hint="ask again" if repeatable else _HINTS[outcome],
            retryable=repeatable or outcome == "none",
            outcome=outcome,
            reason="broken off",
        ) from error
    except httpx2.InvalidURL as error:  # nothing was sent
        text = f"no address for {who} can be made of this: {reason_of(error):.200}"
        raise UpstreamError(text, hint="pass shorter texts", outcome="none") from error
    except httpx2.HTTPError as error:
        text = f"{who} could not be reached: {reason_of(error):.200}"
        raise UpstreamError(text, hint=_HINTS[outcome], outcome=outcome) from error
