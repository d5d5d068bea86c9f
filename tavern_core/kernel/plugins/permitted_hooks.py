"""Selects a plugin's hookimpls that may run: known, well-formed, declared and granted."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from tavern_core.contract.permissions import TRYFIRST
from tavern_core.errors import HookRefused
from tavern_core.kernel.diagnostics import Diagnostics
from tavern_core.kernel.hooks.table import HookImplementation, HookTiming, read_implementations, unmarked_lookalikes
from tavern_core.kernel.plugins.plugin_record import PluginRecord

LIFE = ("tavern_start", "tavern_stop")


def permitted_implementations(record: PluginRecord, diagnostics: Diagnostics) -> Iterator[HookImplementation]:
    """The plugin's hookimpls that may run, bound to its context.

    Raises:
        HookRefused: a hookimpl is unknown, malformed or undeclared (HOOK_REFUSED).
    """
    if record.thing is None:
        return
    is_builtin = record.candidate.source == "builtin"
    unmarked, implementations = (_read_once if is_builtin else _read)(record.thing, record.name)
    for place in unmarked:
        text = f"{place} has the name of a hook but no @hookimpl"
        diagnostics.add("HOOK_UNMARKED", text, plugin=record.name, hint="write @hookimpl above it")
    for impl in implementations:
        _refuse_undeclared(record, impl)
        if not impl.hook.is_called:
            text = f"{impl.hook.name} is reserved: this version of the host does not call it"
            diagnostics.add("HOOK_RESERVED", text, plugin=record.name, hint=f"see {impl.where}")
        elif _is_granted(record, impl, diagnostics):
            first = impl.tryfirst and _may_be_first(record, impl, diagnostics)
            yield replace(
                impl, plugin=record.name, is_builtin=is_builtin, ctx=record.ctx, tryfirst=first, timing=HookTiming()
            )


def _read(thing: object, name: str) -> tuple[list[str], list[HookImplementation]]:
    """Names that look like hooks and are none, and the hookimpls."""
    return unmarked_lookalikes(thing), read_implementations(thing, name)


_read_once = functools.cache(_read)
"""For the host's own modules, which do not change: all hosts of a process share the result."""


def _refuse_undeclared(record: PluginRecord, impl: HookImplementation) -> None:
    """Refuse a hookimpl that the manifest does not declare; a reserved contribution is empty, so it needs no section.

    Raises:
        HookRefused: the hook, or a sensitive argument that it takes, is not declared (HOOK_REFUSED).
    """
    hook, candidate = impl.hook, record.candidate
    if candidate.implicit or hook.name in LIFE:
        return
    if hook.section:
        # Tools need no declaration: a plugin that declares none is activated at open instead (DESIGN §5).
        replaces = hook.section == "services" and candidate.overrides
        if hook.is_called and hook.section not in ("tools", *candidate.facts.sections) and not replaces:
            raise _undeclared(record, impl, f"add the line `{hook.section}: [<names>]`")
        return
    if not any(permission in candidate.requested for permission in hook.permissions):
        line = f'- "{hook.permissions[0]}"'
        raise _undeclared(record, impl, f"add to permissions.hooks the line `{line}`", *hook.permissions)
    for argument, right in sensitive_arguments(impl):
        if right not in candidate.requested:
            text = f"{record.name}: {impl.where}: {hook.name} takes {argument!r}, for which plugin.yaml does not ask (it needs {right})"
            raise HookRefused(
                text,
                hint=f'add to permissions the line `data: ["{right}"]`, or leave the argument out',
                missing=[right],
            )


def _is_granted(record: PluginRecord, impl: HookImplementation, diagnostics: Diagnostics) -> bool:
    """Whether a declared hookimpl may run: whether its permission and those for its arguments are granted."""
    hook = impl.hook
    if record.candidate.implicit or hook.name in LIFE or hook.section:
        return True
    lacking = [] if any(record.may(p) for p in hook.permissions) else [hook.permissions[0]]
    lacking += [right for _, right in sensitive_arguments(impl) if not record.may(right)]
    if not lacking:
        return True
    diagnostics.add(
        "HOOK_NOT_GRANTED",
        f"{hook.name} ({impl.where}) is not used: {' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not granted",
        plugin=record.name,
        hint=f"tavern plugins grant {record.name} {' '.join(lacking)}",
    )
    return False


def sensitive_arguments(impl: HookImplementation) -> list[tuple[str, str]]:
    """An implementation's arguments that may hold protected data, each with the permission that it needs."""
    return [(name, right) for name, right in (impl.hook.sensitive or {}).items() if name in impl.arguments]


def _may_be_first(record: PluginRecord, impl: HookImplementation, diagnostics: Diagnostics) -> bool:
    """Whether a hook that requests it runs before the others; without the grant it runs in its usual position.

    Raises:
        HookRefused: plugin.yaml does not declare it (HOOK_REFUSED).
    """
    if record.may(TRYFIRST):
        return True
    if TRYFIRST not in record.candidate.requested:
        text = f"{record.name}: {impl.where}: {impl.hook.name} requests tryfirst, which plugin.yaml does not declare"
        raise HookRefused(
            text, hint="add to permissions the line `tryfirst: true`, or leave tryfirst out", missing=[TRYFIRST]
        )
    text = f"{impl.hook.name} ({impl.where}) runs in its usual place: tryfirst is not granted"
    hint = f"tavern plugins grant {record.name} {TRYFIRST}"
    diagnostics.add("HOOK_NOT_GRANTED", text, plugin=record.name, hint=hint)
    return False


def _undeclared(record: PluginRecord, impl: HookImplementation, line: str, *permissions: str) -> HookRefused:
    needs = f" (it needs {' or '.join(permissions)})" if permissions else ""
    text = f"{record.name}: {impl.where}: {impl.hook.name} is not declared in plugin.yaml{needs}"
    return HookRefused(text, hint=line, missing=list(permissions))
