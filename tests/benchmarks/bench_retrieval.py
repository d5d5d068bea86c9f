"""How long it takes to find the node types for a request among three thousand, and to write them for a prompt.

python tests/benchmarks/report.py --only retrieval
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tavern_core import NodeSpec, Plugin, Slot, Tavern, hookimpl
from tavern_core.assistant.node_text import node_documents

CONDITIONS = "audit on; 3,000 node types, 400 example workflows in a folder, requests of 40 words; any CPU"
TYPES, EXAMPLES, REQUESTS = 3_000, 400, 200
KINDS = ["IMAGE", "MASK", "LATENT", "MODEL", "AUDIO", "VIDEO", "MESH", "CONDITIONING", "VAE", "TEXT"]
WORDS = [
    "load", "save", "image", "video", "mask", "prompt", "sample", "decode", "encode", "upscale", "blend", "crop", "noise",
    "style", "depth", "pose", "audio", "voice", "mesh", "texture", "light", "color", "face", "text", "model", "frame",
]  # fmt: skip
CHINESE = [
    "图像",
    "视频",
    "遮罩",
    "提示词",
    "采样",
    "解码",
    "编码",
    "放大",
    "混合",
    "裁剪",
    "噪声",
    "风格",
    "深度",
    "姿势",
    "音频",
]


class Many:
    """Node types whose words are common ones, rare ones and Chinese ones."""

    def __init__(self, pick: random.Random) -> None:
        self.rare = [f"{pick.choice(WORDS)}{n}" for n in range(2_000)]
        self.specs = [self._made(pick, number) for number in range(TYPES)]

    @hookimpl
    def tavern_register_nodes(self) -> list[NodeSpec]:
        return self.specs

    def _made(self, pick: random.Random, number: int) -> NodeSpec:
        def slots(most: int, required: bool) -> dict[str, Slot]:
            kinds = pick.sample(KINDS, pick.randint(1, most))
            return {kind: Slot(kind, "OBJECT", "", self.text(pick, 6), required, (kind,)) for kind in kinds}

        inputs = slots(5, True) | {"amount": Slot("amount", "FLOAT", config={"default": 0.5, "min": 0})}
        name = " ".join(pick.choices(WORDS, k=2)).title()
        return NodeSpec(
            f"many:Node{number}", inputs, slots(2, False), display_name=name, description=self.text(pick, 40),
            category=pick.choice(WORDS), impl=print,
        )  # fmt: skip

    def text(self, pick: random.Random, words: int) -> str:
        common, rare = pick.choices(WORDS, k=words // 2), pick.choices(self.rare, k=words - words // 2)
        return f"{' '.join(common + rare)} {''.join(pick.choices(CHINESE, k=2))}."


def rows() -> list[dict[str, Any]]:
    """All rows: area, name, value, unit, against, ratio, target."""
    pick = random.Random(14)
    many = Many(pick)
    requests = [many.text(pick, 40) for _ in range(REQUESTS)]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        examples = Path(folder) / "examples"
        _write(examples, pick, many)
        config = {"workflows": {"roots": []}, "assistant": {"examples": [str(examples)]}}
        with Tavern.open(config, plugins=[Plugin(many, name="many")], home=Path(folder) / "home") as tavern:
            specs = {spec.type: spec for spec in tavern.nodes.list()}
            found.append(
                _row(
                    "first request: reads the examples and builds the index", _taken(lambda: tavern.nodes.retrieve("x"))
                )
            )

            def prompt(request: str) -> list[str]:
                matches = tavern.nodes.retrieve(request, limit=40)
                return node_documents([specs[match.type] for match in matches], 6_000)

            taken = sorted(
                _taken(lambda request=request: tavern.nodes.retrieve(request, limit=40)) for request in requests
            )
            found.append(_row("40 node types for a request: p50", statistics.median(taken)))
            taken = sorted(_taken(lambda request=request: prompt(request)) for request in requests)
            found.append(_row("the same and their texts in 6,000 tokens: p50", statistics.median(taken), 30))
            found.append(_row("the same: p95", taken[int(len(taken) * 0.95)]))
            asked = [_until_asked(tavern, request) for request in requests]
            found.append(
                _row(
                    "a proposal until its model is asked: check, search, whole prompt: p50",
                    statistics.median(asked),
                    30,
                )
            )
    return found


def _until_asked(tavern: Tavern, request: str) -> float:
    """Milliseconds from a request to the assistant until the model has its prompt."""
    began = time.perf_counter()
    ended: list[float] = []

    def model(messages: object) -> str:
        ended.append(time.perf_counter())
        return '{"reason": "nothing to do", "patch": []}'

    tavern.wait(tavern.assistant.propose(request, None, model))
    return (ended[0] - began) * 1_000


def _write(folder: Path, pick: random.Random, many: Many) -> None:
    folder.mkdir()
    for number in range(EXAMPLES):
        types = pick.choices(many.specs, k=10)
        nodes = [{"id": str(at), "type": spec.type} for at, spec in enumerate(types)]
        content = {"name": many.text(pick, 6), "description": many.text(pick, 30), "nodes": nodes, "edges": []}
        (folder / f"example{number}.json").write_text(json.dumps(content), "utf-8")


def _taken(work: Callable[[], object]) -> float:
    """Milliseconds of one run."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1_000


def _row(name: str, milliseconds: float, limit: float | None = None) -> dict[str, Any]:
    return {
        "area": "retrieval", "name": name, "value": milliseconds, "unit": "ms", "against": "" if limit is None else f"{limit:g} ms",
        "ratio": None if limit is None else milliseconds / limit, "target": None if limit is None else 1,
    }  # fmt: skip
