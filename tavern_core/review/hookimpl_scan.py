"""Analysis of a plugin's Python source as text: its hookimpls, its tools, and the results of
`tavern_register_tools`. Nothing is executed.

Names are followed through imports (`import tavern_core as tc`, `from tavern_core import hookimpl as h`, a re-export from
a module of the plugin itself). Values computed at run time are unknown; then `is_complete` is False and an
absence means nothing.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Final

from tavern_core.contract.hookspecs import HOOKS, PROJECT
from tavern_core.errors import Finding, Location
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.plugin_file_reader import PluginFiles
from tavern_core.model.nearest import did_you_mean
from tavern_core.review.hook_return_scan import OfferedScan, Returned
from tavern_core.review.name_resolution import UNDEFINED, OwnNames, dotted_of, exported
from tavern_core.review.service_definition_scan import FoundService, found_services
from tavern_core.review.tool_signature_scan import tool_findings

CODE: Final = "PLUGIN_FAILED"
_KINDS: Final[Mapping[str, str]] = {
    "services": "Service", "commands": "Command", "channels": "Contribution", "providers": "Contribution",
    "executors": "", "namespaces": "", "llms": "", "rankers": "", "workflows": "", "resources": "Resource", "prompts": "Prompt",
}  # fmt: skip
"""Section → the item type of its hook's list; empty: a mapping by name."""
_HOOKIMPL: Final = frozenset({"tavern_core.hookimpl", "tavern_core.contract.hookspecs.hookimpl"})
_TOOLS_MODULE: Final = "tavern_core.contract.tools"
_OF_US: Final = "tavern_core"
_OWN: Final = "."
"""The origin of names that a module of the plugin itself exports."""
_MOST_LINES: Final = 200_000
MOST_MODULES: Final = 2_000
_NOT_CODE: Final = ("tests/", "test/", "node_modules/", "build/", "dist/", ".")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class FoundHook:
    """One function marked with `@hookimpl`."""

    name: str
    """The hook: `specname` if given, else the function's name."""
    file: str
    line: int
    required: tuple[str, ...] = ()
    """Arguments without a default, without self."""
    optional: tuple[str, ...] = ()
    variadic: str = ""
    """``*args`` or ``**kwargs`` or a keyword-only name, which hooks cannot take."""
    tryfirst: bool = False
    is_wrapper: bool = False
    is_generator: bool = False


@dataclass(frozen=True, slots=True)
class FoundTool:
    """One function marked with `@tool`."""

    name: str
    """Local name."""
    file: str
    line: int
    capabilities: tuple[str, ...] = ()


@dataclass(slots=True)
class SourceScan:
    """Everything found in the source of one plugin."""

    hooks: list[FoundHook] = field(default_factory=list)
    tools: list[FoundTool] = field(default_factory=list)
    returned: list[tuple[str, str, int]] = field(default_factory=list)
    """Local name, file and line of the tools that `tavern_register_tools` shows to return."""
    is_complete: bool = True
    """False if something is unreadable: a module is not Python, or the returned tools are computed."""
    sections: dict[str, Returned] = field(default_factory=dict)
    """Section of plugin.yaml → the names that its hook shows to return."""
    names: OwnNames = field(default_factory=lambda: OwnNames(()))
    """The meanings of names in its modules."""
    lookalikes: list[tuple[str, str, int]] = field(default_factory=list)
    """Functions with the name of a hook and without its mark: name, file, line."""
    services: list[FoundService] = field(default_factory=list)
    """The services that it creates with ``Service(...)``."""
    texts: set[str] = field(default_factory=set)
    """Every literal text: a name that occurs nowhere is not used."""
    computed: set[str] = field(default_factory=set)
    """Methods with these names (``service``, ``secret``) are called with a computed name, so anything may be used."""
    findings: list[Finding] = field(default_factory=list)


def plugin_sources(files: PluginFiles) -> Iterator[tuple[str, bytes]]:
    """Name and content of a plugin's modules; without its tests."""
    count = 0
    for relative, _ in files.files():
        if relative.endswith(".py") and not relative.startswith(_NOT_CODE) and count < MOST_MODULES:
            count += 1
            if (content := files.read(relative)) is not None:
                yield relative, content


def scan_sources(sources: Iterable[tuple[str, bytes]], package: str = "") -> SourceScan:
    """Read the modules of one plugin.

    Args:
        sources: file name for findings, and content.
        package: the name by which the plugin imports itself; empty for a folder plugin, which has none.
    """
    scan = SourceScan()
    trees = [(file, tree) for file, content in sources if (tree := _parse(file, content, scan)) is not None]
    scan.names = OwnNames(trees, package)
    modules = {file: _Module(file, tree, scan.names) for file, tree in trees}
    for module in modules.values():
        module.collect(scan)
    _collect_offered(scan, modules)
    scan.findings += _missing_imports(scan.names)
    scan.services += found_services([*modules.values()])
    return scan


def _collect_offered(scan: SourceScan, modules: Mapping[str, _Module]) -> None:
    """Add what the contribute hooks show to return."""
    marked = {node: name for module in modules.values() for node, name in module.marked.items()}
    offered = OfferedScan(scan.names, lambda file, node, name: modules[file].is_ours(node, name), marked, scan.findings)
    for file, module in modules.items():
        own = scan.names.modules[dotted_of(file)]
        for hook, function in module.hooks:
            section = HOOKS[hook].section if hook in HOOKS else ""
            if section == "tools":
                found = offered.tools(own, function)
                scan.returned += found.names
                scan.is_complete &= found.is_complete
            elif section in _KINDS:
                known = scan.sections.setdefault(section, Returned())
                found = offered.named(own, function, _KINDS[section])
                known.names += found.names
                known.is_complete &= found.is_complete
    for unseen in offered.unseen:
        hint = "`tavern plugins activate NAME` shows what it offers; names that are written out can be compared here"
        message = f"what is returned here cannot be seen without running it ({unseen.what}): it is not compared with plugin.yaml"
        scan.findings.append(Finding("CODE_UNSEEN", message, hint, Location(unseen.file, unseen.line, 1), "info"))


def _missing_imports(names: OwnNames) -> Iterator[Finding]:
    """Imports of the plugin's own modules and names that do not exist, in places that an import always reaches."""
    for module in names.reached():
        for node, imported in module.imports:
            where = Location(module.file, node.lineno, node.col_offset + 1)
            written = "." * node.level + (node.module or "")
            if not names.has_module(imported.module) and imported.module:
                near = did_you_mean(imported.module, [dotted for dotted in names.modules if dotted])
                yield Finding(
                    CODE,
                    f"{written!r} is not a module of the plugin",
                    near or "create it, or correct the import",
                    where,
                )
                continue
            own = names.modules.get(imported.module)
            for alias in node.names:
                inside = f"{imported.module}.{alias.name}".lstrip(".")
                if (
                    alias.name == "*"
                    or own is None
                    or names.has_module(inside)
                    or names.find(own, alias.name) != UNDEFINED
                ):
                    continue
                near = did_you_mean(alias.name, own.bound)
                yield Finding(
                    CODE, f"{written!r} has no {alias.name!r}", near or "define it, or correct the import", where
                )


def _parse(file: str, content: bytes, scan: SourceScan) -> ast.Module | None:
    try:
        if content.count(b"\n") > _MOST_LINES:
            raise ValueError(f"more than {_MOST_LINES:,} lines")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in a docstring does not matter here
            return ast.parse(content, file)
    except SyntaxError as error:
        where = Location(file, error.lineno or 1, error.offset or 1)
        scan.findings.append(Finding(CODE, f"not Python: {error.msg}", "", where))
    except (ValueError, RecursionError, MemoryError) as error:
        scan.findings.append(Finding(CODE, f"cannot be read as Python: {error}", "", Location(file, 1, 1)))
    scan.is_complete = False
    return None


class _Module:
    """One parsed module and the meanings of its names."""

    def __init__(self, file: str, tree: ast.Module, own: OwnNames) -> None:
        self.file, self.tree = file, tree
        self.marked: dict[ast.AST, str] = {}
        """Function of a `@tool` → local name."""
        self.hooks: list[tuple[str, _Function]] = []
        self._names: dict[str, str] = dict(_imports(tree))
        for star in own.modules[dotted_of(file)].stars:
            if star.module == _OF_US:
                self._names |= {name: f"{_OF_US}.{name}" for name in exported() if name not in self._names}
            elif star.is_own and (inner := own.modules.get(star.module)) is not None:
                for name in inner.bound:
                    self._names.setdefault(name, f"{_OWN}{star.module}.{name}")
        for node in tree.body:  # hookimpl = pluggy.HookimplMarker("tavern"); mark = hookimpl
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    if origin := self._assigned(value):
                        self._names[name] = origin

    def _assigned(self, value: ast.expr) -> str:
        match value:
            case ast.Call(func=marker, args=[ast.Constant(value=project)]) if project == PROJECT:
                return "tavern_core.hookimpl" if self.origin(marker) == "pluggy.HookimplMarker" else ""
            case ast.Name() | ast.Attribute():
                return self.origin(value)
            case _:
                return ""

    def origin(self, node: ast.expr) -> str:
        """The dotted origin of a name: ``tc.hookimpl`` → ``tavern_core.hookimpl``; empty if unknown."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        base = self._names.get(node.id, "") if isinstance(node, ast.Name) else ""
        return ".".join([base, *reversed(parts)]) if base else ""

    def is_ours(self, node: ast.expr, name: str) -> bool:
        """True if `node` is the contract's `name` (hookimpl, tool, factory, offer, Tool)."""
        origin = self.origin(node)
        if origin in (f"tavern_core.{name}", f"{_TOOLS_MODULE}.{name}") or (name == "hookimpl" and origin in _HOOKIMPL):
            return True
        return origin.startswith(_OWN) and origin.endswith(f".{name}")

    # Marks -------------------------------------------------------------------------------------------------------------

    def collect(self, scan: SourceScan) -> None:
        """Add the marked functions of this module to `scan`, and the names that it uses."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Constant(value=str(text)):
                    scan.texts.add(text)
                case ast.Call(func=ast.Attribute(attr=("service" | "secret") as method), args=args, keywords=named):
                    if not all(isinstance(given, ast.Constant) for given in (*args, *(k.value for k in named))):
                        scan.computed.add(method)
        for function, is_method in _functions(self.tree, in_class=False):
            decorators = list(function.decorator_list)
            hook = next((d for d in decorators if self.is_ours(_called(d), "hookimpl")), None)
            if hook is not None:
                self._add_hook(scan, function, hook, is_method)
            elif function.name in HOOKS and not decorators and not is_method:
                scan.lookalikes.append((function.name, self.file, function.lineno))
            for decorator in decorators:
                if self.is_ours(_called(decorator), "tool"):
                    found = self._tool(function, decorator)
                    self.marked[function] = found.name
                    scan.tools.append(found)
                    scan.findings += tool_findings(function, decorator, self.file, is_method=is_method)

    def _add_hook(self, scan: SourceScan, function: _Function, mark: ast.expr, is_method: bool) -> None:
        options = _options(mark)
        name = function.name
        if (specname := options.get("specname")) is not None:
            given = _constant(specname)
            if not isinstance(given, str):
                return  # computed, so unknown
            name = given
        self.hooks.append((name, function))
        required, optional, variadic = _parameters(function, is_method)
        scan.hooks.append(
            FoundHook(
                name,
                self.file,
                function.lineno,
                required,
                optional,
                variadic,
                tryfirst=_constant(options.get("tryfirst")) is True,
                is_wrapper=any(_constant(options.get(key)) is True for key in ("wrapper", "hookwrapper")),
                is_generator=any(isinstance(n, ast.Yield | ast.YieldFrom) for n in _own_nodes(function)),
            )
        )

    def _tool(self, function: _Function, decorator: ast.expr) -> FoundTool:
        options = _options(decorator)
        name = _constant(options.get("name"))
        capabilities = _strings(options.get("capabilities"))
        return FoundTool(
            name if isinstance(name, str) and name else function.name,
            self.file,
            function.lineno,
            tuple(capabilities or ()),
        )


# Reading the tree --------------------------------------------------------------------------------------------------------


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom):
            origin = f"{_OWN}{node.module or ''}" if node.level else node.module or ""
            for alias in node.names:
                yield alias.asname or alias.name, f"{origin}.{alias.name}"


def _functions(node: ast.AST, *, in_class: bool) -> Iterator[tuple[_Function, bool]]:
    """Every function of a module and its classes, whether it is a method; not those inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function):
            is_static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in child.decorator_list)
            yield child, in_class and not is_static
        else:
            yield from _functions(child, in_class=in_class or isinstance(child, ast.ClassDef))


def _own_nodes(function: _Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, _Function | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _parameters(function: _Function, is_method: bool) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Names without default, names with one, and the first parameter that a hook cannot have."""
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args)]
    count = len(names) - len(given.defaults)
    required, optional = names[:count], names[count:]
    if is_method:
        required = required[1:]
    variadic = ""
    if given.vararg is not None:
        variadic = f"*{given.vararg.arg}"
    elif given.kwonlyargs:
        variadic = f"*, {given.kwonlyargs[0].arg}"
    elif given.kwarg is not None:
        variadic = f"**{given.kwarg.arg}"
    return tuple(required), tuple(optional), variadic


def _called(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _options(node: ast.expr) -> dict[str, ast.expr]:
    return {k.arg: k.value for k in node.keywords if k.arg is not None} if isinstance(node, ast.Call) else {}


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _strings(node: ast.expr | None) -> list[str] | None:
    """The strings of a written-out list, tuple or set; None for anything else."""
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return None
    values = [_constant(item) for item in node.elts]
    return [v for v in values if isinstance(v, str)] if all(isinstance(v, str) for v in values) else None
