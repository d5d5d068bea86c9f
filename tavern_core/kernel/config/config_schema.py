"""The JSON Schema of tavern.yaml, for editors: made from its models, each key described by the docstring of its field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tavern_core.kernel.config.config_key_lookup import model_for
from tavern_core.kernel.manifest.field_descriptions import TEXTS
from tavern_core.model.config import HostConfig
from tavern_core.model.file_model_base import FilePart, describe_fields


def config_schema() -> dict[str, Any]:
    """The JSON Schema of tavern.yaml."""
    schema = model_for({"upstreams", "llms"}).model_json_schema(by_alias=True)
    sections = {section.__name__: section for section in _models(FilePart)}
    for name, part in schema["$defs"].items():
        if "description" in part:
            part["description"] = part["description"].replace("``", "`")
        if "properties" in part:
            describe_fields(part["properties"], sections[name], _manifest_texts(name))
    describe_fields(schema["properties"], HostConfig)
    for part in schema["properties"].values():
        if "$ref" in part:  # a section may be empty: all its lines are comments
            part["anyOf"] = [{"$ref": part.pop("$ref")}, {"type": "null"}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "tavern.yaml",
        "description": "How one tavern-core host is set up.",
    }


def _manifest_texts(model: str) -> dict[str, str]:
    """The sentences of a part that plugin.yaml has, too: permissions."""
    return {key.removeprefix(f"{model}."): text for key, text in TEXTS.items() if key.startswith(f"{model}.")}


def _models(base: type[FilePart]) -> Iterator[type[FilePart]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)
