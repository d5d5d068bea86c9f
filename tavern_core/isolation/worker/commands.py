"""Running a plugin's command of the command line inside its worker."""

from __future__ import annotations

import contextlib
import io
from typing import Any, Final

from tavern_core.contract.protocols import Command
from tavern_core.errors import ActivationFailed

SHORTENED: Final = "… (shortened)\n"


def run_command(command: Command, arguments: list[str], limit: int) -> dict[str, Any]:
    """Run it with `arguments`; returns its output, at most `limit` characters, and its exit code.

    Raises:
        ActivationFailed: the plugin did not build a click command (ACTIVATION_FAILED).
    """
    import click

    built = command.build()
    if not isinstance(built, click.Command):
        text = f"the command {command.name!r} is not a click command but {type(built).__name__}"
        raise ActivationFailed(text, hint="return it from `build`")
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            built.main(args=arguments, prog_name=f"tavern {command.name}")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            if isinstance(ended.code, str):
                err.write(f"{ended.code}\n")
    return {"out": _bounded(out, limit), "err": _bounded(err, limit), "code": code}


def _bounded(written: io.StringIO, limit: int) -> str:
    text = written.getvalue().encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else text[:limit] + SHORTENED
