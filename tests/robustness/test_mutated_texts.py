"""Every text the host reads, damaged in every way: the reader answers with located findings, or reads it; nothing else."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tavern_core import tam
from tavern_core.builtin.executors.script import script_output
from tavern_core.errors import ConfigInvalid, Finding, ProfileInvalid
from tavern_core.kernel.access.profiles import parse_profile
from tavern_core.kernel.calls.text_call_report import render_feedback
from tavern_core.kernel.config import configuration
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.log import reader as log_reader
from tavern_core.kernel.log import verify as log_verify
from tavern_core.kernel.log.event_log import EventLog
from tavern_core.kernel.manifest.manifest_reader import read_manifest
from tavern_core.kernel.manifest.tool_files import read_tool_file, tool_spec
from tavern_core.kernel.plugins.enabled_state import PluginStates
from tavern_core.kernel.settings.setting_layers import SettingLayers, user_file
from tavern_core.kernel.settings.store import SettingsStore
from tavern_core.model.event import Event
from tavern_core.model.manifest import Manifest

from . import examples
from .memory import folder_in_memory
from .mutations import damaged, distorted
from .watch import SECOND, check_findings, check_text, ends

pytestmark = pytest.mark.slow

FAST = (1, None)
SOAK = pytest.param(150, SECOND, marks=pytest.mark.soak)
"""How often as many tries, and the seconds that one may take: more than a million inputs in the soak, which has the clock."""
OWNER = Manifest(name="bilibili-fetcher", version="0.1.0", aliases={"BilibiliFetch:getSubtitle": "getSubtitle"})


@pytest.fixture
def memory() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


# One reader each: content in, nothing out; an assertion or an exception is the finding of this test -----------------------


def refusals(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """What an error carries: at least one finding that is an error."""
    assert any(f.severity == "error" for f in findings)
    return findings


def manifest(content: bytes, folder: Path) -> None:
    for strict in (True, False):
        reading = read_manifest(content, "plugin.yaml", strict=strict)
        check_findings(reading.findings, content)
        assert (reading.manifest is None) == any(f.severity == "error" for f in reading.findings)


def tool_file(content: bytes, folder: Path) -> None:
    reading = read_tool_file(content, "x.tool.json")
    check_findings(reading.findings, content)
    assert (reading.definition is None) == any(f.severity == "error" for f in reading.findings)
    if reading.definition is not None:
        made = tool_spec(reading.definition, manifest=OWNER, document=reading.document)
        check_findings(made.findings, content)
        assert made.spec is not None or any(f.severity == "error" for f in made.findings)


def profile(content: bytes, folder: Path) -> None:
    try:
        read, findings = parse_profile(content, "writer.json", "writer")
    except ProfileInvalid as error:
        check_text(error.message)
        findings = refusals(error.findings)
    else:
        assert isinstance(read.name, str)
    check_findings(findings, content)


def config(content: bytes, folder: Path) -> None:
    file = folder / "tavern.yaml"
    file.write_bytes(content)
    try:
        loaded = configuration.load(file, cwd=folder, env={}, home=folder / "home")
    except ConfigInvalid as error:
        check_text(error.message)
        check_findings(refusals(error.findings), content)
    else:
        for row in configuration.show(loaded):
            assert row.origin


def pyproject(content: bytes, folder: Path) -> None:
    file = folder / "pyproject.toml"
    file.write_bytes(content)
    try:
        configuration.load(cwd=folder, env={}, home=folder / "home")
    except ConfigInvalid as error:
        check_text(error.message)
        check_findings(refusals(error.findings), content, lines=False)


def lock(content: bytes, folder: Path) -> None:
    file = folder / "tavern.lock"
    file.write_bytes(content)
    grants = GrantStore(file).read()
    check_findings(grants.findings, content, lines=False)
    assert file.read_bytes() == content


def settings(content: bytes, folder: Path) -> None:
    file = folder / "settings.json"
    file.write_bytes(content)
    found: list[Any] = []
    store = SettingsStore(SettingLayers(user_file(file), env={}), on_finding=found.append)
    store.declare(
        "p",
        [
            {"key": "extensions.p.n", "type": "number", "defaultValue": 1, "max": 10},
            {"key": "extensions.p.t", "type": "string"},
        ],
    )
    value = store.get("extensions.p.n")
    assert set(value) <= {"$env", "$file", "$keyring"} if isinstance(value, dict) else value <= 10
    store.describe()
    store.save({"extensions.p.n": 2})
    assert store.get("extensions.p.n") == 2
    check_findings(found, content, lines=False)
    _kept_aside(file, content, is_damaged=bool([f for f in found if f.code == "STATE_DAMAGED"]))


def switches(content: bytes, folder: Path) -> None:
    file = folder / "plugins.json"
    file.write_bytes(content)
    states = PluginStates(file)
    read = states.read()
    check_findings(read.findings, content, lines=False)
    states.disable("x")
    assert "x" in states.disabled()
    _kept_aside(file, content, is_damaged=any(f.severity == "error" for f in read.findings))


def _kept_aside(file: Path, content: bytes, *, is_damaged: bool) -> None:
    """Whoever writes over a file that it could not read keeps that file."""
    aside = list(file.parent.glob(f"{file.name}.damaged-*"))
    assert [a.read_bytes() for a in aside] == ([content] if is_damaged else [])
    for each in (*aside, file):
        each.unlink()


def log(content: bytes, folder: Path) -> None:
    file = folder / "audit.jsonl"
    for old in folder.glob("audit*"):
        old.unlink()
    file.write_bytes(content)
    log_verify.verify(file)
    list(log_reader.read(file))
    list(log_reader.read(file, last=3, types={"TOOL_CALLED"}))
    with EventLog(file) as opened:
        opened.append(Event("AFTER", 1.0, {}))
    assert [r["type"] for r in log_reader.read(file, last=1)] == ["AFTER"]


SCHEMAS: Mapping[str, Any] = {
    "file-operator:WriteFile": {
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["file_path", "content"],
    },
    "my-plugin:greet": {"type": "object", "properties": {"name": {"type": "string"}, "times": {"type": "integer"}}},
    "FileOperator.ReadFile": {"type": "object", "properties": {"first_line": {"type": "integer"}, "deep": {"type": "object"}}},
}  # fmt: skip


def transcript(content: bytes, folder: Path) -> None:
    try:
        text = content.decode("utf-8", "surrogatepass")  # half characters are text to Python
    except UnicodeDecodeError:
        text = content.decode("utf-8", "replace")
    document = tam.parse(text)
    plan = tam.bind(document, SCHEMAS)
    scanner = tam.Scanner()
    for start in range(0, len(text), max(1, len(text) // 7)):
        scanner.feed(text[start : start + max(1, len(text) // 7)])
    scanner.close()
    assert scanner.document == document
    wrong = {problem.block for problem in (*document.problems, *plan.problems) if problem.severity == "error"}
    assert not wrong & {call.block for call in plan.calls}
    for problem in plan.problems:
        assert problem.line >= 1
        assert problem.hint or problem.severity == "warning", problem
    safe = tam.neutralise(text)
    assert not tam.parse(safe).blocks
    feedback = render_feedback([], plan.problems, language="en")
    for problem in plan.problems:  # what the model is shown is a call, and nothing else
        if problem.code == "looks_like_call":
            feedback = feedback.replace(problem.hint.partition("\n")[2], "")
    assert not tam.parse(feedback).blocks


def script_answer(content: bytes, folder: Path) -> None:
    try:
        value = script_output.parse(content)
    except script_output.Unreadable as error:
        check_text(str(error))
        return
    json.dumps(value, allow_nan=False).encode()
    failed = script_output.error_in(value, "unknown")
    if failed is not None:
        assert failed.message
        assert failed.outcome in ("none", "done", "unknown")
        assert failed.retry_after_ms is None or failed.retry_after_ms >= 0


# What they read ----------------------------------------------------------------------------------------------------------


def own_lock() -> bytes:
    record = {
        "version": "1.0", "manifestHash": "sha256:a", "artifactHash": "sha256:b", "grantedAt": "2026-01-01T00:00:00.000Z",
        "grantedBy": "user:a", "requested": ["read:fs", "hook:server:tool:check"], "granted": ["read:fs"],
        "refused": ["hook:server:tool:check"], "scopes": {"read:fs": ["./data"]},
    }  # fmt: skip
    return yaml.safe_dump({"version": 1, "plugins": {"text": record, "other": record}}, sort_keys=False).encode()


def own_log() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "audit.jsonl"
        with EventLog(file) as opened:
            for number in range(6):
                opened.append(
                    Event(
                        "TOOL_CALLED",
                        float(number),
                        {"tool": "a:b", "arguments": {"名": ["x"] * number}},
                        f"c-{number}",
                    )
                )
        return file.read_bytes()


def json_of(**data: Any) -> bytes:
    return json.dumps({"version": 1, **data}, ensure_ascii=False, indent=2).encode()


PYPROJECT = (
    b'[project]\nname = "x"\nversion = "1"\n\n[tool.tavern]\nlanguage = "en"\n\n[tool.tavern.limits]\ndepth = 4\n'
)

Reader = Callable[[bytes, Path], None]
READERS: dict[str, tuple[Reader, Callable[[], list[bytes]], int]] = {
    "manifest": (manifest, lambda: list(examples.manifests().values()), 700),
    "tool file": (tool_file, lambda: list(examples.tool_files().values()), 500),
    "profile": (profile, lambda: [examples.PROFILE.encode()], 600),
    "tavern.yaml": (config, lambda: [examples.CONFIG.encode()], 250),
    "pyproject.toml": (pyproject, lambda: [*examples.project_files().values(), PYPROJECT, PYPROJECT], 200),
    "lock file": (lock, lambda: [own_lock()], 300),
    "settings": (
        settings,
        lambda: [json_of(values={"extensions.p.n": 5, "extensions.p.t": "文", "extensions.q.x": [1]})],
        150,
    ),
    "switches": (
        switches,
        lambda: [json_of(plugins={"a": {"enabled": False, "reason": "no", "at": "2026-01-01", "by": "me"}})],
        150,
    ),
    "audit log": (log, lambda: [own_log()], 150),
    "transcript": (transcript, lambda: list(examples.transcripts().values()), 300),
    "script output": (script_answer, lambda: [examples.ANSWER.encode()], 1_500),
}
"""What → how it is read, undamaged examples, tries in the fast suite."""


def attempt(read: Reader, content: bytes, folder: Path, label: object, within: float | None = None) -> None:
    try:
        with ends(label, within):
            read(content, folder)
    except Exception as error:
        error.add_note(f"{label}: {content[:3000]!r}")
        raise


def test_stray_text_of_any_length_is_reported_alike_however_the_text_is_cut() -> None:
    for text in (
        "url: [" + "1, " * 1_100 + "7「末」",
        "x「末」\nurl: [" + "abc " * 900 + "\na:「始」b「末」<|[EN",
        "url: [" + "1, " * 1_300 + "\nb:「始」c「末」",
    ):
        text = f"<|[REQUEST_TOOL]|>\n{text}"
        for cut in (len(text) - 1, len(text) - 2, len(text) - 10, 1_700, 3_211, 3_231):
            scanner = tam.Scanner()
            scanner.feed(text[:cut])
            scanner.feed(text[cut:])
            scanner.close()
            assert scanner.document == tam.parse(text), cut


@pytest.mark.parametrize(("times", "within"), [FAST, SOAK])
@pytest.mark.parametrize("what", READERS)
def test_a_corrupt_text_is_read_or_answered(what: str, times: int, within: float | None, memory: Path) -> None:
    read, originals, tries = READERS[what]
    contents = originals()
    pick = Random(f"{what} {times}")
    for number in range(tries * times):
        attempt(read, damaged(pick, pick.choice(contents)), memory, (what, number), within)


@pytest.mark.parametrize("what", READERS)
def test_an_undamaged_text_is_read(what: str, memory: Path) -> None:
    read, originals, _ = READERS[what]
    for content in originals():
        attempt(read, content, memory, what)


@pytest.mark.parametrize(("step", "within"), [(7, None), pytest.param(1, SECOND, marks=pytest.mark.soak)])
@pytest.mark.parametrize("what", READERS)
def test_a_text_may_end_anywhere(what: str, step: int, within: float | None, memory: Path) -> None:
    read, originals, _ = READERS[what]
    for content in originals()[:2]:
        for end in range(0, len(content), step * (1 + len(content) // 1_500)):
            attempt(read, content[:end], memory, (what, end), within)


DATA: dict[str, tuple[Reader, Callable[[], list[Any]], Callable[[Any], str], int]] = {
    "manifest": (manifest, lambda: [yaml.safe_load(m) for m in examples.manifests().values()], json.dumps, 300),
    "tool file": (tool_file, lambda: [json.loads(t) for t in examples.tool_files().values()], json.dumps, 300),
    "profile": (profile, lambda: [json.loads(examples.PROFILE)], json.dumps, 300),
    "tavern.yaml": (config, lambda: [yaml.safe_load(examples.CONFIG)], json.dumps, 200),
    "lock file": (lock, lambda: [yaml.safe_load(own_lock())], json.dumps, 200),
    "script output": (
        script_answer,
        lambda: [json.loads(examples.ANSWER), json.loads(examples.ANSWER_ERROR)],
        json.dumps,
        300,
    ),
}


@pytest.mark.parametrize(("times", "within"), [FAST, SOAK])
@pytest.mark.parametrize("what", DATA)
def test_values_of_wrong_types_are_read_or_answered(what: str, times: int, within: float | None, memory: Path) -> None:
    read, originals, write, tries = DATA[what]
    values = originals()
    pick = Random(f"values {what} {times}")
    for number in range(tries * times):
        text = write(distorted(pick, pick.choice(values)))
        attempt(read, text.encode("utf-8", "surrogatepass"), memory, (what, number), within)


# As large as the limits let through, in the shapes that make slow readers slow ---------------------------------------------

MANY = 40_000
HUGE: dict[str, Callable[[str], str]] = {
    "keys nobody knows": lambda tail: "\n".join(f"k{n}: 1" for n in range(MANY)) + tail,
    "keys nobody knows, in JSON": lambda tail: json.dumps({f"k{n}": 1 for n in range(MANY)}),
    "one key many times": lambda tail: "name: a\n" * MANY + tail,
    "one key many times, in JSON": lambda tail: "{" + '"name": 1,' * MANY + '"b": 2}',
    "nearly right keys": lambda tail: json.dumps({f"descriptio{n}": 1 for n in range(MANY)}),
    "a long list of wrong things": lambda tail: json.dumps({"tools": [1] * MANY, "plugins": {"a": {"granted": ["x"] * 1000}}}),
    "a list of tools nobody knows": lambda tail: json.dumps({"name": "a", "version": "1.0", "tools": [{"id": f"t{n}", "x": 1} for n in range(9_000)]}),
    "hooks nobody knows": lambda tail: json.dumps({"name": "a", "version": "1.0", "permissions": {"hooks": [f"hook:x{n}" for n in range(MANY)]}}),
    "capabilities nobody knows": lambda tail: json.dumps({"id": "a", "name": "a", "version": "1", "permissions": {"capabilities": [f"read:{n}" for n in range(MANY)]}, "capabilities": [f"read:{n}" for n in range(MANY)], "implementation": {"type": "python"}}),
    "settings that clash": lambda tail: json.dumps({"name": "a", "version": "1.0", "configOptions": [{"key": "extensions.a.x", "type": "string"} for n in range(9_000)]}),
    "aliases": lambda tail: json.dumps({"name": "a", "version": "1.0", "aliases": {f"x:{n}": f"t{n}" for n in range(20_000)}}),
    "a wide schema": lambda tail: json.dumps({"id": "a", "implementation": {"type": "python"}, "parameters": {"type": "object", "properties": {f"p{n}": {"type": "strin"} for n in range(12_000)}}}),
    "a schema of references": lambda tail: json.dumps({"id": "a", "implementation": {"type": "python"}, "parameters": {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(3_000)}, "$ref": "#/$defs/d0"}}),
    "a schema of patterns": lambda tail: json.dumps({"id": "a", "implementation": {"type": "python"}, "parameters": {"type": "object", "properties": {f"p{n}": {"type": "string", "pattern": "(a|b|ab)*(c+)+$" + str(n)} for n in range(4_000)}}}),
    "half characters": lambda tail: json.dumps(["\ud800"] * MANY),
    "open brackets": lambda tail: "[" * 500_000,
    "open braces": lambda tail: '{"a":' * 150_000,
    "open sequences": lambda tail: "- " * 400_000,
    "question marks": lambda tail: "? " * 400_000,
    "anchors": lambda tail: "\n".join(f"k{n}: &a{n} x" for n in range(MANY)),
    "quotes": lambda tail: '"' * 900_000,
    "backslashes": lambda tail: '{"a": "' + "\\" * 900_000,
    "an open string": lambda tail: '{"a": "' + "x" * 900_000,
    "commas": lambda tail: "[" + "," * 900_000,
    "colons": lambda tail: ":" * 900_000,
    "empty lines": lambda tail: "\n" * 900_000 + tail,
    "blanks": lambda tail: " " * 900_000 + tail,
    "tabs": lambda tail: "\t" * 900_000 + "x",
    "one long word": lambda tail: "x" * 900_000,
    "one long number": lambda tail: "9" * 900_000,
    "a comment": lambda tail: "# " + "x" * 900_000 + "\n" + tail,
    "comment signs": lambda tail: "#" * 900_000,
    "dashes": lambda tail: "---\n" * 200_000,
    "equals": lambda tail: "a = " * 200_000,
    "tables": lambda tail: "[tool.tavern]\n" + "".join(f"[tool.tavern.a{n}]\n" for n in range(30_000)),
    "dotted keys": lambda tail: "[tool.tavern]\n" + ".".join(["a"] * 100_000) + " = 1",
    "block scalars": lambda tail: "a: |\n" + " x\n" * 200_000,
    "TAM values that never end": lambda tail: "<|[REQUEST_TOOL]|>\na:「始」" * 20_000,
    "TAM ends without a beginning": lambda tail: "「末」\n" * 200_000,
    "TAM markers": lambda tail: "<|[REQUEST_TOOL]|>" * 40_000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("every", "within"),
    [(5, None), pytest.param(1, SECOND, marks=pytest.mark.soak)],
)
@pytest.mark.parametrize("shape", HUGE)
def test_a_huge_text_of_any_shape_is_answered(shape: str, every: int, within: float | None, memory: Path) -> None:
    content = HUGE[shape]("\nname: a\n").encode("utf-8", "surrogatepass")[:1_000_000]
    for number, (what, (read, _, _)) in enumerate(READERS.items(), list(HUGE).index(shape)):
        if what != "audit log" and number % every == 0:  # its lines are not parsed unless they fit their own hash
            attempt(read, content[: 400_000 if what == "transcript" else None], memory, (what, shape), within)


def test_larger_than_the_limit_is_answered_without_reading_on(memory: Path) -> None:
    content = b"{" + b" " * 5_000_000
    for what in (
        "manifest",
        "tool file",
        "profile",
        "tavern.yaml",
        "pyproject.toml",
        "lock file",
        "settings",
        "switches",
    ):
        attempt(READERS[what][0], content, memory, what)
