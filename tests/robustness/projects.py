"""A project with example plugins in folders and every kind of state file, and a look at it through every door."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tavern_core import CallContext, Tavern
from tavern_core.errors import ConfigInvalid, StateDamaged, TavernError
from tests import programs

from . import examples
from .watch import check_text

PLUGINS = ("my-plugin", "context-plugin", "optional-plugin", "call-guard", "file-operator", "bilibili-fetcher")
"""Those that are damaged, used or asked about: every host of a look imports all that there are."""
GRANTED = ("file-operator", "bilibili-fetcher", "call-guard")
SAYS_INTERNAL = ("Traceback (most recent", "error[INTERNAL]", "'kind': 'INTERNAL'")
EXIT_CODES = {0, 1, 2, 3, 4, 5}


@dataclass
class Seen:
    """What a look showed."""

    refused: TavernError | None = None
    """Why there is no host at all."""
    states: dict[str, str] = field(default_factory=dict)
    tools: list[str] = field(default_factory=list)
    worked: dict[str, bool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Project:
    """The folder of a tavern.yaml, and the state folder of its host."""

    folder: Path
    home: Path

    @classmethod
    def make(cls, root: Path) -> Project:
        """Everything in order, used once, so that all state files are there."""
        project = cls(root / "project", root / "home")
        for plugin in PLUGINS:
            target = project.folder / "plugins" / plugin
            package = examples.package_of(plugin)
            shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
            for code in target.glob("*.py"):  # in a folder, a plugin has no package name of its own
                code.write_text(
                    code.read_text("utf-8")
                    .replace(f"from {package.name}", "from ")
                    .replace("from  import", "from . import"),
                    "utf-8",
                )
        (project.folder / "profiles").mkdir()
        (project.folder / "profiles" / "writer.json").write_text(examples.PROFILE, encoding="utf-8")
        (project.folder / "tavern.yaml").write_text(examples.CONFIG, encoding="utf-8")
        with project.open() as tavern:
            for plugin in GRANTED:
                tavern.grant(plugin, all_requested=True)
            tavern.settings.save({"extensions.call-guard.maskEmails": False})
            tavern.wait(tavern.plugins.disable("context-plugin", reason="not needed"))
            assert tavern.invoke_sync("my-plugin:greet", {"name": "Ada"}).ok
        return project

    def open(self, **options: Any) -> Tavern:
        return Tavern.open(self.folder / "tavern.yaml", home=self.home, **options)

    @property
    def files(self) -> dict[str, Path]:
        """Everything that is read, by a name for people."""
        plugins = self.folder / "plugins"
        cache = next((self.home / "cache").glob("plugins-*.json"))
        return {
            "tavern.yaml": self.folder / "tavern.yaml",
            "plugin.yaml": plugins / "file-operator" / "plugin.yaml",
            "plugin.yaml of a gate": plugins / "call-guard" / "plugin.yaml",
            "tool file": plugins / "bilibili-fetcher" / "tools" / "bilibili.tool.json",
            "tool folder": plugins / "bilibili-fetcher" / "tools",
            "script": plugins / "bilibili-fetcher" / "scripts" / "BilibiliFetch.py",
            "code": plugins / "file-operator" / "__init__.py",
            "module": plugins / "file-operator" / "tools.py",
            "profile": self.folder / "profiles" / "writer.json",
            "profiles": self.folder / "profiles",
            "lock file": self.folder / "tavern.lock",
            "settings": self.home / "settings.json",
            "switches": self.home / "plugins.json",
            "index": cache,
            "audit log": self.home / "audit" / "audit.jsonl",
            "anchor": self.home / "audit" / "audit.head",
            "cache": self.home / "cache",
            "audit folder": self.home / "audit",
        }

    @contextmanager
    def changed(self, path: Path) -> Iterator[None]:
        """Everything is as before afterwards."""
        for folder in (self.folder, self.home):
            shutil.copytree(folder, folder.with_name(folder.name + ".kept"), symlinks=True)
        try:
            yield
        finally:
            for folder in (self.folder, self.home):
                shutil.rmtree(folder)
                folder.with_name(folder.name + ".kept").rename(folder)

    def look(self, *, cli: bool = True) -> Seen:
        """Open, list, explain, call, run a text, read the manual, close; then the same with the command line."""
        seen = Seen()
        try:
            tavern = self.open()
        except (ConfigInvalid, StateDamaged) as error:
            seen.refused = error
            check_text(error.message)
        else:
            with tavern:
                self._host(tavern, seen)
        programs.forget_plugin_modules()
        if cli:
            self.command_line()
        return seen

    def _host(self, tavern: Tavern, seen: Seen) -> None:
        for _name, status in tavern.plugins.items():
            check_text(status.reason or "-")
            assert status.state != "failed" or status.reason
        seen.tools = [spec.id for spec in tavern.tools.list()]
        tavern.tools.snapshot()
        tavern.tools.search("字幕 file")
        caller = CallContext(
            permissions=frozenset({"read:fs", "write:fs"}), principal="user:a", workspace_dir=str(self.home / "w")
        )
        for tool, arguments in CALLS.items():
            check_text(str(tavern.tools.why(tool)))
            result = tavern.invoke_sync(tool, arguments, context=caller)
            seen.worked[tool] = result.ok
            if result.error is not None:
                assert result.error.kind != "INTERNAL", result.error
                check_text(result.error.message)
        outcome = tavern.run_text_sync(TEXT, context=caller)
        assert outcome.feedback
        for ask in (
            lambda: tavern.manual("writer"),
            tavern.manual,
            lambda: tavern.tools.list("writer"),
            tavern.describe_settings,
            tavern.extensions,
        ):
            try:
                ask()
            except TavernError as error:
                check_text(error.message)
        seen.states = {name: status.state for name, status in tavern.plugins.items()}
        for noticed in tavern.diagnostics:
            check_text(noticed.message)
            seen.notes.append(noticed.message)

    def command_line(self) -> None:
        for words in (["plugins", "list"], ["plugins", "check", "file-operator"], ["plugins", "check", "bilibili-fetcher", "--json"],
                      ["tools", "list", "--json"], ["config", "show", "--origin"], ["logs"], ["logs", "verify"], ["doctor"], ["doctor", "--json"]):  # fmt: skip
            code, out = self.tavern(*words)
            assert code in EXIT_CODES, (words, code, out[-2_000:])
            assert not any(word in out for word in SAYS_INTERNAL), (words, out[-3_000:])

    def tavern(self, *words: str) -> tuple[int, str]:
        """One command line in this process: exit code, and all it said."""
        words = ("--config", str(self.folder / "tavern.yaml"), *words)
        done = programs.tavern(*words, cwd=Path.cwd(), home=self.home)
        return done.returncode, done.stdout + done.stderr


CALLS: dict[str, dict[str, Any]] = {
    "system:get_current_time": {},
    "my-plugin:greet": {"name": "Ada"},
    "optional-plugin:dangerous_tool": {},
    "FileOperator.WriteFile": {"filePath": "/a.txt", "content": "x"},
    "bilibili-fetcher:getSubtitle": {"url": "no url"},
}
TEXT = "a<|[REQUEST_TOOL]|>\ncommand:「始」FileOperator.WriteFile「末」\nfilePath:「始」/b.txt「末」\ncontent:「始」x「末」\n<|[END_TOOL]|>"
