"""`tavern.workflows`: list, check, run, cancel and answer workflows; `run_steps.py` has the steps of a run."""

from __future__ import annotations

import asyncio
import builtins
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import (
    RunNotFound,
    StateDamaged,
    TavernError,
    UsageError,
    WorkflowInvalid,
    WorkflowNotFound,
)
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.run import RunEvent, RunRecord, RunResult

if TYPE_CHECKING:
    from tavern_core.flow.compiler import Made
    from tavern_core.flow.engine.plan_tables import Prepared
    from tavern_core.flow.engine.run import Question, Run
    from tavern_core.flow.engine.run_store import KeptRun
    from tavern_core.flow.recent_runs import Remembered
    from tavern_core.flow.run_handle import RunHandle
    from tavern_core.flow.run_steps import Begun, Caches, Running
    from tavern_core.flow.workflow_files import Shelved, WorkflowShelf
    from tavern_core.graph.edit import WorkflowEditor
    from tavern_core.graph.problems import FlowProblem
    from tavern_core.model.call import CallContext
    from tavern_core.model.workflow import Workflow

_LOOK_S: Final = 0.1
"""How often it is looked what happened in a run of another process."""


class Workflows(Mapping[str, "Workflow"]):
    """The workflows of one host, by id.

    Args:
        machinery: makes what compiles and runs workflows, and where runs are stored; called when it is first needed, for most
            hosts run none.
    """

    def __init__(
        self,
        shelf: WorkflowShelf,
        machinery: Callable[[], tuple[Running, Caches]],
        *,
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
        prepare: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self.shelf = self._shelf = shelf
        self._make = machinery
        self._making = threading.Lock()
        self._made: tuple[Running, Caches] | None = None
        self._wait = wait
        self._prepare = prepare
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def _machinery(self) -> tuple[Running, Caches]:
        if self._made is None:
            with self._making:
                self._made = self._made or self._make()
        return self._made

    @property
    def _running(self) -> Running:
        return self._machinery[0]

    @property
    def _runs(self) -> Remembered:
        return self._machinery[0].remembered

    @property
    def _caches(self) -> Caches:
        return self._machinery[1]

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

    def list(self) -> dict[str, Shelved]:
        """Id → where it comes from, sorted; nothing is read."""
        self._wait(self._prepare())
        return self._shelf.list()

    def broken(self) -> dict[str, WorkflowInvalid]:
        """Id → why its file cannot be read. No plugin is activated."""
        return self._shelf.broken()

    def get_workflow(self, id_: str) -> Workflow:
        """One workflow.

        Raises:
            WorkflowNotFound: there is none (WORKFLOW_NOT_FOUND).
            WorkflowInvalid: its file is wrong (WORKFLOW_INVALID).
        """
        self._wait(self._prepare())
        return self._shelf.get(id_)

    def find(self, what: Any) -> Workflow:
        """A workflow by its id, the path of its file, or its content. Raises as `get_workflow`."""
        from tavern_core.flow.compiler import as_workflow

        self._wait(self._prepare())
        return as_workflow(what, self._shelf)

    def file(self, path: str, plugin: str) -> Workflow:
        """The workflow in a file of a plugin; it refers to the plugin's other workflows by their names. Raises as `check`."""
        from tavern_core.kernel.manifest.workflow_files import SUFFIX

        return self._shelf.read(Path(path), f"{plugin}.{Path(path).name.removesuffix(SUFFIX)}")

    def check(self, what: Any) -> builtins.list[FlowProblem]:
        """Everything that is wrong with a workflow: its id, the path of a file, its content. Nothing is run.

        Raises:
            WorkflowNotFound: there is none (WORKFLOW_NOT_FOUND).
            WorkflowInvalid: it is no workflow at all; `findings` say where (WORKFLOW_INVALID).
        """
        return self._wait(self.checked(what))  # type: ignore[no-any-return]

    async def checked(self, what: Any) -> builtins.list[FlowProblem]:
        """`check` for code in an event loop."""
        made: Made = await self._running.made(what)
        return [*made.problems]

    def graph(self, what: Any, form: str = "mermaid") -> str:
        """A picture of a workflow: ``mermaid`` or ``svg``. Raises as `check`; UsageError: another form (USAGE)."""
        from tavern_core.flow.compiler import as_workflow
        from tavern_core.graph.picture import mermaid, svg

        if form not in ("mermaid", "svg"):
            raise UsageError(f"there is no picture of the form {form!r:.100}", hint='"mermaid" or "svg"')
        self._wait(self._prepare())
        workflow = as_workflow(what, self._shelf)
        return svg(workflow) if form == "svg" else mermaid(workflow)

    def save(self, id_: str, workflow: Workflow | Mapping[str, Any], *, rev: int | None = None) -> Workflow:
        """Write a workflow into the first folder of `workflows.roots`; see `WorkflowShelf.save`."""
        from tavern_core.flow.compiler import as_workflow

        return self._shelf.save(id_, as_workflow(workflow, self._shelf), rev=rev)

    def edit(self, what: Any = None) -> WorkflowEditor:
        """An editor that keeps a workflow valid: each edit that would add an error is refused. None: begin an empty one.

        Its `workflow` is what came out; `save` writes it. Raises as `check`.
        """
        from tavern_core.flow.compiler import as_workflow
        from tavern_core.graph.edit import WorkflowEditor
        from tavern_core.kernel.manifest.workflow_files import workflow_of

        workflow = as_workflow({"nodes": [], "edges": []} if what is None else what, self._shelf)
        return WorkflowEditor(workflow, self.check, workflow_of)

    # Running -------------------------------------------------------------------------------------------------------------

    async def run(
        self, what: Any, inputs: Mapping[str, Any] | None = None, *, context: CallContext | None = None, **options: Any
    ) -> RunResult:
        """Run a workflow to its end.

        Args:
            what: its id, the path of a file, its content, or a Workflow.
            inputs: values for its interface.
            context: who calls and with what rights; None: the host.
            options: fields of `RunOptions`; `again` (a run id: take its answers where nothing changed), `start_at` (node ids: run
                these and what depends on them again, whatever their answers were), `answers` (question → what a person said),
                `cache=False` (use no kept answers), `keep=False` (put nothing into the store).

        Raises:
            WorkflowNotFound, WorkflowInvalid: as `check`.
            InputInvalid: an input is missing or does not fit (INPUT_SCHEMA_INVALID).
            PolicyDenied: a hook refused, or a node may not do what it does (POLICY_DENIED).
        """
        return await self._running.through(await self._running.begin(what, inputs or {}, context, options))

    def run_sync(self, what: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
        """`run` for code without an event loop."""
        result: RunResult = self._wait(self.run(what, inputs, **options))
        return result

    async def start(
        self, what: Any, inputs: Mapping[str, Any] | None = None, *, context: CallContext | None = None, **options: Any
    ) -> RunHandle:
        """Begin a run in the background. Raises as `run`."""
        begun = await self._running.begin(what, inputs or {}, context, options)
        return self._in_background(begun)

    def cancel(self, run_id: str) -> bool:
        """End a run, from any thread, or from another process of the state folder; False: it is over already.

        Raises:
            RunNotFound: there is none (RUN_NOT_FOUND).
        """
        if (run := self._here(run_id)) is not None:
            return run.cancel()
        self._caches.runs.find(run_id)
        return self._caches.runs.ask_to_end(run_id)

    def answer(self, run_id: str, question: str, value: Any) -> bool:
        """Answer a question of a node; False: nobody waits for it, or somebody was quicker.

        A run of another process gets it within a quarter of a second; of one that nobody runs it is kept for `resume`.

        Raises:
            RunNotFound: there is no such run here, and none elsewhere that asks this (RUN_NOT_FOUND).
            InputInvalid: the answer does not fit the question, which stays open (INPUT_SCHEMA_INVALID).
        """
        if (run := self._here(run_id)) is not None and not run.is_left:
            return run.answer(question, value)
        asked = next((each for each in self._asked(run_id) if each.id == question), None)
        if asked is None:
            raise self._not_here(run_id)
        if (refusal := asked.refusal(value)) is not None:
            raise refusal
        return self._caches.runs.leave_answer(run_id, question, value)

    def questions(self, run_id: str) -> tuple[Question, ...]:
        """What the nodes of a run wait to be told, of another process or of one that nobody runs as well.

        Raises:
            RunNotFound: there is no such run here, and none elsewhere that asks anything (RUN_NOT_FOUND).
        """
        if (run := self._here(run_id)) is not None and not run.is_left:
            return tuple(run.questions.values())
        if not (found := self._asked(run_id)) and run is None:
            raise self._not_here(run_id)
        answered = self._caches.runs.answers(run_id)
        return tuple(question for question in found if question.id not in answered)

    def _asked(self, run_id: str) -> tuple[Question, ...]:
        """The open questions of a kept run, those that an answer was left for as well."""
        from tavern_core.flow.engine.run import Question

        kept = self._caches.runs.get(run_id)
        return () if kept is None else tuple(Question(**question) for question in kept.questions)

    def events(self, run_id: str, after: int = 0) -> builtins.list[RunEvent]:
        """What happened in a run behind the event with the number `after`, of a kept one as well. Raises as `cancel`."""
        if (run := self._here(run_id)) is not None:
            return run.events(after)
        self._caches.runs.find(run_id)
        return self._caches.runs.events(run_id, after)

    async def follow(self, run_id: str, after: int = 0) -> AsyncIterator[RunEvent]:
        """The events of a run, first those that happened, then those that happen, until it is over. Raises as `cancel`.

        It may be a run of another process. When that process ends before the run does, the last event is `run:` with the state that is left:
        `run:interrupted`, or `run:waiting` for an answer.
        """
        from tavern_core.flow.run_handle import followed

        if (run := self._here(run_id)) is not None:
            async for event in followed(run, after):
                yield event
            return
        runs, place = self._caches.runs, 0
        runs.find(run_id)
        while True:
            goes_on = runs.is_going_on(run_id)  # asked first: what it wrote before it ended is read below
            found, place = runs.read_on(run_id, after, place)
            for event in found:
                after = event.seq
                yield event
            if not goes_on:
                break
            await asyncio.sleep(_LOOK_S)
        if (state := runs.find(run_id).state) not in ("complete", "error", "cancelled"):
            yield RunEvent(after + 1, time.time(), f"run:{state}")

    def kept(self, workflow: str = "", most: int = 100) -> builtins.list[KeptRun]:
        """The runs in the store, newest first; those of other processes of this state folder included."""
        return self._caches.runs.list(workflow, most)

    def kept_run(self, run_id: str) -> KeptRun | None:
        """One run of the store, or None. Raises StateDamaged (STATE_DAMAGED)."""
        return self._caches.runs.get(run_id)

    async def record(self, run_id: str) -> RunRecord:
        """A kept run node by node: states, times, what each was given and gave; of one that goes on, what there is by now.

        Raises:
            RunNotFound: no such run is kept (RUN_NOT_FOUND).
        """
        from tavern_core.flow.resuming import document_of_run
        from tavern_core.flow.run_records import record_of

        kept = self._caches.runs.find(run_id)
        steps, _ = self._caches.runs.steps(run_id)
        prepared: Prepared | None = None
        if "content" not in kept.masked:  # else the values of the file are secrets
            with suppress(TavernError):
                prepared = (await self._running.made(document_of_run(kept, self._shelf))).prepared
        return record_of(
            kept, self.events(run_id), {path: outputs for path, (_, _, outputs) in steps.items()}, prepared
        )

    async def resume(
        self, run_id: str, answers: Mapping[str, Any] | None = None, *, inputs: Mapping[str, Any] | None = None,
        context: CallContext | None = None, **options: Any,
    ) -> RunResult:  # fmt: skip
        """Take up a run that ended, failed, or waited for a person when its process ended. It stays the same run, with its id.

        Nodes that were complete and whose inputs are the same are not run again. It runs as its own caller, with what is left of its
        budget and its deadline; `tavern_before_workflow` hooks see only inputs that are given anew. Of several that take a run up at once
        one does; when its process dies, another may.

        Args:
            answers: question → what a person says, besides what was answered before.
            inputs: values for its interface, in place of those it had: secrets among them are not kept.
            context: who takes it up; another caller than its own may not. None: the host, which lends it no rights.
            options: as of `run`, in place of those it had; not `again`, `keep`.

        Raises:
            RunNotFound: no such run is kept (RUN_NOT_FOUND).
            InputInvalid: an answer does not fit its question, or answers none (INPUT_SCHEMA_INVALID).
            PolicyDenied: it belongs to another caller, or its caller may not do that any more (POLICY_DENIED).
            StateDamaged: what is kept of it is damaged (STATE_DAMAGED).
            UsageError: it still goes on, was taken up and is complete, was kept without its caller, or a secret that it was given must
                be given again (USAGE).
        """
        return await self._running.through(await self._taken_up(run_id, answers, inputs, context, options))

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
    ) -> Begun:  # fmt: skip
        return await self._running.take_up(run_id, answers or {}, inputs or {}, context, options)

    def _in_background(self, begun: Begun) -> RunHandle:
        from tavern_core.flow.run_handle import RunHandle

        task = asyncio.create_task(self._running.through(begun))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if (keeper := begun.keeper) is not None:
            task.add_done_callback(lambda _: keeper.let_go())  # it may be cancelled before it begins
        return RunHandle(begun.run, task)

    def runs(self) -> builtins.list[str]:
        """The ids of the runs that are remembered, oldest first."""
        return self._runs.ids()

    async def close(self) -> None:
        """Cancel every run."""
        if self._made is None:
            return
        for run in self._runs.all():
            run.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        with suppress(StateDamaged):
            self._caches.runs.tidy()
        self._caches.disk.close()
        self._caches.runs.close()

    def _here(self, run_id: str) -> Run | None:
        """A run of this host; None: there is none, or another process has taken it up since."""
        if (known := self._runs.get(run_id)) is None or not known[0].is_over:
            return known[0] if known is not None else None
        with suppress(StateDamaged):
            kept = self._caches.runs.get(run_id)
            if kept is not None and kept.times_taken_up != known[0].times_taken_up:
                return None
        return known[0]

    def _not_here(self, run_id: str) -> RunNotFound:
        hint = did_you_mean(run_id, self._runs.ids()) or "tavern workflows runs"
        with suppress(StateDamaged):
            if self._caches.runs.get(run_id) is not None:
                hint = "another process ran it, and it asks nothing like that; once that has ended, take it up: tavern.workflows.resume(...)"
        return RunNotFound(f"there is no run {run_id!r} in this host", hint=hint)
