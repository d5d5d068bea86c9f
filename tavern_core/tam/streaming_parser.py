"""Reading a stream: pieces of text go in, completed parts come out.

A piece that can decide nothing (without the characters that the machine waits for) is only buffered; the buffer is read together
with the first piece that can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tavern_core.tam.block_parsing import DEFAULT_MAX_BLOCK, FENCE, FIELDS, NOTE, PROSE, SEEK
from tavern_core.tam.document import Document, Event
from tavern_core.tam.fields import FIELD_SIGNS
from tavern_core.tam.grammar import REACH, named_thoughts
from tavern_core.tam.machine import Machine

_PATIENT: Final = 4096


class Scanner:
    """Reads text that arrives in pieces. No I/O; never raises on any text.

    The events are the same for every way to cut the text; `document` after `close()` equals `parse` of the whole text.

        scanner = Scanner()
        for chunk in answer:
            for event in scanner.feed(chunk):
                ...                          # Text, BlockStart, Field, Comment, TextProblem, Block
        scanner.close()

    Args:
        ignore_fenced, max_block, thoughts: as for `parse`. At most `max_block` characters of an open block are stored.
    """

    def __init__(
        self, *, ignore_fenced: bool = False, max_block: int = DEFAULT_MAX_BLOCK, thoughts: Iterable[str] = ()
    ) -> None:
        self._thoughts = named_thoughts(thoughts)
        self._machine = Machine(max_block=max_block, stream=True, ignore_fenced=ignore_fenced, thoughts=self._thoughts)
        self._careful_prose = ignore_fenced
        self._pile: list[str] = []
        self._room = 0
        self._signs: tuple[str, ...] = ()
        self._in_prose = False
        self._pass = self._machine.pass_piece
        self._document: Document | None = None
        self._prepare(self._machine)

    def feed(self, chunk: str) -> list[Event]:
        """Add the next piece; returns the events that are now certain. After `close` it is ignored."""
        if self._in_prose:
            if "<" not in chunk:
                return self._pass(chunk)
        elif self._signs and len(chunk) < self._room:
            for sign in self._signs:
                if sign in chunk:
                    break
            else:
                self._pile.append(chunk)
                self._room -= len(chunk)
                return []
        if self._document is not None or not chunk:
            return []
        return self._read(chunk)

    def close(self) -> list[Event]:
        """End of the text: returns the remaining events."""
        if self._document is not None:
            return []
        self._machine.no_more = True
        events = self._read("")
        self._document = Document(self._machine.blocks, self._machine.prose, self._thoughts)
        self._signs, self._in_prose = (), False
        return events

    @property
    def document(self) -> Document:
        """The part read so far; the whole after `close()`."""
        return self._document or Document(tuple(self._machine.blocks), tuple(self._machine.prose), self._thoughts)

    def _read(self, chunk: str) -> list[Event]:
        machine = self._machine
        if self._pile:
            self._pile.append(chunk)
            machine.text += "".join(self._pile)
            self._pile.clear()
        else:
            machine.text += chunk
        machine.run()
        events, machine.events = machine.events, []
        if not machine.no_more:
            self._prepare(machine)
        return events

    def _prepare(self, machine: Machine) -> None:
        """Drop text that no decision needs any more, and record which characters the machine waits for."""
        state = machine.state
        if FIELDS <= state <= NOTE:
            size = len(machine.text)
            if size > 2 * REACH:
                machine.shorten()
            self._in_prose = False
            self._signs = FIELD_SIGNS if state == FIELDS else machine.waits_for()
            room = machine.limit - len(machine.text)
            self._room = room if room < _PATIENT else _PATIENT
            return
        self._signs = ()
        if state <= FENCE:
            if machine.prose_from == len(machine.text) and not self._careful_prose:
                machine.leave_behind()
                machine.pos = machine.prose_from = 0
            elif machine.prose_from > 1:
                machine.drop(machine.prose_from - 1)  # the preceding character shows where a line starts
        else:
            machine.forget(min(machine.pos, len(machine.text) - REACH))
            self._signs, self._room = (">",) if state == SEEK else (machine.form.tail[-1],), _PATIENT
        self._in_prose = state == PROSE and not machine.text and not self._careful_prose
