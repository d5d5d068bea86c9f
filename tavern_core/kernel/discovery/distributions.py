"""Finds the installed distributions with entry points for this host, without reading the others.

The rules are those of importlib.metadata (a distribution is its metadata folder; of several with one name the first on the
path counts), the way is shorter: list each folder of the path once, and parse an `entry_points.txt` only where the bytes of
our group are in it. A broken distribution is a problem in a list and does not stop the others.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.file_stamp import CompactStamp, compact_stamp_at, have_stamps, is_settled
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.model.plugin_status import Diagnostic

GROUP: Final = "tavern.plugins"
_GROUP_BYTES: Final = GROUP.encode()
_METADATA_FOLDERS: Final = (".dist-info", ".egg-info")
_PATH_FINDERS: Final = ("_frozen_importlib_external", "importlib._bootstrap_external", "importlib_metadata")
"""Modules of the finders that search sys.path, as this module does itself."""
_LARGEST: Final = 1_000_000
_SEPARATORS = re.compile(r"[-_.]+")
_HEADER = re.compile(r"^(Name|Version):[ \t]*(.*?)[ \t]*$", re.MULTILINE)


class Distribution(NamedTuple):
    """The facts about one installed distribution. A NamedTuple: hundreds come out of the index at each start."""

    key: str
    """The normalised name (PEP 503)."""
    folder: str
    """Name of its metadata folder."""
    stamp: CompactStamp | None = None
    """The stamp of its entry_points.txt."""
    name: str = ""
    version: str = ""
    entries: Sequence[Sequence[str]] = ()
    """Entry-point name and value, as written."""
    metadata: Sequence[Sequence[Any]] = ()
    """The files that name and version were looked for in, each with its stamp. Empty if the folder's name says the same: then
    another version gets another folder, and each start has one file less to look at."""
    problems: Sequence[Sequence[str]] = ()
    """Message and hint of everything that is broken in it."""


@dataclass(slots=True)
class PathEntry:
    """The distributions in one entry of the path."""

    path: str
    stamp: CompactStamp | None
    distributions: Sequence[Distribution] = ()
    is_settled: bool = True
    """False when something changed so shortly before that a later change could bear the same time."""
    names: frozenset[str] | None = None
    """Everything in the folder; None when it came from the index or is an archive."""

    def says_the_same(self, other: PathEntry) -> bool:
        """True when both readings found the same."""
        return (self.stamp, [*self.distributions]) == (other.stamp, [*other.distributions])


def normalise(name: str) -> str:
    """The form of a distribution's name by which it is compared (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()


_known_entries: Final[dict[str, PathEntry]] = {}
"""What this process has read, shared by hosts with different state folders and indexes."""
_MOST_ENTRIES: Final = 256


def current_entry(path: str, now: int) -> PathEntry:
    """The content of an entry of sys.path; read again if it has changed since this process read it.

    Args:
        now: nanoseconds since the epoch, from before the call.
    """
    entry = _known_entries.get(path)
    if entry is None or not is_current(entry):
        if len(_known_entries) >= _MOST_ENTRIES:  # of folders that are used once, by a process that lives long
            _known_entries.clear()
        entry = _known_entries[path] = _read_entry(path, now)
    return entry


def _read_entry(path: str, now: int) -> PathEntry:
    """Read an entry of sys.path: a folder, an archive, or nothing. `now` as for `current_entry`."""
    stamp = compact_stamp_at(path)
    if stamp is None:
        return PathEntry(path, None)
    try:
        with os.scandir(path) as listing:
            names = frozenset(item.name for item in listing)
    except NotADirectoryError:
        found = list(_from_archive(path)) if os.path.isfile(path) else []  # noqa: PTH113 - a pipe would be waited for
        return PathEntry(path, stamp, found, is_settled(path, now))
    except (OSError, ValueError):
        return PathEntry(path, stamp, is_settled=False)
    is_egg = path.lower().endswith(".egg")
    found = [
        _read_folder(path, name)
        for name in sorted(names)
        if (name.lower().endswith(_METADATA_FOLDERS) or (is_egg and name == "EGG-INFO")) and not name.startswith("~")
    ]
    return PathEntry(path, stamp, found, _is_settled(path, found, now), names)


def is_current(entry: PathEntry) -> bool:
    """True if this entry has not changed since it was read."""
    if not entry.is_settled or compact_stamp_at(entry.path) != entry.stamp:
        return False
    tail = os.sep + "entry_points.txt"
    watched = [(found.folder + tail, found.stamp) for found in entry.distributions if found.folder]
    watched += [
        (found.folder + os.sep + file, stamp) for found in entry.distributions for file, stamp in found.metadata
    ]
    return have_stamps(entry.path + os.sep, watched)


def _is_settled(path: str, found: Sequence[Distribution], now: int) -> bool:
    files = (
        (each.folder, file)
        for each in found
        if each.stamp is not None
        for file in ("entry_points.txt", *(file for file, _ in each.metadata))
    )
    return is_settled(path, now) and all(is_settled(os.path.join(path, *file), now) for file in files)  # noqa: PTH118


def _read_folder(path: str, folder: str) -> Distribution:
    stem, _, _ = folder.rpartition(".")
    if folder == "EGG-INFO":
        stem = os.path.basename(path)[: -len(".egg")]  # noqa: PTH119
    name, _, version = stem.partition("-")
    metadata = os.path.join(path, folder)  # noqa: PTH118
    file = os.path.join(metadata, "entry_points.txt")  # noqa: PTH118
    stamp = compact_stamp_at(file)
    bare = Distribution(normalise(name), folder, stamp)
    try:
        with open_regular(file) as source:
            content = source.read(_LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return bare
    except OSError as error:
        problem = (f"entry_points.txt of {stem} cannot be read: {error.strerror}", "reinstall it")
        return Distribution(bare.key, folder, stamp, name, version, problems=[list(problem)])
    if _GROUP_BYTES not in content and _is_text(content):
        return bare
    version = version.partition("-")[0] if folder.lower().endswith(".egg-info") else version
    files: list[list[Any]] = []
    named = bare.key, version
    name, version, problems = _read_metadata(metadata, name, version, files)
    if not problems and (normalise(name), version) == named:
        files = []
    return distribution(bare.key, folder, stamp, name, version, content, problems)._replace(metadata=files)


def _is_text(content: bytes) -> bool:
    """Whether it is UTF-8; anything else breaks every look-up of entry points with `importlib.metadata`."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and len(content) > _LARGEST
    return True


def distribution(
    key: str,
    folder: str,
    stamp: CompactStamp | None,
    name: str,
    version: str,
    content: bytes,
    problems: list[tuple[str, str]],
) -> Distribution:
    """A distribution whose entry_points.txt holds `content`."""
    entries: list[list[str]] = []
    if len(content) > _LARGEST:
        problems.append((f"entry_points.txt of {name} is larger than {_LARGEST:,} bytes", "reinstall it"))
    else:
        try:
            entries, more = parse_entry_points(content.decode("utf-8"), name)
            problems += more
        except UnicodeDecodeError as error:
            problems.append((f"entry_points.txt of {name}: byte {error.start} is not UTF-8", "reinstall it"))
    return Distribution(key, folder, stamp, name, version, entries, problems=[list(problem) for problem in problems])


def parse_entry_points(text: str, name: str) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """The entries of our group in an entry_points.txt, and the malformed lines of that section.

    The format is the entry points specification's: ``[group]`` lines, ``name = value`` lines, ``#`` and ``;`` comments.
    """
    entries: dict[str, str] = {}
    problems: list[tuple[str, str]] = []
    in_group = False
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            in_group = line == f"[{GROUP}]"
            continue
        if not in_group:
            continue
        entry, equals, value = (part.strip() for part in line.partition("="))
        where = f"entry_points.txt of {name}, line {number}"
        if not equals or not entry or not value:
            problems.append((f"{where}: {line!r:.120} is not `name = package`", "reinstall it"))
        elif entry in entries:
            problems.append((f"{where}: the entry point {entry!r} is here twice", "keep one of them"))
        else:
            entries[entry] = value
    return [[entry, value] for entry, value in entries.items()], problems


def _read_metadata(
    folder: str, name: str, version: str, files: list[list[Any]]
) -> tuple[str, str, list[tuple[str, str]]]:
    """The name and version in the metadata, and its problems; the folder's name replaces missing values.

    Args:
        files: gets each file that is looked for, with its stamp.
    """
    for file in ("METADATA", "PKG-INFO"):
        path = os.path.join(folder, file)  # noqa: PTH118
        files.append([file, compact_stamp_at(path)])
        try:
            with open_regular(path) as source:
                head = source.read(65_536).replace(b"\r\n", b"\n").partition(b"\n\n")[0].decode("utf-8", "replace")
        except OSError:
            continue
        headers = dict(_HEADER.findall(head))
        problems = []
        if not headers.get("Name") or not headers.get("Version"):
            problems.append(
                (f"{file} of {name} names no {'Name' if not headers.get('Name') else 'Version'}", "reinstall it")
            )
        return headers.get("Name") or name, headers.get("Version") or version, problems
    return (
        name,
        version,
        [(f"{name} has no METADATA file; it is half installed", f"pip install --force-reinstall {name}")],
    )


# What only importlib.metadata can read -----------------------------------------------------------------------------------


def _metadata_module() -> Any:
    if sys.version_info >= (3, 13):
        from importlib import metadata
    else:
        import importlib_metadata as metadata
    return metadata


def _from_archive(path: str) -> Iterator[Distribution]:
    try:
        found = list(_metadata_module().distributions(path=[path]))
    except Exception:  # noqa: BLE001 - a corrupt archive on sys.path; Python itself ignores it as well
        return
    yield from _from_objects(found)


def from_foreign_finders() -> list[Distribution]:
    """Distributions that finders of other programs know (frozen applications, importers of all kinds)."""
    found: list[Any] = []
    for finder in sys.meta_path:
        find = getattr(finder, "find_distributions", None)
        if find is None or getattr(finder, "__module__", "") in _PATH_FINDERS:
            continue
        try:
            found += find(_metadata_module().DistributionFinder.Context())
        except Exception:  # noqa: BLE001 - a foreign finder
            continue
    return list(_from_objects(found))


def _from_objects(found: Sequence[Any]) -> Iterator[Distribution]:
    for each in found:
        try:
            text = each.read_text("entry_points.txt") or ""
            headers: Mapping[str, str] = each.metadata
            name, version = str(headers["Name"] or ""), str(headers["Version"] or "")
        except Exception:  # noqa: BLE001 - one corrupt distribution among others
            continue
        if name and GROUP in text:
            yield distribution(normalise(name), "", None, name, version, text.encode("utf-8", "replace"), [])
        elif name:
            yield Distribution(normalise(name), "")


def first_of_each(entries: Sequence[PathEntry]) -> tuple[list[tuple[PathEntry, Distribution]], list[Diagnostic]]:
    """The distributions that count, in the order of the path, and the problems of all of them.

    As in importlib.metadata the first of a name on the path hides the others. Two in one folder are the rest of an
    interrupted upgrade: the higher version counts.
    """
    chosen: dict[str, tuple[PathEntry, Distribution]] = {}
    diagnostics: list[Diagnostic] = []
    for entry in entries:
        for found in entry.distributions:
            other = chosen.get(found.key)
            if other is None:
                chosen[found.key] = (entry, found)
            elif other[0] is entry and (other[1].entries or found.entries):
                winner, loser = _newer(other[1], found)
                chosen[found.key] = (entry, winner)
                message = f"{found.name or found.key} is installed twice in {entry.path}: {winner.folder} is used"
                hint = f"delete {loser.folder}, or pip install --force-reinstall {found.name or found.key}"
                diagnostics.append(Diagnostic("PLUGIN_FAILED", message, hint=hint))
    for _, found in chosen.values():
        for message, hint in found.problems:
            diagnostics.append(Diagnostic("PLUGIN_FAILED", message, hint=hint, severity="error"))
    return list(chosen.values()), diagnostics


def _newer(one: Distribution, other: Distribution) -> tuple[Distribution, Distribution]:
    from packaging.version import InvalidVersion, Version

    def rank(found: Distribution) -> tuple[bool, Any, str]:
        try:
            return True, Version(found.version or found.folder.rpartition(".")[0].partition("-")[2]), found.folder
        except InvalidVersion:
            return False, Version("0"), found.folder

    return (one, other) if rank(one) >= rank(other) else (other, one)
