"""Drafts one proposal for a change of a workflow: the plan, the prompt, and the check of each patch that the model answers."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from tavern_core.assistant.completeness_check import completeness_warnings, missing
from tavern_core.assistant.dry_run import DryRunner
from tavern_core.assistant.model_answers import ParsedAnswer, RequestNeeds, read_json_object, read_needs
from tavern_core.assistant.model_requests import ModelRequests
from tavern_core.assistant.node_text import node_documents
from tavern_core.assistant.prompt import PLAN_SCHEMA, patch_messages, plan_messages, prompt_tokens
from tavern_core.assistant.proposal import CheckedPatch, Proposal
from tavern_core.assistant.repair_cycle import CycleResult, PatchVerdict, negotiate, no_change
from tavern_core.assistant.repair_hints import QUOTED, with_repair_operations
from tavern_core.contract.llm import Message
from tavern_core.flow.composition import WorkflowServices
from tavern_core.flow.patching import projected_workflow
from tavern_core.graph.patch_problems import PatchProblem
from tavern_core.graph.plan import GROUP_INPUT, GROUP_OUTPUT
from tavern_core.model.message_translation import Language
from tavern_core.model.naming_rules import split_id
from tavern_core.model.workflow import Workflow

RETRIEVED: Final = 40
"""Node types that are looked up for a prompt; how many are in it depends on its size."""
_ALWAYS: Final = (GROUP_INPUT, GROUP_OUTPUT)
_MOST_STEPS: Final = 8
_MOST_DEFINITIONS: Final = 5
_DEFINITION_TOKENS: Final = 2_000
_ABOUT_TYPES: Final = frozenset({"UNKNOWN_TYPE", "NEED_NODE"})
_ABOUT_SLOTS: Final = frozenset(
    {"UNKNOWN_HANDLE", "MISSING_INPUT", "BAD_VALUE", "BAD_CONFIG", "TYPE_MISMATCH", "STREAM_MISMATCH", "UNKNOWN_INPUT"}
)
_HARMLESS: Final = frozenset({"DEPRECATED"})
"""Codes of warnings that a model is not asked to correct."""


class ProposalBuilder:
    """Makes one proposal. Used once."""

    def __init__(
        self,
        flow: WorkflowServices,
        request: str,
        before: Workflow,
        requests: ModelRequests,
        dry_runner: DryRunner | None,
        language: Language,
    ) -> None:
        self._flow = flow
        self._request, self._before = request, before
        self._requests, self._dry_runner = requests, dry_runner
        self._language = language
        self._tokens = prompt_tokens(requests.context_tokens)
        self._seed = zlib.crc32(f"{request}\n{before.rev}".encode("utf-8", "replace"))
        self._stated = RequestNeeds()
        self._old: set[tuple[str, str, str, str]] = set()
        """Warnings of the workflow before."""
        self._shown: set[str] = set()
        """Node types whose documents the model has."""

    async def proposal(self, plan: bool | Sequence[str] | None, rounds: int) -> Proposal:
        """See `Assistant.propose`."""
        found = await self._flow.workflows.checked(self._before)
        self._old = {(p.code, p.node, p.slot, p.edge) for p in found}
        steps = await self._steps(plan)
        messages = await self._messages(steps)
        ended = await negotiate(self._requests.ask, messages, self._judge, rounds=rounds, language=self._language)
        return self._finished(ended, steps)

    # What is asked ---------------------------------------------------------------------------------------------------

    async def _steps(self, plan: bool | Sequence[str] | None) -> tuple[str, ...]:
        """The steps of the plan; those of the model come with its needs."""
        if plan is None or isinstance(plan, bool):
            if not plan:
                return ()
            messages = plan_messages(
                self._request, projected_workflow(self._before), self._language, tokens=self._tokens
            )
            data = read_json_object(await self._requests.ask(messages, PLAN_SCHEMA))
            self._stated = read_needs(data)
            planned = data.get("steps")
            plan = planned if isinstance(planned, list) else ()
        steps = (step.strip()[:500] for step in plan if isinstance(step, str) and step.strip())
        return tuple(step for step, _ in zip(steps, range(_MOST_STEPS), strict=False))

    async def _messages(self, steps: Sequence[str]) -> list[Message]:
        present = dict.fromkeys(node.type for node in self._before.nodes)
        matches = await self._flow.nodes.retrieved(self._request, plan=steps, workflow=self._before, limit=RETRIEVED)
        types = dict.fromkeys((*_ALWAYS, *present, *(match.type for match in matches)))
        await self._flow.nodes.activate_for(list(types))
        if len(types) < RETRIEVED:
            more = (s.type for s in self._flow.nodes.known() if s.namespace == "core" and s.type not in types)
            types |= dict.fromkeys(islice(more, RETRIEVED - len(types)))
        return patch_messages(
            self._request,
            projected_workflow(self._before),
            lambda tokens: self._documents(types, tokens),
            steps=steps,
            language=self._language,
            tokens=self._tokens,
        )

    def _documents(self, types: Iterable[str], tokens: int) -> list[str]:
        """Texts about node types, which the model has seen from now on."""
        found = (self._flow.nodes.find(type_) for type_ in types)
        specs = [spec for spec in found if spec is not None and not spec.is_ui_node]
        texts = node_documents(specs, tokens)
        self._shown.update(spec.type for spec in specs[: len(texts)])
        return texts

    # What is answered ------------------------------------------------------------------------------------------------

    async def _judge(self, answered: ParsedAnswer) -> PatchVerdict[CheckedPatch]:
        outcome = await self._flow.workflows.patched(self._before, list(answered.patch), seed=self._seed)
        errors = [problem for problem in outcome.problems if problem.severity == "error" and not problem.is_old]
        if not outcome.ok:
            needs = answered.needs | self._stated
            await self._flow.nodes.activate_for([*needs.nodes])
            found = with_repair_operations(
                errors or outcome.problems, self._before, answered.patch, needs, self._flow.nodes.find
            )
            shown = [await self._with_types(problem) for problem in found]
            return PatchVerdict(None, shown, await self._definitions(shown))
        if not outcome.changes:
            return PatchVerdict(None, (no_change("every value of the patch is there already"),))
        names = {id_: local for local, id_ in outcome.ids.items()}
        warnings = [problem for problem in outcome.problems if self._is_new_warning(problem)]
        reported = {(problem.code, problem.pointer) for problem in warnings}
        needs = answered.needs | self._stated
        missing_parts = missing(self._before, outcome.workflow, needs)
        warnings += [problem for problem in missing_parts if (problem.code, problem.pointer) not in reported]
        warnings = completeness_warnings(warnings, outcome.workflow, needs, self._flow.nodes.find)
        dry_run = None
        if self._dry_runner is not None:
            dry_run = await self._dry_runner.run(outcome.workflow, self._requests.context)
            warnings += dry_run.problems
        warnings = [_under_names(problem, names) for problem in warnings]
        return PatchVerdict(CheckedPatch(outcome, dry_run), warnings, await self._definitions(warnings))

    def _is_new_warning(self, problem: PatchProblem) -> bool:
        key = (problem.code, problem.node, problem.slot, problem.edge)
        return problem.severity == "warning" and problem.code not in _HARMLESS and key not in self._old

    async def _with_types(self, problem: PatchProblem) -> PatchProblem:
        """An unknown node type, with the types that its name may mean."""
        if problem.code != "UNKNOWN_TYPE" or problem.nearest:
            return problem
        name = split_id(_last_quoted(problem.message))[1]
        found = await self._flow.nodes.retrieved(
            f"{name} {self._request}", workflow=self._before, limit=_MOST_DEFINITIONS
        )
        types = tuple(match.type for match in found)
        return (
            replace(problem, nearest=types, hint=f"use a node type listed above; {', '.join(types)} may fit")
            if types
            else problem
        )

    async def _definitions(self, problems: Sequence[PatchProblem]) -> list[str]:
        """Documents of the node types that the problems are about, which the model has not seen."""
        types: list[str] = []
        for problem in problems[:_MOST_DEFINITIONS]:
            if problem.code in _ABOUT_TYPES:
                types += problem.nearest
            elif problem.code in _ABOUT_SLOTS:
                types += self._types_in(problem.message)
        unseen = [type_ for type_ in dict.fromkeys(types) if type_ not in self._shown][:_MOST_DEFINITIONS]
        await self._flow.nodes.activate_for(unseen)
        return self._documents(unseen, _DEFINITION_TOKENS)

    def _types_in(self, message: str) -> Iterator[str]:
        for word in message.replace("(", " ").replace(")", " ").split():
            if ":" in word and self._flow.nodes.find(word) is not None:
                yield word

    def _finished(self, ended: CycleResult[CheckedPatch], steps: tuple[str, ...]) -> Proposal:
        common: dict[str, Any] = {
            "plan": steps, "rounds": tuple(ended.rounds), "spent": self._requests.spent, "seed": self._seed,
            "language": self._language,
        }  # fmt: skip
        if ended.result is None or ended.answered is None:
            return Proposal(
                False,
                self._request,
                self._before,
                self._before,
                declined=ended.declined,
                problems=ended.problems,
                **common,
            )
        outcome, answered = ended.result.outcome, ended.answered
        return Proposal(
            True, self._request, self._before, outcome.workflow, patch=answered.patch, ids=outcome.ids,
            changes=outcome.changes, summary=outcome.summary[self._language], reason=answered.reason,
            needs=answered.needs | self._stated, warnings=ended.problems, removed_edges=outcome.removed_edges,
            dry_run=ended.result.dry_run, **common,
        )  # fmt: skip


def _last_quoted(message: str) -> str:
    return str((QUOTED.findall(message) or [""])[-1])


def _under_names(problem: PatchProblem, names: Mapping[str, str]) -> PatchProblem:
    """The problem under the names of the model instead of final ids."""
    text, place, fix = problem.message, problem.pointer, problem.hint
    for id_, name in names.items():
        text, fix = text.replace(id_, name), fix.replace(id_, name)
        place = place.replace(f"/{id_}", f"/{name}")
    return replace(problem, message=text, pointer=place, hint=fix, node=names.get(problem.node, problem.node))
