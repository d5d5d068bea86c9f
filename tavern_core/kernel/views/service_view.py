"""The view of one service for one plugin: a class made for the two, with one method for each published one.

    view.fetch("key")   →  may the plugin still?  →  the service as it is now  →  copies in, a copy out, errors made anew

The methods are callables that hide their implementation (`sealed_functions.py`), and no variable, default, closure, base
class or error of a view leads to the service. What a view costs on top of a call: tests/benchmarks/bench_views.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from tavern_core.contract.published_methods import view_members
from tavern_core.errors import OutputTooLarge, ToolFailed
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.views.clean_errors import clean_copy
from tavern_core.kernel.views.sealed_functions import hidden, seal_awaitable
from tavern_core.kernel.views.values import copy_builtins, flat_copy
from tavern_core.schema.bounded_json_copying import SCALARS, NotPlainData, json_or

if TYPE_CHECKING:
    from tavern_core.model.config import LimitsConfig

IS_ASYNC: Final = "__tavern_async__"
"""Attribute of a view's method: True for one that is awaited."""
_DATA: Final = frozenset({dict, list, str})
_MOST_SCALAR: Final = 65_536
"""Characters of a text that are passed on without checking the limit."""


@dataclass(slots=True)
class Epoch:
    """A marker: `now` is another object after each change that a view depends on: of a service, a right, a plugin."""

    now: object = field(default_factory=object)

    def turn(self) -> None:
        """Record a change."""
        self.now = object()


def view_of(
    service: str,
    methods: Mapping[str, object],
    find: Callable[[str], Callable[..., Any]],
    epoch: Epoch,
    limits: LimitsConfig,
    doc: str = "",
) -> Any:
    """Create a view.

    Args:
        service: its name.
        methods: name → the published function; only its signature and its docstring are used.
        find: method → the service's own bound method, as of now; raises if it does not exist or the plugin may not call it.
            Called at the first call, and at the next one after each change of `epoch`.
        doc: the purpose of the service.
    """
    calls = {name: _MethodImplementation(service, name, find, epoch, limits) for name in methods}

    body: dict[str, Any] = {
        name: hidden(_call, call, name, _text(inspect.getdoc(methods[name])), **_facts(methods[name]))
        for name, call in calls.items()
    }
    body |= view_members(service, methods, doc)
    view = type(f"{service}View", (), body)()
    for call in calls.values():
        call.view = view
    return view


class _MethodImplementation:
    """The implementation of one method of one view; plugins never get it."""

    __slots__ = ("bound", "epoch", "find", "limits", "name", "service", "view")

    def __init__(
        self, service: str, name: str, find: Callable[[str], Callable[..., Any]], epoch: Epoch, limits: LimitsConfig
    ) -> None:
        self.service = service
        self.name = name
        self.find = find
        self.epoch = epoch
        self.limits = limits
        self.view: Any = None
        self.bound: tuple[object, Callable[..., Any]] = (None, _nothing)

    @property
    def description(self) -> str:
        return f"{self.name} of service {self.service!r}"

    def renewed(self) -> Callable[..., Any]:
        """The service's method as of now; cached until something changes."""
        epoch = self.epoch.now  # read first: what changes while we look is looked at again
        method = self.find(self.name)
        self.bound = epoch, method
        return method

    def argument(self, name: object, value: Any) -> Any:
        """A copy of one argument.

        Raises:
            ToolFailed: it cannot pass (TOOL_ERROR).
        """
        try:
            return copy_builtins(value, self.limits.argument_bytes)
        except NotPlainData as wrong:
            text = f"argument {name!r} of {self.description} cannot pass a view: {wrong.problem}"
            raise ToolFailed(text, hint=wrong.hint, service=self.service, method=self.name) from None

    def answer(self, value: Any) -> Any:
        """Convert an answer that is not a number for the caller.

        Raises:
            ToolFailed, OutputTooLarge: it cannot pass (TOOL_ERROR, OUTPUT_TOO_LARGE).
        """
        if type(value) not in _DATA and inspect.isawaitable(value):
            return seal_awaitable(value, self.description, self.answer)
        try:
            return copy_builtins(value, self.limits.output_bytes)
        except NotPlainData as wrong:
            text = f"{self.description} answered what cannot pass a view: {wrong.problem}"
            kind = OutputTooLarge if "limit" in wrong.problem or "more than" in wrong.problem else ToolFailed
            raise kind(text, hint=wrong.hint, outcome="done", service=self.service, method=self.name) from None


def _call(call: _MethodImplementation, view: object, /, *args: Any, **kwargs: Any) -> Any:
    try:
        if view is not call.view:
            raise TypeError(f"{call.description} is called on its view: ctx.service({call.service!r}).{call.name}(...)")
        epoch, method = call.bound
        if epoch is not call.epoch.now:
            method = call.renewed()
        for arg in args:
            if type(arg) not in SCALARS:
                args = tuple(a if type(a) in SCALARS else call.argument(n, a) for n, a in enumerate(args, 1))
                break
        if kwargs:
            for name, arg in kwargs.items():
                if type(arg) not in SCALARS or type(name) is not str:
                    kwargs = {_text(k): a if type(a) in SCALARS else call.argument(k, a) for k, a in kwargs.items()}
                    break
        value = method(*args, **kwargs)
        kind = type(value)
        if kind is dict and (few := flat_copy(value)) is not None:
            return few
        if kind in SCALARS and (kind is not str or len(value) < _MOST_SCALAR):
            return value
        return call.answer(value)
    except BaseException as error:  # noqa: BLE001 - raised again below
        failed = clean_copy(error, call.description)
    # The traceback keeps this frame, so its variables are cleared; outside of `except` there is no context to keep.
    call = args = kwargs = method = value = kind = few = epoch = name = arg = None  # type: ignore[assignment]
    try:
        raise failed
    finally:
        del failed


def _nothing(*_: Any, **__: Any) -> None:
    """Stands for the method until the first call."""


def _facts(member: object) -> dict[str, Any]:
    function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
    return {IS_ASYNC: inspect.iscoroutinefunction(function), **_signed(member, function)}


def _signed(member: object, function: object) -> dict[str, Any]:
    """The signature for `help` and editors: names, kinds, plain defaults, annotations as text; no object of the service."""
    try:
        found = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return {}
    parameters = list(found.parameters.values())
    if isinstance(member, staticmethod):
        parameters.insert(0, inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY))
    shown = [p.replace(default=_default(p.default), annotation=_annotation(p.annotation)) for p in parameters]
    try:
        return {"__signature__": inspect.Signature(shown, return_annotation=_annotation(found.return_annotation))}
    except ValueError:  # e.g. a static method whose first parameter is positional only
        return {}


def _default(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return value
    return json_or(value, Ellipsis)


def _annotation(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return value
    return _text(value) if isinstance(value, str) else inspect.formatannotation(value)


def _text(value: Any) -> str:
    return str.__str__(value) if isinstance(value, str) else ""
