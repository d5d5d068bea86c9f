"""``jobs:getStatus``, ``jobs:getResult``, ``jobs:cancel``, ``jobs:list``, ``jobs:answer``: a caller's own jobs as tools (seed 004 §8.1).

They can be called by name but are not listed: the caller of a job gets its id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from tavern_core.contract.context import PluginContext
from tavern_core.contract.core_services import JOB_MANAGER, JobManager
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.protocols import NamespaceResolver
from tavern_core.contract.python_targets import PythonTarget
from tavern_core.errors import JobNotFound, ToolFailed
from tavern_core.model.job import JOB_STATUSES
from tavern_core.model.tool import ToolSpec

T = TypeVar("T")
_ID: Final[Mapping[str, Any]] = {"type": "string", "maxLength": 100, "description": "The job's id. 任务 ID。"}
_LIST: Final[Mapping[str, Any]] = {
    "status": {"type": "string", "enum": list(JOB_STATUSES), "description": "Only in this status. 只列出此状态。"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 200, "default": 20},
}
_ANSWER: Final[Mapping[str, Any]] = {
    "jobId": _ID,
    "value": {"description": "The answer; true or false for an approval. 回答；批准用 true 或 false。"},
    "question": {
        "type": "string",
        "maxLength": 200,
        "description": "Which question, if there are several. 问题 ID。",
    },
}


@hookimpl(fast=True)
def tavern_register_namespaces(ctx: PluginContext) -> Mapping[str, NamespaceResolver]:
    return {"jobs": _JobTools(ctx)}


class _JobTools:
    def __init__(self, ctx: PluginContext) -> None:
        self._ctx = ctx
        job = {"jobId": _ID}
        self._tools = {
            spec.local_name: spec
            for spec in (
                _tool("getStatus", "Reports the progress of a job. 查询任务状态。", job, ["jobId"], self._status),
                _tool(
                    "getResult", "Returns the result of a finished job. 取得任务结果。", job, ["jobId"], self._result
                ),
                _tool("list", "Lists your jobs, newest first. 列出任务。", _LIST, [], self._list),
                _tool("cancel", "Ends a job. 取消任务。", job, ["jobId"], self._cancel, changes=True),
                _tool(
                    "answer",
                    "Answers the question of a job. 回答任务的问题。",
                    _ANSWER,
                    ["jobId", "value"],
                    self._answer,
                    changes=True,
                ),
            )
        }

    def names(self) -> list[str]:
        return []

    def resolve(self, local: str, /) -> ToolSpec | None:
        return self._tools.get(local)

    def _jobs(self) -> JobManager:
        found: JobManager = self._ctx.service(JOB_MANAGER)
        return found

    def _status(self, jobId: str) -> dict[str, Any]:  # noqa: N803 - the tool's parameter, as seed 004 names it
        return _call(self._jobs().get, jobId)

    def _result(self, jobId: str) -> dict[str, Any]:  # noqa: N803
        return _call(self._jobs().result, jobId)

    def _list(self, limit: int, status: str = "") -> list[dict[str, Any]]:
        return list(self._jobs().list(status, limit))

    def _cancel(self, jobId: str) -> bool:  # noqa: N803
        return _call(self._jobs().cancel, jobId)

    def _answer(self, jobId: str, value: Any, question: str = "") -> bool:  # noqa: N803
        return _call(self._jobs().answer, jobId, value, question)


def _call(method: Callable[..., T], *args: Any) -> T:
    try:
        return method(*args)
    except JobNotFound as error:
        raise ToolFailed(error.message, hint="jobs:list shows your jobs", fixFor="caller") from None


def _tool(
    name: str,
    description: str,
    properties: Mapping[str, Any],
    required: list[str],
    run: Callable[..., Any],
    *,
    changes: bool = False,
) -> ToolSpec:
    return ToolSpec(
        name=f"jobs:{name}",
        description=description,
        version="1.0.0",
        tags=("jobs", "任务"),
        input_schema={
            "type": "object", "properties": dict(properties), "required": required, "additionalProperties": False,
        },
        impl=PythonTarget(run),
        read_only=not changes,
        fast=True,
    )  # fmt: skip
