"""Rankers of plugins: evidence beside the host's own, from a real plugin with vectors."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tavern_core import Plugin, hookimpl
from tavern_core.contract.ranking import NodeDocument
from tests.retrieval.kitchen import Kitchen, types_of

pytestmark = pytest.mark.slow


class Trigrams:
    """Vectors of letter triples: they find "ovn" and "doughs" where words do not."""

    def __init__(self) -> None:
        self.seen: list[Sequence[NodeDocument]] = []
        self.vectors: dict[str, Counter[str]] = {}

    def rank(self, query: str, documents: Sequence[NodeDocument], limit: int) -> list[str]:
        if not self.seen or self.seen[-1] is not documents:
            self.seen.append(documents)
            self.vectors = {one.id: _vector(one.text) for one in documents}
        wanted = _vector(query)
        near = {id_: _cosine(wanted, vector) for id_, vector in self.vectors.items()}
        return sorted((id_ for id_ in near if near[id_] > 0), key=lambda id_: (-near[id_], id_))[:limit]


class Async(Trigrams):
    async def rank(self, query: str, documents: Sequence[NodeDocument], limit: int) -> list[str]:  # type: ignore[override]
        return super().rank(query, documents, limit)


class Ranks:
    def __init__(self, **rankers: Any) -> None:
        self.rankers = rankers

    @hookimpl
    def tavern_register_rankers(self) -> dict[str, Any]:
        return self.rankers


class Says:
    """Answers always the same."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def rank(self, query: str, documents: Sequence[NodeDocument], limit: int) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def _vector(text: str) -> Counter[str]:
    text = f"  {text.casefold()} "
    return Counter(text[at : at + 3] for at in range(len(text) - 2))


def _cosine(one: Counter[str], other: Counter[str]) -> float:
    both = sum(count * other[key] for key, count in one.items())
    return both / math.sqrt(sum(n * n for n in one.values()) * sum(n * n for n in other.values()) or 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Trigrams, Async])
def test_a_ranker_finds_what_no_word_finds(kitchen: Kitchen, kind: type[Trigrams]) -> None:
    with kitchen.open() as host:
        assert "kitchen:Bake" not in types_of(host, "breadmaking in ovenlike things")
    ranker = kind()
    with kitchen.open(Plugin(Ranks(letters=ranker), name="vectors")) as host:
        found = {match.type: match.why for match in host.nodes.retrieve("breadmaking in ovenlike things")}
        assert "ranked by letters" in found["kitchen:Bake"]
        assert types_of(host, "cutting bread", limit=1) == ["kitchen:Slice"]  # the words count on
        assert len(ranker.seen) == 1  # vectors stay valid while no node type changes
        document = next(one for one in ranker.seen[0] if one.id == "kitchen:Bake")
        assert document.text.startswith("Bake (kitchen:Bake). heat\nHeats dough in the oven until it is bread.\ndough")


def test_a_ranker_gets_new_documents_when_a_plugin_goes(kitchen: Kitchen) -> None:
    from tests.retrieval.kitchen import Nodes, a_node

    ranker = Trigrams()
    garden = Plugin(Nodes(a_node("garden:Rake", "Rake")), name="garden")
    with kitchen.open(Plugin(Ranks(letters=ranker), name="vectors"), garden) as host:
        host.nodes.retrieve("rake")
        host.plugins.disable_sync("garden")
        host.nodes.retrieve("rake")
    assert ["garden:Rake" in {one.id for one in each} for each in ranker.seen] == [True, False]


BROKEN = [
    RuntimeError("no vectors today"),
    None,
    7,
    ["no:such", 3, None, "kitchen:OldOven"],
    ["kitchen:Bake"] * 100_000,
]


@pytest.mark.slow
@pytest.mark.parametrize("answer", BROKEN, ids=["raises", "none", "number", "unknown", "endless"])
def test_a_broken_ranker_changes_nothing_but_its_own_evidence(kitchen: Kitchen, answer: Any) -> None:
    with kitchen.open() as host:
        alone = types_of(host, "cutting bread", limit=5)
    with kitchen.open(Plugin(Ranks(broken=Says(answer)), name="vectors")) as host:
        found = types_of(host, "cutting bread", limit=5)
        assert set(alone) <= {"kitchen:Bake", *found}
        assert "kitchen:Slice" in found[:2]
        failed = [note for note in host.diagnostics if note.code == "RANKER_FAILED"]
        assert bool(failed) == (not isinstance(answer, list))
        assert all(note.plugin == "vectors" and "'broken'" in note.message for note in failed)


def test_what_is_no_ranker_fails_the_activation_of_its_plugin(kitchen: Kitchen) -> None:
    with kitchen.open(Plugin(Ranks(odd=object()), name="vectors")) as host:
        assert types_of(host, "cutting bread", limit=1) == ["kitchen:Slice"]
        status = host.plugins["vectors"]
        assert (status.state, "rank" in status.reason) == ("failed", True)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_plugin_in_a_folder_is_activated_by_the_first_request(kitchen: Kitchen, isolation: str) -> None:
    folder = kitchen.root / "plugins" / "vectors"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(f'name: vectors\nversion: "1"\nrankers: [last]\nisolation: {isolation}\n')
    (folder / "__init__.py").write_text(
        "from tavern_core import hookimpl\n"
        "class Last:\n"
        "    def rank(self, query, documents, limit):\n"
        "        return [documents[-1].id]\n"
        "@hookimpl\n"
        "def tavern_register_rankers():\n"
        "    return {'last': Last()}\n"
    )
    options = {"plugins": {"roots": [str(folder.parent)]}, "isolation": {"level": "none"}}
    with kitchen.open(**options) as host:
        found = host.nodes.retrieve("zzz", limit=1)
        status = host.plugins["vectors"]
        if isolation == "none":
            assert ([match.why for match in found], status.state) == ([("ranked by last",)], "active")
        else:  # documents are objects of the host
            assert (found, status.state, "rankers" in status.reason) == ([], "failed", True)


@pytest.mark.slow
def test_a_ranker_that_hangs_is_left_out_and_not_asked_again_for_a_while(kitchen: Kitchen) -> None:
    goes_on, asked = threading.Event(), []

    class Hangs:
        def rank(self, query: str, documents: Sequence[NodeDocument], limit: int) -> list[str]:
            asked.append(query)
            goes_on.wait()
            return []

    with kitchen.open(Plugin(Ranks(slow=Hangs()), name="vectors"), limits={"hookTimeoutMs": 500}) as host:
        try:
            assert types_of(host, "cutting bread", limit=1) == ["kitchen:Slice"]
            assert types_of(host, "cutting bread", limit=1) == ["kitchen:Slice"]
        finally:
            goes_on.set()
        assert asked == ["cutting bread"]
        assert [note.code for note in host.diagnostics if note.plugin == "vectors"] == ["RANKER_FAILED"]
