"""Questions of tools, sent to the client of a call.

2026 era    no one can be asked during a call: it ends with `input_required`, and the client makes it again with the answers
2025 era    the client is asked with a request of its own on the stream of the call, which goes on with the answer
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    ClientCapabilities,
    CreateMessageRequest,
    CreateMessageResult,
    ElicitRequest,
    ElicitResult,
    ListRootsRequest,
    ListRootsResult,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
)
from pydantic import BaseModel, TypeAdapter, ValidationError

from tavern_core.contract.tool_context import LogLevel
from tavern_core.errors import ConnectionLost, InputInvalid
from tavern_core.kernel.calls.elicitation import mismatch, unanswered
from tavern_core.kernel.calls.tool_context_control import Progress
from tavern_core.model.question import Question, QuestionKind
from tavern_core.schema.json_reader import json_or_text

_MOST_NOTICES: Final = 1_000
_CAPABILITIES: Final[Mapping[QuestionKind, str]] = {"form": "elicitation", "completion": "sampling", "roots": "roots"}
"""Kind of question → the capability that a client declares for it."""
_REQUESTS: Final[TypeAdapter[Any]] = TypeAdapter(ElicitRequest | CreateMessageRequest | ListRootsRequest)
_ANSWERS: Final[Mapping[QuestionKind, type[BaseModel]]] = {
    "form": ElicitResult,
    "completion": CreateMessageResult,
    "roots": ListRootsResult,
}


def request_for(question: Question) -> dict[str, Any]:
    """A question as the protocol has it."""
    if question.kind == "form":
        form_schema = requested_schema(question.schema)
        params = {"mode": "form", "message": question.prompt or "Please answer", "requestedSchema": form_schema}
        return {"method": "elicitation/create", "params": params}
    if question.kind == "completion":
        return {"method": "sampling/createMessage", "params": dict(question.request)}
    return {"method": "roots/list", "params": {}}


def answer_in(question: Question, response: Any) -> tuple[bool, Any]:
    """(whether a client's response answers a question, the answer)."""
    data = (
        response.model_dump(by_alias=True, mode="json", exclude_none=True)
        if isinstance(response, BaseModel)
        else response
    )
    if not isinstance(data, Mapping):
        return False, None
    answer: Any = data
    if question.kind == "form":
        if data.get("action") not in ("accept", "decline", "cancel"):
            return False, None
        answer = answer_of(question.schema, data.get("content") or {}) if data["action"] == "accept" else None
    elif question.kind == "roots":
        answer = data.get("roots")
    return not mismatch(question, answer), answer


def lacking(kinds: Mapping[str, Question], capabilities: ClientCapabilities | None) -> dict[str, dict[str, Any]]:
    """The capabilities that these questions need and the client does not declare."""
    names = (_CAPABILITIES[question.kind] for question in kinds.values())
    return {name: {} for name in names if getattr(capabilities, name, None) is None}


class ClientNotifications:
    """Notifications of a running call to its client: progress and lines of its log, in order, from any thread."""

    def __init__(self, ctx: ServerRequestContext[Any, Any], levels: frozenset[str]) -> None:
        self._ctx = ctx
        self._levels = levels
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], Awaitable[None]]] = deque(maxlen=_MOST_NOTICES)
        self._sender: asyncio.Task[None] | None = None

    def progress(self, progress: Progress) -> None:
        """Report the progress of the call, if the client asked for that."""
        message = progress.message or None
        self._put(lambda: self._ctx.session.report_progress(progress.done, progress.total, message))

    def log(self, level: LogLevel, message: str) -> None:
        """Send a line of the call's log, if the client receives lines of this level."""
        if level not in self._levels:
            return
        params = LoggingMessageNotificationParams(level=level, data=message, logger="tool")
        notice = LoggingMessageNotification(params=params)
        request_id = self._ctx.request_id
        self._put(lambda: self._ctx.session.send_notification(notice, related_request_id=request_id))

    async def sent(self) -> None:
        """Wait until everything is sent: nothing may follow the result of the call."""
        self._begin()  # what was put last may not have been begun yet
        while self._sender is not None and not self._sender.done():
            await asyncio.wait([self._sender])

    def _put(self, send: Callable[[], Awaitable[None]]) -> None:
        self._waiting.append(send)
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._waiting and (self._sender is None or self._sender.done()):
            self._sender = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        while self._waiting:
            with suppress(MCPError, OSError):  # a client that went away reads nothing any more
                await self._waiting.popleft()()


class _Elicitation:
    """The common part of both eras: a call and its client."""

    def __init__(self, ctx: ServerRequestContext[Any, Any], notices: ClientNotifications) -> None:
        self._ctx = ctx
        self._notices = notices
        self.open: dict[str, Question] = {}
        """The questions without an answer, if the call ended because of them."""

    def can_ask(self, kind: QuestionKind) -> bool:
        return getattr(self._ctx.session.client_capabilities, _CAPABILITIES[kind], None) is not None

    def log(self, level: LogLevel, message: str) -> None:
        self._notices.log(level, message)

    def forget(self, name: str) -> None:
        """Forget an answer that was passed on: the next question of this name is another one."""

    def _refuse_unknown(self, questions: Mapping[str, Question]) -> None:
        """Raise InputRequired if the client did not declare that it can be asked these questions."""
        unknown = {key: question for key, question in questions.items() if not self.can_ask(question.kind)}
        if unknown:
            self.open = unknown
            raise unanswered(unknown)


class ReplayedElicitation(_Elicitation):
    """2026 era: uses the answers that the client sent along; without them the call ends.

    Args:
        known: key → answer of earlier rounds, which we sealed.
        responses: key → the client's response in this round.
    """

    def __init__(
        self,
        ctx: ServerRequestContext[Any, Any],
        notices: ClientNotifications,
        known: Mapping[str, Any],
        responses: Mapping[str, Any],
    ) -> None:
        super().__init__(ctx, notices)
        self.known = dict(known)
        self._responses = dict(responses)

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        self._refuse_unknown(questions)
        for key, question in questions.items():
            if key not in self.known and key in self._responses:
                is_answer, answer = answer_in(question, self._responses[key])
                if is_answer:
                    self.known[key] = answer
        self.open = {key: question for key, question in questions.items() if key not in self.known}
        if self.open:
            raise unanswered(self.open)
        return {key: self.known[key] for key in questions}

    def forget(self, name: str) -> None:
        self.known.pop(name, None)
        self._responses.pop(name, None)


class LiveElicitation(_Elicitation):
    """2025 era: the client is asked now."""

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        self._refuse_unknown(questions)
        answers = await asyncio.gather(*(self._ask_one(question) for question in questions.values()))
        return dict(zip(questions, answers, strict=True))

    async def _ask_one(self, question: Question) -> Any:
        request = _REQUESTS.validate_python(request_for(question))
        related = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        try:
            response = await self._ctx.session.send_request(request, _ANSWERS[question.kind], metadata=related)
        except (MCPError, ValidationError) as error:
            raise ConnectionLost(f"the client did not answer: {error}", outcome="none") from error
        is_answer, answer = answer_in(question, response)
        if not is_answer:
            raise InputInvalid(f"the client's answer does not fit: {mismatch(question, answer)}", fixFor="caller")
        return answer


# Forms ----------------------------------------------------------------------------------------------------------------
# Questions as forms: clients show only flat objects of text, numbers, booleans and choices, and questions may want anything.
#
# {type: object, properties: {name: {type: string}}}     as it is
# {type: integer}                                        one field, `value`
# anything else                                          one field of text, in which the person writes JSON

AnswerForm = Literal["fields", "value", "json"]
_FIELD_TYPES: Final = frozenset({"string", "number", "integer", "boolean"})
VALUE: Final = "value"


def form_of(schema: Mapping[str, Any]) -> AnswerForm:
    """The kind of form that asks for an answer that fits `schema`."""
    properties = schema.get("properties", {})
    if (schema.get("type") == "object" or "properties" in schema) and isinstance(properties, Mapping):
        if all(_is_field(member) for member in properties.values()):
            return "fields"
        return "json"
    return "value" if _is_field(schema) else "json"


def requested_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the form that a client fills in."""
    form = form_of(schema)
    if form == "fields":
        form_schema = {"type": "object", "properties": dict(schema.get("properties", {}))}
        if schema.get("required"):
            form_schema["required"] = list(schema["required"])
        return form_schema
    description = f"JSON that fits {json.dumps(dict(schema), ensure_ascii=False)[:1000]}"
    field = dict(schema) if form == "value" else {"type": "string", "title": "JSON", "description": description}
    return {"type": "object", "properties": {VALUE: field}, "required": [VALUE]}


def answer_of(schema: Mapping[str, Any], content: Mapping[str, Any]) -> Any:
    """The answer in the content of a form that a client filled in."""
    form = form_of(schema)
    if form == "fields":
        return content
    value = content.get(VALUE)
    if form == "value" or not isinstance(value, str):
        return value
    return json_or_text(value)  # it fits or it does not: the question says so


def _is_field(member: Any) -> bool:
    """Whether a client shows a member as one field."""
    if not isinstance(member, Mapping):
        return False
    if member.get("type") == "array":
        items = member.get("items")
        return isinstance(items, Mapping) and ("enum" in items or "anyOf" in items)
    return member.get("type") in _FIELD_TYPES
