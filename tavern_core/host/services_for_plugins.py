"""The host's own parts as services for plugins: tools, nodes, workflows and language models (`contract/core_services.py`).

Each plugin gets its own object. It returns copies, and acts with the grants of the plugin within the permissions of its tool's caller.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract import core_services as contract
from tavern_core.contract.llm import answer_json
from tavern_core.contract.protocols import Service, ServiceUser
from tavern_core.errors import PolicyDenied, TavernError, ToolNotFound, WorkflowNotFound
from tavern_core.flow.composition import WorkflowServices
from tavern_core.flow.node_catalogue import has_words
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.pipeline import Pipeline
from tavern_core.kernel.calls.running_call import current
from tavern_core.kernel.catalogue.tools import Tools
from tavern_core.kernel.foundation import Foundation
from tavern_core.kernel.jobs.jobs import Jobs
from tavern_core.knowledge.knowledge import KnowledgeBases
from tavern_core.model.call import CallContext
from tavern_core.model.capability import CAPABILITIES, is_dangerous
from tavern_core.model.event import RESOURCE_CHANGED

if TYPE_CHECKING:
    from tavern_core.flow.patching import PatchOutcome

HOST: Final = ServiceUser("core", lambda capability: None, is_builtin=True)


@dataclass(frozen=True, slots=True)
class ServiceBackends:
    """The parts behind the services."""

    base: Foundation
    tools: Tools
    flow: WorkflowServices
    jobs: Jobs
    knowledge: KnowledgeBases
    pipeline: Pipeline


def core_services(backends: ServiceBackends) -> dict[str, Service]:
    """Name → service, registered before any plugin is active."""

    def made(
        name: str, kind: Callable[[ServiceBackends, ServiceUser], Any], interface: type, description: str
    ) -> Service:
        return Service(
            name, kind(backends, HOST), interface, description=description, for_plugin=lambda user: kind(backends, user)
        )

    services = (
        made(contract.TOOL_MANAGER, _Tools, contract.ToolManager, "The tools of the host."),
        made(contract.NODE_MANAGER, _Nodes, contract.NodeManager, "The node types of the host."),
        made(
            contract.WORKFLOW_MANAGER, _Workflows, contract.WorkflowManager, "The workflows of the host and their runs."
        ),
        made(contract.JOB_MANAGER, _Jobs, contract.JobManager, "The jobs of the caller."),
        made(contract.RESOURCE_MANAGER, _Resources, contract.ResourceManager, "What clients of an MCP server read."),
        made(contract.LLMS, _Models, contract.Llms, "The language models of tavern.yaml and of plugins."),
        made(contract.KNOWLEDGE, _Knowledge, contract.Knowledge, "The knowledge bases of tavern.yaml."),
    )
    return {service.name: service for service in services}


def caller_of(user: ServiceUser) -> CallContext | None:
    """The caller of a plugin's calls; None: the host itself.

    That is the plugin itself, within the permissions of its tool's caller; for a plugin of the host, it is that caller.
    """
    frame = current.get()
    outer = frame.caller if frame is not None else None
    if user.is_builtin:
        return outer
    reach = {name: user.scope(name) for name in CAPABILITIES if not is_dangerous(name)}
    may = frozenset(name for name, scope in reach.items() if scope != ())
    scopes = {name: tuple(scope) for name, scope in reach.items() if scope}
    if outer is None:
        return CallContext(principal=f"plugin:{user.plugin}", permissions=may, scopes=scopes)
    return replace(outer, permissions=may, scopes=scopes)


class _PluginService:
    def __init__(self, backends: ServiceBackends, user: ServiceUser) -> None:
        self._backends, self._user = backends, user

    @property
    def _caller(self) -> CallContext | None:
        return caller_of(self._user)


class _Tools(_PluginService):
    def list(self, profile: str | None = None) -> list[dict[str, Any]]:
        return [spec.to_json() for spec in self._backends.tools.list(profile, context=self._caller)]

    def get(self, tool: str) -> dict[str, Any] | None:
        try:
            return self._backends.tools.known(tool).to_json()
        except ToolNotFound:
            return None

    def search(self, query: str, limit: int = 20) -> builtins.list[dict[str, Any]]:
        return [spec.to_json() for spec in self._backends.tools.search(query, limit=limit, context=self._caller)]

    def why(self, tool: str) -> dict[str, Any]:
        return self._backends.tools.why(tool, context=self._caller).to_json()

    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        purpose: str = "",
        idempotency_key: str | None = None,
    ) -> dict[str, Any]:
        run, mode = self._backends.pipeline.run, self._backends.base.mode
        result = await run(mode, tool, arguments, self._caller, purpose, idempotency_key, "plugin")
        return result.to_json()


class _Nodes(_PluginService):
    def list(self, query: str = "", category: str = "") -> list[dict[str, Any]]:
        words = query.casefold().split()
        return [
            spec.to_json()
            for spec in self._backends.flow.nodes.known()
            if spec.category == (category or spec.category) and has_words(spec, words)
        ]

    def get(self, node_type: str) -> dict[str, Any] | None:
        found = self._backends.flow.nodes.find(node_type)
        return None if found is None else found.to_json()

    async def retrieve(
        self, request: str, plan: Sequence[str] = (), workflow: Any = None, limit: int = 20
    ) -> builtins.list[dict[str, Any]]:
        found = await self._backends.flow.nodes.retrieved(request, plan=plan, workflow=workflow, limit=limit)
        return [match.to_json() for match in found]


class _Workflows(_PluginService):
    def list(self) -> list[dict[str, Any]]:
        found = []
        for id_, source in self._backends.flow.workflows.workflow_files.list().items():
            row = {"id": id_, "name": id_, "description": "", "plugin": source.plugin or None}
            try:
                workflow = self._backends.flow.workflows.workflow_files.open(source)
                row |= {"name": workflow.name or id_, "description": workflow.description}
            except TavernError as error:
                row["error"] = error.message
            found.append(row)
        return found

    def get(self, workflow: str) -> dict[str, Any] | None:
        try:
            return dict(self._backends.flow.workflows.workflow_files.get(workflow).raw)
        except WorkflowNotFound:
            return None

    async def check(self, workflow: str) -> builtins.list[dict[str, Any]]:
        return [problem.to_json() for problem in await self._backends.flow.workflows.checked(workflow)]

    async def run(self, workflow: str, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        from tavern_core.kernel.nodes.json_values import to_plain

        result = await self._backends.flow.workflows.run(workflow, inputs, context=self._caller)
        return {
            "runId": result.run_id,
            "state": result.state,
            "outputs": to_plain(dict(result.outputs), tagged=False),
            "errors": [error.to_json() for error in result.errors],
        }

    def save(self, workflow: str, content: Mapping[str, Any]) -> dict[str, Any]:
        self._judge_change()
        return dict(self._backends.flow.workflows.save(workflow, content).raw)

    def project(self, workflow: str | Mapping[str, Any]) -> dict[str, Any] | None:
        from tavern_core.flow.compiled_workflow_cache import as_workflow
        from tavern_core.flow.patching import projected_workflow

        try:
            return projected_workflow(as_workflow(_named(workflow), self._backends.flow.workflows.workflow_files))
        except WorkflowNotFound:
            return None

    async def try_patch(
        self, workflow: str | Mapping[str, Any], operations: Sequence[Mapping[str, Any]], seed: int | None = None
    ) -> dict[str, Any]:
        return _outcome(
            await self._backends.flow.workflows.patched(_named(workflow), operations, seed=seed, dry_run=True)
        )

    async def patch(
        self, workflow: str, operations: Sequence[Mapping[str, Any]], rev: int | None = None
    ) -> dict[str, Any]:
        self._judge_change()
        return _outcome(await self._backends.flow.workflows.patched(_named(workflow), operations, rev=rev))

    def _judge_change(self) -> None:
        """Refuse a change without approval after untrusted content was read. Raises PolicyDenied (POLICY_DENIED)."""
        if not self._user.may_act("write:workflows"):
            raise PolicyDenied(
                f"plugin {self._user.plugin} may not change workflows: its caller has read untrusted content, and what runs only reads",
                hint="do not declare the tool as read-only, so that the call can be approved",
            )


def _named(workflow: Any) -> Any:
    """An id or content; a plugin names no files by their paths."""
    if not isinstance(workflow, str | Mapping) or (
        isinstance(workflow, str) and ("/" in workflow or workflow.endswith(".json"))
    ):
        raise WorkflowNotFound(f"there is no workflow {workflow!r:.300}", hint="give the id of a workflow")
    return workflow


def _outcome(outcome: PatchOutcome) -> dict[str, Any]:
    return {**outcome.to_json(), "content": dict(outcome.workflow.raw)}


class _Jobs(_PluginService):
    def list(self, status: str = "", limit: int = 100) -> list[dict[str, Any]]:
        found = self._backends.jobs.list(status=status, context=self._caller, most=limit)
        return [job.to_json() for job in found]

    def get(self, job: str) -> dict[str, Any]:
        return self._backends.jobs.find(job, context=self._caller).to_json()

    def result(self, job: str) -> dict[str, Any]:
        return self._backends.jobs.result(job, context=self._caller).to_json()

    async def start(self, tool: str, arguments: Mapping[str, Any] | None = None, purpose: str = "") -> dict[str, Any]:
        job = await self._backends.jobs.start(tool, arguments, context=self._caller, purpose=purpose)
        return job.to_json()

    def cancel(self, job: str) -> bool:
        return self._backends.jobs.cancel(job, context=self._caller)

    def answer(self, job: str, value: Any, question: str = "") -> bool:
        return self._backends.jobs.answer(job, value, question, context=self._caller)


class _Resources(_PluginService):
    def changed(self, uri: str) -> None:
        data = {"uri": str(uri)[:2_000]}
        self._backends.base.recorder.show(RESOURCE_CHANGED, data, plugin=self._user.plugin)


class _Knowledge(_PluginService):
    def list(self) -> list[dict[str, Any]]:
        bases = map(self._backends.knowledge.get, self._backends.knowledge.names())
        return [{"name": base.name, "description": base.description} for base in bases]

    def search(self, query: str, limit: int = 5, base: str = "") -> builtins.list[dict[str, Any]]:
        found = self._backends.knowledge.search(query, [base] if base else None, limit)
        return [passage.to_json() for passage in found]

    def read(self, citation: str) -> builtins.list[dict[str, Any]]:
        return [passage.to_json() for passage in self._backends.knowledge.read(citation)]


class _Models(_PluginService):
    def names(self) -> list[str]:
        return self._backends.flow.models.names()

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], model: str = "", options: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        purpose = f"{self._user.plugin} asks a language model"
        own = "" if self._user.is_builtin else self._user.plugin
        answer = await self._backends.flow.models.ask(model, messages, options or {}, self._caller, purpose, asker=own)
        return answer_json(answer)
