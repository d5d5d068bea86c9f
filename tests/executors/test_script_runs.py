"""Scripts, run for real: what goes in, what comes out, and one clear error for everything else."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tavern_core.errors import (
    CallError,
    CallTimeout,
    InputInvalid,
    OutputTooLarge,
    SettingsInvalid,
    ToolFailed,
    UpstreamError,
)

from .workbench import Scripts, call, failing

pytestmark = pytest.mark.slow

ECHO = "import sys; sys.stdout.write(sys.stdin.read())"
LONG = "import time; time.sleep(60)"


# In ----------------------------------------------------------------------------------------------------------------------


def test_a_script_reads_its_arguments_by_name_and_whole_its_config_and_the_call(scripts: Scripts) -> None:
    answer = scripts.run(
        ECHO, {"url": "https://例え.jp", "n": [1, 2.5, None, True]}, home=scripts.home(settings={"k": 1})
    )
    assert answer == {
        "url": "https://例え.jp",
        "n": [1, 2.5, None, True],
        "arguments": {"url": "https://例え.jp", "n": [1, 2.5, None, True]},
        "config": {"k": 1},
        "call": {"id": "call-7", "tool": "demo:t", "timeoutMs": 30000},
    }


def test_arguments_named_like_the_envelope_are_found_inside_arguments(scripts: Scripts) -> None:
    given = {"config": "mine", "call": 1, "arguments": [2]}
    answer = scripts.run(ECHO, given)
    assert answer["arguments"] == given
    assert answer["config"] == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "NaN"),
        (float("-inf"), "Infinity"),
        ("a\ud800b", "surrogate"),
        ({1, 2}, "set"),
        (b"x", "bytes"),
        ({"\udc00": 1}, "surrogate"),
        ({"deep": [[float("nan")]]}, "/x/deep/0/0"),
    ],
)
def test_an_argument_that_is_no_json_is_refused_with_its_path_before_anything_starts(
    scripts: Scripts, value: Any, words: str
) -> None:
    error = failing(InputInvalid, scripts.call(ECHO, {"x": value}))
    assert words in error.message
    assert "/x" in error.message


@pytest.mark.slow
def test_arguments_nested_without_end_are_refused(scripts: Scripts) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    for value in (deep, cyclic):
        assert "/x" in failing(InputInvalid, scripts.call(ECHO, {"x": value})).message


def test_unread_input_blocks_nothing(scripts: Scripts) -> None:
    assert scripts.run("print(1)", {"x": "字" * 3_000_000}) == 1


@pytest.mark.slow
def test_input_larger_than_any_pipe_arrives_whole(scripts: Scripts) -> None:
    body = "import json, sys; print(len(json.load(sys.stdin)['arguments']['x']))"
    assert scripts.run(body, {"x": "字" * 3_000_000}) == 3_000_000


def test_a_missing_setting_refuses_the_call_before_start(scripts: Scripts) -> None:
    def settings() -> dict[str, Any]:
        raise SettingsInvalid("demo:t needs the setting bilibiliCookie")

    ran = scripts.folder / "ran"
    error = failing(ToolFailed, scripts.call(f"open({str(ran)!r}, 'w')", home=scripts.home(settings=settings)))
    assert "is not set up: demo:t needs the setting bilibiliCookie" in error.message
    assert error.outcome == "none"
    assert not ran.exists()


# Where it runs -----------------------------------------------------------------------------------------------------------

FACTS = """
import json, os, sys, neighbour
print(json.dumps({"cwd": os.getcwd(), "env": dict(os.environ), "python": sys.executable, "session": os.getsid(0),
                  "pid": os.getpid(), "encoding": sys.stdout.encoding, "from": neighbour.__name__,
                  "fds": sorted(map(int, os.listdir("/proc/self/fd"))), "argv": sys.argv[1:]}))
"""


def facts(scripts: Scripts, **keys: Any) -> Any:
    scripts.write("scripts/neighbour.py", "")
    name = scripts.write("scripts/facts.py", FACTS)
    bound = scripts.bind(["python3", name, "--one two", "$HOME", "`id`"], **keys)
    return asyncio.run(bound.run({}, call()))


def test_a_script_runs_in_the_plugins_folder_with_the_hosts_interpreter(scripts: Scripts) -> None:
    found = facts(scripts)
    assert found["cwd"] == str(scripts.folder)
    assert found["python"] == sys.executable
    assert found["session"] == found["pid"]
    assert found["encoding"] == "utf-8"
    assert found["from"] == "neighbour"


def test_words_of_the_command_are_never_given_to_a_shell(scripts: Scripts) -> None:
    assert facts(scripts)["argv"] == ["--one two", "$HOME", "`id`"]


def test_a_script_inherits_no_descriptor(own_scripts: Scripts, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        found = facts(own_scripts)["fds"]
    assert found[:3] == [0, 1, 2]
    assert len(found) == 4  # the fourth is the listing itself


def test_a_script_sees_only_what_the_allow_list_names(own_scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "TAVERN_HOME", "LD_PRELOAD", "MY_PROXY", "MY_OTHER"):
        monkeypatch.setenv(name, "/planted")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    env = facts(own_scripts, env=["MY_PROXY", "NOT_SET"])["env"]
    assert {k for k, v in env.items() if v == "/planted"} == {"MY_PROXY"}
    assert env["LC_ALL"] == "C.UTF-8"
    assert (env["TAVERN_TOOL"], env["TAVERN_CALL_ID"]) == ("demo:t", "call-7")
    assert env["PATH"] == os.environ["PATH"]


def test_a_working_directory_inside_the_plugin_can_be_chosen(scripts: Scripts) -> None:
    (scripts.folder / "work").mkdir()
    assert facts(scripts, cwd="work")["cwd"] == str(scripts.folder / "work")


def test_a_file_of_the_plugin_is_run_by_its_own_first_line(scripts: Scripts) -> None:
    name = scripts.write("bin/tool", '#!/bin/sh\nprintf \'{"args": "%s"}\' "$*"\n', 0o755)
    assert asyncio.run(scripts.bind([f"./{name}", "a b", "c"]).run({}, None)) == {"args": "a b c"}


def test_a_missing_runner_is_one_clear_error_and_found_once_installed(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bound = scripts.bind(f"bun run {scripts.write('s.ts', 'x')}")
    monkeypatch.setenv("PATH", str(tmp_path))
    error = failing(UpstreamError, bound.run({}, None))
    assert "bun is not installed" in error.message
    assert error.details == {"runner": "bun"}
    assert error.outcome == "none"
    bun = tmp_path / "bun"
    bun.write_text("#!/bin/sh\necho '\"from bun\"'\n")
    bun.chmod(0o755)
    assert asyncio.run(bound.run({}, None)) == "from bun"


@pytest.mark.parametrize(
    ("first_line", "words"), [("#!/no/such/interpreter", "No such file"), ("\x00\x01 no program", "Exec format error")]
)
def test_a_program_that_cannot_be_started_says_why(scripts: Scripts, first_line: str, words: str) -> None:
    error = failing(UpstreamError, scripts.bind(scripts.write("t", first_line, 0o755)).run({}, None))
    assert words in error.message


def test_a_script_that_was_deleted_after_binding_is_an_error_of_its_interpreter(scripts: Scripts) -> None:
    bound = scripts.bind(f"python {scripts.write('s.py', 'print(1)')}")
    (scripts.folder / "s.py").unlink()
    assert failing(UpstreamError, bound.run({}, None)).details["exitCode"] == 2


def test_a_plugin_folder_that_vanished_is_one_clear_error(scripts: Scripts) -> None:
    bound = scripts.bind(f"python {scripts.write('s.py', 'print(1)')}")
    (scripts.folder / "s.py").unlink()
    scripts.folder.rmdir()
    assert "No such file" in failing(UpstreamError, bound.run({}, None)).message


# Out ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("print('{\"a\": [1, null]}')", {"a": [1, None]}),
        ("print('\\ufeff  [1]\\n\\n')", [1]),
        ("print('null')", None),
        ("import sys; print('log', file=sys.stderr); print(5)", 5),
        ("print('{\"content\": [{\"type\": \"text\", \"text\": \"x\"}], \"details\": 1}')",
         {"content": [{"type": "text", "text": "x"}], "details": 1}),
        ("import os; os.write(1, b'7'); os.close(1); os.close(2); import time; time.sleep(0.05); os._exit(0)", 7),
        ("import os; os.close(0); print(8)", 8),
    ],
)  # fmt: skip
def test_what_a_script_prints_is_its_answer(scripts: Scripts, body: str, value: Any) -> None:
    assert scripts.run(body) == value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "message", "details"),
    [
        ("import sys; print('a\\nwhy', file=sys.stderr); sys.exit(3)", "exit code 3: why", {"exitCode": 3, "stderr": "a\nwhy\n"}),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV", {"signal": "SIGSEGV"}),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM", {"signal": "SIGTERM"}),
        ("import os; os.abort()", "SIGABRT", {"signal": "SIGABRT"}),
        ("raise ValueError('小')", "ValueError: 小", {"exitCode": 1}),
        ("pass", "printed nothing", {"exitCode": 0}),
        ("print('  ')", "printed nothing", {}),
        ("print('Loading...'); print('{}')", "line 1, column 1", {"stdout": "Loading...\n{}\n"}),
        ("print('{}\\n{}')", "line 2, column 1: Extra data", {}),
        ("print('{\"a\": 1,\\n \"b\": }')", "line 2, column 7", {}),
        ("import sys; sys.stdout.buffer.write(b'\"a\\n\\xff\"')", "line 2: byte 0xff is not UTF-8", {}),
        ("print('NaN')", "NaN is not JSON", {}),
        ("print('{\"a\": -Infinity}')", "-Infinity is not JSON", {}),
        ("print('1e999')", "Infinity", {}),
        ("print('\"\\\\ud800\"')", "surrogate", {}),
        ("print('{\"a\": 1, \"a\": 2}')", "'a' appears twice", {}),
        ("print('[' * 100000)", "nested", {}),
        ("print('[' * 500 + ']' * 500)", "nested", {}),
        ("print('9' * 5000)", "an integer of more digits than can be read (4,300)", {}),
    ],
)  # fmt: skip
def test_no_answer_is_one_structured_error(scripts: Scripts, body: str, message: str, details: dict[str, Any]) -> None:
    error = failing(UpstreamError, scripts.call(body))
    assert message in error.message
    assert error.message.startswith("demo:t ")
    assert details.items() <= error.details.items()
    assert error.hint
    assert error.outcome == "unknown"


def test_a_failed_script_that_only_reads_has_changed_nothing(scripts: Scripts) -> None:
    assert failing(UpstreamError, scripts.call("raise SystemExit(1)", tool={"read_only": True})).outcome == "none"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"error": "no subtitle"}, "no subtitle"),
        ({"error": {"message": "no subtitle", "code": 404}}, "no subtitle"),
        ({"ok": False, "error": {"message": "no"}, "extra": 1}, "no"),
        ({"ok": False, "message": "no"}, "no"),
        ({"ok": False}, "the tool reported an error without saying which"),
        ({"status": "error", "error": "no", "more": 1}, "no"),
        ({"isError": True, "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "way"}]}, "no\nway"),
    ],
)
@pytest.mark.parametrize("code", [0, 4])
def test_a_script_can_say_that_it_failed(scripts: Scripts, answer: Any, message: str, code: int) -> None:
    error = failing(ToolFailed, scripts.call(f"import json, sys; print(json.dumps({answer!r})); sys.exit({code})"))
    assert error.message == message
    assert error.details.get("exitCode", 0) == code


def test_a_failure_carries_what_the_script_knows_about_it(scripts: Scripts) -> None:
    said = {"message": "busy", "code": "BUSY", "hint": "wait", "retryable": True, "retryAfterMs": 50, "outcome": "none",
            "details": {"message": "x", "queue": 3}}  # fmt: skip
    error = failing(ToolFailed, scripts.call(f"import json; print(json.dumps({ {'error': said}!r}))"))
    assert (error.hint, error.retryable, error.retry_after_ms, error.outcome) == ("wait", True, 50, "none")
    assert error.details == {"code": "BUSY", "message": "x", "queue": 3}


@pytest.mark.parametrize(
    "answer",
    [{"error": None, "x": 1}, {"error": "", "ok": True}, {"error": "rate", "of": 0.1}, {"errors": []}, {"ok": True}],
)
def test_an_answer_that_only_mentions_errors_is_an_answer(scripts: Scripts, answer: Any) -> None:
    assert scripts.run(f"import json; print(json.dumps({answer!r}))") == answer


# Limits ------------------------------------------------------------------------------------------------------------------


def test_output_beyond_the_limit_stops_the_script(scripts: Scripts) -> None:
    flood = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    error = failing(OutputTooLarge, scripts.call(flood, home=scripts.home(output_bytes=100_000)))
    assert error.details["limit"] == 100_000


FLOOD = """
import os
for number in range(16_384):
    os.write({stream}, b"x" * 65_536)
open("over", "w").close()
print(7)
"""
"""A gigabyte."""


@pytest.mark.soak
def test_a_gigabyte_of_output_is_stopped_at_the_limit_and_takes_no_memory(scripts: Scripts) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = failing(OutputTooLarge, scripts.call(FLOOD.format(stream=1)))
    assert error.details["limit"] == scripts.home().limits.output_bytes
    assert not (scripts.folder / "over").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@pytest.mark.soak
def test_a_gigabyte_of_stderr_is_read_past_and_takes_no_memory(scripts: Scripts) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert scripts.run(FLOOD.format(stream=2)) == 7
    assert (scripts.folder / "over").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, False)])
def test_the_limit_counts_bytes_exactly(scripts: Scripts, size: int, fits: bool) -> None:
    work = scripts.call(
        f"import sys; sys.stdout.write('\"' + 'x' * {size - 2} + '\"')", home=scripts.home(output_bytes=1000)
    )
    if fits:
        assert asyncio.run(work) == "x" * (size - 2)
    else:
        failing(OutputTooLarge, work)


def test_of_a_long_stderr_the_beginning_and_the_end_are_kept(scripts: Scripts) -> None:
    body = "import sys\nsys.stderr.write('first ' + 'x' * 3_000_000 + ' last')\nsys.exit(1)"
    error = failing(UpstreamError, scripts.call(body, home=scripts.home(stderr_bytes=200)))
    kept = error.details["stderr"]
    assert kept.startswith("first x")
    assert kept.endswith("x last")
    assert "2,999,811 bytes left out" in kept
    assert len(kept) < 300


def test_a_stderr_limit_of_nothing_keeps_nothing(scripts: Scripts) -> None:
    body = "import sys; sys.exit('x' * 100_000)"
    assert "stderr" not in failing(UpstreamError, scripts.call(body, home=scripts.home(stderr_bytes=0))).details


@pytest.mark.slow
def test_a_script_that_takes_too_long_is_ended(scripts: Scripts) -> None:
    body = f"import sys; print('so far', file=sys.stderr, flush=True); {LONG}"
    error = failing(CallTimeout, scripts.call(body, timeout=300))
    assert error.details == {"stopped": True, "limit": "the tool's timeout", "timeoutMs": 300, "stderr": "so far\n"}


def test_without_a_timeout_of_its_own_the_hosts_limit_holds(scripts: Scripts) -> None:
    error = failing(CallTimeout, scripts.call(LONG, home=scripts.home(script_timeout_ms=150)))
    assert (error.details["limit"], error.details["timeoutMs"]) == ("limits.scriptTimeoutMs", 150)
    assert "limits.scriptTimeoutMs" in error.hint


@pytest.mark.slow
def test_a_script_may_tidy_up_when_its_time_is_over(scripts: Scripts) -> None:
    done = scripts.folder / "tidy"
    body = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open({str(done)!r}, "w").close(), sys.exit(0)))
time.sleep(60)
"""
    failing(CallTimeout, scripts.call(body, timeout=400))
    assert done.exists()


@pytest.mark.slow
def test_a_script_that_ignores_sigterm_is_killed(scripts: Scripts) -> None:
    body = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {LONG}"
    assert failing(CallTimeout, scripts.call(body, timeout=200)).details["stopped"] is True


# At the same time --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_scripts_than_places_all_get_their_turn(scripts: Scripts) -> None:
    bound = scripts.bind(scripts.write("t", "#!/bin/sh\ncat\n", 0o755))

    async def many() -> list[Any]:
        return await asyncio.gather(*(bound.run({"n": n}, None) for n in range(150)))

    assert [answer["n"] for answer in asyncio.run(many())] == list(range(150))


@pytest.mark.slow
def test_scripts_run_from_several_event_loops_in_several_threads(scripts: Scripts) -> None:
    bound = scripts.bind(scripts.write("t", "#!/bin/sh\ncat\n", 0o755))
    answers: dict[int, list[int]] = {}

    def work(number: int) -> None:
        async def some() -> list[Any]:
            return await asyncio.gather(*(bound.run({"n": number * 100 + n}, None) for n in range(20)))

        answers[number] = [answer["n"] for answer in asyncio.run(some())]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: [n * 100 + i for i in range(20)] for n in range(5)}


def test_every_error_is_of_our_tree_and_json(scripts: Scripts) -> None:
    error = failing(CallError, scripts.call("import sys; sys.stderr.buffer.write(b'\\xff\\x00'); sys.exit(1)"))
    assert json.loads(json.dumps(error.details)) == error.details
