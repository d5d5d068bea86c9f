"""Runs of workflows on the command line: inputs, the tree during the run, the result."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tavern_core.cli.errors import ReportedExit, exit_code_of, print_problem
from tavern_core.cli.output import json_text, shorten, visible, write
from tavern_core.cli.prompts import QuestionPrompter, shown
from tavern_core.cli.session import CliSession

if TYPE_CHECKING:
    from tavern_core.flow.engine.sqlite_run_store import StoredRun
    from tavern_core.flow.run_handle import RunHandle
    from tavern_core.model.node import Slot
    from tavern_core.model.run import RunEvent, RunRecord, RunResult

_MARKS: Final[Mapping[str, str]] = {
    "queued": "·", "running": "▶", "complete": "✓", "cached": "↺", "error": "✗", "skipped": "-", "interrupted": "!", "waiting": "?",
}  # fmt: skip
_STYLES: Final[Mapping[str, str]] = {
    "complete": "green", "cached": "cyan", "error": "red", "interrupted": "yellow", "waiting": "yellow", "skipped": "dim",
    "running": "bold",
}  # fmt: skip
_EXITS: Final[Mapping[str, str]] = {"cancelled": "CANCELLED", "waiting": "APPROVAL_REQUIRED"}
_SHOWN_FIRST: Final = frozenset({"running", "waiting", "error"})
_WIDTH: Final = 60
_MOST_ROWS: Final = 40


def typed_inputs(slots: Mapping[str, Slot], texts: Mapping[str, str]) -> dict[str, Any]:
    """Words of the command line in the types of the inputs. One that fits none stays text, which the run refuses with the reason."""
    from tavern_core.schema.slot_to_schema import node_schema
    from tavern_core.schema.text_coercion import coerce_text

    values, _ = coerce_text(node_schema(slots), dict(texts))
    return {**texts, **values}


def finished(session: CliSession, result: RunResult, *, only: str = "") -> None:
    """Print the result of a run; returns the exit code of its first error."""
    from tavern_core.kernel.nodes.json_values import displayable

    outputs = dict(result.outputs.get(only, {})) if only else dict(result.outputs)
    if result.state == "waiting" and not session.as_json:
        outputs = {}  # incomplete outputs are not a result
    if session.as_json:
        session.out.json(
            result.to_json() | {"outputs": {key: displayable(value, 1 << 30) for key, value in outputs.items()}}
        )
    elif len(outputs) == 1 and isinstance(text := next(iter(outputs.values())), str):
        session.out.data(text)
    elif outputs:
        session.out.data(json_text({key: displayable(value, 1 << 30) for key, value in outputs.items()}, indent=2))
    if result.ok:
        return
    if result.state == "waiting":
        print_questions(result.run_id, result.questions)
    for error in result.errors:
        place = f"node {error.path} ({error.type})" if error.path else f"run {result.run_id}"
        print_problem("error", error.kind, f"{place}: {error.message}", error.hint)
    if result.state in _EXITS and not result.errors:
        raise ReportedExit(exit_code_of(_EXITS[result.state]))
    raise ReportedExit(exit_code_of(result.errors[0].kind) if result.errors else 1)


async def through(session: CliSession, handle: RunHandle, title: str) -> RunResult:
    """Follow a run to its end: show nodes and ask questions on the terminal; without one, the run stays waiting."""
    prompter = QuestionPrompter(handle)
    try:
        with RunTree(session, title) as tree:
            async for event in handle.events():
                tree.see(event)
                prompter.look()
            prompter.close()
        result: RunResult = await handle
        return result
    except BaseException:
        handle.cancel()
        raise
    finally:
        prompter.close()


def complete_run(kept: StoredRun, record: RunRecord) -> RunResult:
    """The result of a completed run, as far as it is stored."""
    from tavern_core.graph.plan import GROUP_OUTPUT
    from tavern_core.model.run import RunResult

    nodes = {str(node["id"]): node["type"] for node in kept.content.get("nodes") or ()}
    end_nodes = [
        record.nodes[name].inputs for name, type_ in nodes.items() if type_ == GROUP_OUTPUT and name in record.nodes
    ]
    inner = {edge["source"] for edge in kept.content.get("edges") or ()}
    last = {name: record.nodes[name].outputs for name in nodes if name not in inner and name in record.nodes}
    outputs: Mapping[str, Any] = {key: value for end in end_nodes for key, value in end.items()} if end_nodes else last
    return RunResult(
        record.run_id, record.workflow, "complete", outputs, started=record.started, latency_ms=record.latency_ms
    )


def print_questions(run: str, questions: Iterable[Mapping[str, Any]]) -> None:
    """Print the questions of a waiting run, and how to answer them."""
    for asked in questions:
        what = f"node {asked['path']} asks a person: {asked['prompt']}"
        print_problem(
            "note", "APPROVAL_REQUIRED", f"{run} waits: {what}", f"tavern workflows answer {run} {asked['id']} VALUE"
        )


def show_record(session: CliSession, record: RunRecord) -> None:
    """Print a stored run node by node."""
    from tavern_core.kernel.nodes.json_values import displayable

    session.out.result(displayable(record.to_json()))
    session.out.facts([
        ("run", record.run_id), ("workflow", record.workflow), ("state", record.state), ("took", f"{record.latency_ms:.0f} ms"),
        *((f"input {key}", shorten(json_text(displayable(value)), _WIDTH)) for key, value in record.inputs.items()),
    ])  # fmt: skip
    session.out.text()
    rows = [
        (node.path, node.state, f"{node.duration_ms:.0f} ms" if node.started else "", node.bytes or "",
         shorten(str(node.error["message"]) if node.error else json_text(displayable(node.outputs)) if node.outputs else "", _WIDTH))
        for node in record.nodes.values()
    ]  # fmt: skip
    session.out.table(("node", "state", "took", "bytes", "gave"), rows)
    if not session.as_json:
        print_questions(record.run_id, record.questions)


class RunTree:
    """The nodes of a running run: a live tree on a terminal, one line per event elsewhere (with ``-v``)."""

    def __init__(self, session: CliSession, title: str) -> None:
        self._session = session
        self._title = title
        self._states: dict[str, tuple[str, str]] = {}
        self._live: Any = None
        self._held: list[str] | None = None
        """Lines that wait until the question is answered; None: there is no question."""
        self._is_live = sys.stderr.isatty() and session.verbosity >= 0

    def __enter__(self) -> RunTree:
        if self._is_live:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, no_color=self._session.no_color or None, highlight=False)
            self._live = Live(get_renderable=self._drawn, console=console, refresh_per_second=12, transient=True)
            self._live.__enter__()
        shown.append(self)
        return self

    def pause(self) -> None:
        """Stop drawing while a question is open."""
        self._held = []
        if self._live is not None:
            self._live.stop()

    def go_on(self) -> None:
        """Draw again after the question is answered."""
        held, self._held = self._held or [], None
        write(sys.stderr, "".join(held))
        if self._live is not None and self in shown:
            self._live.start()

    def __exit__(self, *exc: object) -> None:
        shown.remove(self)
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def see(self, event: RunEvent) -> None:
        """Record an event."""
        if event.path and event.kind in _MARKS:
            self._states[event.path] = event.kind, ""
        elif event.kind == "progress":
            total = float(event.data.get("total") or 1) or 1.0
            share = f"{100 * float(event.data.get('done', 0)) / total:.0f} % {event.data.get('text', '')}"
            self._states[event.path] = self._states.get(event.path, ("running", ""))[0], share
        elif event.kind == "ask":
            self._states[event.path] = "waiting", str(event.data.get("prompt", ""))
        if self._live is None and self._session.verbosity > 0:
            line = visible(f"{event.seq:>5} {event.kind:<12} {event.path}") + "\n"
            if (lines := self._held) is not None:
                lines.append(line)
            else:
                write(sys.stderr, line)

    def _drawn(self) -> Any:
        """The current tree; drawn a few times a second from its own thread, independent of the number of events."""
        from rich.text import Text
        from rich.tree import Tree as RichTree

        states = list(self._states.items())
        counts = Counter(state for _, (state, _) in states)
        summary = ", ".join(f"{count} {state}" for state, count in counts.items())
        root = RichTree(Text(f"{self._title}  {summary}"))
        branches: dict[str, Any] = {"": root}
        busy = [path for path, (state, _) in states if state in _SHOWN_FIRST]
        rest = [path for path, (state, _) in states if state not in _SHOWN_FIRST]
        chosen = {*busy[:_MOST_ROWS], *rest[: max(0, _MOST_ROWS - len(busy))]}
        for path, (state, text) in states:
            if path not in chosen:
                continue
            parent, _, name = path.rpartition("/")
            label = Text(f"{_MARKS[state]} {visible(name)}", style=_STYLES.get(state, ""))
            if text:
                label.append(f"  {shorten(text, 60)}", style="dim")
            branches[path] = branches.get(parent, root).add(label)
        if len(states) > len(chosen):
            root.add(Text(f"… and {len(states) - len(chosen)} more", style="dim"))
        return root
