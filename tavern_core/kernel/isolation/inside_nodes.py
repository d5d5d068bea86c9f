"""The nodes of a plugin as they live in its worker: told, and run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tavern_core.contract.llms import LLM, LLMAnswer, Message
from tavern_core.contract.nodes import NodeContext
from tavern_core.errors import InputInvalid
from tavern_core.kernel.isolation.hotline import Hotline
from tavern_core.kernel.isolation.node_wire import cannot_cross, pack_answer, told_node, unpack_value
from tavern_core.kernel.isolation.wire import unpack
from tavern_core.kernel.nodes.code import NodeCode
from tavern_core.kernel.nodes.described import NodeOwner, describe_nodes
from tavern_core.kernel.nodes.entry_files import nodes_in
from tavern_core.model.node import NodeSpec
from tavern_core.model.result import ToolResult


class InsideNodes:
    """The node types of one plugin.

    Args:
        service: gives a view of a service, as for the plugin itself.
    """

    def __init__(self, owner: NodeOwner, hotline: Hotline, service: Any) -> None:
        self._owner = owner
        self._hotline = hotline
        self._service = service
        self._known: dict[str, NodeSpec] = {}
        self._told: set[int] = set()

    def offered(self, answer: Any) -> list[Any]:
        """What a hook returned, as far as it was not told before. Raises ActivationFailed."""
        found = []
        for spec in describe_nodes(answer, self._owner):
            code = spec.impl
            if isinstance(code, NodeCode) and id(code.cls or inspect.unwrap(code.function)) in self._told:
                continue
            found.append(self._tell(spec))
        return found

    def below(self, package: Any, folder: Path | None, entry: str) -> list[Any]:
        """What stands below `nodes.entry`, as far as it was not told before. Raises ActivationFailed."""
        return self.offered(nodes_in(package, folder, entry, self._owner.name))

    def _tell(self, spec: NodeSpec) -> Any:
        code = spec.impl
        if not isinstance(code, NodeCode):
            return {"node": told_node(spec), "code": None}
        if code.cls is not None:
            raise cannot_cross(spec.type, "it is a class")
        if code.form not in ("async", "sync"):
            raise cannot_cross(spec.type, "it yields its answers")
        told = {"node": told_node(spec), "code": [code.form, code.context, code.takes_all, code.names_outputs, code.where]}
        self._told.add(id(inspect.unwrap(code.function)))
        self._known[spec.type] = spec
        return told

    def run(self, type_: str, inputs: Mapping[str, Any], context: Mapping[str, Any] | None, token: int) -> Any:
        """Start a node; its answer, or an awaitable of it.

        Raises:
            InputInvalid: a value does not fit its annotation; `details` names the slot.
        """
        code: NodeCode = self._known[type_].impl
        values = {key: unpack_value(value) for key, value in inputs.items()}
        for key, adapter in code.adapters.items():
            if values.get(key) is not None:
                values[key] = _adapted(adapter, key, values[key])
        if code.context and context is not None:
            values[code.context] = _FarContext(context, self._hotline, token, self._service)
        return code.function(**values)

    @staticmethod
    def answer(answer: Any) -> Any:
        """The answer of a node for the host."""
        return pack_answer(answer)


def _adapted(adapter: Any, key: str, value: Any) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        why = f"{place}: {first['msg']}" if place else first["msg"]
        raise InputInvalid(f"input {key!r}: {why}", slot=key, why=why) from None


class _FarContext(NodeContext):
    """The context of a running node; what it is asked goes to the host's."""

    def __init__(self, facts: Mapping[str, Any], hotline: Hotline, token: int, service: Any) -> None:
        self.run_id, self.path, self.type = facts["run"], facts["path"], facts["type"]
        self.config, self.mode, self.attempt = facts["config"], facts["mode"], facts["attempt"]
        self.logger = logging.getLogger("node")
        self._hotline = hotline
        self._token = token
        self._plugin_service = service

    @property
    def is_cancelled(self) -> bool:
        return bool(self._hotline.ask("node", token=self._token, wish="is_cancelled", given=[]))

    def progress(self, done: float, total: float = 1.0, text: str = "") -> None:
        self._hotline.ask("node", token=self._token, wish="progress", given=[done, total, text])

    async def need(self, key: str) -> Any:
        return unpack_value(await self._hotline.ask_later("node", token=self._token, wish="need", given=[key]))

    async def invoke(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> ToolResult:
        given = [tool, None if arguments is None else dict(arguments), options]
        packed = await self._hotline.ask_later("node", token=self._token, wish="invoke", given=given)
        result: ToolResult = unpack(packed, {"trusted": True})
        return result

    async def ask(self, schema: Mapping[str, Any], prompt: str = "") -> Any:
        return unpack_value(await self._hotline.ask_later("node", token=self._token, wish="ask", given=[dict(schema), prompt]))

    def llm(self, name: str = "") -> LLM:
        return _FarModel(self._hotline, self._token, name)

    def service(self, name: str) -> Any:
        return self._plugin_service(name)


class _FarModel:
    """A language model of the host."""

    def __init__(self, hotline: Hotline, token: int, name: str) -> None:
        self._hotline = hotline
        self._token = token
        self._name = name

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        given = [self._name, [dict(message) for message in messages], options]
        told = await self._hotline.ask_later("node", token=self._token, wish="llm", given=given)
        return LLMAnswer(told["text"], told["finish_reason"], told["usage"], told["model"])
