"""Activating, stopping, reloading, switching on and off: one at a time, without a gap, and without a trace afterwards."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, hookimpl, tool
from tavern_core.errors import PluginError, PluginNotFound, SettingsInvalid, UsageError
from tavern_core.model.plugin_status import PluginStatus
from tests.counting import calls_made
from tests.forked_programs import run_forked

from .conftest import run
from .test_listing import edited
from .workshop import HELLO, TOOL, Workshop, calls_running, codes, hooks_of, ids, reported, setting_keys

GATE = "@hookimpl\ndef tavern_check_call(call):\n    return deny('the gate') if call.arguments.get('name') == 'no' else None\n"
GATED = 'permissions: {hooks: ["hook:server:tool:check"]}'


def kind(result: Any) -> str:
    return result.error.kind if result.error else "ok"


def until(condition: Callable[[], Any]) -> None:
    """Give other threads a chance until `condition` holds; a test that waits in vain fails instead of hanging."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end


async def until_noted(workshop: Workshop, word: str) -> None:
    """The same for tasks: until a plugin has noted something."""
    end = time.monotonic() + 30
    while word not in workshop.notes():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


# A gate that is not there ------------------------------------------------------------------------------------------------

DOWN: dict[str, tuple[str, str]] = {
    "its import fails": ("1 / 0", GATED),
    "its hook is malformed": ("@hookimpl\ndef tavern_check_call(cal): pass", GATED),
    "its start fails": (GATE + "@hookimpl\ndef tavern_start(): 1 / 0", GATED),
    "a declared tool is missing": (GATE, GATED + f"\n{HELLO}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DOWN)
def test_without_a_granted_gate_every_call_is_denied_until_it_is_disabled(workshop: Workshop, what: str) -> None:
    code, manifest = DOWN[what]
    workshop.folder("guard", GATE, manifest)
    workshop.folder("two", TOOL, HELLO)
    workshop.grant("guard")
    workshop.folder("guard", code, manifest)
    host = workshop.open()
    assert host.plugins["guard"].state == "failed"
    for call in (host.invoke_sync, lambda t: run(host.invoke(t))):
        result = call("two:hello")
        assert kind(result) == "POLICY_DENIED"
        assert "guard" in result.error.message
        assert result.error.details["plugin"] == "guard"
        assert "tavern plugins disable guard" in result.error.fix
    assert kind(host.invoke_sync("system:get_current_time")) == "POLICY_DENIED"
    text = run(host.run_text("<|[REQUEST_TOOL]|>\ncommand:「始」two:hello「末」\n<|[END_TOOL]|>"))
    assert [kind(r) for r in text.results] in (["POLICY_DENIED"], [])
    host.plugins.disable_sync("guard")
    assert kind(host.invoke_sync("two:hello")) == "ok"
    with pytest.raises(PluginError):
        host.plugins.enable_sync("guard")
    assert kind(host.invoke_sync("two:hello")) == "POLICY_DENIED"


@pytest.mark.slow
def test_on_failure_open_lets_calls_pass(workshop: Workshop) -> None:
    workshop.folder("guard", GATE, GATED)
    workshop.folder("two", TOOL, HELLO)
    workshop.grant("guard")
    workshop.folder("guard", "1 / 0", GATED)
    host = workshop.open(config={"plugins": {"onFailure": {"guard": "open"}}})
    assert kind(host.invoke_sync("two:hello")) == "ok"


@pytest.mark.slow
@pytest.mark.parametrize(
    "manifest",
    ["name: guard\nversion: [\n", "", "name: guard\nversion: '1'\nrequires: {host: '>=9'}\n",
     "name: guard\nversion: '1'\ndependsOn: {absent: ''}\n"],
)  # fmt: skip
def test_a_gate_whose_manifest_is_broken_was_granted_all_the_same(workshop: Workshop, manifest: str) -> None:
    folder = workshop.folder("guard", GATE, GATED)
    workshop.folder("two", TOOL, HELLO)
    workshop.grant("guard")
    (folder / "plugin.yaml").write_text(manifest)
    host = workshop.open()
    result = host.invoke_sync("two:hello")
    assert (kind(result), "guard" in result.error.message) == ("POLICY_DENIED", True)
    host.plugins.disable_sync("guard")
    assert kind(host.invoke_sync("two:hello")) == "ok"


def test_a_gate_that_was_not_granted_blocks_nothing(workshop: Workshop) -> None:
    workshop.folder("guard", "1 / 0", GATED)
    workshop.folder("two", TOOL, HELLO)
    host = workshop.open(activate="all")
    assert host.plugins["guard"].state == "failed"
    assert kind(host.invoke_sync("two:hello")) == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("manifest", [None, {"version": "1", "permissions": {"hooks": ["hook:server:tool:check"]}}])
def test_an_object_whose_gate_cannot_be_activated_blocks_calls_too(workshop: Workshop, manifest: Any) -> None:
    class Guard:
        @hookimpl
        def tavern_check_call(self) -> None: ...

        @hookimpl
        def tavern_start(self) -> None:
            raise OSError("no")

    workshop.folder("two", TOOL, HELLO)
    host = workshop.open(Plugin(Guard(), name="guard", manifest=manifest))
    assert host.plugins["guard"].state == "failed"
    assert kind(host.invoke_sync("two:hello")) == "POLICY_DENIED"
    host.plugins.disable_sync("guard")
    assert kind(host.invoke_sync("two:hello")) == "ok"


@pytest.mark.slow
def test_a_gate_that_is_enabled_again_judges_the_next_call(workshop: Workshop) -> None:
    workshop.folder("guard", GATE, GATED)
    workshop.folder("two", TOOL, HELLO)
    workshop.grant("guard")
    host = workshop.open()
    no = {"name": "no"}
    assert kind(host.invoke_sync("two:hello", no)) == "POLICY_DENIED"
    host.plugins.disable_sync("guard")
    assert kind(host.invoke_sync("two:hello", no)) == "ok"
    host.plugins.enable_sync("guard")
    assert host.plugins["guard"].state == "active"
    assert kind(host.invoke_sync("two:hello", no)) == "POLICY_DENIED"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["reload", "grant", "refresh"])
def test_no_call_slips_by_while_a_gate_is_reloaded(workshop: Workshop, how: str) -> None:
    folder = workshop.folder("guard", GATE, GATED)
    workshop.folder("two", TOOL, HELLO)
    workshop.grant("guard")
    host = workshop.open()
    host.invoke_sync("two:hello")
    seen: set[str] = set()
    done = threading.Event()

    def hammer() -> None:
        while not done.is_set():
            seen.add(kind(host.invoke_sync("two:hello", {"name": "no"})))

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(hammer)
        try:
            for number in range(15):
                if how == "reload":
                    host.plugins.reload_sync("guard")
                elif how == "grant":
                    host.grant("guard", "hook:server:tool:check")
                else:
                    edited(folder / "plugin.yaml", f'name: guard\nversion: "1.{number}"\n{GATED}\n')
                    host.wait(host.refresh())
        finally:
            done.set()
    assert seen == {"POLICY_DENIED"}


# Switching on and off ----------------------------------------------------------------------------------------------------

RICH = """
from tavern_core.contract.protocols import Command, Contribution, Service
from tavern_core import SettingItem

class Clock:
    def now(self): return 1

@hookimpl
def tavern_register_services(): return [Service("clock", Clock())]
@hookimpl
def tavern_register_commands(): return [Command("greet", lambda: None)]
@hookimpl
def tavern_register_channels(): return [Contribution("irc")]
@hookimpl
def tavern_register_settings(): return [SettingItem(key="extensions.one.late", type="string")]
@hookimpl
def tavern_after_execute(call, result): note("after")
"""
RICH_MANIFEST = f"""
{HELLO}
services: [clock]
commands: [greet]
channels: [irc]
settings: true
configOptions: [{{key: extensions.one.early, type: string}}]
permissions: {{hooks: ["hook:server:tool:after-execute"]}}
"""


def traces(host: Tavern) -> dict[str, bool]:
    """Which traces of plugin `one` there are."""
    return {
        "tools": "one:hello" in ids(host),
        "known": "one:hello" in host.tools.known_ids(),
        "services": "clock" in host.contributions("services"),
        "commands": "greet" in host.contributions("commands"),
        "channels": "irc" in host.contributions("channels"),
        "settings": "extensions.one.late" in setting_keys(host),
        "options": "extensions.one.early" in setting_keys(host),
        "hooks": "tavern_after_execute" in hooks_of(host, "one"),
    }


@pytest.mark.slow
def test_a_disabled_plugin_leaves_no_trace_in_this_host_in_the_next_and_in_another_process(workshop: Workshop) -> None:
    workshop.folder("one", TOOL + RICH, RICH_MANIFEST)
    workshop.grant("one")
    host = workshop.open()
    assert set(traces(host).values()) == {True}
    assert host.plugins.disable_sync("one", reason="too loud").state == "disabled"
    assert set(traces(host).values()) == {False}
    second = workshop.open()
    assert set(traces(second).values()) == {False}
    assert "too loud" in second.plugins["one"].reason
    program = f"""
from tavern_core import Tavern
with Tavern.open({{"plugins": {{"roots": [{str(workshop.plugins)!r}], "entryPoints": False}}}}, home={str(workshop.home)!r}) as host:
    print(host.plugins["one"].state, len([s for s in host.tools.list() if s.plugin == "one"]))
    host.plugins.enable_sync("one")
    print(host.plugins["one"].state)
"""
    done = run_forked(["-c", program])
    assert done.stdout.split() == ["disabled", "0", "active"]
    assert set(traces(workshop.open()).values()) == {True}


def test_unknown_and_built_in_plugins_cannot_be_switched(workshop: Workshop) -> None:
    workshop.folder("text-tools", TOOL, HELLO)
    host = workshop.open()
    with pytest.raises(PluginNotFound) as caught:
        host.plugins.disable_sync("text-tool")
    assert "text-tools" in caught.value.hint
    core = next(n for n, p in host.plugins.items() if p.source == "builtin")
    for change in (host.plugins.disable_sync, host.plugins.enable_sync, host.plugins.reload_sync):
        with pytest.raises(UsageError, match="part of the host"):
            change(core)


# Stopping ----------------------------------------------------------------------------------------------------------------

SLOW = """
import asyncio
@tool
async def slow() -> str:
    note("begin")
    await asyncio.sleep(0.05)
    note("end")
    return "done"
@hookimpl
def tavern_register_tools(): return [slow]
@hookimpl
def tavern_stop(): note("stop")
"""
SLOW_MANIFEST = "tools: [{id: slow, implementation: {type: python}}]"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["disable", "reload", "close"])
def test_running_calls_may_end_before_the_plugin_is_stopped(workshop: Workshop, how: str) -> None:
    workshop.folder("one", SLOW, SLOW_MANIFEST)

    async def go() -> Any:
        async with workshop.made() as host:
            call = asyncio.create_task(host.invoke("one:slow"))
            await until_noted(workshop, "begin")
            if how == "disable":
                await host.plugins.disable("one")
            elif how == "reload":
                await host.plugins.reload("one")
            else:
                await host.close()
            return await call

    assert run(go()).value == "done"
    assert workshop.notes()[1:4] == ["begin", "end", "stop"]


def test_a_call_that_does_not_end_is_left_behind_after_the_deadline(workshop: Workshop) -> None:
    release = threading.Event()

    @tool
    def hang() -> str:
        release.wait(20)
        return "late"

    host = workshop.open(Plugin([hang], name="one"), config={"limits": {"drainMs": 50}})
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(host.invoke_sync, "one:hang")
        until(lambda: calls_running(host) == ["one"])
        host.plugins.disable_sync("one")
        assert "1 calls were still running" in reported(host, "CALLS_STILL_RUNNING")
        release.set()
        assert call.result().value == "late"


@pytest.mark.slow
def test_tavern_stop_that_fails_or_hangs_stops_the_plugin_all_the_same(workshop: Workshop) -> None:
    service = "@hookimpl\ndef tavern_register_services():\n    from tavern_core.contract.protocols import Service\n    return [Service('x', object(), stop=lambda: note('stopped'))]\n"
    workshop.folder("one", TOOL + service + "@hookimpl\ndef tavern_stop(): raise SystemExit", f"{HELLO}\nservices: [x]")
    workshop.folder(
        "two",
        TOOL + "import threading\n@hookimpl\ndef tavern_stop(): threading.Event().wait(20)",
        f"{HELLO}\nstart: true",
    )
    host = workshop.open(config={"limits": {"hookTimeoutMs": 1_000}})
    assert host.plugins.disable_sync("one").state == "disabled"
    assert host.plugins.disable_sync("two").state == "disabled"
    assert "stopped" in workshop.notes()
    assert "tavern_stop" in reported(host, "HOOK_FAILED")
    assert not ids(host)


@pytest.mark.slow
def test_a_tool_that_calls_a_tool_of_its_plugin_does_not_hold_up_the_stop(workshop: Workshop) -> None:
    host: Tavern
    begun, go_on = threading.Event(), threading.Event()

    @tool
    def inner() -> str:
        return "inner"

    @tool
    async def outer() -> Any:
        begun.set()
        await asyncio.to_thread(go_on.wait, 20)
        return (await host.invoke("one:inner")).to_json()

    host = workshop.open(Plugin([inner, outer], name="one"))
    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(host.invoke_sync, "one:outer")
        begun.wait(10)
        stop = pool.submit(host.plugins.disable_sync, "one")
        until(lambda: host.plugins["one"].state != "active")
        go_on.set()
        assert stop.result(10).state == "disabled"
        assert call.result(10).value["ok"] is False
    assert "CALLS_STILL_RUNNING" not in codes(host)


def test_a_plugin_that_calls_its_own_tool_while_it_starts_gets_an_answer(workshop: Workshop) -> None:
    host: Tavern
    answers = []

    class Own:
        @hookimpl
        def tavern_register_tools(self) -> Any:
            return [one]

        @hookimpl
        def tavern_check_call(self) -> None: ...

        @hookimpl
        async def tavern_start(self) -> None:
            answers.append(await host.invoke("own:one"))
            answers.append(await host.invoke("system:get_current_time"))

    @tool
    def one() -> int:
        return 1

    host = workshop.made(Plugin(Own(), name="own"), config={"limits": {"hookTimeoutMs": 5000}})
    with host:
        assert host.plugins["own"].state == "active"
        assert [r.ok for r in answers] == [False, False]
        assert kind(host.invoke_sync("own:one")) == "ok"


# Listeners ---------------------------------------------------------------------------------------------------------------


def test_a_task_that_a_listener_starts_during_a_change_may_use_the_plugin_after_it(workshop: Workshop) -> None:
    workshop.folder("one", TOOL, HELLO)
    host = workshop.open()

    async def switched() -> list[str]:
        loop, tasks, is_over = asyncio.get_running_loop(), [], asyncio.Event()

        async def use() -> str:
            await is_over.wait()
            return kind(await host.invoke("one:hello"))

        end = host.tools.watch(lambda: loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(use()))))
        await host.plugins.disable("one")
        await host.plugins.enable("one")
        end()
        await asyncio.sleep(0)  # the loop starts the tasks
        is_over.set()
        return [await task for task in tasks]

    answers = run(switched())
    assert answers and set(answers) == {"ok"}


# Reload ------------------------------------------------------------------------------------------------------------------


def reload(host: Tavern) -> PluginStatus:
    return host.plugins.reload_sync("one")


def switch_off_and_on(host: Tavern) -> PluginStatus:
    host.plugins.disable_sync("one")
    return host.plugins.enable_sync("one")


@pytest.mark.slow
@pytest.mark.parametrize("again", [reload, switch_off_and_on])
def test_reload_and_enable_read_code_manifest_and_tool_files_anew(
    workshop: Workshop, again: Callable[[Tavern], PluginStatus]
) -> None:
    folder = workshop.folder("one", TOOL, HELLO)
    host = workshop.open()
    host.invoke_sync("one:hello")
    edited(folder / "__init__.py", workshop.module(TOOL.replace("hello ", "bye ")))
    again(host)
    assert host.invoke_sync("one:hello").value == "bye World"
    edited(folder / "plugin.yaml", 'name: one\nversion: "2.0"\ndisplayName: Two\n' + HELLO)
    assert again(host).version == "2.0"
    assert host.plugins["one"].display_name == "Two"
    (folder / "tools").mkdir()
    text = '{"id": "hi", "description": "%s", "parameters": {"type": "object"}, "implementation": {"type": "script", "command": ["python", "run.py"]}}'
    (folder / "tools" / "hi.tool.json").write_text(text % "first")
    (folder / "run.py").write_text("print('{}')")
    (folder / "__init__.py").write_text("")
    edited(folder / "plugin.yaml", 'name: one\nversion: "2.0"\ntools: {entry: tools}\n')
    again(host)
    assert ids(host) == ["one:hi"]
    assert host.tools.get("one:hi").description == "first"
    edited(folder / "tools" / "hi.tool.json", text % "second")
    again(host)
    assert host.tools.get("one:hi").description == "second"


def test_reload_of_a_plugin_whose_manifest_was_broken_says_so(workshop: Workshop) -> None:
    folder = workshop.folder("one", TOOL, HELLO)
    host = workshop.open()
    host.invoke_sync("one:hello")
    edited(folder / "plugin.yaml", "name: one\nversion: [")
    with pytest.raises(PluginError, match=r"plugin one is failed: plugin\.yaml:3") as refused:
        host.plugins.reload_sync("one")
    assert (refused.value.hint, host.plugins["one"].state) == ("tavern plugins check one", "failed")


@pytest.mark.slow
def test_reload_of_an_installed_package_takes_its_submodules_along(workshop: Workshop) -> None:
    folder = workshop.installed("one", "from .part import *\n" + TOOL.replace('"hello "', "GREETING"), HELLO)
    (folder / "part.py").write_text("GREETING = 'hello '\n")
    host = workshop.open()
    assert host.invoke_sync("one:hello").value == "hello World"
    edited(folder / "part.py", "GREETING = 'moin '\n")
    host.plugins.reload_sync("one")
    assert host.invoke_sync("one:hello").value == "moin World"


@pytest.mark.parametrize("how", ["folder", "installed"])
def test_reload_runs_an_edit_that_does_not_show_in_the_age_of_bytecode(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    make = workshop.folder if how == "folder" else workshop.installed
    folder = make("one", "from .part import *\n" + TOOL.replace('"hello "', "GREETING"), HELLO)
    part = folder / "part.py"
    part.write_text("GREETING = 'hello '\n")
    host = workshop.open()
    assert host.invoke_sync("one:hello").value == "hello World"
    before = part.stat()
    part.write_text("GREETING = 'adieu '\n")
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    host.plugins.reload_sync("one")
    assert host.invoke_sync("one:hello").value == "adieu World"


def test_reload_into_something_broken_fails_with_the_reason_and_back_again(workshop: Workshop) -> None:
    folder = workshop.folder("one", TOOL, HELLO)
    host = workshop.open()
    host.invoke_sync("one:hello")
    edited(folder / "__init__.py", "def (:")
    with pytest.raises(PluginError, match="SyntaxError"):
        host.plugins.reload_sync("one")
    assert host.plugins["one"].state == "failed"
    assert "SyntaxError" in host.invoke_sync("one:hello").error.message
    edited(folder / "__init__.py", workshop.module(TOOL))
    host.plugins.reload_sync("one")
    assert host.invoke_sync("one:hello").ok
    (folder / "plugin.yaml").unlink()
    folder.rename(workshop.root / "gone")
    with pytest.raises(PluginError, match="no longer there"):
        host.plugins.reload_sync("one")
    assert host.invoke_sync("one:hello").error is not None


def test_an_object_cannot_be_reloaded(workshop: Workshop) -> None:
    @tool
    def hello() -> str:
        return "x"

    host = workshop.open(Plugin([hello], name="one"))
    with pytest.raises(UsageError) as caught:
        host.plugins.reload_sync("one")
    assert "restart" in caught.value.hint
    assert host.invoke_sync("one:hello").ok


# At the same time --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("doors", ["threads", "tasks", "both"])
def test_many_first_calls_at_once_activate_a_plugin_once(workshop: Workshop, doors: str) -> None:
    code = TOOL.replace("return [hello]", "note('register'); return [hello]") + "import time\ntime.sleep(0.05)\n"
    workshop.folder("one", code + "@hookimpl\ndef tavern_start(): note('start')\n", f"{HELLO}")
    host = workshop.open()

    def in_thread() -> list[Any]:
        return [host.invoke_sync("one:hello")]

    def in_tasks() -> list[Any]:
        async def go() -> list[Any]:
            return list(await asyncio.gather(*(host.invoke("one:hello") for _ in range(50))))

        return run(go())  # type: ignore[no-any-return]

    work = {"threads": [in_thread] * 16, "tasks": [in_tasks], "both": [in_thread, in_tasks] * 4}[doors]
    with ThreadPoolExecutor(len(work)) as pool:
        results = [r for f in [pool.submit(w) for w in work] for r in f.result(60)]
    assert {r.value for r in results} == {"hello World"}
    assert workshop.notes() == ["import one", "register", "start"]


@pytest.mark.slow
def test_many_first_calls_of_a_broken_plugin_share_one_failure(workshop: Workshop) -> None:
    workshop.folder("one", TOOL + "import time\ntime.sleep(0.05)\n1 / 0", HELLO)
    host = workshop.open()
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda _: host.invoke_sync("one:hello"), range(16)))
    assert {"division" in r.error.message for r in results} == {True}
    assert workshop.notes() == ["import one"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["import", "start"])
def test_an_activation_that_is_cancelled_leaves_nothing_and_can_be_repeated(workshop: Workshop, where: str) -> None:
    wait = {
        "import": "import time\nnote('here')\ntime.sleep(0.2)\n",
        "start": "import asyncio, pathlib\n@hookimpl\nasync def tavern_start():\n    note('here')\n    await asyncio.sleep(0.2)\n",
    }[where]
    workshop.folder("one", TOOL + wait, HELLO)

    async def go() -> None:
        async with workshop.made() as host:
            first = asyncio.create_task(host.invoke("one:hello"))
            await until_noted(workshop, "here")
            second = asyncio.create_task(host.invoke("one:hello"))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert (await second).value == "hello World"
            assert host.plugins["one"].state == "active"

    run(go())
    assert where == "start" or workshop.notes().count("import one") == 1


def test_a_cancelled_activation_alone_leaves_nothing(workshop: Workshop) -> None:
    code = "import asyncio\n@hookimpl\nasync def tavern_start():\n    note('here')\n    await asyncio.Event().wait()\n"
    workshop.folder("one", TOOL + RICH + code, RICH_MANIFEST.replace("services: [clock]", "services: [clock]"))

    async def go() -> None:
        host = workshop.made(activate="none")
        async with host:
            task = asyncio.create_task(host.plugins.activate("one"))
            await until_noted(workshop, "here")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert host.plugins["one"].state == "pending_consent"
            assert "clock" not in host._host.tables.contributions.all("services")  # the public door would activate it
            assert "greet" not in host._host.tables.contributions.all("commands")
            assert not hooks_of(host, "one")
            assert "extensions.one.late" not in setting_keys(host)
            assert "extensions.one.early" in setting_keys(host)
            assert "one:hello" in ids(host)

    run(go())


def test_a_start_that_is_cancelled_leaves_no_open_file(workshop: Workshop) -> None:
    async def go() -> list[str]:
        begun = asyncio.Event()

        class Waits:
            @hookimpl
            async def tavern_start(self) -> None:
                begun.set()
                await asyncio.Event().wait()

        first = Plugin([], name="first")  # its events open the log
        start = asyncio.create_task(workshop.made(first, Waits(), activate="all").start())
        await begun.wait()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        opened = [os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir()]
        return [file for file in opened if file.startswith(str(workshop.home))]

    assert run(go()) == []


@pytest.mark.slow
def test_listing_searching_and_calling_while_plugins_come_and_go(workshop: Workshop) -> None:
    for name in ("a", "b", "c"):
        workshop.folder(name, TOOL + RICH.replace("one", name).replace("clock", f"clock-{name}").replace("greet", f"greet-{name}").replace("irc", f"irc-{name}"),
                        RICH_MANIFEST.replace("one", name).replace("clock", f"clock-{name}").replace("greet", f"greet-{name}").replace("irc", f"irc-{name}"))  # fmt: skip
    workshop.folder("d", TOOL, f"{HELLO}\ndependsOn: {{a: ''}}")
    workshop.grant("a", "b", "c")

    @tool
    def steady() -> int:
        return 1

    host = workshop.open(Plugin([steady], name="steady"))
    done = threading.Event()
    strange: list[Any] = []
    allowed = {"ok", "TOOL_NOT_FOUND", "UPSTREAM_ERROR"}

    def read() -> None:
        while not done.is_set():
            try:
                for name in ("a", "b", "c", "d"):
                    result = host.invoke_sync(f"{name}:hello")
                    if kind(result) not in allowed or (result.ok and result.value != "hello World"):
                        strange.append(result)
                if kind(result := host.invoke_sync("steady:steady")) != "ok":
                    strange.append(result)
                host.tools.list()
                host.tools.search("hello")
                host.tools.snapshot()
                host.tools.why("a:hello")
                [p.to_json() for p in host.plugins.values()]
            except Exception as error:
                strange.append(error)
                raise

    def change(name: str) -> None:
        for _ in range(12):
            host.plugins.disable_sync(name)
            host.plugins.enable_sync(name)
            host.plugins.reload_sync(name)
            host.revoke(name, "hook:server:tool:after-execute")
            host.grant(name, "hook:server:tool:after-execute")

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        changers = [pool.submit(change, name) for name in ("a", "b", "c")]
        try:
            for changer in changers:
                changer.result(300)
        finally:
            done.set()
        for reader in readers:
            reader.result(60)
    assert strange == []
    for name in ("a", "b", "c", "d"):
        assert host.invoke_sync(f"{name}:hello").value == "hello World"
    assert sorted(n for n in host.contributions("services") if n.startswith("clock")) == [
        "clock-a",
        "clock-b",
        "clock-c",
    ]


def test_what_is_remembered_of_many_plugins_is_written_once(workshop: Workshop) -> None:
    looks = f"""
    import os, pathlib
    note([f.stat().st_ino for f in pathlib.Path({str(workshop.home)!r}).glob("cache/plugins-*")])
    """
    for name in ("a", "b", "c"):
        workshop.folder(name, dedent(looks) + TOOL, HELLO)
    host = workshop.open(activate="all")
    assert len({note for note in workshop.notes() if not note.startswith("import")}) == 1, "written between two plugins"
    workshop.close(host)
    host = workshop.open()
    assert [host.tools.known(f"{name}:hello").input_schema["properties"]["name"]["default"] for name in "abc"] == [
        "World"
    ] * 3
    assert not any(host.plugins[name].state == "active" for name in "abc")


def test_settings_that_only_code_declares_are_remembered_until_it_changes(workshop: Workshop) -> None:
    code = """
    from tavern_core import SettingItem
    @hookimpl
    def tavern_register_settings():
        return [SettingItem(key="extensions.one.late", type="number", default_value=3, max=9), dict(key="extensions.one.more", type="string")]
    """
    folder = workshop.folder("one", dedent(code), "settings: true")
    host = workshop.open()
    assert not any("one" in key for key in setting_keys(host))
    host.plugins.activate_sync("one")
    workshop.close(host)
    again = workshop.open()
    assert again.settings.get("extensions.one.late") == 3
    with pytest.raises(SettingsInvalid, match="9"):
        again.settings.save({"extensions.one.late": 10})
    again.settings.save({"extensions.one.late": 4, "extensions.one.more": "x"})
    assert again.plugins["one"].state != "active", "nothing was imported"
    again.plugins.activate_sync("one")
    assert again.settings.get("extensions.one.late") == 4
    workshop.close(again)
    (folder / "__init__.py").write_text(workshop.module(dedent(code).replace("late", "later")))
    assert not any("one" in key for key in setting_keys(workshop.open()))


def test_a_host_that_is_closed_stops_everything_and_answers_politely(workshop: Workshop) -> None:
    workshop.folder("one", TOOL + "@hookimpl\ndef tavern_stop(): note('stop')\n", HELLO)
    host = workshop.made()
    with host:
        host.invoke_sync("one:hello")
    assert workshop.notes()[-1] == "stop"
    assert "this host is closed" in host.invoke_sync("one:hello").error.message
    assert host.plugins["one"].state == "stopped"


def test_jobs_and_runs_can_still_be_listed_after_a_host_was_closed(workshop: Workshop) -> None:
    with workshop.made() as host:
        pass
    assert host.jobs.list() == ()
    assert list(host.workflows.runs()) == []


@pytest.mark.slow
def test_opening_a_host_takes_work_in_proportion_to_its_plugins(tmp_path: Path) -> None:
    def opened_with(count: int) -> int:
        def made(number: int) -> Callable[..., Any]:
            @tool(name=f"t{number}", fast=True)
            def work() -> None:
                """Do nothing."""

            return work

        plugins = [Plugin([made(n) for n in range(20)], name=f"p{p}") for p in range(count)]

        async def run() -> None:
            async with Tavern.open(
                {"plugins": {"entryPoints": False, "roots": []}}, plugins=plugins, home=tmp_path / str(count)
            ) as tavern:
                assert len(tavern.tools.list()) > 20 * count

        return calls_made(lambda: asyncio.run(run()))

    opened_with(1)
    few, many = opened_with(20), opened_with(80)
    assert many < 4.5 * few
