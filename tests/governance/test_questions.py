"""Tools that ask their caller: no one can answer, a job that stays open, answers from another process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sqlite3
import threading
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tavern_core import CallContext, NodeContext, Out, Plugin, Question, Tavern, ToolContext, hookimpl, node, tool
from tavern_core.errors import InputInvalid, StateDamaged, UsageError
from tavern_core.flow.engine import sqlite_run_store
from tavern_core.kernel.calls.elicitation import conversation, mismatch
from tests.forked_programs import ForkedProgram, run_forked
from tests.governance import redis_server
from tests.rows import each_row
from tests.state.processes import ENVIRONMENT, start

COUNT = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1}}, "required": ["count"]}


class Shop:
    def __init__(self) -> None:
        self.ran = 0

    @tool
    async def order(self, ctx: ToolContext) -> Any:
        """Asks how many."""
        self.ran += 1
        ctx.log("asking", "warning")
        return [ctx.can_ask(), await ctx.ask("How many?", COUNT)]

    @tool
    async def both(self, ctx: ToolContext) -> Any:
        """Asks two things at once."""
        return await ctx.ask_all({"a": Question.form("A?", COUNT), "b": Question.roots()})

    @tool
    async def twice(self, ctx: ToolContext) -> Any:
        """Asks two things with one name."""
        return await asyncio.gather(ctx.ask("A?", COUNT, key="same"), ctx.ask("B?", COUNT, key="same"))

    @tool
    async def chat(self, ctx: ToolContext) -> Any:
        """Asks a model, then for folders."""
        answer = await ctx.complete("Hi", system="Be short", max_tokens=5)
        return [answer["content"], await ctx.roots()]


def run(tmp_path: Path, work: Callable[[Tavern, Shop], Awaitable[None]]) -> None:
    async def main() -> None:
        shop = Shop()
        async with Tavern.open(
            {}, plugins=[Plugin([shop.order, shop.both, shop.twice, shop.chat], name="shop")], home=tmp_path
        ) as tavern:
            await work(tavern, shop)

    asyncio.run(main())


async def asked(tavern: Tavern, tool_id: str) -> Any:
    """A job of the tool, once it asks something."""
    job = await tavern.jobs.start(tool_id)
    return await tavern.jobs.wait(job.id, 20)


def test_where_nobody_can_be_asked_the_call_ends_and_says_what_it_needs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(tavern: Tavern, shop: Shop) -> None:
        with caplog.at_level(logging.WARNING, "tavern.tools"):
            result = await tavern.invoke("shop:order")
        assert (result.status, result.error.kind, result.error.outcome) == ("input_required", "INPUT_REQUIRED", "none")
        assert result.error.message == "needs an answer: How many?"
        assert result.error.details["questions"] == [
            {"id": "question-1", "type": "form", "prompt": "How many?", "schema": COUNT}
        ]
        assert "shop:order: asking" in caplog.text

    run(tmp_path, work)


def test_a_key_is_free_again_after_a_call_that_needed_an_answer(tmp_path: Path) -> None:
    class Answering:
        def can_ask(self, kind: str) -> bool:
            return True

        async def ask(self, questions: Any) -> Any:
            return {key: {"count": 2} for key in questions}

        def log(self, level: str, message: str) -> None:
            pass

    async def work(tavern: Tavern, shop: Shop) -> None:
        first = await tavern.invoke("shop:order", idempotency_key="k")
        conversation.set(Answering())  # type: ignore[arg-type]
        second = await tavern.invoke("shop:order", idempotency_key="k")
        third = await tavern.invoke("shop:order", idempotency_key="k")
        assert (first.status, second.value, third.value) == (
            "input_required",
            [True, {"count": 2}],
            [True, {"count": 2}],
        )
        assert shop.ran == 2

    run(tmp_path, work)


@pytest.mark.parametrize(("answer", "value"), [({"count": 3}, {"count": 3}), (None, None)])
def test_a_job_asks_and_goes_on_with_the_answer(tmp_path: Path, answer: Any, value: Any) -> None:
    async def work(tavern: Tavern, shop: Shop) -> None:
        job = await asked(tavern, "shop:order")
        assert (job.status, job.questions[0]["id"]) == ("input_required", "question-1")
        with pytest.raises(InputInvalid, match="does not fit"):
            tavern.jobs.answer(job.id, {"count": 0})
        with pytest.raises(UsageError, match="does not ask"):
            tavern.jobs.answer(job.id, answer, "question-2")
        assert tavern.jobs.answer(job.id, answer)
        assert (await tavern.jobs.wait(job.id, 20)).status == "completed"
        assert (tavern.jobs.result(job.id).value, shop.ran) == ([True, value], 1)
        assert tavern.jobs.answer(job.id, answer) is False

    run(tmp_path, work)


def test_several_questions_are_answered_one_by_one(tmp_path: Path) -> None:
    async def work(tavern: Tavern, shop: Shop) -> None:
        job = await asked(tavern, "shop:both")
        with pytest.raises(UsageError, match="asks 2 questions"):
            tavern.jobs.answer(job.id, {"count": 1})
        tavern.jobs.answer(job.id, {"count": 1}, "a")
        left = tavern.jobs.find(job.id)
        assert ([each["id"] for each in left.questions], left.status) == (["b"], "input_required")
        tavern.jobs.answer(job.id, [{"uri": "file:///x"}], "b")
        await tavern.jobs.wait(job.id, 20)
        assert tavern.jobs.result(job.id).value == {"a": {"count": 1}, "b": [{"uri": "file:///x"}]}
        job = await asked(tavern, "shop:twice")
        await until(tavern, lambda: {each["id"] for each in tavern.jobs.find(job.id).questions} == {"same", "same-2"})
        tavern.jobs.answer(job.id, {"count": 1}, "same")
        tavern.jobs.answer(job.id, {"count": 2}, "same-2")
        await wait_over(tavern, job.id)
        assert tavern.jobs.result(job.id).value == [{"count": 1}, {"count": 2}]

    run(tmp_path, work)


async def until(tavern: Tavern, holds: Callable[[], bool]) -> None:
    """Wait until something holds of a job."""
    changed, loop = asyncio.Event(), asyncio.get_running_loop()
    end = tavern.events.subscribe(lambda event: loop.call_soon_threadsafe(changed.set), "JOB_CHANGED")
    while not holds():
        await asyncio.wait_for(changed.wait(), 20)
        changed.clear()
    end()


async def wait_over(tavern: Tavern, job: str) -> None:
    await until(tavern, lambda: tavern.jobs.find(job).is_over)


def test_a_model_s_answer_and_folders_are_answers_too(tmp_path: Path) -> None:
    async def work(tavern: Tavern, shop: Shop) -> None:
        job = await asked(tavern, "shop:chat")
        assert job.questions[0]["request"] == {
            "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 5, "systemPrompt": "Be short",
        }  # fmt: skip
        tavern.jobs.answer(job.id, {"role": "assistant", "content": "Hello", "model": "m"})
        await until(tavern, lambda: [each["type"] for each in tavern.jobs.find(job.id).questions] == ["roots"])
        tavern.jobs.answer(job.id, [])
        await wait_over(tavern, job.id)
        assert tavern.jobs.result(job.id).value == ["Hello", []]

    run(tmp_path, work)


@pytest.mark.slow
def test_another_process_answers(tmp_path: Path) -> None:
    async def work(tavern: Tavern, shop: Shop) -> None:
        job = await asked(tavern, "shop:order")
        command = [
            "-m",
            "tavern_core",
            "jobs",
            "answer",
            job.id,
            '{"count": 4}',
            "--home",
            str(tmp_path),
        ]
        done = await asyncio.to_thread(run_forked, command, cwd=tmp_path, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        await wait_over(tavern, job.id)
        assert tavern.jobs.result(job.id).value == [True, {"count": 4}]

    run(tmp_path, work)


@pytest.mark.slow
def test_the_first_of_several_answers_from_other_processes_counts(tmp_path: Path) -> None:
    async def work(tavern: Tavern, shop: Shop) -> None:
        job = await asked(tavern, "shop:order")
        async with Tavern.open({}, home=tmp_path) as other:
            answers = [other.jobs.answer(job.id, answer) for answer in ({"count": 4}, {"count": 5}, None)]
            assert answers == [True, False, False]
        await wait_over(tavern, job.id)
        assert tavern.jobs.result(job.id).value == [True, {"count": 4}]

    run(tmp_path, work)


ASKS = """
import sys
from tavern_core import Plugin, Tavern, ToolContext, tool

@tool
async def order(ctx: ToolContext) -> int:
    return await ctx.ask("How many?", {"type": "integer"})

with Tavern.open({}, home=sys.argv[1], plugins=[Plugin([order], name="shop")]) as host:
    job = host.invoke_sync("shop:order", job=True).job
    host.wait(host.jobs.wait(job))
    print(job, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_command_that_follows_a_job_does_not_show_a_question_that_was_answered(tmp_path: Path) -> None:
    with start(ASKS, tmp_path) as other:
        job = other.stdout.readline().strip()
        other.send_signal(signal.SIGSTOP)  # it does not take the answer up
        with Tavern.open({}, home=tmp_path) as host:
            assert host.jobs.answer(job, 3)
        words = ["-m", "tavern_core", "--home", tmp_path, "jobs", "watch", job]
        with ForkedProgram(words, stdout=PIPE, stderr=PIPE, cwd=tmp_path, env=ENVIRONMENT) as follows:
            assert follows.stderr.readline() == f"{job} input_required\n"
            other.send_signal(signal.SIGCONT)
            shown, said = follows.communicate()
        assert (follows.returncode, shown, "How many?" in said) == (0, "3\n", False)
        other.communicate("\n")


@pytest.mark.slow
@pytest.mark.parametrize("is_same", [True, False], ids=["same host", "another host of the home"])
def test_of_answers_that_are_given_at_once_one_counts(tmp_path: Path, is_same: bool) -> None:
    async def work(tavern: Tavern, shop: Shop) -> None:
        job = await asked(tavern, "shop:order")
        given, begins = [{"count": count} for count in range(4, 12)], threading.Barrier(8)

        def answer(host: Tavern, value: dict[str, int]) -> bool:
            begins.wait(20)
            return host.jobs.answer(job.id, value)

        async with Tavern.open({}, home=tmp_path) as other:
            who, loop = tavern if is_same else other, asyncio.get_running_loop()
            with ThreadPoolExecutor(8) as pool:
                taken = await asyncio.gather(*(loop.run_in_executor(pool, answer, who, value) for value in given))
        await wait_over(tavern, job.id)
        assert [answer for answer, is_taken in zip(given, taken, strict=True) if is_taken] == [
            tavern.jobs.result(job.id).value[1]
        ]

    run(tmp_path, work)


def test_a_job_that_asks_can_be_cancelled_and_is_its_caller_s(tmp_path: Path) -> None:
    ann, bob = CallContext(principal="user:ann"), CallContext(principal="user:bob")

    async def work(tavern: Tavern, shop: Shop) -> None:
        job = await tavern.jobs.start("shop:order", context=ann)
        await tavern.jobs.wait(job.id, 20)
        with pytest.raises(Exception, match="there is no job"):
            tavern.jobs.answer(job.id, {"count": 1}, context=bob)
        tavern.jobs.cancel(job.id, context=ann)
        await wait_over(tavern, job.id)
        assert tavern.jobs.find(job.id).status == "cancelled"

    run(tmp_path, work)


def test_a_job_that_is_cancelled_before_it_begins_is_over(tmp_path: Path) -> None:
    async def work(tavern: Tavern, shop: Shop) -> None:
        jobs = [await tavern.jobs.start("shop:order") for _ in range(50)]
        for job in jobs:
            tavern.jobs.cancel(job.id)
        for job in jobs:
            await wait_over(tavern, job.id)
            assert tavern.jobs.find(job.id).status == "cancelled"

    run(tmp_path, work)


@each_row(
    ("question", "answer", "fits"),
    [
        (Question.form("?", COUNT), {"count": 1}, True),
        (Question.form("?", COUNT), {"count": "1"}, False),
        (Question.form("?", COUNT), None, True),
        (Question.form("?", {}), "anything", True),
        (Question.roots(), [{"uri": "file:///x"}], True),
        (Question.roots(), [{"name": "x"}], False),
        (Question.roots(), None, False),
        (Question.completion("?"), {"content": "x"}, True),
        (Question.completion("?"), {"text": "x"}, False),
    ],
)
def test_an_answer_fits_its_question_or_is_none(question: Question, answer: Any, fits: bool) -> None:
    assert (mismatch(question, answer) == "") is fits


HI = {"type": "text", "text": "Hi"}
MESSAGES: dict[str, tuple[Any, Any]] = {
    "a text": ("Hi", HI),
    "a message with a text": ([{"role": "user", "content": "Hi"}], HI),
    "a message with a block": ([{"role": "user", "content": HI}], HI),
    "a message with several": ([{"role": "user", "content": [HI, HI]}], [HI, HI]),
    "a number": (1, "a text or a list of messages"),
    "a number in the list": ([1], "message 1 of a completion has no role"),
    "another role": ([{"role": "user", "content": "Hi"}, {"role": "system", "content": "x"}], "message 2 .* no role"),
    "no content": ([{"role": "user"}], "neither text nor a block"),
    "a text block without a text": ([{"role": "user", "content": {"type": "text"}}], "neither text nor a block"),
    "an image without a type": (
        [{"role": "user", "content": [{"type": "image", "data": ""}]}],
        "neither text nor a block",
    ),
}


@each_row("case", MESSAGES)
def test_a_completion_is_asked_with_messages(case: str) -> None:
    given, expected = MESSAGES[case]
    if not isinstance(expected, str):
        assert Question.completion(given).request["messages"] == [{"role": "user", "content": expected}]
        return
    with pytest.raises(UsageError, match=expected):
        Question.completion(given)
    with pytest.raises(UsageError, match=expected):
        Question.from_json({"type": "completion", "request": {"messages": given}})


def test_an_answer_to_a_question_approves_no_call_whatever_its_name(tmp_path: Path) -> None:
    """A tool that names its question like a waiting request, and asks for something harmless."""
    waiting: list[str] = []

    @tool(requires_approval=True)
    def pay(amount: int) -> int:
        """Pay."""
        return amount

    @tool
    async def asks(ctx: ToolContext) -> Any:
        """Asks with a name that it has read somewhere."""
        return await ctx.ask_all({waiting[0]: Question("approval", "Do you like cats?")})  # type: ignore[arg-type]

    async def main() -> None:
        async with Tavern.open({}, plugins=[Plugin([pay, asks], name="shop")], home=tmp_path) as tavern:
            ann = CallContext(principal="user:ann")
            result = await tavern.invoke("shop:pay", {"amount": 1}, context=ann)
            assert result.error is not None
            waiting.append(result.error.details["approval"])
            job = (await tavern.invoke("shop:asks", context=CallContext(principal="user:bob"), job=True)).job
            assert job is not None
            assert (await tavern.jobs.wait(job, 30)).status == "input_required"
            assert tavern.jobs.answer(job, True)
            assert (await tavern.jobs.wait(job, 30)).status == "completed"
            assert tavern.jobs.result(job).value == {waiting[0]: True}
            assert tavern.approvals.get(waiting[0]).state == "pending"

    asyncio.run(main())


class Desk:
    """A tool that asks twice, and one whose call waits for approval."""

    def __init__(self) -> None:
        self.ran = 0

    @tool(job=True)
    async def table(self, ctx: ToolContext) -> Any:
        """Asks for a count, then for folders."""
        self.ran += 1
        return [await ctx.ask("How many?", COUNT), await ctx.roots()]

    @tool(requires_approval=True, job=True)
    async def pay(self) -> int:
        """Pay."""
        return 1

    def open(self, home: Path, store: str = "sqlite") -> Tavern:
        return Tavern.open(
            {"state": {"store": store}}, home=home, plugins=[Plugin([self.table, self.pay], name="desk")]
        )


@pytest.mark.slow
@pytest.mark.parametrize("is_same", [True, False], ids=["same host", "another host of the home"])
@pytest.mark.parametrize("name", ["desk:table", "desk:pay"])
def test_who_answers_a_job_and_then_waits_gets_its_next_question_or_its_end(
    tmp_path: Path, name: str, is_same: bool
) -> None:
    with Desk().open(tmp_path) as tavern, Desk().open(tmp_path) as other:
        person = tavern if is_same else other
        job = str(tavern.invoke_sync(name, {}, context=CallContext(principal="user:ann")).job)
        found = person.wait(person.jobs.wait(job, 20))
        for answer in [True] if name == "desk:pay" else [{"count": 1}, []]:
            assert found.status == "input_required"
            question = found.questions[0]["id"]
            assert person.jobs.answer(job, answer, question)
            found = person.wait(person.jobs.wait(job, 20))
            assert question not in [each["id"] for each in found.questions]
        assert found.status == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("has_key", [True, False], ids=["with a key", "without"])
@pytest.mark.parametrize("is_told", [True, False], ids=["one answer was given before", "none was"])
def test_a_job_that_asks_waits_on_when_its_process_ends_and_is_resumed_with_its_answers(
    tmp_path: Path, is_told: bool, has_key: bool
) -> None:
    first, second = Desk(), Desk()
    with first.open(tmp_path) as tavern:
        job = str(tavern.invoke_sync("desk:table", idempotency_key="k" if has_key else None).job)
        tavern.wait(tavern.jobs.wait(job, 20))
        with second.open(tmp_path) as other, pytest.raises(UsageError, match="a process of this home runs"):
            other.wait(other.jobs.resume(job))
        if is_told:
            tavern.jobs.answer(job, {"count": 7})
            tavern.wait(tavern.jobs.wait(job, 20))
    with second.open(tmp_path) as tavern:
        found = tavern.jobs.find(job)
        assert (found.status, found.questions[0]["id"]) == ("input_required", "question-2" if is_told else "question-1")
        with pytest.raises(InputInvalid, match="does not fit"):
            tavern.jobs.answer(job, {"name": "x"})
        assert tavern.jobs.answer(job, [] if is_told else {"count": 7})
        assert tavern.wait(tavern.jobs.wait(job, 20)).status == "input_required"  # nobody runs it
        tavern.wait(tavern.jobs.resume(job))
        found = tavern.wait(tavern.jobs.wait(job, 20))
        if not is_told:
            tavern.jobs.answer(job, [])
            found = tavern.wait(tavern.jobs.wait(job, 20))
        assert (found.status, tavern.jobs.result(job).value) == ("completed", [{"count": 7}, []])
    assert (first.ran, second.ran) == (1, 1)


@pytest.mark.parametrize(
    ("name", "key", "status"),
    [("desk:table", None, "input_required"), ("desk:table", "k", "input_required"), ("desk:pay", None, "completed")],
)
def test_a_job_that_was_answered_without_a_process_does_not_ask_again_when_it_is_resumed(
    tmp_path: Path, name: str, key: str | None, status: str
) -> None:
    first, home = Desk(), tmp_path / "as a killed process leaves it"
    with first.open(tmp_path / "home") as tavern:
        job = str(tavern.invoke_sync(name, context=CallContext(principal="user:ann"), idempotency_key=key).job)
        asked = tavern.wait(tavern.jobs.wait(job, 20)).questions[0]["id"]
        shutil.copytree(tmp_path / "home", home)
    shown: list[str] = []
    with Desk().open(home) as tavern:
        assert tavern.jobs.answer(job, True if name == "desk:pay" else {"count": 7})
        words = ["-m", "tavern_core", "--home", home, "jobs", "watch", job]
        watched = run_forked(words, cwd=tmp_path, env=ENVIRONMENT)
        assert (tavern.jobs[job].questions, watched.returncode) == ((), 3)
        assert f"it has its answer, and no process runs it: `tavern jobs resume {job}`" in watched.stderr
        tavern.events.subscribe(
            lambda _: shown.extend(each["id"] for each in tavern.jobs[job].questions), "JOB_CHANGED"
        )
        tavern.wait(tavern.jobs.resume(job))
        assert tavern.wait(tavern.jobs.wait(job, 20)).status == status
    assert asked not in shown


LATE_ANSWER = """
CREATE TRIGGER late AFTER UPDATE ON records WHEN new.kind = 'job' AND new.state = 'queued' BEGIN
    INSERT INTO records (kind, key, owner, state, data, created, expires, version, crc)
    VALUES ('job-answer', new.key || char(31) || '{asked}', '', 'given', '{data}', 0, 0, 1, {crc});
END
"""


def test_an_answer_that_comes_while_its_job_is_resumed_is_not_lost(tmp_path: Path) -> None:
    with Desk().open(tmp_path) as tavern:
        job = str(tavern.invoke_sync("desk:table").job)
        asked = tavern.wait(tavern.jobs.wait(job, 20)).questions[0]["id"]
    with Desk().open(tmp_path) as tavern:
        with contextlib.closing(sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)) as file:
            data = '{"value":{"count":7}}'
            file.execute(LATE_ANSWER.format(asked=asked, data=data, crc=zlib.crc32(data.encode())))
            tavern.wait(tavern.jobs.resume(job))
            file.execute("DROP TRIGGER late")
        while not (questions := tavern.wait(tavern.jobs.wait(job, 20)).questions) or questions[0]["id"] == asked:
            assert tavern.jobs.answer(job, {"count": 8}, asked) is False
        assert tavern.jobs.answer(job, [])
        assert tavern.wait(tavern.jobs.wait(job, 20)).status == "completed"
        assert tavern.jobs.result(job).value[0] == {"count": 7}


def test_a_job_that_is_resumed_while_it_is_cancelled_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_ended, looked, opens = threading.Event(), [], os.open

    @tool
    async def waits(ctx: ToolContext) -> Any:
        try:
            return await ctx.ask("How many?", COUNT)
        finally:
            has_ended.set()

    def opened() -> Tavern:
        return Tavern.open({}, home=tmp_path, plugins=[Plugin([waits], name="w")])

    with opened() as first:
        job = str(first.invoke_sync("w:waits", job=True).job)
        assert first.wait(first.jobs.wait(job, 20)).status == "input_required"
    has_ended.clear()
    with opened() as tavern, opened() as other:

        def late(path: Any, *args: Any, **options: Any) -> int:
            if Path(path).parent.name == "processes" and len(looked) < 2:
                looked.append(path)
                if len(looked) == 2:  # once to find the job, and once to see that no process runs it
                    tavern.wait(tavern.jobs.resume(job))
                    assert tavern.wait(tavern.jobs.wait(job, 20)).status == "input_required"
            return opens(path, *args, **options)

        monkeypatch.setattr(os, "open", late)
        assert other.jobs.cancel(job)
        assert has_ended.wait(20)
        assert other.wait(other.jobs.wait(job, 20)).status == "cancelled"


def test_a_job_that_was_taken_up_although_the_store_failed_waits_as_before(tmp_path: Path) -> None:
    with redis_server.database() as address:
        with Desk().open(tmp_path / "home", address) as tavern:
            job = str(tavern.invoke_sync("desk:table").job)
            before = tavern.wait(tavern.jobs.wait(job, 20))
        link = redis_server.LossyLink(address)
        with Desk().open(tmp_path / "home", link.address) as tavern:
            link.lost = b"queued"
            with pytest.raises(StateDamaged):
                tavern.wait(tavern.jobs.resume(job))
            link.lost = b""
        link.close()
        with Desk().open(tmp_path / "home", address) as tavern:
            found = tavern.jobs[job]
    assert (found.status, found.questions) == ("input_required", before.questions)


@pytest.mark.slow
def test_a_job_that_asks_and_has_no_process_can_be_cancelled(tmp_path: Path) -> None:
    with Desk().open(tmp_path) as tavern:
        job = str(tavern.invoke_sync("desk:table").job)
        tavern.wait(tavern.jobs.wait(job, 20))
    with Desk().open(tmp_path) as tavern:
        assert tavern.jobs.cancel(job)
        error = tavern.jobs.find(job).error
        assert error is not None
        assert (error.kind, error.outcome) == ("CANCELLED", "unknown")


TEXT = {"type": "string"}


ASKED: list[tuple[tuple[Any, ...], dict[str, Any], tuple[str, dict[str, Any]] | None]] = [
    (("Why?", TEXT), {}, ("Why?", TEXT)),
    ((TEXT, "Why?"), {}, ("Why?", TEXT)),
    ((TEXT,), {}, ("", TEXT)),
    (("Why?",), {"schema": TEXT}, ("Why?", TEXT)),
    ((TEXT,), {"prompt": "Why?"}, ("Why?", TEXT)),
    ((), {"prompt": "Why?", "schema": TEXT}, ("Why?", TEXT)),
    (("Why?",), {}, None),
    (("Why?", "What?"), {"schema": TEXT}, None),
    ((TEXT, TEXT), {}, None),
    (("Why?", TEXT, 5), {}, None),
]


@pytest.mark.slow
def test_tools_and_nodes_ask_with_prompt_and_schema_in_either_order(tmp_path: Path) -> None:
    case = 0

    @node("t:Ask")
    async def ask_node(ctx: NodeContext) -> Out(answer=str):  # type: ignore[valid-type]
        given, named, _ = ASKED[case]
        return await ctx.ask(*given, **named)

    @tool(job=True)
    async def ask_tool(ctx: ToolContext) -> Any:
        given, named, _ = ASKED[case]
        return await ctx.ask(*given, **named)

    class Asking:
        @hookimpl
        def tavern_register_nodes(self) -> Any:
            return [ask_node]

        @hookimpl
        def tavern_register_tools(self) -> Any:
            return [ask_tool]

    async def main() -> None:
        nonlocal case
        async with Tavern.open({}, home=tmp_path, plugins=[Plugin(Asking(), name="t")]) as tavern:
            for case in range(len(ASKED)):
                seen: list[tuple[str, Any]] = []
                run = await tavern.workflows.start({"nodes": [{"id": "a", "type": "t:Ask"}]})
                run.leave()
                await run
                for job in (run.id, (await tavern.invoke("t:ask_tool")).job):
                    found = await tavern.jobs.wait(str(job), 20)
                    seen.extend((each["prompt"], each["schema"]) for each in found.questions)
                    assert found.questions or "a question is a prompt" in str(found.error), ASKED[case]
                expected = ASKED[case][-1]
                assert seen == ([] if expected is None else [expected, expected]), ASKED[case]

    asyncio.run(main())


@pytest.mark.parametrize("output", ["a\ud800b", "x" * 900_000, "\x00\u2028😀"], ids=["half a character", "long", "odd"])
def test_a_run_that_was_answered_and_resumed_has_its_output_whatever_text_it_is(tmp_path: Path, output: str) -> None:
    @node("t:Odd")
    async def odd(ctx: NodeContext) -> Out(text=str):  # type: ignore[valid-type]
        return output + await ctx.ask("?", TEXT)

    class Nodes:
        @hookimpl
        def tavern_register_nodes(self) -> Any:
            return [odd]

    def opened() -> Tavern:
        return Tavern.open({}, home=tmp_path, plugins=[Plugin(Nodes(), name="t")])

    async def asked() -> str:
        async with opened() as tavern:
            run = await tavern.workflows.start({"nodes": [{"id": "a", "type": "t:Odd"}]})
            run.leave()
            await run
            return run.id

    run = asyncio.run(asked())
    with opened() as tavern:
        tavern.jobs.answer(run, "!")
        assert tavern.wait(tavern.workflows.resume(run)).outputs == {"a": {"text": output + "!"}}
    with opened() as tavern:
        assert tavern.jobs.find(run).status == "completed"
        assert tavern.jobs.result(run).value == {"text": f"{output}!"}


@pytest.mark.anyio
async def test_later_runs_of_others_neither_hide_nor_push_out_a_run_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @node("t:Odd")
    async def odd(ctx: NodeContext) -> Out(text=str):  # type: ignore[valid-type]
        return await ctx.ask("?", TEXT)

    class Nodes:
        @hookimpl
        def tavern_register_nodes(self) -> Any:
            return [odd]

    monkeypatch.setattr(sqlite_run_store, "MOST_RUNS", 3)
    me, others = CallContext(principal="user:me"), CallContext(principal="user:others")
    async with Tavern.open({}, home=tmp_path, plugins=[Plugin(Nodes(), name="t")]) as tavern:
        waiting = await tavern.workflows.start({"nodes": [{"id": "a", "type": "t:Odd"}]}, context=me)
        waiting.leave()
        await waiting
        for _ in range(5):
            await tavern.workflows.run({"nodes": [{"id": "b", "type": "core:Text"}]}, context=others)
    async with Tavern.open({}, home=tmp_path, plugins=[Plugin(Nodes(), name="t")]) as tavern:
        assert len(tavern.jobs.list(context=others)) == 3
        [found] = tavern.jobs.list(context=me, most=1)
        assert (found.id, found.status) == (waiting.id, "input_required")
        assert tavern.jobs.list(tool="workflow", status="input_required", most=1) == (found,)
