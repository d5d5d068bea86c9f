"""A function's signature says everything about the tool: names, types, texts, defaults, what the host passes itself."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import pathlib
import typing
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Optional, TypedDict, Union

import pytest
from pydantic import BaseModel, Field

from tavern_core.errors import InputInvalid, SchemaInvalid
from tavern_core.schema.schema_check import check_schema
from tavern_core.schema.signature import FunctionSchema, signature_schema
from tavern_core.schema.validate import compile_validator
from tests.rows import each_row

if TYPE_CHECKING:
    from elsewhere import Unimportable  # type: ignore[import-not-found]


class Context:
    """Stands for what a host passes itself."""


class Answer:
    """Stands for a result type that is not a value."""


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Point(BaseModel):
    """A point."""

    x: int
    y: int = 0
    label: str = Field("", description="Shown beside it")


class Node(BaseModel):
    name: str
    next: Node | None = None


@dataclasses.dataclass
class Box:
    width: float
    tags: list[str] = dataclasses.field(default_factory=list)


class Options(TypedDict):
    limit: int
    since: NotRequired[datetime.date]


def read(function: Any, **options: Any) -> FunctionSchema:
    """The schema, which must be one a host accepts."""
    found = signature_schema(function, inject={Context: "context"}, **options)
    assert [finding for finding in check_schema(found.parameters) if finding.severity == "error"] == []
    return found


def of(annotation: Any) -> Any:
    """The schema of one parameter with this annotation."""

    def function(value):  # type: ignore[no-untyped-def]
        ...

    function.__annotations__["value"] = annotation
    return read(function).parameters["properties"]["value"]


@each_row(
    ("annotation", "schema"),
    [
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (str, {"type": "string"}),
        (None, {"type": "null"}),
        (Any, {}),
        (object, {}),
        (list, {"type": "array"}),
        (dict, {"type": "object"}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (list[Any], {"type": "array"}),
        (list[list[int]], {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (dict[str, Any], {"type": "object"}),
        (Optional[int], {"type": ["integer", "null"]}),  # noqa: UP045
        (Union[int, str], {"type": ["integer", "string"]}),  # noqa: UP007
        (int | list[str], {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]}),
        (int | Any, {}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, "a", None], {"type": ["integer", "string", "null"], "enum": [1, "a", None]}),
        (Annotated[int, "How many"], {"type": "integer", "description": "How many"}),
        (Annotated[int, Field(ge=1, description="n")], {"type": "integer", "minimum": 1, "description": "n"}),
        (Annotated[str, Field(pattern="^a")], {"type": "string", "pattern": "^a"}),
        (tuple[int, str], {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2}),
        (set[int], {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (pathlib.Path, {"type": "string", "format": "path"}),
        ("int", {"type": "integer"}),
        ("list[int]", {"type": "array", "items": {"type": "integer"}}),
        (list["int"], {"type": "array", "items": {"type": "integer"}}),
        ("Literal['x']", {"type": "string", "enum": ["x"]}),
    ],
)  # fmt: skip
def test_annotations(annotation: Any, schema: Any) -> None:
    assert of(annotation) == schema


OPTIONS = {"$ref": "#/$defs/Options"}


@each_row(
    ("annotation", "schema"),
    [
        (Options, OPTIONS),
        (list[Options], {"type": "array", "items": OPTIONS}),
        (dict[str, Options], {"type": "object", "additionalProperties": OPTIONS}),
        (Options | None, {"anyOf": [OPTIONS, {"type": "null"}]}),
        (Optional[Options], {"anyOf": [OPTIONS, {"type": "null"}]}),  # noqa: UP045
        (list[Options | int], {"type": "array", "items": {"anyOf": [OPTIONS, {"type": "integer"}]}}),
        (Annotated[list[Options], "Some"], {"type": "array", "description": "Some", "items": OPTIONS}),
        (tuple[Options, int], {"type": "array", "prefixItems": [OPTIONS, {"type": "integer"}], "minItems": 2, "maxItems": 2}),
    ],
)  # fmt: skip
def test_typed_dicts_are_read_wherever_they_stand(annotation: Any, schema: Any) -> None:
    assert of(annotation) == schema


def test_models_stay_in_defs_without_noise() -> None:
    def draw(point: Point, box: Box, color: Color, options: Options, path: Node) -> None: ...

    parameters = read(draw).parameters
    assert parameters["properties"] == {
        "point": {"$ref": "#/$defs/Point"},
        "box": {"$ref": "#/$defs/Box"},
        "color": {"$ref": "#/$defs/Color"},
        "options": {"$ref": "#/$defs/Options"},
        "path": {"$ref": "#/$defs/Node"},
    }
    assert parameters["required"] == ["point", "box", "color", "options", "path"]
    assert parameters["$defs"]["Point"] == {
        "type": "object",
        "description": "A point.",
        "properties": {
            "x": {"type": "integer"},
            "y": {"type": "integer", "default": 0},
            "label": {"type": "string", "default": "", "description": "Shown beside it"},
        },
        "required": ["x"],
    }
    assert parameters["$defs"]["Color"] == {"type": "string", "enum": ["red", "blue"]}
    assert "title" not in str(parameters)


def test_the_issue_s_example() -> None:
    def count(text: Annotated[str, "Text to count"], unit: Literal["words", "characters"] = "words") -> int:  # type: ignore[empty-body]
        """Count words or characters."""

    found = read(count)
    assert (found.name, found.description) == ("count", "Count words or characters.")
    assert found.parameters == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "Text to count"},
            "unit": {"type": "string", "enum": ["words", "characters"], "default": "words"},
        },
        "required": ["text"],
    }
    assert found.returns == {"type": "integer"}
    assert found.convert is None


def test_defaults_are_json_or_left_to_python() -> None:
    sentinel = object()

    def tool(
        a: int = 1,
        b: Color = Color.BLUE,
        c: pathlib.Path = pathlib.Path("x"),
        d: Any = sentinel,
        e: int = None,  # type: ignore[assignment] # noqa: RUF013
        f: datetime.date = datetime.date(2026, 1, 2),
        g: Box = Box(1.5),  # noqa: B008
        h: int = Field(3, ge=1),
        i: Annotated[int, Field(default=4)] = 4,
        j: Level = Level.LOW,
        *,
        k: tuple[int, ...] = (),
    ) -> None: ...

    properties = read(tool).parameters["properties"]
    assert {name: part.get("default", "none") for name, part in properties.items()} == {
        "a": 1, "b": "blue", "c": "x", "d": "none", "e": None, "f": "2026-01-02", "g": {"width": 1.5, "tags": []}, "h": 3, "i": 4, "j": 1,
        "k": [],
    }  # fmt: skip
    assert properties["e"]["type"] == ["integer", "null"]
    assert properties["h"]["minimum"] == 1
    assert "required" not in read(tool).parameters


class Toolbox:
    def method(self, a: int) -> int:
        """A method."""
        return a

    @classmethod
    def of_class(cls, a: int) -> int:
        return a

    @staticmethod
    def static(a: int) -> int:
        return a

    def __call__(self, a: int) -> int:
        """Called."""
        return a


def decorated(a: int, b: str = "x") -> str:
    """Decorated."""
    return b


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@each_row(
    ("function", "name", "properties"),
    [
        (Toolbox().method, "method", ["a"]),
        (Toolbox.method, "method", ["a"]),
        (Toolbox.of_class, "of_class", ["a"]),
        (vars(Toolbox)["of_class"], "of_class", ["a"]),
        (vars(Toolbox)["static"], "static", ["a"]),
        (Toolbox(), "__call__", ["a"]),
        (functools.partial(decorated, 1), "decorated", ["b"]),
        (functools.partial(decorated, b="y"), "decorated", ["a", "b"]),
        (logged(decorated), "decorated", ["a", "b"]),
    ],
)
def test_every_kind_of_callable(function: Callable[..., Any], name: str, properties: list[str]) -> None:
    found = read(function)
    assert (found.name, list(found.parameters["properties"])) == (name, properties)


def test_injected_parameters_are_left_out_and_reported() -> None:
    def tool(a: int, ctx: Context, other: Context | None = None, text: "Unimportable | int" = 1) -> None: ...  # noqa: UP037

    with pytest.raises(SchemaInvalid, match="Unimportable"):
        signature_schema(tool, inject={Context: "context"})

    def readable(a: int, ctx: Context, other: Context | None = None) -> None: ...

    found = signature_schema(readable, inject={Context: "context"})
    assert found.injected == {"ctx": "context", "other": "context"}
    assert list(found.parameters["properties"]) == ["a"]


def test_an_injected_type_may_be_imported_for_type_checking_only() -> None:
    def tool(a: int, ctx: "Unimportable", opt: "Unimportable | None" = None) -> None: ...  # noqa: UP037

    class Unimportable: ...

    found = signature_schema(tool, inject={Unimportable: "context"})
    assert found.injected == {"ctx": "context", "opt": "context"}


def test_keyword_arguments_open_the_schema() -> None:
    def any_(a: int, **more: Any) -> None: ...
    def integers(a: int, **more: int) -> None: ...

    assert read(any_).parameters["additionalProperties"] is True
    assert read(integers).parameters["additionalProperties"] == {"type": "integer"}
    assert compile_validator(read(any_).parameters).is_valid({"a": 1, "b": "x"})


def _positional(a: int, /, b: int) -> None: ...
def _star(*items: int) -> None: ...
def _callback(then: Callable[[int], int]) -> None: ...
def _unknown(a: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821, UP037
def _factory(a: list[int] = Field(default_factory=list)) -> None: ...  # noqa: B008
def _foreign(a: Context) -> None: ...


@each_row(
    ("function", "words"),
    [
        (_positional, "'a' is positional-only"),
        (_star, r"takes `\*items`"),
        (_callback, "'then'"),
        (_unknown, "'Nowhere'"),
        (_foreign, "'a'"),
        (_factory, "default_factory"),
        (min, "signature|positional-only|takes"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_where_it_stands(function: Any, words: str) -> None:
    with pytest.raises(SchemaInvalid, match=words) as caught:
        signature_schema(function)
    assert caught.value.hint
    (finding,) = caught.value.findings
    if function is not min:
        assert finding.where is not None
        assert finding.where.file == __file__
        assert finding.where.line == function.__code__.co_firstlineno


@each_row(
    ("annotation", "schema"),
    [
        (int, {"type": "integer"}),
        (None, {"type": "null"}),
        (list[Color], {"type": "array", "items": {"$ref": "#/$defs/Color"}, "$defs": {"Color": {"type": "string", "enum": ["red", "blue"]}}}),
        (Annotated[str, "A text"], {"type": "string", "description": "A text"}),
        (Any, None),
        (Answer, None),
        (Answer | None, None),
        (AsyncIterator[int], None),
        (Context, None),
        ("Nowhere", None),
    ],
)  # fmt: skip
def test_the_return_annotation_is_the_output_schema(annotation: Any, schema: Any) -> None:
    def tool(): ...  # type: ignore[no-untyped-def]

    tool.__annotations__["return"] = annotation
    assert read(tool).returns == schema


def test_a_function_without_annotations_takes_anything() -> None:
    def tool(a, b=2): ...  # type: ignore[no-untyped-def]

    found = read(tool)
    assert found.parameters == {"type": "object", "properties": {"a": {}, "b": {"default": 2}}, "required": ["a"]}
    assert (found.returns, found.convert) == (None, None)


def test_texts_come_from_annotated_then_field_then_docstring() -> None:
    def tool(
        a: Annotated[int, "from Annotated"], b: Annotated[int, Field(description="from Field")], c: int, d: int
    ) -> None:
        """Do it.

        Args:
            a: not this
            b: not this
            c: 来自文档
        """

    properties = read(tool).parameters["properties"]
    assert [part.get("description") for part in properties.values()] == [
        "from Annotated",
        "from Field",
        "来自文档",
        None,
    ]


def test_json_becomes_python_before_the_call() -> None:
    def tool(
        n: int, point: Point, box: Box, color: Color, day: datetime.date, key: uuid.UUID, file: pathlib.Path, many: set[int],
        pair: tuple[int, str], options: Options, amount: decimal.Decimal, node: Node | None = None, level: Level = Level.LOW,
    ) -> None: ...  # fmt: skip

    convert = read(tool).convert
    assert convert is not None
    given = {
        "n": 1, "point": {"x": 1.0}, "box": {"width": 2}, "color": "blue", "day": "2026-01-02",
        "key": "12345678-1234-5678-1234-567812345678", "file": "a/b", "many": [1, 2], "pair": [1, "x"],
        "options": {"limit": 3, "since": "2026-01-02"}, "amount": "1.10", "level": 1,
    }  # fmt: skip
    before = dict(given)
    assert convert(given) == {
        "n": 1, "point": Point(x=1), "box": Box(2.0), "color": Color.BLUE, "day": datetime.date(2026, 1, 2),
        "key": uuid.UUID("12345678-1234-5678-1234-567812345678"), "file": pathlib.Path("a/b"), "many": {1, 2}, "pair": (1, "x"),
        "options": {"limit": 3, "since": datetime.date(2026, 1, 2)}, "amount": decimal.Decimal("1.10"), "level": Level.LOW,
    }  # fmt: skip
    assert given == before


def test_what_only_the_python_type_refuses_is_an_input_problem() -> None:
    def tool(day: datetime.date, point: Point, secret: datetime.date | None = None) -> None: ...

    convert = read(tool).convert
    assert convert is not None
    with pytest.raises(InputInvalid) as caught:
        convert({"day": "tomorrow", "point": {"x": "1"}, "secret": "hunter2"})
    assert [problem["path"] for problem in caught.value.details["problems"]] == ["/day", "/point/x", "/secret"]
    assert "hunter2" not in str(caught.value)


def test_constrained_scalars_need_no_conversion() -> None:
    def tool(a: Annotated[int, Field(ge=0)], b: Annotated[str, Field(max_length=3)], c: int | None = None) -> None: ...

    assert read(tool).convert is None


def test_nothing_is_read_from_text_that_a_caller_could_send() -> None:
    """Annotations are code of the plugin; defaults and arguments are data and never evaluated."""

    def tool(a: str = "__import__('os')") -> None: ...

    assert read(tool).parameters["properties"]["a"]["default"] == "__import__('os')"
    assert typing.get_type_hints(tool)["a"] is str
