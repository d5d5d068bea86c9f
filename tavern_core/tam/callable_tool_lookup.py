"""The tools that a text may call, looked up by the written id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from tavern_core.model.message_translation import say
from tavern_core.model.nearest import nearest
from tavern_core.schema.problem import SchemaProblem
from tavern_core.tam.field_key_interpretation import BindableTool, Parameters, folded
from tavern_core.tam.wording import WORDS

Schemas: TypeAlias = Mapping[str, Any] | Callable[[str], Any]
LONGEST_ID = 256


def pointed(problem: SchemaProblem) -> tuple[str, str]:
    """A problem of arguments, as a `validate` of `bind` yields it: (JSON pointer, message)."""
    if not problem.hint:
        return problem.path, problem.message
    return problem.path, say(WORDS["because"], what=problem.message, why=problem.hint)


class CallableTools:
    """The tools that may be called, looked up once per id and text."""

    def __init__(
        self, schemas: Schemas, known: Iterable[str] | None, destructive: Callable[[str], bool] | None
    ) -> None:
        self._schemas = schemas
        self._known: tuple[str, ...] | None = tuple(known) if known is not None else None
        self._destructive = destructive
        self._tools: dict[str, BindableTool | None] = {}
        self._by_fold: dict[str, list[str]] | None = None

    @property
    def ids(self) -> Iterable[str]:
        if self._known is not None:
            return self._known
        return [name for name in self._schemas if isinstance(name, str)] if isinstance(self._schemas, Mapping) else ()

    def tool(self, name: str) -> BindableTool | None:
        """The tool of `name`: the exact id, else the one known id with the same fold."""
        if name in self._tools:
            return self._tools[name]
        tool = self._find(name)
        if len(self._tools) < 10_000:
            self._tools[name] = tool
        return tool

    def _find(self, name: str) -> BindableTool | None:
        schema = self._schema(name)
        if schema is not None:
            return BindableTool(name, Parameters(schema), bool(self._destructive and self._destructive(name)))
        if self._by_fold is None:
            self._by_fold = {}
            for known in self.ids:
                self._by_fold.setdefault(folded(known), []).append(known)
        wanted = folded(name) if len(name) <= LONGEST_ID else ""
        same = self._by_fold.get(wanted, []) if wanted else []
        return self.tool(same[0]) if len(same) == 1 and same[0] != name else None

    def _schema(self, name: str) -> Any:
        if isinstance(self._schemas, Mapping):
            return self._schemas.get(name)
        return self._schemas(name) if len(name) <= LONGEST_ID else None

    def problems(self, tool: str, arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The problems of arguments by the schema of a tool: (JSON pointer, message)."""
        known = self.tool(tool)
        return [] if known is None else [pointed(problem) for problem in known.parameters.problems(arguments)]

    def nearest(self, name: str) -> list[str]:
        return nearest(name, self.ids)
