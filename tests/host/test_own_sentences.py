"""Secrets are masked in what the host quotes, never in the words that are its own; and below a mark of a schema, everything is."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import tavern_core
from tavern_core import CallContext, Plugin, Tavern, deny, hookimpl
from tavern_core.errors import ERROR_CODES
from tavern_core.schema.secret_scanning import redact_sentence

SAYING = {"add", "deny", "print_problem", "emit", "refused", "_denied", "_refuse", "Finding", "Diagnostic", "Deny"}


def sentences() -> list[str]:
    """What the host's code passes to errors, findings and denials, a telling name put where it interpolates something."""
    found = {f"{row.meaning}" for row in ERROR_CODES.values() if hasattr(row, "meaning")}
    for path in Path(tavern_core.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in SAYING or name.endswith(
                    ("Error", "Failed", "Invalid", "Denied", "Refused", "Damaged", "Exceeded", "Problem")
                ):
                    found.update(
                        text for arg in [*node.args, *(k.value for k in node.keywords)] if (text := sentence(arg))
                    )
    return sorted(found)


def sentence(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        elif isinstance(part, ast.FormattedValue):
            parts.append("'api_token'" if part.conversion == ord("r") else "extensions.vault.api_token")
    return "".join(parts)


@pytest.mark.slow
def test_no_sentence_of_the_host_is_masked() -> None:
    texts = sentences()
    assert len(texts) > 1_000
    assert [(text, clean) for text in texts if (clean := redact_sentence(text)) != text] == []


@pytest.fixture
def host(tmp_path: Path) -> Any:
    path = {"type": "string", "x-tavern": {"guard": "path", "root": "workspace"}}
    entering = {
        "name": "enter", "description": "Enters.", "capabilities": ["read:fs"], "execute": lambda call_id, arguments, *_: arguments["file"],
        "parameters": {"type": "object", "properties": {"file": path, "token": path, "password": {"type": "string"}, "pin": {"type": "integer"}}},
    }  # fmt: skip

    class Guarded:
        @hookimpl
        def tavern_register_tools(self) -> Any:
            return [entering]

    class Judge:
        @hookimpl
        def tavern_check_call(self, call: Any) -> Any:
            return (
                deny("password=hunter2X was tried", hint="not with --token hunter2X")
                if call.arguments.get("password") == "deny me"
                else None
            )

    plugins = [
        Plugin(Guarded(), name="vault", manifest={"permissions": {"capabilities": ["read:fs"]}}),
        Plugin(Judge(), name="judge", manifest={"permissions": {"hooks": ["hook:server:tool:check"]}}),
    ]
    with Tavern.open({"plugins": {"entryPoints": False}}, plugins=plugins, home=tmp_path / "home") as opened:
        yield opened


@pytest.mark.parametrize("password", ["leaves", "must", "argument", "refused", "swordfish"])
def test_a_word_of_the_host_stays_when_an_argument_is_that_word(host: Tavern, tmp_path: Path, password: str) -> None:
    seen: list[Any] = []
    host.events.subscribe(seen.append)
    context = CallContext(permissions={"read:fs"}, workspace_dir=str(tmp_path))
    plain = host.invoke_sync("vault:enter", {"file": "../x"}, context=context)
    result = host.invoke_sync("vault:enter", {"file": "../x", "password": password}, context=context)
    assert plain.error is not None and result.error is not None
    assert "***" not in plain.error.message
    assert result.error.message == plain.error.message
    assert all(password not in str(event.data.get("arguments")) for event in seen)


@pytest.mark.parametrize("path", ["../swordfish", "../S3cret-99", "leaves/../.."])
def test_what_an_argument_gave_away_is_masked_where_the_host_quotes_it(host: Tavern, tmp_path: Path, path: str) -> None:
    error = host.invoke_sync(
        "vault:enter",
        {"file": "a", "token": path},
        context=CallContext(permissions={"read:fs"}, workspace_dir=str(tmp_path)),
    ).error
    assert error is not None
    assert path not in error.message
    assert error.message.startswith("vault:enter was refused by core-paths: argument /token: the path '***' is not in ")


def test_what_a_plugin_says_in_a_refusal_is_foreign(host: Tavern, tmp_path: Path) -> None:
    error = host.invoke_sync(
        "vault:enter",
        {"file": "x", "password": "deny me"},
        context=CallContext(permissions={"read:fs"}, workspace_dir=str(tmp_path)),
    ).error
    assert error is not None
    assert error.message == "vault:enter was refused by judge: password=*** was tried"
    assert error.fix == "not with --token ***"


def test_a_setting_is_named_in_the_sentence_about_it(tmp_path: Path) -> None:
    with Tavern.open(
        {"settings": {"extensions.vault.token": "x", "extensions.gone.password": "y"}}, home=tmp_path / "home"
    ) as host:
        with pytest.raises(tavern_core.TavernError) as caught:
            host.settings.save({"extensions.vault.token": "x"})
        assert "extensions.vault.token: there is no such setting" in caught.value.message
        assert "***" not in caught.value.message + caught.value.hint + str(host.diagnostics)


CALLS: list[dict[str, Any]] = [
    {"value": 1}, {"value": True}, {"value": None}, {"value": 1.5}, {"value": float("nan")}, {"value": "text"}, {"value": "中文 \U0001f511"}, {"value": "x" * 5_000},
    {"value": "password=hunter2X"}, {"value": ["a", {"b": 2}]}, {"value": {"token": "hunter2X"}}, {"value": "x", "api_key": "hunter2X"}, {"value": 2**70},
    {"value": 'quote " and \\ back'}, {"odd name": 1, "value": "x"}, {"value": "\ud800"}, {"fails": True, "value": "bad"}, {},
]  # fmt: skip


@pytest.mark.parametrize(
    "context",
    [None, {"request_id": 'r"1'}, {"request_id": "请求", "principal": "user:é"}, {"trace_id": "t", "user_id": "u"}],
    ids=str,
)
def test_a_record_is_the_same_whether_anybody_else_listens_or_not(
    tmp_path: Path, context: dict[str, Any] | None
) -> None:
    """The log alone is written by a shorter way; nothing but times and numbers may tell the two ways apart."""

    class Echo:
        @hookimpl
        def tavern_register_tools(self) -> Any:
            def echo(call_id: str, given: Any, *_: Any) -> Any:
                if given.get("fails"):
                    raise ValueError(given["value"])
                return given.get("value")

            return [
                {
                    "name": "echo",
                    "description": "Echoes.",
                    "parameters": {"type": "object", "additionalProperties": True},
                    "execute": echo,
                }
            ]

    written = []
    for listens in (False, True):
        home = tmp_path / str(listens)
        with Tavern.open({"plugins": {"entryPoints": False}}, plugins=[Plugin(Echo(), name="echo")], home=home) as host:
            if listens:
                host.events.subscribe(lambda event: None)
            for arguments in CALLS:
                host.invoke_sync("echo:echo", arguments, context=None if context is None else CallContext(**context))
        lines = [
            json.loads(line) for path in home.rglob("audit*.jsonl") for line in path.read_text("utf-8").splitlines()
        ]
        calls = [line for line in lines if line["type"].startswith("TOOL_")]
        assert len(calls) > 30
        varying = {"time", "callId", "prev", "hash", "durationMs", "seq"} | (
            {"requestId"} if context is None or "request_id" not in context else set()
        )
        written.append([[(key, value) for key, value in line.items() if key not in varying] for line in calls])
        assert "hunter2X" not in str(written)
    assert written[0] == written[1]


MARKED = {
    "type": "object",
    "properties": {
        "login": {"type": "object", "x-tavern": {"secret": True}, "additionalProperties": True},
        "map": {"type": "object", "patternProperties": {"^x-": {"type": "string", "writeOnly": True}}},
        "rows": {
            "type": "array",
            "items": {"type": "object", "patternProperties": {"k$": {"type": "object", "writeOnly": True}}},
        },
    },
}


@pytest.mark.parametrize(
    "arguments",
    [
        {"login": {"name": "planted-4e1b"}},
        {"login": {"list": [{"deep": ["planted-4e1b"]}]}},
        {"login": {"count": 41972683}},
        {"map": {"x-one": "planted-4e1b"}},
        {"rows": [{"ak": {"inner": ["planted-4e1b"]}}]},
    ],
    ids=str,
)
def test_below_a_marked_secret_everything_is_one(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """In the answer that repeats it, in the events, and in the audit log."""
    seen: list[Any] = []

    class Echo:
        @hookimpl
        def tavern_register_tools(self) -> Any:
            echo = lambda call_id, given, *_: {"said": str(given), "texts": [part for part in str(given).split("'")]}  # noqa: E731, C416
            return [{"name": "echo", "description": "Echoes.", "parameters": MARKED, "execute": echo}]

    with Tavern.open(
        {"plugins": {"entryPoints": False}}, plugins=[Plugin(Echo(), name="echo")], home=tmp_path / "home"
    ) as host:
        host.events.subscribe(seen.append)
        result = host.invoke_sync("echo:echo", arguments)
    assert result.ok, result.error
    written = "".join(path.read_text() for path in (tmp_path / "home").rglob("audit*.jsonl"))
    for secret in ("planted-4e1b", "41972683"):
        assert secret not in repr(result.value) + repr(seen) + written
    assert "***" in repr(result.value)
    assert "***" in written
