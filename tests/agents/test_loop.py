"""The loop: calls in text and native calls, what is dropped, feedback, budgets, repetition, long results, compaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, LLMAnswer
from tavern_core.contract.llm import ModelCall
from tavern_core.errors import ToolFailed, UsageError
from tavern_core.model.agent_run import AgentOutcome
from tests.agents.desk import PROFILE, Office, OpenOffice, Priced, block, native

FINE = "The sum is 3."


@pytest.fixture(scope="module")
def open_office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenOffice]:
    with OpenOffice.open(tmp_path_factory.mktemp("office") / "home") as office:
        yield office


@pytest.fixture
def office(open_office: OpenOffice) -> Office:
    """An office whose host is there already."""
    return open_office.empty()


def test_a_task_is_done_with_a_call_in_the_text(office: Office) -> None:
    outcome = office.answers(["I add. " + block("add", a=1, b=2), FINE]).run("add 1 and 2")
    assert (outcome.state, outcome.answer, outcome.steps, outcome.calls) == ("done", FINE, 2, 1)
    first = office.model.asked[0]
    assert [message["role"] for message in first] == ["system", "user"]
    assert "desk:add" in first[0]["content"]
    assert first[1]["content"] == "add 1 and 2"
    assert "Result: 3" in office.said()[-1]


def test_a_task_is_done_with_native_calls(office: Office) -> None:
    outcome = office.answers([native(("add", {"a": 1, "b": 2}), ("add", {"a": 5})), FINE]).run()
    assert (outcome.state, outcome.calls) == ("done", 2)
    asked = office.model.asked[1]
    assert asked[2]["toolCalls"][0] == {"id": "c0", "name": "desk__add", "arguments": '{"a": 1, "b": 2}'}
    assert [(m["role"], m.get("toolCallId"), m["content"]) for m in asked[3:]] == [
        ("tool", "c0", "3"),
        ("tool", "c1", "6"),
    ]


def test_one_answer_may_mix_both_ways(office: Office) -> None:
    both = native(("add", {"a": 7}), text=block("add", a=1))
    outcome = office.answers([both, FINE]).run(profile={"many_blocks": True})
    assert (outcome.state, outcome.calls) == ("done", 2)
    assert [message["role"] for message in office.model.asked[1][2:]] == ["assistant", "tool", "user"]


def test_an_invented_result_is_dropped_and_the_record_says_so(office: Office) -> None:
    invented = block("add", a=1) + "\nThe result is 400. " + "So the answer is 400. " * 20
    outcome = office.answers([invented, FINE]).run()
    assert "400" not in "".join(office.said())
    answer = next(e for e in office.within(lambda a: a.get(outcome.run_id)).events if e.kind == "answer")
    assert answer.data["text"] == block("add", a=1)
    assert answer.data["finishReason"] == "stopped"
    assert answer.data["dropped"] > 0
    assert "was dropped" in office.said()[-1]


def test_many_blocks_run_only_if_the_profile_allows_them(office: Office) -> None:
    text = block("note", text="a") + block("note", text="b")
    assert office.answers([text, FINE]).run().calls == 1
    assert office.answers([text, FINE]).run(profile={"many_blocks": True}).calls == 2
    assert office.desk.notes == ["a", "a", "b"]


@pytest.mark.parametrize("way", ["blocks", "native"])
def test_calls_that_only_read_run_at_the_same_time_and_others_in_their_order(office: Office, way: str) -> None:
    calls = [("slow", {"n": 1}), ("slow", {"n": 2}), ("note", {"text": "x"}), ("slow", {"n": 3})]
    answer: Any = native(*calls) if way == "native" else "".join(block(name, **args) for name, args in calls)
    outcome = office.answers([answer, FINE]).run(profile={"many_blocks": True})
    assert (outcome.state, outcome.calls, office.desk.most_at_once) == ("done", 4, 2)
    record = office.within(lambda agents: agents.get(outcome.run_id))
    assert [e.data["index"] for e in record.events if e.kind == "call"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (block("ad", a=1), "desk:add"),  # a wrong name
        ('{"name": "desk:add", "arguments": {"a": 1}}', "write the call like this"),  # JSON instead of TAM
        ('```json\n{"name": "desk:add", "arguments": {"a": 1}}\n```', "write the call like this"),
        ('I call it:\n\n```json\n{"name": "desk:add", "arguments": {"a": 1}}\n```', "write the call like this"),
        (block("add", a=1).replace("<|[END_TOOL]|>", ""), "unterminated_block"),  # half a block
        (block("add", b=1), "a"),  # a parameter left out
        (block("add", a="one"), "integer"),
        (f"<think>{block('add', a=1)}</think>", "outside of the thought"),
        (f"<think>{block('add', a=1)}</think>I wait for the result.", "outside of the thought"),
        ("", "Your answer was empty"),
        ("<think>hm</think>", "Your answer was empty"),
        ("so " * 3000, "repeated the same passage"),
        (native(("nope", {})), "TOOL_NOT_FOUND"),
        (native(("add", "not json")), "arguments as one JSON object"),
        (native(("add", {"a": "x"})), "INPUT_SCHEMA_INVALID"),
        (native(("ad", {"a": 1})), "Fix: did you mean 'desk__add'?"),
        (native(("note", '{"text": "\\ud800"}')), "write each character whole"),
        (native(("broken", {})), "Fix: the tool itself broke; try other arguments"),
    ],
)  # fmt: skip
def test_a_model_that_errs_is_told_how_to_do_it_right(office: Office, answer: Any, said: str) -> None:
    outcome = office.answers([answer, block("add", a=1), FINE]).run()
    assert (outcome.state, outcome.answer) == ("done", FINE)
    assert said in office.said(1)[-1]
    assert "Result: 2" in office.said(2)[-1]


@pytest.mark.parametrize("answer", ["", f"<think>{block('add', a=1)}</think>", "so " * 3000, block("ad", a=1)])
def test_answers_that_lead_nowhere_are_counted_since_the_last_call(office: Office, answer: str) -> None:
    calls = [block("add", a=number) for number in range(3)]
    outcome = office.answers([answer, calls[0], answer, calls[1], answer, calls[2], FINE]).run()
    assert (outcome.state, outcome.steps, outcome.calls) == ("done", 7, 3)


def test_a_call_in_a_code_fence_runs_and_prose_about_calls_does_not(office: Office) -> None:
    assert office.answers([f"```\n{block('add', a=1)}\n```\n", FINE]).run().calls == 1
    assert "dropped" not in office.said()[-1], "the end of the fence is no invented result"
    long = "It is written as JSON, with the name of the tool and its arguments. " * 5
    for about in (
        "A call begins with REQUEST_TOOL and names the tool: `command: desk:add`.",
        f"{long}\n```json\n{{'name': 'desk:add', 'arguments': {{'a': 1}}}}\n```".replace("'", '"'),
    ):
        outcome = office.answers([about]).run()
        assert (outcome.state, outcome.answer, outcome.calls) == ("done", about, 0)


@pytest.mark.parametrize(
    ("answer", "steps", "why"),
    [
        ("", 2, "answered with nothing"),
        (f"<think>{block('add', a=1)}</think>", 2, "into thoughts"),
        ("so " * 3000, 2, "repeats the same passage"),
        (block("ad", a=1), 3, "cannot be read"),
        (block("add", a=1), 3, "repeated a call"),
        (block("broken"), 3, "repeated a call"),
        (native(("broken", {})), 3, "repeated a call"),
        (native(("nope", {})), 3, "repeated a call"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_learn_is_stopped_with_the_reason(
    office: Office, answer: Any, steps: int, why: str
) -> None:
    outcome = office.answers([answer]).run()
    assert (outcome.state, outcome.steps, outcome.code) == ("stopped", steps, "AGENT_STUCK")
    assert why in outcome.reason
    assert outcome.fix


@pytest.mark.slow
def test_the_second_identical_call_is_pointed_out(office: Office) -> None:
    outcome = office.answers([block("add", a=1), block("add", a=1), FINE]).run()
    assert outcome.state == "done"
    assert "made this call before" in office.said()[-1]


def test_the_same_error_with_other_arguments_counts_as_a_repetition(office: Office) -> None:
    outcome = office.answers([block("broken", how=how) for how in "abcd"]).run()
    assert (outcome.state, outcome.steps) == ("stopped", 3)


def test_reading_again_after_something_was_changed_is_no_repetition(office: Office) -> None:
    answers = [text for n in range(4) for text in (block("add", a=1), block("note", text=n))]
    outcome = office.answers([*answers, FINE]).run()
    assert (outcome.state, outcome.calls) == ("done", 8)


@pytest.mark.parametrize(
    ("calling", "answer", "said"),
    [("tam", native(("add", {"a": 1})), "Write calls as TAM blocks"), ("native", block("add", a=1), "tool calls of your API")],
)  # fmt: skip
def test_a_profile_may_allow_one_way_of_calling_only(office: Office, calling: str, answer: Any, said: str) -> None:
    outcome = office.answers([answer, FINE]).run(profile={"calling": calling})
    assert (outcome.state, outcome.calls) == ("done", 0)
    assert said in office.said()[-1]


def test_native_schemas_are_offered_unless_the_profile_calls_by_text(tmp_path: Path) -> None:
    seen: list[Mapping[str, Any]] = []

    class Watching:
        async def complete(self, messages: Any, /, **options: Any) -> LLMAnswer:
            seen.append(options)
            return LLMAnswer("done")

    office = Office(tmp_path)
    office.model = office.desk.model = Watching()
    office.run(profile={"model_options": {"temperature": 0}})
    office.run(profile={"calling": "tam"})
    names = [each["function"]["name"] for each in seen[0]["tools"]]
    assert {"desk__add", "agent__read_result"} <= set(names)
    assert seen[0]["temperature"] == 0
    assert "tools" not in seen[1]


@pytest.mark.parametrize(
    ("budget", "code", "why"),
    [
        ({"steps": 2}, "BUDGET_EXCEEDED", "2 requests"),
        ({"tokens": 1500}, "BUDGET_EXCEEDED", "tokens"),
        ({"money": 1.5}, "BUDGET_EXCEEDED", "cost"),
    ],
)  # fmt: skip
def test_a_budget_ends_a_run_with_the_reason(office: Office, budget: dict[str, Any], code: str, why: str) -> None:
    office.answers([block("note", text=n) for n in range(9)], Priced)
    outcome = office.run(budget=budget)
    assert (outcome.state, outcome.code) == ("stopped", code)
    assert why in outcome.reason
    assert outcome.cost is not None
    assert outcome.fix.startswith("resume it with a larger budget")
    assert outcome.steps == len(office.desk.notes) < 9


def test_seconds_end_a_request_that_never_answers(tmp_path: Path) -> None:
    import asyncio

    async def never(messages: Any) -> str:
        await asyncio.Event().wait()
        return ""

    outcome = Office(tmp_path, never).run(budget={"seconds": 0.05})
    assert (outcome.state, outcome.code) == ("stopped", "TIMEOUT")


def test_calls_beyond_the_budget_are_refused_and_the_model_may_still_answer(office: Office) -> None:
    outcome = office.answers([block("note", text="a"), block("note", text="b"), FINE]).run(budget={"calls": 1})
    assert (outcome.state, office.desk.notes) == ("done", ["a"])
    assert "budget of tool calls is used up" in office.said()[-1]
    outcome = office.answers([block("note", text="a")] * 9).run(budget={"calls": 1})
    assert (outcome.state, outcome.code, outcome.steps) == ("stopped", "BUDGET_EXCEEDED", 4)
    assert outcome.reason == "the budget of 1 tool calls is used up"
    assert f"tavern agent resume {outcome.run_id} --budget calls=" in outcome.fix


def test_the_model_is_told_that_one_request_is_left(office: Office) -> None:
    office.answers([block("note", text="a"), "final"]).run(budget={"steps": 2})
    assert "your last answer" in office.said()[-1]


@pytest.mark.parametrize(
    ("profile", "budget", "why"),
    [
        ({}, {"money": 1}, "price of the model"),
        ({"budget": {"money": 1}}, None, "price of the model"),
        ({}, {"moneys": 1}, "budget.moneys"),
        ({}, {"steps": 0}, "budget.steps"),
        ({}, 5, "a budget is a mapping"),
    ],
)  # fmt: skip
def test_a_budget_that_cannot_be_kept_is_refused_before_the_start(
    office: Office, profile: dict[str, Any], budget: Any, why: str
) -> None:
    before = office.within(lambda agents: agents.runs())
    with pytest.raises(UsageError, match=why):
        office.run(profile=profile, budget=budget)
    assert office.model.asked == []
    assert office.within(lambda agents: agents.runs()) == before


def test_a_price_in_another_currency_is_refused(office: Office) -> None:
    office.answers(["done"], Priced)
    with pytest.raises(UsageError, match="budget is in EUR"):
        office.run(budget={"money": 1, "currency": "EUR"})


@pytest.mark.parametrize("task", ["", "  ", None, 5, "half \ud800"])
def test_a_task_is_text(office: Office, task: Any) -> None:
    with pytest.raises(UsageError, match="a task is text"):
        office.run(task)


def test_an_unknown_model_is_reported_before_the_start(office: Office) -> None:
    with pytest.raises(ToolFailed, match="no language model 'x'"):
        office.run(model="x")


def test_a_long_result_is_cut_and_the_rest_can_be_read(office: Office) -> None:
    def answer(messages: Any) -> str:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 0:
            return block("long")
        if turn == 1:
            address = messages[-1]["content"].partition('"whole":"')[2].partition('"')[0]
            return block("x", artifact=address, start=26_000).replace("desk:x", "agent:read_result")
        return "read"

    outcome = office.answers(answer).run()
    assert outcome.state == "done"
    first, second = office.said()[2], office.said()[4]
    assert "line 0" in first
    assert "line 2999" not in first
    assert "line 2999" in second


@pytest.mark.slow
def test_the_reading_tool_sees_only_the_results_of_its_agent(office: Office) -> None:
    with office.host() as tavern:
        other = tavern.artifacts.put("secret of another", "text/plain", context=CallContext(principal="user:eve")).uri
    outcome = office.answers([native(), FINE]).run()
    call = block("x", artifact=other).replace("desk:x", "agent:read_result")
    outcome = office.answers([call, FINE]).run()
    assert outcome.state == "done"
    assert "ARTIFACT_NOT_FOUND" in office.said()[-1]


def test_a_full_context_is_shortened_and_the_conversation_says_so(office: Office) -> None:
    seen: list[AgentOutcome] = []
    answers = [block("long", lines=400 + n) for n in range(8)]
    with office.answers([*answers, FINE]).host() as tavern:
        events: list[Any] = []
        tavern.events.subscribe(events.append, "AGENT_COMPACTED")
        seen.append(tavern.agents.run_sync({**PROFILE, "context_tokens": 6_000}, "read"))
        assert tavern.agents.replay_sync(seen[0].run_id).ok
    assert seen[0].state == "done"
    assert events
    assert events[0].data["tokensAfter"] < events[0].data["tokensBefore"]
    assert "left out to save room" in "\n".join(office.said())
    sizes = [sum(len(str(m["content"])) for m in asked) // 4 for asked in office.model.asked]
    assert max(sizes) < 6_000


@pytest.mark.slow
def test_an_agent_that_writes_long_texts_goes_on_with_its_last_turn_alone(office: Office) -> None:
    long = [block("note", text=f"{n} " + "word " * 9_000) for n in range(4)]
    outcome = office.answers([*long, FINE]).run()
    assert (outcome.state, outcome.calls, len(office.desk.notes)) == ("done", 4, 4), outcome.reason
    assert "2 earlier messages were left out" in office.said()[1]
    assert office.within(lambda agents: agents.replay_sync(outcome.run_id)).ok


def test_the_agent_has_only_its_inventory_and_never_more_than_its_starter(office: Office) -> None:
    with office.answers([block("note", text="a"), FINE]).host() as tavern:
        outcome = tavern.agents.run_sync({"name": "poor", "tool_ids_inventory": ["desk:add"]}, "x")
    assert outcome.state == "done"
    assert "POLICY_DENIED" in office.said()[-1]
    assert office.desk.notes == []


def test_events_report_the_run_to_subscribers_and_the_log(tmp_path: Path) -> None:
    with Office(tmp_path, [block("add", a=1), FINE]).host() as tavern:
        seen: list[Any] = []
        tavern.events.subscribe(seen.append)
        outcome = tavern.agents.run_sync(PROFILE, "x")
        logged = [record.type for record in tavern.logs.records()]
    kinds = [event.type for event in seen if event.type.startswith("AGENT_")]
    assert kinds == ["AGENT_STARTED", "AGENT_STEP", "AGENT_STEP", "AGENT_FINISHED"]
    assert {event.data["run"] for event in seen if event.type in kinds} == {outcome.run_id}
    called = next(event for event in seen if event.type == "TOOL_CALLED" and event.data["tool"] == "desk:add")
    assert (called.data["principal"], called.data["door"]) == ("agent:clerk", "agent")
    assert called.data["idempotencyKey"] == f"{outcome.run_id}:1:0"
    assert [kind for kind in logged if kind.startswith("AGENT_")] == kinds
    written, ended = outcome.to_json(), next(event.data for event in seen if event.type == "AGENT_FINISHED")
    for name in ("state", "reason", "code", "steps", "calls", "usage", "cost", "currency", "seconds"):
        assert ended[name] == written[name]


def test_the_built_in_prompt_is_in_the_language_of_the_profile(office: Office) -> None:
    with office.host() as tavern:
        assert "你是 clerk" in tavern.agents.prompt_sync({**PROFILE, "language": "zh"}, "x").system
        own = tavern.agents.prompt_sync({**PROFILE, "prompt": "Be brief.\n{{{system:available_tools}}}"}, "x").system
    assert own.startswith("Be brief.\n")
    assert "desk:add" in own


def test_a_request_id_makes_a_call_once_within_its_run(office: Office) -> None:
    call = block("note", text="a").replace("text:", "request_id:»»»r1«««\ntext:")
    answers = [call, block("add", a=1), call, FINE]
    assert office.answers(answers).run().calls == 3
    assert office.desk.notes == ["a"]
    office.answers(answers).run()
    assert office.desk.notes == ["a", "a"]


def test_answers_of_models_are_whole_where_large_results_become_artifacts(tmp_path: Path) -> None:
    text = " ".join(map(str, range(1_000)))
    office = Office(tmp_path, [text], artifacts={"over": 1_000})
    assert office.run().answer == text


def test_native_calls_beside_blocks_are_answered_where_only_blocks_run(office: Office) -> None:
    answer = native(("add", {"a": 1}), text=block("add", a=7))
    outcome = office.answers([answer, FINE]).run(profile={"calling": "tam", "many_blocks": True})
    assert (outcome.state, outcome.calls) == ("done", 1)
    assert "Result: 8" in office.said()[-1]
    assert "Write calls as TAM blocks" in office.said()[-1]


def test_calls_without_an_id_of_their_own_get_one(office: Office) -> None:
    calls = tuple(ModelCall(known, "desk__add", '{"a": 1}') for known in ("", "same", "same"))
    outcome = office.answers([LLMAnswer("", tool_calls=calls), FINE]).run()
    assert outcome.state == "done", outcome
    conversation = office.model.asked[1]
    ids = [call["id"] for call in conversation[2]["toolCalls"]]
    assert len(set(ids)) == 3
    assert [message["toolCallId"] for message in conversation[3:6]] == ids


def test_a_replay_goes_by_the_budget_that_there_was(office: Office) -> None:
    office.answers([block("note", text=n) for n in range(6)])
    with office.host() as tavern:
        run = tavern.agents.run_sync(PROFILE, "x", budget={"steps": 2}).run_id
        tavern.agents.resume_sync(run, budget={"steps": 5})
        assert tavern.agents.replay_sync(run).ok
