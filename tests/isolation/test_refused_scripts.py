"""What a person is told whose script failed in its box: what it had, and the line or command that would give it more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern, ToolError

from .conftest import Place, Shared

pytestmark = pytest.mark.slow

SHADOW = "open('/etc/shadow')"
HERE = {"name": "read:fs", "scope": ["./granted"]}
ALL = ("read:fs", "write:fs", "process:spawn", "network")
LINE, COMMAND = "plugin.yaml: permissions: {capabilities: [%s]}", "`tavern plugins grant demo %s`"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def failed(place: Place, body: str, tavern: Tavern, **context: Any) -> ToolError:
    (place.plugin / "try.py").write_text(body)
    error = place.run(tavern, "", **context).error
    assert error is not None
    return error


@pytest.mark.parametrize(
    ("capabilities", "body", "reported", "untold"),
    [
        ([], SHADOW, ["nothing granted", "read:fs to read files", LINE % "NAME", COMMAND % "NAME"], ["network"]),
        ([HERE], SHADOW, ["read:fs (", "/granted) granted", "a wider scope of read:fs", COMMAND % "read:fs"], ["read:fs to"]),
        ([], "import socket; socket.socket()", [LINE % "network", COMMAND % "network"], ["read:fs", "no grant"]),
        ([], "import urllib.request as r; r.urlopen('http://example.invalid')", [COMMAND % "network"], ["read:fs"]),
        ([], "import subprocess; subprocess.run(['/bin/sh', '-c', ':'])", ["process:spawn to start other programs"], ["network"]),
        ([], "import os; os.chmod('own', 0o600)", ["no grant lets a script change modes"], ["plugins grant"]),
        ([], "import os; os.symlink('/etc/passwd', os.environ['HOME'] + '/x')", ["make symbolic links"], ["network"]),
        ([], "import json; print(json.dumps({'error': '[Errno 13] Permission denied'}))", [COMMAND % "NAME"], []),
        ([], "import json; print(json.dumps({'error': {'message': 'EACCES', 'hint': 'try later'}}))", ["try later; it ran in its box"], []),
        ([], "bytearray(1 << 33)", ["at most 2,147,483,648 bytes of memory (isolation.memoryBytes"], ["granted"]),
        ([], "import os; [os.pipe() for _ in range(300)]", ["at most 256 open files (isolation.openFiles"], ["granted"]),
        (["network"], "import socket; socket.create_connection(('127.0.0.1', 1))", ["no way to the network but the proxy that HTTP_PROXY"], ["granted"]),
        (["network"], "import socket; socket.getaddrinfo('example.org', 80)", ["no way to the network but the proxy that HTTP_PROXY"], ["granted"]),
        (["network"], "import os; os.chmod('own', 0o600)", ["no grant lets a script change modes"], ["HTTP_PROXY"]),
        (["network:host"], "import socket; socket.create_connection(('127.0.0.1', 1))", [], ["granted", "box"]),
        ([], "raise SystemExit(3)", [], ["granted", "box"]),
        ([], "raise ValueError('no such thing')", [], ["granted", "box"]),
        ([*ALL], SHADOW + "; raise PermissionError(13, 'a server said')", [], ["granted", "box"]),
    ],
)  # fmt: skip
def test_a_failed_script_says_what_may_have_been_refused_and_what_would_allow_it(
    demo: Shared, capabilities: list[Any], body: str, reported: list[str], untold: list[str]
) -> None:
    place, tavern = demo(*capabilities)
    error = failed(place, body, tavern)
    assert error.kind in ("UPSTREAM_ERROR", "TOOL_ERROR")
    for text in reported:
        assert text in error.fix
    for text in untold:
        assert text not in error.fix


def test_what_the_gateway_refused_is_reported_whatever_the_program_makes_of_it(place: Place) -> None:
    body = """
import http.client
line = http.client.HTTPConnection('127.0.0.1', 3128)
line.request('GET', 'http://10.0.0.1/')
raise SystemExit(f'it said {line.getresponse().status}')
"""
    with place.open("network", tier="none") as tavern:
        fix = failed(place, body, tavern).fix
    assert "demo may not connect to 10.0.0.1:80: 10.0.0.1 is an address, not a name; missing is network for it" in fix
    assert "scope: ['10.0.0.1:80']" in fix
    assert "tavern plugins grant demo network" in fix


def test_what_was_asked_for_needs_only_the_command(place: Place) -> None:
    with place.open("read:fs", tier="none", grant=False) as tavern:
        fix = failed(place, SHADOW, tavern).fix
    assert f"if that refused it: {COMMAND % 'read:fs'}" in fix
    assert "NAME is write:fs" in fix


def test_what_the_caller_lacks_is_said_to_be_the_caller_s(place: Place) -> None:
    with place.open(*ALL, tier="none") as tavern:
        fix = failed(place, SHADOW, tavern, principal="user:a", permissions=frozenset({"write:fs"})).fix
    assert "with write:fs granted" in fix
    assert "let this call have read:fs, process:spawn: caller, profile and host must all allow it" in fix
    assert "plugins grant" not in fix


def test_a_script_outside_of_a_box_gets_no_hint_about_grants(place: Place) -> None:
    with place.open(tier="none", isolation={"scripts": "tier"}) as tavern:
        assert "granted" not in failed(place, "open('/proc/1/environ', 'w')", tavern).fix
