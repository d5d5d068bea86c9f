"""Permissions that plugin.yaml requests and nothing uses, as far as the source shows: each is a needless question for
the operator.

Reported only if all of the plugin's Python was readable. A name that the source computes (`ctx.service(name)`) counts as used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from tavern_core.contract.hookspecs import HOOKS
from tavern_core.contract.permissions import canonical_hook
from tavern_core.errors import Finding
from tavern_core.kernel.text.yaml_reader import YamlDocument
from tavern_core.model.capability import ENV_PREFIX, SECRET_PREFIX
from tavern_core.model.manifest import Manifest
from tavern_core.model.path_problem import Path
from tavern_core.model.tool import ToolSpec
from tavern_core.review.hookimpl_scan import SourceScan

CODE = "MANIFEST_INVALID"
HOOK = "HOOK_REFUSED"


def unused_permissions(
    manifest: Manifest, document: YamlDocument, scan: SourceScan, specs: Collection[ToolSpec], *, has_code: bool
) -> Iterator[Finding]:
    """A remark for each permission that nothing uses."""
    for path, code, message, hint in _unused(manifest, scan, specs, has_code):
        yield Finding(code, message, hint, document.locate(path), "info")


def _unused(
    manifest: Manifest, scan: SourceScan, specs: Collection[ToolSpec], has_code: bool
) -> Iterator[tuple[Path, str, str, str]]:
    yield from _console(manifest)
    if scan.findings:
        return
    if has_code:
        yield from _hooks(manifest, scan)
        yield from _services(manifest, scan, specs)
    yield from _capabilities(manifest, scan, specs)


def _hooks(manifest: Manifest, scan: SourceScan) -> Iterator[tuple[Path, str, str, str]]:
    asked = manifest.permissions
    used = {p for hook in scan.hooks if hook.name in HOOKS for p in HOOKS[hook.name].permissions}
    known = {p: hook for hook in HOOKS.values() for p in hook.permissions}
    for index, written in enumerate(asked.hooks):
        permission = canonical_hook(written)
        if permission is None or permission in used or permission not in known:
            continue
        if permission.startswith("hook:client:") and manifest.frontend is not None:
            continue  # its part in the browser may use it
        message = f"plugin.yaml requests {written!r}, but no {known[permission].name} is implemented"
        yield ("permissions", "hooks", index), HOOK, message, "delete the line, or implement the hook"
    if asked.tryfirst and asked.hooks and not any(hook.tryfirst for hook in scan.hooks):
        message = "plugin.yaml requests tryfirst, but no hook wants to be first"
        yield ("permissions", "tryfirst"), HOOK, message, "delete the line, or write @hookimpl(tryfirst=True)"
    hook_arguments = {argument for hook in scan.hooks for argument in (*hook.required, *hook.optional)}
    needing = {
        right
        for hook in HOOKS.values()
        for argument, right in (hook.sensitive or {}).items()
        if argument in hook_arguments
    }
    protected = {right: argument for hook in HOOKS.values() for argument, right in (hook.sensitive or {}).items()}
    for index, right in enumerate(asked.data):
        if right in protected and right not in needing:
            message = f"plugin.yaml requests {right!r}, but no hook takes {protected[right]!r}"
            yield ("permissions", "data", index), HOOK, message, "delete the line, or take the argument"


def _services(
    manifest: Manifest, scan: SourceScan, specs: Collection[ToolSpec]
) -> Iterator[tuple[Path, str, str, str]]:
    asked = manifest.permissions.services
    by_tools = {str(value) for spec in specs for value in spec.implementation.values() if isinstance(value, str)}
    if "service" not in scan.computed:
        for key, index, name in (*_numbered("use", asked.use), *_numbered("write", asked.write)):
            if name not in scan.texts and not any(name in text for text in by_tools):
                message = f"plugin.yaml requests to {key} the service {name!r}, but nothing names it"
                hint = "delete the line, or call ctx.service with it"
                yield ("permissions", "services", key, index), CODE, message, hint
    for index, name in enumerate(asked.use):
        if name in asked.write:
            message = f"plugin.yaml requests to use the service {name!r}, which it asks to write: that covers it"
            yield ("permissions", "services", "use", index), CODE, message, "delete the line"
    for index, name in enumerate(asked.override):
        if name not in scan.texts:
            message = f"plugin.yaml requests to replace the service {name!r}, but nothing names it"
            hint = "delete the line, or return such a service from tavern_register_services"
            yield ("permissions", "services", "override", index), CODE, message, hint


def _numbered(key: str, names: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    return ((key, index, name) for index, name in enumerate(names))


def _capabilities(
    manifest: Manifest, scan: SourceScan, specs: Collection[ToolSpec]
) -> Iterator[tuple[Path, str, str, str]]:
    used = {c for spec in specs for c in spec.capabilities} | {c for tool in scan.tools for c in tool.capabilities}
    for index, request in enumerate(manifest.permissions.capabilities):
        path: Path = ("permissions", "capabilities", index)
        secret, variable = request.name.removeprefix(SECRET_PREFIX), request.name.removeprefix(ENV_PREFIX)
        if secret != request.name:
            if "secret" not in scan.computed and secret not in scan.texts and request.name not in used:
                message = f"plugin.yaml requests {request.name!r}, but nothing names that secret"
                yield path, CODE, message, "delete the line, or call ctx.secret with it"
        elif scan.is_complete and request.name not in used and (variable == request.name or variable not in scan.texts):
            message = f"plugin.yaml requests {request.name!r}, but no tool says that it needs it"
            yield path, CODE, message, "delete the line, or name it at the tool"


def _console(manifest: Manifest) -> Iterator[tuple[Path, str, str, str]]:
    ui = manifest.permissions.ui
    if manifest.frontend is not None:
        return
    for verb, names in (("wrap", ui.wrap), ("inject", ui.inject), ("override", ui.override)):
        for index, name in enumerate(names):
            message = f"plugin.yaml requests to {verb} {name!r}, but the plugin has no browser part"
            yield ("permissions", "ui", verb, index), CODE, message, "delete the line, or add a `frontend`"
