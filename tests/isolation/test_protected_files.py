"""Whatever was granted: no box writes plugin code, manifests, configuration, the interpreter, environments or repositories."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Tavern

from ..host.workshop import Workshop

pytestmark = pytest.mark.slow

RUN = """
import contextlib, ctypes, json, os, shutil, sqlite3, subprocess, sys, tempfile, threading
from pathlib import Path

def run(code, at):
    scope = {**globals(), "at": at, "answer": None}
    exec(code, scope)
    return scope["answer"]
"""
SCRIPT = (
    RUN
    + """
given = json.load(sys.stdin)["arguments"]
print(json.dumps({"answer": run(given["code"], given["at"])}))
"""
)
PLUGIN = (
    RUN
    + """
from tavern_core import hookimpl, tool

@tool(capabilities=["write:fs"])
def attack(code: str, at: str) -> dict:
    "Try something."
    return {"answer": run(code, at)}

@hookimpl
def tavern_register_tools():
    return [attack]
"""
)
TRIED = """
answer = []
def tries(*attempts):
    for number, attempt in enumerate(attempts):
        try:
            attempt()
        except (OSError, shutil.Error) as error:
            pass
        else:
            answer.append(number)
"""
ATTACKS = {
    "opening it to write": "p = at\ntries(lambda: open(p, 'w').write('x'), lambda: open(p, 'a').write('x'), lambda: open(p, 'r+').write('x'),"
        " lambda: os.close(os.open(p, os.O_WRONLY | os.O_CREAT | os.O_EXCL)), lambda: os.close(os.open(p, os.O_RDONLY | os.O_TRUNC)))",
    "removing it": "p = at\ntries(lambda: os.unlink(p), lambda: os.rmdir(p), lambda: shutil.rmtree(p))",
    "making it a folder": "p = at\ntries(lambda: os.mkdir(p), lambda: os.makedirs(p + '/x/y'))",
    "putting a file in its place": """
p = at
side = Path(at).parent
def moved(name, move):
    made = Path(tempfile.mkdtemp()) / 'made'
    made.write_text('x')
    move(str(made), p)
def near(move):
    made = side / 'made-beside'
    made.write_text('x')
    try:
        move(str(made), p)
    finally:
        with contextlib.suppress(OSError):
            made.unlink()
tries(lambda: moved('a', os.rename), lambda: moved('a', os.replace), lambda: moved('a', shutil.move), lambda: moved('a', os.link), lambda: moved('a', shutil.copy),
      lambda: near(os.rename), lambda: near(os.replace), lambda: near(os.link), lambda: near(shutil.copyfile))
""",
    "moving it away": "p = at\ntries(lambda: os.rename(p, p + '-gone'), lambda: os.link(p, str(Path(p).parent / 'linked')))",
    "a folder made elsewhere": """
made = Path(tempfile.mkdtemp()) / Path(at).name
made.mkdir()
(made / 'inside').write_text('x')
tries(lambda: os.rename(made, at), lambda: shutil.move(str(made), str(Path(at).parent)), lambda: shutil.copytree(made, at),
      lambda: os.rename(made.parent, str(Path(at).parent / 'holding')), lambda: shutil.move(str(made.parent), str(Path(at).parent / 'holding2')))
""",
    "exchanging it": """
libc = ctypes.CDLL(None, use_errno=True)
made = Path(at).parent / 'exchanged'
def exchange():
    made.write_text('x')
    try:
        if libc.renameat2(-100, os.fsencode(str(made)), -100, os.fsencode(at), 2): raise OSError(ctypes.get_errno(), 'no')
    finally:
        made.unlink()
tries(exchange)
""",
    "by a relative path": """
parent, name = os.path.split(at)
os.chdir('/')
with contextlib.suppress(OSError):
    os.chdir(parent)
fd = os.open(parent, os.O_RDONLY) if os.path.isdir(parent) else -1
tries(lambda: open(name, 'w').write('x'), lambda: open(f'./{name}', 'w').write('x'), lambda: open(f'../{os.path.basename(parent)}//{name}', 'w').write('x'),
      lambda: os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=fd)), lambda: os.mkdir(name, dir_fd=fd), lambda: os.unlink(name, dir_fd=fd),
      lambda: open(f'/proc/self/cwd/{name}', 'w').write('x'), lambda: open(f'/proc/self/fd/{fd}/{name}', 'w').write('x'),
      lambda: open(f'/proc/self/root{at}', 'w').write('x'))
""",
    "by a link": """
link = Path(tempfile.mkdtemp()) / 'link'
def linked(path):
    os.symlink(at, path)
    open(path, 'w').write('x')
tries(lambda: linked(link), lambda: linked(Path(at).parent / 'link'))
""",
    "truncating it": "tries(lambda: os.truncate(at, 0))",
    "with calls of its own": """
libc = ctypes.CDLL(None, use_errno=True)
def raw(*arguments):
    def attempt():
        if libc.syscall(*arguments) < 0: raise OSError(ctypes.get_errno(), 'no')
    return attempt
path = ctypes.c_char_p(os.fsencode(at))
how = (ctypes.c_uint64 * 3)(0o1 | 0o100, 0o600, 0)
numbers = dict(open=2, creat=85, mknod=133, openat2=437, truncate=76) if os.uname().machine == 'x86_64' else dict(openat2=437, truncate=45)
given = {'open': (path, 0o101, 0o600), 'creat': (path, 0o600), 'mknod': (path, 0o100600, 0), 'openat2': (-100, path, how, 24), 'truncate': (path, 0)}
tries(*(raw(number, *given[name]) for name, number in numbers.items()))
""",
    "changing the path meanwhile": """
libc = ctypes.CDLL(None, use_errno=True)
good = os.fsencode(str(Path(at).parent / ('n' * len(Path(at).name))))
bad = os.fsencode(at)
buffer = ctypes.create_string_buffer(good)
stop = []
def swap():
    while not stop:
        ctypes.memmove(buffer, bad, len(bad))
        ctypes.memmove(buffer, good, len(good))
thread = threading.Thread(target=swap)
interval = sys.getswitchinterval()
sys.setswitchinterval(1e-5)  # else every attempt waits until the turn of the other thread ends
thread.start()
for _ in range(attempts):
    fd = libc.open(buffer, os.O_WRONLY | os.O_CREAT, 0o600)
    if fd >= 0:
        os.close(fd)
stop.append(1)
thread.join()
sys.setswitchinterval(interval)
with contextlib.suppress(OSError):
    os.unlink(good)
""",
}  # fmt: skip
ORDINARY = """
import stat
root = Path(at)
(root / 'new').mkdir()
os.umask(0o027)
(root / 'new/file.txt').write_text('one')
mode = stat.S_IMODE((root / 'new/file.txt').stat().st_mode)
with open(root / 'new/file.txt', 'a') as file:
    file.write(' two')
os.rename(root / 'new/file.txt', root / 'moved.txt')
os.link(root / 'moved.txt', root / 'linked.txt')
os.replace(root / 'linked.txt', root / 'new/again.txt')
os.makedirs(root / 'copy/deep')
shutil.copyfile(root / 'new/again.txt', root / 'copy/deep/again.txt')
os.rename(root / 'copy', root / 'copied')
shutil.rmtree(root / 'copied')
made = Path(tempfile.mkdtemp()) / 'made'
made.write_text('from the work folder')
shutil.move(str(made), str(root / 'from-work.txt'))
base = sqlite3.connect(root / 'some.db')
with base:
    base.execute('create table t (x)')
    base.execute('insert into t values (1)')
rows = base.execute('select count(*) from t').fetchone()[0]
base.close()
os.truncate(root / 'moved.txt', 3)
os.unlink(root / 'new/again.txt')
os.rmdir(root / 'new')
os.chdir(root)
open('relative.txt', 'w').write('x')
with tempfile.NamedTemporaryFile(dir=root) as file:
    file.write(b'x')
with tempfile.TemporaryFile(dir=root) as file:
    file.write(b'x')
try:
    open(root / 'relative.txt', 'x')
    raise AssertionError
except FileExistsError:
    pass
try:
    open(root / 'no/such/folder', 'w')
    raise AssertionError
except FileNotFoundError:
    pass
answer = [sorted(os.listdir(root)), (root / 'moved.txt').read_text(), (root / 'from-work.txt').read_text(), rows, mode]
"""
LEFT = [["data.txt", "from-work.txt", "moved.txt", "relative.txt", "some.db"], "one", "from the work folder", 1, 0o640]
BOXES = ("script", "script of an isolated plugin", "isolated plugin", "code")


class Place:
    """A project with everything in it that is worth an attack, and a plugin that was granted to write in all of it."""

    def __init__(self, shop: Workshop) -> None:
        self.shop, self.project, self.free = shop, shop.root / "project", shop.root / "project" / "free"
        self.outer = shop.root
        shop.plugins = self.project / "plugins"
        shop.home = self.outer / "state"
        for name, text in {
            "tavern.yaml": "plugins: {roots: [plugins], entryPoints: false}\n", ".env": "A=1", ".env.local": "A=1", ".git/config": "[core]", ".git/hooks/x": "",
            "free/data.txt": "x", "free/.git/config": "[core]", "venv/pyvenv.cfg": "home = /", "venv/bin/python": "", "free/deep/.env": "B=1",
            "venv/lib/python3/site-packages/a.py": "", "x.pth": "/", "profiles/a.yaml": "name: a", "plugins/other/__init__.py": "", "plugins/other/plugin.yaml": "name: other\nversion: '1'",
        }.items():  # fmt: skip
            (self.project / name).parent.mkdir(parents=True, exist_ok=True)
            (self.project / name).write_text(text)

    def targets(self) -> list[Path]:
        """What is there, and what might be made."""
        there = (
            "tavern.yaml", "tavern.lock", ".env", ".env.local", ".git/config", ".git/hooks/x", "free/.git/config", "venv/pyvenv.cfg", "venv/bin/python",
            "free/deep/.env", "venv/lib/python3/site-packages/a.py", "x.pth", "profiles/a.yaml", "plugins/other/__init__.py", "plugins/other/plugin.yaml",
            "plugins/p/plugin.yaml", "plugins/p/__init__.py", "plugins", ".git", "venv",
        )  # fmt: skip
        new = (
            ".env.new", "free/.env", "free/.envrc", "free/.ENV", "free/a.pth", "free/A.Pth", "free/.GIT", "free/.git.", "free/deep/.git", "free/site-packages",
            "free/pyvenv.cfg", "free/.venv", "free/tavern.yaml", "free/plugin.yaml", ".git/hooks/pre-commit", "plugins/new.py", "plugins/p/extra.py",
            "plugins/new/plugin.yaml", "profiles/new.yaml", "venv/new.py",
        )  # fmt: skip
        return [self.project / name for name in (*there, *new)]

    def open(self, scope: list[str] | None, box: str) -> Tavern:
        tier = "process" if "isolated" in box else "none"
        ask = {"name": "write:fs"} if scope is None else {"name": "write:fs", "scope": scope}
        read = {**ask, "name": "read:fs"}
        script = {
            "id": "run", "description": "x", "parameters": {"type": "object", "properties": {"code": {"type": "string"}, "at": {"type": "string"}}},
            "implementation": {"type": "script", "command": "python run.py", "timeout": 120_000},
        }  # fmt: skip
        tool = script if "script" in box else {"id": "attack", "implementation": {"type": "python"}}
        folder = self.shop.folder(
            "p",
            None,
            f"tools: [{json.dumps(tool)}]\npermissions: {{capabilities: {json.dumps([ask, read])}}}\nisolation: {tier}",
        )
        (folder / "__init__.py").write_text(PLUGIN)
        (folder / "run.py").write_text(SCRIPT)
        config = str(self.project / "tavern.yaml")
        with Tavern.open(config, home=self.shop.home, activate="none") as host:
            host.grant("p", "write:fs", "read:fs")
        host = Tavern.open(config, home=self.shop.home)
        host.__enter__()
        self.shop._opened.append(host)
        return host

    def run(self, host: Tavern, box: str, code: str, at: Path) -> Any:
        result = host.invoke_sync("p:run" if "script" in box else "p:attack", {"code": code, "at": str(at)})
        assert result.ok, result.error
        return result.value["answer"]


def tree(folder: Path) -> dict[str, str]:
    """What is in a folder: path → content, folders with none."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else "/"
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


@pytest.fixture
def place(workshop: Workshop) -> Place:
    return Place(workshop)


SCOPES = {
    "the project": ["./"],
    "a folder above": None,
    "its own plugin, and what is beside it": ["$plugin", "./plugins", "./free", "./venv", "./.git", "./.env"],
}
RACE = "changing the path meanwhile"
ALL = f"""
for name, attack in given['attacks'].items():
    for target in given['targets'][:: given['stride'] if name == {RACE!r} else 1]:
        try:
            run(tried + attack, target)
        except (OSError, shutil.Error):
            pass
answer = 'done'
"""


def everywhere() -> list[Any]:
    """Every scope in one box, and every box with one scope: in the soak all pairs, and a path changes more often and for
    every target (the host decides about a path in one way, whatever it leads to).
    """
    pairs = [(box, scope) for box in BOXES[:3] for scope in SCOPES]
    return [
        *(pytest.param(*pair, 30, 5) for pair in zip(BOXES[:3], SCOPES, strict=True)),
        *(pytest.param(*pair, 300, 1, marks=pytest.mark.soak) for pair in pairs),
    ]


@pytest.mark.parametrize(("box", "scope", "attempts", "stride"), everywhere())
def test_nothing_that_is_run_by_others_is_written(
    place: Place, box: str, scope: str, attempts: int, stride: int
) -> None:
    host = place.open(SCOPES[scope], box)
    before = tree(place.project)
    given = {"attacks": ATTACKS, "targets": list(map(str, place.targets())), "stride": stride}
    assert (
        place.run(host, box, f"given = {given!r}\ntried = {f'attempts = {attempts}{TRIED}'!r}\n{ALL}", place.project)
        == "done"
    )
    after = tree(place.project)
    aims = {target.name for target in place.targets()}
    added = {name for name in after.keys() - before.keys() if not is_harmless(name) and not is_torn(name, aims)}
    assert added == set()
    assert {name for name, text in before.items() if after.get(name) != text} == set()


def is_harmless(name: str) -> bool:
    """Whether a path is one of those that attacks leave beside what they aim at, and nothing of it has a name that counts."""
    parts = Path(name).parts
    left = ("holding", "holding2", "made", "linked", "made-beside", "exchanged")
    return any(part in left or "nnn" in part for part in parts) and not any(
        part.casefold().startswith((".git", ".env", ".venv")) or part.casefold().endswith((".pth", ".yaml"))
        for part in parts
    )


def is_torn(name: str, aims: set[str]) -> bool:
    """Whether a new file of an open folder got its name from a path that was changed while it was read: part of it `n`, and protected by nobody."""
    path = Path(name)
    plain = path.name.casefold()
    if (
        any(part not in ("free", "deep") for part in path.parts[:-1])
        or path.name in aims
        or plain.startswith(".env")
        or plain.endswith(".pth")
    ):
        return False
    return any(
        len(aim) == len(path.name) and all(sign in (own, "n") for sign, own in zip(path.name, aim, strict=True))
        for aim in aims
    )


@pytest.mark.parametrize(
    ("box", "scope"),
    [(BOXES[0], ["./free"]), (BOXES[0], ["./"]), (BOXES[0], None), (BOXES[1], ["./"]), (BOXES[2], ["./free"])],
)
def test_what_was_granted_is_written_as_without_a_box(place: Place, box: str, scope: list[str] | None) -> None:
    folder = place.project / "ordinary" if scope != ["./free"] else place.free / "ordinary"
    folder.mkdir()
    (folder / "data.txt").write_text("x")
    host = place.open(scope, box)
    assert place.run(host, box, ORDINARY, folder) == LEFT


def test_the_interpreter_and_its_packages_stay_as_they_are(place: Place, tmp_path: Path) -> None:
    packages = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    targets = [
        packages / "tavern-planted.pth",
        packages / "tavern_planted.py",
        Path(sys.prefix) / "tavern-planted",
        Path(os.__file__).parent / "tavern_planted.py",
    ]
    for box in BOXES[:3]:
        host = place.open(None, box)
        for target in targets:
            assert place.run(host, box, TRIED + ATTACKS["opening it to write"], target) == []
            assert not target.exists()


def test_code_of_an_agent_writes_none_of_it_either(place: Place) -> None:
    (place.project / "tavern.yaml").write_text(
        "plugins: {roots: [plugins], entryPoints: false}\ntools: {allow: [CodeInterpreter:execute]}\n"
    )
    with Tavern.open(str(place.project / "tavern.yaml"), home=place.shop.home) as host:
        context = CallContext(
            principal="guest", permissions={"process:spawn", "write:fs", "read:fs"}, workspace_dir=str(place.free)
        )
        attempt = "\n".join(
            (
                RUN,
                f"at = {str(place.free / '.env')!r}",
                TRIED,
                ATTACKS["opening it to write"],
                ATTACKS["putting a file in its place"],
                "result = answer",
            )
        )
        found = host.invoke_sync("CodeInterpreter:execute", {"code": attempt, "language": "python"}, context=context)
        assert found.ok, found.error
    assert not (place.free / ".env").exists()
