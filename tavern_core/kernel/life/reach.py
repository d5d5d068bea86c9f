"""How far what a plugin was granted reaches: its scopes, with paths as this host has them.

Whoever confines a plugin or judges the values of a call asks here: guards find the same in ``call.rights.scopes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tavern_core.kernel.life.records import Record
from tavern_core.model.scope import Scope, folders, scope_kind


@dataclass(frozen=True, slots=True)
class Reach:
    """The places of one host.

    Args:
        project: what ``./data`` in a scope is relative to.
        data_root: where the plugins' own folders are.
    """

    project: Path
    data_root: Path

    def scopes(self, record: Record) -> Mapping[str, tuple[str, ...]]:
        """Granted capability → its scope; those without limit are not in it.

        Paths are absolute, except ``$workspace``: that is a matter of each call (`model.scope.folders` puts it in).
        """
        roots = {
            "": str(self.project),
            "$data": str(self.data_root / record.name),
            "~": str(Path("~").expanduser()),
        }
        if record.candidate.folder is not None:
            roots["$plugin"] = str(record.candidate.folder)
        return {
            name: (folders(scope, roots) or ()) if scope_kind(name) == "paths" else scope
            for name, scope in record.standing.scopes.items()
        }

    def scope(self, record: Record, capability: str) -> Scope:
        """One scope: None without limit, empty when the capability is not granted at all."""
        return self.scopes(record).get(capability) if record.may(capability) else ()
