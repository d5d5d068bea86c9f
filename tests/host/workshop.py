"""Real plugins for tests of a host: folders below ``plugins/`` and installed distributions on sys.path.

The code of each may say ``note("word")``; `notes` lists what was said, by every process and in order,
`tried` what was said in the processes in which imports are tried.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import tavern_core
from tavern_core import Tavern

TOOL = """
@tool
def hello(name: str = "World") -> str:
    "Greet somebody."
    return "hello " + name

@hookimpl
def tavern_register_tools():
    return [hello]
"""
"""A module that offers one tool."""

HELLO = "tools: [{id: hello, implementation: {type: python}}]"
"""The manifest line that declares it."""


class Workshop:
    """Makes plugins beneath a temporary folder and opens hosts that find them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.plugins = root / "plugins"
        self.site = root / "site"
        self.home = root / "home"
        self.site.mkdir()
        self._trace = root / "trace.txt"
        self._opened: list[Tavern] = []
        self._has_installed = False
        monkeypatch.syspath_prepend(str(self.site))

    # Plugins ------------------------------------------------------------------------------------------------------------

    def folder(self, name: str, code: str | None = None, manifest: str = "", **files: str) -> Path:
        """A folder plugin; `manifest` follows name and version, `files` are named with ``__`` for ``/``."""
        return self._package(self.plugins / name, name, code, manifest, files)

    def installed(
        self, name: str, code: str = "", manifest: str = "", *, version: str = "1.0", distribution: str = ""
    ) -> Path:
        """A package as pip leaves it, with its entry point."""
        self._has_installed = True
        package = f"tavern_plugin_{(distribution or name).replace('-', '_')}"
        distribution = distribution or f"tavern-plugin-{name}"
        info = self.site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\n")
        (info / "entry_points.txt").write_text(f"[tavern.plugins]\n{name} = {package}\n")
        return self._package(self.site / package, name, code, manifest, {}, version)

    def module(self, code: str) -> str:
        """The text of a plugin's module; it imports only what it names, for each new process imports it again."""
        names = ", ".join(sorted({"tool"} | (set(re.findall(r"\w+", code)) & set(tavern_core.__all__))))
        head = f"""
            from tavern_core import {names}
            import tavern_core
            import sys
            def note(word):
                main = getattr(sys.modules["__main__"], "main", None)
                is_forked = getattr(main, "__module__", "") == "tavern_core.box.fork_server"
                in_probe = is_forked and "tavern_core.review.probe_import" in sys.modules
                with open({str(self._trace)!r} + in_probe * ".probes", "a") as trace:
                    trace.write(str(word) + "\\n")
            note("import " + __file__.rsplit("/", 2)[-2])
        """
        return dedent(head) + dedent(code)

    def notes(self) -> list[str]:
        """What plugins have noted, but for what they noted while they were tried in a probe."""
        return self._trace.read_text().splitlines() if self._trace.exists() else []

    def tried(self) -> list[str]:
        """What plugins have noted in probes."""
        trace = Path(f"{self._trace}.probes")
        return trace.read_text().splitlines() if trace.exists() else []

    def _package(
        self, folder: Path, name: str, code: str | None, manifest: str, files: Mapping[str, str], version: str = "1.0"
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        if code is not None:
            (folder / "__init__.py").write_text(self.module(code))
        (folder / "plugin.yaml").write_text(f'name: {name}\nversion: "{version}"\n{dedent(manifest)}\n')
        for relative, text in files.items():
            file = folder / relative.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return folder

    # Hosts --------------------------------------------------------------------------------------------------------------

    def made(self, *plugins: Any, config: Mapping[str, Any] | None = None, **options: Any) -> Tavern:
        """A host that is not entered yet."""
        found = {"roots": [str(self.plugins)], "entryPoints": self._has_installed, **(config or {}).get("plugins", {})}
        options.setdefault("home", self.home)
        return Tavern.open({**(config or {}), "plugins": found}, plugins=plugins, **options)

    def open(self, *plugins: Any, **options: Any) -> Tavern:
        """An open host; closed when the test ends."""
        host = self.made(*plugins, **options)
        host.__enter__()
        self._opened.append(host)
        return host

    def close(self, host: Tavern) -> None:
        self._opened.remove(host)
        host.__exit__(None, None, None)

    def grant(self, *names: str) -> None:
        """Grant these plugins everything they ask for, as an operator does before the host runs."""
        host = self.made(activate="none")
        with host:
            for name in names:
                if wanted := host.plugins[name].requested:
                    host.grant(name, *sorted(wanted))

    def end(self) -> None:
        for host in reversed(self._opened):
            host.__exit__(None, None, None)
        for name, module in list(sys.modules.items()):  # the plugins of this test are no plugins of the next one
            if str(getattr(module, "__file__", None)).startswith(f"{self.root}/"):
                del sys.modules[name]


def ids(host: Tavern, **options: Any) -> list[str]:
    """The ids of what can be seen, without the host's own tools."""
    return [spec.id for spec in host.tools.list(**options) if not spec.plugin.startswith("core-")]


def codes(host: Tavern, plugin: str | None = None) -> set[str]:
    """The codes of the diagnostics about a plugin."""
    return {d.code for d in host.diagnostics if plugin is None or d.plugin == plugin}


def reported(host: Tavern, code: str) -> str:
    """Message and hint of the diagnostics with this code."""
    return "\n".join(f"{d.message} | {d.hint}" for d in host.diagnostics if d.code == code)


def hooks_of(host: Tavern, plugin: str) -> list[str]:
    """The hooks that a plugin implements right now."""
    return [hook for hook, plugins in host.hooks.items() if plugin in plugins]


def calls_running(host: Tavern) -> list[str]:
    """The plugins that still count a call; no door of a host shows it, and nothing may leave one behind."""
    return [name for name, record in host._host.plugins.lifecycle.records.items() if record.usage.calls]


def setting_keys(host: Tavern) -> set[str]:
    """The full keys of every setting that exists."""
    return set(host.settings.keys())
