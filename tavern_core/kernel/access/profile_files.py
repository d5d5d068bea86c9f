"""Agent profiles in files: the folders of tavern.yaml.

A folder holds ``<name>.json`` or ``<name>/agent_profile.json``. Names are looked up among the existing files: no path
is ever made from a name, so none can leave the folders. Files are read on request, and again after a change. A program
may also name a file itself (`read`) or pass the content of a profile (`profile_of`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from tavern_core.errors import Finding, Location, ProfileInvalid
from tavern_core.kernel.files.file_stamp import Stamp, stamp_of
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.text.document import LARGEST_FILE
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.safe_printing import reason_of

if TYPE_CHECKING:
    from tavern_core.model.agent_profile import AgentProfile

PROFILE_FILE: Final = "agent_profile.json"
MOST_FILES: Final = 10_000


class ProfileFiles:
    """The agent profiles of one host. Safe for threads.

    Args:
        folders: searched in this order; the first that has a name wins. One that does not exist is empty.
    """

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._folders = tuple(folders)
        self._read: dict[tuple[Path, bool], tuple[Stamp | None, bytes, AgentProfile, tuple[Finding, ...]]] = {}
        """(file, whether it was found by its name) → its stamp, None if unreliable; the hash of its bytes; its content."""
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """All names, sorted; files that cannot be read count by their file name."""
        return sorted(self._files())

    def get(self, name: str) -> tuple[AgentProfile, tuple[Finding, ...]]:
        """A profile and the warnings about its file.

        Raises:
            ProfileInvalid: no profile has this name (the error names the nearest), or its file is invalid (PROFILE_INVALID).
        """
        if (path := self._files().get(name)) is not None:
            return self._load(path, name, is_bound=True)
        known = self.names()
        hint = did_you_mean(name[:200], known) or (f"there are: {', '.join(known[:10])}" if known else self._nowhere())
        raise ProfileInvalid(f"there is no profile {name[:200]!r}", hint=hint, known=known[:100])

    def read(self, path: Path) -> tuple[AgentProfile, tuple[Finding, ...]]:
        """The profile in a file anywhere, chosen by the program; its name is its own `name`, else the file's.

        Raises:
            ProfileInvalid: the file cannot be read, or is wrong (PROFILE_INVALID).
        """
        name = path.absolute().parent.name if path.name == PROFILE_FILE else path.stem
        return self._load(path, name, is_bound=False)

    def _nowhere(self) -> str:
        return f"put {PROFILE_FILE.replace('agent_profile', '<name>')} into {', '.join(map(str, self._folders)) or 'a folder of `profiles:`'}"

    def _files(self) -> dict[str, Path]:
        """Name → file. The name is the file's stem, or the folder's for ``<name>/agent_profile.json``."""
        found: dict[str, Path] = {}
        for folder in self._folders:
            here: dict[str, Path] = {}
            for path in _candidates(folder):
                name = path.parent.name if path.parent != folder else path.stem
                here.setdefault(name, path)
            for name, path in here.items():
                found.setdefault(name, path)
        return found

    def _load(self, path: Path, name: str, *, is_bound: bool) -> tuple[AgentProfile, tuple[Finding, ...]]:
        """Read a profile file, again if it has changed.

        Args:
            name: the name of a profile without one in its file.
            is_bound: whether it was found by this name and can have no other.
        """
        from tavern_core.kernel.access.profiles import CODE, parse_profile

        try:
            stamp = stamp_of(path.stat())
            with self._lock:
                known = self._read.get((path, is_bound))
            if known is not None and known[0] is not None and known[0] == stamp:
                return known[2:]
            with open_regular(path) as file:
                content = file.read(LARGEST_FILE + 1)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = reason_of(error)
            hint = "see that the path is right, and that the file can be read"
            finding = Finding(CODE, f"cannot be read: {reason}", hint, Location(str(path)))
            raise ProfileInvalid(finding.located, hint=hint, findings=(finding,), file=str(path)) from error
        digest = blake2b(content).digest()
        if known is not None and known[1] == digest:
            with self._lock:
                self._read[path, is_bound] = stamp, *known[1:]
            return known[2:]
        profile, findings = parse_profile(content, str(path), name)
        profile = profile.placed(str(path.absolute().parent))
        if is_bound and profile.name != name:
            # The file is found by its own name; a second name inside would let one file replace another.
            message = f"the file is profile {name!r}; its field 'name' says {profile.name!r} and is not used"
            findings = (
                *findings,
                Finding(CODE, message, "rename the file", Location(str(path), pointer="name"), "warning"),
            )
            profile = profile.model_copy(update={"name": name})
        with self._lock:
            self._read[path, is_bound] = stamp, digest, profile, findings
        return profile, findings


def _candidates(folder: Path) -> list[Path]:
    """The profile files of a folder, sorted, links that leave it left out."""
    try:
        real = folder.resolve(strict=True)
        entries = sorted(folder.iterdir())[:MOST_FILES]
    except (OSError, RuntimeError):  # a folder that is missing, closed to us or a loop of links holds no profiles
        return []
    nested = [entry / PROFILE_FILE for entry in entries if not entry.name.startswith(".")]
    flat = [entry for entry in entries if entry.suffix == ".json" and not entry.name.startswith(".")]
    return [path for path in (*flat, *nested) if path.is_file() and path.resolve().is_relative_to(real)]


def profile_of(given: AgentProfile | Mapping[str, Any], giver: str) -> AgentProfile:
    """A profile as an object or a mapping, checked.

    Args:
        giver: the name of its source in messages.

    Raises:
        ProfileInvalid: it does not fit; `findings` has every problem (PROFILE_INVALID).
    """
    from tavern_core.kernel.access.profiles import CODE
    from tavern_core.model.agent_profile import AgentProfile
    from tavern_core.model.pydantic_errors import explain

    if isinstance(given, AgentProfile):
        return given
    if not isinstance(given, Mapping):
        raise ProfileInvalid(f"{giver}: a profile is an AgentProfile or a mapping, got {type(given).__name__}")
    written = dict(given)
    if odd := [key for key in written if not isinstance(key, str)]:
        raise ProfileInvalid(f"{giver}: {odd[0]!r:.100} is not a key of a profile", hint="keys are text")
    try:
        return AgentProfile.model_validate(written)
    except ValidationError as error:
        where = f"{giver}: profile {written.get('name', '?')!r:.100}"
        findings = tuple(
            Finding(CODE, refusal.message, refusal.hint, Location(where, pointer=refusal.place))
            for refusal in explain(error, written, AgentProfile)
        )
        raise ProfileInvalid(findings[0].located, hint=findings[0].hint, findings=findings) from error
