"""A name that says one thing to whoever asks for rights and another to whoever looks it up opens nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, hookimpl
from tavern_core.contract.protocols import Service
from tests.rows import row

OPEN = "open"


class Formats(str):
    """Another text wherever it is formatted."""

    def __format__(self, spec: str) -> str:
        return OPEN

    def __str__(self) -> str:
        return OPEN

    def __add__(self, other: str) -> str:
        return OPEN + other


class Equals(str):
    """Equal to what is allowed."""

    def __hash__(self) -> int:
        return hash(OPEN)

    def __eq__(self, other: object) -> bool:
        return other == OPEN or str.__eq__(self, other)  # type: ignore[arg-type]


class Begins(str):
    """Begins with whatever somebody asks for."""

    def startswith(self, *wanted: Any) -> bool:
        return not str(wanted[0]).endswith("extensions.") or len(wanted[0]) > 11


class NoText:
    """No text at all."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __format__(self, spec: str) -> str:
        return OPEN

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return other == self.name


FORMS: dict[str, Callable[[str], Any]] = {"formatted": Formats, "equal": Equals, "beginning": Begins, "no text": NoText}


class Clock:
    def tell(self) -> str:
        return "the real one"


class Forged:
    def tell(self) -> str:
        return "forged"


class Owner:
    @hookimpl
    def tavern_register_services(self) -> Any:
        return [Service("closed", Clock()), Service(OPEN, Clock())]


OWNER = {
    "services": ["closed", OPEN],
    "configOptions": [{"key": "extensions.owner.closed", "type": "string", "defaultValue": "theirs"}],
}
MINE = {
    "permissions": {"capabilities": [f"secrets:{OPEN}"], "services": {"use": [OPEN], "override": [OPEN]}},
    "configOptions": [{"key": "extensions.mine.open", "type": "string", "defaultValue": "mine"}],
}
CONFIG = {"plugins": {"entryPoints": False}, "secrets": {OPEN: "s3cret-of-mine", "closed": "s3cret-of-others"}}

DOORS: dict[str, Callable[[Any, Callable[[str], Any]], Any]] = {
    "a secret": lambda ctx, form: ctx.secret(form("closed")),
    "a setting": lambda ctx, form: ctx.get_config(form("extensions.owner.closed")),
    "a change of a setting": lambda ctx, form: ctx.on_config_change(form("extensions.owner.closed"), print),
    "a service": lambda ctx, form: ctx.service(form("closed")).tell(),
}


def test_a_forked_name_opens_no_door(tmp_path: Path) -> None:
    kept = []

    class Mine:
        @hookimpl
        def tavern_start(self, ctx: Any) -> None:
            kept.append(ctx)

    plugins = [Plugin(Owner(), name="owner", manifest=OWNER), Plugin(Mine(), name="mine", manifest=MINE)]
    with Tavern.open(CONFIG, plugins=plugins, home=tmp_path, activate="all"):
        assert kept[0].secret(OPEN) == "s3cret-of-mine"
        for door, form in itertools.product(DOORS, FORMS):
            with row((door, form)), pytest.raises(Exception) as caught:
                DOORS[door](kept[0], FORMS[form])
            assert type(caught.value).__name__ in ("PolicyDenied", "SettingsInvalid", "TypeError"), (door, form)


@pytest.mark.parametrize("form", [Formats, Equals])
def test_a_forked_name_replaces_no_service(tmp_path: Path, form: type[str]) -> None:
    class Mine:
        @hookimpl
        def tavern_register_services(self) -> Any:
            return [Service(form("closed"), Forged())]

    plugins = [Plugin(Owner(), name="owner", manifest=OWNER), Plugin(Mine(), name="mine", manifest=MINE)]
    with Tavern.open(CONFIG, plugins=plugins, home=tmp_path, activate="all") as tavern:
        assert tavern.services["closed"].object.tell() == "the real one"
        assert tavern.plugins["mine"].state == "failed"
