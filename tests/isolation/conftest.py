"""Plugins in processes of their own."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Tavern, ToolResult

from ..host.workshop import Workshop


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    """A folder for the tests of a module; on the disk, as `tmp_path` is here."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """Makes real plugins, and hosts that find them."""
    shop = Workshop(tmp_path, monkeypatch)
    yield shop
    shop.end()


@pytest.fixture(scope="module")
def module_shop(module_folder: Path) -> Iterator[Workshop]:
    """A workshop whose hosts the tests of a module share."""
    with pytest.MonkeyPatch.context() as patch:
        shop = Workshop(module_folder, patch)
        yield shop
        shop.end()


TRY = """
import json, os, socket, subprocess, sys, tempfile
given = json.load(sys.stdin)
try:
    scope = {**globals(), **given["arguments"]["facts"]}
    exec(given["arguments"]["code"], scope)
    print(json.dumps({"did": True, "answer": scope.get("answer")}))
except OSError as error:
    print(json.dumps({"did": False, "answer": f"{type(error).__name__}: {error}"}))
"""
TOOL: dict[str, Any] = {
    "id": "try",
    "implementation": {"type": "script", "command": "python try.py", "timeout": 20_000},
    "parameters": {"type": "object", "properties": {"code": {"type": "string"}, "facts": {"type": "object"}}},
}

EACH = """
parent, answer = os.getppid(), []
for code in codes:
    reader, writer = os.pipe()
    if os.fork() == 0:
        scope, did = {**globals()}, True
        try:
            exec(code, scope)
        except OSError as error:
            did, scope["answer"] = False, f"{type(error).__name__}: {error}"
        except BaseException as error:
            did, scope["answer"] = None, f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps([did, scope.get("answer")]).encode())
        os._exit(0)
    os.close(writer)
    answer.append(json.loads(open(reader).read()))
    os.wait()
"""
"""One script tries all of `codes`, each in a copy of it; `answer` has for each whether it was done, and its answer or error."""


class Place:
    """A plugin with one script that runs the code that it is given, among files of other users."""

    def __init__(self, root: Path) -> None:
        self.root, self.plugin = root, root / "plugins" / "demo"
        self.home, self.outside, self.granted = root / "home", root / "outside", root / "granted"
        for folder in (self.plugin / "tools", self.outside, self.granted):
            folder.mkdir(parents=True)
        for file in (self.outside / "secret", self.granted / "note", self.plugin / "own"):
            file.write_text("text")
        (self.plugin / "try.py").write_text(TRY)
        (self.plugin / "tools" / "try.tool.json").write_text(json.dumps(TOOL))
        self.facts: dict[str, Any] = {
            "outside": str(self.outside), "granted": str(self.granted), "home": str(self.home), "plugin": str(self.plugin),
            "project": str(self.root), "lock": str(self.root / "tavern.lock"),
        }  # fmt: skip

    def open(
        self, *capabilities: Any, isolation: dict[str, Any] | None = None, grant: bool = True, tier: str = "process"
    ) -> Tavern:
        """A host in which the plugin asked for `capabilities` and was granted them."""
        manifest = self.manifest(*capabilities, tier=tier)
        requests = manifest["permissions"]["capabilities"]
        (self.plugin / "plugin.yaml").write_text(json.dumps(manifest))
        config = {"plugins": {"entryPoints": False}, "isolation": isolation or {}}
        (self.root / "tavern.yaml").write_text(json.dumps(config))
        tavern = Tavern.open(self.root / "tavern.yaml", home=self.home)
        if requests and grant:
            tavern.grant("demo", *(request["name"] for request in requests))
        return tavern

    def limit(self, milliseconds: int) -> None:
        """Give the script less time."""
        tool = {**TOOL, "implementation": {**TOOL["implementation"], "timeout": milliseconds}}
        (self.plugin / "tools" / "try.tool.json").write_text(json.dumps(tool))

    def manifest(self, *capabilities: Any, tier: str) -> dict[str, Any]:
        """The manifest of the plugin that asks for `capabilities`."""
        return {
            "name": "demo",
            "version": "1.0",
            "tools": {"entry": "./tools"},
            "permissions": {"capabilities": [c if isinstance(c, dict) else {"name": c} for c in capabilities]},
            "isolation": tier,
        }

    def run(self, tavern: Tavern, code: str, **context: Any) -> ToolResult:
        given = {"context": CallContext(**context)} if context else {}
        return tavern.invoke_sync("demo:try", {"code": code, "facts": self.facts}, **given)


@contextmanager
def too_many_files_on_their_way() -> Iterator[Callable[[], None]]:
    """More than a process in a box may open: they count for all processes of a user (unix(7), ETOOMANYREFS). Gives what takes them."""
    with ExitStack() as opened:
        file = opened.enter_context(Path(os.devnull).open("rb"))
        pairs = [socket.socketpair() for _ in range(2)]
        for one, other in pairs:
            opened.enter_context(one)
            opened.enter_context(other)
            socket.send_fds(one, [b"."], [file.fileno()] * 200)

        def take_all() -> None:
            for _, other in pairs:
                for descriptor in socket.recv_fds(other, 1, 200)[1]:
                    os.close(descriptor)

        yield take_all


Shared = Callable[..., tuple[Place, Tavern]]


@pytest.fixture(scope="module")
def demo(module_folder: Path) -> Iterator[Shared]:
    """`demo(*capabilities, tier="none", isolation={})`: a place and its host, which the tests of a module with the same grants share."""
    with ExitStack() as stack:
        made: dict[str, tuple[Place, Tavern]] = {}

        def opened(
            *capabilities: Any, tier: str = "none", isolation: dict[str, Any] | None = None
        ) -> tuple[Place, Tavern]:
            key = json.dumps([tier, isolation, *capabilities])
            if key not in made:
                place = Place(module_folder / str(len(made)))
                made[key] = place, stack.enter_context(place.open(*capabilities, tier=tier, isolation=isolation))
            return made[key]

        yield opened
