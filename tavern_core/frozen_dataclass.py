"""`dataclass(frozen=True, slots=True)` that loads in a tenth of the time; `dataclass(slots=True)`, too.

The one of the standard library compiles five functions for each class, which took a fifth of every start. Here `__init__` is
compiled when it is first looked up, and the other functions are the same for all classes. Everything else is as there: `fields`,
`replace`, `asdict`, `match`, pickling, the signature. Other options are left to the standard library.
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """As `dataclasses.dataclass`."""
        if cls is None and options == {"frozen": True, "slots": True}:
            return _frozen
        if cls is None and options == {"slots": True}:
            return _made
        return dataclasses.dataclass(cls, **options)


_OWN = object()
"""Instead of the value of a field that makes its default anew for each object."""
_NO_FIELDS = ("ClassVar", "InitVar", "KW_ONLY")
"""Annotations that mean more than the type of a field."""
_MANY = 3
"""From so many fields on, an object is filled as one of a writable class with the same slots, and then sealed: twice as quick."""


def _frozen(cls: type) -> type:
    made: Any = _made(cls, hashed=True)
    made.__setattr__, made.__delattr__ = _setattr, _delattr
    made.__getstate__, made.__setstate__ = _getstate, _setstate
    made.__dataclass_params__.frozen = True
    return made  # type: ignore[no-any-return]


def _made(cls: type, hashed: bool = False) -> type:
    own = vars(cls)
    has_own = {name: name in own for name in ("__init__", "__repr__", "__eq__", "__hash__")}
    made = _with_fields(cls)
    fields = dataclasses.fields(made)
    if not has_own["__init__"]:
        made.__init__ = _Init(made)
    if not has_own["__repr__"]:
        made.__repr__ = _repr
    if not has_own["__eq__"]:
        made.__eq__ = _eq
        if not has_own["__hash__"] or own["__hash__"] is None:
            made.__hash__ = _hash if hashed else None
        made.__compared__ = _key([f.name for f in fields if f.compare])
        made.__hashed__ = _key([f.name for f in fields if (f.compare if f.hash is None else f.hash)])
    return made  # type: ignore[no-any-return]


def _with_fields(cls: Any) -> Any:
    """The class with slots and fields. The standard library gets no texts as annotations, which it would search, and writes no docstring."""
    written = inspect.get_annotations(cls)
    cls.__annotations__ = {
        name: hint if any(map(str(hint).count, _NO_FIELDS)) else object for name, hint in written.items()
    }
    cls.__doc__ = cls.__doc__ or cls.__name__
    parent = getattr(cls.__base__, "__dataclass_params__", None)
    is_frozen = parent is not None and parent.frozen  # a class takes this from its parent
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, frozen=is_frozen)(cls)
    made.__annotations__ = written
    for f in dataclasses.fields(made):
        f.type = written.get(f.name, f.type)
    return made


class _Init:
    """`__init__`, compiled when it is first looked up: half of the classes that a program imports are never used."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls

    def __get__(self, instance: Any, owner: Any) -> Any:
        init = self.cls.__init__ = _init(self.cls, dataclasses.fields(self.cls))
        return init if instance is None else init.__get__(instance)


def _init(cls: Any, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    known: dict[str, Any] = {"_set": object.__setattr__, "_own": _OWN}
    taken: list[str] = []
    body: list[tuple[str, str]] = []
    for f in sorted(fields, key=lambda f: bool(f.kw_only)):
        name = value = f.name
        default = ""
        if f.default_factory is not MISSING:
            known[f"_make_{name}"] = f.default_factory
            value, default = f"_make_{name}() if {name} is _own else {name}", "=_own"
        elif f.default is not MISSING:
            known[f"_default_{name}"] = f.default
            default = f"=_default_{name}"
        if not f.init:
            value = f"_make_{name}()" if f.default_factory is not MISSING else default[1:]
        else:
            taken += ["*"] if f.kw_only and "*" not in taken else []
            taken.append(name + default)
        if value:
            body.append((name, value))
    is_frozen, assigned = cls.__dataclass_params__.frozen, [f"self.{name}={value}" for name, value in body]
    lines = [f"_set(self,{name!r},{value})" for name, value in body] if is_frozen else assigned
    if is_frozen and len(body) >= _MANY and cls.__bases__ == (object,):
        known |= {"_cls": cls, "_open": type(cls.__name__, (), {"__slots__": cls.__slots__})}
        quick = ["_set(self,'__class__',_open)", *assigned, "self.__class__=_cls"]
        lines = ["if self.__class__ is _cls:", *_indented(quick), "else:", *_indented(lines)]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    exec("\n".join([f"def __init__(self,{','.join(taken)}):", *_indented(lines or ["pass"])]), known)
    init = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {**{f.name: f.type for f in fields}, "return": None}
    return init


def _indented(lines: list[str]) -> list[str]:
    return [f" {line}" for line in lines]


def _key(names: list[str]) -> Any:
    """A function that gives the values of these fields as a tuple."""
    if len(names) > 1:
        return staticmethod(attrgetter(*names))
    return staticmethod(lambda one: tuple(getattr(one, name) for name in names))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.__compared__(self) == self.__compared__(other)


def _hash(self: Any) -> int:
    return hash(self.__hashed__(self))


def _setattr(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
