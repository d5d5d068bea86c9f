"""The sources of workflows: the folders of tavern.yaml, and plugins. Files are read at their first use, and again after a change.

Ids are file names without their endings; for a workflow of a plugin, ``<plugin>.<name>``. A link that leaves
its folder is ignored.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tavern_core.errors import Finding, UsageError, WorkflowInvalid, WorkflowNotFound, sayable
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.atomic_file import kept_mode, write_atomic
from tavern_core.kernel.files.file_lock import locked
from tavern_core.kernel.files.file_stamp import Stamp, stamp_of
from tavern_core.kernel.files.regular_file import open_regular
from tavern_core.kernel.files.safe_paths import beneath
from tavern_core.kernel.manifest.workflow_file_codec import (
    LARGEST_FILE,
    SUFFIX,
    document_of,
    read_workflow,
    workflow_of,
    write_workflow,
)
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.safe_printing import is_text, reason_of

if TYPE_CHECKING:
    from tavern_core.model.workflow import Workflow

MOST_FILES: Final = 10_000
_TOOL_FILE: Final = f".tool{SUFFIX}"
_LONGEST_NAME: Final = 200
"""Maximum bytes of a file name without its ending, given the limits of file systems and the temporary name."""
_NO_NAME: Final = re.compile(r'[/\\:*?"<>|]|^\.|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)$|\.(json|tool)$', re.IGNORECASE)
"""Names that some file system cannot store, hides, or interprets differently."""


@dataclass(frozen=True, slots=True)
class WorkflowSource:
    """An existing workflow, read or not."""

    id: str
    plugin: str = ""
    """Its plugin; empty for one of a folder."""
    path: Path | None = None
    """Its file in a folder of tavern.yaml."""
    content: Any = field(default=None, repr=False)
    """For a plugin: the workflow, or the path of its file in the plugin's folder."""
    folder: Path | None = field(default=None, repr=False)

    @property
    def plugin_source(self) -> tuple[str, Any, Path | None] | None:
        """Deprecated: `plugin`, `content` and `folder` of a plugin's workflow."""
        return (self.plugin, self.content, self.folder) if self.path is None else None

    @property
    def file(self) -> Path | None:
        """Its file, if it is one."""
        in_plugin = self.folder is not None and isinstance(self.content, str | Path)
        return self.folder / self.content if self.folder is not None and in_plugin else self.path


class SavedMeanwhile(UsageError):
    """A workflow was saved by someone else since it was read."""

    def __init__(self, id_: str, now: int, edited: int) -> None:
        super().__init__(
            sayable(f"workflow {id_!r:.300} was saved meanwhile: it is at rev {now}, you edited rev {edited}"),
            hint="load it again",
        )
        self.rev = now
        """The revision that is stored now."""


class WorkflowFiles:
    """The workflows of one host.

    Args:
        folders: the roots of tavern.yaml, most important first.
        plugin_sources: the current workflows of plugins.
    """

    def __init__(self, folders: Iterable[Path], plugin_sources: Callable[[], Mapping[str, WorkflowSource]]) -> None:
        self.folders = tuple(folders)
        self._plugin_sources = plugin_sources
        self._lock = threading.Lock()
        self._made: dict[str, tuple[Any, Workflow]] = {}
        """Workflows that plugins contribute as objects; always the same object, so that it is compiled once."""
        self._read: dict[tuple[Path, str], tuple[Stamp | None, bytes, Workflow | WorkflowInvalid]] = {}
        """(file, id) → its stamp, None if unreliable; the hash of its bytes; its content."""

    def list(self) -> dict[str, WorkflowSource]:
        """Id → workflow, sorted; a file of a folder takes precedence over a plugin's with the same id."""
        found = {**self._plugin_sources()}
        found.update({name: WorkflowSource(name, path=path) for name, path in self._files().items()})
        return dict(sorted(found.items()))

    def __contains__(self, id_: str) -> bool:
        return self._file(id_) is not None or id_ in self._plugin_sources()

    def stamp(self, further: Iterable[Path] = ()) -> object | None:
        """A value that changes whenever a file may have changed; None: a change is so recent that the next one may look the same.

        Args:
            further: files besides those of the folders.
        """
        found = []
        for path in chain(*map(workflow_files, self.folders), further):
            try:
                stamp = stamp_of(path.stat())
            except OSError:
                continue
            if stamp is None:
                return None
            found.append((str(path), stamp))
        return tuple(found)

    def broken(self) -> dict[str, WorkflowInvalid]:
        """Id → why it cannot be read, for the currently known workflows; no plugin is activated."""
        found = {}
        for id_, source in self.list().items():
            try:
                self.open(source)
            except WorkflowInvalid as error:
                found[id_] = error
        return found

    def get(self, id_: str) -> Workflow:
        """The workflow of an id.

        Raises:
            WorkflowNotFound: there is none; names the closest (WORKFLOW_NOT_FOUND).
            WorkflowInvalid: its file is wrong (WORKFLOW_INVALID).
        """
        if (path := self._file(id_)) is not None:
            return self.read(path, id_)
        if (source := self._plugin_sources().get(id_)) is not None:
            return self._of_plugin(source)
        hint = (
            did_you_mean(id_, self.list())
            or f"put {id_}{SUFFIX} into {', '.join(map(str, self.folders)) or 'a workflow folder'}"
        )
        raise WorkflowNotFound(sayable(f"there is no workflow {id_!r:.300}"), hint=sayable(hint))

    def open(self, source: WorkflowSource) -> Workflow:
        """The workflow that `list` named, without searching folders again. Raises as `get`."""
        return self._of_plugin(source) if source.path is None else self.read(source.path, source.id)

    def read(self, path: Path, id_: str = "") -> Workflow:
        """The workflow in a file, wherever it is. Raises WorkflowInvalid (WORKFLOW_INVALID)."""
        name = id_ or path.name.removesuffix(SUFFIX)
        try:
            stamp = stamp_of(path.stat())
            with self._lock:
                known = self._read.get((path, name))
            if known is None or known[0] != stamp or known[0] is None:
                with open_regular(path) as file:
                    content = file.read(LARGEST_FILE + 1)
                digest = blake2b(content).digest()
                if known is None or known[1] != digest:
                    known = stamp, digest, _read(content, str(path), name)
                known = stamp, *known[1:]
                with self._lock:
                    self._read[path, name] = known
        except (OSError, ValueError) as error:
            reason = reason_of(error)
            finding = Finding("WORKFLOW_INVALID", f"{path} cannot be read: {reason}")
            raise WorkflowInvalid(
                finding.message, findings=(finding,), problems=[{"message": finding.message}]
            ) from error
        found = known[2]
        if isinstance(found, WorkflowInvalid):
            raise WorkflowInvalid(found.message, hint=found.hint, findings=found.findings, **found.details)
        return found

    def save(self, id_: str, workflow: Workflow, *, rev: int | None = None, least: int = 0) -> Workflow:
        """Write a workflow into the first folder, completely or not at all; its `rev` is incremented.

        Args:
            rev: the revision that was edited; another one on disk means that it was saved by someone else meanwhile.
            least: the smallest revision that it may get.

        Raises:
            SavedMeanwhile: another revision is on disk (USAGE).
            UsageError: no folder, no such id, or content that a file cannot hold (USAGE).
        """
        path = self.new_file(id_)
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            now = self.read(path).rev if path.is_file() else 0
            if rev is not None and rev != now:
                raise SavedMeanwhile(id_, now, rev)
            return _written(path, id_, workflow, max(now + 1, least))

    def new_file(self, id_: str) -> Path:
        """The file of a new workflow, in the first folder. Raises UsageError: no folder, or no such id (USAGE)."""
        if not self.folders:
            raise UsageError("there is no folder for workflows", hint="tavern.yaml: workflows: {roots: [workflows]}")
        self._judge_name(self.folders[0], id_)
        return self.folders[0] / f"{id_}{SUFFIX}"

    def replace(self, path: Path, before: Workflow, after: Workflow) -> Workflow:
        """Write a changed workflow into the file from which it was read; its `rev` is that of `after`, or the next one.

        Raises:
            SavedMeanwhile: the file no longer holds `before` (USAGE).
            UsageError: content that a file cannot hold (USAGE).
        """
        with locked(path):
            now = self.read(path, before.id) if path.is_file() else None
            if now is None or (now is not before and now.raw != before.raw):
                raise SavedMeanwhile(before.id, now.rev if now is not None else 0, before.rev)
            return _written(path, before.id, after, max(after.rev, now.rev + 1))

    def write(self, path: Path, workflow: Workflow) -> Workflow:
        """Write a workflow into any file, whatever it holds now; its `rev` stays. Raises UsageError (USAGE)."""
        with locked(path):
            return _written(path, path.name.removesuffix(SUFFIX), workflow, workflow.rev)

    def _judge_name(self, folder: Path, id_: str) -> None:
        """Refuse an id that is not a portable and unambiguous file name in `folder`."""
        if (
            not id_
            or not isinstance(id_, str)
            or _NO_NAME.search(id_)
            or not id_.isprintable()
            or len(id_.encode("utf-8", "replace")) > _LONGEST_NAME
        ):
            raise UsageError(
                sayable(f"{id_!r:.300} cannot be the id of a workflow"),
                hint='use a short file name without / \\ : * ? " < > |, without a dot in front, and without an ending',
            )
        other = next(
            (path.name for path in workflow_files(folder) if path.name.casefold() == f"{id_}{SUFFIX}".casefold()), None
        )
        if other is not None and other != f"{id_}{SUFFIX}":
            raise UsageError(
                f"workflow {id_!r} and {other.removesuffix(SUFFIX)!r} would be one file on some systems",
                hint="choose another id",
            )

    def _of_plugin(self, source: WorkflowSource) -> Workflow:
        from tavern_core.model.workflow import Workflow

        id_, content, folder = source.id, source.content, source.folder
        if isinstance(content, Workflow | Mapping):
            known = self._made.get(id_)
            if known is None or known[0] is not content:
                made = workflow_of(document_of(content) if isinstance(content, Workflow) else content, id_)
                known = self._made[id_] = content, made
            return known[1]
        if folder is None:
            raise WorkflowInvalid(
                f"workflow {id_}: plugin {source.plugin} has no folder", hint="bring its content instead of a path"
            )
        if (path := beneath(folder, content)) is None:
            raise WorkflowInvalid(
                f"workflow {id_}: {content} is not inside of plugin {source.plugin}",
                hint="write a path relative to plugin.yaml",
            )
        return self.read(path, id_)

    def _file(self, id_: str) -> Path | None:
        """The file of one id, without a look at the others: each run of a workflow asks for it."""
        return next((path for folder in self.folders if (path := workflow_file(folder, id_)) is not None), None)

    def _files(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self.folders:
            for path in workflow_files(folder):
                found.setdefault(path.name.removesuffix(SUFFIX), path)
        return found


def _written(path: Path, id_: str, workflow: Workflow, rev: int) -> Workflow:
    """Write a workflow with a revision, completely or not at all. Raises UsageError (USAGE)."""
    saved = workflow.model_copy(update={"id": id_, "rev": rev, "raw": {**document_of(workflow), "rev": rev}})
    try:
        text = write_workflow(saved)
        data = text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"workflow {id_!r} holds something that JSON cannot hold: {error}",
            hint="use text, numbers, lists and objects",
        ) from error
    if len(data) > LARGEST_FILE:
        raise UsageError(
            f"workflow {id_!r} has {len(data):,} bytes; at most {LARGEST_FILE:,}", hint="split it into groups"
        )
    write_atomic(path, text, kept_mode(path))
    return saved


def workflow_files(folder: Path) -> Iterator[Path]:
    """The workflow files of a folder, sorted; hidden ones, tool files, except links that leave it and names that are not text."""
    try:
        real = os.path.realpath(folder, strict=True)
        with os.scandir(folder) as entries:
            found = sorted(
                (e for e in entries if e.name.endswith(SUFFIX) and not e.name.startswith(".") and is_text(e.name)),
                key=lambda e: e.name,
            )
    except OSError:  # a missing or inaccessible folder has no workflows
        return
    for entry in found[:MOST_FILES]:
        if entry.name.endswith(_TOOL_FILE):
            continue
        if entry.is_file(follow_symlinks=False) or (entry.is_symlink() and _leads_inside(entry.path, real)):
            yield folder / entry.name


def workflow_file(folder: Path, id_: str) -> Path | None:
    """The file of a folder with this id, if `workflow_files` would give it."""
    name = f"{id_}{SUFFIX}"
    if os.path.basename(name) != name or name.startswith(".") or name.endswith(_TOOL_FILE) or not is_text(name):  # noqa: PTH119
        return None
    path = folder / name
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):  # there is none, or it can be no name
        return None
    return path if stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and _leads_inside(path, folder)) else None


def _leads_inside(path: str | Path, folder: str | Path) -> bool:
    """Whether a link leads to a file below `folder`."""
    try:
        real = Path(os.path.realpath(path, strict=True))
        return real.is_file() and real.is_relative_to(os.path.realpath(folder))
    except OSError:  # removed meanwhile, or a link to itself
        return False


def _read(content: bytes, file: str, name: str) -> Workflow | WorkflowInvalid:
    try:
        return read_workflow(content, file, name)
    except WorkflowInvalid as error:
        return error
