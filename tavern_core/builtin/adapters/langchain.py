"""LangChain: the tools of an installed package, found by their shape and called in this process.

    upstreams:
      search:
        kind: langchain
        package: langchain-tavily                          a distribution whose code the operator trusts
        settings: {objects: ["langchain_tavily:TavilySearch"]}      default: the tools on the package's top level

`contract/langchain_tools.py` recognizes such tools and calls them.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

from tavern_core.contract.adapters import Listing, Target, Upstream, UpstreamCall, UpstreamTool
from tavern_core.contract.installed_tools import InstalledTools, distribution_of
from tavern_core.contract.langchain_tools import is_tool, only_for_langchain, runner, schema_of
from tavern_core.errors import UpstreamError
from tavern_core.model.safe_printing import printed

MAX_TOOLS: Final = 1_000


class LangChain:
    """The adapter."""

    targets: Final[frozenset[Target]] = frozenset({"package"})
    in_process: Final = True
    settings: Final[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "objects": {
                "type": "array",
                "items": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$"},
                "description": "module:name of tools, lists of tools, toolkits, or functions and classes that make them",
            }
        },
        "additionalProperties": False,
    }

    async def connect(self, upstream: Upstream) -> LangChainTools:
        """Import the package and look for tools; in a thread, because it may take seconds."""
        return await asyncio.to_thread(_scan, upstream.package, upstream.settings.get("objects"))


class LangChainTools(InstalledTools):
    """The tools that were found, as a connection."""

    def __init__(self, package: str, tools: Mapping[str, Any], listing: Listing) -> None:
        super().__init__(package, tools, listing)
        self._runners: dict[str, tuple[Callable[[str, Mapping[str, Any]], Any], bool]] = {}
        """Tool → the function that calls it, and whether that is async."""

    async def invoke(self, tool: UpstreamTool, arguments: Mapping[str, Any], call: UpstreamCall) -> Any:
        if (entry := self._runners.get(tool.name)) is None:
            thing = self._tools.get(tool.name)
            if thing is None:
                raise self.gone(tool.name)
            run = runner(thing)
            entry = self._runners[tool.name] = run, inspect.iscoroutinefunction(run)
        run, is_async = entry
        if is_async:
            return await run(call.call.id, arguments)
        return await call.in_thread(run, call.call.id, arguments)


def _scan(package: str, objects: Iterable[str] | None) -> LangChainTools:
    """Find the tools of a package. It runs in a thread, which no Ctrl-C reaches: all exceptions are the package's own.

    Raises:
        UpstreamError: the package or all of the objects are not there, or their import failed (UPSTREAM_ERROR).
    """
    tools: dict[str, Any] = {}
    found: list[UpstreamTool] = []
    left_out: dict[str, str] = {}
    for place, thing in islice(_find(package, objects, left_out), MAX_TOOLS):
        try:
            name = str(thing.name)
            described = UpstreamTool(name, str(thing.description or ""), schema_of(thing))
            if missing := only_for_langchain(thing):
                left_out[place] = f"only an agent of LangChain can give {', '.join(missing)}"
                continue
        except BaseException as error:  # noqa: BLE001 - whatever a tool of the package's raises costs this tool
            left_out[place] = f"its parameters cannot be described: {printed(error)}"
            continue
        if name not in tools:
            found.append(described)
            tools[name] = thing
        elif tools[name] is not thing:
            left_out[f"{name} ({place})"] = "another tool has this name"
    if objects is None and not tools and not left_out:
        left_out[package] = (
            "it has no tool at its top level; name what makes its tools in settings.objects: module:name"
        )
    return LangChainTools(package, tools, Listing(found, left_out=left_out, version=_version(package)))


def _find(package: str, objects: Iterable[str] | None, left_out: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Find tools, each with its place. Raises UpstreamError: see `_scan`."""
    if objects is None:
        for module in modules_of(package):
            for name, thing in sorted(vars(_imported(module, package)).items()):
                if not name.startswith("_") and is_tool(thing):
                    yield name, thing
        return
    first_error: UpstreamError | None = None
    has_tools = False
    for reference in objects:
        try:
            things = list(islice(_tools_in(_object(reference, package), reference, left_out), MAX_TOOLS))
        except UpstreamError as error:
            first_error, left_out[reference] = first_error or error, error.message
            continue
        except BaseException as error:  # noqa: BLE001 - whatever an object of the package's raises costs this object
            left_out[reference] = printed(error)
            first_error = first_error or UpstreamError(f"{reference} cannot be used: {printed(error)}", outcome="none")
            continue
        has_tools = has_tools or bool(things)
        yield from ((reference, thing) for thing in things)
    if first_error is not None and not has_tools:
        raise first_error


def _object(reference: str, package: str) -> Any:
    """The object ``module:name``. Raises UpstreamError: it is missing, or its import failed (UPSTREAM_ERROR)."""
    module, _, path = reference.partition(":")
    thing = _imported(module, package)
    for part in path.split("."):
        if not hasattr(thing, part):
            raise UpstreamError(f"{reference}: there is no {part!r}", hint="correct settings.objects", outcome="none")
        thing = getattr(thing, part)
    return thing


def _tools_in(thing: Any, reference: str, left_out: dict[str, str]) -> Iterator[Any]:
    if is_tool(thing):
        yield thing
    elif inspect.iscoroutine(thing):
        thing.close()
        raise UpstreamError(f"{reference} is async", hint="name a sync function that makes the tools", outcome="none")
    elif isinstance(thing, list | tuple):
        yield from _tools_of_list(thing, reference, left_out)
    elif not isinstance(thing, type) and callable(make := getattr(thing, "get_tools", None)):
        yield from _tools_in(make(), reference, left_out)
    elif callable(thing):
        try:
            made = thing()
        except Exception as error:
            raise UpstreamError(
                f"{reference} could not be called without arguments: {printed(error)}",
                hint="name a function in a module of yours that makes the tool, as module:function",
                outcome="none",
            ) from error
        if callable(made) and not is_tool(made) and not hasattr(made, "get_tools"):
            raise UpstreamError(f"{reference} makes no tool", outcome="none")
        yield from _tools_in(made, reference, left_out)
    else:
        raise UpstreamError(
            f"{reference} is not a tool: it needs name, description, args_schema, and invoke or ainvoke", outcome="none"
        )


def _tools_of_list(things: Sequence[Any], reference: str, left_out: dict[str, str]) -> list[Any]:
    """The tools in a list, without other items. Raises UpstreamError: it has items, but no tool (UPSTREAM_ERROR)."""
    found: list[Any] = []
    errors: dict[str, UpstreamError] = {}
    for index, thing in enumerate(things[:MAX_TOOLS]):
        place = f"{reference}[{index}]"
        try:
            found += _tools_in(thing, place, left_out)
        except UpstreamError as error:
            errors[place] = error
        except RecursionError:  # a list within itself
            raise
        except BaseException as error:  # noqa: BLE001 - whatever an object of the package's raises costs this object
            errors[place] = UpstreamError(f"{place} cannot be used: {printed(error)}", outcome="none")
    if errors and not found:
        raise next(iter(errors.values()))
    left_out |= {place: error.message for place, error in errors.items()}
    return found


def _imported(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except BaseException as error:
        is_elsewhere = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        naming_hint = "name the module of its tools in settings.objects: module:name"
        raise UpstreamError(
            f"{module} of {package} cannot be imported: {printed(error)}",
            hint=naming_hint if is_elsewhere else f"`python -c 'import {module}'` shows why; install what it needs",
            outcome="none",
        ) from error


def modules_of(package: str) -> list[str]:
    """The top-level modules of an installed distribution.

    Raises:
        UpstreamError: it is not installed (UPSTREAM_ERROR).
    """
    distribution = distribution_of(package)
    modules = (distribution.read_text("top_level.txt") or "").split()
    if not modules:
        files = [str(file) for file in distribution.files or ()]
        packages = {file.removesuffix("/__init__.py") for file in files if file.endswith("/__init__.py")}
        modules = [file.removesuffix(".py") for file in files if file.endswith(".py") and "/" not in file]
        modules += [
            folder.replace("/", ".")  # of a namespace: the packages in it
            for folder in packages
            if packages.isdisjoint(map(str, PurePosixPath(folder).parents))
        ]
    public = (
        name for name in modules if not name.startswith("_") and all(part.isidentifier() for part in name.split("."))
    )
    return sorted({*public}) or [package.replace("-", "_")]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


adapter: Final = LangChain()
