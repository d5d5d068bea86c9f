"""Tools of kind `python`: a function, method, partial or callable object, called with the arguments as keywords.

Everything about the callable is determined once, in `bind`: whether it is async, which values are injected,
and whether it accepts its parameters. A call then only runs one small closure.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tavern_core.contract.context import PluginContext
from tavern_core.contract.hookspecs import hookimpl
from tavern_core.contract.langchain_tools import is_tool, runner
from tavern_core.contract.protocols import BoundTool, Executor, ToolHome
from tavern_core.contract.python_targets import BindsItself, PythonTarget
from tavern_core.contract.tool_context import ToolContext
from tavern_core.contract.tool_settings import when_set_up
from tavern_core.contract.tools import Tool, ToolObject
from tavern_core.errors import SchemaInvalid, ToolFileInvalid
from tavern_core.model.call import CallContext, ToolCall
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.tool import ToolSpec

RunFunction = Callable[[Any, ToolCall | None], Any]


@hookimpl(fast=True)
def tavern_register_executors(ctx: PluginContext) -> Mapping[str, Executor]:
    return {"python": PythonExecutor()}


class PythonExecutor:
    """Runs `ToolSpec.impl` (a callable or a `PythonTarget`), or the `handler` that a tool file names."""

    def bind(self, tool: ToolSpec, home: ToolHome, /) -> BoundTool:
        """Inspect the callable once.

        Raises:
            ToolFileInvalid: nothing to call, a generator, or parameters that do not fit the schema (TOOL_FILE_INVALID).
        """
        target = _target(tool, home)
        if isinstance(target, BindsItself):
            return when_set_up(target.bind(tool), tool, home)
        function = target.function
        where = f"tool {tool.name}{f' ({tool.source})' if tool.source else ''}"
        if not callable(function):
            raise ToolFileInvalid(f"{where}: {function!r} cannot be called", hint="a python tool is a function")
        kind = _code_of(function)
        if inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind):
            raise ToolFileInvalid(
                f"{where}: {_name(function)} is a generator; a tool answers once",
                hint="collect what it yields and return a list",
            )
        if target.style == "execute":
            run, by_name, wants_call = _execute(function), None, True
        else:
            _check_parameters(where, tool, target)
            by_name = _by_keyword(function)
            run, wants_call = _keywords(target, home, by_name), bool(target.inject)
            if target.inject or target.convert is not None:
                by_name = None
        is_async = inspect.iscoroutinefunction(kind)
        is_watched = isinstance(target.inject, Mapping) and "control" in target.inject.values()
        bound = BoundTool(
            run,
            is_async,
            not tool.fast,
            wants_call,
            stoppable=is_async,
            wants_control=is_watched,
            function=by_name and (run, by_name),
        )
        return when_set_up(bound, tool, home)


def _target(tool: ToolSpec, home: ToolHome) -> PythonTarget | BindsItself:
    """The target of a tool: the object in memory, or the one that `handler` names."""
    if isinstance(tool.impl, PythonTarget | BindsItself):
        return tool.impl
    if tool.kind == "langchain" and is_tool(tool.impl):
        return PythonTarget(runner(tool.impl), style="execute")
    if tool.impl is not None:
        return PythonTarget(tool.impl)
    handler = tool.implementation.get("handler")
    if not handler:
        raise ToolFileInvalid(
            f"tool {tool.name} has nothing to run",
            hint='add "implementation": {"type": "python", "handler": "module:function"}',
        )
    if not isinstance(handler, str) or handler.count(":") != 1 or not all(handler.split(":")):
        raise ToolFileInvalid(f"tool {tool.name}: handler {handler!r} must look like 'module:function'")
    loaded = home.load(handler)
    return loaded if isinstance(loaded, BindsItself) else _target_of_handler(loaded)


def _target_of_handler(thing: Any) -> PythonTarget:
    """A handler that was imported: a function, a `Tool`, or an object of seed 002."""
    if isinstance(thing, Tool):
        thing = thing.run
    if isinstance(thing, ToolObject) and not isinstance(thing, type):
        return PythonTarget(thing.execute, style="execute")
    if not callable(thing):
        return PythonTarget(thing)
    from tavern_core.schema.signature import signature_schema  # pydantic's type adapters; only needed for handlers

    try:
        signature = signature_schema(thing, inject={CallContext: "context", ToolCall: "call"})
    except SchemaInvalid:  # its annotations are not usable; the tool file has its own schema
        return PythonTarget(thing)
    inject: dict[str, Literal["call", "context", "home"]] = {
        k: "call" if v == "call" else "context" for k, v in signature.injected.items()
    }
    return PythonTarget(thing, signature.convert, inject)


def _code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside partials and callable objects, for `inspect`."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    call = type(function).__call__  # what Python itself calls, ignoring attributes of the instance
    return _code_of(call) if inspect.isroutine(call) else function


def _keywords(target: PythonTarget, home: ToolHome, function: Callable[..., Any]) -> RunFunction:
    """``function(**arguments)``, with only the wrapping that this target needs."""
    convert, inject = target.convert, dict(target.inject)
    if inject:

        def run_injected(arguments: Any, call: ToolCall | None) -> Any:
            values = arguments if convert is None else convert(arguments)
            injected = {name: _injected(what, call, home) for name, what in inject.items()}
            return function(**{**values, **injected})

        return run_injected
    if convert is not None:
        return lambda arguments, call: function(**convert(arguments))
    return lambda arguments, call: function(**arguments)


def _injected(source: str, call: ToolCall | None, home: ToolHome) -> Any:
    if source == "home":
        return home
    if source == "control":
        return ToolContext("" if call is None else call.id)
    return call if source == "call" or call is None else call.context


def _by_keyword(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, or, if it has positional-only parameters, a wrapper that accepts those by name, too."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # a builtin without a signature
        return function
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    if not names:
        return function

    def call_by_name(**arguments: Any) -> Any:
        positional = []
        for name in names:
            if name not in arguments:
                break  # the defaults of this one and all later ones
            positional.append(arguments.pop(name))
        return function(*positional, **arguments)

    return call_by_name


def _execute(function: Callable[..., Any]) -> RunFunction:
    """Call as in seed 002: ``execute(tool_call_id, params)``, or with fewer of these."""
    try:
        kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    except (ValueError, TypeError):  # a builtin without a signature
        kinds = [inspect.Parameter.VAR_POSITIONAL]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = 2 if inspect.Parameter.VAR_POSITIONAL in kinds else sum(kind in positional for kind in kinds)
    if count < 2:
        return lambda arguments, call: function(*(call.id if call is not None else "", arguments)[:count])
    return lambda arguments, call: function(call.id if call is not None else "", arguments)


def _check_parameters(where: str, tool: ToolSpec, target: PythonTarget) -> None:
    """Refuse an incompatible schema and signature, before the first call fails."""
    try:
        parameters = inspect.signature(target.function).parameters
    except (ValueError, TypeError):
        return
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    accepted = {name for name, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    properties = tool.input_schema.get("properties")
    declared = set(properties) if isinstance(properties, Mapping) else set()
    for name in sorted(declared - accepted):
        if not takes_any:
            raise ToolFileInvalid(
                f"{where}: the schema declares {name!r}, which {_name(target.function)} does not take",
                hint=did_you_mean(name, accepted),
            )
    for name in sorted(accepted - declared - set(target.inject)):
        if (
            parameters[name].default is inspect.Parameter.empty
            and tool.input_schema.get("additionalProperties") is False
        ):
            raise ToolFileInvalid(
                f"{where}: {_name(target.function)} needs {name!r}, which the schema does not declare",
                hint=did_you_mean(name, declared),
            )


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
