"""``tavern config``: the host's configuration and the settings of plugins, read and changed by key.

limits.timeoutMs               the host: in tavern.yaml, or with --user in config.yaml of the state folder
extensions.{plugin}.{option}   a plugin's setting: in the settings of this user, checked against the plugin's declarations
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import NOTHING_FOUND, ReportedExit, print_note, print_problem
from tavern_core.cli.inputs import WITH_VALUE, read_stdin
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.output import json_text
from tavern_core.cli.session import CliSession
from tavern_core.errors import ConfigInvalid, SettingsInvalid, UsageError

if TYPE_CHECKING:
    from tavern_core.kernel.config.configuration import ConfigFiles, LoadedConfig, MaskedValue

SETTINGS: Final = "extensions."


@click.group(cls=Group)
def config() -> None:
    """Show and change configuration and settings."""


@config.command()
@click.argument("prefix", default="", shell_complete=completion.config_keys)
@click.option("--origin", is_flag=True, help="Show where each value comes from.")
def show(session: CliSession, prefix: str, origin: bool) -> None:
    """Show every value whose key starts with PREFIX, secrets masked."""
    rows = [row for row in _all(session) if _is_below(row["key"], prefix)]
    session.out.result(rows)
    columns = ("key", "value", "origin") if origin else ("key", "value")
    session.out.table(columns, [[_written(row[c]) if c == "value" else row[c] for c in columns] for row in rows])
    for row in rows:
        if row.get("problem"):
            print_problem("warning", "SETTINGS_INVALID", f"{row['key']}: {row['problem']}")
    if not rows:
        _unknown(session, prefix)


@config.command()
@click.argument("key", shell_complete=completion.config_keys)
@click.option("--origin", is_flag=True, help="Show where the value comes from.")
def get(session: CliSession, key: str, origin: bool) -> None:
    """Print one value, or a whole section as JSON; exit code 5 if there is no such key."""
    row = _find(session, key)
    session.out.result(row)
    if origin:
        session.out.text(f"{_written(row['value'])}  ({row['origin']})")
    else:
        session.out.data(_written(row["value"]))


@config.command("set", context_settings=WITH_VALUE)
@click.argument("key", shell_complete=completion.config_keys)
@click.argument("value", required=False)
@click.option("--user", "to_user", is_flag=True, help="Write to the user's config.yaml, not to the project's file.")
def set_(session: CliSession, key: str, value: str | None, to_user: bool) -> None:
    """Set one value. With - as VALUE, it is read from stdin. Without VALUE, the command asks for it; secrets are not shown."""
    if key.startswith(SETTINGS):
        row = _set_setting(session, key, value)
    else:
        row = _set_config(session, key, _text(value, key, hide=False), to_user)
    session.show(row, f"{row['key']} = {_written(row['value'])}  ({row['origin']})")


@config.command()
@click.argument("key", shell_complete=completion.config_keys)
@click.option(
    "--user", "to_user", is_flag=True, help="Remove it from the user's config.yaml, not from the project's file."
)
def unset(session: CliSession, key: str, to_user: bool) -> None:
    """Remove one value, so that the value of the next lower layer applies; exit code 5 if there was none."""
    if key.startswith(SETTINGS):
        host = session.host()
        stored = str(session.loaded().home / "settings.json")
        was_set = any(row.key == key and row.origin == stored for row in host.describe_settings())
        host.settings.reset(key, by="cli")
        rows = [row.to_json() for row in host.describe_settings() if row.key == key]
    else:
        from tavern_core.kernel.config import configuration
        from tavern_core.kernel.config.config_key_lookup import key_path
        from tavern_core.kernel.config.yaml_edit import unset_value

        file = _target(session, to_user)
        was_set = unset_value(file, key_path(key))
        name = ".".join(key_path(key))
        shown = configuration.show(configuration.load(session.config, home=session.home))
        rows = [_row(value) for value in shown if value.key == name]
    if session.as_json:
        now = rows[0] if rows else {"key": key, "value": None, "origin": ""}
        session.out.json({"wasSet": was_set, **{name: now[name] for name in ("key", "value", "origin")}})
    if not was_set:
        print_note(f"{key} was not set")
        raise ReportedExit(NOTHING_FOUND)


@config.command()
def path(session: CliSession) -> None:
    """Print where configuration, settings, lock file and state are."""
    from tavern_core.kernel.plugins.lock_check import lock_path

    files, home = _files(session), session.loaded().home
    places: dict[str, Path | None] = {
        "home": home,
        "user": files.user,
        "project": files.project,
        "settings": home / "settings.json",
        "lock": lock_path(session.loaded()),
    }
    written = {name: str(place) if place is not None else None for name, place in places.items()}
    session.show_facts(written, places.items())


# Reading ---------------------------------------------------------------------------------------------------------------


def _all(session: CliSession) -> list[dict[str, Any]]:
    """Every value of the host, then every setting."""
    from tavern_core.kernel.config import configuration

    described = [s.to_json() for s in session.host("none").describe_settings()]
    known = {f"settings.{row['key']}" for row in described}
    host = [_row(value) for value in configuration.show(session.loaded()) if value.key not in known]
    names = ("key", "value", "origin", "problem", "plugin", "tool", "type", "secret")
    return host + [{name: row[name] for name in names} for row in described]


def _find(session: CliSession, key: str) -> dict[str, Any]:
    """The value of a key, or a section with everything below it."""
    from tavern_core.kernel.config.config_key_lookup import key_path, put

    rows = _all(session)
    path = key_path(key)
    wanted = ".".join(path) if path[0] != "settings" else key
    exact = [row for row in rows if row["key"] in (key, wanted)]
    if exact:
        return exact[0]
    below = [row for row in rows if _is_below(row["key"], wanted)]
    if not below:
        _unknown(session, key)
    origins = dict.fromkeys(row["origin"] for row in below)
    tree: dict[str, Any] = {}
    for row in below:
        parts = key_path(row["key"])
        is_inside = parts[: len(path)] == path
        put(tree, parts[len(path) :] if is_inside else row["key"][len(wanted) + 1 :].split("."), row["value"])
    return {"key": wanted, "value": tree, "origin": ", ".join(origins)}


def _is_below(key: str, prefix: str) -> bool:
    return not prefix or key == prefix or key.startswith(prefix if prefix.endswith(".") else f"{prefix}.")


def _unknown(session: CliSession, key: str) -> NoReturn:
    from tavern_core.model.nearest import did_you_mean

    reason, fix = session.host("none").settings.withheld(_plugin_of(key)) if key.startswith(SETTINGS) else ("", "")
    if reason:
        print_problem("error", SettingsInvalid.code, f"{key}: {reason}", fix)
        raise ReportedExit(NOTHING_FOUND)
    known = [row["key"] for row in _all(session)]
    sections = {part for name in known for part in (name, name.partition(".")[0])}
    code = SettingsInvalid.code if key.startswith(SETTINGS) else ConfigInvalid.code
    print_problem(
        "error", code, f"there is no key {key!r}", did_you_mean(key, sections) or "`tavern config show` lists them"
    )
    raise ReportedExit(NOTHING_FOUND)


def _row(shown: MaskedValue) -> dict[str, Any]:
    return {"key": shown.key, "value": shown.value, "origin": shown.origin}


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value, indent=2 if isinstance(value, Mapping) else None)


# Changing --------------------------------------------------------------------------------------------------------------


def _set_setting(session: CliSession, key: str, value: str | None) -> dict[str, Any]:
    """Through the settings store: granted hooks run, and the value is checked."""
    host = session.host()
    rows = {row.key: row for row in host.describe_settings()}
    if key not in rows:
        # A setting declared in code: known after the plugin was active once, and then stored.
        plugin = _plugin_of(key)
        if plugin in host.plugins and "settings" in host.plugins[plugin].provides:
            host.plugins.activate_sync(plugin)
        rows = {row.key: row for row in host.describe_settings()}
    text = _text(value, key, hide=key in rows and rows[key].is_secret)
    host.settings.save({key: host.settings.parse(key, text)}, by="cli")
    row = next(row for row in host.settings.describe() if row.key == key).to_json()
    return {name: row[name] for name in ("key", "value", "origin")}


def _plugin_of(key: str) -> str:
    return key.removeprefix(SETTINGS).partition(".")[0]


def _set_config(session: CliSession, key: str, text: str, to_user: bool) -> dict[str, Any]:
    from tavern_core.kernel.config import configuration
    from tavern_core.kernel.config.config_key_lookup import key_path
    from tavern_core.kernel.config.environment import value_from_text
    from tavern_core.kernel.config.yaml_edit import set_value

    path = key_path(key)
    value = value_from_text(path, text)
    name = ".".join(path)
    configuration.load(
        {}, home=session.home, env={}, overrides={name: value}
    )  # reports problems before anything changes
    file = _target(session, to_user)
    set_value(file, path, value)
    loaded: LoadedConfig = configuration.load(session.config, home=session.home)
    shown = next((v for v in configuration.show(loaded) if v.key == name), None)
    if shown is None:  # a section: shown by its parts
        return {"key": name, "value": value, "origin": str(file)}
    if not shown.origin.startswith(str(file)):
        print_problem("warning", ConfigInvalid.code, f"{name} is set in {file}, but {shown.origin} is stronger")
    return _row(shown)


def _files(session: CliSession) -> ConfigFiles:
    from tavern_core.kernel.config import configuration

    return configuration.files(session.config, home=session.home)


def _target(session: CliSession, to_user: bool) -> Path:
    """The file to change. Raises UsageError: it is a pyproject.toml, which is not edited (USAGE)."""
    files = _files(session)
    file = files.user if to_user or files.project is None else files.project
    if file.suffix == ".toml":
        raise UsageError(f"{file} must be edited by hand", hint="write it under [tool.tavern], or use --user")
    return file


def _text(value: str | None, key: str, *, hide: bool) -> str:
    """The value from the command line, stdin or a prompt."""
    if value == "-":
        return read_stdin().removesuffix("\n").removesuffix("\r")
    if value is not None:
        return value
    if not sys.stdin.isatty():
        raise UsageError(f"no value was given for {key}", hint=f"tavern config set {key} VALUE, or - for stdin")
    answer: str = click.prompt(key, hide_input=hide, err=True)
    return answer
