"""Programs that name no state folder: each project has its own, and `tavern` in its folder sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.forked_programs import run_forked

pytestmark = pytest.mark.slow  # each program is a process

PROGRAM = """\
import json, sys
from pathlib import Path
from tavern_core import Tavern

with Tavern.open(sys.argv[1] if len(sys.argv) > 1 else None) as host:
    host.invoke_sync("nobody:nothing", purpose=__file__)
    if "PLUGINS" in __import__("os").environ:
        host.grant("asks", "read:fs")
    print(json.dumps({
        "log": str(host.logs.path),
        "purposes": [record.data.get("purpose") for record in host.logs if record.data.get("purpose")],
        "granted": sorted(host.plugins["asks"].granted) if "asks" in host.plugins else None,
        "diagnostics": [d.message + " " + d.hint for d in host.diagnostics],
    }))
"""


class Machine:
    """An account with two projects; nothing of the real one shines through."""

    def __init__(self, root: Path) -> None:
        self.data = root / "data" / "tavern-core"
        self.folders = [root / "a" / "bot", root / "b" / "bot"]
        self.plugins = root / "plugins"
        (self.plugins / "asks").mkdir(parents=True)
        (self.plugins / "asks" / "plugin.yaml").write_text(
            'name: asks\nversion: "1"\npermissions: {capabilities: ["read:fs"]}\n', "utf-8"
        )
        for folder in self.folders:
            folder.mkdir(parents=True)
            (folder / "app.py").write_text(PROGRAM, "utf-8")
        dropped = ("TAVERN_", "XDG_")
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        self.env |= {"HOME": str(root), "XDG_DATA_HOME": str(root / "data"), "XDG_CONFIG_HOME": str(root / "config")}
        self.env |= {"TAVERN_PLUGINS__ROOTS": str(self.plugins), "TAVERN_PLUGINS__ENTRY_POINTS": "false"}

    def program(self, *words: str, cwd: Path, forked: bool = True, **env: str) -> dict[str, Any]:
        if forked:
            done = run_forked(words, cwd=cwd, env=self.env | env)
        else:
            command = [sys.executable, *words]
            done = subprocess.run(command, cwd=cwd, env=self.env | env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def tavern(self, *words: str, cwd: Path) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name not in self.env]:
                patch.delenv(name)
            for name, value in self.env.items():
                patch.setenv(name, value)
            done = programs.tavern(*words, "--json", cwd=cwd)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_two_programs_share_neither_grants_nor_log_however_they_are_started(machine: Machine, tmp_path: Path) -> None:
    scripts = [str(folder / "app.py") for folder in machine.folders]
    one = machine.program(scripts[0], cwd=tmp_path, PLUGINS="1")
    other = machine.program(scripts[1], cwd=tmp_path)
    assert (one["granted"], other["granted"]) == (["read:fs"], [])
    assert one["log"] != other["log"]
    assert [len(one["purposes"]), len(other["purposes"])] == [1, 1]
    assert all(Path(answer["log"]).is_relative_to(machine.data / "projects") for answer in (one, other))
    assert (one["diagnostics"], other["diagnostics"]) == ([], [])

    # Python itself starts these: where a program lies is what it says of the main module.
    again = [
        machine.program(scripts[0], cwd=machine.folders[0], forked=False),
        *(machine.program("-m", "app", cwd=folder, forked=False) for folder in machine.folders),
    ]
    assert [(a["log"], a["granted"], len(a["purposes"]), a["diagnostics"]) for a in again] == [
        (one["log"], ["read:fs"], 2, []),
        (one["log"], ["read:fs"], 3, []),
        (other["log"], [], 2, []),
    ]


def test_two_programs_with_project_files_share_neither_grants_nor_log(machine: Machine) -> None:
    for folder in machine.folders:
        (folder / "tavern.yaml").write_text("limits: {depth: 4}\n", "utf-8")
    first, second = machine.folders
    one = machine.program(str(first / "app.py"), cwd=first, PLUGINS="1")
    other = machine.program(str(second / "app.py"), cwd=second)
    again = machine.program(str(first / "app.py"), cwd=first)
    assert [(a["log"], a["granted"], len(a["purposes"]), a["diagnostics"]) for a in (one, other, again)] == [
        (one["log"], ["read:fs"], 1, []),
        (other["log"], [], 1, []),
        (one["log"], ["read:fs"], 2, []),
    ]
    assert one["log"] != other["log"]
    assert all(Path(answer["log"]).is_relative_to(machine.data / "projects") for answer in (one, other))


def test_the_command_line_in_the_folder_of_a_program_sees_its_state(machine: Machine, tmp_path: Path) -> None:
    program = machine.program(str(machine.folders[0] / "app.py"), cwd=tmp_path, PLUGINS="1")
    for folder, granted, records in ((machine.folders[0], ["read:fs"], 1), (machine.folders[1], [], 0)):
        assert machine.tavern("plugins", "info", "asks", cwd=folder)["granted"] == granted
        assert len([r for r in machine.tavern("logs", cwd=folder) if r.get("purpose")]) == records
        paths = machine.tavern("config", "path", cwd=folder)
        assert (Path(paths["home"]) / "audit" / "audit.jsonl" == Path(program["log"])) is bool(records)
        assert Path(paths["settings"]).parent == Path(paths["lock"]).parent == Path(paths["home"])
    machine.tavern("plugins", "grant", "asks", "read:fs", cwd=machine.folders[1])
    assert machine.program(str(machine.folders[1] / "app.py"), cwd=tmp_path)["granted"] == ["read:fs"]


def test_a_named_folder_is_shared_by_all_programs_that_name_it(machine: Machine, tmp_path: Path) -> None:
    for home in (tmp_path / "shared", machine.data):
        logs = {
            machine.program(str(folder / "app.py"), cwd=tmp_path, TAVERN_HOME=str(home))["log"]
            for folder in machine.folders
        }
        assert logs == {str(home / "audit" / "audit.jsonl")}


def test_what_earlier_versions_kept_for_all_projects_is_named_once(machine: Machine, tmp_path: Path) -> None:
    (machine.data / "audit").mkdir(parents=True)
    (machine.data / "tavern.lock").write_text("version: 1\nplugins: {}\n", "utf-8")
    first = machine.program(str(machine.folders[0] / "app.py"), cwd=tmp_path)
    (reported,) = first["diagnostics"]
    for part in (str(Path(first["log"]).parents[1]), "tavern.lock, audit", f"TAVERN_HOME={machine.data}"):
        assert part in reported
    assert machine.program(str(machine.folders[0] / "app.py"), cwd=tmp_path)["diagnostics"] == []
    assert sorted(p.name for p in machine.data.iterdir()) == ["audit", "projects", "tavern.lock"]


def test_programs_of_the_environment_are_distinguished_by_their_working_folder(machine: Machine) -> None:
    """A console script lies in the environment's folder, which says nothing about the program."""
    logs = set()
    for folder in machine.folders:
        code = "import runpy, sys; sys.argv = ['app.py']; runpy.run_path('app.py')"
        logs.add(machine.program("-c", code, cwd=folder)["log"])
    assert len(logs) == 2
