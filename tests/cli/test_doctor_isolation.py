"""`tavern doctor` names every layer of the box, present or missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tavern_core.box.policy import LAYERS
from tests.forked_programs import run_forked

from .conftest import Run


@pytest.mark.slow
def test_every_layer_is_named_in_text_and_in_json(tavern: Run) -> None:
    rows = {row["what"]: row for row in json.loads(tavern("doctor", "--json").out)["host"]}
    assert {f"isolation: {layer}" for layer in LAYERS} <= set(rows)
    assert all(rows[f"isolation: {layer}"]["verdict"] == "ok" for layer in LAYERS)
    assert all(f"isolation: {layer}" in tavern("doctor").out for layer in LAYERS)


@pytest.mark.parametrize(
    ("isolation", "what", "found", "fix"),
    [
        ("{without: [landlock]}", "isolation: landlock", "switched off", "isolation.without"),
        ("{level: none}", "isolation", "switched off", "level"),
    ],
)
def test_what_is_switched_off_is_a_warning_with_its_repair(
    project: Path, tavern: Run, isolation: str, what: str, found: str, fix: str
) -> None:
    with (project / "tavern.yaml").open("a") as config:
        config.write(f"\nisolation: {isolation}\n")
    rows = {row["what"]: row for row in json.loads(tavern("doctor", "--json").out)["host"]}
    assert rows[what]["verdict"] == "warning"
    assert found in rows[what]["found"]
    assert fix in rows[what]["fix"]


WITHOUT_LANDLOCK = """
import os, struct, sys
from tavern_core.box import seccomp
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7FFF0000)]
seccomp.install(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
from tavern_core.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_layer_that_the_system_lacks_is_missing_with_the_reason(project: Path, home: Path) -> None:
    """A filter takes the layer away from the command and from all that it starts."""
    done = run_forked(["-c", WITHOUT_LANDLOCK, "--home", str(home), "doctor", "--json"], cwd=project)
    rows = {row["what"]: row for row in json.loads(done.stdout)["host"]}
    assert rows["isolation: landlock"]["verdict"] == "warning"
    assert rows["isolation: landlock"]["found"] == "missing: Function not implemented"
    assert "best-effort" in rows["isolation: landlock"]["fix"]
    assert rows["isolation: seccomp"]["verdict"] == "ok"
