"""An application tells that somebody logged in; who was granted to, hears of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tavern_core import CallContext, Tavern
from tavern_core.errors import UsageError

from .workshop import Workshop

CODE = """
from tavern_core import hookimpl

@hookimpl
def tavern_on_login(user, ctx):
    with open(ctx.data_dir / "told.txt", "a", encoding="utf-8") as file:
        print(type(user).__name__, user.principal, user.user_id, sorted(user.roles), user.profile, sorted(user.permissions), user.config, file=file)
"""
MANIFEST = "permissions: {hooks: [auth:login]}\nisolation: "
ANN = CallContext(
    principal="user:ann",
    user_id="ann",
    roles={"编辑", "admin"},
    permissions=frozenset({"write:fs"}),
    config={"token": "geheim"},
)


def opened(workshop: Workshop, isolation: str = "none", code: str = CODE) -> Tavern:
    folder = workshop.folder("door", None, MANIFEST + isolation)
    (folder / "__init__.py").write_text(code, "utf-8")
    return workshop.open()


def reported(workshop: Workshop) -> list[str]:
    return [line for file in workshop.root.rglob("told.txt") for line in file.read_text("utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_login_is_reported_only_to_plugins_with_the_grant(workshop: Workshop, isolation: str) -> None:
    tavern = opened(workshop, isolation)
    tavern.wait(tavern.user_logged_in(ANN))
    assert reported(workshop) == []  # asked for, and not granted yet
    tavern.grant("door", "hook:client:auth:login")
    tavern.wait(tavern.user_logged_in(ANN))
    assert reported(workshop) == ["CallContext user:ann ann ['admin', '编辑'] None [] None"]
    tavern.revoke("door")
    tavern.wait(tavern.user_logged_in(ANN))
    assert len(reported(workshop)) == 1


def test_a_login_is_on_the_record(workshop: Workshop) -> None:
    tavern = opened(workshop)
    seen: list[Any] = []
    tavern.events.subscribe(seen.append, "USER_LOGGED_IN")
    tavern.wait(tavern.user_logged_in(ANN))
    [event] = seen
    assert dict(event.data) == {"principal": "user:ann", "userId": "ann", "roles": ["admin", "编辑"], "profile": None}
    lines = (workshop.home / "audit" / "audit.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["principal"] for line in lines if "USER_LOGGED_IN" in line] == ["user:ann"]
    assert "geheim" not in "".join(lines)


def test_a_failing_observer_prevents_no_login(workshop: Workshop) -> None:
    tavern = opened(
        workshop,
        code="from tavern_core import hookimpl\n\n@hookimpl\ndef tavern_on_login(user):\n    raise ValueError(user.principal)\n",
    )
    tavern.grant("door", "hook:client:auth:login")
    tavern.wait(tavern.user_logged_in(ANN))
    assert [d.plugin for d in tavern.diagnostics if "tavern_on_login" in d.message] == ["door"]


@pytest.mark.parametrize("user", ["user:ann", None, {"principal": "user:ann"}])
def test_who_is_no_context_is_an_error(workshop: Workshop, user: Any) -> None:
    tavern = opened(workshop)
    with pytest.raises(UsageError, match="needs a CallContext"):
        tavern.wait(tavern.user_logged_in(user))
