"""A project folder with plugins of every kind, and two ways to use the command line there: in this process, and for real."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tavern_core.__main__ import main
from tests.forked_programs import run_forked

CONFIG = """\
# the project of the tests
plugins:
  roots: [plugins]
  entryPoints: false
"""

PLUGINS: dict[str, dict[str, str]] = {
    "text": {
        "plugin.yaml": """\
name: text
displayName: 文本工具
version: "1.2.0"
description: Counts and repeats text.
tools:
  - id: count
    description: 统计字数。Counts words or characters.
    tags: [统计, words]
    parameters:
      type: object
      properties:
        text: {type: string, description: The text.}
        unit: {type: string, enum: [words, characters], default: words}
        times: {type: integer, default: 1}
        flags: {type: array, items: {type: string}}
      required: [text]
    capabilities: ["read:fs"]
    implementation: {type: python}
  - {id: fail, implementation: {type: python}}
  - {id: trip, description: Has a bug., implementation: {type: python}}
  - {id: forever, implementation: {type: python}}
  - {id: escape, implementation: {type: python}}
configOptions:
  - {key: extensions.text.style, type: select, options: [plain, 花体], defaultValue: plain}
  - {key: extensions.text.level, type: number, min: -3, max: 3, defaultValue: 0}
  - {key: extensions.text.apiToken, type: string, secret: true, defaultValue: ""}
permissions:
  capabilities:
    - {name: "read:fs", reason: 读取要统计的文件}
""",
        "__init__.py": '''\
"""Tools for the tests of the command line."""
import asyncio
import sys

from tavern_core import ToolFailed, hookimpl, tool


@tool(capabilities=["read:fs"])
def count(text: str, unit: str = "words", times: int = 1, flags: list[str] | None = None) -> int:
    """Counts."""
    return times * (len(text.split()) if unit == "words" else len(text))


@tool
def fail(why: str = "not today") -> str:
    """Fails."""
    raise ToolFailed(why)


@tool
def trip(password: str = "") -> str:
    """Has a bug."""
    return {}["lost " + password]


@tool
async def forever() -> str:
    """Waits until it is stopped."""
    print("ready", file=sys.stderr, flush=True)
    await asyncio.Event().wait()
    return "never"


@tool
def escape() -> str:
    """Answers with what a terminal would obey."""
    return "\\x1b[31mred\\x1b[0m 中文"


@hookimpl
def tavern_register_tools():
    return [count, fail, trip, forever, escape]
''',
    },
    "bomb": {
        "plugin.yaml": """\
name: bomb
version: "1.0"
tools:
  - {id: boom, description: never imported by looking, implementation: {type: python}}
commands: [boom]
permissions:
  hooks: ["hook:server:tool:check", "hook:server:events"]
""",
        "__init__.py": '''\
"""Leaves a trace and takes the process with it."""
import os
from pathlib import Path

Path(os.environ.get("BOMB_TRACE", "bomb-trace")).write_text("imported")
raise SystemExit(7)
''',
    },
    "bad": {
        "plugin.yaml": """\
name: bad
version: "1.0"
description: asks for a hook that does not exist

permissions:
  hooks:
    - hook:server:events
    - hook:server:tool:chek
"""
    },
    "greeter": {
        "plugin.yaml": 'name: greeter\nversion: "1.0"\ncommands: [greet, grumble, numb]\n',
        "__init__.py": '''\
"""Commands of the tests."""
import click

from tavern_core import Command, hookimpl


@click.command()
@click.argument("name", default="World")
@click.option("--loud", is_flag=True)
def greet(name, loud):
    """Greets."""
    click.echo(f"Hello, {name}" + ("!" if loud else ""))
    if name == "nobody":
        raise SystemExit(3)


def grumble():
    raise RuntimeError("cannot build")


@hookimpl
def tavern_register_commands():
    return [Command("greet", lambda: greet), Command("grumble", grumble), Command("numb", lambda: 5)]
''',
    },
    "looks": {
        "plugin.yaml": """\
name: looks
displayName: 外观
version: "0.1"
frontend:
  type: vite
  dev: {entry: web/src/main.ts}
  build: {entry: web/dist/index.js, styles: [web/dist/style.css], outputDir: web/dist}
""",
        "web/dist/index.js": "export default 1\n",
        "web/src/main.ts": "export default 1\n",
    },
}


@dataclass(frozen=True)
class Answer:
    """What one command line came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: tavern.yaml and plugins; nothing of the machine's own host shines through."""
    for name in [n for n in os.environ if n.startswith("TAVERN_")] + [
        "NO_COLOR",
        "FORCE_COLOR",
        "LC_ALL",
        "LC_MESSAGES",
    ]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("BOMB_TRACE", str(tmp_path / "bomb-trace"))
    folder = tmp_path / "项目"
    for plugin, files in PLUGINS.items():
        for name, text in files.items():
            file = folder / "plugins" / plugin / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    (folder / "tavern.yaml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def tavern(project: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`tavern("tools", "list", stdin="…")` in this process."""

    def run(*argv: str, stdin: str = "") -> Answer:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        code = main(["--home", str(home), *argv])
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return run


@pytest.fixture
def process(project: Path, home: Path) -> Run:
    """`process("tools", "list", stdin="…")` as a real process, without a terminal."""

    def run(*argv: str, stdin: str = "", **options: Any) -> Answer:
        done = run_forked(["-m", "tavern_core", "--home", str(home), *argv], given=stdin, **options)
        return Answer(done.returncode, done.stdout, done.stderr)

    return run
