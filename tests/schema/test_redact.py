"""Nothing secret reaches a log: by mark, by name, by look, or because the host knows it. And logs stay small."""

from __future__ import annotations

import base64
import collections
import copy
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.schema.redact import MASK, compile_redactor, redact_text, summary
from tavern_core.schema.secrets import is_secret_name

# Made up of pieces, so that no scanner takes this file for a leak.
SECRETS = {
    "openai": "sk-" + "proj-abcdefghijklmnop1234",
    "anthropic": "sk-" + "ant-api03-abcdefghijklmnop1234",
    "stripe": "sk_" + "live_abcdefghijklmnop",
    "github": "ghp" + "_abcdefghijklmnopqrstuvwxyz0123456789",
    "github fine": "github" + "_pat_11ABCDEFG0abcdefghijkl_xyz",
    "gitlab": "glpat" + "-abcdefghijklmnop1234",
    "slack": "xoxb" + "-123456789012-abcdefghijkl",
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "google": "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "huggingface": "hf" + "_abcdefghijklmnopqrstuvwxyz",
    "npm": "npm" + "_abcdefghijklmnopqrstuvwxyz0123456789",
    "telegram": "123456789" + ":AAabcdefghijklmnopqrstuvwxyz0123456",
    "alibaba": "LTAI" + "5tabcdefghijklmn",
    "groq": "gsk" + "_abcdefghijklmnopqrstuvwxyz",
    "jwt": "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=list(SECRETS))
@pytest.mark.parametrize("around", ["{}", "the key {} is mine", '"{}"', "url?key={}&x=1", "中文{}。", "a\n{}\nb"])
def test_keys_of_providers_are_found_by_their_look(secret: str, around: str) -> None:
    clean = redact_text(around.format(secret))
    assert secret not in clean
    assert MASK in clean


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abcdef123456", "Authorization: ***"),
        ("curl -H 'Authorization: Basic dXNlcjpwYXNz' x", "curl -H 'Authorization: ***' x"),
        ("sent bearer abcdef123456 along", "sent bearer *** along"),
        ("Cookie: SESSDATA=abc; bili=1\r\nHost: x", "Cookie: ***\r\nHost: x"),
        ("postgres://user:pa55w0rd@host/db", "postgres://user:***@host/db"),
        ("see https://example.com:8080/a@b", "see https://example.com:8080/a@b"),
        ("password=hunter2", "password=***"),
        ("DB_PASSWORD: hunter2, x", "DB_PASSWORD: ***, x"),
        ("api_key='abc def' tail", "api_key='***' tail"),
        ('{"client_secret": "a\\"b", "n": 1}', '{"client_secret": "***", "n": 1}'),
        ("密码：abc123，完", "密码：***"),
        ("bilibiliCookie=SESSDATA%3D1", "bilibiliCookie=***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\nrest", "***\nrest"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn", "***"),
        (
            "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
            "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        ),
        # what only talks about secrets stays readable
        ("/password: must be string, got integer 3", "/password: must be string, got integer 3"),
        ("the token is missing", "the token is missing"),
        ("extensions.a.get.cookie: is required and has no value", "extensions.a.get.cookie: is required and has no value"),
        ("Authorization: must not be empty", "Authorization: must not be empty"),
        ("token_count: 512, max_tokens=100", "token_count: 512, max_tokens=100"),
        ("basic functionality of the keyboard", "basic functionality of the keyboard"),
        ("public_key: id", "public_key: id"),
        ("nothing to see", "nothing to see"),
        ("", ""),
    ],
)
def test_the_words_around_a_secret_stay(text: str, clean: str) -> None:
    assert redact_text(text) == clean
    assert redact_text(clean) == clean


@pytest.mark.parametrize("secret", ["s3cr3t-value", "hunter two", "密钥/值+=", 'quo"te\\d', "x" * 40])
def test_a_known_secret_is_found_in_every_usual_form(secret: str) -> None:
    raw = secret.encode()
    forms = [
        secret,
        quote(secret),
        quote(secret, safe=""),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
    ]
    for before, after in [(b"", b""), (b"u", b":"), (b"us:", b"x"), (b"use:", b"yz")]:
        forms += [
            base64.b64encode(before + raw + after).decode(),
            base64.urlsafe_b64encode(before + raw + after).decode(),
        ]
    for form in forms:
        for text in (form, f"a {form} b", f"x{form}y"):
            clean = redact_text(text, [secret])
            assert MASK in clean
            assert secret not in clean


def test_a_short_known_secret_is_masked_only_where_it_is_everything() -> None:
    assert redact_text("ab", ["ab"]) == MASK
    assert redact_text("cabin", ["ab"]) == "cabin"


MARKED = {
    "type": "object",
    "properties": {
        "pin": {"type": "string", "writeOnly": True},
        "login": {"$ref": "#/$defs/login"},
        "list": {"type": "array", "items": {"anyOf": [{"type": "string", "format": "password"}, {"type": "null"}]}},
        "map": {"additionalProperties": {"x-tavern": {"secret": True}}},
        "whole": {"x-tavern": {"secret": True}, "properties": {"a": {}}},
        "tree": {"$ref": "#/$defs/tree"},
    },
    "allOf": [{"properties": {"more": {"format": "password"}}}],
    "$defs": {
        "login": {"properties": {"user": {"type": "string"}, "code": {"oneOf": [{"writeOnly": True}]}}},
        "tree": {"properties": {"leaf": {"writeOnly": True}, "next": {"$ref": "#/$defs/tree"}}},
    },
}


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        ({"pin": "1234"}, {"pin": MASK}),
        ({"pin": 1234}, {"pin": MASK}),
        ({"pin": None}, {"pin": None}),
        ({"pin": ""}, {"pin": ""}),
        ({"login": {"user": "me", "code": "1"}}, {"login": {"user": "me", "code": MASK}}),
        ({"list": ["a", None, 5]}, {"list": [MASK, None, MASK]}),
        ({"map": {"x": "y"}}, {"map": {"x": MASK}}),
        ({"whole": {"a": {"b": 1}}}, {"whole": MASK}),
        ({"tree": {"next": {"next": {"leaf": "s"}}}}, {"tree": {"next": {"next": {"leaf": MASK}}}}),
        ({"more": "s"}, {"more": MASK}),
        ({"pin": ["a", "b"]}, {"pin": MASK}),
        ("pin", "pin"),
    ],
)
def test_marks_of_the_schema_are_followed(value: Any, clean: Any) -> None:
    before = copy.deepcopy(value)
    assert compile_redactor(MARKED)(value) == clean
    assert value == before


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("password", True), ("PASSWORD", True), ("db_password", True), ("apiKey", True), ("api-key", True), ("X-Api-Key", True),
        ("APIKEY", True), ("accessToken", True), ("token", True), ("bilibiliCookie", True), ("cookies", True), ("Authorization", True),
        ("client_secret", True), ("privateKey", True), ("密码", True), ("OPENAI_API_KEY", True),
        ("max_tokens", False), ("tokens", False), ("token_count", False), ("keyboard", False), ("key", False), ("author", False),
        ("secretary", False), ("passwordPolicy", False), ("cookieUrl", False), ("text", False), ("", False),
    ],
)  # fmt: skip
def test_names_give_a_secret_away(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret
    assert compile_redactor()({name: "value"}) == {name: MASK if secret else "value"}


def test_known_secrets_may_be_learnt_later() -> None:
    known: list[str] = []
    redact = compile_redactor(known_secrets=lambda: known)
    assert redact(["abcdefgh"]) == ["abcdefgh"]
    known.append("abcdefgh")
    assert redact({"x": ["the abcdefgh!", "abcdefgh"], "abcdefgh": 1}) == {"x": ["the ***!", MASK], MASK: 1}
    known.append("123456")
    assert redact(123456) == MASK


def test_the_copy_is_small_plain_json_whatever_came_in() -> None:
    endless: dict[str, Any] = {"list": []}
    endless["list"].append(endless)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]

    class Hostile(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError("no")

        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    class Secretive:
        def __repr__(self) -> str:
            return "hunter2"

    values = [
        endless, deep, shared, Hostile(a=1), Secretive(), {Secretive(): 1}, {1: 2, None: 3}, {1, 2}, (1, 2), b"bytes", float("nan"),
        [float("inf"), float("-inf")], 10**5000, "\ud800", {"\ud800": 1}, collections.OrderedDict(a=1), list(range(100_000)),
        {str(n): n for n in range(100_000)}, "x" * 10_000_000, {"x" * 100_000: 1}, Exception("hunter2"), print, type, ..., 1j,
    ]  # fmt: skip
    for value in values:
        text = json.dumps(compile_redactor(MARKED)(value), allow_nan=False)
        assert len(text) < 200_000
        assert "hunter2" not in text
        text.encode("utf-8")
    assert compile_redactor()("x" * 10_000) == "x" * 2_000 + "… (10,000 characters)"


def test_a_secret_at_the_edge_of_what_is_shown_does_not_shine_through() -> None:
    secret = SECRETS["github"]
    for length in range(1_990, 2_005):
        shown = compile_redactor()("x" * (length - 10) + " " + secret + " " + "y" * 5_000)
        assert secret[:12] not in shown


def test_a_summary_is_one_short_line() -> None:
    assert summary({"a": 1, "password": "x"}) == '{"a": 1, "password": "***"}'
    assert summary("a\n  b") == "a b"
    long = summary({"a": "中" * 500}, 100)
    assert len(long) <= 100
    assert long.endswith("(509 characters)")
    assert summary(["the secret"], known_secrets=["the secret"]) == '["***"]'


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.sampled_from(list(SECRETS.values())),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=8), st.sampled_from(["token", "url"])), inner, max_size=4),
    ),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(anything)
def test_no_planted_secret_survives_and_nothing_raises(value: Any) -> None:
    clean = compile_redactor(MARKED)(value)
    text = json.dumps(clean, allow_nan=False, ensure_ascii=False)
    assert not any(secret in text for secret in SECRETS.values())
    assert compile_redactor(MARKED)(clean) == clean
    summary(value, 50).encode("utf-8")


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "sk-",
        "token=",
        "://",
        "a://b:",
        "-----BEGIN PRIVATE KEY-----",
        "eyJ",
        "bearer ",
        "a.",
        '"',
        'key: "\\',
        "=",
        "密码：",
    ],
)
def test_hostile_text_is_read_in_linear_time(piece: str) -> None:
    """A quadratic pattern would take minutes on this text."""
    text = piece * (2_000_000 // len(piece))
    redact_text(text[:400_000])
    assert len(compile_redactor()(text)) < 3_000
