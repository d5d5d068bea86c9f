"""A setting that a plugin or a tool offers: `configOptions` (seed 000 §17.1) and `configSchema` (§6.3)."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from tavern_core.model.file_model_base import FilePart
from tavern_core.model.safe_printing import seen

Line = Annotated[str, AfterValidator(seen)]
"""A name or a sentence for people, on one line and without invisible characters."""
Prose = Annotated[str, AfterValidator(partial(seen, lines=True))]
"""A text for people, on any number of lines and without invisible characters."""
SettingType = Literal[
    "string", "number", "boolean", "select", "textarea", "slider", "avatar", "button-group", "action-button"
]


class SettingOption(FilePart):
    """A choice of a `select` or `button-group`."""

    value: StrictStr | StrictBool | StrictInt | StrictFloat
    label: Line = ""


class SettingItem(FilePart):
    """A setting. In a manifest `key` is ``extensions.{plugin}.{option}``; in a tool file it is the bare option name."""

    key: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_.-]+$")]
    type: SettingType
    label: Line = ""
    description: Prose = ""
    default_value: Any = None
    required: StrictBool = False
    secret: StrictBool = False
    """Masked in all output. Keys that look like secrets (cookie, token, password …) are masked anyway."""
    min: StrictFloat | None = None
    max: StrictFloat | None = None
    step: Annotated[StrictFloat, Field(gt=0)] | None = None
    options: tuple[SettingOption | StrictStr | StrictInt | StrictFloat, ...] = ()
    placeholder: Line = ""
    category_key: Line = ""
    category: Line = ""
    rows: StrictInt | None = None
    """Height of a `textarea`."""
    action: str = ""
    """The action of an `action-button`, which holds no value."""

    @property
    def holds_value(self) -> bool:
        """False for an action-button."""
        return self.type != "action-button"

    def choices(self) -> list[str | int | float | bool]:
        """The allowed values of a select or button-group, in order."""
        return [o.value if isinstance(o, SettingOption) else o for o in self.options]
