"""A project with skills and VCP plugins on disk, and a host that uses it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tavern_core import Tavern

NEEDS_NODE = bool(os.environ.get("CI")) or shutil.which("node") is not None


class Project:
    """One project: folders for skills of the project, of the user, of plugins, and for VCP plugins."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def host(self, **sections: Any) -> Tavern:
        config = {
            "plugins": {"roots": [str(self.root / "plugins")], "vcp": [str(self.root / "vcp")], "entryPoints": False},
            "skills": {
                "roots": [str(self.root / ".agents/skills"), str(self.root / "skills")],
                "user": [str(self.root / "mine")],
            },
        }
        for section, values in sections.items():
            config.setdefault(section, {}).update(values)
        return Tavern.open(config=config, home=self.root / "home")

    def write(self, path: str, text: str | bytes, mode: int = 0o644) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        file.chmod(mode)
        return file

    def skill(self, path: str, body: str = "# How\nDo it.", scripts: Mapping[str, str] = {}, **keys: str) -> Path:
        """A skill in the folder `path`, with the name of the folder and a description unless given otherwise."""
        front = {"name": Path(path).name, "description": f"Helps with {Path(path).name}.", **keys}
        lines = "".join(f"{key}: {value}\n" for key, value in front.items())
        self.write(f"{path}/SKILL.md", f"---\n{lines}---\n{body}\n")
        for name, text in scripts.items():
            self.write(f"{path}/scripts/{name}", text)
        return self.root / path

    def vcp(self, name: str, /, program: str = "", *, file: str = "run.py", folder: str = "", **keys: Any) -> Path:
        """A synchronous VCP plugin of one command, unless given otherwise."""
        manifest = {
            "manifestVersion": "1.0.0",
            "name": name,
            "displayName": f"{name} plugin",
            "version": "1.0.0",
            "description": f"{name} does something.",
            "pluginType": "synchronous",
            "entryPoint": {"type": "python", "command": f"python {file}"},
            "communication": {"protocol": "stdio", "timeout": 20_000},
            "capabilities": {"invocationCommands": [{"commandIdentifier": "do", "description": "Does it."}]},
            **keys,
        }
        home = self.root / "vcp" / (folder or name)
        self.write(f"vcp/{home.name}/plugin-manifest.json", json.dumps(manifest, ensure_ascii=False))
        self.write(f"vcp/{home.name}/{file}", program or ECHO)
        return home


ECHO = """\
import json, os, sys
asked = json.loads(sys.stdin.read())
print(json.dumps({"status": "success", "result": {"asked": asked, "env": dict(os.environ)}}))
"""
"""A VCP plugin that answers what it was asked, and what its environment holds."""


def block(tool: str, **fields: str) -> str:
    """A call block between VCP's own markers."""
    lines = "".join(f"{key}:「始」{value}「末」,\n" for key, value in fields.items())
    return f"<<<[TOOL_REQUEST]>>>\ntool_name:「始」{tool}「末」,\n{lines}<<<[END_TOOL_REQUEST]>>>"
