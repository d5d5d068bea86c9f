"""An import that crashes, ends or hangs its process is found in another process, and does not take the host along."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin
from tavern_core.review.import_probe import prober
from tavern_core.review.probe_result import PluginImport
from tests import programs
from tests.forked_programs import run_forked
from tests.rows import each_row

from .workshop import HELLO, TOOL, Workshop

BAD = {
    "segfault": ("import ctypes\nctypes.string_at(0)\n", "SIGSEGV"),
    "abort": ("import os\nos.abort()\n", "SIGABRT"),
    "os._exit": ("import os\nos._exit(3)\n", "exit code 3"),
    "os._exit(0)": ("import os\nos._exit(0)\n", "exit code 0"),
    "killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "SIGKILL"),
    "endless loop": ("while True:\n    pass\n", "not ended"),
    "endless wait": ("import threading\nthreading.Event().wait()\n", "not ended"),
    "fork and wait": (
        "import os\nif os.fork():\n    os.wait()\nelse:\n    import time\n    time.sleep(600)\n",
        "not ended",
    ),
}
FINE = {
    "nothing": ("", "good", ()),
    "an exception": ("1 / 0\n", "raised", ()),
    "sys.exit": ("import sys\nsys.exit(3)\n", "raised", ()),
    "printing": ("print('x' * 1_000_000)\nimport sys\nsys.stderr.write('y' * 1_000_000)\n", "good", ()),
    "a fork": (
        "import os\nif os.fork() == 0:\n    pass\n",
        "good",
        ("it makes copies of the process while it is imported",),
    ),
    "a thread": (
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\n",
        "good",
        ("it starts threads while it is imported",),
    ),
    "an exit handler": ("import atexit, os\natexit.register(os.abort)\n", "good", ()),
}


def folder_of(tmp_path: Path, code: str) -> Path:
    folder = tmp_path / "plugins" / "bad"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(f'name: bad\nversion: "1"\n{HELLO}\n')
    (folder / "__init__.py").write_text("from tavern_core import hookimpl, tool\n" + code + TOOL)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("what", BAD)
def test_what_the_host_would_not_survive_is_found(tmp_path: Path, what: str) -> None:
    code, words = BAD[what]
    folder = folder_of(tmp_path, code)
    found = prober.probe(PluginImport("bad", folder=folder), seconds=1 if words == "not ended" else 60)
    assert not found.is_safe
    assert words in found.said
    if what in ("segfault", "abort", "endless loop", "endless wait"):
        assert f"{folder / '__init__.py'}:" in found.said


@each_row("what", FINE)
def test_what_costs_only_the_plugin_is_none_of_its_business(tmp_path: Path, what: str) -> None:
    code, outcome, notes = FINE[what]
    found = prober.probe(PluginImport("bad", folder=folder_of(tmp_path, code)), seconds=30)
    assert (found.outcome, found.notes) == (outcome, notes)


def command(home: Path, config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_forked(["-m", "tavern_core", "--home", home, "--config", config, *words])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder_of(tmp_path, "import os\nif os.getpid():\n    os._exit(3)\n")
    good = tmp_path / "plugins" / "good"
    good.mkdir()
    (good / "plugin.yaml").write_text(f'name: good\nversion: "1"\n{HELLO}\n')
    (good / "__init__.py").write_text("from tavern_core import hookimpl, tool\n" + TOOL)
    config = tmp_path / "tavern.yaml"
    config.write_text(f"plugins: {{roots: [{tmp_path / 'plugins'}], entryPoints: false}}\n")
    return config


@pytest.mark.slow
def test_activating_all_plugins_survives_the_worst_of_them(tmp_path: Path, project: Path) -> None:
    done = command(tmp_path / "home", project, "plugins", "activate", "--all", "--json")
    assert done.returncode == 4
    states = {row["name"]: (row["state"], row["reason"]) for row in json.loads(done.stdout)}
    assert states["good"][0] == "active"
    assert states["bad"][0] == "failed"
    assert "exit code 3" in states["bad"][1]

    def tavern(*words: str) -> subprocess.CompletedProcess[str]:  # what imports nothing needs no process of its own
        return programs.tavern(*words, cwd=tmp_path, home=tmp_path / "home")

    reported = json.loads(tavern("doctor", "--json").stdout)["diagnostics"]
    assert [d["message"] for d in reported if d["plugin"] == "bad" and "exit code 3" in d["message"]]
    listed = {row["name"]: row for row in json.loads(tavern("plugins", "list", "--json").stdout)}
    assert (listed["bad"]["state"], listed["good"]["reason"]) == ("granted", "")
    for words in (["list"], ["info", "bad"]):
        shown = tavern("plugins", *words).stdout
        assert "exit code 3" in " ".join(shown.split()), shown
    assert tavern("plugins", "disable", "bad").returncode == 0


@pytest.mark.slow
def test_a_check_imports_only_on_request(tmp_path: Path, project: Path) -> None:
    plain = command(tmp_path / "home", project, "plugins", "check", "bad")
    probing = command(tmp_path / "home", project, "plugins", "check", "bad", "--probe")
    assert (plain.returncode, probing.returncode) == (0, 4)
    assert "exit code 3" in probing.stdout + probing.stderr
    assert command(tmp_path / "home", project, "plugins", "check", "good", "--probe").returncode == 0


@pytest.mark.slow
def test_a_plugin_that_ended_a_process_is_tried_before_it_is_imported_again(tmp_path: Path, project: Path) -> None:
    home = tmp_path / "home"
    code = tmp_path / "plugins" / "bad" / "__init__.py"
    code.write_text("import os\ngetattr(os, '_' + 'exit')(3)\n")
    project.write_text(project.read_text().replace("plugins: {", "plugins: {probe: suspect, "))
    assert command(home, project, "tools", "call", "bad:hello").returncode == 3  # nobody could know
    again = command(home, project, "tools", "call", "bad:hello")
    assert "in a process of its own" in again.stdout + again.stderr
    assert again.returncode not in (0, 3)
    assert command(home, project, "tools", "call", "good:hello").returncode == 0
    code.write_text("from tavern_core import hookimpl, tool\n" + TOOL)
    assert command(home, project, "tools", "call", "bad:hello").returncode == 0


@pytest.mark.slow
def test_what_was_found_is_remembered_until_the_files_change_or_it_is_reloaded(workshop: Workshop) -> None:
    code = "import os\nif os.path.exists(__file__ + '.bad'):\n    os._exit(3)\n" + TOOL
    folder = workshop.folder("odd", code, HELLO)
    (flag := folder / "__init__.py.bad").touch()
    config = {"plugins": {"probe": "new"}}
    for _ in range(2):
        host = workshop.open(config=config)
        assert "exit code 3" in host.invoke_sync("odd:hello").error.message
        workshop.close(host)
    assert (workshop.tried(), workshop.notes()) == (["import odd"], [])
    host = workshop.open(config=config)
    flag.unlink()
    host.plugins.reload_sync("odd")
    assert host.invoke_sync("odd:hello").ok


@pytest.mark.slow
def test_listing_says_how_an_earlier_try_ended_and_tries_nothing(workshop: Workshop) -> None:
    folder = workshop.folder(
        "bad", "import os\nos._exit(3)\n" + TOOL, HELLO + '\npermissions: {capabilities: ["read:fs"]}'
    )
    host = workshop.open()
    assert not host.invoke_sync("bad:hello").ok
    workshop.close(host)

    def shown(**options: Any) -> tuple[str, str]:
        host = workshop.open(**options)
        status = host.plugins["bad"]
        assert host.plugins.values()  # the same by every way
        assert {s.name: s for s in host.plugins.values()}["bad"] == status
        workshop.close(host)
        return status.state, status.reason

    state, reason = shown()
    assert state == "pending_consent"
    assert reason.startswith(
        "asks for read:fs; decide with `tavern plugins grant bad`; it is not imported: when that was tried"
    )
    assert "exit code 3" in reason
    assert reason.endswith("correct it, then `tavern plugins reload bad`")
    for config in ({"plugins": {"probe": "never"}}, {"plugins": {"disable": ["bad"]}}):
        assert "exit code" not in shown(config=config)[1]
    workshop.grant("bad")
    assert shown()[1].startswith("it is not imported: when that was tried in a process of its own (20")
    (folder / "more.py").write_text("")  # other files: what is known is about those of then
    assert shown() == ("granted", "")
    assert (workshop.tried(), workshop.notes()) == (["import bad"], [])


@pytest.mark.parametrize(("when", "tries"), [(None, 1), ("new", 1), ("suspect", 0), ("never", 0)])
def test_a_good_plugin_is_tried_once_where_every_new_one_is(workshop: Workshop, when: str | None, tries: int) -> None:
    workshop.folder("one", TOOL, HELLO)
    for count in (1, 2):
        host = workshop.open(config={"plugins": {"probe": when}} if when else None)
        assert host.invoke_sync("one:hello").ok
        workshop.close(host)
        assert (workshop.tried(), workshop.notes()) == (["import one"] * tries, ["import one"] * count)


@pytest.mark.slow
@pytest.mark.parametrize("probe", ["never", "new"])
def test_an_import_that_never_ends_does_not_hold_up_the_host(workshop: Workshop, probe: str) -> None:
    gate = workshop.root / "gate"
    code = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n" + TOOL
    workshop.folder("slow", code, HELLO)
    host = workshop.open(
        Plugin([], name="other"), config={"limits": {"importTimeoutMs": 200}, "plugins": {"probe": probe}}
    )
    result = host.invoke_sync("slow:hello")
    gate.touch()
    assert not result.ok
    assert re.search(r"import\w* (it )?has not ended after 0\.\d s", result.error.message)
    assert host.invoke_sync("system:get_current_time").ok


@pytest.mark.slow
@pytest.mark.parametrize("what", BAD)
def test_what_the_host_would_not_survive_does_not_reach_it(workshop: Workshop, what: str) -> None:
    code, words = BAD[what]
    workshop.folder("bad", code + TOOL, HELLO)
    workshop.folder("good", TOOL, HELLO)
    host = workshop.open(config={"limits": {"importTimeoutMs": 1_000 if words == "not ended" else 60_000}})
    result = host.invoke_sync("bad:hello")
    assert host.invoke_sync("good:hello").ok
    assert result.error is not None
    assert (host.plugins["bad"].state, words in host.plugins["bad"].reason) == ("failed", True)


def test_a_crash_in_a_helper_costs_only_the_plugin(workshop: Workshop) -> None:
    workshop.folder("bad", "from .parts import helper\nhelper.begin()\n" + TOOL, HELLO, **{
        "parts__helper.py": "import ctypes as c\ndef begin():\n    c.string_at(0)\n",
    })  # fmt: skip
    workshop.folder("good", TOOL, HELLO)
    host = workshop.open()
    error = host.invoke_sync("bad:hello").error
    assert error is not None
    assert "SIGSEGV" in error.message
    assert host.invoke_sync("good:hello").ok
    assert workshop.tried() == ["import bad", "import good"]
    assert workshop.notes() == ["import good"]
