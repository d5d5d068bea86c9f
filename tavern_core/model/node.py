"""The description of a workflow node, apart from how it runs: its type, its slots, its options.

Formats as ComfyTavern writes them: `NodeSpec.to_json` is the catalogue entry that an editor shows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any, Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.capability import only_reads
from tavern_core.model.naming_rules import split_id
from tavern_core.model.safe_printing import seen

DataFlow = Literal["STRING", "INTEGER", "FLOAT", "BOOLEAN", "OBJECT", "ARRAY", "BINARY", "WILDCARD", "CONVERTIBLE_ANY"]

JSON_TYPES: Final[Mapping[str, str | None]] = {
    "STRING": "string",
    "INTEGER": "integer",
    "FLOAT": "number",
    "BOOLEAN": "boolean",
    "OBJECT": "object",
    "ARRAY": "array",
    "BINARY": "string",  # base64, in JSON
    "WILDCARD": None,
    "CONVERTIBLE_ANY": None,
}
"""`dataFlowType` → the JSON Schema type of such a value; None: any (seed 000 §4.4.3)."""

COMBO: Final = "ComboOption"
"""The match category of inputs whose suggestions are the only choices."""


class _Absent:
    """Stands for the missing default of an input."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<absent>"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = _Absent()

Required = bool | Callable[[Mapping[str, Any]], bool]
"""Whether an input must be given, as a bool or as a function of the node's configuration."""


@dataclass(frozen=True, slots=True)
class Slot:
    """An input or output of a node, or an interface slot of a workflow."""

    key: str
    type: str = "WILDCARD"
    """A `DataFlow` name."""
    display_name: str = ""
    description: str = ""
    required: Required = False
    categories: tuple[str, ...] = ()
    """`matchCategories`: if both ends of an edge name some, they must share one."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """default, suggestions, min, max, and further properties for an editor."""
    multi: bool = False
    """Accepts several edges; the node gets a list."""
    is_stream: bool = False
    lazy: bool = False
    """Computed only when the node requests it."""
    allow_dynamic_type: bool = False
    hide_handle: bool = False
    """No edge can be attached; a value only."""
    actions: tuple[Any, ...] = ()
    max_connections: int | None = None
    schema: Mapping[str, Any] | None = None
    """JSON Schema of a value (of each value, if it accepts several), with details beyond the type."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "display_name", seen(self.display_name))
        object.__setattr__(self, "description", seen(self.description, lines=True))

    @property
    def default(self) -> Any:
        """The default value, or ABSENT. For a combo option ``{value, label}``, the value."""
        found = self.config.get("default", ABSENT)
        return found["value"] if COMBO in self.categories and isinstance(found, Mapping) and "value" in found else found

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of the suggestions, without labels."""
        suggestions = self.config.get("suggestions")
        items = suggestions if isinstance(suggestions, list | tuple) else ()
        return tuple(item["value"] if isinstance(item, Mapping) and "value" in item else item for item in items)

    @property
    def is_closed(self) -> bool:
        """True if only the suggested values are allowed."""
        return COMBO in self.categories and bool(self.choices)

    def is_required(self, config: Mapping[str, Any]) -> bool:
        """Whether the input must be given in a node with this configuration."""
        return bool(self.required(config)) if callable(self.required) else self.required

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "key": self.key,
            "dataFlowType": self.type,
            "displayName": self.display_name or self.key,
            "description": self.description,
            "required": True if callable(self.required) else self.required,
            "matchCategories": list(self.categories),
            "config": _plain(self.config),
            "multi": self.multi,
            "isStream": self.is_stream,
            "allowDynamicType": self.allow_dynamic_type,
            "hideHandle": self.hide_handle,
            "actions": list(self.actions),
            "maxConnections": self.max_connections,
        }
        return data | ({"lazy": True} if self.lazy else {}) | ({"schema": dict(self.schema)} if self.schema else {})


@dataclass(frozen=True, slots=True)
class PassThrough:
    """The outputs of a bypassed node: output → the input it repeats, and values for the others."""

    outputs: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


Bypass = Literal["mute"] | PassThrough | None
"""None: each output repeats the first input of its type."""


@dataclass(frozen=True, slots=True)
class NodeMode:
    """A mode of a node; its slots, if given, replace those of the node."""

    id: str
    display_name: str = ""
    inputs: Mapping[str, Slot] | None = None
    outputs: Mapping[str, Slot] | None = None


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node type. `impl` runs; everything else is data."""

    type: str
    """The full id, ``namespace:Type``."""
    inputs: Mapping[str, Slot] = field(default_factory=dict)
    outputs: Mapping[str, Slot] = field(default_factory=dict)
    display_name: str = ""
    description: str = ""
    category: str = ""
    version: int = 1
    """Increased when files of the old form need an upgrade; part of every cache key."""
    deprecated: bool = False
    replaced_by: str = ""
    """The type that replaces it."""
    replaces: tuple[str, ...] = ()
    """Types that it replaces in workflows."""
    experimental: bool = False
    dynamic_slots: bool = False
    """Instances may have their own inputs and outputs (`data.inputs`, `data.outputs` of the node)."""
    config_schema: Mapping[str, Any] = field(default_factory=dict)
    config_values: Mapping[str, Any] = field(default_factory=dict)
    is_preview_unsafe: bool = False
    bypass: Bypass = None
    modes: Mapping[str, NodeMode] = field(default_factory=dict)
    default_mode: str = ""
    mode_config_key: str = ""
    client_script_url: str = ""
    width: int | None = None
    is_ui_node: bool = False
    """Drawn in the editor and never run: notes, frames."""

    cache: bool = False
    """Equal inputs give equal outputs, so answers may be cached."""
    idempotent: bool = False
    """A second run with the same inputs has no further effect."""
    fast: bool = False
    """A sync function that never blocks: it runs on the loop's own thread."""
    timeout_ms: int | None = None
    limit: int | None = None
    """The number of nodes of this type that run at the same time in one run; None: as many as the run allows."""
    resource: str = ""
    """A tag such as ``gpu``: nodes with the same tag share the limit that the run sets for it."""
    capabilities: frozenset[str] = frozenset()
    plugin: str = ""
    plugin_version: str = "0"
    code_hash: str = ""
    """Identifies the code, which may change without a new version. Part of every cache key."""
    source: str = ""
    """The place of its definition, for people."""
    impl: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "display_name", seen(self.display_name))
        object.__setattr__(self, "description", seen(self.description, lines=True))
        object.__setattr__(self, "category", seen(self.category))

    @property
    def namespace(self) -> str:
        return split_id(self.type)[0]

    @property
    def name(self) -> str:
        """The type without its namespace."""
        return split_id(self.type)[1]

    @property
    def has_effects(self) -> bool:
        """Whether it may change something: one of its capabilities allows more than reading."""
        return any(not only_reads(name) for name in self.capabilities)

    @property
    def streams(self) -> bool:
        return any(slot.is_stream for slot in self.outputs.values())

    def mode_of(self, config: Mapping[str, Any]) -> str:
        """The mode of an instance with this configuration; empty for a node without modes."""
        if not self.modes:
            return ""
        chosen = config.get(self.mode_config_key) if self.mode_config_key else None
        wanted = chosen if isinstance(chosen, str) and chosen in self.modes else self.default_mode
        return wanted if wanted in self.modes else next(iter(self.modes))

    def to_json(self) -> dict[str, Any]:
        """The catalogue entry: as in `GET /api/nodes` of ComfyTavern."""
        data: dict[str, Any] = {
            "id": self.type,
            "type": self.name,
            "namespace": self.namespace,
            "category": self.category,
            "displayName": self.display_name or self.name,
            "description": self.description,
            "version": self.version,
            "inputs": {key: slot.to_json() for key, slot in self.inputs.items()},
            "outputs": {key: slot.to_json() for key, slot in self.outputs.items()},
            "deprecated": self.deprecated,
            "experimental": self.experimental,
            "dynamicSlots": self.dynamic_slots,
            "configSchema": _plain(self.config_schema),
            "configValues": _plain(self.config_values),
            "isPreviewUnsafe": self.is_preview_unsafe,
            "bypassBehavior": _bypass_json(self.bypass),
            "modes": {key: _mode_json(mode) for key, mode in self.modes.items()},
            "defaultModeId": self.default_mode,
            "modeConfigKey": self.mode_config_key,
            "clientScriptUrl": self.client_script_url,
            "width": self.width,
            "isUiNode": self.is_ui_node,
            "plugin": self.plugin,
            "pluginVersion": self.plugin_version,
        }
        ours: dict[str, Any] = {
            "replacedBy": self.replaced_by,
            "replaces": list(self.replaces),
            "cache": self.cache,
            "idempotent": self.idempotent,
            "timeoutMs": self.timeout_ms,
            "limit": self.limit,
            "resource": self.resource,
            "capabilities": sorted(self.capabilities),
            "source": self.source,
        }
        return data | {key: value for key, value in ours.items() if value}


@dataclass(frozen=True, slots=True)
class NodeMatch:
    """A node type that a request may need."""

    type: str
    """The full id, ``namespace:Type``."""
    score: float
    """Comparable within one answer only; larger is better."""
    why: tuple[str, ...] = ()
    """The evidence, strongest first."""

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "score": round(self.score, 6), "why": list(self.why)}


def plain_default(slot: Slot) -> Any:
    """The default of a slot as JSON, bytes as base64; ABSENT if there is none, or none that JSON can express."""
    return ABSENT if slot.default is ABSENT else _plain({"default": slot.default}).get("default", ABSENT)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as JSON; without those that JSON cannot express."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        with suppress(ValueError, RecursionError):  # an object of the plugin, infinity, a surrogate
            converted = _jsonable(value)
            json.dumps(converted, ensure_ascii=False, allow_nan=False).encode()
            found[str(key)] = converted
    return found


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    from pydantic_core import to_jsonable_python  # imported here: few defaults need it, and it loads slowly

    return to_jsonable_python(value, by_alias=True)


def _bypass_json(bypass: Bypass) -> Any:
    if isinstance(bypass, PassThrough):
        return {"passThrough": dict(bypass.outputs), "defaults": _plain(bypass.defaults)}
    return bypass


def _mode_json(mode: NodeMode) -> dict[str, Any]:
    data: dict[str, Any] = {"id": mode.id, "displayName": mode.display_name or mode.id}
    if mode.inputs is not None:
        data["inputs"] = {key: slot.to_json() for key, slot in mode.inputs.items()}
    if mode.outputs is not None:
        data["outputs"] = {key: slot.to_json() for key, slot in mode.outputs.items()}
    return data
