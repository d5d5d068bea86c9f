"""`tavern assist`: shows a change, asks, writes, takes back."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import programs
from tests.forked_programs import ForkedProgram

from .answers import CAPITALS, answer

PLUGIN = '''\
"""A model that gives the answers of a file, one after the other."""
import json
from pathlib import Path

from tavern_core import LLMAnswer, ScriptedLLM, hookimpl


def script(messages):
    answers = json.loads(Path(__file__).with_name("answers.json").read_text())
    rounds = sum(1 for message in messages if message["role"] == "assistant")
    return LLMAnswer(answers[min(rounds, len(answers) - 1)], usage={"input": 100, "output": 20})


@hookimpl
def tavern_register_llms():
    return {"writer": ScriptedLLM(script)}
'''
MANIFEST = "name: writer\nversion: '1.0.0'\ndescription: A scripted model.\nllms: [writer]\n"
LOWER = [{"op": "replace", "path": "/nodes/caps/inputValues/form", "value": "lower"}]


class Project:
    """A folder with a plugin that brings a model, and the command line in it: in this process, or at a terminal."""

    def __init__(self, folder: Path, answers: tuple[str, ...]) -> None:
        self.folder, plugin = folder, folder / "plugins" / "writer"
        plugin.mkdir(parents=True)
        (plugin / "plugin.yaml").write_text(MANIFEST)
        (plugin / "__init__.py").write_text(PLUGIN)
        (plugin / "answers.json").write_text(json.dumps(answers))
        (folder / "tavern.yaml").write_text("plugins: {roots: [plugins], entryPoints: false, probe: never}\n")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return programs.tavern(*words, cwd=self.folder, home=self.folder / "home")

    def typed(self, said: str, *words: str) -> tuple[int, str]:
        """The command at a terminal, with one line typed when it asks; exit code and output."""
        ours, theirs = pty.openpty()
        command = ["-m", "tavern_core", "--home", self.folder / "home", *words]
        process = ForkedProgram(command, cwd=self.folder, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown, has_typed = b"", False
        while select.select([ours], [], [], 60)[0]:
            try:
                part = os.read(ours, 65_536)
            except OSError:
                break
            if not part:
                break
            shown += part
            if not has_typed and b"[y/N]" in shown:
                has_typed = True
                os.write(ours, said.encode() + b"\n")
        os.close(ours)
        return process.wait(60), shown.decode("utf-8", "replace")


Start = Callable[..., Project]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    for name in [name for name in os.environ if name.startswith("TAVERN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    return lambda *answers: Project(tmp_path, answers)


def workflow(**more: int) -> str:
    node = {"id": "caps", "type": "core:Case", "inputValues": {"form": "upper", "text": "a"}}
    return json.dumps({"name": "caps", "rev": 1, "nodes": [node], "edges": [], **more})


def form(file: Path) -> str:
    return str(json.loads(file.read_text())["nodes"][0]["inputValues"]["form"])


def test_without_a_terminal_a_change_is_only_shown(start: Start, tmp_path: Path) -> None:
    project, file = start(answer(LOWER, "lower case")), tmp_path / "caps.json"
    file.write_text(workflow())
    done = project.run("assist", "lower case, please", "caps.json")
    assert (done.returncode, file.read_text()) == (0, workflow())
    assert "lower case\n  set inputValues.form of caps (core:Case) to 'lower'" in done.stdout
    assert "--yes" in done.stderr
    assert "1 request(s), 100 + 20 tokens" in done.stderr


def test_with_yes_it_is_written_and_can_be_taken_back_and_only_once(start: Start, tmp_path: Path) -> None:
    project, file = start("sorry", answer(LOWER)), tmp_path / "caps.json"
    file.write_text(workflow())
    assert project.run("assist", "lower case, please", "caps.json", "--yes").returncode == 0
    assert form(file) == "lower"
    back = project.run("assist", "--undo", "caps.json")
    assert (back.returncode, file.read_text()) == (0, workflow())
    again = project.run("assist", "--undo", "caps.json")
    assert (again.returncode, "no change to undo" in again.stderr) == (2, True)


def test_what_was_changed_since_is_not_taken_back(start: Start, tmp_path: Path) -> None:
    project, file = start(answer(LOWER)), tmp_path / "caps.json"
    file.write_text(workflow())
    project.run("assist", "lower case, please", "caps.json", "--yes")
    file.write_text(workflow(mine=1))
    refused = project.run("assist", "--undo", "caps.json")
    assert (refused.returncode, "was changed since" in refused.stderr, file.read_text()) == (2, True, workflow(mine=1))


@pytest.mark.parametrize("name", ["loud", "workflow:loud", "大写"])
def test_the_id_of_a_new_workflow_creates_it_among_the_others(start: Start, tmp_path: Path, name: str) -> None:
    project, id_ = start(answer(CAPITALS)), name.removeprefix("workflow:")
    assert project.run("assist", "capitals", name, "--yes").returncode == 0
    assert json.loads((tmp_path / "workflows" / f"{id_}.json").read_text())["name"] == id_
    assert project.run("workflows", "run", id_, "text=hi").stdout.strip() == "HI"
    assert project.run("assist", "--undo", name).returncode == 0
    assert list((tmp_path / "workflows").glob("*.json")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a:b"], "cannot be the id of a workflow"),
        (["missing/new.json"], "cannot be a workflow file"),
        (["new.json", "-o", "missing/copy.json"], "cannot be a workflow file"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_model_is_asked(start: Start, words: list[str], said: str) -> None:
    refused = start(answer(CAPITALS)).run("assist", "capitals", *words, "--yes")
    assert (refused.returncode, said in refused.stderr, "request(s)" in refused.stderr) == (2, True, False)


def test_a_file_that_does_not_exist_is_created_and_its_undo_deletes_it(start: Start, tmp_path: Path) -> None:
    project, file = start(answer(CAPITALS)), tmp_path / "new.json"
    done = project.run("assist", "capitals", "new.json", "--yes", "--try", "--json")
    data = json.loads(done.stdout)
    assert (data["ok"], data["applied"], data["file"]) == (True, True, str(file))
    assert data["dryRun"]["outputs"] == {"result": "SAMPLE TEXT"}
    assert json.loads(file.read_text())["nodes"] == data["workflow"]["nodes"]
    ran = project.run("workflows", "run", "new.json", "text=hi")
    assert ran.stdout.strip() == "HI"
    assert json.loads(project.run("assist", "--undo", "new.json", "--json").stdout)["deleted"] is True
    assert not file.exists()


@pytest.mark.parametrize(
    "content", [workflow().encode().replace(b", ", b",\r\n"), b"\xef\xbb\xbf" + workflow().encode(), b"\xff \r\n"]
)
def test_what_is_written_over_comes_back_byte_for_byte_and_stays_private(
    start: Start, tmp_path: Path, content: bytes
) -> None:
    project, file = start(answer(LOWER)), tmp_path / "sub" / "kept.json"
    file.parent.mkdir()
    file.write_bytes(content)
    file.chmod(0o600)
    (tmp_path / "caps.json").write_text(workflow())
    done = project.run("assist", "lower case, please", "caps.json", "-o", "sub/../sub/kept.json", "--yes")
    assert (done.returncode, form(file), oct(file.stat().st_mode & 0o777)) == (0, "lower", "0o600"), done.stderr
    back = project.run("assist", "--undo", "sub/kept.json")
    assert (back.returncode, file.read_bytes(), oct(file.stat().st_mode & 0o777)) == (0, content, "0o600"), back.stderr


def test_the_result_can_be_written_elsewhere(start: Start, tmp_path: Path) -> None:
    project, file = start(answer(LOWER)), tmp_path / "caps.json"
    file.write_text(workflow())
    done = project.run("assist", "lower case, please", "caps.json", "--output", "copy.json")
    assert (done.returncode, form(tmp_path / "copy.json"), file.read_text()) == (0, "lower", workflow())


def test_a_file_that_exists_is_written_over_only_with_yes(start: Start, tmp_path: Path) -> None:
    project, kept = start(answer(LOWER), answer(LOWER)), tmp_path / "kept.json"
    (tmp_path / "caps.json").write_text(workflow())
    kept.write_text("precious")
    shown = project.run("assist", "lower case, please", "caps.json", "-o", "kept.json", "--json")
    assert (json.loads(shown.stdout)["applied"], kept.read_text()) == (False, "precious")
    assert project.run("assist", "lower case, please", "caps.json", "-o", "kept.json", "--yes").returncode == 0
    assert form(kept) == "lower"


@pytest.mark.slow
@pytest.mark.parametrize(("said", "wanted"), [("y", "lower"), ("是", "lower"), ("n", "upper"), ("", "upper")])
def test_at_a_terminal_it_asks(start: Start, tmp_path: Path, said: str, wanted: str) -> None:
    project, file = start(answer(LOWER)), tmp_path / "caps.json"
    file.write_text(workflow())
    code, shown = project.typed(said, "assist", "lower case, please", "caps.json")
    assert (code, form(file)) == (0, wanted), shown


FAILURES: dict[str, tuple[list[str], list[str], int, str]] = {
    "no valid change": (["sorry"], ["assist", "lower case", "caps.json", "--yes"], 4, "error[NO_PATCH]"),
    "a model that declines": ([answer([], "there is nothing to do")], ["assist", "x", "caps.json", "--yes"], 1, "there is nothing to do"),
    "no request": ([answer(LOWER)], ["assist", "caps.json"], 2, "a request and a file"),
    "an empty request": ([answer(LOWER)], ["assist", " ", "caps.json"], 2, "the request is empty"),
    "yes and dry run": ([answer(LOWER)], ["assist", "x", "caps.json", "--yes", "--dry-run"], 2, "exclude each other"),
    "no such folder": ([answer(LOWER)], ["assist", "x", "no/where.json"], 2, "cannot be a workflow file"),
    "no such model": ([answer(LOWER)], ["assist", "x", "caps.json", "--model", "writr"], 1, "did you mean 'writer'?"),
    "a broken file": ([answer(LOWER)], ["assist", "x", "broken.json"], 4, "WORKFLOW_INVALID"),
}  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_has_an_exit_code_and_changes_nothing(start: Start, tmp_path: Path, failure: str) -> None:
    answers, words, code, said = FAILURES[failure]
    project, file = start(*answers), tmp_path / "caps.json"
    file.write_text(workflow())
    (tmp_path / "broken.json").write_text('{"nodes": [}')
    done = project.run(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert file.read_text() == workflow()
