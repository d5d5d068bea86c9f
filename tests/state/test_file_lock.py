"""One writer at a time, in all threads and processes."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from tavern_core.errors import StateDamaged
from tavern_core.kernel.files.file_lock import locked

from .processes import start

_COUNT = """
import sys
from pathlib import Path
from tavern_core.kernel.files.file_lock import locked
path = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with locked(path, 60):
        path.write_text(str(int(path.read_text()) + 1))
"""
_HOLD = """
import sys
from pathlib import Path
from tavern_core.kernel.files.file_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_processes_and_threads_do_not_lose_each_others_changes(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")

    def count() -> None:
        for _ in range(50):
            with locked(path, 60):
                path.write_text(str(int(path.read_text()) + 1))

    processes = [start(_COUNT, path, 50) for _ in range(2)]
    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in processes:
        with process:
            assert process.wait(60) == 0
    assert path.read_text() == "250"


def test_a_lock_that_is_held_is_given_up_with_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with start(_HOLD, path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StateDamaged, match=r"locked by another process for 0\.05 seconds"), locked(path, 0.05):
            raise AssertionError("both have it")
        holder.communicate()
    with locked(path, 0.05):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with start(_HOLD, path) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with locked(path, 0.05):
        pass


def test_an_error_in_the_block_frees_the_lock_and_comes_out(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path / "x"):
        raise KeyError("mine")
    with locked(tmp_path / "x", 0.05):
        pass


def test_a_link_planted_as_the_lock_file_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".x.lock").symlink_to(victim)
    with pytest.raises(StateDamaged, match="cannot lock"), locked(tmp_path / "x"):
        raise AssertionError("locked a file that is not ours")
    assert victim.read_text() == "precious"
