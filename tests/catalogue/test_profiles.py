"""Agent profiles: strict files, resolved inventories, confined folders."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.errors import ProfileInvalid
from tavern_core.kernel.access.profile_files import ProfileFiles
from tavern_core.kernel.access.profiles import parse_profile, profile_schema, resolve_profile, usable_wire_names
from tavern_core.kernel.catalogue import profile_resolution
from tavern_core.kernel.plugins.contribution_registry import Contributions
from tavern_core.kernel.signal import Signal
from tavern_core.model.agent_profile import AgentProfile
from tavern_core.model.naming_rules import spellings
from tavern_core.model.tool import ToolSpec
from tests.rows import each_row

KNOWN = ("file-operator:WriteFile", "system:get_current_time", "text:count", "text:count_lines")
ALIASES = {"FileOperator:WriteFile": "file-operator:WriteFile"}


def find(written: str) -> str | None:
    names = {known.lower(): known for known in KNOWN} | {alias.lower(): real for alias, real in ALIASES.items()}
    return next((names[spelling.lower()] for spelling in spellings(written) if spelling.lower() in names), None)


class Shelf:
    """A namespace: the tools of a knowledge base."""

    def __init__(self, prefix: str, *names: str) -> None:
        self._prefix, self._names = prefix, names

    def resolve(self, local: str) -> ToolSpec | None:
        return ToolSpec(f"{self._prefix}:{local}", plugin="core") if local in self._names else None

    def names(self) -> list[str]:
        return list(self._names)


class Broken:
    """A namespace of a plugin with a fault."""

    def resolve(self, local: str) -> ToolSpec | None:
        if local == "lie":
            return ToolSpec("text:count")
        raise RuntimeError("no connection")

    def names(self) -> list[str]:
        raise RuntimeError("no connection")


NAMESPACES = {"kb": Shelf("kb", "Query", "Index"), "odd": Broken()}


class Registered:
    """The tools of a host."""

    def __init__(self, namespaces) -> None:
        self._namespaces = namespaces or {}

    def find(self, written: str) -> str | None:
        return find(written)

    def ids(self):
        return KNOWN

    def resolvers(self):
        return self._namespaces

    def absent(self, written: str) -> None:
        return None


def resolve(*inventory: str, namespaces=NAMESPACES, **fields):
    profile = AgentProfile(name="writer", tool_ids_inventory=inventory, **fields)
    return resolve_profile(profile, Registered(namespaces))


@each_row(
    ("inventory", "tools"),
    [
        ([], []),
        (["text:count"], ["text:count"]),
        (["text.count", "text/count_lines"], ["text:count", "text:count_lines"]),
        (["FileOperator.WriteFile"], ["file-operator:WriteFile"]),
        ([" system:get_current_time\n"], ["system:get_current_time"]),
        (["kb:Query", "text:count", "kb:Index"], ["kb:Query", "text:count", "kb:Index"]),
        (["gone:x", "text:count", "workflow:sum", "odd:x", "", "*"], ["text:count"]),
        (["text:count", "text.count", "TEXT:COUNT"], ["text:count"]),
    ],
)
def test_what_is_known_of_an_inventory_loads_in_its_order(inventory, tools):
    profile = resolve(*inventory)
    assert list(profile.tools) == tools
    assert [tool for tool in (*KNOWN, "kb:Query", "kb:Index", "gone:x") if profile.allows(tool)] == sorted(
        tools, key=[*KNOWN, "kb:Query", "kb:Index"].index
    )


def test_of_very_many_missing_tools_the_first_are_named_and_the_others_counted():
    profile = resolve("text:count", *(f"gone:t{number}" for number in range(5_000)))
    assert (profile.tools, len(profile.findings)) == (("text:count",), 101)
    assert profile.findings[-1].message == "4,900 further items of tool_ids_inventory cannot be used either"


@each_row(
    ("written", "message", "hint"),
    [
        ("text:cuont", "no tool 'text:cuont'", "'text:count'"),
        ("nothing-alike:zzzzz", "no tool", "tavern tools list"),
        (
            "workflow:summarize_text",
            "neither a workflow folder nor a plugin has this workflow",
            "tavern workflows list",
        ),
        ("jobs:getStatus", "no resolver for 'jobs:'", "install a plugin"),
        ("kb:Qery", "'kb:' has no 'Qery'", "'kb:Query'"),
        ("odd:x", "RuntimeError('no connection')", "plugin"),
        ("odd:lie", "answered 'text:count' for 'odd:lie'", "plugin"),
        ("text:*", "wildcard", "text:count, text:count_lines"),
        ("*", "wildcard", "write their ids"),
        ("", "empty id", "remove"),
        ("x" * 100_000, "100,000 characters", "300"),
    ],
)
def test_what_is_not_known_is_reported_with_a_reason_and_the_nearest_name(written, message, hint):
    (finding,) = resolve("text:count", written).findings
    assert message in finding.message
    assert hint in finding.hint
    assert finding.where.pointer == "tool_ids_inventory[1]"
    assert finding.severity == "warning"
    assert len(finding.message) < 1_000


def test_a_tool_listed_twice_is_reported():
    (finding,) = resolve("text:count", "text.count").findings
    assert "twice" in finding.message


def test_workflows_load_as_soon_as_a_plugin_resolves_their_prefix():
    profile = resolve("workflow:摘要", namespaces={"workflow": Shelf("workflow", "摘要")})
    assert profile.tools == ("workflow:摘要",)
    assert profile.resolved["workflow:摘要"].id == "workflow:摘要"
    assert profile.findings == ()


def test_capabilities_limit_and_unknown_ones_allow_nothing():
    assert resolve().capabilities is None
    assert resolve(capabilities=()).capabilities == frozenset()
    profile = resolve(capabilities=("read:fs", "raed:web", "write:*"))
    assert profile.capabilities == {"read:fs", "raed:web", "write:*"}
    (finding,) = profile.findings
    assert "'raed:web'" in finding.message
    assert "'read:web'" in finding.hint


@each_row(
    ("text", "place", "message"),
    [
        (b"", "p.json:1:1", "not JSON"),
        (b"{", "p.json:1:2", "not JSON"),
        (b"[]", "p.json:1:1", "JSON object"),
        (b"null", "p.json:1:1", "JSON object"),
        (b'{"tool_ids_inventory": [],\n "tool_ids_inventory": []}', "p.json:2:2", "twice"),
        (b'{\n"tool_ids_inventory": ["a", 7]}', "p.json:2:29", "text"),
        (b'{"tool_ids_inventory": "text:count"}', "p.json:1:24", "list"),
        (b'{"tool_ids_inventory": NaN}', "p.json:1:24", "NaN"),
        (b'{"name": "\\ud800"}', "p.json:1:10", "surrogate"),
        (b'{"config": []}', "p.json:1:12", "mapping"),
        (b"\xff\xfe{}", "p.json:1:1", "UTF-16"),
        (b"{}\xff", "p.json:1", "UTF-8"),
        (b'{"a":' * 100_000, "p.json", ""),
        (b'{"a": "' + b"x" * 2_000_000 + b'"}', "p.json", "larger than"),
    ],
)
def test_a_wrong_file_is_answered_with_its_place(text, place, message):
    with pytest.raises(ProfileInvalid) as caught:
        parse_profile(text, "p.json", "p")
    first = caught.value.findings[0]
    assert str(first.where).startswith(place), first
    assert message in first.message


@each_row(
    ("text", "name", "warnings"),
    [
        ('{"tool_ids_inventory": ["a:b"]}', "p", []),
        ('\ufeff{"tool_ids_inventory": ["a:b"], "name": "写手"}', "写手", []),
        ('{"tool_ids_inventory": [], "model": "x", "prompt": {"deep": [1]}}', "p", []),
        ('{"toolIdsInventory": ["a:b"]}', "p", ["'toolIdsInventory' is not read", "no tool_ids_inventory"]),
        (
            '{"tool_ids_inventory": [], "afterUntrusted": "deny", "after_untrusted": "allow"}',
            "p",
            ["the key 'afterUntrusted' is not read, because 'after_untrusted' is here, too"],
        ),
        ("{}", "p", ["no tool_ids_inventory"]),
        ('{"tool_ids_inventory": [], "$schema": "x", "frobnicate": 1}', "p", ["'frobnicate' is not read"]),
    ],
)
def test_a_good_file_is_read_and_foreign_keys_are_reported(text, name, warnings):
    profile, findings = parse_profile(text.encode(), "p.json", "p")
    assert profile.name == name
    assert len(findings) == len(warnings)
    assert all(words in finding.message for words, finding in zip(warnings, findings, strict=True))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=80), st.text(max_size=80)))
def test_any_bytes_are_a_profile_or_a_located_error(text):
    try:
        findings = parse_profile(text, "p.json", "p")[1]
    except ProfileInvalid as error:
        findings = error.findings
    assert all(finding.where is not None for finding in findings)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=20))
def test_any_inventory_resolves(inventory):
    profile = resolve(*inventory)
    assert set(profile.tools) <= {*KNOWN, "kb:Query", "kb:Index"}
    assert len(profile.tools) + len(profile.findings) == len(inventory)


def write(folder, name: str, data) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")


def test_profiles_are_found_by_file_and_by_folder(tmp_path):
    write(tmp_path, "a/writer.json", {"tool_ids_inventory": ["text:count"]})
    write(tmp_path, "a/painter/agent_profile.json", {"tool_ids_inventory": []})
    write(tmp_path, "b/writer.json", {"tool_ids_inventory": ["other:one"]})
    write(tmp_path, "b/.hidden.json", {})
    write(tmp_path, "b/notes.txt", "no profile")
    profiles = ProfileFiles([tmp_path / "a", tmp_path / "b", tmp_path / "missing"])
    assert profiles.names() == ["painter", "writer"]
    assert profiles.get("writer")[0].tool_ids_inventory == ("text:count",)


def test_a_missing_profile_is_answered_with_the_nearest(tmp_path):
    write(tmp_path, "writer.json", {})
    profiles = ProfileFiles([tmp_path])
    with pytest.raises(ProfileInvalid, match="no profile 'wirter'") as caught:
        profiles.get("wirter")
    assert "'writer'" in caught.value.hint
    with pytest.raises(ProfileInvalid) as caught:
        ProfileFiles([tmp_path / "nowhere"]).get("x")
    assert "nowhere" in caught.value.hint


@each_row("name", ["../secret", "/etc/passwd", "a/../../secret", "secret.json", "", ".", "..", "\x00", "x" * 9_999])
def test_no_name_leads_out_of_the_folders(tmp_path, name):
    write(tmp_path, "secret.json", {"tool_ids_inventory": ["text:count"]})
    write(tmp_path, "profiles/writer.json", {})
    with pytest.raises(ProfileInvalid):
        ProfileFiles([tmp_path / "profiles"]).get(name)


def test_a_link_that_leaves_the_folder_is_no_profile(tmp_path):
    write(tmp_path, "secret.json", {})
    write(tmp_path, "profiles/real.json", {})
    (tmp_path / "profiles/leak.json").symlink_to(tmp_path / "secret.json")
    (tmp_path / "profiles/inner.json").symlink_to(tmp_path / "profiles/real.json")
    (tmp_path / "profiles/loop.json").symlink_to(tmp_path / "profiles/loop.json")
    assert ProfileFiles([tmp_path / "profiles"]).names() == ["inner", "real"]


def test_a_changed_file_is_read_again(tmp_path):
    write(tmp_path, "writer.json", {"tool_ids_inventory": ["text:count"]})
    profiles = ProfileFiles([tmp_path])
    before = profiles.get("writer")[0]
    assert profiles.get("writer")[0] is before
    write(tmp_path, "writer.json", {"tool_ids_inventory": ["text:count", "a:b"]})
    assert len(profiles.get("writer")[0].tool_ids_inventory) == 2
    (tmp_path / "writer.json").unlink()
    with pytest.raises(ProfileInvalid):
        profiles.get("writer")


def test_a_changed_file_of_the_same_size_and_time_is_read_again(tmp_path):
    profiles = ProfileFiles([tmp_path])
    for id_ in ("text:count", "text:tally"):
        write(tmp_path, "next", {"tool_ids_inventory": [id_]})
        os.utime(tmp_path / "next", ns=(1, 1))
        (tmp_path / "next").rename(tmp_path / "writer.json")
        assert profiles.get("writer")[0].tool_ids_inventory == (id_,)


def test_the_name_inside_a_file_cannot_take_the_place_of_another(tmp_path):
    write(tmp_path, "guest.json", {"name": "admin", "tool_ids_inventory": []})
    profiles = ProfileFiles([tmp_path])
    profile, findings = profiles.get("guest")
    assert profile.name == "guest"
    assert "'admin'" in findings[0].message
    assert profiles.names() == ["guest"]


def test_a_broken_file_is_named_and_harms_no_other(tmp_path):
    write(tmp_path, "broken.json", "{")
    write(tmp_path, "writer.json", {})
    profiles = ProfileFiles([tmp_path])
    with pytest.raises(ProfileInvalid, match=r"broken\.json:1:2"):
        profiles.get("broken")
    assert profiles.get("writer")[0].name == "writer"


def test_a_file_that_cannot_be_opened_is_an_answer(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    write(tmp_path, "dir.json/x", "")
    assert ProfileFiles([tmp_path]).names() == []


def test_the_published_schema_fits_the_example_of_the_original_and_refuses_wildcards():
    import jsonschema

    schema = profile_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    judge = jsonschema.Draft202012Validator(schema)
    seed = ["system:get_current_time", "kb:Query", "workflow:summarize_text", "workflow:generate_image_from_prompt"]
    assert judge.is_valid({"tool_ids_inventory": seed, "capabilities": None, "other": 1})
    assert not judge.is_valid({})
    assert not judge.is_valid({"tool_ids_inventory": ["text:*"]})
    assert not judge.is_valid({"tool_ids_inventory": [1]})


def test_of_profiles_that_programs_give_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_resolution, "MOST_LENT", 3)
    profiles = profile_resolution.UnresolvedProfiles(ProfileFiles(), Contributions(Signal()))
    names = [profiles.register(AgentProfile(name=f"p{number}")) for number in range(5)]
    assert [profiles.get(name)[0].name for name in names[2:]] == ["p2", "p3", "p4"]
    with pytest.raises(ProfileInvalid):
        profiles.get(names[0])


@each_row(
    ("wire_names", "fields", "used", "messages"),
    [
        ({"text:count": "words"}, {}, {"text:count": "words"}, {}),
        ({"text.count": "words"}, {}, {"text:count": "words"}, {}),
        ({"text.count": "a b"}, {}, {}, {"text.count": "'a b' is not a name"}),
        ({"text:count": "a b"}, {}, {}, {"text:count": "'a b' is not a name"}),
        ({"text:count": "数"}, {}, {}, {"text:count": "'数' is not a name"}),
        ({"text:count": ""}, {}, {}, {"text:count": "'' is not a name"}),
        ({"text:count": "x" * 129}, {}, {}, {"text:count": "is not a name"}),
        ({"text:cuont": "words"}, {}, {}, {"text:cuont": "no such tool"}),
        (
            {"text:count": "same", "kb:Query": "same"},
            {},
            {"text:count": "same"},
            {"kb:Query": "'same' is the name of text:count"},
        ),
        ({"text:count": "kb__Query"}, {}, {}, {"text:count": "'kb__Query' is the name of kb:Query"}),
        (
            {"text:count": "kb__Query", "kb:Query": "text__count"},
            {},
            {"text:count": "kb__Query", "kb:Query": "text__count"},
            {},
        ),
        (
            {"text:count": "kb__Query", "kb:Query": "jobs__list"},
            {},
            {},
            {"text:count": "the name of kb:Query", "kb:Query": "the name of jobs:list"},
        ),
        (
            {"text:count": "kb__Query", "kb:Query": "text__count", "a:b": "x"},
            {},
            {"text:count": "kb__Query", "kb:Query": "text__count"},
            {"a:b": "no such tool"},
        ),
        (
            {"text:count": "jobs__list", "kb:Query": "text__count"},
            {},
            {},
            {"text:count": "the name of jobs:list", "kb:Query": "the name of text:count"},
        ),
        ({"text:count": "call_tool"}, {}, {"text:count": "call_tool"}, {}),
        ({"text:count": "call_tool"}, {"listing": "search"}, {}, {"text:count": "'call_tool' is the name of"}),
    ],
)
def test_names_for_clients_that_cannot_be_used_are_reported_and_the_others_stand(wire_names, fields, used, messages):
    profile = resolve("text:count", "kb:Query", wire_names=wire_names, **fields)
    assert dict(profile.wire_names) == used
    assert {finding.where.pointer for finding in profile.findings} == {f"wire_names.{tool}" for tool in messages}
    for finding in profile.findings:
        assert messages[finding.where.pointer.removeprefix("wire_names.")] in finding.message


@pytest.mark.parametrize("count", [3, 10_000])
def test_names_that_are_all_shifted_by_one_leave_none(count: int) -> None:
    tools = dict.fromkeys(f"p:t{number}" for number in range(count))
    shifted = {f"p:t{number}": f"p__t{number + 1}" for number in range(count - 1)}
    used, problems = usable_wire_names(AgentProfile(wire_names=shifted), tools)
    assert (used, len(problems)) == ({}, count - 1)


def test_a_similar_name_is_looked_up_for_the_first_missing_tools() -> None:
    missing = {f"text:coun{number}": f"n{number}" for number in range(100)}
    profile = resolve(*missing, "text:count", wire_names=missing)
    for start in ("tool_ids_inventory", "wire_names"):
        hints = [f.hint for f in profile.findings if f.where is not None and f.where.pointer.startswith(start)]
        assert len(hints) == 100
        assert ["text:count" in hint for hint in hints] == [True] * 20 + [False] * 80
