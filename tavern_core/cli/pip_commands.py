"""``tavern plugins install | update``: the command line for pip. It is printed and never run, because the operator decides what to install."""

from __future__ import annotations

import shlex
import sys
import sysconfig
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Final

import click

from tavern_core.cli import completion
from tavern_core.cli.errors import print_note
from tavern_core.cli.plugin_status_lookup import status_of
from tavern_core.cli.session import CliSession, command
from tavern_core.errors import UsageError
from tavern_core.model.plugin_status import PluginStatus

_PREFIX: Final = "tavern-plugin-"
"""The conventional names of plugin distributions."""


@command()
@click.argument("requirements", metavar="DISTRIBUTION...", nargs=-1, required=True)
def install(session: CliSession, requirements: tuple[str, ...]) -> None:
    """Print the pip command that installs plugins; it installs nothing.

    Write a distribution as for pip: `tavern-plugin-text`, with extras and version `"tavern-plugin-text[fast]==1.2"`, a folder,
    a wheel or an address.
    """
    for requirement in requirements:
        if "/" not in requirement and not Path(requirement).exists():
            name, _ = _parsed(requirement)
            if not _normal(name).startswith(_PREFIX):
                print_note(f"{name} is not called {_PREFIX}...: is it a plugin?")
        elif "://" not in requirement and not Path(requirement).exists():
            raise UsageError(f"there is no {requirement[:200]}", hint="name a folder with pyproject.toml, or a wheel")
    _print(session, requirements)


@command()
@click.argument("plugins", metavar="PLUGIN...", nargs=-1, required=True, shell_complete=completion.plugins)
def update(session: CliSession, plugins: tuple[str, ...]) -> None:
    """Print the pip command that updates plugins; it installs nothing.

    PLUGIN is the name of a plugin or of its distribution, with extras and version if they matter: `"text[fast]<2"`.
    """
    host = session.host("none")
    known = host.plugins
    by_distribution = {_normal(s.distribution): s for s in known.values() if s.distribution}
    wanted = ["--upgrade"]
    for written in plugins:
        name, rest = _parsed(written)
        status = known.get(name) or by_distribution.get(_normal(name)) or status_of(host, name)
        distribution = _distribution(status)
        source = _checkout(distribution)
        wanted += [distribution + rest] if source is None or rest.rpartition("]")[2] else ["--editable", source + rest]
    _print(session, wanted)


def _checkout(distribution: str) -> str | None:
    """The folder of an editable installation: from the index, pip would replace it by a copy."""
    import json
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import distribution as installed
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(installed(distribution).read_text("direct_url.json") or "{}")
        is_editable = origin.get("dir_info", {}).get("editable", False)
        return unquote(urlsplit(origin["url"]).path) if is_editable else None
    except (PackageNotFoundError, ValueError, AttributeError, KeyError, OSError):
        return None


def _distribution(status: PluginStatus) -> str:
    """The name of a plugin for pip. Raises UsageError: pip did not install it (USAGE)."""
    if status.distribution:
        return status.distribution
    if status.source == "builtin":
        raise UsageError(f"{status.name} is part of the host", hint="it is updated with tavern-core")
    raise UsageError(f"{status.name} was not installed by pip: it is a folder", hint=f"replace {status.location}")


def _parsed(written: str) -> tuple[str, str]:
    """Name, and extras with version, of a requirement. Raises UsageError: it is invalid (USAGE)."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        found = Requirement(written)
    except InvalidRequirement as error:
        message = str(error).partition("\n")[0]
        raise UsageError(
            f"{written[:200]!r} cannot be installed by pip: {message}", hint="for example 'tavern-plugin-text>=1.2'"
        ) from None
    return found.name, written.strip()[len(found.name) :]


def _normal(name: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)


def _print(session: CliSession, words: Iterable[str]) -> None:
    command = [*_pip_install(), *words]
    session.show({"command": command, "line": shlex.join(command), "installed": False}, shlex.join(command))
    if (Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED").is_file() and sys.prefix == sys.base_prefix:
        print_note("this Python belongs to the operating system, and pip refuses it: use a virtual environment")
    print_note("nothing was installed; run the line above, then `tavern plugins review`")


def _pip_install() -> list[str]:
    """The install command for the environment of this host."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    if which("uv") is not None:  # environments made by uv have no pip
        return ["uv", "pip", "install", "--python", sys.executable]
    return ["pip", "--python", sys.executable, "install"]
