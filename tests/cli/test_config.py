"""`tavern config` and `tavern logs`: one key in, one key out; what was written is what was meant, comments included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core import AuditLog
from tavern_core.errors import ConfigInvalid
from tavern_core.kernel.config.yaml_edit import with_value, without_value
from tests.cli.conftest import CONFIG, Run
from tests.rows import each_row


@pytest.mark.slow
def test_a_value_is_set_read_and_taken_back_and_comments_stay(tavern: Run, project: Path) -> None:
    assert tavern("config", "get", "limits.depth").out == "16\n"
    assert tavern("config", "set", "limits.depth", "7").code == 0
    assert tavern("config", "get", "limits.depth", "--json").json == {
        "key": "limits.depth", "value": 7, "origin": f"{project / 'tavern.yaml'}:6",
    }  # fmt: skip
    assert (project / "tavern.yaml").read_text("utf-8") == CONFIG + "limits:\n  depth: 7\n"
    assert tavern("config", "set", "limits.timeout_ms", "900").code == 0
    assert tavern("config", "get", "limits.timeoutMs").out == "900\n"
    assert tavern("config", "unset", "limits.timeoutMs").code == 0
    assert tavern("config", "unset", "limits.depth").code == 0
    assert (project / "tavern.yaml").read_text("utf-8") == CONFIG
    assert tavern("config", "unset", "limits.depth").code == 5


@pytest.mark.parametrize(
    ("key", "text", "value", "path"),
    [
        ("tools.groups.words", "text", ["text"], ("tools", "groups", "words")),
        ("tools.aliases.text.n", "text:count", "text:count", ("tools", "aliases", "text.n")),
        ("callers.user:a.b.deny", "text", ["text"], ("callers", "user:a.b", "deny")),
        ("limits.tools.text.count.retries", "1", 1, ("limits", "tools", "text.count", "retries")),
        ("workflows.resources.gpu", "2", 2, ("workflows", "resources", "gpu")),
        ("plugins.on_failure.text", "closed", "closed", ("plugins", "onFailure", "text")),
        ("config.note.x", "1", 1, ("config", "note", "x")),
    ],
)
def test_an_entry_of_a_mapping_has_a_key(
    tavern: Run, project: Path, key: str, text: str, value: object, path: tuple[str, ...]
) -> None:
    assert tavern("config", "get", key, "--json", "--set", f"{key}={text}").json["value"] == value
    assert tavern("config", "set", key, text, "--json").json["value"] == value
    written = yaml.safe_load((project / "tavern.yaml").read_text("utf-8"))
    for name in path:
        written = written[name]
    assert written == value
    section = tavern("config", "get", ".".join(path[:2]), "--json").json["value"]
    for name in path[2:]:
        section = section[name]
    assert section == value
    assert tavern("config", "unset", key).code == 0
    assert (project / "tavern.yaml").read_text("utf-8") == CONFIG


def test_a_dotted_key_reaches_into_a_reference(tavern: Run, project: Path) -> None:
    assert tavern("config", "set", "secrets.key.of.notes.$env", "NOTES_KEY").code == 0
    written = yaml.safe_load((project / "tavern.yaml").read_text("utf-8"))
    assert written["secrets"] == {"key.of.notes": {"$env": "NOTES_KEY"}}


def test_a_wrong_value_changes_nothing(tavern: Run, project: Path) -> None:
    for key, value in (
        ("limits.depth", "deep"),
        ("limits.depth", "-5"),
        ("limts.depth", "5"),
        ("audit.enabled", "maybe"),
    ):
        answer = tavern("config", "set", key, value)
        assert (answer.code, "error[CONFIG_INVALID]" in answer.err) == (2, True)
    assert (project / "tavern.yaml").read_text("utf-8") == CONFIG


def test_the_user_has_a_file_of_their_own(tavern: Run, project: Path, home: Path) -> None:
    assert tavern("config", "set", "limits.depth", "5", "--user").code == 0
    assert yaml.safe_load((home / "config.yaml").read_text("utf-8")) == {"limits": {"depth": 5}}
    assert tavern("config", "get", "limits.depth").out == "5\n"


def test_a_stronger_source_is_reported(tavern: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAVERN_LIMITS__DEPTH", "3")
    answer = tavern("config", "set", "limits.depth", "5")
    assert "TAVERN_LIMITS__DEPTH is stronger" in answer.err
    assert tavern("config", "get", "limits.depth", "--origin").out == "3  (TAVERN_LIMITS__DEPTH)\n"
    assert tavern("--set", "limits.depth=9", "config", "get", "limits.depth", "--origin").out == "9  (flag)\n"


def test_a_section_comes_as_one_mapping(tavern: Run) -> None:
    found = tavern("config", "get", "plugins", "--json").json
    assert found["value"]["entryPoints"] is False
    keys = [row["key"] for row in tavern("config", "show", "limits", "--json").json]
    assert keys
    assert all(key.startswith("limits.") for key in keys)


@pytest.mark.parametrize("words", [("get",), ("set", "x"), ("unset",)])
def test_a_setting_of_a_disabled_plugin_is_not_there_and_the_error_says_why(
    tavern: Run, words: tuple[str, ...]
) -> None:
    tavern("plugins", "disable", "text", "--reason", "坏了")
    command, *value = words
    done = tavern("config", command, "extensions.text.style", *value)
    assert done.code != 0
    assert "plugin text is disabled: disabled by the operator: 坏了" in done.err
    assert "hint: tavern plugins enable text" in done.err.splitlines()


@pytest.mark.slow
def test_settings_of_plugins_are_checked_by_what_the_plugin_declares(tavern: Run, home: Path) -> None:
    style, level = "extensions.text.style", "extensions.text.level"
    assert tavern("config", "get", style).out == "plain\n"
    assert tavern("config", "set", style, "花体").code == 0
    assert tavern("config", "get", style, "--origin").out == f"花体  ({home / 'settings.json'})\n"
    assert tavern("config", "set", level, "-2").code == 0
    assert tavern("config", "get", level, "--json").json["value"] == -2
    wrong = tavern("config", "set", level, "9")
    assert (wrong.code, "error[SETTINGS_INVALID]" in wrong.err) == (1, True)
    assert tavern("config", "unset", style).code == 0
    assert tavern("config", "get", style).out == "plain\n"
    assert tavern("config", "unset", style).code == 5
    assert tavern("config", "set", style).code == 2  # nobody to ask


@pytest.mark.slow
def test_a_setting_that_only_code_declares_can_be_set_before_the_plugin_was_ever_used(
    tavern: Run, project: Path
) -> None:
    folder = project / "plugins" / "late"
    folder.mkdir()
    (folder / "plugin.yaml").write_text('name: late\nversion: "1"\nsettings: true\n')
    (folder / "__init__.py").write_text(
        "from tavern_core import hookimpl\n@hookimpl\ndef tavern_register_settings():\n"
        "    return [{'key': 'extensions.late.most', 'type': 'number', 'defaultValue': 3}]\n"
    )
    assert tavern("config", "get", "extensions.late.most").code == 5, "looking imports nothing"
    wrong = tavern("config", "set", "extensions.late.mots", "7")
    assert (wrong.code, "did you mean 'extensions.late.most'?" in wrong.err) == (1, True)
    assert tavern("config", "set", "extensions.late.most", "7").code == 0
    assert tavern("config", "get", "extensions.late.most").out == "7\n"


def test_what_counts_after_a_value_was_taken_back_is_reported_as_json(tavern: Run) -> None:
    for key, value, default in (("extensions.text.level", "2", 0), ("limits.depth", "7", 16)):
        assert tavern("config", "set", key, value).code == 0
        taken = tavern("config", "unset", key, "--json")
        assert (taken.code, taken.json) == (0, {"wasSet": True, "key": key, "value": default, "origin": "default"})
        again = tavern("config", "unset", key, "--json")
        assert (again.code, again.json["wasSet"]) == (5, False)


@pytest.mark.slow
def test_a_secret_is_stored_and_never_shown(tavern: Run, home: Path) -> None:
    token = "s3cret-token-42"
    assert token not in tavern("config", "set", "extensions.text.apiToken", "-", stdin=f"{token}\n").out
    assert token in (home / "settings.json").read_text("utf-8")
    for argv in (("get", "extensions.text.apiToken"), ("show",), ("show", "--json")):
        assert token not in tavern("config", *argv).out
    assert token not in tavern("doctor", "--json").out
    assert token not in (home / "audit" / "audit.jsonl").read_text("utf-8")


def test_the_path_of_everything(tavern: Run, project: Path, home: Path) -> None:
    assert tavern("config", "path", "--json").json == {
        "home": str(home),
        "user": str(home / "config.yaml"),
        "project": str(project / "tavern.yaml"),
        "settings": str(home / "settings.json"),
        "lock": str(project / "tavern.lock"),
    }


def test_a_linked_file_stays_a_link_and_toml_is_left_to_people(tavern: Run, project: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.yaml"
    (project / "tavern.yaml").rename(real)
    (project / "tavern.yaml").symlink_to(real)
    assert tavern("config", "set", "limits.depth", "5").code == 0
    assert (project / "tavern.yaml").is_symlink()
    assert "depth: 5" in real.read_text("utf-8")
    (project / "tavern.yaml").unlink()
    (project / "pyproject.toml").write_text("[tool.tavern.limits]\ndepth = 3\n", "utf-8")
    assert tavern("config", "get", "limits.depth").out == "3\n"
    assert tavern("config", "set", "limits.depth", "4").code == 2


@each_row(
    ("before", "path", "value", "after"),
    [
        ("", ("limits", "depth"), 3, "limits:\n  depth: 3\n"),
        ("# ours\n", ("limits", "depth"), 3, "# ours\nlimits:\n  depth: 3\n"),
        ("limits: {}\n", ("limits", "depth"), 3, "limits: {depth: 3}\n"),
        ("limits: {threads: 2} # two\n", ("limits", "depth"), 3, "limits: {threads: 2, depth: 3} # two\n"),
        ("limits: {  # all\n  threads: 2  # two\n}\n", ("limits", "depth"), 3, "limits: {  # all\n  threads: 2,  # two\n  depth: 3\n}\n"),
        ("config: {a: }\n", ("config", "b"), 3, "config: {a: , b: 3 }\n"),
        ("limits: {\n  threads: 2,\n}\n", ("limits", "depth"), 3, "limits: {\n  threads: 2,\n  depth: 3\n}\n"),
        ("limits: {\n  # nothing yet\n}\n", ("limits", "depth"), 3, "limits: {depth: 3\n  # nothing yet\n}\n"),
        ("limits:\n  depth: 1 # one\n\n# end\n", ("limits", "depth"), 3, "limits:\n  depth: 3 # one\n\n# end\n"),
        ("limits:\n    threads: 2  # two\n\naudit: {}\n", ("limits", "depth"), 3, "limits:\n    threads: 2  # two\n    depth: 3\n\naudit: {}\n"),
        ("limits:\n  # nothing yet\naudit: {}\n", ("limits", "depth"), 3, "limits:\n  depth: 3\n  # nothing yet\naudit: {}\n"),
        ("limits:\n  time_out: 1\n  hook_timeout_ms: 5\n", ("limits", "hookTimeoutMs"), 3, "limits:\n  time_out: 1\n  hook_timeout_ms: 3\n"),
        ("tools:\n  deny:\n    - a\n    - b # b\nslots: {}\n", ("tools", "deny"), ["c"], "tools:\n  deny: [c] # b\nslots: {}\n"),
        ("tools:\n  deny: # not these\n  - a\n  - b\n", ("tools", "deny"), ["c"], "tools:\n  deny: [c] # not these\n"),
        ("config:\n  text: |\n    a\n    b\n\nslots: {}\n", ("config", "text"), "x", "config:\n  text: x\n\nslots: {}\n"),
        ("limits:\n  depth: 1", ("limits", "threads"), 2, "limits:\n  depth: 1\n  threads: 2"),
        ("config: {}\n", ("config", "a", "b"), {"$env": "X"}, "config: {a: {b: {\"$env\": X}}}\n"),
    ],
)  # fmt: skip
def test_a_file_is_edited_as_a_person_would(before: str, path: tuple[str, ...], value: Any, after: str) -> None:
    assert with_value(before, path, value) == after


def test_a_file_keeps_its_line_ends(tavern: Run, project: Path) -> None:
    file = project / "tavern.yaml"
    file.write_bytes("# 限制\r\nlimits:\r\n  depth: 3\r\n".encode())
    assert tavern("config", "set", "limits.threads", "4").code == 0
    assert tavern("config", "set", "tools.groups.a", "[b]").code == 0
    assert file.read_bytes().decode() == (
        "# 限制\r\nlimits:\r\n  depth: 3\r\n  threads: 4\r\ntools:\r\n  groups:\r\n    a: [b]\r\n"
    )


@each_row(
    ("before", "path", "after"),
    [
        ("a: 1\nlimits:\n  depth: 3\nb: 2\n", ("limits", "depth"), "a: 1\nb: 2\n"),
        ("limits:\n  depth: 3 # three\n  threads: 2\n", ("limits", "depth"), "limits:\n  threads: 2\n"),
        ("limits: {depth: 3, threads: 2}\n", ("limits", "depth"), "limits: {threads: 2}\n"),
        ("limits: {threads: 2, depth: 3}\n", ("limits", "depth"), "limits: {threads: 2}\n"),
        ("limits:\n  depth: 3\n", ("limits", "threads"), "limits:\n  depth: 3\n"),
        ("limits:\n  depth: 3\n", ("limits", "depth"), ""),
        ("", ("limits", "depth"), ""),
    ],
)
def test_a_key_goes_with_its_lines(before: str, path: tuple[str, ...], after: str) -> None:
    assert without_value(before, path) == after


def edited(text: str, path: tuple[str, ...], value: Any) -> str | None:
    """The text with the change; None when it was refused, which always names the repair."""
    try:
        return with_value(text, path, value)
    except ConfigInvalid as error:
        return None if error.hint or error.findings else str(error)


@each_row(
    "text",
    [
        "- a\n",
        "a: [\n",
        "a: 1\na: 2\n",
        "&x a: *x\n",
        "limits: 5\n",
        "? [a]\n: 1\n",
        "a: !!python/x 1\n",
        "limits: {\n\tdepth: 1\n}\n",
    ],
)
def test_what_cannot_be_edited_safely_is_refused_or_right(text: str) -> None:
    after = edited(text, ("limits", "depth"), 3)
    assert after is None or yaml.safe_load(after)["limits"]["depth"] == 3


TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20
)  # others the reader refuses
SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXTS
KEYS = st.text("abcXYZ中-_ :#'\"", min_size=1, max_size=8)
TREES = st.dictionaries(KEYS, st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=3), max_leaves=8), max_size=5)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    tree=TREES,
    path=st.lists(KEYS, min_size=1, max_size=3).map(tuple),
    value=SCALARS | st.lists(SCALARS, max_size=3),
    flow=st.booleans(),
)
def test_any_file_says_afterwards_what_it_said_plus_the_change(
    tree: dict[str, Any], path: tuple[str, ...], value: Any, flow: bool
) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True, default_flow_style=flow)
    after = edited(text, path, value)
    assert after is not None
    here: Any = yaml.safe_load(after)
    for key in path:
        here = here[key]
    assert here == value
    back = without_value(after, path)
    assert without_value(back, path) == back


@pytest.mark.slow
def test_the_log_is_shown_verified_and_explained(tavern: Run, home: Path) -> None:
    tavern("plugins", "grant", "text", "read:fs")
    result = tavern("tools", "call", "text:count", "text=a", "--json").json
    call = result["meta"]["callId"]
    shown = tavern("logs", "show", "--call", call, "--json").json
    assert [r["type"] for r in shown] == ["TOOL_CALLED", "TOOL_RESULT"]
    assert len(tavern("logs", "--last", "1", "--json").json) == 1
    assert call in tavern("logs").out
    assert "no such records in " in tavern("logs", "show", "--call", "nobody").err
    explained = tavern("logs", "explain", call)
    assert "TOOL_CALLED" in explained.out
    assert "text:count" in explained.out
    assert tavern("logs", "explain", call, "--json").json["records"] == shown
    assert tavern("logs", "explain", call[:-1] + "zz").code == 5
    assert tavern("logs", "verify", "--json").json["ok"] is True
    log = home / "audit" / "audit.jsonl"
    log.write_text(log.read_text("utf-8").replace('"ok":true', '"ok":false', 1), "utf-8")
    damaged = tavern("logs", "verify")
    assert (damaged.code, "error[STATE_DAMAGED]" in damaged.err) == (1, True)
    assert f"{log}:" in damaged.err
    assert tavern("doctor").code == 1


@pytest.mark.parametrize(
    ("argv", "outcome", "error", "by", "types"),
    [
        (("text:escape",), "ok", None, None, ["TOOL_CALLED", "TOOL_RESULT"]),
        (("text:fail", "why=雨"), "failed", "TOOL_ERROR", None, ["TOOL_CALLED", "TOOL_RESULT"]),
        (("text:count", "text=a"), "refused", "POLICY_DENIED", "core-capabilities", ["POLICY_DENIED", "TOOL_RESULT"]),
        (("text:count", "times=x"), "failed", "INPUT_SCHEMA_INVALID", None, ["TOOL_RESULT"]),
        (("text:cuont",), "failed", "TOOL_NOT_FOUND", None, ["TOOL_RESULT"]),
    ],
)
def test_each_call_is_explained_with_who_why_and_what_came_of_it(
    tavern: Run, argv: tuple[str, ...], outcome: str, error: str | None, by: str | None, types: list[str]
) -> None:
    """Granted nothing: `count` needs read:fs."""
    call = tavern("tools", "call", *argv, "--purpose", "为了测试", "--json").json["meta"]["callId"]
    reported = tavern("logs", "explain", call, "--json").json
    assert [r["type"] for r in reported["records"]] == types
    known = reported["call"]
    assert (known["tool"], known["principal"], known["door"], known["purpose"]) == (argv[0], "host", "cli", "为了测试")
    assert (known["outcome"], known["error"], known["refusedBy"]) == (outcome, error, by)
    assert known.get("plugin") == (None if outcome == "failed" and error == "TOOL_NOT_FOUND" else "text")
    assert bool(known["reason"]) is (error is not None)
    out = tavern("logs", "explain", call).out
    for text in (
        argv[0],
        "host",
        "cli",
        "为了测试",
        known["requestId"],
        outcome,
        error or "",
        by or "",
        known["reason"] or "",
    ):
        assert text in out
    assert out.count("为了测试") == 1


def test_the_story_of_a_call_names_the_calls_it_made_also_refused_ones(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"type": "TOOL_CALLED", "callId": "a", "tool": "p:outer", "principal": "user:x"},
        {"type": "TOOL_CALLED", "callId": "b", "tool": "q:inner", "parent": "a"},
        {"type": "TOOL_RESULT", "callId": "b", "tool": "q:inner", "parent": "a", "ok": True},
        {"type": "POLICY_DENIED", "callId": "c", "tool": "q:other", "parent": "a", "by": "gate"},
        {"type": "TOOL_RESULT", "callId": "d", "tool": "q:none", "parent": "a", "ok": False},
    ]
    records += [{"type": "TOOL_RESULT", "callId": "x", "error": "damaged", "ok": False}]
    lines = [json.dumps({"seq": number, **record}) + "\n" for number, record in enumerate(records, 1)]
    (tmp_path / "audit.jsonl").write_text("".join(lines), "utf-8")
    log = AuditLog(tmp_path / "audit.jsonl")
    outer, damaged = log.explain("a"), log.explain("x")
    assert outer is not None and damaged is not None
    assert [(r.call_id, r.type) for r in outer.calls] == [
        ("b", "TOOL_CALLED"),
        ("c", "POLICY_DENIED"),
        ("d", "TOOL_RESULT"),
    ]
    assert (outer.outcome, damaged.outcome) == ("unknown", "failed")


def test_logs_can_be_read_where_nothing_else_works(tavern: Run, project: Path) -> None:
    tavern("tools", "call", "text:fail")
    (project / "tavern.lock").write_text("[", "utf-8")
    assert tavern("logs", "verify").code == 0
    assert tavern("logs", "--json").json
    assert tavern("plugins", "lock").code == 1


SEVERAL = {
    "plugin.yaml": """\
name: several
version: "1"
tools:
  - {id: one, implementation: {type: python}, configSchema: [{key: a, type: string, label: A, defaultValue: x}]}
  - {id: two, implementation: {type: python}, configSchema: [{key: b, type: string, label: B, defaultValue: x}]}
configOptions:
  - {key: extensions.several.c, type: string, label: C, defaultValue: x}
settings: [{name: extensions.several.d}]
""",
    "__init__.py": """\
from tavern_core import hookimpl, tool

@tool
def one() -> int:
    "One."
    return 1

@tool
def two() -> int:
    "Two."
    return 2

@hookimpl
def tavern_register_tools():
    return [one, two]

@hookimpl
def tavern_register_settings():
    return [{"key": "extensions.several.d", "type": "string", "label": "D", "defaultValue": "x"}]
""",
}


@pytest.mark.slow
def test_stored_settings_of_every_kind_are_known_whatever_comes_first(project: Path, home: Path, tavern: Run) -> None:
    folder = project / "plugins" / "several"
    folder.mkdir()
    for name, text in SEVERAL.items():
        (folder / name).write_text(text, "utf-8")
    for key in ("one.a", "two.b", "c"):
        assert tavern("config", "set", f"extensions.several.{key}", "y").code == 0
    assert tavern("plugins", "activate", "several").code == 0
    assert tavern("config", "set", "extensions.several.d", "y").code == 0
    commands = [
        ("tools", "call", "several:one"),
        ("tools", "call", "several:two"),
        ("config", "show"),
        ("plugins", "activate", "several"),
        ("doctor",),
    ]
    for command in [*commands, *commands]:
        assert "there is no such setting" not in tavern(*command).err, command
    stored = home / "settings.json"
    stored.write_text(stored.read_text("utf-8").replace("several.one.a", "several.one.c"), "utf-8")
    assert tavern("tools", "call", "several:one").err.count("extensions.several.one.c: there is no such setting") == 1
