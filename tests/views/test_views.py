"""A view shows the published methods of a service, and nothing leads from it to the service."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import inspect
import types
from pathlib import Path
from typing import Any, Protocol

import pytest

from tavern_core import Plugin, Tavern, ToolFailed, ToolSpec, hookimpl, mutates, read_only
from tavern_core.contract.protocols import BoundTool
from tavern_core.errors import CallError, OutputTooLarge, PolicyDenied, SettingsInvalid, UpstreamError

from ..host.conftest import QUIET, Opened, home, opened, run  # noqa: F401 - fixtures
from .crawl import leaks, leaks_of_each
from .curious import REFUSED, Thrown, caught
from .keeper import ANSWERS, FAILURES, Colour, Keeper, Sly


class User:
    ctx: Any = None

    @hookimpl
    def tavern_start(self, ctx: Any) -> None:
        self.ctx = ctx


def pair(opened: Opened, keeper: Keeper, **services: Any) -> Any:  # noqa: F811
    """The context of a plugin that may use (and change) the store."""
    user = User()
    asked = {"permissions": {"services": services or {"write": ["store"]}}}
    opened(
        Plugin(keeper, name="keeper"), Plugin(user, manifest={"name": "user", "version": "1", "start": True, **asked})
    )
    return user.ctx


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def ctx(opened: Opened, keeper: Keeper) -> Any:  # noqa: F811
    return pair(opened, keeper)


# Reaching the object -----------------------------------------------------------------------------------------------------


def test_nothing_that_a_view_shows_leads_to_its_service(ctx: Any, keeper: Keeper) -> None:
    view = ctx.service("store")
    methods = [getattr(view, name) for name in dir(view) if not name.startswith("_")]
    assert leaks(keeper.secrets, view, type(view), *methods, *vars(type(view)).values()) == []


def test_nothing_that_a_context_shows_leads_to_a_service(ctx: Any, keeper: Keeper) -> None:
    ctx.service("store").fetch("list")
    assert leaks(keeper.secrets, ctx, ctx._facilities, ctx.service) == []


def test_what_a_plugin_does_to_the_type_of_its_facilities_reaches_no_other_host(tmp_path: Path) -> None:
    users = [User(), User()]
    options = [{"key": "extensions.user.key", "type": "string", "defaultValue": "own"}]
    asked = {"name": "user", "version": "1", "start": True, "configOptions": options}
    with (
        Tavern.open(QUIET, home=tmp_path / "one", plugins=[Plugin(users[0], manifest=asked)]),
        Tavern.open(QUIET, home=tmp_path / "other", plugins=[Plugin(users[1], manifest=asked)]),
    ):
        with contextlib.suppress(TypeError):
            type(users[0].ctx._facilities).get_config = property(lambda seen: lambda option: "stolen")
        assert users[1].ctx.get_config("key") == "own"


@pytest.mark.slow
def test_no_error_of_a_view_leads_to_its_service(ctx: Any, keeper: Keeper) -> None:
    view = ctx.service("store")
    failed = {how: [caught(view.fail, how), caught(view.fail_later, how)] for how in ("attribute", *FAILURES)}
    assert leaks_of_each(keeper.secrets, failed) == {}
    assert [how for how, errors in failed.items() if any(error.__cause__ is not None for error in errors)] == []


@pytest.mark.slow
def test_what_is_refused_shows_nothing_either(ctx: Any, keeper: Keeper) -> None:
    errors = {}
    for what, use in REFUSED.items():
        error = caught(use, ctx)
        assert isinstance(error, AttributeError | TypeError | CallError | SettingsInvalid), what
        assert keeper.store.given == [], what
        errors[what] = [error]
    assert leaks_of_each(keeper.secrets, errors) == {}


@pytest.mark.slow
def test_what_is_no_plain_data_is_not_answered(ctx: Any, keeper: Keeper) -> None:
    view = ctx.service("store")
    errors = {}
    for what in ANSWERS:
        for how, error in (("now", caught(view.answer, what)), ("later", caught(view.later, what))):
            assert isinstance(error, ToolFailed | OutputTooLarge), (what, error)
            assert "store" in error.message, what
            assert error.hint, what
            assert error.outcome == "done", what
            errors[f"{what}, {how}"] = [error]
    assert leaks_of_each(keeper.secrets, errors) == {}


def test_a_coroutine_shows_no_frame_while_it_waits(ctx: Any, keeper: Keeper) -> None:
    view = ctx.service("store")

    async def look() -> tuple[list[str], Any]:
        waiting = view.wait()
        assert inspect.isawaitable(waiting)
        blocked = waiting.send(None)
        found = leaks(
            [*keeper.secrets, keeper.store.gate], waiting, blocked, *(getattr(blocked, "_callbacks", None) or ())
        )
        assert keeper.store.gate is not None
        keeper.store.gate.set()
        blocked._asyncio_future_blocking = False  # as a task does
        await blocked
        with pytest.raises(StopIteration) as end:
            waiting.send(None)
        return found, end.value.value

    assert run(look()) == ([], "open")


def test_an_error_that_is_thrown_in_collects_no_frames_of_the_service(ctx: Any, keeper: Keeper) -> None:
    view = ctx.service("store")

    async def look() -> list[str]:
        waiting, thrown = view.wait(), Thrown("thrown")
        waiting.send(None)
        error = caught(waiting.throw, thrown)
        assert keeper.store.given == ["ended"]
        return leaks(keeper.secrets, thrown, error)

    assert run(look()) == []


@pytest.mark.slow
def test_the_search_finds_what_is_badly_hidden() -> None:
    class Thing:
        pass

    secret = Thing()

    def closure() -> Any:
        return secret

    def default(hidden: Any = secret) -> Any:
        return hidden

    class Holder:
        def method(self) -> None:
            local = self.deep = {"a": [secret]}  # noqa: F841
            raise ValueError

    found: list[BaseException] = []
    try:
        Holder().method()
    except ValueError as error:
        found.append(error)
    for start in (closure, default, [default], found[0], property(closure), types.MethodType(len, secret)):
        assert leaks([secret], start), start


# Using it ----------------------------------------------------------------------------------------------------------------


def test_async_methods_are_awaited_gathered_and_cancelled_as_usual(ctx: Any, keeper: Keeper) -> None:
    view = ctx.service("store")

    async def use() -> Any:
        task = asyncio.create_task(view.wait())
        await asyncio.sleep(0)
        assert keeper.store.gate is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await view.wait()
        one, two = asyncio.create_task(view.wait()), None
        await asyncio.sleep(0)
        keeper.store.gate.set()
        two = await asyncio.gather(one, one)
        return two, list(keeper.store.given)

    assert run(use()) == (["open", "open"], ["ended", "ended", "ended"])


def test_arguments_and_answers_are_copies(ctx: Any, keeper: Keeper) -> None:
    view, given = ctx.service("store"), {"a": [1, {"b": 2}]}
    view.put("x", given, [3], named={"c": [4]})
    given["a"].append("later")
    assert keeper.store.given == [{"a": [1, {"b": 2}]}, [3], {"c": [4]}]
    for key in ("list", "map", "x"):
        answer = view.fetch(key)
        before = copy.deepcopy(keeper.store.kept[key])
        (answer if isinstance(answer, list) else next(iter(answer.values()))).clear()
        assert keeper.store.kept[key] == before


def test_names_of_arguments_are_plain_text(ctx: Any, keeper: Keeper) -> None:
    names = []

    class Put:
        def put(self, key: str, value: Any = None, **named: Any) -> int:
            names.extend(map(type, named))
            return 0

    keeper.store.put = Put().put  # type: ignore[method-assign]
    ctx.service("store").put("a", **{Sly("sly"): 1})
    assert names == [str]


class Odd:
    """Something to wait for that hands over what it likes."""

    def __init__(self, along: object) -> None:
        self.along = along

    def __await__(self) -> Any:
        yield self.along


def test_work_that_waits_for_what_no_loop_knows_hands_nothing_over(ctx: Any, keeper: Keeper) -> None:
    async def later(what: str) -> Any:
        return await Odd(keeper.store)

    keeper.store.later = later  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="Store, which no event loop knows"):
        ctx.service("store").later("x").send(None)


EXACT: dict[str, tuple[Any, Any]] = {
    "an enum": (Colour.RED, "red"),
    "a text with more": (Sly("text"), "text"),
    "an ordered dict": (collections.OrderedDict(a=1), {"a": 1}),
    "a counter": (collections.Counter("aa"), {"a": 2}),
    "a boolean": (True, True),
    "a tuple": ((1, [2]), [1, [2]]),
    "a named tuple": (collections.namedtuple("P", "x")(1), [1]),
    "a read-only mapping": (types.MappingProxyType({"a": types.MappingProxyType({"b": (1,)})}), {"a": {"b": [1]}}),
    "nothing": (None, None),
    "a large text": ("x" * 100_000, "x" * 100_000),
    "many": ({str(n): n for n in range(1000)}, {str(n): n for n in range(1000)}),
}


@pytest.mark.parametrize("what", EXACT)
def test_what_passes_is_of_exact_builtin_types(ctx: Any, keeper: Keeper, what: str) -> None:
    written, wanted = EXACT[what]
    view = ctx.service("store")
    view.put("x", written)
    keeper.store.kept["y"] = written
    for found in (keeper.store.kept["x"], view.fetch("y")):
        assert (found, type(found)) == (wanted, type(wanted))


def test_too_much_is_refused_both_ways(opened: Opened, keeper: Keeper) -> None:  # noqa: F811
    user = User()
    limits = {"limits": {"outputBytes": 1000, "argumentBytes": 1000}}
    manifest = {"name": "user", "version": "1", "start": True, "permissions": {"services": {"write": ["store"]}}}
    opened(Plugin(keeper, name="keeper"), Plugin(user, manifest=manifest), config=limits)
    view = user.ctx.service("store")
    keeper.store.kept["big"] = ["x" * 600, "y" * 600]
    with pytest.raises(OutputTooLarge, match="fetch of service 'store'"):
        view.fetch("big")
    with pytest.raises(ToolFailed, match="argument 2"):
        view.put("a", ["x" * 600, "y" * 600])


SAME: dict[str, tuple[type[BaseException], str]] = {
    "key": (KeyError, "'k'"),
    "attribute": (AttributeError, "has no attribute 'nothing'"),
    "os": (FileNotFoundError, r"gone.*'/x'"),
    "unicode": (UnicodeDecodeError, "bad"),
    "tavern": (ToolFailed, "cannot"),
    "settings": (SettingsInvalid, "no"),
    "group": (ExceptionGroup, "many"),
    "own": (UpstreamError, "OwnError: .*own words"),
    "cannot say": (UpstreamError, "_Mute"),
    "system exit": (RuntimeError, "SystemExit"),
    "stop": (RuntimeError, "Stop"),
}


@pytest.mark.parametrize("how", SAME)
def test_an_error_keeps_its_type_where_everybody_has_it(ctx: Any, how: str) -> None:
    kind, words = SAME[how]
    with pytest.raises(kind, match=words) as failed:
        ctx.service("store").fail(how)
    assert type(failed.value) is kind
    if isinstance(failed.value, ToolFailed):
        assert (failed.value.hint, failed.value.retryable, failed.value.outcome) == ("do it", True, "unknown")
        assert failed.value.details == {"thing": "<Store>", "n": 1}


def test_a_view_says_what_it_has(ctx: Any) -> None:
    view = ctx.service("store")
    assert [name for name in dir(view) if not name.startswith("_")] == sorted(
        ["answer", "astream", "fail", "fail_later", "fetch", "later", "put", "stream", "wait"]
    )
    assert str(inspect.signature(view.fetch)) == "(key: 'str', default: 'Any' = None) -> 'Any'"
    assert (view.fetch.__name__, view.fetch.__doc__, type(view).__doc__) == (
        "fetch",
        "Fetch what is kept.",
        "Keeps things.",
    )
    assert repr(view) == "<view of service 'store'>"
    assert (view == view, view == ctx.service("store"), f"{view}") == (True, True, repr(view))


# Rights ------------------------------------------------------------------------------------------------------------------


class Marked(Protocol):
    @read_only
    def fetch(self, key: str, default: Any = None) -> Any: ...

    @mutates
    def put(self, key: str, value: Any = None) -> int: ...

    async def later(self, what: str) -> Any: ...


RIGHTS: list[tuple[str, str, bool]] = [
    # declared, method, allowed
    ("use", "fetch", True),
    ("use", "put", False),
    ("use", "later", False),  # without a mark among marked ones: it counts as changing
    ("write", "fetch", True),
    ("write", "put", True),
    ("write", "later", True),
]


@pytest.mark.parametrize(("right", "method", "allowed"), RIGHTS)
def test_a_view_is_read_only_unless_writing_was_granted(opened: Opened, right: str, method: str, allowed: bool) -> None:  # noqa: F811
    ctx = pair(opened, Keeper(Marked), **{right: ["store"]})
    call = getattr(ctx.service("store"), method)
    if allowed:
        answer = call("list")
        if inspect.isawaitable(answer):
            with pytest.raises(KeyError):
                run(answer)
        return
    with pytest.raises(PolicyDenied) as denied:
        call("list")
    assert method in denied.value.message
    assert "services: {write: [store]}" in denied.value.hint
    assert "tavern plugins grant user service:write:store" in denied.value.hint
    assert denied.value.details["missing"] == ["service:write:store"]


def test_a_method_outside_the_interface_is_not_published(opened: Opened) -> None:  # noqa: F811
    view = pair(opened, Keeper(Marked)).service("store")
    with pytest.raises(AttributeError, match="published: fetch, later, put"):
        view.answer("self")


def test_what_a_stopped_plugin_kept_opens_nothing(opened: Opened, keeper: Keeper) -> None:  # noqa: F811
    user = User()
    manifest = {"name": "user", "version": "1", "start": True, "permissions": {"services": {"write": ["store"]}}}
    host = opened(Plugin(keeper, name="keeper"), Plugin(user, manifest=manifest))
    old = user.ctx
    view = old.service("store")
    assert view.fetch("list")
    host.plugins.disable_sync("user")
    for call in (lambda: view.fetch("list"), lambda: old.service("store"), lambda: old.secret("x")):
        with pytest.raises(PolicyDenied, match="user was stopped"):
            call()
    host.plugins.enable_sync("user")
    with pytest.raises(PolicyDenied, match="user was stopped"):
        view.fetch("list")
    assert user.ctx.service("store").fetch("list")


def test_the_view_of_an_executor_leads_to_no_object_of_the_host(opened: Opened, keeper: Keeper) -> None:  # noqa: F811
    homes: list[Any] = []
    own = {"load", "service", "settings"}

    class Runner:
        def bind(self, tool: Any, given: Any) -> Any:
            homes.append(given)
            return BoundTool(lambda arguments, call: given.service("store").fetch("list"), is_async=False)

        @hookimpl
        def tavern_register_executors(self) -> Any:
            return {"odd": self}

        @hookimpl
        def tavern_register_tools(self) -> Any:
            return [ToolSpec("runner:go", kind="odd")]

    host = opened(Plugin(keeper, name="keeper"), Plugin(Runner(), name="runner", manifest={
        "executors": ["odd"], "permissions": {"services": {"write": ["store"]}}, "tools": [{"id": "go", "implementation": {"type": "odd"}}]}))  # fmt: skip
    assert host.invoke_sync("runner:go").value == [1, [2]]
    [reported] = homes
    assert reported.sandbox.level in ("required", "best-effort", "none")
    assert (
        leaks(
            [*keeper.secrets, host, host.services, host.plugins, host.workflows],
            reported,
            *(getattr(reported, name) for name in own),
        )
        == []
    )
