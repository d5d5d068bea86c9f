"""Logging in to an MCP server with `tavern upstreams connect`: what a person sees, and what later processes do alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import pytest

from tavern_core import Tavern
from tests.programs import Program, tavern
from tests.upstreams.mcp_hosts import listening

TAVERN = [sys.executable, "-m", "tavern_core"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of the server of `mcp_login.py`."""
    with listening("mcp_login.py") as address:
        yield address


@pytest.fixture
def project(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the server as the granted upstream `docs`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAVERN_HOME", str(tmp_path / ".tavern"))
    ran("upstreams", "add", "mcp", "--name", "docs", server)
    ran("plugins", "grant", "docs", "network")
    return tmp_path


def ran(*words: str, expected: int = 0) -> str:
    done = tavern(*words, cwd=Path.cwd())
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


def logged_in() -> None:
    """Connect as a person does: read the address, open it, wait for the command."""
    with Program(
        [*TAVERN, "upstreams", "connect", "docs", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stderr is not None and command.stdout is not None
        address = next(line.strip() for line in command.stderr if line.startswith("  http"))
        with urllib.request.urlopen(address) as page:  # follows the redirect to the port of the command
            assert b"You can close this page" in page.read()
        shown = json.loads(command.stdout.read())
        assert command.wait(60) == 0
    assert (shown["state"], sorted(shown["tools"])) == ("open", ["docs:refreshed"])


@pytest.mark.slow
def test_a_call_before_the_login_names_the_command_that_helps(project: Path) -> None:
    assert "tavern upstreams connect docs" in ran("upstreams", "check", "docs", expected=1)


@pytest.mark.slow
def test_after_a_login_every_process_calls_and_refreshes_the_tokens_alone(project: Path) -> None:
    logged_in()
    with Tavern.open() as host:
        before = host.invoke_sync("docs:refreshed", {})
        assert before.ok, before.error
        deadline = time.monotonic() + 30
        while host.invoke_sync("docs:refreshed", {}).value == before.value:  # a token holds for a second
            assert time.monotonic() < deadline
    done = subprocess.run([*TAVERN, "tools", "call", "docs:refreshed"], capture_output=True, text=True, timeout=120)
    found = re.search(r"\d+", done.stdout)
    assert found is not None and int(found[0]) > 0, done.stderr


@pytest.mark.slow
def test_a_login_that_fails_says_so_once_and_leaves_the_one_before(project: Path) -> None:
    logged_in()
    with Program(
        [*TAVERN, "upstreams", "connect", "docs"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        assert command.stderr is not None
        address = next(line.strip() for line in command.stderr if line.startswith("  http"))
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        for state in ("", "&state=guessed"):  # a page that guesses the port ends no login
            with pytest.raises(HTTPError, match="404"):
                urllib.request.urlopen(f"{asked['redirect_uri']}?error=access_denied{state}")
        urllib.request.urlopen(f"{asked['redirect_uri']}?error=access_denied&state={asked['state']}").close()
        said = command.stderr.read()
        assert command.wait(60) == 1
    assert "the server refused: access_denied" in said
    assert "Traceback" not in said and "http://127.0.0.1" not in said
    assert json.loads(ran("tools", "call", "docs:refreshed"))["result"] >= 0


@pytest.mark.slow
def test_processes_that_refresh_in_turn_lose_no_login(project: Path) -> None:
    logged_in()
    with Tavern.open() as one, Tavern.open() as other:
        begun = one.invoke_sync("docs:refreshed", {}).value["result"]
        deadline = time.monotonic() + 60
        now = begun
        while now < begun + 3:
            for host in (other, one):
                done = host.invoke_sync("docs:refreshed", {})
                assert done.ok, done.error
                now = done.value["result"]
            assert time.monotonic() < deadline


@pytest.mark.slow
def test_tokens_are_in_no_file_that_others_can_read_and_in_no_output(project: Path) -> None:
    logged_in()
    holding = [file for file in project.rglob("*") if file.is_file() and b"refresh-" in file.read_bytes()]
    assert holding and all(file.stat().st_mode & 0o077 == 0 for file in holding)
    assert "access-" not in ran("upstreams", "show", "docs", "--json")
    assert "access-" not in ran("logs", "show", "--json")


@pytest.mark.slow
def test_tokens_serve_only_the_upstream_they_were_given_to(project: Path, server: str) -> None:
    logged_in()
    ran("upstreams", "add", "mcp", "--name", "other", server)
    ran("plugins", "grant", "other", "network")
    assert "tavern upstreams connect other" in ran("upstreams", "check", "other", expected=1)
