"""How far a capability reaches: hosts, paths and names, and what two scopes allow together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tavern_core import CallContext, Tavern, hookimpl
from tavern_core.model.capability_scope import (
    allows_host,
    canonical_host,
    common,
    entry_problem,
    folders,
    within,
)
from tests.rows import each_row


def allows_path(scope: Any, path: str) -> bool:
    return within("read:fs", (path,), scope)


HOSTS = [
    # scope, host, port, allowed
    (["example.org"], "example.org", 443, True),
    (["example.org"], "EXAMPLE.ORG.", 80, True),
    (["example.org"], "example.org", 8080, False),
    (["example.org"], "sub.example.org", 443, False),
    (["example.org"], "example.org.evil.net", 443, False),
    (["example.org"], "evil-example.org", 443, False),
    (["*.example.org"], "a.b.example.org", 443, True),
    (["*.example.org"], "example.org", 443, False),
    (["*.example.org"], "evilexample.org", 443, False),
    (["*.example.org"], ".example.org", 443, False),
    (["example.org:8443"], "example.org", 443, False),
    (["example.org:*"], "example.org", 1, True),
    (["bücher.example"], "xn--bcher-kva.example", 443, True),
    (["bu\u0308cher.example"], "xn--bcher-kva.example", 443, True),
    (["straße.example"], "strasse.example", 443, False),
    (["*.straße.example"], "a.strasse.example", 443, False),
    (["σς.example"], "xn--4xaa.example", 443, False),
    (["a\u200db.example"], "ab.example", 443, False),
    (["xn--strae-oqa.example"], "xn--strae-oqa.example", 443, True),
    (["xn--bcher-kva.example"], "BÜCHER.example", 443, True),
    (["example.org"], "ex\u0430mple.org", 443, False),
    (["ex\u0430mple.org"], "example.org", 443, False),
    (["example.org"], "example.org\0.evil.net", 443, False),
    (["example.org"], "example.org@evil.net", 443, False),
    (["example.org"], "example.org#.evil.net", 443, False),
    (["*"], "anything.example", 443, True),
    (["*"], "anything.example", 22, False),
    (["*"], "127.0.0.1", 443, False),
    (["*:*"], "127.0.0.1", 443, False),
    (["*:*"], "0177.0.0.1", 443, False),
    (["*:*"], "2130706433", 443, False),
    (["*:*"], "0x7f000001", 443, False),
    (["*:*"], "127.1", 443, False),
    (["*:*"], "[::1]", 443, False),
    (["127.0.0.1"], "127.0.0.1", 443, True),
    (["127.0.0.1"], "::ffff:127.0.0.1", 443, True),
    (["::ffff:127.0.0.1"], "127.0.0.1", 443, True),
    (["10.0.0.0/8:22"], "10.255.0.1", 22, True),
    (["10.0.0.0/8:22"], "11.0.0.1", 22, False),
    (["10.0.0.1/8"], "10.0.0.1", 443, False),
    (["[fd00::/8]:5432"], "fd00::7", 5432, True),
    (["::1"], "[::1]", 80, True),
    (["fe80::1%eth0"], "fe80::1%eth0", 80, False),
    (["example.org:0"], "example.org", 0, False),
    (["example.org:99999"], "example.org", 443, False),
    (["example.org:"], "example.org", 443, False),
    (["https://example.org"], "example.org", 443, False),
    (["example.org/path"], "example.org", 443, False),
    (["ex*mple.org"], "example.org", 443, False),
    (["*.*"], "a.b", 443, False),
    (["**"], "a.b", 443, False),
    ([" example.org"], "example.org", 443, False),
    ([""], "", 443, False),
    ([], "example.org", 443, False),
    (None, "example.org", 443, True),
    (None, "example.org", 8443, False),
    (None, "192.0.2.1", 443, False),
    (["example.org"], "example.org", 65536, False),
    (["example.org"], "example.org", -1, False),
]  # fmt: skip


@each_row(("scope", "host", "port", "allowed"), HOSTS)
def test_a_host_is_reached_only_by_an_entry_that_means_it(scope: Any, host: str, port: int, allowed: bool) -> None:
    assert allows_host(None if scope is None else tuple(scope), host, port) is allowed


PATHS = [
    (["/srv/data"], "/srv/data", True),
    (["/srv/data"], "/srv/data/a/b", True),
    (["/srv/data/"], "/srv//data/./a", True),
    (["/srv/data"], "/srv/database", False),
    (["/srv/data"], "/srv/data/../etc", False),
    (["/srv/data"], "/srv/Data", False),
    (["/srv/data"], "srv/data", False),
    (["/srv/data"], "/srv", False),
    (["/srv/data"], "/srv/data\0/x", False),
    (["/srv/data"], "/srv/data/a*", False),
    (["/"], "/etc/passwd", True),
    (["/srv/*"], "/srv/data", False),
    (["/srv/data/.."], "/srv", False),
    (["./data"], "/data", False),
    (["$data"], "$data/x", True),
    (["caf\u00e9"], "/cafe\u0301", False),
    ([], "/srv", False),
    (None, "/srv", True),
]  # fmt: skip


@each_row(("scope", "path", "allowed"), PATHS)
def test_a_path_is_reached_only_beneath_an_entry(scope: Any, path: str, allowed: bool) -> None:
    assert allows_path(None if scope is None else tuple(scope), path) is allowed


def test_places_are_put_in_and_what_has_no_place_reaches_nothing() -> None:
    scope = ("./a", "b/c", "$data", "$data/x/", "~/n", "$workspace/y", "/abs/z", "$other", "../up", "$data/../..")
    placed = folders(scope, {"": "/project", "$data": "/home/data/p", "~": "/home/u"})
    assert placed == (
        "/project/a",
        "/project/b/c",
        "/home/data/p",
        "/home/data/p/x",
        "/home/u/n",
        "$workspace/y",
        "/abs/z",
    )
    assert not allows_path(placed, "/y")
    assert allows_path(folders(placed, {"$workspace": "/files"}), "/files/y/1")
    assert folders(None, {}) is None


@each_row("capability", ["network", "read:fs", "read:db"])
@each_row("entry", ["", " ", "a\nb", "a\u202eb", "x" * 501, " a"])
def test_what_cannot_be_read_is_a_problem(capability: str, entry: str) -> None:
    assert entry_problem(capability, entry)


_HOST_ENTRIES = st.sampled_from(
    [h for scope, *_ in HOSTS if scope for h in scope] + ["a.example.org:8443", "*.org:*", "10.1.0.0/16"]
)
_HOST_SCOPES = st.none() | st.lists(_HOST_ENTRIES, max_size=3).map(tuple)
_TARGETS = st.tuples(
    st.sampled_from([h for _, h, *_ in HOSTS] + ["a.example.org", "10.1.2.3"]), st.sampled_from([22, 80, 443, 8443])
)
_PATH_ENTRIES = st.sampled_from(["/a", "/a/b", "/a/bc", "/", "/a/../b", "/c/*", "$data", "$data/x", "./p", "p/q", ""])
_PATH_SCOPES = st.none() | st.lists(_PATH_ENTRIES, max_size=3).map(tuple)


@pytest.mark.slow
@given(_HOST_SCOPES, _HOST_SCOPES, _TARGETS)
def test_what_two_scopes_of_hosts_have_in_common_is_what_both_allow(
    one: Any, other: Any, target: tuple[str, int]
) -> None:
    both = common("network", one, other)
    assert allows_host(both, *target) == (allows_host(one, *target) and allows_host(other, *target))
    assert within("network", both, one)
    assert within("network", both, other)
    if within("network", one, other) and allows_host(one, *target):
        assert allows_host(other, *target)


@pytest.mark.slow
@given(_PATH_SCOPES, _PATH_SCOPES, st.sampled_from(["/a", "/a/b", "/a/b/c", "/a/bc", "/x", "/b", "/c/d"]))
def test_what_two_scopes_of_paths_have_in_common_is_what_both_allow(one: Any, other: Any, path: str) -> None:
    both = common("read:fs", one, other)
    assert allows_path(both, path) == (allows_path(one, path) and allows_path(other, path))
    assert within("read:fs", both, one)
    assert within("read:fs", both, other)
    if within("read:fs", one, other) and allows_path(one, path):
        assert allows_path(other, path)


@pytest.mark.slow
@given(st.text(max_size=40), st.integers())
def test_no_text_is_an_exception(text: str, port: int) -> None:
    canonical_host(text)
    allows_host((text, f"*.{text}", f"[{text}]:1"), text, port)
    allows_path((text,), text)
    for capability in ("network", "read:fs", "read:db", "gpu", "acme/read:x"):
        entry_problem(capability, text)
        within(capability, (text,), (text, "*"))
        common(capability, (text,), None)


def test_a_gate_sees_the_granted_scopes_of_the_plugin_whose_tool_is_called(tmp_path: Path) -> None:
    plugin = tmp_path / "plugins" / "reader"
    plugin.mkdir(parents=True)
    (plugin / "plugin.yaml").write_text(
        'name: reader\nversion: "1"\ntools: [{id: go, implementation: {type: python}}]\npermissions:\n  capabilities:\n'
        "    - {name: 'read:fs', scope: [$data, ./in, /abs]}\n    - {name: network, scope: []}\n    - gpu\n    - 'write:fs'\n"
    )
    (plugin / "__init__.py").write_text(
        "from tavern_core import hookimpl, tool\n\n@tool(capabilities=['read:fs'])\ndef go() -> int:\n    return 1\n\n"
        "@hookimpl\ndef tavern_register_tools():\n    return [go]\n"
    )
    seen: list[Any] = []

    class Looker:
        @hookimpl
        def tavern_check_call(self, call: Any) -> None:
            seen.extend(call.rights.scope(name) for name in ("read:fs", "network", "gpu", "write:fs"))

    (tmp_path / "tavern.yaml").write_text("plugins: {roots: [plugins], entryPoints: false}\n")
    with Tavern.open(tmp_path / "tavern.yaml", home=tmp_path / "home", plugins=[Looker()]) as tavern:
        tavern.grant("reader", "read:fs", "gpu")
        assert "network" not in tavern.plugins["reader"].requested
        result = tavern.invoke_sync("reader:go", context=CallContext(permissions=frozenset({"read:fs"})))
    assert result.ok, result.error
    assert seen == [(str(tmp_path / "home/data/reader"), str(tmp_path / "in"), "/abs"), (), None, ()]
