"""The settings of all plugins and tools: their declarations, effective values, and changes.

    effective value:  what the user saved (settings.json)  >  this instance (`settings:` of tavern.yaml)  >  defaultValue
    save:             known? -> before-hook -> allowed? -> file, under a lock -> subscribers

A save is checked and stored as a whole, or refused with an error per key. Several processes share the file: each checks
before reading whether it was replaced, and `reload` reports the changes of others. Secrets are masked in all output.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tavern_core.errors import Finding, Location, PluginError, PolicyDenied, SettingsInvalid, UsageError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.json_state import Values
from tavern_core.kernel.settings.declared_settings import PREFIX, DeclaredSetting, SettingTable
from tavern_core.kernel.settings.secret_masking import is_secret, mask
from tavern_core.kernel.settings.setting_layers import DescribedSetting, SettingLayers
from tavern_core.kernel.settings.setting_value_validation import all_refused, from_text, problem_of, setting_error
from tavern_core.kernel.signal import Subscribers
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.safe_printing import with_type
from tavern_core.model.secret_references import is_reference
from tavern_core.schema.redact import MASK, redact_text

if TYPE_CHECKING:
    from tavern_core.model.setting_declaration import SettingItem

BeforeSave = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
Declaration: TypeAlias = "tuple[Iterable[SettingItem | Mapping[str, Any]], str | None]"
"""Items, and the tool that they belong to; None: the plugin itself."""
_Changed: TypeAlias = "tuple[DeclaredSetting, Any, Any]"
"""A setting, its last reported value, and its value now."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting whose effective value changed."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class SavedChanges:
    """The result of a save."""

    changes: tuple[SettingChange, ...] = ()
    by: str = ""
    is_elsewhere: bool = False
    """Another process saved them; this one read them in the file."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(change.key for change in self.changes)


@dataclass(frozen=True, slots=True, eq=False)
class SettingSubscription:
    """A subscription to the changes of one setting."""

    key: str
    callback: Callable[[Any], None]
    owner: str
    """The subscribing plugin; empty for the host and its program."""


class UndeclaredSettings(Protocol):
    """The known settings of plugins that are not active."""

    def take(self, plugin: str | None) -> Iterator[tuple[str, Iterable[Declaration]]]:
        """Plugin → its declarations, once each; only of `plugin` if that is not None."""
        ...

    def refused(self, plugin: str, error: SettingsInvalid) -> None:
        """Report that a setting from `take` cannot be declared."""
        ...

    def withheld(self, plugin: str) -> tuple[str, str]:
        """Why the settings of a plugin do not exist now, and the repair; empty texts if nothing withholds them."""
        ...

    def may_have_more(self, plugin: str) -> bool:
        """Whether the code of a plugin may declare settings that are not known yet."""
        ...


class SettingsStore:
    """All settings of one host. Thread-safe; callbacks run on the saving thread.

    Args:
        layers: the sources of values, above all the user's file, ``settings.json`` in the state folder.
        before_save: called before each save, secrets masked; returns other changes, or None; may raise to refuse.
        undeclared: settings that are declared only when they are first needed.
        on_saved: called with the changes, secrets masked, after each save and each `reload` that found some.
        on_finding: called once for each problem of stored values, and for each callback that failed.
    """

    def __init__(
        self,
        layers: SettingLayers,
        *,
        before_save: BeforeSave | None = None,
        undeclared: UndeclaredSettings | None = None,
        on_saved: Callable[[SavedChanges], None] | None = None,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        self._before_save = before_save
        self._undeclared = undeclared
        self.known_secrets = layers.known
        self._file = layers.file
        self._layers = layers
        self._on_saved = on_saved
        self._on_finding = on_finding
        self._lock = threading.RLock()
        self._table = SettingTable(self.withheld)
        self._watches = Subscribers[SettingSubscription]()
        self._reported: set[str] = set()
        self._last_values: dict[str, Any] = {}
        """Effective values as last passed to callbacks."""

    # What exists -----------------------------------------------------------------------------------------------------

    def declare(
        self,
        plugin: str,
        items: Iterable[SettingItem | Mapping[str, Any]],
        tool: str | None = None,
        *,
        more: bool = False,
    ) -> tuple[SettingItem, ...]:
        """Add settings of a plugin, or of one of its tools; all or none.

        Args:
            more: others of this plugin follow; its stored values are checked by `report_findings` when all are known.

        Returns:
            The declared settings.

        Raises:
            SettingsInvalid: see `SettingTable.declare` (SETTINGS_INVALID).
        """
        with self._lock:
            rows = self._table.declare(plugin, items, tool or "")
            stored = self._layers.user().values
            found = {row.key: self._layers.value(row, stored)[0] for row in rows}
            self._last_values |= {**found, **self._watched_values(found)}
            unknown = self._layers.unknown(plugin, self._table)
        if not more:
            if unknown:
                self._complete(plugin)  # so that a setting of one of its tools is not called unknown
            self.report_findings(plugin)
        return tuple(row.item for row in rows)

    def report_findings(self, plugin: str) -> None:
        """Report the problems of the stored values of a plugin whose settings are all declared."""
        with self._lock:
            findings = self._layers.findings(self._table.all_of(plugin), self._table, self._may_have_more)
        self._report(findings)

    def plugins_with_values(self) -> frozenset[str]:
        """The plugins for which a setting is stored."""
        with self._lock:
            return self._layers.plugins_with_values()

    def withdraw(self, plugin: str) -> None:
        """Remove the settings of a plugin and its subscriptions; stored values stay for its return."""
        self._watches.drop(lambda watch: watch.owner == plugin)
        with self._lock:
            self._forget(self._table.withdraw(plugin))

    def outdate(self, plugin: str) -> None:
        """End the subscriptions of a plugin that stops. Its settings stay, so that they can be saved while it is activated again."""
        with self._lock:
            self._table.outdate(plugin)
        self._watches.drop(lambda watch: watch.owner == plugin)

    def drop_outdated(self, plugin: str) -> None:
        """Remove the settings of a plugin that were not declared again since `outdate`."""
        with self._lock:
            self._forget(self._table.drop_outdated(plugin))

    def keys(self) -> list[str]:
        """The full keys of all settings."""
        self._complete(None)
        return [row.key for row in self._table]

    # What each is worth ----------------------------------------------------------------------------------------------

    def get(self, key: str) -> Any:
        """The effective value; a reference stays a reference, a secret is not masked.

        Raises:
            SettingsInvalid: no such setting (SETTINGS_INVALID).
        """
        self._look_for(key)
        with self._lock:
            return self._layers.value(self._table.find(key), self._layers.user().values)[0]

    def resolved(self, key: str) -> Any:
        """The effective value with its reference followed.

        Raises:
            SettingsInvalid: no such setting, or a reference without a value (SETTINGS_INVALID).
        """
        self._look_for(key)
        with self._lock:
            return self._layers.resolve(self._table.find(key), self._layers.user().values)

    def effective(self, plugin: str, tool: str | None = None) -> dict[str, Any]:
        """Option → effective value of a plugin's own settings, or of one of its tools; references stay references."""
        with self._lock:
            stored = self._layers.user().values
            return {row.option: self._layers.value(row, stored)[0] for row in self._declared_values(plugin, tool)}

    def resolve(self, plugin: str, tool: str | None = None) -> dict[str, Any]:
        """As `effective`, references followed.

        Raises:
            SettingsInvalid: a required setting has no value, or a reference has no value; each key has its finding
                (SETTINGS_INVALID).
        """
        values: dict[str, Any] = {}
        findings: list[Finding] = []
        with self._lock:
            stored = self._layers.user().values
            for row in self._declared_values(plugin, tool):
                try:
                    value = values[row.option] = self._layers.resolve(row, stored)
                    if row.item.required and value in (None, ""):
                        raise setting_error(
                            row.key, "is required and has no value", f"tavern config set {row.key} VALUE"
                        )
                except SettingsInvalid as error:
                    findings += error.findings
        _raise(findings)
        return values

    def secret(self, name: str, secrets: Mapping[str, Any]) -> str:
        """A secret of the host's configuration (`secrets:` of tavern.yaml): behind a reference, or the text itself.

        Raises:
            PolicyDenied: the host has no secret of this name (POLICY_DENIED).
            SettingsInvalid: its reference has no value (SETTINGS_INVALID).
        """
        from tavern_core.model.setting_declaration import SettingItem

        key = f"secrets.{name}"
        if (value := secrets.get(name)) is None:
            hint = did_you_mean(name, secrets) or "add it to `secrets` in tavern.yaml as a reference: {$env: NAME}"
            raise PolicyDenied(f"this host has no secret {name!r}", hint=hint)
        row = DeclaredSetting(key, "", name, SettingItem(key=key, type="string", secret=True))
        if (problem := problem_of(row.item, value)) is not None:
            raise setting_error(key, *problem)
        text = self._layers.follow(row, value, self._layers.base) if is_reference(value) else value
        self.known_secrets.add(text)
        return str(text)

    def findings(self) -> tuple[Finding, ...]:
        """Findings about stored values: an unreadable file, invalid values, unknown keys."""
        self._complete(None)
        with self._lock:
            return tuple(self._layers.findings(list(self._table), self._table, self._may_have_more))

    def describe(self, plugin: str | None = None) -> list[DescribedSetting]:
        """All settings for a person, by plugin and in groups of one category, secrets masked."""
        self._complete(plugin)
        with self._lock:
            stored = self._layers.user().values
            chosen = list(self._table) if plugin is None else self._table.all_of(plugin)
            rows = [self._layers.describe(row, stored) for row in chosen]
        order: dict[tuple[str, str], int] = {}
        for row in rows:
            order.setdefault((row.plugin, row.group), len(order))
        return sorted(rows, key=lambda row: (row.plugin, order[row.plugin, row.group]))

    def masked(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """`changes` with secrets masked, as hooks see them."""
        return {key: mask(value) if self._is_secret(key) else value for key, value in changes.items()}

    def parse(self, key: str, text: str) -> Any:
        """Convert a typed text to the type of the setting; JSON for references."""
        self._look_for(key)
        with self._lock:
            return from_text(self._table.find(key).item, text)

    # How it changes --------------------------------------------------------------------------------------------------

    def save(self, changes: Mapping[str, Any], *, by: str = "") -> SavedChanges:
        """Store new values for the user: all of them, or none. None removes a stored value; ``***`` keeps a secret.

        Raises:
            SettingsInvalid: `findings` has an error per key; no value was saved (SETTINGS_INVALID).
            StateDamaged: the file cannot be written; no value was saved (STATE_DAMAGED).
        """
        if not isinstance(changes, Mapping):
            raise UsageError(f"settings.save takes a mapping, got {type(changes).__name__}", hint='{"key": value}')
        for key in changes:
            self._look_for(key)
        with self._lock:
            if any(
                key not in self._table for key in changes
            ):  # unknown keys fail before the hooks, which may still repair values
                _raise(self._problems(changes))
        if self._before_save is not None:
            answer = self._before_save(self.masked(changes))
            changes = changes if answer is None else self.restored(answer, changes)
        with self._lock:
            _raise(self._problems(changes))
            wanted = {k: v for k, v in changes.items() if not (self._is_secret(k) and v == MASK)}
            state = self._file.change(lambda stored: _changed(stored, wanted))
            changed = self._newly_changed()  # before another thread can report them as its own
        self._report(state.findings)
        return self._announce(changed, by)

    def reset(self, key: str, *, by: str = "") -> SavedChanges:
        """Remove the user's value, so that the instance's or the default counts. Raises as `save`."""
        return self.save({key: None}, by=by)

    def restored(self, answer: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """The changes that a before-hook returned, with the real values of masked secrets.

        Raises:
            SettingsInvalid: it adds a key of a plugin that was not among the changes, or a reference (SETTINGS_INVALID).
        """
        owners = {self._owner(key) for key in changes}
        foreign = [key for key in answer if key not in changes and self._owner(key) not in owners]
        message = "was added by a hook, but its plugin is not among the changes"
        _raise([Finding(SettingsInvalid.code, message, "", Location(key)) for key in foreign])
        named = [key for key, value in answer.items() if is_reference(value) and value != changes.get(key)]
        message = "was made a reference by a hook; only a person names variables, files and key rings"
        _raise([Finding(SettingsInvalid.code, message, "", Location(key)) for key in named])
        return {k: changes[k] if v == MASK and k in changes and self._is_secret(k) else v for k, v in answer.items()}

    def reload(self) -> SavedChanges:
        """Check whether another process changed the file, and notify subscribers."""
        for watch in self._watches.current:
            self._look_for(watch.key)  # its plugin may have stopped since
        with self._lock:
            changed = self._newly_changed()
        return self._announce(changed, is_elsewhere=True)

    def on_change(self, key: str, callback: Callable[[Any], None], *, owner: str = "") -> Callable[[], None]:
        """Call ``callback(value)`` after each change of a setting; returns a function that ends it.

        Args:
            owner: the subscribing plugin; it may watch only its own settings, and its callbacks end with `withdraw`.

        Raises:
            SettingsInvalid: no such setting, or one of another plugin (SETTINGS_INVALID).
        """
        self._look_for(key)
        with self._lock:
            row = self._table.find(key)
            if owner and row.plugin != owner:
                raise setting_error(key, f"belongs to {row.plugin}; {owner} may not watch it")
        return self._watches.add(SettingSubscription(key, callback, owner))

    def withheld(self, plugin: str) -> tuple[str, str]:
        """Why the settings of a plugin do not exist now (it is disabled), and the repair; empty texts if nothing withholds them."""
        return self._undeclared.withheld(plugin) if self._undeclared is not None else ("", "")

    # Inside ----------------------------------------------------------------------------------------------------------

    def _complete(self, plugin: str | None) -> None:
        """Declare every setting of a plugin, or of all, that can be known."""
        if self._undeclared is None:
            return
        for owner, declarations in self._undeclared.take(plugin):
            try:
                for items, tool in declarations:
                    self.declare(owner, items, tool, more=True)
                self.report_findings(owner)
            except SettingsInvalid as error:  # the activation of this plugin fails; the others go on
                self._undeclared.refused(owner, error)

    def _may_have_more(self, plugin: str) -> bool:
        return self._undeclared is not None and self._undeclared.may_have_more(plugin)

    def _look_for(self, key: str) -> None:
        """Declare a setting if it can be known; for an unknown key, declare the nearest ones."""
        if not isinstance(key, str) or key in self._table:
            return
        if key.startswith(PREFIX):
            self._complete(key.removeprefix(PREFIX).partition(".")[0])
        if key not in self._table:
            self._complete(None)

    def _forget(self, keys: frozenset[str]) -> None:
        """Forget the last values of settings that are gone; those that the host's program watches may return."""
        for key in keys - self._watched_values(keys).keys():
            self._last_values.pop(key, None)

    def _watched_values(self, keys: Iterable[str]) -> dict[str, Any]:
        """The last reported values of those of `keys` that have subscriptions."""
        known = [key for key in keys if key in self._last_values]
        watched = {watch.key for watch in self._watches.current} if known else ()
        return {key: self._last_values[key] for key in known if key in watched}

    def _newly_changed(self) -> dict[str, _Changed]:
        """What differs from the last report, which it becomes; the caller holds the lock."""
        stored = self._layers.user().values
        changed: dict[str, _Changed] = {}
        for row in self._table:
            old, new = self._last_values.get(row.key), self._layers.value(row, stored)[0]
            if old != new or type(old) is not type(new):  # True is not 1 here
                changed[row.key] = (row, old, new)
                self._last_values[row.key] = new
        return changed

    def _announce(self, changed: Mapping[str, _Changed], by: str = "", *, is_elsewhere: bool = False) -> SavedChanges:
        """Notify in order of subscription; a failing callback affects no other."""
        with self._lock:
            findings = self._layers.findings(self._table, self._table, self._may_have_more)
        self._report(findings)
        for watch in [watch for watch in self._watches.current if watch.key in changed]:
            try:
                watch.callback(self.resolved(watch.key))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an observer that breaks changes nothing
                self._failed(watch, error)
        saved = SavedChanges(tuple(_change(*values) for values in changed.values()), by, is_elsewhere)
        if saved.changes and self._on_saved is not None:
            self._on_saved(saved)
        return saved

    def _failed(self, watch: SettingSubscription, error: BaseException) -> None:
        message = redact_text(with_type(error), self.known_secrets.values)
        text = f"what {watch.owner or 'the host'} does when this setting changes failed: {message}"
        details = {"plugin": watch.owner}
        self._report((Finding(PluginError.code, text, "", Location(watch.key), "warning", details),))

    def _report(self, findings: Iterable[Finding]) -> None:
        if self._on_finding is None:
            return
        for finding in findings:
            if (text := str(finding)) not in self._reported:
                self._reported.add(text)
                self._on_finding(finding)

    def _declared_values(self, plugin: str, tool: str | None) -> list[DeclaredSetting]:
        return [row for row in self._table.of(plugin, tool or "") if row.item.holds_value]

    def _problems(self, changes: Mapping[str, Any]) -> list[Finding]:
        """Keys that do not exist and values that are not allowed, each with its finding, in the order of `changes`."""
        found: list[Finding] = []
        for key, value in changes.items():
            if key not in self._table:
                found.append(self._table.unknown(key))
                continue
            item = self._table.find(key).item
            if item.holds_value and (value is None or (value == MASK and is_secret(item))):
                continue
            if (problem := problem_of(item, value)) is not None:
                found.append(Finding(SettingsInvalid.code, problem[0], problem[1], Location(key)))
        return found

    def _is_secret(self, key: str) -> bool:
        return key in self._table and is_secret(self._table.find(key).item)

    def _owner(self, key: str) -> str:
        return self._table.find(key).plugin if key in self._table else ""


def _change(row: DeclaredSetting, old: Any, new: Any) -> SettingChange:
    return SettingChange(row.key, mask(old), mask(new)) if is_secret(row.item) else SettingChange(row.key, old, new)


def _changed(stored: Values, wanted: Mapping[str, Any]) -> Values:
    values = {**stored, **wanted}
    return {key: value for key, value in values.items() if value is not None}


def _raise(findings: list[Finding]) -> None:
    if findings:
        raise all_refused(findings)
