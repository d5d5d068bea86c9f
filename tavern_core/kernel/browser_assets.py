"""The browser part of a plugin, as data: its files and the paths at which they are served (seed 000 §15.1, §15.3).

    /plugins/<name>/<file>      a file below the plugin's asset folder
                                type vite: `build.outputDir`, else the folder of `build.entry`; type vanilla: `rootDir`

None of it runs in the host. `to_json` is the ExtensionInfo that a console reads: no physical paths. It says which parts of the
console the plugin may wrap, replace or add to, and which browser hooks it may use: declared and granted, nothing else. A plugin
that requests some and was granted none of them is not served.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from tavern_core.contract.permissions import requested_permissions
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.safe_paths import inside
from tavern_core.kernel.settings.secret_masking import is_secret, mask

if TYPE_CHECKING:
    from tavern_core.model.manifest import Frontend, Manifest
    from tavern_core.model.setting_declaration import SettingItem

PUBLIC_PATH: Final = "/plugins"
_BROWSER: Final = ("ui:", "hook:client:")
FrontendPart = Literal["build", "vanilla"]


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that the browser loads."""

    kind: Literal["entry", "style"]
    url: str
    file: str
    """Relative to plugin.yaml."""
    problem: str = ""
    """Why there is no such file; empty if it exists."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "url": self.url, "file": self.file, "problem": self.problem or None}


@dataclass(frozen=True, slots=True)
class Extension:
    """A plugin as the console sees it."""

    name: str
    display_name: str
    version: str
    description: str
    assets: tuple[Asset, ...] = ()
    config_options: tuple[SettingItem, ...] = ()
    dev_entry: str = ""
    """Path of the file that a development server begins with; for the developer's machine only."""
    granted: frozenset[str] = frozenset()
    """Usable permissions of the browser part; a console registers nothing else."""
    withheld: frozenset[str] = frozenset()
    """Requested and not granted."""

    @property
    def is_served(self) -> bool:
        """False if no requested permission of its browser part was granted: then the console does not get its files."""
        return bool(self.granted) or not self.withheld

    @property
    def fix(self) -> str:
        """The command that grants the withheld permissions; empty if there are none."""
        return f"tavern plugins grant {self.name} {' '.join(sorted(self.withheld))}" if self.withheld else ""

    def to_json(self) -> dict[str, Any]:
        """ExtensionInfo."""
        entries = [asset.url for asset in self.assets if asset.kind == "entry"]
        styles = [asset.url for asset in self.assets if asset.kind == "style"]
        return {
            "name": self.name,
            "displayName": self.display_name,
            "version": self.version,
            "description": self.description,
            "frontend": {"entryUrl": entries[0] if entries else None, "styleUrls": styles}
            if (entries or styles) and self.is_served
            else None,
            "permissions": {
                "hooks": sorted(p for p in self.granted if p.startswith("hook:")),
                "ui": {verb: _named(f"ui:{verb}:", self.granted) for verb in ("wrap", "inject", "override")},
            },
            "withheld": sorted(self.withheld),
            "configOptions": [_option(item) for item in self.config_options],
        }


def _named(prefix: str, permissions: Iterable[str]) -> list[str]:
    return sorted(p.removeprefix(prefix) for p in permissions if p.startswith(prefix))


def extension(manifest: Manifest, folder: Path | None, may: Callable[[str], bool]) -> Extension:
    """The browser part of `manifest`, limited to the grants.

    Args:
        folder: the folder of plugin.yaml; None: unknown (a zip), its files are then not checked.
        may: whether a permission is declared and granted.
    """
    asked = frozenset(p for p in requested_permissions(manifest) if p.startswith(_BROWSER))
    granted = frozenset(p for p in asked if may(p))
    frontend = manifest.frontend
    dev = ""
    if frontend is not None and frontend.dev is not None and folder is not None:
        found = inside(folder, frontend.dev.entry)
        dev = str(found) if isinstance(found, Path) else ""
    return Extension(
        manifest.name,
        manifest.display_name or manifest.name,
        manifest.version,
        manifest.description,
        tuple(_assets(manifest.name, frontend, folder)) if frontend is not None else (),
        manifest.config_options,
        dev,
        granted,
        asked - granted,
    )


def _assets(name: str, frontend: Frontend, folder: Path | None) -> Iterable[Asset]:
    part: FrontendPart = "vanilla" if frontend.type == "vanilla" else "build"
    served = getattr(frontend, part)
    if served is None:
        return  # reported by the check of the manifest
    files: list[tuple[Literal["entry", "style"], str]] = [] if served.entry is None else [("entry", served.entry)]
    files += [("style", style) for style in served.styles]
    for kind, file in files:
        path, below = served_file(frontend, part, file)
        yield Asset(kind, f"{PUBLIC_PATH}/{name}/{quote(below)}", path, _problem(folder, path))


def served_file(frontend: Frontend, part: FrontendPart, file: str) -> tuple[str, str]:
    """The paths of an entry or style: relative to plugin.yaml, and below the served folder. Either may be written."""
    if part == "vanilla":
        assert frontend.vanilla is not None
        written = frontend.vanilla.root_dir
    else:
        assert frontend.build is not None
        written = frontend.build.output_dir or posixpath.dirname(frontend.build.entry or frontend.build.styles[0])
    root = _clean(written)
    below = _below(_clean(file), root)
    return posixpath.join(root, below), below


def _below(file: str, root: str) -> str:
    """`file` relative to the asset folder; it may be written with or without that folder."""
    return file.removeprefix(f"{root}/") if root else file


def _clean(path: str) -> str:
    """``./web//a.js`` → ``web/a.js``; a path that leaves the plugin stays one and is refused when it is used."""
    cleaned = posixpath.normpath(path)
    return "" if cleaned == "." else cleaned


def _problem(folder: Path | None, path: str) -> str:
    if folder is None:
        return ""
    found = inside(folder, path)
    if not isinstance(found, Path):
        return found
    return "" if found.is_file() else f"there is no file {path}"


def _option(item: SettingItem) -> dict[str, Any]:
    shown = item.model_dump(by_alias=True, exclude_none=True, mode="json")
    if is_secret(item) and "defaultValue" in shown:
        shown["defaultValue"] = mask(shown["defaultValue"])
    return shown
