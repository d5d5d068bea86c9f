"""What nodes give is searched for secrets whatever its size and form, and nobody waits for that."""

from __future__ import annotations

import asyncio
import base64
import random
from typing import Any

import pytest

from tavern_core import Out, Plugin, Tavern, hookimpl, node
from tavern_core.flow.engine import sqlite_run_store
from tests.engine.workbench import flow
from tests.workflows.folder import CALLS, Flows

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
KNOWN = "Kq7Zx9Wm-known-secret"
LOOKS = "sk-abcdefghijklmnopqrstuvwx"
FILLER = "lorem ipsum dolor sit amet, "
TURNS: list[int] = []
GIVEN: dict[str, Any] = {}


@node("b:Give")
async def give(what: str) -> Out(y=Any):
    CALLS.append("give")
    TURNS.append(TURNS[0])
    return GIVEN[what]


@node("b:After")
async def after(y: Any) -> Out(turn=int):
    TURNS.append(TURNS[0])
    return 1


class Nodes:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [give, after]


def opened(flows: Flows) -> Tavern:
    return flows.open(Plugin(Nodes(), name="b"), secrets={"login": KNOWN})


def amid(secret: str, at: float, size: int = 400_000) -> str:
    """A long text with a secret in it."""
    text = FILLER * (size // len(FILLER))
    place = int(at * len(text))
    return f"{text[:place]} {secret} {text[place:]}"


HIDDEN: dict[str, Any] = {
    "at the beginning of a long text": amid(LOOKS, 0),
    "in the middle of a long text": amid(LOOKS, 0.5),
    "at the end of a long text": amid(LOOKS, 1),
    "a known one in a long text": amid(KNOWN, 0.7),
    "a known one in a long text that is not ASCII": "中文" * 100_000 + KNOWN,
    "behind a name in a long text": amid("password=hunter2hunter2", 0.3),
    "a private key longer than a piece": amid(
        f"-----BEGIN RSA PRIVATE KEY-----\n{'QUJD' * 20_000}\n-----END RSA PRIVATE KEY-----", 0.4
    ),
    "in one of many short texts": [*(f"item {at}" for at in range(20_000)), LOOKS],
    "under a name behind thousands of values": [*({"n": at} for at in range(20_000)), {"password": "hunter2"}],
    "deep below a name": {"items": list(range(10_000)), "login": {"token": [[["open-sesame"]]]}},
    "as a name of many": {**{f"k{at}": at for at in range(20_000)}, LOOKS: 1},
    "below many lists": [[[[[amid(KNOWN, 0.9, 20_000)]]]]],
    "beside half a character": "\ud800" + amid(LOOKS, 0.5),
}
OPEN: dict[str, Any] = {
    "a long text": FILLER * 20_000,
    "a long text full of signs of secrets": "the token: is empty and the password is required. " * 4_000,
    "a long text that is not ASCII": "中文" * 100_000,
    "many texts": [f"item {at}" for at in range(20_000)],
    "many objects": [{"id": at, "name": "x", "max_tokens": 5} for at in range(5_000)],
    "bytes": bytes(range(256)) * 1_000,
    "numbers": list(range(20_000)),
}


async def test_a_secret_is_found_wherever_it_stands_in_what_a_node_gave(flows: Flows) -> None:
    GIVEN.update(HIDDEN)
    TURNS[:] = [0]
    async with opened(flows) as tavern:
        for how in HIDDEN:
            gives = {"type": "b:Give", "what": how, "exec": {"cache": "disk"}}
            run = (await tavern.workflows.run(flow({"g": gives, "p": "t:Plain"}))).run_id
            assert (await tavern.workflows.record(run)).nodes["g"].outputs == {}, how
    for file in (flows.root / "home").rglob("*"):
        for word in (KNOWN, LOOKS, "hunter2", "open-sesame", "QUJDQUJDQUJD"):
            assert not file.is_file() or word.encode() not in file.read_bytes(), (file, word)


async def test_what_holds_no_secret_is_kept_as_it_was(flows: Flows) -> None:
    GIVEN.update(OPEN)
    TURNS[:] = [0]
    made = {how: flow({"g": {"type": "b:Give", "what": how}, "a": "b:After"}, "g.y>a.y") for how in OPEN}
    async with opened(flows) as tavern:
        runs = {how: (await tavern.workflows.run(made[how])).run_id for how in OPEN}
    async with opened(flows) as tavern:
        for how, run in runs.items():
            CALLS.clear()
            record = await tavern.workflows.record(run)
            events = tavern.workflows.events(run)
            again = await tavern.workflows.run(made[how], again=run)
            assert record.nodes["g"].outputs == {"y": OPEN[how]}, how
            assert record.nodes["g"].bytes == next(
                event.data["bytes"] for event in events if event.path == "g" and event.kind == "complete"
            ), how
            assert (again.states["g"], CALLS) == ("cached", []), how


@pytest.mark.parametrize("cache", ["none", "session", "disk"])
async def test_others_go_on_while_something_large_is_made_ready_for_the_record(flows: Flows, cache: str) -> None:
    GIVEN["it"] = FILLER * 100_000
    flows.write("flow", {"g": {"type": "b:Give", "what": "it", "exec": {"cache": cache}}, "a": "b:After"}, "g.y>a.y")
    TURNS[:] = [0]

    async def turn() -> None:
        while True:
            TURNS[0] += 1
            await asyncio.sleep(0)

    async with opened(flows) as tavern:
        await tavern.workflows.run("flow", cache=False)
        turning = asyncio.create_task(turn())
        del TURNS[1:]
        assert (await tavern.workflows.run("flow")).ok
        given, begun = TURNS[1:]
        assert begun > given
        del TURNS[1:]
        again = await tavern.workflows.run("flow")  # what was kept is put on the record of this run, too
        assert again.states["g"] == ("complete" if cache == "none" else "cached")
        turning.cancel()


async def test_a_run_can_be_cancelled_while_something_large_is_made_ready(flows: Flows) -> None:
    GIVEN["it"] = [amid("no secret", 0.5) for _ in range(20)]
    flows.write("flow", {"g": {"type": "b:Give", "what": "it"}, "a": "b:After"}, "g.y>a.y")
    TURNS[:] = [0]
    async with opened(flows) as tavern:
        handle = await tavern.workflows.start("flow")
        while len(TURNS) == 1:  # noqa: ASYNC110 - it appears by itself
            await asyncio.sleep(0)
        handle.cancel()
        result = await asyncio.wait_for(handle, 30)
        assert (result.state, result.states["g"]) == ("cancelled", "interrupted")
        assert (await tavern.workflows.resume(handle.id)).ok


@pytest.mark.parametrize("seed", range(3))
async def test_large_and_small_pieces_of_anything_come_back_as_they_were(
    flows: Flows, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(sqlite_run_store, "MOST_RECORD", 300_000)

    def made(depth: int) -> Any:
        match dice.randrange(8 if depth else 5):
            case 0:
                return FILLER * dice.choice([1, 10, 1_000])
            case 1:
                return dice.choice([1, 1.5, True, None, 10**30, -0.0])
            case 2:
                return dice.randbytes(dice.choice([1, 20_000]))
            case 3:
                return {"$bytes": base64.b64encode(b"x").decode()}
            case 4:
                return dice.choice(["", "中文", "\u2028", '"\\'])
            case 5:
                return {str(at): made(depth - 1) for at in range(dice.randrange(5))}
            case _:
                return [made(depth - 1) for _ in range(dice.randrange(6))]

    nodes = {}
    for at in range(20):
        GIVEN[f"n{at}"] = made(4)
        nodes[f"n{at}"] = {"type": "b:Give", "what": f"n{at}"}
    flows.write("flow", nodes)
    TURNS[:] = [0]
    async with opened(flows) as tavern:
        run = (await tavern.workflows.run("flow")).run_id
    async with opened(flows) as tavern:
        record = await tavern.workflows.record(run)
        again = await tavern.workflows.run("flow", again=run)
    for at, path in enumerate(nodes):
        given = record.nodes[path].outputs
        assert given == ({"y": GIVEN[path]} if again.states[path] == "cached" else {}), at
    assert "cached" in again.states.values()
