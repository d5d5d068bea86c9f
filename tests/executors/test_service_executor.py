"""Service tools: published methods of registered services, and nothing else of them."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Protocol

import pytest

from tavern_core.builtin.executors.service_method import ServiceExecutor
from tavern_core.contract.protocols import BoundTool, Service
from tavern_core.contract.published_methods import published_methods
from tavern_core.errors import ToolFailed, ToolFileInvalid
from tavern_core.model.tool import ToolSpec
from tests.rows import each_row

from .workbench import home

ANY = {"type": "object", "properties": {}}


class Store:
    limit = 3
    factory = dict

    class Nested:
        pass

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.loose = lambda: "loose"

    def put(self, key: str, value: str = "") -> str:
        self.kept[key] = value
        return f"{key}={value}"

    async def fetch(self, key: str) -> str:
        return self.kept[key]

    @staticmethod
    def version() -> str:
        return "1"

    @classmethod
    def kind(cls) -> str:
        return cls.__name__

    @property
    def secret(self) -> str:
        raise AssertionError("a property was evaluated")

    def _private(self) -> str:
        return "private"


class Disk(Store):
    put = None  # type: ignore[assignment]

    def sync(self) -> str:
        return "synced"


class Reading(Protocol):
    async def fetch(self, key: str) -> str: ...

    def count(self) -> int: ...


def bind(service: str, method: str, services: dict[str, Any], schema: Any = ANY, **keys: Any) -> BoundTool:
    given = {"type": "service", "service": service, "method": method, **keys}
    spec = ToolSpec("demo:t", kind="service", implementation=given, input_schema=schema)
    return ServiceExecutor().bind(spec, home(services=services))


def answer(method: str, service: Any, **arguments: Any) -> Any:
    value = bind("store", method, {"store": service}).run(arguments, None)
    if inspect.isawaitable(value):

        async def wait() -> Any:
            return await value

        return asyncio.run(wait())
    return value


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: Service("store", s)])
def test_public_methods_are_called_sync_and_async(wrap: Any) -> None:
    store = Store()
    assert answer("put", wrap(store), key="a", value="甲") == "a=甲"
    assert answer("fetch", wrap(store), key="a") == "甲"
    assert answer("version", wrap(store)) == "1"
    assert answer("kind", wrap(store)) == "Store"


@each_row("name", ["limit", "kept", "loose", "secret", "Nested", "factory", "nothing", "mro", "fetchh"])
def test_what_is_no_published_method_is_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        answer(name, Store())
    assert caught.value.details["published"] == ["fetch", "kind", "put", "version"]
    assert caught.value.hint


def test_of_a_service_with_an_interface_only_the_interface_is_published() -> None:
    service = Service("store", Store(), interface=Reading)
    assert published_methods(service) == ["count", "fetch"]
    with pytest.raises(ToolFailed, match="publishes no method 'put'"):
        answer("put", service, key="a")
    with pytest.raises(ToolFailed, match="lacks the method 'count'"):
        answer("count", service)


def test_a_subclass_can_take_a_method_away() -> None:
    assert published_methods(Service("disk", Disk())) == ["fetch", "kind", "sync", "version"]


@each_row("method", ["_private", "__init__", "__class__", "a.b", "put()", "1st"])
def test_a_private_method_is_refused_when_the_tool_is_bound(method: str) -> None:
    with pytest.raises(ToolFileInvalid, match="not a public method"):
        bind("store", method, {})


@each_row(
    ("service", "method", "schema", "keys", "words"),
    [
        ("", "put", ANY, {}, "implementation.service must be a name"),
        (None, "put", ANY, {}, "implementation.service must be a name"),
        ("store", None, ANY, {}, "implementation.method must be a name"),
        ("store", ["put"], ANY, {}, "implementation.method must be a name"),
        ("store", "put", {}, {}, "must declare its parameters"),
        ("store", "put", {"type": "object"}, {}, "must declare its parameters"),
        ("store", "put", ANY, {"methods": ["put"]}, "has no 'methods'"),
    ],
)
def test_a_wrong_definition_is_refused_when_the_tool_is_bound(
    service: Any, method: Any, schema: Any, keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(ToolFileInvalid, match=words):
        bind(service, method, {}, schema, **keys)


def test_the_service_is_looked_up_for_each_call() -> None:
    services: dict[str, Any] = {}
    bound = bind("store", "put", services)
    with pytest.raises(ToolFailed, match="no service 'store'"):
        bound.run({"key": "a"}, None)
    services["store"] = old = Store()
    bound.run({"key": "a"}, None)
    services["store"] = new = Store()
    bound.run({"key": "b"}, None)
    assert (list(old.kept), list(new.kept)) == (["a"], ["b"])
