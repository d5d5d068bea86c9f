"""Previews of calls, and tokens that allow exactly the previewed call once.

    invoke(..., dry_run=True)     hooks, defaults, validation and gates run; the tool does not, or only its preview
    commit(token)                 runs that call, when it is still the same, once

A token says *what* may run. It is not an approval: a call that needs one still needs it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pydantic_core import to_json

from tavern_core.contract.stores import Record, RecordStore
from tavern_core.errors import ApprovalRequired, BudgetExceeded, CallMisused, CallTimeout, PolicyDenied, TavernError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.approvals import definition_of, fingerprint
from tavern_core.kernel.calls.running_call import RunningCall, SingleUse
from tavern_core.kernel.catalogue.call_plan import CallPlan
from tavern_core.kernel.execution.sync_async_drivers import ExecutionMode, TimeLimit
from tavern_core.kernel.settings.result_redaction import StorageRedactor
from tavern_core.kernel.stores.store_offload import ask
from tavern_core.model.call import CallContext, ToolCall, owner_of
from tavern_core.model.safe_printing import printed

KIND: Final = "plan"
MOST_OPEN: Final = 1_000
"""Unused tokens of one caller."""
_GIVE_BACK_S: Final = 0.25
"""Time that a refused call waits for a slow store. The store finishes the change in any case."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """The call that a token stands for."""

    tool: str
    arguments: Mapping[str, Any] | None
    """None: they contained secrets and were not stored; the caller passes them again."""


class PlanTokens:
    """The tokens of one host.

    Args:
        seconds: how long a token is valid.
        key_seconds: how long an idempotency key is held: a token can be used again under its key only until then.
    """

    def __init__(self, records: RecordStore, seconds: float, key_seconds: float, disk: StorageRedactor) -> None:
        self._disk = disk
        self._records = records
        self._seconds = seconds
        self._key_seconds = key_seconds

    async def issue(
        self, plan: CallPlan, call: ToolCall, given: Mapping[str, Any], mode: ExecutionMode, left: float | None
    ) -> tuple[str, float]:
        """Issue a token for this call; returns it with its expiry.

        Args:
            given: the arguments as the caller passed them: hooks change them again when the call is made.
            left: seconds until the deadline of the call; None: there is none.

        Raises:
            BudgetExceeded: the caller has too many unused tokens (BUDGET_EXCEEDED).
        """
        owner = owner_of(call.context)
        unused = partial(self._records.count, KIND, owner=owner, state="open", since=time.time() - self._seconds)
        if await ask(mode, self._records, unused, seconds=left) >= MOST_OPEN:
            raise BudgetExceeded(
                f"{call.context.principal} has {MOST_OPEN:,} plans that were not committed",
                hint="commit some of them, or wait until they end (approval.planMs)",
                retryable=True,
                retry_after_ms=round(self._seconds * 1000),
                limit="plans of one caller",
                most=MOST_OPEN,
            )
        token, now = f"plan-{secrets.token_hex(16)}", time.time()
        marked = plan.arguments.marked(call.arguments) if plan.arguments.marked is not None else ()
        stored = (
            None if any(marked) or self._disk.arguments(dict(call.arguments)) is None else self._disk.arguments(given)
        )
        data = {"tool": plan.id, "mark": _mark(call, plan), "arguments": None if stored is None else dict(stored)}
        record = Record(KIND, token, owner, "open", to_json(data).decode(), now, now + self._seconds)
        await ask(mode, self._records, self._records.add, record, seconds=left)
        return token, now + self._seconds

    async def find(
        self, token: object, context: CallContext | None, mode: ExecutionMode, key: str | None = None
    ) -> PlannedCall:
        """The call that a token stands for.

        Args:
            key: the idempotency key of the commit: a token can be used again under the key that used it.

        Raises:
            PolicyDenied: it is unknown, another caller's, used, or expired (POLICY_DENIED).
            CallTimeout: a slow store did not answer before the deadline of the caller (TIMEOUT).
        """
        left = None if context is None or context.budget.timeout_ms is None else context.budget.timeout_ms / 1000
        try:
            record = await self._open(token, mode, key, left)
        except TimeLimit as error:
            raise CallTimeout(
                "the store of the plan tokens did not answer in time", hint="commit the token again", retryable=True
            ) from error
        if context is not None and record.owner != owner_of(context):
            raise _refused("it is not a token of this caller")
        data = json.loads(record.data)
        return PlannedCall(data["tool"], data["arguments"])

    async def check(
        self, token: str, plan: CallPlan, call: ToolCall, mode: ExecutionMode, left: float | None
    ) -> Record:
        """The record of a token that is valid for the call as it will run; arguments and errors are those of `use`."""
        record = await self._open(token, mode, call.idempotency_key, left)
        if record.owner != owner_of(call.context):
            raise _refused("it is not a token of this caller")
        data = json.loads(record.data)
        if data["mark"] != _mark(call, plan):
            raise _refused(
                f"{plan.id} would not run as planned: the tool or the arguments changed",
                "make a new plan with dry_run=True",
            )
        return record

    async def use(
        self, token: str, plan: CallPlan, call: ToolCall, mode: ExecutionMode, left: float | None
    ) -> SingleUse:
        """Use up a token for the call as it will run.

        Args:
            left: seconds until the deadline of the call; None: there is none.

        Raises:
            PolicyDenied: the call is not the planned one, or the token cannot be used (POLICY_DENIED).
        """
        record = await self.check(token, plan, call, mode, left)
        if record.state == "used":  # the key decides whether the tool runs
            return SingleUse(replace(record, state="open"), record, is_own=False)
        record_after_use = (
            "{}"
            if call.idempotency_key is None
            else to_json({**json.loads(record.data), "key": _digest(call.idempotency_key)}).decode()
        )
        expires = min(record.expires, time.time() + self._key_seconds)
        used = replace(record, state="used", data=record_after_use, expires=expires)
        before = replace(record, version=record.version + 1)

        def unused(is_used: bool) -> None:
            if is_used:
                self._records.replace(before)

        if not await ask(mode, self._records, self._records.replace, used, seconds=left, undo=unused):
            return await self.use(token, plan, call, mode, left)  # used just now: by a call with this key, or refused
        return SingleUse(before, used, is_own=True)

    async def take_over(self, call: RunningCall, mode: ExecutionMode) -> None:
        """Make what lets a call run once its own: it holds its key now, and no other call of this key runs.

        An earlier call with the key used it up, and may have given it back, or may be about to. After this, no earlier
        call can give it back; this one can if it has been given back.

        Raises:
            ApprovalRequired: another call used the approval meanwhile (APPROVAL_REQUIRED).
            PolicyDenied: another call used the token meanwhile (POLICY_DENIED).
        """
        taken: list[SingleUse] = []
        for one in call.used_up:
            mine = await ask(mode, self._records, self._mine, one, seconds=call.time_left(), undo=self._unused)
            if mine is None and one.used.kind == KIND:
                raise _refused("it was used just now, or has expired")
            if mine is None:
                raise ApprovalRequired(
                    f"{call.written}: its approval was used by another call just now", hint="make the same call again"
                )
            taken.append(mine)
            call.used_up = (*taken, *call.used_up[len(taken) :])

    def _mine(self, one: SingleUse) -> SingleUse | None:
        """What `one` is after this call has used it; None: another call with another key has."""
        for _ in range(100):
            known = self._records.get(one.used.kind, one.used.key)
            if known is None or not (known.state == one.before.state or _has_same_key(known, one.used)):
                return None
            if one.is_own and known.version == one.before.version:
                return one
            if self._records.replace(replace(one.used, version=known.version)):
                is_own = known.state == one.before.state  # else an earlier call may have begun under it
                return SingleUse(replace(one.before, version=known.version + 1), one.used, is_own=is_own)
        return None

    def _unused(self, mine: SingleUse | None) -> None:
        if mine is not None and mine.is_own:
            self._records.replace(mine.before)

    async def give_back(self, used_up: tuple[SingleUse, ...], mode: ExecutionMode) -> None:
        """Make the tokens and approvals of a call whose tool did not begin usable again, unless the store fails."""
        with suppress(TavernError, TimeLimit):
            for one in used_up:
                if one.is_own:
                    await ask(mode, self._records, self._records.replace, one.before, seconds=_GIVE_BACK_S)

    def give_back_at_once(self, used_up: tuple[SingleUse, ...]) -> None:
        """Do the same for a call that may not wait any more; with a slow store, they stay used."""
        if self._records.is_quick:
            with suppress(TavernError):
                for one in used_up:
                    if one.is_own:
                        self._records.replace(one.before)

    async def _open(self, token: object, mode: ExecutionMode, key: str | None, left: float | None) -> Record:
        if not isinstance(token, str) or not token.isascii() or not token.startswith("plan-") or len(token) > 80:
            raise CallMisused(
                f"{printed(token):.40} is not a plan token",
                hint="a dry run gives one: invoke(..., dry_run=True), `tavern tools call ID --dry-run`",
            )
        record: Record | None = await ask(mode, self._records, self._records.get, KIND, token, seconds=left)
        if record is None:
            raise _refused("it does not exist, or has expired")
        is_again = (
            record.state == "used" and isinstance(key, str) and json.loads(record.data).get("key") == _digest(key)
        )
        if record.state != "open" and not is_again:
            raise _refused("it was used before")
        return record


def _has_same_key(known: Record, used: Record) -> bool:
    return known.state == "used" and json.loads(known.data).get("key") == json.loads(used.data).get("key")


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _mark(call: ToolCall, plan: CallPlan) -> str:
    return f"{fingerprint(call, plan.spec)} {definition_of(plan.spec)}"


def _refused(
    why: str, hint: str = "a token is used once, by whom it was given to, in time; make a new plan"
) -> PolicyDenied:
    return PolicyDenied(f"the plan token cannot be used: {why}", hint=hint)
