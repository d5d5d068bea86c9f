"""Reports events to the event log, subscribers and `tavern_on_event` observers. Data is redacted first.

The log is an observer: if it fails, the call continues and a diagnostic reports it, unless `audit.required` is set.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from tavern_core.errors import PolicyDenied, TavernError, UsageError
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.log.call_changes import CallChange, changed_by, diff
from tavern_core.kernel.log.record import as_json, quoted
from tavern_core.kernel.settings.result_redaction import redact_values
from tavern_core.kernel.signal import Signal, Subscribers
from tavern_core.model.call import CallContext, ToolCall
from tavern_core.model.event import POLICY_DENIED, TOOL_CALLED, TOOL_RESULT, Event, event_of, event_types
from tavern_core.model.result import ToolResult
from tavern_core.model.safe_printing import printed
from tavern_core.schema.bounded_json_copying import NUMBERS
from tavern_core.schema.redact import for_record, named_secrets

if TYPE_CHECKING:
    from tavern_core.kernel.log.event_log import EventLog

Subscriber = Callable[[Event], None]
Redactor = Callable[[Any], Any]
DENIALS = frozenset({"POLICY_DENIED", "APPROVAL_REQUIRED", "APPROVAL_REJECTED"})


class Recorder:
    """Creates events and passes them on.

    Args:
        log: the event log, or None when auditing is off.
        changed: emitted when `is_on` may have changed.
        required: refuse calls that cannot be logged.
        arguments: include arguments and answers (redacted, shortened).
    """

    def __init__(
        self,
        log: EventLog | None,
        diagnostics: Diagnostics,
        changed: Signal,
        *,
        required: bool = False,
        arguments: bool = True,
    ) -> None:
        self._log = log
        self._diagnostics = diagnostics
        self._required = required
        self._arguments = arguments
        self._numbers = itertools.count(1)
        self._subscribers = Subscribers[tuple[Subscriber, frozenset[str] | None]]()
        self._caller: tuple[CallContext | None, str] = (None, "")
        """The caller of the last reported call, as JSON: one caller makes many calls."""
        self._changed = changed
        self.retries: Counter[str] = Counter()
        """Tool → number of retries of its calls."""
        self.model_use: Counter[tuple[str, str]] = Counter()
        """(language model, ok | failed | input | output) → requests, tokens."""

    @property
    def is_on(self) -> bool:
        """True if there are subscribers."""
        return self._log is not None or bool(self._subscribers.current)

    def subscribe(self, callback: Subscriber, *types: str) -> Callable[[], None]:
        """Call `callback(event)` for each event (of the given types); returns a function that ends it.

        The callback runs on the thread that caused the event; its errors are diagnostics.
        """
        drop = self._subscribers.add((callback, frozenset(types) or None))
        self._changed.emit()

        def end() -> None:
            drop()
            self._changed.emit()

        return end

    def called(
        self, call: ToolCall, redact: Redactor, changes: Sequence[CallChange], plugin: str = "", *, wanted: bool = True
    ) -> Event | None:
        """Record TOOL_CALLED before the tool runs.

        Args:
            wanted: whether observers get the event, too; else only the log does.

        Raises:
            PolicyDenied: `audit.required` is set and the log failed (POLICY_DENIED).
        """
        event = None
        if (
            wanted
            or changes
            or self._subscribers.current
            or self._log is None
            or (members := self._called_members(call, redact)) is None
        ):
            data = self._about(call, redact)
            self._add_changes(data, changes, redact)
            event = event_of(TOOL_CALLED, time.time(), data, call.id, plugin)
            is_recorded = self.emit(event)
        else:
            is_recorded = self._write_log(
                self._log.append_members, TOOL_CALLED, time.time(), members, f'"{call.id}"', plugin
            )
        if not is_recorded and self._required:
            raise PolicyDenied(
                f"{call.tool} was refused: the call cannot be recorded and audit.required is set",
                hint="make room for the audit log, or set audit.required: false",
            )
        return event

    def denied(
        self, call: ToolCall, result: ToolResult, redact: Redactor, plugin: str = "", changes: Sequence[CallChange] = ()
    ) -> Event:
        """Record POLICY_DENIED: the caller, its call, the refusing side and the reason."""
        error = result.error
        data = self._about(call, redact)
        data["reason"] = for_record(error.message) if error else ""
        data["by"] = (error.details.get("plugin") if error else None) or ""
        self._add_changes(data, changes, redact)
        event = Event(POLICY_DENIED, time.time(), data, call.id, plugin)
        self.emit(event)
        return event

    def finished(
        self,
        call: ToolCall,
        result: ToolResult,
        redact: Redactor,
        plugin: str = "",
        *,
        is_recorded: bool = True,
        changes: Sequence[CallChange] = (),
        wanted: bool = True,
    ) -> Event | None:
        """Record TOOL_RESULT: the end of a call.

        Args:
            wanted: as for `called`.
            is_recorded: whether another record already names the caller and the call; else this one does.
            changes: changes by plugins that no other record reports.
        """
        if is_recorded and not (wanted or changes or self._subscribers.current) and self._log is not None:
            members = self._finished_members(call, result, redact)
            if members is not None:
                self._write_log(self._log.append_members, TOOL_RESULT, time.time(), members, f'"{call.id}"', plugin)
                return None
        data: dict[str, Any] = {"tool": call.tool} if is_recorded else self._about(call, redact)
        data["ok"] = result.ok
        data["durationMs"] = round(result._trace[3] * 1000, 3) if result._trace else 0.0
        if (error := result.error) is not None:
            data["error"] = {"kind": error.kind, "message": for_record(error.message), "outcome": error.outcome}
        elif self._arguments:
            data["value"] = self._value(call, result.value, redact)
        if result.status not in ("ok", "error"):
            data["status"] = result.status
        if changes:
            self._add_changes(data, changes, redact)
        event = event_of(TOOL_RESULT, time.time(), data, call.id, plugin)
        self.emit(event)
        return event

    def _called_members(self, call: ToolCall, redact: Redactor) -> str | None:
        """The JSON of `_about` for the usual call; None for any other."""
        if call.purpose or call.parent:
            return None
        try:
            known, caller = self._caller
            if known is not call.context:
                caller = _caller_members(call.context)
                self._caller = call.context, caller
            if not caller:
                return None
            head = f',"tool":{quoted(call.tool)},"door":{quoted(call.door)}{caller}'
            if call.idempotency_key:
                head += f',"idempotencyKey":{as_json(redact(call.idempotency_key))}'
            return f'{head},"arguments":{to_json(redact(call.arguments)).decode()}' if self._arguments else head
        except ValueError:  # half a character in a name: the long way writes it out
            return None

    def _finished_members(self, call: ToolCall, result: ToolResult, redact: Redactor) -> str | None:
        """The JSON of `finished` for a successful call; None for any other."""
        if result.status != "ok" or not result._trace:
            return None
        try:
            head = f',"tool":{quoted(call.tool)},"ok":true,"durationMs":{result._trace[3] * 1000:.3f}'
            return (
                f'{head},"value":{to_json(self._value(call, result.value, redact), inf_nan_mode="strings").decode()}'
                if self._arguments
                else head
            )
        except ValueError:
            return None

    @staticmethod
    def _value(call: ToolCall, value: Any, redact: Redactor) -> Any:
        if type(value) in NUMBERS:
            return value
        return redact_values(redact(value), named_secrets(call.arguments))  # a tool may echo them

    def _add_changes(self, data: dict[str, Any], changes: Sequence[CallChange], redact: Redactor) -> None:
        if changes:
            data["changedBy"] = changed_by(changes)
            if self._arguments and (rows := diff(changes, redact)):
                data["diff"] = rows

    def _about(self, call: ToolCall, redact: Redactor) -> dict[str, Any]:
        """The caller, tool, entry point, purpose and arguments of a call."""
        context = call.context
        data: dict[str, Any] = {"tool": call.tool, "door": call.door, "principal": context.principal}
        # Written out: this runs for every call, and a loop over pairs costs a microsecond.
        if call.purpose:
            data["purpose"] = redact(call.purpose)
        if context.request_id:
            data["requestId"] = context.request_id
        if context.task_id:
            data["taskId"] = context.task_id
        if context.trace_id:
            data["traceId"] = context.trace_id
        if context.user_id:
            data["userId"] = context.user_id
        if context.profile:
            data["profile"] = context.profile
        if call.idempotency_key:
            data["idempotencyKey"] = redact(call.idempotency_key)
        if call.parent:
            data["parent"] = call.parent
        if self._arguments:
            data["arguments"] = redact(call.arguments)
        return data

    def about_approval(self, type_: str, call_id: str, data: Mapping[str, Any], plugin: str) -> tuple[Event, bool]:
        """Record APPROVAL_REQUESTED or APPROVAL_DECIDED; returns it, and False if it must be in the log and is not."""
        sent = dict(data) if self._arguments else {key: value for key, value in data.items() if key != "arguments"}
        event = Event(type_, time.time(), sent, call_id, plugin)
        return event, self.emit(event) or not self._required

    def note(self, type_: str, data: Mapping[str, Any], *, plugin: str = "", call_id: str = "") -> Event:
        """Record any other event, e.g. PLUGIN_STATE; `data` holds no secrets."""
        event = Event(type_, time.time(), data, call_id, plugin)
        self.emit(event)
        return event

    def changed(
        self, type_: str, data: Mapping[str, Any], change: CallChange, redact: Redactor, *, call_id: str = ""
    ) -> None:
        """Record what a plugin changed outside of the arguments and the result of a call."""
        noted = dict(data)
        self._add_changes(noted, [change], redact)
        self.note(type_, noted, plugin=change.plugin, call_id=call_id)

    def demanded(self, type_: str, data: Mapping[str, Any], plugin: str) -> bool:
        """Record any other event that `audit.required` covers; False if it must be in the log and is not."""
        return self.emit(Event(type_, time.time(), data, plugin=plugin)) or not self._required

    def note_large(self, type_: str, data: Mapping[str, Any], logged: Mapping[str, Any]) -> None:
        """`note` for an event that is too large for the log, which gets `logged` in place of `data`."""
        event = Event(type_, time.time(), data)
        self.emit(event, Event(type_, event.time, logged))

    def show(self, type_: str, data: Mapping[str, Any], *, plugin: str = "", call_id: str = "") -> None:
        """Emit an event for subscribers alone: there are too many of its kind for the log."""
        if self._subscribers.current:
            event = Event(type_, time.time(), data, call_id, plugin)
            object.__setattr__(event, "seq", next(self._numbers))
            self._call(event)

    def emit(self, event: Event, logged: Event | None = None) -> bool:
        """Number `event`, log it (or `logged` in its place) and call subscribers; False when the log failed."""
        object.__setattr__(event, "seq", next(self._numbers))  # ours until now: others get it from here
        kept = self._log is None or self._write_log(self._log.append, logged or event)
        if self._subscribers.current:
            self._call(event)
        return kept

    def _call(self, event: Event) -> None:
        for callback, types in self._subscribers.current:
            if types is None or event.type in types:
                try:
                    answer = callback(event)
                    if answer is not None and inspect.iscoroutine(answer):
                        answer.close()
                        raise TypeError("it is async, and a subscriber is not awaited")
                except (Exception, SystemExit) as error:  # noqa: BLE001 - an observer changes no call
                    self._diagnostics.add("SUBSCRIBER_FAILED", f"a subscriber failed with {printed(error)}")

    def _write_log(self, write: Callable[..., Any], *what: Any) -> bool:
        """Write to the log; False: that failed."""
        try:
            write(*what)
        except (TavernError, OSError, ValueError) as error:
            self._diagnostics.add(
                "AUDIT_FAILED", f"the audit log could not be written: {error}", severity="error",
                hint=getattr(error, "hint", "") or "check the disk and the permissions of the state folder",
            )  # fmt: skip
            return False
        return True


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _caller_members(context: CallContext) -> str:
    """The JSON of `_about` for the usual caller; empty for any other."""
    if context.task_id or context.trace_id or context.user_id or context.profile:
        return ""
    request = f',"requestId":{as_json(context.request_id)}' if context.request_id else ""
    return f',"principal":{as_json(context.principal)}{request}'


class Events:
    """`tavern.events`: subscribe to events."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def subscribe(self, callback: Subscriber, *types: str) -> Callable[[], None]:
        """Call `callback(event)` for each event of the given types (all, when none is given).

        Returns:
            A function that ends the subscription. Data are redacted; errors of the callback are diagnostics.

        Raises:
            UsageError: there is no such type, or `callback` cannot be called, or is async (USAGE).
        """
        if not callable(callback):
            raise UsageError(
                f"a subscriber is a function, got {callback!r:.80}",
                hint="tavern.events.subscribe(print, 'POLICY_DENIED')",
            )
        if any(map(_is_async, (callback, type(callback).__call__))):
            raise UsageError(
                f"a subscriber is called and not awaited, but {callback!r:.80} is async",
                hint="subscribe a function that starts a task: loop.call_soon_threadsafe(...); or use tavern_on_event",
            )
        return self._recorder.subscribe(callback, *event_types(types))
