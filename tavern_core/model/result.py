"""The result of a call: the only thing that a caller gets.

`ToolResult` is frozen. Programs create millions, so the class is written by hand: a frozen dataclass costs four times as much
to create. Rarely read parts (evidence, meta) are stored as numbers and formatted
when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime
from math import isfinite
from typing import Any, ClassVar, Final, Literal, NoReturn

from tavern_core.errors import CallError, Outcome, OutputInvalid, UsageError, call_error_of
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model import depths
from tavern_core.model.message_translation import Said
from tavern_core.model.safe_printing import encodable, printed, shortened

Status = Literal["ok", "error", "input_required", "job"]
_MOST_DETAILS: Final = 1_000_000
"""Characters in the details of one error, names among them; each value counts as ten more."""
_VALUE: Final = 10
_LONGEST_NAME: Final = 1_000
_LONGEST_MESSAGE: Final = 100_000
_LATEST: Final = 253_402_300_800
"""The year 10,000, in seconds since the epoch."""
_LONGEST_INT: Final = 14_000
"""Bits of an integer that can be written in any case."""


def _from_mapping(cls: Any, written: Any) -> Any:
    """An `Evidence` or a `ToolError` that may be written as a mapping."""
    if not isinstance(written, Mapping):
        return written
    names = {"createdAt": "created_at", "retryAfterMs": "retry_after_ms"}
    try:
        return cls(**{names.get(key, str(key)): value for key, value in written.items()})
    except TypeError as error:
        raise UsageError(f"{cls.__name__} {dict(written)!r:.200}: {str(error).partition('() ')[2]}") from None


def iso_utc(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC with milliseconds: ``2026-11-21T15:04:05.123Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A fact about a call, for verification (seed 004 §4.3)."""

    type: Literal["tool", "file", "url", "text", "metric"]
    ref: str
    summary: str
    created: float = 0.0
    """Seconds since the epoch, UTC; 0: when the call ended."""

    def __init__(
        self,
        type: str,  # noqa: A002
        ref: str,
        summary: str = "",
        created: float = 0.0,
        *,
        created_at: str | None = None,
    ) -> None:
        """`created_at`: ISO 8601, in place of `created`."""
        if created_at is not None:
            try:
                moment = datetime.fromisoformat(created_at)
                created = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
            except (TypeError, ValueError):
                raise UsageError(f"Evidence.created_at must be ISO 8601, got {created_at!r:.80}") from None
        for name, value in (("type", type), ("ref", ref), ("summary", summary), ("created", created)):
            object.__setattr__(self, name, value)

    @property
    def created_at(self) -> str:
        """ISO 8601, UTC."""
        return iso_utc(self.created)

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "ref": self.ref, "summary": self.summary, "createdAt": self.created_at}


@dataclass(frozen=True, slots=True)
class ToolError:
    """Why a call failed, for a program (`kind`, `details`) and for a model or person (`message`, `fix`).

    Whatever a plugin gave, the details are plain JSON: what is not JSON is written as text.
    """

    kind: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    retryable: bool = False
    outcome: Outcome = "none"
    retry_after_ms: int | None = None
    fix: str = ""

    def __post_init__(self) -> None:
        for name in ("kind", "message", "fix"):
            if isinstance(text := getattr(self, name), str) and type(text) is not Said:
                object.__setattr__(self, name, shortened(str.__str__(text), _LONGEST_MESSAGE))
        object.__setattr__(self, "details", _plain(self.details, depths.WRAPPED, [_MOST_DETAILS]))
        if type(self.retryable) is not bool:
            object.__setattr__(self, "retryable", False)
        if type(self.outcome) is not str or self.outcome not in ("none", "done", "unknown"):
            object.__setattr__(self, "outcome", "unknown")
        wait = self.retry_after_ms
        if wait is not None and (type(wait) is not int or not 0 <= wait < 2**53):
            object.__setattr__(self, "retry_after_ms", None)

    @classmethod
    def of(cls, error: CallError) -> ToolError:
        """The wire form of an exception of the tree."""
        code = error.code if isinstance(error.code, str) else CallError.code
        return cls(code, error.message, error.details, error.retryable, error.outcome, error.retry_after_ms, error.hint)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "message": self.message,
            "details": dict(self.details),
            "retryable": self.retryable,
            "outcome": self.outcome,
            "retryAfterMs": self.retry_after_ms,
            "fix": self.fix,
        }


def _plain(value: Any, depth: int, room: list[int]) -> Any:
    """`value` as plain JSON, with the text of what is not JSON. Never raises.

    Args:
        room: how much may follow, see `_MOST_DETAILS`.
    """
    room[0] -= _VALUE
    if room[0] < 0:
        return "…"
    if value is None or type(value) is bool:
        return value
    try:
        if isinstance(value, str):
            text = shortened(str.__str__(value), room[0] + 1)
            room[0] -= len(text)
            return encodable(text)
        if isinstance(value, int):
            bits = int.bit_length(value)
            return int.__int__(value) if bits < _LONGEST_INT else f"integer of {bits:,} bits"
        if isinstance(value, float) and isfinite(value):
            return float.__float__(value)
        if depth == 0:
            return "…"
        if isinstance(value, Mapping):
            return {_key(name, room): _plain(item, depth - 1, room) for name, item in _first(value.items(), room)}
        if isinstance(value, list | tuple):
            return [_plain(item, depth - 1, room) for item in _first(value, room)]
    except (Exception, SystemExit):  # noqa: BLE001, S110 - a hostile class
        pass
    return _plain(printed(value), depth, room)


def _first(items: Iterable[Any], room: list[int]) -> Iterator[Any]:
    """The items for which there is room, and one more, which shows that there are others."""
    for item in items:
        is_last = room[0] < 0
        yield item
        if is_last:
            return


def _key(name: Any, room: list[int]) -> str:
    text = str(_plain(name if isinstance(name, str) else printed(name), 0, [_LONGEST_NAME]))
    room[0] -= len(text)
    return text


CallTrace = tuple[str, "str | int", float, float, str]
"""The figures of one finished call, from which `evidence` and `meta` are built when read.

(tool id, call id or its number in the host's series, start in seconds since the epoch UTC, duration in seconds, series).
A plain tuple: a NamedTuple costs six times as much to create.
"""


Rest = tuple[
    Status,
    "str | None",
    tuple[Mapping[str, Any], ...],
    tuple[Evidence, ...],
    "Mapping[str, Any] | None",
    Any,
]
"""The fields that most results leave empty: status, job, content, evidence, meta, raw."""
NO_REST: Rest = ("ok", None, (), (), None, None)
"""The rest of a result that is only a value."""


class _Fields:
    """The storage of a ToolResult, writable while it is being built."""

    __slots__ = ("_rest", "_trace", "error", "ok", "value")

    ok: bool
    """True if the call succeeded."""
    value: Any
    """The answer of the tool: plain JSON that fits its output schema. None on failure."""
    error: ToolError | None
    _rest: Rest
    _trace: CallTrace | None


class ToolResult(_Fields):
    """The result of one tool call. Tools may return one; the pipeline always does.

    Args:
        ok: True if the call succeeded.
        value: the structured answer.
        content: blocks for a model to read, MCP style: ``({"type": "text", "text": "..."},)``.
        evidence: facts about the call; the pipeline adds one of type ``tool`` for the call itself.
        error: why it failed. Both may be mappings, with the names of Python or of JSON.
        status: ok, error, input_required or job.
        job: id of the background job.
        meta: further facts; the pipeline adds callId, tool, startedAt, durationMs.
        raw: the unprocessed answer, for debugging.
    """

    __slots__ = ()

    def __init__(
        self,
        ok: bool,
        value: Any = None,
        content: tuple[Mapping[str, Any], ...] = (),
        evidence: Iterable[Evidence | Mapping[str, Any]] = (),
        error: ToolError | Mapping[str, Any] | None = None,
        status: Status | None = None,
        job: str | None = None,
        meta: Mapping[str, Any] | None = None,
        raw: Any = None,
        trace: CallTrace | None = None,
    ) -> None:
        # Built as the writable class and then sealed: assigning to a frozen object's slots one by one is slower.
        object.__setattr__(self, "__class__", _Fields)
        fields: _Fields = self
        fields.ok = bool(ok)
        fields.value = value
        fields.error = error if error is None else _from_mapping(ToolError, error)
        fields._trace = trace
        shown = tuple(_from_mapping(Evidence, item) for item in evidence) if evidence else ()
        fields._rest = (status or ("ok" if ok else "error"), job, tuple(content), shown, meta, raw)
        self.__class__ = ToolResult

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse(name)

    def __delattr__(self, name: str) -> None:
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise AttributeError(f"a ToolResult does not change: cannot set {name!r}; make a changed one with .replace()")

    @property
    def status(self) -> Status:
        """ok, error, input_required (it needs approval or an answer) or job (it runs in the background)."""
        return self._rest[0]

    @property
    def job(self) -> str | None:
        """The job's id if the status is ``job``."""
        return self._rest[1]

    @property
    def raw(self) -> Any:
        """The raw answer of the executor; only with `limits.keepRaw`."""
        return self._rest[5]

    @property
    def _content(self) -> tuple[Mapping[str, Any], ...]:
        return self._rest[2]

    @property
    def _evidence(self) -> tuple[Evidence, ...]:
        return self._rest[3]

    @property
    def _meta(self) -> Mapping[str, Any] | None:
        return self._rest[4]

    @property
    def content(self) -> tuple[Mapping[str, Any], ...]:
        """Blocks for a model to read; built from `value` or the error if the tool gave none."""
        if self._content:
            return self._content
        if self.error is not None:
            return ({"type": "text", "text": f"{self.error.kind}: {self.error.message}"},)
        return () if self.value is None else ({"type": "text", "text": _as_text(self.value)},)

    @property
    def has_content(self) -> bool:
        """True if the tool gave blocks itself; otherwise `content` is built from the value."""
        return bool(self._content)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Facts about the call: first that of the call itself, then those that the tool added."""
        if self._trace is None:
            return self._evidence
        tool, _, started, seconds, _ = self._trace
        outcome = "ok" if self.ok else (self.error.kind if self.error else "error")
        ms = seconds * 1000
        summary = f"{tool} {outcome} in {ms:.3g} ms" if ms < 999.5 else f"{tool} {outcome} in {ms:,.0f} ms"
        of_call = Evidence("tool", f"{tool}#{self.call_id}", summary, started + seconds)
        return (of_call, *self._evidence)

    @property
    def meta(self) -> Mapping[str, Any]:
        """callId, tool, startedAt (ISO, UTC), durationMs, and what the tool added."""
        added = self._meta or {}
        if self._trace is None:
            return added
        tool, _, started, seconds, _ = self._trace
        return {
            **added,
            "callId": self.call_id,
            "tool": tool,
            "startedAt": iso_utc(started),
            "durationMs": round(seconds * 1000, 4),
        }

    @property
    def call_id(self) -> str:
        """The id of the call in events and in the audit log; empty for a result that was not made by the pipeline."""
        if self._trace is None:
            return ""
        _, call, _, _, series = self._trace
        return call if isinstance(call, str) else f"{series}-{call:x}"

    def __bool__(self) -> bool:
        """`ok`: ``if result:`` checks whether the call succeeded."""
        return self.ok

    def unwrap(self) -> Any:
        """The value, for a program that can do nothing without it.

        Raises:
            CallError: the call failed; with the class of `error.kind` and the data of `error`.
        """
        if self.ok:
            return self.value
        reported = self.error or ToolError("UPSTREAM_ERROR", "the call failed and does not say why", outcome="unknown")
        error = call_error_of(reported.kind)(
            reported.message,
            hint=reported.fix,
            retryable=reported.retryable,
            outcome=reported.outcome,
            retry_after_ms=reported.retry_after_ms,
        )
        error.details = dict(reported.details)
        raise error

    def replace(self, **changes: Any) -> ToolResult:
        """A changed copy: ``result.replace(value="***")``."""
        status, job, content, evidence, meta, raw = self._rest
        values = {
            "ok": self.ok,
            "value": self.value,
            "content": content,
            "evidence": evidence,
            "error": self.error,
            "status": status,
            "job": job,
            "meta": meta,
            "raw": raw,
            "trace": self._trace,
        }
        if unknown := sorted(changes.keys() - values.keys()):
            raise TypeError(f"a ToolResult has no field {unknown[0]!r}")
        return ToolResult(**{**values, **changes})

    def to_json(self) -> dict[str, Any]:
        """The result as JSON, camelCase. `raw` is never part of it."""
        return {
            "ok": self.ok,
            "status": self.status,
            "value": self.value,
            "content": [dict(block) for block in self.content],
            "evidence": [e.to_json() for e in self.evidence],
            "error": self.error.to_json() if self.error else None,
            "job": self.job,
            "meta": dict(self.meta),
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolResult):
            return NotImplemented
        mine = (self.ok, self.value, self._content, self.error, self.status, self.job)
        return mine == (other.ok, other.value, other._content, other.error, other.status, other.job)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if self.ok:
            return f"ToolResult(ok=True, value={self.value!r})"
        return f"ToolResult(ok=False, status={self.status!r}, error={self.error!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        status, job, content, evidence, meta, _ = self._rest
        return ToolResult, (self.ok, self.value, content, evidence, self.error, status, job, meta, None, self._trace)


def success(value: Any, trace: CallTrace, rest: Rest = NO_REST) -> ToolResult:
    """The hot path's constructor, mostly of a plain value."""
    result = _Fields()  # and no __init__: it would cost half as much again
    result.ok = True
    result.value = value
    result.error = None
    result._rest = rest
    result._trace = trace
    result.__class__ = ToolResult
    return result  # type: ignore[return-value]


def with_meta(result: ToolResult, meta: Mapping[str, Any]) -> ToolResult:
    """``result.replace(meta=meta)`` for the hot path."""
    status, job, content, evidence, _, raw = result._rest
    copy = _Fields()
    copy.ok = result.ok
    copy.value = result.value
    copy.error = result.error
    copy._rest = (status, job, content, evidence, meta, raw)
    copy._trace = result._trace
    copy.__class__ = ToolResult
    return copy  # type: ignore[return-value]


def failure(error: CallError, trace: CallTrace | None = None, raw: Any = None) -> ToolResult:
    """The result of a call that failed with `error`."""
    status: Status = "input_required" if error.code in ("APPROVAL_REQUIRED", "INPUT_REQUIRED") else "error"
    return ToolResult(False, error=ToolError.of(error), status=status, raw=raw, trace=trace)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    import json  # only needed if `content` is read

    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):  # a result that was not made by the pipeline may hold anything
        return f"<{type(value).__name__}>"


def check_result(result: ToolResult) -> None:
    """Raise OutputInvalid if a result that a tool made cannot stand for its call (OUTPUT_SCHEMA_INVALID)."""
    if why := contradiction(result):
        raise OutputInvalid(
            f"the tool answered a ToolResult that contradicts itself: {why}",
            hint="return the answer alone, or raise ToolFailed",
            outcome="unknown",
        )


def contradiction(result: ToolResult) -> str:
    """Why a result that a plugin made cannot stand for a call; empty if it can."""
    error = result.error
    if not isinstance(error, ToolError | None) or (error is not None and result.ok):
        return f"ok is {result.ok}, the error {printed(error):.200}"
    if result.status not in (("ok", "job") if result.ok else ("error", "input_required")):
        return f"ok is {result.ok}, the status {printed(result.status):.80}"
    if error is not None:
        for name in ("kind", "message", "fix"):
            if not isinstance(text := getattr(error, name), str):
                return f"{name} of the error is {printed(text):.80}, not text"
        if not isinstance(error.details, Mapping):
            return f"details of the error are {printed(error.details):.80}, not a mapping"
    if not isinstance(result._meta, Mapping | None):
        return f"meta is {printed(result._meta):.80}, not a mapping"
    for block in result._content:
        if result.ok and not isinstance(block, Mapping):
            return f"a block of the content is {printed(block):.80}, not a mapping"
    for item in result._evidence:
        if not isinstance(item, Evidence):
            return f"one of the evidence is {printed(item):.80}, not Evidence"
        if not isinstance(created := item.created, int | float) or not 0 <= created < _LATEST:
            return f"created of the evidence is {printed(created):.80}, no time"
    return ""
