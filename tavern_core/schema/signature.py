"""From a Python function to a tool: name, description, parameters, result, and how JSON becomes its arguments.

    signature ─┬─ annotation of an injected type (CallContext) → left out, reported in `injected`
               ├─ everything else                              → `parameters`
               └─ return annotation                            → `returns`

A parameter that a tool cannot have is refused with file and line when the plugin registers, not when it is called.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, PydanticUndefined, to_jsonable_python

from tavern_core.errors import Finding, Location, SchemaInvalid
from tavern_core.frozen_dataclass import dataclass
from tavern_core.schema.annotations import (
    AnnotationSchema,
    ConstraintInvalid,
    NoSchema,
    default_in,
    description_in,
    translate,
)
from tavern_core.schema.bounded_json_copying import json_copy
from tavern_core.schema.deserialization import Convert, converter
from tavern_core.schema.docstring import docstring_of
from tavern_core.schema.problem import printable

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_STAR = inspect.Parameter.VAR_POSITIONAL
_DOUBLE_STAR = inspect.Parameter.VAR_KEYWORD
_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """The description of a function.

    Attributes:
        parameters: an object schema, `$defs` inside.
        returns: the schema of the result, None without a return annotation.
        injected: parameter name -> the name of what the host passes there (a value of `inject`).
        convert: converts JSON arguments to Python ones (models, dates, enums); None if they are the same. Raises
            InputInvalid with `details.problems` for values that only the Python type refuses.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    returns: dict[str, Any] | None = None
    injected: Mapping[str, str] = field(default_factory=dict)
    convert: Convert | None = None


def signature_schema(function: Callable[..., Any], *, inject: Mapping[type, str] | None = None) -> FunctionSchema:
    """Read a function's signature, annotations and docstring.

    Args:
        function: a function, bound method, `functools.partial`, callable object, staticmethod or classmethod.
        inject: types the host passes itself, e.g. ``{CallContext: "context"}``.

    Raises:
        SchemaInvalid: positional-only parameters, ``*args``, types that have no JSON Schema; names file and line.
    """
    reader = _SignatureReader(function, inject or {})
    named, extra = reader.parameters()
    injected = {name: kind for name, parameter in named.items() if (kind := reader.injected(parameter))}
    ours = {name: parameter for name, parameter in named.items() if name not in injected}
    hints = {name: reader.constrained(parameter) for name, parameter in ours.items()}
    optional = {name for name, parameter in ours.items() if parameter.default is None}
    schemas, definitions = reader.translate({name: _or_none(hint, name in optional) for name, hint in hints.items()})
    docs = docstring_of(function)
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    for name, parameter in ours.items():
        shown = parameters["properties"][name] = dict(schemas[name].schema)
        if text := description_in(hints[name]) or docs.parameters.get(name, ""):
            shown["description"] = text
        if not _add_default(shown, parameter, hints[name], schemas[name]):
            parameters.setdefault("required", []).append(name)
    if extra is not None:
        parameters["additionalProperties"] = reader.translate_one(extra)
    if definitions:
        parameters["$defs"] = definitions
    adapters = {name: schema.adapter for name, schema in schemas.items() if schema.adapter is not None}
    return FunctionSchema(
        reader.name,
        docs.description,
        parameters,
        reader.returns(),
        injected,
        converter(adapters) if adapters else None,
    )


class _SignatureReader:
    """Reads one unwrapped function: its location, and its annotations in that scope."""

    def __init__(self, function: Callable[..., Any], inject: Mapping[type, str]) -> None:
        self.function, self.inject = function, inject
        self.inner = _innermost(function)
        self.name = str(getattr(self.inner, "__name__", type(function).__name__))
        code = getattr(self.inner, "__code__", None)
        self.file = str(getattr(code, "co_filename", getattr(self.inner, "__module__", "") or "unknown"))
        self.line = int(getattr(code, "co_firstlineno", 0))
        self.where = f"{self.file}:{self.line}" if self.line else self.file

    def refuse(self, what: str, hint: str) -> SchemaInvalid:
        where = Location(self.file, self.line, 1 if self.line else 0)
        return SchemaInvalid(
            f"{self.name} at {self.where} cannot be a tool: {what}",
            hint=hint,
            findings=(Finding("SCHEMA_INVALID", what, hint, where),),
        )

    def parameters(self) -> tuple[dict[str, inspect.Parameter], Any]:
        """The named parameters, and the annotation of ``**kwargs`` (None if there is none)."""
        target = self.function.__func__ if isinstance(self.function, staticmethod | classmethod) else self.function
        try:
            signature = inspect.signature(target)
        except (TypeError, ValueError) as error:
            raise self.refuse(f"it has no signature ({error})", "wrap it in a def with annotations") from error
        named: dict[str, inspect.Parameter] = {}
        extra: Any = None
        for at, (name, parameter) in enumerate(signature.parameters.items()):
            if at == 0 and self._is_self(name, parameter):
                continue
            if parameter.kind is _POSITIONAL:
                raise self.refuse(f"parameter {name!r} is positional-only", "remove the `/`: tools are called by name")
            if parameter.kind is _STAR:
                raise self.refuse(f"it takes `*{name}`", f"take a list instead: `{name}: list[...]`")
            if parameter.kind is _DOUBLE_STAR:
                extra = Any if parameter.annotation is _EMPTY else self.hint(parameter)
            else:
                named[name] = parameter
        return named, extra

    def _is_self(self, name: str, parameter: inspect.Parameter) -> bool:
        """True for the first parameter of an unbound method."""
        if isinstance(self.function, classmethod):
            return True
        owner = str(getattr(self.inner, "__qualname__", "")).rpartition(".")[0]
        in_class = bool(owner) and not owner.endswith("<locals>")
        return in_class and name in ("self", "cls") and parameter.annotation is _EMPTY

    def injected(self, parameter: inspect.Parameter) -> str | None:
        """The injected value of a parameter, by its type or (imported only under TYPE_CHECKING) the type's name."""
        if not self.inject or parameter.annotation is _EMPTY:
            return None
        if isinstance(parameter.annotation, str):
            written = parameter.annotation.replace("Optional[", "").strip("[] '\"")
            names = {part.strip().rpartition(".")[2] for part in written.split("|")}
            if by_name := next((kind for known, kind in self.inject.items() if known.__name__ in names), None):
                return by_name
        hint = self.hint(parameter)
        for part in (hint, *get_args(hint)):
            for known, kind in self.inject.items():
                if part is known or (isinstance(part, type) and not get_origin(part) and issubclass(part, known)):
                    return kind
        return None

    def hint(self, parameter: inspect.Parameter) -> Any:
        """The annotation as an object; Any if there is none."""
        if parameter.annotation is _EMPTY:
            return Any
        if not _has_text(parameter.annotation):
            return parameter.annotation
        return self._evaluate(parameter.name, parameter.annotation)

    def constrained(self, parameter: inspect.Parameter) -> Any:
        """The annotation together with a default in `Field(3, ge=1)`."""
        hint, default = self.hint(parameter), parameter.default
        if not isinstance(default, FieldInfo):
            return hint
        if default.default_factory is not None:
            raise self.refuse(f"the default of {parameter.name!r} is a default_factory", "write the default itself")
        return Annotated[hint, default]

    def _evaluate(self, name: str, annotation: Any) -> Any:
        scope = dict(vars(builtins))
        scope.update(getattr(self.inner, "__globals__", {}))
        local = _closure(self.inner)
        try:
            holder = SimpleNamespace(__annotations__={name: annotation})
            return get_type_hints(holder, globalns=scope, localns=local, include_extras=True)[name]
        except NameError as error:
            raise self.refuse(
                f"the annotation of {name!r} names {error.name!r}, which is not there at run time",
                "import it at module level, outside `if TYPE_CHECKING`",
            ) from error
        except (TypeError, SyntaxError, AttributeError, ValueError) as error:
            raise self.refuse(
                f"the annotation of {name!r} cannot be read: {error}", "correct the annotation"
            ) from error

    def translate(self, hints: Mapping[str, Any]) -> tuple[dict[str, AnnotationSchema], dict[str, Any]]:
        try:
            return translate(hints, "validation")
        except ConstraintInvalid as error:
            raise self.refuse(printable(str(error), 300), error.hint) from error
        except NoSchema as error:
            hint = "use JSON types, a pydantic model, a dataclass, a TypedDict or an Enum"
            raise self.refuse(printable(str(error), 300), hint) from error

    def translate_one(self, hint: Any) -> Any:
        """The schema of the values of ``**kwargs``; anything is allowed if they have no schema."""
        schemas, definitions = self.translate({"kwargs": hint})
        return schemas["kwargs"].schema or True if not definitions else True

    def returns(self) -> dict[str, Any] | None:
        """The schema of the result. A type without a schema has none; the answer is then not validated."""
        annotation = getattr(self.inner, "__annotations__", {}).get("return", _EMPTY)
        if annotation is _EMPTY:
            return None
        parameter = inspect.Parameter("result", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
        try:
            hint = self.hint(parameter)
            if hint is Any:
                return None
            schemas, definitions = translate({"result": hint}, "serialization")
        except ConstraintInvalid as error:
            raise self.refuse(
                printable(str(error).replace("parameter 'result'", "its result", 1), 300), error.hint
            ) from error
        except (SchemaInvalid, NoSchema):
            return None
        schema = dict(schemas["result"].schema)
        if definitions:
            schema["$defs"] = definitions
        if text := description_in(hint) or docstring_of(self.function).returns:
            schema.setdefault("description", text)
        return schema if schema.keys() - {"description"} else None


def _innermost(function: Any) -> Any:
    """The `def` under partials, methods, decorators with `functools.wraps` and callable objects."""
    for _ in range(32):
        if isinstance(function, staticmethod | classmethod) or inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "func") and hasattr(function, "keywords"):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not inspect.isroutine(function) and not inspect.isclass(function) and callable(function):
            function = type(function).__call__
        else:
            return function
    return function


def _closure(function: Any) -> dict[str, Any]:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    found = {}
    for name, cell in zip(names, cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the enclosing function has not assigned it yet
            continue
    return found


def _has_text(annotation: Any) -> bool:
    """True if the annotation is, or contains, an unresolved name."""
    if isinstance(annotation, str) or type(annotation).__name__ == "ForwardRef":
        return True
    if get_origin(annotation) is None or type(annotation).__name__ == "_LiteralGenericAlias":
        return False
    arguments = get_args(annotation)
    return any(_has_text(part) for part in (arguments[:1] if hasattr(annotation, "__metadata__") else arguments))


def _or_none(hint: Any, optional: bool) -> Any:
    """Allow None if the default is None: `x: int = None` means `int | None` to every author."""
    return hint | None if optional and hint is not Any and not _admits_none(hint) else hint


def _admits_none(hint: Any) -> bool:
    return hint is None or type(None) in get_args(hint) or any(_admits_none(part) for part in get_args(hint)[:1])


def _add_default(schema: dict[str, Any], parameter: inspect.Parameter, hint: Any, translated: AnnotationSchema) -> bool:
    """Write the default into the schema; False if the parameter has none and is required."""
    default = parameter.default
    if isinstance(default, FieldInfo):
        default = default.default
    if default is _EMPTY:
        default = default_in(hint)
    if default is PydanticUndefined or default is ...:
        return "default" in schema
    try:
        if translated.adapter is not None:
            value = translated.adapter.dump_python(default, mode="json", warnings=False)
        else:
            value = to_jsonable_python(default)
    except (PydanticSerializationError, ValueError, TypeError, AttributeError):
        return True  # e.g. a sentinel object: optional, and Python itself fills it in
    copy, problem = json_copy(value)
    if problem is None:
        schema["default"] = copy
    return True
