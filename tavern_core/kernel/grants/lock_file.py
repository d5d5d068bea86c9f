"""The lock file: the grants of every plugin, in YAML that people read, compare and correct.

    version: 1
    plugins:
      text:
        version: 1.2.0
        manifestHash: sha256:…
        artifactHash: sha256:…
        tier: process
        grantedAt: '2026-11-21T15:04:05.123Z'
        grantedBy: user:alice
        requested: [...]
        granted: [...]
        refused: [...]
        scopes: {read:fs: [./data]}
      clock:                                      # an upstream also has
        target: mcp-server-time --local UTC
        tools: {now: sha256:…}
        …

Text in, grants out, and back; no files here. Invalid content grants nothing: an invalid record removes the grants of
its plugin, an unreadable text all of them, and a finding names the place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import yaml

from tavern_core.contract.permissions import canonical_hook, is_permission, known_permissions
from tavern_core.errors import Finding, Location, StateDamaged
from tavern_core.kernel.grants.grants import GrantRecord, Grants, Tier
from tavern_core.kernel.grants.lock_comments import keep_comments
from tavern_core.model.capability_scope import entry_problem
from tavern_core.model.naming_rules import is_plugin_name
from tavern_core.model.nearest import did_you_mean, known_instead

if TYPE_CHECKING:
    from tavern_core.kernel.text.yaml_reader import YamlDocument

FORMAT: Final = 1
_CODE: Final = StateDamaged.code
_Severity = Literal["error", "warning"]
_HEADER: Final = """\
# What each plugin may use on this host. Written by `tavern plugins grant`, `revoke` and `lock`; review changes like code.
# A permission works only if the plugin requests it and it is under `granted`. `refused` wins.
"""
_OUR_LINES: Final = (
    *_HEADER.splitlines(),
    # of 0.1
    "# What each plugin may use on this host. Written by `tavern plugins grant` and `revoke`; review changes like code.",
    "# A permission works only if the plugin requests it and it is under `granted`. `refused` wins. Comments are lost.",
)
_TEXTS: Final = {
    "version": "version",
    "manifestHash": "manifest_hash",
    "artifactHash": "artifact_hash",
    "tier": "tier",
    "grantedAt": "granted_at",
    "grantedBy": "granted_by",
    "target": "target",
}
_TIERS: Final[tuple[str, ...]] = get_args(Tier)
_ALWAYS: Final = ("version", "manifestHash", "artifactHash")
_LISTS: Final = ("requested", "granted", "refused")
_KEYS: Final = (*_TEXTS, *_LISTS, "scopes", "tools")
MOST_REPORTED: Final = 1000
"""Maximum errors, and warnings, of one file: the rest is not read, so that a hostile file cannot cost more."""
_MOST_COMPARED: Final = 50
"""Unknown words for which the nearest known one is looked up; that takes about a millisecond each."""
_SCOPES: Final = "docs/permissions.md explains how scopes are written"


class _Dumper(yaml.SafeDumper):
    """Quotes every text that begins like a number: PyYAML leaves ``12e4`` plain, which YAML 1.2 reads as one."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if text[:1].isalpha() else "'")


_Dumper.add_representer(str, _represent_text)


def render_lock(records: Mapping[str, GrantRecord], before: str = "") -> str:
    """The whole file, sorted, with its header.

    Args:
        before: the previous file, well-formed; its comments are kept.
    """
    data = {"version": FORMAT, "plugins": {name: _record_data(record) for name, record in sorted(records.items())}}
    text = _HEADER + yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=10_000
    )
    return keep_comments(before, text, but=_OUR_LINES) if before else text


def _record_data(record: GrantRecord) -> dict[str, Any]:
    texts = {key: _printable(getattr(record, name)) for key, name in _TEXTS.items()}
    data: dict[str, Any] = {key: text for key, text in texts.items() if text or key in _ALWAYS}
    data["requested"] = sorted(record.requested)
    if record.scopes:
        data["scopes"] = {name: list(scope) for name, scope in sorted(record.scopes.items())}
    if record.tools:
        data["tools"] = {_printable(name): digest for name, digest in sorted(record.tools.items())}
    # Grants last: a file that was cut off grants less, never without its limits.
    return data | {"refused": sorted(record.refused), "granted": sorted(record.granted)}


def _printable(text: str) -> str:
    """Text that a terminal and a YAML reader can handle, as names come from elsewhere."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def parse_lock(text: str, file: str) -> Grants:
    """The grants in the text of a lock file, and the findings about it. Never raises on content."""
    from tavern_core.kernel.text.yaml_reader import read_yaml

    if text and text[-1] not in "\n}]":
        where = Location(file, text.count("\n") + 1, len(text.rpartition("\n")[2]))
        message = "the file ends in the middle of a line: was it cut off?"
        return Grants({}, (Finding(_CODE, message, "add what is missing, and a line end", where),))
    document = read_yaml(text, file, code=_CODE)
    if not document.is_readable:
        return Grants({}, document.findings)
    reader = _LockFileReader(document)
    records = reader.records()
    return Grants(records, tuple(reader.findings))


class _LockFileReader:
    """Checks the document record by record; a wrong one is left out."""

    def __init__(self, document: YamlDocument) -> None:
        self.findings: list[Finding] = []
        self._document = document
        self._is_wrong = False
        self._reported: Counter[_Severity] = Counter()

    def records(self) -> dict[str, GrantRecord]:
        data = self._document.data
        if data is None:
            return {}
        if not isinstance(data, dict):
            self._error((), "the lock file must be a mapping with `version` and `plugins`")
            return {}
        if type(found := data.get("version")) is not int or found != FORMAT:  # True and 1.0 are equal to 1, too
            self._error(
                ("version",), f"this host reads lock files of version {FORMAT}", "was it written by a newer one?"
            )
            return {}
        for key in data.keys() - {"version", "plugins"}:
            self._unknown((key,), ("version", "plugins"))
        plugins = data.get("plugins")
        if not isinstance(plugins, dict):
            if plugins is not None:
                self._error(("plugins",), "`plugins` must be a mapping: plugin name to what it was granted")
            return {}
        found = {str(name): self._record(str(name), value) for name, value in sorted(plugins.items())}
        return {name: record for name, record in found.items() if record is not None}

    def _record(self, name: str, value: Any) -> GrantRecord | None:
        path = ("plugins", name)
        self._is_wrong = False
        if not is_plugin_name(name):
            self._error(
                path,
                f"{name!r} is not a plugin name",
                "delete the record; names are words of a-z and 0-9 joined by '-'",
            )
        if not isinstance(value, dict):
            self._error(path, "the record must be a mapping")
            return None
        for key in value.keys() - set(_KEYS):
            self._unknown((*path, key), _KEYS)
        texts = {key: self._text((*path, key), value.get(key, "")) for key in _TEXTS}
        names = {key: self._names((*path, key), value.get(key, [])) for key in _LISTS}
        scopes = self._scopes((*path, "scopes"), value.get("scopes", {}))
        tools = self._tools((*path, "tools"), value.get("tools", {}))
        if "tier" in value and texts["tier"] not in _TIERS:
            self._error((*path, "tier"), f"{value['tier']!r:.40} is not a tier", f"it is one of: {', '.join(_TIERS)}")
        if self._is_wrong:
            return None
        return GrantRecord(
            name,
            texts["version"],
            texts["manifestHash"],
            texts["artifactHash"],
            names["requested"],
            names["granted"],
            # A refusal may use an older name of a hook; it holds under every name.
            frozenset(canonical_hook(name) or name for name in names["refused"]),
            scopes,
            texts["grantedAt"],
            texts["grantedBy"],
            cast(Tier, texts["tier"]),
            texts["target"],
            tools,
        )

    def _text(self, path: tuple[str, ...], value: Any) -> str:
        if isinstance(value, str):
            return value
        self._error(path, f"must be text, is {value!r:.40}", f'put it in quotes: "{value!s:.40}"')
        return ""

    def _names(self, path: tuple[str, ...], value: Any) -> frozenset[str]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._error(path, "must be a list of permission names", "an empty list is []")
            return frozenset()
        for index, name in enumerate(value):
            if "*" in name and path[-1] != "requested":
                # A pattern would come to mean more with every permission that a later version asks for.
                self._error(
                    (*path, str(index)), f"{name!r} is a pattern", "name each permission; patterns grant nothing"
                )
            elif not is_permission(name) and not (path[-1] == "refused" and canonical_hook(name)):
                # Another version of the host may know it; here it grants nothing and is preserved.
                near = did_you_mean(name, known_permissions()) if self._reported["warning"] < _MOST_COMPARED else ""
                self._warn((*path, str(index)), f"{name!r} is not a permission", near)
        return frozenset(value)

    def _tools(self, path: tuple[str, ...], value: Any) -> dict[str, str]:
        if isinstance(value, dict) and all(isinstance(digest, str) for digest in value.values()):
            return {str(name): digest for name, digest in value.items()}
        self._error(path, "must be a mapping: tool to the hash of its definition")
        return {}

    def _scopes(self, path: tuple[str, ...], value: Any) -> dict[str, tuple[str, ...]]:
        if not isinstance(value, dict) or not all(
            isinstance(v, list) and v and all(isinstance(item, str) for item in v) for v in value.values()
        ):
            self._error(path, "must be a mapping: capability to a list of paths, hosts or names that is not empty")
            return {}
        for name, scope in value.items():
            for index, entry in enumerate(scope):
                if problem := entry_problem(str(name), entry):
                    self._warn((*path, str(name), str(index)), f"{entry!r:.120} has no effect: {problem}", _SCOPES)
        return {str(name): tuple(scope) for name, scope in value.items()}

    def _unknown(self, path: tuple[str, ...], known: tuple[str, ...]) -> None:
        hint = known_instead(path[-1], known) if self._reported["error"] < _MOST_COMPARED else ""
        self._error(path, f"unknown key {path[-1]!r}", hint)

    def _error(self, path: tuple[str, ...], message: str, hint: str = "") -> None:
        self._is_wrong = True
        self._add(path, message, hint, "error")

    def _warn(self, path: tuple[str, ...], message: str, hint: str) -> None:
        self._add(path, message, hint, "warning")

    def _add(self, path: tuple[str, ...], message: str, hint: str, severity: _Severity) -> None:
        """Add a finding. Errors are counted apart, so that many warnings cannot hide that a file is wrong."""
        self._reported[severity] += 1
        if self._reported[severity] > MOST_REPORTED + 1:
            return
        if self._reported[severity] > MOST_REPORTED:
            path, message, hint = (), f"more than {MOST_REPORTED:,} {severity}s; the others are not reported", ""
        self.findings.append(Finding(_CODE, message, hint, self._where(path), severity))

    def _where(self, path: tuple[str, ...]) -> Location:
        return self._document.locate([int(p) if p.isdigit() and i >= 3 else p for i, p in enumerate(path)])
