"""The places of the console that plugins may add to, wrap or replace (seed 000 §21)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

COMPONENTS: Final[Mapping[str, str]] = {
    "ui:BaseNode": "the frame of every node",
    "ui:NodeInputControl": "every input control of a node",
    "ui:GraphEditor": "the whole canvas",
    "ui:ContextMenu": "the context menu",
    "ui:SidebarManager": "the editor's sidebar",
    "ui:HomeSidebar": "the home page's sidebar",
    "ui:StatusBar": "the status bar",
    "ui:RightPreviewPanel": "the floating preview panel",
    "ui:SettingsPanel": "the settings panel",
    "ui:MainMenu": "the main menu",
}
"""Component ids for `permissions.ui.wrap` and `.override`."""

OUTLETS: Final[Mapping[str, str]] = {
    "layout:header:before-tabs": "top bar, before the tabs",
    "layout:header:after-tabs": "top bar, after the tabs",
    "layout:header:right": "top bar, far right",
    "editor:toolbar:left": "editor toolbar, left",
    "editor:toolbar:center": "editor toolbar, centre",
    "editor:toolbar:right": "editor toolbar, right",
    "editor:canvas:overlay": "a layer over the canvas",
    "editor:statusbar:left": "status bar, left",
    "editor:statusbar:right": "status bar, right",
    "sidebar:icon-bar:tabs:before": "icon bar, above the core tabs",
    "sidebar:icon-bar:tabs:after": "icon bar, below the core tabs",
    "sidebar:icon-bar:bottom:before": "icon bar, above the bottom controls",
    "sidebar:panel:header": "top of one panel: sidebar:panel:header[nodes]",
    "sidebar:panel:footer": "bottom of one panel: sidebar:panel:footer[nodes]",
    "node:header:left": "a node's header, left",
    "node:header:right": "a node's header, right",
    "node:footer": "a node's footer",
    "modal:footer": "the footer of dialogs",
}
"""Outlet names for `permissions.ui.inject`: the 17 of seed 000 §21.3 and `modal:footer` of its §6.2."""

_PARAMETRISED: Final = re.compile(r"(?P<name>sidebar:panel:(?:header|footer))\[[A-Za-z0-9_-]{1,64}\]\Z")


def is_outlet(name: str) -> bool:
    """True for a name of the table; panel outlets may carry ``[panelId]``."""
    return name in OUTLETS or _PARAMETRISED.match(name) is not None
