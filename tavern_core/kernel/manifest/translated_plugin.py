"""A folder in the format of another system, as the plugin that the host makes of it.

Translators (`vcp_manifest.py`, `skill_folder.py`) read text; they run nothing and open nothing but the files of the folder.
"""

from __future__ import annotations

from typing import Final

from tavern_core.errors import Finding
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.manifest.declared_tools import DeclaredTools
from tavern_core.model.manifest import CapabilityRequest, Manifest, Permissions

CODE: Final = "MANIFEST_INVALID"
_OWN_FOLDERS: Final = ("$workspace", "$data")


@dataclass(frozen=True, slots=True)
class TranslatedPlugin:
    """The translation of a folder; None for `manifest` means that `findings` hold an error."""

    name: str
    """The name of the plugin."""
    manifest: Manifest | None = None
    tools: DeclaredTools = DeclaredTools()
    findings: tuple[Finding, ...] = ()
    off: str = ""
    """Why nothing of it runs here, whatever is granted."""
    asks: frozenset[str] = frozenset()
    """Permissions that it requests besides those of the manifest."""


def unstated_needs(whose: str) -> Permissions:
    """The possible permissions of programs whose format cannot express needs; none is granted by itself.

    Args:
        whose: the owner of the programs, for the reason that the operator sees.
    """
    reason = f"{whose} do not say what they need; grant it when a call fails for want of it"
    asked = (("network", None), ("read:fs", _OWN_FOLDERS), ("write:fs", _OWN_FOLDERS), ("process:spawn", None))
    return Permissions(
        capabilities=tuple(CapabilityRequest(name=name, scope=scope, reason=reason) for name, scope in asked)
    )
