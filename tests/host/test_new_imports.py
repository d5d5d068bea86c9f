"""Every plugin is imported in a process of its own before its code runs in a host for the first time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tavern_core.review.import_probe import prober
from tavern_core.review.probe_result import PluginImport
from tests.forked_programs import run_forked
from tests.programs import Program

from .test_life import until
from .workshop import HELLO, TOOL, Workshop, reported

pytestmark = pytest.mark.slow

EXIT = "import os\ngetattr(os, '_' + 'exit')(3)\n"
"""Ends the process in a way that reading the source does not show."""

UNSEEN: dict[str, tuple[str, dict[str, str], str, str]] = {
    # code of the plugin, its other files (or modules that are installed), its manifest, what is told
    "an obscured end": (EXIT + TOOL, {}, HELLO, "exit code 3"),
    "an obscured kill": ("import os\ngetattr(os, 'ki' + 'll')(os.getpid(), 9)\n" + TOOL, {}, HELLO, "SIGKILL"),
    "another program": ("import os\ngetattr(os, 'exe' + 'cv')('/bin/true', ['true'])\n" + TOOL, {}, HELLO, "exit code 0"),
    "a dependency that ends": ("import deep_end\n" + TOOL, {"site:deep_end.py": EXIT}, HELLO, "exit code 3"),
    "a dependency that hangs": ("import deep_loop\n" + TOOL, {"site:deep_loop.py": "while True:\n    pass\n"}, HELLO, "not ended after 1 s"),
    "all memory": ("kept = []\nfor _ in range(1 << 20):\n    kept.append(bytes(1 << 32))\n" + TOOL, {}, HELLO, "MiB of memory"),
    "what tried it is killed": ("import os\ngetattr(os, 'ki' + 'll')(os.getppid(), 9)\n" + TOOL, {}, HELLO, "ended the process that tries"),
    "a node's module": (TOOL, {"nodes__deep.py": EXIT}, HELLO + "\nnodes: {entry: nodes}", "exit code 3"),
    "a handler's module": (
        "", {"work.py": EXIT + "def run(): ...\n"}, "tools: [{id: hello, implementation: {type: python, handler: 'work:run'}}]", "exit code 3",
    ),
}  # fmt: skip


def put(workshop: Workshop, name: str, code: str | None, files: dict[str, str], manifest: str) -> Path:
    """A folder plugin, and modules beside it."""
    for file in [file for file in files if file.startswith("site:")]:
        (workshop.site / file.removeprefix("site:")).write_text(files[file])
    return workshop.folder(
        name, code, manifest, **{file: text for file, text in files.items() if not file.startswith("site:")}
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", UNSEEN)
def test_what_no_reader_of_the_source_sees_costs_only_the_plugin(workshop: Workshop, what: str) -> None:
    code, files, manifest, words = UNSEEN[what]
    put(workshop, "bad", code, files, manifest)
    workshop.folder("good", TOOL, HELLO)
    for _ in range(2):
        host = workshop.open(config={"limits": {"importTimeoutMs": 1000 if "not ended" in words else 60_000}})
        error = host.invoke_sync("bad:hello").error
        assert error is not None
        assert words in error.message
        assert host.invoke_sync("good:hello").ok
        workshop.close(host)
    assert workshop.tried().count("import bad") == (2 if "that tries" in words else 1)


def test_nodes_of_a_plugin_without_a_package_are_tried_too(workshop: Workshop) -> None:
    put(workshop, "bare", None, {"nodes.py": EXIT}, "nodes: {entry: nodes.py}\nstart: true")
    assert "exit code 3" in workshop.open(activate="all").plugins["bare"].reason


LAYOUTS = ["folder", "installed", "zip", "namespace"]


def laid_out(workshop: Workshop, layout: str, code: str) -> None:
    """The plugin `one` with this code, as it may be installed."""
    if layout == "folder":
        workshop.folder("one", code, HELLO)
        return
    folder = workshop.installed("one", code, HELLO)
    if layout == "installed":
        return
    info = workshop.site / "tavern_plugin_one-1.0.dist-info"
    if layout == "namespace":
        (workshop.site / "many").mkdir()
        folder.rename(workshop.site / "many" / "one")
        (info / "entry_points.txt").write_text("[tavern.plugins]\none = many.one\n")
        return
    archive = workshop.root / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in [*folder.rglob("*"), *info.rglob("*")]:
            file.write(path, path.relative_to(workshop.site))
            if path.is_file():
                path.unlink()
    folder.rmdir()
    info.rmdir()
    sys.path.insert(0, str(archive))


@pytest.mark.parametrize("code", ["good", "bad"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_however_it_is_installed(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, layout: str, code: str) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    laid_out(workshop, layout, (EXIT if code == "bad" else "") + TOOL)
    for _ in range(2):
        host = workshop.open()
        result = host.invoke_sync("one:hello")
        assert result.ok if code == "good" else "exit code 3" in result.error.message, result
        workshop.close(host)
    assert len(workshop.tried()) == 1


@pytest.mark.slow
def test_what_changed_is_tried_again(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(str(installed))
    folder = workshop.folder("one", TOOL, HELLO, **{"part.py": "X = 1\n"})
    changes: list[Any] = [
        lambda: None,
        lambda: (folder / "part.py").write_text("X = 'other'\n"),
        lambda: (folder / "plugin.yaml").write_text((folder / "plugin.yaml").read_text() + "description: other\n"),
        lambda: (installed / "new.py").write_text(""),
    ]
    for count, change in enumerate(changes, 1):
        change()
        for _ in range(2):
            host = workshop.open()
            assert host.invoke_sync("one:hello").ok
            workshop.close(host)
        assert len(workshop.tried()) == count


DAMAGE = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "another shape": lambda text: '{"version": 1, "probes": []}',
    "another row": lambda text: '{"version": 1, "probes": {"one": 5}}',
    "another outcome": lambda text: text.replace('"good"', '"splendid"'),
    "an outcome that is a list": lambda text: text.replace('"good"', "[[]]"),
    "no hash": lambda text: text.replace('"artifact"', '"artefact"'),
    "an empty hash": lambda text: json.dumps(
        {"version": 1, "probes": {"one": {**json.loads(text)["probes"]["one"], "artifact": ""}}}
    ),
    "newer": lambda text: text.replace('"version": 1', '"version": 2'),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DAMAGE)
def test_a_verdict_that_cannot_be_read_is_none(workshop: Workshop, what: str) -> None:
    workshop.folder("one", TOOL, HELLO)
    file = workshop.home / "probes.json"
    for count in (1, 2, 2):
        host = workshop.open()
        assert host.invoke_sync("one:hello").ok
        workshop.close(host)
        assert len(workshop.tried()) == count
        if len(workshop.notes()) == 1:
            file.write_text(DAMAGE[what](file.read_text()))


@pytest.mark.parametrize("options", [{"safe_mode": True}, {"locked": True}, {"activate": "none"}])
def test_what_may_not_run_is_not_tried(workshop: Workshop, options: dict[str, Any]) -> None:
    workshop.folder("one", TOOL, HELLO)
    host = workshop.open(**options)
    if "activate" not in options:
        assert not host.invoke_sync("one:hello").ok
    assert (workshop.tried(), workshop.notes()) == ([], [])


@pytest.mark.slow
def test_an_isolated_plugin_is_tried_by_its_worker_alone(workshop: Workshop) -> None:
    workshop.folder("one", EXIT + TOOL, HELLO + "\nisolation: process")
    host = workshop.open()
    assert not host.invoke_sync("one:hello").ok
    assert workshop.tried() == []


SEEN = """
import json, os, sys
def seen():
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]
    return {"path": sys.path, "environment": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv, "links": links, "bytes": sys.dont_write_bytecode}
note(json.dumps(seen()))
"""


def test_an_import_sees_what_it_would_see_in_the_host_and_none_of_its_files(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prober.probe(PluginImport("none", has_code=False), seconds=60)  # the process runs already when all this changes
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ODD", "\udcff=\n")
    monkeypatch.setattr(sys, "path", [*sys.path, "", "relative", str(tmp_path / "more")])
    with (tmp_path / "held.txt").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        workshop.folder("one", SEEN + TOOL, HELLO)
        assert workshop.open().invoke_sync("one:hello").ok
    there, here = json.loads(workshop.tried()[1]), json.loads(workshop.notes()[1])
    for key in ("path", "environment", "cwd", "argv", "bytes"):
        assert there[key] == here[key], key
    assert any("held.txt" in link for link in here["links"])
    assert {link.partition(":")[0] for link in there["links"]} <= {"/dev/null", "pipe", "/proc/self/fd"}


def test_what_it_prints_goes_nowhere(workshop: Workshop, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os, sys\nprint('x' * 10**6); print('y' * 10**6, file=sys.stderr)\nfor fd in (1, 2):\n    os.write(fd, b'z' * 10**6)\n"
    folder = workshop.folder("loud", code, HELLO)
    assert prober.probe(PluginImport("loud", folder=folder), seconds=60).outcome == "good"
    assert capfd.readouterr() == ("", "")


LEAVES = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
heard, say = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note(os.getpid())
        os.write(say, b"!")
        os.closerange(0, 100)
        time.sleep(1000)
    os._exit(0)
os.wait()
os.read(heard, 1)
"""


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has buried yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_an_import_starts_ends_with_it(workshop: Workshop) -> None:
    folder = workshop.folder("one", LEAVES, HELLO)
    for end in ("", EXIT):
        with (folder / "__init__.py").open("a") as code:
            code.write(end)
        assert prober.probe(PluginImport("one", folder=folder), seconds=60).is_safe is (not end)
        until(lambda: all(is_gone(int(word)) for word in workshop.tried() if word.isdigit()))
    assert sum(word.isdigit() for word in workshop.tried()) == 2


HANGS = """
import os, time
if os.fork() == 0:
    os.setsid()
    note(os.getpid())
    time.sleep(1000)
note(os.getpid())
note(os.getppid())
time.sleep(1000)
"""


@pytest.mark.slow
def test_nothing_outlives_a_host_that_is_killed(workshop: Workshop) -> None:
    workshop.folder("one", HANGS + TOOL, HELLO)
    code = f"from tavern_core import Tavern\nTavern.open({{'plugins': {{'roots': [{str(workshop.plugins)!r}]}}}}, home={str(workshop.home)!r}).__enter__().invoke_sync('one:hello')"
    with Program([sys.executable, "-c", code]) as host:
        until(lambda: len(workshop.tried()) == 4)
        pids = [int(word) for word in workshop.tried() if word.isdigit()]
        assert not any(is_gone(pid) for pid in pids)
        host.send_signal(signal.SIGKILL)
    until(lambda: all(is_gone(pid) for pid in pids))


@pytest.mark.slow
def test_a_process_that_is_killed_between_two_imports_is_replaced(workshop: Workshop) -> None:
    folder = workshop.folder("one", "import os\nnote(os.getppid())\n", HELLO)
    for _ in range(2):
        assert prober.probe(PluginImport("one", folder=folder), seconds=60).outcome == "good"
        os.kill(int(workshop.tried()[-1]), signal.SIGKILL)
    assert len(set(workshop.tried())) == 3  # its name once, and two processes


COLLECTS = """
import asyncio, os, signal
from pathlib import Path
from tavern_core import Tavern

class Ahead(asyncio.SelectorEventLoop):
    ahead = 0.0
    def time(self):
        return super().time() + self.ahead

async def main():
    loop = asyncio.get_running_loop()
    async with Tavern.open({"plugins": {"roots": [ROOTS], "entryPoints": False}}, home=HOME) as host:
        assert (await host.invoke("one:hello")).ok
        server = int(Path(TRACE).read_text().split()[-1])
        entry = Path(f"/proc/{server}/stat")
        for seconds in (30, 60):
            assert entry.exists()  # it is needed still, or nobody has looked yet
            loop.ahead = seconds
            await asyncio.sleep(0.01)
        os.kill(server, signal.SIGKILL)
        while entry.exists() and loop.ahead < 100_000:
            loop.ahead += 30
            await asyncio.sleep(0.01)
        assert not entry.exists(), entry.read_text()
        assert (await host.invoke("one:hello")).ok
        (await host.plugins.reload("one"))
        assert int(Path(TRACE).read_text().split()[-1]) != server

with asyncio.Runner(loop_factory=Ahead) as runner:
    runner.run(main())
"""


@pytest.mark.slow
def test_the_process_that_tried_imports_is_no_zombie_when_it_has_ended_by_itself(workshop: Workshop) -> None:
    workshop.folder("one", "import os\nnote(os.getppid())\n" + TOOL, HELLO)
    names = {
        "ROOTS": str(workshop.plugins),
        "HOME": str(workshop.home),
        "TRACE": str(workshop.root / "trace.txt.probes"),
    }
    code = "\n".join(f"{name} = {value!r}" for name, value in names.items()) + COLLECTS
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_forked_copy_of_a_host_tries_imports_of_its_own(workshop: Workshop) -> None:
    folder = workshop.folder("one", "import os\nnote(os.getppid())\n", HELLO)
    code = f"""
import os
from pathlib import Path
from tavern_core.review.import_probe import prober
from tavern_core.review.probe_result import PluginImport
one = PluginImport("one", folder=Path({str(folder)!r}))
assert prober.probe(one, seconds=60).outcome == "good"
child = os.fork()
assert prober.probe(one, seconds=60).outcome == "good"
if child == 0:
    prober.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert prober.probe(one, seconds=60).outcome == "good"
"""
    assert subprocess.run([sys.executable, "-W", "error", "-c", code]).returncode == 0
    servers = [word for word in workshop.tried() if word.isdigit()]
    assert (len(servers), len(set(servers))) == (4, 2)


@pytest.mark.slow
def test_imports_that_take_long_do_not_hold_up_the_others(workshop: Workshop) -> None:
    hanging = [workshop.folder(f"bad{n}", "import time\ntime.sleep(1000)\n", HELLO) for n in range(3)]
    good = [workshop.folder(f"good{n}", TOOL, HELLO) for n in range(12)]
    with ThreadPoolExecutor(15) as pool:
        found = list(
            pool.map(
                lambda folder: prober.probe(
                    PluginImport(folder.name, folder=folder), seconds=1 if folder in hanging else 60
                ),
                [*hanging, *good],
            )
        )
    assert [one.outcome for one in found] == ["hung"] * 3 + ["good"] * 12


@pytest.mark.slow
def test_of_many_processes_on_one_home_one_tries(workshop: Workshop) -> None:
    workshop.folder("one", "import time\ntime.sleep(0.5)\n" + TOOL, HELLO)
    config = workshop.root / "tavern.yaml"
    config.write_text(f"plugins: {{roots: [{workshop.plugins}], entryPoints: false}}\n")
    words = ["-m", "tavern_core", "--home", workshop.home, "--config", config, "tools", "call", "one:hello"]
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: run_forked(words).returncode, range(3)))
    assert (done, len(workshop.tried()), len(workshop.notes())) == ([0] * 3, 1, 3)


@pytest.mark.slow
def test_where_no_process_can_be_started_only_a_plugin_that_ended_one_is_refused(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.folder("good", TOOL, HELLO)
    workshop.folder("bad", EXIT + TOOL, HELLO)
    config = workshop.root / "tavern.yaml"
    config.write_text(f"plugins: {{roots: [{workshop.plugins}], entryPoints: false, probe: suspect}}\n")
    words = ["-m", "tavern_core", "--home", workshop.home, "--config", config, "tools", "call", "bad:hello"]
    assert run_forked(words).returncode == 3
    notes = ["import bad"]  # once in the process that it ended
    # No interpreter, one that does not begin, one that is not there.
    for count, executable in enumerate(("", "/bin/false", "/nowhere/python")):
        prober.close()
        monkeypatch.setattr(sys, "executable", executable)
        host = workshop.open(home=shutil.copytree(workshop.home, workshop.root / f"home-{count}"))
        assert host.invoke_sync("good:hello").ok, executable
        assert "could not be tried first" in reported(host, "PROBE_UNAVAILABLE"), executable
        error = host.invoke_sync("bad:hello").error
        assert error is not None
        assert "its import ended an earlier process, and it cannot be tried in another" in error.message, executable
        assert workshop.notes() == (notes := [*notes, "import good"]), executable
        workshop.close(host)
