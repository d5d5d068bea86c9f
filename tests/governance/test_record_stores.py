"""One suite for every store of records: SQLite, memory, Redis."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.builtin.stores.redis_records import RedisRecords
from tavern_core.contract.stores import DAMAGED, Record, RecordStore
from tavern_core.errors import StateDamaged
from tavern_core.kernel.stores.memory_records import MemoryRecords
from tavern_core.kernel.stores.sqlite_records import SqliteRecords
from tavern_core.kernel.stores.unwritten_changes import UnwrittenChanges
from tests.governance import redis_server
from tests.rows import each_row
from tests.state.processes import start

Opener = Callable[[], RecordStore]


@pytest.fixture(scope="module", params=["sqlite", "memory", "redis"])
def opener(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    folder = tmp_path_factory.mktemp("records")
    opened: list[RecordStore] = []

    def kept(store: RecordStore) -> RecordStore:
        opened.append(store)
        return store

    if request.param == "sqlite":
        yield lambda: kept(SqliteRecords(folder / "state.sqlite"))
    elif request.param == "memory":
        shared = MemoryRecords()
        yield lambda: kept(shared)
    else:
        with redis_server.database() as address:
            yield lambda: kept(RedisRecords(address))
            for store in opened:
                store.close()
        opened.clear()
    for store in opened:
        store.close()


@pytest.fixture(scope="module")
def one_store(opener: Opener) -> RecordStore:
    """Open for all examples of a test: each opens none of its own."""
    return opener()


def together(*work: Callable[[], object]) -> None:
    """Do all of this at once, and raise what one of them raises."""
    with ThreadPoolExecutor(len(work)) as threads:
        for done in [threads.submit(each) for each in work]:
            done.result()


def record(key: str, kind: str = "job", **changes: object) -> Record:
    return replace(Record(kind, key, "ann", "running", '{"n": 1}', time.time()), **changes)  # type: ignore[arg-type]


def test_what_is_added_is_there_and_is_added_once(opener: Opener) -> None:
    store, other = opener(), opener()
    first = record("a")
    assert store.add(first) is None
    assert other.add(record("a", owner="bob")) == first
    assert other.get("job", "a") == first
    assert other.get("answer", "a") is None


def test_only_who_read_the_newest_version_changes_it(opener: Opener) -> None:
    store = opener()
    kept = record("b")
    store.add(kept)
    assert store.replace(replace(kept, state="done", data="2"))
    assert not store.replace(replace(kept, state="failed", data="3"))
    assert store.get("job", "b") == replace(kept, state="done", data="2", version=2)
    assert not store.replace(record("nobody"))


def test_what_has_expired_is_absent_and_makes_room(opener: Opener) -> None:
    store = opener()
    store.add(record("c", created=time.time() - 20, expires=time.time() - 10))
    assert store.get("job", "c") is None
    assert store.add(record("c", owner="bob")) is None
    found = store.get("job", "c")
    assert found is not None and found.owner == "bob"


def test_what_has_expired_makes_room_for_a_record_that_is_older_than_its_end(opener: Opener) -> None:
    store, now = opener(), time.time()
    store.add(record("o", created=now - 20, expires=now - 10))
    late: list[Record | None] = []
    adding = threading.Thread(target=lambda: late.append(store.add(record("o", created=now - 15))), daemon=True)
    adding.start()
    adding.join(30)
    assert late == [None]


def test_a_record_that_is_removed_is_gone(opener: Opener) -> None:
    store = opener()
    store.add(record("d"))
    assert store.remove("job", "d")
    assert not store.remove("job", "d")
    assert store.get("job", "d") is None


def test_lists_are_newest_first_and_show_whose_and_what_was_asked_for(opener: Opener) -> None:
    store = opener()
    now = time.time()
    for number in range(30):
        owner, state = ("ann", "bob")[number % 2], ("running", "done", "failed")[number % 3]
        store.add(record(f"l{number}", "list", owner=owner, state=state, created=now + number))
    assert [r.key for r in store.list("list", most=3)] == ["l29", "l28", "l27"]
    assert [r.key for r in store.list("list", owner="ann", states=("done", "failed"), most=3)] == ["l28", "l26", "l22"]
    assert len(store.list("list", owner="bob")) == 15
    assert store.list("nothing") == ()


def test_answers_are_listed_by_their_state(opener: Opener) -> None:
    store = opener()
    for number, state in enumerate(("running", "done", "running")):
        store.add(record(f"s{number}", "answer", state=state, created=time.time() + number))
    assert [r.key for r in store.list("answer", states=("running",))] == ["s2", "s0"]


def test_records_are_counted_by_owner_state_and_age(opener: Opener) -> None:
    store = opener()
    now = time.time()
    for number in range(30):
        owner, state = ("ann", "bob")[number % 2], ("open", "used")[number % 3 > 0]
        store.add(record(f"n{number}", "counted", owner=owner, state=state, created=now + number))
    assert store.count("counted", owner="ann", state="open", since=now - 1) == 5
    assert store.count("counted", owner="ann", state="open", since=now + 6) == 3
    assert store.count("nothing", owner="ann", state="open", since=0.0) == 0


@pytest.mark.parametrize("most", [1, 3])
def test_no_period_has_more_uses_than_the_rate(opener: Opener, most: int) -> None:
    store, key = opener(), f"rate{most}"
    for at in range(most):
        assert store.take(key, most, 10.0, 100.0 + at) == 0
    assert store.take(key, most, 10.0, 100.0 + most) == pytest.approx(10.0 - most)
    assert store.take(key, most, 10.0, 110.5) == 0
    assert most == 1 or store.take(key, most, 10.0, 110.6) == pytest.approx(0.4)


@pytest.mark.parametrize(("before", "after", "allowed", "wait"), [(3, 5, 2, 0.5), (3, 2, 0, 8.5), (5, 3, 0, 2.5)])
def test_a_changed_rate_counts_the_uses_before_the_change(
    opener: Opener, before: int, after: int, allowed: int, wait: float
) -> None:
    store, key = opener(), f"from {before} to {after}"
    for at in (100, 101, 102, 103, 104, 110, 111):
        store.take(key, before, 10.0, float(at))
    assert [store.take(key, after, 10.0, 111.5) for _ in range(allowed)] == [0] * allowed
    assert store.take(key, after, 10.0, 111.5) == pytest.approx(wait)


@each_row("number", [3, 7, 8, 25])
def test_the_uses_that_an_earlier_version_stored_are_counted(tmp_path: Path, number: int) -> None:
    path, key, most = tmp_path / "state.sqlite", "t:tool", 5
    with contextlib.closing(SqliteRecords(path)) as earlier:
        earlier.take("another", 1, 1.0, 0.0)
    with contextlib.closing(sqlite3.connect(path)) as db, db:  # which used the slots below the rate again and again
        rows = [(key, use % most, float(100 + use)) for use in range(number)]
        db.executemany("INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", [*rows, (key, -1, float(number))])
    store, now = SqliteRecords(path), 100.0 + number
    counted = min(number, 2)
    assert store.used(key, most, 2.5, now) == counted
    assert [store.take(key, most, 2.5, now) for _ in range(most - counted)] == [0] * (most - counted)
    assert store.take(key, most, 2.5, now) == pytest.approx(0.5)
    for later in range(1, 30):
        assert store.take(key, most, 2.5, now + later) == 0
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM uses WHERE key = ? AND slot >= 0", (key,)).fetchone() == (most,)


def test_a_clock_that_is_set_back_stops_no_call_for_longer_than_the_period(opener: Opener) -> None:
    store = opener()
    assert store.take("clock", 1, 10.0, 1_000_000.0) == 0
    assert 0 < store.take("clock", 1, 10.0, 100.0) <= 10.0
    assert 0 < store.take("clock", 1, 10.0, 105.0) <= 5.0
    assert store.take("clock", 1, 10.0, 110.5) == 0


def test_many_threads_add_a_key_once_and_use_a_rate_as_often_as_it_says(opener: Opener) -> None:
    stores = [opener(), opener()]
    added: list[bool] = []
    taken: list[float] = []

    def work(number: int) -> None:
        store = stores[number % 2]
        for key in range(20):
            added.append(store.add(record(f"t{key}", "threads")) is None)
        taken.append(store.take("threads", 5, 60.0, time.time()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(added) == 20
    assert taken.count(0.0) == 5


def test_a_process_is_present_from_entering_to_leaving(opener: Opener) -> None:
    store, other = opener(), opener()
    assert not other.is_present("p1")
    store.enter("p1")
    assert other.is_present("p1")
    store.leave("p1")
    assert not other.is_present("p1")


def test_what_killed_processes_leave_is_removed_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with start(ENTERS, path) as victim:
        assert victim.stdout is not None
        victim.stdout.readline()
        alive = SqliteRecords(path)
        alive.enter("alive")
        assert alive.is_present("victim")
        victim.kill()
        victim.wait()
    later = SqliteRecords(path)
    later.enter("later")
    assert sorted(each.name for each in path.with_name("processes").iterdir()) == ["alive", "later"]
    alive.close()
    later.close()


def test_a_process_that_enters_while_another_one_looks_for_it_stays_present(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.sqlite"
    looks, enters = SqliteRecords(path), SqliteRecords(path)
    looks.enter("looks")
    file, opens = path.with_name("processes") / "enters", os.open
    file.touch()

    def opened(name: Any, *more: Any) -> int:
        descriptor = opens(name, *more)
        if name == file:  # between the look and the lock, a third process removes the file
            monkeypatch.undo()
            file.unlink()
            enters.enter("enters")
        return descriptor

    monkeypatch.setattr(os, "open", opened)
    assert looks.is_present("enters")
    assert file.exists()
    looks.close()
    enters.close()


def test_threads_that_enter_a_process_at_once_hold_its_file_once(tmp_path: Path) -> None:
    descriptors = Path("/dev/fd")
    before = len(list(descriptors.iterdir()))
    for number in range(5):
        store = SqliteRecords(tmp_path / f"{number}" / "state.sqlite")
        together(*[functools.partial(store.enter, "p")] * 8)
        store.leave("p")
    assert len(list(descriptors.iterdir())) == before


def test_processes_that_enter_at_once_are_all_present(tmp_path: Path) -> None:
    stores = [SqliteRecords(tmp_path / "state.sqlite") for _ in range(16)]
    together(*(functools.partial(store.enter, f"p{number}") for number, store in enumerate(stores)))
    assert all(stores[0].is_present(f"p{number}") for number in range(16))
    for store in stores:
        store.close()


ENTERS = """
import sys
from pathlib import Path
from typing import Any
from tavern_core.builtin.stores.redis_records import RedisRecords
from tavern_core.kernel.stores.sqlite_records import SqliteRecords
where = sys.argv[1]
store = RedisRecords(where) if where.startswith("redis") else SqliteRecords(Path(where))
store.enter("victim")
print("entered", flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_store_to_which_two_write_all_the_time_does_not_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    sizes = []
    both_done = threading.Barrier(2)

    def write(name: str) -> None:
        store = SqliteRecords(path)
        for number in range(3_000):
            store.add(record(f"{name}-{number}", data="x" * 4_000))
            sizes.append(path.with_name("state.sqlite-wal").stat().st_size)
        both_done.wait()
        store.close()

    together(lambda: write("a"), lambda: write("b"))
    assert max(sizes) < 48_000_000  # all that was written takes twice as much
    begun_anew = [size for before, size in itertools.pairwise(sizes) if size < before / 2]
    assert begun_anew  # what was moved into the file takes no place any more


@pytest.mark.slow
def test_a_log_that_a_reader_keeps_from_being_begun_anew_is_short_after_that(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    log = path.with_name("state.sqlite-wal")
    store = SqliteRecords(path)
    store.add(record("first"))

    def write_until(holds: Callable[[int], bool], name: str) -> None:
        for number in itertools.count():
            store.add(record(f"{name}-{number}", data="x" * 10_000))
            if holds(log.stat().st_size):
                return

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM records").fetchall()
        write_until(lambda size: size > 50_000_000, "beside")
    write_until(lambda size: size < 1_000_000, "after")
    store.close()


CREATES = """
import os, sys, time
from pathlib import Path
from typing import Any
from tavern_core.contract.stores import Record
from tavern_core.kernel.stores.sqlite_records import SqliteRecords

for path in sys.stdin:
    SqliteRecords(Path(path.strip())).add(Record("job", str(os.getpid()), "ann", "running", "{}", time.time()))
    print("created", flush=True)
"""


def test_a_write_waits_until_another_process_has_written(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    store = SqliteRecords(path)
    store.add(record("a"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other, ThreadPoolExecutor(2) as threads:
        other.execute("BEGIN IMMEDIATE")
        added = threads.submit(store.add, record("b"))
        with pytest.raises(TimeoutError):
            added.result(0.02)
        other.execute("COMMIT")
        assert added.result() is None
        other.execute("BEGIN IMMEDIATE")
        taken = threads.submit(store.take, "calls", 5, 60.0, time.time())
        with pytest.raises(TimeoutError):
            taken.result(0.02)
        other.execute("COMMIT")
        assert taken.result() == 0.0
    store.close()


@pytest.mark.slow
def test_a_store_can_be_created_by_several_processes_at_once(tmp_path: Path) -> None:
    with contextlib.ExitStack() as running:
        processes = [running.enter_context(start(CREATES)) for _ in range(4)]
        for attempt in range(40):
            path = tmp_path / str(attempt) / "state.sqlite"
            for process in processes:
                process.stdin.write(f"{path}\n")
                process.stdin.flush()
            assert [process.stdout.readline() for process in processes] == ["created\n"] * 4
            store = SqliteRecords(path)
            assert len(store.list("job")) == 4
            store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_process_of_this_machine_that_was_killed_is_absent_at_once(kind: str, tmp_path: Path) -> None:
    with redis_server.database() as address:
        file = tmp_path / "state.sqlite"
        store: RecordStore = RedisRecords(address) if kind == "redis" else SqliteRecords(file)
        with start(ENTERS, address if kind == "redis" else file) as victim:
            assert victim.stdout.readline() == "entered\n"
            assert store.is_present("victim")
            victim.kill()
            victim.wait()
            assert not store.is_present("victim")
        store.close()


@each_row("name", ["1", "", "a b c d", "boot 1 99999999 5", "HERE 99999999999999999999 5", "HERE x 5"])
def test_a_process_of_another_machine_in_redis_is_present_until_its_key_expires(tmp_path: Path, name: str) -> None:
    with redis_server.database() as address:
        store = RedisRecords(address)
        store.enter("own")
        with redis.Redis.from_url(address, decode_responses=True) as client:
            here = " ".join(str(client.get("tavern:p:own")).split(" ")[:2])
            client.set("tavern:p:other", name.replace("HERE", here))
            assert store.is_present("other")
            client.delete("tavern:p:other")
        assert (store.is_present("own"), store.is_present("other")) == (True, False)
        store.close()


@pytest.mark.slow
@given(text=st.text(max_size=200), key=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=80))
@settings(max_examples=40)
def test_any_text_comes_back_as_it_was(one_store: RecordStore, text: str, key: str) -> None:
    store = one_store
    data = text.encode("utf-8", "replace").decode()
    kept = record(key, "text", data=data)
    store.remove("text", key)
    assert store.add(kept) is None
    assert store.get("text", key) == kept


def test_a_file_that_is_no_database_is_kept_and_a_new_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    reported: list[tuple[Path, Path]] = []
    store = SqliteRecords(path, lambda old, new: reported.append((old, new)))
    assert store.add(record("a")) is None
    assert reported == [(path, tmp_path / "state.sqlite.damaged")]
    assert (tmp_path / "state.sqlite.damaged").read_bytes().startswith(b"this is not")
    store.close()


def test_each_corrupt_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    for content in (b"first ", b"second "):
        path.write_bytes(content * 1000)
        store = SqliteRecords(path)
        assert store.add(record("a")) is None
        store.close()
    assert (tmp_path / "state.sqlite.damaged").read_bytes().startswith(b"first")
    assert (tmp_path / "state.sqlite.damaged-2").read_bytes().startswith(b"second")


def test_processes_go_on_with_one_store_after_one_of_them_found_it_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    first, early, late = SqliteRecords(path), SqliteRecords(path), SqliteRecords(path)
    assert first.add(record("before")) is None
    first.close()
    assert early.get("job", "before") is not None
    with path.open("r+b") as file:
        file.write(b"this is not a database" * 10)
    assert late.add(record("key")) is None  # it put the file aside, and began a new one
    known = early.add(replace(record("key"), created=time.time() + 1))
    assert known is not None
    assert known.key == "key"
    assert not list(tmp_path.glob("*.damaged-2*"))
    early.close()
    late.close()


def test_a_file_that_becomes_corrupt_is_put_aside_once_and_reported_to_all_who_had_opened_it(tmp_path: Path) -> None:
    path, reported = tmp_path / "state.sqlite", list[tuple[Path, Path]]()
    first, other = (SqliteRecords(path, lambda *renamed: reported.append(renamed)) for _ in range(2))
    first.add(record("a"))
    assert other.get("job", "a") is not None
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        (version,) = db.execute("PRAGMA schema_version").fetchone()
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = 'nonsense' WHERE name = 'records'")
        db.execute(f"PRAGMA schema_version = {version + 1}")
    for store, hint in (
        (first, "renamed to state.sqlite.damaged, and a new one"),
        (other, "another process has renamed"),
    ):
        with pytest.raises(StateDamaged, match="malformed database schema") as caught:
            store.get("job", "a")
        assert hint in caught.value.hint
        assert store.get("job", "a") is None
    assert reported == [(path, tmp_path / "state.sqlite.damaged")]
    first.close()
    other.close()


def test_a_file_that_cannot_be_opened_stays_where_it_is(tmp_path: Path) -> None:
    store = SqliteRecords(tmp_path)
    with pytest.raises(StateDamaged, match="unable to open") as caught:
        store.get("job", "a")
    assert "see that the folder can be written" in caught.value.hint
    assert tmp_path.exists()


@pytest.mark.parametrize("which", ["first", "last"])
def test_a_damaged_index_or_name_of_a_job_costs_no_other_record(which: str, tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    store = SqliteRecords(path)
    for number in range(60):
        store.add(record(f"job-{number:03}x"))
        store.add(record(f"{number:032x}", kind="answer"))
    store.close()
    content = path.read_bytes()
    at = content.find(b"job-030x") if which == "first" else content.rfind(b"job-030x")
    path.write_bytes(content[:at] + b"job-030y" + content[at + 8 :])
    renamed, copies = [], []
    store = SqliteRecords(
        path, lambda path, aside: renamed.append(aside), lambda count, copy: copies.append((count, copy.name))
    )
    assert len(store.list("answer", most=100)) == len(store.list("job", most=100)) == 60
    store.close()
    assert (renamed, copies) == ([], [(0, "state.sqlite.damaged")])
    again = SqliteRecords(path, on_garbage=lambda count, copy: copies.append((count, copy.name)))
    assert again.get("job", "job-031x") is not None
    again.close()
    assert len(copies) == 1


OPENS = """
import sys
from pathlib import Path
from typing import Any
from tavern_core.kernel.stores.sqlite_records import SqliteRecords

for path in sys.stdin:
    store = SqliteRecords(Path(path.strip()))
    print(len(store.list("job")), len(store.list("answer")), flush=True)
    store.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (b"job-030x", b"job-030y", "60 60\n"),
        (b"%032x" % 59, b"%031x~" % 3, "60 59\n"),
        (b"SQLite format 3", b"this is no store", "0 0\n"),
    ],
)
def test_processes_that_open_a_corrupt_file_at_once_repair_or_rename_it_once(
    before: bytes, after: bytes, left: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as running:
        processes = [running.enter_context(start(OPENS)) for _ in range(4)]
        for attempt in range(10):
            path = tmp_path / str(attempt) / "state.sqlite"
            store = SqliteRecords(path)
            for number in range(60):
                store.add(record(f"job-{number:03}x"))
                store.add(record(f"{number:032x}", kind="answer"))
            store.close()
            path.write_bytes(path.read_bytes().replace(before, after, 1))
            for process in processes:
                process.stdin.write(f"{path}\n")
                process.stdin.flush()
            assert [process.stdout.readline() for process in processes] == [left] * 4
            assert len([one for one in path.parent.glob("*.damaged*") if not one.name.endswith(("-wal", "-shm"))]) == 1


@pytest.mark.slow
def test_a_store_that_stays_locked_says_so(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    store = SqliteRecords(path)
    store.add(record("a"))

    def refused(use: Callable[[], object]) -> None:
        with pytest.raises(StateDamaged, match="has been locked by another process for 10 seconds"):
            use()

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        second = SqliteRecords(path)
        together(
            lambda: refused(lambda: store.add(record("b"))),
            lambda: refused(lambda: second.take("calls", 5, 60.0, time.time())),
        )
    assert store.add(record("b")) is None
    assert second.take("calls", 5, 60.0, time.time()) == 0.0
    store.close()
    second.close()


def test_a_wrong_question_is_no_damage_of_the_store(tmp_path: Path) -> None:
    store = SqliteRecords(tmp_path / "state.sqlite")
    with pytest.raises(OverflowError):
        store.list("job", most=2**70)
    store.close()


@pytest.mark.slow
def test_a_corrupt_file_is_put_aside_by_the_first_who_notices_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    store = SqliteRecords(path)
    for number in range(3000):  # more than is read at once, and remembered
        store.add(record(f"k{number}", data="x" * 4_000))
    store.close()
    early = SqliteRecords(path)
    assert early.get("job", "k7") is not None
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.write(b"this is not a database" * (len(whole) // 22))
    late = SqliteRecords(path)
    assert late.add(record("new")) is None
    for number in range(3000):
        with contextlib.suppress(StateDamaged):
            early.get("job", f"k{number}")
    assert late.get("job", "new") is not None
    fresh = SqliteRecords(path)
    assert fresh.get("job", "new") is not None
    for each in (early, late, fresh):
        each.close()


@pytest.mark.slow
def test_a_store_that_is_corrupt_anywhere_starts_or_says_so(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    store = SqliteRecords(path)
    for number in range(300):
        store.add(record(f"k{number}", data="x" * 50))
    store.close()
    whole = path.read_bytes()
    for step in range(20):
        offset = step * len(whole) // 20
        path.write_bytes(whole[:offset] + b"\xff" * 200 + whole[offset + 200 :])
        damaged = SqliteRecords(path)
        said = whole_or_told(damaged)
        assert said == "" or "renamed to state.sqlite.damaged" in said
        damaged.close()
        for leftover in tmp_path.iterdir():
            if leftover.is_file():
                leftover.unlink()


def whole_or_told(store: SqliteRecords) -> str:
    """Reads everything; what the store says of its damage, empty where it can be used."""
    try:
        for found in (*store.list("job", most=1000), store.get("job", "k7")):
            assert found is None or found.state == DAMAGED or found.data == "x" * 50
        store.add(record("new"))
    except StateDamaged as error:
        return error.hint
    return ""


def test_rates_that_nobody_uses_any_more_are_forgotten(tmp_path: Path) -> None:
    path, now = tmp_path / "state.sqlite", time.time()
    store = SqliteRecords(path)
    for number in range(10):
        assert store.take(f"caller-{number}", 5, 60, now - 100 * 86_400) == 0
    assert store.take("a month", 1, 40 * 86_400, now - 30 * 86_400) == 0
    store.close()
    store = SqliteRecords(path)
    assert store.take("a month", 1, 40 * 86_400, now) > 0
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert {key for (key,) in db.execute("SELECT key FROM uses")} == {"a month"}
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("days", [-400, 400])
def test_redis_keeps_what_a_machine_stores_whose_clock_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    real = time.time
    with redis_server.database() as address:
        store = RedisRecords(address)
        monkeypatch.setattr(time, "time", lambda: real() + days * 86_400)
        added = record("a", expires=time.time() + 600)
        assert store.add(added) is None
        assert store.get("job", "a") == added
        assert store.replace(replace(added, state="completed"))
        with redis.Redis.from_url(address) as client:
            assert 590_000 < client.pttl("tavern:r:job:a") <= 600_000
        store.close()


@pytest.mark.slow
def test_redis_forgets_the_names_of_records_that_have_expired(tmp_path: Path) -> None:
    with redis_server.database() as address:
        store = RedisRecords(address)
        soon = time.time() + 0.05
        for number in range(300):
            store.add(record(f"old-{number}", "answer", expires=soon))
        time.sleep(max(soon + 0.05 - time.time(), 0))
        for number in range(300):
            store.add(record(f"new-{number}", "answer", expires=time.time() + 600))
        with redis.Redis.from_url(address) as client:
            assert client.zcard("tavern:i:answer") < 450
        assert len(store.list("answer", most=1000)) == 300
        store.close()


def test_a_file_of_a_newer_version_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    store = SqliteRecords(path)
    store.add(record("a"))
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    store = SqliteRecords(path)
    with pytest.raises(StateDamaged, match="written by a newer version"):
        store.get("job", "a")
    store.close()
    assert not list(tmp_path.glob("*.damaged*"))
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'newest'").fetchone() == (1,)
        assert db.execute("PRAGMA user_version").fetchone() == (99,)


def test_a_file_of_an_earlier_version_gets_the_index_that_lists_need(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    store = SqliteRecords(path)
    store.add(Record("job", "a", "ann", "queued", "{}", 1.0))
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DROP INDEX newest")
    store = SqliteRecords(path)
    assert [record.key for record in store.list("job")] == ["a"]
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'newest'").fetchone() == (1,)


@pytest.mark.parametrize("field", [{"data": b"\xff\xfe"}, {"created": "yesterday"}, {"version": ""}])
def test_a_record_in_redis_that_somebody_else_has_changed_is_reported_as_damaged(
    tmp_path: Path, field: dict[str, str | bytes]
) -> None:
    with redis_server.database() as address:
        store = RedisRecords(address)
        store.add(record("a"))
        store.add(record("b"))
        with redis.Redis.from_url(address) as client:
            for name, value in field.items():
                client.hset(f"tavern:r:{record('a').kind}:a", name, value)
        found = store.get(record("a").kind, "a")
        assert found is not None
        assert (found.state, found.data) == (DAMAGED, "")
        again = store.add(record("a"))
        assert again is not None
        assert again.state == DAMAGED
        assert {one.key for one in store.list(record("a").kind)} == {"a", "b"}
        store.close()


@pytest.mark.slow
def test_a_change_that_is_broken_itself_is_given_up_and_the_others_are_made(caplog: pytest.LogCaptureFixture) -> None:
    made = threading.Event()
    owed = UnwrittenChanges("tavern-test")
    owed.defer("broken", lambda: {}["absent"])
    owed.defer("good", made.set)
    assert made.wait(30)
    owed.close()
    assert "a change of the store cannot be made: broken" in caplog.text
