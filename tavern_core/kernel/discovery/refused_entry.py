"""The row of an entry point that names no package. Apart from `plugin_reader`, which loads pydantic: it is made at each start."""

from __future__ import annotations

from tavern_core.errors import Finding
from tavern_core.kernel.discovery.index import IndexedPlugin, PluginLocation, finding_row
from tavern_core.kernel.discovery.manifest_facts import ManifestFacts
from tavern_core.kernel.discovery.package_locator import PackageLocation


def refuse_entry(candidate: PluginLocation, place: PackageLocation | None) -> IndexedPlugin:
    """The row of an entry point that cannot be a plugin; looked for again at the next start: the repair may be in a folder that is
    not watched."""
    module, found = candidate.module, candidate.distribution
    entry = f"the entry point {candidate.name} = {candidate.value!r}"
    fix = f'write {candidate.name} = "{module.partition(".")[0] or "tavern_plugin_x"}" under [project.entry-points."tavern.plugins"]'
    if ":" in candidate.value:
        message, hint = f"{entry} names an object; a plugin is a package", f'write {candidate.name} = "{module}"'
    elif not all(part.isidentifier() for part in module.split(".")):
        message, hint = f"{entry} is not the name of a package", fix
    elif place is None:
        name = found.name if found is not None else candidate.name
        message, hint = f"{entry} names a package that is not installed", f"pip install --force-reinstall {name}"
    elif place.kind == "module":
        last = module.rpartition(".")[2]
        message = f"{entry} names a bare module; plugin.yaml needs a package to be in"
        hint = f"move {last}.py to {last}/__init__.py and put plugin.yaml next to it"
    else:
        message = f"{entry} names a namespace package; a plugin is a regular package"
        hint = f"add an __init__.py to {module.replace('.', '/')}/"
    facts, findings = ManifestFacts(candidate.name).to_json(), [finding_row(Finding("MANIFEST_INVALID", message, hint))]
    return IndexedPlugin(
        candidate.key, "", candidate.name, is_settled=False, is_failed=True, facts=facts, findings=findings
    )
