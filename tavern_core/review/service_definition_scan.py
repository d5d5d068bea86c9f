"""The services in a plugin's Python source, and the marks of their methods. Read as text, nothing is run.

    Service("clock", Clock(), Counting)     →  FoundService("clock", "Counting", …, methods=(ticks: reads, tick: changes))

The rules are those of the run time (`contract/published_methods.py`): the methods of the interface, or of the object's class if there
is none, including bases. A class or base outside of the source, or a computed name, allows no conclusions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from tavern_core.frozen_dataclass import dataclass
from tavern_core.review.name_resolution import OWN, Function, OwnModule, called, constant_text, last_name, options_of

MethodEffect = Literal["looks", "changes", "unsaid", "unknown"]
"""`@read_only`; `@mutates`; no mark; with an unknown decorator."""
_MARKS: Final[Mapping[str, MethodEffect]] = {"read_only": "looks", "mutates": "changes"}
_SAYS_NOTHING: Final = frozenset({"staticmethod", "classmethod", "abstractmethod", "override", "final"})
_NO_METHODS: Final = frozenset({"object", "Protocol", "ABC", "Generic"})
_MOST_BASES: Final = 100
MOST_SERVICES: Final = 200
_Class = tuple[OwnModule, ast.ClassDef]


@dataclass(frozen=True, slots=True)
class FoundMethod:
    """A published method."""

    name: str
    effect: MethodEffect
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class FoundService:
    """A ``Service(...)`` with a literal name and class."""

    name: str
    publisher: str
    """The class that publishes its methods."""
    methods: tuple[FoundMethod, ...]
    is_complete: bool
    """False when more methods may be published than the source shows."""


def found_services(modules: Sequence[OwnModule]) -> Iterator[FoundService]:
    """The services that the plugin's source shows, each name and class once."""
    classes = _Classes(modules)
    reported: set[tuple[str, str]] = set()
    for module in modules:
        for node in ast.walk(module.tree):
            if len(reported) < MOST_SERVICES and isinstance(node, ast.Call) and module.is_ours(node.func, "Service"):
                found = _service(module, node, classes)
                if found is not None and (found.name, found.publisher) not in reported:
                    reported.add((found.name, found.publisher))
                    yield found


def _service(module: OwnModule, call: ast.Call, classes: _Classes) -> FoundService | None:
    if any(isinstance(argument, ast.Starred) for argument in call.args) or any(k.arg is None for k in call.keywords):
        return None
    arguments = dict(zip(("name", "object", "interface"), call.args, strict=False)) | options_of(call)
    name = _text(module, arguments.get("name"))
    interface = arguments.get("interface")
    if interface is None or (isinstance(interface, ast.Constant) and interface.value is None):
        publisher = classes.of_object(module, arguments.get("object"))
    else:
        publisher = classes.named(module, interface)
    if name is None or publisher is None:
        return None
    methods: dict[str, FoundMethod | None] = {}
    is_complete = classes.collect(publisher, methods, set())
    public = sorted(name for name in methods if not name.startswith("_"))
    known = tuple(method for name in public if (method := methods[name]) is not None)
    return FoundService(name, publisher[1].name, known, is_complete)


class _Classes:
    """The classes of all modules, and which of them an expression means."""

    def __init__(self, modules: Iterable[OwnModule]) -> None:
        self._known: dict[tuple[str, str], _Class | None] = {}  # file ("": any) and name; None if several have the name
        self._made: dict[str, tuple[OwnModule, ast.expr] | None] = {}
        for module in modules:
            for node in ast.walk(module.tree):
                match node:
                    case ast.ClassDef(name=name):
                        for file in (module.file, ""):
                            self._known[file, name] = None if (file, name) in self._known else (module, node)
                    case (
                        ast.Assign(targets=[target], value=ast.Call(func=made))
                        | ast.AnnAssign(target=target, value=ast.Call(func=made))
                    ):
                        name = last_name(target)
                        self._made[name] = None if name in self._made else (module, made)

    def named(self, module: OwnModule, node: ast.expr) -> _Class | None:
        """The class of a name; None if it is from another package, or ambiguous."""
        name = last_name(node)
        if isinstance(node, ast.Name) and (here := self._known.get((module.file, name))) is not None:
            return here
        found = self._known.get(("", name))
        return found if found is not None and _comes_from(module.origin(node), found[0].file) else None

    def of_object(self, module: OwnModule, node: ast.expr | None) -> _Class | None:
        """The class of the value of an expression, or of the value assigned to its name."""
        if isinstance(node, ast.Call):
            return self.named(module, node.func)
        made = self._made.get(last_name(node))
        return None if made is None else self.named(*made)

    def collect(self, found: _Class, methods: dict[str, FoundMethod | None], seen: set[int]) -> bool:
        """Add the public methods of a class, bases first; None for anything else. False if the source does not show all."""
        module, made = found
        seen.add(id(made))
        is_complete = len(seen) < _MOST_BASES
        for base in reversed(made.bases) if is_complete else ():
            base = base.value if isinstance(base, ast.Subscript) else base
            if last_name(base) in _NO_METHODS:
                continue
            if (inner := self.named(module, base)) is None:
                is_complete = False
            elif id(inner[1]) not in seen:
                is_complete &= self.collect(inner, methods, seen)
        for node in made.body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    methods[name] = _method(module, node)
                case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                    methods[name] = None
                case ast.Assign(targets=targets, value=value):
                    methods.update((last_name(target), None) for target in targets)
                    is_complete &= isinstance(value, ast.Constant)
                case ast.If() | ast.Try() | ast.For() | ast.With() | ast.While() | ast.Match():
                    is_complete = False
        return is_complete


def _comes_from(origin: str, file: str) -> bool:
    """Whether a name of this origin may be the one defined in a file of the plugin."""
    package, _, module = file.removesuffix(".py").rpartition("/")
    stem = package.rpartition("/")[2] if module == "__init__" else module
    return origin.startswith(OWN) or (bool(stem) and origin.split(".")[-2:-1] == [stem])


def _method(module: OwnModule, node: Function) -> FoundMethod | None:
    effect: MethodEffect = "unsaid"
    for decorator in node.decorator_list:
        name = last_name(called(decorator))
        if name in ("property", "cached_property", "setter", "getter", "deleter"):
            return None
        mark = next((word for word in _MARKS if module.is_ours(decorator, word)), None)
        if mark is not None:
            effect = _MARKS[mark]
        elif name not in _SAYS_NOTHING and effect == "unsaid":
            effect = "unknown"
    return FoundMethod(node.name, effect, module.file, node.lineno)


def _text(module: OwnModule, node: ast.expr | None) -> str | None:
    """A literal text, or the constant of this module with this name."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    return constant_text(module.tree, node.id) if isinstance(node, ast.Name) else None
