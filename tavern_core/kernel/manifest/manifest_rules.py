"""Rules for a well-formed manifest: names that exist, versions that compare, paths that stay inside.

Each rule below takes the manifest and reports what it finds at a path of the document; `check_manifest` runs them in the
order of the manifest's keys. Sources: seed 000 §6.2, §15.1, §17, DESIGN §5, SECURITY §1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Final

from pydantic.alias_generators import to_snake

from tavern_core.contract.hookspecs import HOOKS
from tavern_core.contract.permissions import canonical_hook, hook_spellings
from tavern_core.errors import Finding
from tavern_core.kernel.files.safe_paths import path_problem
from tavern_core.kernel.manifest.tool_ids import IdRefusal, canonical_id
from tavern_core.kernel.settings.setting_value_validation import key_problem, setting_problems
from tavern_core.kernel.text.yaml_reader import YamlDocument
from tavern_core.model.capability_scope import entry_problem
from tavern_core.model.manifest import Entry, Manifest
from tavern_core.model.naming_rules import (
    COMMAND_HINT,
    RESERVED_COMMANDS,
    RESERVED_NAMESPACES,
    is_command_name,
    is_local_name,
    is_reserved,
    is_reserved_namespace,
    is_service_name,
)
from tavern_core.model.nearest import did_you_mean, fold
from tavern_core.model.path_problem import MOST_FINDINGS, Path, PathProblem
from tavern_core.model.ui_extension_points import COMPONENTS, OUTLETS, is_outlet

CODE: Final = "MANIFEST_INVALID"


ManifestRule = Callable[[Manifest], Iterator[PathProblem]]


def check_manifest(manifest: Manifest, document: YamlDocument, *, strict: bool) -> list[Finding]:
    """Every problem of a manifest whose shape is right. `strict` adds remarks that only concern its author."""
    found: list[Finding] = []
    for rule in (*_RULES, *(_AUTHOR_RULES if strict else ())):
        problems = islice(rule(manifest), MOST_FINDINGS)  # each may look for the nearest of many names
        found += [problem.finding(CODE, document) for problem in problems]
    return found


# Identity --------------------------------------------------------------------------------------------------------------


def _name(manifest: Manifest) -> Iterator[PathProblem]:
    if is_reserved(manifest.name):
        yield PathProblem(("name",), f"the name {manifest.name!r} is reserved for the host", "choose another name")


def _namespaces(manifest: Manifest) -> Iterator[PathProblem]:
    for index, declared in enumerate(manifest.namespaces or ()):
        name = declared if isinstance(declared, str) else declared.name
        if is_reserved_namespace(name):
            message = (
                f"the namespace {name!r} is reserved: only the host and the objects given to Tavern.open may provide it"
            )
            yield PathProblem(("namespaces", index), message, "choose another")


def _versions(manifest: Manifest) -> Iterator[PathProblem]:
    if not _is_version(manifest.version):
        yield PathProblem(
            ("version",), f"{manifest.version!r} is not a version", "write it like 1.2.0 or 1.2.0rc1 (PEP 440)"
        )
    for key, specifier in (("host", manifest.requires.host), ("tested", manifest.requires.tested)):
        if not _is_specifier(specifier):
            yield PathProblem(("requires", key), f"{specifier!r} is not a version range", _range_hint(specifier))


def _neighbours(manifest: Manifest) -> Iterator[PathProblem]:
    for name, specifier in manifest.depends_on.items():
        if name == manifest.name:
            yield PathProblem(("dependsOn", name), "the plugin depends on itself", "delete the line", at_key=True)
        if not _is_specifier(specifier):
            yield PathProblem(("dependsOn", name), f"{specifier!r} is not a version range", _range_hint(specifier))
    for key, names in (("before", manifest.before), ("after", manifest.after)):
        for index, name in enumerate(names):
            if name == manifest.name:
                yield PathProblem((key, index), f"the plugin is {key} itself", "delete the line")
    for name in sorted({*manifest.before} & {*manifest.after}):
        yield PathProblem(("after",), f"{name!r} is in `before` and in `after`", "keep one of them")


@cache
def _is_version(text: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


@cache
def _is_specifier(text: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def _range_hint(specifier: str) -> str:
    text = specifier.strip()
    if (caret := re.match(r"[\^~]\s*([0-9]+)", text)) is not None:
        return f'write ">={text[1:].strip()},<{int(caret.group(1)[:9]) + 1}"'
    if text == "*":
        return 'write "" for any version'
    if re.match(r"[0-9]", text):
        return f'write ">={text}" or "=={text}"'
    return 'write it like ">=1.0,<3" (PEP 440)'


# Permissions -----------------------------------------------------------------------------------------------------------


def _in_full(written: str) -> str:
    """The permission that a name without ``hook:client:`` or with the wrong side means; empty: none."""
    bare = written.removeprefix("hook:client:").removeprefix("hook:server:")
    full = [name for name in hook_spellings() if name.endswith(f":{bare}") and name.count(":") == bare.count(":") + 2]
    return full[0] if full else canonical_hook(bare) or ""


def _hooks(manifest: Manifest) -> Iterator[PathProblem]:
    positions: dict[str, int] = {}
    for index, written in enumerate(manifest.permissions.hooks):
        path: Path = ("permissions", "hooks", index)
        canonical = canonical_hook(written)
        if canonical is None:
            hint = did_you_mean(written, hook_spellings(), 1) or "docs/hooks.md lists them"
            if full := _in_full(written):
                hint = f"write {full!r}"
            if written in HOOKS and (needed := HOOKS[written]).permissions:
                hint = f"write the permission, not the function: {needed.permissions[0]!r}"
            elif written in HOOKS:
                hint = "delete the line: this hook needs no permission"
            yield PathProblem(path, f"unknown hook permission {written!r}", hint)
        elif canonical in positions:
            yield PathProblem(path, f"{written!r} requests {canonical!r} again", "delete the line", "info")
        else:
            positions[canonical] = index


def _console(manifest: Manifest) -> Iterator[PathProblem]:
    ui = manifest.permissions.ui
    for key, names in (("wrap", ui.wrap), ("override", ui.override)):
        for index, name in enumerate(names):
            if name not in COMPONENTS:
                hint = did_you_mean(name, COMPONENTS, 1) or f"it is one of {', '.join(COMPONENTS)}"
                yield PathProblem(("permissions", "ui", key, index), f"unknown component {name!r}", hint)
    for index, name in enumerate(ui.inject):
        if not is_outlet(name):
            hint = did_you_mean(name, OUTLETS, 1) or f"it is one of {', '.join(OUTLETS)}"
            if is_outlet(every := name.removesuffix("[{panelId}]")) and name != every:
                hint = f"write the id of a panel, such as {every}[nodes]; for every panel, write {every}"
            yield PathProblem(("permissions", "ui", "inject", index), f"unknown outlet {name!r}", hint)


def _services(manifest: Manifest) -> Iterator[PathProblem]:
    asked = manifest.permissions.services
    for key, names in (("use", asked.use), ("write", asked.write), ("override", asked.override)):
        for index, name in enumerate(names):
            if not is_service_name(name):
                path: Path = ("permissions", "services", key, index)
                yield PathProblem(
                    path,
                    f"{name!r} is not a name of a service",
                    "write one name: printable, without blanks, `:` and `*`",
                )
    for index, declared in enumerate(manifest.services or ()):
        if not is_service_name(declared.name):
            message = f"no other plugin can use a service named {declared.name!r}"
            yield PathProblem(("services", index), message, "take a name without blanks, `:` and `*`", "warning")


def _capabilities(manifest: Manifest) -> Iterator[PathProblem]:
    names: set[str] = set()
    for index, request in enumerate(manifest.permissions.capabilities):
        path: Path = ("permissions", "capabilities", index)
        if request.name in names:
            yield PathProblem(path, f"{request.name!r} is requested twice", "put all scopes under one of them")
        names.add(request.name)
        if request.scope == ():
            message = f"the scope of {request.name!r} is empty, so it requests no permissions"
            yield PathProblem(
                (*path, "scope"), message, "leave the scope out to request all, or delete the entry", "warning"
            )
        for number, entry in enumerate(request.scope or ()):
            if problem := entry_problem(request.name, entry):
                message = f"{entry!r:.120} has no effect: {problem}"
                yield PathProblem(
                    (*path, "scope", number), message, "docs/permissions.md explains how scopes are written", "warning"
                )


# Settings and aliases --------------------------------------------------------------------------------------------------


def _settings(manifest: Manifest) -> Iterator[PathProblem]:
    positions: dict[str, int] = {}
    for index, item in enumerate(manifest.config_options):
        path: Path = ("configOptions", index)
        if (problem := key_problem(item.key, manifest.name)) is not None:
            yield problem.below(path)
        elif item.key in positions:
            yield PathProblem((*path, "key"), f"the setting {item.key!r} is declared twice", "rename or delete one")
        positions.setdefault(item.key, index)
        yield from (problem.below(path) for problem in setting_problems(item))


def _aliases(manifest: Manifest) -> Iterator[PathProblem]:
    for written, target in manifest.aliases.items():
        path: Path = ("aliases", written)
        prefix, colon, local = target.rpartition(":")
        if colon and fold(prefix) != fold(manifest.name):
            turned = ":" not in written and is_local_name(written)
            hint = f"the other id comes first: `{target}: {written}`" if turned else f"write {local}"
            yield PathProblem(path, f"{target!r} is a tool of another plugin", hint)
        elif not is_local_name(local):
            yield PathProblem(path, f"{target!r} is not a tool name", "use 1 to 64 of A-Z a-z 0-9 _ . -")
        if not written.strip() or len(written) > 160:
            yield PathProblem(path, "an alias has 1 to 160 characters", at_key=True)
        elif (owner := written.partition(":")[0]) in RESERVED_NAMESPACES and ":" in written:
            yield PathProblem(path, f"the namespace {owner!r} belongs to the host", "delete the alias", at_key=True)


# Files -----------------------------------------------------------------------------------------------------------------


def _paths(manifest: Manifest) -> Iterator[PathProblem]:
    for path, relative in declared_paths(manifest):
        if problem := path_problem(relative):
            yield PathProblem(path, f"{relative!r:.120}: {problem}", "name a file or folder inside the plugin")


def declared_paths(manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """Every path that the manifest names, and the place of each."""
    for key in ("nodes", "tools", "skills", "profiles", "workflows"):
        section = getattr(manifest, key)
        if isinstance(section, Entry):
            yield (key, "entry"), section.entry
    for name, keys in _FRONTEND_PATHS.items():
        part = getattr(manifest.frontend, name, None)
        for key in keys:
            if part is not None and (path := getattr(part, to_snake(key))) is not None:
                yield ("frontend", name, key), path
        for index, style in enumerate(getattr(part, "styles", ())):
            yield ("frontend", name, "styles", index), style


_FRONTEND_PATHS: Final = {"dev": ("entry",), "build": ("entry", "outputDir"), "vanilla": ("entry", "rootDir")}


def _frontend(manifest: Manifest) -> Iterator[PathProblem]:
    frontend = manifest.frontend
    if frontend is None:
        return
    wanted = "vanilla" if frontend.type == "vanilla" else "build"
    served = getattr(frontend, wanted)
    if served is None:
        message = f"a frontend of type {frontend.type} has no `{wanted}`; the console ignores this plugin"
        yield PathProblem(("frontend",), message, f"add `{wanted}: {{entry: …}}`", "warning", at_key=True)
    elif served.entry is None and not served.styles:
        message = f"`{wanted}` has neither `entry` nor `styles`; the console ignores this plugin"
        yield PathProblem(
            ("frontend", wanted),
            message,
            "name a module as `entry`, or style sheets under `styles`",
            "warning",
            at_key=True,
        )


# Tools -----------------------------------------------------------------------------------------------------------------


def _tools(manifest: Manifest) -> Iterator[PathProblem]:
    if not isinstance(manifest.tools, tuple):
        return
    first: dict[str, int] = {}
    for index, definition in enumerate(manifest.tools):
        path: Path = ("tools", index, "id")
        found = canonical_id(definition.id, manifest.name, manifest.aliases)
        if isinstance(found, IdRefusal):
            yield PathProblem(path, found.message, found.hint)
            continue
        earlier = first.setdefault(fold(found.id), index)
        if earlier != index:
            other = manifest.tools[earlier].id
            yield PathProblem(path, f"{definition.id!r} is the same tool as {other!r} above", "rename or delete one")


# Hints for authors -----------------------------------------------------------------------------------------------------


def _commands(manifest: Manifest) -> Iterator[PathProblem]:
    for index, item in enumerate(manifest.commands or ()):
        if item.name in RESERVED_COMMANDS:
            yield PathProblem(
                ("commands", index),
                f"the command {item.name!r} is reserved for the host",
                f"choose another name, for example {manifest.name}",
            )
        elif not is_command_name(item.name):
            yield PathProblem(("commands", index), f"{item.name!r:.100} cannot be a command", COMMAND_HINT)


def _not_called_yet(manifest: Manifest) -> Iterator[PathProblem]:
    called = {p for hook in HOOKS.values() if hook.is_called for p in hook.permissions}
    known = {p for hook in HOOKS.values() for p in hook.permissions}
    for index, written in enumerate(manifest.permissions.hooks):
        canonical = canonical_hook(written)
        if canonical in known and canonical not in called:
            message = f"this host does not call the hooks of {written!r} yet"
            yield PathProblem(("permissions", "hooks", index), message, "keep it for a later host", "info")


def _needless(manifest: Manifest) -> Iterator[PathProblem]:
    asked = manifest.permissions
    granted = {canonical_hook(written) for written in asked.hooks}
    needed = {
        right for hook in HOOKS.values() if granted & set(hook.permissions) for right in (hook.sensitive or {}).values()
    }
    for index, right in enumerate(asked.data):
        if right not in needed:
            message = f"no requested hook has the arguments that {right!r} protects"
            yield PathProblem(("permissions", "data", index), message, "delete the line", "info")
    if asked.tryfirst and not asked.hooks:
        yield PathProblem(("permissions", "tryfirst"), "tryfirst without any hook does nothing", "delete it", "info")


def _strongest_ui(manifest: Manifest) -> Iterator[PathProblem]:
    """To add something, use an outlet; to decorate, wrap. Only one plugin can replace a part."""
    for index, name in enumerate(manifest.permissions.ui.override):
        message = f"override replaces all of {name}, for all plugins, and only one plugin can"
        hint = "if it only adds something, ask for an outlet (ui.inject); if it decorates or watches the component, for ui.wrap"
        yield PathProblem(("permissions", "ui", "override", index), message, hint, "info")


def _repeats(manifest: Manifest) -> Iterator[PathProblem]:
    asked = manifest.permissions
    lists: Mapping[Path, Iterable[str]] = {
        ("permissions", "ui", "wrap"): asked.ui.wrap,
        ("permissions", "ui", "inject"): asked.ui.inject,
        ("permissions", "ui", "override"): asked.ui.override,
        ("permissions", "services", "use"): asked.services.use,
        ("permissions", "services", "write"): asked.services.write,
        ("permissions", "services", "override"): asked.services.override,
        ("before",): manifest.before,
        ("after",): manifest.after,
    }
    for path, names in lists.items():
        previous_names: set[str] = set()
        for index, name in enumerate(names):
            if name in previous_names:
                yield PathProblem((*path, index), f"{name!r} is here twice", "delete one", "info")
            previous_names.add(name)


_RULES: Final[tuple[ManifestRule, ...]] = (
    _name,
    _versions,
    _neighbours,
    _hooks,
    _console,
    _services,
    _capabilities,
    _settings,
    _aliases,
    _paths,
    _frontend,
    _tools,
)
_AUTHOR_RULES: Final[tuple[ManifestRule, ...]] = (
    _commands,
    _namespaces,
    _not_called_yet,
    _needless,
    _strongest_ui,
    _repeats,
)
