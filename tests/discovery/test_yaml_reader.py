"""The YAML dialect: what is read, what is refused, and where the finding points."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.kernel.text.yaml_findings import LocatedReading
from tavern_core.kernel.text.yaml_reader import read_yaml
from tests.rows import each_row


def check(text: str | bytes, *expected: str) -> None:
    """Every finding as ``line:column words``, in order; the words must stand in the message or the hint."""
    findings = read_yaml(text, "plugin.yaml").findings
    places = [f"{f.where.line}:{f.where.column}" for f in findings if f.where]
    assert places == [e.partition(" ")[0] for e in expected], findings
    for finding, e in zip(findings, expected, strict=True):
        assert e.partition(" ")[2] in f"{finding.message} ({finding.hint})", finding


@each_row(
    ("text", "value"),
    [
        ("true", True), ("True", True), ("FALSE", False), ("yes", "yes"), ("no", "no"), ("on", "on"), ("Off", "Off"),
        ("y", "y"), ("null", None), ("~", None), ("", None), ("NULL", None), ("10", 10), ("-3", -3), ("+7", 7),
        ("010", 10), ("0o17", 15), ("0x1F", 31), ("1_000", "1_000"), ("1:30", "1:30"), ("1.5", 1.5), (".5", 0.5),
        ("1.", 1.0), ("1e3", 1000.0), ("-2.5E-1", -0.25), ("1.2.3", "1.2.3"), ("2026-11-21", "2026-11-21"),
        ("2026-11-21 10:00:00", "2026-11-21 10:00:00"), ("=", "="), ("-", "-x"), ("'5'", "5"), ('"true"', "true"),
        ("中文", "中文"), ("0b1", "0b1"), ("1e", "1e"), ("+", "+"), (".", "."), ("...x", "...x"), ("0x", "0x"),
    ],
)  # fmt: skip
def test_scalars_are_read_as_in_yaml_1_2(text: str, value: object) -> None:
    if text == "-":
        text = "-x"
    data = read_yaml(f"a: {text}\n", "plugin.yaml").data
    assert data == {"a": value}
    assert type(data["a"]) is type(value)


REFUSED = [
    ("a: 1\na: 2\n", "2:1 twice, first at line 1, column 1"),
    ("a:\n  b: 1\n  c: 2\n  b: 3\n", "4:3 twice, first at line 2, column 3"),
    ("{a: 1, b: {c: 1, c: 2}}", "1:18 twice"),
    ("a: &x 1\nb: *x\n", "1:4 anchor &x", "2:4 alias *x"),
    ("a: &x [1]\n", "1:4 anchor"),
    ("<<: {a: 1}\nb: 2\n", "1:1 merge keys"),
    ("a: !!str 5\n", "1:4 tag"),
    ("a: !python/object:os.system x\n", "1:4 tag"),
    ("!!map {a: 1}\n", "1:1 tag"),
    ("a: ! b\n", "1:4 tag"),
    ("a: .nan\n", "1:4 not finite"),
    ("a: -.inf\n", "1:4 not finite"),
    ("a: 1e999\n", "1:4 not finite"),
    ("a: " + "9" * 5000 + "\n", "1:4 5,000 digits"),
    ("1: x\n", '1:1 put it in quotes: "1"'),
    ("true: x\n", "1:1 not text"),
    ("~: x\n", "1:1 not text"),
    ("[a]: x\nb: 1\n", "1:1 a key must be text"),
    ("{a: 1}: {b: 2}\nc: 3\n", "1:1 a key must be text"),
    ("a: 1\n---\nb: 2\n", "2:1 second document"),
    ("a: 1\n...\nb: 2\n", "3:1 document"),
    ("a:\n\tb: 1\n", "2:1 indent with spaces"),
    ("a: b: c\n", "1:5 mapping values"),
    ("a: [1\n", "2:1 did not find"),
    ("a: 'x\n", "2:1 unexpected end"),
    ("- @x\n", "1:3 quotes"),
    ('a: "x\\0y"\n', "1:4 control character"),
    ('a: "\\e[31m"\n', "1:4 control character"),
    ('a: "\\ud800"\n', "1:7 escape"),
    ("a: x\x00\n", "1:5 U+0000"),
    ("a: x\u2028y\n", "1:5 U+2028"),
    ("a: \ud800\n", "1:4 U+D800"),
    ("a: x\n" * 3 + "b: \x1b[31m\n", "4:4 U+001B"),
    ("[" * 100_000, "1:65 nested deeper"),
    ("a: {b: [" * 2_000, "1:172 nested deeper"),
    ("x: 1\nx: 2\na: " + "[\n" * 2_000, "2:1 is here twice", "66:1 nested deeper"),
    ("- " * 3000 + "x", "1:129 nested deeper"),
    ("%YAML 9.9\n---\na: 1\n", "1:1 incompatible"),
    (b"a: \xff\n", "1:4 0xFF is not UTF-8"),
    ("中: ".encode() + b"\x80\n", "1:4 0x80 is not UTF-8"),
    ("a: 1\n".encode("utf-16"), "1:1 UTF-16"),
    (b"a" * 1_000_001, "0:0 larger than 1,000,000 bytes"),
]


@pytest.mark.slow
@each_row(("text", "expected"), [(t, e) for t, *e in REFUSED])
def test_everything_refused_names_its_place(text: str | bytes, expected: list[str]) -> None:
    check(text, *expected)


def test_an_alias_bomb_costs_nothing() -> None:
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)
    )
    document = read_yaml(bomb, "plugin.yaml")
    assert len(document.findings) == 50
    assert all("anchor" in f.message or "alias" in f.message for f in document.findings)


@pytest.mark.slow
def test_too_many_values_are_refused_where_the_limit_is() -> None:
    findings = read_yaml("[" + "1," * 60_000 + "]", "plugin.yaml").findings
    assert [f.message for f in findings] == ["more than 50,000 values"]


def test_a_byte_order_mark_and_windows_line_ends_are_fine() -> None:
    document = read_yaml("\ufeffname: x\r\nversion: '1'\r\n".encode(), "plugin.yaml")
    assert (document.data, document.findings) == ({"name": "x", "version": "1"}, ())
    assert document.line(2) == "version: '1'"


MANUAL = """\
name: text
permissions:
  hooks:
    - "hook:server:tool:check"
    - "hook:server:tool:chek"
tools: [{id: a}, {id: b}]
extensions.text.x: 1
"""


@each_row(
    ("path", "value", "key"),
    [
        ((), "1:1", "1:1"),
        (("name",), "1:7", "1:1"),
        (("permissions", "hooks"), "4:5", "3:3"),
        (("permissions", "hooks", 1), "5:7", "5:7"),
        (("tools", 1, "id"), "6:23", "6:19"),
        (("extensions.text.x",), "7:20", "7:1"),
        (("permissions", "missing"), "2:1", "2:1"),
        (("tools", 7, "id"), "6:1", "6:1"),
    ],
)
def test_a_path_is_found_in_the_text(path: tuple[str | int, ...], value: str, key: str) -> None:
    document = read_yaml(MANUAL, "plugin.yaml")
    pointer = ".".join(map(str, path))
    for place, where in ((value, document.locate(path)), (key, document.locate(path, key=True))):
        assert str(where) == f"plugin.yaml:{place}" + (f": {pointer}" if pointer else "")


def test_the_rest_is_read_beside_what_is_refused() -> None:
    document = read_yaml("a: 1\n1: {x: [y]}\n[k]: {z: [w]}\na: 2\n<<: {q: 1}\nb: [*n, 3]\n", "plugin.yaml")
    assert document.data == {"a": 1, "b": [None, 3]}
    assert len(document.findings) == 5


# PyYAML writes YAML 1.1, in which 0E0 and 0o7 are text that needs no quotes; in YAML 1.2 they are numbers.
NUMBERS_OF_1_2 = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+|0x[0-9a-fA-F]+")
plain_text = st.text(max_size=12).filter(lambda text: not NUMBERS_OF_1_2.fullmatch(text))
plain_yaml = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | plain_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=6), plain_yaml, max_size=5), st.sampled_from([True, False, None]))
def test_what_pyyaml_writes_is_read_as_it_was_or_refused(data: dict[str, object], flow: bool | None) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True)
    document = read_yaml(text, "plugin.yaml")
    if not document.findings:
        assert document.data == data


PIECES = ["a", "b: ", "- ", "\n", "  ", "'", '"', "[", "]", "{", "}", ",", ": ", "? ", "&x ", "*x", "!t ", "|\n", ">-\n",
          "# c", "---\n", "...\n", "<<: ", "1", ".nan", "~", "%", "@", "\t", "\\", "中", "\ufeff"]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_both_ways_of_reading_agree_and_never_raise(text: str) -> None:
    document = read_yaml(text, "plugin.yaml")
    slow = LocatedReading(document.text, "plugin.yaml", "MANIFEST_INVALID")
    assert slow.build() == document.data
    if document.text:
        assert tuple(slow.findings) == document.findings
    assert document.locate(("a", 0, "b")).file == "plugin.yaml"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_answered(content: bytes) -> None:
    document = read_yaml(content, "plugin.yaml")
    assert document.data is None or document.findings or isinstance(document.data, str | dict | list | int | float)
