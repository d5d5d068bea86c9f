"""`plugins check` names the methods of a service that nobody marked, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tavern_core.review.plugin_check import check_plugin
from tests.rows import each_row

HEAD = """\
from typing import Protocol
from tavern_core import Service, hookimpl, mutates, read_only
import tavern_core as tc
from .marks import look_only
from .faces import Face

class Reading(Protocol):
    @read_only
    def look(self) -> int: ...

class Clock:
    colour = "red"
    @read_only
    def look(self) -> int: return 1
    @mutates
    def turn(self) -> None: ...
    def wind(self) -> None: ...
    def _spring(self) -> None: ...
    @property
    def hands(self) -> int: return 2
    later: int = 1

class Marked:
    @tc.read_only
    def look(self) -> int: return 1
    @look_only
    @staticmethod
    def other() -> int: return 1

NAME = "clock"
"""
BRINGS = "\n@hookimpl\ndef tavern_register_services(ctx):\n    return [{}]\n"
FACES = "class Face:\n    def glass(self): ...\n"
MARKS = "from tavern_core import read_only as look_only\n"

CASES: dict[str, tuple[str, list[str]]] = {
    # what the source says, the methods that are named
    "the class of the object": (BRINGS.format('Service("clock", Clock())'), ["wind"]),
    "by keywords": (BRINGS.format('Service(object=Clock(), name="clock")'), ["wind"]),
    "a name that is a constant": (BRINGS.format("Service(NAME, Clock())"), ["wind"]),
    "an interface instead of the class": (BRINGS.format('Service("clock", Clock(), Reading)'), []),
    "an interface by keyword": (BRINGS.format('Service("clock", Clock(), interface=Reading)'), []),
    "no interface, written out": (BRINGS.format('Service("clock", Clock(), None)'), ["wind"]),
    "marks by other names": (BRINGS.format('Service("clock", Marked())'), []),
    "an object made before": ("THE = Clock()\n" + BRINGS.format('Service("clock", THE)'), ["wind"]),
    "a class of another module": (BRINGS.format('Service("clock", Face())'), ["glass"]),
    "a base of another module": ("class Tower(Clock, Face): ...\n" + BRINGS.format('Service("clock", Tower())'), ["glass", "wind"]),
    "a subclass that overrides without a mark": ("class Deaf(Clock):\n    def look(self): ...\n" + BRINGS.format('Service("clock", Deaf())'), ["look", "wind"]),
    "a subclass that takes the method away": ("class Dead(Clock):\n    wind = None\n" + BRINGS.format('Service("clock", Dead())'), []),
    "one that replaces another": (BRINGS.format('Service("replaced", Clock())'), []),
    "a class that nobody knows": (BRINGS.format('Service("clock", make())'), []),
    "a name that is computed": (BRINGS.format("Service(ctx.id, Clock())"), []),
    "arguments that are computed": (BRINGS.format("Service(*given, **more)"), []),
    "a Service of somebody else": ("class Service: ...\n" + BRINGS.format('Other.Service("clock", Clock())'), []),
    "a method whose decorator may be anything": ("class Odd:\n    @cached\n    def look(self): ...\n" + BRINGS.format('Service("clock", Odd())'), []),
    "a class that is its own base": ("class A(B): ...\nclass B(A):\n    def look(self): ...\n" + BRINGS.format('Service("clock", A())'), ["look"]),
    "two classes of one name": ("class Clock:\n    def other(self): ...\n" + BRINGS.format('Service("clock", Clock())'), []),
    "the same service twice": (BRINGS.format('Service("clock", Clock()), Service("clock", Clock())'), ["wind"]),
}  # fmt: skip


@each_row("what", CASES)
def test_unmarked_methods_are_named_with_their_line(tmp_path: Path, what: str) -> None:
    code, expected = CASES[what]
    asked = {"services": {"override": ["replaced"]}} if "replaced" in code else {}
    manifest = {"name": "clocks", "version": "1", "services": ["clock"], "permissions": asked}
    (tmp_path / "plugin.yaml").write_text(json.dumps(manifest))
    for name, text in {"__init__": HEAD + code, "faces": FACES, "marks": MARKS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = [f for f in check_plugin(tmp_path).findings if f.code == "SERVICE_UNMARKED"]
    assert [f.message.split("'")[1] for f in found] == expected
    for finding in found:
        assert finding.severity == "warning"
        assert "@read_only" in finding.hint
        assert finding.where is not None
        line = (tmp_path / finding.where.file).read_text().splitlines()[finding.where.line - 1]
        assert f"def {finding.message.split(chr(39))[1]}(" in line


HOSTILE: dict[str, str] = {
    "a thousand classes that derive from each other": "".join(f"class C{n}(C{n + 1}, C{n + 1}, D{n}): ...\n" for n in range(1_000)) + BRINGS.format('Service("clock", C0())'),
    "thousands of classes of one name": "class Clock:\n    def other(self): ...\n" * 2_000 + BRINGS.format('Service("clock", Clock())'),
    "thousands of services": BRINGS.format(", ".join(f'Service("s{n}", Clock())' for n in range(2_000))),
    "a long dotted name": BRINGS.format(".".join(["a"] * 900) + '.Service("clock", Clock())'),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_source_is_read_all_the_same(tmp_path: Path, what: str) -> None:
    (tmp_path / "plugin.yaml").write_text("name: clocks\nversion: '1'\nservices: [clock]\n")
    (tmp_path / "__init__.py").write_text(HEAD + HOSTILE[what])
    found = [f for f in check_plugin(tmp_path).findings if f.code == "SERVICE_UNMARKED"]
    assert len(found) <= 1, found
