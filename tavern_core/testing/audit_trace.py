"""``pytest --tavern-trace``, and the program of `tavern plugins check --trace`: tests with the audit guard.

Each use of the plugin's code is written immediately as a line of JSON, so that a crash loses nothing:

    {"use": {...}}       {"change": [name, file, line]}       {"printed": [test, bytes]}       {"done": {...}}

A plugin with `isolation: process` runs in the process of the tests, because a guard does not observe other processes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import gettempdir, mkstemp
from typing import Any, Final

import pytest

_FILE: Final = "tavern_trace_file"
MOST_PRINTED: Final = 1_000_000
"""Characters that a test may print before it is reported."""


class Tracing:
    """The guard of one pytest run.

    Args:
        project: the folder of ``./`` and of the tests.
        file: the file for the lines.
        scratch: further folders for the files of tests.
    """

    def __init__(self, name: str, folder: Path, project: Path, file: Path, scratch: Iterable[Path] = ()) -> None:
        from tavern_core.isolation.placement import keep_in_process
        from tavern_core.kernel.calls.running_call import current
        from tavern_core.review.audit.attribution import StackAttribution
        from tavern_core.review.audit.guard import AuditGuard
        from tavern_core.review.audit.observed_use import ObservedUse
        from tavern_core.review.audit.path_names import PathNames

        def workspace() -> str | None:
            frame = current.get()
            return frame.caller.workspace_dir if frame is not None and frame.caller is not None else None

        def on_use(use: ObservedUse) -> None:
            self._write({"use": use.to_json()})

        self._out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._changed: set[str] = set()
        self._tests = [str(project)]
        self._stack = StackAttribution(str(folder), self._tests)
        scratches = [*map(str, scratch), *map(str, Path(gettempdir()).glob("pytest-of-*"))]
        self._guard = AuditGuard(
            self._stack, PathNames(str(folder), str(project), scratches), on_use, workspace=workspace
        )
        keep_in_process(name)

    def start(self) -> None:
        """Install the guard, as early as possible, because earlier imports are not observed."""
        self._guard.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Inspect the host before the test restores it."""
        self._look_at_host()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and (printed := len(report.capstdout) + len(report.capstderr)) > MOST_PRINTED:
            self._write({"printed": [report.nodeid, printed]})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._guard.stop()
        self._look_at_host()
        if not hasattr(session.config, "workerinput"):
            done = {
                "collected": session.testscollected,
                "failed": session.testsfailed,
                "failures": self._guard.failures[:20],
            }
            self._write({"done": done})

    def _look_at_host(self) -> None:
        from tavern_core.review.audit.patches import host_changes

        for name, (file, line) in host_changes(self._stack):
            if name not in self._changed:
                self._changed.add(name)
                self._write({"change": [name, file, line]})

    def _write(self, row: dict[str, Any]) -> None:
        os.write(self._out, json.dumps(row).encode() + b"\n")


class TracingSummary:
    """Reports at the end of a pytest run what the guard of a plugin has written to `file`."""

    def __init__(self, folder: Path, file: Path) -> None:
        self._folder, self._file = folder, file

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        from tavern_core.review.plugin_check import check_plugin
        from tavern_core.review.trace_findings import verdict
        from tavern_core.review.trace_record import TraceResult, read_record

        findings, block = verdict(check_plugin(self._folder), TraceResult(**read_record(self._file)))
        self._file.unlink()
        terminalreporter.section("what the plugin used")
        for finding in findings:
            terminalreporter.write_line(f"{finding.severity}[{finding.code}]: {finding}")
        if block:
            terminalreporter.write_line("The smallest permissions for what was seen, for plugin.yaml:")
            terminalreporter.write(block)


def trace_this_run(config: pytest.Config, plugin: str) -> None:
    """``pytest --tavern-trace``: install the guard in this process; with pytest-xdist, in each of its processes.

    Args:
        plugin: the name of the plugin under test; empty: the one of the project.

    Raises:
        TavernError: there is no plugin under test.
    """
    from tavern_core.testing.under_test import find_plugin, project_of

    found = find_plugin(plugin, project_of(config.invocation_params.dir, config.rootpath))
    of_all = getattr(config, "workerinput", {}).get(_FILE)
    file = Path(of_all) if of_all else _new_file()
    tracing = Tracing(found.name, found.folder, config.rootpath, file)
    config.pluginmanager.register(tracing)
    if not of_all:
        config.pluginmanager.register(TracingSummary(found.folder, file))
        if config.pluginmanager.hasplugin("xdist"):
            config.pluginmanager.register(_ForWorkers(file))
    tracing.start()


def _new_file() -> Path:
    descriptor, name = mkstemp(prefix="tavern-trace-", suffix=".jsonl")
    os.close(descriptor)
    return Path(name)


class _ForWorkers:
    """Passes the file to the processes of pytest-xdist; lines of a few hundred bytes are appended atomically."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_FILE] = str(self._file)


def main(words: Sequence[str]) -> int:
    """Run pytest with the guard.

    Args:
        words: a JSON object (name, folder, project, file, scratch), then arguments of pytest.
    """
    options = json.loads(words[0])
    scratch = Path(options["scratch"])
    tracing = Tracing(
        options["name"], Path(options["folder"]), Path(options["project"]), Path(options["file"]), [scratch]
    )
    tracing.start()
    return int(pytest.main([f"--basetemp={scratch}", *words[1:]], plugins=[tracing]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
