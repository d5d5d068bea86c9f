"""Which plugins the operator switched: kept, shared, and survived when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tavern_core.errors import StateDamaged
from tavern_core.kernel.plugins.enabled_state import EnabledDecision, PluginStates
from tests.rows import each_row

from .processes import start


def states(folder: Path) -> PluginStates:
    return PluginStates(folder / "plugins.json", clock=lambda: 1_795_262_400.0)


def test_without_a_file_nothing_is_switched(tmp_path: Path) -> None:
    read = states(tmp_path).read()
    assert (read.switches, read.disabled, read.findings) == ({}, {}, ())


def test_a_decision_is_kept_with_its_reason_and_time(tmp_path: Path) -> None:
    states(tmp_path).disable("text", reason="太慢了", by="alice")
    states(tmp_path).enable("other")
    read = states(tmp_path).read()
    assert read.switches["text"] == EnabledDecision(False, "太慢了", "2026-11-21T12:00:00.000Z", "alice")
    assert read.disabled == {"text": "太慢了"}
    assert read.switches["other"].enabled
    assert states(tmp_path).disabled() == {"text": "太慢了"}
    states(tmp_path).enable("text")
    assert states(tmp_path).disabled() == {}


@each_row("content", [b"", b"{", b"[]", b'{"version": 7}', b'{"version": 1, "plugins": []}', b"\xff", b"\0" * 9])
def test_a_corrupt_file_switches_nothing_says_so_and_is_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plugins.json"
    path.write_bytes(content)
    read = states(tmp_path).read()
    assert read.switches == {}
    assert read.findings[0].where is not None
    assert read.findings[0].where.file == str(path)
    assert "a host that starts now enables all" in read.findings[1].message
    changed = states(tmp_path).disable("text")
    assert changed.disabled == {"text": ""}
    assert [p.read_bytes() for p in tmp_path.glob("plugins.json.damaged-*")] == [content]
    assert states(tmp_path).read().findings == ()


@each_row("row", ["{}", "null", '{"enabled": "no"}', '{"enabled": true, "reason": 5}'])
def test_a_decision_that_cannot_be_read_keeps_its_plugin_off_and_the_others_as_they_are(
    tmp_path: Path, row: str
) -> None:
    (tmp_path / "plugins.json").write_text(f'{{"version": 1, "plugins": {{"a": {row}, "b": {{"enabled": true}}}}}}')
    read = states(tmp_path).read()
    assert list(read.disabled) == ["a"]
    assert read.switches["b"].enabled
    assert [str(f.where.pointer) for f in read.findings if f.where] == ["plugins.a"]


def test_a_state_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDamaged) as caught:
        states(tmp_path / "file").disable("text")
    assert "TAVERN_HOME" in caught.value.hint


_SWITCH = """
import sys
from pathlib import Path
from tavern_core.kernel.plugins.enabled_state import PluginStates
states = PluginStates(Path(sys.argv[1]))
for number in range(20):
    states.disable(f"{sys.argv[2]}-{number}")
"""


@pytest.mark.slow
def test_decisions_of_two_processes_add_up(tmp_path: Path) -> None:
    processes = [start(_SWITCH, tmp_path / "plugins.json", who) for who in ("one", "two")]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert len(states(tmp_path).disabled()) == 40
