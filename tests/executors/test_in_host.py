"""Scripts and services as tools of a plugin folder, through a whole host."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Service, Tavern, hookimpl, read_only

from .workbench import in_use, left_since, until

pytestmark = pytest.mark.slow

NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def write_plugin(root: Path, files: dict[str, str], **tools: dict[str, Any]) -> None:
    folder = root / "plugins" / "demo"
    (folder / "tools").mkdir(parents=True)
    (folder / "plugin.yaml").write_text('name: demo\nversion: "1.0"\ntools: {entry: ./tools}\n')
    for name, text in files.items():
        (folder / name).write_text(text)
    for name, given in tools.items():
        tool = {"id": name, "parameters": NOTHING, **given}
        (folder / "tools" / f"{name}.tool.json").write_text(json.dumps(tool))


def script(command: str, **keys: Any) -> dict[str, Any]:
    return {"implementation": {"type": "script", "command": command, **keys}}


def host(root: Path, *plugins: object, **settings: Any) -> Tavern:
    config = {"plugins": {"roots": [str(root / "plugins")], "entryPoints": False}, "settings": settings}
    return Tavern.open(config=config, plugins=list(plugins), home=root / "home")


@pytest.mark.slow
def test_a_folder_without_any_python_of_its_own_offers_scripts(tmp_path: Path) -> None:
    files = {"say.py": "import json, sys; d = json.load(sys.stdin); print(json.dumps(d['who'] + d['config']['mark']))"}
    who = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}
    mark = {"key": "mark", "type": "string", "required": True}
    write_plugin(tmp_path, files, say=script("python say.py") | {"parameters": who, "configSchema": [mark]})
    with host(tmp_path) as tavern:
        refused = tavern.invoke_sync("demo:say", {"who": "小"})
    with host(tmp_path, **{"extensions.demo.say.mark": "!"}) as tavern:
        said = tavern.invoke_sync("demo:say", {"who": "小"})
    assert refused.error is not None
    assert "extensions.demo.say.mark" in refused.error.message
    assert refused.error.outcome == "none"
    assert said.value == "小!"


@pytest.mark.slow
def test_a_script_runs_however_much_lies_beside_the_state_of_the_host(tmp_path: Path) -> None:
    for number in range(3_000):  # a box lets nothing through that it does not name, and the host's state is shut
        (tmp_path / f"{number:0100}").touch()
    write_plugin(tmp_path, {"one.py": "print(1)"}, one=script("python one.py"))
    with host(tmp_path) as tavern:
        assert tavern.invoke_sync("demo:one", {}).value == 1


def test_a_content_answer_of_a_script_becomes_value_and_content(tmp_path: Path) -> None:
    said = {"content": [{"type": "text", "text": "x"}], "details": {"n": 1}}
    write_plugin(tmp_path, {"c.py": f"print({json.dumps(json.dumps(said))})"}, c=script("python c.py"))
    with host(tmp_path) as tavern:
        result = tavern.invoke_sync("demo:c", {})
    assert (result.value, result.content) == ({"n": 1}, ({"type": "text", "text": "x"},))


@pytest.mark.parametrize(
    ("command", "keys", "kind", "words"),
    [
        ("python slow.py", {"timeout": 200}, "TIMEOUT", "stopped"),
        ("bun run slow.py", {}, "UPSTREAM_ERROR", "bun is not installed"),
        ("python crash.py", {}, "UPSTREAM_ERROR", "exit code 3: why"),
    ],
)
def test_a_script_that_cannot_do_it_stays_listed_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, keys: dict[str, Any], kind: str, words: str
) -> None:
    files = {"slow.py": "import time; time.sleep(60)", "crash.py": "import sys; sys.stderr.write('why'); sys.exit(3)"}
    write_plugin(tmp_path, files, t=script(command, **keys))
    monkeypatch.setenv("PATH", str(tmp_path))
    with host(tmp_path) as tavern:
        error = tavern.invoke_sync("demo:t", {}).error
        listed = [spec.id for spec in tavern.tools.list()]
    assert "demo:t" in listed
    assert error is not None
    assert error.kind == kind
    assert words in error.message


class Clock:
    @read_only
    def now(self, zone: str = "UTC") -> str:
        return f"12:00 {zone}"

    @read_only
    async def later(self) -> str:
        return "13:00"

    def wind(self) -> str:
        return "wound up"

    def _wind(self) -> str:
        return "wound"


class Clocks:
    @hookimpl
    def tavern_register_services(self) -> list[Service]:
        return [Service("clock", Clock())]


def service(method: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"implementation": {"type": "service", "service": "clock", "method": method}, "parameters": parameters}


def test_methods_of_a_service_are_tools_and_only_published_ones(tmp_path: Path) -> None:
    methods = {"later": "later", "lost": "nwo", "wind": "wind"}
    tools = {
        "now": service("now", zone={"type": "string"}),
        **{name: service(method) for name, method in methods.items()},
    }
    write_plugin(tmp_path, {}, **tools)
    with (tmp_path / "plugins" / "demo" / "plugin.yaml").open("a") as manifest:
        manifest.write("permissions: {services: {use: [clock]}}\n")
    with host(tmp_path, Clocks()) as tavern:
        refused = tavern.invoke_sync("demo:now", {})
        tavern.grant("demo", "service:use:clock")
        now = tavern.invoke_sync("demo:now", {"zone": "东"})
        later = tavern.invoke_sync("demo:later", {})
        lost = tavern.invoke_sync("demo:lost", {})
        wind = tavern.invoke_sync("demo:wind", {})
    assert wind.error is not None and wind.error.details["missing"] == ["service:write:clock"]
    assert refused.error is not None and refused.error.kind == "POLICY_DENIED"
    assert (now.value, later.value) == ("12:00 东", "13:00")
    assert lost.error is not None
    assert "publishes no method 'nwo'" in lost.error.message
    assert "did you mean 'now'?" in lost.error.fix


@pytest.mark.slow
def test_closing_a_host_ends_every_process_it_started(tmp_path: Path) -> None:
    started = tmp_path / "notes" / "started"
    started.parent.mkdir()
    files = {"one.py": "print(1)", "slow.py": f"import time; open({str(started)!r}, 'w').close(); time.sleep(60)"}
    write_plugin(tmp_path, files, one=script("python one.py"), slow=script("python slow.py"))
    with (tmp_path / "plugins" / "demo" / "plugin.yaml").open("a") as manifest:
        manifest.write(f"permissions: {{capabilities: [{{name: write:fs, scope: [{str(started.parent)!r}]}}]}}\n")
    with host(tmp_path) as tavern:
        tavern.grant("demo", "write:fs")
        assert tavern.invoke_sync("demo:one", {}).value == 1  # what starts programs is shared by all hosts of the tests
    before = in_use()

    async def use() -> None:
        async with host(tmp_path) as tavern:
            assert (await tavern.invoke("demo:one", {})).value == 1
            work = asyncio.ensure_future(tavern.invoke("demo:slow", {}))
            await until(started.exists)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work

    asyncio.run(use())
    assert left_since(before) == []
