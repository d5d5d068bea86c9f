"""The command `tavern`, also as ``python -m tavern_core``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the words behind `tavern`; None: those of this process.

    Returns:
        The exit code: 0 ok · 1 failed · 2 usage · 3 denied · 4 plugin or manifest invalid · 5 nothing found ·
        124 timeout · 130 interrupted · 143 terminated.
    """
    if argv is not None:
        return _run(list(argv))
    gc.set_threshold(20_000)  # this process is the command's own: most of what it makes stays until its end
    try:
        return _run(sys.argv[1:])
    finally:
        gc.freeze()  # at its end, Python would search all of it for cycles, a fifth of the time of a short command


def _run(argv: list[str]) -> int:
    from tavern_core.kernel.discovery.pydantic_shield import shield_pydantic

    try:
        shield_pydantic()
        from tavern_core.cli.app import run
    except KeyboardInterrupt:  # Ctrl-C while Python still imports
        return 130
    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
