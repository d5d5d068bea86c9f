"""The host's answers to requests of a worker: the plugin's context, limited by its grants as for a plugin in the host.

Requests are answered in separate threads, for the caller of the call in which the plugin asks. A request
outside of any call has no permissions.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from tavern_core.contract.context import PluginContext
from tavern_core.contract.llm import answer_json
from tavern_core.contract.nodes import MismatchedInput, NothingCame
from tavern_core.contract.tool_context import Control
from tavern_core.errors import InputInvalid, TavernError, ToolFailed
from tavern_core.isolation.artifact_parts import ArtifactUploads, control_of, part_of, running_control
from tavern_core.isolation.codec import CALLS, crossing
from tavern_core.isolation.error_codec import pack_error
from tavern_core.isolation.lent_upstreams import LentUpstreams
from tavern_core.isolation.node_codec import NOTHING, VALUES
from tavern_core.isolation.transport import BrokenChannel, validated_message
from tavern_core.isolation.worker_client import WorkerClient
from tavern_core.isolation.worker_connections import Undelivered
from tavern_core.isolation.worker_output import WorkerOutput
from tavern_core.isolation.worker_process import WorkerLimits
from tavern_core.kernel.calls.running_call import FixedFrame, current
from tavern_core.kernel.execution.portal import Portal
from tavern_core.kernel.execution.sync_async_drivers import TimeLimit
from tavern_core.kernel.execution.threads import ThreadPool
from tavern_core.kernel.views.service_view import IS_ASYNC
from tavern_core.model.call import CallContext
from tavern_core.model.question import Question

THREADS: Final = 32
"""Requests of one plugin that are answered at the same time, with separate threads per plugin."""
MOST_OPEN: Final = 64
"""Requests of one worker that are being answered at the same time."""
MOST_WATCHES: Final = 1_000
MOST_ASKED: Final = 1_000
"""Questions to people and operations of adapters, of one worker, that wait at the same time."""


class HostRequestHandler:
    """Answers requests of the workers of one plugin.

    Args:
        ctx: the plugin's context, which limits its requests.
        portal: the loop on which async services run.
        printed: the target of its log.
    """

    def __init__(self, ctx: PluginContext, limits: WorkerLimits, portal: Portal, printed: WorkerOutput) -> None:
        self.nodes: dict[int, tuple[Any, asyncio.AbstractEventLoop]] = {}
        """Token → context and event loop of a running node."""
        self.lent_upstreams = LentUpstreams()
        """The upstreams that its adapters use."""
        self._ctx = ctx
        self._hook_s = limits.hook_s
        self._threads = ThreadPool(THREADS, f"tavern-questions-{ctx.id}")
        self._portal = portal
        self._printed = printed
        self._stranger = FixedFrame(caller=CallContext(principal=f"plugin:{ctx.id}"))
        self._open: dict[WorkerClient, int] = {}
        self._asked: dict[WorkerClient, int] = {}
        self._uploads = ArtifactUploads(limits.artifact_bytes)

    def receive_message(self, worker: WorkerClient, message: dict[str, Any]) -> None:
        """Handle one message of a worker; called in the watching thread."""
        if message.get("send") == "log":
            level, name, text = message.get("level"), message.get("logger"), message.get("text")
            if type(level) is not int or type(name) is not str or type(text) is not str:
                worker.kill("it logged a message that is not text")
            elif not self._printed.log(level, name, text):
                worker.kill("it logged too much")
        elif message.get("send") == "give_up":
            number, token = message.get("connection"), message.get("token")
            if type(number) is int and type(token) is int:
                self.lent_upstreams.give_up(number, token)
        elif type(message.get("ask")) is str and type(message.get("id")) is int:
            if self._open.get(worker, 0) >= MOST_OPEN:
                worker.kill(f"it asked more than {MOST_OPEN} requests at once")
                return
            self._open[worker] = self._open.get(worker, 0) + 1
            answer = self._answer_later if message["ask"] in ("ask", "upstream") else self._answer
            try:
                self._threads.submit(answer, worker, message)
            except (RuntimeError, TavernError):  # the host is closed
                worker.kill("the host is closed")
        else:
            worker.kill("it sent an invalid request")

    def close(self) -> None:
        """Stop answering, as the plugin is stopped."""
        self._threads.close()

    def forget(self, worker: WorkerClient) -> None:
        """Drop the state of a worker that has died."""
        self._open.pop(worker, None)
        self._asked.pop(worker, None)
        self._uploads.forget(worker)

    def _answer(self, worker: WorkerClient, message: dict[str, Any]) -> None:
        call = message.get("call")
        frame = worker.frames.get(call) if type(call) is int else None
        token = current.set(frame or self._stranger)
        try:
            answer = {"ok": self._answered(worker, validated_message(message))}
        except BaseException as error:  # noqa: BLE001 - sent to the worker
            answer = {"error": pack_error(error)}
        finally:
            current.reset(token)
            self._count(self._open, worker)
        self._send(worker, message, answer)

    @staticmethod
    def _count(counts: dict[WorkerClient, int], worker: WorkerClient) -> None:
        if worker in counts:
            counts[worker] -= 1

    def _send(self, worker: WorkerClient, message: dict[str, Any], answer: dict[str, Any]) -> None:
        if not worker.dead.is_set():
            worker.send({"id": message["id"], **answer})

    def _answer_later(self, worker: WorkerClient, message: dict[str, Any]) -> None:
        """Answer a request that may take hours (a question, an adapter's operation) without a waiting thread."""

        def answered(done: Future[Any]) -> None:
            self._count(self._asked, worker)
            try:
                answer = {"ok": _to_plugin(done.result())}
            except BaseException as error:  # noqa: BLE001 - sent to the worker
                answer = {"error": pack_error(error)}
            with suppress(RuntimeError, TavernError):  # the host is closed
                self._threads.submit(self._send, worker, message, answer)

        self._count(self._open, worker)
        try:
            validated_message(message)
            if self._asked.get(worker, 0) >= MOST_ASKED:
                raise ToolFailed(f"{MOST_ASKED:,} questions of this plugin wait for an answer already")
            begin = self._begin_asking if message["ask"] == "ask" else self._begin_lending
            asking = begin(worker, message)
        except BaseException as error:  # noqa: BLE001 - sent to the worker
            self._send(worker, message, {"error": pack_error(error)})
            return
        self._asked[worker] = self._asked.get(worker, 0) + 1
        asking.add_done_callback(answered)

    def _begin_lending(self, worker: WorkerClient, message: Mapping[str, Any]) -> Future[Any]:
        return self.lent_upstreams.begin(
            int(message["connection"]), int(message["token"]), str(message["operation"]), list(message["given"])
        )

    def _begin_asking(self, worker: WorkerClient, message: Mapping[str, Any]) -> Future[Any]:
        frame, control = worker.frames.get(message["call"]), control_of(worker, message["call"])
        if frame is None or control is None:
            raise ToolFailed("this call has ended", hint="ask while the tool runs")
        questions = {str(key): Question.from_json(question) for key, question in message["questions"].items()}
        task = getattr(frame.reader, "task", None)
        loop = self._portal.loop() if task is None else task.get_loop()
        return asyncio.run_coroutine_threadsafe(_asked(control, questions, task), loop)

    def _ask_node(self, message: dict[str, Any]) -> Any:
        """Answer the request of a running node to its context, on the event loop of its run."""
        if (found := self.nodes.get(message["token"])) is None:
            raise ToolFailed("this node has ended", hint="use the context while the node runs")
        ctx, loop = found
        what, values = message["method"], message["given"]

        def done(work: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        match what:
            case "is_cancelled":
                return bool(ctx.is_cancelled)
            case "progress":
                loop.call_soon_threadsafe(ctx.progress, *values)
                return None
            case "need":
                try:
                    return VALUES.encode(done(ctx.need(str(values[0]))))
                except NothingCame:
                    return NOTHING
                except MismatchedInput as error:
                    slot, why = error.slot, error.why
                    raise InputInvalid(f"input {slot!r}: {why}", hint=error.hint, slot=slot, why=why) from None
            case "keep":
                data, media_type, name = values
                return ctx.keep(VALUES.decode(data), str(media_type), str(name))
            case "llm":
                name, messages, options = values
                return _to_plugin(answer_json(done(ctx.llm(name).complete(messages, **options))))
            case "ask":
                return VALUES.encode(done(ctx.ask(*values)))
            case "invoke":
                tool, arguments, purpose, key = values
                return CALLS.encode(done(ctx.invoke(tool, arguments, purpose=purpose, idempotency_key=key)))
        raise ToolFailed(f"a node does not offer {what!r:.80}")

    def _answered(self, worker: WorkerClient, message: dict[str, Any]) -> Any:
        match message["ask"]:
            case "node":
                return self._ask_node(message)
            case "progress":
                if (control := control_of(worker, message["call"])) is not None:
                    control.progress(message["done"], message["total"], str(message["message"]))
                return None
            case "can_ask":
                known = control_of(worker, message["call"])
                return known is not None and known.can_ask(message["kind"])
            case "keep_part":
                return self._uploads.add(worker, message)
            case "artifact":
                return running_control(worker, message).artifact_facts(str(message["artifact"]))
            case "read":
                return part_of(worker, message)
            case "keep":
                return self._uploads.finish(worker, message)
        facilities = self._ctx._open()
        match message["ask"]:
            case "get_config":
                return _to_plugin(facilities.get_config(str(message["option"])))
            case "plugin_config":
                return _to_plugin(dict(facilities.plugin_config()))
            case "secret":
                return facilities.secret(str(message["name"]))
            case "on_config_change":
                self._watch(worker, str(message["option"]), int(message["watch"]))
                return None
            case "service":
                view = facilities.service(str(message["name"]))
                return {"methods": _methods(view), "description": str(type(view).__doc__ or "")}
            case "call_service":
                return self._call_service(facilities.service(str(message["name"])), message)
        raise ToolFailed(f"there is nothing called {message['ask']!r:.80} to ask for")

    def _call_service(self, view: Any, message: dict[str, Any]) -> Any:
        method = message["method"]
        if method not in _methods(view):
            getattr(view, str(method))  # the view raises its own refusal
            raise AttributeError(method)
        args, kwargs = message["args"], message["kwargs"]
        answer = getattr(view, method)(*args, **kwargs)
        if inspect.isawaitable(answer):
            answer = self._portal.run(_awaited(answer))
        return _to_plugin(answer)

    def _watch(self, worker: WorkerClient, option: str, watch: int) -> None:
        if worker.watches >= MOST_WATCHES:
            raise ToolFailed(f"more than {MOST_WATCHES} settings are watched", hint="watch a setting once")
        worker.watches += 1
        self._ctx.on_config_change(option, lambda value: self._send_setting(worker, watch, value))

    def _send_setting(self, worker: WorkerClient, watch: int, value: Any) -> None:
        """Let the worker call the plugin's callback for a changed setting."""
        if worker.is_over:
            return
        try:
            worker.request("setting_changed", {"watch": watch, "value": value}, deadline=worker.deadline(self._hook_s))
        except TimeLimit:
            raise TimeoutError(f"it took longer than {self._hook_s:g} s (limits.hookTimeoutMs)") from None
        except (Undelivered, BrokenChannel):
            return


async def _asked(control: Control, questions: Mapping[str, Question], task: asyncio.Task[Any] | None) -> dict[str, Any]:
    """The answers to questions; if the call ends first, the questions end without an answer.

    Args:
        task: the task of the call; None: no loop runs it.
    """
    asking = asyncio.ensure_future(control.ask(questions))
    asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # the waiting code may have ended
    if task is not None:
        await asyncio.wait([asking, task], return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
            raise ToolFailed("the call has ended")
    return dict(await asking)


async def _awaited(answer: Any) -> Any:
    return await answer


def _methods(view: Any) -> dict[str, bool]:
    """Published methods of a view → whether they are async."""
    members = vars(type(view))
    return {
        n: bool(getattr(m, IS_ASYNC, False))
        for n, m in members.items()
        if not n.startswith("_") and inspect.isroutine(m)
    }


def _to_plugin(answer: Any) -> Any:
    """An answer of the host, which must be JSON. Raises CannotCross."""
    return crossing(type(answer).__name__, answer)
