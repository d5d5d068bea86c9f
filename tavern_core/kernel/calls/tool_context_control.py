"""The running call as its tool and its observers see it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

from tavern_core.contract.tool_context import LONGEST_MESSAGE, LogLevel, json_number
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.approvals import definition_of
from tavern_core.kernel.calls.background_call_request import ResumePoint, resume_point
from tavern_core.kernel.calls.elicitation import conversation, unanswered
from tavern_core.kernel.calls.large_results import ArtifactStore
from tavern_core.kernel.calls.running_call import RunningCall
from tavern_core.kernel.calls.taint_tracking import is_given_up
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.kernel.settings.result_redaction import redact_values
from tavern_core.kernel.settings.secret_masking import KnownSecrets
from tavern_core.model.call import CallContext
from tavern_core.model.event import TOOL_PROGRESS
from tavern_core.model.question import Question, QuestionKind
from tavern_core.schema.redact import named_secrets

_LONGEST_LINE: Final = 2_000
_BETWEEN_S: Final = 0.05
"""Progress that follows sooner is dropped, except the last."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a call."""

    done: float
    total: float | None = None
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"done": self.done, "total": self.total, "message": self.message}


on_progress: Final[ContextVar[Callable[[Progress], None] | None]] = ContextVar("tavern_on_progress", default=None)
"""Receives the progress of nested calls. Set by the runner of a job."""

on_left_behind: Final[ContextVar[Callable[[Future[Any]], None] | None]] = ContextVar(
    "tavern_on_left_behind", default=None
)
"""Receives a future for work that a nested call could not stop, done when it ends. Set by the runner of a job."""


class CallControl:
    """See `contract.tool_context.Control`."""

    __slots__ = (
        "_artifacts",
        "_call",
        "_conversation",
        "_hidden",
        "_known_secrets",
        "_listener",
        "_recorder",
        "_reported_at",
        "_was_complete",
    )

    def __init__(self, call: RunningCall, recorder: Recorder, artifacts: ArtifactStore, known: KnownSecrets) -> None:
        self._call = call
        self._known_secrets = known
        self._artifacts = artifacts
        self._recorder = recorder
        self._listener = on_progress.get()
        self._conversation = conversation.get()
        self._reported_at, self._was_complete = 0.0, False
        self._hidden: KnownSecrets | None = None

    def hide(self, secrets: KnownSecrets) -> None:
        """Also remove renewed values of `secrets` from the tool's output from now on."""
        self._hidden = secrets

    def _secrets(self) -> frozenset[str]:
        """Known secrets, and arguments that a schema or a name marks as secret."""
        call, plan = self._call, self._call.plan
        marked = plan.arguments.marked(call.values) if plan is not None and plan.arguments.marked is not None else ()
        renewed = () if self._hidden is None else self._hidden.renewed
        return frozenset(
            [*self._known_secrets.values, *renewed, *marked, *named_secrets([call.arguments, call.values])]
        )

    def _redacted(self, text: str, length: int) -> str:
        """The beginning of a text of the tool, without known secrets and without text that looks like one."""
        plan = self._call.plan
        return str(plan.redact(redact_values(text, self._secrets())[:length])) if plan is not None else ""

    @property
    def is_cancelled(self) -> bool:
        return self._call.seconds == 0 or is_given_up(self._call)  # no timer fires on the thread of `invoke_sync`

    @property
    def is_again(self) -> bool:
        return self._call.is_again

    @property
    def resume_point(self) -> ResumePoint | None:
        """The resume point of the job whose own call this is; None: no job, or a nested call."""
        point = resume_point.get()
        return point if point is not None and point.is_of(self._call.arguments) else None

    @property
    def definition(self) -> str:
        """Identifier of the tool's definition."""
        assert self._call.plan is not None
        return definition_of(self._call.plan.spec)

    @property
    def seconds_left(self) -> float | None:
        return self._call.seconds

    def keep(self, data: Any, media_type: str, name: str) -> dict[str, Any]:
        call_id = self._call.call.id if self._call.call else ""
        return self._artifacts.put(data, media_type, name=name, context=self._owner(), call_id=call_id).link()

    def artifact_facts(self, uri: str) -> dict[str, Any]:
        return self._artifacts.get(uri, context=self._owner()).to_json()

    def read_artifact(self, uri: str, start: int, length: int) -> bytes:
        return self._artifacts.read(uri, start, length, context=self._owner())

    def _owner(self) -> CallContext | None:
        call = self._call
        return None if call.plan is not None and call.context is call.plan.admission.host else call.context

    def progress(self, done: float, total: float | None, message: str) -> None:
        call, now = self._call, time.perf_counter()
        call.moved_at = now
        progress = Progress(json_number(done) or 0, json_number(total))
        is_complete = progress.done == progress.total
        if now - self._reported_at < _BETWEEN_S and (not is_complete or self._was_complete):
            return
        self._reported_at, self._was_complete = now, is_complete
        if message:
            progress = replace(progress, message=self._redacted(str(message), LONGEST_MESSAGE))
        if self._listener is not None:
            self._listener(progress)
        plan = call.plan
        if plan is not None and call.call is not None:
            data = {"tool": plan.id, **progress.to_json()}
            self._recorder.show(TOOL_PROGRESS, data, plugin=plan.spec.plugin, call_id=call.call.id)

    def can_ask(self, kind: QuestionKind) -> bool:
        return self._conversation is not None and self._conversation.can_ask(kind)

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        if self._conversation is None:
            raise unanswered(questions)
        secrets = self._secrets()
        answers = await self._conversation.ask({key: _without(one, secrets) for key, one in questions.items()})
        self._call.moved_at = time.perf_counter()
        return answers

    def log(self, level: LogLevel, message: str) -> None:
        call = self._call
        line = self._redacted(str(message), _LONGEST_LINE)
        logging.getLogger("tavern.tools").log(logging.getLevelNamesMapping()[level.upper()], "%s: %s", call.name, line)
        if self._conversation is not None:
            self._conversation.log(level, line)


def _without(question: Question, secrets: frozenset[str]) -> Question:
    """A question as a person or a model reads it, and as it is stored with a job: without secrets."""
    if not secrets:
        return question
    prompt, schema, request = (
        redact_values(part, secrets) for part in (question.prompt, question.schema, question.request)
    )
    return replace(question, prompt=prompt, schema=schema, request=request)
