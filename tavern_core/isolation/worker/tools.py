"""The tools of a plugin in its worker: described, created for a caller, prepared, called."""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tavern_core.contract.protocols import BoundTool, ToolHome
from tavern_core.contract.python_targets import PythonTarget
from tavern_core.contract.tools import ToolFactory
from tavern_core.contract.trace_context import within_trace
from tavern_core.errors import TavernError, ToolFailed
from tavern_core.isolation.codec import CALLS, WorkerSetup, pack_tool, preview_key, unpack_context, unpack_tool
from tavern_core.isolation.worker.running_call import WorkerCalls
from tavern_core.kernel.calls.result_normalisation import plain, plain_parts
from tavern_core.kernel.plugins.tool_homes import load_handler
from tavern_core.kernel.plugins.tool_spec_reading import (
    DRAFT,
    OfferDescription,
    OfferingPlugin,
    of_handler,
    spec_from_mapping,
    specs_of,
)
from tavern_core.model.config import LimitsConfig
from tavern_core.model.manifest import Manifest
from tavern_core.model.result import ToolResult, check_result
from tavern_core.model.tool import ToolSpec


class WorkerTools:
    """The tools of one plugin.

    Args:
        record: the record in which `load_handler` finds handlers.
    """

    def __init__(
        self, setup: WorkerSetup, folder: Path | None, limits: LimitsConfig, record: Any, calls: WorkerCalls
    ) -> None:
        self._setup, self._folder, self._limits, self._record = setup, folder, limits, record
        self._calls = calls
        executor = importlib.import_module(setup.executor[0])
        self._executor = getattr(executor, setup.executor[1])()
        self._made = itertools.count(1)
        self._tools: dict[str, ToolSpec] = {}
        self._bound: dict[str, tuple[BoundTool, ToolSpec]] = {}
        self._factories: dict[str, ToolFactory] = {}

    def owner(self) -> OfferingPlugin:
        """The plugin of these tools."""
        setup = self._setup

        def from_mapping(data: Mapping[str, Any]) -> ToolSpec:
            return spec_from_mapping(data, Manifest.model_validate(setup.manifest))

        return OfferingPlugin(setup.plugin, setup.version, setup.aliases, from_mapping=from_mapping)

    def report(self, item: OfferDescription, place: str) -> Any:
        """Describe one offer to the host.

        Args:
            place: its name, if it is a factory.
        """
        if (factory := item.factory) is not None:
            self._factories[place] = factory
            is_async = inspect.iscoroutinefunction(factory.make)
            return {
                "factory": place,
                "names": factory.names,
                "name": factory.name,
                "optional": factory.optional,
                "async": is_async,
            }
        spec = item.spec
        assert spec is not None
        self._tools[spec.name] = spec
        is_draft = spec.impl is DRAFT
        return {**_described(spec, None if spec.impl is None or is_draft else spec.name), "draft": is_draft}

    def make(self, place: str, context: Any) -> Any:
        """Start a factory; returns its result, or an awaitable of it."""
        return self._factories[place].make(unpack_context(context))

    def factory_tools(self, answer: Any) -> Any:
        """The tools of a factory; None for no tool."""
        if answer is None:
            return None
        reported = []
        for spec in specs_of(answer, self.owner()):
            key = f"made {next(self._made)}"
            self._tools[key] = spec
            reported.append(_described(spec, key if spec.impl is not None else None))
        return reported

    def drop(self, keys: list[str]) -> None:
        """Remove factory tools that the host does not use any more."""
        for key in keys:
            self._tools.pop(key, None)
            self._bound.pop(key, None)
            self._bound.pop(preview_key(key), None)

    def handler(self, target: str, draft: Any) -> Any:
        """The tool of a handler whose tool file has no parameters."""
        thing = load_handler(self._record, target)
        spec = of_handler(thing, unpack_tool(draft), self.owner())
        self._tools[key := f"handler {target} {spec.name}"] = spec
        return _described(spec, key)

    def bind(self, key: str, tool: Any, handler: str | None, is_preview: bool) -> list[Any]:
        """Prepare a tool, or its preview; returns [is it async, does it want the call, has it a `ToolContext`].

        Raises:
            TavernError: it cannot be called.
        """
        spec = unpack_tool(tool)
        if handler is None:
            if key not in self._tools:
                raise ToolFailed(
                    f"{spec.name} is no longer offered",
                    hint=f"tavern plugins reload {self._setup.plugin}",
                    fixFor="operator",
                )
            spec = replace(spec, impl=_preview_of(self._tools[key]) if is_preview else self._tools[key].impl)
        bound = self._executor.bind(replace(spec, config_schema=()), self._home(spec))
        self._bound[preview_key(key) if is_preview else key] = bound, spec
        return [bound.is_async, bound.wants_call, bound.wants_control]

    def call(self, given: Mapping[str, Any]) -> Any:
        """Start a tool; its answer, or an awaitable of it."""
        bound, _ = self._bound[given["key"]]
        packed = given.get("call")
        call = None if packed is None else CALLS.decode(packed, {"trusted": True})
        if bound.wants_control and call is not None:
            self._calls.begin(call.id, given["id"], given.get("left"))
        if headers := given.get("trace"):
            return within_trace(headers, lambda: bound.run(given["args"], call))
        return bound.run(given["args"], call)

    def result(self, key: str, answer: Any) -> Any:
        """The answer of a tool for the host, as plain JSON within the limit."""
        _, spec = self._bound[key]
        name = spec.name
        try:
            if isinstance(answer, ToolResult):
                check_result(answer)
                return CALLS.encode(plain_parts(answer, sys.maxsize, name))  # the frame has its own limit
            return ["json", plain(answer, self._limits.output_bytes, name)]
        except TavernError as error:
            judged = "normalise" if spec.output_schema is None else "validate_output"  # as in the plan of the host
            error.details["stage"] = "preview" if key.startswith(preview_key("")) else judged
            raise

    def _home(self, spec: ToolSpec) -> ToolHome:
        def unused(*_: Any) -> Any:
            raise ToolFailed(f"{spec.name}: this belongs to the host")

        return ToolHome(
            self._setup.plugin,
            self._folder,
            self._limits,
            unused,
            unused,
            lambda target: load_handler(self._record, target),
        )


def _described(spec: ToolSpec, key: str | None) -> dict[str, Any]:
    """A tool for the host, with the key for calling it here; None: it has no code of the plugin."""
    return {"tool": pack_tool(spec), "key": key, "preview": _preview_of(spec) is not None}


def _preview_of(spec: ToolSpec) -> PythonTarget | None:
    """The preview of a tool; None: it has none."""
    target = spec.impl
    if not isinstance(target, PythonTarget) or target.preview is None:
        return None
    return replace(target, function=target.preview, preview=None)
