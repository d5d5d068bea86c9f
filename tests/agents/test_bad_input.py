"""Hostile profiles, models that write without end, storms of calls: bounded, reported, and nothing is left half done."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tavern_core import LLMAnswer
from tavern_core.contract.llm import ModelCall, Price
from tavern_core.errors import ProfileInvalid, RunNotFound, StateDamaged, UsageError
from tests.agents.desk import PROFILE, Office, OpenOffice, Priced, block, native

FINE = "All is done."
STORM = "".join(block("note", text=n) for n in range(2_000))


@pytest.fixture(scope="module")
def open_office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenOffice]:
    with OpenOffice.open(tmp_path_factory.mktemp("office") / "home") as office:
        yield office


@pytest.fixture
def office(open_office: OpenOffice) -> Office:
    """An office whose host is there already."""
    return open_office.empty()


@pytest.fixture
def own_office(tmp_path: Path) -> Office:
    """An office with a home and hosts of its own."""
    return Office(tmp_path / "home")


class Endless:
    """Streams one text for ever, without ever giving the loop a turn; then it answers."""

    def __init__(self, piece: str) -> None:
        self.piece = piece
        self.pieces = 0
        self.closed = 0
        self.asked: list[Any] = []

    async def complete(self, messages: Any, /, **options: Any) -> LLMAnswer:
        return LLMAnswer(FINE)

    async def stream(self, messages: Any, /, **options: Any) -> AsyncIterator[str | LLMAnswer]:
        self.asked.append(tuple(messages))
        if len(self.asked) > 1:
            yield FINE
            return
        try:
            while True:
                self.pieces += 1
                yield self.piece
        finally:
            self.closed += 1


@pytest.mark.parametrize(
    ("piece", "most", "said"),
    [
        ("and so on ", 1_000, "repeated the same passage"),
        ("".join(f"{n} " for n in range(100_000)), 10, "too long"),
        ("<|[REQUEST_TOOL]|>\ncommand:「始」desk:note「末」\ntext:「始」" + "x" * 100_000, 20, "too long"),
    ],
)  # fmt: skip
def test_an_endless_stream_is_ended_and_the_request_with_it(office: Office, piece: str, most: int, said: str) -> None:
    office.model = office.desk.model = Endless(piece)
    outcome = office.run()
    assert (outcome.state, outcome.answer) == ("done", FINE)
    assert office.model.pieces < most
    assert office.model.closed == 1
    assert said in office.said()[-1]
    assert len(office.said()[-2]) <= 2_000
    assert office.desk.notes == []


def test_an_answer_of_a_hundred_megabytes_is_refused_by_the_limit_of_answers(own_office: Office) -> None:
    office = own_office

    class Huge:
        async def complete(self, messages: Any, /, **options: Any) -> LLMAnswer:
            return LLMAnswer("x" * 100_000_000)

    office.model = office.desk.model = Huge()
    outcome = office.run()
    assert outcome.state in ("failed", "stopped")
    assert outcome.reason
    assert sum(path.stat().st_size for path in office.home.glob("agents.sqlite*")) < 20_000_000


@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True])
def test_of_a_storm_of_blocks_nothing_or_the_first_runs(office: Office, many: bool) -> None:
    outcome = office.answers([STORM, FINE]).run(profile={"many_blocks": many})
    assert outcome.state == "done"
    assert office.desk.notes == ([] if many else ["0"])
    assert ("more than 128 tool calls" in office.said()[-1]) is many


@pytest.mark.slow
def test_of_a_storm_of_native_calls_nothing_runs(office: Office) -> None:
    storm = native(*[("note", {"text": str(n)}) for n in range(2_000)])
    outcome = office.answers([storm, FINE]).run()
    assert (outcome.state, office.desk.notes) == ("done", [])
    assert len(office.model.asked[1]) < 20
    assert "more than 128 tool calls" in office.said()[-1]


@pytest.mark.slow
def test_arguments_of_many_megabytes_are_refused(own_office: Office) -> None:
    office = own_office
    office.config = {"limits": {"outputBytes": 50_000_000}}
    outcome = office.answers([native(("note", {"text": "x" * 5_000_000})), FINE]).run()
    assert (outcome.state, office.desk.notes) == ("done", [])
    assert max(map(len, office.said())) < 10_000


@pytest.mark.parametrize(
    "answer",
    [
        "\x00\x1b[31m controls \u202e",
        LLMAnswer("", tool_calls=(ModelCall("", "", ""), ModelCall("", "", "[" * 100_000))),
        LLMAnswer("ok", usage={"input": -5, "output": True}),
    ],
)  # fmt: skip
def test_strange_answers_are_read_and_recorded(office: Office, answer: Any) -> None:
    outcome = office.answers([answer, FINE]).run()
    assert outcome.state == "done"
    assert json.dumps(office.within(lambda agents: agents.get(outcome.run_id)).to_json()).isascii()


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer", ["\ud800 half a character", LLMAnswer("", tool_calls=(ModelCall("c", "\udfff", "{}"),))]
)
def test_an_answer_that_is_no_text_ends_the_run_with_the_reason(office: Office, answer: Any) -> None:
    outcome = office.answers([answer]).run()
    assert outcome.state == "failed"
    assert outcome.reason
    model = office.answers([FINE]).model
    assert office.within(lambda agents: agents.resume_sync(outcome.run_id, model=model)).state == "done"


@pytest.mark.parametrize(
    "profile",
    [
        {"budget": {"steps": -1}},
        {"budget": {"seconds": "soon"}},
        {"calling": "shouting"},
        {"context_tokens": 0},
        {"context_tokens": 1},
        {"tool_ids_inventory": "desk:add"},
        {"model_options": []},
    ],
)  # fmt: skip
def test_a_hostile_profile_is_refused(office: Office, profile: dict[str, Any]) -> None:
    with pytest.raises(ProfileInvalid):
        office.run(profile=profile)
    assert office.model.asked == []


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({"contextTokens": "many"}, "contextTokens: must be a whole number, got 'many'"),
        ({"budget": {"step": 3}}, "budget.step: unknown key 'step' (did you mean 'steps'?)"),
        ({"budget": {"size": 3}}, "(there are: steps, calls, tokens, seconds, money, currency)"),
    ],
)
def test_a_wrong_value_of_a_profile_is_explained(office: Office, profile: dict[str, Any], said: str) -> None:
    with pytest.raises(ProfileInvalid) as caught:
        office.run(profile=profile)
    assert said in str(caught.value.findings[0])


@pytest.mark.parametrize(
    "profile",
    [
        {"prompt": "{{{system:available_tools}}}" * 50 + "{name} {0} %s"},
        {"prompt": {"content": "of another system"}},
        {"name": "../../etc/passwd\n\x1b"},
        {"tool_ids_inventory": ["desk:*", "", "nope:nope", "x" * 5_000]},
        {"model_options": {"messages": "x", "stop": ["<"]}},
    ],
)  # fmt: skip
def test_a_strange_profile_works(office: Office, profile: dict[str, Any]) -> None:
    outcome = office.answers([block("add", a=1), FINE]).run(profile=profile)
    assert outcome.state == "done"


def test_a_run_whose_last_result_does_not_fit_the_window_is_stopped(office: Office) -> None:
    outcome = office.answers([block("long"), FINE]).run(profile={"context_tokens": 2_000, "calling": "tam"})
    assert (outcome.state, outcome.steps) == ("stopped", 1)
    assert "context_tokens" in outcome.fix


def test_a_task_of_megabytes_is_refused(office: Office) -> None:
    with pytest.raises(UsageError, match="at most 1,000,000"):
        office.run("x" * 2_000_000)


@pytest.mark.slow
def test_a_run_whose_record_is_corrupt_is_left_out_of_the_list(own_office: Office) -> None:
    import sqlite3

    corrupt = [("facts", "{"), ("facts", None), ("outcome", "[7]"), ("outcome", '{"a": 1}')]
    with own_office.host() as tavern:
        whole, *broken = (tavern.agents.run_sync(PROFILE, "x").run_id for _ in range(1 + len(corrupt)))
    db = sqlite3.connect(own_office.home / "agents.sqlite")
    with db:
        for (column, left), run in zip(corrupt, broken, strict=True):
            db.execute(f"UPDATE runs SET {column} = ? WHERE id = ?", (left, run))
    db.close()
    with own_office.host() as tavern:
        assert [record.run_id for record in tavern.agents.runs()] == [whole]
        for run in broken:
            with pytest.raises(StateDamaged, match="is corrupt"):
                tavern.agents.get(run)


@pytest.mark.slow
def test_a_damaged_record_is_reported_and_what_is_left_can_be_shown(own_office: Office) -> None:
    import sqlite3

    office = own_office
    outcome = office.answers([block("add", a=1), FINE]).run()
    db = sqlite3.connect(office.home / "agents.sqlite")
    with db:
        db.execute("UPDATE events SET data = '{\"step\": 9}' WHERE kind = 'reply'")
    db.close()
    record = office.within(lambda agents: agents.get(outcome.run_id))
    assert [event.kind for event in record.events] == ["message", "message", "answer", "call", "result"]
    (office.home / "agents.sqlite").write_bytes(b"no database at all" * 100)
    for side in office.home.glob("agents.sqlite-*"):
        side.unlink()
    assert office.run().state in ("done", "failed")
    assert (office.home / "agents.sqlite.damaged").exists()


@pytest.mark.parametrize(
    "ask",
    [
        lambda agents, run: agents.get(["agent-1"]),
        lambda agents, run: agents.get(None),
        lambda agents, run: agents.replay_sync(3),
        lambda agents, run: agents.runs(most="ten"),
        lambda agents, run: agents.runs(most=-1),
        lambda agents, run: agents.runs(most=10**30),
        lambda agents, run: agents.resume_sync(run, 3),
        lambda agents, run: agents.resume_sync(run, "name"),
        lambda agents, run: agents.resume_sync(run, {1: "x"}),
        lambda agents, run: agents.resume_sync(run, {"name": object()}),
        lambda agents, run: agents.resume_sync(run, {"name": "\ud800"}),
        lambda agents, run: agents.resume_sync(run, model=3),
        lambda agents, run: agents.resume_sync(run, budget="steps=3"),
    ],
)  # fmt: skip
def test_an_argument_of_another_type_is_refused_and_the_run_stays_as_it_is(office: Office, ask: Any) -> None:
    run = office.answers([block("add", a=1), FINE]).run(budget={"steps": 1}).run_id
    with pytest.raises(UsageError) as caught:
        office.within(lambda agents: ask(agents, run))
    assert caught.value.hint
    resumed = office.within(lambda agents: agents.resume_sync(run, model=office.model, budget={"steps": 5}))
    assert resumed.state == "done"


def test_an_id_that_is_no_text_of_unicode_is_not_found(office: Office) -> None:
    with pytest.raises(RunNotFound):
        office.within(lambda agents: agents.get("\ud800"))


def test_a_profile_with_a_value_that_is_no_json_is_refused(office: Office) -> None:
    with pytest.raises(ProfileInvalid, match="is not JSON"):
        office.run(profile={"x_of_another_system": object()})


@pytest.mark.parametrize(
    "price", [Price(-1.0, -1.0), Price(float("nan"), 1.0), Price(1e300, 1.0), Price("1", 2.0), "1 USD"]
)
def test_a_price_that_cannot_be_reckoned_with_is_an_unknown_one(office: Office, price: Any) -> None:
    office.model.price = price
    assert office.run().cost is None
    with pytest.raises(UsageError, match="price of the model"):
        office.run(budget={"money": 1.0})


@pytest.mark.parametrize("count", [10**400, -1, True, 1.5, "9", None])
def test_a_number_of_tokens_that_no_model_uses_is_estimated(office: Office, count: Any) -> None:
    outcome = office.answers([LLMAnswer(FINE, usage={"input": count, "output": count})], kind=Priced).run()
    assert outcome.state == "done"
    assert 100 < outcome.usage["input"] < 10_000
    assert outcome.usage["output"] == 3
    (answer,) = [e.data for e in office.within(lambda a: a.get(outcome.run_id)).events if e.kind == "answer"]
    assert answer["estimated"] is True
