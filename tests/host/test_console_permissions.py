"""What plugins bring for the browser is served as far as it was declared and granted, and no further."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern

WRAP, INJECT, OVERRIDE, LOGIN = (
    "ui:wrap:ui:BaseNode",
    "ui:inject:node:header:right",
    "ui:override:ui:MainMenu",
    "hook:client:auth:login",
)
PERMISSIONS: dict[str, Any] = {
    "hooks": ["hook:client:auth:login"],
    "ui": {"wrap": ["ui:BaseNode"], "inject": ["node:header:right"], "override": ["ui:MainMenu"]},
}


def looks(tmp_path: Path, permissions: dict[str, Any], *granted: str, refused: tuple[str, ...] = ()) -> dict[str, Any]:
    """ExtensionInfo of a plugin that asks for `permissions`."""
    folder = tmp_path / "plugins" / "looks"
    (folder / "dist").mkdir(parents=True)
    (folder / "dist/index.js").write_text("")
    manifest = {
        "name": "looks",
        "version": "1",
        "frontend": {"build": {"entry": "dist/index.js"}},
        "permissions": permissions,
    }
    (folder / "plugin.yaml").write_text(json.dumps(manifest))
    config = {"plugins": {"roots": [str(tmp_path / "plugins")], "entryPoints": False}}
    with Tavern.open(config, home=tmp_path / "home") as tavern:
        if granted:
            tavern.grant("looks", *granted)
        if refused:
            tavern.refuse("looks", *refused)
        [extension] = tavern.extensions()
        return extension.to_json()


NOTHING: dict[str, Any] = {"hooks": [], "ui": {"wrap": [], "inject": [], "override": []}}
SERVED = {"entryUrl": "/plugins/looks/index.js", "styleUrls": []}
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...], dict[str, Any], bool]] = {
    # asked for, granted, refused, what the console is told, are the files served?
    "nothing is asked for": ({}, (), (), NOTHING, True),
    "nothing was granted": (PERMISSIONS, (), (), NOTHING, False),
    "everything was refused": (PERMISSIONS, (), ("*",), NOTHING, False),
    "one was granted": (PERMISSIONS, (INJECT,), (), {"hooks": [], "ui": {"wrap": [], "inject": ["node:header:right"], "override": []}}, True),
    "all but the riskiest": (PERMISSIONS, (WRAP, INJECT, LOGIN), (OVERRIDE,), {"hooks": [LOGIN], "ui": {"wrap": ["ui:BaseNode"], "inject": ["node:header:right"], "override": []}}, True),
    "a granted right of the server is none of the browser": ({**PERMISSIONS, "capabilities": ["gpu"]}, ("gpu",), (), NOTHING, False),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_the_console_gets_what_was_granted_and_nothing_else(tmp_path: Path, what: str) -> None:
    asked, granted, refused, reported, is_served = CASES[what]
    info = looks(tmp_path, asked, *granted, refused=refused)
    assert info["permissions"] == reported
    assert info["frontend"] == (SERVED if is_served else None)
    everything = {WRAP, INJECT, OVERRIDE, LOGIN} if asked else set()
    assert set(info["withheld"]) == everything - set(granted)


def test_a_part_of_the_console_that_does_not_exist_serves_nothing(tmp_path: Path) -> None:
    points = ["ui:Nope", "BaseNode", "ui:basenode", "ui:\u0412aseNode", "*", "ui:*"]
    asked = {f"{verb}-{n}": {verb: [point]} for verb in ("wrap", "override") for n, point in enumerate(points)}
    for name, ui in asked.items():
        folder = tmp_path / "plugins" / name
        folder.mkdir(parents=True)
        build = {"build": {"entry": "i.js"}}
        manifest = {"name": name, "version": "1", "frontend": build, "permissions": {"ui": ui}}
        (folder / "plugin.yaml").write_text(json.dumps(manifest))
    config = {"plugins": {"roots": [str(tmp_path / "plugins")], "entryPoints": False}}
    with Tavern.open(config, home=tmp_path / "home") as tavern:
        for name, ui in asked.items():
            assert tavern.plugins[name].state == "failed", ui
            assert "unknown component" in tavern.plugins[name].reason, ui
        assert tavern.extensions() == ()
