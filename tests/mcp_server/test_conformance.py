"""The official conformance suites of the protocol, in both eras, against a plugin that offers what they call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.server.mcp import asgi_app
from tests.mcp_server.conformance import not_scored, run
from tests.mcp_server.fixtures import Fixtures, plugins, profile
from tests.mcp_server.serving import served, with_token

pytestmark = pytest.mark.slow
TASKS = {
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
}
"""The scenarios of the Tasks extension that check something."""


@pytest.mark.parametrize(
    ("revision", "required", "checks", "tasks"), [("2026-07-28", 37, 196, TASKS), ("2025-11-25", 30, 84, set())]
)
def test_the_server_passes_every_scenario_that_a_revision_requires(
    tmp_path: Path, revision: str, required: int, checks: int, tasks: set[str]
) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "suite.json").write_text(json.dumps(profile()))
    fixtures = Fixtures()

    def open_host() -> Tavern:
        config = {"profiles": [str(folder)], "mcp": {"pollAfterMs": 300}}
        fixtures.tavern = Tavern.open(config, plugins=plugins(fixtures), home=tmp_path / "home")
        return fixtures.tavern

    def prepare(tavern: Tavern) -> Any:
        return with_token(asgi_app(tavern), tavern.tokens.create("agent:suite", profile="suite")[1])

    with served(open_host, prepare) as (url, _):
        found, written = run("server", "--url", url, "--requirements", revision)
    assert {name: counts for name, counts in found.items() if counts[1]} == {}, written
    assert len(found.keys() - not_scored(written)) == required, written
    assert {name for name, counts in found.items() if name.startswith("tasks-") and counts[0]} == tasks, written
    assert sum(counts[0] for counts in found.values()) >= checks, written
