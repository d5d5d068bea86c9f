"""The official conformance suite of the protocol, in both eras, with the adapter as the client."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.mcp_server.conformance import NODE, SUITE, not_scored
from tests.upstreams.conformance_client import playing

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("revision", "scenarios"), [("2026-07-28", 32), ("2025-11-25", 18)])
def test_the_client_passes_every_scenario_that_a_revision_requires(
    revision: str, scenarios: int, tmp_path: Path
) -> None:
    with playing() as client:
        command = [
            str(NODE),
            str(SUITE),
            "client",
            "--command",
            client,
            "--requirements",
            revision,
            "--timeout",
            "120000",
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    written = done.stdout + done.stderr
    extra = not_scored(written)
    found = dict(re.findall(r"[✓✗~] ([\w/.-]+): \d+ passed, (\d+) failed", written.rpartition("SUITE SUMMARY")[2]))
    assert {name for name, failed in found.items() if failed != "0"} <= extra, written
    assert len(found.keys() - extra) == scenarios, written
