"""Finding plugins in folders and among installed distributions, without importing any of them."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.errors import ManifestInvalid
from tavern_core.kernel.discovery.discovery import Discovery
from tavern_core.kernel.discovery.found_plugin import FoundPlugin
from tavern_core.review.plugin_check import check_plugin
from tavern_core.review.tools_writer import write_tools

from .places import BOOBY_TRAP, Places, script_tool


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def names(found: Discovery) -> list[str]:
    return [plugin.name for plugin in found.plugins]


def only(found: Discovery) -> FoundPlugin:
    assert len(found.plugins) == 1, found
    return found.plugins[0]


def reason(plugin: FoundPlugin) -> str:
    assert plugin.is_failed
    assert plugin.manifest is None
    return "; ".join(str(f) for f in plugin.findings if f.severity == "error")


# Folders -----------------------------------------------------------------------------------------------------------------


def test_every_kind_of_folder_plugin_is_found_in_the_order_of_names(places: Places) -> None:
    places.folder_plugin("zeta")
    places.folder_plugin("theme-only", "frontend: {type: vanilla, vanilla: {entry: theme.css}}\n")
    places.folder_plugin("nodes-only", "nodes: {entry: ./nodes}\n", files={"nodes/a.py": ""})
    tools = {"tools/b.tool.json": script_tool("two"), "tools/a.tool.json": script_tool("one"), "run.py": ""}
    places.folder_plugin("tools-only", "tools: {entry: ./tools}\n", files=tools)
    places.folder_plugin("with-code", files={"__init__.py": BOOBY_TRAP})
    found = places.discover()
    assert names(found) == ["nodes-only", "theme-only", "tools-only", "with-code", "zeta"]
    assert found.diagnostics == ()
    assert [p.is_failed for p in found.plugins] == [False] * 5
    by_name = {p.name: p for p in found.plugins}
    assert by_name["tools-only"].declared_tools == ("tools-only:one", "tools-only:two")
    assert [p.has_python for p in found.plugins] == [True, False, False, True, False]
    assert by_name["zeta"].folder == (places.plugins / "zeta").resolve()
    assert by_name["zeta"].facts.version == "1.0"
    assert by_name["zeta"].source == "folder"
    assert by_name["with-code"].module is None


def test_hidden_disabled_and_foreign_folders_are_left_out(places: Places) -> None:
    places.folder_plugin("real")
    for name in (".hidden", "off.disabled", "__pycache__", "node_modules"):
        places.write(f"plugins/{name}/plugin.yaml", "name: x\nversion: '1'\n")
    places.write("plugins/README.md", "not a folder")
    assert names(places.discover()) == ["real"]


def test_a_missing_plugins_folder_is_fine(places: Places) -> None:
    found = places.discover(roots=[places.root / "nowhere"])
    assert (found.plugins, found.diagnostics) == ((), ())


def test_a_root_that_is_a_file_is_reported(places: Places) -> None:
    found = places.discover(roots=[places.write("plugins")])
    assert "cannot be read" in found.diagnostics[0].message


def test_a_root_that_is_a_plugin_itself_is_reported(places: Places) -> None:
    places.folder_plugin("real")
    found = places.discover(roots=[places.plugins / "real"])
    assert [d.hint for d in found.diagnostics] == ["name the folder above it in `plugins.roots`"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"__init__.py": BOOBY_TRAP}, "holds no plugin.yaml"),
        ({"plugin.yml": "name: x\n"}, "but plugin.yml (rename plugin.yml to plugin.yaml)"),
        ({"plugin.yaml": ""}, "the file is empty"),
        ({"plugin.yaml": "name: [\n"}, "plugin.yaml:2:1: not YAML"),
        ({"plugin.yaml": "name: x\n"}, "the key 'version' is missing"),
        ({"plugin.yaml/inner": ""}, "it must be a regular, readable file"),
    ],
)
def test_a_broken_folder_plugin_is_a_row_with_a_reason(places: Places, files: dict[str, str], words: str) -> None:
    for relative, text in files.items():
        places.write(f"plugins/broken/{relative}", text)
    places.folder_plugin("fine")
    found = places.discover()
    assert [p.name for p in found.plugins if not p.is_failed] == ["fine"]
    [broken] = [p for p in found.plugins if p.is_failed]
    assert broken.name in ("broken", "x")
    assert words in reason(broken)


# A folder whose name only begins with that of the plugin is outside too.
@pytest.mark.parametrize("place", ["secrets", "elsewhere/linked-too"])
def test_a_folder_may_be_a_link_and_its_entries_may_not_leave_it(places: Places, place: str) -> None:
    real = places.write(
        "elsewhere/linked/plugin.yaml", 'name: linked\nversion: "1.0"\ntools: {entry: ./tools}\n'
    ).parent
    places.write("elsewhere/linked/tools/a.tool.json", script_tool("a"))
    outside = places.write(f"{place}/evil.tool.json", script_tool("evil"))
    (real / "tools" / "evil.tool.json").symlink_to(outside)
    places.plugins.mkdir()
    (places.plugins / "linked").symlink_to(real, target_is_directory=True)
    plugin = only(places.discover())
    assert plugin.folder == real.resolve()
    assert plugin.declared_tools == ("linked:a",)
    [finding] = plugin.tools.findings
    assert "a link that leaves the plugin's folder" in str(finding)


def test_a_manifest_that_is_a_link_to_the_outside_is_refused(places: Places) -> None:
    outside = places.write("outside.yaml", 'name: sly\nversion: "1.0"\n')
    (places.plugins / "sly").mkdir(parents=True)
    (places.plugins / "sly" / "plugin.yaml").symlink_to(outside)
    assert "a link that leaves the plugin's folder" in reason(only(places.discover()))


def test_a_loop_of_links_and_a_named_pipe_stop_nothing(places: Places) -> None:
    places.folder_plugin("fine")
    (places.plugins / "loop").symlink_to(places.plugins / "loop")
    (places.plugins / "pipe").mkdir()
    os.mkfifo(places.plugins / "pipe" / "plugin.yaml")
    found = places.discover()
    assert [(p.name, p.is_failed) for p in found.plugins] == [("fine", False), ("pipe", True)]


def test_an_unreadable_folder_is_a_row(places: Places) -> None:
    folder = places.folder_plugin("locked")
    places.folder_plugin("fine")
    folder.chmod(0)
    try:
        found = places.discover()
    finally:
        folder.chmod(0o755)
    states = {p.name: p.is_failed for p in found.plugins}
    assert states == {"fine": False, "locked": os.geteuid() != 0}  # root may read everything


def test_a_folder_with_another_name_than_the_plugin_is_a_warning(places: Places) -> None:
    places.write("plugins/wrong-name/plugin.yaml", 'name: right-name\nversion: "1.0"\n')
    plugin = only(places.discover())
    assert (plugin.name, plugin.is_failed) == ("right-name", False)
    assert [str(f) for f in plugin.findings] == [
        "plugin.yaml:1:7: name: the folder is called 'wrong-name', the plugin 'right-name' (rename the folder to right-name)"
    ]


# Tool files --------------------------------------------------------------------------------------------------------------


def test_one_broken_tool_file_hides_no_other(places: Places) -> None:
    files = {
        "tools/a.tool.json": script_tool("a"),
        "tools/b.tool.json": "{",
        "tools/c.tool.json": script_tool("c", zz=1),
        "tools/d.tool.json": script_tool("d", capabilities=["write:fs"]),
        "tools/e.tool.json": script_tool("e"),
        "tools/.hidden.tool.json": script_tool("hidden"),
        "tools/notes.json": "{}",
    }
    places.folder_plugin("text", "tools: {entry: ./tools}\n", files=files)
    plugin = only(places.discover())
    assert not plugin.is_failed
    assert plugin.declared_tools == ("text:a", "text:e")
    assert [spec.name for spec in plugin.specs()] == ["text:a", "text:e"]
    assert [str(f.where).partition(":")[0] for f in plugin.tools.findings] == [
        "tools/b.tool.json", "tools/c.tool.json", "tools/d.tool.json",
    ]  # fmt: skip


def test_the_same_tool_in_two_files_names_both(places: Places) -> None:
    files = {"tools/a.tool.json": script_tool("my_tool"), "tools/b.tool.json": script_tool("MyTool")}
    places.folder_plugin("text", "tools: {entry: tools}\n", files=files)
    plugin = only(places.discover())
    assert plugin.declared_tools == ("text:my_tool",)
    assert [f.located for f in plugin.tools.findings] == [
        "tools/b.tool.json:1:8: id: tools/b.tool.json defines 'text:MyTool', which reads like 'text:my_tool' of tools/a.tool.json"
    ]


def test_a_tool_folder_without_tool_files_is_reported(places: Places) -> None:
    places.folder_plugin("empty", "tools: {entry: tools}\n", files={"tools/a.json": "{}"})
    places.folder_plugin("missing", "tools: {entry: tools}\n")
    empty, missing = places.discover().plugins
    assert [(f.severity, f.hint) for f in empty.tools.findings] == [("warning", "rename a.json to a.tool.json")]
    assert [f.message for f in missing.tools.findings] == ["there is no 'tools' in the plugin's folder"]


def test_the_entry_may_be_one_file_or_the_folder_itself(places: Places) -> None:
    places.folder_plugin("one", "tools: {entry: tools/x.tool.json}\n", files={"tools/x.tool.json": script_tool("x")})
    places.folder_plugin("here", "tools: {entry: .}\n", files={"x.tool.json": script_tool("x")})
    assert [p.declared_tools for p in places.discover().plugins] == [("here:x",), ("one:x",)]


def test_inline_tools_are_declared_with_or_without_their_parameters(places: Places) -> None:
    places.folder_plugin(
        "text",
        "tools:\n  - {id: count, implementation: {type: python}}\n"
        "  - {id: up, description: d, parameters: {type: object}, implementation: {type: script, command: [python, u.py]}}\n",
    )
    plugin = only(places.discover())
    assert set(plugin.declared_tools) == {"text:count", "text:up"}
    assert plugin.tools.unknown == ("text:count",)
    assert [s.source for s in plugin.specs()] == ["plugin.yaml: tools.1"]


# Installed ---------------------------------------------------------------------------------------------------------------


def test_an_installed_plugin_is_found_and_not_imported(places: Places) -> None:
    places.installed_plugin("text", "tools:\n  - {id: count, implementation: {type: python}}\n")
    plugin = only(places.discover())
    assert (plugin.name, plugin.source, plugin.module) == ("text", "entry_point", "tavern_plugin_text")
    assert (plugin.distribution, plugin.distribution_version) == ("tavern-plugin-text", "1.0")
    assert plugin.entry_point == "tavern_plugin_text"
    assert plugin.declared_tools == ("text:count",)
    assert plugin.findings == ()
    assert plugin.folder == (places.site / "tavern_plugin_text").resolve()
    assert "tavern_plugin_text" not in sys.modules


def test_a_dotted_package_is_walked_without_importing_its_parents(places: Places) -> None:
    places.distribution("tavern-plugin-deep", "deep = acme_suite.plugins.deep\n")
    places.write("site/acme_suite/__init__.py", BOOBY_TRAP)
    places.write("site/acme_suite/plugins/inner.txt")  # a namespace package in between
    places.write("site/acme_suite/plugins/deep/__init__.py", BOOBY_TRAP)
    places.write("site/acme_suite/plugins/deep/plugin.yaml", 'name: deep\nversion: "1.0"\n')
    plugin = only(places.discover())
    assert not plugin.is_failed
    assert plugin.folder == (places.site / "acme_suite/plugins/deep").resolve()
    assert "acme_suite" not in sys.modules


def test_a_namespace_package_may_be_spread_over_the_path(places: Places) -> None:
    places.distribution("tavern-plugin-b", "b = acme.b\n", site="second")
    places.write("site/acme/a/__init__.py", BOOBY_TRAP)
    places.write("second/acme/b/__init__.py", BOOBY_TRAP)
    places.write("second/acme/b/plugin.yaml", 'name: b\nversion: "1.0"\n')
    plugin = only(places.discover(paths=[places.site, places.root / "second"]))
    assert plugin.folder == (places.root / "second/acme/b").resolve()


REFUSED = [
    ("text = single\n", {"single.py": BOOBY_TRAP}, "names a bare module", "move single.py to single/__init__.py"),
    ("text = gone\n", {}, "is not installed", "pip install --force-reinstall tavern-plugin-text"),
    ("text = space\n", {"space/x.py": ""}, "names a namespace package", "add an __init__.py to space/"),
    ("text = pack:plugin\n", {"pack/__init__.py": BOOBY_TRAP}, "names an object", 'write text = "pack"'),
    ("text = pack.\n", {"pack/__init__.py": BOOBY_TRAP}, "not the name of a package", "write text = "),
    ("text = ../pack\n", {"pack/__init__.py": BOOBY_TRAP}, "not the name of a package", "write text = "),
    ("text = pack\n", {"pack/__init__.py": BOOBY_TRAP}, "there is no plugin.yaml in the package pack", "package-data"),
    ("text = pack\n", {"pack/__init__.py": BOOBY_TRAP, "pack/plugin.yml": ""}, "but plugin.yml", "rename"),
    ("text = pack\n", {"pack/__init__.py": "", "pack/plugin.yaml": "name: text\n"}, "'version' is missing", "add"),
]


@pytest.mark.parametrize(("entry", "files", "words", "repair"), REFUSED)
def test_what_cannot_be_a_plugin_is_a_failed_row_with_its_repair(
    places: Places, entry: str, files: dict[str, str], words: str, repair: str
) -> None:
    places.distribution("tavern-plugin-text", entry)
    for relative, text in files.items():
        places.write(f"site/{relative}", text)
    before = set(sys.modules)
    plugin = only(places.discover())
    assert plugin.name == "text"
    assert words in reason(plugin)
    assert repair in reason(plugin)
    assert not {"single", "pack", "space"} & (set(sys.modules) - before)


def test_names_and_versions_that_do_not_agree_are_warnings(places: Places) -> None:
    places.distribution("something-else", "other-entry = pack\n", version="1.0")
    places.write("site/pack/__init__.py", BOOBY_TRAP)
    places.write("site/pack/plugin.yaml", 'name: text\nversion: "1.1"\n')
    plugin = only(places.discover())
    assert (plugin.name, plugin.is_failed) == ("text", False)
    assert [f.message for f in plugin.findings] == [
        "the entry point is called 'other-entry', the plugin 'text'",
        "the distribution is called 'something-else', the plugin 'text'",
        "plugin.yaml says version 1.1, the distribution something-else 1.0",
    ]


def test_equal_versions_may_be_written_differently(places: Places) -> None:
    places.installed_plugin("text", version="1.0")
    places.write("site/tavern_plugin_text/plugin.yaml", 'name: text\nversion: "1.0.0"\n')
    assert only(places.discover()).findings == ()


def test_several_plugins_of_one_distribution(places: Places) -> None:
    places.distribution("acme-suite", "a = acme_a\nb = acme_b\n")
    for name in "ab":
        places.write(f"site/acme_{name}/__init__.py", BOOBY_TRAP)
        places.write(f"site/acme_{name}/plugin.yaml", f'name: {name}\nversion: "1.0"\n')
    found = places.discover()
    assert [(p.name, p.findings) for p in found.plugins] == [("a", ()), ("b", ())]


def test_a_distribution_that_is_twice_on_the_path_counts_once(places: Places) -> None:
    places.installed_plugin("text")
    twin = places.root / "twin"
    twin.symlink_to(places.site, target_is_directory=True)
    found = places.discover(paths=[places.site, Path(f"{places.site}/"), twin, places.site])
    assert (names(found), found.diagnostics) == (["text"], ())


def test_the_folder_of_a_package_is_the_real_one_whatever_links_lead_there(places: Places) -> None:
    text, words = places.installed_plugin("text"), places.installed_plugin("words")
    words.rename(places.root / "elsewhere")
    words.symlink_to(places.root / "elsewhere", target_is_directory=True)
    twin = places.root / "twin"
    twin.symlink_to(places.site, target_is_directory=True)
    found = places.discover(paths=[twin])
    assert [plugin.folder for plugin in found.plugins] == [text.resolve(), places.root.resolve() / "elsewhere"]


def test_the_first_distribution_of_a_name_on_the_path_hides_the_others(places: Places) -> None:
    places.installed_plugin("text", version="1.0")
    places.write("user/tavern_plugin_text/plugin.yaml", 'name: text\nversion: "2.0"\n')
    places.write("user/tavern_plugin_text/__init__.py", BOOBY_TRAP)
    places.distribution("tavern-plugin-text", "text = tavern_plugin_text\n", "2.0", site="user")
    first = only(places.discover(paths=[places.site, places.root / "user"]))
    second = only(places.discover(paths=[places.root / "user", places.site]))
    assert (first.distribution_version, first.version) == ("1.0", "1.0")
    assert (second.distribution_version, second.version) == ("2.0", "2.0")


def test_the_rest_of_an_interrupted_upgrade_is_reported_and_the_newer_counts(places: Places) -> None:
    places.installed_plugin("text", version="10.0")
    places.distribution("tavern-plugin-text", "text = tavern_plugin_text\n", "9.0")
    places.distribution("~avern-plugin-text", "text = tavern_plugin_text\n", "9.0")
    found = places.discover()
    assert only(found).distribution_version == "10.0"
    assert ["is installed twice" in d.message for d in found.diagnostics] == [True]


BROKEN: list[tuple[str, bytes | None, bytes]] = [
    ("missing metadata", None, b"[tavern.plugins]\nx = nothing\n"),
    ("empty metadata", b"", b"[tavern.plugins]\nx = nothing\n"),
    ("binary metadata", b"\xff\xfe\x00", b"[tavern.plugins]\nx = nothing\n"),
    ("undecodable entry points", b"Name: x\nVersion: 1\n\n", b"[tavern.plugins]\nx = \xff\xff\n"),
    ("no equals sign", b"Name: x\nVersion: 1\n\n", b"[tavern.plugins]\nnonsense\n"),
    ("nothing behind it", b"Name: x\nVersion: 1\n\n", b"[tavern.plugins]\nx =\n"),
    ("twice", b"Name: x\nVersion: 1\n\n", b"[tavern.plugins]\nx = nothing\nx = nothing\n"),
    ("huge", b"Name: x\nVersion: 1\n\n", b"[tavern.plugins]\n" + b"x" * 1_100_000),
]


@pytest.mark.parametrize(("metadata", "entry_points"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_a_broken_distribution_stops_no_discovery_and_is_named(
    places: Places, metadata: bytes | None, entry_points: bytes
) -> None:
    places.installed_plugin("fine")
    info = places.distribution("broken-one", entry_points)
    (info / "METADATA").unlink()
    if metadata is not None:
        (info / "METADATA").write_bytes(metadata)
    found = places.discover()
    assert [p.name for p in found.plugins if not p.is_failed] == ["fine"]
    reported = [d.message for d in found.diagnostics] + [reason(p) for p in found.plugins if p.is_failed]
    assert any("broken" in text or " x" in text for text in reported)


def test_other_groups_comments_and_extras_are_understood(places: Places) -> None:
    text = b"\xef\xbb\xbf# by hand\n[other]\ntext = wrong\n\n[tavern.plugins]\n; note\n\ntext=tavern_plugin_text [fast]\n[z]\nq = r\n"
    places.installed_plugin("text")
    places.distribution("tavern-plugin-text", text)
    plugin = only(places.discover())
    assert not plugin.is_failed
    assert plugin.module == "tavern_plugin_text"


@pytest.mark.slow
def test_two_hundred_distributions_with_twenty_broken(places: Places) -> None:
    for number in range(180):
        places.installed_plugin(f"good-{number:03}")
    for number in range(20):
        name = f"bad-{number:02}"
        package = places.installed_plugin(name)
        if number % 3 == 0:
            (package / "plugin.yaml").unlink()
        elif number % 3 == 1:
            (package / "plugin.yaml").write_text("name: [")
        else:
            shutil.rmtree(package)
    found = places.discover()
    assert sum(not p.is_failed for p in found.plugins) == 180
    failed = [p for p in found.plugins if p.is_failed]
    assert [p.name for p in failed] == [f"bad-{number:02}" for number in range(20)]
    assert all(reason(p) for p in failed)
    files = [str(getattr(module, "__file__", None)) for module in sys.modules.values()]
    assert not [file for file in files if file.startswith(str(places.root))]  # nothing was imported


def test_a_legacy_development_install_is_found_by_its_egg_info(places: Places) -> None:
    places.write("work/tavern_plugin_text/__init__.py", BOOBY_TRAP)
    places.write("work/tavern_plugin_text/plugin.yaml", 'name: text\nversion: "1.0"\n')
    places.write("work/tavern_plugin_text.egg-info/PKG-INFO", "Name: tavern-plugin-text\nVersion: 1.0\n\n")
    places.write("work/tavern_plugin_text.egg-info/entry_points.txt", "[tavern.plugins]\ntext = tavern_plugin_text\n")
    places.write("site/easy-install.pth", f"{places.root}/work\n")
    plugin = only(places.discover())
    assert (plugin.name, plugin.findings, plugin.distribution_version) == ("text", (), "1.0")


# Editable and zipped -----------------------------------------------------------------------------------------------------


def test_an_editable_install_by_path_file(places: Places) -> None:
    places.distribution("tavern-plugin-text", "text = tavern_plugin_text\n")
    places.write("checkout/src/tavern_plugin_text/__init__.py", BOOBY_TRAP)
    places.write("checkout/src/tavern_plugin_text/plugin.yaml", 'name: text\nversion: "1.0"\n')
    places.write("site/__editable__.text.pth", f"# a comment\nimport os\n{places.root}/checkout/src\n/nowhere\n")
    assert only(places.discover()).folder == (places.root / "checkout/src/tavern_plugin_text").resolve()


@pytest.mark.parametrize("annotation", ["", ": dict[str, str]"])
def test_an_editable_install_by_finder_is_read_from_its_mapping(places: Places, annotation: str) -> None:
    places.distribution("tavern-plugin-text", "text = tavern_plugin_text.inner\n")
    source = places.write("work/tavern_plugin_text/inner/__init__.py", BOOBY_TRAP).parent
    places.write("work/tavern_plugin_text/__init__.py", BOOBY_TRAP)
    (source / "plugin.yaml").write_text('name: text\nversion: "1.0"\n')
    mapping = {"tavern_plugin_text": str(source.parent), "other": "/nowhere"}
    places.write("site/__editable___text_1_0_finder.py", f"raise SystemExit\nMAPPING{annotation} = {mapping!r}\n")
    places.write("site/__editable___broken_finder.py", "MAPPING = {")
    assert only(places.discover()).folder == source.resolve()


def test_an_editable_install_is_asked_from_the_finders_of_this_interpreter(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.distribution("tavern-plugin-text", "text = tavern_plugin_text_live\n")
    init = places.write("work/tavern_plugin_text_live/__init__.py", BOOBY_TRAP)
    (init.parent / "plugin.yaml").write_text('name: text\nversion: "1.0"\n')

    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != "tavern_plugin_text_live":
            return None
        where = [str(init.parent)]
        return importlib.util.spec_from_file_location(name, init, submodule_search_locations=where)

    def broken(name: str, path: Any = None, target: Any = None) -> Any:
        raise RuntimeError("somebody else's finder")

    finders = [SimpleNamespace(find_spec=broken), SimpleNamespace(find_spec=find_spec), *sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.setattr(sys, "path", [str(places.site), *sys.path])
    found = places.discover(sys_path=None)
    [plugin] = [p for p in found.plugins if p.name == "text"]
    assert plugin.folder == init.parent.resolve()
    assert "tavern_plugin_text_live" not in sys.modules


def test_a_link_tree_install_reads_files_through_its_links(places: Places) -> None:
    places.distribution("tavern-plugin-text", "text = tavern_plugin_text\n")
    places.write("work/tavern_plugin_text/plugin.yaml", 'name: text\nversion: "1.0"\ntools: {entry: tools}\n')
    places.write("work/tavern_plugin_text/__init__.py", BOOBY_TRAP)
    places.write("work/tavern_plugin_text/tools/a.tool.json", script_tool("a"))
    outside = places.write("work/secret.tool.json", script_tool("secret"))
    for relative in ("plugin.yaml", "__init__.py", "tools/a.tool.json"):
        link = places.root / "tree/tavern_plugin_text" / relative
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(places.root / "work/tavern_plugin_text" / relative)
    (places.root / "tree/tavern_plugin_text/tools/secret.tool.json").symlink_to(outside)
    places.write("site/__editable__.text.pth", f"{places.root}/tree\n")
    plugin = only(places.discover())
    assert not plugin.is_failed
    assert plugin.declared_tools == ("text:a",)
    assert len(plugin.tools.findings) == 1


def test_a_zipped_plugin_is_read_through_the_zip_and_unpacked_on_demand(places: Places) -> None:
    files = {
        "plugin.yaml": 'name: zipped\nversion: "1.0"\ntools: {entry: ./tools}\n',
        "tools/a.tool.json": script_tool("a"),
        "run.py": "print('{}')\n",
        "../evil.py": "x",
        "/abs.py": "x",
    }
    archive = places.zipped_plugin("zipped", files)
    plugin = only(places.discover(paths=[places.site, archive]))
    assert not plugin.is_failed
    assert (plugin.folder, plugin.module) == (None, "tavern_plugin_zipped")
    assert plugin.declared_tools == ("zipped:a",)
    cache = places.root / "cache"
    folder = plugin.materialise(cache)
    assert folder is not None
    assert (folder / "run.py").read_text() == "print('{}')\n"
    assert sorted(p.name for p in folder.iterdir()) == ["__init__.py", "plugin.yaml", "run.py", "tools"]
    assert plugin.materialise(cache) == folder
    assert [p.name for p in cache.iterdir()] == [folder.name]
    assert not (places.root / "evil.py").exists()
    assert "tavern_plugin_zipped" not in sys.modules


def test_a_zip_without_manifest_and_a_corrupt_zip_stop_no_discovery(places: Places) -> None:
    places.installed_plugin("fine")
    bare = places.zipped_plugin("bare", {})
    damaged = places.write("damaged.whl", b"PK\x03\x04 not a zip")
    found = places.discover(paths=[places.site, damaged, bare])
    assert [(p.name, p.is_failed) for p in found.plugins] == [("bare", True), ("fine", False)]


# Clashes -----------------------------------------------------------------------------------------------------------------


def test_of_one_name_the_project_folder_wins_and_both_are_named(places: Places) -> None:
    places.installed_plugin("text")
    places.folder_plugin("text")
    places.write("more/text/plugin.yaml", 'name: text\nversion: "3.0"\n')
    found = places.discover(roots=[places.plugins, places.root / "more"])
    assert only(found).folder == (places.plugins / "text").resolve()
    assert [(d.code, d.details["winner"], d.details["loser"]) for d in found.diagnostics] == [
        ("NAME_CONFLICT", str(places.plugins / "text"), str(places.root / "more/text")),
        ("NAME_CONFLICT", str(places.plugins / "text"), "tavern-plugin-text 1.0 (entry point tavern_plugin_text)"),
    ]
    assert all(str(places.plugins / "text") in d.message and d.hint for d in found.diagnostics)


def test_of_two_distributions_the_first_by_name_wins_whatever_the_order(places: Places) -> None:
    for name in ("zeta-dist", "alpha-dist"):
        package = name.replace("-", "_")
        places.distribution(name, f"text = {package}\n")
        places.write(f"site/{package}/__init__.py", BOOBY_TRAP)
        places.write(f"site/{package}/plugin.yaml", 'name: text\nversion: "1.0"\n')
    found = places.discover()
    assert only(found).distribution == "alpha-dist"
    [diagnostic] = found.diagnostics
    assert "alpha-dist 1.0" in diagnostic.message
    assert "zeta-dist 1.0" in diagnostic.message


def test_a_missing_entry_of_nodes_is_reported_until_it_is_there(places: Places) -> None:
    folder = places.folder_plugin("text", "nodes: {entry: src/nodes}\n", files={"src/a.txt": ""})
    index = places.root / "index.json"
    for _ in range(2):
        [finding] = only(places.discover(index_file=index)).findings
        assert (finding.severity, finding.message) == ("warning", "there is no 'src/nodes' in the plugin's folder")
    (folder / "src" / "nodes").mkdir()
    assert only(places.discover(index_file=index)).findings == ()


def test_one_plugin_that_is_listed_twice_is_named_by_both_places(places: Places) -> None:
    (places.plugins / "zlink").symlink_to(places.folder_plugin("text"))
    places.distribution("tavern-plugin-b", "b = package_b\nb2 = package_b\n")
    places.write("site/package_b/__init__.py", BOOBY_TRAP)
    places.write("site/package_b/plugin.yaml", 'name: b\nversion: "1.0"\n')
    listed, linked = (str(places.plugins / name) for name in ("text", "zlink"))
    package = "tavern-plugin-b 1.0 (entry point {} = package_b)"
    assert [(d.message, d.hint) for d in places.discover().diagnostics if d.code == "NAME_CONFLICT"] == [
        (f"the plugin 'text' is found twice, as {listed} and as {linked}", "remove one of them"),
        (
            f"the plugin 'b' is found twice, as {package.format('b')} and as {package.format('b2')}",
            "remove one of them",
        ),
    ]


def test_a_root_that_is_named_twice_counts_once(places: Places) -> None:
    places.folder_plugin("text")
    found = places.discover(roots=[places.plugins, places.root / "." / "plugins"])
    assert (names(found), found.diagnostics) == (["text"], ())


def test_names_that_read_alike_are_one_name(places: Places) -> None:
    places.folder_plugin("my-plugin")
    places.folder_plugin("myplugin")
    found = places.discover()
    assert names(found) == ["my-plugin"]
    assert "'myplugin'" in found.diagnostics[0].message
    assert "reads like 'my-plugin'" in found.diagnostics[0].message


# The artifact ------------------------------------------------------------------------------------------------------------


def test_the_artifact_hash_follows_content_and_names_and_nothing_else(places: Places) -> None:
    folder = places.folder_plugin("text", files={"a.py": "1", "data/b.txt": "2"})

    def artifact() -> str:
        return only(places.discover()).artifact_hash()

    first = artifact()
    places.write("plugins/text/__pycache__/a.cpython-311.pyc", "x")
    places.write("plugins/text/.git/HEAD", "x")
    os.utime(folder / "a.py", (1, 1))
    assert artifact() == first
    (folder / "a.py").write_text("2")
    second = artifact()
    (folder / "a.py").rename(folder / "c.py")
    third = artifact()
    assert len({first, second, third}) == 3
    assert len(first) == 64


LEADS_OUT = ["plugins/text-evil", "plugins/text-evil/deep", "plugins", "elsewhere/text"]
"""Where a link of plugins/text leads: a neighbour whose name begins like its own, a folder of it, the folder above, anywhere."""


@pytest.mark.slow
@pytest.mark.parametrize("target", LEADS_OUT)
@pytest.mark.parametrize("link", ["way", "way/in", "way/in/deep"])
def test_no_file_of_a_plugin_lies_behind_a_link_that_leaves_it(places: Places, link: str, target: str) -> None:
    """Listing, reading, serving and writing, with the link as first, middle and last folder of the path."""
    folder = places.folder_plugin("text", FILES_OF_A_PLUGIN)
    places.write("plugins/text/way/in/deep/here", "")
    entry = "way/in/deep".removeprefix(link).lstrip("/")
    outside = places.root / target / entry
    for name, text in {
        "evil.tool.json": script_tool("evil"),
        "index.js": "",
        "style.css": "",
        "run.py": "print('{}')",
    }.items():
        places.write(f"{target}/{entry}/{name}", text)
    shutil.rmtree(folder / link)
    (folder / link).symlink_to(places.root / target, target_is_directory=True)
    before = sorted(outside.iterdir())

    report = check_plugin(folder)
    reported = [f for f in report.findings if "a link that leaves the plugin's folder" in f.message]
    assert {f.where.line for f in reported if f.where} >= {3, 4, 6, 7}, report.findings
    with pytest.raises(ManifestInvalid):
        write_tools(folder, ["fresh"])
    with Tavern.open(
        {"plugins": {"roots": [str(places.plugins)], "entryPoints": False}}, home=places.home, activate="none"
    ) as tavern:
        assert [spec.id for spec in tavern.tools.snapshot() if spec.plugin == "text"] == []
        assert all(asset.problem for e in tavern.extensions() if e.name == "text" for asset in e.assets)
        assert {e.name: e.dev_entry for e in tavern.extensions()}["text"] == ""
    assert sorted(outside.iterdir()) == before


FILES_OF_A_PLUGIN = """\
tools: {entry: way/in/deep}
nodes: {entry: way/in/deep}
frontend:
  build: {entry: way/in/deep/index.js,
    styles: [way/in/deep/style.css]}
  dev: {entry: way/in/deep/index.js}
"""
