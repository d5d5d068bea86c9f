"""Redacts the results of calls: secrets that were resolved, or that came in with the call as marked arguments.

A tool may put them anywhere: into an exception's text, into an answer it echoes. They are replaced by ``***``. An error goes
further than an answer (to the log, to a model, to a screen), so from errors everything goes that looks like a secret, and
what came in under a name that gives it away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import isfinite
from typing import Any

from tavern_core.kernel.settings.secret_masking import KnownSecrets
from tavern_core.model import depths
from tavern_core.model.plain_data import with_leaves
from tavern_core.model.result import NO_REST, ToolError, ToolResult
from tavern_core.model.safe_printing import printed
from tavern_core.schema.bounded_json_copying import NUMBERS
from tavern_core.schema.redact import named_secrets, redact_text
from tavern_core.schema.secret_encodings import SHORTEST, SecretRedactor, secret_redactor
from tavern_core.schema.secret_names import is_secret_name
from tavern_core.schema.secret_scanning import may_hold_secret, redact_sentence

_LONGEST_NAME = 40
"""Maximum length of names that are cached as harmless; nearly all are shorter."""
_OF_TOOLS = frozenset({"TOOL_ERROR", "UPSTREAM_ERROR"})
"""Errors whose texts are the tool's own."""


def redact_result(result: ToolResult, secrets: Iterable[str], named: Iterable[str] = ()) -> ToolResult:
    """`result` without the given texts, in any spelling; the same object if none occurs in it.

    Args:
        named: redacted in its error only: arguments that are secret by their name, which may be a harmless name.
    """
    wanted, error = frozenset(secrets), result.error
    if error is None and not wanted:
        return result
    out = secret_redactor(wanted if error is None else wanted.union(named))
    changes: dict[str, Any] = {}
    if result.value is not None and (value := _each_text(result.value, out)) != result.value:
        changes["value"] = value
    if error is None:
        changes |= _redacted_beside(result, out)
    else:
        changes |= _redacted_beside(result, lambda text: redact_text(out(text)))
        if (shown := _redacted_error(error, out, wanted, frozenset(named))) != error:
            changes["error"] = shown
    return result.replace(**changes) if changes else result


def _redacted_beside(result: ToolResult, change: Callable[[str], str]) -> dict[str, Any]:
    """The changes of a result besides its value and error."""
    changes: dict[str, Any] = {}
    if result._content:
        content = tuple(_each_text(list(result._content), change))
        changes |= {"content": content} if content != tuple(result._content) else {}
    if result._evidence:
        evidence = tuple(replace(one, ref=change(one.ref), summary=change(one.summary)) for one in result._evidence)
        changes |= {"evidence": evidence} if evidence != result._evidence else {}
    if result._meta and (meta := _each_text(dict(result._meta), change)) != result._meta:
        changes["meta"] = meta
    return changes


def _redacted_error(error: ToolError, out: SecretRedactor, wanted: frozenset[str], named: frozenset[str]) -> ToolError:
    def clean(value: Any) -> Any:
        return _each_text(value, lambda text: redact_text(out(text)))

    redact_own: Callable[[str], str] = clean
    if error.kind not in _OF_TOOLS:  # its words are the host's: "extensions.a.token: there is no such setting"
        redact_own = lambda text: redact_sentence(text, wanted, named)  # noqa: E731
    return replace(
        error, message=redact_own(error.message), details=clean(dict(error.details)), fix=redact_own(error.fix)
    )


def masking(known: KnownSecrets) -> Callable[[Any], Any]:
    """A function that redacts plain JSON for storage: whole, and without its secrets.

    Args:
        known: the secret texts of the host. It also redacts everything that looks like a secret, and values
            under a secret-looking name, in all places where they occur.
    """

    def mask(value: Any) -> Any:
        if value is None or isinstance(value, int | float):
            return value
        out = secret_redactor(frozenset([*known.values, *named_secrets(value)]))
        return _each_text(value, lambda text: redact_text(out(text)))

    return mask


def judging(known: KnownSecrets) -> Callable[[Any], bool]:
    """A function that checks whether plain JSON contains a secret; it inspects all of it, without limit or copy.

    Args:
        known: the secret texts of the host.
    """

    def holds_secret(value: Any) -> bool:
        secrets = known.values
        if not secrets and _is_plainly_harmless(value):
            return False
        out = secret_redactor(secrets) if secrets else None
        stack: list[tuple[Any, int, bool]] = [(value, depths.WRAPPED, False)]
        while stack:
            each, depth, is_named = stack.pop()
            if isinstance(each, str):
                if (is_named and len(each) >= SHORTEST) or (out is not None and out(each) != each):
                    return True
                if may_hold_secret(each) and redact_text(each) != each:
                    return True
            elif isinstance(each, Mapping):
                stack += [(item, depth - 1, is_named or is_secret_name(str(name))) for name, item in each.items()]
                stack += [(name, depth - 1, False) for name in each]
            elif isinstance(each, list | tuple):
                stack += [(item, depth - 1, is_named) for item in each]
            if depth < 0:
                return True
        return False

    return holds_secret


def _is_plainly_harmless(value: Any) -> bool:
    """Whether a flat object has no name of a secret and no sign of one: one question for all of its texts."""
    if type(value) is not dict:
        return False
    texts = []
    for name, item in value.items():
        if type(name) is not str or len(name) > _LONGEST_NAME or not _is_harmless_name(name):
            return False
        kind = type(item)
        if kind is str:
            texts.append(item)
        elif kind not in NUMBERS:
            return False
    return not texts or not may_hold_secret("\n".join(texts))


@lru_cache(maxsize=4_096)
def _is_harmless_name(name: str) -> bool:
    return not (is_secret_name(name) or may_hold_secret(name))


def redact_values(value: Any, secrets: Iterable[str]) -> Any:
    """A copy of plain JSON with each secret replaced in all places and spellings."""
    wanted = frozenset(secrets)
    return _each_text(value, secret_redactor(wanted)) if wanted else value


def redacted_outputs(outputs: Mapping[str, Any], secrets: Iterable[str]) -> dict[str, Any]:
    """The result of a run, without the given texts; the same object if it holds none of them."""
    if not (wanted := frozenset(secrets)):
        return dict(outputs)
    out = secret_redactor(wanted)
    return {
        key: _each_text(value, out) if _holds(value, out, depths.WRAPPED) else value for key, value in outputs.items()
    }


def _holds(value: Any, out: SecretRedactor, depth: int) -> bool:
    if isinstance(value, str):
        return out.finds(value)
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        return any(_holds(part, out, depth - 1) for item in value.items() for part in item)
    return isinstance(value, list | tuple) and any(_holds(item, out, depth - 1) for item in value)


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    def clean(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, bool | int) or (isinstance(leaf, float) and isfinite(leaf)):
            return leaf
        return change(leaf if isinstance(leaf, str) else printed(leaf))  # what is printed is no JSON

    return with_leaves(value, clean, with_keys=True)


class StorageRedactor:
    """Prepares parts of calls for storage: without their secrets.

    Args:
        known: the secret texts of the host.
    """

    def __init__(self, known: KnownSecrets) -> None:
        self._mask, self._holds_secret = masking(known), judging(known)

    def result(self, result: ToolResult, *given: Any) -> ToolResult:
        """A result without secrets; if it held some, its `meta` states that.

        Args:
            given: the arguments of its call, for what is secret by its name.
        """
        if type(result.value) in NUMBERS and result.error is None and result._rest is NO_REST:
            return result
        clean = redact_result(result, named_secrets(given))
        parts = [
            clean.value,
            list(clean._content),
            clean._meta,
            clean.error and [clean.error.message, clean.error.details],
        ]
        if not self._holds_secret(parts):
            return clean if clean == result else clean.replace(meta={**(clean._meta or {}), "masked": True})
        error = clean.error
        if error is not None:
            error = replace(error, message=self._mask(error.message), details=self._mask(dict(error.details)))
        meta = self._mask(dict(clean._meta or {})) | {"masked": True}
        return clean.replace(
            value=self._mask(clean.value), content=tuple(self._mask(list(clean._content))), meta=meta, error=error
        )

    def text(self, text: str) -> str:
        """A text without secrets."""
        return str(self._mask(text))

    def arguments(self, given: Any) -> Any:
        """Arguments in a form to store; None: they hold secrets and must not be stored."""
        return None if any(named_secrets(given)) or self._holds_secret(given) else given
