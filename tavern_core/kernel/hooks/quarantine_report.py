"""Reports hooks that are left alone, and those that no longer are."""

from __future__ import annotations

from collections.abc import Iterable

from tavern_core.errors import Finding
from tavern_core.kernel.foundation import Foundation
from tavern_core.model.event import HOOK_QUARANTINED, HOOK_RELEASED
from tavern_core.model.plugin_status import RestingHook
from tavern_core.schema.redact import redact_text


class QuarantineReport:
    """What the quarantine of one host has to say."""

    def __init__(self, base: Foundation) -> None:
        self._base = base

    def quarantined(self, rest: RestingHook) -> None:
        """A hook is left alone from now on."""
        data = rest.to_json()
        del data["plugin"]
        hint = f"see {rest.where}; correct it and `tavern plugins reload {rest.plugin}`"
        self._base.diagnostics.add(
            "HOOK_QUARANTINED", rest.told, plugin=rest.plugin, hint=hint, severity="error", details=data
        )
        self._base.recorder.note(HOOK_QUARANTINED, data, plugin=rest.plugin)

    def released(self, rest: RestingHook) -> None:
        """A hook works again."""
        self._base.diagnostics.withdraw("HOOK_QUARANTINED", hook=rest.hook, where=rest.where)
        self._base.recorder.note(HOOK_RELEASED, {"hook": rest.hook, "where": rest.where}, plugin=rest.plugin)

    def corrupt(self, findings: Iterable[Finding]) -> None:
        """The file of the quarantine cannot be read; it counts as empty."""
        for finding in findings:
            self._base.diagnostics.add_finding(finding, severity="warning")

    def masked(self, reason: str) -> str:
        """What an implementation failed with, without secrets: it goes to a file."""
        return redact_text(reason, self._base.known_secrets.values)
