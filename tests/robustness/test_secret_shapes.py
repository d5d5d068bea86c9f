"""Secrets of every shape, printed in every way a program has, leave no trace in results, logs, records and streams."""

from __future__ import annotations

import base64
import html
import json
import logging
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from tavern_core import Evidence, Plugin, Tavern, ToolError, ToolResult, tool
from tavern_core.schema.secret_encodings import MASK, SecretRedactor
from tests.rows import each_row

CORE = "Kq7Zx9Wm"
SHAPES = {
    "plain": f"{CORE}plain1234",
    "words": f"{CORE} with  space",
    "blanks around": f"  {CORE}lead  ",
    "chinese": f"{CORE}密钥口令",
    "latin": f"{CORE}café§ñ",
    "decomposed": unicodedata.normalize("NFD", f"{CORE}éàü"),
    "emoji": f"{CORE}😀🔑x",
    "line break": f"{CORE}line1\nline2-{CORE}",
    "windows line break": f"{CORE}a\r\nb{CORE}c",
    "tab": f"{CORE}\ttab",
    "double quotes": f'{CORE}"dq"end',
    "single quote": f"{CORE}it's",
    "both quotes": f"{CORE}'a\"b",
    "backslashes": f"{CORE}\\n\\d",
    "signs of URLs": f"{CORE}/a+b=c?d&e",
    "percent": f"{CORE}%41%20x",
    "angles": f"{CORE}<a>&b",
    "markup": f"<b c='{CORE}\">&",
    "escape": f"{CORE}\x1b[31mred",
    "templates": f"{CORE}$HOME${{x}}{{0}}%s",
    "digits": "8301947265",
    "regular expression": f"{CORE}.*(a|b)+[c]^$",
    "JSON": '{"k":"' + CORE + 'v1"}',
    "key file": f"-----BEGIN RSA PRIVATE KEY-----\nMIIE{CORE}abc\nDEFG{CORE}hij\n-----END RSA PRIVATE KEY-----",
    "long": CORE + "L" * 3000,
    "right to left": f"{CORE}\u202eabc",
    "invisible": f"{CORE}\u200bzz",
    "TAM": f"「始」{CORE}「末」",
    "YAML": f"{CORE}: - #x",
    "user and host": f"user:{CORE}@host",
    "punctuation": f"{CORE},a;b|c`d",
}
HOW = ["raise", "key", "failed", "log", "logged", "cause", "note", "group", "str", "arguments", "return"]
MANIFEST = """\
name: leaky
version: "1"
description: tells what it knows
tools: [{{id: leak, implementation: {{type: python}}}}]
configOptions:
{options}
"""
CODE = '''\
import json

from tavern_core import ToolFailed, hookimpl, tool

CTX = []


@tool
def leak(form: str, how: str) -> str:
    """Tells it; it was given in disguise, so that its arguments give nothing away."""
    s = json.loads(bytes.fromhex(form)[::-1])
    match how:
        case "raise":
            raise RuntimeError(f"no {s} at all")
        case "key":
            raise KeyError(s)
        case "failed":
            raise ToolFailed(f"x {s}", hint=s, **{"a b" + s: [s]}, deep={"a": {s: s}})
        case "log":
            CTX[0].logger.error("I saw %s", s)
        case "logged":
            try:
                raise ValueError(s)
            except ValueError:
                CTX[0].logger.exception("oh")
        case "cause":
            try:
                raise ValueError(s)
            except ValueError as error:
                raise RuntimeError("other") from error
        case "note":
            error = RuntimeError("n")
            error.add_note(s)
            raise error
        case "group":
            raise ExceptionGroup(f"g {s}", [ValueError(s)])
        case "str":
            raise type("Odd", (Exception,), {"__str__": lambda self: s})()
        case "arguments":
            raise type("Odd", (Exception,), {})(s, [s], {s: s})
    return f"it is {s}."


@hookimpl
def tavern_start(ctx):
    CTX[:] = [ctx]


@hookimpl
def tavern_register_tools():
    return [leak]
'''


def printed(secret: str) -> dict[str, str]:
    """The secret in the ways in which programs print it, written down without looking at how the host does it."""
    raw = secret.encode()
    return {
        "as it is": secret,
        "in words": f"xx{secret}yy",
        "stripped": secret.strip(),
        "in JSON": json.dumps({"k": secret}),
        "in JSON with its letters": json.dumps({"k": secret}, ensure_ascii=False),
        "in JSON in JSON": json.dumps({"k": json.dumps({"k": secret})}),
        "repr": repr(secret),
        "repr of a list": repr([secret]),
        "ascii": ascii(secret),
        "bytes": repr(raw),
        "in a URL": quote(raw, safe=""),
        "in a URL, small": re.sub("%..", lambda found: found[0].lower(), quote(raw, safe="")),
        "in a form": quote_plus(raw),
        "in HTML": html.escape(secret),
        "in HTML outside of attributes": html.escape(secret, quote=False),
        "base64": base64.b64encode(raw).decode(),
        "base64 of a login": base64.b64encode(b"user:" + raw + b":x").decode(),
        "base64 for URLs": base64.urlsafe_b64encode(raw).decode().rstrip("="),
        "base64 in lines": base64.encodebytes(raw).decode(),
        "hexadecimal": raw.hex(),
        "HEXADECIMAL": raw.hex().upper(),
        "in one line": " ".join(secret.split()),
        "line by line": " | ".join(secret.splitlines()),
        "composed": unicodedata.normalize("NFC", secret),
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shapes")


@pytest.fixture(scope="module")
def tavern(root: Path) -> Iterator[Tavern]:
    plugin = root / "plugins" / "leaky"
    plugin.mkdir(parents=True)
    options = "\n".join(f"  - {{key: extensions.leaky.s{at}, type: string, secret: true}}" for at in range(len(SHAPES)))
    (plugin / "plugin.yaml").write_text(MANIFEST.format(options=options))
    (plugin / "__init__.py").write_text(CODE)
    (root / "tavern.yaml").write_text('{"plugins": {"roots": ["plugins"], "entryPoints": false}}')
    with Tavern.open(root / "tavern.yaml", home=root / "home") as tavern:
        tavern.settings.save({f"extensions.leaky.s{at}": secret for at, secret in enumerate(SHAPES.values())})
        yield tavern


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_secret_is_found_nowhere_however_it_is_printed(
    tavern: Tavern, root: Path, shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = SHAPES[shape]
    record = root / "home/audit/audit.jsonl"
    before = record.stat().st_size if record.exists() else 0
    caplog.set_level(logging.DEBUG)
    seen: dict[str, list[str]] = {}
    for at, (way, text) in enumerate(printed(secret).items(), list(SHAPES).index(shape)):
        form = json.dumps(text).encode()[::-1].hex()
        for how in dict.fromkeys((HOW[at % len(HOW)], "key")):  # all pairs of way and how come up among the shapes
            caplog.clear()
            result = tavern.invoke_sync("leaky:leak", {"form": form, "how": how})
            seen[f"{way}, {how}"] = [
                json.dumps(result.to_json(), ensure_ascii=False),
                *(r.getMessage() + (r.exc_text or "") for r in caplog.records),
            ]
            assert any(MASK in said for said in seen[f"{way}, {how}"]) or how == "cause", (way, how)
    with record.open("rb") as log:
        log.seek(before)
        seen["the record"] = [log.read().decode("utf-8")]
    traces = {secret, CORE, *printed(secret).values()} if CORE in secret else {secret}
    reported = {where: trace for where, said in seen.items() for text in said for trace in traces if trace in text}
    assert reported == {}


@each_row("cut", [8, 12, 17, 500])
@each_row("end", ["", "…"])
def test_a_secret_that_was_cut_off_leaves_no_beginning(cut: int, end: str) -> None:
    secret = SHAPES["long"] if cut == 500 else SHAPES["plain"]
    assert SecretRedactor([secret])(f"it is {secret[:cut]}{end}") == f"it is {MASK}{end}"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("write https://…", "write https://…"),
        ("write postgresql://", "write postgresql://"),
        ("at https://hooks.exam", f"at {MASK}"),
    ],
)
def test_a_scheme_alone_is_no_part_of_a_secret_address(text: str, clean: str) -> None:
    assert SecretRedactor(["https://hooks.example.org/T0/B0/x7Yq", "postgresql://user:x7Yq@db/x"])(text) == clean


@each_row("text", ["", "it is Kq7Zx9W", "Kq7Zx9Wm is a word", "nothing here " * 100])
def test_what_holds_no_secret_stays_the_same_text(text: str) -> None:
    strike = SecretRedactor(SHAPES.values())
    assert strike(text) == text
    assert not strike.finds(text)


def test_a_secret_in_a_secret_is_redacted_as_a_whole() -> None:
    assert SecretRedactor(["abcdefgh", "xx-abcdefgh-yy"])("of xx-abcdefgh-yy, abcdefgh") == f"of {MASK}, {MASK}"


def test_files_of_the_host_hold_no_trace(tavern: Tavern, root: Path) -> None:
    leaked = json.dumps(f"xx{SHAPES['plain']}").encode()[::-1].hex()
    assert not tavern.invoke_sync("leaky:leak", {"form": leaked, "how": "raise"}).ok
    traces = [CORE.encode(), base64.b64encode(CORE.encode()[:6]), CORE.encode().hex().encode()]
    kept = [file for file in (root / "home").rglob("*") if file.is_file() and file.name != "settings.json"]
    assert kept
    assert [(file, trace) for file in kept for trace in traces if trace in file.read_bytes()] == []


@pytest.mark.parametrize("shape", ["plain", "chinese", "both quotes", "line break"])
def test_nothing_beside_the_answer_holds_a_secret(tmp_path: Path, shape: str) -> None:
    secret = SHAPES[shape]

    @tool
    def rich(ok: bool) -> ToolResult:
        evidence = (Evidence("file", secret, f"rows {secret}"), Evidence("text", json.dumps(secret), ascii(secret)))
        error = None if ok else ToolError("TOOL_ERROR", f"no {secret}", {secret: [secret]}, fix=secret)
        content = ({"type": "text", "text": f"t {secret}", "more": {secret: secret}},)
        return ToolResult(
            ok,
            {"a": secret} if ok else None,
            content=content,
            evidence=evidence,
            error=error,
            meta={"k": [secret], secret: 1},
            raw={"x": secret},
        )

    config = {"audit": {"enabled": False}, "secrets": {"x": secret}}
    with Tavern.open(config=config, home=tmp_path / "home", plugins=[Plugin([rich], name="p")]) as tavern:
        results = {ok: tavern.invoke_sync("p:rich", {"ok": ok}) for ok in (True, False)}
    for ok, result in results.items():
        assert result.ok is ok
        assert result.raw is None
        reported = json.dumps(result.to_json(), ensure_ascii=False) + repr(result) + repr(result.evidence)
        assert CORE not in reported
        assert reported.count(MASK) >= 8


def test_what_a_tool_tells_beside_its_answer_is_plain_json(tmp_path: Path) -> None:
    @tool
    def odd() -> Any:
        return ToolResult(True, 1, evidence=(Evidence("text", 3, None),), meta={"when": Path("/x"), "n": {1, 2}})  # type: ignore[arg-type]

    with Tavern.open(config={}, home=tmp_path / "home", plugins=[Plugin([odd], name="p")]) as tavern:
        result = tavern.invoke_sync("p:odd", {})
    reported = json.loads(json.dumps(result.to_json()))
    assert (reported["meta"]["when"], reported["meta"]["n"], reported["evidence"][1]["ref"]) == ("/x", [1, 2], "3")


def test_values_that_tell_of_secrets_stay_of_the_type_they_are(tavern: Tavern) -> None:
    result: Any = tavern.invoke_sync(
        "leaky:leak", {"form": json.dumps(SHAPES["plain"]).encode()[::-1].hex(), "how": "return"}
    )
    assert result.value == f"it is {MASK}."
