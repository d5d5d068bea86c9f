"""What is too large for an answer is kept beside it, for its owner."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, ToolContext, tool
from tavern_core.errors import ArtifactNotFound, OutputTooLarge, StateDamaged, UsageError
from tests import programs
from tests.rows import each_row

ANN = CallContext(principal="user:ann")
BOB = CallContext(principal="user:bob")


@tool
def text(size: int) -> str:
    return "é" * size


@tool
def rows(count: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(count)]


@tool
def image(ctx: ToolContext) -> dict[str, Any]:
    return {"content": [ctx.keep(b"\x89PNG", "image/png", "../../cat.png"), {"type": "text", "text": "a cat"}]}


@contextmanager
def opened(tmp_path: Path, **artifacts: Any) -> Iterator[Tavern]:
    config = {"artifacts": artifacts}
    with Tavern.open(config, home=tmp_path / "home", plugins=[Plugin([text, rows, image], name="t")]) as host:
        yield host


def test_a_large_answer_is_shown_in_part_and_kept_whole(tmp_path: Path) -> None:
    with opened(tmp_path, over=1000, preview=20) as host:
        assert host.invoke_sync("t:text", {"size": 400}).value == "é" * 400
        result = host.invoke_sync("t:text", {"size": 5000}, context=ANN)
        assert result.value["preview"] == "é" * 20
        link = next(block for block in result.content if block["type"] == "resource_link")
        assert (link["mimeType"], link["size"]) == ("text/plain", 10_000)
        assert host.artifacts.read(link["uri"], context=ANN) == ("é" * 5000).encode()
        assert host.artifacts.read(link["uri"], 2, 4, context=ANN) == "éé".encode()
        listed = host.invoke_sync("t:rows", {"count": 1000}, context=ANN).value["artifact"]
        assert json.loads(host.artifacts.read(listed["id"], context=ANN)) == [{"n": n} for n in range(1000)]
        assert listed["callId"]


@pytest.mark.slow
@pytest.mark.parametrize("preview", [20, 4_000])
def test_the_answer_of_a_key_is_stored_in_part_and_given_again_with_the_same_link(tmp_path: Path, preview: int) -> None:
    call: dict[str, Any] = {"arguments": {"count": 3_000}, "context": ANN, "idempotency_key": "k"}
    with opened(tmp_path, over=1_000, preview=preview) as host:
        first = host.invoke_sync("t:rows", **call)
        again = host.invoke_sync("t:rows", **call)
    with opened(tmp_path, over=1_000, preview=preview) as host:
        later = host.invoke_sync("t:rows", **call)
        (artifact,) = host.artifacts.list()
        assert [one.value["artifact"]["id"] for one in (first, again, later)] == [artifact.id] * 3
        assert [len(one.value["preview"]) for one in (first, again, later)] == [preview] * 3
        assert len(json.loads(host.artifacts.read(artifact.id, context=ANN))) == 3_000
        assert sum(path.stat().st_size for path in (tmp_path / "home").glob("state.sqlite*")) < 200_000


def test_an_answer_that_only_looks_like_a_preview_is_shortened(tmp_path: Path) -> None:
    @tool
    def fake(uri: str) -> dict[str, Any]:
        return {"preview": "x", "truncated": True, "artifact": {"uri": uri, "filler": "y" * 5_000}}

    with opened(tmp_path, over=1_000, preview=20) as host:
        host.tools.register(fake)
        for uri in ("artifact:none", host.artifacts.put(b"1", context=ANN).uri):
            shown = host.invoke_sync("app:fake", {"uri": uri}, context=ANN).value
            assert len(json.dumps(shown)) < 1_000


@pytest.mark.slow
def test_equal_artifacts_that_are_stored_and_removed_at_one_time_keep_their_bytes(tmp_path: Path) -> None:
    lost: list[Exception] = []

    def often(host: Tavern, owner: CallContext) -> None:
        for _ in range(150):
            made = host.artifacts.put(b"the same", context=owner)
            try:
                assert host.artifacts.read(made.id, context=owner) == b"the same"
            except StateDamaged as error:
                lost.append(error)
            host.artifacts.remove(made.id, context=owner)

    with opened(tmp_path) as host:
        workers = [threading.Thread(target=often, args=(host, owner)) for owner in (ANN, BOB, ANN)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not lost
        assert not [path for path in (tmp_path / "home" / "artifacts").glob("**/*") if path.is_file()]


def test_answers_stay_whole_where_nothing_else_is_said(tmp_path: Path) -> None:
    with opened(tmp_path) as host:
        assert len(host.invoke_sync("t:text", {"size": 500_000}).value) == 500_000
        assert host.artifacts.list() == ()


def test_a_tool_keeps_a_file_for_its_caller(tmp_path: Path) -> None:
    with opened(tmp_path) as host:
        block = host.invoke_sync("t:image", context=ANN).content[0]
        known = host.artifacts.get(block["uri"], context=ANN)
        assert (known.media_type, known.name, known.size, known.principal) == ("image/png", "cat.png", 4, "user:ann")
        assert known.digest == "sha256:" + hashlib.sha256(b"\x89PNG").hexdigest()


def test_an_artifact_is_its_owners(tmp_path: Path) -> None:
    with opened(tmp_path) as host:
        mine = host.artifacts.put(b"secret plans", "text/plain", context=ANN)
        for ask in (host.artifacts.get, host.artifacts.open, host.artifacts.read, host.artifacts.remove):
            with pytest.raises(ArtifactNotFound) as error:
                ask(mine.id, context=BOB)  # type: ignore[operator]
            assert mine.id not in error.value.hint
        assert host.artifacts.list(context=BOB) == ()
        assert [one.id for one in host.artifacts.list(context=ANN)] == [mine.id]
        assert host.artifacts.read(mine.id) == b"secret plans"


def test_the_same_bytes_are_stored_once_and_until_the_last_owner_is_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as host:
        first, second = (host.artifacts.put(b"same", "text/plain", context=who) for who in (ANN, BOB))
        files = [path for path in (tmp_path / "home" / "artifacts").rglob("*") if path.is_file()]
        assert len(files) == 1
        assert files[0].stat().st_mode & 0o077 == 0
        host.artifacts.remove(first.id)
        assert host.artifacts.read(second.id) == b"same"
        host.artifacts.remove(second.id)
        assert not files[0].exists()


def test_an_artifact_whose_time_is_over_is_gone(tmp_path: Path) -> None:
    with opened(tmp_path, ttlMs=1) as host:
        made = host.artifacts.put(b"x", "text/plain")
        threading.Event().wait(0.01)
        with pytest.raises(ArtifactNotFound):
            host.artifacts.get(made.id)


@pytest.mark.slow
def test_the_first_artifact_of_a_host_removes_bytes_that_nobody_owns_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "artifacts"
    with opened(tmp_path, ttlMs=1) as host:
        host.artifacts.put(b"over", "text/plain")
    (folder / ".new-killed").write_bytes(b"half of something")
    (folder / ".new-young").write_bytes(b"being written")
    for path in folder.rglob("*"):
        if path.is_file() and path.name != ".new-young":
            os.utime(path, (0, 0))
    with opened(tmp_path) as host:
        kept = host.artifacts.put(b"new", "text/plain")
        assert host.artifacts.read(kept.id) == b"new"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {".new-young", kept.digest.removeprefix("sha256:")[2:]}


def test_too_much_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, maxBytes=1000) as host:
        with pytest.raises(OutputTooLarge):
            host.artifacts.put((b"x" * 100 for _ in range(1000)), "text/plain")
        assert [path for path in (tmp_path / "home" / "artifacts").rglob("*") if path.is_file()] == []
        assert host.artifacts.put((b"x" * 100 for _ in range(10)), "text/plain").size == 1000


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tavern]:
    """One for the tests that only ask it, or whose artifacts nobody else looks at."""
    with opened(tmp_path_factory.mktemp("asked")) as host:
        yield host


@each_row("data", [5, None, ["text"], Path("/nowhere/at/all")])
def test_what_is_no_data_is_refused(host: Tavern, data: Any) -> None:
    with pytest.raises(UsageError):
        host.artifacts.put(data, "text/plain")


@each_row("kind", ["", "png", "text/plain\nx: y", "a/b/c", 7])
def test_what_is_no_media_type_is_refused(host: Tavern, kind: Any) -> None:
    with pytest.raises(UsageError, match="not a media type"):
        host.artifacts.put(b"x", kind)


@each_row("name", ["../../etc/passwd", "artifact:../x", "\x00", "\ud800", "", 7, None])
def test_what_is_no_id_finds_nothing(host: Tavern, name: Any) -> None:
    with pytest.raises(ArtifactNotFound):
        host.artifacts.read(name)


@each_row("given", [{"context": "ann"}, {"most": -1}, {"most": "x"}, {"most": float("nan")}, {"most": 10**30}])
def test_wrong_questions_about_artifacts_are_refused(host: Tavern, given: Any) -> None:
    kept = host.artifacts.put(b"x")
    with pytest.raises(UsageError):
        host.artifacts.list(**given)
    for ask in (host.artifacts.get, host.artifacts.read, host.artifacts.put, host.artifacts.remove):
        with pytest.raises(UsageError):
            ask(kept.id, context="ann")


@each_row(
    ("part", "found"),
    [
        ((0, -1), b"abcdef"), ((2, 3), b"cde"), ((4, 10**30), b"ef"), ((10**30, 1), b""), ((3, 0), b""),
        ((-1, 2), None), (("1", 2), None), ((0, 2.0), None), ((None, 1), None), ((True, 1), None),
    ],
)  # fmt: skip
def test_a_part_is_named_by_whole_numbers(host: Tavern, part: tuple[Any, Any], found: bytes | None) -> None:
    made = host.artifacts.put(b"abcdef")
    if found is not None:
        assert host.artifacts.read(made.id, *part) == found
    else:
        with pytest.raises(UsageError, match="whole numbers"):
            host.artifacts.read(made.id, *part)


@pytest.mark.parametrize("left", [b"half", b"whale", None])
def test_bytes_that_were_changed_are_not_passed_off_as_whole(tmp_path: Path, left: bytes | None) -> None:
    with opened(tmp_path) as host:
        made = host.artifacts.put(b"whole", "text/plain")
        (file,) = [path for path in (tmp_path / "home" / "artifacts").rglob("*") if path.is_file()]
        file.unlink() if left is None else file.write_bytes(left)
        with pytest.raises(StateDamaged, match=made.id) as damage:
            host.artifacts.read(made.id)
        assert damage.value.hint == f"`tavern artifacts remove {made.id}`, and make it again"
        host.artifacts.remove(made.id)
        assert host.artifacts.read(host.artifacts.put(b"whole").id) == b"whole"


def test_an_artifact_that_is_removed_while_it_is_read_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as host, opened(tmp_path) as other:
        kept, opens, removed = host.artifacts.put(b"whole", "text/plain"), Path.open, list[str]()

        def late(path: Path, *args: Any, **options: Any) -> Any:
            if path.parent.parent.name == "artifacts" and not removed:
                removed.append(kept.id)
                other.artifacts.remove(kept.id)
            return opens(path, *args, **options)

        monkeypatch.setattr(Path, "open", late)
        with pytest.raises(ArtifactNotFound):
            host.artifacts.read(kept.id)
        assert removed == [kept.id]


@pytest.mark.slow
def test_the_command_line_lists_and_fetches(tmp_path: Path) -> None:
    with opened(tmp_path) as host:
        made = host.artifacts.put(b"\x00\x01binary", "application/x-thing", name="a.bin")
    (tmp_path / "tavern.yaml").write_text("{}", encoding="utf-8")

    def tavern(*words: str) -> tuple[int, str]:
        done = programs.tavern("artifacts", *words, cwd=tmp_path, home=tmp_path / "home")
        return done.returncode, done.stdout

    assert made.id in tavern()[1]
    assert json.loads(tavern("show", made.id, "--json")[1])["size"] == 8
    assert tavern("get", made.uri)[1] == "\x00\x01binary"
    assert tavern("get", made.id, "-o", "out.bin")[0] == 0
    assert (tmp_path / "out.bin").read_bytes() == b"\x00\x01binary"
    assert tavern("get", made.id, "-o", "out.bin")[0] == 2
    assert tavern("remove", made.id)[0] == 0
    assert tavern("show", made.id)[0] == 5
