"""Is a schema valid for the meta-schema of its draft? Checked quickly and explained in our words."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tavern_core.schema.problem import SchemaProblem
from tavern_core.schema.schema_lint_rules import VALIDATORS, Draft
from tavern_core.schema.uniqueness import unique_items

if TYPE_CHECKING:
    from jsonschema.protocols import Validator as Engine

_LIMIT = 20


@functools.cache
def python_draft(draft: Draft) -> type[Engine]:
    """jsonschema's validator class of a draft."""
    import jsonschema

    found: type[Engine] = getattr(jsonschema, VALIDATORS[draft])
    return found


@functools.cache
def _meta_engine(draft: Draft) -> Engine:
    """The validator for schemas of a draft; a list of ten thousand types costs no more than reading it."""
    import attrs
    from jsonschema import validators

    extend: Callable[..., Any] = validators.extend
    made = extend(python_draft(draft), {"uniqueItems": unique_items})
    # The parts of a meta-schema name their draft, for which jsonschema would take its own class again.
    made.evolve = lambda engine, **changes: attrs.evolve(engine, **changes)
    judge: Engine = made(made.META_SCHEMA)
    return judge


def meta_flaws(schema: dict[str, Any], draft: Draft) -> list[SchemaProblem]:
    """Where a schema of bounded size breaks the meta-schema of its draft."""
    if _is_quickly_accepted(schema, draft):
        return []
    from tavern_core.schema.explain import explain

    errors = _meta_engine(draft).iter_errors(schema)
    return explain(errors, _LIMIT)


def _is_quickly_accepted(schema: dict[str, Any], draft: Draft) -> bool:
    import jsonschema_rs

    named = {"draft-07": "http://json-schema.org/draft-07/schema#"}.get(
        draft, f"https://json-schema.org/draft/{draft}/schema"
    )
    try:
        return bool(jsonschema_rs.meta.is_valid({**schema, "$schema": named}))
    except ValueError:
        return False
