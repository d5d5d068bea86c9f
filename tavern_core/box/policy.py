"""The policy of one box (sandbox): what its process may do. A frozen value that can be passed on as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, get_args

from tavern_core.errors import PluginError

Level = Literal["required", "best-effort", "none"]
"""`required`: every layer or nothing; `best-effort`: the available layers; `none`: no box."""

LIMITS: Final = "limits"
NAMESPACES: Final = "namespaces"
PROCESSES: Final = "pid-namespace"
PRIVILEGES: Final = "privileges"
LANDLOCK: Final = "landlock"
SECCOMP: Final = "seccomp"
LAYERS: Final[Mapping[str, str]] = {
    LIMITS: "bounds on memory, time, files and processes (rlimits)",
    NAMESPACES: "its own users, network and shared memory (user, network and IPC namespaces)",
    PROCESSES: "its own process tree, which ends as a whole (PID namespace); programs only",
    PRIVILEGES: "no capabilities, no new privileges, no memory for others to look into",
    LANDLOCK: "only the granted files and folders (Landlock)",
    SECCOMP: "no system calls that bypass the other layers (seccomp)",
}
"""Layer → its effect, in the order of application."""


class BoxUnavailable(PluginError):
    """A required layer is missing; nothing may run (PLUGIN_FAILED).

    Args:
        layer: its name, one of `LAYERS`.
        reason: why it is missing, in a few words.
    """

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(
            f"the box has no {layer} layer ({LAYERS.get(layer, layer)}): {reason}",
            hint="run on a system that has it (`tavern doctor` lists the layers), or accept a weaker box: "
            "`isolation: {level: best-effort}` in tavern.yaml",
            layer=layer,
            reason=reason,
        )
        self.layer = layer
        self.reason = reason


@dataclass(frozen=True, slots=True)
class BoxLimits:
    """Limits of one process; None: unchanged."""

    memory_bytes: int | None = 2_147_483_648
    """Limit of writable memory."""
    is_address_space: bool = True
    """Whether `memory_bytes` also bounds the address space. Not for V8 and its like, which reserve far more than they use."""
    cpu_seconds: int | None = None
    open_files: int | None = 256
    processes: int | None = 128
    """How many processes and threads one box with its own namespaces may have."""
    file_bytes: int | None = 1_073_741_824
    """Limit of one file's size."""


@dataclass(frozen=True, slots=True)
class GrantedPaths:
    """Resolved paths that may be read and written, except for protected entries (`protected_path_splitting.py`)."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    shut: tuple[str, ...] = ()
    """Not readable and not writable, including everything in them."""
    kept: tuple[str, ...] = ()
    """Not writable."""
    own: str = "/dev/null/none"
    """The only readable and writable folder inside `shut`."""


@dataclass(frozen=True, slots=True)
class BoxPolicy:
    """The permissions of a confined process. Everything else is forbidden."""

    read: tuple[str, ...] = ()
    """Absolute paths of files and folders, with everything in them. Missing ones are ignored."""
    write: tuple[str, ...] = ()
    """Files, and folders in which ordinary files and folders may be created, changed and removed: no links, sockets, devices.
    Reading them needs an entry in `read`, too."""
    execute: tuple[str, ...] = ()
    """Executable programs, or folders of programs; also readable."""
    may_fork: bool = False
    """Whether it may start further processes of its own program."""
    may_execute: bool = False
    """Whether it may start other programs: everything readable but not writable."""
    may_network: bool = False
    """Whether it may use TCP and UDP in the host's network, to anywhere."""
    has_gateway: bool = False
    """Whether it has TCP in its own network; its only exit is a socket of the host (`egress_proxy_socket.py`)."""
    limits: BoxLimits = field(default_factory=BoxLimits)
    level: Level = "required"
    without: tuple[str, ...] = ()
    """Disabled layers, as if this machine did not have them: for operators and tests."""
    left_out: tuple[str, ...] = ()
    """Layers that this box does not need, so that they do not count as missing."""
    granted: GrantedPaths = field(default_factory=GrantedPaths)
    """Further paths to read and write, with holes in them."""

    def __post_init__(self) -> None:
        paths = self.granted
        for path in (
            *self.read,
            *self.write,
            *self.execute,
            *paths.read,
            *paths.write,
            *paths.shut,
            *paths.kept,
            paths.own,
        ):
            if not path.startswith("/") or "\0" in path:
                raise ValueError(f"a box takes absolute paths, not {path!r}")
        if unknown := {*self.without, *self.left_out}.difference(LAYERS):
            raise ValueError(f"there is no layer {sorted(unknown)[0]!r}; layers: {', '.join(LAYERS)}")

    def to_json(self) -> str:
        """The policy as JSON on one line."""
        return json.dumps(self, separators=(",", ":"), default=_as_object)

    @classmethod
    def from_json(cls, text: str | bytes) -> BoxPolicy:
        """The inverse of `to_json`.

        Raises:
            ValueError: not a policy. Unknown keys are refused: a box must not be wider than its author intended.
        """
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("a policy is a JSON object")
        limits, granted = data.pop("limits", {}), data.pop("granted", {})
        for name, value in _known(limits, BoxLimits).items():
            if not (value is None or isinstance(value, int)):
                raise ValueError(f"limits.{name}: {value!r:.80} is not a number")
        return cls(limits=BoxLimits(**limits), granted=GrantedPaths(**_read(granted, GrantedPaths)), **_read(data, cls))


def _as_object(value: Any) -> dict[str, Any]:
    """Avoids the copies that `dataclasses.asdict` makes of every value: a policy is written for each script."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _read(data: Any, cls: type) -> dict[str, Any]:
    """The values of one object of a policy."""
    found: dict[str, Any] = {}
    for name, value in _known(data, cls).items():
        if name == "level":
            is_known = value in get_args(Level)
        elif name == "own":
            is_known = isinstance(value, str)
        elif name.startswith(("may_", "has_")):
            is_known = isinstance(value, bool)
        else:
            is_known = isinstance(value, list) and all(isinstance(word, str) for word in value)
        if not is_known:
            raise ValueError(f"{name}: {value!r:.80} is not understood")
        found[name] = tuple(value) if isinstance(value, list) else value
    return found


def _known(given: Any, cls: type) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError("a policy is a JSON object")
    names = {f.name for f in fields(cls)}
    if unknown := sorted(set(given) - names):
        raise ValueError(f"{cls.__name__} has no {unknown[0]!r}")
    return given
