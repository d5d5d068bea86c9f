"""The options of `Workflows.run`, checked: those of the run itself, and how it uses earlier runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from tavern_core.errors import UsageError
from tavern_core.flow.engine.run_options import RunOptions
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.naming_rules import is_run_id
from tavern_core.model.nearest import did_you_mean


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run as its caller wants it; see `Workflows.run`."""

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
        given = {**defaults, **options}
        own = {name: given.pop(name, None) for name in _OWN}
        if not isinstance(own["again"], str | None) or not isinstance(own["answers"], Mapping | None):
            raise UsageError(
                "`again` takes the id of a run, `answers` a mapping of questions",
                hint="run(what, inputs, again='run-…')",
            )
        return cls(
            RunOptions(**given),
            own["again"],
            own["start_at"] or (),
            own["answers"] or {},
            uses_cache=own["cache"] is not False,
            keep=own["keep"] if "keep" in options else True,
            run_id=own["run_id"] or "",
        )

    @property
    def has_invalid_id(self) -> bool:
        return bool(self.run_id) and not is_run_id(self.run_id)


_OWN: Final = ("again", "start_at", "answers", "cache", "keep", "run_id")
_OPTIONS: Final = frozenset({*(field.name for field in fields(RunOptions)), *_OWN})
