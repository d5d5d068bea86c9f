"""`tavern plugins review` tells what the right to look at a service reaches, without running any code for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

pytestmark = pytest.mark.slow

BRINGS = """\
from tavern_core import Service, hookimpl, mutates, read_only
open("{trace}", "w").close()
class Box:
{methods}
@hookimpl
def tavern_register_services(ctx):
    return [Service("box", Box())]
"""
NOTHING = "allows no call: the service marks no method @read_only"
METHODS: dict[str, tuple[str, list[str] | None, str]] = {
    # the class, what `use` reaches in JSON, what stands in the table
    "marked": ("    @read_only\n    def look(self): ...\n    @read_only\n    def peek(self): ...\n    def put(self): ...", ["look", "peek"], "reaches look, peek"),
    "unmarked": ("    def look(self): ...", [], NOTHING),
    "only changing": ("    @mutates\n    def put(self): ...", [], NOTHING),
    "computed": ("    look = make()", None, "use the service 'box' without changing it\n"),
    "not readable": ("    def (", None, "use the service 'box' without changing it\n"),
}  # fmt: skip


def test_the_review_shows_what_the_right_to_read_covers(project: Path, tavern: Run) -> None:
    trace, plugins = project / "imported", project / "plugins"
    boxes = {f"box{number}": methods for number, (methods, _, _) in enumerate(METHODS.values())}
    asked = f"permissions: {{services: {{use: [{', '.join(boxes)}, systemClock, gone], write: [box0]}}}}"
    for name, manifest in {"user": asked, **{f"with-{name}": f"services: [{name}]" for name in boxes}}.items():
        (plugins / name).mkdir()
        (plugins / name / "plugin.yaml").write_text(f"name: {name}\nversion: '1'\n{manifest}\n")
    for name, methods in boxes.items():
        code = BRINGS.format(trace=trace, methods=methods).replace('"box"', f'"{name}"')
        (plugins / f"with-{name}" / "__init__.py").write_text(code)
    reported = {
        row["permission"]: row["reaches"]
        for row in tavern("plugins", "review", "user", "--json").json["plugins"][0]["permissions"]
    }
    assert reported == {
        **{f"service:use:box{number}": reaches for number, (_, reaches, _) in enumerate(METHODS.values())},
        "service:use:systemClock": ["now", "timezone"],
        "service:use:gone": None,
        "service:write:box0": None,
    }
    rows = [" ".join(line.split()) + "\n" for line in tavern("plugins", "review", "user").out.splitlines()]
    for name, (_, _, shown) in zip(boxes, METHODS.values(), strict=True):
        [row] = [row for row in rows if f"service:use:{name}" in row and row.startswith("+")]
        assert shown.replace("'box'", f"'{name}'") in row
    assert not trace.exists()
