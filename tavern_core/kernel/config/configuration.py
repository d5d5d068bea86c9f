"""The configuration of a host: reads every source, checks it at its place, and merges it with the sources before.

    defaults < user config.yaml < project tavern.yaml or [tool.tavern] < TAVERN_SECTION__KEY < flags

Sections merge key by key; lists and single values are replaced. Relative paths are relative to the file that names them
(variables and flags: to the working folder). This module creates nothing and touches no plugin; the environment, the working
folder and the state folder are arguments.

The state folder is `home`, else $TAVERN_HOME, else the platform's user data folder, with one per project (`with_project_state`):
programs without a name do not share grants and log. With either of the first two the user's config.yaml is the one inside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tavern_core.errors import ConfigInvalid, Finding, Location, StateDamaged
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.config.config_and_state_paths import (
    APP_NAME,
    HOME_VARIABLE,
    home_and_user_file,
    named_home,
    project_home,
)
from tavern_core.kernel.config.config_key_lookup import FREE, Keys, leaves, model_for, put, siblings
from tavern_core.kernel.config.environment import environment_layer
from tavern_core.kernel.config.layer_reading import (
    ConfigLayer,
    file_layer,
    find_project_layer,
    mapping_layer,
    yaml_layer,
)
from tavern_core.kernel.files.atomic_file import make_private_folder
from tavern_core.kernel.settings.secret_masking import mask_setting
from tavern_core.model.config import HostConfig
from tavern_core.model.nearest import did_you_mean, nearest
from tavern_core.model.path_problem import PathProblem
from tavern_core.model.pydantic_errors import explain

_KEPT: Final = ("tavern.lock", "audit", "settings.json", "plugins.json", "runs.db")
DEFAULT: Final = "default"
_DEFAULTS: Final = HostConfig.model_construct()
_FOLDERS: Final[Mapping[Keys, tuple[str, ...]]] = {
    ("plugins", "roots"): _DEFAULTS.plugins.roots,
    ("plugins", "vcp"): _DEFAULTS.plugins.vcp,
    ("profiles",): _DEFAULTS.profiles,
    ("skills", "roots"): _DEFAULTS.skills.roots,
    ("skills", "user"): _DEFAULTS.skills.user,
    ("workflows", "roots"): _DEFAULTS.workflows.roots,
    ("assistant", "examples"): _DEFAULTS.assistant.examples,
}
"""The lists of folders, with their defaults."""
_KNOWLEDGE: Final = "knowledge"
_MAY_HOLD_SECRETS: Final = frozenset({"config", "llms", "secrets", "settings", "state", "upstreams"})
_MOST_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The configuration of one host and the origin of each value."""

    config: HostConfig
    """Its folders (`plugins.roots`, `plugins.vcp`, `profiles`, `skills`, `workflows.roots`, `assistant.examples`, `knowledge`) are absolute."""
    origins: Mapping[str, str]
    """Dotted key → ``default``, ``/path/tavern.yaml:3``, ``TAVERN_LIMITS__DEPTH``, ``flag`` …"""
    base_dir: Path
    """The folder of the project file, else the working folder."""
    home: Path
    """The state folder; `prepare_home` creates it."""
    project_file: Path | None = None
    findings: tuple[Finding, ...] = ()
    """Warnings; errors are raised."""
    is_shared: bool = False
    """No state folder is configured: `home` is the platform's, for this user account."""


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """The sources of a host's configuration; the files need not exist."""

    user: Path
    project: Path | None


@dataclass(frozen=True, slots=True)
class MaskedValue:
    """A line of ``tavern config show``: secrets masked."""

    key: str
    value: Any
    origin: str


def _with_environment_and_flags(
    files: Sequence[ConfigLayer], env: Mapping[str, str], overrides: Mapping[str, Any], cwd: Path
) -> list[ConfigLayer]:
    """All layers, the strongest last."""
    below = [name for layer in files for name in _listed(layer, ("plugins", "disable"))]
    flags = [mapping_layer("flag", overrides, cwd)] if overrides else []
    return [*files, environment_layer(env, cwd, tuple(below)), *flags]


def load(
    config: Path | str | Mapping[str, Any] | None = None,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    home: Path | str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> LoadedConfig:
    """Read the configuration.

    Args:
        config: the project's part: a file, or the values themselves. None: look for a file in `cwd` and above.
        cwd: default: the working folder.
        env: default: the process's environment.
        home: the state folder.
        overrides: values of flags: nested, or with dotted keys. Strongest.

    Raises:
        ConfigInvalid: a source is wrong or a named file is missing; `findings` has every problem with its place
            (CONFIG_INVALID).
    """
    cwd = (cwd or _working_folder()).absolute()
    env = os.environ if env is None else env
    home_folder, user_file = home_and_user_file(home, env, cwd)
    project, odd = _project_layer(config, cwd)
    files = [*([yaml_layer(user_file)] if user_file.is_file() else ()), *((project,) if project is not None else ())]
    layers = _with_environment_and_flags(files, env, overrides or {}, cwd)
    _raise_all([finding for layer in layers for finding in (layer.findings or _problems(layer))])
    is_file = project is not None and not isinstance(config, Mapping)
    base = project.base if project is not None and is_file else cwd
    merged, folders, origins = _merge(layers, base)
    return LoadedConfig(
        _with_folders(_of_layers(merged, layers), folders),
        origins,
        base,
        home_folder,
        Path(project.name) if project is not None and is_file else None,
        tuple(odd),
        is_shared=not named_home(home, env),
    )


def with_project_state(loaded: LoadedConfig, program: Path | None = None) -> LoadedConfig:
    """`loaded` with a state folder of this project, if none is configured.

    Args:
        program: the folder of the program, which distinguishes programs without a project file; None: the working folder.
    """
    if not loaded.is_shared:
        return loaded
    project = loaded.project_file.parent if loaded.project_file else program or loaded.base_dir
    home = project_home(loaded.home, project)
    findings = loaded.findings
    if not home.exists() and (existing := [name for name in _KEPT if (loaded.home / name).exists()]):
        message = f"this project has its own state folder now, {home}; {', '.join(existing)} of earlier versions stay in {loaded.home}"
        hint = f"move there what belongs to this project, or set {HOME_VARIABLE}={loaded.home} to go on with them"
        findings += (Finding(ConfigInvalid.code, message, hint, severity="warning"),)
    return replace(loaded, home=home, findings=findings, is_shared=False)


def state_root(home: Path) -> Path:
    """The folder that no box may see: `home`, or the folder of all projects' state folders if `home` is one of them."""
    import platformdirs

    root = platformdirs.user_data_path(APP_NAME)
    return root if home.is_relative_to(root) else home


def prepare_home(loaded: LoadedConfig) -> None:
    """Create the state folder, private to its owner, and check that it is writable.

    Raises:
        ConfigInvalid: it cannot be created or written (CONFIG_INVALID).
    """
    home = loaded.home
    try:
        make_private_folder(home)
    except StateDamaged as error:
        hint = f"set {HOME_VARIABLE} to a folder that you can write"
        raise ConfigInvalid(f"the state folder cannot be used: {error.message}", hint=hint, path=str(home)) from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise ConfigInvalid(
            f"the state folder {home} cannot be written",
            hint=f"give yourself write permission, or set {HOME_VARIABLE} to another folder",
            path=str(home),
        )


def files(
    config: Path | str | None = None,
    *,
    home: Path | str | None = None,
) -> ConfigFiles:
    """The sources of the configuration, without checking their content."""
    cwd = _working_folder().absolute()
    _, user_file = home_and_user_file(home, os.environ, cwd)
    if config is not None:
        return ConfigFiles(user_file, cwd / Path(config).expanduser())
    project, _ = find_project_layer(cwd)
    return ConfigFiles(user_file, Path(project.name) if project is not None else None)


def show(loaded: LoadedConfig) -> list[MaskedValue]:
    """Every value with its origin, sorted by key, secrets masked."""
    data = loaded.config.model_dump(by_alias=True, mode="python")
    shown = []
    for path, value in leaves(data):
        key = ".".join(path)
        safe = _shown(path, value)
        shown.append(MaskedValue(key, safe, loaded.origins.get(key, DEFAULT)))
    return sorted(shown, key=lambda row: row.key)


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigInvalid("the working folder was deleted", hint="cd to one that exists") from None


def _project_layer(
    config: Path | str | Mapping[str, Any] | None, cwd: Path
) -> tuple[ConfigLayer | None, list[Finding]]:
    if config is None:
        return find_project_layer(cwd)
    if isinstance(config, Mapping):
        return mapping_layer("config argument", config, cwd), []
    path = cwd / Path(config).expanduser()
    if not path.exists():
        files_beside = path.parent.glob("*.*") if path.parent.is_dir() else ()
        near = did_you_mean(path.name, (p.name for p in files_beside if nearest(path.stem, [p.stem])))
        raise ConfigInvalid(f"there is no file {path}", hint=near or "create it, or leave --config out", path=str(path))
    if path.is_dir():
        raise ConfigInvalid(f"{path} is a folder", hint=f"name a file in it: {path / 'tavern.yaml'}", path=str(path))
    if (layer := file_layer(path)) is None:
        raise ConfigInvalid(f"{path} has no table [tool.tavern]", hint="add one, or name another file", path=str(path))
    return layer, []


def _problems(layer: ConfigLayer) -> list[Finding]:
    """The errors of the model about one layer, each at its place."""
    if not layer.data:
        return []
    try:
        _validated(layer.data)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] == "json_invalid":
            message = "a text holds half a character (a lone surrogate)"
            return [Finding(ConfigInvalid.code, message, "write it as UTF-8", layer.locate(()))]
        found = explain(error, layer.data, model_for(layer.data), shown=_shown)
        return [_finding(layer, refusal) for refusal in found]
    return []


def _of_layers(merged: Mapping[str, Any], layers: Sequence[ConfigLayer]) -> HostConfig:
    """Validate merged layers.

    Raises:
        ConfigInvalid: layers that are valid alone contradict each other; names the strongest that has the place
            (CONFIG_INVALID).
    """
    try:
        return _validated(merged)
    except ValidationError as error:
        found = []
        for refusal in explain(error, merged, model_for(merged), shown=_shown):
            path = tuple(map(str, refusal.path))
            saying = (
                one for one in reversed(layers) if any(written[: len(path)] == path for written, _ in leaves(one.data))
            )
            found.append(_finding(next(saying, layers[-1]), refusal))
        _raise_all(found)
        raise


def _validated(data: Mapping[str, Any]) -> HostConfig:
    """Validate strictly: ``"5"`` is not a number and ``true`` is not 1. By way of JSON, where a list is a list."""
    if not data:
        return HostConfig.model_construct()  # a new one: no host sees what another host's program writes into it
    free = {key: value for key, value in data.items() if key in FREE and isinstance(value, Mapping)}
    described = {key: value for key, value in data.items() if key not in free}
    text = json.dumps(described, default=_as_text)
    return model_for(data).model_validate_json(text, strict=True).model_copy(update=free)


def _as_text(value: Any) -> str | list[Any] | dict[str, Any]:
    """Convert further types that programs pass: paths, sets, mappings. Other values cause an error that names them."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return dict(value) if isinstance(value, Mapping) else f"<{type(value).__name__}>"


def _shown(path: Sequence[str | int], value: Any) -> Any:
    """A wrong value as an error may quote it."""
    return mask_setting(".".join(map(str, path)), value) if path and path[0] in _MAY_HOLD_SECRETS else value


def _finding(layer: ConfigLayer, refusal: PathProblem) -> Finding:
    path, hint = tuple(map(str, refusal.path)), refusal.hint
    if refusal.at_key:
        known = siblings(path)
        hint = did_you_mean(path[-1], known) or f"there are: {', '.join(known)}"
    elif not hint and refusal.message.startswith("must be a mapping"):
        known = siblings((*path, ""))
        hint = f"its keys are: {', '.join(known)}" if known else "write it as a mapping: {name: …}"
    return Finding(ConfigInvalid.code, refusal.message, hint, layer.locate(path))


def _raise_all(findings: list[Finding]) -> None:
    errors = sorted((f for f in findings if f.severity == "error"), key=_place)
    if not errors:
        return
    if len(errors) == 1:
        raise ConfigInvalid(str(replace(errors[0], hint="")), hint=errors[0].hint, findings=tuple(errors))
    shown = "\n".join(str(f) for f in errors[:_MOST_SHOWN])
    more = f"\n… and {len(errors) - _MOST_SHOWN} more" if len(errors) > _MOST_SHOWN else ""
    raise ConfigInvalid(shown + more, findings=tuple(errors))


def _place(finding: Finding) -> tuple[str, int, int]:
    return (finding.where.file, finding.where.line, finding.where.column) if finding.where else ("", 0, 0)


def _with_folders(config: HostConfig, folders: Mapping[Keys, tuple[str, ...]]) -> HostConfig:
    """`config` with its folders absolute. Each was checked as written; the path to its file may hold what JSON cannot."""
    for path, found in folders.items():
        is_one = path[0] == _KNOWLEDGE and path[-1] == "path"
        config = _placed(config, path, "".join(found) if is_one else found)
    return config


def _placed(part: Any, path: Keys, value: Any) -> Any:
    """A copy of a section, or of a mapping of sections, with `value` at `path`."""
    name, *rest = path
    if isinstance(part, Mapping):
        return {**part, name: _placed(part[name], tuple(rest), value)}
    return part.model_copy(update={name: _placed(getattr(part, name), tuple(rest), value) if rest else value})


def _merge(layers: list[ConfigLayer], base: Path) -> tuple[dict[str, Any], dict[Keys, tuple[str, ...]], dict[str, str]]:
    """Merge all layers: values as written, their folders as absolute paths, and the origin of each value."""
    merged: dict[str, Any] = {}
    default: dict[str, Any] = {}
    for path, names in _FOLDERS.items():
        put(default, path, list(names))
    defaults = ConfigLayer(DEFAULT, default, _default_place, base)
    folders: dict[Keys, tuple[str, ...]] = {}
    origins: dict[str, str] = {}
    for layer in (defaults, *layers):
        for path, value in leaves(layer.data):
            if not path:
                continue  # an empty layer
            if path in _FOLDERS or (path[0] == _KNOWLEDGE and path[2:] in (("path",), ("paths",))):
                written = [value] if isinstance(value, str) else value
                folders[path] = tuple(_folder(layer.base, item) for item in written if item)
            if layer is not defaults:
                put(merged, path, value)
            origins[".".join(path)] = layer.origin(path)
    return merged, folders, origins


def _folder(base: Path, written: str) -> str:
    try:
        return str(base / Path(written).expanduser())
    except RuntimeError:  # an account without a home: there is nothing in such a folder
        return str(base / written)


def _default_place(_: Keys) -> Location:
    return Location(DEFAULT)


def _listed(layer: ConfigLayer, path: Keys) -> list[str]:
    here: Any = layer.data
    for key in path:
        here = here.get(key) if isinstance(here, Mapping) else None
    return [str(item) for item in here] if isinstance(here, list | tuple) else []
