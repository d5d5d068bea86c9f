"""What a plugin does with a secret that it was granted, the host tells nobody: no status, event, diagnostic, run, error or file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Evidence, Plugin, Tavern, ToolError, ToolResult, deny, hookimpl, node, tool
from tavern_core.errors import TavernError

PLANTED = "planted-7f3a9c-value"
MANIFEST = {
    "start": True,
    "nodes": [{"name": "Leak"}],
    "permissions": {
        "capabilities": ["secrets:key"],
        "hooks": ["hook:server:tool:check", "hook:server:tool:after-execute", "hook:server:node:before-execute"],
    },
}


class Talker:
    """Says the secret at one place."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.secret = ""

    def say(self, place: str) -> None:
        if place == self.place:
            raise RuntimeError(f"the secret is {self.secret}")

    @hookimpl
    def tavern_start(self, ctx: Any) -> None:
        self.secret = ctx.secret("key")
        self.say("activation")

    @hookimpl
    def tavern_register_tools(self) -> Any:
        @tool
        def work() -> str:
            """Work."""
            self.say("tool")
            return self.secret

        return [work]

    @hookimpl
    def tavern_register_nodes(self) -> Any:
        @node
        def Leak() -> dict[str, Any]:
            """Leak."""
            return {self.secret: [self.secret, 1]}

        return [Leak]

    @hookimpl
    def tavern_check_call(self) -> Any:
        self.say("gate")
        return deny(f"no: {self.secret}", hint=self.secret) if self.place == "denial" else None

    @hookimpl
    def tavern_after_execute(self) -> None:
        self.say("observer")

    @hookimpl
    def tavern_before_node(self) -> None:
        self.say("node hook")


@pytest.mark.parametrize("place", ["nowhere", "activation", "tool", "gate", "denial", "observer", "node hook"])
def test_a_secret_is_never_reported(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[Any] = []

    class Listener:
        @hookimpl
        def tavern_on_event(self, event: Any) -> None:
            reported.append(event)

        @hookimpl
        def tavern_after_workflow(self, outputs: Any) -> None:
            reported.append(outputs)

    plugins = [Plugin(Listener(), name="listener"), Plugin(Talker(place), name="talker", manifest=MANIFEST)]
    config = {"secrets": {"key": PLANTED}, "limits": {"hookFailures": 2}, "plugins": {"entryPoints": False}}
    doors: list[Callable[[Tavern], Any]] = [
        *[lambda host: host.invoke_sync("talker:work")] * 3,
        lambda host: host.workflows.run_sync({"nodes": [{"id": "a", "type": "talker:Leak"}], "edges": []}),
        lambda host: host.wait(host.plugins.reload("talker")),
        lambda host: [
            *host.plugins.values(),
            *host.diagnostics,
            host.tools.why("talker:work"),
            host.settings.describe(),
        ],
    ]
    with Tavern.open(config, plugins=plugins, home=tmp_path / "home", activate="all") as host:
        for door in doors:
            with contextlib.suppress(TavernError):
                reported.append(door(host))
    assert PLANTED not in repr(reported)
    assert PLANTED not in caplog.text + "".join(capsys.readouterr())
    assert [
        file for file in (tmp_path / "home").rglob("*") if file.is_file() and PLANTED.encode() in file.read_bytes()
    ] == []


PARTS: dict[str, Callable[[str], ToolResult]] = {
    "the value": lambda text: ToolResult(True, {"a": [text]}),
    "a name in the value": lambda text: ToolResult(True, {text: 1}),
    "the content": lambda text: ToolResult(True, 1, content=[{"type": "text", "text": text}]),
    "the evidence": lambda text: ToolResult(True, 1, evidence=[Evidence("text", text, "")]),
    "the summary of the evidence": lambda text: ToolResult(True, 1, evidence=[Evidence("text", "", text)]),
    "the further facts": lambda text: ToolResult(True, 1, meta={"m": {"n": text}}),
    "the message of an error": lambda text: ToolResult(False, error=ToolError("TOOL_ERROR", text)),
    "the details of an error": lambda text: ToolResult(False, error=ToolError("TOOL_ERROR", "no", {"d": text})),
    "the facts beside an error": lambda text: ToolResult(False, error=ToolError("TOOL_ERROR", "no"), meta={"m": text}),
}


class Giver:
    """Gives back what it gets, in one part of a result."""

    def __init__(self, part: str) -> None:
        self.part = part

    @hookimpl
    def tavern_start(self, ctx: Any) -> None:
        ctx.secret("key")

    @hookimpl
    def tavern_register_tools(self) -> Any:
        @tool
        def give(text: str) -> ToolResult:
            """Give."""
            return PARTS[self.part](text)

        return [give]


def test_no_part_of_a_result_shows_a_secret(tmp_path: Path) -> None:
    manifest = {"start": True, "permissions": {"capabilities": ["secrets:key"]}}
    givers = [Plugin(Giver(part), name=f"giver{n}", manifest=manifest) for n, part in enumerate(PARTS)]
    with Tavern.open(
        {"plugins": {"entryPoints": False}, "secrets": {"key": PLANTED}}, plugins=givers, home=tmp_path / "home"
    ) as host:
        for n, part in enumerate(PARTS):
            shown, other = (
                json.dumps(host.invoke_sync(f"giver{n}:give", {"text": text}).to_json())
                for text in (PLANTED, "another text")
            )
            assert PLANTED not in shown and "***" in shown, part
            assert "another text" in other, part


def test_a_secret_under_a_harmless_name_is_not_stored_with_a_job(tmp_path: Path) -> None:
    manifest = {"start": True, "permissions": {"capabilities": ["secrets:key"]}}
    plugin = Plugin(Giver("the value"), name="giver", manifest=manifest)
    with Tavern.open(
        {"plugins": {"entryPoints": False}, "secrets": {"key": PLANTED}}, plugins=[plugin], home=tmp_path / "home"
    ) as host:
        job = str(host.invoke_sync("giver:give", {"text": PLANTED}, job=True).job)
        assert host.wait(host.jobs.wait(job, 30)).status == "completed"
    assert [
        file for file in (tmp_path / "home").rglob("*") if file.is_file() and PLANTED.encode() in file.read_bytes()
    ] == []


@pytest.mark.parametrize("door", ["invoke", "job", "text"])
def test_a_secret_in_place_of_the_name_of_a_tool_is_never_reported(tmp_path: Path, door: str) -> None:
    events: list[Any] = []
    plugins = [Plugin(Talker("nowhere"), name="talker", manifest=MANIFEST)]
    with Tavern.open(
        {"plugins": {"entryPoints": False}, "secrets": {"key": PLANTED}},
        plugins=plugins,
        home=tmp_path / "home",
        activate="all",
    ) as host:
        host.events.subscribe(events.append)
        if door == "text":
            outcome = host.run_text_sync(f"<|[REQUEST_TOOL]|>\ncommand:「始」{PLANTED}「末」\n<|[END_TOOL]|>")
            assert not outcome.ok
        else:
            result = host.invoke_sync(f"talker:{PLANTED}", purpose=PLANTED, job=door == "job")
            assert result.error is not None
            assert result.error.kind == "TOOL_NOT_FOUND"
    assert events
    assert PLANTED not in repr(events)
