"""Requests of other processes to end a job or a call: a record that the process which runs it looks for."""

from __future__ import annotations

import time
from typing import Final

from tavern_core.contract.stores import Record, RecordStore

END: Final = "job-end"
_ASKED_S: Final = 60.0


def ask_to_end(records: RecordStore, id_: str) -> None:
    """Ask the process that runs this job or call to end it."""
    now = time.time()
    records.add(Record(END, id_, "", "asked", "{}", now, now + _ASKED_S))


def asked_to_end(records: RecordStore) -> list[str]:
    """Recent requests of all processes: one read serves all."""
    return [record.key for record in records.list(END, most=10_000)]
