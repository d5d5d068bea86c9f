"""The nodes of a plugin in its worker: described to the host, and run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tavern_core.contract.llm import LLM, LLMAnswer, Message, answer_of
from tavern_core.contract.nodes import Node, NodeContext, Skip, method_without_run
from tavern_core.errors import InputInvalid, UpstreamError
from tavern_core.isolation.codec import CALLS
from tavern_core.isolation.node_codec import ANSWERS, NO_END, NOTHING, VALUES, reported_node
from tavern_core.isolation.worker.host_client import HostClient
from tavern_core.isolation.worker.streams import StreamingCall, in_thread, in_threads
from tavern_core.kernel.nodes.annotation_coercion import adapt, adapt_value
from tavern_core.kernel.nodes.node_callable import NodeCode
from tavern_core.kernel.nodes.node_discovery import nodes_in
from tavern_core.kernel.nodes.node_signature_reading import NodeOwner, describe_nodes
from tavern_core.model.node import NodeSpec
from tavern_core.model.question import prompt_and_schema
from tavern_core.model.result import ToolResult

ASKED: Final = ("needs", "fingerprint", "validate", "upgrade")
"""Optional methods of the class form."""
MOST_SAID: Final = 1_000


class WorkerNodes:
    """The node types of one plugin.

    Args:
        service: returns a view of a service, as for the plugin itself.
    """

    def __init__(self, owner: NodeOwner, host_client: HostClient, service: Any) -> None:
        self._owner = owner
        self._host_client = host_client
        self._service = service
        self._specs: dict[str, NodeSpec] = {}
        self._described: set[int] = set()
        self._objects: dict[int, Any] = {}
        """Objects of running class nodes, by the host's number."""

    def offered(self, answer: Any) -> list[Any]:
        """The node types that a hook returned, except those already described. Raises ActivationFailed."""
        found = []
        for spec in describe_nodes(answer, self._owner):
            code = spec.impl
            if isinstance(code, NodeCode) and id(code.cls or inspect.unwrap(code.function)) in self._described:
                continue
            found.append(self._describe(spec))
        return found

    def below(self, package: Any, folder: Path | None, entry: str) -> list[Any]:
        """The node types below `nodes.entry`, except those already described. Raises ActivationFailed."""
        return self.offered(nodes_in(package, folder, entry, self._owner.name))

    def _describe(self, spec: NodeSpec) -> Any:
        code = spec.impl
        node = reported_node(spec)
        if not isinstance(code, NodeCode):
            return {"node": node, "code": None}
        methods = None if code.cls is None else _own_methods(code.cls)
        self._described.add(id(code.cls or inspect.unwrap(code.function)))
        self._specs[spec.type] = spec
        return {
            "node": node,
            "code": [code.form, code.context, code.takes_all, code.names_outputs, code.where, methods],
        }

    def run(self, given: Mapping[str, Any], talk: StreamingCall | None) -> Any:
        """Start a node; its answer, or an awaitable of it.

        Args:
            given: type, inputs, context, token; for a class, the object; see `_object`.
            talk: the streaming call, for a node with streams.

        Raises:
            InputInvalid: a value does not fit its annotation; `details` names the slot.
            UpstreamError: the object was created in a worker that has died since.
        """
        code: NodeCode = self._specs[given["type"]].impl
        values = {key: _heard(value, talk) for key, value in given["inputs"].items()}
        adapt(code.adapters, values, _mismatch)
        if code.context and given.get("context") is not None:
            values[code.context] = self._context(given)
        function = code.function
        if code.cls is not None:
            function = self._object(code.cls, given).run
            self._objects.pop(given["object"], None)
        match code.form:
            case "stream" if talk is not None:
                return _or(NO_END, talk.send_chunks(function(**values)))
            case "sync_stream" if talk is not None:
                return _or(NO_END, talk.send_chunks(in_threads(function(**values))))
            case "sync" if talk is not None:
                return in_thread(function, **values)
            case "async":
                return _or(Skip, function(**values))
        return function(**values)

    def needs(self, given: Mapping[str, Any]) -> Any:
        """The lazy inputs that an object of a class needs now; or an awaitable of them."""
        cls = self._specs[given["type"]].impl.cls
        return self._object(cls, given).needs(self._context(given), **self._values(given))

    @staticmethod
    def needed(answer: Any) -> list[str]:
        """The answer of `needs` for the host."""
        return [str(key) for key in ([answer] if isinstance(answer, str) else answer or ())]

    def call_optional(self, given: Mapping[str, Any]) -> Any:
        """Call an optional method of a class: `fingerprint`, `validate`, `upgrade`."""
        cls = self._specs[given["type"]].impl.cls
        if given["method"] == "fingerprint":
            return cls().fingerprint(self._context(given), **self._values(given))
        method = method_without_run(cls, given["method"])
        assert method is not None  # the host asks only for those that the class has
        answer = method(*given["arguments"])
        if given["method"] == "upgrade":
            return answer
        return [answer] if isinstance(answer, str) else list(islice(answer or (), MOST_SAID))

    @staticmethod
    def packed_answer(answer: Any) -> Any:
        """The answer of `call_optional` for the host. Raises CannotCross."""
        return VALUES.encode(dict(answer) if isinstance(answer, Mapping) else answer)

    def _values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        values = {key: VALUES.decode(value) for key, value in given["inputs"].items()}
        adapt(self._specs[given["type"]].impl.adapters, values, _mismatch)
        return values

    def _object(self, cls: type[Node], request: Mapping[str, Any]) -> Any:
        """The object of one run, created at its first use."""
        for number in request.get("drop", ()):
            self._objects.pop(number, None)
        number = request["object"]
        if number not in self._objects:
            if not request["fresh"]:
                raise UpstreamError(
                    f"the worker in which {request['type']} began has died", outcome="none", retryable=True
                )
            self._objects[number] = cls()
        return self._objects[number]

    def _context(self, given: Mapping[str, Any]) -> _RemoteContext:
        return _RemoteContext(
            given["context"], self._host_client, given["token"], self._service, self._specs[given["type"]].impl.adapters
        )

    @staticmethod
    def answer(answer: Any) -> Any:
        """The answer of a node for the host."""
        return ANSWERS.encode(answer)


def _mismatch(key: str, why: str) -> InputInvalid:
    return InputInvalid(f"input {key!r}: {why}", slot=key, why=why)


def _own_methods(cls: type[Node]) -> list[str]:
    """The optional methods that a class defines."""
    return [name for name in ASKED if inspect.getattr_static(cls, name) is not inspect.getattr_static(Node, name)]


def _heard(value: Any, talk: StreamingCall | None) -> Any:
    """A value for a node, or a stream that the node reads from the host."""
    tag, data = value
    if talk is not None and tag == "stream":
        return talk.streams[data]
    return [talk.streams[number] for number in data] if talk is not None and tag == "streams" else VALUES.decode(value)


class _NothingCame(Exception):
    """A node requested a lazy input whose source was skipped or failed."""


async def _or(skipped: Any, answer: Awaitable[Any]) -> Any:
    """The answer of a node; `skipped` if it requested a missing input and did not catch the error."""
    try:
        return await answer
    except _NothingCame:
        return skipped


class _RemoteContext(NodeContext):
    """The context of a running node; its methods call the host."""

    def __init__(
        self, facts: Mapping[str, Any], host_client: HostClient, token: int, service: Any, adapters: Mapping[str, Any]
    ) -> None:
        self.run_id, self.path, self.type = facts["run"], facts["path"], facts["type"]
        self.config, self.mode, self.attempt = facts["config"], facts["mode"], facts["attempt"]
        self.logger = logging.getLogger("node")
        self._host_client = host_client
        self._token = token
        self._plugin_service = service
        self._adapters = adapters

    def _request(self, method: str, *given: Any) -> Any:
        return self._host_client.request("node", token=self._token, method=method, given=given)

    async def _request_later(self, method: str, *given: Any) -> Any:
        return await self._host_client.request_later("node", token=self._token, method=method, given=given)

    @property
    def is_cancelled(self) -> bool:
        return bool(self._request("is_cancelled"))

    def progress(self, done: float, total: float = 1.0, text: str = "") -> None:
        self._request("progress", done, total, text)

    def keep(self, data: Any, media_type: str = "application/octet-stream", name: str = "") -> dict[str, Any]:
        from tavern_core.kernel.artifacts.artifacts import chunks_of  # few nodes need it

        link: dict[str, Any] = self._request("keep", VALUES.encode(b"".join(chunks_of(data))), media_type, name)
        return link

    async def need(self, key: str) -> Any:
        found = await self._request_later("need", key)
        if found == NOTHING:
            raise _NothingCame(key)
        return adapt_value(self._adapters, key, VALUES.decode(found), _mismatch)

    async def invoke(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        purpose: str = "",
        idempotency_key: str | None = None,
    ) -> ToolResult:
        given = None if arguments is None else dict(arguments)
        packed = await self._request_later("invoke", tool, given, purpose, idempotency_key)
        result: ToolResult = CALLS.decode(packed, {"trusted": True})
        return result

    async def ask(
        self,
        *question: str | Mapping[str, Any],
        prompt: str | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> Any:
        words, wanted = prompt_and_schema(question, prompt, schema)
        return VALUES.decode(await self._request_later("ask", wanted, words))

    def llm(self, name: str = "") -> LLM:
        return _RemoteModel(self._request_later, name)

    def service(self, name: str) -> Any:
        return self._plugin_service(name)


class _RemoteModel:
    """A language model of the host."""

    def __init__(self, ask: Callable[..., Awaitable[Any]], name: str) -> None:
        self._ask = ask
        self._name = name

    async def complete(self, messages: Sequence[Message], /, **options: Any) -> LLMAnswer:
        return answer_of(await self._ask("llm", self._name, [dict(message) for message in messages], options))
