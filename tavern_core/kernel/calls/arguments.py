"""The arguments of a call: copied, filled with defaults, and validated against the tool's schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tavern_core.errors import InputInvalid
from tavern_core.kernel.calls.call_errors import explained
from tavern_core.kernel.calls.running_call import RunningCall
from tavern_core.kernel.catalogue.call_plan import Plan
from tavern_core.kernel.log.call_changes import Change
from tavern_core.model.call import with_arguments
from tavern_core.model.safe_text import with_type
from tavern_core.schema.limits import json_copy, measure
from tavern_core.schema.redact import redact_text


def take(plan: Plan, call: RunningCall, limit: int) -> None:
    """Copy what the caller gave, as plain JSON, where the plan's quick `intake` could not.

    Args:
        limit: most characters of text.

    Raises:
        InputInvalid: no mapping, no JSON, or too large (INPUT_SCHEMA_INVALID).
    """
    call.values = own_copy(call.arguments, plan.id, limit)


def take_changed(plan: Plan, call: RunningCall, changed: Mapping[str, Any], limit: int) -> None:
    """Copy what hooks made of the arguments.

    Raises:
        InputInvalid: as `take`; names the plugins that changed them.
    """
    try:
        call.values = own_copy(changed, plan.id, limit)
    except InputInvalid as error:
        raise _blamed(error, call.changes or ()) from None
    call.fits = False


def fill_and_validate(plan: Plan, call: RunningCall) -> None:
    """Add the defaults of the schema, then hold the arguments against it; integers become integers: 2.0 is 2.

    Raises:
        InputInvalid: they do not fit (INPUT_SCHEMA_INVALID), with the place and repair of every problem.
    """
    values = call.values or {}
    if plan.fill is not None:
        values = call.values = plan.fill(values)
    if not call.fits:
        if not plan.accepts(values):
            raise _blamed(explained(InputInvalid, plan.id, plan.inputs, values, "arguments"), call.changes or ())
        if plan.whole is not None:
            values = call.values = plan.whole(values)
    if call.call is not None and call.call.arguments is not values:
        call.call = with_arguments(call.call, values)


def give_copy(plan: Plan, call: RunningCall, limit: int) -> None:
    """The tool gets its own copy if the host reads the arguments again afterwards."""
    given = None if call.values is None else plan.intake(call.values)
    call.given = own_copy(call.values, plan.id, limit) if given is None else given
    call.handed = call.call and with_arguments(call.call, call.given)


def own_copy(arguments: Mapping[str, Any] | None, tool: str, limit: int) -> dict[str, Any]:
    """The arguments as plain JSON that shares nothing mutable with the caller's.

    Raises:
        InputInvalid: no mapping, no JSON, or too large (INPUT_SCHEMA_INVALID).
    """
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise InputInvalid(
            f"{tool} takes named arguments, got {type(arguments).__name__}", hint='pass a mapping: {"name": value}'
        )
    try:
        given = arguments if isinstance(arguments, dict) else dict(arguments)
    except Exception as error:  # a mapping of the caller's own
        raise InputInvalid(
            f"{tool}: the arguments cannot be read: {redact_text(with_type(error))}", hint="pass a dict"
        ) from error
    copy, problem = json_copy(given)
    problem = problem or measure(copy, max_chars=limit)
    if problem is not None:
        raise InputInvalid(f"{tool}: {problem}", hint=problem.hint, problems=[problem.to_json()])
    return copy  # type: ignore[no-any-return]


def _blamed(error: InputInvalid, changes: Sequence[Change]) -> InputInvalid:
    """The error, saying which plugins made the arguments what they are: the caller may have passed good ones."""
    if changes:
        error.details["changedBy"] = [change.plugin for change in changes]
        names = ", ".join(dict.fromkeys(error.details["changedBy"]))
        error.message += f" (the arguments were changed by {names})"
    return error
