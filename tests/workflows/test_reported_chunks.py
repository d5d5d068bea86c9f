"""What the events of a run tell of its streams: everything but the secrets, also where chunks part one."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Final, NodeContext, Out, Plugin, Stream, hookimpl, node
from tavern_core.schema.secret_encodings import MASK, SecretRedactor, StreamRedactor, forms
from tests.workflows.folder import Flows

pytestmark = pytest.mark.anyio
SECRET = "Kq7Zx9Wm-stream-secret-4711"
TEXTS = {
    "it stands in the middle": (f"it is {SECRET} indeed", f"it is {MASK} indeed"),
    "it is all": (SECRET, MASK),
    "it stands twice": (f"{SECRET}{SECRET}", f"{MASK}{MASK}"),
    "it stands at the end": (f"it is {SECRET}", f"it is {MASK}"),
    "another begins like it": ("it is Kq7Zx or Kq7", "it is Kq7Zx or Kq7"),
    "it is cut off": (f"it is {SECRET[:-1]}", f"it is {MASK}"),
    "in JSON": (json.dumps({"k": SECRET}), json.dumps({"k": MASK})),
    "there is none": ("nothing to see", "nothing to see"),
}
TEXT = {"dataFlowType": "STRING"}


@node("l:Say")
async def say(text: str, size: int = 1) -> Out(pieces=Stream[str], whole=str):
    for at in range(0, len(text), size):
        yield text[at : at + size]
    yield Final(whole=text)


@node("l:Tell")
async def tell(ctx: NodeContext, text: str) -> Out(y=int):
    ctx.progress(1, 2, text)
    return 1


@node("l:Ask")
async def ask(ctx: NodeContext, prompt: str) -> Out(y=str):
    return await ctx.ask({"type": "string"}, prompt)


class Nodes:
    @hookimpl
    def tavern_register_nodes(self) -> list[Any]:
        return [say, tell, ask]


@pytest.fixture
def flows(tmp_path: Path) -> Flows:
    return Flows(tmp_path)


def kept_of_each(home: Path) -> dict[str, list[list[Any]]]:
    """The events on the disk, by run."""
    found: dict[str, list[list[Any]]] = {}
    with contextlib.closing(sqlite3.connect(home / "runs.db", isolation_level=None)) as base:
        for run, data in base.execute("select run, data from events order by run, first"):
            found.setdefault(run, []).extend(json.loads(data))
    return found


def kept(home: Path) -> list[list[Any]]:
    """All events on the disk."""
    return [event for events in kept_of_each(home).values() for event in events]


@pytest.mark.parametrize("size", [1, 3, 7, 300])
async def test_reported_chunks_hold_no_secret_wherever_they_are_split(flows: Flows, size: int) -> None:
    for number, (text, _) in enumerate(TEXTS.values()):
        flows.write(
            f"say-{number}",
            {"w": {"type": "l:Say", "text": text, "size": size}, "o": "core:GroupOutput"},
            "w.pieces>o.t",
            interfaceOutputs={"t": {**TEXT, "isStream": True}},
        )
    done = {}
    async with flows.open(Plugin(Nodes(), name="l"), secrets={"s": SECRET}) as tavern:
        for number, how in enumerate(TEXTS):
            run = await tavern.workflows.start(f"say-{number}")
            reported = [(event.path, event.data) async for event in run.events() if event.kind == "chunk"]
            done[how] = reported, await run
    stored = kept_of_each(flows.root / "home")
    for how, (reported, result) in done.items():
        clean = TEXTS[how][1]
        found = [(event[3], event[4]) for event in stored[result.run_id] if event[2] == "chunk"]
        assert by_path(reported) == by_path(found) == {"w": clean, "o": clean}, how
        assert result.outputs["t"] == clean, how


def by_path(reported: list[tuple[str, Any]]) -> dict[str, str]:
    """The text that the events of each node tell."""
    found: dict[str, str] = {}
    for path, data in reported:
        found[path] = found.get(path, "") + "".join(data["chunks"].values())
    return found


async def test_what_a_run_gives_holds_no_secret(flows: Flows) -> None:
    deep = {"list": [{SECRET: 1}, f"it is {SECRET}"], "n": 1}
    flows.write(
        "give", {"a": {"type": "core:Text", "text": f"it is {SECRET}"}, "b": {"type": "core:JsonParse", "text": json.dumps(deep)}, "o": "core:GroupOutput"},
        "a.text>o.t b.value>o.v", interfaceOutputs={"t": TEXT, "v": {"dataFlowType": "OBJECT"}},
    )  # fmt: skip
    async with flows.open(secrets={"s": SECRET}) as tavern:
        result = await tavern.workflows.run("give")
    assert result.ok, result.errors
    assert result.outputs == {"t": f"it is {MASK}", "v": {"list": [{MASK: 1}, f"it is {MASK}"], "n": 1}}


async def test_progress_tells_no_secret(flows: Flows) -> None:
    flows.write(
        "tell",
        {"t": {"type": "l:Tell", "text": f"trying {SECRET}"}, "o": "core:GroupOutput"},
        "t.y>o.y",
        interfaceOutputs={"y": {"dataFlowType": "INTEGER"}},
    )
    async with flows.open(Plugin(Nodes(), name="l"), secrets={"s": SECRET}) as tavern:
        run = await tavern.workflows.start("tell")
        said = [event.data["text"] async for event in run.events() if event.kind == "progress"]
    assert said == [f"trying {MASK}"]


async def test_a_question_tells_no_secret(flows: Flows) -> None:
    flows.write(
        "ask",
        {"a": {"type": "l:Ask", "prompt": f"is {SECRET} right?"}, "o": "core:GroupOutput"},
        "a.y>o.y",
        interfaceOutputs={"y": TEXT},
    )
    async with flows.open(Plugin(Nodes(), name="l"), secrets={"s": SECRET}) as tavern:
        run = await tavern.workflows.start("ask")
        async for event in run.events():
            if event.kind == "ask":
                asked = [event.data["prompt"], *(question.prompt for question in run.questions)]
                run.answer(event.data["question"], "yes")
        result = await run
    assert asked == [f"is {MASK} right?"] * 2
    assert result.outputs["y"] == "yes"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_text_in_any_pieces_holds_no_spelling_of_any_secret(seed: int) -> None:
    secrets = [
        "abcdefgh",
        "abcdefgh-long-one",
        "密钥口令-4711",
        "gh-tok/en+x=",
        "aaaaaaab",
        "xyxyxyxyxyz",
        "ghijklmn",
    ]  # one ends as another begins
    spellings = [form for secret in secrets for form in forms(secret)]
    chance, secret_redactor = random.Random(seed), SecretRedactor(secrets)
    for _ in range(600):
        text = "".join(
            chance.choice([*secrets, "a", "ab", "xy", "密钥", " ", "zz", chance.choice(spellings)])
            for _ in range(chance.randint(1, 8))
        )
        cuts = sorted(chance.sample(range(len(text) + 1), min(len(text), chance.randint(0, 8))))
        stream = StreamRedactor(secret_redactor)
        said = (
            "".join(stream.feed(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)) + stream.end()
        )
        assert [form for form in spellings if form in said] == [], (text, cuts)
        if not any(form[:8] in text for form in spellings):
            assert said == text
