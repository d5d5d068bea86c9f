"""The benchmark of repairs, on few workflows: reports are enough to repair what models break."""

from __future__ import annotations

import pytest

from tests.benchmarks.quality.repair import WAYS, measured, table

pytestmark = pytest.mark.anyio


async def test_what_models_break_is_repaired_by_the_report_alone() -> None:
    rows = await measured(2)
    assert [row.way for row in rows] == list(WAYS)
    assert sum(row.repaired for row in rows) >= 0.95 * sum(row.broken for row in rows), table(rows)
    never = [row.way for row in rows if not row.repaired]
    assert never == [], table(rows)
