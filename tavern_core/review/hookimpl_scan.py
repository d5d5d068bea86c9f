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

from tavern_core.contract.hookspecs import HOOKS
from tavern_core.errors import Finding, Location
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.files.plugin_file_reader import PluginFiles
from tavern_core.model.nearest import did_you_mean
from tavern_core.review.hook_return_scan import HookReturn, OfferedScan
from tavern_core.review.name_resolution import (
    UNDEFINED,
    UNKNOWN,
    Definition,
    Function,
    Meaning,
    OwnModule,
    OwnNames,
    called,
    options_of,
    own_nodes,
    place_of,
)
from tavern_core.review.service_definition_scan import FoundService, found_services
from tavern_core.review.tool_signature_scan import tool_findings

CODE: Final = "PLUGIN_FAILED"
NAMED_SECTIONS: Final[Mapping[str, str]] = {
    "services": "Service", "commands": "Command", "channels": "Contribution", "providers": "Contribution",
    "executors": "", "namespaces": "", "llms": "", "rankers": "", "workflows": "", "resources": "Resource", "prompts": "Prompt",
}  # fmt: skip
"""Section → the item type of its hook's list; empty: a mapping by name."""
_MOST_LINES: Final = 200_000
MOST_MODULES: Final = 2_000
_NOT_CODE: Final = ("tests/", "test/", "node_modules/", "build/", "dist/", ".")


@dataclass(frozen=True, slots=True)
class FoundHook:
    """A function marked with `@hookimpl`."""

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
    """A function marked with `@tool`."""

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
    sections: dict[str, HookReturn] = field(default_factory=dict)
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
    marks = _MarkedFunctions(scan)
    for module in scan.names.parsed:
        marks.collect(module)
    _collect_offered(scan, marks)
    scan.findings += _missing_imports(scan.names)
    scan.services += found_services(scan.names.parsed)
    return scan


def _collect_offered(scan: SourceScan, marks: _MarkedFunctions) -> None:
    """Add what the contribute hooks show to return."""
    offered = OfferedScan(scan.names, marks.tools, scan.findings)
    for module, hook, function in marks.hooks:
        section = HOOKS[hook].section if hook in HOOKS else ""
        if section == "tools":
            found = offered.tools(module, function)
            scan.returned += found.names
            scan.is_complete &= found.is_complete
        elif section in NAMED_SECTIONS:
            known = scan.sections.setdefault(section, HookReturn())
            found = offered.named(module, function, NAMED_SECTIONS[section])
            known.names += found.names
            known.is_complete &= found.is_complete
    for name in HOOKS.keys() - {name for _, name, _ in marks.hooks}:
        if any(_is_computed(scan.names.find(module, name)) for module in scan.names.parsed):
            section = HOOKS[name].section
            if section == "tools":
                scan.is_complete = False
            elif section in NAMED_SECTIONS:
                scan.sections[section] = HookReturn(is_complete=False)
    for unseen in offered.unseen:
        hint = "`tavern plugins activate NAME` shows what it offers; names that are written out can be compared here"
        message = f"what is returned here cannot be seen without running it ({unseen.what}): it is not compared with plugin.yaml"
        scan.findings.append(Finding("CODE_UNSEEN", message, hint, Location(unseen.file, unseen.line, 1), "info"))


def _is_computed(meaning: Meaning) -> bool:
    """Whether a name may be a hook that is imported from another package, or made by a call."""
    return meaning == UNKNOWN or (isinstance(meaning, Definition) and isinstance(meaning.node, ast.expr))


def _missing_imports(names: OwnNames) -> Iterator[Finding]:
    """Imports of the plugin's own modules and names that do not exist, in places that an import always reaches."""
    for module in names.reached():
        for node, imported in module.imports:
            where = place_of(module.file, node)
            written = "." * node.level + (node.module or "")
            if not names.has_module(imported.module) and imported.module:
                near = did_you_mean(imported.module, [dotted for dotted in names.modules if dotted])
                message = f"{written!r} is not a module of the plugin"
                yield Finding(CODE, message, near or "create it, or correct the import", where)
                continue
            own_module = names.modules.get(imported.module)
            for alias in node.names:
                inside = f"{imported.module}.{alias.name}".lstrip(".")
                if (
                    alias.name == "*"
                    or own_module is None
                    or names.has_module(inside)
                    or names.find(own_module, alias.name) != UNDEFINED
                ):
                    continue
                near = did_you_mean(alias.name, own_module.bound)
                message = f"{written!r} has no {alias.name!r}"
                yield Finding(CODE, message, near or "define it, or correct the import", where)


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


class _MarkedFunctions:
    """The marked functions of all modules."""

    def __init__(self, scan: SourceScan) -> None:
        self._scan = scan
        self.tools: dict[ast.AST, str] = {}
        """Function of a `@tool` → local name."""
        self.hooks: list[tuple[OwnModule, str, Function]] = []

    def collect(self, module: OwnModule) -> None:
        """Add the marked functions of a module, and the names that it uses."""
        scan = self._scan
        for node in ast.walk(module.tree):
            match node:
                case ast.Constant(value=str(text)):
                    scan.texts.add(text)
                case ast.Call(func=ast.Attribute(attr=("service" | "secret") as method), args=args, keywords=named):
                    if not all(isinstance(given, ast.Constant) for given in (*args, *(k.value for k in named))):
                        scan.computed.add(method)
        for function, is_method in _functions(module.tree, in_class=False):
            decorators = list(function.decorator_list)
            hook = next((d for d in decorators if module.is_ours(called(d), "hookimpl")), None)
            if hook is not None:
                self._add_hook(module, function, hook, is_method)
            elif function.name in HOOKS and not decorators and not is_method:
                scan.lookalikes.append((function.name, module.file, function.lineno))
            for decorator in decorators:
                if module.is_ours(called(decorator), "tool"):
                    found = _tool(module.file, function, decorator)
                    self.tools[function] = found.name
                    scan.tools.append(found)
                    scan.findings += tool_findings(function, decorator, module.file, is_method=is_method)

    def _add_hook(self, module: OwnModule, function: Function, mark: ast.expr, is_method: bool) -> None:
        options = options_of(mark)
        name = function.name
        if (specname := options.get("specname")) is not None:
            hook_name = _constant(specname)
            if not isinstance(hook_name, str):
                return  # computed, so unknown
            name = hook_name
        self.hooks.append((module, name, function))
        required, optional, variadic = _parameters(function, is_method)
        self._scan.hooks.append(
            FoundHook(
                name,
                module.file,
                function.lineno,
                required,
                optional,
                variadic,
                tryfirst=_constant(options.get("tryfirst")) is True,
                is_wrapper=any(_constant(options.get(key)) is True for key in ("wrapper", "hookwrapper")),
                is_generator=any(isinstance(n, ast.Yield | ast.YieldFrom) for n in own_nodes(function)),
            )
        )


def _tool(file: str, function: Function, decorator: ast.expr) -> FoundTool:
    options = options_of(decorator)
    name = _constant(options.get("name"))
    capabilities = tuple(_strings(options.get("capabilities")) or ())
    local = name if isinstance(name, str) and name else function.name
    return FoundTool(local, file, function.lineno, capabilities)


# Reading the tree --------------------------------------------------------------------------------------------------------


def _functions(node: ast.AST, *, in_class: bool) -> Iterator[tuple[Function, bool]]:
    """Every function of a module and its classes, whether it is a method; not those inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            is_static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in child.decorator_list)
            yield child, in_class and not is_static
        else:
            yield from _functions(child, in_class=in_class or isinstance(child, ast.ClassDef))


def _parameters(function: Function, is_method: bool) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Names without default, names with one, and the first parameter that a hook cannot have."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    count = len(names) - len(arguments.defaults)
    required, optional = names[:count], names[count:]
    if is_method:
        required = required[1:]
    variadic = ""
    if arguments.vararg is not None:
        variadic = f"*{arguments.vararg.arg}"
    elif arguments.kwonlyargs:
        variadic = f"*, {arguments.kwonlyargs[0].arg}"
    elif arguments.kwarg is not None:
        variadic = f"**{arguments.kwarg.arg}"
    return tuple(required), tuple(optional), variadic


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _strings(node: ast.expr | None) -> list[str] | None:
    """The strings of a written-out list, tuple or set; None for anything else."""
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return None
    values = [_constant(item) for item in node.elts]
    return [v for v in values if isinstance(v, str)] if all(isinstance(v, str) for v in values) else None
