"""``TAVERN_TRACE_PLUGINS=1``: prints on stderr what is found, imported and activated, with times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tavern_core.cli.errors import print_note

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.model.event import Event


class ActivationTracer:
    """Starts the clock when it is created, before the host is opened."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._tavern: Tavern | None = None

    def watch(self, tavern: Tavern) -> None:
        """Print what was found, then each change of a plugin's state."""
        self._tavern = tavern
        self._say(f"found {len(tavern.plugins)} plugins")
        for name, status in tavern.plugins.items():
            if status.source != "builtin":
                what = status.distribution or status.location
                self._say(f"found {name} {status.version} ({status.source} {what}): {status.state}")
        tavern.events.subscribe(self._changed, "PLUGIN_STATE")

    def _changed(self, event: Event) -> None:
        if self._tavern is None or event.plugin not in self._tavern.plugins:
            return
        timings = self._tavern.plugins[event.plugin].timings
        parts = [f"{what} {timings[what]:.1f} ms" for what in ("import", "activate") if what in timings]
        reason = f": {event.data['reason']}" if event.data.get("reason") else ""
        self._say(
            f"{event.data.get('state')} {event.plugin} ({', '.join(parts)}){reason}"
            if parts
            else f"{event.data.get('state')} {event.plugin}{reason}"
        )

    def _say(self, text: str) -> None:
        print_note(f"trace {(time.perf_counter() - self._began) * 1000:8.1f} ms  {text}")
