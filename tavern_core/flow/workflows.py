"""`tavern.workflows`: list, check, run, cancel and answer workflows; `run_pipeline.py` has the steps of a run."""

from __future__ import annotations

import asyncio
import builtins
import threading
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import RunNotFound, StateDamaged, TavernError, UsageError, WorkflowInvalid, WorkflowNotFound
from tavern_core.model.call import check_most
from tavern_core.model.nearest import did_you_mean

if TYPE_CHECKING:
    from tavern_core.flow.compiled_workflow_cache import CompiledWorkflow
    from tavern_core.flow.engine.plan_tables import PreparedPlan
    from tavern_core.flow.engine.run import Run
    from tavern_core.flow.engine.run_options import NodeQuestion
    from tavern_core.flow.engine.sqlite_run_store import RunStore, StoredRun
    from tavern_core.flow.patching import PatchOutcome
    from tavern_core.flow.run_handle import RecentRuns, RunHandle
    from tavern_core.flow.run_machinery import RunMachinery
    from tavern_core.flow.run_pipeline import AdmittedRun, WorkflowRunner
    from tavern_core.flow.workflow_edit_history import WorkflowSession
    from tavern_core.flow.workflow_files import WorkflowSource
    from tavern_core.graph.edit import WorkflowEditor
    from tavern_core.graph.problems import FlowProblem
    from tavern_core.model.call import CallContext
    from tavern_core.model.run import RunEvent, RunRecord, RunResult
    from tavern_core.model.workflow import Workflow

_EMPTY: Final[Mapping[str, Any]] = {"nodes": [], "edges": []}
_OPEN: Final = frozenset({"running", "waiting"})
"""States of a run whose questions can be answered."""
_LOOK_S: Final = 0.1
"""Interval at which the events of another process's run are polled."""
_LEAVING_S: Final = 0.5
"""Time in which runs that wait for answers must end when the host closes."""


class Workflows(Mapping[str, "Workflow"]):
    """The workflows of one host, by id.

    Args:
        machinery: makes the compiler, the runner and the run store when they are first needed.
    """

    def __init__(self, machinery: RunMachinery) -> None:
        self.workflow_files: Final = machinery.workflow_files
        self._machinery = machinery
        self._making = threading.Lock()
        self._built_runner: WorkflowRunner | None = None
        self._portal = portal = machinery.catalogue.specs.base.portal
        self._wait = portal.run
        self._prepare = machinery.plugin_workflows.prepare
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def _runner(self) -> WorkflowRunner:
        if self._built_runner is None:
            self._portal.check_owner()  # the stored runs of a closed host can still be read
            with self._making:
                self._built_runner = self._built_runner or self._machinery.make()
        return self._built_runner

    @property
    def _runs(self) -> RecentRuns:
        return self._runner.remembered

    @property
    def run_store(self) -> RunStore:
        """The stored runs of the state folder."""
        return self._runner.caches.runs

    # Looking -------------------------------------------------------------------------------------------------------------

    def __getitem__(self, id_: str) -> Workflow:
        try:
            return self.get_workflow(id_)
        except WorkflowNotFound as error:
            raise KeyError(str(error)) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def __contains__(self, id_: object) -> bool:
        return id_ in self.list()

    def list(self) -> dict[str, WorkflowSource]:
        """Id → its source, sorted; nothing is read."""
        self._wait(self._prepare())
        return self.workflow_files.list()

    def in_files(self) -> dict[str, WorkflowSource]:
        """`list`, as far as it is known without activating plugins."""
        return self.workflow_files.list()

    def broken(self) -> dict[str, WorkflowInvalid]:
        """Id → why its file cannot be read. No plugin is activated."""
        return self.workflow_files.broken()

    def get_workflow(self, id_: str) -> Workflow:
        """A workflow by id.

        Raises:
            WorkflowNotFound: there is none (WORKFLOW_NOT_FOUND).
            WorkflowInvalid: its file is wrong (WORKFLOW_INVALID).
        """
        self._wait(self._prepare())
        return self.workflow_files.get(id_)

    def find(self, what: Any) -> Workflow:
        """A workflow by its id, the path of its file, or its content. Raises as `get_workflow`."""
        return self._wait(self.found(what))

    async def found(self, what: Any) -> Workflow:
        """`find` for code in an event loop."""
        from tavern_core.flow.compiled_workflow_cache import as_workflow

        await self._prepare()
        return as_workflow(what, self.workflow_files)

    def file(self, path: str, plugin: str) -> Workflow:
        """The workflow in a file of a plugin; it references the plugin's other workflows by name. Raises as `check`."""
        from tavern_core.kernel.manifest.workflow_file_codec import SUFFIX

        return self.workflow_files.read(Path(path), f"{plugin}.{Path(path).name.removesuffix(SUFFIX)}")

    def check(self, what: Any) -> builtins.list[FlowProblem]:
        """All problems of a workflow: its id, the path of a file, its content. Nothing is run.

        Raises:
            WorkflowNotFound: there is none (WORKFLOW_NOT_FOUND).
            WorkflowInvalid: it is not a workflow at all; `findings` have the places (WORKFLOW_INVALID).
        """
        return self._wait(self.checked(what))

    async def checked(self, what: Any) -> builtins.list[FlowProblem]:
        """`check` for code in an event loop."""
        made: CompiledWorkflow = await self._runner.compiler.compiled(what)
        return [*made.problems]

    def graph(self, what: Any, form: str = "mermaid") -> str:
        """A picture of a workflow: ``mermaid`` or ``svg``. Raises as `check`; UsageError: another form (USAGE)."""
        from tavern_core.graph.picture import mermaid, svg

        if form not in ("mermaid", "svg"):
            raise UsageError(f"there is no picture of the form {form!r:.100}", hint='"mermaid" or "svg"')
        workflow = self.find(what)
        return svg(workflow) if form == "svg" else mermaid(workflow)

    def save(self, id_: str, workflow: Workflow | Mapping[str, Any], *, rev: int | None = None) -> Workflow:
        """Write a workflow into the first folder of `workflows.roots`; see `WorkflowFiles.save`."""
        from tavern_core.flow.compiled_workflow_cache import as_workflow

        return self.workflow_files.save(id_, as_workflow(workflow, self.workflow_files), rev=rev)

    def edit(self, what: Any = None) -> WorkflowEditor:
        """An editor that keeps a workflow valid: it refuses edits that would add an error. None: start with an empty one.

        Its `workflow` is the result; `save` writes it. Raises as `check`.
        """
        from tavern_core.graph.edit import WorkflowEditor
        from tavern_core.kernel.manifest.workflow_file_codec import workflow_of

        return WorkflowEditor(self.find(_EMPTY if what is None else what), self.check, workflow_of)

    # Patching ------------------------------------------------------------------------------------------------------------

    def project(self, what: Any) -> dict[str, Any]:
        """A workflow as a model sees and patches it: nodes and edges by id (docs/workflows.md). Raises as `check`."""
        from tavern_core.flow.patching import projected_workflow

        return projected_workflow(self.find(what))

    def patch(
        self, what: Any, operations: Any, *, rev: int | None = None, seed: int | None = None, dry_run: bool = False
    ) -> PatchOutcome:
        """Apply a JSON Patch (RFC 6902) to a workflow, completely or not at all.

        Args:
            what: the id of a workflow in a folder, or the path of a file: the file is written. Content, or a Workflow: the
                outcome has the patched one.
            operations: on the workflow as `project` returns it, or with places in lists (``/nodes/-``); or their JSON text.
            rev: the revision for which the patch was written; another one is refused. None: the current one.
            seed: makes the new ids reproducible.
            dry_run: write nothing.

        Raises:
            PolicyDenied: a `tavern_before_patch` hook denied or failed (POLICY_DENIED).
            UsageError: the workflow belongs to a plugin, or an argument has another type (USAGE).
            WorkflowNotFound, WorkflowInvalid: as `check`.
        """
        outcome: PatchOutcome = self._wait(self.patched(what, operations, rev=rev, seed=seed, dry_run=dry_run))
        return outcome

    async def patched(
        self, what: Any, operations: Any, *, rev: int | None = None, seed: int | None = None, dry_run: bool = False
    ) -> PatchOutcome:
        """`patch` for code in an event loop."""
        await self._prepare()
        return await self._runner.patcher.patch(what, operations, rev=rev, seed=seed, dry_run=dry_run)

    async def stored(self, what: str | Path, outcome: PatchOutcome) -> PatchOutcome:
        """Write a patched workflow to another place: into the file of a path, or under a new id. Raises as `save`."""
        await self._prepare()
        return self._runner.patcher.store(what, outcome)

    def session(self, what: Any = None) -> WorkflowSession:
        """The editing of a workflow, with undo and redo; `save` writes it. None: start with an empty one. Raises as `check`."""
        from tavern_core.flow.workflow_edit_history import WorkflowSession

        workflow = self.find(_EMPTY if what is None else what)
        patcher = self._runner.patcher
        return WorkflowSession(workflow, patcher.file(what, or_none=True), patcher, self.workflow_files, self._portal)

    def layout(self, what: Any, *, keep: bool = False, dry_run: bool = False) -> Workflow:
        """A workflow with all nodes laid out again; `what` and `dry_run` as of `patch`.

        Args:
            keep: only nodes without a position.

        Raises:
            SavedMeanwhile: its file was changed by someone else meanwhile (USAGE).
            WorkflowNotFound, WorkflowInvalid: as `check`.
        """
        self._wait(self._prepare())
        return self._runner.patcher.arrange(what, keep=keep, dry_run=dry_run)

    # Running -------------------------------------------------------------------------------------------------------------

    async def run(
        self, what: Any, inputs: Mapping[str, Any] | None = None, *, context: CallContext | None = None, **options: Any
    ) -> RunResult:
        """Run a workflow to its end.

        Args:
            what: its id, the path of a file, its content, or a Workflow.
            inputs: values for its interface.
            context: the caller and its permissions; None: the host.
            options: fields of `RunOptions`; `again` (a run id: reuse its answers where nothing changed), `start_at` (node ids: run
                these and their dependents again), `answers` (question → the answer of a person),
                `cache=False` (use no cached answers), `keep=False` (store nothing).

        Raises:
            WorkflowNotFound, WorkflowInvalid: as `check`.
            InputInvalid: an input is missing or does not fit (INPUT_SCHEMA_INVALID).
            PolicyDenied: a hook refused, or a node is not allowed (POLICY_DENIED).
        """
        return await self._runner.through(await self._runner.begin(what, inputs or {}, context, options))

    def run_sync(self, what: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
        """`run` for code without an event loop."""
        result: RunResult = self._wait(self.run(what, inputs, **options))
        return result

    async def start(
        self, what: Any, inputs: Mapping[str, Any] | None = None, *, context: CallContext | None = None, **options: Any
    ) -> RunHandle:
        """Start a run in the background. Raises as `run`."""
        begun = await self._runner.begin(what, inputs or {}, context, options)
        return self._in_background(begun)

    def cancel(self, run_id: str) -> bool:
        """End a run, from any thread, or from another process of the state folder; False: it is already over.

        A run that no process runs and that waits for answers is over with this: it waits no longer.

        Raises:
            RunNotFound: there is none (RUN_NOT_FOUND).
        """
        if (run := self._local_run(run_id)) is not None and not (run.is_over and run.is_left):
            return run.cancel()
        if run is None:
            self.run_store.find(run_id)
        return self.run_store.ask_to_end(run_id) or self.run_store.give_up(run_id)

    def answer(self, run_id: str, question: str, value: Any) -> bool:
        """Answer a question of a node; False: it is not open, or another answer came first.

        A run of another process gets it within a quarter of a second; for a run without a process, it is stored for `resume`.

        Raises:
            RunNotFound: there is no such run here, and no other process has such a question (RUN_NOT_FOUND).
            InputInvalid: the answer does not fit the question, which stays open (INPUT_SCHEMA_INVALID).
        """
        if (run := self._local_run(run_id)) is not None and not run.is_left:
            return run.answer(question, value)
        stored = self.run_store.get(run_id)
        asked = next((each for each in _asked(stored) if each.id == question), None)
        if asked is None:
            if stored is not None and question in stored.answers:
                return False
            raise self._not_here(run_id)
        if (refusal := asked.refusal(value)) is not None:
            raise refusal
        return self.run_store.leave_answer(run_id, question, value)

    def questions(self, run_id: str) -> tuple[NodeQuestion, ...]:
        """The open questions of a run, also of another process or without a process.

        Raises:
            RunNotFound: there is no such run here, and no other process has one with questions (RUN_NOT_FOUND).
        """
        if (run := self._local_run(run_id)) is not None and not run.is_left:
            return run.open_questions
        if not (found := _asked(self.run_store.get(run_id))) and run is None:
            raise self._not_here(run_id)
        answered = self.run_store.answers(run_id)
        return tuple(question for question in found if question.id not in answered)

    def events(self, run_id: str, after: int = 0) -> builtins.list[RunEvent]:
        """The events of a run after number `after`, also of a stored one. Raises as `cancel`.

        If its process ended before the run did, the last one is that of `follow`.
        """
        if (run := self._local_run(run_id)) is not None:
            return run.events(after)
        return self.run_store.events_to_end(run_id, after)

    async def follow(self, run_id: str, after: int = 0) -> AsyncIterator[RunEvent]:
        """The events of a run, past and future, until it is over. Raises as `cancel`.

        It may be a run of another process. If that process ends before the run does, the last event is `run:` with the remaining state:
        `run:interrupted`, or `run:waiting` for an answer.
        """
        from tavern_core.flow.run_handle import follow_events

        if (run := self._local_run(run_id)) is not None:
            async for event in follow_events(run, after):
                yield event
            return
        runs, place = self.run_store, 0
        runs.find(run_id)
        while runs.is_going_on(run_id):
            found, place = runs.read_on(run_id, after, place)
            for event in found:
                after = event.seq
                yield event
            await asyncio.sleep(_LOOK_S)
        for event in runs.events_to_end(run_id, after):
            yield event

    def kept(self, workflow: str = "", most: int = 100) -> builtins.list[StoredRun]:
        """The runs in the store, newest first; including those of other processes of this state folder.

        Raises:
            UsageError: `most` is not a number from 0 up (USAGE).
        """
        check_most(most)
        return self.run_store.list(workflow, most)

    def kept_run(self, run_id: str) -> StoredRun | None:
        """A run of the store, or None. Raises StateDamaged (STATE_DAMAGED)."""
        return self.run_store.get(run_id)

    def sources(self, run_id: str) -> tuple[str, ...]:
        """The sources of untrusted content that the nodes of a stored run have read."""
        return self.run_store.sources(run_id)

    def is_going_on(self, run_id: str) -> bool:
        """Whether a process runs a run now."""
        return self.run_store.is_going_on(run_id)

    async def record(self, run_id: str) -> RunRecord:
        """A stored run node by node: states, times, inputs and outputs; for a running one, the data so far.

        Raises:
            RunNotFound: no such run is stored (RUN_NOT_FOUND).
        """
        from tavern_core.flow.resuming import document_of_run
        from tavern_core.flow.run_record_building import record_of

        has_ended = not self.run_store.is_going_on(run_id)  # asked first, so that all that it wrote is read below
        stored = self.run_store.find(run_id)
        answered = self.run_store.answers(run_id)
        asked = (each for each in stored.questions if stored.state in _OPEN and each["id"] not in answered)
        stored = replace(stored, questions=tuple(asked))
        steps, _ = self.run_store.steps(run_id)
        prepared: PreparedPlan | None = None
        if "content" not in stored.masked:  # else the values of the file contain secrets
            with suppress(TavernError):
                prepared = (await self._runner.compiler.compiled(document_of_run(stored, self.workflow_files))).prepared
        outputs = {path: made for path, (_, _, made) in steps.items()}
        return record_of(stored, self.events(run_id), outputs, has_ended, prepared)

    async def resume(
        self, run_id: str, answers: Mapping[str, Any] | None = None, *, inputs: Mapping[str, Any] | None = None,
        context: CallContext | None = None, **options: Any,
    ) -> RunResult:  # fmt: skip
        """Resume a run that ended, failed, or waited for a person when its process ended. It stays the same run, with its id.

        Completed nodes with the same inputs do not run again. It runs as its own caller, with the rest of its
        budget and its deadline; `tavern_before_workflow` hooks see only new inputs. If several processes resume a run at once,
        one succeeds; if its process dies, another one can.

        Args:
            answers: question → the answer of a person, in addition to earlier ones.
            inputs: values for its interface, replacing the old ones; secrets among them are not stored.
            context: the caller that resumes it, which must be its own. None: the host, which adds no permissions.
            options: as of `run`, replacing the old ones; not `again`, `keep`.

        Raises:
            RunNotFound: no such run is stored (RUN_NOT_FOUND).
            InputInvalid: an answer does not fit its question, or answers none (INPUT_SCHEMA_INVALID).
            PolicyDenied: it belongs to another caller, or its caller has lost a permission (POLICY_DENIED).
            StateDamaged: its stored data is corrupt (STATE_DAMAGED).
            UsageError: it still runs, was resumed and is complete, was stored without its caller, or a secret input must
                be passed again (USAGE).
        """
        return await self._runner.through(await self._taken_up(run_id, answers, inputs, context, options))

    def resume_sync(self, run_id: str, answers: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
        """`resume` for code without an event loop."""
        result: RunResult = self._wait(self.resume(run_id, answers, **options))
        return result

    async def take_up(
        self, run_id: str, answers: Mapping[str, Any] | None = None, *, inputs: Mapping[str, Any] | None = None,
        context: CallContext | None = None, **options: Any,
    ) -> RunHandle:  # fmt: skip
        """`resume` in the background. Raises as `resume`."""
        return self._in_background(await self._taken_up(run_id, answers, inputs, context, options))

    async def _taken_up(
        self, run_id: str, answers: Mapping[str, Any] | None, inputs: Mapping[str, Any] | None, context: CallContext | None,
        options: Mapping[str, Any],
    ) -> AdmittedRun:  # fmt: skip
        return await self._runner.take_up(run_id, answers or {}, inputs or {}, context, options)

    def _in_background(self, begun: AdmittedRun) -> RunHandle:
        from tavern_core.flow.run_handle import RunHandle

        task = asyncio.create_task(self._runner.through(begun))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if (recorder := begun.recorder) is not None:
            task.add_done_callback(lambda _: recorder.let_go())  # it may be cancelled before it starts
        return RunHandle(begun.run, task)

    def runs(self) -> builtins.list[str]:
        """The ids of the runs in memory, oldest first."""
        return self._runs.ids()

    async def leave(self, run_ids: Collection[str]) -> None:
        """Let those of these runs that only wait for answers end as `waiting`: they can be resumed with them."""
        if self._built_runner is None:
            return
        asking = [run for run in self._runs.all() if run.id in run_ids and run.questions and run.leave()]
        end = time.monotonic() + _LEAVING_S
        while any(not run.is_over for run in asking) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Cancel every run; those that are jobs with a question wait on, without a process."""
        if self._built_runner is None:
            return
        for run in self._runs.all():
            run.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        with suppress(StateDamaged):
            self.run_store.prune()
        self._runner.caches.disk.close()
        self.run_store.close()

    def become_copy(self) -> None:
        """In a forked child: the runs belong to the process that opened the host, and the portal refuses to make what runs them."""
        self._built_runner, self._making = None, threading.Lock()

    def _local_run(self, run_id: str) -> Run | None:
        """A run of this host; None: there is none, or another process has resumed it since."""
        if (known := self._runs.get(run_id)) is None or not known[0].is_over:
            return known[0] if known is not None else None
        with suppress(StateDamaged):
            stored = self.run_store.get(run_id)
            if stored is not None and stored.times_taken_up != known[0].times_taken_up:
                return None
        return known[0]

    def _not_here(self, run_id: str) -> RunNotFound:
        hint = did_you_mean(run_id, self._runs.ids()) or "tavern workflows runs"
        with suppress(StateDamaged):
            if self.run_store.get(run_id) is not None:
                hint = "another process ran it, and it has no such question; once that process has ended, resume it: tavern.workflows.resume(...)"
        return RunNotFound(f"there is no run {run_id!r} in this host", hint=hint)


def _asked(kept: StoredRun | None) -> tuple[NodeQuestion, ...]:
    """The open questions of a stored run, including those with a stored answer."""
    from tavern_core.flow.engine.run_options import NodeQuestion

    return () if kept is None or kept.state not in _OPEN else tuple(NodeQuestion(**one) for one in kept.questions)
