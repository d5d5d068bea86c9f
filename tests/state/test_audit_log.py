"""The audit log for programs: `tavern.logs` and `AuditLog` say what ``tavern logs`` says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tavern_core import AuditLog, CallContext, Event, Plugin, Tavern, ToolFailed, tool
from tavern_core.__main__ import main
from tavern_core.errors import UsageError
from tavern_core.model.event import EVENT_TYPES

ROOT = Path(__file__).parents[2]


@tool(capabilities=["read:fs"])
def count(text: str, password: str = "") -> int:
    """Count words."""
    if not text:
        raise ToolFailed("nothing to count")
    return len(text.split())


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tavern]:
    monkeypatch.chdir(tmp_path)
    with Tavern.open(
        {"plugins": {"entryPoints": False}}, plugins=[Plugin([count], name="text")], home=tmp_path / "home"
    ) as tavern:
        yield tavern


def said(host: Tavern, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """What the command line says of the same log."""
    capsys.readouterr()
    code = main(["--home", str(host.logs.path.parents[1]), "logs", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_line_that_is_no_record_keeps_no_others_from_being_shown(
    host: Tavern, capsys: pytest.CaptureFixture[str]
) -> None:
    host.invoke_sync("text:count", {"text": "a b"})
    every, whole = [record.to_json() for record in host.logs], host.logs.path.read_bytes()
    for line in (
        '{"seq":"a","type":"TOOL_RESULT"}', '{"seq":null,"time":5}', '{"type":"RETRY"}', "[]", "5", '"x"', "\0\0", "{",
    ):  # fmt: skip
        host.logs.path.write_bytes(whole + line.encode() + b"\n")
        assert said(host, capsys, "show", "--all")[1][: len(every)] == every, line
        assert [one["tool"] for one in said(host, capsys, "stats")[1]] == ["text:count"], line


def test_records_are_what_the_command_line_shows_of_them(host: Tavern, capsys: pytest.CaptureFixture[str]) -> None:
    ok = host.invoke_sync("text:count", {"text": "a b", "password": "hunter22"}, purpose="to see")
    host.invoke_sync("text:count", {"text": "a"}, context=CallContext(principal="user:guest"))
    every = [record.to_json() for record in host.logs]
    assert said(host, capsys, "show", "--all") == (0, every)
    assert [r.seq for r in host.logs] == list(range(1, len(every) + 1))
    call = ok.meta["callId"]
    for words, found in (
        (("--type", "POLICY_DENIED"), host.logs.records("POLICY_DENIED")),
        (
            ("--type", "TOOL_RESULT", "--type", "TOOL_CALLED", "--last", "2"),
            host.logs.records("TOOL_CALLED", "TOOL_RESULT", last=2),
        ),
        (("--call", call), host.logs.records(call_id=call)),
        (("--last", "1"), host.logs.records(last=1)),
    ):
        assert said(host, capsys, "show", *words) == (0, [record.to_json() for record in found])
    called, result = host.logs.records(call_id=call)
    assert (called.type, called.plugin, called.data["principal"], called.data["purpose"]) == (
        "TOOL_CALLED",
        "text",
        "host",
        "to see",
    )
    assert "hunter22" not in str(every)
    assert list(host.logs.records(after=called.seq, call_id=call)) == [result]
    assert repr(host.logs) == f"AuditLog({str(host.logs.path)!r})"


def test_a_call_is_explained_as_on_the_command_line(host: Tavern, capsys: pytest.CaptureFixture[str]) -> None:
    guest = CallContext(principal="user:guest", user_id="guest")
    for arguments, context, outcome, error in (
        ({"text": "a b"}, None, "ok", ""),
        ({"text": ""}, None, "failed", "TOOL_ERROR"),
        ({"text": 1}, None, "failed", "INPUT_SCHEMA_INVALID"),
        ({"text": "a"}, guest, "refused", "POLICY_DENIED"),
    ):
        call = host.invoke_sync("text:count", arguments, context=context).meta["callId"]
        story = host.logs.explain(call)
        assert story is not None
        assert (story.call_id, story.outcome, story.error, story.facts["tool"]) == (call, outcome, error, "text:count")
        assert story.facts["principal"] == ("host" if context is None else "user:guest")
        assert bool(story.reason) is bool(error)
        assert [r.call_id for r in story.records] == [call] * len(story.records)
        assert said(host, capsys, "explain", call) == (0, story.to_json())
    assert host.logs.explain("no-such-call") is None


def test_a_log_that_was_changed_or_is_missing_is_not_ok(
    host: Tavern, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.invoke_sync("text:count", {"text": "a b"})
    whole = host.logs.verify()
    assert (whole.ok, whole.last, said(host, capsys, "verify")) == (True, len([*host.logs]), (0, whole.to_json()))
    file = host.logs.path
    text = file.read_text("utf-8")
    file.write_text(text.replace("a b", "a c", 1), "utf-8")
    changed = AuditLog(tmp_path / "home").verify()
    assert (changed.ok, [p.what for p in changed.problems], said(host, capsys, "verify")) == (
        False,
        ["changed"],
        (1, changed.to_json()),
    )
    assert [list(p) for p in changed.to_json()["problems"]] == [["file", "line", "what", "message"]]
    for place in (tmp_path / "nowhere", tmp_path / "nowhere" / "audit.jsonl"):
        log = AuditLog(place)
        assert (list(log), log.verify().ok, [p.what for p in log.verify().problems]) == ([], False, ["missing"])
    assert main(["--home", str(tmp_path / "nowhere"), "logs", "verify"]) == 1
    assert "there is no log here" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "audit").symlink_to(file.parent)
    file.unlink()
    assert not AuditLog(tmp_path / "gone").verify().ok


WRONG = [
    ("TOOL_CALED", "TOOL_CALLED"),
    ("tool_called", "TOOL_CALLED"),
    ("POLICY_DENIE", "POLICY_DENIED"),
    ("", "there are: "),
    (["TOOL_CALLED"], "there are: "),
]


@pytest.mark.parametrize(("written", "meant"), WRONG)
def test_a_misspelt_type_is_refused_with_the_nearest(
    host: Tavern, written: Any, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for use in (lambda: host.events.subscribe(print, written), lambda: host.logs.records(written)):
        with pytest.raises(UsageError) as refused:
            use()
        assert meant in refused.value.hint
    if isinstance(written, str) and written.isupper():
        assert main(["--home", str(host.logs.path.parents[1]), "logs", "--type", written]) == 2
        assert meant in capsys.readouterr().err


@pytest.mark.parametrize("odd", [None, "print", 5])
def test_a_subscriber_is_a_function_and_a_log_has_a_path(host: Tavern, odd: Any) -> None:
    with pytest.raises(UsageError, match="a subscriber is a function"):
        host.events.subscribe(odd)
    if not isinstance(odd, str):
        with pytest.raises(UsageError, match="takes a state folder or a file"):
            AuditLog(odd)


class Awaited:
    """An object whose call is async."""

    async def __call__(self, event: Event) -> None: ...


async def awaited(event: Event) -> None: ...


async def yielding(event: Event) -> AsyncIterator[Event]:
    yield event


@pytest.mark.parametrize("subscriber", [awaited, partial(awaited), Awaited(), Awaited().__call__, yielding])
def test_a_subscriber_that_no_one_would_await_is_refused(host: Tavern, subscriber: Any) -> None:
    with pytest.raises(UsageError, match="is called and not awaited"):
        host.events.subscribe(subscriber, "TOOL_RESULT")


def leaving(event: Event) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("subscriber", "said"), [(lambda event: awaited(event), "it is async"), (leaving, "SystemExit(3)")]
)
def test_a_subscriber_that_fails_changes_no_call_and_is_reported(host: Tavern, subscriber: Any, said: str) -> None:
    host.events.subscribe(subscriber, "TOOL_RESULT")
    assert host.invoke_sync("text:count", {"text": "a b"}).ok
    assert [said in item.message for item in host.diagnostics if item.code == "SUBSCRIBER_FAILED"] == [True]


def test_every_type_can_be_subscribed_to_and_is_in_the_manual(host: Tavern) -> None:
    seen: list[Event] = []
    host.events.subscribe(seen.append, *EVENT_TYPES)
    host.invoke_sync("text:count", {"text": "a b"})
    assert [event.type for event in seen] == ["TOOL_CALLED", "TOOL_RESULT"]
    manual = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    assert {t for t in EVENT_TYPES if f"`{t}`" not in manual} == set()
