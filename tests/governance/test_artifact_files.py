"""Scripts, nodes and people put files into the artifact store, and take them out of it."""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from tavern_core import CallContext, NodeContext, Plugin, Tavern, ToolContext, hookimpl, node, tool
from tests import programs

pytestmark = pytest.mark.slow

ANN = CallContext(principal="user:ann")
BOB = CallContext(principal="user:bob")
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 5_000

SCRIPT = """
    import json, os, pathlib, sys
    given = json.load(sys.stdin)["arguments"]
    out = pathlib.Path(os.environ["TAVERN_OUTPUT"])
    assert os.listdir(out) == []
    for name, text in given.get("files", {}).items():
        (out / name).write_text(text)
    if "link" in given:
        os.symlink(given["link"], out / "link")
    if given.get("pipe"):
        os.mkfifo(out / "pipe")
    if given.get("folder"):
        (out / "folder").mkdir()
    if given.get("swap"):
        os.rename(out, str(out) + "-old")
        os.symlink("/etc", out)
    if given.get("fail"):
        print(json.dumps({"error": "no"}))
    elif "image" in given:
        path = pathlib.Path(given["image"])
        print(json.dumps([path.name, path.stat().st_size, path.read_bytes()[:4].hex()]))
    else:
        print(json.dumps({"done": True}))
"""
PARAMETERS = {
    "type": "object",
    "properties": {
        "files": {"type": "object"}, "link": {"type": "string"}, "pipe": {"type": "boolean"}, "folder": {"type": "boolean"},
        "swap": {"type": "boolean"}, "fail": {"type": "boolean"}, "image": {"type": "string", "format": "artifact"},
    },
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins" / "s"
    folder.mkdir(parents=True)
    (folder / "run.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    script = {"type": "script", "command": ["python", "run.py"]}
    tools = [
        {"id": "run", "implementation": script, "parameters": PARAMETERS},
        {"id": "report", "implementation": {**script, "outputs": ["report.txt", "*.png"]}, "parameters": PARAMETERS},
    ]
    (folder / "plugin.yaml").write_text(json.dumps({"name": "s", "version": "1.0", "tools": tools}), encoding="utf-8")
    (tmp_path / "tavern.yaml").write_text("plugins: {roots: [plugins]}\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def host(project: Path) -> Iterator[Tavern]:
    with of(project) as opened:
        yield opened


def of(project: Path, **isolation: Any) -> Tavern:
    artifacts = {"maxBytes": 100_000, "over": 1_000}
    config = {"plugins": {"roots": [str(project / "plugins")]}, "artifacts": artifacts, "isolation": isolation}
    return Tavern.open(config, home=project / "home", plugins=[Plugin([size], name="t"), DRAWS])


def links(result: Any) -> list[Any]:
    return [block for block in result.content if block["type"] == "resource_link"]


@pytest.mark.slow
def test_what_a_script_leaves_is_kept_for_its_caller(host: Tavern) -> None:
    result = host.invoke_sync("s:run", {"files": {"a.txt": "é", "b.json": "{}"}}, context=ANN)
    assert result.value == {"done": True}
    assert [(one["name"], one["mimeType"], one["size"]) for one in links(result)] == [
        ("a.txt", "text/plain", 2), ("b.json", "application/json", 2),
    ]  # fmt: skip
    uri = links(result)[0]["uri"]
    assert host.artifacts.read(uri, context=ANN) == "é".encode()
    assert host.artifacts.get(uri).call_id == result.call_id
    assert host.artifacts.list(context=BOB) == ()


@pytest.mark.slow
def test_a_script_that_leaves_nothing_or_fails_keeps_nothing(host: Tavern) -> None:
    assert links(host.invoke_sync("s:run")) == []
    assert host.invoke_sync("s:run", {"files": {"a": "x"}, "fail": True}).error.kind == "TOOL_ERROR"  # type: ignore[union-attr]
    assert host.artifacts.list() == ()


@pytest.mark.slow
def test_declared_files_are_those_that_are_kept(host: Tavern) -> None:
    files = {"report.txt": "r", "a.png": "p", "scratch": "s"}
    kept = host.invoke_sync("s:report", {"files": files})
    assert [one["name"] for one in links(kept)] == ["a.png", "report.txt"]
    missing = host.invoke_sync("s:report", {"files": {"a.png": "p"}}).error
    assert missing is not None
    assert (missing.kind, missing.outcome, "report.txt" in missing.message) == ("TOOL_ERROR", "done", True)


@pytest.mark.slow
def test_what_is_no_file_of_the_script_is_refused(project: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"link": "/etc/hostname"}, "TOOL_ERROR"),
        ({"pipe": True}, "TOOL_ERROR"),
        ({"folder": True}, "TOOL_ERROR"),
        ({"swap": True}, "TOOL_ERROR"),
        ({"files": {"large": "x" * 100_001}}, "OUTPUT_TOO_LARGE"),
        ({"files": {str(n): "" for n in range(101)}}, "OUTPUT_TOO_LARGE"),
    ]
    with of(project, level="none") as host:  # the box refuses most of this before
        for arguments, kind in refused:
            error = host.invoke_sync("s:run", arguments).error
            assert error is not None, str(arguments)[:99]
            assert error.kind == kind, error
            assert all(one.name not in ("link", "passwd") for one in host.artifacts.list())


@pytest.mark.slow
def test_a_script_gets_the_path_of_an_artifact_of_its_caller(host: Tavern) -> None:
    mine = host.artifacts.put(PNG, "image/png", name="cat.png", context=ANN)
    assert host.invoke_sync("s:run", {"image": mine.uri}, context=ANN).value == ["cat.png", len(PNG), PNG[:4].hex()]
    for caller, link in ((BOB, mine.uri), (ANN, "artifact:art-none"), (ANN, "/etc/passwd")):
        error = host.invoke_sync("s:run", {"image": link}, context=caller).error
        assert error is not None
        assert error.kind == "ARTIFACT_NOT_FOUND"


# Tools in the host -------------------------------------------------------------------------------------------------------


@tool
def size(image: Annotated[str, Field(json_schema_extra={"format": "artifact"})], ctx: ToolContext) -> list[Any]:
    """How large an artifact is, and how it begins and ends."""
    known = ctx.artifact_facts(image)
    return [known["name"], known["size"], ctx.read_artifact(image, 0, 4).hex(), len(ctx.artifact(image)[0])]


def test_a_tool_reads_an_artifact_of_its_caller(host: Tavern) -> None:
    mine = host.artifacts.put(PNG, "image/png", name="cat.png", context=ANN)
    expected = ["cat.png", len(PNG), PNG[:4].hex(), len(PNG)]
    assert host.invoke_sync("t:size", {"image": mine.uri}, context=ANN).value == expected
    error = host.invoke_sync("t:size", {"image": mine.uri}, context=BOB).error
    assert error is not None
    assert error.kind == "ARTIFACT_NOT_FOUND"


# Nodes -------------------------------------------------------------------------------------------------------------------


@node("Draw")
def draw(large: bool) -> bytes:
    """An image."""
    return PNG if large else PNG[:100]


@node("Keep")
def keep(ctx: NodeContext, text: str) -> dict[str, Any]:
    """A file."""
    return ctx.keep(text, "text/plain", "note.txt")


class _Draws:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [draw, keep]


def _of_node(name: str, type_: str) -> dict[str, Any]:
    return {"id": name, "implementation": {"type": "node", "nodeType": f"n:{type_}"}, "description": "A node."}


DRAWS = Plugin(
    _Draws(), name="n",
    manifest={"nodes": [{"name": "Draw"}, {"name": "Keep"}], "tools": [_of_node("draw", "Draw"), _of_node("keep", "Keep")]},
)  # fmt: skip


def test_large_bytes_of_a_node_become_an_artifact(host: Tavern) -> None:
    large = host.invoke_sync("n:draw", {"large": True}, context=ANN)
    assert (large.value["mimeType"], large.value["size"]) == ("image/png", len(PNG))
    assert links(large) == [large.value]
    assert host.artifacts.read(large.value["uri"], context=ANN) == PNG
    assert isinstance(host.invoke_sync("n:draw", {"large": False}, context=ANN).value, str)


def test_a_node_keeps_a_file_for_the_caller_of_its_workflow(host: Tavern) -> None:
    link = host.invoke_sync("n:keep", {"text": "x"}, context=ANN).value
    assert (link["name"], host.artifacts.read(link["uri"], context=ANN)) == ("note.txt", b"x")
    assert host.artifacts.list(context=BOB) == ()


# The command line --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_line_uploads_and_passes_files(project: Path) -> None:
    (project / "cat.png").write_bytes(PNG)

    def tavern(*words: str, given: bytes = b"") -> tuple[int, str]:
        done = programs.tavern(*words, cwd=project, home=project / "home", given=given)
        return done.returncode, done.stdout

    made = json.loads(tavern("artifacts", "put", "cat.png", "--json")[1])
    assert (made["mediaType"], made["name"], made["size"]) == ("image/png", "cat.png", len(PNG))
    uri = tavern("artifacts", "put", "-", "--type", "text/plain", "--name", "n.txt", given=b"note")[1].strip()
    assert tavern("artifacts", "get", uri)[1] == "note"
    shown = json.loads(tavern("artifacts", "get", uri, "--json")[1])
    assert (shown["uri"], shown["name"], base64.b64decode(shown["data"])) == (uri, "n.txt", b"note")
    assert tavern("artifacts", "put", "none.png")[0] == 2
    for image in (made["uri"], "@cat.png"):
        assert json.loads(tavern("tools", "call", "s:run", f"image={image}")[1])[0] == "cat.png"
    assert json.loads(tavern("tools", "call", "s:run", "image=@cat.png", "--permissions", "")[1])[1] == len(PNG)
    assert tavern("tools", "call", "s:run", "image=@none.png")[0] == 2
