"""What a plugin may use: declared and granted, refusals first, bound to what was reviewed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tavern_core.errors import PluginNotFound, StateDamaged, UsageError
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.grants.grants import GrantDecision, GrantRecord, PluginFacts, carried_over, decide
from tavern_core.kernel.grants.lock_comments import keep_comments
from tavern_core.kernel.grants.lock_file import parse_lock, render_lock
from tests.rows import each_row

from .processes import start

CHECK, BEFORE = "hook:server:tool:check", "hook:server:tool:before-execute"
READ, WRITE, DANGER = "read:fs", "write:fs", "danger:destructive"
EVERYTHING = frozenset(
    {CHECK, BEFORE, READ, DANGER, "service:use:clock", "ui:inject:node:footer", "data:secrets", "tryfirst"}
)


def facts(
    *requested: str, version: str = "1.0", manifest: str = "m1", artifact: str = "a1", **scopes: tuple[str, ...]
) -> PluginFacts:
    named = {name.replace("_", ":"): scope for name, scope in scopes.items()}
    return PluginFacts("text", version, frozenset(requested), manifest, artifact, named)


def store(tmp_path: Path) -> GrantStore:
    return GrantStore(tmp_path / "tavern.lock", clock=lambda: 1_795_262_400.0)


# Deciding -----------------------------------------------------------------------------------------------------------------


@each_row(
    ("requested", "granted", "refused", "usable", "waiting"),
    [
        ([], [], [], "", ""),
        ([CHECK], [], [], "", CHECK),
        ([CHECK], [CHECK], [], CHECK, ""),
        ([CHECK], [CHECK], [CHECK], "", ""),
        ([CHECK], [READ], [], "", CHECK),
        ([], [CHECK, READ], [], "", ""),
        ([CHECK], ["*"], [], "", CHECK),
        ([CHECK], ["hook:*"], [], "", CHECK),
        ([CHECK, READ], [CHECK], [READ], CHECK, ""),
        ([CHECK, READ, WRITE], [CHECK], [READ], CHECK, WRITE),
        ([DANGER], ["danger:*"], [], "", DANGER),
    ],
)
def test_only_what_is_declared_and_granted_and_not_refused_is_usable(
    requested: list[str], granted: list[str], refused: list[str], usable: str, waiting: str
) -> None:
    now = facts(*requested)
    record = GrantRecord("text", "1.0", "m1", "a1", now.requested, frozenset(granted), frozenset(refused))
    decision = decide(now, record)
    assert decision.granted == frozenset(usable.split())
    assert decision.undecided == frozenset(waiting.split())


def test_without_a_record_nothing_is_usable_and_everything_waits() -> None:
    assert decide(facts(CHECK, READ), None) == GrantDecision(undecided=frozenset({CHECK, READ}))
    assert not decide(facts(), None).is_pending


@each_row(
    ("after", "usable", "waiting", "note"),
    [
        (facts(CHECK, READ), {CHECK, READ}, set(), ""),
        (facts(CHECK, READ, version="2.0"), {CHECK, READ}, set(), "went from 1.0 to 2.0; it requests nothing new"),
        (facts(CHECK, version="2.0"), {CHECK}, set(), "carry over"),
        (facts(CHECK, READ, WRITE, version="2.0"), {CHECK, READ}, {WRITE}, f"new requests wait: {WRITE}"),
        (facts(CHECK, READ, manifest="m2"), {CHECK, READ}, set(), "other plugin.yaml than when it was reviewed"),
        (
            facts(CHECK, READ, artifact="a2"),
            {CHECK, READ},
            set(),
            "other code than when it was reviewed, under the same version",
        ),
        (facts(CHECK, READ, artifact="a2", manifest="m2"), {CHECK, READ}, set(), "other plugin.yaml and code"),
        (facts(version="2.0"), set(), set(), "carry over"),
    ],
)
def test_after_an_upgrade_only_what_is_new_waits(
    after: PluginFacts, usable: set[str], waiting: set[str], note: str
) -> None:
    reviewed = facts(CHECK, READ)
    record = GrantRecord("text", "1.0", "m1", "a1", reviewed.requested, reviewed.requested)
    decision = decide(after, record)
    assert (decision.granted, decision.undecided) == (usable, waiting)
    assert note in decision.note
    assert bool(decision.changed) == bool(note)


TRUSTED = frozenset({"skill:trust"})


@each_row(
    ("reviewed", "now", "trusted"),
    [
        (("m1", "a1"), ("m1", "a1"), True),
        (("m1", "a1"), ("m2", "a1"), False),
        (("m1", "a1"), ("m1", "a2"), False),
        (("m1", ""), ("m1", ""), False),  # files that cannot be read whole
    ],
)
def test_a_skill_is_trusted_for_exactly_the_files_that_were_reviewed(
    reviewed: tuple[str, str], now: tuple[str, str], trusted: bool
) -> None:
    decision = decide(
        PluginFacts("text", "1.0", TRUSTED, *now), GrantRecord("text", "1.0", *reviewed, TRUSTED, TRUSTED)
    )
    assert (decision.granted, decision.undecided) == ((TRUSTED, frozenset()) if trusted else (frozenset(), TRUSTED))


def test_a_request_that_was_dropped_and_comes_back_waits_again(tmp_path: Path) -> None:
    locks = store(tmp_path)
    locks.grant(facts(CHECK, READ), ["*"])
    locks.bring_up_to_date(facts(CHECK, version="2.0"))
    decision = decide(facts(CHECK, READ, version="3.0"), locks.read().get("text"))
    assert (decision.granted, decision.undecided) == ({CHECK}, {READ})


SCOPES = [
    # capability, scope reviewed, scope asked for now (None: no scope), scope usable (): nothing, does something wait?
    (READ, ["./data"], ["./data"], ["./data"], False),
    (READ, ["./data", "./log"], ["./data"], ["./data"], False),
    (READ, ["./data"], ["./data", "/etc"], ["./data"], True),
    (READ, ["./data"], ["./data/sub"], ["./data/sub"], False),
    (READ, ["./data/sub"], ["./data"], ["./data/sub"], True),
    (READ, ["./data"], ["./database"], [], True),
    (READ, ["./data"], ["data"], ["data"], False),
    (READ, ["./data"], ["./data/../etc"], [], True),
    (READ, ["/srv"], ["./srv"], [], True),
    (READ, ["$data"], ["./data"], [], True),
    (READ, ["./data"], None, ["./data"], True),
    (READ, None, ["./data"], ["./data"], False),
    (READ, None, None, None, False),
    (READ, ["./data"], ["/etc"], [], True),
    ("network", ["api.example.org"], ["API.example.org."], ["api.example.org"], False),
    ("network", ["*.example.org"], ["api.example.org"], ["api.example.org"], False),
    ("network", ["*.example.org"], ["example.org"], [], True),
    ("network", ["*.example.org"], ["evilexample.org"], [], True),
    ("network", ["example.org"], ["example.org:8443"], [], True),
    ("network", ["example.org:*"], ["example.org:8443"], ["example.org:8443"], False),
    ("network", ["example.org"], ["example.org:*"], ["example.org"], True),
    ("network", None, ["*"], ["*"], False),
    ("network", None, ["*:*"], ["*"], True),
    ("network", None, ["10.0.0.1"], [], True),
    ("network", ["10.0.0.0/8"], ["10.2.0.0/16:443"], ["10.2.0.0/16:443"], False),
    ("network", ["https://example.org"], ["https://example.org"], [], True),
    ("read:db", ["orders"], ["orders", "customers"], ["orders"], True),
    ("read:db", ["orders"], ["ORDERS"], [], True),
]  # fmt: skip


@each_row(("capability", "reviewed", "asked", "usable", "waits"), SCOPES)
def test_a_scope_that_grows_waits_and_what_both_allow_works_meanwhile(
    tmp_path: Path, capability: str, reviewed: Any, asked: Any, usable: Any, waits: bool
) -> None:
    def asking(version: str, scope: Any) -> PluginFacts:
        return PluginFacts(
            "text", version, frozenset({capability}), scopes={} if scope is None else {capability: tuple(scope)}
        )

    locks = store(tmp_path)
    locks.grant(asking("1", reviewed), [capability])
    decision = decide(asking("2", asked), locks.read().get("text"))
    assert (capability in decision.granted) == (usable != [])
    assert decision.scopes.get(capability) == (tuple(usable) if usable else None)
    assert decision.is_pending == waits
    again = decide(asking("2", asked), locks.bring_up_to_date(asking("2", asked)).get("text"))
    assert (again.granted, again.scopes, again.is_pending) == (decision.granted, decision.scopes, waits)


_PERMISSIONS = st.frozensets(st.sampled_from([CHECK, BEFORE, READ, WRITE, DANGER, "tryfirst", "gpu", "*"]))


@pytest.mark.slow
@given(_PERMISSIONS, _PERMISSIONS, _PERMISSIONS, _PERMISSIONS)
def test_whatever_the_record_says_nothing_is_usable_that_was_not_asked_granted_and_unrefused(
    requested: frozenset[str], reviewed: frozenset[str], granted: frozenset[str], refused: frozenset[str]
) -> None:
    now = PluginFacts("p", "2", requested)
    record = GrantRecord("p", "1", requested=reviewed, granted=granted, refused=refused)
    decision = decide(now, record)
    assert decision.granted == (requested & granted) - refused
    assert decision.granted | decision.undecided | decision.refused == requested
    assert not decision.granted & decision.refused
    later = decide(now, carried_over(now, record))
    assert (later.granted, later.undecided, later.refused) == (decision.granted, decision.undecided, decision.refused)


def test_the_reviewed_definitions_are_carried_over_and_the_present_ones_only_where_there_are_none() -> None:
    now = PluginFacts("p", "2", frozenset({READ}), tools=lambda: {"a": "present"})
    assert carried_over(now, GrantRecord("p", "1", tools={"a": "reviewed"})).tools == {"a": "reviewed"}
    assert carried_over(now, GrantRecord("p", "1")).tools == {"a": "present"}


# Granting -----------------------------------------------------------------------------------------------------------------


@each_row(
    ("written", "expected"),
    [
        ([CHECK], {CHECK}),
        (["hook:*"], {CHECK, BEFORE}),
        (["*"], EVERYTHING - {DANGER}),
        (["*", DANGER], EVERYTHING),
        (["*:fs", "tryfirst"], {READ, "tryfirst"}),
        (["service:use:*", " read:fs "], {"service:use:clock", READ}),
        ([], set()),
    ],
)
def test_names_and_patterns_are_expanded_when_they_are_granted(
    tmp_path: Path, written: list[str], expected: set[str]
) -> None:
    locks = store(tmp_path)
    assert locks.grant(facts(*EVERYTHING), written).get("text") == locks.read().get("text")
    assert decide(facts(*EVERYTHING), locks.read().get("text")).granted == expected


def test_an_alias_is_granted_under_its_canonical_name(tmp_path: Path) -> None:
    asked = facts("hook:client:settings:before-save")
    assert store(tmp_path).grant(asked, ["settings:save:before"]).records["text"].granted == asked.requested


@each_row(
    ("written", "message", "hint"),
    [
        ("hook:server:tool:chek", "is not a permission", f"did you mean {CHECK!r}"),
        ("read:f", "is not a permission", "did you mean 'read:fs'"),
        ("gpu", "does not request 'gpu'", "in its plugin.yaml"),
        ("network:*", "requests nothing that 'network:*' covers", "it requests:"),
        ("danger:*", "name danger:destructive literally", "it requests:"),
        ("", "is not a permission", ""),
        ("hook:server:tool:[a-z]*", "requests nothing", ""),
    ],
)
def test_a_name_that_grants_nothing_is_refused_and_nothing_is_written(
    tmp_path: Path, written: str, message: str, hint: str
) -> None:
    locks = store(tmp_path)
    with pytest.raises(UsageError) as caught:
        locks.grant(facts(*EVERYTHING), [CHECK, written])
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert not locks.path.exists()


def test_what_is_revoked_is_refused_until_it_is_granted_again(tmp_path: Path) -> None:
    locks, asked = store(tmp_path), facts(CHECK, READ, DANGER)
    locks.grant(asked, [CHECK, READ, DANGER], by="alice")
    locks.revoke("text", ["hook:*", "danger:*"], by="bob")
    decision = decide(asked, locks.read().get("text"))
    assert (decision.granted, decision.refused, decision.undecided) == ({READ}, {CHECK, DANGER}, set())
    assert locks.read().records["text"].granted_by == "bob"
    locks.grant(asked, [CHECK])
    assert decide(asked, locks.read().get("text")).granted == {CHECK, READ}
    locks.revoke("text")
    assert decide(asked, locks.read().get("text")).granted == set()


def test_a_request_can_be_refused_before_it_was_ever_granted(tmp_path: Path) -> None:
    locks, asked = store(tmp_path), facts(CHECK, READ)
    locks.refuse(asked, [CHECK])
    decision = decide(asked, locks.read().get("text"))
    assert (decision.refused, decision.undecided) == ({CHECK}, {READ})


@pytest.mark.parametrize("pattern", ["*", "danger:*"])
def test_a_pattern_refuses_dangerous_permissions_too(tmp_path: Path, pattern: str) -> None:
    locks, asked = store(tmp_path), facts(CHECK, DANGER)
    locks.refuse(asked, [pattern])
    assert DANGER in decide(asked, locks.read().get("text")).refused


def test_revoking_names_the_nearest_plugin_and_forgetting_is_always_possible(tmp_path: Path) -> None:
    locks = store(tmp_path)
    locks.grant(facts(CHECK), ["*"])
    with pytest.raises(PluginNotFound) as caught:
        locks.revoke("txet")
    assert "'text'" in caught.value.hint
    assert locks.forget("other").records.keys() == {"text"}
    assert locks.forget("text").records == {}
    assert decide(facts(CHECK), locks.read().get("text")).granted == set()


# The file ------------------------------------------------------------------------------------------------------------------


def test_the_lock_file_reads_well_and_is_sorted(tmp_path: Path) -> None:
    locks = store(tmp_path)
    locks.grant(replace(facts(READ, read_fs=("./数据", "./b")), name="zeta"), [READ], by="user:爱丽丝")
    locks.grant(replace(facts(CHECK, BEFORE, version="0.9"), name="alpha"), [CHECK], by="bob\x07\n")
    assert (
        locks.path.read_text().partition("version: 1")[2]
        == """
plugins:
  alpha:
    version: '0.9'
    manifestHash: m1
    artifactHash: a1
    tier: host
    grantedAt: '2026-11-21T12:00:00.000Z'
    grantedBy: bob\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}
    requested:
    - hook:server:tool:before-execute
    - hook:server:tool:check
    refused: []
    granted:
    - hook:server:tool:check
  zeta:
    version: '1.0'
    manifestHash: m1
    artifactHash: a1
    tier: host
    grantedAt: '2026-11-21T12:00:00.000Z'
    grantedBy: user:爱丽丝
    requested:
    - read:fs
    scopes:
      read:fs:
      - './数据'
      - './b'
    refused: []
    granted:
    - read:fs
"""
    )
    assert locks.path.read_text().startswith("# What each plugin may use")
    assert locks.path.stat().st_mode & 0o777 == 0o600


_TEXT = st.text(max_size=20)


@pytest.mark.slow
@given(
    st.dictionaries(
        st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,4})?", fullmatch=True),
        st.builds(
            GrantRecord,
            plugin=st.just(""),
            version=_TEXT,
            manifest_hash=_TEXT,
            artifact_hash=_TEXT,
            requested=st.frozensets(st.sampled_from(sorted(EVERYTHING))),
            granted=st.frozensets(st.sampled_from(sorted(EVERYTHING))),
            refused=st.frozensets(st.sampled_from(sorted(EVERYTHING))),
            scopes=st.dictionaries(
                st.just(READ), st.lists(st.sampled_from(["./a", "b: c", "#x"]), min_size=1).map(tuple)
            ),
            granted_by=_TEXT,
        ),
        max_size=4,
    )
)
def test_what_is_written_is_read_back(records: dict[str, GrantRecord]) -> None:
    named = {name: replace(record, plugin=name) for name, record in records.items()}
    grants = parse_lock(render_lock(named), "tavern.lock")
    assert grants.findings == ()
    for name, record in named.items():
        kept = grants.records[name]
        assert (kept.requested, kept.granted, kept.refused, kept.scopes) == (
            record.requested,
            record.granted,
            record.refused,
            record.scopes,
        )
        if record.version.isprintable():
            assert kept.version == record.version


GOOD = "version: 1\nplugins:\n  good:\n    version: '1'\n    granted: [gpu]\n"
BROKEN = [
    ("plugins: {,}", "not YAML", 1),
    ("- a\n- b\n", "must be a mapping", 1),
    ("plugins: {}\n", "version 1", 1),
    ("version: 2\nplugins: {}\n", "version 1", 1),
    ("version: 1\nplugins: [a]\n", "must be a mapping", 2),
    ("version: 1\nplugin: {}\n", "unknown key 'plugin'", 2),
    (GOOD + "  bad: [gpu]\n", "the record must be a mapping", 6),
    (GOOD + "  bad: {granted: gpu}\n", "must be a list", 6),
    (GOOD + "  bad: {granted: [1]}\n", "must be a list", 6),
    (GOOD + "  bad:\n    granted:\n    - gpu\n    - '*'\n", "is a pattern", 9),
    (GOOD + "  bad: {grnted: [gpu]}\n", "unknown key 'grnted' (did you mean 'granted'", 6),
    (GOOD + "  bad: {version: 1.0}\n", "must be text", 6),
    (GOOD + "  bad: {tier: moon}\n", "'moon' is not a tier", 6),
    (GOOD + "  bad: {version: '1'", "ends in the middle of a line", 6),
    (GOOD + "  bad: {scopes: {read:fs: []}}\n", "not empty", 6),
    (GOOD + "  Bad Name: {}\n", "is not a plugin name", 6),
    (GOOD + "  good: {granted: [danger:destructive]}\n", "is here twice", 6),
    (GOOD + "  bad: &x {granted: [gpu]}\n  b2: *x\n", "anchor", 6),
]


@each_row(("text", "message", "line"), BROKEN)
def test_a_corrupt_lock_file_grants_nothing_it_is_not_sure_of_and_is_not_overwritten(
    tmp_path: Path, text: str, message: str, line: int
) -> None:
    locks = store(tmp_path)
    locks.path.write_text(text)
    grants = locks.read()
    assert grants.is_damaged
    assert message in str(grants.findings[0])
    assert (grants.findings[0].code, grants.findings[0].where.file, grants.findings[0].where.line) == (
        "STATE_DAMAGED",
        str(locks.path),
        line,
    )
    assert set(grants.records) <= {"good"}
    for change in (
        lambda: locks.grant(facts(CHECK), ["*"]),
        lambda: locks.revoke("good"),
        lambda: locks.forget("good"),
    ):
        with pytest.raises(StateDamaged, match="is not written over"):
            change()
    assert locks.path.read_text() == text


def test_one_wrong_record_costs_only_its_own_plugin(tmp_path: Path) -> None:
    locks = store(tmp_path)
    locks.path.write_text(GOOD + "  bad: {granted: gpu}\n")
    assert locks.read().records["good"].granted == {"gpu"}
    assert locks.read().get("bad") is None


def test_a_name_of_another_host_version_is_kept_grants_nothing_and_is_reported(tmp_path: Path) -> None:
    locks = store(tmp_path)
    locks.path.write_text("version: 1\nplugins:\n  text: {granted: [hook:server:tool:chek, read:fs]}\n")
    grants = locks.read()
    assert not grants.is_damaged
    assert [(f.severity, f.where.line) for f in grants.findings] == [("warning", 3)]
    assert CHECK in grants.findings[0].hint
    assert decide(facts(CHECK, READ), grants.get("text")).granted == {READ}


@each_row("content", [b"\xff\xfe", b"\0" * 100, b"x" * 2_000_000, b"[" * 100_000, b"a: " * 1000])
def test_noise_is_a_finding(tmp_path: Path, content: bytes) -> None:
    locks = store(tmp_path)
    locks.path.write_bytes(content)
    assert locks.read().is_damaged


def test_a_lock_file_that_everybody_can_change_is_reported(tmp_path: Path) -> None:
    locks = store(tmp_path)
    locks.grant(facts(CHECK), ["*"])
    locks.path.chmod(0o666)
    assert "every user" in locks.read().findings[0].message
    assert not locks.read().is_damaged


def test_an_empty_file_is_an_empty_lock(tmp_path: Path) -> None:
    locks = store(tmp_path)
    locks.path.write_text("# nothing yet\n")
    assert locks.read().findings == ()
    locks.grant(facts(CHECK), ["*"])
    assert yaml.safe_load(locks.path.read_text())["plugins"]["text"]["granted"] == [CHECK]


_GRANT = """
import sys
from pathlib import Path
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.grants.grants import PluginFacts
store = GrantStore(Path(sys.argv[1]))
for number in range(15):
    store.grant(PluginFacts(f"{sys.argv[2]}-{number}", "1", frozenset({"gpu"})), ["*"])
"""


@pytest.mark.slow
def test_grants_of_two_processes_add_up(tmp_path: Path) -> None:
    path = tmp_path / "tavern.lock"
    processes = [start(_GRANT, path, name) for name in ("one", "two")]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert len(GrantStore(path).read().records) == 30


def test_a_comment_about_what_is_gone_stays_at_the_nearest_thing_it_was_part_of() -> None:
    scopes = "plugins:\n  text:\n    scopes:\n      network:\n      - a.example.com\n"
    kept = keep_comments(f"{scopes}      - b.example.com  # the old one\n", scopes)
    assert kept == scopes.replace("      network:", "      # the old one\n      network:")
