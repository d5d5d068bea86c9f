"""`tavern.workflows`: list, check, run, cancel and answer workflows; every run through the same steps.

    find → compile (all problems at once) → rights of its nodes → before_workflow hooks → check inputs → run → record → after_workflow
"""

from __future__ import annotations

import asyncio
import builtins
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from tavern_core.errors import (
    InputInvalid,
    PolicyDenied,
    RunNotFound,
    StateDamaged,
    TavernError,
    UsageError,
    WorkflowNotFound,
)
from tavern_core.graph.edit import WorkflowEditor
from tavern_core.graph.picture import mermaid, svg
from tavern_core.graph.problems import Problem
from tavern_core.graph.slots import chosen
from tavern_core.kernel.calls.pipeline import Frame, current
from tavern_core.kernel.engine.cache import DiskCache, Earlier, RunCache, SessionCache
from tavern_core.kernel.engine.groups import given as interface_values
from tavern_core.kernel.engine.parts import NodeDoors
from tavern_core.kernel.engine.prepared import Prepared
from tavern_core.kernel.engine.run import Question, Run, RunOptions
from tavern_core.kernel.engine.store import KeptRun, RunStore
from tavern_core.kernel.engine.trouble import MisfitInput
from tavern_core.kernel.hooks.flow_calls import FlowCalls
from tavern_core.kernel.hooks.table import HookTable
from tavern_core.kernel.life.lifecycle import Lifecycle
from tavern_core.kernel.manifest.workflow_files import SUFFIX, workflow_of
from tavern_core.kernel.running.threads import Workers
from tavern_core.kernel.settings.striking import struck_outputs
from tavern_core.kernel.workflows.around import NodeHooks
from tavern_core.kernel.workflows.compiling import Compiling, Made, as_workflow
from tavern_core.kernel.workflows.keeping import Keeper
from tavern_core.kernel.workflows.records import record_of
from tavern_core.kernel.workflows.remembered import Remembered
from tavern_core.kernel.workflows.shelf import Shelved, WorkflowShelf
from tavern_core.model.call import CallContext
from tavern_core.model.capability import is_dangerous
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.node import NodeSpec
from tavern_core.model.run import RunEvent, RunInfo, RunRecord, RunResult
from tavern_core.model.workflow import Workflow

_OPTIONS: Final = frozenset({field.name for field in fields(RunOptions)} | {"again", "start_at", "answers", "cache", "keep", "run_id"})
_MOST_WRITTEN: Final = 200
"""Workflows without a file whose document is remembered."""
_RUN_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}\Z")
_OVER: Final = frozenset({"run:complete", "run:error", "run:cancelled"})
Note = Callable[[str, Mapping[str, Any]], Any]
"""Put an event on the record: (type, data)."""


@dataclass(frozen=True, slots=True)
class Caches:
    """Where answers of nodes are kept."""

    session: SessionCache
    disk: DiskCache
    runs: RunStore


class RunHandle:
    """A run that goes on in the background. ``await handle`` gives its result."""

    def __init__(self, run: Run, task: asyncio.Task[RunResult]) -> None:
        self._run = run
        self._task = task
        self.id = run.id

    def cancel(self) -> bool:
        """End it; False: it is over already."""
        return self._run.cancel()

    async def stop(self) -> None:
        """Cancel it, and wait for its end."""
        self._run.cancel()
        await asyncio.wait([self._task], timeout=2 * self._run.grace)

    def answer(self, question: str, value: Any) -> bool:
        """Answer a question of one of its nodes; False: nobody waits for it.

        Raises:
            InputInvalid: the answer does not fit the question, which stays open (INPUT_SCHEMA_INVALID).
        """
        return self._run.answer(question, value)

    @property
    def is_over(self) -> bool:
        """True when it has ended."""
        return self._run.is_over

    @property
    def questions(self) -> tuple[Question, ...]:
        """What its nodes wait to be told."""
        return tuple(self._run.questions.values())

    def __await__(self) -> Any:
        return self._task.__await__()

    def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """What happens, from the event behind `after` on until the run is over."""
        return _followed(self._run, after, self._task)


async def _followed(run: Run, after: int, task: asyncio.Task[RunResult] | None = None) -> AsyncIterator[RunEvent]:
    """The events of a run as they happen, on whatever loop; ends with the run (or with `task`, should that end without one)."""
    happened, loop = asyncio.Event(), asyncio.get_running_loop()

    def tell() -> None:
        if run.loop is loop or run.loop is None:
            happened.set()
        else:
            with suppress(RuntimeError):  # whoever followed has closed its loop
                loop.call_soon_threadsafe(happened.set)

    stop = run.listen(tell)
    if task is not None:
        task.add_done_callback(lambda _: happened.set())
    try:
        while True:
            happened.clear()
            for event in run.events(after):
                after = event.seq
                yield event
                if event.kind in _OVER:
                    return
            if (task is not None and task.done()) or (run.is_over and not run.events(after)):
                return
            await happened.wait()
    finally:
        stop()


class Workflows(Mapping[str, Workflow]):
    """The workflows of one host, by id."""

    def __init__(
        self,
        shelf: WorkflowShelf,
        compiling: Compiling,
        *,
        lifecycle: Lifecycle,
        hooks: HookTable,
        calls: FlowCalls,
        threads: Workers,
        doors: NodeDoors,
        caches: Caches,
        host: CallContext,
        note: Note,
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
        prepare: Callable[[], Coroutine[Any, Any, None]],
        defaults: Mapping[str, Any],
        mask: Callable[[Any], Any],
        secrets: Callable[[], Collection[str]],
    ) -> None:
        self._shelf = shelf
        self._compiling = compiling
        self._lifecycle = lifecycle
        self._hooks = hooks
        self._calls = calls
        self._threads = threads
        self._doors = doors
        self._caches = caches
        self._host = host
        self._note = note
        self._wait = wait
        self._prepare = prepare
        self._defaults = defaults
        self._mask = mask
        self._secrets = secrets
        self._runs = Remembered()
        self._written: dict[int, tuple[Workflow, Workflow]] = {}
        """Workflows that no file holds, and the same with the document that a file of theirs would be."""
        self._tasks: set[asyncio.Task[Any]] = set()

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
        self._wait(self._prepare())
        return as_workflow(what, self._shelf)

    def file(self, path: str, plugin: str) -> Workflow:
        """The workflow in a file of a plugin; it refers to the plugin's other workflows by their names. Raises as `check`."""
        return self._shelf.read(Path(path), f"{plugin}.{Path(path).name.removesuffix(SUFFIX)}")

    def check(self, what: Any) -> builtins.list[Problem]:
        """Everything that is wrong with a workflow: its id, the path of a file, its content. Nothing is run.

        Raises:
            WorkflowNotFound: there is none (WORKFLOW_NOT_FOUND).
            WorkflowInvalid: it is no workflow at all; `findings` say where (WORKFLOW_INVALID).
        """
        made: Made = self._wait(self._made(what))
        return [*made.problems]

    def graph(self, what: Any, form: str = "mermaid") -> str:
        """A picture of a workflow: ``mermaid`` or ``svg``. Raises as `check`; UsageError: another form (USAGE)."""
        if form not in ("mermaid", "svg"):
            raise UsageError(f"there is no picture of the form {form!r:.100}", hint='"mermaid" or "svg"')
        self._wait(self._prepare())
        workflow = as_workflow(what, self._shelf)
        return svg(workflow) if form == "svg" else mermaid(workflow)

    def save(self, id_: str, workflow: Workflow | Mapping[str, Any], *, rev: int | None = None) -> Workflow:
        """Write a workflow into the first folder of `workflows.roots`; see `WorkflowShelf.save`."""
        return self._shelf.save(id_, as_workflow(workflow, self._shelf), rev=rev)

    def edit(self, what: Any = None) -> WorkflowEditor:
        """An editor that keeps a workflow valid: each edit that would add an error is refused. None: begin an empty one.

        Its `workflow` is what came out; `save` writes it. Raises as `check`.
        """
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
        return await self._through(*await self._begin(what, inputs or {}, context, options))

    def run_sync(self, what: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> RunResult:
        """`run` for code without an event loop."""
        result: RunResult = self._wait(self.run(what, inputs, **options))
        return result

    async def start(
        self, what: Any, inputs: Mapping[str, Any] | None = None, *, context: CallContext | None = None, **options: Any
    ) -> RunHandle:
        """Begin a run in the background. Raises as `run`."""
        run, info, keeper = await self._begin(what, inputs or {}, context, options)
        task = asyncio.create_task(self._through(run, info, keeper))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return RunHandle(run, task)

    def cancel(self, run_id: str) -> bool:
        """End a run, from any thread, or from another process of the state folder; False: it is over already.

        Raises:
            RunNotFound: there is none (RUN_NOT_FOUND).
        """
        if (known := self._runs.get(run_id)) is not None:
            return known[0].cancel()
        self._kept(run_id)
        return self._caches.runs.ask_to_end(run_id)

    def answer(self, run_id: str, question: str, value: Any) -> bool:
        """Answer a question of a node; False: nobody waits for it.

        Raises:
            RunNotFound: there is no such run (RUN_NOT_FOUND).
            InputInvalid: the answer does not fit the question, which stays open (INPUT_SCHEMA_INVALID).
        """
        return self._of(run_id).answer(question, value)

    def questions(self, run_id: str) -> tuple[Question, ...]:
        """What the nodes of a run wait to be told. Raises as `cancel`."""
        return tuple(self._of(run_id).questions.values())

    def events(self, run_id: str, after: int = 0) -> builtins.list[RunEvent]:
        """What happened in a run behind the event with the number `after`, of a kept one as well. Raises as `cancel`."""
        if (known := self._runs.get(run_id)) is not None:
            return known[0].events(after)
        self._kept(run_id)
        return self._caches.runs.events(run_id, after)

    async def follow(self, run_id: str, after: int = 0) -> AsyncIterator[RunEvent]:
        """The events of a run, first those that happened, then those that happen, until it is over. Raises as `cancel`."""
        if (known := self._runs.get(run_id)) is None:
            for event in self.events(run_id, after):
                yield event
            return
        async for event in _followed(known[0], after):
            yield event

    def kept(self, workflow: str = "", most: int = 100) -> builtins.list[KeptRun]:
        """The runs in the store, newest first; those of other processes of this state folder included."""
        return self._caches.runs.list(workflow, most)

    async def record(self, run_id: str) -> RunRecord:
        """A kept run node by node: states, times, what each was given and gave; of one that goes on, what there is by now.

        Raises:
            RunNotFound: no such run is kept (RUN_NOT_FOUND).
        """
        kept = self._kept(run_id)
        steps, _ = self._caches.runs.steps(run_id)
        prepared: Prepared | None = None
        if "content" not in kept.masked:  # else the values of the file are secrets
            with suppress(TavernError):
                prepared = (await self._made(self._document(kept))).prepared
        return record_of(kept, self.events(run_id), {path: outputs for path, (_, _, outputs) in steps.items()}, prepared)

    async def resume(
        self, run_id: str, answers: Mapping[str, Any] | None = None, *, inputs: Mapping[str, Any] | None = None, **options: Any
    ) -> RunResult:
        """Take up a run that ended, failed, or waited for a person when its process ended.

        Nodes that were complete and whose inputs are the same are not run again.

        Args:
            answers: question → what a person says, besides what was answered before.
            inputs: values for its interface, in place of those it had: secrets among them are not kept.

        Raises:
            RunNotFound: no such run is kept (RUN_NOT_FOUND).
            InputInvalid: an answer does not fit its question, or answers none (INPUT_SCHEMA_INVALID).
            UsageError: it still goes on, or a secret that it was given must be given again (USAGE).
        """
        kept = self._kept(run_id)
        if self._caches.runs.is_going_on(run_id):
            raise UsageError(f"{run_id} still goes on", hint="answer its questions, or cancel it first")
        _check_answers(kept, answers or {})
        own = {**kept.inputs, **(inputs or {})}
        known = {**{key: value for key, value in kept.answers.items() if f"answers/{key}" not in kept.masked}, **(answers or {})}
        if missing := [key for key in kept.masked if key in kept.inputs and key not in (inputs or {})]:
            raise UsageError(
                f"{run_id} was given secrets, or what no file can hold, and they are not kept: {', '.join(missing)}",
                hint=f"give them again: resume({run_id!r}, inputs={{{missing[0]!r}: ...}})",
            )
        return await self.run(self._document(kept), own, again=run_id, answers=known, **options)

    def _document(self, kept: KeptRun) -> Workflow:
        """The workflow as it was run; where that held secrets, as it is now."""
        is_whole = "content" not in kept.masked and bool(kept.content)
        if not is_whole and not kept.workflow:
            raise UsageError(
                f"the workflow of {kept.run_id} held secrets, which are not kept", hint=f"give it again: run(workflow, inputs, again={kept.run_id!r})"
            )
        workflow = as_workflow(dict(kept.content), self._shelf) if is_whole else self._shelf.get(kept.workflow)
        return workflow.model_copy(update={"id": kept.workflow})

    def _kept(self, run_id: str) -> KeptRun:
        found = self._caches.runs.get(run_id)
        if found is None:
            near = [run.run_id for run in self._caches.runs.list()]
            raise RunNotFound(f"there is no run {run_id!r}", hint=did_you_mean(run_id, near) or "tavern workflows runs")
        return found

    def runs(self) -> builtins.list[str]:
        """The ids of the runs that are remembered, oldest first."""
        return self._runs.ids()

    async def close(self) -> None:
        """Cancel every run."""
        for run in self._runs.all():
            run.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        with suppress(StateDamaged):
            self._caches.runs.tidy()
        self._caches.disk.close()
        self._caches.runs.close()

    # The steps of a run --------------------------------------------------------------------------------------------------

    async def _made(self, what: Any) -> Made:
        await self._prepare()
        return await self._compiling.make(self._read(what))

    def _read(self, what: Any) -> Workflow:
        """`as_workflow`; the same object for the same one, so that it is compiled once."""
        if not isinstance(what, Workflow) or what.raw:
            return as_workflow(what, self._shelf)
        known = self._written.get(id(what))
        if known is None or known[0] is not what:
            if len(self._written) >= _MOST_WRITTEN:
                self._written.clear()
            known = self._written[id(what)] = what, as_workflow(what, self._shelf)
        return known[1]

    async def _begin(
        self, what: Any, inputs: Mapping[str, Any], context: CallContext | None, options: Mapping[str, Any]
    ) -> tuple[Run, RunInfo, Keeper | None]:
        made = await self._made(what)
        if made.prepared is None:
            raise made.refuse()
        caller = context or self._host
        self._judge(made.prepared, caller)
        if unknown := next((name for name in options if name not in _OPTIONS), None):
            raise UsageError(f"a run has no option {unknown!r}", hint=did_you_mean(unknown, _OPTIONS) or f"options: {', '.join(sorted(_OPTIONS))}")
        if not isinstance(options.get("again", ""), str | None) or not isinstance(options.get("answers", {}), Mapping | None):
            raise UsageError("`again` takes the id of a run, `answers` a mapping of questions", hint="run(what, inputs, again='run-…')")
        given = {**self._defaults, **options}
        again, start_at = given.pop("again", None), given.pop("start_at", ())
        if start_at and again is None:
            raise UsageError("start_at needs `again`: the run whose other answers are taken", hint="run(what, inputs, again=run_id, start_at=[...])")
        run_id, answers, is_off = given.pop("run_id", ""), given.pop("answers", None), given.pop("cache", True) is False
        is_kept = given.pop("keep", True)
        if run_id and (not _RUN_ID.match(run_id) or run_id in self._runs or (is_kept and self._caches.runs.get(run_id) is not None)):
            raise UsageError(f"{run_id!r} cannot be the id of a new run", hint="use 1 to 100 of A-Z a-z 0-9 _ . - and no id twice")
        cache = RunCache(self._caches.session, self._caches.disk, self._earlier(again, made.prepared, start_at), is_off=is_off)
        run = Run(
            made.prepared, {}, threads=self._threads, doors=self._doors, context=caller, options=RunOptions(**given),
            cache=cache, answers=answers, run_id=run_id,
        )  # fmt: skip
        run.mask = self._mask
        cache.on_lost = lambda path, why: run.note("again", path, {"why": why})
        info = RunInfo(run.id, made.workflow.id, caller.principal or "")
        run.inputs = await self._changed(inputs, run, info, made)
        _check_inputs(run, info)
        run.check_wishes()
        before, after = self._hooks.of("tavern_before_node"), self._hooks.of("tavern_after_node")
        if before or after:
            run.around = NodeHooks(self._calls, before, after, info)
        self._runs.add(run, cache)
        return run, info, Keeper(self._caches.runs, run, cache, made.workflow) if is_kept else None

    async def _through(self, run: Run, info: RunInfo, keeper: Keeper | None) -> RunResult:
        self._note("WORKFLOW_STARTED", {"runId": run.id, "workflow": info.workflow, "principal": info.principal})
        result: RunResult | None = None
        if keeper is not None:
            keeper.begin(time.time())
        token = current.set(self._frame(run.context))
        try:
            result = await run.execute()
        finally:
            current.reset(token)
            self._runs.ended(run)
            if keeper is not None:
                keeper.end(result)
            told = {"runId": run.id, "workflow": info.workflow, "state": "cancelled" if result is None else result.state}
            took = 0.0 if result is None else round(result.latency_ms, 3)
            errors = [error.to_json() for error in run.errors[:20]]
            self._note("WORKFLOW_FINISHED", {**told, "latencyMs": took, "errors": self._mask(errors)})
        result = replace(result, outputs=struck_outputs(result.outputs, self._secrets()))
        if observers := self._hooks.of("tavern_after_workflow"):
            seen = RunInfo(run.id, info.workflow, info.principal, result.state)
            await self._calls.tell(observers, {"run": seen, "outputs": dict(result.outputs)})
        return result

    def _frame(self, caller: CallContext) -> Frame:
        """In whose name code of nodes uses services: the caller's of the run; without one that of the call in which it is begun."""
        outer: Frame = current.get() or (0, None, None, "")
        return outer if caller is self._host else (outer[0], outer[1], caller, outer[3])

    async def _changed(self, inputs: Mapping[str, Any], run: Run, info: RunInfo, made: Made) -> dict[str, Any]:
        """The inputs as the `tavern_before_workflow` hooks leave them; names that the workflow lacks are refused."""
        own = dict(inputs)
        if implementations := self._hooks.of("tavern_before_workflow"):
            own, changes = await self._calls.change_inputs(implementations, {"run": info}, own, ("workflow", info.workflow or "without a name"))
            for plugin, what in changes:
                run.note("changed", "", {"plugin": plugin, "inputs": what})
                self._note("WORKFLOW_CHANGED", {"runId": run.id, "plugin": plugin, "inputs": what})
        known = made.prepared.plan.inputs if made.prepared is not None else {}
        own = {key: chosen(known[key], value) if key in known else value for key, value in own.items()}
        if unknown := [key for key in own if key not in known]:
            raise InputInvalid(
                f"workflow {info.workflow or 'without a name'} has no input {unknown[0]!r}",
                hint=did_you_mean(unknown[0], known) or f"inputs: {', '.join(known) or 'none'}",
                problems=[{"pointer": f"/{key}", "message": "unknown input"} for key in unknown],
            )
        return own

    def _judge(self, prepared: Prepared, caller: CallContext) -> None:
        """May the nodes do what they say they do, for this caller?

        Raises:
            PolicyDenied: a capability is not granted to the plugin, or to the caller (POLICY_DENIED).
        """
        for spec in _specs(prepared):
            record = self._lifecycle.records.get(spec.plugin)
            for capability in sorted(spec.capabilities):
                if record is not None and not record.candidate.fixed_id and not record.candidate.implicit and not record.may(capability):
                    raise PolicyDenied(
                        f"node type {spec.type} needs {capability}, which plugin {spec.plugin} was not granted",
                        hint=f"tavern plugins grant {spec.plugin} {capability}", plugin=spec.plugin, missing=[capability],
                    )  # fmt: skip
                if caller is self._host and not is_dangerous(capability):
                    continue
                if capability not in caller.permissions:
                    raise PolicyDenied(
                        f"node type {spec.type} needs {capability}, which the caller does not have",
                        hint=f"CallContext(permissions={{{capability!r}}})", missing=[capability],
                    )  # fmt: skip

    def _earlier(self, again: str | None, prepared: Prepared, start_at: Any) -> Earlier | None:
        if again is None:
            return None
        lost: Mapping[str, str] | None
        if (known := self._runs.get(again)) is not None:
            steps, lost = dict(known[1].steps), None
        else:
            self._kept(again)
            steps, lost = self._caches.runs.steps(again)
        names = {start_at} if isinstance(start_at, str) else set(start_at)
        for name in names:
            if prepared.plan.step(name.partition("/")[0]) is None:
                ids = [step.id for step in prepared.plan.steps]
                raise UsageError(f"the workflow has no node {name!r}", hint=did_you_mean(name, ids) or f"nodes: {', '.join(ids[:20])}")
        return Earlier(steps, names, lost)

    def _of(self, run_id: str) -> Run:
        found = self._runs.get(run_id)
        if found is None:
            hint = did_you_mean(run_id, self._runs.ids()) or "tavern workflows runs"
            with suppress(StateDamaged):
                if self._caches.runs.get(run_id) is not None:
                    hint = "another process ran it; once that has ended, take it up: tavern.workflows.resume(...)"
            raise RunNotFound(f"there is no run {run_id!r} in this host", hint=hint)
        return found[0]


def _check_answers(kept: KeptRun, answers: Mapping[str, Any]) -> None:
    """Do the answers fit what was asked? Raises InputInvalid (INPUT_SCHEMA_INVALID)."""
    known = [*(asked["id"] for asked in kept.questions), *kept.answers]
    if unknown := [name for name in answers if name not in known]:
        raise InputInvalid(
            f"{kept.run_id} did not ask {unknown[0]!r}", hint=did_you_mean(unknown[0], known) or f"open questions: {', '.join(known) or 'none'}",
            problems=[{"pointer": f"/{name}", "message": "unknown question"} for name in unknown],
        )  # fmt: skip
    for asked in kept.questions:
        name = asked["id"]
        if name in answers and (why := Question(name, asked["path"], asked["schema"]).misfit(answers[name])):
            raise InputInvalid(
                f"the answer to {name} does not fit: {why}", hint="answer again; the question stays open",
                question=name, schema=dict(asked["schema"]), problems=[{"pointer": "", "message": why}],
            )  # fmt: skip


def _check_inputs(run: Run, info: RunInfo) -> None:
    """Do the inputs fit the interface?

    Raises:
        InputInvalid: one is missing or does not fit (INPUT_SCHEMA_INVALID).
    """
    try:
        interface_values(run.prepared, run.inputs)
    except MisfitInput as error:
        raise InputInvalid(
            f"workflow {info.workflow or 'without a name'}: input {error.slot!r} {error.why}", hint=f"inputs: {', '.join(run.prepared.plan.inputs) or 'none'}",
            problems=[{"pointer": f"/{error.slot}", "message": error.why}],
        ) from None  # fmt: skip


def _specs(prepared: Prepared) -> Iterator[NodeSpec]:
    """Every node type in a plan and in its groups, each once."""
    seen: set[int] = set()
    types: set[str] = set()
    stack = [prepared]
    while stack:
        each = stack.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        stack.extend(each.inner.values())
        for work in each.works:
            if work.step.type not in types:
                types.add(work.step.type)
                yield work.step.spec


