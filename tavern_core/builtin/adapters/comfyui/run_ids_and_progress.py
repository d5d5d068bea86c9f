"""The shared part of both APIs of ComfyUI: the values of a call, the id of its run, and reports of its progress."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.builtin.adapters.comfyui.watch import Preview
from tavern_core.contract.adapters import UpstreamCall, UpstreamTool
from tavern_core.errors import IdempotencyConflict, TavernError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.call import owner_of
from tavern_core.model.plain_data import json_digest

_NAMESPACE: Final = uuid.UUID("6f1b1e0e-53b2-5b5c-9c1d-0c5ad1a6f3aa")
_LARGEST_SEED: Final = 2**53 - 1
"""The largest integer that every JSON parser can hold."""
_BETWEEN_PREVIEWS_S: Final = 2.0
_MOST_PREVIEWS: Final = 30
_LARGEST_PREVIEW: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class ComfyUIRequest:
    """The request of one call."""

    tool: UpstreamTool
    run: str
    """A UUID. With an idempotency key the same one for the same caller, tool and key, also after a restart."""
    is_keyed: bool
    values: Mapping[str, Any]
    """The arguments, with the seeds that were drawn."""
    mark: str
    """A digest of the arguments: the server stores it with the run, so that a key cannot match other arguments."""
    call: UpstreamCall

    def must_be_of(self, mark: object) -> None:
        """Check the mark of a run that was found by the key.

        Raises:
            IdempotencyConflict: it is the mark of other arguments (IDEMPOTENCY_CONFLICT).
        """
        if isinstance(mark, str) and mark and mark != self.mark:
            text = f"the key was used for a call of {self.tool.name} with other arguments, which is run {self.run}"
            raise IdempotencyConflict(text, hint="use a key of its own for each call", outcome="none")


def order_of(upstream: str, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> ComfyUIRequest:
    """The request of a call. Missing seeds are drawn, or derived from the key, so that a repeated call has the same."""
    context = call.call.context
    if call.key:
        parts = (upstream, tool.name, owner_of(context), call.key)
        run = uuid.uuid5(_NAMESPACE, "\x1f".join(parts))
        generator = random.Random(run.int)
    else:
        run, generator = uuid.uuid4(), random.Random()
    properties = tool.input_schema.get("properties", {})
    seeds = {name: _seed(generator, properties[name]) for name in tool.data["seeds"] if arguments.get(name) is None}
    mark = json_digest(arguments)[:32]
    return ComfyUIRequest(tool, str(run), bool(call.key), {**arguments, **seeds}, mark, call)


def _seed(generator: random.Random, schema: Mapping[str, Any]) -> int:
    """A random seed within the bounds of the node."""
    most = int(min(schema.get("maximum", _LARGEST_SEED), _LARGEST_SEED))
    return generator.randint(min(int(max(schema.get("minimum", 0), 0)), most), most)


class ProgressReporter:
    """Reports to the caller how far a run is, with a preview now and then."""

    def __init__(self, call: UpstreamCall, *, previews: bool) -> None:
        self._call = call
        self._left = _MOST_PREVIEWS if previews else 0
        self._not_before = 0.0
        self._preview = ""

    def progress(self, done: float, total: float | None, message: str) -> None:
        shown = f"{message}, preview {self._preview}" if self._preview else message
        self._call.context.progress(done, total, shown)

    async def preview(self, preview: Preview | None, done: float, total: float | None, message: str) -> None:
        """Keep a preview as an artifact, and name it from now on; not more than one in two seconds."""
        now = time.monotonic()
        if preview is None or not self._left or now < self._not_before or len(preview.data) > _LARGEST_PREVIEW:
            return
        self._left -= 1
        self._not_before = now + _BETWEEN_PREVIEWS_S
        suffix = preview.media_type.partition("/")[2]
        try:
            link = await asyncio.to_thread(
                self._call.context.keep, preview.data, preview.media_type, f"preview.{suffix}"
            )
        except TavernError:  # too large, or no room: the run goes on without it
            return
        self._preview = str(link["uri"])
        self.progress(done, total, message)
