"""A plugin that is not as it was when its grants were decided, as a diagnostic."""

from __future__ import annotations

from tavern_core.kernel.plugins.record import Record
from tavern_core.model.plugin import Diagnostic


def changed_since_review(record: Record) -> Diagnostic | None:
    """A notice for a person; None if nothing changed.

    Another version is no news that anybody must act on. Other code under the same version is: a version is what people review.
    """
    standing = record.standing
    if not standing.note:
        return None
    hint = f"tavern plugins review {record.name}; `tavern plugins lock` notes it as reviewed"
    if "version" in standing.changed:
        return Diagnostic("GRANTS_CARRIED_OVER", standing.note, record.name, hint, "info")
    return Diagnostic("CODE_CHANGED", standing.note, record.name, hint, "warning")
