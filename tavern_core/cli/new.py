"""``tavern new``: a plugin from the template, complete with tests that pass."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from tavern_core import package_location
from tavern_core.cli.errors import print_note
from tavern_core.cli.session import CliSession, command
from tavern_core.errors import UsageError
from tavern_core.model.naming_rules import is_plugin_name, is_reserved
from tavern_core.model.nearest import suggestion


@command()
@click.argument("name")
@click.option(
    "--output-dir", "-o", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Where to create it."
)
@click.option("--no-input", is_flag=True, help="Ask nothing; defaults for everything except the name.")
def new(session: CliSession, name: str, output_dir: Path, no_input: bool) -> None:
    """Create a new plugin from the template.

    NAME is kebab-case: my-plugin. Needs the extra `scaffold`.
    """
    name = plugin_name(name)
    template = template_folder()
    session.stdout.guard()  # questions, and output of a template's hooks, are not results
    made = render(template, name, output_dir, ask=not no_input and sys.stdin.isatty())
    if session.as_json:
        session.out.json({"name": name, "path": str(made)})
        return
    session.out.text(str(made))
    print_note(f"next: cd {made} && pip install -e '.[test]' && pytest")


def plugin_name(written: str) -> str:
    """The name of the new plugin. Raises UsageError: it is invalid; the hint names a valid one (USAGE)."""
    name = written.removeprefix("tavern-plugin-")
    if is_reserved(name):
        raise UsageError(f"the name {name!r} is reserved for the host", hint=f"for example my-{name}")
    if not is_plugin_name(name):
        near = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()).strip("-")[:64]
        hint = suggestion([near]) if is_plugin_name(near) else "lower case letters, digits and hyphens: my-plugin"
        raise UsageError(f"{name!r} is not a plugin name", hint=hint)
    return name


def template_folder() -> Path:
    """The template: in the package in a wheel, next to it in a checkout. Raises UsageError: it is missing (USAGE)."""
    for folder in (package_location.FOLDER / "plugin_template", package_location.FOLDER.parent / "plugin_template"):
        if (folder / "cookiecutter.json").is_file():
            return folder
    raise UsageError(
        "the plugin template is not part of this installation", hint="reinstall tavern-core from its wheel"
    )


def render(template: Path, name: str, output_dir: Path, *, ask: bool) -> Path:
    """Create the project; returns its folder.

    Raises:
        UsageError: cookiecutter is missing, or cannot create it (USAGE).
    """
    try:
        from cookiecutter.exceptions import CookiecutterException
        from cookiecutter.main import cookiecutter
    except ImportError as error:
        raise UsageError("`tavern new` needs cookiecutter", hint="pip install 'tavern-core[scaffold]'") from error
    variables: dict[str, Any] = json.loads((template / "cookiecutter.json").read_text(encoding="utf-8"))
    # The first variable of the template is the plugin's name; the others follow from it.
    first = next((key for key in variables if not key.startswith("_")), "plugin_name")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            # cookiecutter's own folders are in the user's home, which it may be unable to write
            config_file = Path(scratch, "config.yaml")
            config_file.write_text(json.dumps({"cookiecutters_dir": scratch, "replay_dir": scratch}), "utf-8")
            made = cookiecutter(
                str(template),
                no_input=not ask,
                extra_context={first: name},
                output_dir=str(output_dir),
                config_file=str(config_file),
            )
    except CookiecutterException as error:
        raise UsageError(
            f"the plugin could not be made: {error}", hint="choose another --output-dir or name"
        ) from error
    except OSError as error:
        raise UsageError(
            f"{error.filename or output_dir} cannot be written: {error.strerror or error}",
            hint="choose another --output-dir",
        ) from error
    return Path(made)
