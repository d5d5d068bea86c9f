"""Resuming a stored run: its state, whether it may continue, and with which data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tavern_core.errors import InputInvalid, UsageError
from tavern_core.flow.compiled_workflow_cache import as_workflow
from tavern_core.flow.engine.journal import Journal
from tavern_core.flow.engine.run_options import NodeQuestion, RunOptions
from tavern_core.flow.engine.sqlite_run_store import StoredRun
from tavern_core.flow.workflow_files import WorkflowFiles
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.workflow import Workflow

_NOT_AGAIN = ("again", "keep")
"""Options that make no sense for an existing run."""


_LASTING = ("concurrency", "types", "resources", "to", "timeout_ms", "cache")
"""Options that are stored with a run."""


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """A run that is resumed."""

    stored: StoredRun
    """As it will be stored."""
    journal: Journal
    inputs: Mapping[str, Any]
    """The original inputs, with new ones replaced."""
    hooked_inputs: Mapping[str, Any] | None
    """The inputs as changed by hooks at its start; None: hooks must see the new inputs."""
    options: Mapping[str, Any]
    anew: frozenset[str]
    """Nodes that ask again, because their answer was replaced."""


def taken_up(
    stored: StoredRun,
    journal: Journal,
    answers: Mapping[str, Any],
    inputs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> ResumedRun:
    """Collect the data with which the run continues.

    Raises:
        InputInvalid: an answer does not fit its question, or answers none (INPUT_SCHEMA_INVALID).
        UsageError: it was resumed and is complete; a secret must be passed again; it has no time left; an option is invalid here (USAGE).
    """
    run_id = stored.run_id
    if wrong := next((name for name in _NOT_AGAIN if name in options), None):
        raise UsageError(f"a run that is taken up has no option {wrong!r}", hint="it stays the run that it is")
    if stored.state == "complete" and stored.times_taken_up:
        raise UsageError(
            f"{run_id} was taken up already, and is complete",
            hint=f"run it again: run(workflow, inputs, again={run_id!r})",
        )
    _check_answers(stored, answers)
    if missing := [key for key in stored.masked if key in stored.inputs and key not in inputs]:
        raise UsageError(
            f"{run_id} was given secrets, or values that no file can hold, and they are not stored: {', '.join(missing)}",
            hint=f"give them again: resume({run_id!r}, inputs={{{missing[0]!r}: ...}}), "
            f"or `tavern workflows resume {run_id} --input {missing[0]}=...`",
        )
    known = {key: value for key, value in stored.answers.items() if f"answers/{key}" not in stored.masked}
    must_see = bool(inputs) or any(key.startswith("changed/") for key in stored.masked)
    hooked_inputs = None if must_see else stored.inputs if stored.changed is None else stored.changed
    chosen = {**_left(stored, options), **options, "answers": {**known, **answers}}
    anew = frozenset(
        name.rpartition("#")[0] for name, value in answers.items() if name in known and known[name] != value
    )
    resumed = replace(stored, times_taken_up=stored.times_taken_up + 1)
    return ResumedRun(resumed, journal, {**stored.inputs, **inputs}, hooked_inputs, chosen, anew)


def stored_options(run: RunOptions, given: Mapping[str, Any], took: float = 0.0) -> dict[str, Any]:
    """The options that apply again when the run is resumed, as plain JSON.

    Args:
        took: the earlier duration of the run, in milliseconds: its deadline is that of the whole run.
    """
    values: dict[str, Any] = {
        "concurrency": run.concurrency, "types": dict(run.types), "resources": dict(run.resources), "to": [*run.to],
        "timeout_ms": None if run.timeout_ms is None else int(took) + run.timeout_ms, "cache": given.get("cache"),
    }  # fmt: skip
    return {name: values[name] for name in _LASTING if name in given}


def document_of_run(kept: StoredRun, workflow_files: WorkflowFiles) -> Workflow:
    """The workflow as it ran; if it held secrets, its current version.

    Raises:
        UsageError: it held secrets, and there is no file of it (USAGE).
        WorkflowNotFound, WorkflowInvalid: as `WorkflowFiles.get`.
    """
    is_whole = "content" not in kept.masked and bool(kept.content)
    if not is_whole and not kept.workflow:
        raise UsageError(
            f"the workflow of {kept.run_id} held secrets, which are not stored",
            hint=f"give it again: run(workflow, inputs, again={kept.run_id!r})",
        )
    workflow = as_workflow(dict(kept.content), workflow_files) if is_whole else workflow_files.get(kept.workflow)
    return workflow.model_copy(update={"id": kept.workflow})


def _left(stored: StoredRun, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the run, with the rest of its deadline. Raises UsageError: no time is left, and no new one is passed (USAGE)."""
    options_of_run = dict(stored.options)
    if (limit := options_of_run.get("timeout_ms")) is not None and "timeout_ms" not in options:
        options_of_run["timeout_ms"] = limit - int(stored.latency_ms)
        if options_of_run["timeout_ms"] < 1:
            raise UsageError(
                f"{stored.run_id} has used up the {limit} ms that it was given",
                hint=f"give it more time: resume({stored.run_id!r}, timeout_ms=...)",
            )
    return options_of_run


def _check_answers(stored: StoredRun, answers: Mapping[str, Any]) -> None:
    """Check that the answers fit the questions. Raises InputInvalid (INPUT_SCHEMA_INVALID)."""
    known = [*(asked["id"] for asked in stored.questions), *stored.answers]
    if unknown := [name for name in answers if name not in known]:
        raise InputInvalid(
            f"{stored.run_id} did not ask {unknown[0]!r}", hint=did_you_mean(unknown[0], known) or f"open questions: {', '.join(known) or 'none'}",
            problems=[{"pointer": f"/{name}", "message": "unknown question"} for name in unknown],
        )  # fmt: skip
    for asked in stored.questions:
        name = asked["id"]
        if (
            name in answers
            and (refusal := NodeQuestion(name, asked["path"], asked["schema"]).refusal(answers[name])) is not None
        ):
            raise refusal
