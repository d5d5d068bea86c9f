"""``tavern assist``: change a workflow in your own words, and take the change back."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tavern_core.cli.errors import FAILED, INVALID, ReportedExit, print_problem
from tavern_core.cli.output import write
from tavern_core.cli.prompts import alone, has_person, read_line
from tavern_core.cli.session import CliSession, command
from tavern_core.errors import StateDamaged, UsageError
from tavern_core.kernel.files.atomic_file import kept_mode, write_atomic
from tavern_core.kernel.files.file_lock import locked

if TYPE_CHECKING:
    from tavern_core.assistant.proposal import Proposal
    from tavern_core.graph.patch_problems import PatchProblem
    from tavern_core.host import Tavern


_YES: Final = ("y", "yes", "是")


@command()
@click.argument("words", metavar="[REQUEST] FILE|ID", nargs=-1, required=True)
@click.option("--model", default="", metavar="MODEL", help="The language model; default: the only one.")
@click.option("--plan", is_flag=True, help="Let the model plan the steps first.")
@click.option(
    "--rounds",
    type=click.IntRange(0, 10),
    default=2,
    show_default=True,
    help="How often the model may correct its answer.",
)
@click.option("--try", "tries", is_flag=True, help="Also run the result with sample values, without effects.")
@click.option("--yes", "-y", is_flag=True, help="Apply the change without asking.")
@click.option("--dry-run", is_flag=True, help="Only show the change.")
@click.option("--output", "-o", metavar="FILE", help="Write the changed workflow there; leave FILE as it is.")
@click.option("--undo", is_flag=True, help="Undo the last change of FILE: `tavern assist --undo FILE`.")
def assist(session: CliSession, /, words: tuple[str, ...], undo: bool, **options: Any) -> None:
    """Change a workflow in your own words, with a language model.

    `tavern assist "summarize the text first" flow.json` checks the change, shows it, and applies it after your consent. A file that does not
    exist is created. The request and the workflow are sent to the model.
    """
    *request, file = words
    if undo:
        if request or options["yes"] or options["dry_run"] or options["output"]:
            raise UsageError("--undo takes only a FILE", hint="tavern assist --undo flow.json")
        _undo(session, file)
        return
    if len(request) != 1:
        raise UsageError(
            "a request and a file are needed", hint='quote the request: tavern assist "translate it" flow.json'
        )
    if options["yes"] and options["dry_run"]:
        raise UsageError("--yes and --dry-run exclude each other", hint="leave one of them out")
    _propose(session, request[0], file, options)


def _propose(session: CliSession, request: str, file: str, options: Mapping[str, Any]) -> None:
    """Show a change, and write it if the person agrees."""
    host = session.host()
    path = _path(host, file)
    target = _file(options["output"]) if options["output"] else path
    current: Any = path if path.exists() else {"name": path.stem, "nodes": [], "edges": []}
    how = {name: options[name] for name in ("model", "plan", "rounds")}
    proposal = host.wait(host.assistant.propose(request, current, dry_run=options["tries"], **how))
    if not proposal.ok:
        _refused(session, proposal)
    if not session.as_json:
        _show(session, proposal)
    is_shown_only = options["dry_run"]
    applied = not is_shown_only and (options["yes"] or (options["output"] and not target.exists()) or _consents(target))
    if applied:
        _apply(session, host, proposal, target, is_same=target == path)
    if session.as_json:
        session.out.json({**proposal.to_json(), "file": str(target), "applied": applied})
    elif applied:
        write(sys.stderr, f"written: {target}\n")
    if not applied and not is_shown_only and not has_person():
        print_problem("note", "USAGE", "nothing was written", "apply the change with --yes")


def _path(host: Tavern, file: str) -> Path:
    """The path of the named file: a path, or the id of a workflow with a file or of a new one."""
    path, id_ = Path(file), file.removeprefix("workflow:")
    if not path.exists() and (source := host.workflows.list().get(id_)) is not None:
        if source.plugin or source.path is None:
            raise UsageError(
                f"workflow {id_!r} belongs to plugin {source.plugin}, whose files are not changed",
                hint="write the result elsewhere: tavern assist REQUEST COPY.json",
            )
        return source.path.absolute()
    if not path.exists() and path.suffix.lower() != ".json" and path.name == file:
        return host.workflows.workflow_files.new_file(id_).absolute()
    return _file(file)


def _file(file: str) -> Path:
    path = Path(file).absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{file} cannot be a workflow file", hint="name a file in an existing folder: flow.json")
    return path


def _show(session: CliSession, proposal: Proposal) -> None:
    from tavern_core.graph.changes import in_words

    if proposal.reason:
        session.out.text(proposal.reason)
    for change in proposal.changes or (None,):
        changes = () if change is None else (change,)
        session.out.text(f"  {in_words(changes, proposal.before, proposal.workflow)[proposal.language]}")
    for edge in proposal.removed_edges:
        session.out.text(f"  removed with {edge.node}: its edge from {edge.source} to {edge.target}")
    _print_problems(proposal.warnings, "warning")
    if (trial := proposal.dry_run) is not None:
        left_out = f"; not run: {', '.join(trial.left_out)}" if trial.left_out else ""
        session.out.text(f"dry run: {trial.state}{left_out}")
    spent = proposal.spent
    if spent.input or spent.output:
        cost = f", {spent.cost:.4f} {spent.currency}" if spent.cost is not None else ""
        write(sys.stderr, f"{spent.requests} request(s), {spent.input} + {spent.output} tokens{cost}\n")


def _refused(session: CliSession, proposal: Proposal) -> None:
    """Report a proposal without a valid change. Raises ReportedExit."""
    if session.as_json:
        session.out.json({**proposal.to_json(), "file": None, "applied": False})
    elif proposal.declined:
        print_problem("error", "TOOL_ERROR", f"the model changed nothing: {proposal.declined}", "ask in other words")
    else:
        _print_problems(proposal.problems, "error")
        hint = "ask in other words, allow more --rounds, or use another model"
        print_problem("error", "WORKFLOW_INVALID", f"no valid change after {len(proposal.rounds)} answer(s)", hint)
    raise ReportedExit(FAILED if proposal.declined else INVALID)


def _print_problems(problems: tuple[PatchProblem, ...], severity: str) -> None:
    for problem in problems:
        place = f"  --> {problem.pointer}" if problem.pointer else ""
        print_problem(severity, problem.code, problem.message, problem.hint, [place] if place else [])


def _consents(target: Path) -> bool:
    """Whether the person agrees; without a terminal, there is none."""
    if not has_person():
        return False
    with alone():
        return (read_line(f"Write {target}? [y/N] ") or "").strip().lower() in _YES


def _apply(session: CliSession, host: Tavern, proposal: Proposal, target: Path, *, is_same: bool) -> None:
    versions = PreviousVersions(session.loaded().home, target)
    before = versions.now()
    if is_same:
        target.parent.mkdir(parents=True, exist_ok=True)  # the folder of workflows may not exist yet
        outcome = host.wait(host.assistant.apply(proposal, target))
        if not outcome.ok:
            problem = outcome.problems[0]
            raise UsageError(f"{target}: {problem.message}", hint="run the command again for the workflow as it is now")
    else:
        host.wait(host.assistant.write(proposal, target))
    try:
        versions.keep(before)
    except StateDamaged as error:
        print_problem(
            "warning", error.code, f"{target} is written, but the change cannot be undone: {error.message}", error.hint
        )


def _undo(session: CliSession, file: str) -> None:
    path = Path(file)
    if not path.exists():
        path = _path(session.host(), file)
    existed = PreviousVersions(session.loaded().home, path).restore()
    session.show(
        {"file": str(path.absolute()), "restored": existed, "deleted": not existed},
        f"restored: {path}" if existed else f"deleted: {path}, which did not exist before",
    )


_MOST_KEPT: Final = 20
_REPAIR: Final = "delete it; then earlier changes of the file cannot be undone"


class PreviousVersions:
    """The versions of one file, newest last.

    Args:
        home: the folder of the host's state.
    """

    def __init__(self, home: Path, file: Path) -> None:
        self._file = file.absolute().parent.resolve() / file.name  # one file, however its path is written
        name = sha256(str(self._file).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._path = home / "assist" / f"{name}.json"

    def now(self) -> str | None:
        """The current text of the file, with its line endings; bytes that are no text are kept as surrogates. None: there is no file."""
        return self._file.read_bytes().decode("utf-8", "surrogateescape") if self._file.is_file() else None

    def keep(self, before: str | None) -> None:
        """Store the change of the file from `before` to its current content. Raises StateDamaged (STATE_DAMAGED).

        Args:
            before: `now` before the change.
        """
        with locked(self._path):
            self._write([*self._read(), {"before": before, "after": _hash(self.now() or "")}][-_MOST_KEPT:])

    def restore(self) -> bool:
        """Take the last change back; False: the file was new and is deleted again.

        Raises:
            UsageError: there is none, or the file was changed since (USAGE).
            StateDamaged: the stored versions cannot be read (STATE_DAMAGED).
        """
        with locked(self._path):
            versions = self._read()
            if not versions:
                raise UsageError(
                    f"{self._file} has no change to undo", hint="only changes by `tavern assist` can be undone"
                )
            last = versions[-1]
            if _hash(self.now() or "") != last["after"]:
                raise UsageError(
                    f"{self._file} was changed since, so its previous version is not restored",
                    hint=f"the previous version is in {self._path}",
                )
            if last["before"] is None:
                self._file.unlink()
            else:
                write_atomic(self._file, last["before"].encode("utf-8", "surrogateescape"), kept_mode(self._file))
            self._write(versions[:-1])
            return last["before"] is not None

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with suppress(OSError, ValueError, RecursionError):
            data = json.loads(self._path.read_text("utf-8"))
            versions = data.get("versions") if isinstance(data, dict) else None
            if isinstance(versions, list) and all(_is_version(each) for each in versions):
                return versions
        raise StateDamaged(f"{self._path} cannot be read", hint=_REPAIR)

    def _write(self, versions: list[dict[str, Any]]) -> None:
        write_atomic(self._path, json.dumps({"file": str(self._file), "versions": versions}))


def _is_version(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("before"), str | None) and isinstance(data.get("after"), str)


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
