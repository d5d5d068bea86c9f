"""Which share of the node types that a workflow needs is found from its title and description.

    pip download --no-deps --dest WHEELS comfyui-embedded-docs==0.5.15 comfyui-workflow-templates-json==0.1.123 comfyui-manager==4.3
    python tests/benchmarks/quality/recall.py WHEELS [--part dev]

The documents are the 1,024 node types that ComfyUI documents, and 4,000 more of which only the name and the text of their
extension are known. The workflows are ComfyUI's own templates, with titles and descriptions in English and Chinese. A
hash of its name decides to which part a workflow belongs: `examples` (60 %) are the example workflows of the host, weights
were chosen on `dev` (20 %), and the published figures are those of `test`. In the split *by family* the hash is that of the
model that the workflow is about, so that no example is about the same model. No workflow of a test part is in any dev part.

The labels are the documented node types of the workflow itself. A plan is the titles of the groups that its author drew, as
far as there are any ("Models", "Prompt"): the closest thing to a plan in these files, and a vague one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tavern_core import NodeSpec, Plugin, Slot, Tavern, hookimpl
from tavern_core.assistant.node_index import NodeIndex

sys.path.insert(0, str(Path(__file__).parent))
from comfy_corpus import PINS, NodeDocument, Template, documents, templates, undocumented

MORE: Final = 4_000
AT: Final = (20, 40)
Search = Callable[[str, Sequence[str]], list[str]]
"""(request, plan) → node types, best first."""


def specs(corpus: Sequence[NodeDocument]) -> list[NodeSpec]:
    """The documents as node types; the data types of ComfyUI become categories of ports."""
    return [
        NodeSpec(
            f"comfy:{one.type}",
            {key: Slot(key, "OBJECT", "", text, needed, (kind.upper(),)) for key, kind, text, needed in one.inputs},
            {key: Slot(key, "OBJECT", "", text, False, (kind.upper(),)) for key, kind, text in one.outputs},
            display_name=one.title,
            description=one.description,
            category="image",
            impl=lambda: None,
        )
        for one in corpus
    ]


class Comfy:
    """A plugin with the node types."""

    def __init__(self, corpus: Sequence[NodeDocument]) -> None:
        self.nodes = specs(corpus)

    @hookimpl
    def tavern_register_nodes(self) -> list[NodeSpec]:
        return self.nodes


def write(folder: Path, examples: Sequence[Template], languages: Sequence[str]) -> Path:
    """The example workflows as files of this host: a name, a description and the nodes."""
    folder.mkdir(parents=True)
    for one in examples:
        name, description = (" ".join(one.texts[language][at] for language in languages) for at in (0, 1))
        nodes = [{"id": str(at), "type": f"comfy:{type_}"} for at, type_ in enumerate(sorted(one.types))]
        content = {"name": name, "description": description, "nodes": nodes, "edges": []}
        (folder / f"{one.name}.json").write_text(json.dumps(content), "utf-8")
    return folder


def opened(root: Path, corpus: Sequence[NodeDocument], examples: Path | None) -> Tavern:
    config: dict[str, Any] = {"workflows": {"roots": [], "asTools": False}, "plugins": {"roots": []}}
    if examples is not None:
        config["assistant"] = {"examples": [str(examples)]}
    return Tavern.open(config, plugins=[Plugin(Comfy(corpus), name="comfy")], home=root / "home")


def recall(search: Search, asked: Sequence[Template], known: frozenset[str], language: str, plans: bool) -> list[float]:
    """The mean share of needed types among the first 20 and 40."""
    shares: list[list[float]] = [[] for _ in AT]
    for one in asked:
        needed = {f"comfy:{type_}" for type_ in one.types & known}
        found = search(". ".join(one.texts[language]), one.plan if plans else ())
        for place, most in enumerate(AT):
            shares[place].append(len(needed.intersection(found[:most])) / len(needed))
    return [statistics.mean(each) for each in shares]


def parted(found: Sequence[Template], by_family: bool) -> dict[str, list[Template]]:
    """The workflows by part; those of `test` that are in the dev part of the other split belong to none."""
    parts: dict[str, list[Template]] = {"test": [], "dev": [], "examples": []}
    for one in found:
        share, other = one.share("recall", by_family), one.share("recall", not by_family)
        if share >= 0.2:
            parts["dev" if share < 0.4 else "examples"].append(one)
        elif not 0.2 <= other < 0.4:
            parts["test"].append(one)
    return parts


def rows(wheels: Path, part: str) -> list[tuple[str, ...]]:
    """The table, row by row."""
    english, chinese = documents(wheels, "en"), documents(wheels, "zh")
    more, known = undocumented(wheels, MORE), frozenset(english)
    found: list[tuple[str, ...]] = []
    for by_family in (False, True):
        parts = parted([one for one in templates(wheels) if one.types & known], by_family)
        split = (
            f"{'by family' if by_family else 'by name'} ({len(parts['examples'])} examples, {len(parts[part])} asked)"
        )
        popular = Counter(type_ for one in parts["examples"] for type_ in one.types & known)
        order = [f"comfy:{type_}" for type_ in sorted(popular, key=lambda type_: (-popular[type_], type_))]
        for described, own in (("en", english), ("zh", chinese)):
            corpus = [*own.values(), *(one for one in more if one.type not in known)]
            found += _rows(split, described, corpus, parts, part, known, order)
    return found


def _rows(
    split: str,
    described: str,
    corpus: Sequence[NodeDocument],
    parts: dict[str, list[Template]],
    part: str,
    known: frozenset[str],
    order: list[str],
) -> list[tuple[str, ...]]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        examples = write(root / "examples", parts["examples"], [described])
        with opened(root / "with", corpus, examples) as host, opened(root / "without", corpus, None) as bare:
            times: list[float] = []

            def retrieve(request: str, plan: Sequence[str]) -> list[str]:
                began = time.perf_counter()
                matches = host.nodes.retrieve(request, plan=plan, limit=max(AT))
                times.append(time.perf_counter() - began)
                return [match.type for match in matches]

            def without_examples(request: str, plan: Sequence[str]) -> list[str]:
                return [match.type for match in bare.nodes.retrieve(request, limit=max(AT))]

            index = NodeIndex()
            index.sync(bare.nodes.list(), {})

            def bm25(request: str, plan: Sequence[str]) -> list[str]:
                return list(index.by_words(request, max(AT), ""))

            for asked in ("en", "zh"):
                searches: list[tuple[str, Search, bool]] = [
                    ("BM25 of the documents", bm25, False),
                    ("popularity in the examples", lambda request, plan: order, False),
                    ("retrieve, without examples", without_examples, False),
                    ("**retrieve**", retrieve, False),
                    ("**retrieve**, with a plan", retrieve, True),
                ]
                for name, search, plans in searches:
                    figures = recall(search, parts[part], known, asked, plans)
                    found.append((split, described, asked, name, *(f"{figure:.2f}" for figure in figures)))
                    print(*found[-1], sep=" | ", file=sys.stderr, flush=True)
            print(f"one request: {statistics.median(times) * 1000:.1f} ms", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, help="folder with the wheels")
    parser.add_argument("--part", choices=("test", "dev"), default="test")
    options = parser.parse_args()
    try:
        found = rows(options.wheels, options.part)
    except StopIteration:
        wanted = " ".join(f"{package}=={version}" for package, version in PINS.items())
        print(f"the wheels are missing: pip download --no-deps --dest {options.wheels} {wanted}", file=sys.stderr)
        return 2
    print("| split | documents | request | search | recall@20 | recall@40 |\n|---|---|---|---|---:|---:|")
    print("\n".join(f"| {' | '.join(row)} |" for row in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
