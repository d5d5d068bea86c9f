"""The requests of one run to its model, or to the workflow that replaces it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tavern_core.agents.agent_services import AgentServices
from tavern_core.agents.playback import PersonRequired, Playback
from tavern_core.contract.llm import LLMAnswer
from tavern_core.errors import ToolFailed
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.profiles import Profile
from tavern_core.model.call import CallContext
from tavern_core.model.run import RunResult


@dataclass(frozen=True, slots=True)
class AgentTask:
    """The settings of one run."""

    run: str
    profile: Profile
    system: str
    task: str
    model: str
    context: CallContext
    """The caller of the agent's calls."""
    model_context: CallContext | None
    """The context of requests to the model; None: the host."""
    window: int
    """The maximum tokens of a conversation."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The schemas for native calls."""
    warnings: tuple[str, ...] = ()


class AgentModelRequests:
    """Requests the next answer of an agent."""

    def __init__(self, services: AgentServices, task: AgentTask, playback: Playback) -> None:
        self._services = services
        self._task = task
        self._playback = playback
        self._written = task.profile.written

    async def ask(self, step: int, messages: Sequence[Mapping[str, Any]], on_text: Callable[[str], bool]) -> LLMAnswer:
        """Request the next answer.

        Args:
            on_text: called with each piece of the text; True: enough was received.

        Raises:
            CallError: the model cannot be reached or refuses.
            PersonRequired: the workflow waits for a person.
        """
        if self._written.deliberation_workflow:
            return await self._deliberate(messages)
        options = dict(self._written.model_options)
        if self._task.tools:
            options["tools"] = [dict(tool) for tool in self._task.tools]
        purpose = f"run {self._task.run} step {step}"
        return await self._services.flow.models.ask(
            self._task.model, messages, options, self._task.model_context, purpose, on_text=on_text
        )

    async def _deliberate(self, messages: Sequence[Mapping[str, Any]]) -> LLMAnswer:
        """Run the deliberation workflow.

        Its possible inputs, of which it gets those in its interface: `task`, `system`, `messages` (without the system
        prompt), `history` (these without the last one), `prompt` (the text of the last one). Its output `text` or
        `answer` is the answer.
        """
        conversation = [dict(message) for message in messages if message["role"] != "system"]
        inputs = {
            "task": self._task.task, "system": self._task.system, "messages": conversation,
            "history": conversation[:-1], "prompt": conversation[-1]["content"],
        }  # fmt: skip
        name = self._written.deliberation_workflow.removeprefix("workflow:")
        result = await self._run_workflow(name, inputs)
        if result.state == "waiting":
            raise PersonRequired({
                "kind": "workflow", "id": result.run_id, "tool": name, "reason": f"{name} asks a person",
                "questions": [dict(question) for question in result.questions],
                "answer": f"tavern workflows answer {result.run_id} QUESTION VALUE",
            })  # fmt: skip
        if not result.ok:
            error = result.errors[0].message if result.errors else result.state
            raise ToolFailed(
                f"the deliberation workflow {name} failed: {error}", hint="tavern workflows runs", fixFor="operator"
            )
        for key in ("text", "answer"):
            if isinstance(text := result.outputs.get(key), str):
                return LLMAnswer(text, model=name)
        found = ", ".join(sorted(result.outputs)) or "nothing"
        raise ToolFailed(
            f"the deliberation workflow {name} has no output `text`: it gave {found}", hint="name an output of its interface text",
            fixFor="operator",
        )  # fmt: skip

    async def _run_workflow(self, name: str, inputs: Mapping[str, Any]) -> RunResult:
        """The result of the workflow, or of its run that waited for a person; a run ends with its first question."""
        workflows, context, previous = self._services.flow.workflows, self._task.context, self._playback.waiting_for
        if previous is not None and previous["kind"] == "workflow":
            self._playback.waiting_for = None
            question_ids = [question["id"] for question in previous["questions"]]
            answers = {
                key: self._playback.human_answers[key] for key in question_ids if key in self._playback.human_answers
            }
            handle = await workflows.take_up(previous["id"], answers, context=context)
        else:
            workflow = await asyncio.to_thread(workflows.get_workflow, name)
            chosen_inputs = {key: value for key, value in inputs.items() if key in workflow.interface_inputs}
            handle = await workflows.start(name, chosen_inputs, context=context)
        try:
            async for event in handle.events():
                if event.kind == "ask":
                    handle.leave()
            result: RunResult = await handle
        except BaseException:
            handle.cancel()
            raise
        return result
