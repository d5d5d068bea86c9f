"""Decides which requests a server accepts: by the headers `Host` and `Origin`, and by the token.

Every server of this package checks this before it reads anything else of a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import Headers

from tavern_core.errors import StateDamaged
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.tokens import Token

if TYPE_CHECKING:
    from tavern_core.host import Tavern

_HERE: Final = ("127.0.0.1", "localhost", "[::1]")
ROLES: Final = ("viewer", "caller", "approver", "operator")
"""Roles of tokens that mean something to a server. An operator may do what all others may."""
_UNNAMED: Final = frozenset({"caller"})
"""The role of a token that names none."""


@dataclass(frozen=True, slots=True)
class AccessRefusal:
    """The refusal of a request, before its token is checked."""

    status: int
    code: str
    message: str
    hint: str


class RequestAccess:
    """The checks of one server.

    Args:
        section: the section of tavern.yaml, for hints: ``mcp``, ``server``.
        hosts: values of ``Host`` to accept besides the names of this machine; ``:*`` is any port.
        origins: values of ``Origin`` to accept besides the pages of this machine.
    """

    def __init__(self, tavern: Tavern, section: str, hosts: tuple[str, ...], origins: tuple[str, ...]) -> None:
        names = (*_HERE, *(f"{name}:*" for name in _HERE))
        self._hosts = (*names, *map(str.lower, hosts))
        own_origins = (f"{scheme}://{name}" for scheme in ("http", "https") for name in names)
        self._origins = (*own_origins, *map(str.lower, origins))
        self._section = section
        self._tavern = tavern

    def refusal(self, headers: Headers) -> AccessRefusal | None:
        """Why a request is refused: its `Host` is not a name of this server, or its `Origin` may not call; None: it is accepted."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not _is_among(hosts[0], self._hosts):
            message = "this server is not called that"
            return AccessRefusal(421, "misdirected_request", message, f"add the name to {self._section}.hosts")
        if not all(_is_among(origin, self._origins) for origin in origins):
            message = "pages of this origin may not call this server"
            return AccessRefusal(403, "forbidden_origin", message, f"add the page to {self._section}.origins")
        return None

    async def token(self, text: str) -> Token | None:
        """The token behind its text; None if it is not valid here.

        Raises:
            StateDamaged: the store of tokens cannot be read (STATE_DAMAGED).
        """
        return await self._tavern.tokens.verified(text, self._tavern.config.mcp.audience)

    async def is_valid(self, token: Token | None) -> bool:
        """Whether a token that was accepted is still valid; None never is."""
        try:
            return token is not None and await self._tavern.tokens.still_holds(token)
        except StateDamaged:
            return False


def bearer_token(headers: Headers) -> str:
    """The bearer token of a request; empty if it has none, or several headers that could contain one."""
    shown = headers.getlist("authorization")
    kind, _, text = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
    return text.strip() if kind.lower() == "bearer" else ""


def has_role(token: Token, *roles: str) -> bool:
    """Whether a token has one of these roles; a token that names no role of a server is a caller's."""
    held = token.roles.intersection(ROLES) or _UNNAMED
    return "operator" in held or not held.isdisjoint(roles)


def tools_stamp(tavern: Tavern, holder: Token) -> tuple[Any, ...]:
    """A value that changes whenever the tools that a token may see change.

    Raises:
        ProfileInvalid: the profile of the token cannot be used (PROFILE_INVALID).
    """
    profile = None if holder.profile is None else tavern.profile(holder.profile)
    return (tavern.tools.version, profile, holder.permissions, holder.roles, holder.principal, holder.user_id)


def _is_among(name: str, allowed: tuple[str, ...]) -> bool:
    """Whether a name is allowed, in any case, as it is or with any port."""
    name = name.lower()
    base, _, port = name.rpartition(":")
    return name in allowed or (port.isdecimal() and f"{base}:*" in allowed)
