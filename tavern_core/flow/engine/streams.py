"""The streams between the steps of a scheduler: writers, readers, and active readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tavern_core.flow.engine.channel import Channel, ChannelReader, ReleaseSlots
from tavern_core.flow.engine.plan_tables import PreparedPlan


class StepStreams:
    """The streams of one scheduler.

    Args:
        given: values of the interface inputs; streams among them are read on demand.
        rest_of: releases the slots of a waiting step; None without limits.
    """

    def __init__(
        self, prepared: PreparedPlan, given: Mapping[str, Any], rest_of: Callable[[int], ReleaseSlots | None]
    ) -> None:
        self._prepared = prepared
        self._rest_of = rest_of
        self._readers: dict[tuple[int, str], list[ChannelReader]] = {}
        self._channels: dict[int, dict[str, Channel]] = {}
        self.opened: set[int] = set()
        """Steps whose streams were opened."""
        for number, readers in prepared.readers.items():
            if prepared.works[number].step.kind == "input":
                for reader, key, output in readers:
                    if isinstance(source := given.get(output), ChannelReader):
                        self._add(reader, key, source.fork(rest_of(reader)))

    def open(self, number: int, is_over: Callable[[int], bool]) -> bool:
        """Open the streams of a step for its unfinished readers; False: there are none."""
        readers = self._prepared.readers.get(number)
        if not readers:
            return False
        channels: dict[str, Channel] = {}
        for reader, key, output in readers:
            if not is_over(reader):
                self._add(reader, key, channels.setdefault(output, self._channel(number)).reader(self._rest_of(reader)))
        self._channels[number] = channels
        self.opened.add(number)
        return True

    def _channel(self, number: int) -> Channel:
        return Channel(is_handled=self._prepared.works[number].step.exec.on_error != "fail")

    def of(self, number: int) -> Mapping[str, Channel]:
        """The open streams of a step by output."""
        return self._channels.get(number, {})

    def at(self, number: int, key: str) -> list[ChannelReader]:
        """The streams that a step reads at an input."""
        return self._readers.get((number, key), [])

    def readers(self, number: int) -> list[ChannelReader]:
        """The streams that a step reads at all of its inputs."""
        return [
            reader for binding in self._prepared.works[number].step.streams for reader in self.at(number, binding.key)
        ]

    def pause(self, number: int, by: int) -> None:
        """Increment (1) or decrement (-1) the reasons why a step does not read."""
        for reader in self.readers(number):
            reader.pause(by)

    @contextmanager
    def paused(self, number: int) -> Iterator[None]:
        """Pause the reading of a step that waits for another node; its writers, which the other may need, continue."""
        self.pause(number, 1)
        try:
            yield
        finally:
            self.pause(number, -1)

    def end(self, number: int, error: BaseException | None = None, *, is_handled: bool = False) -> None:
        """End all writing and reading of a step. `is_handled`: its readers are skipped if they fail."""
        if self._channels:
            for channel in self._channels.pop(number, {}).values():
                channel.is_handled |= is_handled
                channel.close(error)
        if self._readers and self._prepared.works[number].step.streams:
            for reader in self.readers(number):
                reader.leave()

    def end_all(self, error: BaseException) -> None:
        """End all streams, because the scheduler is over."""
        for number in list(self._channels):
            self.end(number, error)

    def _add(self, number: int, key: str, reader: ChannelReader) -> None:
        self._readers.setdefault((number, key), []).append(reader)
