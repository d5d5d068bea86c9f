"""`tavern.assistant`: a sentence becomes a checked change of a workflow, or a form layout."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tavern_core.assistant.drafting import ProposalBuilder
from tavern_core.assistant.dry_run import DryRunner
from tavern_core.assistant.form_widgets import panel
from tavern_core.assistant.model_requests import ModelRequests
from tavern_core.assistant.proposal import Panel, Proposal
from tavern_core.errors import UsageError
from tavern_core.flow.composition import WorkflowServices
from tavern_core.flow.llm_calls import ModelLike
from tavern_core.flow.patching import PatchOutcome
from tavern_core.flow.workflow_edit_history import WorkflowSession
from tavern_core.flow.workflow_tools import workflow_tool
from tavern_core.graph.patch import conflict
from tavern_core.model.call import CallContext
from tavern_core.model.message_translation import Language
from tavern_core.model.node import JSON_TYPES
from tavern_core.model.tool import ToolSpec
from tavern_core.model.workflow import Workflow

_CHINESE: Final = re.compile("[\u4e00-\u9fff]")
_EMPTY: Final[Mapping[str, Any]] = {"nodes": [], "edges": []}


class Assistant:
    """The creation assistant of one host.

    Args:
        language: of the configuration; a request in Chinese is always answered in Chinese.
        tool: finds a tool by its id; raises ToolNotFound.
    """

    def __init__(
        self,
        flow: WorkflowServices,
        language: Language | None,
        tool: Callable[[str], Awaitable[ToolSpec]],
    ) -> None:
        self._flow = flow
        self._tool = tool
        self._language = language
        self._dry_runner = DryRunner(flow)

    async def propose(
        self,
        request: str,
        workflow: Any = None,
        model: ModelLike = "",
        *,
        plan: bool | Sequence[str] | None = None,
        rounds: int = 2,
        dry_run: bool = False,
        context: CallContext | None = None,
    ) -> Proposal:
        """Ask a model for a change of a workflow. Nothing is stored or run; `apply` stores it.

        Args:
            request: what is wanted, in the words of a person.
            workflow: its id, the path of its file, its content, a `Workflow` or a session; None: a new one.
            model: its name, or a model or a function of the messages itself; empty: the only one.
            plan: True: the model first plans the steps, which finds node types better; or the steps themselves.
            rounds: how often problems are reported and the model is asked again, at most 10.
            dry_run: also run a valid change with sample values, a scripted model and no effects; failures are reported to the model.
            context: the caller and its permissions; None: the host.

        Returns:
            The proposal; without a valid change, `ok` is False.

        Raises:
            UsageError: the request is empty, or too large for the model together with the workflow; an argument has another type (USAGE).
            WorkflowNotFound, WorkflowInvalid: `workflow` is not one (WORKFLOW_NOT_FOUND, WORKFLOW_INVALID).
            CallError: the model does not exist, may not be used, or fails.
        """
        _check_request(request, plan)
        _check_options(rounds, context)
        before = await self._workflow_of(workflow)
        requests = ModelRequests(
            self._flow, self._flow.models.name_of(model), context, f"the assistant asks: {request[:100]}"
        )
        dry_runner = self._dry_runner if dry_run else None
        builder = ProposalBuilder(self._flow, request, before, requests, dry_runner, self.language_of(request))
        return await builder.proposal(plan, rounds)

    async def apply(
        self, proposal: Proposal, to: str | Path | WorkflowSession = "", *, session: WorkflowSession | None = None
    ) -> PatchOutcome:
        """Store a proposed change, if the workflow is still as it was; sends UPDATE_WORKFLOW_STATE_FROM_AGENT.

        Args:
            to: the id or the path of the file of the workflow, or a session; empty: its id.
            session: change the workflow of this session instead; one proposal is one entry of its history.

        Returns:
            The outcome; `ok` is False if the workflow was changed meanwhile (REV_CONFLICT).

        Raises:
            UsageError: the proposal is not `ok`, or the workflow has no name yet (USAGE).
        """
        _require_change(proposal, to)
        patch, rev, seed = list(proposal.patch), proposal.before.rev, proposal.seed
        editing = to if isinstance(to, WorkflowSession) else session
        if editing is not None:
            return await editing.applied(patch, rev=rev, seed=seed)
        target = (to.removeprefix("workflow:") if isinstance(to, str) else to) or proposal.before.id
        if not target or isinstance(target, WorkflowSession):
            raise UsageError("a new workflow needs a name", hint='apply(proposal, "summarize"), or session=...')
        workflows = self._flow.workflows
        if not Path(target).is_file() and str(target) not in workflows.workflow_files:
            return await self.write(proposal, target)
        now = await workflows.found(target)
        if now.rev == rev and now.raw != proposal.before.raw:  # by a program that does not count revisions
            text = "the workflow is not the one for which the change was proposed"
            return PatchOutcome(False, now, problems=(replace(conflict(now.rev), message=text),))
        return await workflows.patched(target, patch, rev=rev, seed=seed)

    def session(self, workflow: Any = None) -> WorkflowSession:
        """The editing of a workflow, with history, undo and redo: `Workflows.session`. Raises as `propose`."""
        return self._flow.workflows.session(workflow)

    async def write(self, proposal: Proposal, to: str | Path) -> PatchOutcome:
        """Write the changed workflow into another file, whatever it holds now, or under a new id; the old one stays.

        Raises:
            UsageError: the proposal is not `ok`, or it cannot be written (USAGE).
        """
        _require_change(proposal, to)
        outcome = await self._flow.workflows.patched(proposal.before, list(proposal.patch), seed=proposal.seed)
        return outcome if not outcome.ok else await self._flow.workflows.stored(to, outcome)

    async def panel(
        self,
        tool_or_workflow: Any,
        request: str = "",
        *,
        model: ModelLike = "",
        layout: Mapping[str, Any] | None = None,
        rounds: int = 2,
        context: CallContext | None = None,
    ) -> Panel:
        """A form layout for the inputs and results of a tool or workflow.

        Args:
            tool_or_workflow: a tool's id; or a workflow: its id, file, content or a `Workflow`.
            request: how the form should be, for a model; empty: a layout by rule, without a model.
            layout: the current layout, to be changed; None: the one by rule.
            model, rounds, context: as for `propose`.

        Raises:
            ToolNotFound, WorkflowNotFound, WorkflowInvalid: there is no such tool or workflow.
            UsageError: `layout` does not fit the schema, or the request is too large (USAGE).
            CallError: as `propose`.
        """
        if not isinstance(request, str):
            raise UsageError(f"a request is text, got {type(request).__name__}", hint='panel("...", "fewer fields")')
        _check_options(rounds, context)
        subject = await self._subject(tool_or_workflow)
        requests = ModelRequests(
            self._flow, self._flow.models.name_of(model), context, f"the assistant asks for a form: {request[:100]}"
        )
        return await panel(subject, request, requests, layout, rounds, self.language_of(request))

    def language_of(self, request: str) -> Language:
        """Chinese for a request with Chinese characters, else the configured language, else English."""
        return "zh" if _CHINESE.search(request) else self._language or "en"

    # Parts -----------------------------------------------------------------------------------------------------------

    async def _subject(self, tool_or_workflow: Any) -> ToolSpec:
        """A tool, or a workflow as a tool."""
        if tool_or_workflow is None:
            raise UsageError("a form is of a tool or a workflow, got None", hint='panel("text:translate")')
        if isinstance(tool_or_workflow, str) and ":" in tool_or_workflow:
            return await self._tool(tool_or_workflow)
        workflow = await self._workflow_of(tool_or_workflow)
        outputs = {
            key: _titled({"type": JSON_TYPES[slot.type]} if JSON_TYPES[slot.type] else {}, slot.display_name)
            for key, slot in workflow.outputs().items()
        }
        found = workflow_tool(workflow.id or "workflow", workflow)
        inputs = {
            key: _titled(schema, workflow.interface_inputs[key].display_name)
            for key, schema in found.input_schema["properties"].items()
        }
        return replace(
            found, display_name=workflow.name, input_schema={**found.input_schema, "properties": inputs},
            output_schema={"type": "object", "properties": outputs},
        )  # fmt: skip

    async def _workflow_of(self, source: Any) -> Workflow:
        found = getattr(source, "workflow", source)  # of a session
        if isinstance(found, Workflow):
            return found
        return await self._flow.workflows.found(_EMPTY if found is None else found)


def _titled(schema: Mapping[str, Any], title: str) -> dict[str, Any]:
    """The schema with the name that people see as its title."""
    return {**schema, **({"title": title} if title else {})}


def _check_request(request: str, plan: bool | Sequence[str] | None) -> None:
    if not isinstance(request, str) or not request.strip():
        raise UsageError("the request is empty", hint='say what is wanted: propose("translate the text", "flow.json")')
    if not isinstance(plan, bool | None) and not _are_texts(plan):
        raise UsageError(f"a plan is True or a list of texts, got {plan!r:.100}", hint='plan=["load", "summarize"]')


def _check_options(rounds: int, context: CallContext | None) -> None:
    """Refuse options of another type. Raises UsageError (USAGE)."""
    if type(rounds) is not int:
        raise UsageError(f"rounds is a whole number, got {rounds!r:.100}", hint="rounds=2")
    if not isinstance(context, CallContext | None):
        raise UsageError(
            f"the context of a call is a CallContext, got {type(context).__name__}", hint="or leave it out"
        )


def _are_texts(plan: object) -> bool:
    return isinstance(plan, list | tuple) and all(isinstance(step, str) for step in plan)


def _require_change(proposal: Proposal, to: object) -> None:
    """Refuse a proposal without a valid change, and a target that is none. Raises UsageError (USAGE)."""
    if not isinstance(proposal, Proposal):
        raise UsageError(f"a proposal is what `propose` returns, got {type(proposal).__name__}")
    if not isinstance(to, str | Path | WorkflowSession):
        raise UsageError(f"a workflow is an id or a path here, got {type(to).__name__}", hint='"summarize"')
    if not proposal.ok:
        raise UsageError("there is nothing to apply: the proposal has no valid change", hint="see its problems")
