"""The state of a host that outlives its process."""

from __future__ import annotations

from tavern_core.contract.stores import RecordStore
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.tokens import Tokens
from tavern_core.kernel.artifacts.artifacts import Artifacts


@dataclass(frozen=True, slots=True)
class State:
    """The stores of one host."""

    records: RecordStore
    """Keys, approvals, jobs and rates."""
    artifacts: Artifacts
    tokens: Tokens
