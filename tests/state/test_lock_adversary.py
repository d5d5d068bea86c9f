"""The lock file under attack: damaged, cut off, disguised, planted, changed by several at once. Nothing of it widens anything."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tavern_core.errors import StateDamaged, UsageError
from tavern_core.kernel.grants.grant_store import MOST_TRIES, GrantStore
from tavern_core.kernel.grants.grants import GrantRecord, PluginFacts, decide, expand
from tavern_core.kernel.grants.lock_file import MOST_REPORTED, parse_lock, render_lock
from tests.rows import each_row

from ..robustness.mutations import NASTY_VALUES, damaged
from .processes import start

ASKED = frozenset(
    {
        "read:fs",
        "network",
        "gpu",
        "danger:destructive",
        "hook:server:tool:check",
        "secrets:key",
        "secrets:keyring",
        "tryfirst",
    }
)
FACTS = PluginFacts("text", "1", ASKED, "m", "a", {"read:fs": ("./data",), "network": ("a.org", "b.org")})
LOCK = """\
# ours
version: 1
plugins:
  other:
    version: '1'
    requested: [gpu]
    refused: []
    granted: [gpu]
  text:
    version: '1'
    manifestHash: m
    artifactHash: a
    requested:
    - gpu
    - network
    - read:fs
    - secrets:keyring
    scopes:
      network:
      - a.org
      read:fs:
      - ./data/inner   # not all of it
    refused:
    - danger:destructive
    - secrets:key
    granted:
    - network
    - read:fs
    - secrets:keyring
"""


def usable(text: str) -> frozenset[str]:
    return decide(FACTS, parse_lock(text, "tavern.lock").get("text")).granted


def under_granted(text: str) -> set[str]:
    """What a plain reading of the file grants; a second, careless reader of YAML."""
    try:
        data = yaml.load(text, Loader=yaml.CSafeLoader)
        record = data["plugins"]["text"]
        return {str(name) for name in record["granted"]} - {str(name) for name in record.get("refused") or ()}
    except (yaml.YAMLError, TypeError, KeyError, ValueError, AttributeError, RecursionError):
        return set()


@pytest.mark.slow
@each_row("seed", range(30))
def test_a_corrupt_file_grants_nothing_that_does_not_stand_in_it(seed: int) -> None:
    pick = Random(seed)
    for _ in range(60):
        content = LOCK.encode()
        for _ in range(pick.choice([1, 1, 2, 5])):
            content = damaged(pick, content, large=False)
        text = content.decode("utf-8-sig", "replace")
        found = usable(text)
        assert found <= ASKED
        assert found <= under_granted(text), text


HEAD = "version: 1\nplugins:\n  text:\n    requested: []\n    granted:\n    - read:fs\n"
HUGE = {
    # every file within the bound of its size; errors, warnings
    "unknown permissions": (HEAD + "".join(f"    - gpx{n}\n" for n in range(49_000)), 0, MOST_REPORTED + 1),
    "unknown permissions, and a wrong key": (
        HEAD + "".join(f"    - gpx{n}\n" for n in range(49_000)) + "    more: 1\n",
        1,
        MOST_REPORTED + 1,
    ),
    "unknown keys": (HEAD + "".join(f"    k{n}: 1\n" for n in range(24_000)), MOST_REPORTED + 1, 0),
    "further keys": ("".join(f"k{n}: 1\n" for n in range(24_000)) + HEAD, MOST_REPORTED + 1, 0),
    "names of no plugins": (HEAD + "".join(f"  A{n}: {{}}\n" for n in range(24_000)), MOST_REPORTED + 1, 0),
    "scopes that reach nothing": (
        HEAD + "    scopes:\n      network:\n" + "".join("      - a b\n" for _ in range(49_000)),
        0,
        MOST_REPORTED + 1,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", HUGE)
def test_a_huge_file_gets_a_bounded_report_and_an_invalid_one_stays_invalid(what: str) -> None:
    text, errors, warnings = HUGE[what]
    grants = parse_lock(text, "tavern.lock")
    reported = Counter(finding.severity for finding in grants.findings)
    assert (reported["error"], reported["warning"], grants.is_damaged) == (errors, warnings, errors > 0)


@pytest.mark.slow
def test_a_file_of_hundreds_of_plugins_is_read() -> None:
    permissions = frozenset(["read:fs", "write:fs", "network", "gpu", *(f"secrets:key-{n}" for n in range(6))])
    scopes = {"read:fs": ("./data",), "network": ("a.org", "b.org:443")}
    records = {
        name: GrantRecord(
            name,
            "1.0",
            "sha256:" + "a" * 64,
            "sha256:" + "b" * 64,
            permissions,
            permissions,
            frozenset(),
            scopes,
            "2026-01-01T00:00:00Z",
            "user:alice",
        )
        for name in (f"plugin-{n}" for n in range(500))
    }
    grants = parse_lock(render_lock(records), "tavern.lock")
    assert (grants.findings, dict(grants.records)) == ((), records)


def test_a_file_that_was_cut_off_anywhere_grants_less_and_never_without_its_limits() -> None:
    whole = decide(FACTS, parse_lock(LOCK, "").get("text"))
    assert whole.granted == {"network", "read:fs", "secrets:keyring"}
    for end in range(len(LOCK)):
        record = parse_lock(LOCK[:end], "").get("text")
        cut = decide(FACTS, record)
        assert cut.granted <= whole.granted, LOCK[:end]
        for name in cut.granted:
            assert cut.scopes.get(name) == whole.scopes.get(name), LOCK[:end]


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", ["version", "manifestHash", "requested", "granted", "refused", "scopes", "grantedBy", "more"]
)
def test_no_value_of_a_key_is_an_exception_or_a_grant(key: str) -> None:
    for value in NASTY_VALUES:
        record = {"version": "1", "requested": sorted(ASKED), "refused": [], "granted": [], key: value}
        try:
            text = yaml.dump({"version": 1, "plugins": {"text": record}}, Dumper=yaml.CSafeDumper)
        except (yaml.YAMLError, ValueError, RecursionError, UnicodeError):
            continue
        assert usable(text) <= {name for name in ASKED if isinstance(value, list | str) and name in value}


DISGUISED = [
    "read\uff1afs", "re\u0430d:fs", "read:f\u0455", "READ:FS", "Read:Fs", " read:fs", "read:fs ", "read:fs\u200b", "read:fs\u202e", "read:\u00adfs",
    "read:fs\n", "read:*", "*", "read", "read:", ":fs", "read:fs:", "read:fs,network", "read:fs network", "danger:*", "danger", "secrets:*",
    "hook:*", "hook:server:tool:*", "hook:server:tool:chec", "tool:check", "tryFirst", "true", "\ufeffread:fs", "r\u0065\u0301ad:fs",
]  # fmt: skip


@each_row("name", DISGUISED)
def test_what_only_looks_like_a_permission_is_none(name: str) -> None:
    text = yaml.safe_dump({"version": 1, "plugins": {"text": {"granted": [name]}}})
    grants = parse_lock(text, "tavern.lock")
    assert decide(FACTS, grants.get("text")).granted == frozenset()
    assert grants.findings, "somebody should be told"


@each_row(
    "name",
    ["t\u0435xt", "TEXT", "text ", "te xt", "text\u200b", "../text", "text/../text", "te\u0301xt", ""],
)
def test_what_only_looks_like_the_name_of_a_plugin_grants_it_nothing(name: str) -> None:
    grants = parse_lock(yaml.safe_dump({"version": 1, "plugins": {name: {"granted": ["read:fs"]}}}), "tavern.lock")
    assert grants.get("text") is None
    assert grants.is_damaged


@each_row(
    "twice",
    [
        "version: 1\nplugins:\n  text: {granted: []}\n  text: {granted: [gpu]}\n",
        "version: 1\nplugins:\n  text:\n    granted: []\n    granted: [gpu]\n",
        "version: 1\nplugins: {}\nplugins: {text: {granted: [gpu]}}\n",
        'version: 1\nplugins:\n  text:\n    "granted": []\n    granted: [gpu]\n',
        "version: 1\nplugins:\n  text: &x {granted: [gpu]}\n",
        "version: 1\nbase: &b {granted: [gpu]}\nplugins:\n  text:\n    <<: *b\n",
        "version: 1\nplugins:\n  text: !!map {granted: [gpu]}\n",
        "version: 1\nplugins: {text: {granted: [gpu]}}\n---\nversion: 1\nplugins: {}\n",
        "version: 1\nplugins:\n  text: {granted: !!set {gpu}}\n",
        "version: 1.0\nplugins:\n  text: {granted: [gpu]}\n",
        "version: true\nplugins:\n  text: {granted: [gpu]}\n",
        "version: '1'\nplugins:\n  text: {granted: [gpu]}\n",
    ],
)
def test_a_file_that_can_be_read_in_two_ways_grants_nothing(twice: str) -> None:
    grants = parse_lock(twice, "tavern.lock")
    assert grants.is_damaged
    assert grants.get("text") is None or not grants.records["text"].granted


# What is refused ----------------------------------------------------------------------------------------------------------

BEFORE = "hook:client:workflow:before-execute"
REFUSED: dict[str, tuple[list[str], bool]] = {
    # what stands under `refused` beside the grant of a hook: is the hook usable?
    "nothing": ([], True),
    "its name": ([BEFORE], False),
    "its name twice": ([BEFORE, BEFORE], False),
    "an older name of it": (["workflow:before-execute"], False),
    "both": ([BEFORE, "workflow:before-execute"], False),
    "another hook": (["hook:server:tool:check"], True),
    "a pattern": (["hook:*"], False),  # no record at all then
    "everything": (["*"], False),
}


@each_row("what", REFUSED)
def test_a_refusal_beats_a_grant_in_whatever_words_it_is_written(what: str) -> None:
    refused, usable_ = REFUSED[what]
    text = yaml.safe_dump(
        {"version": 1, "plugins": {"text": {"requested": [BEFORE], "refused": refused, "granted": [BEFORE]}}}
    )
    facts = PluginFacts("text", "1", frozenset({BEFORE}))
    grants = parse_lock(text, "tavern.lock")
    assert decide(facts, grants.get("text")).granted == ({BEFORE} if usable_ else frozenset())
    assert bool(grants.findings) == ("*" in str(refused))


def test_an_older_name_grants_nothing() -> None:
    text = yaml.safe_dump({"version": 1, "plugins": {"text": {"granted": ["workflow:before-execute"]}}})
    assert (
        decide(PluginFacts("text", "1", frozenset({BEFORE})), parse_lock(text, "").get("text")).granted == frozenset()
    )


def test_a_pattern_that_a_plugin_asked_an_older_host_for_does_not_lock_everybody_out(tmp_path: Path) -> None:
    path = tmp_path / "tavern.lock"
    path.write_text(LOCK.replace("requested: [gpu]", "requested: ['service:use:*', gpu]"))
    store = GrantStore(path)
    assert [finding.severity for finding in store.read().findings] == ["warning"]
    assert store.grant(FACTS, ["gpu"]).records["text"].granted >= {"gpu", "network"}


def test_a_pattern_of_many_stars_is_expanded_in_one_pass() -> None:
    asked = frozenset({"secrets:" + "a" * 60, "read:fs"})
    with pytest.raises(UsageError, match="requests nothing"):
        expand("text", ["*a" * 40 + "*b"], asked, to_grant=True)
    assert expand("text", ["*a" * 40], asked, to_grant=True) == {"secrets:" + "a" * 60}
    assert expand("text", ["read:*fs", "**"], asked, to_grant=True) == asked
    assert expand("text", ["r*d:f*s"], asked, to_grant=True) == {"read:fs"}
    for longer in ("read:*read:fs", "read:fs*fs", "*read:fs*read*"):
        with pytest.raises(UsageError):
            expand("text", [longer], asked, to_grant=True)


# On the disk --------------------------------------------------------------------------------------------------------------


@each_row("kind", ["link", "dangling link", "folder", "pipe", "device", "link to a device", "too large"])
def test_what_is_no_plain_file_grants_nothing_is_not_waited_for_and_not_written_through(
    tmp_path: Path, kind: str
) -> None:
    path, target = tmp_path / "tavern.lock", tmp_path / "target"
    match kind:
        case "link":
            target.write_text(LOCK)
            path.symlink_to(target)
        case "dangling link":
            path.symlink_to(target)
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device" | "link to a device":
            path.symlink_to("/dev/zero")
        case _:
            path.write_text("#" * 1_000_000 + "\n" + LOCK)
    before = target.read_text() if target.exists() else None
    store = GrantStore(path)
    assert decide(FACTS, store.read().get("text")).granted == frozenset()
    assert store.read().is_damaged
    with pytest.raises(StateDamaged):
        store.grant(FACTS, ["gpu"])
    assert (target.read_text() if target.exists() else None) == before


def test_a_link_planted_for_the_lock_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".tavern.lock.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateDamaged):
        GrantStore(tmp_path / "tavern.lock").grant(FACTS, ["gpu"])
    assert not (tmp_path / "elsewhere").exists()


class EditedMeanwhile:
    """A clock that is asked in the middle of a change, and lets somebody edit the file right then."""

    def __init__(self, path: Path, edits: int) -> None:
        self.path, self.left = path, edits

    def __call__(self) -> float:
        if self.left:
            self.left -= 1
            self.path.write_text(
                self.path.read_text().replace("# ours", f"# ours\n# and {self.left}").replace("[gpu]", "[]")
            )
        return 1_795_262_400.0


def test_an_edit_in_the_middle_of_a_grant_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "tavern.lock"
    path.write_text(LOCK)
    grants = GrantStore(path, clock=EditedMeanwhile(path, 3)).grant(FACTS, ["gpu"])
    assert grants.records["text"].granted >= {"gpu", "network"}
    assert grants.records["other"].granted == frozenset()
    assert "# and 0" in path.read_text()
    assert GrantStore(path).read().records == grants.records


def test_a_file_that_is_edited_all_the_time_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tavern.lock"
    path.write_text(LOCK)
    with pytest.raises(StateDamaged, match="being edited"):
        GrantStore(path, clock=EditedMeanwhile(path, MOST_TRIES + 1)).grant(FACTS, ["gpu"])
    assert "gpu" not in GrantStore(path).read().records["text"].granted


_CHANGES = """
import sys
from pathlib import Path
from tavern_core.kernel.grants.grant_store import GrantStore
from tavern_core.kernel.grants.grants import PluginFacts
store, who = GrantStore(Path(sys.argv[1])), sys.argv[2]
for number in range(8):
    mine = PluginFacts(f"{who}-{number}", "1", frozenset({"gpu", "network"}), "m", "a")
    ours = PluginFacts("ours", str(number), frozenset({"gpu", f"secrets:{who}"}), "m", "a")
    store.grant(mine, ["*"], by=who)
    store.bring_up_to_date(mine, ours)
    store.revoke(mine.name, ["network"], by=who)
"""


@pytest.mark.slow
def test_grants_revocations_and_locks_of_several_processes_add_up(tmp_path: Path) -> None:
    path = tmp_path / "tavern.lock"
    path.write_text("# mine\nversion: 1\nplugins:\n  a:\n    granted: [gpu]  # theirs\n")
    names = ("one", "two", "three", "four")
    processes = [start(_CHANGES, path, name) for name in names]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    grants = GrantStore(path).read()
    assert grants.findings == ()
    assert len(grants.records) == 2 + 8 * len(names)
    for name in names:
        for number in range(8):
            record = grants.records[f"{name}-{number}"]
            assert (record.granted, record.refused) == ({"gpu"}, {"network"})
    assert grants.records["ours"].granted == frozenset()
    text = path.read_text()
    assert text.count("# mine") == text.count("# theirs") == 1
    assert not list(tmp_path.glob("*.tmp"))


# Comments -----------------------------------------------------------------------------------------------------------------

COMMENTED = """\
# the operations team reviews this file

version: 1   # never changes
plugins:
  # text: asked for by Alice
  text:   # see ticket 7 # and 8
    version: '1 # no comment'
    scopes:
      network:
      - 'a.org'  # theirs
    # what it may
    granted: [network, "read:fs"]   # both are needed
    refused:
    # 读取显卡: never
    - gpu
  gone: {granted: [gpu]} # uninstalled
  # the last words
"""


def test_what_people_wrote_stays_beside_what_they_wrote_it_about(tmp_path: Path) -> None:
    path = tmp_path / "tavern.lock"
    path.write_text(COMMENTED)
    store = GrantStore(path, clock=lambda: 1_795_262_400.0)
    facts = PluginFacts("text", "2", frozenset({"network", "read:fs", "gpu"}), "m", "a", {"network": ("a.org",)})
    store.grant(facts, ["gpu"], by="alice")
    store.forget("gone")
    assert (
        path.read_text().partition("`refused` wins.\n")[2]
        == """\
# the operations team reviews this file
version: 1  # never changes
plugins:
  # text: asked for by Alice
  text:  # see ticket 7 # and 8
    version: '2'
    manifestHash: m
    artifactHash: a
    tier: host
    grantedAt: '2026-11-21T12:00:00.000Z'
    grantedBy: alice
    requested:
    - gpu
    - network
    - read:fs
    scopes:
      network:
      - a.org  # theirs
    refused: []
    # what it may
    granted:
    # 读取显卡: never
    - gpu
    - network
    - read:fs  # both are needed
# the last words
"""
    )
    before = path.read_text()
    store.bring_up_to_date(facts)
    assert path.read_text() == before


def test_what_was_written_behind_something_that_is_gone_stands_above_what_it_belonged_to(tmp_path: Path) -> None:
    path = tmp_path / "tavern.lock"
    path.write_text(
        "version: 1\nplugins:\n  text:\n    version: '1'\n    scopes:\n      network:\n      - a.org  # theirs\n    granted: [network]\n"
    )
    GrantStore(path).revoke("text", ["network"])
    assert "plugins:\n  # theirs\n  text:\n" in path.read_text()


_WORDS = ["# x", "#", "#y # z", "# 'quoted", '# "', "# - a", "# a: b", "# [", "#\u202f", "# {{", "# |", "# &a *b !c"]


@each_row("seed", range(40))
def test_no_comment_is_lost_and_none_changes_what_the_file_means(seed: int, tmp_path: Path) -> None:
    pick = Random(seed)
    lines: list[str] = []
    for number, line in enumerate(LOCK.splitlines()[1:]):
        if pick.random() < 0.3:
            lines.append(f"{' ' * pick.randint(0, 6)}{pick.choice(_WORDS)} <{number}a>")
        lines.append(f"{line}  {pick.choice(_WORDS)} <{number}b>" if pick.random() < 0.3 and "#" not in line else line)
    text = "\n".join(lines) + "\n"
    path = tmp_path / "tavern.lock"
    path.write_text(text)
    assert usable(text) == usable(LOCK)
    store = GrantStore(path)
    marks: list[Any] = [word for word in text.split() if word.startswith("<")]
    grants = store.grant(FACTS, ["gpu"])
    store.revoke("text", ["network"])
    after = path.read_text()
    assert [after.count(mark) for mark in marks] == [1] * len(marks), after
    assert grants.records["text"].granted == usable(LOCK) | {"gpu"}
    assert usable(after) == (usable(LOCK) | {"gpu"}) - {"network"}
