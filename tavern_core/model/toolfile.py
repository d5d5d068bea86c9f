"""A tool as data: `*.tool.json` files and the inline `tools:` of a manifest (seed 000 §6.3, §10.2; 001 §5.2).

The richer dialect is the same type: `handler`, `securityContext`, `examples`, `output`, `tags`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictInt

from tavern_core.model.file_model_base import FilePart
from tavern_core.model.setting_declaration import Line, Prose, SettingItem
from tavern_core.model.tool_limits_file_model import WrittenLimits


class Implementation(FilePart):
    """The implementation of a tool. `type` selects the executor, which reads the other keys.

    Extra keys are allowed, because executors of plugins have their own keys; the executor refuses unknown ones.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
    # script
    command: str | tuple[str, ...] | None = None
    protocol: Literal["stdio"] | None = None
    timeout: Annotated[StrictInt, Field(gt=0, le=86_400_000)] | None = None
    """Milliseconds."""
    env: tuple[str, ...] = ()
    """Names of host environment variables that the script may read."""
    cwd: str | None = None
    outputs: tuple[str, ...] = ()
    """Names of the files that the script leaves in `TAVERN_OUTPUT`, as in ``*.png``; empty: all files are kept."""
    # service
    service: str | None = None
    method: str | None = None
    # node, workflow
    node_type: str | None = None
    workflow_id: str | None = None
    # python
    handler: str | None = None
    """``module:function`` inside the plugin's package."""
    # n8n; `method` is that of the webhook
    endpoint: str | None = None
    idempotency_header: str | None = None
    idempotency_field: str | None = None


class SecurityContext(FilePart):
    """The capabilities and the risks of the tool."""

    capabilities: tuple[str, ...] = ()
    requires_approval: StrictBool = False
    destructive: StrictBool = False
    read_only: StrictBool = False
    idempotent: StrictBool = False
    untrusted: StrictBool = False


class ToolExample(FilePart):
    arguments: dict[str, Any] = Field(default_factory=dict)
    description: Line = ""
    result: Any = None


class ToolDefinition(FilePart):
    """A tool as data. Only `id` and an implementation are needed; a script or service needs `parameters` too."""

    id: Annotated[str, Field(min_length=1, max_length=160)]
    display_name: Line = ""
    description: Prose = ""
    version: str = ""
    parameters: Mapping[str, Any] | None = None
    output: Mapping[str, Any] | StrictBool | None = None
    """JSON Schema of the answer."""
    implementation: Implementation | None = None
    handler: str | None = None
    """Short for ``implementation: {type: python, handler: …}``."""
    config_schema: tuple[SettingItem, ...] = ()
    security_context: SecurityContext = SecurityContext()
    capabilities: tuple[str, ...] = ()
    """Short for ``securityContext: {capabilities: …}``."""
    examples: tuple[ToolExample, ...] = ()
    tags: tuple[Line, ...] = ()
    optional: StrictBool = False
    timeout: Annotated[StrictInt, Field(gt=0, le=86_400_000)] | None = None
    """Milliseconds; for kinds whose implementation has none."""
    job: StrictBool = False
    """Every call runs in the background."""
    limits: WrittenLimits | None = None
    """Rate, concurrency and reaction to failures."""


def workflow_file_names(written: str) -> tuple[str, ...]:
    """The possible files of ``workflowId: written``, relative to plugin.yaml; the first that exists counts."""
    return (written,) if written.endswith(".json") else (f"{written}.json", f"workflows/{written}.json")
