"""The benchmark of repairs, on few workflows: reports are enough to repair what models break."""

from __future__ import annotations

import pytest

from tests.benchmarks.quality.repair import HELD_OUT_WAYS, WAYS, measured, table

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_what_models_break_is_repaired_by_the_report_alone() -> None:
    rows = await measured(2)
    assert [row.way for row in rows] == list(WAYS)
    assert sum(row.repaired for row in rows) >= 0.95 * sum(row.broken for row in rows), table(rows)
    never = [row.way for row in rows if row.broken and not row.repaired]
    assert never == [], table(rows)


async def test_so_is_what_the_reports_were_not_written_for() -> None:
    rows = await measured(3, HELD_OUT_WAYS, first=3_000, is_held_out=True)
    assert sum(row.repaired for row in rows) >= 0.95 * sum(row.broken for row in rows), table(rows)
    left_out = next(row for row in rows if row.way == "required node type left out")
    assert left_out.repaired == left_out.broken, table(
        rows
    )  # nodes are called step-1, step-2, …: none of them is a slip
