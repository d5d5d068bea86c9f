"""An answer that is too large to pass on: its beginning, and a link to the whole as an artifact."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from pydantic_core import to_json

from tavern_core.errors import ArtifactNotFound, CallError, OutputTooLarge, StateDamaged
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.running_call import CallLimits, RunningCall
from tavern_core.kernel.calls.taint_tracking import sources_of
from tavern_core.kernel.catalogue.call_plan import InternalOperation
from tavern_core.model.artifact import Artifact
from tavern_core.model.call import CallContext
from tavern_core.model.result import ToolResult, failure
from tavern_core.schema.bounded_json_copying import NUMBERS


class ArtifactStore(Protocol):
    """Stores large answers."""

    def put(
        self, data: Any, media_type: str = ..., *, name: str = ..., context: CallContext | None = ..., call_id: str = ...,
        untrusted: Collection[str] = ...,
    ) -> Artifact: ...  # fmt: skip

    def get(self, id: str, *, context: CallContext | None = ...) -> Artifact: ...  # noqa: A002 - the artifact's

    def read(self, id: str, start: int = ..., length: int = ..., *, context: CallContext | None = ...) -> bytes: ...  # noqa: A002


@dataclass(frozen=True, slots=True)
class LargeResults:
    """Shortens answers where `artifacts.over` is set."""

    limits: CallLimits
    store: ArtifactStore
    series: str
    """Start of the call ids of this host."""

    def shortened(self, call: RunningCall, result: ToolResult) -> ToolResult:
        """The result, or its beginning and a link to an artifact of the caller. A failure if that cannot be stored."""
        plan, context, most = call.plan, call.context, self.limits.inline_bytes
        if plan is None or context is None or most is None or isinstance(call.written, InternalOperation):
            return result
        owner = None if context is plan.admission.host else context
        try:
            return self._shortened(result, most, plan.id, owner)
        except StateDamaged as error:
            late = OutputTooLarge(
                f"{plan.id}: its answer is too large to pass on and cannot be stored: {error.message}",
                hint=error.hint,
                outcome="done",
            )
            return failure(late, call.trace(self.series))
        except CallError as error:
            return failure(error, call.trace(self.series))

    def _shortened(self, result: ToolResult, most: int, tool: str, owner: CallContext | None) -> ToolResult:
        value, preview = result.value, self.limits.preview
        if (
            not result.ok
            or result.status != "ok"
            or type(value) in NUMBERS
            or (type(value) is str and len(value) * 4 <= most)
        ):
            return result
        is_text = isinstance(value, str)
        data = value.encode("utf-8", "surrogatepass") if is_text else to_json(value, inf_nan_mode="constants")
        if len(data) <= most or self._is_short(value, owner):
            return result
        kind, ending = ("text/plain", "txt") if is_text else ("application/json", "json")
        name = f"{tool.replace(':', '-')}.{ending}"
        sources = sources_of(result)
        made = self.store.put(data, kind, name=name, context=owner, call_id=result.call_id, untrusted=sources)
        beginning = data[: preview * 4].decode("utf-8", "ignore")[:preview]
        shown: dict[str, Any] = {"preview": beginning, "truncated": True, "artifact": made.to_json()}
        reported = {"type": "text", "text": f"{beginning}…\n({len(data):,} bytes; the whole: {made.uri})"}
        return result.replace(value=shown, content=(reported, made.link(), *result._content))

    def _is_short(self, value: Any, owner: CallContext | None) -> bool:
        """Whether it was shortened before: a key's stored answer, whose preview may exceed the limit of answers."""
        if type(value) is not dict or value.keys() != {"preview", "truncated", "artifact"}:
            return False
        beginning, artifact = value["preview"], value["artifact"]
        if type(beginning) is not str or len(beginning) > self.limits.preview or type(artifact) is not dict:
            return False
        try:
            return self.store.get(artifact.get("uri", ""), context=owner).to_json() == artifact
        except ArtifactNotFound:
            return False
