"""The workspace: files are read, written, edited; nothing leads out of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tavern_plugin_file_operator.workspace import Workspace, choose_root

from tavern_core import ToolFailed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with every trap in and beside it."""
    outside = tmp_path / "ws-evil"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    root = tmp_path / "ws"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("one\ntwo\n")
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "linked").symlink_to(outside)
    (root / "inner").symlink_to(root / "sub")
    (root / "dangling").symlink_to(outside / "new.txt")
    (root / "loop").symlink_to("loop")
    os.link(outside / "secret.txt", root / "hard.txt")
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(str(root), 1000)


def untouched(root: Path) -> None:
    outside = root.parent / "ws-evil"
    assert [p.name for p in outside.iterdir()] == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == "secret"


@pytest.mark.parametrize("path", ["/logs/today.log", "logs/today.log", "./logs//today.log", "/logs/./today.log"])
def test_an_absolute_path_counts_from_the_workspace(workspace: Workspace, root: Path, path: str) -> None:
    assert workspace.write(path, "任务开始...") == ("/logs/today.log", True)
    assert (root / "logs/today.log").read_text(encoding="utf-8") == "任务开始..."
    assert workspace.append(path, "\\n添加新记录。") == ("/logs/today.log", len("任务开始...\\n添加新记录。".encode()))
    assert workspace.read(path) == ("/logs/today.log", "任务开始...\\n添加新记录。")


def test_the_real_path_of_a_file_in_the_workspace_means_that_file(workspace: Workspace, root: Path) -> None:
    assert workspace.read(f"{root}/a.txt") == ("/a.txt", "one\ntwo\n")
    assert workspace.entries(str(root), 10)[0] == "/"
    with pytest.raises(ToolFailed, match="no such file"):  # a sibling with the same beginning is not in the workspace
        workspace.read(f"{root}-evil/secret.txt")


ESCAPES = [
    "../ws-evil/secret.txt", "/../ws-evil/secret.txt", "sub/../../ws-evil/secret.txt", "link.txt", "linked/secret.txt", "dangling",
    "loop", "pipe", "sub", "a.txt/x", "inner/x.txt", "", "/", ".", "..", "sub/", "a\0b", "a\nb", "..\\x", "C:\\x", "\ud800",
    "x" * 300, "x/" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize(
    "use",
    [
        lambda ws, path: ws.read(path),
        lambda ws, path: ws.write(path, "evil"),
        lambda ws, path: ws.append(path, "evil"),
        lambda ws, path: ws.change(path, lambda text: (text + "evil", 1)),
    ],
)
def test_nothing_leads_out_of_the_workspace(
    workspace: Workspace, root: Path, path: str, use: Callable[[Workspace, str], Any]
) -> None:
    with pytest.raises(ToolFailed) as caught:
        use(workspace, path)
    assert str(root) not in caught.value.message.replace(path, "")
    untouched(root)


def test_a_hard_link_to_the_outside_is_never_written_through(workspace: Workspace, root: Path) -> None:
    with pytest.raises(ToolFailed, match="hard link"):
        workspace.append("hard.txt", "evil")
    workspace.write("hard.txt", "mine")
    assert (root / "hard.txt").read_text() == "mine"
    untouched(root)


def test_a_folder_that_becomes_a_link_between_two_steps_leads_nowhere(workspace: Workspace, root: Path) -> None:
    stop = threading.Event()
    (root / "sub/secret.txt").write_text("inside")

    def swap() -> None:
        while not stop.is_set():
            (root / "sub").rename(root / "parked")
            (root / "sub").symlink_to(root.parent / "ws-evil")
            (root / "sub").unlink()
            (root / "parked").rename(root / "sub")

    seen = set()
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(400):
            try:
                seen.add(workspace.read("sub/secret.txt")[1])
                workspace.change("sub/secret.txt", lambda text: (text, 1))
            except ToolFailed:
                continue
    finally:
        stop.set()
        thread.join()
    assert seen <= {"inside"}
    untouched(root)


def test_a_file_keeps_its_permissions_and_no_draft_stays(workspace: Workspace, root: Path) -> None:
    (root / "a.txt").chmod(0o640)
    workspace.write("a.txt", "new")
    assert (root / "a.txt").stat().st_mode & 0o777 == 0o640
    assert not list(root.rglob("*.tmp"))


def test_a_write_that_fails_leaves_the_old_file(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ToolFailed, match="No space left"):
        workspace.write("a.txt", "new")
    assert (root / "a.txt").read_text() == "one\ntwo\n"
    assert not list(root.rglob("*.tmp"))


@pytest.mark.parametrize("size", [1000, 1001])
def test_no_file_grows_beyond_the_limit(workspace: Workspace, root: Path, size: int) -> None:
    (root / "large.txt").write_text("x" * size)
    uses: list[Callable[[], Any]] = [
        lambda: workspace.read("large.txt"),
        lambda: workspace.write("b.txt", "x" * size),
        lambda: workspace.append("a.txt", "x" * (size - 8)),
        lambda: workspace.change("a.txt", lambda text: ("x" * size, 1)),
    ]
    for use in uses:
        if size <= 1000:
            use()
            (root / "a.txt").write_text("one\ntwo\n")
        else:
            with pytest.raises(ToolFailed, match="the limit is 1,000"):
                use()


def test_what_is_no_text_is_refused(workspace: Workspace, root: Path) -> None:
    (root / "image").write_bytes(b"ok\n\xff\xd8")
    with pytest.raises(ToolFailed, match="not UTF-8 text: byte 0xff in line 2"):
        workspace.read("image")
    with pytest.raises(ToolFailed, match="is not text"):
        workspace.write("a.txt", "half \ud83d")
    assert (root / "a.txt").read_text() == "one\ntwo\n"


def test_a_missing_file_is_not_made_by_reading_or_editing(workspace: Workspace, root: Path) -> None:
    for use in (lambda: workspace.read("new/x.txt"), lambda: workspace.change("new.txt", lambda t: (t, 1))):
        with pytest.raises(ToolFailed):
            use()
    assert not (root / "new").exists()
    assert not (root / "new.txt").exists()


def test_a_folder_is_listed_without_following_links(workspace: Workspace) -> None:
    path, entries, more = workspace.entries("/", 100)
    kinds = {entry["name"]: entry["type"] for entry in entries}
    assert (path, more) == ("/", False)
    assert kinds["sub"] == "folder"
    assert kinds["a.txt"] == "file"
    assert kinds["linked"] == "link"
    assert kinds["pipe"] == "pipe"
    assert workspace.entries("/", 2)[1:] == (entries[:2], True)
    for folder in ("linked", "..", "a.txt", "nowhere"):
        with pytest.raises(ToolFailed):
            workspace.entries(folder, 10)


def test_writers_at_the_same_time_lose_nothing(workspace: Workspace, root: Path) -> None:
    (root / "n.txt").write_text("0")

    def count() -> None:
        for _ in range(25):
            workspace.change("n.txt", lambda text: (str(int(text) + 1), 1))
            workspace.append("lines.txt", "x\n")

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (root / "n.txt").read_text() == "200"
    assert (root / "lines.txt").read_text() == "x\n" * 200


def test_the_workspace_is_made_when_it_is_first_used(tmp_path: Path) -> None:
    Workspace(str(tmp_path / "new" / "ws"), 10).write("a", "b")
    assert (tmp_path / "new/ws/a").read_text() == "b"


def test_the_setting_goes_before_the_caller_and_the_caller_before_the_plugin(tmp_path: Path) -> None:
    def own() -> Path:
        return tmp_path / "own"

    assert choose_root("/set", "/wanted", own) == "/set"
    assert choose_root(" ", "/wanted", own) == "/wanted"
    assert choose_root("", None, own) == str(tmp_path / "own")
    assert choose_root("~/ws", None, own) == str(Path.home() / "ws")
    with pytest.raises(ToolFailed, match="not an absolute path"):
        choose_root("relative", None, own)
