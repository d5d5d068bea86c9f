"""`tavern.tokens`: the credentials of callers from other processes, and the permissions of each.

    tvn_<id>_<secret>       shown once; only its SHA-256 is stored, so that readers of the state folder cannot use it

A token names a principal and its exact permissions. It is valid for one audience: a server accepts only its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic_core import to_json

from tavern_core.contract.stores import Record, RecordStore
from tavern_core.errors import TokenNotFound, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.call import HOST_PRINCIPAL, CallContext
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.result import iso_utc

KIND: Final = "token"
AUDIENCE: Final = "mcp"
"""The audience of a token if none is set."""
_WRITTEN: Final = re.compile(r"tvn_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret."""

    id: str
    principal: str
    """The caller of its calls: ``agent:claude``."""
    permissions: frozenset[str] = frozenset()
    """Capabilities that its calls may use; none by default."""
    profile: str | None = None
    roles: frozenset[str] = frozenset()
    user_id: str = ""
    approver: str = ""
    """The person at the client, who may approve its calls: another principal than `principal`. Empty: none."""
    audience: str = AUDIENCE
    name: str = ""
    """For people."""
    created: float = 0.0
    """Seconds since the epoch, UTC."""
    expires: float = 0.0
    """Seconds since the epoch, UTC; 0: never."""

    def context(self) -> CallContext:
        """A new context of its holder, with exactly these rights."""
        return CallContext(
            principal=self.principal,
            permissions=self.permissions,
            profile=self.profile,
            roles=self.roles,
            user_id=self.user_id,
        )

    def approving(self) -> CallContext | None:
        """The context of the person who approves at its client; None: there is none."""
        return CallContext(principal=self.approver, roles=frozenset({"approver"})) if self.approver else None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "principal": self.principal,
            "permissions": sorted(self.permissions),
            "profile": self.profile,
            "roles": sorted(self.roles),
            "userId": self.user_id or None,
            "approver": self.approver or None,
            "audience": self.audience,
            "createdAt": iso_utc(self.created),
            "expiresAt": iso_utc(self.expires) if self.expires else None,
        }


def refuse_useless(permissions: Iterable[str]) -> None:
    """Refuse permissions that allow nothing. Raises UsageError (USAGE)."""
    if useless := sorted(entry for entry in permissions if entry.startswith("danger") and "*" in entry):
        raise UsageError(
            f"{useless[0]!r} allows nothing: no pattern covers it", hint="name danger:destructive literally"
        )


class Tokens:
    """The tokens of a state folder. Safe for threads and processes."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    def create(
        self,
        principal: str,
        *,
        permissions: Iterable[str] = (),
        profile: str | None = None,
        roles: Iterable[str] = (),
        user_id: str = "",
        approver: str = "",
        audience: str = AUDIENCE,
        name: str = "",
        days: float | None = None,
    ) -> tuple[Token, str]:
        """Create a token.

        Args:
            principal: the caller of its calls: ``agent:claude``, ``user:ann``.
            permissions: capabilities that its calls may use, ``danger:*`` among them only in full.
            profile: name of the agent profile that decides its inventory.
            approver: the person at the client who may approve its calls, e.g. ``user:ann``; not `principal` itself.
            audience: the server that accepts it, by `mcp.audience`.
            days: how long it holds; None: until it is revoked.

        Returns:
            The token, and its text, which cannot be shown again.

        Raises:
            UsageError: an argument is invalid (USAGE).
        """
        _check(principal, approver, audience, days)
        now, id_, secret = time.time(), secrets.token_hex(6), secrets.token_urlsafe(32)
        expires = 0.0 if days is None else now + days * 86_400
        granted, held = _names(permissions, "permissions"), _names(roles, "roles")
        _names([] if profile is None else [profile], "profile")
        made = Token(id_, principal, granted, profile, held, user_id, approver, audience, name[:_LONGEST], now, expires)
        made.context()  # refuses what is not a capability
        refuse_useless(granted)
        stored = {**made.to_json(), "expires": expires, "hash": _hash(secret)}
        self._records.add(Record(KIND, id_, principal, "valid", to_json(stored).decode(), now, expires))
        return made, f"tvn_{id_}_{secret}"

    def list(self) -> tuple[Token, ...]:
        """The valid tokens, newest first."""
        found = map(_token, self._records.list(KIND, most=10_000))
        return tuple(one[0] for one in found if one is not None)

    def revoke(self, token: str) -> None:
        """Revoke a token in every process, at once.

        Args:
            token: its id.

        Raises:
            TokenNotFound: there is none; names the nearest (TOKEN_NOT_FOUND).
        """
        if not isinstance(token, str) or not token.isascii() or not self._records.remove(KIND, token):
            near = did_you_mean(str(token), [one.id for one in self.list()])
            raise TokenNotFound(f"there is no token {token!r:.80}", hint=near or "`tavern tokens list` shows them")

    def verify(self, text: str, audience: str = AUDIENCE) -> Token | None:
        """The token with this text; None: there is none, it has expired, or it is for another audience."""
        found = _WRITTEN.fullmatch(text) if isinstance(text, str) and len(text) < 100 else None
        record = None if found is None else self._records.get(KIND, found[1])
        stored = None if record is None else _token(record)
        if found is None or stored is None:
            return None
        token, digest = stored
        if not hmac.compare_digest(_hash(found[2]), digest) or token.audience != audience:
            return None
        return token

    async def verified(self, text: str, audience: str = AUDIENCE) -> Token | None:
        """`verify` for an event loop: a slow store is asked in a worker thread."""
        if self._records.is_quick:
            return self.verify(text, audience)
        return await asyncio.to_thread(self.verify, text, audience)

    async def still_holds(self, token: Token) -> bool:
        """Whether a token that was verified earlier has neither been revoked nor expired since."""
        quick = self._records.is_quick
        get = self._records.get
        record = get(KIND, token.id) if quick else await asyncio.to_thread(get, KIND, token.id)
        stored = None if record is None else _token(record)
        return stored is not None and stored[0] == token


def check_principal(principal: object) -> None:
    """Refuse a name that no outside caller can have.

    Raises:
        UsageError: it is not a principal, or is reserved for the host (USAGE).
    """
    if not isinstance(principal, str) or not principal.strip() or not principal.isprintable():
        raise UsageError(
            f"{principal!r:.80} is not a principal", hint="name the caller, such as agent:claude or user:ann"
        )
    if principal == HOST_PRINCIPAL or principal.startswith("plugin:"):
        raise UsageError(f"{principal!r:.80} is a name of the host's own", hint="for example agent:claude or user:ann")


def _check(principal: object, approver: str, audience: object, days: float | None) -> None:
    check_principal(principal)
    if approver:
        check_principal(approver)
    if approver == principal:
        raise UsageError(
            f"{principal} calls, and cannot approve its own calls",
            hint="name another principal: the person at the client",
        )
    if not isinstance(audience, str) or not audience:
        raise UsageError("a token has an audience", hint=f"audience={AUDIENCE!r}")
    if days is not None and not 0 < days < 36_500:
        raise UsageError(f"days={days!r:.40} is not a time for which a token holds", hint="days=30")


def _names(given: Iterable[str], what: str) -> frozenset[str]:
    if isinstance(given, str):
        raise UsageError(f"{what}= takes a list of names, got the string {given!r:.80}")
    names = frozenset(given)
    if empty := [name for name in names if isinstance(name, str) and not name.strip()]:
        raise UsageError(f"{what}= names nothing with {empty[0]!r:.80}", hint="leave it out or give it a name")
    return names


def _hash(secret: str) -> str:
    return hashlib.sha256(
        secret.encode()
    ).hexdigest()  # of 256 random bits: nothing to guess that a slow hash would guard


def _token(record: Record) -> tuple[Token, str] | None:
    """A token and the hash of its text; None: its record is corrupt, so it does not hold."""
    try:
        data: Mapping[str, Any] = json.loads(record.data)
        token = Token(
            record.key, data["principal"], frozenset(data["permissions"]), data["profile"], frozenset(data["roles"]),
            data["userId"] or "", data["approver"] or "", data["audience"], data["name"], record.created, data["expires"],
        )  # fmt: skip
        return token, str(data["hash"])
    except (KeyError, TypeError, ValueError):
        return None
