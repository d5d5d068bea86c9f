"""Questions of a server to the person behind a call (elicitation), in both eras."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from mcp.client.session import ClientRequestContext
from mcp_types import INVALID_REQUEST, ElicitRequestParams, ElicitResult, ErrorData

from tavern_core.contract.adapters import UpstreamCall
from tavern_core.errors import CallError, SchemaInvalid, UpstreamError
from tavern_core.model.call import owner_of
from tavern_core.schema.defaults import compile_defaults
from tavern_core.schema.prepare import checkable
from tavern_core.schema.schema_lint_rules import house_flaws

MOST_QUESTIONS: Final = 20
MOST_ROUNDS: Final = 20
"""Maximum rounds of questions in one call."""
_LONGEST_MESSAGE: Final = 4_000
_OPENED: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"opened": {"type": "boolean", "description": "Whether you opened the address and did what it says"}},
    "required": ["opened"],
}


class RunningCalls:
    """The running calls of one connection.

    A server of the old era does not say for which call it asks: with several callers, no one can be asked.
    """

    def __init__(self) -> None:
        self._running: list[_Running] = []

    @contextmanager
    def running(self, call: UpstreamCall) -> Iterator[_Running]:
        """While the context is open, the server may ask the person of `call`."""
        running = _Running(call)
        self._running.append(running)
        try:
            yield running
        finally:
            self._running.remove(running)

    async def elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a question."""
        running = list(self._running)
        if not running or len({owner_of(one.call.call.context) for one in running}) != 1:
            return ErrorData(code=INVALID_REQUEST, message="it is not known whom this question is for")
        latest = running[-1]
        try:
            answer = await elicit(params.model_dump(by_alias=True, mode="json", exclude_none=True), latest.call)
        except CallError as error:
            latest.refuse(error)
            return ElicitResult(action="cancel")
        return ElicitResult.model_validate(answer)


class _Running:
    """A running call, and the error if its person could not be asked."""

    def __init__(self, call: UpstreamCall) -> None:
        self.call = call
        self._refused: CallError | None = None

    def refuse(self, error: CallError) -> None:
        """Record that the person could not be asked."""
        self._refused = error

    def check(self) -> None:
        """Raise the error that `refuse` recorded, if any."""
        if self._refused is not None:
            raise self._refused


async def answers_to(requests: object, call: UpstreamCall, roots: tuple[str, ...]) -> dict[str, Any]:
    """Answer the ``inputRequests`` of a server, one after the other.

    Raises:
        UpstreamError: they are not what a server may ask (UPSTREAM_ERROR).
        CallError: no one can be asked, or no one answered in time.
    """
    if not isinstance(requests, dict) or len(requests) > MOST_QUESTIONS:
        raise UpstreamError(f"the server's questions are not an object of at most {MOST_QUESTIONS}")
    return {name: await _answer(name, request, call, roots) for name, request in requests.items()}


async def _answer(name: str, request: object, call: UpstreamCall, roots: tuple[str, ...]) -> dict[str, Any]:
    method = request.get("method") if isinstance(request, dict) else None
    if method == "elicitation/create" and isinstance(request, dict):
        params = request.get("params")
        return await elicit(params if isinstance(params, dict) else {}, call, name)
    if method == "roots/list" and roots:
        return {"roots": [{"uri": root} for root in roots]}
    raise UpstreamError(
        f"the server asks for {str(method)[:60]!r}, which this host does not give to servers",
        hint="`settings: {roots: [...]}` names folders for servers that ask for roots; there is no sampling",
    )


async def elicit(params: Mapping[str, Any], call: UpstreamCall, name: str = "answer") -> dict[str, Any]:
    """Put one question to the person and return the result of ``elicitation/create``."""
    message = str(params.get("message", ""))[:_LONGEST_MESSAGE]
    if params.get("mode") == "url":
        address = str(params.get("url", ""))[:_LONGEST_MESSAGE]
        if not address.startswith(("https://", "http://")) or not address.isprintable():
            raise UpstreamError(f"the server asks to open {address[:80]!r}, which is not the address of a web page")
        answer = await call.ask(f"{message}\nOpen this address: {address}", _OPENED, name)
        return {"action": "accept" if answer and answer.get("opened") is True else "decline"}
    schema = params.get("requestedSchema")
    if not isinstance(schema, dict) or any(flaw.severity == "error" for flaw in house_flaws(schema, is_foreign=True)):
        raise UpstreamError("the server asks a question whose form cannot be used")
    answer = await call.ask(message, checkable(schema), name)  # the server checks what the host cannot
    if answer is None:
        return {"action": "decline"}
    return {"action": "accept", "content": _complete(dict(answer), schema)}


def _complete(answer: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Fill in the defaults of the form for values that the person left out."""
    try:
        fill = compile_defaults(schema)
    except SchemaInvalid:
        return answer
    return answer if fill is None else fill(answer)
