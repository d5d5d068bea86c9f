"""What a curious plugin does with a view; its module knows nothing of the service."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Awaitable, Callable
from typing import Any


def caught(call: Callable[..., Any], *args: Any) -> BaseException:
    """What a call raises; an async one is awaited."""
    try:
        answer = call(*args)
        if isinstance(answer, Awaitable):
            asyncio.run(answer)  # type: ignore[arg-type]
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


class Thrown(Exception):
    """The plugin's own."""


REFUSED: dict[str, Callable[[Any], Any]] = {
    "an unknown service": lambda ctx: ctx.service("stoer"),
    "an ungranted secret": lambda ctx: ctx.secret("key"),
    "a foreign setting": lambda ctx: ctx.get_config("extensions.keeper.x"),
    "a private method": lambda ctx: ctx.service("store")._internalReset(),
    "a property": lambda ctx: ctx.service("store").trap,
    "too few arguments": lambda ctx: ctx.service("store").put(),
    "an unknown argument": lambda ctx: ctx.service("store").fetch("a", nothing=1),
    "a callback": lambda ctx: ctx.service("store").put("a", print),
    "an object": lambda ctx: ctx.service("store").put("a", object()),
    "a named callback": lambda ctx: ctx.service("store").put("a", value=lambda: 1),
    "setting": lambda ctx: setattr(ctx.service("store"), "put", 1),
    "deleting": lambda ctx: delattr(ctx.service("store"), "put"),
    "item setting": lambda ctx: ctx.service("store").__setitem__("a", 1),
    "the class called by hand": lambda ctx: type(ctx.service("store")).put(None, "a", 1),
    "another instance": lambda ctx: object.__new__(type(ctx.service("store"))).put("a", 1),
    "an instance of the class": lambda ctx: type(ctx.service("store"))().put("a", 1),
    "a copy": lambda ctx: copy.copy(ctx.service("store")),
    "a deep copy": lambda ctx: copy.deepcopy(ctx.service("store")),
    "a pickle": lambda ctx: pickle.dumps(ctx.service("store")),
}
