"""Jobs as tasks: the extension ``io.modelcontextprotocol/tasks`` (SEP-2663) of the 2026 era.

A call that becomes a job is answered with a task for clients that know them; others wait for its end. Whose task it is decides who may see,
answer and cancel it, as for every job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from tavern_core.errors import ConnectionLost, InputInvalid, JobNotFound, TavernError
from tavern_core.kernel.access.tokens import Token
from tavern_core.kernel.calls.tool_context_control import Progress, on_progress
from tavern_core.model.call import CallContext
from tavern_core.model.job import Job
from tavern_core.model.question import Question
from tavern_core.model.result import ToolResult, iso_utc
from tavern_core.model.tool import ToolSpec
from tavern_core.server.mcp.content import call_result
from tavern_core.server.mcp.elicitation import LiveElicitation, ReplayedElicitation, answer_in, request_for
from tavern_core.server.mcp.request_state import holder_of

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server

    from tavern_core.host import Tavern

TASKS: Final = "io.modelcontextprotocol/tasks"
MISSING_CAPABILITY: Final = -32021
_STATUS: Final[Mapping[str, str]] = {"queued": "working", "running": "working"}
_LOOK_S: Final = 0.25
"""Seconds between two reports of progress to a client that waits for a job."""
_OF_THE_HOST: Final = frozenset({"INTERNAL", "CONNECTION_LOST"})
"""Errors that say nothing of what the tool did: the task has failed. With all others it is completed, and its result is an error."""
APPROVAL: Final = "approval"
"""Type of a question of the host's own; the tool of a job never has it."""
_APPROVAL_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Let this call run"}},
    "required": ["approve"],
}


class TaskParams(RequestParams):
    """Parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str = Field(alias="taskId", max_length=200)


class TaskUpdateParams(TaskParams):
    """Parameters of `tasks/update`."""

    input_responses: dict[str, Any] = Field(default_factory=dict, alias="inputResponses")


class Tasks:
    """The jobs of clients.

    Args:
        wait_s: how long a client that knows no tasks waits for a job.
    """

    def __init__(self, tavern: Tavern, wait_s: float) -> None:
        self._tavern = tavern
        self._wait_s = wait_s

    def offer(self, server: Server[Any]) -> None:
        """Let a server answer the methods of the extension."""
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", TaskUpdateParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    def begun(self, job_id: str) -> dict[str, Any]:
        """The answer to a call that became a job, for a client that knows tasks."""
        return {"resultType": "task", **_task(self._tavern.jobs.find(job_id))}

    async def waited(self, job_id: str, holder: Token, talk: LiveElicitation | ReplayedElicitation) -> ToolResult:
        """Wait for a job on behalf of a client, and return its outcome.

        If the job takes too long or the client cannot answer, the outcome is its progress.

        Raises:
            InputRequired: a client of the 2026 era is asked by ending its call; `talk.open` has the questions (INPUT_REQUIRED).
        """
        jobs, end = self._tavern.jobs, time.monotonic() + self._wait_s
        report = on_progress.get()
        following = None if report is None else asyncio.create_task(self._report_progress(job_id, report))
        try:
            while (remaining := end - time.monotonic()) > 0:
                job = await jobs.wait(job_id, remaining)
                questions = _questions(job, approvals=bool(holder.approver)) if job.status == "input_required" else {}
                if not questions or not all(talk.can_ask(question.kind) for question in questions.values()):
                    break
                try:
                    answers = await talk.ask(questions)
                except (
                    ConnectionLost,
                    InputInvalid,
                ):  # 2025 era: the job waits for another answer, and its id is the result
                    break
                for name, answer in answers.items():
                    if not self._answer(job, name, answer, holder):
                        return jobs.result(job_id)
                    talk.forget(name)  # a job may ask again under the same name
        except asyncio.CancelledError:
            jobs.cancel(job_id)
            raise
        finally:
            if following is not None:
                following.cancel()
        return jobs.result(job_id)

    async def _report_progress(self, job_id: str, report: Callable[[Progress], None]) -> None:
        """Report the progress of a job whenever it has changed."""
        last = None
        while True:
            with suppress(TavernError):  # the store cannot be asked now
                job = await self._tavern.jobs.wait(job_id, 0)
                if job.progress is not None and job.progress != last:
                    last = job.progress
                    report(Progress(last["done"], last["total"], last["message"]))
            await asyncio.sleep(_LOOK_S)

    # Methods -------------------------------------------------------------------------------------------------------------

    async def get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> dict[str, Any]:
        """`tasks/get`: its progress, its questions, its outcome."""
        holder = _checked(ctx, params)
        job = self._find(params.task_id, holder.context())
        task = _task(job)
        if job.status == "input_required":
            questions = _questions(job, may_approve=bool(holder.approver))
            task["inputRequests"] = {name: request_for(question) for name, question in questions.items()}
        elif job.status in ("completed", "failed"):
            result = self._tavern.jobs.result(job.id)
            if task["status"] == "failed" and result.error is not None:
                task["error"] = {
                    "code": INTERNAL_ERROR,
                    "message": result.error.message,
                    "data": result.error.to_json(),
                }
            else:
                task["result"] = {**call_result(result), "resultType": "complete"}
        return {"resultType": "complete", **task}

    async def update(self, ctx: ServerRequestContext[Any, Any], params: TaskUpdateParams) -> dict[str, Any]:
        """`tasks/update`: answer some of what it asks. A workflow whose question is declined cannot go on, so it is cancelled; if the
        question is only dismissed (`cancel`), it stays open."""
        holder = _checked(ctx, params)
        job = self._find(params.task_id, holder.context())
        questions = _questions(job)
        for name, response in params.input_responses.items():
            if name not in questions:  # what it does not ask, or not any more
                continue
            is_answer, answer = answer_in(questions[name], response)
            lacks_value = is_answer and not self._answer(job, name, answer, holder)
            if not is_answer or (lacks_value and response["action"] == "accept"):  # it accepted without a value
                raise MCPError(INVALID_PARAMS, f"{name!r:.80} does not fit what was asked", {"taskId": job.id})
            if lacks_value and response["action"] == "decline":
                self._tavern.jobs.cancel(job.id, context=holder.context())
                break
        return {"resultType": "complete"}

    async def cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> dict[str, Any]:
        """`tasks/cancel`: ask it to end."""
        holder = _checked(ctx, params)
        self._find(params.task_id, holder.context())
        self._tavern.jobs.cancel(params.task_id, context=holder.context())
        return {"resultType": "complete"}

    def _find(self, task_id: str, context: CallContext) -> Job:
        try:
            return self._tavern.jobs.find(task_id, context=context)
        except JobNotFound:
            raise MCPError(INVALID_PARAMS, "there is no such task", {"taskId": task_id}) from None

    def _answer(self, job: Job, name: str, answer: Any, holder: Token) -> bool:
        """Hand an answer to a job. An approval counts only from the person whom the token names.

        Returns:
            False: there is no value, and the job cannot go on without one: a workflow.
        """
        context: CallContext | None = holder.context()
        if any(asked["id"] == name and asked.get("type") == APPROVAL for asked in job.questions):
            answer, context = isinstance(answer, Mapping) and answer.get("approve") is True, holder.approving()
            if context is None:
                raise MCPError(INVALID_PARAMS, f"the caller may not approve: {_elsewhere(name)}", {"taskId": job.id})
        try:
            self._tavern.jobs.answer(job.id, answer, name, context=context)
        except InputInvalid as error:
            if answer is None:
                return False
            raise MCPError(INVALID_PARAMS, error.message, {"taskId": job.id}) from None
        except TavernError as error:  # decided elsewhere, or over: the next tasks/get says so
            if error.code == "POLICY_DENIED":
                raise MCPError(INVALID_PARAMS, error.message, {"taskId": job.id}) from None
        return True


def knows_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether the client can be answered with a task."""
    capabilities = ctx.session.client_capabilities
    return (
        ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        and capabilities is not None
        and TASKS in (capabilities.extensions or {})
    )


def needs_tasks(spec: ToolSpec) -> bool:
    """Whether no client waits for the calls of a tool: it says ``limits: {inlineMs: 0}``."""
    return spec.limits.inline_ms == 0


def _checked(ctx: ServerRequestContext[Any, Any], params: TaskParams) -> Token:
    """The token of the request.

    Raises:
        MCPError: an older protocol (-32601), a client without the extension (-32021), a header that names another task (-32020).
    """
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
    if not knows_tasks(ctx):
        required: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MCPError(MISSING_CAPABILITY, f"the client must know the extension {TASKS}", required)
    if ctx.request is not None and ctx.request.headers.get("mcp-name") != params.task_id:
        raise MCPError(HEADER_MISMATCH, "the header Mcp-Name must be the taskId")
    return holder_of(ctx)


def _task(job: Job) -> dict[str, Any]:
    """A job as a task, as in every answer."""
    status = _STATUS.get(job.status, job.status)
    if status == "failed" and job.error is not None and job.error.kind not in _OF_THE_HOST:
        status = "completed"  # the tool ran; its result is an error
    task: dict[str, Any] = {
        "taskId": job.id, "status": status, "createdAt": iso_utc(job.created),
        "lastUpdatedAt": iso_utc(job.updated or job.created), "ttlMs": job.ttl_ms, "pollIntervalMs": job.poll_ms,
    }  # fmt: skip
    if job.progress is not None and job.progress.get("message"):
        task["statusMessage"] = job.progress["message"]
    return task


def _questions(job: Job, *, approvals: bool = True, may_approve: bool = True) -> dict[str, Question]:
    """The questions of a job, including requests for approval and questions of workflows.

    Args:
        approvals: False: without requests for approval.
        may_approve: False for a client that only learns who approves.
    """
    questions: dict[str, Question] = {}
    for row in job.questions:
        if row.get("type") == APPROVAL and not approvals:
            continue
        name, kind, prompt = str(row["id"]), row.get("type"), str(row.get("prompt") or "")
        if kind == APPROVAL:
            prompt = prompt if may_approve else f"{prompt}\nThis client cannot approve it: {_elsewhere(name)}"
            questions[name] = Question.form(prompt, _APPROVAL_SCHEMA)
        elif kind in ("completion", "roots"):
            questions[name] = Question(kind, prompt, request=row.get("request") or {})
        else:
            questions[name] = Question.form(prompt, row.get("schema") or {})
    return questions


def _elsewhere(approval: str) -> str:
    return f"another person answers with `tavern approvals approve {approval}`"
