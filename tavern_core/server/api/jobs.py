"""Jobs: the background calls of the caller, and no one else's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.responses import Response

from tavern_core.schema.validate import compile_validator
from tavern_core.server.api.calls import json_response
from tavern_core.server.api.exchange import Exchange
from tavern_core.server.request_access import has_role

MOST: Final = 1_000
"""Jobs in one list."""
ANSWER: Final = compile_validator(
    {
        "type": "object",
        "properties": {
            "value": {"description": "The answer; true or false where the job waits for approval."},
            "question": {"type": "string", "description": "Which question, if there are several."},
        },
        "required": ["value"],
        "additionalProperties": False,
    },
    name="answer",
)


async def jobs(exchange: Exchange) -> Response:
    """Jobs, newest first."""
    query = exchange.query
    list_jobs = partial(
        exchange.tavern.jobs.list,
        status=query.getlist("status"),
        tool=query.get("tool", ""),
        context=exchange.holder.context(),
        most=exchange.number("limit", 100, MOST),
    )
    return json_response([job.to_json() for job in await asyncio.to_thread(list_jobs)])


async def job(exchange: Exchange) -> Response:
    """A job, with its result when it is over."""
    id_, context, manager = exchange.path["id"], exchange.holder.context(), exchange.tavern.jobs
    found = await asyncio.to_thread(partial(manager.find, id_, context=context))
    result = None
    if found.is_over:
        result = (await asyncio.to_thread(partial(manager.result, id_, context=context))).to_json()
    return json_response({**found.to_json(), "result": result})


async def cancel(exchange: Exchange) -> Response:
    """Ask a job to end."""
    id_ = exchange.path["id"]
    ask = partial(exchange.tavern.jobs.cancel, id_, context=exchange.holder.context())
    return json_response({"jobId": id_, "cancelled": await asyncio.to_thread(ask)})


async def answer(exchange: Exchange) -> Response:
    """Answer the question of a job."""
    id_, body = exchange.path["id"], await exchange.json(ANSWER)
    context = exchange.holder.context()
    if has_role(exchange.holder, "approver"):  # an operator, too
        context = replace(context, roles=context.roles | {"approver"})
    give = partial(exchange.tavern.jobs.answer, id_, body["value"], body.get("question", ""), context=context)
    return json_response({"jobId": id_, "answered": await asyncio.to_thread(give)})
