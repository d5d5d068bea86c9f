"""What a plugin needs: host versions, other plugins, places that only one can have; and who wins where two want one name."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tavern_core import Plugin, tool

from .workshop import HELLO, TOOL, Workshop, codes, ids, reported

LIFE = """
@hookimpl
def tavern_start(ctx): note("start " + ctx.id)
@hookimpl
def tavern_stop(ctx): note("stop " + ctx.id)
"""


def lives(notes: list[str]) -> list[str]:
    return [note for note in notes if not note.startswith("import")]


REQUIRES: dict[str, tuple[str, str, str]] = {
    "a host that is there": ('host: ">=1,<2"', "granted", ""),
    "any host": ('host: ""', "granted", ""),
    "a newer host": ('host: ">=9"', "failed", "pip install 'tavern-core>=9'"),
    "a host tested up to an older one": ('host: ">=1", tested: "<1"', "granted", ""),
}


@pytest.mark.parametrize("what", REQUIRES)
def test_requires_binds_and_tested_only_warns(workshop: Workshop, what: str) -> None:
    text, state, reason = REQUIRES[what]
    workshop.folder("one", TOOL, f"{HELLO}\nrequires: {{{text}}}")
    host = workshop.open()
    status = host.plugins["one"]
    assert (status.state, reason in status.reason) == (state, True), status.reason
    assert ("HOST_UNTESTED" in codes(host, "one")) is ("tested" in text)
    assert workshop.notes() == []


DEPENDS: dict[str, tuple[str, str]] = {
    "missing": ("dependsOn: {absent: ''}", "absent, which is not installed"),
    "misspelt": ("dependsOn: {bsae: ''}", "did you mean 'base'"),
    "failed before import": ("dependsOn: {broken: ''}", "broken, which is failed"),
    "disabled": ("dependsOn: {off: ''}", "off, which is disabled"),
    "too old": ('dependsOn: {base: ">=2"}', "installed is 1.0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DEPENDS)
def test_an_unmet_dependency_fails_the_plugin_before_its_import(workshop: Workshop, what: str) -> None:
    text, reason = DEPENDS[what]
    workshop.folder("base", TOOL, HELLO)
    workshop.folder("off", TOOL, HELLO)
    workshop.folder("broken", TOOL, HELLO + "\nrequires: {host: '>=9'}")
    workshop.folder("one", TOOL, f"{HELLO}\nstart: true\n{text}")
    workshop.folder("above", TOOL, f"{HELLO}\ndependsOn: {{one: ''}}")
    host = workshop.open(config={"plugins": {"disable": ["off"]}})
    status = host.plugins["one"]
    assert (status.state, status.error_code) == ("failed", "DEPENDENCY_UNMET")
    assert reason in status.reason
    assert "one, which is failed" in host.plugins["above"].reason
    assert workshop.notes() == []
    assert host.invoke_sync("base:hello").ok


def test_a_circle_names_its_path(workshop: Workshop) -> None:
    for name, needs in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("e", "e")):
        workshop.folder(name, TOOL, f"{HELLO}\ndependsOn: {{{needs}: ''}}")
    host = workshop.open(activate="all")
    assert "a → b → c → a" in host.plugins["a"].reason
    assert "b → c → a → b" in host.plugins["b"].reason
    assert "a, which is failed" in host.plugins["d"].reason
    assert host.plugins["e"].state == "failed"
    assert workshop.notes() == []


@pytest.mark.slow
def test_a_long_chain_of_dependencies_is_walked_without_recursion(workshop: Workshop) -> None:
    class Empty:
        pass

    given = []
    for n in range(1200):
        needs = {f"p{n + 1}": ""} if n < 1199 else {"p0": ""}
        given.append(Plugin(Empty(), manifest={"name": f"p{n}", "version": "1", "dependsOn": needs}))
    host = workshop.open(*given, activate="none")
    assert {host.plugins[f"p{n}"].state for n in range(1200)} == {"failed"}
    assert "p0 → p1 → p2" in host.plugins["p0"].reason
    assert "p1199 → p0" in host.plugins["p0"].reason
    assert len(host.plugins["p0"].reason) < 500


def test_dependencies_start_first_and_stop_last(workshop: Workshop) -> None:
    workshop.folder("a", TOOL + LIFE, f"{HELLO}\ndependsOn: {{c: '', b: ''}}")
    workshop.folder("b", LIFE, "dependsOn: {c: ''}")
    workshop.folder("c", LIFE)
    host = workshop.open()
    assert host.invoke_sync("a:hello").ok
    workshop.close(host)
    assert lives(workshop.notes()) == ["start c", "start b", "start a", "stop a", "stop b", "stop c"]


def test_disabling_a_dependency_stops_what_needs_it_first(workshop: Workshop) -> None:
    workshop.folder("a", TOOL + LIFE, f"{HELLO}\ndependsOn: {{b: ''}}")
    workshop.folder("b", LIFE)
    host = workshop.open()
    host.invoke_sync("a:hello")
    host.plugins.disable_sync("b")
    assert lives(workshop.notes()) == ["start b", "start a", "stop a", "stop b"]
    assert "b, which is disabled" in host.plugins["a"].reason
    assert host.invoke_sync("a:hello").error is not None
    host.plugins.enable_sync("b")
    assert host.invoke_sync("a:hello").ok
    assert lives(workshop.notes())[4:] == ["start b", "start a"]


def test_reloading_a_dependency_restarts_what_needs_it(workshop: Workshop) -> None:
    workshop.folder("a", TOOL + LIFE, f"{HELLO}\ndependsOn: {{b: ''}}")
    workshop.folder("b", LIFE)
    host = workshop.open()
    host.invoke_sync("a:hello")
    host.plugins.reload_sync("b")
    assert lives(workshop.notes())[2:] == ["stop a", "stop b", "start b", "start a"]
    assert host.plugins["a"].state == "active"


def test_a_dependency_that_fails_when_it_is_activated_fails_the_one_that_needs_it_and_comes_back(
    workshop: Workshop,
) -> None:
    workshop.folder("a", TOOL, f"{HELLO}\ndependsOn: {{b: ''}}")
    broken = workshop.folder("b", "1 / 0")
    host = workshop.open()
    assert "division" in host.invoke_sync("a:hello").error.message
    assert "b, which is failed" in host.plugins["a"].reason or "b, which failed" in host.plugins["a"].reason
    assert "import a" not in workshop.notes()
    (broken / "__init__.py").write_text("")
    host.plugins.reload_sync("b")
    assert host.plugins["a"].state == "granted", host.plugins["a"].reason
    assert host.invoke_sync("a:hello").ok


# Exclusive places --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "winner"), [({}, "first"), ({"memory": "second"}, "second"), ({"memory": "secnd"}, "first")]
)
def test_a_slot_has_one_plugin(workshop: Workshop, chosen: dict[str, str], winner: str) -> None:
    for name in ("first", "second", "third"):
        workshop.folder(name, TOOL, f"{HELLO}\nstart: true\nslots: [memory]")
    host = workshop.open(config={"slots": chosen})
    assert [n for n in ("first", "second", "third") if host.plugins[n].state == "active"] == [winner]
    loser = "third"
    assert (host.plugins[loser].state, winner in host.plugins[loser].reason) == ("disabled", True)
    assert f"slots: {{memory: {loser}}}" in host.plugins[loser].reason
    assert ids(host) == [f"{winner}:hello"]
    if chosen.get("memory") == "secnd":
        assert "did you mean 'second'" in reported(host, "SLOT_UNFILLED")
    host.plugins.disable_sync(winner)
    others = [n for n in ("first", "second", "third") if n != winner]
    assert host.plugins[others[0]].state == "granted"
    assert host.plugins[others[1]].state == "disabled"


@pytest.mark.parametrize(
    ("config", "manifest", "why"),
    [
        ({}, "requires: {host: '>=99'}", "is failed: second needs tavern-core >=99"),
        ({}, "start: 5", "is failed: plugin.yaml"),
        ({"plugins": {"disable": ["second"]}}, "", "is disabled: named in plugins.disable"),
        ({}, "slots: [other]", "does not offer it"),
    ],
)
def test_a_chosen_plugin_that_cannot_fill_its_slot_is_reported_with_the_reason(
    workshop: Workshop, config: dict[str, Any], manifest: str, why: str
) -> None:
    workshop.folder("first", TOOL, f"{HELLO}\nslots: [memory]")
    slots = "" if "slots" in manifest else "slots: [memory]"
    workshop.folder("second", TOOL, f"{HELLO}\n{slots}\n{manifest}")
    host = workshop.open(config={"slots": {"memory": "second"}, **config})
    assert f"slots.memory names 'second', which {why}" in reported(host, "SLOT_UNFILLED")
    assert host.invoke_sync("first:hello").ok


# Clashes -----------------------------------------------------------------------------------------------------------------


@tool
def hello() -> str:
    return "object"


def test_one_name_twice_is_won_by_the_source_and_both_are_named(workshop: Workshop) -> None:
    folder = workshop.folder("one", TOOL, HELLO)
    workshop.installed("one", TOOL, HELLO)
    host = workshop.open(Plugin([hello], name="one"))
    assert host.plugins["one"].source == "object"
    assert host.invoke_sync("one:hello").value == "object"
    clashes = reported(host, "NAME_CONFLICT")
    assert str(folder) in clashes
    assert "tavern-plugin-one" in clashes
    workshop.close(host)
    host = workshop.open()
    assert host.plugins["one"].source == "folder"
    assert "tavern-plugin-one" in reported(host, "NAME_CONFLICT")
    host.invoke_sync("one:hello")
    assert "tavern-plugin-one" in reported(host, "NAME_CONFLICT")  # activating does not make it disappear


def test_the_project_folder_beats_further_roots_and_the_distribution_name_decides_last(workshop: Workshop) -> None:
    workshop.folder("one", TOOL, HELLO)
    further = workshop.root / "further"
    workshop.folder("two", TOOL.replace("hello ", "further "), HELLO).rename(workshop.root / "two")
    further.mkdir()
    (workshop.root / "two").rename(further / "one")
    (further / "one" / "plugin.yaml").write_text(f'name: one\nversion: "2.0"\n{HELLO}\n')
    workshop.installed("three", TOOL, HELLO, distribution="zz-three")
    workshop.installed("three", TOOL.replace("hello ", "aa "), HELLO, distribution="aa-three")
    host = workshop.open(config={"plugins": {"roots": [str(workshop.plugins), str(further)]}})
    assert host.plugins["one"].version == "1.0"
    assert host.plugins["three"].distribution == "aa-three"
    assert host.invoke_sync("three:hello").value == "aa World"
    assert "zz-three" in reported(host, "NAME_CONFLICT")
    assert "further" in reported(host, "NAME_CONFLICT")


def offering(name: str, *tool_ids: str) -> Plugin:
    """A plugin whose tools answer its own name."""

    def made(local: str) -> Any:
        @tool(name=local)
        def answer() -> str:
            return name

        return answer

    return Plugin([made(i) for i in tool_ids], name=name)


@pytest.mark.parametrize("order", list(itertools.permutations(["my-plugin", "myplugin"])))
def test_tool_ids_that_read_the_same_clash_and_only_that_tool_is_left_out(
    workshop: Workshop, order: tuple[str, ...]
) -> None:
    host = workshop.open(*(offering(name, "do_it", f"own-{n}") for n, name in enumerate(order)))
    winner, loser = order
    assert sorted(ids(host)) == sorted([f"{winner}:do_it", f"{winner}:own-0", f"{loser}:own-1"])
    assert host.invoke_sync(f"{loser}:own-1").value == loser
    lost = host.invoke_sync(f"{loser}:do_it")
    assert lost.error.kind == "TOOL_NOT_FOUND"
    why = host.tools.why(f"{loser}:do_it")
    for text in (lost.error.message, why.reason, reported(host, "NAME_CONFLICT")):
        assert repr(f"{winner}:do_it") in text
        assert repr(f"{loser}:do_it") in text
    assert not why.visible
    assert host.invoke_sync("DOIT").value == winner
    host.plugins.disable_sync(winner)
    assert host.invoke_sync(f"{loser}:do_it").value == loser


def test_ids_that_differ_in_their_parts_do_not_clash(workshop: Workshop) -> None:
    host = workshop.open(offering("a-b", "c"), offering("a", "bc"))
    assert ids(host) == ["a-b:c", "a:bc"]
    assert host.invoke_sync("a-b:c").value == "a-b"
    ambiguous = host.invoke_sync("abc").error
    assert ambiguous.kind == "TOOL_NOT_FOUND"
    assert "a-b:c" in ambiguous.message
    assert "NAME_CONFLICT" not in codes(host)


@pytest.mark.parametrize("order", list(itertools.permutations(["my-plugin", "myplugin"])))
def test_found_plugins_whose_names_read_the_same_are_one(workshop: Workshop, order: tuple[str, ...]) -> None:
    for name in order:
        workshop.folder(name, TOOL, HELLO)
    host = workshop.open()
    assert ids(host) == ["my-plugin:hello"]
    assert "myplugin" in reported(host, "NAME_CONFLICT")


@pytest.mark.slow
def test_an_alias_that_two_plugins_want_stays_with_the_first_by_rank(workshop: Workshop) -> None:
    for name in ("one", "two"):
        workshop.folder(name, TOOL, f"{HELLO}\naliases: {{'Old:hello': hello}}")
    for _ in range(2):
        host = workshop.open()
        host.invoke_sync("two:hello")  # the loser is active first
        assert host.tools.get("Old:hello").id == "one:hello"
        assert "one" in reported(host, "NAME_CONFLICT")
        assert "two" in reported(host, "NAME_CONFLICT")
        host.plugins.disable_sync("one")
        assert host.tools.get("Old:hello").id == "two:hello"
        workshop.close(host)
        host = workshop.made(activate="none")
        with host:
            host.plugins.enable_sync("one")


def test_commands_and_services_of_one_name_fail_the_second_plugin_and_name_both(workshop: Workshop) -> None:
    code = "from tavern_core.contract.protocols import Command\n@hookimpl\ndef tavern_register_commands():\n    return [Command('greet', lambda: None)]\n"
    for name in ("one", "two"):
        workshop.folder(name, TOOL + code, f"{HELLO}\nstart: true\ncommands: [greet]")
    host = workshop.open()
    assert host.plugins["one"].state == "active"
    assert (host.plugins["two"].state, host.plugins["two"].error_code) == ("failed", "NAME_CONFLICT")
    assert "'greet' already comes from one (choose another name, or disable one of" in host.plugins["two"].reason
    assert "commands" not in host.plugins["two"].provides


@pytest.mark.parametrize("name", ["plugins", "tools", "run", "doctor"])
def test_commands_of_the_host_cannot_be_taken(workshop: Workshop, name: str) -> None:
    code = f"from tavern_core.contract.protocols import Command\n@hookimpl\ndef tavern_register_commands():\n    return [Command({name!r}, lambda: None)]\n"
    workshop.folder("one", code, "start: true\ncommands: true")
    assert "reserved for the host" in workshop.open().plugins["one"].reason


def test_the_hosts_namespaces_are_no_plugin_names(workshop: Workshop) -> None:
    names = ["core", "system", "kb", "workflow", "jobs", "core-x", "core-python-2"]
    for name in names:
        workshop.folder("one", TOOL, HELLO).rename(workshop.plugins / name)
        (workshop.plugins / name / "plugin.yaml").write_text(f'name: {name}\nversion: "1"\n{HELLO}\n')
    host = workshop.open()
    for name in names:
        assert (host.plugins[name].state, "reserved" in host.plugins[name].reason) == ("failed", True), name
    assert ids(host) == []
    objects = [Plugin([hello], name=name) for name in names]
    host = workshop.open(*objects, home=workshop.root / "other", config={"plugins": {"roots": []}})
    for name in names:
        assert (host.plugins[name].state, "reserved" in host.plugins[name].reason) == ("failed", True), name


@pytest.mark.parametrize("name", ["get-current-time", "getcurrenttime"])
def test_a_plugin_may_not_have_the_name_of_a_core_tool(workshop: Workshop, name: str) -> None:
    workshop.folder(name, TOOL, HELLO)
    host = workshop.open(activate="all")
    assert host.plugins[name].state == "failed"
    assert "get_current_time" in host.plugins[name].reason
    assert workshop.notes() == []


def test_of_two_given_objects_of_one_name_the_first_is_used(workshop: Workshop) -> None:
    host = workshop.open(offering("one", "x"), offering("one", "y"))
    assert ids(host) == ["one:x"]
    said = reported(host, "NAME_CONFLICT")
    assert "the given object 1" in said
    assert "the given object 2" in said
    assert "Plugin(thing, name='one-2')" in said
    host.tools.refresh()
    assert reported(host, "NAME_CONFLICT") == said
    assert host.invoke_sync("one:x").value == "one"


def test_an_object_with_the_name_of_a_built_in_plugin_is_offered_a_name_that_it_may_have(workshop: Workshop) -> None:
    said = reported(workshop.open(offering("core-net", "x")), "NAME_CONFLICT")
    assert "Plugin(thing, name='my-core-net')" in said
    assert ids(workshop.open(offering("my-core-net", "x"))) == ["my-core-net:x"]


@pytest.mark.slow
def test_what_was_stopped_with_its_dependency_comes_back_with_it(workshop: Workshop) -> None:
    workshop.folder("a", LIFE)
    workshop.folder("b", TOOL + LIFE, f"{HELLO}\nstart: true\ndependsOn: {{a: ''}}")
    workshop.folder("c", TOOL + LIFE, f"{HELLO}\ndependsOn: {{b: ''}}")
    workshop.folder("d", TOOL + LIFE, f"{HELLO}\ndependsOn: {{a: ''}}")
    host = workshop.open()
    assert host.invoke_sync("c:hello").ok
    host.plugins.disable_sync("a")
    assert {host.plugins[n].state for n in "bcd"} == {"failed"}
    host.plugins.enable_sync("a")
    assert [host.plugins[n].state for n in "abcd"] == ["active", "active", "active", "granted"]
    assert lives(workshop.notes())[-3:] == ["start a", "start b", "start c"]
    host.plugins.disable_sync("a")
    host.plugins.disable_sync("c")
    host.plugins.enable_sync("a")
    assert host.plugins["c"].state == "disabled"
    assert host.plugins.enable_sync("c").state == "granted"
