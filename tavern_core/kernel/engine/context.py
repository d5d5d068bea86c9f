"""What a running node is given: the NodeContext of one run of one node."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import isfinite
from typing import Any

from tavern_core.contract.llms import LLM
from tavern_core.contract.nodes import NodeContext
from tavern_core.kernel.engine.parts import RunPart, ScopePart
from tavern_core.kernel.engine.prepared import Work
from tavern_core.model.result import ToolResult


class RunningNode(NodeContext):
    """The context of one run of one node."""

    __slots__ = ("_asked", "_number", "_run", "_scope", "_work", "attempt")

    def __init__(self, run: RunPart, scope: ScopePart, number: int, work: Work, attempt: int = 1) -> None:
        self._run, self._scope, self._number, self._work = run, scope, number, work
        self.attempt = attempt
        self._asked = 0

    @property
    def run_id(self) -> str:  # type: ignore[override]
        return self._run.id

    @property
    def path(self) -> str:  # type: ignore[override]
        return self._scope.prefix + self._work.step.id

    @property
    def type(self) -> str:  # type: ignore[override]
        return self._work.step.type

    @property
    def config(self) -> Mapping[str, Any]:  # type: ignore[override]
        return dict(self._work.step.config)

    @property
    def mode(self) -> str:  # type: ignore[override]
        return self._work.step.mode

    @property
    def logger(self) -> logging.Logger:  # type: ignore[override]
        return self._run.doors.logger(self._work.step.spec.plugin)

    @property
    def is_cancelled(self) -> bool:
        return self._run.is_cancelled

    def progress(self, done: float, total: float = 1.0, text: str = "") -> None:
        done, total = float(done), float(total)
        if not (isfinite(done) and isfinite(total)):
            raise ValueError(f"progress({done}, {total}) takes finite numbers")
        self._run.progress(self.path, done, total, text)

    async def need(self, key: str) -> Any:
        return await self._scope.need(self._number, key)

    async def invoke(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> ToolResult:
        return await self._run.doors.invoke(self._work.step.spec.plugin, tool, arguments, self._run, self.path, options)

    async def ask(self, schema: Mapping[str, Any], prompt: str = "") -> Any:
        self._asked += 1
        async with self._scope.resting(self._number):
            return await self._run.ask(self.path, self._asked, dict(schema), prompt)

    def llm(self, name: str = "") -> LLM:
        return self._run.doors.llm(self._work.step.spec.plugin, name)

    def service(self, name: str) -> Any:
        return self._run.doors.service(self._work.step.spec.plugin, name)
