"""Every event has a number: the same for each subscriber and observer, without gaps for those who take all types."""

from __future__ import annotations

import threading
from textwrap import dedent
from typing import Any

import pytest

from tavern_core import Plugin, hookimpl, tool
from tavern_core.model.event import Event

from .conftest import Opened, tools
from .workshop import HELLO, Workshop


@tool
def hi() -> str:
    """Say hi."""
    return "hi"


class Observer:
    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []

    @hookimpl
    def tavern_on_event(self, event: Event) -> None:
        self.seen.append((event.seq, event.type))


@pytest.mark.slow
def test_subscribers_and_observers_see_the_same_numbers_without_gaps(opened: Opened) -> None:
    observer, every, results = Observer(), [], []
    host = opened(tools(hi), Plugin(observer, name="observer"))
    host.invoke_sync("t:hi")
    end = host.events.subscribe(every.append)
    host.events.subscribe(results.append, "TOOL_RESULT")
    for _ in range(3):
        assert host.invoke_sync("t:hi").ok
    end()
    numbers = [event.seq for event in every]
    assert numbers == list(range(numbers[0], numbers[0] + 6))
    assert [event.seq for event in results] == numbers[1::2]
    assert [event.to_json()["seq"] for event in results] == numbers[1::2]
    calls = [pair for pair in observer.seen if pair[0] >= numbers[0]]
    assert calls == [(event.seq, event.type) for event in every]


def test_calls_of_many_threads_share_no_number(opened: Opened) -> None:
    seen: list[Event] = []
    host = opened(tools(hi))
    host.events.subscribe(seen.append)
    threads = [threading.Thread(target=lambda: [host.invoke_sync("t:hi") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = sorted(event.seq for event in seen)
    assert len(numbers) == 400
    assert numbers == list(range(numbers[0], numbers[0] + 400))


@pytest.mark.slow
def test_an_observer_in_a_process_of_its_own_gets_the_number(workshop: Workshop) -> None:
    code = """
        from tavern_core import hookimpl, tool

        reported = []

        @hookimpl
        def tavern_on_event(event):
            reported.append(f"{event.type} {event.seq}")

        @tool
        def hello() -> list[str]:
            "What was observed."
            return reported

        @hookimpl
        def tavern_register_tools():
            return [hello]
    """
    folder = workshop.folder("far", "", "isolation: process\npermissions: {hooks: [hook:server:events]}\n" + HELLO)
    (folder / "__init__.py").write_text(dedent(code))
    workshop.grant("far")
    host = workshop.open(tools(hi))
    seen: list[Event] = []
    host.events.subscribe(seen.append)
    assert host.invoke_sync("t:hi").ok
    expected = [f"{event.type} {event.seq}" for event in seen if event.type.startswith("TOOL_")]
    reported: Any = host.invoke_sync("far:hello").value
    assert [line for line in reported if line in expected] == expected
