"""`tavern llms list | try`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import programs

from .openai_server import OpenAIServer, Reply

KEY = "sk-test-0123456789"
YAML = """\
plugins: {roots: [], entryPoints: false}
llms:
  demo: {kind: scripted, answers: [{text: "Hello! How can I help?", toolCalls: [{name: t, arguments: {a: 1}}]}]}
  far: {kind: openai, baseUrl: "URL", model: m, key: {$env: MODEL_KEY}, retries: 0, contextTokens: 8000, price: {input: 1, output: 2.5}}
"""


class Run:
    """Runs one command line in this process, in the folder of the test: (exit code, stdout, stderr)."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        monkeypatch.chdir(folder)
        for name, value in {"TAVERN_HOME": str(folder / "home"), "MODEL_KEY": KEY, "NO_COLOR": "1"}.items():
            monkeypatch.setenv(name, value)

    def __call__(self, *words: str, url: str = "http://127.0.0.1:9/v1", stdin: str = "") -> tuple[int, str, str]:
        (self._folder / "tavern.yaml").write_text(YAML.replace("URL", url))
        done = programs.tavern("llms", *words, cwd=self._folder, given=stdin.encode())
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


def test_models_are_listed_for_people_and_for_programs(run: Run) -> None:
    code, table, _ = run()
    assert code == 0
    assert table.splitlines()[2].split() == [
        "far", "openai", "tavern.yaml", "m", "8,000", "1", "in,", "2.5", "out", "USD",
    ]  # fmt: skip
    code, written, _ = run("list", "--json")
    assert (code, [one["name"] for one in json.loads(written)]) == (0, ["demo", "far"])
    assert KEY not in written


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["demo", "hi"], 'Hello! How can I help?\ncalls t {"a": 1}\n'),
        (["demo", "hi", "--stream"], 'Hello! How can I help?\ncalls t {"a": 1}\n'),
    ],
)
def test_an_answer_is_printed_whole_or_as_it_arrives(run: Run, words: list[str], expected: str) -> None:
    assert run("try", *words)[:2] == (0, expected)


def test_a_request_takes_options_a_system_prompt_and_a_prompt_from_stdin(run: Run) -> None:
    with OpenAIServer(["ok"], key=KEY) as server:
        words = ["try", "far", "-", "--system", "Be brief.", "--options", '{"temperature": 0}']
        code, out, _ = run(*words, url=server.url, stdin="a long text")
        [request] = server.requests
    assert (code, out, request.body["temperature"]) == (0, "ok\n", 0)
    assert [message["content"] for message in request.body["messages"]] == ["Be brief.", "a long text"]


def test_a_streamed_answer_for_programs_is_one_line_for_each_piece(run: Run) -> None:
    with OpenAIServer([Reply("hello world")], key=KEY) as server:
        code, out, _ = run("try", "far", "hi", "--stream", "--json", url=server.url)
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, lines[:2]) == (0, [{"piece": "hello "}, {"piece": "world"}])
    assert lines[2] == {
        "ok": True,
        "answer": {"text": "hello world", "finishReason": "stop", "usage": {"input": 7, "output": 5}, "model": "m"},
    }


def test_a_structured_answer_is_printed_as_data(run: Run) -> None:
    schema = '{"schema": {"type": "object"}}'
    with OpenAIServer([Reply('{"a":1}')], key=KEY) as server:
        assert run("try", "far", "hi", "--options", schema, url=server.url)[:2] == (0, '{\n  "a": 1\n}\n')


FAILURES: dict[str, tuple[Reply, int, str]] = {
    "a bad key": (Reply(status=401, error=f"no {KEY}"), 1, "error[UPSTREAM_ERROR]: "),
    "a limit": (Reply(status=429, headers={"Retry-After": "900"}), 1, "error[BUDGET_EXCEEDED]: "),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_has_its_exit_code_and_no_key(run: Run, what: str) -> None:
    reply, expected, said = FAILURES[what]
    with OpenAIServer([reply]) as server:
        code, out, err = run("try", "far", "hi", url=server.url)
        code_json, written, _ = run("try", "far", "hi", "--json", url=server.url)
    assert (code, out, code_json) == (expected, "", expected)
    assert err.startswith(said)
    error = json.loads(written)["error"]
    assert (f"error[{error['kind']}]: ", error["retryAfterMs"]) == (said, 900_000 if what == "a limit" else None)
    assert KEY not in f"{err}{written}"


def test_an_unknown_model_is_named_with_the_closest_one(run: Run) -> None:
    code, _, err = run("try", "fra", "hi")
    assert (code, err.splitlines()[-1]) == (1, "hint: did you mean 'far'?")
