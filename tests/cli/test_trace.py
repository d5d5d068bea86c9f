"""``tavern plugins check --trace``: what a plugin's own code does is told with its line, what others do is not, and the permissions
that it proposes are the ones that allow it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from tavern_core.review.plugin_check import check_plugin
from tests import programs
from tests.forked_programs import run_forked
from tests.rows import each_row

pytestmark = pytest.mark.slow

HEAD = """\
import asyncio, contextlib, importlib.metadata, importlib.resources, logging, multiprocessing, os, random, shutil, socket, sqlite3
import subprocess, sys, tempfile, threading, traceback, urllib.request, uuid, warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tavern_core import Folder, hookimpl, tool

"""
SEEN: dict[str, tuple[str, list[str]]] = {
    # what the plugin does (`f` is a file outside, `d` its folder, `p` the port of a server): (code, what is told: kind and target)
    "it reads": ("open(f).read()", ["read {f}"]),
    "it reads by pathlib": ("Path(f).read_text()", ["read {f}"]),
    "it reads by the system call": ("os.close(os.open(f, os.O_RDONLY))", ["read {f}"]),
    "it reads by the name of bytes": ("open(os.fsencode(f)).close()", ["read {f}"]),
    "it reads a relative path": ("with contextlib.chdir(d): open(os.path.basename(f)).close()", ["read {f}"]),
    "it reads beneath a descriptor": ("x = os.open(d, os.O_DIRECTORY); os.close(os.open(os.path.basename(f), os.O_RDONLY, dir_fd=x)); os.close(x)", ["read {f}"]),
    "it reads by the host's Folder": ("with Folder(d) as x: x.open(os.path.basename(f)).close()", ["read {f}"]),
    "it lists": ("os.listdir(d)", ["read {d}"]),
    "it lists by a descriptor": ("x = os.open(d, os.O_DIRECTORY); os.listdir(x); os.close(x)", ["read {d}"]),
    "it walks": ("list(Path(d).iterdir())", ["read {d}"]),
    "it writes": ("open(d + '/new', 'w').close()", ["write {d}/new"]),
    "it appends": ("open(d + '/new', 'a').close()", ["write {d}/new"]),
    "it changes": ("open(f, 'r+').close()", ["read {f}", "write {f}"]),
    "it makes a folder": ("os.mkdir(d + '/made')", ["write {d}/made"]),
    "it moves": ("os.rename(d + '/a', d + '/b')", ["write {d}/a", "write {d}/b"]),
    "it removes": ("os.remove(d + '/gone')", ["write {d}/gone"]),
    "it links": ("os.symlink(f, d + '/link')", ["write {d}/link"]),
    "it copies": ("shutil.copyfile(f, d + '/copy')", ["read {f}", "write {d}/copy"]),
    "it opens a database": ("sqlite3.connect(d + '/x.db').close()", ["read {d}/x.db", "write {d}/x.db"]),
    "it looks into a database": ("sqlite3.connect(f'file:{d}/x.db?mode=ro', uri=True).close()", ["read {d}/x.db"]),
    "it reads in a thread": ("t = threading.Thread(target=Path(f).read_bytes); t.start(); t.join()", ["read {f}"]),
    "it reads in a pool": ("with ThreadPoolExecutor(1) as pool: pool.submit(Path(f).read_bytes).result()", ["read {f}"]),
    "it reads in a thread of a thread": ("t = threading.Thread(target=asyncio.run, args=(asyncio.to_thread(Path(f).read_bytes),)); t.start(); t.join()", ["read {f}"]),
    "it reads by a function of its own in a thread": ("t = threading.Thread(target=lambda: open(f).close()); t.start(); t.join()", ["read {f}"]),
    "it reads where others' code is executed": ("exec('open(f).close()', {'f': f})", ["read {f}"]),
    "it connects": ("socket.create_connection(('127.0.0.1', p), 5).close()", ["connect 127.0.0.1:{p}"]),
    "it connects by name": ("socket.create_connection(('localhost', p), 5).close()", ["connect localhost:{p}"]),
    "it connects later": ("async def later(): (await asyncio.open_connection('localhost', p))[1].close()\nasyncio.run(later())", ["connect localhost:{p}"]),
    "it fetches": ("with contextlib.suppress(OSError): urllib.request.urlopen('http://localhost:1/x')", ["connect localhost:1"]),
    "it sends a datagram": ("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.2', 9)); s.close()", ["connect 127.0.0.2:9"]),
    "it looks up a name": ("socket.getaddrinfo('localhost', 8443)", ["connect localhost:8443"]),
    "it serves": ("socket.create_server(('127.0.0.1', 0)).close()", ["listen 127.0.0.1:*"]),
    "it starts a program": ("subprocess.run(['true'])", ["spawn true"]),
    "it starts a program by its path": ("subprocess.run([sys.executable, '-c', ''])", ["spawn {python}"]),
    "it starts a shell": ("os.system('true')", ["spawn sh"]),
    "it starts a process of its own": ("q = multiprocessing.get_context('spawn').Process(target=print); q.start(); q.join()", ["spawn *"]),
    "it reads a variable": ("os.environ.get('HARMLESS_ONE')", ["variable HARMLESS_ONE"]),
    "it reads a variable by another way": ("os.getenvb(b'HARMLESS_TWO')", ["variable HARMLESS_TWO"]),
    "it copies the environment": ("dict(os.environ)", ["variable *"]),
    "it asks for a service": ("ctx.service('clock') if ctx else None", []),
    "it writes into its own folder": ("Path(__file__).with_name('cache.txt').write_text('x')", ["write $plugin/cache.txt"]),
    "it reads its own files": ("importlib.resources.files(__package__).joinpath('plugin.yaml').read_text()", ["read $plugin/plugin.yaml"]),
    "it reads what only it makes": ("with tempfile.TemporaryDirectory() as t: Path(t, 'x').write_text('x')", ["write $TMP/x"]),
}  # fmt: skip
UNSEEN = {
    "nothing": "pass",
    "it imports late": "import colorsys, xml.dom.minidom",
    "it warns": "with warnings.catch_warnings(): warnings.simplefilter('ignore'); warnings.warn('x')",
    "it formats a traceback": "traceback.format_stack()",
    "it logs": "logging.getLogger('x').warning('x')",
    "it looks at a version": "importlib.metadata.version('pytest')",
    "it looks for a program": "shutil.which('true')",
    "it wants chance": "random.random(); os.urandom(8); uuid.uuid4()",
    "it opens nothing": "open(os.devnull, 'w').close()",
    "it talks to itself": "a, b = socket.socketpair(); a.close(); b.close()",
    "it keeps a database in memory": "sqlite3.connect(':memory:').close()",
    "it asks where home is": "os.path.expanduser('~')",
    "it asks what machine this is": "import platform; platform.processor(); platform.platform(); uuid.uuid1(); uuid.getnode()",
    "it waits": "asyncio.run(asyncio.sleep(0))",
    "it asks a test": "callback()",
}
TOLD_AND_FREE = ("$TMP", "$plugin/plugin.yaml")


def run(folder: Path, home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Check a plugin, in this process; its code and its tests run in others."""
    options = "-p no:hypothesispytest -p no:xdist -p no:langsmith_plugin -p no:anyio"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PYTEST_ADDOPTS": options, **variables}.items():
            patch.setenv(name, value)
        return programs.tavern("plugins", "check", str(folder), *words, cwd=folder, home=home)


def plugin(folder: Path, code: str, manifest: str = "", tests: str | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(f'name: {folder.name}\nversion: "1.0"\n{dedent(manifest)}')
    (folder / "__init__.py").write_text(code)
    if tests is not None:
        (folder / "tests").mkdir()
        (folder / "tests" / "test_it.py").write_text(dedent(tests))
    return folder


def function(name: str) -> str:
    return "do_" + "".join(c if c.isalnum() else "_" for c in name)


@pytest.fixture(scope="module")
def outside() -> Iterator[Path]:
    """A folder that is nobody's: neither the tests' own nor the project's."""
    folder = Path(f"/var/tmp/tavern-{os.getpid()}-outside")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listening:
        yield listening.getsockname()[1]


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory, outside: Path, server: int) -> dict[str, Any]:
    """One traced run of a plugin that does all of the above, a function for each."""
    code = HEAD
    bodies = {**{name: body for name, (body, _) in SEEN.items()}, **UNSEEN}
    for name, body in bodies.items():
        code += f"\ndef {function(name)}(f, d, p, callback, ctx=None):\n{indent(body, '    ')}\n"
    tests = f"""
        import importlib, json, os, shutil
        import pytest
        from pathlib import Path

        OUTSIDE, PORT = Path({str(outside)!r}), {server}

        @pytest.fixture(scope="module")
        def module(request):
            import sys
            sys.path.insert(0, str(Path(request.path).parents[2]))
            return importlib.import_module("big")

        @pytest.mark.filterwarnings("ignore")
        @pytest.mark.parametrize("name", {[function(name) for name in bodies]!r})
        def test_it(module, name):
            d = OUTSIDE / name
            d.mkdir()
            for made in ("f", "a", "gone"):
                (d / made).write_text("x")
            __import__("sqlite3").connect(d / "x.db").close()
            os.environ.update(HARMLESS_ONE="1", HARMLESS_TWO="2")
            getattr(module, name)(str(d / "f"), str(d), PORT, lambda: (d / "f").read_text())
    """
    folder = plugin(tmp_path_factory.mktemp("plugins") / "big", code, "", tests)
    done = run(folder, folder.parent / "home", "--trace", "--json")
    assert done.returncode == 4, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["trace"]["complete"], done.stderr[-3000:] + str(found["trace"]["tests"])
    return {**found, "code": code.splitlines()}


def reported(big: dict[str, Any], name: str) -> list[str]:
    """What was told of one function, each once."""
    at = big["code"].index(f"def {function(name)}(f, d, p, callback, ctx=None):") + 1
    lines = {at, at + 1, at + 2} & {use["line"] for use in big["trace"]["uses"]}
    return list(
        dict.fromkeys(
            f"{u['kind']} {u['target']}" for u in big["trace"]["uses"] if u["line"] in lines and u["kind"] != "thread"
        )
    )


@each_row("name", SEEN)
def test_what_the_plugin_does_is_reported(big: dict[str, Any], outside: Path, server: int, name: str) -> None:
    folder = outside / function(name)
    values = {"f": folder / "f", "d": folder, "p": server, "python": Path(sys.executable).name}
    found = reported(big, name)
    if "$TMP" in "".join(SEEN[name][1]):
        found = [text for text in found if text.startswith("write $TMP/")]
        assert found
    else:
        assert sorted(found) == sorted(text.format(**values) for text in SEEN[name][1])


@each_row("name", UNSEEN)
def test_what_is_not_the_plugins_doing_is_not_reported(big: dict[str, Any], name: str) -> None:
    assert reported(big, name) == []


def test_every_use_that_needs_a_permission_is_a_finding_with_its_line(big: dict[str, Any]) -> None:
    found = {(f["file"], f["line"]) for f in big["findings"] if f["code"] == "USE_UNDECLARED"}
    uses = {
        (u["file"], u["line"])
        for u in big["trace"]["uses"]
        if u["kind"] != "thread" and not u["target"].startswith(TOLD_AND_FREE)
    }
    assert found == uses


CODE = '''\
import os
import subprocess
from pathlib import Path

from tavern_core import hookimpl, tool
from tavern_core.errors import PolicyDenied


@tool
def look(path: str) -> str:
    """Look at a file."""
    return Path(path).read_text() + Path("/etc/hostname").read_text()


@tool
def keep(text: str, path: str) -> int:
    """Keep a text."""
    return Path(path).write_text(text)


@tool
def ask() -> int:
    """Ask another program."""
    return subprocess.run(["true"]).returncode


@hookimpl
def tavern_register_tools(ctx):
    ctx.data_dir.joinpath("x").write_text("its own")

    @tool
    def use() -> str:
        """Use what others have."""
        for get, name in ((ctx.secret, "key"), (ctx.service, "systemClock")):
            try:
                get(name)
            except PolicyDenied:
                pass
        return "used"

    return [look, keep, ask, use]


@hookimpl
def tavern_check_call(call):
    return None
'''
TESTS = """
    import pytest
    from tavern_core import CallContext, Service

    @pytest.mark.tavern(config={"secrets": {"key": "k"}})
    def test_it(call_tool, tmp_path):
        (tmp_path / "x").write_text("x")
        call_tool("look", {"path": str(tmp_path / "x")})
        call_tool("keep", {"text": "x", "path": str(tmp_path / "y")})
        call_tool("ask")
        call_tool("use")
"""
DECLARED = "tools: [{id: look, implementation: {type: python}}, {id: keep, implementation: {type: python}}, {id: ask, implementation: {type: python}}, {id: use, implementation: {type: python}}]\n"


def test_pasting_what_it_proposes_leaves_nothing_to_say(tmp_path: Path) -> None:
    folder = plugin(
        tmp_path / "plugins" / "words", CODE, DECLARED + 'permissions: {hooks: ["hook:server:tool:check"]}\n', TESTS
    )
    first = run(folder, tmp_path / "home", "--trace", "--json")
    assert first.returncode == 4, first.stderr
    block = json.loads(first.stdout)["trace"]["permissions"]
    assert block == dedent("""\
        permissions:
          hooks: ["hook:server:tool:check"]
          services:
            use: ["systemClock"]
          capabilities:
            - name: read:fs
              scope: ["$workspace", "/etc/hostname"]
            - name: write:fs
              scope: ["$workspace"]
            - name: process:spawn
              scope: ["true"]
            - name: secrets:key
    """)
    (folder / "plugin.yaml").write_text(f'name: words\nversion: "1.0"\n{DECLARED}{block}')
    assert [f for f in check_plugin(folder).findings if f.severity != "info"] == []
    again = run(folder, tmp_path / "home", "--trace", "--json")
    found = json.loads(again.stdout)
    assert [f for f in found["findings"] if f["code"].startswith("USE_")] == [], again.stderr
    assert again.returncode == 0
    assert found["trace"]["permissions"] == block


SHELVES = """
    from tavern_core import Plugin, Service, Tavern, hookimpl, read_only

    class Shelf:
        @read_only
        def look(self):
            return 1

        def put(self):
            return 1

    class Shelves:
        @hookimpl
        def tavern_register_services(self):
            return [Service(name, Shelf()) for name in NAMES]

    def test_it(tmp_path):
        with Tavern.open({"plugins": {"entryPoints": False, "roots": ["ROOT"]}}, plugins=[Plugin(Shelves(), name="shelves")], home=tmp_path) as host:
            host.grant("words", all_requested=True)
            host.invoke_sync("words:use")
"""
USING = (
    HEAD
    + '''
@hookimpl
def tavern_register_tools(ctx):
    @tool
    def use() -> int:
        """Use the shelves."""
        return sum(getattr(ctx.service(name), method)() for name, method in CALLS)

    return [use]
'''
)
CALLS = [("looked", "look"), ("written", "put"), ("changed", "put")]
"""Service and method; nobody marked `put`. The last call is refused: plugin.yaml asks only to use that service."""


def test_calling_what_is_not_marked_as_looking_needs_the_right_to_write(tmp_path: Path) -> None:
    folder = plugin(
        tmp_path / "plugins" / "words",
        USING.replace("CALLS", repr(CALLS)),
        "tools: [{id: use, implementation: {type: python}}]\n"
        "permissions: {services: {use: [looked, changed], write: [written]}}\n",
        SHELVES.replace("ROOT", str(tmp_path / "plugins")).replace("NAMES", repr([name for name, _ in CALLS])),
    )
    found = json.loads(run(folder, tmp_path / "home", "--trace", "--json").stdout)
    assert [f["message"] for f in found["findings"] if f["code"] == "USE_UNDECLARED"] == [
        "it changes the service changed, and plugin.yaml does not request 'service:write:changed'"
    ], found
    block = 'permissions:\n  services:\n    use: ["looked"]\n    write: ["written", "changed"]\n'
    assert found["trace"]["permissions"] == block


QUIET = '''\
from tavern_core import hookimpl, tool


@tool(capabilities=["read:fs"])
def count(text: str) -> int:
    """Count."""
    return len(text)


@hookimpl
def tavern_register_tools():
    return [count]
'''
ONE = "tools: [{id: count, implementation: {type: python}}]\n"
PASSING = "def test_it(call_tool):\n    assert call_tool('count', {'text': 'ab'}).value == 2\n"
READING = QUIET.replace('(capabilities=["read:fs"])', "").replace("len(text)", "len(open('/etc/hostname').read())")
READS = "def test_it(call_tool):\n    call_tool('count', {'text': 'ab'})\n"
UNASKED = "needs 'read:fs', which plugin.yaml does not request"
RUNS: dict[str, tuple[str, str | None, tuple[str, ...], int, tuple[str, ...]]] = {
    # what: (permissions, tests, words, exit code, parts of the report)
    "a tool names what nobody asks for, so that its test fails": (
        "{}",
        PASSING,
        (),
        4,
        (UNASKED, "1 of its 1 tests failed"),
    ),
    "there are no tests, strictly": ("{capabilities: ['read:fs']}", None, ("--strict",), 4, ("no tests were found",)),
    "tests that cannot be read": ("{capabilities: ['read:fs']}", "def (:", (), 4, ("pytest could not run them",)),
    "tests that end the process": (
        "{capabilities: ['read:fs']}",
        PASSING + "\nimport os\ndef test_last():\n    os._exit(0)\n",
        (),
        4,
        ("ended the process themselves",),
    ),
    "words for pytest without a trace": ("{capabilities: ['read:fs']}", PASSING, ("-", "-k"), 2, ("add --trace",)),
    "the plugin is wrong": ("{hooks: [nonsense]}", PASSING, (), 4, ("nonsense",)),
}


@pytest.mark.parametrize("what", RUNS)
def test_a_run_ends_with_what_came_of_it(tmp_path: Path, what: str) -> None:
    permissions, tests, words, code, expected = RUNS[what]
    folder = plugin(tmp_path / "plugins" / "words", QUIET, f"{ONE}permissions: {permissions}\n", tests)
    options = ("--", *words[1:]) if words[:1] == ("-",) else ("--trace", *words)
    done = run(folder, tmp_path / "home", *options)
    printed = done.stdout + done.stderr
    assert (done.returncode, [part for part in expected if part not in printed]) == (code, []), printed


def test_what_an_import_does_is_reported_once(tmp_path: Path) -> None:
    code = "import subprocess, threading\nsubprocess.run(['true'])\nthreading.Thread(target=print).start()\n" + QUIET
    folder = plugin(
        tmp_path / "plugins" / "words",
        code,
        f"{ONE}permissions: {{capabilities: ['process:spawn', 'read:fs']}}\n",
        PASSING,
    )
    done = run(folder, tmp_path / "home", "--trace", "--json")
    reported = [
        f["message"].partition(":")[0] for f in json.loads(done.stdout)["findings"] if f["code"] == "IMPORT_NOT_PURE"
    ]
    assert reported == ["importing it starts true", "importing it starts a thread"]


def test_chosen_tests_of_a_project_are_traced_without_being_installed_and_without_a_worker(tmp_path: Path) -> None:
    """Its plugin asks for a worker, and is in the process of the tests all the same; what they do not use is reported."""
    project = tmp_path / "project"
    plugin(project / "src" / "tavern_plugin_words", READING)
    (project / "src" / "tavern_plugin_words" / "plugin.yaml").write_text(
        f'name: words\nversion: "1.0"\nisolation: process\n{ONE}permissions: {{capabilities: ["read:fs", "process:spawn"]}}\n'
    )
    (project / "tests").mkdir()
    (project / "tests" / "test_it.py").write_text(READS + "\ndef test_bad():\n    assert False\n")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "tavern-plugin-words"\nversion = "1.0"\n[project.entry-points."tavern.plugins"]\nwords = "tavern_plugin_words"\n'
        '[tool.setuptools.package-data]\ntavern_plugin_words = ["plugin.yaml"]\n'
    )
    done = run(project, tmp_path / "home", "--trace", "--json", "--", "-k", "not bad")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [(u["kind"], u["target"]) for u in found["trace"]["uses"]] == [("read", "/etc/hostname")]
    assert any("'process:spawn', and its tests never used it" in f["message"] for f in found["findings"]), found


@pytest.mark.parametrize("processes", [[], ["-n1"]], ids=["alone", "xdist"])
def test_pytest_itself_tells_what_was_used(tmp_path: Path, processes: list[str]) -> None:
    folder = plugin(tmp_path / "plugins" / "words", READING, ONE, READS)
    line = ["-m", "pytest", "-q", "--tavern-trace", "-p", "no:cacheprovider", *processes, f"--rootdir={folder}"]
    options = "-p no:hypothesispytest -p no:langsmith_plugin -p no:anyio"
    done = run_forked(line, cwd=folder, env={**os.environ, "PYTEST_ADDOPTS": options})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "__init__.py:7:1: it reads /etc/hostname, and plugin.yaml does not request 'read:fs'" in done.stdout
    assert 'scope: ["/etc/hostname"]' in done.stdout


def test_pytest_says_which_plugin_it_lacks(tmp_path: Path) -> None:
    line = ["-m", "pytest", "--tavern-trace", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    done = run_forked(line, cwd=tmp_path)
    assert done.returncode == 4
    assert "no plugin is under test" in done.stderr
