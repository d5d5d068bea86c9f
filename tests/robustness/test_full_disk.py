"""A disk that is full at any moment: what cannot be kept is refused at once and clearly, nothing is half there, and it goes on later."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.kernel.log.log_files import audit_log
from tavern_core.kernel.log.verify import verify
from tests.state.processes import run

from .watch import SECOND, check_text

MANIFEST = """\
name: one
version: "1.0"
tools:
  - {id: t, implementation: {type: python}}
permissions:
  capabilities: [{name: "acme/do:a"}, {name: "acme/do:b"}]
configOptions:
  - {key: extensions.one.n, type: number, defaultValue: -1}
"""
CODE = """\
from tavern_core import hookimpl, tool

@tool
def t(n: int) -> int:
    return n

@hookimpl
def tavern_register_tools():
    return [t]
"""
WORKER = """\
import json, resource, sys, time
from tavern_core import Tavern
from tavern_core.errors import TavernError

config, home, limits = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)

def deeds(tavern, n):
    return {
        "call": lambda: tavern.invoke_sync("one:t", {"n": n}).value,
        "save": lambda: tavern.settings.save({"extensions.one.n": n}),
        "grant": lambda: tavern.grant("one", "acme/do:a" if n % 2 else "acme/do:b"),
        "disable": lambda: tavern.plugins.disable_sync("other", reason=f"{n} times"),
        "enable": lambda: tavern.plugins.enable_sync("other"),
    }

def said(name, deed):
    start = time.process_time()
    try:
        answer = deed()
    except TavernError as error:
        answer = [error.code, error.message, error.hint]
    return answer if name == "call" or type(answer) is list else None, time.process_time() - start

def look(n, limit):
    "A new host and what it answers, with files that may have this size."
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    try:
        with Tavern.open(config, home=home) as tavern:
            done = {name: said(name, deed) for name, deed in deeds(tavern, n).items()}
            return done, [d.message for d in tavern.diagnostics], tavern.settings.get("extensions.one.n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

for n, limit in enumerate(limits):
    print(json.dumps([look(n, limit), look(n + 1_000, most)]), flush=True)
"""
WRITES = ("save", "grant", "disable", "enable")


def project(folder: Path) -> Path:
    for name in ("one", "other"):
        plugin = folder / "plugins" / name
        plugin.mkdir(parents=True)
        (plugin / "plugin.yaml").write_text(MANIFEST.replace("one", name))
        (plugin / "__init__.py").write_text(CODE)
    (folder / "tavern.yaml").write_text("plugins: {entryPoints: false}\n")
    return folder / "tavern.yaml"


def rounds(folder: Path, limits: Iterable[int]) -> list[Any]:
    """What a process was told, for each limit while it held and afterwards."""
    done = run(WORKER, project(folder), folder / "home", json.dumps(list(limits)), seconds=600)
    return [json.loads(line) for line in done.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "within"),
    [
        pytest.param([1, 100, 1_500, 5_000], None, id="four sizes"),
        pytest.param(range(1, 12_000, 40), SECOND, id="three hundred sizes", marks=pytest.mark.soak),
    ],
)
def test_a_full_disk_is_reported_at_once_and_nothing_is_lost(
    tmp_path: Path, limits: Iterable[int], within: float | None
) -> None:
    before, refused = -1, 0
    for n, ((full, full_notes, kept), (later, _, saved)) in enumerate(rounds(tmp_path, limits)):
        for name, (answer, seconds) in full.items():
            assert within is None or seconds < within, (name, seconds)
            if name in WRITES and answer is not None:
                code, message, hint = answer
                assert (code, message.split(" /")[0]) == ("STATE_DAMAGED", "cannot write"), answer
                assert "file size" in hint
                check_text(message)
                refused += 1
        assert full["call"][0] == n  # a call that only the log could not keep is a call that was made
        assert kept == (n if full["save"][0] is None else before)
        for note in full_notes:
            assert "could not be written" in note or "cannot" in note, note
        assert {name: answer for name, (answer, _) in later.items()} == {**dict.fromkeys(WRITES), "call": n + 1_000}
        before = saved
        assert saved == n + 1_000
    assert refused >= 3
    home = tmp_path / "home"
    report = verify(audit_log(home))
    assert report.ok, report.problems[:3]
    assert not [file.name for file in home.rglob("*") if "damaged" in file.name or file.suffix == ".tmp"]
    with Tavern.open(tmp_path / "tavern.yaml", home=home) as tavern:
        assert tavern.plugins["one"].granted == {"acme/do:a", "acme/do:b"}
        assert tavern.invoke_sync("one:t", {"n": 1}).ok
