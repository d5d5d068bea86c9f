"""An answer that is too large to hand around: its beginning, and a link to the whole as an artifact."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Protocol

from pydantic_core import to_json

from tavern_core.kernel.calls.untrusted_content import sources_of
from tavern_core.model.artifact import Artifact
from tavern_core.model.call import CallContext
from tavern_core.model.result import ToolResult

_SCALARS: Final = frozenset({int, float, bool, type(None)})


class ArtifactStore(Protocol):
    """Where answers are put."""

    def put(
        self, data: Any, media_type: str = ..., *, name: str = ..., context: CallContext | None = ..., call_id: str = ...,
        untrusted: Collection[str] = ...,
    ) -> Artifact: ...  # fmt: skip

    def get(self, id: str, *, context: CallContext | None = ...) -> Artifact: ...  # noqa: A002 - the artifact's

    def read(self, id: str, start: int = ..., length: int = ..., *, context: CallContext | None = ...) -> bytes: ...  # noqa: A002


def shortened(
    result: ToolResult, most: int, preview: int, store: ArtifactStore, tool: str, context: CallContext, *, is_host: bool
) -> ToolResult:
    """`result`, or one that shows its beginning and links to the whole.

    Args:
        most: bytes of an answer as JSON that stay in the result.
        preview: characters of the beginning.

    Raises:
        StateDamaged, OutputTooLarge: it cannot be stored.
    """
    value = result.value
    if (
        not result.ok
        or result.status != "ok"
        or type(value) in _SCALARS
        or (type(value) is str and len(value) * 4 <= most)
    ):
        return result
    is_text = isinstance(value, str)
    data = value.encode("utf-8", "surrogatepass") if is_text else to_json(value, inf_nan_mode="constants")
    if len(data) <= most:
        return result
    kind, ending = ("text/plain", "txt") if is_text else ("application/json", "json")
    name = f"{tool.replace(':', '-')}.{ending}"
    sources = sources_of(result)
    owner = None if is_host else context
    made = store.put(data, kind, name=name, context=owner, call_id=result.call_id, untrusted=sources)
    beginning = data[: preview * 4].decode("utf-8", "ignore")[:preview]
    shown: dict[str, Any] = {"preview": beginning, "truncated": True, "artifact": made.to_json()}
    reported = {"type": "text", "text": f"{beginning}…\n({len(data):,} bytes; the whole: {made.uri})"}
    return result.replace(value=shown, content=(reported, made.link(), *result._content))
