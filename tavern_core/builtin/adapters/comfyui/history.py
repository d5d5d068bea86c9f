"""The outcome of a run of ComfyUI, from its history. ``completed`` and ``status_str`` do not show it: only the messages
do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from tavern_core.contract.exchange import object_at
from tavern_core.errors import InputInvalid, UpstreamError
from tavern_core.frozen_dataclass import dataclass

_MOST_FILES: Final = 256
_MOST_TEXTS: Final = 256
_MOST_LEFT_OUT: Final = 20
_TYPES: Final = ("output", "temp", "input")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a node wrote, as the server refers to it."""

    node: str
    name: str
    where: Mapping[str, str]
    """Parameters of ``/view``, or ``{"id"}`` of an asset."""
    is_temporary: bool = False


@dataclass(frozen=True, slots=True)
class RunOutputs:
    """The outputs of the nodes of a run."""

    files: tuple[OutputFile, ...]
    texts: tuple[str, ...]
    is_cached: bool


def outputs_of(run: str, entry: Mapping[str, Any], only: list[str]) -> RunOutputs:
    """The outputs of a run that is over.

    Args:
        only: nodes whose outputs are wanted; empty: all. Temporary files are taken only if there are no others.

    Raises:
        UpstreamError: it failed, or was interrupted (UPSTREAM_ERROR).
    """
    messages = dict(_messages(entry))
    if "execution_interrupted" in messages:
        raise UpstreamError(
            f"run {run} was interrupted at the server",
            hint="it was stopped there by someone else; call again",
            outcome="unknown",
            reason="interrupted",
        )
    if "execution_error" in messages or object_at(entry, "status").get("status_str") == "error":
        raise _failure(run, messages.get("execution_error", {}))
    files = [file for file in _files(entry) if not only or file.node in only]
    chosen = [file for file in files if not file.is_temporary] or files
    cached = messages.get("execution_cached", {}).get("nodes")
    return RunOutputs(
        tuple(chosen[:_MOST_FILES]), tuple(_texts(entry, only)), bool(cached) and _is_all_cached(cached, entry)
    )


def invalid(data: Any, places: Mapping[str, Any]) -> UpstreamError | InputInvalid:
    """The error for a refused ``POST /prompt``; INPUT_SCHEMA_INVALID if only arguments are at fault.

    Args:
        places: parameter → ``[[node, input], …]``.
    """
    error = data.get("error") if isinstance(data, Mapping) else None
    reason = error.get("message") if isinstance(error, Mapping) else error
    problems = list(_problems(data, places))
    text = "; ".join(map(_said, problems[:5]))
    message = f"ComfyUI refuses the workflow: {text or reason!s:.300}"
    if problems and all(problem["parameter"] for problem in problems):
        return InputInvalid(message, hint="correct the argument", problems=problems)
    return UpstreamError(
        message, hint="open the template in ComfyUI, correct it and export it anew", reason="invalid", problems=problems
    )


def left_out(data: Any, places: Mapping[str, Any]) -> tuple[str, ...]:
    """What the server does not run of a workflow that it took, and why: outputs whose nodes it refuses."""
    return tuple(map(_said, islice(_problems(data, places), _MOST_LEFT_OUT)))


def _said(problem: Mapping[str, Any]) -> str:
    place = f"{problem['parameter'] or problem['input'] or 'input'} of node {problem['node']} ({problem['class']})"
    return f"{place}: {problem['message']}"


def _problems(data: Any, places: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for node, report in object_at(data, "node_errors").items():
        errors = object_at(report).get("errors")
        for error in errors[:20] if isinstance(errors, list) else ():
            if isinstance(error, Mapping):
                slot = object_at(error, "extra_info").get("input_name")
                parameter = next((name for name, spots in places.items() if [node, slot] in spots), "")
                yield {
                    "node": str(node)[:40],
                    "class": str(report.get("class_type"))[:80],
                    "input": str(slot or "")[:80],
                    "parameter": parameter,
                    "type": str(error.get("type"))[:80],
                    "message": f"{error.get('message')}: {error.get('details')}"[:300],
                }


def _failure(run: str, error: Mapping[str, Any]) -> UpstreamError:
    where = f" at node {error.get('node_id')!s:.40} ({error.get('node_type')!s:.80})" if error else ""
    reason = str(error.get("exception_message") or "ComfyUI does not say why").strip()
    return UpstreamError(
        f"run {run} failed{where}: {reason[:500]}",
        hint="ComfyUI's log has the traceback",
        outcome="unknown",
        reason="failed",
        exception=str(error.get("exception_type") or "")[:100],
    )


def _messages(entry: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    rows = object_at(entry, "status").get("messages")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == 2 and isinstance(row[0], str):
            yield row[0], row[1] if isinstance(row[1], Mapping) else {}


def _node_outputs(entry: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for node, output in object_at(entry, "outputs").items():
        for key, items in object_at(output).items():
            for item in items if isinstance(items, list) else ():
                yield str(node), str(key), item


def _files(entry: Mapping[str, Any]) -> Iterator[OutputFile]:
    for node, _, item in _node_outputs(entry):
        if isinstance(item, Mapping) and isinstance(name := item.get("filename"), str) and name:
            kind = item.get("type") if item.get("type") in _TYPES else "output"
            where = {"filename": name, "subfolder": str(item.get("subfolder") or ""), "type": str(kind)}
            yield OutputFile(node, name, where, is_temporary=kind == "temp")


def _texts(entry: Mapping[str, Any], only: list[str]) -> list[str]:
    rows = [
        (node, item) for node, key, item in _node_outputs(entry) if key in ("text", "string") and isinstance(item, str)
    ]
    return [item for node, item in rows if not only or node in only][:_MOST_TEXTS]


def _is_all_cached(cached: Any, entry: Mapping[str, Any]) -> bool:
    """Whether all outputs came from the cache."""
    outputs = entry.get("outputs")
    return isinstance(cached, list) and isinstance(outputs, Mapping) and all(node in cached for node in outputs)
