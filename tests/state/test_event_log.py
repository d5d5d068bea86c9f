"""The event log: complete, in order, readable, whatever happens to the process, the file or the disk."""

from __future__ import annotations

import json
import math
import os
import threading
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tavern_core.errors import StateDamaged
from tavern_core.kernel.files import file_lock
from tavern_core.kernel.log.event_log import EventLog
from tavern_core.kernel.log.log_files import head_path, rotated_files
from tavern_core.kernel.log.reader import read
from tavern_core.kernel.log.record import GENESIS, LONGEST_RECORD, stamp
from tavern_core.kernel.log.verify import verify
from tavern_core.kernel.settings.secret_masking import KnownSecrets
from tavern_core.model.event import TOOL_CALLED, TOOL_RESULT, Event
from tests.rows import each_row

from .processes import run, start

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = 1_795_262_400.123  # 2026-11-21T12:00:00.123Z


def fill(path: Path, count: int, **options: Any) -> list[str]:
    """A log with `count` events, closed; its lines."""
    with EventLog(path, **options) as log:
        for number in range(count):
            log.append(Event(TOOL_CALLED, NOON + number, {"n": number, "文": "本"}, f"call-{number}", "text"))
    return path.read_text().splitlines(keepends=True)


def records(path: Path, **filters: Any) -> list[dict[str, Any]]:
    return list(read(path, **filters))


def test_a_record_says_what_happened_and_seals_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "audit" / "audit.jsonl"
    with EventLog(path) as log:
        first = log.append(Event(TOOL_CALLED, NOON, {"tool": "text:count", "文": "本"}, "abc", "text"))
        second = log.append(Event(TOOL_RESULT, NOON + 1))
    assert (first, second) == (1, 2)
    lines = path.read_bytes().splitlines()
    one, two = map(json.loads, lines)
    assert one == {
        "seq": 1,
        "time": "2026-11-21T12:00:00.123Z",
        "type": "TOOL_CALLED",
        "callId": "abc",
        "plugin": "text",
        "tool": "text:count",
        "文": "本",
        "prev": GENESIS,
        "hash": sha256(lines[0].split(b',"hash":')[0]).hexdigest(),
    }
    assert (two["prev"], two["callId"], two["plugin"]) == (one["hash"], None, None)
    assert "本".encode() in lines[0]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_an_empty_log_and_a_missing_one_are_in_order(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    assert verify(path).ok
    assert records(path) == records(path, last=5) == []
    with EventLog(path) as log:
        assert log.check() == ()
    assert verify(path).ok


def test_the_chain_goes_on_after_closing_and_through_rotated_files(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(4):
        fill(path, 25, max_bytes=4096)
    report = verify(path)
    assert report.ok, report.problems
    assert (report.records, report.first, report.last) == (100, 1, 100)
    assert len(report.files) > 3
    assert report.files[0].startswith("audit-000000000001-")
    assert [r["seq"] for r in records(path)] == list(range(1, 101))
    for older in report.files[:-1]:
        lines = [json.loads(line) for line in (tmp_path / older).read_text().splitlines()]
        assert older == f"audit-{lines[0]['seq']:012d}-{lines[-1]['seq']:012d}.jsonl"


@each_row(
    ("filters", "expected"),
    [
        ({}, list(range(40))),
        ({"last": 3}, [37, 38, 39]),
        ({"last": 0}, []),
        ({"last": 1000}, list(range(40))),
        ({"call_id": "call-7"}, [7]),
        ({"call_id": "call-"}, []),
        ({"call_id": '"},"'}, []),
        ({"types": {TOOL_CALLED}, "last": 2}, [38, 39]),
        ({"types": {"OTHER"}}, []),
        ({"types": {"OTHER"}, "last": 2}, []),
        ({"call_id": "call-39", "types": {TOOL_CALLED}, "last": 5}, [39]),
    ],
)
def test_records_are_found_across_files(tmp_path: Path, filters: dict[str, Any], expected: list[int]) -> None:
    path = tmp_path / "audit.jsonl"
    fill(path, 40, max_bytes=4096)
    assert [r["n"] for r in records(path, **filters)] == expected


def test_reading_backwards_copes_with_lines_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with EventLog(path) as log:
        for number in range(5):
            log.append(Event("X", NOON, {"n": number, "text": "长" * 100_000}))
    assert [r["n"] for r in records(path, last=3)] == [2, 3, 4]


# What is written ------------------------------------------------------------------------------------------------------


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("do not look")


def _circle() -> dict[str, Any]:
    circle: dict[str, Any] = {}
    circle["again"] = circle
    return circle


def _deep() -> Any:
    value: Any = "bottom"
    for _ in range(5000):
        value = [value]
    return value


@each_row(
    "data",
    [
        {"n": math.nan, "i": math.inf},
        {"text": "half \ud800 character", "\udfff": 1},
        {"object": Odd(), "type": object},
        {"bytes": b"\xff\x00", "set": {1, 2}},
        {"circle": _circle()},
        {"deep": _deep()},
        {"number": 10**5000},
        {"text": "\x00\x1f\x7f\u2028\r\n"},
        {"text": "x" * (LONGEST_RECORD * 2)},
        {"text": "长" * LONGEST_RECORD},
        {f"key{n}": "v" * 1000 for n in range(3000)},
        {1: "one", None: "none", (1, 2): "pair"},
        {"seq": 99, "time": 0, "type": "FORGED", "callId": "x", "plugin": "y", "prev": "p", "hash": "h"},
    ],
)
def test_whatever_the_data_are_the_record_is_one_good_line(tmp_path: Path, data: dict[Any, Any]) -> None:
    path = tmp_path / "audit.jsonl"
    with EventLog(path) as log:
        log.append(Event("ODD", NOON, data, "c", "p"))
        log.append(Event("AFTER", NOON))
    assert verify(path).ok
    odd, after = records(path)
    assert (odd["seq"], odd["type"], odd["callId"], after["seq"]) == (1, "ODD", "c", 2)
    assert path.read_bytes().count(b"\n") == 2
    assert path.stat().st_size < LONGEST_RECORD * 1.1


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=8),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
                max_leaves=6,
            ),
            max_size=4,
        ),
        min_size=1,
        max_size=5,
    ),
    st.floats(),
)
def test_any_data_at_any_time_are_logged_and_verified(tmp_path: Path, many: list[dict[str, Any]], time: float) -> None:
    path = tmp_path / "audit.jsonl"
    for file in tmp_path.iterdir():
        file.unlink()
    with EventLog(path) as log:
        for data in many:
            log.append(Event("ANY", time, data))
    report = verify(path)
    assert report.ok, report.problems
    assert [r["seq"] for r in records(path)] == list(range(1, len(many) + 1))


@each_row("secret", ["s3cret-value", 'quo"te\\slash', "机密的口令值", "471199471199", "two\nlines-of-it"])
@each_row(
    "data",
    [
        lambda s: {"value": f"before {s} after"},
        lambda s: {"deep": [{"list": [s, {"again": s}]}]},
        lambda s: {s: "as a key"},
        lambda s: {"n": int(s) if s.isdigit() else s},
    ],
)
def test_a_known_secret_gets_into_no_record(tmp_path: Path, secret: str, data: Any) -> None:
    path = tmp_path / "audit.jsonl"
    known = KnownSecrets()
    with EventLog(path, known_secrets=known) as log:
        log.append(Event("BEFORE", NOON, {"value": "nothing known yet"}))
        known.add(secret)
        log.append(Event("X", NOON, data(secret), f"call {secret}", "text"))
    text = path.read_text()
    for part in (secret, *secret.splitlines(), json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        assert part not in text
    assert "***" in text
    assert verify(path).ok
    assert len(records(path)) == 2


# Tampering --------------------------------------------------------------------------------------------------------------


def _swap(lines: list[str]) -> list[str]:
    return [*lines[:3], lines[4], lines[3], *lines[5:]]


def _forge(lines: list[str]) -> list[str]:
    """Record 4 replaced by another one with a good hash of its own."""
    record = json.loads(lines[3])
    del record["hash"]
    record["n"] = 999
    body = json.dumps(record, ensure_ascii=False, separators=(",", ":"))[:-1]
    return [*lines[:3], f'{body},"hash":"{sha256(body.encode()).hexdigest()}"}}\n', *lines[4:]]


TAMPERED = [
    ("a changed word", lambda ls: [*ls[:3], ls[3].replace("本", "木"), *ls[4:]], [(4, "changed")]),
    ("a changed hash", lambda ls: [*ls[:3], ls[3][:-4] + "0" + ls[3][-3:], *ls[4:]], [(4, "changed")]),
    ("a forged record", _forge, [(5, "changed")]),
    ("a removed record", lambda ls: [*ls[:3], *ls[4:]], [(4, "missing")]),
    ("three removed records", lambda ls: [*ls[:3], *ls[6:]], [(4, "missing")]),
    ("a removed first record", lambda ls: ls[1:], [(1, "missing")]),
    ("a removed last record", lambda ls: ls[:-1], [(9, "missing")]),
    ("everything removed", lambda ls: [], [(0, "missing")]),
    ("two swapped records", _swap, [(5, "reordered")]),
    ("a record twice", lambda ls: [*ls[:4], ls[3], *ls[4:]], [(5, "reordered")]),
    ("all turned round", lambda ls: ls[::-1], None),
    ("an inserted line", lambda ls: [*ls[:3], "hello\n", *ls[3:]], [(4, "changed")]),
    ("an empty line", lambda ls: [*ls[:3], "\n", *ls[3:]], [(4, "changed")]),
    ("a last line cut short", lambda ls: [*ls[:-1], ls[-1][:-10]], [(10, "torn")]),
    ("a line cut in the middle", lambda ls: [*ls[:3], ls[3][:50] + "\n", *ls[4:]], [(4, "changed")]),
    ("Windows line ends", lambda ls: [line.replace("\n", "\r\n") for line in ls], None),
    ("something else", lambda ls: ["<html>"], None),
]


@each_row(("tamper", "expected"), [t[1:] for t in TAMPERED], ids=[t[0] for t in TAMPERED])
def test_tampering_is_found_where_it_is(tmp_path: Path, tamper: Any, expected: list[tuple[int, str]] | None) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text("".join(tamper(fill(path, 10))))
    report = verify(path)
    assert not report.ok
    if expected is not None:
        assert [(p.line, p.what) for p in report.problems] == expected
    for problem in report.problems:
        assert problem.file == str(path)
        assert f"{path}:{problem.line}" in str(problem)


def test_a_missing_middle_file_is_found_and_archived_ones_need_not_be_there(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    fill(path, 60, max_bytes=4096)
    first, second, *_ = sorted(tmp_path.glob("audit-*"))
    second_first = int(second.stem.split("-")[1])
    first.unlink()
    assert [p.what for p in verify(path).problems] == ["missing"]
    assert verify(path, first=second_first).ok
    second.unlink()
    assert not verify(path, first=second_first).ok


def test_a_log_without_its_anchor_is_still_verified(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    fill(path, 5)
    (tmp_path / "audit.head").write_text('{"seq":9999999,"hash":"' + "0" * 64 + '","check":"00000000"}')
    assert verify(path).ok
    (tmp_path / "audit.head").unlink()
    assert verify(path).ok


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_change_of_any_byte_goes_unnoticed(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "audit.jsonl"
    for file in tmp_path.iterdir():
        file.unlink()
    fill(path, 6)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda v: v != content[at]))
    content[at] = value
    path.write_bytes(content)
    assert not verify(path).ok


# Damage, and going on ---------------------------------------------------------------------------------------------------


def _flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]


DAMAGE = {
    "a flipped byte": _flip,
    "the end cut off": lambda content, at: content[:at],
    "zeros to the end": lambda content, at: content[:at] + b"\0" * (len(content) - at),
    "a hole": lambda content, at: content[:at] + b"\0" * 64 + content[at + 64 :],
    "noise": lambda content, at: content[:at] + b"\xff\n{" * 20 + content[at:],
}


def check_damaged_start(path: Path, damaged: bytes) -> None:
    """A host starts on the damaged file, says so, keeps every byte, and the chain goes on."""
    path.write_bytes(damaged)
    was_ok = verify(path).ok
    findings: list[Any] = []
    with EventLog(path, on_finding=findings.append) as log:
        log.append(Event("GOES_ON", NOON))
        assert tuple(findings) == log.findings
    assert findings or was_ok
    for finding in findings:
        assert (finding.code, finding.where.file) == ("STATE_DAMAGED", str(path))
    kept = [p.read_bytes() for p in path.parent.iterdir() if "torn" in p.name or "damaged" in p.name]
    assert damaged in (path.read_bytes()[: len(damaged)], *kept) or any(
        path.read_bytes().startswith(damaged[: len(damaged) - len(torn)]) and damaged.endswith(torn) for torn in kept
    )
    assert records(path)[-1]["type"] == "GOES_ON"
    before = verify(path)
    with EventLog(path) as log:
        log.append(Event("AND_ON", NOON))
        assert log.findings == ()  # once is enough
    after = verify(path)
    assert [p.line for p in after.problems] == [p.line for p in before.problems]
    assert after.records == before.records + 1


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.soak)])
def test_a_log_corrupt_anywhere_goes_on_and_keeps_what_is_there(tmp_path: Path, kind: str, count: int) -> None:
    path = tmp_path / "log" / "audit.jsonl"
    fill(path, 10)
    good = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    size = len(good["audit.jsonl"])
    for step in range(count):
        for file in path.parent.iterdir():
            file.unlink()
        for name, content in good.items():
            (path.parent / name).write_bytes(content)
        damaged = DAMAGE[kind](good["audit.jsonl"], step * (size - 1) // count)
        check_damaged_start(path, damaged)


@each_row("more", range(0, 1_500, 100))
def test_a_repair_that_fills_the_file_loses_no_record(tmp_path: Path, more: int) -> None:
    path = tmp_path / "audit.jsonl"
    fill(path, 2)
    path.write_bytes(path.read_bytes() + b"changed\n" + b"torn")
    with EventLog(path, max_bytes=path.stat().st_size + more) as log:
        number = log.append(Event(TOOL_CALLED, NOON, {"n": 2}))
    assert [(record["seq"], record["n"]) for record in records(path, types={TOOL_CALLED})][-1] == (number, 2)


def test_every_torn_end_is_cut_off_kept_and_verifiable(tmp_path: Path) -> None:
    path = tmp_path / "log" / "audit.jsonl"
    lines = [line.encode() for line in fill(path, 3)]
    head = (path.parent / "audit.head").read_bytes()
    for cut in range(1, len(lines[2]), 7):
        for file in path.parent.iterdir():
            file.unlink()
        (path.parent / "audit.head").write_bytes(head)
        path.write_bytes(lines[0] + lines[1] + lines[2][:cut])
        (path.parent / "audit.head").unlink()  # the record was never acknowledged, so the anchor has not seen it
        with EventLog(path) as log:
            log.append(Event("AFTER", NOON))
        report = verify(path)
        assert report.ok, report.problems
        assert len(report.repairs) == 1
        torn = next(path.parent.glob("audit.torn-*"))
        assert torn.read_bytes() == lines[2][:cut]
        assert torn.name in report.repairs[0]
        assert [r["type"] for r in records(path)][2:] == ["LOG_REPAIRED", "AFTER"]


def test_acknowledged_records_that_are_gone_stay_missing(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = fill(path, 10)
    path.write_text("".join(lines[:7]))
    with EventLog(path) as log:
        assert log.append(Event("AFTER", NOON)) == 12
        assert "the records 8 to 10 are missing" in log.findings[0].message
    assert [(p.line, p.what) for p in verify(path).problems] == [(8, "missing")]


def test_a_deleted_log_begins_again_behind_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    fill(path, 10)
    path.unlink()
    fill(path, 1)
    assert [(p.line, p.what) for p in verify(path).problems] == [(1, "missing")]


def test_a_file_without_any_record_is_kept_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(os.urandom(300_000) + b"\n")
    noise = path.read_bytes()
    with EventLog(path) as log:
        log.append(Event("FIRST", NOON))
        assert "without a readable record" in log.findings[0].message
    assert [p.read_bytes() for p in tmp_path.glob("audit.jsonl.damaged-*")] == [noise]
    assert verify(path).ok


def test_a_file_of_which_no_record_is_left_is_damage_where_records_come_before_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    fill(path, 10)
    path.rename(tmp_path / "audit-000000000001-000000000010.jsonl")
    (tmp_path / "audit.head").unlink()
    fill(path, 1)
    (tmp_path / "audit.head").unlink()
    path.write_bytes(_flip(path.read_bytes(), 20))
    assert not verify(path).ok
    fill(path, 1)
    report = verify(path)
    assert [(p.line, p.what) for p in report.problems] == [(1, "changed")]
    assert "audit.jsonl.damaged-" in report.problems[0].message


def test_damage_behind_the_part_that_is_read_at_start_is_found_by_verify(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    fill(path, 3000)
    content = path.read_bytes()
    assert len(content) > 600_000
    path.write_bytes(_flip(content, 1000))
    with EventLog(path) as log:
        log.append(Event("AFTER", NOON))
        assert log.findings == ()
    assert [p.what for p in verify(path).problems] == ["changed"]


# Several writers ----------------------------------------------------------------------------------------------------------


def test_threads_and_several_logs_in_one_process_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    logs = [EventLog(path, max_bytes=20_000) for _ in range(3)]
    seen: list[int] = []

    def write(log: EventLog) -> None:
        for _ in range(100):
            seen.append(log.append(Event("X", NOON, {"thread": threading.get_ident()})))

    threads = [threading.Thread(target=write, args=(log,)) for log in (*logs, *logs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()
    report = verify(path)
    assert report.ok, report.problems
    assert sorted(seen) == list(range(1, 601)) == [r["seq"] for r in records(path)]


_WRITE = """
import sys
from pathlib import Path
from tavern_core.kernel.log.event_log import EventLog
from tavern_core.model.event import Event
with EventLog(Path(sys.argv[1]), max_bytes=50_000) as log:
    for number in range(int(sys.argv[2])):
        log.append(Event("X", 1.0, {"who": sys.argv[3], "n": number}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.soak)])
def test_processes_share_a_file_and_its_rotation(tmp_path: Path, count: int) -> None:
    path = tmp_path / "audit.jsonl"
    processes = [start(_WRITE, path, count, name) for name in "abc"]
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    report = verify(path)
    assert report.ok, report.problems[:3]
    assert report.records == 3 * count
    for name in "abc":
        assert [r["n"] for r in records(path) if r["who"] == name] == list(range(count))


_FORK = """
import os, sys
from pathlib import Path
from tavern_core.kernel.log.event_log import EventLog
from tavern_core.model.event import Event
log = EventLog(Path(sys.argv[1]))
log.append(Event("BEFORE", 1.0))
children = []
for child in range(3):
    if (pid := os.fork()) == 0:
        for _ in range(200):
            log.append(Event("CHILD", 1.0, {"child": child}))
        os._exit(0)
    children.append(pid)
for _ in range(200):
    log.append(Event("PARENT", 1.0))
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
log.close()
"""


@pytest.mark.slow
def test_a_forked_child_writes_as_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    run(_FORK, path)
    report = verify(path)
    assert report.ok, report.problems[:3]
    assert report.records == 801


_KILL = """
import os, random, signal, sys, time
from pathlib import Path
from tavern_core.kernel.log.event_log import EventLog
from tavern_core.model.event import Event
path, rounds, start = Path(sys.argv[1]), int(sys.argv[2]), time.monotonic()
random.seed(int(sys.argv[3]))
for round in range(rounds):
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(reader)
        log = EventLog(path, max_bytes=200_000)
        number = 0
        while True:
            number += 1
            data = {"round": round, "n": number, "fill": "x" * random.randrange(2000)}
            seq = log.append(Event("X", 1.0, data))
            os.write(writer, b"%d %d\\n" % (seq, number))
    os.close(writer)
    os.read(reader, 1)  # it writes
    end = time.monotonic() + random.random() * 0.01
    while time.monotonic() < end:
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    told = b""
    while part := os.read(reader, 65536):
        told += part
    os.close(reader)
    for line in told.decode().splitlines():
        numbers = line.split()
        if len(numbers) == 2 and numbers[0]:
            print(round, *numbers)
"""


def renamed_while_writing(folder: Path) -> tuple[Path, Path, bytes]:
    """A log whose writer has renamed the full file and not yet written its last record: the log, the file, and that record."""
    path = folder / "audit.jsonl"
    fill(path, 20, max_bytes=4096)
    path.unlink()
    head_path(path).unlink()
    full = rotated_files(path)[-1]
    whole = full.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    full.write_bytes(whole.removesuffix(last))
    return path, full, last


@each_row("share", [0, 1, 2, 50, 99])
def test_a_record_half_written_to_a_full_file_is_cut_off_and_kept(tmp_path: Path, share: int) -> None:
    path, full, last = renamed_while_writing(tmp_path)
    half = last[: len(last) * share // 100]
    with full.open("ab") as file:
        file.write(half)
    seq = json.loads(last)["seq"]
    with EventLog(path) as log:
        log.append(Event("AFTER", NOON))
    report = verify(path)
    assert report.ok, report.problems
    assert [record["type"] for record in records(path, last=2)][-2 if half else -1 :] == ["LOG_REPAIRED", "AFTER"][
        0 if half else 1 :
    ]
    assert [each.read_bytes() for each in tmp_path.glob("audit.torn-*")] == [half] * bool(half)
    assert [record["seq"] for record in records(path)][-1] == seq + bool(half)


def test_the_writer_of_a_new_file_waits_for_the_last_record_of_the_full_one(tmp_path: Path) -> None:
    path, full, last = renamed_while_writing(tmp_path)
    writer = os.open(full, os.O_WRONLY | os.O_APPEND)
    assert file_lock.take(writer)
    numbers: list[int] = []
    other = threading.Thread(target=lambda: numbers.append(EventLog(path).append(Event("NEXT", NOON))))
    other.start()
    other.join(0.1)
    assert other.is_alive()
    os.write(writer, last)
    os.close(writer)
    other.join()
    assert numbers == [json.loads(last)["seq"] + 1]
    assert verify(path).ok


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [25, pytest.param(200, marks=pytest.mark.soak)])
def test_after_any_kill_every_acknowledged_record_is_there(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "audit.jsonl"
    reported = [tuple(map(int, line.split())) for line in run(_KILL, path, rounds, 7, seconds=300).splitlines()]
    with EventLog(path) as log:
        log.check()
    kept = {(r.get("round"), r.get("n")) for r in records(path)}
    # The first byte of each round's first line was read as the sign that it writes.
    lost = [one for one in reported if (one[0], one[2]) not in kept and one[2] != 1]
    assert lost == []
    report = verify(path)
    assert report.ok, report.problems[:3]
    assert len(reported) >= rounds


# The disk ---------------------------------------------------------------------------------------------------------------------

_FULL = """
import json, os, resource, sys, time
from pathlib import Path
from tavern_core.errors import StateDamaged
from tavern_core.kernel.log.event_log import EventLog
from tavern_core.model.event import Event
path, limit = Path(sys.argv[1]), int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
log, written, refused = EventLog(path), 0, []
while len(refused) < 3:
    start = time.monotonic()
    try:
        log.append(Event("X", 1.0, {"fill": "x" * 300}))
        written += 1
    except StateDamaged as error:
        refused.append([error.message, error.hint, time.monotonic() - start, path.stat().st_size])
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
after = log.append(Event("AFTER", 1.0))
print(json.dumps([written, refused, after]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "within"),
    [(4096, None), (5000, None), (10_001, None), pytest.param(7_777, 1.0, marks=pytest.mark.soak)],
)
def test_a_full_disk_refuses_clearly_and_breaks_nothing(tmp_path: Path, limit: int, within: float | None) -> None:
    path = tmp_path / "audit.jsonl"
    written, refused, after = json.loads(run(_FULL, path, limit))
    assert after == written + 1
    for message, hint, seconds, size in refused:
        assert message.startswith(f"cannot write {path}")
        assert "file size" in hint
        assert within is None or seconds < within
        assert size <= limit
    report = verify(path)
    assert report.ok, report.problems
    assert (report.records, report.repairs) == (written + 1, ())


@each_row(
    ("prepare", "said"),
    [
        (lambda p: p.symlink_to("/dev/full"), "symbolic link"),
        (lambda p: p.mkdir(), "folder in its place"),
        (lambda p: os.mkfifo(p), "not a regular file"),
        (lambda p: (p.parent / "audit.head").mkdir(), "folder in its place"),
    ],
)
def test_what_is_no_log_file_is_refused(tmp_path: Path, prepare: Any, said: str) -> None:
    path = tmp_path / "audit.jsonl"
    prepare(path)
    with EventLog(path) as log, pytest.raises(StateDamaged) as caught:
        log.append(Event("X", NOON))
    assert said in f"{caught.value} {caught.value.hint}"


def test_a_moved_log_is_begun_anew_and_found_to_be_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with EventLog(path) as log:
        log.append(Event("X", NOON))
        path.rename(tmp_path / "taken-away")
        log.append(Event("Y", NOON))
    assert [r["type"] for r in records(path)][-1] == "Y"


@pytest.mark.parametrize(("apart", "late"), [(0.0, 16), (1.5, 1)])
def test_a_log_that_was_moved_by_hand_is_missed_after_16_records_or_a_second(
    tmp_path: Path, apart: float, late: int
) -> None:
    path = tmp_path / "audit.jsonl"
    with EventLog(path) as log:
        times = iter(NOON + apart * number for number in range(60))
        for _ in range(20):
            log.append(Event("X", next(times)))
        path.rename(tmp_path / "taken-away")
        written = 0
        while not path.exists():
            log.append(Event("Y", next(times)))
            written += 1
    assert written <= late
    assert [r["type"] for r in records(path)] == ["LOG_DAMAGED", "Y"]
    taken = (tmp_path / "taken-away").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in taken] == list(range(1, 20 + written))


def test_a_writer_follows_a_rotation_that_its_own_limit_did_not_ask_for(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with EventLog(path) as patient, EventLog(path, max_bytes=3_000) as strict:
        for round_ in range(30):
            for _ in range(3):
                patient.append(Event("PATIENT", NOON, {"round": round_}))
            strict.append(Event("STRICT", NOON))
    report = verify(path)
    assert report.ok, report.problems
    assert len(report.files) > 5
    assert [r["round"] for r in records(path, types={"PATIENT"})] == [number // 3 for number in range(90)]


@pytest.mark.slow
def test_a_full_log_that_cannot_be_renamed_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    fill(path, 9)
    kept = path.read_bytes()
    for again in ("", *(f"-{number}" for number in range(1, 1000))):  # every name it could get is taken
        (tmp_path / f"audit-000000000001-000000000010{again}.jsonl").touch()
    with EventLog(path, max_bytes=100) as log, pytest.raises(StateDamaged, match="rotate"):
        log.append(Event("X", NOON))
    assert path.read_bytes() == kept


def test_a_lock_held_by_another_process_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    hold = "import fcntl, sys\nf = open(sys.argv[1], 'a')\nfcntl.flock(f, fcntl.LOCK_EX)\nprint(1, flush=True)\nsys.stdin.read()"
    with start(hold, path) as holder, EventLog(path, lock_seconds=0.05) as log:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StateDamaged, match="locked by another process"):
            log.append(Event("X", NOON))
        holder.communicate()
        assert log.append(Event("X", NOON)) == 1


def test_a_closed_descriptor_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with EventLog(path) as log:
        log.append(Event("X", NOON))
        (descriptor,) = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == str(path)]
        os.close(descriptor)
        assert log.append(Event("X", NOON)) == 2
    assert verify(path).ok


@pytest.mark.slow
def test_many_corrupt_lines_are_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    first, *others = fill(path, 5)
    path.write_text(first + "\n" * 300_000 + "".join(others))
    with EventLog(path) as log:
        assert "corrupt lines:  2" in log.check()[0].message
    with EventLog(path) as log:
        assert log.check() == ()
    assert len(verify(path).problems) <= 1001


def test_the_receiver_of_a_finding_may_log_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    fill(path, 3)
    path.write_bytes(path.read_bytes() + b"torn")
    log = EventLog(path, on_finding=lambda finding: print(log.append(Event("TOLD", NOON))))
    log.append(Event("X", NOON))
    log.close()
    assert [r["type"] for r in records(path)][3:] == ["LOG_REPAIRED", "X", "TOLD"]


def test_half_characters_in_names_are_written_out(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with EventLog(path) as log:
        log.append(Event("A\ud800", NOON, {"seq": 1}, "c\ud800", "p\ud800"))
    assert verify(path).ok
    assert records(path)[0]["callId"] == "c\\ud800"


def test_records_can_be_forced_to_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    assert len(fill(path, 3, fsync=True)) == 3
    assert verify(path).ok


@settings(max_examples=200)
@given(st.integers(0, 4_000_000_000_000))
def test_times_are_written_as_everywhere_else_to_the_millisecond(millis: int) -> None:
    assert datetime.fromisoformat(stamp(millis / 1000)) == EPOCH + timedelta(milliseconds=millis)


def test_data_that_look_like_the_logs_own_records_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with EventLog(path) as log:
        log.append(
            Event("X", NOON, {"between": [0, 9999], "inner": {"type": "LOG_DAMAGED"}, "message": "LOG_REPAIRED"})
        )
    assert verify(path).repairs == ()
    path.write_bytes(_flip(path.read_bytes(), 40) + path.read_bytes())
    with EventLog(path) as log:
        assert "corrupt lines:  1, the first at byte 0" in log.check()[0].message
