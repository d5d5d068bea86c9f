"""A row of the table of routes: its method and path, the roles that it needs, its handler and its description."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Literal

from starlette.types import ASGIApp

from tavern_core.frozen_dataclass import dataclass
from tavern_core.schema.validate import Validator
from tavern_core.server.api.answer_schemas import Schema
from tavern_core.server.api.exchange import Exchange

Method = Literal["GET", "POST", "WEBSOCKET", "ANY"]
"""ANY: what is behind the route answers every method."""
Role = Literal["", "any", "viewer", "caller", "approver"]
PUBLIC: Final = ""
ANY_TOKEN: Final = "any"
Handler = Callable[[Exchange], Coroutine[Any, Any, ASGIApp]]


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the API."""

    method: Method
    path: str
    """Variables in braces: ``/api/jobs/{id}``."""
    roles: tuple[Role, ...]
    """One of these roles is needed; `PUBLIC`: no token, `ANY_TOKEN`: any token."""
    summary: str
    """The summary of the route, a sentence."""
    answer: str
    """A short description of the response."""
    handler: Handler | None = None
    """None: the MCP server."""
    query: Mapping[str, Schema] | None = None
    """Parameter behind ``?`` → its JSON Schema, with its description."""
    body: Validator | None = None
    streams: bool = False
    """Whether its answer goes on until the client leaves."""
    schema: Schema | None = None
    """The JSON Schema of its answer; None: a text."""
    media: str = "application/json"
    """The media type of its answer."""
    statuses: tuple[int, ...] = (200,)
    """The statuses of its answer if there is no error."""

    @property
    def name(self) -> str:
        """Its name in clients that are made from the OpenAPI document: `get_api_jobs_id`."""
        return "_".join([self.method.lower(), *re.findall(r"\w+", self.path)])

    @property
    def also(self) -> tuple[str, ...]:
        """Further methods that it answers: HEAD has the headers of GET."""
        return ("HEAD",) if self.method == "GET" and not self.streams else ()

    @property
    def is_public(self) -> bool:
        """Whether it needs no token."""
        return PUBLIC in self.roles

    @property
    def needs(self) -> str:
        """The token that it needs, in words."""
        if self.is_public:
            return "no token"
        return "any token" if ANY_TOKEN in self.roles else " or ".join(self.roles)
