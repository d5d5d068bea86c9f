"""The example plugin that misbehaves, in every tier: what is prevented in the host's process and what is not, what the audit guard
tells its author, and what a worker leaves of it."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tavern_core.host
from tavern_core import Budget, CallContext, Tavern, ToolResult
from tests import programs

from ..host.workshop import Workshop, reported

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2] / "example_plugins" / "misbehaving"
PACKAGE = "tavern_plugin_misbehaving"
SECRET = "canary-2236067977"
KEY = "canary-2645751311"
PROGRAM = [sys.executable, "-m", "tavern_core"]
LIMITS = {"outputBytes": 500_000, "stderrBytes": 200_000}


def copied(folder: Path, *switches: str) -> Path:
    """The plugin as a folder plugin; what it does at import is switched on."""
    shutil.copytree(PROJECT / PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if switches:
        (folder / "misdeeds.txt").write_text("\n".join(switches))
    return folder


@dataclass
class Victim:
    """Files and servers of somebody else."""

    root: Path
    tcp: socket.socket
    udp: socket.socket
    unix: socket.socket

    @property
    def private(self) -> Path:
        return self.root / "private.txt"

    @property
    def planted(self) -> Path:
        return self.root / "planted.txt"

    def arguments(self, tool: str) -> dict[str, Any]:
        """What to call a tool with so that it hits this victim."""
        host, port = self.tcp.getsockname()
        return {
            "read_file": {"path": str(self.private)},
            "write_file": {"path": str(self.planted)},
            "work_in_thread": {"path": str(self.private)},
            "connect_tcp": {"host": host, "port": port},
            "send_udp": {"host": host, "port": self.udp.getsockname()[1]},
            "connect_unix": {"path": self.unix.getsockname()},
            "read_environment": {"name": "VICTIMS_TOKEN"},
            "read_secret": {"name": "key"},
            "use_service": {"name": "systemClock"},
            "change_arguments": {"names": ["a"]},
            "loop": {"until": str(self.root / "never")},
            "flood_output": {"megabytes": 60},
            "flood_answer": {"megabytes": 5},
        }.get(tool, {})

    @property
    def is_untouched(self) -> bool:
        """Nobody connected, sent or wrote anything."""
        return not any(map(_has_something, (self.tcp, self.udp, self.unix))) and not self.planted.exists()


def _has_something(server: socket.socket) -> bool:
    server.setblocking(False)
    try:
        if server.type == socket.SOCK_DGRAM:
            server.recv(10)
        else:
            server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.fixture(scope="module")
def shop(module_folder: Path) -> Iterator[Workshop]:
    """The plugin, and hosts that are shared by the tests of a tier."""
    with pytest.MonkeyPatch.context() as patch:
        made = Workshop(module_folder, patch)
        copied(made.plugins / "misbehaving")
        yield made
        made.end()


@pytest.fixture
def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Victim]:
    monkeypatch.setenv("VICTIMS_TOKEN", SECRET)
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        udp.bind(("127.0.0.1", 0))
        monkeypatch.chdir(tmp_path)
        unix.bind("victim.sock")  # a relative name: the whole one may be longer than a socket's name may be
        unix.listen()
        made = Victim(tmp_path, tcp, udp, unix)
        made.private.write_text(SECRET)
        yield made


@pytest.fixture
def host_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tavern_core.host.Tavern, "__repr__", tavern_core.host.Tavern.__repr__)


def call(host: Tavern, victim: Victim, tool: str, timeout_ms: int = 20_000) -> ToolResult:
    context = CallContext(principal="user:victim", budget=Budget(timeout_ms=timeout_ms))
    return host.invoke_sync(f"misbehaving:{tool}", victim.arguments(tool), context=context)


# In the host's process -------------------------------------------------------------------------------------------------------

NOT_PREVENTED: dict[str, Callable[[Victim, Any], bool]] = {
    "read_file": lambda victim, value: value == SECRET,
    "write_file": lambda victim, value: victim.planted.exists(),
    "work_in_thread": lambda victim, value: value is not None,
    "connect_tcp": lambda victim, value: _has_something(victim.tcp),
    "send_udp": lambda victim, value: _has_something(victim.udp),
    "connect_unix": lambda victim, value: _has_something(victim.unix),
    "start_program": lambda victim, value: value == 7,
    "copy_process": lambda victim, value: value == 7,
    "read_environment": lambda victim, value: value == SECRET,
}
PREVENTED = {
    # tool: (the kind of its error, a part of the message)
    "read_secret": ("POLICY_DENIED", "secrets:key is not declared and granted"),
    "use_service": ("POLICY_DENIED", "service:use:systemClock is not declared and granted"),
    "flood_answer": ("OUTPUT_TOO_LARGE", "the limit is 500000"),
}


@pytest.fixture(scope="module")
def in_process(shop: Workshop) -> Tavern:
    return shop.open(config={"secrets": {"key": KEY}, "limits": LIMITS})


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("tool", NOT_PREVENTED)
def test_in_process_it_does_what_it_likes(in_process: Tavern, victim: Victim, tool: str) -> None:
    result = call(in_process, victim, tool)
    assert result.ok, result.error
    assert NOT_PREVENTED[tool](victim, result.value)


@pytest.mark.parametrize("tool", PREVENTED)
def test_in_process_it_gets_no_more_than_was_granted(in_process: Tavern, victim: Victim, tool: str) -> None:
    error = call(in_process, victim, tool).error
    assert error is not None
    kind, words = PREVENTED[tool]
    assert (error.kind, words in error.message) == (kind, True), error


def test_in_process_it_changes_the_host_and_not_its_callers_arguments(
    in_process: Tavern, victim: Victim, host_as_it_was: None
) -> None:
    names = ["a"]
    assert in_process.invoke_sync("misbehaving:change_arguments", {"names": names}).value == ["a", "changed"]
    assert names == ["a"]
    assert call(in_process, victim, "patch_host").ok
    assert repr(in_process) == "patched by a plugin"


def test_in_process_a_loop_lets_an_async_caller_go_and_keeps_its_thread(in_process: Tavern, shop: Workshop) -> None:
    end = shop.root / "end-of-the-loop"  # it stays until the host is closed: the thread may not look for a while

    async def main() -> ToolResult:
        soon = CallContext(budget=Budget(timeout_ms=200))
        try:
            return await in_process.invoke("misbehaving:loop", {"until": str(end)}, context=soon)
        finally:
            end.touch()

    error = asyncio.run(main()).error
    assert error is not None
    assert error.kind == "TIMEOUT"


def test_in_process_a_crash_takes_the_host_along(workshop: Workshop, victim: Victim) -> None:
    copied(workshop.plugins / "misbehaving")
    line = [
        *PROGRAM,
        "--home",
        str(workshop.home),
        "--set",
        f"plugins.roots=[{workshop.plugins}]",
        "tools",
        "call",
        "misbehaving:crash",
    ]
    assert subprocess.run(line, capture_output=True).returncode == -signal.SIGSEGV


def test_a_hidden_hook_is_refused_in_every_tier(workshop: Workshop, victim: Victim) -> None:
    copied(workshop.plugins / "misbehaving", "hook")
    for isolated in ([], ["misbehaving"]):
        host = workshop.open(config={"isolation": {"plugins": isolated}})
        assert host.hooks.get("tavern_before_execute", ()) == ()
        call(host, victim, "change_arguments")
        assert host.hooks.get("tavern_before_execute", ()) == ()
        assert "tavern_before_execute" in reported(host, "HOOK_REFUSED")
        workshop.close(host)


# In a worker -----------------------------------------------------------------------------------------------------------------

CONTAINED = {
    # tool: (the kind of its error, a part of the message)
    "read_file": ("UPSTREAM_ERROR", "Permission denied"),
    "write_file": ("UPSTREAM_ERROR", "Permission denied"),
    "connect_tcp": ("UPSTREAM_ERROR", "Error"),
    "send_udp": ("UPSTREAM_ERROR", "Error"),
    "connect_unix": ("UPSTREAM_ERROR", "Error"),
    "start_program": ("UPSTREAM_ERROR", "Error"),
    "copy_process": ("UPSTREAM_ERROR", "Error"),
    "read_secret": ("POLICY_DENIED", "secrets:key is not declared and granted"),
    "use_service": ("POLICY_DENIED", "service:use:systemClock is not declared and granted"),
    "loop": ("TIMEOUT", "did not finish in time"),
    "crash": ("UPSTREAM_ERROR", "SIGSEGV"),
    "flood_output": ("UPSTREAM_ERROR", "printed too much"),
    "flood_answer": ("OUTPUT_TOO_LARGE", ""),
}


@pytest.fixture(scope="module")
def isolated(shop: Workshop) -> Tavern:
    config = {"isolation": {"plugins": ["misbehaving"]}, "secrets": {"key": KEY}, "limits": LIMITS}
    return shop.open(config=config, home=shop.root / "home-of-isolated")


@pytest.mark.parametrize("tool", CONTAINED)
def test_in_a_worker_a_misdeed_costs_its_own_call(isolated: Tavern, victim: Victim, tool: str) -> None:
    kind, words = CONTAINED[tool]
    error = call(isolated, victim, tool, 700 if kind == "TIMEOUT" else 20_000).error
    assert error is not None
    assert (error.kind, words in error.message) == (kind, True), error
    assert SECRET not in repr(error)
    assert KEY not in repr(error)
    assert victim.is_untouched
    assert call(isolated, victim, "change_arguments").value == ["a", "changed"]


def test_in_a_worker_it_sees_and_changes_nothing_of_the_host(isolated: Tavern, victim: Victim) -> None:
    assert call(isolated, victim, "read_environment").value == ""
    assert call(isolated, victim, "patch_host").ok
    assert repr(isolated) != "patched by a plugin"
    names = ["a"]
    assert isolated.invoke_sync("misbehaving:change_arguments", {"names": names}).ok
    assert names == ["a"]
    work = call(isolated, victim, "work_in_thread")  # the thread's own error goes to the log
    assert SECRET not in repr(work)


@pytest.mark.parametrize("misdeed", ["write", "connect", "start"])
def test_in_a_worker_an_import_does_no_harm(workshop: Workshop, victim: Victim, misdeed: str) -> None:
    copied(workshop.plugins / "misbehaving", _switch(misdeed, victim))
    host = workshop.open(config={"isolation": {"plugins": ["misbehaving"]}})
    assert not call(host, victim, "change_arguments").ok
    assert host.plugins["misbehaving"].state == "failed"
    assert "at_import.py" in host.plugins["misbehaving"].reason
    assert victim.is_untouched


def _switch(misdeed: str, victim: Victim) -> str:
    return {"write": f"write {victim.planted}", "connect": f"connect {victim.tcp.getsockname()[1]}"}.get(
        misdeed, misdeed
    )


# Under the audit guard -------------------------------------------------------------------------------------------------------

NAMED = {
    # what the guard says: (the code, the function at whose line it says it)
    "it reads $workspace/": ("USE_UNDECLARED", "read_file"),
    "it writes $workspace/": ("USE_UNDECLARED", "write_file"),
    "it connects to 127.0.0.1:": ("USE_UNDECLARED", "connect_tcp"),
    "it connects to unix:": ("USE_UNDECLARED", "connect_unix"),
    "it starts python": ("USE_UNDECLARED", "start_program"),
    "it makes a copy of its own process": ("USE_UNDECLARED", "copy_process"),
    "it reads the variable MISBEHAVING_API_TOKEN": ("USE_UNDECLARED", "read_environment"),
    "it uses the secret key": ("USE_UNDECLARED", "read_secret"),
    "it uses the service systemClock": ("USE_UNDECLARED", "use_service"),
    "code in the place of tavern_core.host.facade.Tavern.__repr__": ("HOST_CHANGED", "_patched"),
    "characters were printed": ("OUTPUT_TOO_LARGE", ""),
}


def traced(folder: Path, home: Path, *words: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        # Plain asserts: rewriting them means compiling all of tavern_core, whose bytecode the guarded process may not keep.
        patch.setenv("PYTEST_ADDOPTS", "--assert=plain -p no:hypothesispytest -p no:xdist -p no:langsmith_plugin")
        done = programs.tavern("plugins", "check", str(folder), "--trace", "--json", *words, cwd=folder, home=home)
    assert done.returncode == 4, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def function_at(folder: Path, finding: dict[str, Any]) -> str:
    """The function that a finding points into."""
    if not finding.get("file"):
        return ""
    lines = (folder / finding["file"]).read_text().splitlines()[: finding["line"]]
    return next(line.split("def ")[1].partition("(")[0] for line in reversed(lines) if line.lstrip().startswith("def "))


def test_the_audit_guard_names_each_misdeed_and_its_line(tmp_path: Path) -> None:
    project = shutil.copytree(
        PROJECT, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache")
    )
    found = traced(project, tmp_path / "home")
    assert found["trace"]["complete"], found
    reported = [(f["message"], f["code"], function_at(project / PACKAGE, f)) for f in found["findings"]]
    for words, (code, function) in NAMED.items():
        assert [(c, at) for message, c, at in reported if words in message and at == function] == [(code, function)], (
            words,
            reported,
        )
    assert {at for message, _, at in reported if message.startswith("it connects to 127")} == {
        "connect_tcp",
        "send_udp",
    }
    assert {at for message, _, at in reported if message.startswith("it reads $workspace")} == {
        "read_file",
        "work_in_thread",
    }


@pytest.mark.parametrize(
    ("body", "words", "message"),
    [
        ("call_tool('crash')", (), "its tests ended the process with SIGSEGV, at "),
        (
            "__import__('os').mkfifo(tmp_path / 'pipe')\n    call_tool('read_file', {'path': str(tmp_path / 'pipe')})",
            ("--timeout-ms", "8000"),
            "its tests have not ended after 8 s, at ",
        ),
    ],
    ids=["crash", "endless wait"],
)
def test_the_audit_guard_says_where_a_deadly_test_was(
    tmp_path: Path, body: str, words: tuple[str, ...], message: str
) -> None:
    folder = copied(tmp_path / "misbehaving")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_deadly.py").write_text(f"def test_it(call_tool, tmp_path):\n    {body}\n")
    (finding,) = [f for f in traced(folder, tmp_path / "home", *words)["findings"] if f["code"] == "TRACE_INCOMPLETE"]
    assert message in finding["message"]
    assert "misdeeds.py:" in finding["message"]


def test_the_audit_guard_sees_what_an_import_does(tmp_path: Path, victim: Victim) -> None:
    switches = [_switch(misdeed, victim) for misdeed in ("write", "connect", "start", "thread", "hook")]
    found = traced(copied(tmp_path / "misbehaving", *switches), tmp_path / "home")
    reported = {
        (f["code"], f["message"].partition(":")[0])
        for f in found["findings"]
        if f["code"] in ("IMPORT_NOT_PURE", "HOOK_REFUSED")
    }
    assert {code for code, _ in reported} == {"IMPORT_NOT_PURE", "HOOK_REFUSED"}
    for words in (
        "importing it writes ",
        "importing it connects to 127.0.0.1",
        "importing it starts python",
        "importing it starts a thread",
    ):
        assert [text for _, text in reported if text.startswith(words)], (words, reported)
    assert {f["file"] for f in found["findings"] if f["code"] in ("IMPORT_NOT_PURE", "HOOK_REFUSED")} == {
        "at_import.py"
    }
