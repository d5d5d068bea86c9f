"""Kills, duplicates and damage, as often as SECURITY asks for it (`make soak`), and a short form of each in `make test`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tavern_core import CallContext, Plugin, Tavern, tool
from tavern_core.errors import UpstreamError
from tavern_core.kernel.stores import sqlite_file
from tests.state.processes import run, start

KEYED = """
import sys
from tavern_core import Plugin, Tavern, tool
effects, first, count = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

@tool
def charge(n: int) -> int:
    with open(effects, "a") as file:
        file.write(f"{n}\\n")
    return n

with Tavern.open({"audit": {"enabled": False}}, home=sys.argv[1], plugins=[Plugin([charge], name="shop")]) as host:
    print("open", flush=True)
    for n in range(first, first + count):
        result = host.invoke_sync("shop:charge", {"n": n}, idempotency_key=f"k{n}")
        print(n, result.value if result.ok else f"{result.error.kind}/{result.error.outcome}", flush=True)
"""

STOPPED = """
import os, signal, sys
from tavern_core import Plugin, Tavern, tool
effects, n = sys.argv[2], int(sys.argv[3])

@tool
def charge(n: int) -> int:
    with open(effects, "a") as file:
        file.write(f"{n}\\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return n

with Tavern.open({"audit": {"enabled": False}}, home=sys.argv[1], plugins=[Plugin([charge], name="shop")]) as host:
    host.invoke_sync("shop:charge", {"n": n}, idempotency_key=f"k{n}")
"""


def killed_between_effect_and_record(tmp_path: Path, kills: int) -> None:
    """Each process has its effect and dies before it can record the answer; another one asks again."""
    home, effects = tmp_path / "home", tmp_path / "effects.txt"
    for number in range(kills):
        with start(STOPPED, home, effects, number) as victim:
            victim.wait()
            assert victim.returncode == -signal.SIGKILL
    out = run(KEYED, home, effects, 0, kills, seconds=300).split("\n")[1:-1]
    assert [line.split()[1] for line in out] == ["CONNECTION_LOST/unknown"] * kills
    assert sorted(map(int, effects.read_text().split())) == list(range(kills))


@pytest.mark.slow
def test_a_process_that_dies_between_effect_and_record_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    killed_between_effect_and_record(tmp_path, 4)


@pytest.mark.soak
def test_a_hundred_kills_between_effect_and_record_repeat_nothing(tmp_path: Path) -> None:
    killed_between_effect_and_record(tmp_path, 100)


def killed_at_random(tmp_path: Path, kills: int, calls: int) -> None:
    """Processes that make keyed calls are killed at any moment; what was answered is answered alike, and nothing happens twice."""
    home, effects = tmp_path / "home", tmp_path / "effects.txt"
    effects.touch()
    answered: dict[int, str] = {}
    rng = random.Random(7)
    for _ in range(kills):
        with start(KEYED, home, effects, 0, calls) as victim:
            assert victim.stdout is not None
            for _ in range(rng.randrange(1, calls + 2)):
                line = victim.stdout.readline().split()
                if len(line) == 2:
                    number, answer = int(line[0]), line[1]
                    assert answered.setdefault(number, answer) == answer
            victim.kill()
    done = list(map(int, effects.read_text().split()))
    assert len(done) == len(set(done))
    out = run(KEYED, home, effects, 0, calls, seconds=300).split("\n")[1:-1]
    for line in out:
        number, answer = line.split()
        assert answered.get(int(number), answer) == answer
        assert answer in (number, "CONNECTION_LOST/unknown")


@pytest.mark.slow
def test_kills_at_any_moment_make_no_call_twice(tmp_path: Path) -> None:
    killed_at_random(tmp_path, 5, 40)


@pytest.mark.soak
def test_two_hundred_kills_at_any_moment_make_no_call_twice(tmp_path: Path) -> None:
    killed_at_random(tmp_path, 200, 300)


def made_by_two(tmp_path: Path, calls: int) -> None:
    home, effects = tmp_path / "home", tmp_path / "effects.txt"
    others = [start(KEYED, home, effects, 0, calls) for _ in range(2)]
    outputs = [other.communicate(timeout=900)[0].split("\n")[1:-1] for other in others]
    assert outputs[0] == outputs[1] == [f"{n} {n}" for n in range(calls)]
    assert sorted(map(int, effects.read_text().split())) == list(range(calls))


@pytest.mark.soak
def test_two_processes_make_ten_thousand_keyed_calls_once_each(tmp_path: Path) -> None:
    made_by_two(tmp_path, 10_000)


def damaged_at(tmp_path: Path, offsets: int) -> None:
    """A store that is damaged anywhere: the host opens, says what happened, keeps the file, and makes new calls."""
    home = tmp_path / "home"
    ran: list[int] = []

    @tool
    def charge(n: int) -> int:
        ran.append(n)
        return n

    def opened() -> Tavern:
        return Tavern.open({"audit": {"enabled": False}}, home=home, plugins=[Plugin([charge], name="shop")])

    with opened() as host:
        for n in range(50):
            host.invoke_sync("shop:charge", {"n": n}, idempotency_key=f"k{n}")
    path = home / "state.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    whole = path.read_bytes()
    for step in range(offsets):
        for leftover in home.glob("state.sqlite*"):
            leftover.unlink()
        at = step * len(whole) // offsets
        path.write_bytes(whole[:at] + b"\xfe" * 64 + whole[at + 64 :])
        ran.clear()
        with opened() as host:
            results = []
            for n in (*range(50), 1000 + step):
                result = host.invoke_sync("shop:charge", {"n": n}, idempotency_key=f"k{n}")
                results.append(result)
                assert result.ok or result.error.kind in ("INTERNAL", "CONNECTION_LOST"), result
            assert host.invoke_sync("shop:charge", {"n": -step}, idempotency_key=f"new{step}").ok
            kept = (home / "state.sqlite.damaged").exists()
            assert kept == ("STATE_DAMAGED" in {d.code for d in host.diagnostics})
            assert kept or not {*ran}.intersection(range(50)), "a call was made again, and nothing says why"
            assert (
                all(r.ok for r in results)
                or kept
                or any(r.error and r.error.kind == "CONNECTION_LOST" for r in results)
            )


@pytest.mark.slow
def test_a_store_that_is_corrupt_is_kept_and_the_host_goes_on(tmp_path: Path) -> None:
    damaged_at(tmp_path, 12)


@pytest.mark.parametrize(
    ("part", "left"),
    [(b"TABLE records", b"\xfe" * 64), (b"version INTEGER", b"versiom"), (b"version INTEGER", b"versi\xfen")],
    ids=["no SQL", "another column", "a column whose name is no text"],
)
def test_a_store_whose_schema_is_corrupt_is_kept_and_the_host_goes_on(tmp_path: Path, part: bytes, left: bytes) -> None:
    @tool
    def charge(n: int) -> int:
        return n

    def charged(key: str) -> tuple[bool, set[str]]:
        config = {"audit": {"enabled": False}}
        with Tavern.open(config, home=tmp_path, plugins=[Plugin([charge], name="shop")]) as host:
            result = host.invoke_sync("shop:charge", {"n": 1}, idempotency_key=key)
            return result.ok, {diagnostic.code for diagnostic in host.diagnostics}

    charged("one")
    path = tmp_path / "state.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    whole = path.read_bytes()
    at = whole.index(part)  # SQLite quotes what it finds there, and the quotation may be no text
    path.write_bytes(whole[:at] + left + whole[at + len(left) :])
    assert charged("two") == (True, {"STATE_DAMAGED"})
    assert (tmp_path / "state.sqlite.damaged").exists()


def test_a_key_whose_name_is_corrupt_in_the_store_is_reported_and_costs_no_other_key(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool
    def charge(n: int) -> int:
        ran.append(n)
        return n

    def charged() -> tuple[list[Any], list[str]]:
        config = {"audit": {"enabled": False}}
        with Tavern.open(config, home=tmp_path, plugins=[Plugin([charge], name="shop")]) as host:
            results = [host.invoke_sync("shop:charge", {"n": n}, idempotency_key=f"k{n}") for n in range(9)]
            codes = [diagnostic.code for diagnostic in host.diagnostics]
        return [result.meta.get("idempotency") for result in results], codes

    charged()
    path = tmp_path / "state.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        names = [name for (name,) in db.execute("SELECT key FROM records WHERE kind = 'answer' ORDER BY created")]
    path.write_bytes(path.read_bytes().replace(names[4].encode(), names[4][:20].encode() + b"\xfe" * 12))
    assert charged() == (["replayed"] * 4 + [None] + ["replayed"] * 4, ["STATE_DAMAGED"])
    assert ran == [*range(9), 4]
    assert path.with_name("state.sqlite.damaged").exists()
    assert charged() == (["replayed"] * 9, [])


LOGGED = """
import os, signal, sys
from tavern_core import Plugin, Tavern, tool

@tool
def charge(n: int) -> int:
    return n

with Tavern.open({"audit": {"enabled": False}}, home=sys.argv[1], plugins=[Plugin([charge], name="shop")]) as host:
    for n in range(40):
        host.invoke_sync("shop:charge", {"n": n}, idempotency_key=f"k{n}")
    if sys.argv[2:]:  # the log is begun anew
        import sqlite3
        other = sqlite3.connect(os.path.join(sys.argv[1], "state.sqlite"))
        other.execute("PRAGMA wal_checkpoint(RESTART)")
        other.execute("INSERT INTO uses VALUES ('other', 0, 0)")  # what was in the log is not cut off, as by a store of records
        other.commit()
        host.invoke_sync("shop:charge", {"n": 40}, idempotency_key="k40")
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""After the kill, all keys are in the write-ahead log of SQLite and none in its file."""


@functools.cache
def _killed_while_logging(is_begun_anew: bool) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    with start(LOGGED, Path(folder.name) / "home", *(["1"] if is_begun_anew else [])) as victim:
        victim.wait()
    return folder


def killed_while_logging(is_begun_anew: bool) -> Path:
    """What the process has left, for all tests: they damage a copy."""
    return Path(_killed_while_logging(is_begun_anew).name) / "home"


STEPPED = """
import sys
from tavern_core import Plugin, Tavern, tool

@tool
def charge(n: int) -> int:
    return n

with Tavern.open({"audit": {"enabled": False}}, home=sys.argv[1], plugins=[Plugin([charge], name="shop")]) as host:
    for n in range(100, 103):
        host.invoke_sync("shop:charge", {"n": n}, idempotency_key=f"k{n}")
        print(n, flush=True)
        sys.stdin.readline()
"""


def frames(log: bytes) -> tuple[int, int]:
    """Bytes of one frame of a write-ahead log, and how many there are."""
    size = 24 + int.from_bytes(log[8:12], "big")
    return size, (len(log) - 32) // size


def flipped(log: bytes, at: int) -> bytes:
    return log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :]


def without_its_page(log: bytes) -> bytes:
    """A log that was begun anew over an earlier one, and whose next frame was being written: its head stands there, its page does not."""
    size, count = frames(log)
    last = next(n for n in range(count, 0, -1) if log[32 + (n - 1) * size :][8:16] == log[16:24])
    assert last < count  # frames of the earlier log
    at = 32 + last * size
    return log[:at] + bytes([0, 0, 0, 1, 0, 0, 0, 1]) + log[16:24] + bytes(7) + b"\x01" + log[at + 24 :]


@pytest.mark.parametrize(
    ("change", "is_damage", "kept"),
    [
        (lambda log: log, False, (True, True)),
        (lambda log: flipped(log, 20), True, (False, False)),
        (lambda log: flipped(log, 32 + frames(log)[0] * 2 + 500), True, (False, False)),
        (lambda log: flipped(log, 32 + frames(log)[0] * (frames(log)[1] // 2) + 20), True, (True, False)),
        (lambda log: log[: 32 + frames(log)[0]] + bytes(len(log) - 32 - frames(log)[0]), True, (False, False)),
        # What a process leaves that is killed while it writes: frames without the mark of a commit, the last one cut off.
        (
            lambda log: log + bytes([0, 0, 0, 1, 0, 0, 0, 0]) + log[16:24] + b"\x01" * (frames(log)[0] - 16),
            False,
            (True, True),
        ),
        (lambda log: log + log[32 : 32 + 24], False, (True, True)),
        (without_its_page, False, (True, True)),
    ],
    ids=[
        "unchanged",
        "header",
        "a page",
        "the middle",
        "zeros to the end",
        "an unfinished commit",
        "half a frame",
        "half a frame before earlier ones",
    ],
)
def test_a_log_of_the_store_that_is_corrupt_is_kept_and_said_and_what_comes_before_is_used(
    tmp_path: Path, change: Any, is_damage: bool, kept: tuple[bool, bool]
) -> None:
    @tool
    def charge(n: int) -> int:
        return n

    home = tmp_path / "home"
    shutil.copytree(killed_while_logging(change is without_its_page), home)
    path = home / "state.sqlite-wal"
    log = change(path.read_bytes())
    path.write_bytes(log)
    shop = Plugin([charge], name="shop")
    with Tavern.open({"audit": {"enabled": False}}, home=home, plugins=[shop]) as host:
        results = [host.invoke_sync("shop:charge", {"n": n}, idempotency_key=f"k{n}") for n in (0, 39)]
        codes = {diagnostic.code for diagnostic in host.diagnostics}
        with Tavern.open({"audit": {"enabled": False}}, home=home, plugins=[shop]) as other:
            assert other.invoke_sync("shop:charge", {"n": 39}, idempotency_key="k39").ok
            assert not other.diagnostics  # it was said once
    assert all(result.ok for result in results)
    assert ("STATE_DAMAGED" in codes) == is_damage
    assert [one.read_bytes() for one in home.glob("*.damaged*")] == [log] * is_damage
    assert tuple(result.meta.get("idempotency") == "replayed" for result in results) == kept


def test_a_commit_that_no_process_knows_of_because_its_own_was_killed_is_no_damage(tmp_path: Path) -> None:
    home, effects = tmp_path / "home", tmp_path / "effects.txt"
    shared, log = home / "state.sqlite-shm", home / "state.sqlite-wal"
    with start(STEPPED, home) as holder, start(STEPPED, home) as victim:
        assert holder.stdout is not None and victim.stdout is not None and victim.stdin is not None
        assert holder.stdout.readline() == victim.stdout.readline() == "100\n"
        for n in (101, 102):
            before, written = shared.read_bytes(), log.read_bytes()
            victim.stdin.write("\n")
            victim.stdin.flush()
            assert victim.stdout.readline() == f"{n}\n"
        victim.kill()
        victim.wait()
        assert (
            log.read_bytes()[16:24] == written[16:24] and log.read_bytes() != written
        )  # the same log, with more in it
        with shared.open("r+b") as file:  # SQLite writes there what is committed, after the log
            file.write(before)
        with start(KEYED, home, effects, 50, 1) as reader:
            assert reader.communicate()[0].split() == ["open", "50", "50"]
        holder.kill()
    assert not list(home.glob("*.damaged*"))


@pytest.mark.soak
def test_a_store_that_is_corrupt_at_a_hundred_places_is_kept_and_the_host_goes_on(tmp_path: Path) -> None:
    damaged_at(tmp_path, 100)


def test_a_store_that_cannot_be_written_refuses_keyed_calls_before_they_happen(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool
    def charge() -> int:
        ran.append(1)
        return 1

    home = tmp_path / "home"
    home.mkdir()
    (home / "state.sqlite").mkdir()  # nothing can be written there, whoever asks
    with Tavern.open({}, home=home, plugins=[Plugin([charge], name="shop")]) as host:
        refused = host.invoke_sync("shop:charge", idempotency_key="k")
        assert refused.error is not None
        assert (refused.error.kind, refused.error.outcome) == ("INTERNAL", "none")
        assert "state.sqlite" in refused.error.message
        assert host.invoke_sync("shop:charge").ok
    assert ran == [1]


def test_a_clock_that_jumps_forgets_no_call_that_runs_and_stops_no_rate_for_longer_than_its_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    real, shift = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    ran: list[int] = []

    @tool
    async def slow() -> int:
        nonlocal shift
        ran.append(1)
        shift = 10 * 365 * 86_400.0  # ten years ahead while it runs
        await asyncio.sleep(0.05)
        return len(ran)

    @tool(limits={"rate": "1/second"})
    def limited() -> int:
        return 1

    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([slow, limited], name="t")]) as host:

        async def both() -> list[Any]:
            return await asyncio.gather(*(host.invoke("t:slow", idempotency_key="k") for _ in range(2)))

        assert [result.value for result in asyncio.run(both())] == [1, 1]
        assert host.invoke_sync("t:limited").ok
        shift = 0.0  # and ten years back
        refused = host.invoke_sync("t:limited")
        assert refused.error is not None and refused.error.retry_after_ms is not None
        assert refused.error.retry_after_ms <= 1000


class KeysAsAModel(RuleBasedStateMachine):
    """Keyed calls of two callers beside a dictionary that says what must come of them."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[str, int, str]] = []
        self.fails = ""
        machine = self

        @tool
        def act(n: int) -> int:
            machine.ran.append(("", n, machine.fails))
            if machine.fails:
                raise UpstreamError("away", outcome=machine.fails)  # type: ignore[arg-type]
            return n

        self.host = Tavern.open(
            {"state": {"store": "memory"}, "audit": {"enabled": False}}, plugins=[Plugin([act], name="t")]
        )
        self.host.__enter__()
        self.known: dict[tuple[str, str], tuple[int, str]] = {}
        """(caller, key) → (argument, how it ended)."""

    @rule(
        caller=st.sampled_from(["ann", "bob"]),
        key=st.sampled_from(["a", "b"]),
        n=st.integers(0, 1),
        fails=st.sampled_from(["", "none", "unknown"]),
    )
    def call(self, caller: str, key: str, n: int, fails: str) -> None:
        self.fails, before = fails, len(self.ran)
        result = self.host.invoke_sync("t:act", {"n": n}, idempotency_key=key, context=CallContext(principal=caller))
        kind = result.error.kind if result.error else "ok"
        known = self.known.get((caller, key))
        if known is None:
            assert len(self.ran) == before + 1
            assert kind == ("UPSTREAM_ERROR" if fails else "ok")
            if fails != "none":
                self.known[caller, key] = n, kind
        else:
            assert len(self.ran) == before
            assert kind == (known[1] if known[0] == n else "IDEMPOTENCY_CONFLICT")

    def teardown(self) -> None:
        self.host.__exit__(None, None, None)


KeysAsAModel.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestKeys = pytest.mark.slow(KeysAsAModel.TestCase)


def test_floods_of_hostile_keys_and_tokens_are_refused_one_by_one(tmp_path: Path) -> None:
    @tool
    def act() -> int:
        return 1

    odd: list[Any] = ["\x00", "a\nb", "x" * 300, "\ud800", "", 5, None, [], {"a": 1}, b"k", "\u202e", "é" * 255, "正常"]
    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin([act], name="t")]) as host:
        for key in odd:
            result = host.invoke_sync("t:act", idempotency_key=key)
            assert result.ok or result.error.kind == "USAGE", (key, result)
        for token in odd:
            assert not host.commit_sync(token).ok
            assert host.jobs.get(token) is None
            assert not host.cancel(token)
        assert json.dumps([one.to_json() for one in host.limits.list()])


FULL = """
import json, resource, signal, sys
from tavern_core import Plugin, Tavern, tool
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
ran = []

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

@tool
def charge(n: int, fill: bool = False) -> int:
    ran.append(n)
    if fill:
        room(1)
    return n

def called(n, **more):
    result = host.invoke_sync("shop:charge", {"n": n, **more}, idempotency_key=f"k{n}")
    results.append(result.value if result.ok else f"{result.error.kind}/{result.error.outcome}")

results = []
with Tavern.open({"audit": {"enabled": False}}, home=sys.argv[1], plugins=[Plugin([charge], name="shop")]) as host:
    called(1)
    room(1)
    called(2)
    room(hard)
    called(2)
    called(3, fill=True)
    called(3, fill=True)
    codes = sorted({one.code for one in host.diagnostics})
    room(hard)
    called(4)
print(json.dumps([results, ran, codes]))
"""


@pytest.mark.slow
def test_a_full_disk_refuses_keyed_calls_before_they_happen_and_loses_no_answer(tmp_path: Path) -> None:
    results, ran, codes = json.loads(run(FULL, tmp_path / "home"))
    assert results == [1, "INTERNAL/none", 2, 3, 3, 4]
    assert ran == [1, 2, 3, 4]
    assert "ANSWER_NOT_KEPT" in codes


def test_a_log_that_another_process_begins_between_two_looks_at_it_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, look = tmp_path / "records.db-wal", os.fstat
    log.touch()

    def begun(descriptor: int) -> os.stat_result:
        log.write_bytes(bytes(64))
        return look(descriptor)

    with contextlib.closing(sqlite3.connect(tmp_path / "records.db")) as db:
        monkeypatch.setattr(os, "fstat", begun)
        assert sqlite_file._damaged_place(db, log) is None
