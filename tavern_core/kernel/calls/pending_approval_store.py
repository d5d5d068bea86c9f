"""Approval requests without an immediate answer: stored, answered later from any process, used once.

    pending --approve--> approved --the call is made again--> used
       |  \\--reject--> rejected
       '--no answer in time--> expired, which is a denial

A request covers one call: the tool and its definition, the caller, every argument. When the same call is made again
after its approval was used, that is a new request with an id of its own. The approver must not be the caller. A rule gives
the same answer to later requests: for the same call, or for every call of this tool by this caller.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, get_args

from pydantic_core import to_json

from tavern_core.contract.stores import Record, RecordStore
from tavern_core.errors import (
    ApprovalNotFound,
    ApprovalRejected,
    ApprovalRequired,
    BudgetExceeded,
    PolicyDenied,
    UsageError,
)
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.running_call import SingleUse, current
from tavern_core.kernel.log.recorder import Recorder
from tavern_core.model.approval import Approval, ApprovalRequest
from tavern_core.model.call import HOST_PRINCIPAL, CallContext, ToolCall, check_most, owner_name, owner_of
from tavern_core.model.event import APPROVAL_DECIDED
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import iso_utc

KIND: Final = "approval"
RULE: Final = "approval-rule"
_TURN: Final = "approval-turn"
"""Kind of the records that count the used requests of a call. The first request has no such record."""
_KEYED: Final = "approval-key"
"""Kind of the records that say under which request of a call an idempotency key was used, if not under the first one."""
APPROVER: Final = "approver"
"""The role whose holders may approve."""
ApprovalState = Literal["pending", "approved", "rejected", "used", "expired"]
Remember = Literal["", "call", "tool"]
MOST_PENDING: Final = 1_000
"""Requests of one caller that wait for an answer."""
_KEPT_AFTER_S: Final = 7 * 86_400.0
"""Time for which a request can be read after it was decided."""


@dataclass(frozen=True, slots=True)
class StoredApproval:
    """A stored request for approval."""

    id: str
    state: ApprovalState
    request: Mapping[str, Any]
    """`ApprovalRequest.to_json`: arguments with secrets masked."""
    created: float
    """Seconds since the epoch, UTC."""
    until: float
    """End of a pending request (then it is denied), or of an unused approval. Seconds since the epoch, UTC."""
    decided_by: str = ""
    reason: str = ""
    user_id: str = ""
    definition: str = ""
    """Identifier of the tool's definition."""

    @property
    def tool(self) -> str:
        return str(self.request.get("tool", ""))

    @property
    def principal(self) -> str:
        """The caller."""
        return str(self.request.get("principal", ""))

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "state": self.state,
            "request": dict(self.request),
            "created": iso_utc(self.created),
            "expiresAt": iso_utc(self.until),
            "decidedBy": self.decided_by or None,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class StoredApprovalRule:
    """A rule that answers later requests."""

    id: str
    tool: str
    principal: str
    approved: bool
    scope: Remember
    """call: exactly this call; tool: every call of this tool by this caller, while the definition is the same."""
    by: str
    until: float

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id, "tool": self.tool, "principal": self.principal, "approved": self.approved, "scope": self.scope,
            "by": self.by, "expiresAt": iso_utc(self.until) if self.until else None,
        }  # fmt: skip


class StoredApprovals:
    """`tavern.approvals`.

    Args:
        seconds: how long a request may wait for its answer, and an approval for its call.
        key_seconds: how long an idempotency key is held: a call may be repeated under its approval and key only until
            then.
    """

    def __init__(self, records: RecordStore, seconds: float, key_seconds: float, recorder: Recorder) -> None:
        self.records = records
        self._seconds = seconds
        self._key_seconds = key_seconds
        self._recorder = recorder

    # The pipeline ------------------------------------------------------------------------------------------------------

    def ruled(self, call: ToolCall, mark: str, definition: str, *, is_run: bool) -> Approval | None:
        """The answer of a rule for the call; None: no rule covers it.

        Args:
            is_run: the call is made now. It uses up an approval that waits for it, so that none is left without the rule.
        """
        for name in (_call_rule(mark, definition), _tool_rule(call.tool, owner_of(call.context), definition)):
            if (record := self.records.get(RULE, name)) is not None and record.data:
                data = json.loads(record.data)
                if is_run:
                    _, waiting = self._current(approval_id(mark, definition))
                    if waiting is not None and (known := _stored(waiting)) is not None and known.state == "approved":
                        self.records.replace(self._used(waiting, call.idempotency_key, time.time()))
                return Approval(bool(data["approved"]), str(data.get("reason", "")), str(data["by"]))
        return None

    def use_or_request(
        self, call: ToolCall, request: ApprovalRequest, definition: str, why: str, facts: dict[str, Any]
    ) -> tuple[Approval, SingleUse | None]:
        """Use up the stored answer to a request, or store a new request.

        Returns:
            The answer; and its record, if it lets the call run once.

        Raises:
            ApprovalRequired: there is no answer yet (APPROVAL_REQUIRED); `details.approval` is its id.
            ApprovalRejected: no answer came in time (APPROVAL_REJECTED).
            BudgetExceeded: too many requests of this caller wait already (BUDGET_EXCEEDED).
        """
        name, key, now = approval_id(request.fingerprint, definition), call.idempotency_key, time.time()
        for _ in range(100):
            turn, record = self._current(name)  # before the key: a use of an earlier request is stored by then
            if key is not None and (repeated := self._repeated(name, key, now)) is not None:
                return repeated
            known = None if record is None else _stored(record)
            if record is None or known is None:
                if self._store_request(record, call, request, definition, _nth(name, turn)):
                    raise self._required(why, _nth(name, turn), facts)
                continue
            if known.state == "used":
                self._count(name, turn, record.owner, now)
                continue
            if known.state == "pending":
                raise self._required(why, record.key, facts)
            if known.state == "expired":
                self.records.remove(KIND, record.key)
                raise _too_late(request.tool, **facts)
            if known.state == "rejected":
                return Approval(False, known.reason, known.decided_by), None
            if key is not None and turn:
                self._find_by(key, name, turn, now)
            used = self._used(record, key, now)
            if self.records.replace(used):
                own = SingleUse(replace(record, version=record.version + 1), used, is_own=True)
                return Approval(True, known.reason, known.decided_by), own
        raise ApprovalRequired(f"{request.tool}: its approval is being used elsewhere", hint="call it again", **facts)

    def _current(self, name: str) -> tuple[int, Record | None]:
        """How many requests of the call were used before the newest one; and the newest one, if it is stored."""
        counted = self.records.get(_TURN, name)
        turn = int(counted.data or 0) if counted is not None else 0
        return turn, self.records.get(KIND, _nth(name, turn))

    def _count(self, name: str, turn: int, owner: str, now: float) -> None:
        """Let the call have a new request after this one. Only one of several processes does."""
        # Later than the new request expires.
        expires = now + 2 * self._seconds + max(_KEPT_AFTER_S, self._key_seconds) + 86_400.0
        counted = self.records.get(_TURN, name)
        if counted is None:
            self.records.add(Record(_TURN, name, owner, "used", str(turn + 1), now, expires))
        elif int(counted.data or 0) == turn:
            self.records.replace(replace(counted, data=str(turn + 1), expires=expires))

    def _find_by(self, key: str, name: str, turn: int, now: float) -> None:
        """Let `_repeated` find the request after `turn` used ones by the key."""
        place = Record(_KEYED, _place(name, key), "", "used", str(turn), now, now + self._key_seconds)
        if (there := self.records.add(place)) is not None:
            self.records.replace(replace(there, data=place.data, expires=place.expires))

    def _repeated(self, name: str, key: str, now: float) -> tuple[Approval, SingleUse] | None:
        """The approval that the call used before under this idempotency key."""
        place = self.records.get(_KEYED, _place(name, key))
        used = self.records.get(KIND, _nth(name, int(place.data or 0) if place is not None else 0))
        known = None if used is None else _stored(used)
        if used is None or known is None or known.state != "used" or not self._is_for(used, key, now):
            return None
        before = replace(used, state="approved", expires=known.until)
        return Approval(True, known.reason, known.decided_by), SingleUse(before, used, is_own=False)

    def _used(self, record: Record, key: str | None, now: float) -> Record:
        """An approved request, used up by a call with this idempotency key."""
        digest = None if key is None else _digest(key)
        data = _text({**json.loads(record.data), "key": digest, "keyUntil": now + self._key_seconds})
        return replace(record, state="used", data=data, expires=now + max(_KEPT_AFTER_S, self._key_seconds))

    def _is_for(self, used: Record, key: str, now: float) -> bool:
        """Whether a call under this idempotency key used the approval, and may be repeated under both."""
        data = json.loads(used.data)
        # Earlier versions stored the key itself, and not how long it is held.
        until = data.get("keyUntil", used.expires - _KEPT_AFTER_S + self._key_seconds)
        return data.get("key") in (key, _digest(key)) and bool(now < until)

    def give_back(self, settled: tuple[Approval, SingleUse | None]) -> None:
        """Make an approval usable again that `use_or_request` used up for a call that no longer waits."""
        if settled[1] is not None and settled[1].is_own:
            self.records.replace(settled[1].before)

    def check(
        self, call: ToolCall, request: ApprovalRequest, definition: str, why: str, facts: dict[str, Any]
    ) -> Approval:
        """The stored answer; nothing is used up.

        Raises:
            ApprovalRequired: there is no answer yet; the request is stored (APPROVAL_REQUIRED).
            ApprovalRejected: no answer came in time (APPROVAL_REJECTED).
        """
        record = self._current(approval_id(request.fingerprint, definition))[1]
        known = None if record is None else _stored(record)
        if known is not None and known.state == "approved":
            return Approval(True, known.reason, known.decided_by)
        settled = self.use_or_request(call, request, definition, why, facts)
        self.give_back(settled)  # it was approved just now
        return settled[0]

    def _store_request(
        self, old: Record | None, call: ToolCall, request: ApprovalRequest, definition: str, name: str
    ) -> bool:
        now = time.time()
        until = now + self._seconds
        waiting = self.records.count(KIND, owner=request.principal, state="pending", since=now - self._seconds)
        if waiting >= MOST_PENDING:
            raise BudgetExceeded(
                f"{request.principal} has {MOST_PENDING:,} calls that wait for approval already",
                hint="call it again when some of them were answered: `tavern approvals list`",
                retryable=True,
                retry_after_ms=round(self._seconds * 1000),
                limit="waiting approvals of one caller",
                most=MOST_PENDING,
            )
        data = _text(
            {
                "request": {**request.to_json(), "expiresAt": iso_utc(until)},
                "until": until,
                "userId": call.context.user_id,
                "definition": definition,
            }
        )
        new = Record(KIND, name, request.principal, "pending", data, now, until + _KEPT_AFTER_S)
        if old is None:
            return self.records.add(new) is None
        self.records.remove(KIND, name)
        return self.records.add(new) is None

    def _required(self, why: str, name: str, facts: dict[str, Any]) -> ApprovalRequired:
        return ApprovalRequired(
            why,
            hint=f"no approver is reachable here: another person answers with `tavern approvals approve {name}`, then make the same call again; "
            "or use Tavern.open(approve=...), a terminal, or `approval: {allow: [...]}` in tavern.yaml",
            **{**facts, "approval": name},
        )

    # People --------------------------------------------------------------------------------------------------------------

    def list(self, state: ApprovalState | None = "pending", *, most: int = 100) -> tuple[StoredApproval, ...]:
        """Requests, newest first.

        Args:
            state: pending, approved, rejected, used or expired; None: all.

        Raises:
            UsageError: there is no such state, or `most` is not a number from 0 up (USAGE).
        """
        if state is not None and state not in get_args(ApprovalState):
            raise UsageError(
                f"{state!r:.80} is not a state of a request", hint=f"there are: {', '.join(get_args(ApprovalState))}"
            )
        check_most(most)
        found = (_stored(record) for record in self.records.list(KIND, most=10_000 if state else most))
        return tuple([one for one in found if one is not None and state in (None, one.state)][:most])

    def get(self, approval: str) -> StoredApproval:
        """A request by its id.

        Raises:
            ApprovalNotFound: it does not exist; names the nearest (APPROVAL_NOT_FOUND).
        """
        return self._find(approval)[1]

    def approve(
        self, approval: str, *, by: CallContext | None = None, reason: str = "", remember: Remember = ""
    ) -> StoredApproval:
        """Allow the call to run once, when it is made again.

        Args:
            by: the approver: has the role ``approver`` and is not the caller; None: the host's own program.
            remember: ``call`` or ``tool``: also make a rule; see `StoredApprovalRule`.

        Raises:
            PolicyDenied: the approver may not decide this (POLICY_DENIED).
            ApprovalNotFound: it does not exist (APPROVAL_NOT_FOUND).
            UsageError: it was decided (USAGE).
        """
        return self._decide(approval, True, by, reason, remember)

    def reject(
        self, approval: str, *, by: CallContext | None = None, reason: str = "", remember: Remember = ""
    ) -> StoredApproval:
        """Refuse the call; the arguments are those of `approve`."""
        return self._decide(approval, False, by, reason, remember)

    def rules(self) -> tuple[StoredApprovalRule, ...]:
        """The rules that answer later requests, newest first."""
        return tuple(_rule(record) for record in self.records.list(RULE, most=10_000) if record.data)

    def forget(self, rule: str) -> None:
        """Remove a rule.

        Raises:
            ApprovalNotFound: it does not exist (APPROVAL_NOT_FOUND).
        """
        for record in self.records.list(RULE, most=10_000):
            if record.data and _rule(record).id == rule:
                self.records.remove(RULE, record.key)
                return
        raise ApprovalNotFound(f"there is no rule {rule!r:.80}", hint="`tavern approvals rules` lists them")

    def _decide(
        self, approval: str, approved: bool, by: CallContext | None, reason: str, remember: Remember
    ) -> StoredApproval:
        if remember not in ("", "call", "tool"):
            raise UsageError(f"remember={remember!r:.80}", hint='remember="call" or remember="tool"')
        record, known = self._find(approval)
        who = _entitled(by, known)
        if known.state != "pending":
            raise UsageError(f"{approval} is {known.state} already", hint="`tavern approvals list --all` shows it")
        now = time.time()
        data = json.loads(record.data)
        decided: dict[str, Any] = {**data, "by": who, "reason": reason[:1000], "until": now + self._seconds}
        changed = replace(
            record,
            state="approved" if approved else "rejected",
            data=_text(decided),
            expires=now + self._seconds if approved else now + _KEPT_AFTER_S,
        )
        if not self.records.replace(changed):
            return self._decide(approval, approved, by, reason, remember)
        if remember:
            self._remember(known, approved, who, reason, remember, now)
        reported = {
            "tool": known.tool, "approved": approved, "how": "stored", "fingerprint": known.request.get("fingerprint", ""), "by": who,
            "approval": approval, **({"reason": reason[:1000]} if reason else {}), **({"remember": remember} if remember else {}),
        }  # fmt: skip
        call_id, plugin = str(known.request.get("callId", "")), str(known.request.get("plugin", ""))
        self._recorder.note(APPROVAL_DECIDED, reported, plugin=plugin, call_id=call_id)
        return self._find(approval)[1]

    def _remember(
        self, known: StoredApproval, approved: bool, who: str, reason: str, scope: Remember, now: float
    ) -> None:
        request = known.request
        key = (
            _call_rule(str(request["fingerprint"]), known.definition)
            if scope == "call"
            else _tool_rule(known.tool, owner_name(known.principal, known.user_id), known.definition)
        )
        data = _text(
            {"tool": known.tool, "principal": known.principal, "approved": approved, "scope": scope, "by": who, "reason": reason[:1000]}
        )  # fmt: skip
        self.records.remove(RULE, key)
        self.records.add(Record(RULE, key, who, "rule", data, now))

    def _find(self, approval: str) -> tuple[Record, StoredApproval]:
        record = self.records.get(KIND, approval) if isinstance(approval, str) and approval.isascii() else None
        known = None if record is None else _stored(record)
        if record is None or known is None:
            near = [one.id for one in self.list(None)]
            raise ApprovalNotFound(
                f"there is no request {approval!r:.80}",
                hint=did_you_mean(str(approval), near) or "`tavern approvals list` shows them",
            )
        return record, known


def denial(records: RecordStore, approval: str, tool: str) -> ApprovalRejected | None:
    """Why the call of `tool` that waits for this request can never run; None: it may run."""
    record = records.get(KIND, approval)
    known = None if record is None else _stored(record)
    if known is None or known.state == "expired":
        return _too_late(tool, is_gone=known is None, tool=tool, approval=approval)
    if known.state != "rejected":
        return None
    why = f": {known.reason}" if known.reason else ""
    return ApprovalRejected(
        f"{tool} was not approved by {known.decided_by}{why}",
        hint="do not repeat it unchanged",
        tool=tool,
        approval=approval,
        decidedBy=known.decided_by,
    )


def _too_late(name: str, *, is_gone: bool = False, **facts: Any) -> ApprovalRejected:
    why = "no answer came in time, or it was not used in time" if is_gone else "no answer came in time"
    return ApprovalRejected(
        f"{name} was not approved: {why}",
        hint="call it again; approval is requested again",
        timedOut=True,
        **facts,
    )


def approval_id(mark: str, definition: str) -> str:
    """The id of the first request for the call that `mark` identifies, with this definition of the tool."""
    return "apr-" + hashlib.sha256(f"{mark}{definition}".encode()).hexdigest()[:20]


def _nth(name: str, turn: int) -> str:
    """The id of the request after `turn` used ones."""
    return f"{name}-{turn}" if turn else name


def _place(name: str, key: str) -> str:
    return f"{name}\x1f{_digest(key)}"


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "backslashreplace")).hexdigest()  # a key may contain secrets


def _call_rule(mark: str, definition: str) -> str:
    return f"call\x1f{mark}\x1f{definition}"


def _tool_rule(tool: str, owner: str, definition: str) -> str:
    return f"tool\x1f{tool}\x1f{owner}\x1f{definition}"


def _entitled(by: CallContext | None, known: StoredApproval) -> str:
    """The name of the approver.

    Raises:
        PolicyDenied: it is the caller itself, or may not approve (POLICY_DENIED).
    """
    if by is None:
        frame = current.get()
        by = frame.caller if frame is not None else None
    if by is not None and not isinstance(by, CallContext):
        raise UsageError(
            f"by= takes a CallContext, got {type(by).__name__}",
            hint='CallContext(principal="user:ann", roles={"approver"})',
        )
    who = HOST_PRINCIPAL if by is None else by.principal
    user = "" if by is None else by.user_id
    own_user = known.user_id
    if who == known.principal or (user and user == own_user):
        raise PolicyDenied(
            f"{known.tool}: {who} calls it and cannot approve it",
            hint="another person approves with `tavern approvals`, or a caller with the role approver",
        )
    if by is not None and APPROVER not in by.roles:
        raise PolicyDenied(
            f"{who} may not approve", hint=f'give the role: CallContext(principal={who!r}, roles={{"{APPROVER}"}})'
        )
    return who


def _stored(record: Record) -> StoredApproval | None:
    try:
        data = json.loads(record.data)
        until = float(data["until"])
        state: Any = record.state
        if state in ("pending", "approved") and until <= time.time():
            state = "expired"
        return StoredApproval(
            record.key,
            state,
            data["request"],
            record.created,
            until,
            str(data.get("by", "")),
            str(data.get("reason", "")),
            str(data.get("userId", "")),
            str(data.get("definition", "")),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _rule(record: Record) -> StoredApprovalRule:
    data = json.loads(record.data)
    name = "rule-" + hashlib.sha256(record.key.encode()).hexdigest()[:12]
    return StoredApprovalRule(
        name, data["tool"], data["principal"], data["approved"], data["scope"], data["by"], record.expires
    )


def _text(data: Mapping[str, Any]) -> str:
    return to_json(data, inf_nan_mode="strings").decode()
