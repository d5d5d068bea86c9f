"""What a model is asked, word for word, and that it always fits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tavern_core.errors import UsageError
from tavern_core.model.token_estimate import tokens_of

from .answers import CAPITALS, Models, answer, host

pytestmark = pytest.mark.anyio
HERE = Path(__file__).parent
REQUESTS = {"en": "put the text into capitals", "zh": "把文本变成大写"}


@pytest.mark.parametrize("language", REQUESTS)
async def test_the_prompt_is_the_one_on_file(tmp_path: Path, language: str) -> None:
    plugin = Models(answer(CAPITALS), context_tokens=2_600)
    async with host(tmp_path, plugin) as tavern:
        for _ in range(2):
            await tavern.assistant.propose(REQUESTS[language], {"name": "new", "nodes": [], "edges": []})
    system, user = (str(message["content"]) for message in plugin.model.asked[0])
    title = {"en": "# Node types\n", "zh": "# 节点类型\n"}[language]
    before, _, rest = user.partition(title)
    types, _, after = rest.partition("\n# ")
    written = f"{system}\n\n=====\n\n{before}{title}({types.split(': ')[0]} …)\n# {after}\n"
    assert written == (HERE / f"prompt.{language}.txt").read_text("utf-8")
    assert plugin.model.asked[0] == plugin.model.asked[1]


@pytest.mark.parametrize("language", REQUESTS)
async def test_the_example_in_the_prompt_is_a_correct_answer(tmp_path: Path, language: str) -> None:
    asked = (HERE / f"prompt.{language}.txt").read_text("utf-8")
    example = re.findall(r'^\{"reason".*?\]\}$', asked, re.DOTALL | re.MULTILINE)[-1]
    async with host(tmp_path, Models(example)) as tavern:
        proposal = await tavern.assistant.propose(REQUESTS[language], dry_run=True)
    assert (proposal.ok, proposal.warnings, len(proposal.rounds)) == (True, (), 1)
    assert proposal.dry_run is not None
    assert proposal.dry_run.outputs == {"result": "SAMPLE TEXT"}


@pytest.mark.parametrize("window", [2_500, 4_000, 10_000, 1_000_000])
@pytest.mark.parametrize("nodes", [3, 60])
async def test_a_prompt_fits_into_the_window_and_keeps_the_workflow(tmp_path: Path, window: int, nodes: int) -> None:
    plugin = Models(answer([], "no"), context_tokens=window)
    written = [
        {"id": f"n{at}", "type": "core:Text", "inputValues": {"text": "word " * 100}, "data": {"list": [at] * 50}}
        for at in range(nodes)
    ]
    async with host(tmp_path, plugin) as tavern:
        if (nodes, window) == (60, 2_500):
            with pytest.raises(UsageError, match="do not fit"):
                await tavern.assistant.propose("shorten", {"nodes": written, "edges": []})
            return
        await tavern.assistant.propose("shorten", {"nodes": written, "edges": []})
    whole = "".join(str(message["content"]) for message in plugin.model.asked[0])
    assert tokens_of(whole) <= min(16_000, int(window * 0.6))
    shown = json.loads(plugin.asked(0).rpartition("\n")[2])
    assert list(shown["nodes"]) == [f"n{at}" for at in range(nodes)]


async def test_node_types_of_the_workflow_are_described_before_those_that_were_found(tmp_path: Path) -> None:
    plugin = Models(answer([], "no"))
    async with host(tmp_path, plugin) as tavern:
        await tavern.assistant.propose("a random number", {"nodes": [{"id": "a", "type": "models:Picky"}], "edges": []})
    text = plugin.asked(0)
    places = [text.index(type_) for type_ in ("core:GroupInput", "models:Picky", "core:Random")]
    assert places == sorted(places)
