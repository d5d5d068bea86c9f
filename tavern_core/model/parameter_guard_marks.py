"""Marks for parameters that hold a path, an address or an SQL statement (SECURITY §5).

A tool's JSON Schema sets the mark with ``x-tavern: {guard: path | url | sql}`` or a `format`, never the name of a parameter:

    {"type": "string", "x-tavern": {"guard": "path", "root": "workspace", "mode": "read"}}
    Annotated[str, Guard.path(root="workspace", mode="read")]          the same, for tools that are Python functions
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.nearest import did_you_mean

GuardKind = Literal["path", "url", "sql"]
MARK: Final = "x-tavern"
NO_GUARD: Final = "none"
"""``guard: none`` turns off the guard of a `format`: the value is plain text."""
WHOLE: Final = "absolute"
"""Option of a mark that comes from ``format: uri-reference``: a reference without a host is not an address."""

_OPTIONS: Final[Mapping[str, Mapping[str, tuple[str, ...] | None]]] = {
    "path": {"root": None, "mode": ("read", "write")},
    "url": {"schemes": None, "hosts": None},
    "sql": {"dialect": None, "mode": ("read", "write")},
    NO_GUARD: {},
}
"""Kind → option → its values; None: any text (`schemes` and `hosts`: a list of texts)."""
_LISTS: Final = ("schemes", "hosts")
_FORMATS: Final[Mapping[str, GuardKind]] = {
    "uri": "url",
    "iri": "url",
    "url": "url",
    "uri-reference": "url",
    "iri-reference": "url",
    "path": "path",
    "file-path": "path",
    "directory-path": "path",
    "sql": "sql",
}


@dataclass(frozen=True, slots=True)
class Guard:
    """A mark: the kind of the value, and the options of its author.

    Use `Guard.path`, `Guard.url` and `Guard.sql` inside ``Annotated[...]``.
    """

    kind: GuardKind
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def path(cls, *, root: str = "", mode: Literal["read", "write", ""] = "") -> Guard:
        """A file or folder.

        Args:
            root: the folder in which it must be and where relative paths start: ``workspace`` (the caller's), ``project``,
                ``plugin`` (the folder of plugin.yaml), ``data`` (`ctx.data_dir`) or an absolute path. Default: what was granted.
            mode: the access, which selects the scope: ``read:fs`` or ``write:fs``. Default: every one of the
                two that the tool needs.
        """
        return cls("path", _without_empty(root=root, mode=mode))

    @classmethod
    def url(cls, *, schemes: Iterable[str] = (), hosts: Iterable[str] = ()) -> Guard:
        """A network address.

        Args:
            schemes: allowed ones; default: https and http.
            hosts: a further limit, written like a scope: ``api.example.org``, ``*.example.org:8443``.
        """
        return cls("url", _without_empty(schemes=tuple(schemes), hosts=tuple(hosts)))

    @classmethod
    def sql(cls, *, dialect: str = "", mode: Literal["read", "write", ""] = "") -> Guard:
        """A statement for a database.

        Args:
            dialect: sqlite, postgres, mysql, tsql … Default: the statement must be harmless in all of them.
            mode: ``read`` allows only reading, even if ``write:db`` is granted.
        """
        return cls("sql", _without_empty(dialect=dialect, mode=mode))

    def get(self, option: str, default: Any = "") -> Any:
        """The value of an option, or `default`."""
        return next((value for name, value in self.options if name == option), default)

    @property
    def mark(self) -> dict[str, Any]:
        """The value of ``x-tavern``."""
        return {"guard": self.kind, **{name: list(v) if isinstance(v, tuple) else v for name, v in self.options}}

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        """Add the mark to the JSON Schema of an annotation, for pydantic."""
        return {**handler(core), MARK: self.mark}


def guard_of(schema: Mapping[str, Any]) -> Guard | None:
    """The mark of one (sub)schema; it takes precedence over a `format`. In an invalid mark, the valid options apply."""
    mark = schema.get(MARK)
    kind = mark.get("guard") if isinstance(mark, Mapping) else None
    if kind == NO_GUARD:
        return None
    if isinstance(mark, Mapping) and kind in ("path", "url", "sql"):
        known = _OPTIONS[kind]
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in mark.items() if k in known}
        return Guard(kind, _without_empty(**options))
    form = schema.get("format")
    if not isinstance(form, str) or (by_format := _FORMATS.get(form)) is None:
        return None
    return Guard(by_format, ((WHOLE, True),) if form.endswith("-reference") else ())


def mark_flaws(mark: Any) -> list[tuple[str, str, str]]:
    """The problems of an ``x-tavern`` value: (option or "", message, hint); empty if it is valid."""
    if not isinstance(mark, Mapping):
        return [("", "`x-tavern` is an object", "write x-tavern: {guard: path}")]
    if "guard" not in mark:
        unknown = [key for key in mark if key != "secret"]
        return [
            (
                str(key),
                f"unknown option {key!r:.60}",
                did_you_mean(str(key), ("guard", "secret")) or "a mark has guard, secret",
            )
            for key in unknown
        ]
    kind = mark["guard"]
    if not isinstance(kind, str) or kind not in _OPTIONS:
        near = did_you_mean(kind, _OPTIONS) if isinstance(kind, str) else ""
        return [("guard", f"{kind!r:.60} is not a guard", near or f"use one of {', '.join(_OPTIONS)}")]
    flaws = []
    for option, value in mark.items():
        if option in ("guard", "secret"):
            continue
        known = _OPTIONS[kind]
        if option not in known:
            hint = did_you_mean(option, known) or f"a guard of kind {kind} has {', '.join(known) or 'no options'}"
            flaws.append((option, f"unknown option {option!r:.60}", hint))
        elif option in _LISTS:
            if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                flaws.append((option, f"`{option}` is a list of texts", f'write {option}: ["…"]'))
        elif not isinstance(value, str):
            flaws.append((option, f"`{option}` is a text", ""))
        elif (allowed := known[option]) is not None and value not in allowed:
            flaws.append((option, f"{value!r:.60} is not a valid {option}", f"use one of {', '.join(allowed)}"))
    return flaws


def _without_empty(**options: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in options.items() if value not in ("", ()))
