"""``tavern artifacts``: files for calls, and data that was too large for the answers of calls."""

from __future__ import annotations

import shutil
import sys
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli import completion
from tavern_core.cli.lazy_groups import Group
from tavern_core.cli.session import CliSession
from tavern_core.errors import UsageError

if TYPE_CHECKING:
    from tavern_core.host.facade import Tavern
    from tavern_core.model.artifact import Artifact
    from tavern_core.model.call import CallContext

_COLUMNS: Final = ("id", "bytes", "type", "name", "owner", "expires")


@click.group(cls=Group, default="list")
def artifacts() -> None:
    """Show and fetch data that was too large for answers; store files for calls.

    `tavern artifacts` alone lists them.
    """


@artifacts.command("list")
@click.option("--last", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="The newest N.")
def list_(session: CliSession, last: int) -> None:
    """List artifacts, newest first."""

    def row(one: Artifact) -> tuple[Any, ...]:
        return one.id, one.size, one.media_type, one.name, one.principal, one.to_json()["expiresAt"]

    session.show_list(session.host().artifacts.list(most=last), _COLUMNS, row, empty="no artifacts")


@artifacts.command()
@click.argument("artifact", metavar="ID", shell_complete=completion.artifacts)
def show(session: CliSession, artifact: str) -> None:
    """Show one artifact."""
    found = session.host().artifacts.get(artifact).to_json()
    session.show_facts(found, found.items())


@artifacts.command()
@click.argument("artifact", metavar="ID", shell_complete=completion.artifacts)
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE; default: stdout.")
def get(session: CliSession, artifact: str, output: Path | None) -> None:
    """Write the bytes of an artifact to stdout or a file."""
    store = session.host().artifacts
    known = store.get(artifact)
    if session.as_json and output is None:
        session.out.json({**known.to_json(), "data": b64encode(store.read(artifact)).decode()})
        return
    with store.open(artifact) as source:
        if output is None:
            stream = session.out.stream
            if stream is None:
                raise UsageError("there is no stdout", hint="name a file: --output FILE")
            stream.flush()
            shutil.copyfileobj(source, stream.buffer)
            stream.buffer.flush()
            return
        try:
            with output.open("xb") as target:
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise UsageError(f"{output} cannot be written: {error.strerror or error}") from error
    session.show({**known.to_json(), "file": str(output)}, f"{output}: {known.size:,} bytes")


@artifacts.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--type", "media_type", metavar="TYPE", help="Media type, such as image/png; default: from the name of FILE."
)
@click.option("--name", metavar="NAME", help="Its name; default: that of FILE.")
def put(session: CliSession, file: Path, media_type: str | None, name: str | None) -> None:
    """Store FILE, or stdin for -, as an artifact, and print its address.

    Tools take the address; `tavern tools call ID NAME=@FILE` does both at once.
    """
    made = put_file(session.host(), file, None, media_type=media_type, name=name)
    session.out.result(made.to_json())
    session.out.data(made.uri)


def put_file(
    host: Tavern, file: Path, context: CallContext | None, *, media_type: str | None = None, name: str | None = None
) -> Artifact:
    """Store a file that was named on the command line.

    Args:
        context: the owner; None: the host.

    Raises:
        UsageError: it cannot be read (USAGE).
        OutputTooLarge: larger than `artifacts.maxBytes` (OUTPUT_TOO_LARGE).
    """
    import mimetypes

    is_stdin = str(file) == "-"
    label = name if name is not None else "" if is_stdin else file.name
    kind = media_type or mimetypes.guess_type(label)[0] or "application/octet-stream"
    data = iter(lambda: sys.stdin.buffer.read(1 << 20), b"") if is_stdin else file
    return host.artifacts.put(data, kind, name=label, context=context)


@artifacts.command()
@click.argument("artifact", metavar="ID", shell_complete=completion.artifacts)
def remove(session: CliSession, artifact: str) -> None:
    """Delete an artifact before it expires."""
    session.host().artifacts.remove(artifact)
    session.show({"removed": artifact}, f"{artifact} was deleted")
