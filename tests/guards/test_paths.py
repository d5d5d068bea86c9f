"""Paths in arguments: only beneath the folders that they must be beneath."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core import CallContext, Guard, Plugin, Tavern, tool
from tavern_core.contract.guards.paths import beneath, path_flaw, resolved, roots_of
from tests.guards.conftest import Desk, refusal
from tests.rows import each_row

PATH = {"type": "object", "properties": {"p": {"type": "string", "x-tavern": {"guard": "path"}}}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A granted folder, with a neighbour whose name begins like its own."""
    tmp_path = tmp_path_factory.mktemp("data")
    root = tmp_path / "data"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (tmp_path / "database").mkdir()
    (tmp_path / "database" / "secret").write_text("s")
    (root / "inside").symlink_to(root / "sub")
    (root / "out").symlink_to(tmp_path / "database")
    (root / "out-file").symlink_to("../database/secret")
    (root / "dangling").symlink_to("/etc/not-there-at-all")
    (root / "circle").symlink_to(root / "circle")
    return root


ALLOWED = [
    "a.txt", "./a.txt", "sub/new.txt", "sub/../a.txt", "not/there/yet", "inside/x", ".hidden", "..a", "a..b", ".", "sub/",
    "{root}", "{root}/", "{root}/a.txt", "{root}/sub/../a.txt", "文件/报告……草稿.txt", "with blank.txt", "log 10:30.txt", "ab:c", "100%", "CON",
]  # fmt: skip
REFUSED = [
    ("..", "is not in"),
    ("../database/secret", "is not in"),
    ("sub/../../database/secret", "is not in"),
    ("/etc/passwd", "is not in"),
    ("{root}base/secret", "is not in"),
    ("{root}/../database", "is not in"),
    ("{ROOT}/a.txt", "is not in"),
    ("//etc/passwd", "is not in"),
    ("/proc/self/root/etc/passwd", "is not in"),
    ("out", "is not in"),
    ("out/secret", "is not in"),
    ("out/", "is not in"),
    ("out-file", "is not in"),
    ("sub/../out/secret", "is not in"),
    ("inside/../../database/secret", "is not in"),
    ("dangling", "is not in"),
    ("circle", "symbolic links"),
    ("circle/x", "symbolic links"),
    ("", "is empty"),
    ("  ", "is empty"),
    ("a.txt\0.png", "U+0000"),
    ("a\n.txt", "U+000A"),
    ("a\u202etxt", "U+202E"),
    ("..\\database", "backslash"),
    ("\\\\host\\share", "backslash"),
    ("C:/x", "'C:'"),
    ("file:///etc/passwd", "'file:/'"), ("FILE:x", "'FILE:'"), ("zip://x", "'zip:/'"),
    ("~/x", "'~'"),
    ("~root/x", "'~'"),
    ("%2e%2e/database", "'%2e'"),
    ("..%2fdatabase", "'%2f'"),
    ("a%00.txt", "'%00'"),
    ("．．/database", "look like"),
    ("‥/database", "look like"),
    ("a／..／..／x", "look like"),
    ("a.txt.", "ends in '.'"),
    ("a.txt ", "ends in ' '"),
    (".. /x", "ends in ' '"),
    (".../x", "ends in '.'"),
    ("x" * 5000, "longer than"),
    ("x" * 300, "name too long"),
]  # fmt: skip


@each_row("path", ALLOWED)
def test_a_path_beneath_the_granted_folder_is_let_through(desk: Desk, data: Path, path: str) -> None:
    call = desk.tool(PATH, "read:fs", scopes={"read:fs": [str(data)]})
    assert call({"p": path.format(root=data)}).ok


@each_row(("path", "why"), REFUSED)
def test_a_path_that_leads_elsewhere_is_refused_and_the_tool_does_not_run(
    desk: Desk, data: Path, path: str, why: str
) -> None:
    call = desk.tool(PATH, "read:fs", scopes={"read:fs": [str(data)]})
    said = refusal(call({"p": path.replace("{root}", str(data)).replace("{ROOT}", str(data).upper())}))
    assert why in said
    assert "argument /p" in said
    assert not desk.ran


def test_lone_surrogates_never_reach_a_guard(desk: Desk, data: Path) -> None:
    assert not desk.tool(PATH, "read:fs", scopes={"read:fs": [str(data)]})({"p": "a\ud800"}).ok


@pytest.mark.parametrize(
    ("mode", "path", "fine"),
    [
        ("read", "{r}/x", True), ("read", "{w}/x", False),
        ("write", "{w}/x", True), ("write", "{r}/x", False),
        ("", "{r}/x", False), ("", "{w}/x", False),
    ],
)  # fmt: skip
def test_the_mode_of_a_mark_says_whose_scope_holds_and_without_one_both_do(
    desk: Desk, tmp_path: Path, mode: str, path: str, fine: bool
) -> None:
    mark = {"guard": "path"} | ({"mode": mode} if mode else {})
    schema = {"type": "object", "properties": {"p": {"type": "string", "x-tavern": mark}}}
    places = {"r": tmp_path / "r", "w": tmp_path / "w"}
    call = desk.tool(
        schema, "read:fs", "write:fs", scopes={"read:fs": [str(places["r"])], "write:fs": [str(places["w"])]}
    )
    assert call({"p": path.format(**places)}).ok is fine


@each_row(
    ("scope", "path", "fine"),
    [
        (["/"], "/etc/passwd", True),
        (["{t}/a", "{t}/b"], "{t}/b/x", True),
        (["{t}/a/*"], "{t}/a/x", False),
        (["{t}/a/../b"], "{t}/b/x", False),
        (["{t}/a/"], "{t}/ab", False),
        (["$workspace/notes"], "notes/x", True),
        (["$workspace/notes"], "{t}/files/notes/x", True),
        (["$workspace/notes"], "other/x", False),
        (["$data"], "{h}/data/desk/x", True),
        (["$nowhere"], "x", False),
        (["$workspaces/x"], "{t}/files/x", False),
        (["./"], "{p}/x", True),
        (["./sub"], "{p}/x", False),
        (["{t}/link"], "{t}/real/x", True),
    ],
)
def test_scopes_name_folders_and_places(desk: Desk, tmp_path: Path, scope: list[str], path: str, fine: bool) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    call = desk.tool(PATH, "read:fs", scopes={"read:fs": [s.format(t=tmp_path) for s in scope]})
    assert (
        call({"p": path.format(t=tmp_path, h=desk.home, p=Path.cwd())}, workspace_dir=str(tmp_path / "files")).ok
        is fine
    )


def test_a_caller_narrows_what_was_granted_and_never_widens_it(desk: Desk, tmp_path: Path) -> None:
    call = desk.tool(PATH, "read:fs", scopes={"read:fs": [str(tmp_path / "data")]})

    def fine(path: str, *scope: str) -> bool:
        return call({"p": str(tmp_path / path)}, scopes={"read:fs": [str(tmp_path / s) for s in scope]}).ok

    assert fine("data/mine/x", "data/mine")
    assert not fine("data/yours/x", "data/mine")
    assert not fine("other/x", "other")
    assert not fine("data/x")


def test_an_empty_scope_of_a_caller_allows_nothing_also_where_no_parameter_is_a_path(
    desk: Desk, tmp_path: Path
) -> None:
    call = desk.tool({"type": "object", "properties": {}}, "read:fs")
    assert call({}, scopes={"read:fs": [str(tmp_path)]}).ok
    assert call({}, scopes={"write:fs": []}).ok
    error = call({}, scopes={"read:fs": []}).error
    assert error is not None
    assert (error.kind, error.details["missing"], error.details["side"]) == ("POLICY_DENIED", ["read:fs"], "caller")
    assert "does not allow read:fs" in error.message


@pytest.mark.parametrize("wrong", [{"read:fs": "/data"}, ["read:fs"], {"read:fs": [1]}])
def test_scopes_of_a_caller_are_lists(wrong: Any) -> None:
    with pytest.raises(Exception, match=r"CallContext\.scopes"):
        CallContext(scopes=wrong)


def test_without_scope_or_root_the_workspace_of_the_caller_is_the_limit(desk: Desk, tmp_path: Path) -> None:
    call = desk.tool(PATH, "read:fs")
    assert call({"p": "x"}, workspace_dir=str(tmp_path)).ok
    assert "the caller's workspace" in refusal(call({"p": "/etc/passwd"}, workspace_dir=str(tmp_path)))
    assert "the project's folder" in refusal(call({"p": "/etc/passwd"}))
    assert call({"p": str(Path.cwd() / "x")}).ok


@pytest.mark.parametrize(
    ("root", "fine"),
    [("workspace", "w/x"), ("project", "{p}/x"), ("data", "{h}/data/desk/x"), ("{t}/fixed", "fixed/x")],
)
def test_the_root_of_a_mark_is_a_limit_of_its_own(desk: Desk, tmp_path: Path, root: str, fine: str) -> None:
    mark = {"guard": "path", "root": root.format(t=tmp_path)}
    schema = {"type": "object", "properties": {"p": {"type": "string", "x-tavern": mark}}}
    call = desk.tool(schema, "read:fs", scopes={"read:fs": [str(tmp_path), str(desk.home), str(Path.cwd())]})
    workspace = {"workspace_dir": str(tmp_path / "w")}
    assert call({"p": str(tmp_path / fine.format(h=desk.home, p=Path.cwd()))}, **workspace).ok
    assert call({"p": "relative/x"}, **workspace).ok
    refusal(call({"p": str(tmp_path / "elsewhere")}, **workspace))


def test_a_root_that_is_not_known_lets_nothing_through(desk: Desk, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"p": {"type": "string", "x-tavern": {"guard": "path", "root": "workspace"}}},
    }
    assert "workspace_dir" in (desk.tool(schema)({"p": "x"}).error.fix or "")  # type: ignore[union-attr]


@pytest.mark.slow
def test_python_tools_mark_their_parameters_in_the_annotation(tmp_path: Path) -> None:
    @tool
    def copy(
        source: Annotated[str, Guard.path(root="workspace", mode="read"), "From where"],
        targets: Annotated[list[str], Guard.path(root="workspace", mode="write")],
    ) -> int:
        return len(targets)

    with Tavern.open(config={}, home=tmp_path / "home", plugins=[Plugin([copy], name="desk")]) as tavern:
        mark = tavern.tools.get("desk:copy").input_schema["properties"]["source"]["x-tavern"]
        assert mark == {"guard": "path", "root": "workspace", "mode": "read"}
        context = CallContext(workspace_dir=str(tmp_path))
        assert tavern.invoke_sync("desk:copy", {"source": "a", "targets": ["b", "c"]}, context=context).value == 2
        refused = tavern.invoke_sync("desk:copy", {"source": "a", "targets": ["b", "../c"]}, context=context)
        assert refused.error is not None
        assert refused.error.details["pointer"] == "/targets/1"


STEPS = st.lists(st.sampled_from(["..", ".", "a", "b", "link", "up", "", "…", "a b", "%2e"]), max_size=8)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(STEPS, st.booleans())
def test_what_is_let_through_is_where_the_system_would_go(steps: list[str], absolute: bool) -> None:
    """An independent model: open the parent folder for real and ask the kernel where it is."""
    root = _tree()
    path = "/".join(steps)
    path = f"{root}/{path}" if absolute else path
    if path_flaw(path):
        return
    try:
        fine = beneath(resolved(path, str(root)), roots_of((str(root),), {}))
    except ValueError:
        return
    whole = os.path.join(root, path)  # noqa: PTH118
    try:
        at = os.open(whole, os.O_PATH)
    except OSError:
        return
    try:
        really = os.readlink(f"/proc/self/fd/{at}")  # noqa: PTH115
    finally:
        os.close(at)
    assert fine is (really == str(root) or really.startswith(f"{root}/"))


def _tree() -> Path:
    if not _MADE:
        import atexit
        import tempfile

        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        root = Path(folder.name).resolve() / "root"
        for place in ("root/a/b", "root/b", "rooted", "other"):
            (root.parent / place).mkdir(parents=True)
        (root / "link").symlink_to(root / "a")
        (root / "up").symlink_to(root.parent)
        (root / "a" / "up").symlink_to("../..")
        _MADE.append(root)
    return _MADE[0]


_MADE: list[Path] = []
