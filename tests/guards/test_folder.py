"""`Folder`: files beneath one folder, and nothing that leads out of it, whatever changes meanwhile."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from tavern_core import Folder, ToolFailed
from tests.rows import each_row


@pytest.fixture
def root(tmp_path: Path) -> Path:
    outside = tmp_path / "root-evil"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a").write_bytes(b"one")
    (root / "out").symlink_to(outside)
    (root / "out-file").symlink_to(outside / "secret")
    (root / "inside").symlink_to("sub")
    (root / "dangling").symlink_to(outside / "new")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    return root


def test_files_are_read_written_and_made(root: Path) -> None:
    with Folder(root) as folder:
        with folder.open("a") as file:
            assert file.read() == b"one"
        with folder.open("/new/deep/b", "w", parents=True) as file:
            file.write(b"two, longer")
        with folder.open("new/./deep//b", "w") as file:
            file.write(b"two")
        with folder.open("new/deep/b", "a") as file:
            file.write(b" more")
        with folder.open("new/deep/b", "r+") as file:
            assert file.read() == b"two more"
        with folder.open("c", "x"):
            pass
        with pytest.raises(ToolFailed, match="exists already"):
            folder.open("c", "x")
        assert [entry.name for entry in folder.entries()] == [
            "a",
            "c",
            "dangling",
            "inside",
            "loop",
            "new",
            "out",
            "out-file",
            "pipe",
            "sub",
        ]
        assert [entry.is_file(follow_symlinks=False) for entry in folder.entries("new/deep")] == [True]
    assert (root / "new/deep/b").read_bytes() == b"two more"


REFUSED = [
    ("../root-evil/secret", "leads out"), ("sub/../../root-evil/secret", "leads out"), ("sub/..", "leads out"), ("out/secret", "through a link"),
    ("out-file", "through a link"), ("inside/x", "through a link"), ("dangling", "through a link"), ("loop", "through a link"), ("loop/x", "through a link"),
    ("pipe", "not a regular file|device or address"), ("sub", "folder|not a regular file"), ("a/x", "through a file"), ("", "is empty"), ("/", "names a folder"),
    ("sub/", "names a folder"), ("a\0b", "U\\+0000"), ("..\\x", "backslash"), ("%2e%2e/x", "read as another path"), ("．．/x", "look like"), ("~/x", "home folder"),
    ("x" * 300, "name too long"), ("x/" * 3000, "longer than"),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["r", "w", "a", "x", "r+"])
@each_row(("path", "said"), REFUSED)
def test_nothing_leads_out_and_links_are_not_followed(root: Path, path: str, said: str, mode: str) -> None:
    with Folder(root) as folder, pytest.raises(ToolFailed) as failed:
        folder.open(path, mode, parents=True)
    if mode == "x" and "link" in said:
        said += "|exists already"
    if mode == "x" and path in ("pipe", "sub"):
        said = "exists already"
    assert re.search(said, failed.value.message), failed.value.message
    outside = root.parent / "root-evil"
    assert [p.name for p in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"


def test_a_folder_that_becomes_a_link_while_it_is_used_leads_nowhere(root: Path) -> None:
    """Somebody swaps a folder for a link and back, as fast as they can; nothing outside is ever read or written."""
    inner, aside, link = root / "sub", root / "aside", root / "link"
    link.symlink_to(root.parent / "root-evil")
    (inner / "secret").write_text("mine")
    end = threading.Event()

    def swap() -> None:
        while not end.is_set():
            inner.rename(aside)
            link.rename(inner)
            inner.rename(link)
            aside.rename(inner)

    thread = threading.Thread(target=swap)
    thread.start()
    read = set()
    try:
        with Folder(root) as folder:
            for _ in range(500):
                try:
                    with folder.open("sub/secret") as file:
                        read.add(file.read())
                    with folder.open("sub/new", "w"):
                        pass
                except ToolFailed:
                    continue
    finally:
        end.set()
        thread.join()
    assert read <= {b"mine"}
    assert [p.name for p in (root.parent / "root-evil").iterdir()] == ["secret"]


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(10):
        with Folder(root) as folder:
            folder.entries("sub")
            folder.open("a").close()
            for path, _said in REFUSED:
                with pytest.raises(ToolFailed):
                    folder.open(path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(("path", "said"), [("missing", "does not exist"), ("a", "leads through a file")])
def test_a_root_that_is_no_folder_is_a_plain_error(root: Path, path: str, said: str) -> None:
    with pytest.raises(ToolFailed, match=said):
        Folder(root / path)
    with Folder(root / "made" / "deep", create=True) as folder:
        assert folder.path.is_dir()


def test_modes_are_those_that_there_are(root: Path) -> None:
    with Folder(root) as folder, pytest.raises(ToolFailed, match="there is no mode"):
        folder.open("a", "rb+")
