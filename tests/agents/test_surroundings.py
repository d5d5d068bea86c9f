"""The tools of an agent see who acts and where, in the fields of seed 002."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, factory, hookimpl, tool
from tests.agents.desk import ONLY_GIVEN

PROFILE = {"name": "writer", "tool_ids_inventory": ["eye:look"], "config": {"style": "short"}}
SEEN = (
    "config",
    "workspace_dir",
    "agent_dir",
    "agent_id",
    "session_key",
    "message_channel",
    "agent_account_id",
    "sandboxed",
)


class Eye:
    def __init__(self) -> None:
        self.contexts: list[CallContext] = []

    @hookimpl
    def tavern_register_tools(self) -> Any:
        def made(context: CallContext) -> Any:
            @tool(read_only=True)
            def look() -> str:
                """Look around."""
                self.contexts.append(context)
                return "seen"

            return look

        return [factory(made, names=["look"])]


@pytest.mark.parametrize(
    ("caller", "config", "session"),
    [
        (None, {"style": "short"}, "run"),
        (CallContext(principal="user:ann", permissions={"network"}), {"style": "short"}, "run"),
        (
            CallContext(principal="user:ann", permissions={"network"}, config={"style": "long"}, session_key="s1"),
            {"style": "long"},
            "s1",
        ),
    ],
    ids=["the host", "a caller without any", "a caller with its own"],
)
def test_the_tools_of_an_agent_see_its_surroundings(
    tmp_path: Path, caller: CallContext | None, config: dict[str, str], session: str
) -> None:
    (tmp_path / "writer").mkdir()
    file = tmp_path / "writer" / "agent_profile.json"
    file.write_text(json.dumps(PROFILE), "utf-8")
    eye, answers = Eye(), iter(["<|[REQUEST_TOOL]|>\ncommand:「始」eye:look「末」\n<|[END_TOOL]|>", "done"])
    with Tavern.open(ONLY_GIVEN, plugins=[Plugin(eye, name="eye")], home=tmp_path / "home") as host:
        outcome = host.agents.run_sync(file, "look", model=lambda _: next(answers), context=caller)
    assert outcome.state == "done", outcome
    (context,) = eye.contexts
    seen = {name: getattr(context, name) for name in SEEN}
    assert seen == {
        "config": config,
        "workspace_dir": None,
        "agent_dir": str(file.parent),
        "agent_id": "writer",
        "session_key": outcome.run_id if session == "run" else session,
        "message_channel": None,
        "agent_account_id": None,
        "sandboxed": False,
    }
    assert context.principal == "agent:writer"
