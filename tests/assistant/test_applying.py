"""A proposal is stored, or becomes an entry of a session; nothing else happens to the workflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tavern_core.errors import UsageError

from .answers import CAPITALS, Models, answer, host

LOWER = [{"op": "replace", "path": "/nodes/caps/inputValues/form", "value": "lower"}]


def written(folder: Path) -> Path:
    """A file with a workflow of one node."""
    path = folder / "flows" / "caps.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    node = {"id": "caps", "type": "core:Case", "inputValues": {"form": "upper", "text": "a"}, "custom": {"kept": True}}
    path.write_text(json.dumps({"name": "caps", "rev": 3, "nodes": [node], "edges": [], "mine": 1}))
    return path


@pytest.mark.anyio
async def test_a_proposal_is_written_into_the_file_and_everybody_gets_the_complete_workflow(tmp_path: Path) -> None:
    path = written(tmp_path)
    events: list[Any] = []
    async with host(tmp_path, Models(answer(LOWER))) as tavern:
        tavern.events.subscribe(events.append, "UPDATE_WORKFLOW_STATE_FROM_AGENT")
        proposal = await tavern.assistant.propose("lower case", "caps")
        assert json.loads(path.read_text())["rev"] == 3
        outcome = await tavern.assistant.apply(proposal)
    now = json.loads(path.read_text())
    assert outcome.ok
    assert now == outcome.workflow.raw
    assert (now["rev"], now["mine"], now["nodes"][0]["custom"]) == (4, 1, {"kept": True})
    assert now["nodes"][0]["inputValues"] == {"form": "lower", "text": "a"}
    assert [event.data["content"] for event in events] == [now]


@pytest.mark.anyio
@pytest.mark.parametrize("change", [{"rev": 9}, {"description": "by hand"}])
async def test_a_workflow_that_changed_meanwhile_is_not_overwritten(tmp_path: Path, change: dict[str, Any]) -> None:
    path = written(tmp_path)
    async with host(tmp_path, Models(answer(LOWER))) as tavern:
        proposal = await tavern.assistant.propose("lower case", path)
        other = {**json.loads(path.read_text()), **change}
        path.write_text(json.dumps(other))
        outcome = await tavern.assistant.apply(proposal, path)
    assert (outcome.ok, [problem.code for problem in outcome.problems]) == (False, ["REV_CONFLICT"])
    assert json.loads(path.read_text()) == other


@pytest.mark.anyio
async def test_a_new_workflow_is_not_put_into_another_one(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.json"
    async with host(tmp_path, Models(answer(CAPITALS))) as tavern:
        proposal = await tavern.assistant.propose("capitals")
        path.write_text('{"nodes": [], "edges": [], "description": "mine"}')
        outcome = await tavern.assistant.apply(proposal, path)
    assert [problem.code for problem in outcome.problems] == ["REV_CONFLICT"]
    assert json.loads(path.read_text())["nodes"] == []


@pytest.mark.anyio
@pytest.mark.parametrize("target", ["capitals", "file"])
async def test_a_new_workflow_is_written_under_a_name(tmp_path: Path, target: str) -> None:
    path = tmp_path / "flows" / "capitals.json" if target == "capitals" else tmp_path / "elsewhere.json"
    path.parent.mkdir(exist_ok=True)
    events: list[Any] = []
    async with host(tmp_path, Models(answer(CAPITALS))) as tavern:
        tavern.events.subscribe(events.append, "UPDATE_WORKFLOW_STATE_FROM_AGENT")
        proposal = await tavern.assistant.propose("capitals")
        with pytest.raises(UsageError, match="needs a name"):
            await tavern.assistant.apply(proposal)
        outcome = await tavern.assistant.apply(proposal, "capitals" if target == "capitals" else path)
        result = await tavern.workflows.run(path, {"text": "loud"})
    assert outcome.ok
    assert result.outputs == {"result": "LOUD"}
    assert json.loads(path.read_text())["nodes"] == proposal.workflow.raw["nodes"]
    assert [event.data["content"]["nodes"] for event in events] == [proposal.workflow.raw["nodes"]]


def test_a_proposal_is_one_entry_of_a_session_and_can_be_taken_back_and_made_again(tmp_path: Path) -> None:
    path = written(tmp_path)
    with host(tmp_path, Models(answer(LOWER))) as tavern:
        session = tavern.assistant.session(path)
        proposal = tavern.wait(tavern.assistant.propose("lower case", session))
        assert tavern.wait(tavern.assistant.apply(proposal, session=session)).ok
        assert session.workflow.raw["nodes"][0]["inputValues"]["form"] == "lower"
        assert len(session.history) == 1
        session.undo()
        assert session.workflow.raw["nodes"][0]["inputValues"]["form"] == "upper"
        session.redo()
        assert session.workflow.raw["nodes"][0]["inputValues"]["form"] == "lower"
        stale = tavern.wait(tavern.assistant.apply(proposal, session=session))
        assert [problem.code for problem in stale.problems] == ["REV_CONFLICT"]
    assert json.loads(path.read_text())["rev"] == 3


@pytest.mark.anyio
async def test_a_proposal_without_a_change_cannot_be_applied(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_text()
    async with host(tmp_path, Models("sorry")) as tavern:
        proposal = await tavern.assistant.propose("lower case", path)
        with pytest.raises(UsageError, match="nothing to apply"):
            await tavern.assistant.apply(proposal)
        with pytest.raises(UsageError, match="nothing to apply"):
            await tavern.assistant.write(proposal, tmp_path / "copy.json")
    assert path.read_text() == before
    assert not (tmp_path / "copy.json").exists()


@pytest.mark.anyio
async def test_a_proposal_is_stored_where_a_caller_would_first_say(tmp_path: Path) -> None:
    path = written(tmp_path)
    async with host(tmp_path, Models(answer(LOWER))) as tavern:
        session = tavern.assistant.session(path)
        assert (await tavern.assistant.apply(await tavern.assistant.propose("lower", session), session)).ok
        assert len(session.history) == 1
        assert (await tavern.assistant.apply(await tavern.assistant.propose("lower", path), "workflow:caps")).ok
    assert json.loads(path.read_text())["nodes"][0]["inputValues"]["form"] == "lower"


@pytest.mark.anyio
async def test_a_folder_of_the_same_name_does_not_hide_a_new_workflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "capitals").mkdir()
    async with host(tmp_path, Models(answer(CAPITALS))) as tavern:
        assert (await tavern.assistant.apply(await tavern.assistant.propose("capitals"), "capitals")).ok
    assert (tmp_path / "flows" / "capitals.json").is_file()


@pytest.mark.anyio
@pytest.mark.parametrize("wrong", [None, "proposal", {}], ids=repr)
async def test_only_a_proposal_is_applied_and_only_to_a_workflow(tmp_path: Path, wrong: Any) -> None:
    async with host(tmp_path, Models(answer(CAPITALS))) as tavern:
        with pytest.raises(UsageError, match="a proposal is what"):
            await tavern.assistant.apply(wrong, "capitals")
        proposal = await tavern.assistant.propose("capitals")
        for target in (1, object(), ["capitals"]):
            with pytest.raises(UsageError, match="a workflow is an id or a path here"):
                await tavern.assistant.apply(proposal, target)  # type: ignore[arg-type]
