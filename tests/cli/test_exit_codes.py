"""Every way to end has its exit code, and what is said about it stands on stderr in one form."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tavern_core.errors import ERROR_CODES
from tests.cli.conftest import Run
from tests.forked_programs import ForkedProgram, run_forked
from tests.programs import Program

COUNT = ("tools", "call", "text:count", "text=one two")
FORM = re.compile(r"\A(error|warning)\[[A-Z_]+\]: .+", re.S)


@pytest.mark.parametrize(
    ("argv", "code", "named"),
    [
        (("version",), 0, ""),
        (("--help",), 0, ""),
        (("tools", "call", "--help"), 0, ""),
        (COUNT, 3, "read:fs"),  # nothing was granted yet
        (("tools", "call", "text:fail"), 1, "error[TOOL_ERROR]: "),
        (("tools", "call", "text:count", "text=x", "times=many"), 1, "error[INPUT_SCHEMA_INVALID]"),
        (("tools", "call", "text:count", "txet=x"), 1, "rename 'txet' to 'text'"),
        (("tools", "call", "text:fail", "--json-args", "[1]"), 2, "error[USAGE]"),
        (("tools", "call", "text:fail", "--json-args", "{"), 2, "error[USAGE]"),
        (("tools", "call", "text:fail", "--json-args", "@nowhere.json"), 2, "nowhere.json"),
        (("tools", "call", "text:fail", "why"), 2, "name=value"),
        (("tools", "call", "text:fail", "why=a", "--arg", "why=b"), 2, "twice"),
        (("tools", "call", "text:fail", "why=a", "--json-args", '{"why": "b"}'), 2, "twice"),
        (("tools", "call"), 2, "error[USAGE]"),
        (("tols",), 2, "did you mean 'tools'"),
        (("tools", "lst"), 2, "did you mean 'list'"),
        (("tools", "list", "--jsn"), 2, "did you mean '--json'"),
        (("plugins", "grant", "text", "--yes"), 2, "hint: `tavern plugins grant --help`"),
        (("--set", "limits.depth", "tools", "list"), 2, "key=value"),
        (("--set", "limits.depth=much", "tools", "list"), 2, "error[CONFIG_INVALID]"),
        (("--set", "limits.dept=4", "tools", "list"), 2, "did you mean 'depth'"),
        (("--config", "nowhere.yaml", "tools", "list"), 2, "nowhere.yaml"),
        (("tools", "list", "--profile", "nobody"), 2, "error[PROFILE_INVALID]"),
        (("tools", "call", "text:count", "text=x", "--profile", "nobody"), 2, "error[PROFILE_INVALID]"),
        (("run", "-", "--profile", "nobody"), 2, "error[PROFILE_INVALID]"),
        (("assist", "flow.json", "put the text into capitals, please " * 10), 2, "File name too long"),
        (("skills", "check", "x" * 5_000), 2, "File name too long"),
        (("plugins", "activate"), 2, "--all"),
        (("run", "nowhere.txt"), 2, "nowhere.txt"),
        (("completion", "tcsh"), 2, "error[USAGE]"),
        (("tools", "call", "text:count", "text=x", "--permissions", ""), 3, "error[POLICY_DENIED]"),
        (("plugins", "grant", "bomb"), 3, "tavern plugins grant bomb hook:"),
        (("plugins", "check", "bad"), 4, "error[MANIFEST_INVALID]"),
        (("plugins", "check", "plugins/bad"), 4, "error[MANIFEST_INVALID]"),
        (("plugins", "reload", "bomb"), 4, "error[ACTIVATION_FAILED]"),
        (("plugins", "activate", "bomb"), 4, "error[ACTIVATION_FAILED]"),
        (("doctor",), 4, ""),
        (("plugins", "info", "txt"), 5, "did you mean 'text'"),
        (("plugins", "disable", "txt"), 5, "error[PLUGIN_NOT_FOUND]"),
        (("plugins", "grant", "txt"), 5, "error[PLUGIN_NOT_FOUND]"),
        (("plugins", "check", "nobody"), 5, "error[PLUGIN_NOT_FOUND]"),
        (("tools", "call", "text:cuont"), 5, "did you mean 'text:count'"),
        (("tools", "show", "text:cuont"), 5, "error[TOOL_NOT_FOUND]"),
        (("tools", "why", "text:cuont"), 5, ""),
        (("tools", "search", "zzzyx"), 5, ""),
        (("tools", "unpin", "text:cuont"), 5, "error[TOOL_NOT_FOUND]"),
        (("hooks", "tavern_before_exceute"), 5, "error[HOOK_NOT_FOUND]"),
        *((("plugins", "bisect", "--timeout", number, "true"), 2, number) for number in ("nan", "inf", "-1", "0")),
        *((("tokens", "create", "agent:a", "--days", number), 2, number) for number in ("nan", "inf", "-1", "0")),
        (("config", "get", "limits.dpeth"), 5, "did you mean 'limits.depth'"),
        (("config", "get", "extensions.text.stile"), 5, "did you mean 'extensions.text.style'"),
        (("approvals", "show", "no-such-request"), 5, "error[APPROVAL_NOT_FOUND]"),
        (("approvals", "forget", "no-such-rule"), 5, "error[APPROVAL_NOT_FOUND]"),
        (("logs", "explain", "no-such-call"), 5, "no-such-call"),
        (("logs", "--call", "no-such-call"), 5, ""),
        (("plugins", "lock", "--check"), 1, "tavern.lock"),
        (("plugins", "lock", "--check", "--prune"), 2, "error[USAGE]"),
        (("plugins", "lock"), 0, "tavern.lock"),
        (("--locked", "plugins", "lock"), 2, "error[USAGE]"),
        (("--no-plugins", "--set", "plugins.roots=[]", "plugins", "lock"), 5, "nothing to lock"),
        (("plugins", "review"), 3, ""),
        (("plugins", "review", "text"), 3, ""),
        (("plugins", "review", "looks"), 0, ""),
        (("plugins", "review", "txt"), 5, "did you mean 'text'"),
        (("--locked", "plugins", "grant", "text", "read:fs"), 2, "this host is locked"),
        (("--locked", "tools", "call", "text:count", "text=x"), 1, "not in the lock file"),
        (("tools", "call", "text:forever", "--timeout-ms", "30"), 124, "error[TIMEOUT]"),
    ],
)
def test_the_exit_code_says_how_it_ended(tavern: Run, argv: tuple[str, ...], code: int, named: str) -> None:
    answer = tavern(*argv)
    assert (answer.code, named in answer.err) == (code, True), answer
    if named.startswith("error["):
        assert FORM.search(answer.err[answer.err.index("error[") :])
    assert "Traceback" not in answer.err


def test_codes_of_errors_and_exit_codes_are_one_table(tavern: Run) -> None:
    for argv in (("tools", "call", "text:cuont"), ("plugins", "check", "bad"), ("tools", "call", "text:fail")):
        answer = tavern(*argv)
        reported = re.search(r"error\[([A-Z_]+)\]", answer.err)
        assert reported is not None
        assert ERROR_CODES[reported[1]].exit_code == answer.code


def test_an_error_shows_file_line_column_and_a_caret(tavern: Run, project: Path) -> None:
    answer = tavern("plugins", "check", "bad")
    lines = answer.err.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("error[MANIFEST_INVALID]"))
    assert lines[at + 1].startswith("  --> plugin.yaml:8:7")
    assert lines[at + 3] == " 8 |     - hook:server:tool:chek"
    assert lines[at + 4] == "   |       ^"
    assert lines[at + 5] == "hint: did you mean 'hook:server:tool:check'?"


def test_the_caret_stands_right_below_chinese_text(tavern: Run, project: Path) -> None:
    (project / "tavern.yaml").write_text('limits: {"中文": 1}\n', encoding="utf-8")
    lines = tavern("tools", "list").err.splitlines()
    shown, caret = next((a, b) for a, b in itertools.pairwise(lines) if b.endswith("^"))
    before = shown[: shown.index('"中文"')]
    assert caret.index("^") == len(before)
    (project / "tavern.yaml").write_text(
        'config: {"中文": 1}\nlimits: {depth: 2}\ncallers: {"中文名": {dney: []}}\n', "utf-8"
    )
    lines = tavern("tools", "list").err.splitlines()
    shown, caret = next((a, b) for a, b in itertools.pairwise(lines) if b.endswith("^"))
    assert caret.index("^") == len(shown[: shown.index("dney")]) + 3  # three characters two columns wide


def test_an_invalid_argument_is_named_by_its_place_and_reported_once(tavern: Run) -> None:
    lines = tavern("tools", "call", "text:count", "times=many").err.splitlines()
    assert [line for line in lines if line.startswith("  --> ")] == ["  --> /times", "  --> /text"]
    assert "\n".join(lines).count("must be integer") == 1


def test_a_traceback_is_shown_with_debug_only(tavern: Run) -> None:
    assert "Traceback" not in tavern("plugins", "reload", "bomb").err
    assert "Traceback" in tavern("--debug", "plugins", "reload", "bomb").err


def test_where_a_tool_failed_is_shown_with_debug_only_and_without_its_values(tavern: Run) -> None:
    call = ("tools", "call", "text:trip", "password=open-sesame-77")
    assert "Traceback" not in tavern(*call).err
    reported = tavern("--debug", *call).err
    assert 'return {}["lost " + password]' in reported and "__init__.py" in reported
    assert "open-sesame" not in reported


@pytest.mark.parametrize("command", [["tools"], ["plugins"], ["config"]])
def test_a_command_without_its_words_shows_its_help_and_no_error(tavern: Run, command: list[str]) -> None:
    answer = tavern(*command)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("Usage: tavern")
    assert "error[" not in answer.err and "-->" not in answer.err


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("options", [[], ["--key", "k"]])
def test_a_signal_cancels_the_running_tool_and_its_end_is_in_the_log(
    project: Path, home: Path, tavern: Run, sent: signal.Signals, code: int, options: list[str]
) -> None:
    command = ["-m", "tavern_core", "--home", str(home), "tools", "call", "text:forever", *options]
    with ForkedProgram(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=project) as running:
        while "ready" not in (line := running.stderr.readline()):
            assert line, "it ended before the tool ran"
        os.kill(running.pid, sent)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err.splitlines()[0]) == (code, "", "interrupted")
    assert tavern("logs", "verify").code == 0
    types = ("TOOL_CALLED", "TOOL_RESULT")
    events = json.loads(tavern("logs", "--all", "--json").out)
    called = [event for event in events if event["type"] in types]
    assert [event["type"] for event in called] == [*types]
    assert "CANCELLED" in json.dumps(called[1])


@pytest.mark.slow
def test_ctrl_c_ends_a_running_tool_with_130(project: Path, home: Path) -> None:
    command = [sys.executable, "-m", "tavern_core", "--home", str(home), "tools", "call", "text:forever"]
    with Program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        while "ready" not in (line := running.stderr.readline()):
            assert line, "it ended before the tool ran"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(project: Path, home: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run_forked(["-m", "tavern_core", "--home", str(home), "schema", "manifest"], stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_bad_configuration_names_every_place_and_help_still_comes(tavern: Run, project: Path) -> None:
    (project / "tavern.yaml").write_text("limits:\n  dept: 3\naudit:\n  enabled: maybe\n", encoding="utf-8")
    answer = tavern("plugins", "list")
    assert answer.code == 2
    assert f"{project / 'tavern.yaml'}:2:3" in answer.err
    assert f"{project / 'tavern.yaml'}:4:12" in answer.err
    assert tavern("--help").code == 0
    assert tavern("config", "set", "audit.enabled", "true").code == 2  # `dept` is still wrong


HOSTILE = ["", " ", "\udcff\udcfe", "a\x00b", "x" * 100_000, "../../etc/passwd", "-", "--", "=", ":", "text:", ":count", "\x1b[2J", "‮", "中" * 5000, "{}", "[" * 5000]  # fmt: skip
WITH_A_NAME = [
    ("plugins", "info"), ("plugins", "check"), ("plugins", "enable"), ("plugins", "disable"), ("plugins", "reload"),
    ("plugins", "grant"), ("plugins", "grant", "bomb"), ("plugins", "revoke"), ("plugins", "activate"), ("tools", "show"),
    ("tools", "why"), ("tools", "search"), ("tools", "call"), ("tools", "call", "text:fail"), ("tools", "list", "--profile"),
    ("tools", "call", "text:escape", "--json-args"), ("tools", "call", "text:escape", "--permissions"), ("run",), ("logs", "explain"),
    ("logs", "--call"), ("logs", "--type"), ("config", "get"), ("config", "show"), ("config", "unset"), ("config", "set", "limits.depth"),
    ("config", "set", "extensions.text.style"), ("config", "set", "config.note"), ("schema",), ("new", "--no-input"), ("--set",), ("--config",),
    ("--set", "limits.depth=3", "--config"), (),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("parts", [(0,), pytest.param((1, 2, 3), marks=pytest.mark.soak)], ids=["some", "others"])
@pytest.mark.parametrize("words", WITH_A_NAME, ids=" ".join)
def test_whatever_is_typed_gets_one_clear_answer(tavern: Run, words: tuple[str, ...], parts: tuple[int, ...]) -> None:
    first = WITH_A_NAME.index(
        words
    )  # so that each part has some texts for every command, and each text for some commands
    for text in (text for part in parts for text in HOSTILE[(first + part) % 4 :: 4]):
        answer = tavern(*words, text)
        assert answer.code in (0, 1, 2, 3, 4, 5), (text[:40], answer.code)
        assert "INTERNAL" not in answer.err, (text[:40], answer.err[-2000:])
        assert "Traceback" not in answer.err
        assert "\x1b" not in answer.err
        assert len(answer.err) < 5_000, (text[:40], len(answer.err))
