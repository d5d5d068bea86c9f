"""`tools/call`: every call goes down the one path of the host as the holder of the token, with exactly its rights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from mcp.server.connection import allowed_log_levels
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, CallToolRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tavern_core.errors import ConnectionLost, InputInvalid, InputRequired, JobNotFound, TavernError
from tavern_core.kernel.access.profiles import CALL_TOOL
from tavern_core.kernel.access.tokens import Token
from tavern_core.kernel.calls.elicitation import conversation
from tavern_core.kernel.calls.text_call_report import next_step
from tavern_core.kernel.calls.tool_context_control import on_progress
from tavern_core.model.naming_rules import SEARCH_TOOLS
from tavern_core.model.question import Question
from tavern_core.model.result import ToolResult, failure
from tavern_core.schema.provider_tool_export import wire_name
from tavern_core.server.mcp.content import call_result, error_result
from tavern_core.server.mcp.elicitation import (
    ClientNotifications,
    LiveElicitation,
    ReplayedElicitation,
    answer_in,
    lacking,
    request_for,
)
from tavern_core.server.mcp.listing import ToolListing, ToolListings
from tavern_core.server.mcp.request_state import RequestState, RequestStates, holder_of, session_of
from tavern_core.server.mcp.tasks import APPROVAL, MISSING_CAPABILITY, TASKS, Tasks, knows_tasks, needs_tasks

if TYPE_CHECKING:
    from tavern_core.host import Tavern

ResultShaper = Callable[[ToolResult], dict[str, Any]]
KEY: Final = "tavern/idempotencyKey"
"""In `_meta` of a call: its idempotency key."""
_OF_CALL_TOOL: Final = {"tool", "arguments"}
_HOW_TO_CALL: Final = f"{CALL_TOOL} takes `tool`, the id of a tool, and `arguments`, an object; nothing else"
_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class McpCalls:
    """Makes the calls of clients."""

    def __init__(self, tavern: Tavern, listings: ToolListings, states: RequestStates, tasks: Tasks) -> None:
        self._tavern = tavern
        self._listings = listings
        self._states = states
        self._tasks = tasks
        self.levels: dict[str, str] = {}
        """Session → the level from which on its client wants to see logs."""

    async def call_tool(self, ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> dict[str, Any]:
        """Answer `tools/call`."""
        holder = holder_of(ctx)
        listing = await self._listings.of(holder)
        name, arguments = params.name, params.arguments or {}
        if name == CALL_TOOL and listing.profile is not None and listing.profile.listing == "search":
            inner_tool, inner_arguments = arguments.get("tool"), arguments.get("arguments") or {}
            if (
                arguments.keys() - _OF_CALL_TOOL
                or not isinstance(inner_tool, str)
                or not isinstance(inner_arguments, Mapping)
            ):
                return error_result(_HOW_TO_CALL)
            name, arguments = inner_tool, dict(inner_arguments)
        tool = listing.tool_id(name)
        if tool is None:
            text = f"there is no tool {name!r:.200}"
            if name is not params.name:  # `call_tool` itself is there, and its model can search again
                return error_result(f"{text}; {wire_name(SEARCH_TOOLS)} finds tools")
            if is_modern(ctx):
                raise MCPError(METHOD_NOT_FOUND, text, {"name": name[:200]})
            return error_result(text)
        spec = listing.specs[tool]
        if spec.job and needs_tasks(spec) and not knows_tasks(ctx):
            return _refuse_waiting(ctx, tool)
        key = (ctx.params or {}).get("_meta", {}).get(KEY)  # the call refuses what is not a key
        return await self.answered(ctx, params, listing, tool, arguments, key)

    async def answered(
        self,
        ctx: ServerRequestContext[Any, Any],
        params: Any,
        listing: ToolListing,
        tool: str,
        arguments: Mapping[str, Any],
        key: str | None = None,
        shape: ResultShaper | None = None,
    ) -> dict[str, Any]:
        """Make a call, and convert its outcome into the answer for the client.

        Args:
            shape: converts a result into an answer; None: into that of `tools/call`.
        """
        holder = holder_of(ctx)
        state, responses = getattr(params, "request_state", None), getattr(params, "input_responses", None) or {}
        state_before = await self._states.used(state)
        async with self.talking(ctx, state_before, responses) as talk:
            if state_before.approval:
                self._approve(holder, state_before.approval, responses.get(APPROVAL))
            if not (job := state_before.job):
                result = await self._invoke_or_ask(ctx, talk, holder, tool, arguments, key)
                if result.status == "job" and result.job is not None:
                    if knows_tasks(ctx) and shape is None:
                        return self._tasks.begun(result.job)
                    job = "" if needs_tasks(listing.specs[tool]) else result.job
            if job:
                try:
                    result = await self._wait_for_job(job, holder, talk)
                except InputRequired:  # the job waits for what the client sends with its next request
                    return self._input_required(talk.open, RequestState(_known_answers(talk), job=job))
        if result.status == "input_required" and result.error is not None:
            return self._needs_input(ctx, holder, talk, result)
        if shape is not None:
            return shape(result)
        answer = call_result(result, is_structured="outputSchema" in listing.exports[tool])
        if hint := next_step(result, listing.language, listing.name_of):
            answer["content"].append({"type": "text", "text": hint})
        return answer

    @asynccontextmanager
    async def talking(
        self, ctx: ServerRequestContext[Any, Any], known: RequestState, responses: Mapping[str, Any]
    ) -> AsyncIterator[LiveElicitation | ReplayedElicitation]:
        """While the context is open, progress, logs and questions of calls go to the client of a request."""
        notices = ClientNotifications(ctx, self._levels(ctx))
        closing = self._close_later(ctx)
        talk = (
            ReplayedElicitation(ctx, notices, known.answers, responses)
            if is_modern(ctx)
            else LiveElicitation(ctx, notices)
        )
        conversation_token = conversation.set(talk)
        progress_token = on_progress.set(notices.progress)
        try:
            yield talk
            await notices.sent()
        finally:
            if closing is not None:
                closing.cancel()
            on_progress.reset(progress_token)
            conversation.reset(conversation_token)

    def _close_later(self, ctx: ServerRequestContext[Any, Any]) -> asyncio.TimerHandle | None:
        """Close the stream of a long call before a proxy cuts it: the client resumes it with its last event."""
        after, close = self._tavern.config.mcp.poll_after_ms, ctx.close_sse_stream
        if after is None or close is None:
            return None
        return asyncio.get_running_loop().call_later(after / 1000, lambda: asyncio.ensure_future(close()))

    async def _invoke(self, holder: Token, tool: str, arguments: Mapping[str, Any], key: str | None) -> ToolResult:
        return await self._tavern.invoke_from("mcp", tool, arguments, context=holder.context(), idempotency_key=key)

    async def _wait_for_job(self, job: str, holder: Token, talk: LiveElicitation | ReplayedElicitation) -> ToolResult:
        """Wait for a job on behalf of the client, and return its outcome. Raises InputRequired, as `Tasks.waited`."""
        try:
            return await self._tasks.waited(job, holder, talk)
        except JobNotFound as error:  # it ended too long ago
            return failure(ConnectionLost(error.message, hint=error.hint, outcome="unknown"))

    def _needs_input(
        self,
        ctx: ServerRequestContext[Any, Any],
        holder: Token,
        talk: LiveElicitation | ReplayedElicitation,
        result: ToolResult,
    ) -> dict[str, Any]:
        """Answer a call that waits for an answer or approval: with questions, or why the client cannot be asked."""
        assert result.error is not None
        approval, answers = result.error.details.get("approval"), _known_answers(talk)
        if isinstance(approval, str):
            if not is_modern(ctx) or not talk.can_ask("form"):
                return call_result(result)
            questions, next_state = {APPROVAL: _approval_question(holder, result)}, RequestState(answers, approval)
        elif talk.open:
            questions, next_state = dict(talk.open), RequestState(answers)
        else:
            return call_result(result)
        if missing := lacking(questions, ctx.session.client_capabilities):
            if not is_modern(ctx):
                return call_result(result)
            message = f"{result.error.message}: the client must be able to do {', '.join(missing)}"
            raise MCPError(MISSING_CAPABILITY, message, {"requiredCapabilities": missing})
        return self._input_required(questions, next_state)

    def _input_required(self, questions: Mapping[str, Question], next_state: RequestState) -> dict[str, Any]:
        return {
            "resultType": "input_required",
            "inputRequests": {name: request_for(question) for name, question in questions.items()},
            "requestState": self._states.state(next_state),
        }

    def _approve(self, holder: Token, approval: str, response: Any) -> None:
        """Decide a request for approval by the answer of the person at the client, if the token permits that."""
        approver = holder.approving()
        is_answer, answer = answer_in(Question.form("", _YES_OR_NO), response)
        if approver is None or not is_answer:
            return
        says_yes = isinstance(answer, Mapping) and answer.get("approve") is True
        decide = self._tavern.approvals.approve if says_yes else self._tavern.approvals.reject
        with suppress(TavernError):  # it was decided elsewhere, or is over: the call itself says so
            decide(approval, by=approver)

    async def _invoke_or_ask(
        self,
        ctx: ServerRequestContext[Any, Any],
        talk: LiveElicitation | ReplayedElicitation,
        holder: Token,
        tool: str,
        arguments: Mapping[str, Any],
        key: str | None,
    ) -> ToolResult:
        """Make a call. 2025 era: ask the person at the client for its approval, and make it again when they said yes."""
        result = await self._invoke(holder, tool, arguments, key)
        approval = result.error.details.get("approval") if result.error is not None else None
        is_asked = result.status == "input_required" and not is_modern(ctx) and talk.can_ask("form")
        if not is_asked or not isinstance(approval, str) or holder.approving() is None:
            return result
        try:
            answer = (await talk.ask({APPROVAL: _approval_question(holder, result)}))[APPROVAL]
        except (ConnectionLost, InputInvalid):
            return result
        self._approve(
            holder, approval, {"action": "decline"} if answer is None else {"action": "accept", "content": answer}
        )
        return await self._invoke(holder, tool, arguments, key)

    def _levels(self, ctx: ServerRequestContext[Any, Any]) -> frozenset[str]:
        allowed = allowed_log_levels(ctx.protocol_version, ctx.meta)
        lowest = self.levels.get(session_of(ctx), "debug")
        return allowed if is_modern(ctx) else frozenset(_LEVELS[_LEVELS.index(lowest) :])


def _known_answers(talk: LiveElicitation | ReplayedElicitation) -> Mapping[str, Any]:
    return talk.known if isinstance(talk, ReplayedElicitation) else {}


_YES_OR_NO: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Let this call run", "default": False}},
    "required": ["approve"],
}


def _approval_question(holder: Token, result: ToolResult) -> Question:
    assert result.error is not None
    prompt = result.error.message
    if not holder.approver:
        prompt += f"\nSomebody else must approve it ({result.error.fix}); answer once that is done."
    return Question.form(prompt, _YES_OR_NO)


def _refuse_waiting(ctx: ServerRequestContext[Any, Any], tool: str) -> dict[str, Any]:
    """Refuse a tool whose calls go on in the background, because this client cannot follow tasks."""
    text = f"{tool} goes on in the background: the client must know the extension {TASKS}"
    if is_modern(ctx):
        raise MCPError(MISSING_CAPABILITY, text, {"requiredCapabilities": {"extensions": {TASKS: {}}}})
    return error_result(text)


def is_modern(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether the client speaks the stateless protocol (2026-07-28)."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
