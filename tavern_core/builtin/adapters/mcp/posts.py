"""Requests over HTTP in the new era: each is one POST, and its body is the answer.

There is no session, so nothing has to be kept between requests. The library passes each message through four tasks and
validates it three times, which costs more than all that the host adds to a call. Requests of the old era, and those of
the library itself, go through the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, ErrorData
from pydantic import ValidationError

from tavern_core.builtin.adapters.mcp.failures import AnswerLost
from tavern_core.builtin.adapters.mcp.message_parser import NotAMessage, read_json
from tavern_core.builtin.adapters.mcp.pending import PendingRequests


class PostClient(Protocol):
    """The client that sends requests."""

    async def post(
        self, url: httpx2.URL, message: Mapping[str, Any], headers: Mapping[str, str]
    ) -> httpx2.Response: ...


class PostTransport:
    """Makes requests over HTTP.

    Args:
        client: `http.NonRaisingClient`.
        most: maximum bytes of one event.
        pending: takes the notifications that come before an answer.
    """

    def __init__(self, client: PostClient, url: str, most: int, pending: PendingRequests) -> None:
        self._client = client
        self._url = httpx2.URL(url)
        self._most = most
        self._pending = pending

    async def ask(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any] | None:
        """Make one request and return its result.

        If it is cancelled, it closes the connection, so the server ends the request.

        Returns:
            None: the server redirects, so it has not begun; the library knows which redirects to follow.

        Raises:
            MCPError: the server answers with an error, or not at all.
            CallError: the answer is too large.
        """
        response = await self._client.post(self._url, message, headers)
        try:
            if response.has_redirect_location:
                return None
            if response.status_code >= 400 or response.status_code == 202:
                raise await _refusal(response, message["id"])
            if _is(response, "application/json"):
                return _result_of(await read_json(await _content(response)), message["id"])
            if _is(response, "text/event-stream"):
                return await self._read_stream(response, message["id"])
            kind = response.headers.get("content-type", "")[:100]
            raise MCPError(INVALID_REQUEST, f"Unexpected content type: {kind}")
        except NotAMessage as error:
            raise MCPError(PARSE_ERROR, f"the answer is not MCP: {error}") from None
        finally:
            await response.aclose()

    async def _read_stream(self, response: httpx2.Response, number: object) -> dict[str, Any]:
        try:
            async for event in httpx2.EventSource(response, max_event_size=self._most):
                if event.event != "message" or not event.data:
                    continue
                message = await read_json(event.data.encode("utf-8", "surrogatepass"))
                if not isinstance(message, dict):
                    raise NotAMessage("a message is an object")
                if "result" in message or "error" in message:
                    return _result_of(message, number)
                self._pending.take_note(message)
        except httpx2.SSEError as error:
            raise AnswerLost(f"the stream failed: {error}") from None
        raise AnswerLost("the stream ended without a response")


async def _content(response: httpx2.Response) -> bytes:
    """As `response.aread`, without its three layers of decompression: the host has decompressed the content."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    return b"".join([piece async for piece in response.stream])


def _is(response: httpx2.Response, kind: str) -> bool:
    return response.headers.get("content-type", "").lower().startswith(kind)


def _result_of(message: Any, number: object) -> dict[str, Any]:
    """The result in an answer. Raises MCPError: it is an error. NotAMessage: it does not answer request `number`."""
    result = message.get("result") if isinstance(message, dict) else None
    if (
        isinstance(message, dict)
        and message.get("id") != number
        and (result is not None or message.get("id") is not None)
    ):
        raise NotAMessage("it answers another request")
    if isinstance(result, dict):
        return result
    try:
        raise MCPError.from_error_data(ErrorData.model_validate(message["error"]))
    except (ValidationError, KeyError, TypeError):
        raise NotAMessage("neither a result nor an error") from None


async def _refusal(response: httpx2.Response, number: object) -> MCPError:
    """The error for an answer with an error status: that of its body, else of the status, in the library's words."""
    status = response.status_code
    if status == 202:
        return MCPError(INVALID_REQUEST, "server answered a request with 202 Accepted")
    if _is(response, "application/json"):
        try:
            _result_of(await read_json(await response.aread()), number)
        except NotAMessage:
            pass
        except MCPError as error:
            return error
    if status == 404:
        return MCPError(METHOD_NOT_FOUND, "Not Found")
    return MCPError(INTERNAL_ERROR, "Server returned an error response")
