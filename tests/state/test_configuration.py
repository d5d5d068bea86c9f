"""How a host is set up: layers, places, types, and errors one can repair."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tavern_core import Tavern
from tavern_core.errors import ConfigInvalid
from tavern_core.kernel.config.config_key_lookup import key_path
from tavern_core.kernel.config.configuration import LoadedConfig, load, prepare_home, show
from tavern_core.model.config import HostConfig
from tests.rows import each_row


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A project folder beside a state folder."""
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    return tmp_path


def read(place: Path, env: Mapping[str, str] | None = None, **options: Any) -> LoadedConfig:
    options.setdefault("cwd", place / "project")
    return load(options.pop("config", None), env={"TAVERN_HOME": str(place / "home"), **(env or {})}, **options)


def project(place: Path, text: str, name: str = "tavern.yaml") -> Path:
    path = place / "project" / name
    path.write_text(text)
    return path


def user(place: Path, text: str) -> None:
    (place / "home" / "config.yaml").write_text(text)


def value(loaded: LoadedConfig, key: str) -> Any:
    return next(row.value for row in show(loaded) if row.key == key)


# Layers --------------------------------------------------------------------------------------------------------------------


def test_without_any_source_the_defaults_hold(place: Path) -> None:
    loaded = read(place)
    assert loaded.config.limits.depth == 16
    assert loaded.config.plugins.roots == (str(place / "project" / "plugins"),)
    assert loaded.config.profiles == (str(place / "project" / "profiles"),)
    assert (loaded.base_dir, loaded.home, loaded.project_file) == (place / "project", place / "home", None)
    assert {row.origin for row in show(loaded)} == {"default"}


def test_the_defaults_are_what_their_own_validation_would_make_of_them() -> None:
    defaults = HostConfig.model_construct()
    assert HostConfig.model_validate_json(defaults.model_dump_json(by_alias=True), strict=True) == defaults


@pytest.mark.parametrize("config", [None, {"limits": {"depth": 3}}])
def test_no_two_configurations_share_a_value_that_can_change(place: Path, config: Mapping[str, Any] | None) -> None:
    one, other = (read(place, config=config).config for _ in range(2))
    for values in (one.config, one.callers, one.limits.tools, one.tools.groups):
        values["x"] = {}  # type: ignore[index]
    assert [other.config, other.callers, other.limits.tools, other.tools.groups] == [{}, {}, {}, {}]


def test_a_folder_whose_name_is_no_utf8_can_hold_a_project(place: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(place) + b"/\xe4\xb8\xff"))
    folder.mkdir()
    (folder / "tavern.yaml").write_text("plugins: {roots: [mine, /else]}\n")
    loaded = read(place, cwd=folder)
    assert loaded.config.plugins.roots == (str(folder / "mine"), "/else")
    assert loaded.config.profiles == (str(folder / "profiles"),)


def test_each_layer_wins_over_the_ones_before_and_says_so(place: Path) -> None:
    user(place, "limits:\n  depth: 2\n  threads: 2\n  timeoutMs: 2\n  stderrBytes: 2\n")
    project(place, "limits:\n  threads: 3\n  timeoutMs: 3\n  stderrBytes: 3\n")
    env = {"TAVERN_LIMITS__TIMEOUT_MS": "4", "TAVERN_LIMITS__STDERR_BYTES": "4"}
    loaded = read(place, env, overrides={"limits.stderrBytes": 5})
    limits = loaded.config.limits
    assert (limits.drain_ms, limits.depth, limits.threads, limits.timeout_ms, limits.stderr_bytes) == (5000, 2, 3, 4, 5)
    keys = ("drainMs", "depth", "threads", "timeoutMs", "stderrBytes")
    assert [loaded.origins.get(f"limits.{key}", "default") for key in keys] == [
        "default",
        f"{place}/home/config.yaml:2",
        f"{place}/project/tavern.yaml:2",
        "TAVERN_LIMITS__TIMEOUT_MS",
        "flag",
    ]


def test_sections_merge_and_lists_are_replaced(place: Path) -> None:
    user(place, "tools:\n  deny: [a, b]\n  groups: {one: [x]}\ncallers: {'user:a': {deny: [x]}}\n")
    project(place, "tools:\n  deny: [c]\n  groups: {two: [y]}\ncallers: {'user:a': {allow: []}, 'user:b': {}}\n")
    config = read(place).config
    assert config.tools.deny == ("c",)
    assert config.tools.groups == {"one": ("x",), "two": ("y",)}
    assert (config.callers["user:a"].allow, config.callers["user:a"].deny) == ((), ("x",))
    assert config.callers["user:b"].allow is None


@pytest.mark.parametrize("spelling", ["timeoutMs", "timeout_ms"])
def test_both_spellings_of_a_key_mean_the_same_in_every_layer(place: Path, spelling: str) -> None:
    user(place, "limits: {timeout_ms: 1}")
    project(place, f"limits: {{{spelling}: 7}}")
    assert read(place).config.limits.timeout_ms == 7
    assert read(place, overrides={f"limits.{spelling}": 8}).config.limits.timeout_ms == 8
    assert read(place, overrides={"limits": {spelling: 9}}).config.limits.timeout_ms == 9


def test_names_in_a_mapping_of_the_program_may_have_dots(place: Path) -> None:
    nested = {"callers": {"user:a@b.org": {"deny": ["x"]}}, "tools": {"aliases": {"tools.read": "a:b"}}}
    config = read(place, overrides={**nested, "limits.tools.a.b.retries": 2}).config
    assert config.callers["user:a@b.org"].deny == ("x",)
    assert config.tools.aliases == {"tools.read": "a:b"}
    assert config.limits.tools["a.b"].retries == 2


@each_row(
    ("written", "path"),
    [
        ("secrets.key.of.notes.$env", ("secrets", "key.of.notes", "$env")),
        ("upstreams.u.headers.X-Key.$env", ("upstreams", "u", "headers", "X-Key", "$env")),
        ("llms.m-4.1.options.format.type", ("llms", "m-4.1", "options", "format", "type")),
        ("limits.depth.", ("limits", "depth", "")),
        ("limits.", ("limits", "")),
        ("callers.", ("callers", "")),
    ],
)
def test_a_dotted_key_reaches_into_values_of_any_shape(written: str, path: tuple[str, ...]) -> None:
    assert key_path(written) == path


def test_sections_of_comments_and_empty_files_change_nothing(place: Path) -> None:
    user(place, "")
    project(place, "limits:\n  # depth: 3\ntools:\n")
    assert read(place).config.limits.depth == 16


def test_relative_folders_are_relative_to_the_file_that_names_them(place: Path) -> None:
    user(place, "profiles: [mine, ~/his, /abs]\n")
    project(place, "plugins: {roots: [., ../shared]}\n")
    loaded = read(place, cwd=place / "project")
    assert loaded.config.plugins.roots == (str(place / "project"), str(place / "project" / "../shared"))
    assert loaded.config.profiles == (str(place / "home" / "mine"), str(Path("~/his").expanduser()), "/abs")
    (place / "project" / "sub").mkdir()
    below = read(place, {"TAVERN_PROFILES": "here"}, cwd=place / "project" / "sub")
    assert below.config.plugins.roots == loaded.config.plugins.roots
    assert below.config.profiles == (str(place / "project" / "sub" / "here"),)


def test_the_project_file_is_found_from_any_folder_below(place: Path) -> None:
    path = project(place, "limits: {depth: 3}\n")
    deep = place / "project" / "a" / "b"
    deep.mkdir(parents=True)
    loaded = read(place, cwd=deep)
    assert (loaded.config.limits.depth, loaded.project_file, loaded.base_dir) == (3, path, place / "project")
    nearer = place / "project" / "a" / "tavern.yaml"
    nearer.write_text("limits: {depth: 4}\n")
    assert read(place, cwd=deep).project_file == nearer


def test_a_table_in_pyproject_is_a_project_file_too(place: Path) -> None:
    path = project(
        place,
        '[project]\nname = "x"\n\n[tool.tavern]\nprofiles = ["p"]\n\n[tool.tavern.limits]\ntimeout_ms = 5\n',
        "pyproject.toml",
    )
    loaded = read(place)
    assert (loaded.project_file, loaded.config.limits.timeout_ms) == (path, 5)
    assert loaded.config.profiles == (str(place / "project" / "p"),)
    assert loaded.origins["limits.timeoutMs"] == f"{path}:8"
    project(place, "limits: {depth: 3}\n")
    both = read(place)
    assert both.config.limits.timeout_ms is None
    assert [f.severity for f in both.findings] == ["warning"]
    assert "[tool.tavern] is not used" in both.findings[0].message


@pytest.mark.parametrize("text", ["not toml [", '[project]\ndependencies = ["tavern-core"]\n', "[tool.other]\nx = 1\n"])
def test_a_pyproject_without_our_table_is_none_of_our_business(place: Path, text: str) -> None:
    project(place, text, "pyproject.toml")
    assert read(place).project_file is None


@pytest.mark.parametrize("depth", [1, 2])
def test_a_file_above_that_another_user_owns_is_ignored(
    place: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    path = project(place, "limits: {depth: 3}\n")
    below = place / "project" / "/".join("ab"[:depth])
    below.mkdir(parents=True)
    somebody = path.stat().st_uid + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    if path.stat().st_uid == 0:
        os.chown(path, 12345, -1)
    loaded = read(place, cwd=below)
    assert loaded.project_file is None
    assert "belongs to another user" in loaded.findings[0].message
    assert read(place, config=path, cwd=below).config.limits.depth == 3


def test_a_mapping_takes_the_place_of_the_project_file(place: Path) -> None:
    project(place, "limits: {depth: 3}\n")
    config = {"limits": {"timeout_ms": 9}, "plugins": {"roots": (Path("r"),)}, "config": {"any": object}}
    loaded = read(place, config=config)
    assert (loaded.config.limits.depth, loaded.config.limits.timeout_ms) == (16, 9)
    assert loaded.config.plugins.roots == (str(place / "project" / "r"),)
    assert loaded.config.config == {"any": object}
    assert (loaded.project_file, loaded.origins["limits.timeoutMs"]) == (None, "config argument")


def test_a_named_file_is_used_wherever_it_is(place: Path) -> None:
    path = place / "other.yaml"
    path.write_text("limits: {depth: 5}\n")
    for named in (path, str(path), "../other.yaml"):
        loaded = read(place, config=named)
        assert (loaded.config.limits.depth, loaded.base_dir.resolve()) == (5, place.resolve())


# The environment ---------------------------------------------------------------------------------------------------------


@each_row(
    ("name", "text", "key", "expected"),
    [
        ("TAVERN_LIMITS__TIMEOUT_MS", "500", "limits.timeoutMs", 500),
        ("TAVERN_LIMITS__TIMEOUTMS", " 500 ", "limits.timeoutMs", 500),
        ("TAVERN_LIMITS__TIMEOUT_MS", "null", "limits.timeoutMs", None),
        ("TAVERN_AUDIT__FSYNC", "true", "audit.fsync", True),
        ("TAVERN_AUDIT__FSYNC", "1", "audit.fsync", True),
        ("TAVERN_AUDIT__ENABLED", "No", "audit.enabled", False),
        ("TAVERN_PLUGINS__LOAD", "a, b,", "plugins.load", ("a", "b")),
        ("TAVERN_PLUGINS__LOAD", "", "plugins.load", ()),
        ("TAVERN_PLUGINS__LOAD", "none", "plugins.load", None),
        ("TAVERN_TOOLS__DENY", '["a,b", "c"]', "tools.deny", ("a,b", "c")),
        ("TAVERN_TOOLS__ONLY", "", "tools.only", ()),
        ("TAVERN_TOOLS__GROUPS", "{x: [a]}", "tools.groups.x", ("a",)),
        ("TAVERN_TOOLS__GROUPS__MY_GROUP", "a,b", "tools.groups.my-group", ("a", "b")),
        ("TAVERN_PLUGINS__ON_FAILURE__MY_GUARD", "open", "plugins.onFailure.my-guard", "open"),
        ("TAVERN_LOAD_PLUGINS", "a,b", "plugins.load", ("a", "b")),
        ("TAVERN_LOAD_PLUGINS", "", "plugins.load", ()),
        ("TAVERN_DISABLE_PLUGINS", "a", "plugins.disable", ("a",)),
        ("TAVERN_SETTINGS", '{"extensions.x.y": 3}', "settings.extensions.x.y", 3),
        ("TAVERN_SLOTS", "{memory: mem-a}", "slots.memory", "mem-a"),
        ("TAVERN_LANGUAGE", "en", "language", "en"),
    ],
)
def test_variables_have_the_type_that_the_key_has(place: Path, name: str, text: str, key: str, expected: Any) -> None:
    loaded = read(place, {name: text})
    assert value(loaded, key) == expected
    assert type(value(loaded, key)) is type(expected)
    assert loaded.origins[key] == name


@each_row(
    ("name", "text", "said"),
    [
        ("TAVERN_LIMITS__TIMEOUT_MS", "", "is empty (unset it, or give a value (or `null`))"),
        ("TAVERN_LIMITS__DEPTH", "", "is empty (unset it, or give a value)"),
        ("TAVERN_LIMITS__DEPTH", "five", "'five' is not a whole number"),
        ("TAVERN_LIMITS__DEPTH", "1.5", "'1.5' is not a whole number"),
        ("TAVERN_LIMITS__DEPTH", "0", "greater than 0"),
        ("TAVERN_LIMITS__DEPTH", "9" * 5000, "is not a whole number"),
        ("TAVERN_LIMITS__THREADS", "99999", "must be at most 1,024"),
        ("TAVERN_AUDIT__FSYNC", "maybe", "neither true nor false"),
        ("TAVERN_AUDIT__FSYNC", "", "is empty"),
        ("TAVERN_TOOLS__DENY", "[a", "TAVERN_TOOLS__DENY"),
        ("TAVERN_TOOLS__GROUPS", "a,b", "is not a mapping"),
        ("TAVERN_PLUGINS__ON_FAILURE__X", "ajar", "not one of open, closed"),
        ("TAVERN_LIMIT__DEPTH", "5", "did you mean 'limits'?"),
        ("TAVERN_LIMITS__DEPHT", "5", "did you mean 'depth'?"),
        ("TAVERN_LIMITS__DEPTH__X", "5", "is a single value"),
        ("TAVERN_SETTINGS__X", "5", "(set TAVERN_SETTINGS to {key: value}, or use tavern.yaml)"),
        ("TAVERN_CONFIG__X", "5", "'config' has keys of its own (use tavern.yaml)"),
        ("TAVERN___X", "5", "there is no key"),
        ("TAVERN_TOOLS__DENY", "a\udc80", "lone surrogate"),
    ],
)
def test_variables_that_mean_nothing_are_named(place: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        read(place, {name: text})
    assert name in str(caught.value) or "surrogate" in said
    assert said in f"{caught.value} ({caught.value.hint})"


def test_a_list_of_one_word_may_begin_with_a_brace(place: Path) -> None:
    assert read(place, {"TAVERN_TOOLS__DENY": "{a: b}"}).config.tools.deny == ("{a: b}",)


def test_two_variables_for_one_key_are_refused(place: Path) -> None:
    with pytest.raises(ConfigInvalid, match="are the same key"):
        read(place, {"TAVERN_LIMITS__TIMEOUT_MS": "1", "TAVERN_LIMITS__TIMEOUTMS": "2"})


@pytest.mark.parametrize("name", ["TAVERN_HOME_BASE", "TAVERN_TRACE_PLUGINS", "TAVERNX", "TAVERN_X", "OTHER__X"])
def test_other_variables_are_left_alone(place: Path, name: str) -> None:
    assert read(place, {name: "?"}).config == read(place).config


def test_disabling_by_variable_never_switches_a_plugin_on(place: Path) -> None:
    project(place, "plugins: {disable: [a]}\n")
    assert read(place, {"TAVERN_DISABLE_PLUGINS": "b"}).config.plugins.disable == ("a", "b")
    assert read(place, {"TAVERN_DISABLE_PLUGINS": ""}).config.plugins.disable == ("a",)


# Errors ----------------------------------------------------------------------------------------------------------------------

WRONG = [
    ("limit: {depth: 3}", "1:1", "unknown key 'limit' (did you mean 'limits'?)"),
    ("limits:\n  dept: 3", "2:3", "unknown key 'dept' (did you mean 'depth'"),
    ("limits:\n  depth: '5'", "2:10", "must be a whole number, got '5'"),
    ("limits:\n  depth: true", "2:10", "must be a whole number, got true"),
    ("limits:\n  depth: 5.5", "2:10", "must be a whole number"),
    ("limits:\n  depth: 0", "2:10", "must be greater than 0, got the number 0"),
    ("limits:\n  depth: null", "2:10", "must be a whole number"),
    ("limits: [depth]", "1:9", "must be a mapping"),
    ("limits: 5", "1:9", "must be a mapping"),
    ("audit:\n  enabled: 'yes'", "2:12", "must be true or false"),
    ("audit:\n  enabled: yes", "2:12", "must be true or false"),
    ("tools:\n  deny: a", "2:9", "must be a list, got 'a'"),
    ("tools:\n  deny: [a, 5]", "2:13", "must be text, got the number 5"),
    ("tools:\n  groups: [a]", "2:11", "must be a mapping"),
    ("plugins:\n  onFailure: {x: ajar}", "2:18", "'ajar' is not one of open, closed"),
    ("callers:\n  user:a: {alow: []}", "2:12", "unknown key 'alow' (did you mean 'allow'"),
    ("settings: [a]", "1:11", "must be a mapping"),
    ("config: text", "1:9", "must be a mapping"),
    ("limits:\n  timeoutMs: 5\n  timeout_ms: 6", "2:14", "is given in two spellings"),
    ("limits:\n  depth: 1\n  depth: 2", "3:3", "is here twice"),
    ("limits:\n\tdepth: 1", "2:1", "not YAML"),
    ("a: &x 1", "1:4", "anchor"),
    ("- a", "1:1", "must be a mapping of sections"),
    ("just text", "1:1", "must be a mapping of sections"),
    ("state: {store: postgres}", "1:16", "is not a store"),
    ("upstreams: {a: {}}", "1:13", "the key 'kind' is missing (add `kind: …`)"),
    ("llms: {a: {kind: scripted, timeoutMs: 0}}", "1:39", "must be greater than 0, got the number 0"),
    ("llms: {a b: {kind: scripted, answers: [x]}}", "1:13", "'a b' does not fit the pattern"),
    ("llms: {a: {kind: scripted, answers: [x], price: {input: -1, output: 1}}}", "1:57", "must be at least 0, got"),
    ("upstreams: {a b: 3}", "1:18", "must be a mapping, got the number 3"),
    ("limits: {depth: 1e400}", "1:17", "1e400 is not"),
]


@each_row(("text", "where", "said"), WRONG)
def test_a_wrong_value_is_named_with_its_place(place: Path, text: str, where: str, said: str) -> None:
    path = project(place, text)
    with pytest.raises(ConfigInvalid) as caught:
        read(place)
    assert f"{path}:{where}" in str(caught.value)
    assert said in f"{caught.value} ({caught.value.hint})"
    assert caught.value.findings[0].code == "CONFIG_INVALID"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("limits:\n  depth: '5'", "write it without quotes: 5"),
        ("limits:\n  depth: five", ""),
        ("audit:\n  enabled: yes", "write true; yes is text in YAML 1.2"),
        ("tools:\n  deny: a", 'write it as a list: ["a"]'),
        ("tools:\n  deny: [a, 5]", 'put it in quotes: "5"'),
        ("approval: ['a:*']", "its keys are: ask, allow, deny, timeoutMs, keepMs, planMs"),
        ("knowledge: {handbook: handbook}", "its keys are: path, paths, description, trusted"),
        ("callers: [a]", "write it as a mapping: {name: …}"),
    ],
)
def test_a_value_of_another_type_is_answered_with_how_to_write_it(place: Path, text: str, hint: str) -> None:
    project(place, text)
    with pytest.raises(ConfigInvalid) as refused:
        read(place)
    assert refused.value.hint == hint


def test_every_problem_of_every_source_is_reported_at_once(place: Path) -> None:
    user(place, "limits: {depth: x}\n")
    project(place, "limit: 1\naudit: {fsync: 1}\n")
    with pytest.raises(ConfigInvalid) as caught:
        read(place, {"TAVERN_LIMITS__DEPTH": "x"}, overrides={"limits.dpeth": 3})
    assert [f.where.file for f in caught.value.findings] == [
        str(place / "home" / "config.yaml"), str(place / "project" / "tavern.yaml"),
        str(place / "project" / "tavern.yaml"), "TAVERN_LIMITS__DEPTH", "flag",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("of_the_user", "file"),
    [(True, "project/tavern.yaml"), (False, "flag")],
    ids=["two files", "a file and a flag"],
)
def test_layers_that_contradict_each_other_are_an_error_with_its_place(
    place: Path, of_the_user: bool, file: str
) -> None:
    started = {"upstreams": {"x": {"kind": "mcp", "command": ["a"]}}}
    if of_the_user:
        user(place, "upstreams: {x: {kind: mcp, command: [a]}}\n")
    project(place, "limits: {depth: 3}\nupstreams:\n  x: {kind: mcp, url: 'https://a.example/mcp'}\n")
    with pytest.raises(ConfigInvalid, match="reached by one thing, not by url and command") as caught:
        read(place, overrides={} if of_the_user else started)
    (found,) = caught.value.findings
    assert found.where.file.endswith(file) and found.where.pointer == "upstreams.x" and found.hint == "keep one of them"
    assert found.where.line == (3 if of_the_user else 0)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[tool.tavern]\nlimits = 5\n", 2, "must be a mapping"),
        ("[tool.tavern.limits]\ndept = 3\n", 2, "unknown key 'dept'"),
        ("[tool.tavern]\nlimits.depth = '3'\n", 2, "must be a whole number"),
        ("[tool.tavern]\nlimits = { depth = '3' }\n", 2, "must be a whole number"),
        ("[tool.tavern]\nx = \n", 2, "not TOML"),
        ("[tool.tavern]\nlimits = {depth = 2020-01-01}\n", 2, "must be a whole number"),
    ],
)
def test_a_wrong_value_in_pyproject_is_named_with_its_line(place: Path, text: str, line: int, said: str) -> None:
    path = project(place, text, "pyproject.toml")
    with pytest.raises(ConfigInvalid) as caught:
        read(place)
    assert f"{path}:{line}:" in str(caught.value)
    assert said in f"{caught.value} ({caught.value.hint})"


@pytest.mark.parametrize(
    ("named", "said", "hint"),
    [
        ("tavren.yaml", "there is no file", "did you mean 'tavern.yaml'?"),
        ("nope.yaml", "there is no file", "create it"),
        ("nowhere/x.yaml", "there is no file", "create it"),
        (".", "is a folder", "tavern.yaml"),
        ("pyproject.toml", "has no table [tool.tavern]", "add one"),
    ],
)
def test_a_named_file_must_be_there(place: Path, named: str, said: str, hint: str) -> None:
    project(place, "")
    project(place, "[project]\n", "pyproject.toml")
    with pytest.raises(ConfigInvalid) as caught:
        read(place, config=named)
    assert said in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=80) | st.sampled_from([w[0] for w in WRONG]).flatmap(lambda t: st.permutations(t).map("".join)))
def test_whatever_the_file_says_the_answer_is_a_configuration_or_one_clear_error(place: Path, text: str) -> None:
    path = place / "project" / "tavern.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    said = ""
    try:
        read(place)
    except ConfigInvalid as error:
        said = str(error)
    assert not said or str(path) in said


# The state folder ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_home", "variable", "expected"),
    [
        ("{}/given", "{}/variable", "{}/given"),
        (None, "{}/variable", "{}/variable"),
        (None, "variable", "{}/project/variable"),
    ],
)
def test_the_state_folder_is_the_given_one_else_the_variable(
    place: Path, given_home: str | None, variable: str, expected: str
) -> None:
    home = Path(given_home.format(place)) if given_home else None
    loaded = load(cwd=place / "project", env={"TAVERN_HOME": variable.format(place)}, home=home)
    assert loaded.home == Path(expected.format(place))
    assert not loaded.home.exists()
    prepare_home(loaded)
    assert loaded.home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("variable", [None, "", "  "])
def test_without_either_it_is_the_platforms(place: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(place / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
    (place / "config" / "tavern-core").mkdir(parents=True)
    (place / "config" / "tavern-core" / "config.yaml").write_text("limits: {depth: 7}\n")
    loaded = load(cwd=place / "project", env={} if variable is None else {"TAVERN_HOME": variable})
    assert loaded.home == place / "data" / "tavern-core"
    assert loaded.config.limits.depth == 7


@pytest.mark.parametrize("prepare", [lambda p: p.write_text(""), lambda p: p.symlink_to("/nonexistent/x/y")])
def test_a_state_folder_that_cannot_be_made_is_a_clear_error(place: Path, prepare: Any) -> None:
    prepare(place / "bad")
    for home in (place / "bad", place / "bad" / "deep"):
        with pytest.raises(ConfigInvalid) as caught:
            prepare_home(load(cwd=place / "project", env={}, home=home))
        assert str(place / "bad") in str(caught.value)
        assert "TAVERN_HOME" in caught.value.hint


# Showing ---------------------------------------------------------------------------------------------------------------------


def test_settings_may_be_nested_or_dotted_and_references_stay_whole(place: Path) -> None:
    path = project(
        place,
        "settings:\n  extensions.a.x: 1\n  extensions:\n    b:\n      y: 2\n      z: {$env: NAME}\n    c.w: 3\n",
    )
    loaded = read(place, overrides={"settings.extensions.b.y": 5})
    assert loaded.config.settings == {
        "extensions.a.x": 1, "extensions.b.y": 5, "extensions.b.z": {"$env": "NAME"}, "extensions.c.w": 3,
    }  # fmt: skip
    assert loaded.origins["settings.extensions.b.z"] == f"{path}:6"
    assert loaded.origins["settings.extensions.b.y"] == "flag"


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("upstreams: {a: {kind: mcp, url: 'http://user:sesame/open@host/x'}}", "'http://***@host/x' is not an address"),
        ("upstreams: {a: {kind: mcp, url: 'http://user:sesame@host:x/'}}", "'http://***@host:x/' is not an address"),
        (
            "upstreams: {a: {kind: mcp, url: 'http://user:sesame#?open@host/x'}}",
            "'http://***@host/x' is not an address",
        ),
        ("llms: {a: {kind: openai, model: m, baseUrl: 'https://host/v1?key=sesame'}}", "'https://host/v1' is not the"),
        ("llms: {a: {kind: openai, model: m, baseUrl: 'user:sesame@host'}}", "'***@host' is not the"),
        ("state: {store: 'redis:sesame@host'}", "is not a store"),
        ("state: {store: 'redis://:sesame@host:99999/0'}", "is not a store"),
        ("state: {store: 'redis://:sesame@host:x/0'}", "is not a store"),
        ("state: {store: 'redis://:sesame@[::1/0'}", "is not a store"),
        ("state: {store: 'redis://:sesame@host/first'}", "is not a store"),
    ],
)
def test_an_address_that_is_refused_is_quoted_without_its_credentials(place: Path, text: str, quoted: str) -> None:
    project(place, text)
    with pytest.raises(ConfigInvalid) as caught:
        read(place)
    assert quoted in str(caught.value)
    assert "sesame" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("parameters", ["nope=1", "socket_timeout=soon"])
def test_a_store_with_parameters_that_its_client_does_not_know_is_refused(place: Path, parameters: str) -> None:
    with pytest.raises(ConfigInvalid, match="a parameter behind"):
        Tavern.open({"state": {"store": f"redis://localhost/0?{parameters}"}}, home=place / "home")


def test_secrets_are_masked_and_references_shown(place: Path) -> None:
    project(
        place,
        "settings:\n  extensions.a.cookie: c00kie\n  extensions.a.token: {$env: T}\n  extensions.a.登录密码: mima\n"
        "  extensions.token-tool.size: 5\nsecrets:\n  github: ghp_x\n  other: {$file: x}\nconfig:\n  apiKey: k3y\n  n: 1\n"
        "  accounts:\n  - {user: a, password: pa55}\n  inner: {deep: {client_secret: cs1}}\nstate: {store: 'redis://:r3dis@localhost/0'}\n",
    )
    shown = {row.key: row.value for row in show(read(place))}
    assert shown["settings.extensions.a.cookie"] == shown["secrets.github"] == shown["config.apiKey"] == "***"
    assert shown["settings.extensions.a.登录密码"] == "***"
    assert shown["settings.extensions.a.token"] == {"$env": "T"}
    assert shown["secrets.other"] == {"$file": "x"}
    assert shown["config.accounts"] == [{"user": "a", "password": "***"}]
    assert shown["state.store"] == "redis://:***@localhost/0"
    assert (shown["settings.extensions.token-tool.size"], shown["config.n"]) == (5, 1)
    assert not [
        row
        for row in show(read(place))
        if any(s in str(row.value) for s in ("c00kie", "ghp_x", "k3y", "mima", "pa55", "cs1", "r3dis"))
    ]
