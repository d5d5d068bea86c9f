"""A workflow while a person or an agent edits it: one patch is one entry of the history, with undo and redo."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import UsageError
from tavern_core.flow.patching import PatchOutcome, WorkflowPatcher, judge_whole
from tavern_core.flow.workflow_files import WorkflowFiles
from tavern_core.frozen_dataclass import dataclass
from tavern_core.graph.patch import conflict, with_revision
from tavern_core.graph.patch_view import project
from tavern_core.kernel.execution.portal import Portal
from tavern_core.model.message_translation import Language
from tavern_core.model.plain_data import json_members
from tavern_core.model.workflow import Workflow

_MOST_KEPT: Final = 200
"""Entries of the history; the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class EditHistoryEntry:
    """A change in the history of a session."""

    summary: Mapping[Language, str]
    outcome: PatchOutcome
    before: Workflow
    after: Workflow

    def to_json(self) -> dict[str, Any]:
        return json_members(self, "summary") | json_members(self.outcome, "ids", "changed_by")


class WorkflowSession:
    """The editing of one workflow. Each change emits the event `UPDATE_WORKFLOW_STATE_FROM_AGENT` with the complete workflow.

    `rev` grows with every change, also with undo and redo, so that a patch for an older state is detected. Use it from one
    thread at a time.
    """

    def __init__(
        self,
        workflow: Workflow,
        path: Path | None,
        patcher: WorkflowPatcher,
        files: WorkflowFiles,
        portal: Portal,
    ) -> None:
        self.id = f"session-{secrets.token_hex(6)}"
        self.workflow = workflow
        self._path = path
        self._stored = workflow
        self._patcher = patcher
        self._files = files
        self._wait = portal.run
        self._done: list[EditHistoryEntry] = []
        self._undone: list[EditHistoryEntry] = []

    @property
    def rev(self) -> int:
        """The revision of the current state."""
        return self.workflow.rev

    @property
    def history(self) -> tuple[EditHistoryEntry, ...]:
        """The changes that `undo` would take back, oldest first."""
        return tuple(self._done)

    @property
    def can_undo(self) -> bool:
        """Whether there is a change to undo."""
        return bool(self.history)

    @property
    def can_redo(self) -> bool:
        """Whether something was undone."""
        return bool(self._undone)

    @property
    def is_saved(self) -> bool:
        """Whether the file holds the current state."""
        return self._path is not None and self._stored is self.workflow

    def project(self) -> dict[str, Any]:
        """The current state as a model sees and patches it."""
        return project(self.workflow)

    def apply(self, patch: Any, *, rev: int | None = None, seed: int | None = None) -> PatchOutcome:
        """Apply a patch: one entry of the history if it succeeds, no change if not.

        The arguments are those of `Workflows.patch`. Raises PolicyDenied: a `tavern_before_patch` hook denied (POLICY_DENIED).
        """
        outcome: PatchOutcome = self._wait(self.applied(patch, rev=rev, seed=seed))
        return outcome

    async def applied(self, patch: Any, *, rev: int | None = None, seed: int | None = None) -> PatchOutcome:
        """`apply` for code in an event loop."""
        judge_whole(rev=rev, seed=seed)
        before = self.workflow
        if rev is not None and rev != before.rev:
            return PatchOutcome(False, before, problems=(conflict(before.rev, wanted=rev),))
        outcome = await self._patcher.apply(before, patch, seed=seed)
        if not outcome.ok:
            return outcome
        if self.workflow is not before:  # changed while the patch was checked
            return PatchOutcome(False, self.workflow, problems=(conflict(self.rev, wanted=before.rev),))
        self._done = [*self._done, EditHistoryEntry(outcome.summary, outcome, before, outcome.workflow)][-_MOST_KEPT:]
        self._undone.clear()
        self._become(outcome.workflow, outcome.summary, "patch", outcome.changed_by)
        return outcome

    def undo(self) -> Workflow:
        """Take back the last change. Raises UsageError: there is none (USAGE)."""
        if not self._done:
            raise UsageError("there is nothing to undo", hint="session.history shows the changes")
        entry = self._done.pop()
        self._undone.append(entry)
        return self._become(with_revision(entry.before, self.rev + 1), entry.summary, "undo")

    def redo(self) -> Workflow:
        """Make the last undone change again. Raises UsageError: nothing was undone since the last patch (USAGE)."""
        if not self._undone:
            raise UsageError("there is nothing to redo", hint="only changes that were undone can be redone")
        entry = self._undone.pop()
        self._done.append(entry)
        return self._become(with_revision(entry.after, self.rev + 1), entry.summary, "redo")

    def save(self, id_: str = "") -> Workflow:
        """Write the current state into its file, or as a workflow of the first workflow folder.

        Args:
            id_: the workflow's id, needed if it was given as content.

        Raises:
            SavedMeanwhile: the file was changed by someone else since it was read (USAGE).
            UsageError: it has no file and no id is given, or it cannot be written (USAGE).
        """
        if self._path is None or (id_ and id_ != self.workflow.id):
            if not id_:
                raise UsageError("the workflow has no file yet", hint='session.save("my-workflow")')
            saved = self._files.save(id_, self.workflow, rev=0, least=self.rev)
            self._path = self._files.folders[0] / f"{id_}.json"
        else:
            saved = self._files.replace(self._path, self._stored, self.workflow)
        self.workflow = self._stored = saved
        return saved

    def _become(
        self, workflow: Workflow, summary: Mapping[Language, str], action: str, changed_by: tuple[str, ...] = ()
    ) -> Workflow:
        self.workflow = workflow
        self._patcher.updated(workflow, summary, {"session": self.id, "action": action, "changedBy": list(changed_by)})
        return workflow
