"""A plugin that was granted it replaces a service for everybody, and gives it back."""

from __future__ import annotations

import itertools
from typing import Any, Protocol

import pytest

from tavern_core import Plugin, hookimpl, mutates, read_only
from tavern_core.contract.protocols import Service
from tavern_core.errors import PolicyDenied, ToolFailed
from tavern_core.kernel.plugins.service_overrides import differences
from tests.rows import each_row

from .conftest import Opened
from .workshop import Workshop, codes, reported


class Speaking(Protocol):
    @read_only
    def word(self) -> str: ...

    @mutates
    def say(self, text: str, *, times: int = 1) -> str: ...


class Voice:
    def __init__(self, name: str) -> None:
        self.name = name

    def word(self) -> str:
        return self.name

    def say(self, text: str, *, times: int = 1) -> str:
        return f"{self.name}: {text * times}"

    def whisper(self) -> str:
        return "psst"


class Brings:
    """A plugin with one service; `asks` is what it asks its own context for."""

    def __init__(self, voice: Any, interface: type | None = None) -> None:
        self.service = Service("voice", voice, interface)
        self.ctx: Any = None

    @hookimpl
    def tavern_register_services(self, ctx: Any) -> list[Service]:
        self.ctx = ctx
        return [self.service]


class Uses:
    ctx: Any = None

    @hookimpl
    def tavern_start(self, ctx: Any) -> None:
        self.ctx = ctx


OVERRIDES = {"permissions": {"services": {"override": ["voice"]}}}


def original() -> Plugin:
    return Plugin(Brings(Voice("original"), Speaking), name="original")


def replacing(name: str, voice: Any = None) -> Plugin:
    return Plugin(Brings(voice or Voice(name)), manifest={"name": name, "version": "1", **OVERRIDES})


def using(*rights: str) -> tuple[Plugin, Uses]:
    uses = Uses()
    services = {right: ["voice"] for right in rights or ("write",)}
    return Plugin(
        uses, manifest={"name": "user", "version": "1", "start": True, "permissions": {"services": services}}
    ), uses


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_views_reach_the_override_in_any_order_and_the_original_after_it(
    opened: Opened, order: tuple[int, ...]
) -> None:
    plugin, uses = using()
    plugins = [original(), replacing("other"), plugin]
    host = opened(*(plugins[n] for n in order))
    view = uses.ctx.service("voice")
    assert (view.word(), view.say("a", times=2), host.services.owner("voice")) == ("other", "other: aa", "other")
    host.plugins.disable_sync("other")
    assert (view.word(), host.services.owner("voice")) == ("original", "original")
    host.plugins.enable_sync("other")
    assert view.word() == "other"


def test_the_plugin_of_a_service_uses_its_override(opened: Opened) -> None:
    brings = Brings(Voice("original"), Speaking)
    spec = {
        "id": "word",
        "description": "A word.",
        "implementation": {"type": "service", "service": "voice", "method": "word"},
    }
    manifest = {
        "name": "original",
        "version": "1",
        "services": ["voice"],
        "tools": [{**spec, "parameters": {"type": "object", "properties": {}}}],
    }
    host = opened(Plugin(brings, manifest=manifest), replacing("other"))
    for word in ("other", "original"):
        assert brings.ctx.service("voice").say("a") == f"{word}: a"
        assert host.invoke_sync("original:word").value == word
        host.plugins.disable_sync("other")


def test_only_what_the_original_publishes_is_published(opened: Opened) -> None:
    plugin, uses = using("use")
    opened(original(), replacing("other"), plugin)
    view = uses.ctx.service("voice")
    assert view.word() == "other"
    with pytest.raises(AttributeError, match="published: say, word"):
        view.whisper()
    with pytest.raises(PolicyDenied, match="changes it"):  # the marks are the original's
        view.say("a")


def test_the_overriding_plugin_reaches_what_it_replaces(opened: Opened) -> None:
    class Echo(Voice):
        def word(self) -> str:
            return f"not {brings.ctx.service('voice').word()}"

    brings = Brings(Echo("echo"))
    plugin, uses = using()
    host = opened(original(), Plugin(brings, manifest={"name": "echo", "version": "1", **OVERRIDES}), plugin)
    assert uses.ctx.service("voice").word() == "not original"
    host.plugins.disable_sync("original")
    with pytest.raises(ToolFailed, match="it overrides none"):
        uses.ctx.service("voice").word()


def test_one_of_several_wins_whatever_comes_first_and_the_next_stands_by(opened: Opened) -> None:
    plugin, uses = using()
    host = opened(original(), replacing("b"), replacing("a"), plugin)  # objects: in the order in which they were passed
    view = uses.ctx.service("voice")
    assert view.word() == "b"
    assert "'voice' is overridden by b, a; that of b is used" in reported(host, "SERVICE_OVERRIDE_CONFLICT")
    host.plugins.disable_sync("b")
    assert view.word() == "a"
    assert reported(host, "SERVICE_OVERRIDE_CONFLICT") == ""
    host.plugins.enable_sync("b")
    assert view.word() == "b"
    assert "overridden by b, a" in reported(host, "SERVICE_OVERRIDE_CONFLICT")
    host.plugins.disable_sync("a")
    assert view.word() == "b"


CODE = """
from tavern_core.contract.protocols import Service
class Voice:
    def word(self): return "folder"
    def say(self, text, *, times=1): return "folder"
@hookimpl
def tavern_register_services(ctx): return [Service("voice", Voice())]
"""
ASKS = "permissions: {services: {override: [voice]}}"


def test_a_folder_plugin_replaces_nothing_before_it_is_granted_and_after_it_is_revoked(workshop: Workshop) -> None:
    workshop.folder("other", CODE, ASKS)
    plugin, uses = using()
    host = workshop.open(original(), plugin)
    view = uses.ctx.service("voice")
    assert view.word() == "original"
    host.grant("other", "service:override:voice")
    assert (view.word(), host.plugins["other"].state) == ("folder", "active")
    host.plugins.reload_sync("other")
    assert view.word() == "folder"
    host.revoke("other", "service:override:voice")
    assert view.word() == "original"


def test_an_override_that_was_activated_without_its_grant_is_not_used_and_says_so(workshop: Workshop) -> None:
    workshop.folder("other", CODE, ASKS + "\nstart: true")
    plugin, uses = using()
    host = workshop.open(original(), plugin)
    assert uses.ctx.service("voice").word() == "original"
    assert "tavern plugins grant other service:override:voice" in reported(host, "SERVICE_NOT_GRANTED")


def test_a_service_of_a_taken_name_is_a_conflict_that_says_how_to_replace(workshop: Workshop) -> None:
    workshop.folder("other", CODE, "services: [voice]")
    status = workshop.open(original()).plugins["other"]
    assert status.state == "failed"
    assert "services: {override: [voice]}" in status.reason


def test_an_override_of_nothing_is_used_as_it_is(opened: Opened) -> None:
    plugin, uses = using()
    host = opened(replacing("other"), plugin)
    assert uses.ctx.service("voice").whisper() == "psst"
    assert "SERVICE_OVERRIDES_NOTHING" in codes(host, "other")


def test_an_override_that_fails_to_activate_leaves_the_original(opened: Opened) -> None:
    class Dies(Brings):
        @hookimpl
        def tavern_start(self, ctx: Any) -> None:
            raise RuntimeError("dead")

    plugin, uses = using()
    host = opened(
        original(), Plugin(Dies(Voice("other")), manifest={"name": "other", "version": "1", **OVERRIDES}), plugin
    )
    assert (host.plugins["other"].state, uses.ctx.service("voice").word()) == ("failed", "original")


# What can stand in for what ----------------------------------------------------------------------------------------------


def fits(wanted: str, given: str) -> list[str]:
    """The differences between two classes whose methods are written as ``def f(self, a): ...``."""
    made: list[type] = []
    for text in (wanted, given):
        body: dict[str, Any] = {}
        for line in text.split(";"):
            exec(f"{line.strip()}: ..." if "def " in line else line.strip(), {}, body)
        made.append(type("Made", (), body))
    return differences(Service("s", made[0]()), Service("s", made[1]()))


FITS = [
    ("def f(self)", "def f(self)"),
    ("def f(self, a)", "def f(self, a)"),
    ("def f(self, a)", "def f(self, a, b=1)"),
    ("def f(self, a)", "def f(self, a=1)"),
    ("def f(self, a, *, b=1)", "def f(self, a, b=1)"),
    ("def f(self, a, b=1)", "def f(self, *args, **kwargs)"),
    ("def f(self, a, /)", "def f(self, x, /)"),
    ("def f(self, a, /)", "def f(self, x)"),
    ("def f(self, *a, **k)", "def f(self, *x, **y)"),
    ("async def f(self)", "async def f(self)"),
    ("def f(self); def _p(self)", "def f(self); def more(self)"),
    ("def f(self, a, b)", "def f(self, a, *args, b=1)"),
]
MISMATCHES = [
    ("def f(self)", "", "no method f()"),
    ("def f(self, a)", "def f(self)", "'a' is missing"),
    ("def f(self, a, b)", "def f(self, b, a)", "another place"),
    ("def f(self, a)", "def f(self, x)", "'a' is called 'x'"),
    ("def f(self, a=1)", "def f(self, a)", "'a' must be optional"),
    ("def f(self, *, a=1)", "def f(self, *, a)", "'a' must be optional"),
    ("def f(self, *, a)", "def f(self)", "'a' is missing"),
    ("def f(self)", "def f(self, a)", "'a' is not known"),
    ("def f(self)", "def f(self, *, a)", "'a' is not known"),
    ("def f(self, *a)", "def f(self, a=1)", "*args"),
    ("def f(self, **k)", "def f(self)", "**kwargs"),
    ("def f(self, a)", "def f(self, a, /)", "'a'"),
    ("def f(self, a, b)", "def f(self, a, *, b)", "'b'"),
    ("async def f(self)", "def f(self)", "must be `async def`"),
    ("def f(self)", "async def f(self)", "must be `def`"),
    ("def f(self)", "f = 3", "no method f()"),
]


@each_row(("wanted", "given"), FITS)
def test_what_can_be_called_in_every_way_fits(wanted: str, given: str) -> None:
    assert fits(wanted, given) == []


@each_row(("wanted", "given", "why"), MISMATCHES)
def test_a_difference_is_named(wanted: str, given: str, why: str) -> None:
    found = fits(wanted, given)
    assert why in " | ".join(found)


class Mute:
    def word(self, loud: bool) -> str:
        return ""


@pytest.mark.parametrize("first", [True, False])
def test_an_override_that_does_not_fit_fails_and_the_original_is_used(opened: Opened, first: bool) -> None:
    plugin, uses = using()
    plugins = [replacing("mute", Mute()), original()]
    host = opened(*(plugins if first else plugins[::-1]), plugin)
    assert uses.ctx.service("voice").word() == "original"
    said = host.plugins["mute"].reason + reported(host, "SERVICE_OVERRIDE_MISFIT")
    assert "no method say(text, *, times=...)" in said
    assert "word(loud)" in said


@pytest.mark.parametrize("name", ["systemClock"])
def test_a_service_of_the_host_can_be_replaced(workshop: Workshop, name: str) -> None:
    code = CODE.replace('"voice"', repr(name)).replace(
        "def word(self)", "def now(self): return 86400.0\n    def timezone(self): return 'UTC'\n    def word(self)"
    )
    workshop.folder("other", code, ASKS.replace("voice", name))
    host = workshop.open()
    assert host.services.names() == []
    assert name in host.services.names(everything=True)
    host.grant("other", f"service:override:{name}")
    assert host.invoke_sync("system:get_current_time").value == "1970-01-02T00:00:00+00:00"
    host.plugins.disable_sync("other")
    assert host.invoke_sync("system:get_current_time").value > "2020"
