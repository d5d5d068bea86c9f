"""The options of a run: its own, and how it uses earlier runs; and its questions to people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Final

from tavern_core.errors import InputInvalid, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.naming_rules import is_run_id
from tavern_core.model.nearest import did_you_mean
from tavern_core.schema.validate import compile_output_validator


@dataclass(frozen=True, slots=True)
class NodeQuestion:
    """A question of a node to a person."""

    id: str
    path: str
    schema: Mapping[str, Any]
    prompt: str = ""

    def mismatch(self, value: Any) -> str:
        """Why `value` does not answer it; empty if it does."""
        return "; ".join(map(str, compile_output_validator(self.schema).problems(value))) if self.schema else ""

    def refusal(self, value: Any) -> InputInvalid | None:
        """The error of an answer that does not fit; None if it fits."""
        if not (why := self.mismatch(value)):
            return None
        return InputInvalid(
            f"the answer to {self.id} does not fit: {why}", hint="answer again; the question stays open",
            question=self.id, schema=dict(self.schema), problems=[{"pointer": "", "message": why}],
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "path": self.path, "schema": dict(self.schema), "prompt": self.prompt}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of one run."""

    concurrency: int | None = None
    """Nodes that run at the same time; None: no limit."""
    types: Mapping[str, int] = field(default_factory=dict)
    """Node type → how many of it may run at the same time."""
    resources: Mapping[str, int] = field(default_factory=dict)
    """Resource tag → how many nodes with it may run at the same time."""
    to: tuple[str, ...] = ()
    """Run only these nodes and what they need."""
    timeout_ms: int | None = None
    """Deadline of the whole run."""

    def __post_init__(self) -> None:
        for name, room in (("types", self.types), ("resources", self.resources)):
            if not isinstance(room, Mapping):
                raise UsageError(f"{name} is {room!r}; it takes a mapping", hint=f"{name}={{'name': 2}}")
        if isinstance(self.to, str):
            object.__setattr__(self, "to", (self.to,))
        if not isinstance(self.to, list | tuple | set | frozenset) or not all(
            isinstance(node, str) for node in self.to
        ):
            raise UsageError(f"to is {self.to!r}; it takes ids of nodes", hint="to=['node']")
        numbers = {"concurrency": self.concurrency, "timeout_ms": self.timeout_ms}
        numbers |= {f"types[{name!r}]": room for name, room in self.types.items()}
        numbers |= {f"resources[{name!r}]": room for name, room in self.resources.items()}
        for name, number in numbers.items():
            if number is not None and (type(number) is not int or number < 1):
                raise UsageError(
                    f"{name} is {number!r}; it takes a whole number from 1 on", hint="leave it out for no limit"
                )


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request of a caller for a run; see `Workflows.run`."""

    options: RunOptions
    again: str | None
    start_at: Any
    answers: Mapping[str, Any]
    uses_cache: bool
    keep: bool
    run_id: str
    """Empty: a new id."""

    @classmethod
    def read(cls, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> RunRequest:
        """Read options as they were passed. Raises UsageError: an option is unknown or wrong (USAGE)."""
        if unknown := next((name for name in options if name not in _OPTIONS), None):
            raise UsageError(
                f"a run has no option {unknown!r}",
                hint=did_you_mean(unknown, _OPTIONS) or f"options: {', '.join(sorted(_OPTIONS))}",
            )
        values = {**defaults, **options}
        request_values = {name: values.pop(name, None) for name in _OWN}
        if not isinstance(request_values["again"], str | None) or not isinstance(
            request_values["answers"], Mapping | None
        ):
            raise UsageError(
                "`again` takes the id of a run, `answers` a mapping of questions",
                hint="run(what, inputs, again='run-…')",
            )
        return cls(
            RunOptions(**values),
            request_values["again"],
            request_values["start_at"] or (),
            request_values["answers"] or {},
            uses_cache=request_values["cache"] is not False,
            keep=request_values["keep"] if "keep" in options else True,
            run_id=request_values["run_id"] or "",
        )

    @property
    def has_invalid_id(self) -> bool:
        return bool(self.run_id) and not is_run_id(self.run_id)


_OWN: Final = ("again", "start_at", "answers", "cache", "keep", "run_id")
_OPTIONS: Final = frozenset({*(field.name for field in fields(RunOptions)), *_OWN})
