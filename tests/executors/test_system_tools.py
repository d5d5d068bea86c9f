"""system:get_current_time"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.builtin import BUILTIN
from tavern_core.builtin.executors.python import PythonExecutor
from tavern_core.builtin.services.clock import MachineClock
from tavern_core.builtin.tools.system import formatted, tavern_register_tools
from tavern_core.contract.core_services import SYSTEM_CLOCK
from tavern_core.errors import InputInvalid
from tavern_core.testing import fake_context
from tests.rows import each_row

from .workbench import home

MOMENT = datetime(2026, 11, 21, 15, 4, 5, 123456, tzinfo=UTC)


@each_row(
    ("zone", "pattern", "text"),
    [
        ("UTC", None, "2026-11-21T15:04:05+00:00"),
        ("utc", None, "2026-11-21T15:04:05+00:00"),
        ("Asia/Shanghai", None, "2026-11-21T23:04:05+08:00"),
        ("America/New_York", None, "2026-11-21T10:04:05-05:00"),
        ("Asia/Kathmandu", "%H:%M %z", "20:49 +0545"),
        ("Asia/Shanghai", "%Y年%m月%d日", "2026年11月21日"),
        ("UTC", "", ""),
    ],
)
def test_a_time_is_given_in_a_zone_and_a_format(zone: str, pattern: str | None, text: str) -> None:
    assert formatted(MOMENT, zone, pattern) == text


def test_without_a_zone_it_is_the_hosts_own() -> None:
    assert datetime.fromisoformat(formatted(MOMENT)) == MOMENT.replace(microsecond=0)


@pytest.mark.parametrize(
    ("zone", "nearest"),
    [
        ("shanghai", "Asia/Shanghai"),
        ("Asia/Shangai", "Asia/Shanghai"),
        ("Europe/berlin", "Europe/Berlin"),
        ("中国", None),
    ],
)
def test_an_unknown_zone_names_the_nearest(zone: str, nearest: str | None) -> None:
    with pytest.raises(InputInvalid) as caught:
        formatted(MOMENT, zone)
    assert caught.value.details["argument"] == "timezone"
    assert (caught.value.details["nearest"] or [None])[0] == nearest
    assert caught.value.hint


@pytest.mark.slow
@settings(max_examples=50)  # the nearest of 600 zones is looked for each time
@given(st.text(max_size=80), st.none() | st.text(max_size=80))
def test_no_text_does_more_than_be_refused(zone: str, pattern: str | None) -> None:
    for chosen in (zone, "UTC"):
        with contextlib.suppress(InputInvalid):
            assert isinstance(formatted(MOMENT, chosen, pattern), str)


@pytest.mark.parametrize(
    "zone", ["../../etc/passwd", "/etc/localtime", "Asia", "", "\0", "posixrules/..", "a" * 5000, "\ud800"]
)
def test_a_zone_is_never_a_path(zone: str) -> None:
    with pytest.raises(InputInvalid):
        formatted(MOMENT, zone)


def test_the_tool_is_the_hosts_and_reads_only() -> None:
    (tool,) = tavern_register_tools(fake_context("core-system", services={SYSTEM_CLOCK: MachineClock()}))
    assert (tool.id, tool.read_only, tool.fast, tool.capabilities) == (
        "system:get_current_time",
        True,
        True,
        frozenset(),
    )
    before = datetime.now(UTC).replace(microsecond=0)
    reported: Any = PythonExecutor().bind(tool, home()).run({"timezone": "Asia/Tokyo"}, None)
    assert before <= datetime.fromisoformat(reported) <= datetime.now(UTC)


def test_every_built_in_is_a_module_of_hookimpls() -> None:
    import importlib

    for name, module, _ in BUILTIN:
        assert name.startswith("core-")
        hooks = [key for key in vars(importlib.import_module(module)) if key.startswith("tavern_")]
        assert hooks, name
