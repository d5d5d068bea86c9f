"""Patches of files: all or nothing, one winner; sessions with undo and redo; hooks and events of both."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, deny, hookimpl
from tavern_core.errors import PolicyDenied, UsageError, WorkflowNotFound
from tavern_core.flow.workflow_files import SavedMeanwhile
from tavern_core.model.event import UPDATE_WORKFLOW_STATE_FROM_AGENT, Event
from tests.forked_programs import ForkedProgram
from tests.patches.example import BY_ID, flow, op
from tests.workflows.folder import Flows

BYE = op("replace", "/nodes/text/inputValues/text", "bye")
BAD = op("replace", "/nodes/text/inputValues/text", 5)


def stored(flows: Flows, name: str = "greet", **changes: Any) -> Path:
    path = flows.folder / f"{name}.json"
    path.write_text(json.dumps({**flow(), **changes}, ensure_ascii=False), "utf-8")
    return path


def events(tavern: Tavern) -> list[Event]:
    found: list[Event] = []
    tavern.events.subscribe(found.append, UPDATE_WORKFLOW_STATE_FROM_AGENT)
    return found


@pytest.mark.parametrize("by", ["id", "path", "name of the tool"])
def test_a_patch_of_a_stored_workflow_writes_its_file(flows: Flows, by: str) -> None:
    path = stored(flows)
    with flows.open() as tavern:
        seen = events(tavern)
        outcome = tavern.workflows.patch(
            {"id": "greet", "path": str(path), "name of the tool": "workflow:greet"}[by], [BYE], rev=3
        )
        assert outcome.ok and outcome.workflow.rev == 4
        assert json.loads(path.read_text("utf-8")) == dict(outcome.workflow.raw) == dict(tavern.workflows["greet"].raw)
        assert outcome.workflow.raw["nodes"][1]["inputValues"] == {"text": "bye"}
        [event] = seen
        assert (event.data["workflow"], event.data["rev"], event.data["content"]) == (
            "greet",
            4,
            dict(outcome.workflow.raw),
        )
        assert event.data["summary"] == outcome.summary


@pytest.mark.parametrize(
    "patch", [[BAD], [op("test", "/rev", 2), BYE], [BYE, op("remove", "/nodes/ghost")]], ids=["check", "test", "path"]
)
def test_a_refused_patch_leaves_the_file_alone(flows: Flows, patch: list[Any]) -> None:
    path = stored(flows)
    before = path.read_bytes()
    with flows.open() as tavern:
        seen = events(tavern)
        assert not tavern.workflows.patch("greet", patch).ok
        assert not tavern.workflows.patch("greet", [BYE], rev=2).ok
    assert path.read_bytes() == before and seen == []
    assert [file.name for file in flows.folder.iterdir() if not file.name.startswith(".")] == ["greet.json"]


def test_a_dry_run_writes_nothing(flows: Flows) -> None:
    path = stored(flows)
    before = path.read_bytes()
    with flows.open() as tavern:
        seen = events(tavern)
        outcome = tavern.workflows.patch("greet", [BYE], dry_run=True)
        assert outcome.ok and outcome.workflow.rev == 4 and path.read_bytes() == before and seen == []


def test_a_workflow_of_the_second_folder_is_patched_where_it_is(flows: Flows, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    path = stored(flows)
    with flows.open(workflows={"roots": [str(tmp_path / "first"), str(flows.folder)]}) as tavern:
        assert tavern.workflows.patch("greet", [BYE]).ok
    assert json.loads(path.read_text("utf-8"))["rev"] == 4 and list((tmp_path / "first").iterdir()) == []


def test_a_workflow_of_a_plugin_is_not_written(flows: Flows) -> None:
    class Brings:
        @hookimpl
        def tavern_register_workflows(self) -> Mapping[str, Any]:
            return {"greet": flow()}

    with flows.open(Plugin(Brings(), name="brings")) as tavern:
        with pytest.raises(UsageError, match="belongs to plugin brings"):
            tavern.workflows.patch("brings.greet", [BYE])
        with pytest.raises(WorkflowNotFound, match="gret"):
            tavern.workflows.patch("brings.gret", [BYE])
        session = tavern.workflows.session("brings.greet")
        assert session.apply([BYE]).ok and session.save("mine").id == "mine"
    assert json.loads((flows.folder / "mine.json").read_text("utf-8"))["nodes"][1]["inputValues"] == {"text": "bye"}


def test_a_file_that_changed_without_a_new_revision_is_not_overwritten(flows: Flows) -> None:
    path = stored(flows)
    with flows.open() as tavern:
        session = tavern.workflows.session("greet")
        assert session.apply([BYE]).ok
        stored(flows, name="greet", description="written by another editor")
        with pytest.raises(SavedMeanwhile, match="saved meanwhile"):
            session.save()
        assert json.loads(path.read_text("utf-8"))["description"] == "written by another editor"


PATCHES_OFTEN = """
import json, sys
from tavern_core import Tavern

root, word = sys.argv[1:]
config = {"plugins": {"entryPoints": False}, "workflows": {"roots": [f"{root}/workflows"]}}
with Tavern.open(config, home=f"{root}/home-{word}") as tavern:
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(5):
        add = {"op": "add", "path": f"/nodes/text/configValues/{word}{turn}", "value": 1}
        outcome = tavern.workflows.patch("greet", [add])
        print(json.dumps([word, turn, outcome.ok, [problem.code for problem in outcome.problems]]), flush=True)
"""


@pytest.mark.slow
def test_of_two_processes_that_patch_one_file_the_loser_gets_a_conflict_and_no_change_is_lost(flows: Flows) -> None:
    path = stored(flows)
    program = flows.root / "program.py"
    program.write_text(PATCHES_OFTEN, "utf-8")
    with contextlib.ExitStack() as running:
        others = [
            running.enter_context(ForkedProgram([program, flows.root, word], stdin=PIPE, stdout=PIPE)) for word in "ab"
        ]
        for other in others:
            assert other.stdout.readline() == "ready\n"
        for other in others:  # they begin together
            other.stdin.write("go\n")
            other.stdin.flush()
        found = [json.loads(line) for other in others for line in other.stdout]
    assert len(found) == 10
    done = {f"{word}{turn}" for word, turn, ok, _ in found if ok}
    after = json.loads(path.read_text("utf-8"))
    assert set(after["nodes"][1]["configValues"]) == done and after["rev"] == 3 + len(done)
    assert all(codes == ["REV_CONFLICT"] for _, _, ok, codes in found if not ok)


# Sessions ----------------------------------------------------------------------------------------------------------------


def test_one_patch_is_one_entry_and_each_change_is_an_event_with_the_complete_workflow(flows: Flows) -> None:
    path = stored(flows)
    with flows.open() as tavern:
        seen = events(tavern)
        session = tavern.workflows.session("greet")
        first = session.apply(BY_ID, rev=3)
        assert first.ok and not session.apply([BAD]).ok
        second = session.apply([op("replace", "/name", "Bye")])
        assert second.ok and (session.rev, len(session.history), session.is_saved) == (5, 2, False)
        session.undo()
        session.undo()
        assert (session.rev, session.can_undo, session.can_redo) == (7, False, True)
        assert {**session.workflow.raw, "rev": 3} == flow()
        session.redo()
        assert {**session.workflow.raw, "rev": 4} == dict(first.workflow.raw)
        assert [(e.data["action"], e.data["rev"]) for e in seen] == [
            ("patch", 4),
            ("patch", 5),
            ("undo", 6),
            ("undo", 7),
            ("redo", 8),
        ]
        assert {e.data["session"] for e in seen} == {session.id}
        assert seen[-1].data["content"] == dict(session.workflow.raw)
        assert json.loads(path.read_text("utf-8")) == flow(), "nothing is written before `save`"
        assert session.save().rev == 8 and session.is_saved
        assert json.loads(path.read_text("utf-8")) == dict(session.workflow.raw)
        assert session.apply([op("replace", "/name", "again")]).ok and session.can_undo and not session.can_redo
        assert session.save().rev == 9


def test_a_patch_for_an_older_state_is_refused(flows: Flows) -> None:
    with flows.open() as tavern:
        session = tavern.workflows.session(flow())
        assert session.project()["rev"] == 3
        assert session.apply([BYE], rev=3).ok
        assert [p.code for p in session.apply([BYE], rev=3).problems] == ["REV_CONFLICT"]
        assert [p.code for p in session.apply([op("test", "/rev", 3), BYE]).problems] == ["REV_CONFLICT"]
        session.undo()
        assert [p.code for p in session.apply([BYE], rev=3).problems] == ["REV_CONFLICT"], "undo is a change, too"


def test_a_session_without_a_file_begins_empty_and_is_saved_under_an_id(flows: Flows) -> None:
    with flows.open() as tavern:
        session = tavern.workflows.session()
        with pytest.raises(UsageError, match="nothing to undo"):
            session.undo()
        with pytest.raises(UsageError, match="nothing to redo"):
            session.redo()
        assert session.apply([op("add", "/nodes/a", {"type": "core:Text", "inputValues": {"text": "x"}})], seed=1).ok
        with pytest.raises(UsageError, match="no file"):
            session.save()
        saved = session.save("fresh")
        assert (saved.id, saved.rev, session.is_saved) == ("fresh", 1, True)
        assert session.apply([op("add", "/description", "Mine.")]).ok
        assert session.save().rev == 2 and tavern.workflows["fresh"].description == "Mine."
        with pytest.raises(SavedMeanwhile):
            tavern.workflows.session().save("fresh")


@pytest.mark.slow
def test_a_long_history_is_bounded(flows: Flows) -> None:
    with flows.open() as tavern:
        session = tavern.workflows.session(flow())
        for turn in range(210):
            assert session.apply([op("replace", "/nodes/text/inputValues/text", str(turn))]).ok
        assert len(session.history) == 200


def test_patches_of_several_threads_are_each_applied_or_refused_as_outdated(flows: Flows) -> None:
    with flows.open() as tavern:
        session = tavern.workflows.session(flow())
        found: list[Any] = []

        def add(number: int) -> None:
            found.append(session.apply([op("add", f"/nodes/text/configValues/k{number}", 1)]))

        threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = [outcome for outcome in found if outcome.ok]
        assert len(session.workflow.nodes[1].config_values) == len(done) == len(session.history) >= 1
        assert all(p.code == "REV_CONFLICT" for outcome in found if not outcome.ok for p in outcome.problems)


# Hooks and the log -------------------------------------------------------------------------------------------------------


class Before:
    """A hook that adds an operation, denies, fails, or answers nonsense, as the patch asks."""

    @hookimpl
    def tavern_before_patch(self, patch: Any, workflow: Any) -> Any:
        said = patch[-1].get("value") if patch else None
        match said:
            case "denied":
                return deny("not that word")
            case "fails":
                raise ValueError("oh")
            case "odd":
                return "text"
            case "bad":
                return [*patch, {"op": "nothing"}]
            case "same":
                return [*patch]
        workflow["nodes"].clear()
        patch.append(op("add", "/description", f"{len(patch)} operations"))
        return patch


class Operations(tuple[Any, ...]):
    """A tuple of a kind of its own."""


@pytest.mark.parametrize("kind", [list, tuple, Operations])
def test_what_a_hook_answered_is_not_changed_with_it_later(flows: Flows, kind: Any) -> None:
    class Keeps:
        @hookimpl
        def tavern_before_patch(self, patch: Any) -> Any:
            self.kept = kind([*patch, op("add", "/description", "first")])
            return self.kept

    class Observes:
        @hookimpl
        def tavern_before_patch(self, patch: Any) -> None:
            keeps.kept[-1]["value"] = "later"

    keeps = Keeps()
    stored(flows)
    with flows.open(Plugin(keeps, name="a"), Plugin(Observes(), name="b")) as tavern:
        outcome = tavern.workflows.patch("greet", [BYE])
    assert outcome.changed_by == ("a",)
    assert outcome.workflow.description == "first"


def saying(word: str) -> list[Any]:
    return [op("replace", "/nodes/text/inputValues/text", word)]


@pytest.mark.parametrize("as_session", [False, True])
def test_a_hook_changes_a_patch_and_the_outcome_and_the_event_name_it(flows: Flows, as_session: bool) -> None:
    stored(flows)
    with flows.open(Plugin(Before(), name="before")) as tavern:
        seen = events(tavern)
        apply = (
            tavern.workflows.session("greet").apply
            if as_session
            else lambda patch: tavern.workflows.patch("greet", patch)
        )
        written = saying("hi")
        outcome = apply(written)
        assert outcome.ok and written == saying("hi")
        assert outcome.workflow.description == "1 operations" and len(outcome.workflow.nodes) == 5
        assert outcome.changed_by == ("before",) and len(outcome.operations) == 2
        assert seen[0].data["changedBy"] == ["before"]
        assert apply(saying("same")).changed_by == ()


@pytest.mark.parametrize(("word", "why"), [("denied", "not that word"), ("fails", "oh"), ("odd", "answered str")])
def test_a_hook_refuses_a_patch(flows: Flows, word: str, why: str) -> None:
    path = stored(flows)
    before = path.read_bytes()
    with flows.open(Plugin(Before(), name="before")) as tavern:
        with pytest.raises(PolicyDenied, match=why):
            tavern.workflows.patch("greet", saying(word))
        with pytest.raises(PolicyDenied, match=why):
            tavern.workflows.session("greet").apply(saying(word))
    assert path.read_bytes() == before


def test_what_a_hook_makes_is_checked_like_any_patch(flows: Flows) -> None:
    stored(flows)
    with flows.open(Plugin(Before(), name="before")) as tavern:
        outcome = tavern.workflows.patch("greet", saying("bad"))
    assert [(p.code, p.op) for p in outcome.problems] == [("UNKNOWN_OP", 1)] and outcome.changed_by == ("before",)


def record(flows: Flows) -> dict[str, Any]:
    """The record of the change in the log."""
    lines = [line for file in flows.root.rglob("audit.jsonl") for line in file.read_text("utf-8").splitlines()]
    return next(found for line in lines if (found := json.loads(line))["type"] == UPDATE_WORKFLOW_STATE_FROM_AGENT)


@pytest.mark.parametrize("size", [10, 40_000])
def test_a_huge_workflow_is_a_reference_in_the_log_and_complete_for_subscribers(flows: Flows, size: int) -> None:
    with flows.open() as tavern:
        seen = events(tavern)
        session = tavern.workflows.session(flow())
        assert session.apply(saying("x" * size)).ok
        assert seen[0].data["content"]["nodes"][1]["inputValues"]["text"] == "x" * size
    logged = record(flows)
    assert ("content" in logged) == (size < 100)
    assert ("reference" in logged) == (size > 100)
    assert logged["rev"] == 4 and logged["session"] == session.id
    if size > 100:
        assert logged["reference"]["bytes"] > size and len(logged["reference"]["sha256"]) == 64


def test_secrets_are_masked_in_the_event_and_the_log(flows: Flows) -> None:
    secret = "Kq7Zx9Wm-known-secret"
    with flows.open(secrets={"login": secret}) as tavern:
        seen = events(tavern)
        session = tavern.workflows.session(flow())
        assert session.apply(saying(secret)).ok
    assert secret in json.dumps(dict(session.workflow.raw))
    assert secret not in json.dumps(seen[0].to_json()) + json.dumps(record(flows))
