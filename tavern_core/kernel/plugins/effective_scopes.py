"""The effective scopes of a plugin's grants, with the paths of this host.

Used to confine a plugin and to check the arguments of a call: guards find the same scopes in ``call.rights.scopes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.model.call import CallContext, Rights
from tavern_core.model.capability_scope import NETWORK, Scope, common, folders, scope_kind


def narrow_rights(rights: Rights, context: CallContext) -> Rights:
    """`rights` with each scope narrowed by the caller, who can never widen one."""
    places = dict(rights.places)
    if context.workspace_dir:
        places["$workspace"] = str(Path(context.workspace_dir).expanduser().absolute())
    scopes: dict[str, tuple[str, ...]] = dict(rights.scopes)
    for capability, asked in context.scopes.items():
        granted: Scope = scopes.get(capability)
        wanted: Scope = asked
        if scope_kind(capability) == "paths":
            granted, wanted = folders(granted, places), folders(wanted, places)
        scopes[capability] = common(capability, granted, wanted) or ()
    return replace(rights, scopes=tuple(scopes.items()))


@dataclass(frozen=True, slots=True)
class EffectiveScopes:
    """Resolves the paths in scopes for one host.

    Args:
        project: the base of ``./data`` in a scope.
        data_root: the folder of the plugins' own folders.
        hosts: allowed destinations of the host's own plugins, besides public names at the usual ports.
    """

    project: Path
    data_root: Path
    hosts: tuple[str, ...] = ()

    def scopes(self, record: PluginRecord) -> Mapping[str, tuple[str, ...]]:
        """Granted capability → its scope; capabilities without limit are left out.

        Paths are absolute, except ``$workspace``, which depends on the call (`model.scope.folders` inserts it).
        """
        roots = self.places(record)
        found = {
            name: (folders(scope, roots) or ()) if scope_kind(name) == "paths" else scope
            for name, scope in record.condition.scopes.items()
        }
        if self.hosts and record.candidate.source == "builtin":  # ``*`` means: no scope
            found |= {name: ("*", *self.hosts) for name in NETWORK if name not in found}
        return found

    def places(self, record: PluginRecord) -> Mapping[str, str]:
        """The folders of path prefixes (`model.capability_scope.ROOTS`; "" is the project), except ``$workspace``."""
        places = {
            "": str(self.project),
            "$data": str(self.data_root / record.name),
            "~": str(Path("~").expanduser()),
        }
        if record.candidate.folder is not None:
            places["$plugin"] = str(record.candidate.folder)
        return places

    def scope(self, record: PluginRecord, capability: str) -> Scope:
        """The scope of a capability: None without limit, empty if the capability is not granted."""
        return self.scopes(record).get(capability) if record.may(capability) else ()
