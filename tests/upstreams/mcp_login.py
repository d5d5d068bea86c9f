"""An MCP server that wants a login, made with the library `mcp`: ``mcp_login.py DESCRIPTOR [SECONDS]`` of a socket that listens.

Its tokens hold for so many seconds, or one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import time
from typing import Any

from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.responses import JSONResponse, Response


class Accounts:
    """Opening the address is enough to be logged in; everything else is checked. A refresh token that is used twice ends every login."""

    def __init__(self, holds_s: int) -> None:
        self._holds_s = holds_s
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}
        self.refreshing: dict[str, RefreshToken] = {}
        self.used: set[str] = set()
        """Refresh tokens that were used."""
        self.reused: set[str] = set()
        self.refreshed = 0
        self.refused = 0
        """Requests with a token that does not hold, since all were forgotten."""
        self.held: asyncio.Event | None = None
        """What the next refreshing waits for."""
        self.busy = False
        """Refreshing is answered with HTTP 503."""

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[str(client_info.client_id)] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = secrets.token_hex(20)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client: Any, authorization_code: str) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client: Any, authorization_code: AuthorizationCode) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issued(str(client.client_id), authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        if refresh_token in self.used:
            self.reused.add(refresh_token)
            self.tokens.clear()
            self.refreshing.clear()
        return self.refreshing.get(refresh_token)

    async def exchange_refresh_token(self, client: Any, refresh_token: RefreshToken, scopes: list[str]) -> OAuthToken:
        del self.refreshing[refresh_token.token]
        self.used.add(refresh_token.token)
        self.refreshed += 1
        if self.held is not None:
            await asyncio.wait_for(self.held.wait(), 60)
        if refresh_token.token in self.reused:
            raise TokenError("invalid_grant")
        return self._issued(str(client.client_id), scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        if token not in self.tokens:
            self.refused += 1
        return self.tokens.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.tokens.pop(token.token, None)

    def _issued(self, client: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access, refresh = "access-" + secrets.token_hex(20), "refresh-" + secrets.token_hex(20)
        expires = int(time.time()) + self._holds_s + 1
        self.tokens[access] = AccessToken(
            token=access, client_id=client, scopes=scopes, expires_at=expires, resource=resource
        )
        self.refreshing[refresh] = RefreshToken(token=refresh, client_id=client, scopes=scopes, resource=resource)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=self._holds_s, scope=" ".join(scopes))


def main() -> None:
    handle = int(sys.argv[1])
    with socket.socket(fileno=os.dup(handle)) as listening:
        port = listening.getsockname()[1]
    accounts = Accounts(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    server = MCPServer(
        "login",
        auth_server_provider=accounts,
        auth=AuthSettings(
            issuer_url=f"http://127.0.0.1:{port}",  # type: ignore[arg-type]
            resource_server_url=f"http://127.0.0.1:{port}/mcp",  # type: ignore[arg-type]
            client_registration_options=ClientRegistrationOptions(enabled=True),
            validate_token_resource=True,
        ),
    )

    @server.tool()
    def refreshed() -> int:
        """How often a token was refreshed."""
        return accounts.refreshed

    @server.tool()
    def forget(everything: bool = False, hold: bool = False, busy: bool = False) -> int:
        """Forget the tokens of all clients, or all but those that refresh them; how many there were.

        Args:
            hold: the next refreshing is answered after a request for ``/release``.
            busy: until then it is answered with HTTP 503.
        """
        number = len(accounts.tokens)
        accounts.tokens.clear()
        accounts.refused, accounts.held, accounts.busy = 0, asyncio.Event() if hold else None, busy
        if everything:
            accounts.refreshing.clear()
        return number

    @server.tool()
    def scope() -> str:
        """The scope of the token of this call, which must have ``secrets``."""
        token = get_access_token()
        return " ".join(sorted(token.scopes)) if token else ""

    @server.tool()
    def repeat() -> str:
        """Says again with which token it was called."""
        token = get_access_token()
        return f"it was {token.token if token else 'none'}"

    together = asyncio.Barrier(2)

    @server.tool()
    async def meet() -> bool:
        """Waits for another call of it."""
        async with together:
            return True

    app = server.streamable_http_app()

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        """Refuse calls of `scope` with a token that lacks the scope ``secrets``; say what happened."""
        if scope.get("path") == "/release":
            accounts.busy = False
            if accounts.held is not None:
                accounts.held.set()
        if scope.get("path") in ("/release", "/state"):
            await JSONResponse([accounts.refreshed, accounts.refused])(scope, receive, send)
            return
        if scope.get("path") == "/token" and accounts.busy:
            await Response(status_code=503)(scope, receive, send)
            return
        headers = dict(scope.get("headers", ()))
        token = accounts.tokens.get(headers.get(b"authorization", b"").decode().removeprefix("Bearer "))
        if headers.get(b"mcp-name") == b"scope" and token is not None and "secrets" not in token.scopes:
            challenge = {"www-authenticate": 'Bearer error="insufficient_scope", scope="secrets"'}
            await Response(status_code=403, headers=challenge)(scope, receive, send)
        else:
            await app(scope, receive, send)

    import uvicorn

    uvicorn.run(checked, fd=handle, log_level="warning", timeout_keep_alive=120)


if __name__ == "__main__":
    main()
