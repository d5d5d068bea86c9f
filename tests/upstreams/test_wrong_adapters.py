"""Adapters of plugins that raise, stall and return what the contract does not know: an error of that upstream, never of the caller or the host."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tavern_core import Plugin, Tavern, ToolResult, hookimpl, tool
from tavern_core.contract.adapters import Listing, UpstreamTool
from tavern_core.errors import CallError, UpstreamError
from tavern_core.model.tool import Example
from tests.upstreams.toy import ECHO, SETTINGS, System, opened


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def connection(**methods: Any) -> Any:
    """A connection whose methods return, or raise, what is given."""

    def method(name: str, usual: Any) -> Callable[..., Any]:
        async def run(*_: Any) -> Any:
            answer = methods.get(name, usual)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return run

    usual = {"list_tools": Listing((ECHO,)), "invoke": "well", "check": None, "close": None}
    return SimpleNamespace(**{name: method(name, answer) for name, answer in usual.items()})


def adapter(opens: Any = None, **parts: Any) -> Any:
    async def connect(upstream: Any) -> Any:
        if isinstance(opens, BaseException):
            raise opens
        return connection() if opens is None else opens

    return SimpleNamespace(**{"settings": SETTINGS, "targets": frozenset({"url"}), "connect": connect, **parts})


def host_with(adapter: Any, home: Path, others: Mapping[str, Any] | None = None, **entry: Any) -> Tavern:
    @hookimpl
    def tavern_register_adapters() -> dict[str, Any]:
        return {"toy": adapter}

    plugin = Plugin(SimpleNamespace(tavern_register_adapters=tavern_register_adapters), name="toys")
    host = Tavern.open(
        {"upstreams": {"toy": {"kind": "toy", "url": "http://127.0.0.1:9", **entry}, **(others or {})}},
        home=home,
        plugins=[plugin],
    )
    host.grant("toy", all_requested=True)
    return host


WRONG: dict[str, tuple[Any, str]] = {
    "settings are no schema": (adapter(settings=None), "cannot be used"),
    "settings are a wrong schema": (adapter(settings={"type": "nonsense"}), "not a JSON type"),
    "targets are no set": (adapter(targets=5), "its adapter failed"),
    "targets are no targets": (adapter(targets=[5]), "reached by `5`"),
    "connect raises": (adapter(ValueError("no luck")), "no luck"),
    "connect exits": (adapter(SystemExit(3)), "SystemExit"),
    "connect opens nothing": (adapter(SimpleNamespace()), "has no method list_tools"),
    "in this process, connect raises": (adapter(ValueError("no luck"), in_process=True), "no luck"),
    "list_tools lists nothing": (adapter(connection(list_tools=None)), "not a Listing"),
    "list_tools returns a text": (adapter(connection(list_tools="echo")), "not a Listing"),
    "list_tools returns no tools": (adapter(connection(list_tools=Listing(None))), "not a Listing"),  # type: ignore[arg-type]
    "list_tools raises": (adapter(connection(list_tools=ValueError("no luck"))), "no luck"),
    "list_tools raises what has no text": (adapter(connection(list_tools=Unprintable())), "Unprintable"),
    "list_tools exits": (adapter(connection(list_tools=SystemExit(3))), "SystemExit"),
    "a time that is none": (adapter(connection(list_tools=Listing((ECHO,), ttl_ms=float("nan")))), "not a Listing"),  # type: ignore[arg-type]
    "left_out is not a mapping": (adapter(connection(list_tools=Listing((ECHO,), left_out=None))), "not a Listing"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_adapter_is_an_error_of_its_upstream(case: str, tmp_path: Path) -> None:
    wrong, message = WRONG[case]
    with host_with(wrong, tmp_path) as host:
        with pytest.raises(CallError) as error:
            host.upstreams.connect_sync("toy")
        result = host.invoke_sync("toy:echo", {"x": 1})
        assert host.invoke_sync("system:get_current_time", {}).ok
        assert message in host.upstreams["toy"].last_error
    assert message in error.value.message
    assert result.error is not None and result.error.outcome == "none"


LATER: dict[str, Any] = {
    "check raises": adapter(connection(check=ValueError("no luck"))),
    "check exits": adapter(connection(check=SystemExit(3))),
}


@pytest.mark.parametrize("case", LATER)
def test_a_check_that_goes_wrong_is_an_error_and_ends_nothing(case: str, tmp_path: Path) -> None:
    with host_with(LATER[case], tmp_path) as host:
        with pytest.raises(CallError, match="its adapter failed"):
            host.upstreams.check_sync("toy")
        assert host.invoke_sync("toy:echo", {"x": 1}).value == "well"


@pytest.mark.parametrize("error", [KeyboardInterrupt("no luck"), SystemExit("no luck")])
def test_an_adapter_that_ends_or_interrupts_the_program_fails_its_call_alone(
    error: BaseException, tmp_path: Path
) -> None:
    with host_with(adapter(connection(invoke=error)), tmp_path) as host:
        for call in (
            lambda: host.invoke_sync("toy:echo", {"x": 1}),
            lambda: asyncio.run(host.invoke("toy:echo", {"x": 1})),
        ):
            result = call()
            assert result.error is not None and "no luck" in result.error.message and result.error.outcome == "unknown"


@pytest.mark.parametrize("error", [ValueError("no luck"), SystemExit(3), KeyboardInterrupt()])
def test_a_connection_that_cannot_be_closed_does_not_keep_the_host_open(error: BaseException, tmp_path: Path) -> None:
    with host_with(adapter(connection(close=error)), tmp_path) as host:
        assert host.invoke_sync("toy:echo", {"x": 1}).ok


def test_neither_does_one_of_an_adapter_in_this_process(tmp_path: Path) -> None:
    with host_with(adapter(connection(close=ValueError("no luck")), in_process=True), tmp_path) as host:
        assert host.invoke_sync("toy:echo", {"x": 1}).ok


def deaf(begun: threading.Semaphore) -> Any:
    """An adapter whose calls swallow their cancellation; each releases `begun`."""

    async def invoke(*_: Any) -> None:
        begun.release()
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1_000)

    return adapter(SimpleNamespace(**{**vars(connection()), "invoke": invoke}))


@pytest.mark.slow
def test_a_call_that_cannot_be_cancelled_ends_at_its_deadline(tmp_path: Path) -> None:
    with host_with(deaf(threading.Semaphore()), tmp_path, timeoutMs=500) as host:
        for error in (
            host.invoke_sync("toy:echo", {"x": 1}).error,
            asyncio.run(host.invoke("toy:echo", {"x": 1})).error,
        ):
            assert error is not None and error.kind == "TIMEOUT"


@pytest.mark.slow
def test_the_end_of_the_host_answers_calls_that_cannot_be_cancelled(tmp_path: Path) -> None:
    begun = threading.Semaphore(0)
    with ThreadPoolExecutor(2) as threads:
        with host_with(deaf(begun), tmp_path) as host:
            answers = [
                threads.submit(host.invoke_sync, "toy:echo", {"x": 1}),
                threads.submit(asyncio.run, host.invoke("toy:echo", {"x": 1})),
            ]
            for _ in answers:
                assert begun.acquire(timeout=20)
        for answer in answers:
            error = answer.result(20).error
            assert error is not None and (error.kind, error.outcome) == ("CONNECTION_LOST", "unknown")


ODD_FIELDS: dict[str, Any] = {
    "display_name": 7,
    "version": 7,
    "tags": (1, 2),
    "capabilities": None,
    "examples": (1,),
    "read_only": "yes",
    "is_job": "yes",
    "timeout_ms": -1,
    "data": {"x": object()},
    "description": "\ud800",
    "input_schema": {"type": "object", "default": object()},
}
ODD_TOOLS = {
    **{field: replace(ECHO, name="odd", **{field: value}) for field, value in ODD_FIELDS.items()},
    "no tool": {"name": "odd"},
    "a number as its name": UpstreamTool(5),  # type: ignore[arg-type]
    "much data": replace(ECHO, name="odd", data={"x": "y" * 2_000_000}),
    "an example that is not JSON": replace(ECHO, name="odd", examples=(Example({}, result=object()),)),
}


def test_a_tool_of_wrong_values_is_left_out_and_costs_no_other(tmp_path: Path) -> None:
    system = System()
    with opened(system, tmp_path) as host:
        for case, odd in ODD_TOOLS.items():
            system.tools = (odd, ECHO)
            host.upstreams.refresh_sync("toy")
            status = host.upstreams["toy"]
            assert status.tools == ("toy:echo",), case
            assert len(status.left_out) == 1, case
            json.dumps(status.to_json()).encode()
            assert host.invoke_sync("toy:echo", {"x": 1}).ok, case


@pytest.mark.slow
def test_texts_about_the_upstream_hold_no_control_characters(tmp_path: Path) -> None:
    listing = Listing((ECHO,), description="a\x1b[31m\ud800", version="1\n2", etag="\ud800")
    with host_with(adapter(connection(list_tools=listing)), tmp_path) as host:
        status = host.upstreams.connect_sync("toy")
    assert (status.description + status.version).isprintable()


@pytest.mark.slow
def test_an_upstream_that_changes_without_end_is_not_asked_without_end(tmp_path: Path) -> None:
    async def calls() -> None:
        system = System()
        async with opened(system, tmp_path) as host:
            await host.upstreams.connect("toy")
            listed, loop = asyncio.Event(), asyncio.get_running_loop()
            host.events.subscribe(lambda event: loop.call_soon_threadsafe(listed.set), "TOOLS_CHANGED")
            system.tools = (ECHO, replace(ECHO, name="more"))
            for _ in range(1_000):
                system.upstreams[0].changed()
            await asyncio.wait_for(listed.wait(), 10)
            assert (await host.invoke("toy:more", {"x": 1})).ok
            assert system.listed <= 3

    asyncio.run(calls())


@pytest.mark.slow
def test_many_first_calls_ask_for_one_list(tmp_path: Path) -> None:
    async def calls() -> None:
        system = System()
        async with opened(system, tmp_path) as host:
            results = await asyncio.gather(*(host.invoke("toy:echo", {"x": n}) for n in range(50)))
            assert all(result.ok for result in results)
        assert system.listed == 1

    asyncio.run(calls())


SECRET_SCHEMA = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "description": "pass-phrase-of-ann"},
        "y": {"enum": ["a", "Bearer pass-phrase-of-ann"], "default": "pass-phrase-of-ann"},
        "z": {"const": {"pass-phrase-of-ann": ["pass-phrase-of-ann"]}, "examples": [["pass-phrase-of-ann"]]},
    },
}
ECHOES: dict[str, Any] = {
    "an error": UpstreamError(
        "bad credentials: pass-phrase-of-ann", hint="not pass-phrase-of-ann", said="pass-phrase-of-ann"
    ),
    "its texts": Listing(
        (
            replace(
                ECHO,
                description="for pass-phrase-of-ann",
                display_name="pass-phrase-of-ann",
                input_schema=SECRET_SCHEMA,
            ),
        ),
        description="You are pass-phrase-of-ann.",
        version="pass-phrase-of-ann",
        left_out={"other": "not for pass-phrase-of-ann"},
    ),
}


@pytest.mark.parametrize("case", ECHOES)
def test_an_upstream_that_says_its_secret_again_shows_it_to_no_one(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_TESTS", "pass-phrase-of-ann")
    echo = adapter(connection(list_tools=ECHOES[case], check=ECHOES["an error"]))
    with host_with(echo, tmp_path, settings={"key": {"$env": "SECRET_OF_TESTS"}}) as tavern:
        shown: list[Any] = []
        for ask in (tavern.upstreams.refresh_sync, tavern.upstreams.check_sync):
            try:
                shown.append(ask("toy"))
            except CallError as error:
                shown += [error, error.hint, error.details]
        shown += [tavern.upstreams["toy"], tavern.tool_specs(), tavern.manual()]
    assert "***" in repr(shown) and "pass-phrase" not in repr(shown)
    stored = [path.read_text() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert stored and not any("pass-phrase" in text for text in stored)


KEPT: dict[str, tuple[str, str, bool]] = {
    "a text": ("opaque-text-of-ann", "opaque-text-of-ann", False),
    "a value in JSON": (
        '{"a": [{"access_token": "opaque-text-of-ann", "scope": "well"}]}',
        "opaque-text-of-ann",
        False,
    ),
    "a text in a list": ('{"passwords": [["opaque-text-of-ann"]], "scopes": ["well"]}', "opaque-text-of-ann", False),
    "a text in JSON": ('"opaque-text-of-ann"', "opaque-text-of-ann", False),
    "a number": ("471199", "471199", False),
    "what can be a token alone": ('{"refresh_token": "1//0abcDEF-ghi_jkl.mno~p"}', "1//0abcDEF-ghi_jkl.mno~p", True),
}
"""What is kept, what of it is secret, and whether the whole host hides it: no upstream chooses an ordinary word that no one sees."""


@pytest.mark.slow
@pytest.mark.parametrize("case", KEPT)
def test_what_an_adapter_keeps_is_masked_in_all_that_comes_from_its_upstream(case: str, tmp_path: Path) -> None:
    kept, secret, is_everywhere = KEPT[case]

    def answer(called: UpstreamTool, arguments: Mapping[str, Any], call: Any) -> Any:
        if arguments["x"] == 2:
            raise UpstreamError(f"well: {secret}", hint=secret, said=[{"text": secret}])
        return [f"well: {secret}", {"scope": ToolResult(True, "well").value}]

    system = System(answer=answer, tools=(replace(ECHO, description=f"of {secret}"),))
    for _ in range(2):
        with opened(system, tmp_path) as host:
            host.upstreams.connect_sync("toy")
            own = system.upstreams[-1]
            if own.load("own") is None:
                own.save("own", kept)
            host.upstreams.refresh_sync("toy")
            host.tools.register(tool(name="other")(lambda: secret))
            assert host.invoke_sync("toy:echo", {"x": 1}).value == ["well: ***", {"scope": "well"}]
            assert secret not in repr(host.invoke_sync("toy:echo", {"x": 2}))
            assert secret not in repr(host.tools.get("toy:echo"))
            assert (secret in repr(host.invoke_sync("other", {}))) is not is_everywhere


def test_what_an_adapter_keeps_is_masked_in_errors_of_connecting_exceptions_documents_and_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "opaque-text-of-ann"
    said: Any = {"text": f"well: {secret}"}

    async def document(*_: Any) -> Any:
        return said

    async def documents(*_: Any) -> Any:
        return [said]

    def wrong(*_: Any) -> Any:
        raise ValueError(secret)

    system = System(answer=wrong)
    reading = {
        "read_resource": document,
        "get_prompt": document,
        "list_resources": documents,
        "list_prompts": documents,
    }

    async def connect(upstream: Any) -> Any:
        opened = await system.open(upstream)
        upstream.save("own", secret)
        methods = {name: getattr(opened, name) for name in ("list_tools", "invoke", "check", "close")}
        return SimpleNamespace(**methods, **reading)

    with host_with(adapter(connect=connect), tmp_path) as host:
        failed = host.invoke_sync("toy:echo", {"x": 1})
        assert failed.error is not None and "ValueError" in failed.error.message and failed.error.outcome == "unknown"
        found = [
            asyncio.run(host.upstreams.resources("toy")),
            asyncio.run(host.upstreams.read_resource("toy", "a:b")),
            asyncio.run(host.upstreams.prompts("toy")),
            asyncio.run(host.upstreams.get_prompt("toy", "p")),
        ]
        assert found == [[{"text": "well: ***"}], {"text": "well: ***"}] * 2
        system.upstreams[-1].log.warning("well: %s", secret)
        refused = []
        for error in (UpstreamError(secret, hint=secret, outcome="none"), ValueError(secret)):
            asyncio.run(host.upstreams.disconnect("toy"))
            system.refuses = error  # type: ignore[assignment]
            refused.append(host.invoke_sync("toy:echo", {"x": 1}))
            refused.append(host.upstreams["toy"])
    assert all(text in repr(refused) for text in ("UPSTREAM_ERROR", "***", "ValueError"))
    assert secret not in repr((failed, refused)) + caplog.text


@pytest.mark.slow
def test_what_an_adapter_keeps_is_masked_in_progress_logs_and_questions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "opaque-text-of-ann"
    said: list[Any] = []
    asked: list[Any] = []

    async def answer(called: UpstreamTool, arguments: Mapping[str, Any], call: Any) -> Any:
        call.context.progress(1, 2, f"half of {secret}")
        call.context.log(f"well: {secret}", "warning")
        return await call.ask(f"Is it {secret}?", {"type": "object", "properties": {}})

    system = System(answer=answer)
    with opened(system, tmp_path) as host:
        host.upstreams.connect_sync("toy")
        system.upstreams[-1].save("own", secret)
        host.events.subscribe(said.append, "TOOL_PROGRESS")
        result = host.invoke_sync("toy:echo", {"x": 1}, job=True)
        asked.append(asyncio.run(host.jobs.wait(result.job)))
    assert said and said[0].data["message"] == "half of ***"
    assert "well: ***" in caplog.text and "Is it ***?" in repr(asked)
    assert secret not in repr((said, asked)) + caplog.text


def test_what_a_login_server_says_of_itself_is_not_masked(tmp_path: Path) -> None:
    said = "send it as header, to https://login.example"
    facts = {"bearer_methods_supported": ["header"], "authorization_servers": ["https://login.example"]}
    system = System(answer=lambda called, arguments, call: said)
    with opened(system, tmp_path) as host:
        host.upstreams.connect_sync("toy")
        system.upstreams[-1].save("own", json.dumps(facts))
        assert host.invoke_sync("toy:echo", {"x": 1}).value == said


@pytest.mark.slow
def test_what_an_adapter_keeps_by_one_name_stays_masked_while_another_is_renewed(tmp_path: Path) -> None:
    system = System(answer=lambda called, arguments, call: "well: secret-of-the-client")
    with opened(system, tmp_path) as host:
        host.upstreams.connect_sync("toy")
        own = system.upstreams[-1]
        own.save("client", "secret-of-the-client")
        for number in range(10):
            own.save("token", f"token-number-{number}")
        assert host.invoke_sync("toy:echo", {"x": 1}).value == "well: ***"


def test_values_of_a_schema_are_changed_only_where_they_hold_the_secret_of_this_upstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_SECRET", "of-this-upstream")
    monkeypatch.setenv("OTHER_SECRET", "of-another-upstream")
    values = ["of-another-upstream", "of-this-upstream", 1, None]
    schema = {"type": "object", "properties": {"x": {"enum": values, "pattern": "of-this-upstream"}}}
    tools = (replace(ECHO, input_schema=schema, tags=("of-this-upstream",)), replace(ECHO, name="of-this-upstream"))
    other = {"kind": "toy", "url": "http://127.0.0.1:9", "settings": {"key": {"$env": "OTHER_SECRET"}}}
    listing = adapter(connection(list_tools=Listing(tools)))
    with host_with(listing, tmp_path, {"other": other}, settings={"key": {"$env": "OWN_SECRET"}}) as tavern:
        tavern.grant("other", all_requested=True)
        tavern.upstreams.refresh_sync()
        assert tavern.upstreams["toy"].tools == ("toy:echo",) and "#2" in tavern.upstreams["toy"].left_out
        spec = tavern.tools.get("toy:echo")
    x = spec.input_schema["properties"]["x"]
    assert (x["enum"], x["pattern"], spec.tags) == (["of-another-upstream", "***", 1, None], "***", ("***",))


def test_a_value_of_the_entry_that_is_a_type_of_json_leaves_schemas_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODE", "object")
    with host_with(adapter(), tmp_path, settings={"key": {"$env": "MODE"}}) as tavern:
        assert tavern.invoke_sync("toy:echo", {"x": 1}).value == "well"
        assert tavern.tools.get("toy:echo").input_schema["type"] == "object"


@pytest.mark.slow
def test_first_calls_at_once_in_this_process_leave_one_connection_open(tmp_path: Path) -> None:
    ended: list[str] = []

    async def close() -> None:
        ended.append("closed")

    async def connect(upstream: Any) -> Any:
        for _ in range(100):  # turns of the loop, in which the other calls arrive
            await asyncio.sleep(0)
        ended.append("opened")
        return SimpleNamespace(**{**vars(connection()), "close": close})

    async def calls(host: Tavern) -> list[Any]:
        async with host:
            results = await asyncio.gather(*(host.invoke("toy:echo", {"x": 1}) for _ in range(5)))
            assert ended.count("opened") - ended.count("closed") == 1
        return results

    local = adapter(in_process=True, connect=connect)
    with host_with(local, tmp_path) as host:
        assert host.invoke_sync("toy:echo", {"x": 1}).ok  # lists it
    ended.clear()
    assert all(result.ok for result in asyncio.run(calls(host_with(local, tmp_path))))
    assert ended.count("opened") > 1  # they met
    assert ended.count("opened") == ended.count("closed")
