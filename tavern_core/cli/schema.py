"""``tavern schema``: the JSON Schema of each file format, so that an editor completes and checks it."""

from __future__ import annotations

from typing import Any, Final

import click

from tavern_core.cli.session import CliSession, command

KINDS: Final = ("manifest", "tool", "workflow", "profile", "config")


@command()
@click.argument("kind", type=click.Choice(KINDS))
def schema(session: CliSession, kind: str) -> None:
    """Print the JSON Schema of a file format, for editors.

    The files: plugin.yaml (manifest), *.tool.json (tool), workflows/*.json (workflow), agent_profile.json (profile), tavern.yaml (config). For VS Code, first line of plugin.yaml: `# yaml-language-server: $schema=plugin.schema.json`
    """
    session.out.json(schema_of(kind))  # with and without --json


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of one of `KINDS`."""
    match kind:
        case "manifest" | "tool" | "workflow":
            from tavern_core.kernel.manifest.published_schemas import published_schema

            return published_schema(kind)
        case "profile":
            from tavern_core.kernel.access.profiles import profile_schema

            return profile_schema()
        case _:
            from tavern_core.kernel.config.config_schema import config_schema

            return config_schema()
