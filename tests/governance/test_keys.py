"""The same call with the same key is made once, from wherever it is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Budget, CallContext, Plugin, Tavern, ToolResult, tool
from tavern_core.builtin.stores.redis_records import RedisRecords
from tavern_core.errors import ToolFailed, UpstreamError
from tavern_core.kernel.stores.sqlite_records import SqliteRecords
from tavern_core.model.call import HOST_PRINCIPAL
from tavern_core.model.result import Evidence
from tests.forked_programs import run_forked
from tests.governance import redis_server
from tests.state.processes import run, start


class Shop:
    """Tools that count how often they ran."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        shop = self

        @tool
        def charge(amount: int, note: str = "") -> dict[str, int]:
            shop.ran.append(amount)
            return {"receipt": len(shop.ran)}

        @tool
        async def slow(amount: int) -> int:
            shop.ran.append(amount)
            await asyncio.sleep(0.05)
            return len(shop.ran)

        @tool
        def refuse() -> int:
            shop.ran.append(0)
            raise ToolFailed("no")

        @tool
        def crash() -> int:
            shop.ran.append(0)
            raise RuntimeError("half done")

        @tool
        def nested(key: str) -> str:
            result = host.invoke_sync("shop:nested", {"key": key}, idempotency_key=key)
            return result.error.kind if result.error else "ran"

        @tool
        def read_back() -> int:
            shop.ran.append(0)
            raise UpstreamError("away", outcome="unknown")

        self.tools = [charge, slow, refuse, crash, nested, read_back]


host: Tavern
shop: Shop


@pytest.fixture(autouse=True)
def _open(tmp_path: Path) -> Iterator[None]:
    global host, shop
    shop = Shop()
    with Tavern.open({}, home=tmp_path / "home", plugins=[Plugin(shop.tools, name="shop")]) as host:
        yield


def called(name: str, arguments: dict[str, Any], key: Any = "k", **options: Any) -> Any:
    return host.invoke_sync(f"shop:{name}", arguments, idempotency_key=key, **options)


def test_the_second_call_gets_the_answer_of_the_first() -> None:
    first, second = called("charge", {"amount": 5}), called("charge", {"note": "", "amount": 5})
    assert (first.value, second.value, shop.ran) == ({"receipt": 1}, {"receipt": 1}, [5])
    assert second.meta["idempotency"] == "replayed"
    assert second.meta["callId"] != first.meta["callId"]


def test_another_call_under_a_used_key_is_refused() -> None:
    called("charge", {"amount": 5})
    refused = called("charge", {"amount": 6})
    assert (refused.error.kind, refused.error.outcome, shop.ran) == ("IDEMPOTENCY_CONFLICT", "none", [5])


def test_numbers_that_json_does_not_tell_apart_are_the_same_arguments() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
        ({"n": 1}, {"n": 1.0}, True),
        ({"n": -0.0}, {"n": 0}, True),
        ({"n": 1e300}, {"n": 10**300}, False),
        ({"n": 1.5}, {"n": 1.5}, True),
        ({"n": 1}, {"n": 1.5}, False),
        ({"n": 1, "more": {"a": [1, 2.0]}}, {"more": {"a": [1.0, 2]}, "n": 1}, True),
        ({"n": 1, "more": {"a": [1]}}, {"n": 1, "more": {"a": [True]}}, False),
        ({"n": 1, "more": {"a": ["1"]}}, {"n": 1, "more": {"a": [1]}}, False),
    ]

    @tool
    def count(n: float, more: dict[str, Any] | None = None) -> float:
        return n

    host.tools.register(count)
    for number, (first, second, is_same) in enumerate(cases):
        assert host.invoke_sync("app:count", first, idempotency_key=f"k{number}").ok
        again = host.invoke_sync("app:count", second, idempotency_key=f"k{number}")
        assert (again.error is None) == is_same, (first, second, again.error)


def test_a_key_belongs_to_one_tool_and_one_caller() -> None:
    called("charge", {"amount": 5})
    called("charge", {"amount": 5}, context=CallContext(principal="user:ann"))
    called("charge", {"amount": 5}, context=CallContext(principal="user:ann", user_id="2"))
    assert host.invoke_sync("shop:slow", {"amount": 5}, idempotency_key="k").ok
    assert shop.ran == [5, 5, 5, 5]


@pytest.mark.parametrize(("name", "runs"), [("refuse", 2), ("crash", 1), ("read_back", 1)])
def test_only_a_failure_that_changed_nothing_frees_its_key(name: str, runs: int) -> None:
    first, second = called(name, {}), called(name, {})
    assert not first.ok and first.error.kind == second.error.kind
    assert len(shop.ran) == runs


def test_what_is_no_key_is_refused_before_anything_runs() -> None:
    wrong: list[Any] = ["", "x" * 256, "line\nbreak", "\x1f", 7, b"k"]
    for key in wrong:
        result = called("charge", {"amount": 5}, key)
        assert (result.error and result.error.kind, shop.ran) == ("USAGE", []), key
    assert called("charge", {"amount": 5}, "x" * 255).ok


def test_a_call_does_not_wait_for_itself() -> None:
    assert called("nested", {"key": "k"}).value == "IDEMPOTENCY_CONFLICT"


def test_two_hundred_at_once_are_one_call_with_two_hundred_answers() -> None:
    async def all_at_once() -> list[Any]:
        calls = (host.invoke("shop:slow", {"amount": 1}, idempotency_key="same") for _ in range(200))
        return [result.value for result in await asyncio.gather(*calls)]

    assert asyncio.run(all_at_once()) == [1] * 200
    assert shop.ran == [1]


def test_threads_without_a_loop_share_an_answer_too() -> None:
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(called("charge", {"amount": 1}))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.value for r in results] == [{"receipt": 1}] * 20


def test_who_waits_for_an_answer_has_a_deadline_of_his_own() -> None:
    async def both() -> Any:
        first = asyncio.ensure_future(host.invoke("shop:slow", {"amount": 1}, idempotency_key="same"))
        await asyncio.sleep(0)
        from tavern_core import Budget

        caller = CallContext(principal="host", budget=Budget(timeout_ms=5))
        second = await host.invoke("shop:slow", {"amount": 1}, idempotency_key="same", context=caller)
        return await first, second

    first, second = asyncio.run(both())
    assert first.ok
    assert (second.error.kind, second.error.outcome, len(shop.ran)) == ("TIMEOUT", "none", 1)


def test_rights_are_asked_again_before_an_answer_is_given_again() -> None:
    called("charge", {"amount": 5}, context=CallContext(principal="user:ann"))
    host.tools.register
    with Tavern.open(
        {"callers": {"user:ann": {"deny": ["shop:charge"]}}},
        home=_home(host),
        plugins=[Plugin(shop.tools, name="shop")],
    ) as later:
        result = later.invoke_sync(
            "shop:charge", {"amount": 5}, idempotency_key="k", context=CallContext(principal="user:ann")
        )
    assert result.error is not None and result.error.kind == "POLICY_DENIED"


def _home(open_host: Tavern) -> Path:
    return open_host._host.base.home


def test_no_secret_of_an_answer_is_kept() -> None:
    @tool
    def login(password: str) -> str:
        return f"welcome, {password}"

    host.tools.register(login)
    host.invoke_sync("app:login", {"password": "hunter2-very-secret"}, idempotency_key="k")
    for file in _home(host).glob("state.sqlite*"):
        assert b"hunter2-very-secret" not in file.read_bytes()


def test_every_entry_point_takes_a_key() -> None:
    for _ in range(2):
        host.invoke_from_sync("web", "shop:charge", {"amount": 1}, idempotency_key="w")
        text = "<|[REQUEST_TOOL]|>\ncommand:>shop:charge<\namount:>2<\nrequest_id:>r<\n<|[END_TOOL]|>"
        host.run_text_sync(text)
    assert shop.ran.count(1) == 1


PROGRAM = """
import json, os, sys
from tavern_core import Plugin, Tavern, tool
effects = sys.argv[2]

@tool
def charge(n: int) -> int:
    with open(effects, "a") as file:
        file.write(f"{n}\\n")
    if len(sys.argv) > 4 and n == int(sys.argv[4]):
        print("effect", flush=True)
        sys.stdin.readline()
    return n

config = json.loads(sys.argv[3])
with Tavern.open(config, home=sys.argv[1], plugins=[Plugin([charge], name="shop")]) as host:
    out = []
    for n in range(NUMBER):
        result = host.invoke_sync("shop:charge", {"n": n}, idempotency_key=f"k{n}")
        out.append([result.value, result.error and [result.error.kind, result.error.outcome]])
print(json.dumps(out))
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_two_processes_make_each_call_once(tmp_path: Path, store: str) -> None:
    with redis_server.database() as address:
        config = json.dumps({"audit": {"enabled": False}, "state": {"store": address if store == "redis" else store}})
        effects = tmp_path / "effects.txt"
        code = PROGRAM.replace("NUMBER", "300")
        others = [start(code, tmp_path / "shared", effects, config) for _ in range(2)]
        outputs = [other.communicate(timeout=100) for other in others]
    for (out, err), other in zip(outputs, others, strict=True):
        assert other.returncode == 0, err
        assert json.loads(out) == [[n, None] for n in range(300)]
    assert sorted(map(int, effects.read_text().split())) == list(range(300))


@pytest.mark.slow
def test_a_call_whose_process_was_killed_is_not_made_again(tmp_path: Path) -> None:
    effects, shared = tmp_path / "effects.txt", tmp_path / "shared"
    code = PROGRAM.replace("NUMBER", "3")
    for _ in range(3):
        with start(code, shared, effects, "{}", 1) as victim:
            line = victim.stdout.readline() if victim.stdout else ""
            if "effect" in line:
                victim.send_signal(signal.SIGKILL)
    out = json.loads(run(code, shared, effects, "{}"))
    assert out == [[0, None], [None, ["CONNECTION_LOST", "unknown"]], [2, None]]
    assert effects.read_text().split() == ["0", "1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_the_key_of_a_killed_call_expires_although_nobody_uses_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    effects, shared, ran = tmp_path / "effects.txt", tmp_path / "shared", list[int]()
    real, shift = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + shift)

    @tool
    def charge(n: int) -> int:
        ran.append(n)
        return n

    with redis_server.database() as address:
        config = {"idempotency": {"ttlMs": 60_000}, "state": {"store": address if store == "redis" else store}}

        def keyed(n: int) -> Any:
            return opened.invoke_sync("shop:charge", {"n": n}, idempotency_key=f"k{n}")

        def records() -> Any:
            return RedisRecords(address) if store == "redis" else SqliteRecords(shared / "state.sqlite")

        with start(PROGRAM.replace("NUMBER", "2"), shared, effects, json.dumps(config), 1) as victim:
            assert victim.stdout.readline() == "effect\n"
            victim.send_signal(signal.SIGKILL)
        with Tavern.open(config, home=shared, plugins=[Plugin([charge], name="shop")]) as opened:
            assert keyed(7).ok  # any call with a key, by another process
            with contextlib.closing(records()) as kept:
                found: list[Any] = []
                while not found:
                    found = [one for one in kept.list("answer") if one.state == "unknown"]
            assert 0 < found[0].expires - real() <= 60
            assert keyed(1).error.kind == "CONNECTION_LOST"
        shift = 61.0
        with Tavern.open(config, home=shared, plugins=[Plugin([charge], name="shop")]) as opened:
            assert keyed(1).value == 1
    assert ran == [7, 1]


@pytest.mark.slow
def test_a_key_of_a_call_that_runs_does_not_expire(tmp_path: Path) -> None:
    effects, shared = tmp_path / "effects.txt", tmp_path / "shared"
    config = {"idempotency": {"ttlMs": 1_000}}

    @tool
    def charge(n: int) -> int:
        return n

    soon = CallContext(principal=HOST_PRINCIPAL, budget=Budget(timeout_ms=1_500))
    with start(PROGRAM.replace("NUMBER", "1"), shared, effects, json.dumps(config), 0) as other:
        assert other.stdout.readline() == "effect\n"
        with Tavern.open(config, home=shared, plugins=[Plugin([charge], name="shop")]) as opened:
            assert opened.invoke_sync("shop:charge", {"n": 7}, idempotency_key="k7").ok
            waited = opened.invoke_sync("shop:charge", {"n": 0}, idempotency_key="k0", context=soon)
            assert waited.error is not None
            assert waited.error.kind == "TIMEOUT"
    assert effects.read_text().split() == ["0"]


@pytest.mark.slow
def test_the_command_line_takes_a_key(tmp_path: Path) -> None:
    from tests.state.processes import ENVIRONMENT

    folder = tmp_path / "plugins" / "pen"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(
        "name: pen\nversion: '1'\ntools: [{id: add, implementation: {type: python}}]\n", encoding="utf-8"
    )
    (folder / "__init__.py").write_text(
        "from tavern_core import hookimpl, tool\n\n\n@tool\ndef add(line: str) -> str:\n"
        f"    with open({str(tmp_path / 'out.txt')!r}, 'a') as file:\n        file.write(line)\n    return line\n\n\n"
        "@hookimpl\ndef tavern_register_tools():\n    return [add]\n",
        encoding="utf-8",
    )
    (tmp_path / "tavern.yaml").write_text("{}", encoding="utf-8")
    command = ["-m", "tavern_core", "tools", "call", "pen:add", "line=x", "--key", "order-1"]
    environment = {**ENVIRONMENT, "TAVERN_HOME": str(tmp_path / "home")}
    for _ in range(2):
        done = run_forked(command, cwd=tmp_path, env=environment)
        assert (done.returncode, done.stdout.strip()) == (0, "x"), done.stderr
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "x"


def test_who_waits_for_a_call_that_its_own_caller_gave_up_makes_it_himself() -> None:
    ran: list[int] = []

    @tool(idempotent=True)
    async def look() -> int:
        ran.append(1)
        await asyncio.sleep(60 if len(ran) == 1 else 0)
        return len(ran)

    host.tools.register(look)

    async def both() -> Any:
        first = asyncio.ensure_future(host.invoke("app:look", idempotency_key="same"))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(host.invoke("app:look", idempotency_key="same"))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(both()).value == 2


def test_the_key_of_a_call_that_waited_for_another_one_is_as_old_as_its_own_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, shift, ran = time.time, 0.0, 0
    monkeypatch.setattr(time, "time", lambda: real() + shift)

    @tool(idempotent=True)
    async def look() -> int:
        nonlocal ran
        ran += 1
        await asyncio.sleep(60 if ran == 1 else 0)
        return ran

    host.tools.register(look)

    async def both() -> None:
        nonlocal shift
        first = asyncio.ensure_future(host.invoke("app:look", idempotency_key="same"))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(host.invoke("app:look", idempotency_key="same"))
        await asyncio.sleep(0)
        shift = 1_000.0
        first.cancel()
        assert (await second).value == 2

    asyncio.run(both())
    [kept] = host.records.list("answer")
    assert kept.created > real() + 900


def test_an_answer_is_given_again_with_any_kind_of_evidence_and_job_that_a_tool_gave(tmp_path: Path) -> None:
    @tool
    def odd() -> ToolResult:
        return ToolResult(True, 1, evidence=(Evidence("receipt", "no. 5"),), job=5)  # type: ignore[arg-type]

    found = []
    for _ in range(2):
        with Tavern.open({}, home=tmp_path / "odd", plugins=[Plugin([odd], name="odd")]) as opened:
            found.append(opened.invoke_sync("odd:odd", idempotency_key="k"))
    first, again = found
    assert again.ok and again.meta["idempotency"] == "replayed", again.error
    assert again.evidence[1].type == first.evidence[1].type == "receipt"


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_an_answer_is_given_again_until_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    real, shift = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    other = Shop()
    config = {"idempotency": {"ttlMs": 60_000}, "state": {"store": store}}
    for _ in range(2):  # the second host of a state folder knows what the first one did
        with Tavern.open(config, home=tmp_path / "other", plugins=[Plugin(other.tools, name="shop")]) as opened:
            for _ in range(3):
                assert opened.invoke_sync("shop:charge", {"amount": 1}, idempotency_key="k").ok
    assert len(other.ran) == (1 if store == "sqlite" else 2)
    with Tavern.open(config, home=tmp_path / "other", plugins=[Plugin(other.tools, name="shop")]) as opened:
        assert opened.invoke_sync("shop:charge", {"amount": 1}, idempotency_key="k").ok
        before, shift = len(other.ran), 61.0
        assert opened.invoke_sync("shop:charge", {"amount": 1}, idempotency_key="k").ok
    assert len(other.ran) == before + 1


@pytest.mark.slow
def test_answers_that_are_remembered_are_bounded() -> None:
    for number in range(1_100):
        assert called("charge", {"amount": number}, f"k{number}").ok
    keys = host._host.calls.pipeline.governance.idempotency
    assert len(keys._recent | keys._older) <= 1_000
    assert called("charge", {"amount": 0}, "k0").meta["idempotency"] == "replayed"
    assert called("charge", {"amount": 1}, "k0").error.kind == "IDEMPOTENCY_CONFLICT"
    assert len(shop.ran) == 1_100
