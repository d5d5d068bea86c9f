"""Runs the tests of a plugin in a separate process with the audit guard.

The process has a deadline, the end of its output is stored, and all processes in its session end with it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

from tavern_core.box.fork_server_client import ending
from tavern_core.errors import UsageError
from tavern_core.kernel.discovery.distributions import GROUP
from tavern_core.review.import_probe import own_line, prober
from tavern_core.review.probe_result import PluginImport
from tavern_core.review.trace_record import TraceResult, read_record

RUNNER: Final = "tavern_core.testing.audit_trace"
_KEPT: Final = 60_000
"""Stored bytes of the tests' output."""
_IMPORT_S: Final = 10.0
_ABORT_S: Final = 5.0
_NO_TESTS: Final = 5
_FAILED: Final = (0, 1)
_SOURCE: Final = 3
"""Folders above a package that are searched for its project."""


def trace(name: str, version: str, *, module: str, folder: Path, words: Sequence[str], seconds: float) -> TraceResult:
    """Import a plugin, then run its tests; both with the guard.

    Args:
        name: of the plugin.
        version: as its plugin.yaml says.
        module: of an installed package; empty: the modules in `folder`.
        folder: the folder of plugin.yaml.
        words: arguments of pytest.
        seconds: time limit of the tests.

    Raises:
        UsageError: pytest is not installed here (USAGE).
    """
    if importlib.util.find_spec("pytest") is None:
        raise UsageError(
            "pytest is not installed here, so no tests can be run", hint="pip install 'tavern-core[testing]'"
        )
    project = project_of(folder)
    has_code = bool(module) or (folder / "__init__.py").is_file()
    with TemporaryDirectory(prefix="tavern-trace-") as room:
        path = list(_made_findable(name, version, folder, project, Path(room)))
        found = TraceResult()
        if has_code:
            first = prober.probe(PluginImport(name, module, folder), seconds=min(seconds, _IMPORT_S), guarded=True)
            found = replace(found, at_import=first.uses, hooks=first.hooks, ended="" if first.is_safe else first.said)
        if found.ended:
            return found  # the tests would end the same way
        return replace(found, **_tested(name, folder, project, Path(room), path, words, seconds))


def project_of(folder: Path) -> Path:
    """The place of a plugin's tests: the project whose pyproject.toml names its entry point, or its own folder."""
    for place in (folder, *folder.parents[:_SOURCE]):
        if _entry_points(place):
            return place
    return folder


def _command(given: Mapping[str, str], project: Path, words: Sequence[str]) -> list[str]:
    # The runner is part of tavern_core, whose pytest plugin asks for all of it to be imported by pytest.
    ignored = "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
    options = [f"--rootdir={project}", "-p", "no:cacheprovider", "-W", ignored]
    return [sys.executable, "-B", "-P", "-m", RUNNER, json.dumps(given), *options, *_alone(words)]


def _tested(
    name: str, folder: Path, project: Path, room: Path, path: Sequence[str], words: Sequence[str], seconds: float
) -> dict[str, Any]:
    """Run the tests of a plugin; returns fields of `TraceResult`."""
    record = room / "record.jsonl"
    request = {
        "name": name,
        "folder": str(folder),
        "project": str(project),
        "file": str(record),
        "scratch": str(room / "tests"),
    }
    with _running(_command(request, project, words), project, _environment(path)) as (process, printed):
        ended = ""
        if not _has_ended(process, seconds):
            ended = f"its tests have not ended after {seconds:g} s"
            os.kill(process.pid, signal.SIGABRT)  # it prints its position before it ends
            _has_ended(process, _ABORT_S)
    output = bytes(printed)
    code = process.returncode
    if not ended and code not in (*_FAILED, _NO_TESTS):
        ended = (
            f"its tests ended the process with {ending(code)}"
            if code < 0
            else f"pytest could not run them (exit code {code})"
        )
    if ended and (code < 0 or "not ended" in ended):
        ended += own_line(output, folder)
    found = read_record(record)
    if not ended and "collected" not in found:  # the writer finishes the record, whatever the tests do, except here
        ended = f"its tests ended the process themselves (exit code {code})"
    return {**found, "ended": ended, "said": output.decode("utf-8", "replace")}


def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a process without reaping it: until then its id is not reused, so its group can be ended."""
    ended = threading.Thread(target=_wait_for, args=(process.pid,), daemon=True)
    ended.start()
    ended.join(seconds)
    return not ended.is_alive()


def _wait_for(pid: int) -> None:
    with suppress(ChildProcessError):  # reaped in the meantime
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@contextmanager
def _running(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], bytearray]]:
    """A process in its own session, and the end of its output."""
    printed = bytearray()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    reader = threading.Thread(target=_keep_end, args=(process.stdout, printed), daemon=True)
    reader.start()
    try:
        yield process, printed
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(_ABORT_S)  # longer only if a process left its session and still holds the pipe
        if not reader.is_alive():
            process.stdout.close()


def _keep_end(pipe: IO[bytes], kept: bytearray) -> None:
    while chunk := os.read(pipe.fileno(), 65_536):
        kept += chunk
        del kept[:-_KEPT]


def _alone(words: Sequence[str]) -> list[str]:
    """Arguments that keep the tests in one process, the one with the guard."""
    given = [*words, *os.environ.get("PYTEST_ADDOPTS", "").split()]
    has_xdist = importlib.util.find_spec("xdist") is not None and "no:xdist" not in given and "-pno:xdist" not in given
    return [*(["-n0"] if has_xdist else []), *words]


def _environment(path: Sequence[str]) -> dict[str, str]:
    environment = dict(os.environ)
    known = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**environment, "PYTHONPATH": os.pathsep.join([*known, *path])} if path or known else environment


def _made_findable(name: str, version: str, folder: Path, project: Path, room: Path) -> Iterator[str]:
    """Entries for the import path that let the tests find the plugin of a project that is not installed."""
    from tavern_core.kernel.discovery.discovery import discover

    module = _entry_points(project).get(name, "").partition(":")[0]
    if not module or any(plugin.name == name for plugin in discover(index_file=None).plugins):
        return
    distribution = f"tavern-plugin-{name}"
    info = room / "site" / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}\n", "utf-8")
    yield str(info.parent)
    yield str(folder.parents[len(module.split(".")) - 1])


def _entry_points(project: Path) -> dict[str, str]:
    try:
        data: Any = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))
        found = data["project"]["entry-points"][GROUP]
        return {str(name): str(module) for name, module in found.items()}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        return {}
