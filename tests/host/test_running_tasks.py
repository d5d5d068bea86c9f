"""The task of a call is that of its own thread and its own process, whichever event loops have made calls before."""

from __future__ import annotations

import asyncio
import os
import threading

from tavern_core.kernel.execution.sync_async_drivers import running_task


async def is_own() -> bool:
    return running_task() is asyncio.current_task()


def test_without_an_event_loop_no_task_runs_before_and_after_one_has_run() -> None:
    assert running_task() is None
    assert asyncio.run(is_own())
    assert running_task() is None


def test_loops_that_follow_each_other_on_one_thread_each_have_their_own_task() -> None:
    assert all(asyncio.run(is_own()) for _ in range(3))


def test_threads_that_take_turns_find_their_own_tasks() -> None:
    turns, found = threading.Barrier(3), []

    async def look() -> None:
        for _ in range(20):
            turns.wait(30)
            found.append(await is_own())

    threads = [threading.Thread(target=asyncio.run, args=(look(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        turns.wait(30)
        found.append(running_task() is None)
    for thread in threads:
        thread.join(30)
    assert found == [True] * 60


def test_a_loop_that_goes_on_in_another_thread_is_no_longer_that_of_this_one() -> None:
    loop, begun, seen = asyncio.new_event_loop(), threading.Event(), threading.Event()

    async def holds_the_loop() -> bool:
        begun.set()
        seen.wait(30)
        return await is_own()

    assert loop.run_until_complete(is_own())
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(loop.run_until_complete(holds_the_loop())))
    thread.start()
    assert begun.wait(30)
    assert running_task() is None
    seen.set()
    thread.join(30)
    loop.close()
    assert answers == [True]


def test_in_a_process_that_a_task_forks_no_task_runs() -> None:
    async def forks() -> int:
        assert await is_own()
        if (child := os.fork()) == 0:
            os._exit(0 if running_task() is None else 1)
        return child

    assert os.waitpid(asyncio.run(forks()), 0)[1] == 0
