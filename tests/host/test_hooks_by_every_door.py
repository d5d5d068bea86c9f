"""The hooks of found plugins, granted by an operator, apply to the API, to text and to the command line alike."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.__main__ import main

from .conftest import run
from .workshop import HELLO, TOOL, Workshop

pytestmark = pytest.mark.slow

HOOKS = """
@hookimpl
def tavern_before_execute(call):
    note("before")
    return {"name": call.arguments.get("name", "") + "!"}

@hookimpl
def tavern_check_call(call):
    note("check " + call.door)
    if "secret" in call.arguments["name"]: return deny("no secrets")
    if "ask" in call.arguments["name"]: return require_approval("somebody must look")

@hookimpl
async def tavern_transform_result(result):
    note("transform")
    return result.replace(value=result.value + "?") if result.ok else None

@hookimpl
def tavern_after_execute(result):
    note("after " + str(result.ok))

@hookimpl
def tavern_on_event(event):
    if event.type.startswith("TOOL"): note(event.type)
"""
RIGHTS = ["tool:before-execute", "tool:check", "tool:transform-result", "tool:after-execute", "events"]
MANIFEST = "permissions: {hooks: [" + ", ".join(f'"hook:server:{right}"' for right in RIGHTS) + "]}"

Answer = tuple[str, Any]
"""("ok", value) or (kind of the error, its message)."""


def answer(result: Any) -> Answer:
    return (result.error.kind, result.error.message) if result.error else ("ok", result.value)


def project(workshop: Workshop) -> Tavern:
    """A host of the project folder, as the command line opens it."""
    return Tavern.open(workshop.root / "tavern.yaml", home=workshop.home)


def by_api(workshop: Workshop, name: str) -> Answer:
    async def call() -> Any:
        async with project(workshop) as host:
            return await host.invoke("one:hello", {"name": name})

    return answer(run(call()))


def by_sync_api(workshop: Workshop, name: str) -> Answer:
    with project(workshop) as host:
        return answer(host.invoke_sync("one:hello", {"name": name}))


def by_text(workshop: Workshop, name: str) -> Answer:
    block = f"<|[REQUEST_TOOL]|>\ncommand:「始」one:hello「末」\nname:「始」{name}「末」\n<|[END_TOOL]|>"
    with project(workshop) as host:
        return answer(host.run_text_sync(block).results[0])


def by_command_line(workshop: Workshop, name: str) -> Answer:
    words = ["--home", str(workshop.home), "--config", str(workshop.root / "tavern.yaml")]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*words, "tools", "call", "one:hello", f"name={name}", "--json"])
    reported = json.loads(out.getvalue())
    error = reported["error"]
    assert code == (3 if error else 0)  # 3: denied, or somebody must approve
    return (error["kind"], error["message"]) if error else ("ok", reported["value"])


DOORS = {"api": by_api, "sync api": by_sync_api, "tam": by_text, "cli": by_command_line}


@pytest.mark.parametrize("door", DOORS)
def test_every_hook_applies(workshop: Workshop, door: str) -> None:
    workshop.folder("guard", HOOKS, MANIFEST)
    workshop.folder("one", TOOL, HELLO)
    (workshop.root / "tavern.yaml").write_text("plugins: {roots: [plugins], entryPoints: false}\n")
    with project(workshop) as host:
        host.grant("guard", all_requested=True)

    def said() -> list[str]:
        return [note for note in workshop.notes() if not note.startswith("import")]

    assert DOORS[door](workshop, "Ada") == ("ok", "hello Ada!?")
    where = "check " + door.removeprefix("sync ")
    assert said() == ["before", where, "TOOL_CALLED", "transform", "TOOL_RESULT", "after True"]
    kind, message = DOORS[door](workshop, "secret")
    assert (kind, "no secrets" in message, "guard" in message) == ("POLICY_DENIED", True, True)
    kind, message = DOORS[door](workshop, "ask")
    assert (kind, "somebody must look" in message) == ("APPROVAL_REQUIRED", True)
    assert said()[6:] == ["before", where, "transform", "TOOL_RESULT", "after False"] * 2
