"""The entries of `llms:` in tavern.yaml: language models that the operator configures.

llms:
  local:
    kind: openai
    baseUrl: http://127.0.0.1:11434/v1
    model: qwen3
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic.alias_generators import to_camel

from tavern_core.model.file_model_base import FilePart, refused
from tavern_core.model.safe_printing import quoted_address
from tavern_core.model.secret_references import is_operators_reference

_COMMON: Final = frozenset({"kind", "options", "price", "context_tokens"})
_OWN: Final[Mapping[str, tuple[frozenset[str], tuple[str, ...]]]] = {
    "openai": (
        frozenset({"base_url", "model", "key", "headers", "timeout_ms", "max_bytes", "retries"}), ("base_url",),
    ),
    "pydantic-ai": (frozenset({"model", "key"}), ("model",)),
    "scripted": (frozenset({"answers", "file"}), ()),
    "recorded": (frozenset({"file", "source", "record"}), ("file",)),
}  # fmt: skip
"""Kind → the keys that it has besides the common ones, and those that it needs."""


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.username is not None or parts.query or parts.fragment:
        raise refused(
            f"{quoted_address(url)} is not the address of an API",
            "write http://host:port/v1 or https://host/v1, without a query; the key belongs into `key`",
        )
    return url


def _reference(value: Any) -> Any:
    if not is_operators_reference(value):
        raise refused("a key is written as a reference", "write `key: {$env: NAME}`, {$secret: name} or {$file: path}")
    return value


def _header(value: Any) -> Any:
    if not isinstance(value, str) and not is_operators_reference(value):
        raise refused("a header is a text or a reference", "write `name: {$env: NAME}`")
    return value


class PriceConfig(FilePart):
    """The price of a model, per million tokens."""

    input: Annotated[float, Field(ge=0)]
    """Of a million input tokens."""
    output: Annotated[float, Field(ge=0)]
    """Of a million output tokens."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """Three letters of ISO 4217."""


class LlmConfig(FilePart):
    """A language model; which keys it takes depends on `kind`."""

    kind: Literal["openai", "pydantic-ai", "scripted", "recorded"]
    """openai: an HTTP API. pydantic-ai: a model of that library. scripted: given answers. recorded: answers of another model."""
    base_url: Annotated[str, AfterValidator(_address)] | None = None
    """openai: the address of the API; requests go to ``/chat/completions`` below it."""
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """openai: the name of the model there. pydantic-ai: ``provider:model``."""
    key: Annotated[Any, AfterValidator(_reference)] = Field(default=None, validate_default=False)
    """By reference: ``{$env: NAME}``, ``{$secret: name}``, ``{$file: path}``, ``{$keyring: service/name}``."""
    headers: dict[str, Annotated[Any, AfterValidator(_header)]] = Field(default_factory=dict)
    """openai: further headers of requests; values may be references."""
    timeout_ms: Annotated[int, Field(gt=0, le=3_600_000)] = 120_000
    """openai: how long the API may take for a whole answer, or for the next piece of a streamed one."""
    max_bytes: Annotated[int, Field(ge=1_000)] = 32_000_000
    """openai: largest answer."""
    retries: Annotated[int, Field(ge=0, le=10)] = 3
    """openai: further attempts after 429 and 5xx."""
    answers: tuple[Any, ...] | None = None
    """scripted: the answers in order, the last one repeatedly; texts, or ``{text, toolCalls, usage, finishReason, data}``."""
    file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """scripted: a YAML or JSON file with the answers. recorded: the recording. Relative to tavern.yaml."""
    source: str | None = None
    """recorded: the model whose answers are recorded."""
    record: bool = False
    """recorded: ask `source` and record its answers, instead of replaying."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Defaults for the options of requests: ``{temperature: 0}``."""
    price: PriceConfig | None = None
    """None: unknown; such a model is refused where money is limited."""
    context_tokens: Annotated[int, Field(gt=0)] | None = None
    """Size of its window."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        allowed, needed = _OWN[self.kind]
        for name in sorted(self.model_fields_set - allowed - _COMMON):
            raise refused(f"a model of the kind {self.kind} has no {to_camel(name)!r}", "delete the line")
        for name in needed:
            if getattr(self, name) is None:
                raise refused(f"a model of the kind {self.kind} needs {to_camel(name)!r}", f"add {to_camel(name)}: …")
        if self.kind == "scripted" and (self.answers is None) == (self.file is None):
            raise refused("a scripted model needs `answers` or `file`, not both", "keep one of them")
        if self.answers is not None and not self.answers:
            raise refused("a scripted model needs at least one answer", "answers: [Hello!]")
        if self.record and self.source is None:
            raise refused("a model that records needs `source`, the model whose answers it records", "add source: name")
        return self


ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


def _sources(llms: dict[str, LlmConfig]) -> dict[str, LlmConfig]:
    for name, entry in llms.items():
        other = llms.get(entry.source) if entry.source is not None else None
        if entry.source == name or (other is not None and other.kind == "recorded"):
            raise refused(f"{name}: `source` names a recorded model", "name the model whose answers are to be recorded")
    return llms


Llms = Annotated[dict[ModelName, LlmConfig], AfterValidator(_sources)]
"""The section; only a host that has one builds its model."""
