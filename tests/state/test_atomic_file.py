"""State files are replaced whole or not at all."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tavern_core.errors import StateDamaged
from tavern_core.kernel.files.atomic_file import keep_aside, make_private_folder, read_text, write_atomic
from tests.rows import each_row

from .processes import run, start


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_write_makes_private_folders_and_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "state.json"
    write_atomic(path, "文本\n")
    assert path.read_bytes() == "文本\n".encode()
    assert [p.stat().st_mode & 0o777 for p in (path, path.parent, path.parent.parent)] == [0o600, 0o700, 0o700]
    assert names(path.parent) == ["state.json"]


def test_a_write_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_atomic(path, "long " * 1000)
    write_atomic(path, "short", mode=0o640)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("short", 0o640)


def test_a_planted_link_is_replaced_and_its_target_untouched(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "state.json"
    path.symlink_to(victim)
    write_atomic(path, "mine")
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("precious", "mine", False)


def test_a_lone_surrogate_is_written_readably(tmp_path: Path) -> None:
    write_atomic(tmp_path / "x", "a\udc80b")
    assert (tmp_path / "x").read_text() == "a\\udc80b"


@each_row(
    ("prepare", "path", "hint"),
    [
        (lambda d: (d / "state").mkdir(), "state", "folder in its place"),
        (lambda d: (d / "file").write_text(""), "file/state", "set TAVERN_HOME"),
        (lambda d: (d / "file").write_text(""), "file/deep/state", "set TAVERN_HOME"),
        (lambda d: (d / "loop").symlink_to(d / "loop"), "loop/state", ""),
    ],
)
def test_what_stands_in_the_way_is_named_with_the_repair(tmp_path: Path, prepare, path: str, hint: str) -> None:
    prepare(tmp_path)
    with pytest.raises(StateDamaged) as caught:
        write_atomic(tmp_path / path, "x")
    assert str(tmp_path) in caught.value.message
    assert hint in caught.value.hint
    assert not [n for n in names(tmp_path) if n.endswith(".tmp")]


_TOO_LARGE = """
import resource, sys
from pathlib import Path
from tavern_core.errors import StateDamaged
from tavern_core.kernel.files.atomic_file import write_atomic
path = Path(sys.argv[1])
write_atomic(path, "old")
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    write_atomic(path, "x" * 100_000)
except StateDamaged as error:
    print(error.message, "|", error.hint)
"""


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_file_and_no_half_one(tmp_path: Path) -> None:
    said = run(_TOO_LARGE, tmp_path / "state")
    assert "cannot write" in said
    assert "largest allowed file size" in said
    assert ((tmp_path / "state").read_text(), names(tmp_path)) == ("old", ["state"])


_REWRITE = """
import sys
from pathlib import Path
from tavern_core.kernel.files.atomic_file import write_atomic
for round in range(1_000_000):
    write_atomic(Path(sys.argv[1]), "ab"[round % 2] * 300_000, durable=False)
    if round == 2:
        print("going", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, pytest.param(200, marks=pytest.mark.soak)])
def test_a_killed_writer_leaves_one_whole_version(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "state"
    for _ in range(rounds):
        with start(_REWRITE, path) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        assert path.read_text() in ("a" * 300_000, "b" * 300_000)


def test_only_temporary_files_of_long_dead_writers_are_swept(tmp_path: Path) -> None:
    for name, age in ((".state.old.tmp", 7200), (".state.new.tmp", 0), (".other.old.tmp", 7200)):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    write_atomic(tmp_path / "state", "x")
    assert names(tmp_path) == [".other.old.tmp", ".state.new.tmp", "state"]


@each_row(
    ("make", "message"),
    [
        (lambda p: p.write_bytes(b"x" * 101), "larger than 100 bytes"),
        (lambda p: p.write_bytes(b"ok \xff"), "byte 0xff is not UTF-8"),
        (lambda p: p.symlink_to("/etc/hostname"), "symbolic link"),
        (lambda p: os.mkfifo(p), "not a regular file"),
        (lambda p: p.mkdir(), "a folder in its place"),
    ],
)
def test_what_is_no_state_file_is_refused_with_its_path(tmp_path: Path, make, message: str) -> None:
    path = tmp_path / "state"
    make(path)
    with pytest.raises(StateDamaged) as caught:
        read_text(path, 100)
    assert message in f"{caught.value} {caught.value.hint}"
    assert str(path) in str(caught.value)


def test_a_missing_file_is_no_error_and_a_byte_order_mark_no_text(tmp_path: Path) -> None:
    assert read_text(tmp_path / "none", 100) is None
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfx")
    assert read_text(tmp_path / "bom", 100) == "x"


def test_corrupt_files_are_kept_one_beside_the_other(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    kept = []
    for round_ in range(3):
        path.write_text(str(round_))
        kept.append(keep_aside(path))
    assert [p.read_text() for p in kept] == ["0", "1", "2"]
    assert not path.exists()


def test_existing_folders_keep_their_permissions(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir(mode=0o755)
    open_folder.chmod(0o755)
    make_private_folder(open_folder / "inner")
    assert [p.stat().st_mode & 0o777 for p in (open_folder, open_folder / "inner")] == [0o755, 0o700]
