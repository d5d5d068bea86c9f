"""A workflow file as a type, as ComfyTavern writes it, with our additions (`formatVersion`, `rev`, `requires`, `$exec`).

Unknown keys stay in the file untouched: `Workflow` holds what the engine reads, `raw` the whole document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    field_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from tavern_core.model.node import DataFlow, Slot

FORMAT_VERSION = 1
EXEC_KEY = "$exec"
"""The key of `configValues` for how a node runs."""

Id = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def _integral(value: Any) -> Any:
    """JSON has one kind of number: 1.0 is an integer like 1."""
    return int(value) if type(value) is float and value.is_integer() else value


Whole = Annotated[StrictInt, BeforeValidator(_integral)]


def _instead_of_null(empty: Any) -> BeforeValidator:
    """Editors write null where they have nothing to say."""
    return BeforeValidator(lambda value: empty if value is None else value)


_NO_TEXT: Final = _instead_of_null("")
_NO_ITEMS: Final = _instead_of_null(())
_NO_MEMBERS: Final = _instead_of_null({})  # pydantic copies it


class _Part(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel)


class Retry(_Part):
    """The retries of a failed node, and their backoff."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    times: Annotated[Whole, Field(ge=0, le=100)] = 0
    """Attempts after the first."""
    delay_ms: Annotated[Whole, Field(ge=0)] = 0
    backoff: Annotated[float, Strict(), Field(ge=1, le=10)] = 2.0
    """Factor by which the delay grows."""
    max_delay_ms: Annotated[Whole, Field(ge=0)] = 60_000


class NodeExec(_Part):
    """``configValues.$exec``: how one node of a workflow runs."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    retry: Retry = Retry()
    timeout_ms: Annotated[Whole, Field(gt=0)] | None = None
    on_error: Literal["fail", "skip", "default", "port"] = "fail"
    """After the last attempt: end the run, skip the nodes that depend on it, use `defaults`, or send the error to the port ``error``."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Output → value, for ``onError: default``."""
    cache: Literal["none", "run", "session", "disk"] | None = None
    """Where answers are cached; None: as the node type says (`session` for one with `cache`)."""
    bypassed: StrictBool = False

    @field_validator("retry", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"times": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


class WorkflowNode(_Part):
    """A node of a workflow."""

    id: Id
    type: Id
    position: dict[str, Any] | None = None
    data: Annotated[dict[str, Any], _NO_MEMBERS] = Field(default_factory=dict)
    input_values: Annotated[dict[str, Any], _NO_MEMBERS] = Field(default_factory=dict)
    config_values: Annotated[dict[str, Any], _NO_MEMBERS] = Field(default_factory=dict)
    input_connection_orders: Annotated[dict[str, tuple[str, ...]], _NO_MEMBERS] = Field(default_factory=dict)
    parent_node: str | None = None
    display_name: Annotated[str, _NO_TEXT] = ""
    custom_description: Annotated[str, _NO_TEXT] = ""
    custom_slot_descriptions: Annotated[dict[str, Any], _NO_MEMBERS] = Field(default_factory=dict)
    type_version: Whole | None = None


class WorkflowEdge(_Part):
    """An edge. Handles of multi inputs may be written ``key__N``."""

    id: Id
    source: Id
    target: Id
    source_handle: str | None = None
    target_handle: str | None = None


class InterfaceSlot(_Part):
    """An input or output of the workflow as a whole; `description` and `customDescription` are both accepted."""

    key: Annotated[str, _NO_TEXT] = ""
    display_name: Annotated[str, _NO_TEXT] = ""
    description: Annotated[str, _NO_TEXT] = ""
    custom_description: Annotated[str, _NO_TEXT] = ""
    data_flow_type: DataFlow = "WILDCARD"
    required: StrictBool = False
    config: Annotated[dict[str, Any], _NO_MEMBERS] = Field(default_factory=dict)
    multi: StrictBool = False
    min: StrictInt | StrictFloat | None = None
    max: StrictInt | StrictFloat | None = None
    is_stream: StrictBool = False
    match_categories: Annotated[tuple[str, ...], _NO_ITEMS] = ()

    def slot(self, key: str) -> Slot:
        """The same as a slot of the interface nodes."""
        bounds = {name: value for name, value in (("min", self.min), ("max", self.max)) if value is not None}
        return Slot(
            key,
            self.data_flow_type,
            self.display_name,
            self.description or self.custom_description,
            self.required,
            self.match_categories,
            bounds | self.config,
            self.multi,
            self.is_stream,
        )


class Workflow(_Part):
    """A workflow file."""

    name: Annotated[str, _NO_TEXT] = ""
    description: Annotated[str, _NO_TEXT] = ""
    nodes: Annotated[tuple[WorkflowNode, ...], _NO_ITEMS] = ()
    edges: Annotated[tuple[WorkflowEdge, ...], _NO_ITEMS] = ()
    viewport: dict[str, Any] | None = None
    interface_inputs: Annotated[dict[Key, InterfaceSlot], _NO_MEMBERS] = Field(default_factory=dict)
    interface_outputs: Annotated[dict[Key, InterfaceSlot], _NO_MEMBERS] = Field(default_factory=dict)
    version: str = ""
    format_version: Whole = FORMAT_VERSION
    rev: Whole = 0
    """Grows with each save; an editor passes the number that it read."""
    requires: Annotated[dict[str, str], _NO_MEMBERS] = Field(default_factory=dict)
    """Plugin → version specifier."""
    referenced_workflows: Annotated[tuple[str, ...], _NO_ITEMS] = ()

    id: str = Field(default="", exclude=True)
    """The file's name without its ending; not part of the file."""
    raw: Mapping[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    """The document as read, including unknown keys."""

    @field_validator("version", mode="before")
    @classmethod
    def _version(cls, value: Any) -> Any:
        return (
            ""
            if value is None
            else str(value)
            if isinstance(value, int | float) and not isinstance(value, bool)
            else value
        )

    @field_validator("id", mode="before")
    @classmethod
    def _own_id(cls, value: Any) -> Any:
        """Editors write an `id` into files, too; only the file's name counts, so any value is valid."""
        return value if isinstance(value, str) else ""

    @field_validator("raw", mode="before")
    @classmethod
    def _own_document(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping) else {}

    @field_validator("format_version")
    @classmethod
    def _readable(cls, value: int) -> int:
        if value > FORMAT_VERSION:
            details = {
                "message": f"formatVersion {value:,} is newer than this host reads ({FORMAT_VERSION})",
                "hint": "update tavern-core",
            }
            raise PydanticCustomError("refused", "{message}", details)
        return value

    def inputs(self) -> dict[str, Slot]:
        """The interface inputs as slots."""
        return {key: slot.slot(key) for key, slot in self.interface_inputs.items()}

    def outputs(self) -> dict[str, Slot]:
        """The interface outputs as slots."""
        return {key: slot.slot(key) for key, slot in self.interface_outputs.items()}
