"""Replaces a service by a plugin's, and restores it (seed 000 §20.3).

    granted service:override:clock  +  fits the current clock  →  all views use the new one
    stopped, failed, revoked                                 →  all views use the old one again, which kept running

Of several overrides of one service, one is used, independent of the order of activation; the others wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tavern_core.contract.protocols import Service
from tavern_core.contract.published_methods import unmarked_methods
from tavern_core.errors import ActivationFailed, sayable
from tavern_core.kernel.plugins.candidate import OVERRIDE
from tavern_core.kernel.plugins.host_registries import HostRegistries
from tavern_core.kernel.plugins.plugin_record import PluginRecord
from tavern_core.kernel.plugins.service_overrides import ServiceOverride, differences
from tavern_core.model.safe_printing import and_more

Offered = Mapping[str, Mapping[str, Any]]
_MOST_NAMED: Final = 5


def without_ungranted(record: PluginRecord, offered: dict[str, Any], tables: HostRegistries) -> dict[str, Any]:
    """The services that a plugin may contribute; overrides without a grant are left out."""
    allowed = {}
    for name, service in offered.items():
        if name in record.candidate.overrides and not record.may_override(name):
            tables.diagnostics.add(
                "SERVICE_NOT_GRANTED",
                f"its service {name!r} is not used in the place of the other: {OVERRIDE}{name} is not granted",
                plugin=record.name,
                hint=f"tavern plugins grant {record.name} {OVERRIDE}{name}",
            )
        else:
            allowed[name] = service
    return allowed


def split_overrides(
    record: PluginRecord, offered: Offered, tables: HostRegistries
) -> tuple[Offered, list[ServiceOverride]]:
    """A plugin's new services, and its overrides.

    Raises:
        ActivationFailed: a service cannot replace the one that it overrides (ACTIVATION_FAILED).
    """
    services: Mapping[str, Service] = offered.get("services", {})
    overriding = [
        ServiceOverride(record.name, record.rank, s) for name, s in services.items() if record.may_override(name)
    ]
    for override in overriding:
        _compare(override, tables)
    new_services = {name: s for name, s in services.items() if not record.may_override(name)}
    for name, service in new_services.items():
        if unmarked := unmarked_methods(service):
            tables.diagnostics.add(
                "SERVICE_UNMARKED",
                f"service {name!r} does not say of these methods whether they only look: {_listed(unmarked)}; "
                f"they count as changing, so other plugins need service:write:{name} to call them",
                plugin=record.name,
                hint=f"mark them in {_marked_in(service)} with @read_only or @mutates from tavern_core",
                severity="info",
                details={"service": name, "methods": unmarked},
            )
    return ({**offered, "services": new_services} if "services" in offered else offered), overriding


def _listed(methods: list[str]) -> str:
    return ", ".join(methods[:_MOST_NAMED]) + and_more(len(methods) - _MOST_NAMED)


def _marked_in(service: Service) -> str:
    """The class with the marks that count."""
    return sayable((service.interface or type(service.object)).__qualname__, 200)


def _compare(override: ServiceOverride, tables: HostRegistries) -> None:
    name = override.service.name
    owner, replaced = tables.contributions.original(name)
    if replaced is None:
        text = f"there is no service {name!r} to replace; its own is used as it is"
        tables.diagnostics.add("SERVICE_OVERRIDES_NOTHING", text, plugin=override.plugin, hint="tavern plugins list")
    elif found := differences(replaced, override.service):
        raise ActivationFailed(
            f"{override.plugin}: its service {name!r} cannot replace that of {owner}: " + "; ".join(found[:5]),
            hint="give its class these methods with these parameters",
            service=name,
            differences=found,
        )


def settle_overrides(
    contributed: Mapping[str, Service], overriding: Iterable[ServiceOverride], tables: HostRegistries
) -> None:
    """Check the overrides of new services after a registration, and report which plugin overrides which."""
    for name, service in contributed.items():
        for plugin in tables.contributions.overriders(name):
            if found := differences(service, tables.contributions.override_of(name, plugin)):
                tables.contributions.drop_override(name, plugin)
                text = f"its service {name!r} does not replace the one that came after it: {'; '.join(found[:5])}"
                hint = f"correct it, then tavern plugins reload {plugin}"
                tables.diagnostics.add("SERVICE_OVERRIDE_MISFIT", text, plugin=plugin, hint=hint, severity="error")
    report_rivals([override.service.name for override in overriding], tables)


def report_rivals(names: Iterable[str], tables: HostRegistries) -> None:
    """Report which of several overrides of a service is used; withdraw the report if only one is left."""
    for name in names:
        tables.diagnostics.withdraw("SERVICE_OVERRIDE_CONFLICT", service=name)
        used, *others = tables.contributions.overriders(name) or [""]
        if others:
            tables.diagnostics.add(
                "SERVICE_OVERRIDE_CONFLICT",
                f"the service {name!r} is overridden by {', '.join([used, *others])}; that of {used} is used",
                plugin=used,
                hint=f"tavern plugins disable {used}, or revoke {OVERRIDE}{name} from those that you do not want",
                details={"service": name, "winner": used, "losers": others},
            )
