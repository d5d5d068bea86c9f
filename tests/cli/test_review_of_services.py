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


@pytest.mark.parametrize("what", METHODS)
def test_the_review_shows_what_the_right_to_read_covers(project: Path, tavern: Run, what: str) -> None:
    methods, reaches, shown = METHODS[what]
    trace = project / "imported"
    plugins = project / "plugins"
    for name, manifest in {
        "boxes": "services: [box]",
        "user": "permissions: {services: {use: [box, systemClock, gone], write: [box]}}",
    }.items():
        (plugins / name).mkdir(parents=True)
        (plugins / name / "plugin.yaml").write_text(f"name: {name}\nversion: '1'\n{manifest}\n")
    (plugins / "boxes" / "__init__.py").write_text(BRINGS.format(trace=trace, methods=methods))
    reported = {
        row["permission"]: row["reaches"]
        for row in tavern("plugins", "review", "user", "--json").json["plugins"][0]["permissions"]
    }
    assert reported == {
        "service:use:box": reaches,
        "service:use:systemClock": ["now", "timezone"],
        "service:use:gone": None,
        "service:write:box": None,
    }
    rows = [" ".join(line.split()) + "\n" for line in tavern("plugins", "review", "user").out.splitlines()]
    [row] = [row for row in rows if "service:use:box" in row and row.startswith("+")]
    assert shown in row
    assert not trace.exists()
