"""A node as a class: it says which lazy input it needs, refuses wrong values before anything runs, and reads old files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from tavern_core import Node, NodeContext, NodeMode, Out, Port, Slot


class Excerpt(Node):
    """Cuts a text to a length; one that is short enough already is handed on, and the ellipsis is never worked out."""

    type = "text-nodes:Excerpt"
    display_name = "节选"
    category = "text"
    version = 2
    cache = True
    modes: ClassVar[Mapping[str, NodeMode]] = {
        "characters": NodeMode("characters", "按字符"),
        "lines": NodeMode("lines", "按行", inputs={
            "text": Slot("text", "STRING", required=True),
            "lines": Slot("lines", "INTEGER", "行数", config={"default": 5, "min": 1}),
            "ellipsis": Slot("ellipsis", "STRING", lazy=True),
        }),
    }  # fmt: skip
    options: ClassVar[Mapping[str, Any]] = {"default_mode": "characters", "mode_config_key": "by"}

    def needs(self, ctx: NodeContext, *, text: str, **limits: Any) -> Iterable[str]:
        return ["ellipsis"] if self._cut(ctx.mode, text, limits) != text else []

    @classmethod
    def validate(cls, inputs: Mapping[str, Any], config: Mapping[str, Any]) -> Iterable[str]:
        if config.get("by", "characters") not in cls.modes:
            yield f"configValues.by is {config['by']!r}; it is characters or lines"

    @classmethod
    def upgrade(cls, node: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """Version 1 called the length `max`."""
        values = dict(node.get("inputValues") or {})
        if "max" in values:
            values["length"] = values.pop("max")
        return {**node, "inputValues": values}

    async def run(
        self,
        ctx: NodeContext,
        text: str,
        length: Annotated[int, Port("长度", min=1)] = 200,
        lines: Annotated[int, Port("行数", min=1)] = 5,
        ellipsis: Annotated[str | None, Port(lazy=True)] = None,
    ) -> Out(text=str):  # type: ignore[valid-type]
        """Cut it.

        Args:
            text: what is cut.
            length: characters that are left.
            lines: lines that are left, when the node cuts by lines.
            ellipsis: what stands for the rest.
        """
        cut = self._cut(ctx.mode, text, {"length": length, "lines": lines})
        return {"text": cut if cut == text else cut + ("…" if ellipsis is None else ellipsis)}

    @staticmethod
    def _cut(mode: str, text: str, limits: Mapping[str, Any]) -> str:
        return "\n".join(text.splitlines()[: limits["lines"]]) if mode == "lines" else text[: limits["length"]]
