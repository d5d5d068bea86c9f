"""Patches of workflows for one host: hooks, one check of the result, positions, ids, and the file.

    read → tavern_before_patch → apply to a copy (`graph/patch.py`) → compile once → lay out new nodes → give ids → save

A patch is applied completely or not at all. Whether its result may have errors is decided by comparison: errors that the
workflow had before do not refuse a patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_json

from tavern_core.errors import UsageError, WorkflowInvalid
from tavern_core.flow.compiled_workflow_cache import WorkflowCompiler, as_workflow
from tavern_core.flow.hook_chains import WorkflowHookCalls
from tavern_core.flow.workflow_files import SavedMeanwhile, WorkflowFiles
from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.changes import WorkflowChange, differences, in_words
from tavern_core.graph.json_patch import MOST_VALUES
from tavern_core.graph.layout import is_laid_out, layout
from tavern_core.graph.patch import PatchedWorkflow, RemovedEdge, apply_patch, conflict, with_revision
from tavern_core.graph.patch_blame import problems_of_patch
from tavern_core.graph.patch_ids import with_ids
from tavern_core.graph.patch_problems import PatchProblem, PatchRefused
from tavern_core.graph.patch_view import project
from tavern_core.graph.problems import FlowProblem
from tavern_core.kernel.calls.running_call import current
from tavern_core.kernel.manifest.workflow_file_codec import SUFFIX
from tavern_core.kernel.plugins.host_registries import HostRegistries
from tavern_core.kernel.settings.result_redaction import masking
from tavern_core.kernel.text.json_document import read_json
from tavern_core.model import depths
from tavern_core.model.call import CallContext
from tavern_core.model.event import UPDATE_WORKFLOW_STATE_FROM_AGENT
from tavern_core.model.message_translation import Language
from tavern_core.model.plain_data import json_members
from tavern_core.model.workflow import Workflow
from tavern_core.schema.bounded_json_copying import json_copy

_LARGEST_LOGGED: Final = 32_000
"""Bytes of a workflow that is written into the log with each change."""
_LARGEST_TEXT: Final = 64_000_000
"""Bytes of a patch that is given as text."""
_LIMITS: Final = {"nested": "PATCH_TOO_DEEP", "holds more than": "PATCH_TOO_LARGE"}
"""Words of a problem of `json_copy` → code."""
_NO_WORDS: Final[Mapping[Language, str]] = {"en": "", "zh": ""}


@dataclass(frozen=True, slots=True)
class PatchOutcome:
    """The outcome of a patch: its changes, or the reasons for refusing it."""

    ok: bool
    workflow: Workflow
    """The patched workflow; if `ok` is False, the workflow as it was."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """localId → the id of the new node or edge."""
    removed_edges: tuple[RemovedEdge, ...] = ()
    """Edges that were removed because a node at their end was."""
    problems: tuple[PatchProblem, ...] = ()
    """Why it was refused; also warnings, and errors that the workflow had before."""
    summary: Mapping[Language, str] = field(default_factory=lambda: _NO_WORDS)
    """The change in words, by language: ``en`` and ``zh``."""
    changes: tuple[WorkflowChange, ...] = ()
    """The change as data."""
    changed_by: tuple[str, ...] = ()
    """Plugins whose `tavern_before_patch` hooks changed the operations."""
    operations: tuple[Mapping[str, Any], ...] = ()
    """The operations as they were applied, after the hooks."""

    @property
    def errors(self) -> tuple[PatchProblem, ...]:
        """The problems for which it was refused."""
        return tuple(each for each in self.problems if each.severity == "error" and not each.is_old)

    def to_json(self) -> dict[str, Any]:
        names = ("ids", "removed_edges", "problems", "summary", "changes", "changed_by")
        return {"ok": self.ok, "rev": self.workflow.rev, **json_members(self, *names)}


class WorkflowPatcher:
    """Applies patches for one host.

    Args:
        host: the caller that represents the host itself.
    """

    def __init__(
        self, workflow_files: WorkflowFiles, compiler: WorkflowCompiler, tables: HostRegistries, host: CallContext
    ) -> None:
        self._workflow_files = workflow_files
        self._compiler = compiler
        self._hooks = tables.hooks
        self._calls = WorkflowHookCalls(tables.calls, tables.mode)
        self._recorder = tables.base.recorder
        self._mask = masking(tables.base.known_secrets)
        self._host = host

    async def patch(
        self, what: Any, operations: Any, *, rev: int | None, seed: int | None, dry_run: bool
    ) -> PatchOutcome:
        """See `Workflows.patch`."""
        path = self.file(what)
        before = as_workflow(what, self._workflow_files)
        judge_whole(rev=rev, seed=seed)
        if rev is not None and rev != before.rev:
            return PatchOutcome(False, before, problems=(conflict(before.rev, wanted=rev),))
        outcome = await self.apply(before, operations, seed=seed)
        if not outcome.ok or dry_run or path is None:
            return outcome
        try:
            saved = self._workflow_files.replace(path, before, outcome.workflow)
        except SavedMeanwhile as error:
            return PatchOutcome(False, before, problems=(conflict(error.rev, wanted=before.rev),))
        outcome = replace(outcome, workflow=saved)
        self.updated(saved, outcome.summary, {"changedBy": list(outcome.changed_by)})
        return outcome

    def store(self, what: str | Path, outcome: PatchOutcome) -> PatchOutcome:
        """Write a patched workflow into another file (a path), or under the id of a new one.

        Raises:
            SavedMeanwhile: there is a workflow of this id (USAGE).
            UsageError: it cannot be written (USAGE).
        """
        if isinstance(what, Path) or what.endswith(SUFFIX) or "/" in what:
            saved = self._workflow_files.write(Path(what).absolute(), outcome.workflow)
        else:
            saved = self._workflow_files.save(what, outcome.workflow, rev=0)
        outcome = replace(outcome, workflow=saved)
        self.updated(saved, outcome.summary, {"changedBy": list(outcome.changed_by)})
        return outcome

    async def apply(self, before: Workflow, operations: Any, *, seed: int | None = None) -> PatchOutcome:
        """The outcome of a patch of a workflow; nothing is stored.

        Raises:
            PolicyDenied: a `tavern_before_patch` hook denied or failed (POLICY_DENIED).
        """
        changed_by: tuple[str, ...] = ()
        try:
            patch = plain_patch(operations)
            if implementations := self._hooks.of("tavern_before_patch"):
                patch, changed_by = await self._calls.change_patch(implementations, patch, before)
                patch = plain_patch(patch)
            done = apply_patch(before, patch)
            compiled_problems = (await self._compiler.compiled(done.workflow)).problems
            if _move_values(patch, done, compiled_problems):
                done = apply_patch(before, patch)
                compiled_problems = (await self._compiler.compiled(done.workflow)).problems
        except PatchRefused as refused:
            return PatchOutcome(False, before, problems=refused.problems, changed_by=changed_by)
        problems = await self._problems(before, done, compiled_problems)
        if any(each.severity == "error" and not each.is_old for each in problems):
            return PatchOutcome(False, before, problems=problems, changed_by=changed_by)
        workflow, ids = with_ids(done, seed)
        after = with_revision(with_positions(workflow), before.rev + 1)
        changes = differences(before, after)
        return PatchOutcome(
            True, after, ids, done.removed_edges, problems, in_words(changes, before, after), changes, changed_by,
            tuple(patch),
        )  # fmt: skip

    def updated(self, workflow: Workflow, summary: Mapping[Language, str], more: Mapping[str, Any]) -> None:
        """Emit the event of a change: the complete workflow, the change in words, further members.

        The log gets of a large workflow its size and hash.
        """
        outer = current.get()
        caller = (outer and outer.caller) or self._host
        facts = {
            "workflow": workflow.id, "rev": workflow.rev, "summary": self._mask(dict(summary)), **more, **caller.whose()
        }  # fmt: skip
        content = self._mask(dict(workflow.raw))
        text = to_json(content)
        data = logged = {**facts, "content": content}
        if len(text) > _LARGEST_LOGGED:
            size = {"bytes": len(text), "sha256": sha256(text).hexdigest(), "nodes": len(workflow.nodes)}
            logged = {**facts, "reference": size}
        self._recorder.note_large(UPDATE_WORKFLOW_STATE_FROM_AGENT, data, logged)

    def arrange(self, what: Any, *, keep: bool, dry_run: bool) -> Workflow:
        """See `Workflows.layout`."""
        path = self.file(what)
        before = as_workflow(what, self._workflow_files)
        after = with_positions(before, keep=keep)
        if after is before or dry_run or path is None:
            return after
        saved = self._workflow_files.replace(path, before, with_revision(after, before.rev + 1))
        self.updated(saved, {"en": "nodes laid out", "zh": "重新排列了节点"}, {"changedBy": []})
        return saved

    async def _problems(
        self, before: Workflow, done: PatchedWorkflow, compiled_problems: tuple[FlowProblem, ...]
    ) -> tuple[PatchProblem, ...]:
        """The problems of the result; the workflow before is only checked if there are errors."""
        found = tuple(problems_of_patch(compiled_problems, done))
        if not any(each.severity == "error" for each in found):
            return found
        old = {each.identity for each in (await self._compiler.compiled(before)).problems if each.severity == "error"}
        return tuple(
            replace(each, is_old=True, op=None) if each.severity == "error" and problem.identity in old else each
            for problem, each in zip(compiled_problems, found, strict=True)
        )

    def file(self, what: Any, *, or_none: bool = False) -> Path | None:
        """The file of a stored workflow, where a patch is written; None for content.

        Args:
            or_none: None also for a workflow of a plugin.

        Raises:
            UsageError: it belongs to a plugin (USAGE).
            WorkflowNotFound: there is none (WORKFLOW_NOT_FOUND).
        """
        if not isinstance(what, str | Path):
            return None
        text = str(what)
        if isinstance(what, Path) or ((text.endswith(SUFFIX) or "/" in text) and text not in self._workflow_files):
            return Path(text).absolute()
        id_ = text.removeprefix("workflow:")
        found = self._workflow_files.list().get(id_)
        if found is None:
            self._workflow_files.get(id_)  # names the closest
        if found is None or (found.path is None and not or_none):
            raise UsageError(
                f"workflow {id_!r} belongs to plugin {found.plugin if found else ''}, whose files are not changed",
                hint="patch its content, and save the result under another id",
            )
        return found.path


def _move_values(patch: list[Any], done: PatchedWorkflow, problems: tuple[FlowProblem, ...]) -> bool:
    """Copy values that new nodes have for their inputs in `data`, as in seed 003, to `inputValues`; whether there were any."""
    moved = False
    for problem in problems:
        at = done.names.nodes.get(problem.node)
        value: Any = None if at is None else patch[at].get("value")
        data = value.get("data") if isinstance(value, dict) else None
        if problem.code == "UNKNOWN_INPUT" and isinstance(data, dict) and problem.slot in data:
            input_values = value.get("inputValues") or {}
            value["inputValues"] = {**input_values, problem.slot: input_values.get(problem.slot, data[problem.slot])}
            moved = True
    return moved


def judge_whole(**numbers: Any) -> None:
    """Refuse values that are neither a whole number nor None. Raises UsageError (USAGE)."""
    for name, number in numbers.items():
        if number is not None and type(number) is not int:
            raise UsageError(f"{name} is a whole number, got {number!r:.100}", hint=f"{name}=1, or leave it out")


def plain_patch(operations: Any) -> list[Any]:
    """The operations as JSON that shares nothing with `operations`, a list or its JSON text.

    Raises:
        PatchRefused: they are not JSON, or too large.
    """
    if isinstance(operations, str | bytes):
        operations = _parsed(operations)
    if not isinstance(operations, list | tuple):
        kind = type(operations).__name__
        raise PatchRefused(
            PatchProblem("NOT_A_PATCH", f"a patch is a list of operations, got {kind}", hint="pass a list")
        )
    found, problem = json_copy(list(operations), max_depth=depths.VALUE, max_nodes=MOST_VALUES)
    if problem is None:
        return found  # type: ignore[no-any-return]
    code = next((code for part, code in _LIMITS.items() if part in problem.message), "NOT_JSON")
    first = problem.path.split("/")[1:2]
    at = int(first[0]) if first and first[0].isdecimal() else None
    subject = f"{problem.path}:" if problem.path and code == "NOT_JSON" else "the patch"
    raise PatchRefused(PatchProblem(code, f"{subject} {problem.message}", op=at, hint=problem.hint))


def _parsed(text: str | bytes) -> Any:
    """The value of a JSON text. Raises PatchRefused: it is none (NOT_JSON)."""
    document = read_json(text, "patch", largest=_LARGEST_TEXT, most_values=MOST_VALUES)
    if not document.findings:
        return document.data
    first = document.findings[0]
    raise PatchRefused(PatchProblem("NOT_JSON", f"the text of the patch is not JSON: {first.in_text}", hint=first.hint))


def projected_workflow(workflow: Workflow) -> dict[str, Any]:
    """The workflow as a model sees it. Raises WorkflowInvalid: an id is there twice (WORKFLOW_INVALID)."""
    try:
        return project(workflow)
    except PatchRefused as refused:
        problem = refused.problems[0]
        raise WorkflowInvalid(f"workflow {workflow.id!r}: {problem.message}", hint=problem.hint) from None


def with_positions(workflow: Workflow, *, keep: bool = True) -> Workflow:
    """The workflow with a position for each node that has none, or one that no picture can contain.

    Args:
        keep: keep existing positions; False: lay out everything again.
    """
    if keep and is_laid_out(workflow):
        return workflow
    places = layout(workflow, keep=keep)
    raw, made = [], []
    for item, node in zip(workflow.raw.get("nodes") or (), workflow.nodes, strict=True):
        x, y = places[node.id]
        at = {"x": round(x, 2), "y": round(y, 2)}
        if node.position is None or {axis: node.position.get(axis) for axis in "xy"} != at:
            item = {
                "id": item["id"],
                "type": item["type"],
                "position": at,
                **{k: v for k, v in item.items() if k != "position"},
            }
            node = node.model_copy(update={"position": at})
        raw.append(item)
        made.append(node)
    return workflow.model_copy(update={"nodes": tuple(made), "raw": {**workflow.raw, "nodes": raw}})
