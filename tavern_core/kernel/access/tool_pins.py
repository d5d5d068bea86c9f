"""Pinned tools: a tool whose definition differs from the reviewed one is in quarantine until it is reviewed again.

    tools:
      pin: ["text:*"]          # in tavern.yaml; or `tavern tools pin text:count`

The first definition of a tool under `tools.pin` is its pin; from then on only a review changes it. A definition is
all that callers and gates rely on: parameters, answer, capabilities, description and so on, except its version and its file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from tavern_core.errors import Finding, StateDamaged, ToolNotFound, ToolQuarantined
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.tool_selectors import ToolList, ToolNames
from tavern_core.kernel.files.json_state import JsonState, JsonStateFile
from tavern_core.model.json_pointer import exact_pointer
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.plain_data import json_digest
from tavern_core.model.tool import ToolSpec

FILE: Final = "tool-pins.json"
_NOT_DEFINITION: Final = ("source", "version")
_NAMES: Final = ("id", "name", "displayName", "aliases")
_MOST_SHOWN: Final = 50
PinState = Literal["ok", "changed", "missing", "renamed"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A place at which two definitions differ."""

    path: str
    """JSON pointer."""
    before: Any = None
    after: Any = None

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True)
class ToolPin:
    """The current state of a pinned tool."""

    tool: str
    state: PinState
    diff: tuple[Difference, ...] = ()
    renamed_to: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "tool": self.tool,
            "state": self.state,
            "diff": [one.to_json() for one in self.diff],
            "renamedTo": self.renamed_to or None,
        }


class ToolPins:
    """The pins of a state folder.

    Args:
        home: the folder.
        on_damage: called with the problem of their file.
    """

    def __init__(self, home: Path, on_damage: Callable[[Finding], None] = lambda finding: None) -> None:
        self._file = JsonStateFile(home / FILE, "pins")
        self._on_damage = on_damage
        self._damage: Finding | None = None
        """The error of the file; None: it can be read."""
        self._seen: JsonState | None = None
        """The content of the file of which `_pins` were made."""
        self._pins: dict[str, dict[str, Any]] = {}

    def check(self, tool: ToolSpec, wanted: ToolList | None, known: Collection[str]) -> None:
        """Return if a tool is not pinned, or unchanged since its review; stores a first definition under `tools.pin`.

        Args:
            wanted: `tools.pin`; None: not configured.
            known: the ids of all tools, to distinguish a renamed tool from a new one.

        Raises:
            ToolQuarantined: it has changed, or the pins cannot be read (TOOL_QUARANTINED).
            StateDamaged: the pins cannot be written (STATE_DAMAGED).
        """
        is_wanted = wanted is not None and wanted.match(ToolNames.of(tool)) is not None
        pins = self._read()
        pin = pins.get(tool.id)
        if pin is None and not is_wanted:
            return
        if self._damage is not None:
            raise ToolQuarantined(
                f"{tool.id} is pinned and in quarantine: the pins cannot be read: {self._damage.located}",
                hint=f"restore {self._file.path}; or remove it, and each tool is pinned as it is then",
            )
        now = definition(tool)
        if pin is not None:
            if pin != now:
                raise _quarantined(tool.id, "its definition is not the one that was reviewed", differences(pin, now))
            return
        if (before := _renamed_from(now, pins, known)) is not None:
            raise _quarantined(tool.id, f"it is {before} under another name", differences(pins[before], now))
        self._store({tool.id: now})

    def changed(self, tools: Iterable[ToolSpec]) -> set[str]:
        """The ids of the tools that have changed since their review."""
        pins = self._read()
        return {tool.id for tool in tools if tool.id in pins and pins[tool.id] != definition(tool)} if pins else set()

    @property
    def is_outdated(self) -> bool:
        """Whether another process has changed the pins since they were read."""
        return self._seen is not None and self._seen.signature != self._file.signature()

    def pin(self, tools: Iterable[ToolSpec]) -> None:
        """Record these definitions as reviewed. Raises StateDamaged."""
        self._store({tool.id: definition(tool) for tool in tools})

    def unpin(self, tools: Iterable[str]) -> None:
        """Remove pins.

        Raises:
            ToolNotFound: a tool is not pinned (TOOL_NOT_FOUND).
        """
        removed, pins = set(tools), self._read()
        for tool in sorted(removed - pins.keys()):
            raise ToolNotFound(
                f"{tool!r:.80} is not pinned", hint=did_you_mean(tool, pins) or "`tavern tools pins` lists the pins"
            )
        self._file.change(lambda values: {name: pin for name, pin in values.items() if name not in removed})
        self._seen = None

    def states(self, tools: Mapping[str, ToolSpec | None]) -> list[ToolPin]:
        """Every pin, compared with the present tools.

        Args:
            tools: id → the tool; None: it exists, and only its code knows it.

        Raises:
            StateDamaged: the pins cannot be read (STATE_DAMAGED).
        """
        pins, found = self._read(), []
        if self._damage is not None:
            raise StateDamaged(f"the pins cannot be read: {self._damage.located}", hint=self._damage.hint)
        unpinned = {name: definition(tool) for name, tool in tools.items() if tool is not None and name not in pins}
        for name, pin in sorted(pins.items()):
            tool = tools.get(name)
            if tool is not None:
                diff = tuple(differences(pin, definition(tool)))
                found.append(ToolPin(name, "changed" if diff else "ok", diff))
            elif name in tools:
                found.append(ToolPin(name, "ok"))
            else:
                to = next((other for other, now in unpinned.items() if _shape(now) == _shape(pin)), "")
                found.append(ToolPin(name, "renamed" if to else "missing", renamed_to=to))
        return found

    def _read(self) -> dict[str, dict[str, Any]]:
        if (state := self._file.current()) is not self._seen:
            self._pins = {str(name): pin for name, pin in state.values.items() if isinstance(pin, dict)}
            self._seen = state
            self._damage = state.findings[0] if state.findings else None
            if self._damage is not None:
                self._on_damage(self._damage)
        return self._pins

    def _store(self, pins: dict[str, dict[str, Any]]) -> None:
        self._file.change(lambda values: {**values, **pins})
        self._seen = None


def definition(tool: ToolSpec) -> dict[str, Any]:
    """The parts of a definition that a pin compares, as plain JSON."""
    data = {key: value for key, value in tool.to_json().items() if key not in _NOT_DEFINITION}
    found: dict[str, Any] = json.loads(json.dumps(data, sort_keys=True, default=str))
    return found


def differences(before: Any, after: Any) -> list[Difference]:
    """The places at which two definitions differ; at most fifty."""
    return list(_differences(before, after, ""))[:_MOST_SHOWN]


def _differences(before: Any, after: Any, path: str) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from _differences(before.get(key), after.get(key), path + exact_pointer([key]))
    elif before != after:
        yield Difference(path, before, after)


def changed_parts(found: Iterable[Difference]) -> list[str]:
    """The parts of a definition that differ, such as `description`. Their content is for the reviewer: models read errors."""
    return list(dict.fromkeys(part for one in found if (part := one.path[1:].partition("/")[0])))


def _renamed_from(now: Mapping[str, Any], pins: Mapping[str, Mapping[str, Any]], known: Collection[str]) -> str | None:
    """The pinned tool that no longer exists and equals this one except for its name."""
    shape = _shape(now)
    return next((name for name, pin in pins.items() if name not in known and _shape(pin) == shape), None)


def _shape(data: Mapping[str, Any]) -> str:
    return json_digest({key: value for key, value in data.items() if key not in _NAMES})


def _quarantined(tool: str, why: str, diff: list[Difference]) -> ToolQuarantined:
    changed = changed_parts(diff)
    return ToolQuarantined(
        f"{tool} is pinned and in quarantine: {why}" + (f" ({', '.join(changed)})" if changed else ""),
        hint=f"look at `tavern tools pins`; if it is what you want, `tavern tools pin {tool}`",
        changed=changed,
    )
