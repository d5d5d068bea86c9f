"""Prevents pydantic's look-up of its own plugins if an installed distribution would break it.

pydantic reads the `entry_points.txt` of every distribution when it makes its first model. A pipe of that name makes it wait for
ever, a link to itself or invalid UTF-8 raises an error, and this host could not be imported. Our own discovery, which
reads with care, reports the broken distribution.

Imports nothing slow, and never pydantic.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Final

_SWITCH: Final = "PYDANTIC_DISABLE_PLUGINS"
_LARGEST: Final = 1_000_000
_METADATA_FOLDERS: Final = (".dist-info", ".egg-info")


def shield_pydantic() -> None:
    """Disable pydantic's plugins, for this process and its children, if looking them up could fail."""
    if (
        _SWITCH not in os.environ
        and "pydantic.plugin._loader" not in sys.modules
        and any(map(_is_broken, dict.fromkeys(sys.path)))
    ):
        os.environ[_SWITCH] = "__all__"


def _is_broken(path: str) -> bool:
    """Whether `importlib.metadata` would fail in one entry of the path."""
    try:
        with os.scandir(path or ".") as listing:
            return any(
                _is_unreadable(item.path + "/entry_points.txt")
                for item in listing
                if item.name.endswith(_METADATA_FOLDERS)
            )
    except NotADirectoryError:
        return not stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - pathlib is not imported yet
    except OSError:  # missing or unreadable: no one reads it
        return False


def _is_unreadable(file: str) -> bool:
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (
        FileNotFoundError,
        NotADirectoryError,
        PermissionError,
    ):  # what `importlib.metadata` takes for: there is none
        return False
    except OSError:
        return True
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.read(descriptor, _LARGEST).decode("utf-8")
            return False
    except (OSError, UnicodeDecodeError):
        pass
    finally:
        os.close(descriptor)
    return True
