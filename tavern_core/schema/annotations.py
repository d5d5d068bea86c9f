"""From a Python annotation to JSON Schema.

The annotations of most tools (`int`, `str | None`, `list[str]`, `Literal`, `Annotated[..., "text"]`) are translated
here in microseconds; everything else (models, dataclasses, TypedDict, Enum, dates, constrained types) by pydantic.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, InstanceOf, PydanticUserError, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import PydanticUndefined, SchemaError

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model import depths
from tavern_core.model.parameter_guard_marks import MARK, Guard
from tavern_core.schema.patterns import reason_in, untried

_SCALARS: Mapping[Any, Mapping[str, Any]] = {
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    dict: {"type": "object"},
    list: {"type": "array"},
    Any: {},
    object: {},
}


class NoSchema(Exception):
    """An annotation that has no JSON Schema; the text gives the reason."""


class ConstraintInvalid(NoSchema):
    """An annotation with a bound or a pattern that cannot be used: ``Field(pattern="(?=a)")``."""

    def __init__(self, error: SchemaError, beginning: str = "") -> None:
        report = str(error)
        if reason := reason_in(report):
            message, self.hint = untried(reason, report.partition("regex parse error:")[2])
        else:
            message, self.hint = " ".join(report.split()), "correct the bounds in its annotation"
        super().__init__(f"{beginning}{message}")


@dataclass(frozen=True, slots=True)
class AnnotationSchema:
    """An annotation as JSON Schema; `adapter` converts the JSON value to the Python value, None if they are equal."""

    schema: dict[str, Any]
    adapter: TypeAdapter[Any] | None = None


_OBJECTS: Final = ConfigDict(arbitrary_types_allowed=True, val_json_bytes="base64", ser_json_bytes="base64")


def description_in(annotation: Any) -> str:
    """The text of `Annotated[..., "text"]`, `Annotated[..., Doc("text")]` or `Field(description="text")`."""
    if get_origin(annotation) is not Annotated:
        return ""
    for extra in get_args(annotation)[1:]:
        text = extra if isinstance(extra, str) else getattr(extra, "documentation", None)
        if isinstance(extra, FieldInfo):
            text = extra.description
        if isinstance(text, str) and text.strip():
            return text.strip()
    return ""


def default_in(annotation: Any) -> Any:
    """The default inside `Annotated[..., Field(default=...)]`, else PydanticUndefined."""
    if get_origin(annotation) is Annotated:
        for extra in get_args(annotation)[1:]:
            if isinstance(extra, FieldInfo) and extra.default is not ...:
                return extra.default
    return PydanticUndefined


def simple(annotation: Any) -> dict[str, Any] | None:
    """The schema of an annotation whose JSON value is its Python value; None if pydantic has to do it."""
    try:
        if annotation in _SCALARS:
            return dict(_SCALARS[annotation])
    except TypeError:
        return None
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if not all(only_describes(extra) for extra in parts[1:]):
            return None
        marks = [extra.mark for extra in parts[1:] if isinstance(extra, Guard)]
        schema = simple(parts[0])
        return schema if schema is None or not marks else {**schema, MARK: marks[-1]}
    if origin is Literal:
        return _literal(parts)
    if origin is Union or origin is types.UnionType:
        return _union(parts)
    if origin is list and (items := simple(parts[0])) is not None:
        return {"type": "array", "items": items} if items else {"type": "array"}
    if origin is dict and parts[0] is str and (values := simple(parts[1])) is not None:
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    return None


def only_describes(extra: Any) -> bool:
    """True for metadata in Annotated for people or policies, which does not concern values."""
    return isinstance(extra, str | Guard) or isinstance(getattr(extra, "documentation", None), str)


def _literal(values: tuple[Any, ...]) -> dict[str, Any] | None:
    if not all(value is None or type(value) in (str, int, bool) for value in values):
        return None
    types_ = {str: "string", int: "integer", bool: "boolean", type(None): "null"}
    kinds = list(dict.fromkeys(types_[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}


def _union(parts: tuple[Any, ...]) -> dict[str, Any] | None:
    schemas = [simple(part) for part in parts]
    found = [schema for schema in schemas if schema is not None]
    if len(found) < len(schemas):
        return None
    if not all(found):
        return {}  # something in it is `Any`
    if all(schema.keys() == {"type"} and isinstance(schema["type"], str) for schema in found):
        return {"type": list(dict.fromkeys(schema["type"] for schema in found))}
    return {"anyOf": found}


def translate(
    annotations: Mapping[str, Any], mode: JsonSchemaMode
) -> tuple[dict[str, AnnotationSchema], dict[str, Any]]:
    """All annotations of a function at once, so that they share their `$defs`.

    Args:
        annotations: by parameter name.
        mode: "validation" for parameters, "serialization" for results.

    Returns:
        the translated annotations, and the shared `$defs`.

    Raises:
        NoSchema: naming the parameter.
    """
    done: dict[str, AnnotationSchema] = {}
    adapters: dict[str, TypeAdapter[Any]] = {}
    for name, annotation in annotations.items():
        if (schema := simple(annotation)) is not None:
            done[name] = AnnotationSchema(schema)
        else:
            adapters[name] = _adapter(name, annotation)
    if not adapters:
        return done, {}
    try:
        schemas, shared = TypeAdapter.json_schemas(
            [(name, mode, adapter) for name, adapter in adapters.items()], schema_generator=_PlainSchemaGenerator
        )
    except PydanticUserError as error:
        raise NoSchema(f"parameter {_culprit(adapters, mode)!r}: {_first_line(error)}") from error
    for name, adapter in adapters.items():
        schema = dict(schemas[name, mode])
        done[name] = AnnotationSchema(_without_titles(schema), adapter if _converts(annotations[name]) else None)
    definitions = _without_titles(dict(shared)).get("$defs", {})
    return {name: done[name] for name in annotations}, definitions


def standing_alone(annotation: Any, mode: JsonSchemaMode) -> tuple[dict[str, Any] | None, TypeAdapter[Any] | None]:
    """The JSON Schema of one annotation, `$defs` inside, and the adapter that creates its values: strict, except for pydantic's own types.

    Bytes in it are base64.

    Args:
        mode: as of `translate`.

    Returns:
        None instead of the schema if there is none: objects of such a class are only recognised.

    Raises:
        NoSchema: it is not an annotation.
    """
    try:
        adapter = _standing_alone(annotation)
    except PydanticUserError:
        return None, TypeAdapter(InstanceOf[annotation]) if isinstance(annotation, type) else None
    except SchemaError as error:
        raise ConstraintInvalid(error) from error
    except (TypeError, NameError, AttributeError, ValueError, RecursionError) as error:
        raise NoSchema(str(error)) from error
    try:
        schema = dict(adapter.json_schema(mode=mode, schema_generator=_PlainSchemaGenerator))
    except PydanticUserError:
        return None, adapter
    definitions = _without_titles({"$defs": schema.pop("$defs", {})})
    return _without_titles(schema) | {key: definition for key, definition in definitions.items() if definition}, adapter


def _standing_alone(annotation: Any) -> TypeAdapter[Any]:
    try:
        strict = ConfigDict(strict=True) if simple(annotation) is not None else ConfigDict()
        return TypeAdapter(modern(annotation), config=_OBJECTS | strict)
    except (
        PydanticUserError,
        SchemaError,
    ):  # a model with its own configuration, or an unknown object
        return TypeAdapter(modern(annotation))


def _adapter(name: str, annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(modern(annotation))
    except PydanticUserError as error:
        raise NoSchema(f"parameter {name!r}: {_first_line(error)}") from error
    except SchemaError as error:
        raise ConstraintInvalid(error, f"parameter {name!r}: ") from error
    except (TypeError, NameError, AttributeError, ValueError, RecursionError) as error:
        raise NoSchema(f"parameter {name!r}: {error}") from error


def _culprit(adapters: Mapping[str, TypeAdapter[Any]], mode: JsonSchemaMode) -> str:
    """The first parameter whose type has no JSON Schema."""
    for name, adapter in adapters.items():
        try:
            adapter.json_schema(mode=mode, schema_generator=_PlainSchemaGenerator)
        except PydanticUserError:
            return name
    return next(iter(adapters))


def _converts(annotation: Any) -> bool:
    """False for constrained scalars (`Annotated[int, Field(ge=0)]`): the schema validates them, the value is unchanged."""
    if get_origin(annotation) is not Annotated:
        return True
    inner, *extras = get_args(annotation)
    known = all(isinstance(extra, FieldInfo) or only_describes(extra) or _is_constraint(extra) for extra in extras)
    return not known or (simple(inner) is None and _converts(inner))


def _is_constraint(extra: Any) -> bool:
    return type(extra).__module__.partition(".")[0] == "annotated_types"


class _PlainSchemaGenerator(GenerateJsonSchema):
    """pydantic's generator without a title for every field, and with plain `$ref`s."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def bytes_schema(self, schema: Any) -> Any:
        found = super().bytes_schema(schema)
        return {"type": "string", "contentEncoding": "base64"} if found.get("format") == "base64url" else found

    def emit_warning(self, kind: Any, detail: str) -> None:
        """A default that is not JSON is left out of the schema; Python still fills it in."""


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop the class names that pydantic uses as titles; a title by an author has blanks or other letters."""
    if isinstance(title := schema.get("title"), str) and title.isidentifier() and title.isascii():
        del schema["title"]
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs", "patternProperties"):
            schema[keyword] = {
                name: _without_titles(part) if isinstance(part, dict) else part for name, part in value.items()
            }
        elif keyword in ("items", "additionalProperties", "not") and isinstance(value, dict):
            schema[keyword] = _without_titles(value)
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            schema[keyword] = [_without_titles(part) if isinstance(part, dict) else part for part in value]
    return schema


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


# Typed dicts ----------------------------------------------------------------------------------------------------------
# `typing.TypedDict` for pydantic on Python 3.11, which only accepts the one of `typing_extensions`.
#
# On 3.12 and later annotations are left alone.


def modern(annotation: Any, depth: int = 0) -> Any:
    """`annotation` with each `typing.TypedDict` in it replaced by an equal one that pydantic understands.

    A TypedDict that contains itself stays unchanged; the error of pydantic then explains the repair.
    """
    if sys.version_info >= (3, 12) or depth > depths.ANNOTATION:
        return annotation
    if isinstance(annotation, type) and type(annotation).__name__ == "_TypedDictMeta":
        return annotation if type(annotation).__module__ == "typing_extensions" else _rebuilt(annotation, depth)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is None or origin is Literal or not parts:
        return annotation
    if origin is Annotated:
        inner = modern(parts[0], depth + 1)
        return annotation if inner is parts[0] else Annotated[(inner, *parts[1:])]
    changed = tuple(
        [modern(each, depth + 1) for each in part] if isinstance(part, list) else modern(part, depth + 1)
        for part in parts
    )
    if all(new is old or isinstance(old, list) for new, old in zip(changed, parts, strict=True)):
        return annotation
    if origin is Union or origin is types.UnionType:
        return reduce(or_, changed)
    return origin[changed if len(changed) > 1 else changed[0]]


def _rebuilt(old: Any, depth: int) -> Any:
    import typing_extensions

    members = {}
    for name, hint in get_type_hints(old, include_extras=True).items():
        bare = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
        new = modern(bare, depth + 1)
        members[name] = Required[new] if name in old.__required_keys__ else NotRequired[new]
    make: Any = typing_extensions.TypedDict  # its name and members are only known at run time
    rebuilt = make(old.__name__, members)
    rebuilt.__doc__, rebuilt.__module__ = old.__doc__, old.__module__
    return rebuilt
