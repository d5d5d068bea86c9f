"""Folders and site-packages full of plugins, as people and pip leave them behind."""

from __future__ import annotations

import json
import os
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tavern_core.kernel.discovery.discovery import Discovery, discover

BOOBY_TRAP = "raise SystemExit('nothing may import this')\n"


class Places:
    """One project folder with plugins and one site-packages, beneath a temporary folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plugins = root / "plugins"
        self.site = root / "site"
        self.home = root / "home"
        self.site.mkdir()

    def write(self, relative: str, text: str | bytes = "") -> Path:
        file = self.root / relative
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def folder_plugin(self, name: str, manifest: str = "", *, files: Mapping[str, str] | None = None) -> Path:
        """A plugin in ``plugins/<name>``; `manifest` follows name and version."""
        self.write(f"plugins/{name}/plugin.yaml", f'name: {name}\nversion: "1.0"\n{manifest}')
        for relative, text in (files or {}).items():
            self.write(f"plugins/{name}/{relative}", text)
        return self.plugins / name

    def distribution(self, name: str, entry_points: str | bytes, version: str = "1.0", site: str = "site") -> Path:
        """The metadata that pip leaves of a distribution."""
        folder = f"{site}/{name.replace('-', '_')}-{version}.dist-info"
        self.write(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText: here\n")
        if isinstance(entry_points, str):
            entry_points = f"[console_scripts]\nx = y:z\n\n[tavern.plugins]\n{entry_points}".encode()
        self.write(f"{folder}/entry_points.txt", entry_points)
        return self.root / folder

    def installed_plugin(self, name: str, manifest: str = "", *, version: str = "1.0") -> Path:
        """A distribution ``tavern-plugin-<name>`` with its package."""
        package = f"tavern_plugin_{name.replace('-', '_')}"
        self.distribution(f"tavern-plugin-{name}", f"{name} = {package}\n", version)
        self.write(f"site/{package}/__init__.py", BOOBY_TRAP)
        self.write(f"site/{package}/plugin.yaml", f'name: {name}\nversion: "{version}"\n{manifest}')
        return self.site / package

    def developed_plugin(self, name: str) -> None:
        """What ``setup.py develop`` leaves on the path: a metadata folder of which each version takes the place of the last one."""
        self.write(f"site/{name}.egg-info/PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        self.write(f"site/{name}.egg-info/entry_points.txt", f"[tavern.plugins]\n{name} = tavern_plugin_{name}\n")
        self.write(f"site/tavern_plugin_{name}/__init__.py", BOOBY_TRAP)
        self.write(f"site/tavern_plugin_{name}/plugin.yaml", f'name: {name}\nversion: "1.0"\n')

    def zipped_plugin(self, name: str, files: Mapping[str, str]) -> Path:
        """A wheel that is on the path as it is, never unpacked."""
        package = f"tavern_plugin_{name.replace('-', '_')}"
        archive = self.root / f"tavern_plugin_{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(archive, "w") as file:
            info = f"tavern_plugin_{name}-1.0.dist-info"
            file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tavern-plugin-{name}\nVersion: 1.0\n\n")
            file.writestr(f"{info}/entry_points.txt", f"[tavern.plugins]\n{name} = {package}\n")
            file.writestr(f"{package}/__init__.py", BOOBY_TRAP)
            for relative, text in files.items():
                file.writestr(f"{package}/{relative}", text)
        return archive

    def discover(self, *, index: bool = False, paths: list[Path] | None = None, **options: Any) -> Discovery:
        given = {
            "roots": [self.plugins],
            "sys_path": [str(path) for path in paths or [self.site]],
            "index_file": self.home / "index.json" if index else None,
            **options,
        }
        return discover(**given)


def script_tool(name: str, **more: Any) -> str:
    """The text of a tool file."""
    implementation = {"type": "script", "command": ["python", "run.py"]}
    return json.dumps({"id": name, "parameters": {"type": "object"}, "implementation": implementation, **more})


def wait_for_the_clock(*files: Path) -> None:
    """Until file times of now differ from those of `files`: the kernel counts them in ticks of some milliseconds."""
    newest = max(max(file.stat().st_mtime_ns, file.stat().st_ctime_ns) for file in files)
    with tempfile.NamedTemporaryFile() as probe:  # elsewhere: a file beside them would change their folder's time
        while Path(probe.name).stat().st_mtime_ns <= newest or time.time_ns() <= newest + 60_000_000:
            os.utime(probe.name)
