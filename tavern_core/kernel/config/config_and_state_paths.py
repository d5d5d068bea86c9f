"""The places of configuration and state of a host. Reads nothing and imports little: `tavern --help` uses it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from tavern_core.errors import ConfigInvalid

APP_NAME: Final = "tavern-core"
HOME_VARIABLE: Final = "TAVERN_HOME"
PREFIX: Final = "TAVERN_"
"""The prefix of variables that are configuration."""
USER_FILE: Final = "config.yaml"
PROJECT_FILE: Final = "tavern.yaml"
PYPROJECT: Final = "pyproject.toml"
PROJECTS: Final = "projects"
"""The folder in the platform's user data folder that holds a state folder for each project."""


def named_home(home: Path | str | None, env: Mapping[str, str]) -> str:
    """The configured state folder; empty if there is none."""
    return os.fspath(home) if home is not None else env.get(HOME_VARIABLE, "").strip()


def home_and_user_file(home: Path | str | None, env: Mapping[str, str], cwd: Path) -> tuple[Path, Path]:
    """The state folder, or, if none is configured, the folder with those of all projects; and the user's config.yaml.

    Raises:
        ConfigInvalid: the folder of a user who does not exist (CONFIG_INVALID).
    """
    if named := named_home(home, env):
        try:
            folder = cwd / Path(named).expanduser()
        except RuntimeError as error:
            raise ConfigInvalid(f"{HOME_VARIABLE}={named}: {error}", hint="write the whole path") from error
        return folder, folder / USER_FILE
    import platformdirs

    return platformdirs.user_data_path(APP_NAME), platformdirs.user_config_path(APP_NAME) / USER_FILE


def project_home(root: Path, project: Path) -> Path:
    """The state folder of a project below `root`, the folder with those of all projects."""
    folder = Path(os.path.realpath(project))
    name = re.sub(r"[^\w.-]+", "-", folder.name).strip("-.")[:40]
    return root / PROJECTS / f"{name or 'root'}-{sha256(os.fsencode(folder)).hexdigest()[:12]}"


def is_unconfigured(cwd: Path, env: Mapping[str, str], user_file: Path) -> bool:
    """Whether every value is certainly its default: there is no file and no variable that could set another one."""
    if user_file.exists() or any(name.startswith(PREFIX) and name != HOME_VARIABLE for name in env):
        return False
    for folder in (cwd, *cwd.parents):
        if (folder / PROJECT_FILE).exists():
            return False
        try:
            if b"tavern" in (folder / PYPROJECT).read_bytes():
                return False
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True
