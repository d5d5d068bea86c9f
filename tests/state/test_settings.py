"""Settings of plugins and tools: what is allowed, what counts, who is told, and what is never shown."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tavern_core.errors import Finding, PolicyDenied, SettingsInvalid, StateDamaged
from tavern_core.kernel.settings.secret_masking import KnownSecrets, looks_secret
from tavern_core.kernel.settings.setting_layers import SettingLayers, user_file
from tavern_core.kernel.settings.store import SettingsStore
from tavern_core.schema.redact import compile_redactor
from tests.rows import each_row

from .processes import start

OPTIONS: list[dict[str, Any]] = [
    {"key": "extensions.p.name", "type": "string", "defaultValue": "World"},
    {
        "key": "extensions.p.maxItems",
        "type": "number",
        "defaultValue": 10,
        "min": 1,
        "max": 50,
        "step": 1,
        "categoryKey": "limits",
    },
    {
        "key": "extensions.p.on",
        "type": "boolean",
        "defaultValue": True,
        "categoryKey": "features",
        "category": "功能开关",
    },
    {
        "key": "extensions.p.mode",
        "type": "select",
        "options": [{"value": "a", "label": "A"}, "b", 3],
        "defaultValue": "a",
    },
    {"key": "extensions.p.note", "type": "textarea", "rows": 4},
    {
        "key": "extensions.p.volume",
        "type": "slider",
        "min": 0,
        "max": 1,
        "step": 0.1,
        "defaultValue": 0.3,
        "categoryKey": "limits",
    },
    {"key": "extensions.p.face", "type": "avatar"},
    {"key": "extensions.p.size", "type": "button-group", "options": ["s", "m"], "defaultValue": "m"},
    {"key": "extensions.p.clear", "type": "action-button", "action": "clear-cache"},
    {"key": "extensions.p.cookie", "type": "string"},
    {"key": "extensions.p.pin", "type": "number", "secret": True},
]
KEY = "extensions.p."


def opened(folder: Path, instance: Mapping[str, Any] | None = None, **options: Any) -> SettingsStore:
    """A store with all types of settings declared."""
    sources = {name: options.pop(name) for name in ("env", "keyring", "known", "origins") if name in options}
    layers = SettingLayers(user_file(folder / "settings.json"), instance or {}, folder, **{"env": {}, **sources})
    store = SettingsStore(layers, **options)
    store.declare("p", OPTIONS)
    store.declare(
        "p",
        [{"key": "format", "type": "select", "options": ["srt", "txt"], "defaultValue": "srt"}],
        tool="get.subtitle",
    )
    return store


def stored(folder: Path) -> dict[str, Any]:
    path = folder / "settings.json"
    return dict(json.loads(path.read_text())["values"]) if path.exists() else {}


# Declaring -----------------------------------------------------------------------------------------------------------------


def test_plugins_and_tools_have_keys_of_their_own(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.effective("p") == {
        "name": "World", "maxItems": 10, "on": True, "mode": "a", "note": None, "volume": 0.3, "face": None, "size": "m",
        "cookie": None, "pin": None,
    }  # fmt: skip
    assert store.effective("p", "get.subtitle") == {"format": "srt"}
    assert store.get("extensions.p.get.subtitle.format") == "srt"
    assert store.keys()[8] == "extensions.p.clear"
    assert store.effective("other") == {}


@each_row(
    ("item", "tool", "said"),
    [
        (
            {"key": "extensions.q.x", "type": "string"},
            None,
            "belongs to the plugin 'q', not to 'p'; write extensions.p.x",
        ),
        ({"key": "x", "type": "string"}, None, "extensions.p.x"),
        ({"key": "extensions.p.", "type": "string"}, None, "extensions.p.<option>"),
        ({"key": "extensions.p.a b", "type": "string"}, None, "key"),
        ({"key": "extensions.p.x", "type": "sting"}, None, "type"),
        ({"key": "extensions.p.x"}, None, "type"),
        ({"key": "extensions.p.x", "type": "string", "defualt": 1}, None, "defualt"),
        ({"key": "extensions.p.x", "type": "number", "min": 5, "max": 1}, None, "min 5 is larger than max 1"),
        ({"key": "extensions.p.x", "type": "number", "defaultValue": 5, "max": 1}, None, "5 is larger than max 1"),
        ({"key": "extensions.p.x", "type": "select"}, None, "needs options"),
        ({"key": "extensions.p.x", "type": "boolean", "defaultValue": 1}, None, "must be true or false"),
        ({"key": "extensions.p.get.subtitle.format", "type": "string"}, None, "is declared twice"),
        ({"key": "name", "type": "string"}, "", "extensions.p.name"),
        ("no mapping", None, "str"),
    ],
)
def test_a_wrong_declaration_is_refused_whole(tmp_path: Path, item: Any, tool: str | None, said: str) -> None:
    store = opened(tmp_path)
    before = store.keys()
    with pytest.raises(SettingsInvalid) as caught:
        store.declare("p", [{"key": "extensions.p.fine", "type": "string"}, item], tool=tool)
    assert said in f"{caught.value}; {caught.value.hint}"
    assert str(caught.value.hint) not in str(caught.value) or not caught.value.hint, "the repair is told once"
    assert store.keys() == before


def test_the_same_declaration_again_is_fine_and_another_plugin_has_its_own_name(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.declare("p", OPTIONS)
    store.declare("p-2", [{"key": "extensions.p-2.name", "type": "string", "defaultValue": "other"}])
    assert (store.get("extensions.p.name"), store.get("extensions.p-2.name")) == ("World", "other")


def test_a_withdrawn_plugin_has_no_settings_and_finds_its_values_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    reported: list[Any] = []
    store.on_change(KEY + "name", reported.append, owner="p")
    store.save({KEY + "name": "saved"})
    store.withdraw("p")
    assert store.keys() == []
    with pytest.raises(SettingsInvalid):
        store.get(KEY + "name")
    store.declare("p", OPTIONS)
    assert store.get(KEY + "name") == "saved"
    store.save({KEY + "name": "again"})
    assert reported == ["saved"]


# Saving --------------------------------------------------------------------------------------------------------------------


@each_row(
    ("option", "value"),
    [
        ("name", ""), ("name", "文本 \n \u2028 'x' \"y\""), ("maxItems", 1), ("maxItems", 50), ("maxItems", 7.0), ("on", False),
        ("mode", "b"), ("mode", 3), ("volume", 0.7), ("volume", 1), ("note", "a\nb"), ("size", "s"), ("face", "img.png"),
        ("cookie", {"$env": "C"}), ("cookie", {"$file": "c.txt"}), ("cookie", {"$keyring": "service/with/slash/name"}),
        ("maxItems", {"$env": "N"}), ("get.subtitle.format", "txt"), ("pin", 1234),
    ],
)  # fmt: skip
def test_an_allowed_value_is_saved_and_read_back_by_another_host(tmp_path: Path, option: str, value: Any) -> None:
    opened(tmp_path).save({KEY + option: value}, by="alice")
    again = opened(tmp_path)
    assert again.get(KEY + option) == value
    assert again.findings() == ()
    assert stored(tmp_path) == {KEY + option: value}
    assert (tmp_path / "settings.json").stat().st_mode & 0o777 == 0o600


@each_row(
    ("key", "value", "said"),
    [
        ("maxItems", 51, "51 is larger than max 50"),
        ("maxItems", 0, "0 is smaller than min 1"),
        ("maxItems", 1.5, "not reached in steps of 1"),
        ("maxItems", "7", "must be a number"),
        ("maxItems", True, "must be a number"),
        ("maxItems", float("nan"), "must be a finite number"),
        ("maxItems", 10**400, ""),
        ("on", 1, "must be true or false"),
        ("on", "true", "must be true or false"),
        ("mode", "c", "is not one of a, b, 3"),
        ("mode", "3", "'3' is not one of a, b, 3 (write the number 3)"),
        ("mode", 3.5, "is not one of"),
        ("size", "S", "did you mean 's'"),
        ("name", 5, 'put it in quotes: "5"'),
        ("name", "\ud800", "lone surrogate"),
        ("name", "x" * 100_000, "longer than 65,536"),
        ("name", ["x"], "must be text"),
        ("name", {"a": 1}, "or a reference"),
        ("name", {"$evn": "X"}, "did you mean '$env'?"),
        ("name", {"$env": "X", "$file": "y"}, "or a reference"),
        ("name", {"$env": ""}, "$env needs a name"),
        ("name", {"$env": 5}, "$env needs a name"),
        ("name", {"$file": "a\0b"}, "$file needs a name"),
        ("name", {"$keyring": "alone"}, "needs service/name"),
        ("volume", 0.35, "not reached in steps of 0.1"),
        ("clear", True, "is a button and holds no value"),
        ("clear", None, "is a button"),
        ("nmae", 1, f"did you mean '{KEY}name'"),
        ("get.subtitle.fromat", 1, f"did you mean '{KEY}get.subtitle.format'"),
    ],
)
def test_a_refused_value_is_named_by_its_key_and_nothing_is_saved(
    tmp_path: Path, key: str, value: Any, said: str
) -> None:
    store = opened(tmp_path)
    with pytest.raises(SettingsInvalid) as caught:
        store.save({KEY + "name": "fine", KEY + "on": False, KEY + key: value} if key != "name" else {KEY + key: value})
    assert [str(f.where) for f in caught.value.findings] == [KEY + key]
    assert said in str(caught.value.findings[0])
    assert stored(tmp_path) == {}
    assert store.get(KEY + "name") == "World"


def test_every_refused_key_has_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        opened(tmp_path).save({KEY + "maxItems": 99, KEY + "on": 3, KEY + "mode": "z", KEY + "name": "fine"})
    assert [str(f.where) for f in caught.value.findings] == [KEY + "maxItems", KEY + "on", KEY + "mode"]


def test_a_key_that_does_not_exist_hides_no_other_error(tmp_path: Path) -> None:
    asked: list[Mapping[str, Any]] = []
    store = opened(tmp_path)
    store.before_save = asked.append
    with pytest.raises(SettingsInvalid) as caught:
        store.save({KEY + "maxItems": 51, KEY + "mode": "z", KEY + "nope": 1, KEY + "name": "fine"})
    assert [str(f.where) for f in caught.value.findings] == [KEY + "maxItems", KEY + "mode", KEY + "nope"]
    assert (asked, stored(tmp_path)) == ([], {})


def test_a_bare_name_is_answered_with_the_whole_key(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        opened(tmp_path).save({"maxItems": 5})
    assert "did you mean 'extensions.p.maxItems'?" in caught.value.hint


@each_row(
    ("option", "text", "value"),
    [
        ("maxItems", "7", 7), ("maxItems", " 7.5 ", 7.5), ("maxItems", "seven", "seven"), ("on", "yes", True), ("on", "0", False),
        ("on", "maybe", "maybe"), ("mode", "3", 3), ("mode", "b", "b"), ("name", "7", "7"), ("name", " x ", " x "),
        ("cookie", '{"$env": "C"}', {"$env": "C"}), ("name", "{not json", "{not json"), ("maxItems", "9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_what_is_typed_becomes_the_type_of_the_setting(tmp_path: Path, option: str, text: str, value: Any) -> None:
    parsed = opened(tmp_path).parse(KEY + option, text)
    assert (parsed, type(parsed)) == (value, type(value))


def test_null_and_reset_take_the_users_value_back(tmp_path: Path) -> None:
    store = opened(tmp_path, {KEY + "name": "instance"})
    store.save({KEY + "name": "user", KEY + "maxItems": 5})
    assert store.reset(KEY + "name").changes[0].new == "instance"
    store.save({KEY + "maxItems": None})
    assert (store.get(KEY + "name"), store.get(KEY + "maxItems"), stored(tmp_path)) == ("instance", 10, {})


_VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.lists(st.integers(), max_size=2)
)


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([o["key"] for o in OPTIONS]), _VALUES, max_size=4))
def test_a_save_is_stored_whole_and_readable_or_not_at_all(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "settings.json").unlink(missing_ok=True)
    store = opened(tmp_path)
    refused = False
    try:
        store.save(changes)
    except SettingsInvalid:
        refused = True
    assert stored(tmp_path) == ({} if refused else {k: v for k, v in changes.items() if v is not None})
    assert opened(tmp_path).findings() == ()


# Layers and stored values ------------------------------------------------------------------------------------------------


def test_the_user_wins_over_the_instance_and_the_instance_over_the_default(tmp_path: Path) -> None:
    store = opened(
        tmp_path, {KEY + "maxItems": 20, KEY + "name": "instance"}, origins={KEY + "name": "/x/tavern.yaml:3"}
    )
    store.save({KEY + "maxItems": 30})
    shown = {s.key: (s.value, s.origin) for s in store.describe("p")}
    assert shown[KEY + "maxItems"] == (30, str(tmp_path / "settings.json"))
    assert shown[KEY + "name"] == ("instance", "/x/tavern.yaml:3")
    assert shown[KEY + "on"] == (True, "default")


def test_a_stored_value_that_is_not_allowed_is_reported_and_the_layer_below_counts(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(
        json.dumps({"version": 1, "values": {KEY + "maxItems": 99, KEY + "nmae": 1}})
    )
    reported: list[Finding] = []
    store = opened(tmp_path, {KEY + "maxItems": 20, KEY + "on": "maybe", "other": 1}, on_finding=reported.append)
    assert (store.get(KEY + "maxItems"), store.get(KEY + "on")) == (20, True)
    said = "\n".join(map(str, reported))
    assert f"{tmp_path}/settings.json: {KEY}maxItems: 99 is larger than max 50; it is not used" in said
    assert f"{KEY}on: must be true or false" in said
    assert f"{KEY}nmae: there is no such setting (did you mean '{KEY}name'" in said
    assert "other: there is no such setting" in said
    assert len(reported) == len(set(map(str, reported))) == 4
    assert "99 is larger" in next(s.problem for s in store.describe() if s.key == KEY + "maxItems")


@each_row("key", [None, 5, [], ("a",), b"extensions.p.name"])
def test_a_key_that_is_not_text_is_reported(tmp_path: Path, key: Any) -> None:
    with pytest.raises(SettingsInvalid, match="the key of a setting is text"):
        opened(tmp_path).get(key)


def test_values_of_plugins_that_are_not_there_are_kept_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({"version": 1, "values": {"extensions.gone.x": 1}}))
    store = opened(tmp_path, {"extensions.gone.y": 2})
    assert store.findings() == ()
    store.save({KEY + "name": "x"})
    assert stored(tmp_path) == {"extensions.gone.x": 1, KEY + "name": "x"}


@each_row(
    "content",
    [b"", b"{", b"[]", b'{"version": 2, "values": {}}', b'{"version": 1, "values": []}', b"\xff", b"\0" * 50, b"[" * 100_000,
     b'{"version": 1, "values": {"a": 1, "a": 2}}', b'{"version": 1, "values": {"a": NaN}}', b"x" * 2_000_000],
)  # fmt: skip
def test_a_corrupt_file_costs_its_values_and_is_kept_at_the_next_save(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    reported: list[Finding] = []
    store = opened(tmp_path, {KEY + "name": "instance"}, on_finding=reported.append)
    assert store.get(KEY + "name") == "instance"
    assert reported[0].code == "STATE_DAMAGED"
    assert reported[0].where is not None
    assert reported[0].where.file == str(path)
    store.save({KEY + "name": "new"})
    assert stored(tmp_path) == {KEY + "name": "new"}
    assert [p.read_bytes() for p in tmp_path.glob("settings.json.damaged-*")] == [content]
    assert any("was renamed to" in str(f) for f in reported)
    assert opened(tmp_path).findings() == ()


def test_a_save_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    reported: list[Any] = []
    store.on_change(KEY + "name", reported.append)
    (tmp_path / ".settings.json.lock").mkdir()
    with pytest.raises(StateDamaged, match="cannot lock"):
        store.save({KEY + "name": "x"})
    assert (reported, store.get(KEY + "name")) == ([], "World")


# Telling -------------------------------------------------------------------------------------------------------------------


def test_callbacks_come_in_order_once_for_what_really_changed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    reported: list[Any] = []
    for option in ("maxItems", "name", "on"):
        store.on_change(KEY + option, lambda value, option=option: reported.append((option, value)), owner="p")
    stop = store.on_change(KEY + "name", lambda value: reported.append(("second", value)))
    saved = store.save({KEY + "name": "x", KEY + "maxItems": 10, KEY + "on": False}, by="alice")
    assert reported == [("name", "x"), ("on", False), ("second", "x")]
    assert ([(c.key, c.old, c.new) for c in saved.changes], saved.by) == (
        [(KEY + "name", "World", "x"), (KEY + "on", True, False)],
        "alice",
    )
    stop()
    reported.clear()
    assert store.save({KEY + "name": "x"}).keys == ()
    store.save({KEY + "name": "y"})
    assert reported == [("name", "y")]


def test_the_recorder_gets_the_changes_without_secrets(tmp_path: Path) -> None:
    reported: list[Any] = []
    store = opened(tmp_path, on_saved=reported.append)
    store.save({KEY + "name": "x", KEY + "cookie": "s3cret"}, by="alice")
    store.save({KEY + "name": "x"})
    opened(tmp_path).save({KEY + "name": "theirs"})
    store.reload()
    assert [(saved.by, [(c.key, c.old, c.new) for c in saved.changes]) for saved in reported] == [
        ("alice", [(KEY + "name", "World", "x"), (KEY + "cookie", None, "***")]),
        ("", [(KEY + "name", "x", "theirs")]),
    ]


def test_a_failing_callback_is_a_finding_and_the_others_are_called(tmp_path: Path) -> None:
    reported: list[Any] = []
    findings: list[Finding] = []
    store = opened(tmp_path, on_finding=findings.append)
    store.save({KEY + "cookie": "s3cret-value"})

    def fail(value: Any) -> None:
        raise RuntimeError("no: s3cret-value")

    store.on_change(KEY + "name", fail, owner="p")
    store.on_change(KEY + "name", reported.append)
    store.save({KEY + "name": "x"})
    assert (reported, store.get(KEY + "name")) == (["x"], "x")
    assert [f.details["plugin"] for f in findings] == ["p"]
    assert "RuntimeError: no: ***" in findings[0].message


def test_a_callback_may_read_and_save(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.on_change(KEY + "name", lambda value: store.save({KEY + "note": f"{value} {store.get(KEY + 'maxItems')}"}))
    store.save({KEY + "name": "x"})
    assert store.get(KEY + "note") == "x 10"


def test_a_plugin_watches_its_own_settings_only(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.declare("q", [])
    with pytest.raises(SettingsInvalid, match="belongs to p; q may not watch it"):
        store.on_change(KEY + "name", print, owner="q")
    with pytest.raises(SettingsInvalid, match="no such setting"):
        store.on_change(KEY + "nmae", print, owner="p")


def test_a_save_of_another_process_is_read_at_once_and_reported_at_reload(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    reported: list[Any] = []
    one.on_change(KEY + "name", reported.append)
    two.save({KEY + "name": "theirs"})
    assert (one.get(KEY + "name"), reported) == ("theirs", [])
    assert (one.reload().keys, reported) == ((KEY + "name",), ["theirs"])
    assert one.reload().keys == ()
    one.save({KEY + "maxItems": 5})
    assert two.effective("p")["maxItems"] == 5
    assert stored(tmp_path) == {KEY + "name": "theirs", KEY + "maxItems": 5}


_SAVE = """
import sys
from pathlib import Path
from tavern_core.kernel.settings.setting_layers import SettingLayers, user_file
from tavern_core.kernel.settings.store import SettingsStore
from tavern_core.schema.redact import compile_redactor
store = SettingsStore(SettingLayers(user_file(Path(sys.argv[1]))))
store.declare("p", [{"key": f"extensions.p.{who}{n}", "type": "number"} for who in "ab" for n in range(15)])
for n in range(15):
    store.save({f"extensions.p.{sys.argv[2]}{n}": n})
"""


@pytest.mark.slow
def test_saves_of_two_processes_and_several_threads_add_up(tmp_path: Path) -> None:
    processes = [start(_SAVE, tmp_path / "settings.json", who) for who in "ab"]
    store = SettingsStore(SettingLayers(user_file(tmp_path / "settings.json")))
    store.declare("q", [{"key": f"extensions.q.x{n}", "type": "number"} for n in range(12)])
    threads = [threading.Thread(target=store.save, args=({f"extensions.q.x{n}": n},)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert len(stored(tmp_path)) == 42


# The hook before a save ---------------------------------------------------------------------------------------------------


def test_the_hook_sees_masked_secrets_and_its_answer_is_checked(tmp_path: Path) -> None:
    seen: list[Any] = []

    def hook(changes: Mapping[str, Any]) -> Mapping[str, Any]:
        seen.append(dict(changes))
        return {**changes, KEY + "name": "from hook", KEY + "note": "added"}

    store = opened(tmp_path, before_save=hook)
    store.save({KEY + "cookie": "s3cret", KEY + "pin": 4711, KEY + "name": "mine"})
    assert seen == [{KEY + "cookie": "***", KEY + "pin": "***", KEY + "name": "mine"}]
    assert stored(tmp_path) == {
        KEY + "cookie": "s3cret",
        KEY + "pin": 4711,
        KEY + "name": "from hook",
        KEY + "note": "added",
    }


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({KEY + "maxItems": 99}, "99 is larger"),
        ({"extensions.q.x": 1}, "is not among the changes"),
        ({KEY + "zzz": 1}, "is not among"),
    ],
)
def test_a_hook_cannot_save_what_is_not_allowed(tmp_path: Path, answer: dict[str, Any], said: str) -> None:
    store = opened(tmp_path, before_save=lambda changes: answer)
    store.declare("q", [{"key": "extensions.q.x", "type": "number"}])
    with pytest.raises(SettingsInvalid, match=said):
        store.save({KEY + "name": "x"})
    assert stored(tmp_path) == {}


def test_a_hook_may_let_pass_drop_and_refuse(tmp_path: Path) -> None:
    answers = iter([lambda changes: None, lambda changes: {}, deny])
    store = opened(tmp_path, before_save=lambda changes: next(answers)(changes))
    store.save({KEY + "name": "x"})
    assert store.save({KEY + "name": "y"}).changes == ()
    with pytest.raises(PolicyDenied):
        store.save({KEY + "name": "z"})
    assert stored(tmp_path) == {KEY + "name": "x"}


def deny(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    raise PolicyDenied("not today")


# Secrets -------------------------------------------------------------------------------------------------------------------


def test_references_are_stored_as_they_are_and_followed_when_needed(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("from file\n")
    keys = {("service/sub", "me"): "from ring"}
    store = opened(
        tmp_path / "home", {KEY + "note": {"$file": str(tmp_path / "c.txt")}}, env={"C": "from env", "N": "7"},
        keyring=lambda service, name: keys.get((service, name)),
    )  # fmt: skip
    store.save(
        {KEY + "cookie": {"$env": "C"}, KEY + "maxItems": {"$env": "N"}, KEY + "name": {"$keyring": "service/sub/me"}}
    )
    assert stored(tmp_path / "home")[KEY + "cookie"] == {"$env": "C"}
    assert store.effective("p")["cookie"] == {"$env": "C"}
    values = store.resolve("p")
    assert [values[k] for k in ("cookie", "note", "name", "maxItems")] == ["from env", "from file", "from ring", 7]
    assert store.resolved(KEY + "cookie") == "from env"
    assert store.known_secrets.values >= {"from env", "from file", "from ring"}


def test_files_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    for folder in ("home", "project"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "c.txt").write_text(f"of {folder}")
    file = user_file(tmp_path / "home" / "settings.json")
    store = SettingsStore(SettingLayers(file, {KEY + "name": {"$file": "c.txt"}}, tmp_path / "project"))
    store.declare("p", OPTIONS)
    assert store.resolved(KEY + "name") == "of project"
    store.save({KEY + "name": {"$file": "c.txt"}})
    assert store.resolved(KEY + "name") == "of home"


def _ring(service: str, name: str) -> str | None:
    if service == "broken":
        raise OSError("s3cret in the error")
    return None


@each_row(
    ("option", "reference", "said"),
    [
        ("cookie", {"$env": "NONE"}, "the environment variable NONE is not set"),
        ("cookie", {"$env": "EMPTY"}, "the environment variable EMPTY is empty"),
        ("cookie", {"$file": "none.txt"}, "there is no file"),
        ("cookie", {"$file": "empty.txt"}, "is empty"),
        ("cookie", {"$file": "large.txt"}, "larger than 65536 bytes"),
        ("cookie", {"$file": "."}, "cannot be used"),
        ("cookie", {"$file": "loop.txt"}, "cannot be used"),
        ("cookie", {"$file": "binary.txt"}, "is not UTF-8"),
        ("cookie", {"$keyring": "service/none"}, "the key ring has no 'none' of 'service'"),
        ("cookie", {"$keyring": "broken/none"}, "the key ring failed: OSError"),
        ("maxItems", {"$env": "TEXT"}, "what $env TEXT holds must be a number from 1 to 50 in steps of 1"),
        ("maxItems", {"$env": "LARGE"}, "from 1 to 50"),
        ("mode", {"$env": "TEXT"}, "$env TEXT holds must be one of a, b, 3"),
    ],
)
def test_a_missing_secret_is_named_by_its_key_and_never_by_its_value(
    tmp_path: Path, option: str, reference: Any, said: str
) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "large.txt").write_text("s3cret" * 20_000)
    (tmp_path / "binary.txt").write_bytes(b"s3cret\xff")
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    store = opened(tmp_path, env={"EMPTY": "", "TEXT": "s3cret", "LARGE": "99"}, keyring=_ring)
    store.save({KEY + option: reference})
    for ask in (lambda: store.resolve("p"), lambda: store.resolved(KEY + option)):
        with pytest.raises(SettingsInvalid) as caught:
            ask()
        assert [str(f.where) for f in caught.value.findings] == [KEY + option]
        assert said in str(caught.value)
        assert "s3cret" not in f"{caught.value} {caught.value.hint}"


def test_a_linked_secret_file_is_followed_as_mounted_secrets_are_links(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mounted")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    store = opened(tmp_path, {KEY + "cookie": {"$file": "link"}})
    assert store.resolved(KEY + "cookie") == "mounted"


def test_the_key_ring_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "keyring", None)
    store = opened(tmp_path, {KEY + "cookie": {"$keyring": "a/b"}})
    with pytest.raises(SettingsInvalid) as caught:
        store.resolved(KEY + "cookie")
    assert "tavern-core[keyring]" in caught.value.hint


def test_a_required_setting_without_a_value_is_refused_before_anything_starts(tmp_path: Path) -> None:
    store = SettingsStore(SettingLayers(user_file(tmp_path / "settings.json")))
    store.declare(
        "p", [{"key": "cookie", "type": "string", "required": True}, {"key": "n", "type": "number"}], tool="get"
    )
    with pytest.raises(SettingsInvalid, match=r"extensions\.p\.get\.cookie: is required"):
        store.resolve("p", "get")
    assert store.describe()[0].problem == "is required and has no value"
    with pytest.raises(SettingsInvalid, match="is required"):
        store.save({"extensions.p.get.cookie": ""})
    store.save({"extensions.p.get.cookie": "c"})
    assert store.resolve("p", "get") == {"cookie": "c", "n": None}


def test_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    findings: list[Finding] = []
    store = opened(tmp_path, {KEY + "pin": 471199}, on_finding=findings.append)
    store.declare("q", [{"key": "extensions.q.token", "type": "string", "defaultValue": "default-s3cret"}])
    saved = store.save({KEY + "cookie": "s3cret-1", KEY + "pin": 881177})
    again = store.save({KEY + "cookie": "s3cret-2"})
    shown = json.dumps([s.to_json() for s in store.describe()]) + repr((saved, again, findings, store.describe()))
    for secret in ("s3cret-1", "s3cret-2", "471199", "881177"):
        assert secret not in shown
    assert '"default-s3cret"' not in json.dumps([s.to_json() for s in store.describe()])
    with pytest.raises(SettingsInvalid) as caught:
        store.save({KEY + "pin": "s3cret-3", KEY + "cookie": 55443322})
    assert "must be text" in str(caught.value)
    assert "s3cret-3" not in str(caught.value)
    assert "55443322" not in f"{caught.value} {caught.value.hint}"


def test_a_masked_value_that_comes_back_keeps_the_secret(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save({KEY + "cookie": "s3cret", KEY + "pin": 4711})
    form = {s.key: s.value for s in store.describe() if s.is_secret}
    assert form == {KEY + "cookie": "***", KEY + "pin": "***"}
    assert store.save({**form, KEY + "name": "x"}).keys == (KEY + "name",)
    assert (store.get(KEY + "cookie"), store.get(KEY + "pin")) == ("s3cret", 4711)


def test_secrets_of_the_host_are_given_by_name(tmp_path: Path) -> None:
    store = opened(tmp_path, env={"G": "ghp_123456"})
    secrets = {"github": {"$env": "G"}, "plain": "plain-text", "gone": {"$env": "NONE"}, "bad": {"$x": 1}}
    assert (store.secret("github", secrets), store.secret("plain", secrets)) == ("ghp_123456", "plain-text")
    assert store.known_secrets.mask_text("a ghp_123456 b plain-text") == "a *** b ***"
    with pytest.raises(PolicyDenied) as caught:
        store.secret("githbu", secrets)
    assert "'github'" in caught.value.hint
    for name in ("gone", "bad"):
        with pytest.raises(SettingsInvalid, match=f"secrets.{name}"):
            store.secret(name, secrets)


def test_settings_are_described_by_plugin_and_category(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.declare("a", [{"key": "extensions.a.x", "type": "string"}])
    rows = store.describe()
    assert [(r.plugin, r.group) for r in rows] == [
        ("a", ""), *[("p", "")] * 9, ("p", "limits"), ("p", "limits"), ("p", "features"),
    ]  # fmt: skip
    on = next(r.to_json() for r in rows if r.key == KEY + "on")
    assert (on["type"], on["category"], on["value"], on["defaultValue"], on["secret"]) == (
        "boolean",
        "功能开关",
        True,
        True,
        False,
    )
    json.dumps([r.to_json() for r in rows])


@each_row(
    "key", ["cookie", "apiKey", "BILIBILI_TOKEN", "extensions.x.password", "client_secret", "登录密码", "访问令牌"]
)
def test_names_that_give_a_secret_away(key: str) -> None:
    assert looks_secret(key)


@each_row("key", ["maxTokens", "extensions.token-tool.size", "keyboard", "tokenCount", "author", "密集"])
def test_names_that_do_not(key: str) -> None:
    assert not looks_secret(key)


def test_of_secrets_that_are_renewed_the_last_ones_of_each_owner_are_masked() -> None:
    known = KnownSecrets()
    known.add("fixed-secret")
    known.renew("other", "other-token")
    for number in range(100):
        known.renew("docs", f"token-{number}", f"refresh-{number}")
        known.renew("docs", f"token-{number}", f"refresh-{number}")
    assert known.mask_text("fixed-secret other-token token-99 refresh-98") == "*** *** *** ***"
    assert len(known.values) < 20 and "token-1" not in known.values


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@each_row(
    ("header", "masked", "shown"),
    [
        ("Bearer abc-1234", ["abc-1234"], []),
        ("Bearer secret", ["Bearer secret"], ["secret"]),
        ("Bearer example", [], ["example"]),
        ("Key fal-1234", ["fal-1234"], []),
        ("DeepL-Auth-Key 279a2e9d-83b3-c416", ["279a2e9d-83b3-c416"], []),
        ("name kowalski", ["name kowalski"], ["kowalski"]),
        (basic("ann:pass-of-ann"), ["ann:pass-of-ann", "pass-of-ann"], ["ann"]),
        (basic("user:password"), ["user:password"], ["password", "user"]),
        (basic("sk_live_1234:"), ["sk_live_1234"], []),
        (basic("sk_live_1234:X"), ["sk_live_1234"], []),
        (basic(":pat-of-ann"), ["pat-of-ann"], []),
        (basic("1a2b3c4d5e6f7a8b:api_token"), ["1a2b3c4d5e6f7a8b"], ["api_token"]),
        ('Token token="abc-1234"', ["abc-1234"], []),
    ],
)
def test_the_credentials_of_a_header_are_masked_alone_but_no_everyday_words(
    header: str, masked: list[str], shown: list[str]
) -> None:
    known = KnownSecrets()
    known.add(header)
    assert [known.mask_text(text) for text in (header, *masked)] == ["***"] * (1 + len(masked))
    assert [known.mask_text(text) for text in shown] == shown


def test_known_secrets_are_masked_wherever_they_stand() -> None:
    known = KnownSecrets()
    assert known.mask_text("a long-secret") == "a long-secret"
    known.add("long-secret", "long-secret-more", "short", "", None, True, 471199, 5, "-----BEGIN\nsecond line\n")
    assert known.mask_text("long-secret-more, short, second line: 471199, 5, True") == "***, short, ***: ***, 5, True"
    redact = compile_redactor(known_secrets=lambda: known.values)
    known.add("later-secret")
    assert redact({"a": ["x later-secret y", ("long-secret",)], "n": 471199}) == {"a": ["x *** y", ["***"]], "n": "***"}
