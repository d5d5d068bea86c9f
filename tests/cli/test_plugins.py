"""`tavern plugins`: states and reasons, switches, grants, checks - without running what is looked at."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import PLUGINS, Run
from tests.forked_programs import ForkedProgram

pytestmark = pytest.mark.slow

HOOK = "hook:server:tool:check"
EVENTS = "hook:server:events"


LOOKING = [
    ("--help",),
    ("plugins", "list"),
    ("plugins", "list", "--all", "--json"),
    ("plugins", "info", "bomb"),
    ("plugins", "check", "bomb"),
    ("plugins", "grant", "bomb"),
    ("plugins", "grant", "bomb", HOOK),
    ("plugins", "grant", "bomb", "hook:*"),
    ("plugins", "lock"),
    ("plugins", "lock", "--check"),
    ("--locked", "plugins", "list"),
    ("plugins", "review"),
    ("plugins", "review", "bomb", "--json"),
    ("plugins", "assets"),
    ("plugins", "doctor"),
    ("doctor", "--json"),
    ("plugins", "disable", "bomb", "--reason", "boom"),
    ("plugins", "enable", "bomb"),
    ("plugins", "revoke", "bomb"),
]
USING = [
    ("config", "show"),
    ("config", "get", "extensions.text.style"),
    ("logs", "verify"),
    ("tools", "list"),
    ("tools", "list", "--all", "--json"),
    ("tools", "why", "bomb:boom"),
    ("tools", "search", "boom"),
    ("greet",),
]


@pytest.mark.slow
@pytest.mark.parametrize("enabled", [True, False])
def test_looking_and_deciding_import_nothing_of_a_plugin(tavern: Run, tmp_path: Path, enabled: bool) -> None:
    tavern("plugins", "grant", "bomb", EVENTS)
    if not enabled:
        tavern("plugins", "disable", "bomb")  # with a granted hook it would be activated when tools are used
    for argv in LOOKING if enabled else USING:
        answer = tavern(*argv)
        assert answer.code in (0, 3, 4, 5), (argv, answer)
        assert "Traceback" not in answer.err, argv
        assert not (tmp_path / "bomb-trace").exists(), argv


def test_the_list_says_state_and_reason_of_each(tavern: Run) -> None:
    rows = {row["name"]: row for row in tavern("plugins", "list", "--json").json}
    assert set(rows) == set(PLUGINS)
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {
        "text": "pending_consent", "bomb": "pending_consent", "bad": "failed", "greeter": "granted", "looks": "granted",
    }  # fmt: skip
    assert rows["bad"]["errorCode"] == "MANIFEST_INVALID"
    assert "tavern plugins grant text" in rows["text"]["reason"]
    assert rows["text"]["displayName"] == "文本工具"
    assert all(
        row["name"].startswith("core-") or row["name"] in PLUGINS
        for row in tavern("plugins", "list", "--all", "--json").json
    )


def test_what_a_broken_plugin_asks_for_is_unknown_and_not_nothing(tavern: Run) -> None:
    for command in ("review", "grant"):
        answer = tavern("plugins", command, "bad")
        assert "bad is failed: " in answer.err
        assert "requests no permissions" not in answer.out + answer.err


def test_json_names_no_physical_path(tavern: Run, project: Path) -> None:
    for argv in (("plugins", "list", "--json"), ("plugins", "info", "text", "--json")):
        assert str(project) not in tavern(*argv).out


@pytest.mark.slow
def test_a_plugin_is_switched_off_and_on(tavern: Run) -> None:
    answer = tavern("plugins", "disable", "text", "--reason", "太慢")
    assert answer.code == 0
    assert "太慢" in answer.out
    assert tavern("tools", "call", "text:fail").code != 0
    assert "text:fail" not in tavern("tools", "list").out
    assert "太慢" in tavern("plugins", "list").out
    assert tavern("plugins", "enable", "text", "--json").json["state"] == "pending_consent"
    assert "text:fail" in tavern("tools", "list").out


@pytest.mark.slow
def test_a_grant_takes_effect_and_a_revocation_too(tavern: Run, project: Path) -> None:
    count = ("tools", "call", "text:count", "text=one two")
    assert tavern(*count).code == 3
    granted = tavern("plugins", "grant", "text", "read:fs")
    assert granted.code == 0
    assert "读取要统计的文件" in granted.out  # the reason that the plugin gives
    (request,) = tavern("plugins", "review", "text", "--json").json["plugins"][0]["permissions"]
    assert (request["permission"], request["state"], request["reason"]) == ("read:fs", "granted", "读取要统计的文件")
    assert tavern(*count).out == "2\n"
    assert "read:fs" in (project / "tavern.lock").read_text("utf-8")
    lock = tavern("plugins", "lock", "--json").json
    assert lock["plugins"]["text"]["granted"] == ["read:fs"]
    assert tavern("plugins", "lock").out == (project / "tavern.lock").read_text("utf-8")
    assert tavern("plugins", "revoke", "text").code == 0
    assert tavern(*count).code == 3
    assert tavern("plugins", "lock", "--json").json["plugins"]["text"]["refused"] == ["read:fs"]


def test_without_a_terminal_only_named_permissions_are_granted(tavern: Run, project: Path) -> None:
    for stdin in ("", "y\n" * 10):
        answer = tavern("plugins", "grant", "bomb", stdin=stdin)
        assert answer.code == 3
        assert "highest" in answer.out or "medium" in answer.out
    assert not (project / "tavern.lock").exists()
    wrong = tavern("plugins", "grant", "bomb", HOOK, "network")
    assert (wrong.code, (project / "tavern.lock").exists()) == (2, False)


def test_there_is_no_option_that_grants_unread(tavern: Run) -> None:
    for option in ("--yes", "-y", "--all", "--force"):
        assert tavern("plugins", "grant", "bomb", option).code == 2


@pytest.fixture
def terminal(project: Path, home: Path) -> Iterator[tuple[int, list[str]]]:
    """A terminal of its own for a child process: its other end, and the beginning of a command line."""
    ours, theirs = pty.openpty()
    yield (ours, [str(theirs), "-m", "tavern_core", "--home", str(home)])
    for descriptor in (ours, theirs):
        os.close(descriptor)


def on_terminal(
    terminal: tuple[int, list[str]], *argv: str, typed: str = "", env: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run a command line with a terminal for all three streams; exit code and what the person saw."""
    ours, (theirs, *command) = terminal
    end = int(theirs)
    os.write(ours, typed.encode())
    running = ForkedProgram(
        [*command, *argv],
        stdin=end,
        stdout=end,
        stderr=end,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **(env or {})},
    )
    with running:
        code = running.wait()
    os.set_blocking(ours, False)
    seen = b""
    try:
        while piece := os.read(ours, 65536):
            seen += piece
    except (BlockingIOError, OSError):
        return code, seen.decode()
    return code, seen.decode()


@pytest.mark.slow
def test_on_a_terminal_each_request_is_asked_for(terminal: tuple[int, list[str]], tavern: Run) -> None:
    code, seen = on_terminal(terminal, "plugins", "grant", "bomb", typed="y\nn\n")
    assert code == 0, seen
    assert "Grant it?" in seen
    record = tavern("plugins", "lock", "--json").json["plugins"]["bomb"]
    assert len(record["granted"]) == len(record["refused"]) == 1
    assert {*record["granted"], *record["refused"]} == {HOOK, EVENTS}


@pytest.mark.slow
def test_later_is_the_answer_to_an_empty_line(terminal: tuple[int, list[str]], tavern: Run, project: Path) -> None:
    code, seen = on_terminal(terminal, "plugins", "grant", "bomb", typed="\n\n")
    assert code == 0, seen
    assert tavern("plugins", "review", "bomb").code == 3
    assert not (project / "tavern.lock").exists()


@pytest.mark.slow
def test_colour_is_for_terminals_that_want_it(terminal: tuple[int, list[str]], tavern: Run) -> None:
    _, seen = on_terminal(terminal, "plugins", "list")
    assert "\x1b[" in seen
    _, seen = on_terminal(terminal, "plugins", "list", env={"NO_COLOR": "1"})
    assert "\x1b[3" not in seen
    _, seen = on_terminal(terminal, "--no-color", "plugins", "list")
    assert "\x1b[3" not in seen
    assert "\x1b" not in tavern("plugins", "list").out


@pytest.mark.slow
def test_a_terminal_shows_control_characters_instead_of_obeying_them(
    terminal: tuple[int, list[str]], tavern: Run
) -> None:
    _, seen = on_terminal(terminal, "tools", "call", "text:escape")
    assert "\\x1b[31mred" in seen
    assert "\x1b[31mred" not in seen
    assert tavern("tools", "call", "text:escape").out == "\x1b[31mred\x1b[0m 中文\n"  # a pipe gets it as it is


def test_check_compares_code_and_manifest_and_writes_what_is_missing(tavern: Run, project: Path) -> None:
    assert tavern("plugins", "check", "plugins/text").code == 0
    manifest = project / "plugins" / "text" / "plugin.yaml"
    lines = [line for line in manifest.read_text("utf-8").splitlines() if "id: escape" not in line]
    manifest.write_text("\n".join(lines) + "\n", "utf-8")
    found = tavern("plugins", "check", "plugins/text", "--json")
    assert (found.code, found.json["undeclaredTools"]) == (4, ["escape"])
    assert tavern("plugins", "check", "plugins/text", "--write").code == 0
    assert "escape" in manifest.read_text("utf-8")


def test_strict_makes_errors_of_warnings(tavern: Run, project: Path) -> None:
    assert tavern("plugins", "check", "text").code == 0
    (project / "plugins" / "odd").mkdir()
    (project / "plugins" / "odd" / "plugin.yaml").write_text(
        'name: odd\nversion: "1"\nfrontend: {type: vite}\n', "utf-8"
    )
    assert tavern("plugins", "check", "plugins/odd").code == 0
    strict = tavern("plugins", "check", "plugins/odd", "--strict", "--json")
    assert (strict.code, strict.json["ok"]) == (4, False)


def test_reload_reads_code_anew(tavern: Run, project: Path) -> None:
    assert tavern("plugins", "reload", "text", "--json").json["provides"]["tools"]
    code = project / "plugins" / "text" / "__init__.py"
    code.write_text(code.read_text("utf-8") + "\nraise ValueError('坏了')\n", "utf-8")
    answer = tavern("plugins", "reload", "text")
    assert answer.code == 4
    assert "坏了" in answer.err
    assert "__init__.py:" in answer.err


def test_activate_tells_what_failed_and_how_long_the_others_took(tavern: Run) -> None:
    answer = tavern("plugins", "activate", "--all", "--json")
    states = {row["name"]: row["state"] for row in answer.json}
    assert answer.code == 4
    assert (states["bomb"], states["text"], states["greeter"]) == ("failed", "pending_consent", "active")
    assert tavern("plugins", "activate", "text", "greeter").code == 0


def test_assets_are_data(tavern: Run, project: Path) -> None:
    found = tavern("plugins", "assets", "--json").json
    assert found["devEntries"] == {"looks": str(project / "plugins" / "looks" / "web" / "src" / "main.ts")}
    assert tavern("plugins", "assets", "--dev").json == found["devEntries"]
    assert [(a["url"], a["problem"] is None) for a in found["assets"]] == [
        ("/plugins/looks/index.js", True),
        ("/plugins/looks/style.css", False),
    ]
    extension = next(e for e in found["extensions"] if e["name"] == "looks")
    assert extension["frontend"] == {"entryUrl": "/plugins/looks/index.js", "styleUrls": ["/plugins/looks/style.css"]}
    assert str(project) not in json.dumps(found["extensions"])


@pytest.mark.parametrize(
    ("options", "env", "usable"),
    [
        ((), {}, True),
        (("--no-plugins",), {}, False),
        (("--safe-mode",), {}, False),
        ((), {"TAVERN_LOAD_PLUGINS": "greeter,bad"}, False),
        ((), {"TAVERN_LOAD_PLUGINS": "text"}, True),
        ((), {"TAVERN_DISABLE_PLUGINS": "text"}, False),
        (("--set", "plugins.disable=[text]"), {}, False),
    ],
)
def test_what_is_loaded_can_be_controlled(
    tavern: Run, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], env: dict[str, str], usable: bool
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert (tavern(*options, "tools", "call", "text:fail").code == 1) is usable
    state = {row["name"]: row["state"] for row in tavern("plugins", "list", "--json", *options).json}.get("text")
    assert state == ("pending_consent" if usable else "disabled")


def test_the_trace_tells_what_is_found_and_activated(tavern: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAVERN_TRACE_PLUGINS", "1")
    answer = tavern("tools", "call", "text:escape")
    lines = [line for line in answer.err.splitlines() if line.startswith("trace")]
    assert any("found text 1.2.0" in line for line in lines)
    assert any("text (import " in line and " ms" in line for line in lines)
    assert not any("greeter" in line and "import" in line for line in lines)
    assert "trace" not in answer.out


THEMES = [
    (
        "type: vanilla, vanilla: {styles: [theme.css, web/dark.css]}",
        "web",
        ["/plugins/theme/theme.css", "/plugins/theme/dark.css"],
    ),
    (
        "type: vanilla, vanilla: {rootDir: css, styles: [theme.css, css/dark.css]}",
        "css",
        ["/plugins/theme/theme.css", "/plugins/theme/dark.css"],
    ),
    (
        "build: {styles: [dist/theme.css, dist/dark.css]}",
        "dist",
        ["/plugins/theme/theme.css", "/plugins/theme/dark.css"],
    ),
    (
        "build: {styles: [dist/theme.css, dist/dark.css], outputDir: .}",
        "dist",
        ["/plugins/theme/dist/theme.css", "/plugins/theme/dist/dark.css"],
    ),
    (
        "build: {styles: [./theme.css, dist/dark.css], outputDir: ./dist}",
        "dist",
        ["/plugins/theme/theme.css", "/plugins/theme/dark.css"],
    ),
]


ADDRESSES = {
    "a b.css": "/plugins/theme/a%20b.css",
    "主题.css": "/plugins/theme/%E4%B8%BB%E9%A2%98.css",
    "a#b?.css": "/plugins/theme/a%23b%3F.css",
    "a%41.css": "/plugins/theme/a%2541.css",
    "sub/a.css": "/plugins/theme/sub/a.css",
}


def test_an_address_names_its_file_whatever_the_name_holds(tavern: Run, project: Path) -> None:
    for file in ADDRESSES:
        style = project / "plugins" / "theme" / "web" / file
        style.parent.mkdir(parents=True, exist_ok=True)
        style.write_text("body {}", "utf-8")
    styles = json.dumps([*ADDRESSES])
    text = f'name: theme\nversion: "1"\nfrontend: {{type: vanilla, vanilla: {{styles: {styles}}}}}\n'
    (project / "plugins" / "theme" / "plugin.yaml").write_text(text, "utf-8")
    found = tavern("plugins", "assets", "--json").json["assets"]
    addresses = [(a["url"], a["problem"]) for a in found if a["plugin"] == "theme"]
    assert addresses == [(url, None) for url in ADDRESSES.values()]


@pytest.mark.parametrize(("frontend", "folder", "urls"), THEMES)
def test_a_theme_of_styles_alone_is_a_plugin(
    tavern: Run, project: Path, frontend: str, folder: str, urls: list[str]
) -> None:
    theme = project / "plugins" / "theme"
    (theme / folder).mkdir(parents=True)
    (theme / "plugin.yaml").write_text(f'name: theme\nversion: "1"\nfrontend: {{{frontend}}}\n', "utf-8")
    (theme / folder / "theme.css").write_text("body {}", "utf-8")
    (theme / folder / "dark.css").write_text("body {}", "utf-8")
    assert (tavern("plugins", "check", "theme").out, tavern("plugins", "info", "theme", "--json").json["state"]) == (
        "theme: ok\n",
        "granted",
    )
    found = tavern("plugins", "assets", "--json").json
    assert [(a["kind"], a["url"], a["problem"]) for a in found["assets"] if a["plugin"] == "theme"] == [
        ("style", url, None) for url in urls
    ]
    [shown] = [e["frontend"] for e in found["extensions"] if e["name"] == "theme"]
    assert shown == {"entryUrl": None, "styleUrls": urls}
    assert tavern("plugins", "activate", "theme").code == 0


@pytest.mark.slow
def test_a_frontend_that_brings_nothing_is_a_warning(tavern: Run, project: Path) -> None:
    theme = project / "plugins" / "theme"
    theme.mkdir()
    for frontend in ("type: vanilla, vanilla: {}", "build: {styles: []}", "type: vanilla, build: {styles: [a.css]}"):
        (theme / "plugin.yaml").write_text(f'name: theme\nversion: "1"\nfrontend: {{{frontend}}}\n', "utf-8")
        answer = tavern("plugins", "check", "theme")
        assert "the console ignores this plugin" in answer.err
        assert tavern("plugins", "info", "theme", "--json").json["state"] == "granted"
        [shown] = [
            e["frontend"] for e in tavern("plugins", "assets", "--json").json["extensions"] if e["name"] == "theme"
        ]
        assert shown is None
