"""The cached index: a warm start reads nothing again, and an edit, an upgrade or damage is always noticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tavern_core.kernel.discovery import discovery as discovery_module
from tavern_core.kernel.discovery.discovery import Discovery
from tavern_core.kernel.discovery.distributions import current_entry
from tavern_core.model.tool import ToolSpec
from tests.forked_programs import ForkedProgram

from .places import Places, script_tool, wait_for_the_clock

ROOT = Path(__file__).resolve().parents[2]
TOOLS = "tools: {entry: ./tools}\n"
DECLARED = "tools:\n  - {id: count, implementation: {type: python}}\n"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if everything had been installed a while ago: what was just written may be trusted by its time."""
    real = time.time_ns
    monkeypatch.setattr(discovery_module.time, "time_ns", lambda: real() + 10**10)


def snapshot(found: Discovery) -> object:
    return [
        (p.name, p.version, p.declared_tools, p.is_failed, [str(f) for f in p.findings], p.facts, p.location,
         [s.to_json() for s in p.specs()], [str(f) for f in p.tools.findings], p.manifest)
        for p in found.plugins
    ], [d.message for d in found.diagnostics]  # fmt: skip


def index_files(places: Places) -> list[Path]:
    return sorted(places.home.glob("index-*.json"))


def fill(places: Places) -> None:
    places.installed_plugin("text", DECLARED)
    places.installed_plugin("broken", "start: 7\n")
    places.folder_plugin("files", TOOLS + "zukunft: 1\n", files={"tools/a.tool.json": script_tool("a"), "run.py": ""})
    places.folder_plugin("text")
    places.distribution("bare-module", "bare = bare\n")
    places.write("site/bare.py")


@pytest.mark.usefixtures("later")
def test_a_warm_start_says_the_same_and_writes_nothing(places: Places) -> None:
    fill(places)
    cold = snapshot(places.discover())
    assert snapshot(places.discover(index=True)) == cold
    [file] = index_files(places)
    before = (file.stat().st_mtime_ns, file.read_bytes())
    assert snapshot(places.discover(index=True)) == cold
    assert (file.stat().st_mtime_ns, file.read_bytes()) == before


@pytest.mark.slow
def test_a_warm_start_imports_neither_pydantic_nor_yaml_nor_any_plugin(places: Places) -> None:
    fill(places)
    wait_for_the_clock(places.site, *places.site.rglob("*"), *places.plugins.rglob("*"))
    program = f"""
import sys
from pathlib import Path
from tavern_core.kernel.discovery.discovery import discover
from tavern_core.kernel.discovery.distributions import current_entry
found = discover(roots=[Path({str(places.plugins)!r})], index_file=Path({str(places.home / "index.json")!r}),
                 sys_path=[{str(places.site)!r}])
print([p.name for p in found.plugins], sum(len(p.declared_tools) for p in found.plugins),
      sorted({{"pydantic", "yaml", "importlib_metadata", "pluggy", "jsonschema"}} & set(sys.modules)),
      [m for m in sys.modules if "plugin_" in m and not m.startswith("tavern_core")])
"""
    cold = [plugin.name for plugin in places.discover(index=True).plugins]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == f"{cold} 1 [] []\n"
    assert cold == ["bare", "broken", "files", "text"]


def edit_manifest(places: Places) -> None:
    places.write("plugins/files/plugin.yaml", f'name: files\nversion: "2.0.0"\n{TOOLS}')


def replace_manifest(places: Places) -> None:
    new = places.write("plugins/files/new", f'name: files\nversion: "3.0"\n{TOOLS}')
    new.rename(places.plugins / "files/plugin.yaml")


def add_tool_file(places: Places) -> None:
    places.write("plugins/files/tools/b.tool.json", script_tool("b"))


def remove_tool_file(places: Places) -> None:
    (places.plugins / "files/tools/a.tool.json").unlink()


def add_code(places: Places) -> None:
    places.write("plugins/files/__init__.py")


def repair_broken(places: Places) -> None:
    places.write("site/tavern_plugin_broken/plugin.yaml", 'name: broken\nversion: "1.0"\n')


def add_folder(places: Places) -> None:
    places.folder_plugin("added")


def remove_folder(places: Places) -> None:
    (places.plugins / "text/plugin.yaml").unlink()
    (places.plugins / "text").rmdir()


def upgrade(places: Places) -> None:
    for file in (places.site / "tavern_plugin_broken-1.0.dist-info").iterdir():
        file.unlink()
    (places.site / "tavern_plugin_broken-1.0.dist-info").rmdir()
    places.installed_plugin("broken", DECLARED, version="2.0")


def install_another(places: Places) -> None:
    places.installed_plugin("another", DECLARED)


def edit_entry_points_in_place(places: Places) -> None:
    file = places.site / "bare_module-1.0.dist-info/entry_points.txt"
    file.write_text("[tavern.plugins]\nrenamed = bare\n")


def make_the_module_a_package(places: Places) -> None:
    places.write("site/bare/__init__.py")
    places.write("site/bare/plugin.yaml", 'name: bare\nversion: "1.0"\n')


def make_the_namespace_a_package(places: Places) -> None:
    places.write("site/spaced/__init__.py")


def edit_metadata_in_place(places: Places) -> None:
    file = places.site / "develop.egg-info/PKG-INFO"
    file.write_text(file.read_text().replace("1.0", "1.9"))


def repair_metadata(places: Places) -> None:
    places.write("site/tavern_plugin_broken-1.0.dist-info/METADATA", "Name: tavern-plugin-broken\nVersion: 1.0\n")


EDITS: list[Callable[[Places], None]] = [
    edit_manifest, replace_manifest, add_tool_file, remove_tool_file, add_code, repair_broken, add_folder, remove_folder,
    upgrade, install_another, edit_entry_points_in_place, make_the_module_a_package,
    make_the_namespace_a_package, edit_metadata_in_place, repair_metadata,
]  # fmt: skip


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edit_is_noticed_at_the_next_start(places: Places, edit: Callable[[Places], None]) -> None:
    fill(places)
    places.distribution("spaced", "spaced = spaced\n")
    places.write("site/spaced/plugin.yaml", 'name: spaced\nversion: "1.0"\n')
    places.developed_plugin("develop")
    (places.site / "tavern_plugin_broken-1.0.dist-info/METADATA").write_text("Name: tavern-plugin-broken\n")
    before = snapshot(places.discover(index=True))
    wait_for_the_clock(places.site, *places.site.rglob("*"), *places.plugins.rglob("*"))
    edit(places)
    after = snapshot(places.discover(index=True))
    assert after == snapshot(places.discover())
    if edit is not add_code:
        assert after != before


def test_a_start_looks_only_at_metadata_of_which_another_version_may_take_the_place(places: Places) -> None:
    fill(places)
    places.developed_plugin("develop")
    entry = current_entry(str(places.site), 0)
    assert [found.folder for found in entry.distributions if found.metadata] == ["develop.egg-info"]


def test_an_edit_within_the_same_tick_of_the_clock_is_noticed(places: Places) -> None:
    for number in range(20):
        places.folder_plugin("text", f"description: v{number:02}\n")
        [plugin] = places.discover(index=True).plugins
        assert plugin.facts.description == f"v{number:02}"


@pytest.mark.usefixtures("later")
def test_a_package_that_now_hides_the_old_one_is_noticed(places: Places) -> None:
    places.installed_plugin("text")
    front = places.root / "front"
    front.mkdir()
    paths = [front, places.site]
    [plugin] = places.discover(index=True, paths=paths).plugins
    assert plugin.folder == (places.site / "tavern_plugin_text").resolve()
    wait_for_the_clock(front)
    places.write("front/tavern_plugin_text/__init__.py")
    places.write("front/tavern_plugin_text/plugin.yaml", 'name: text\nversion: "1.0"\n')
    [plugin] = places.discover(index=True, paths=paths).plugins
    assert plugin.folder == (front / "tavern_plugin_text").resolve()


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("link", ["current", "current/plugins", "current/plugins/text", "current/site"])
def test_a_link_that_leads_to_another_release_is_noticed(link: str, places: Places) -> None:
    """The release that it led to before is still there, as it was."""
    place = places.root / link
    place.parent.mkdir(parents=True, exist_ok=True)

    def version(release: str) -> str:
        below = place.relative_to(places.root / "current")
        place.unlink(missing_ok=True)
        place.symlink_to(places.root / release / below)
        options = {"roots": [places.root / "current/plugins"], "paths": [places.root / "current/site"]}
        [plugin] = places.discover(index=True, **options).plugins
        return plugin.version

    for number in (1, 2):
        manifest = f'name: text\nversion: "{number}.0"\n'
        if link.endswith("site"):
            places.write(f"{number}/site/tavern_plugin_text/__init__.py")
            places.write(f"{number}/site/tavern_plugin_text/plugin.yaml", manifest)
            places.distribution("text", "text = tavern_plugin_text\n", site=f"{number}/site")
        else:
            places.write(f"{number}/plugins/text/plugin.yaml", manifest)
    assert [version(release) for release in ("1", "2", "1")] == ["1.0", "2.0", "1.0"]


@pytest.mark.usefixtures("later")
def test_tool_files_are_looked_at_again_when_the_plugin_is_used(places: Places) -> None:
    fill(places)
    places.discover(index=True)
    [plugin] = [p for p in places.discover(index=True).plugins if p.name == "files"]
    assert plugin.current_tools() is plugin.tools
    tool = places.plugins / "files/tools/a.tool.json"
    wait_for_the_clock(tool)
    tool.write_text(script_tool("a", description="new words"))
    assert plugin.tools.specs[0].description == ""
    assert plugin.current_tools().specs[0].description == "new words"
    tool.write_text("{")
    assert plugin.current_tools().ids == ()
    assert len(plugin.current_tools().findings) == 1


EDITS_IN_PLACE: dict[str, tuple[str, str]] = {
    # what: (before, after)
    "other words": (script_tool("a"), script_tool("a", description="new words")),
    "another id": (script_tool("a"), script_tool("c")),
    "an error": (script_tool("a"), "{"),
    "an error that was repaired": ("{", script_tool("a")),
    "an unknown key that was taken out": (script_tool("a", colour="red"), script_tool("a")),
    "a size that was reduced": (script_tool("a", description="x" * 1_000_001), script_tool("a")),
}


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("what", EDITS_IN_PLACE)
def test_what_was_edited_in_place_in_a_tool_file_is_known_at_the_next_start(places: Places, what: str) -> None:
    before, after = EDITS_IN_PLACE[what]
    files = {"tools/a.tool.json": before, "tools/b.tool.json": script_tool("b"), "run.py": ""}
    tool = places.folder_plugin("files", TOOLS, files=files) / "tools/a.tool.json"
    first = snapshot(places.discover(index=True))
    assert snapshot(places.discover(index=True)) == first
    wait_for_the_clock(tool)
    tool.write_text(after)  # the folder has the same time as before
    assert snapshot(places.discover(index=True)) == snapshot(places.discover()) != first


@pytest.mark.usefixtures("later")
def test_a_skill_that_is_written_into_a_folder_that_was_there_is_found_at_the_next_start(places: Places) -> None:
    folder = places.folder_plugin("office", "skills: {entry: skills}\n", files={"skills/letters/notes.txt": ""})
    assert places.discover(index=True).plugins[0].declared_tools == ()
    wait_for_the_clock(folder / "skills/letters")
    (folder / "skills/letters/SKILL.md").write_text("---\nname: letters\ndescription: Writes.\n---\nText\n")
    assert places.discover(index=True).plugins[0].declared_tools == ("skill:letters",)


# Damage ------------------------------------------------------------------------------------------------------------------


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def garbage(file: Path) -> None:
    file.write_bytes(b"\x00\xff" * 1000)


def other_json(file: Path) -> None:
    file.write_text(json.dumps({"format": 1, "key": "x", "crc": 0, "light": 3}) + "\n{}\n")


def nested(file: Path) -> None:
    file.write_text("[" * 100_000)


def header_only(file: Path) -> None:
    head = file.read_bytes().partition(b"\n")[0]
    file.write_bytes(head)


def a_folder(file: Path) -> None:
    file.unlink()
    (file / "x").mkdir(parents=True)


def a_loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


def unreadable(file: Path) -> None:
    file.chmod(0)


@pytest.mark.parametrize(
    "damage", [truncate, flip, empty, garbage, other_json, nested, header_only, a_folder, a_loop, unreadable],
    ids=lambda damage: damage.__name__,
)  # fmt: skip
def test_a_corrupt_or_foreign_index_is_made_anew(places: Places, damage: Callable[[Path], None]) -> None:
    fill(places)
    expected = snapshot(places.discover(index=True))
    [file] = index_files(places)
    damage(file)
    assert snapshot(places.discover(index=True)) == expected
    assert snapshot(places.discover(index=True)) == expected


@pytest.mark.slow
def test_damage_at_any_place_is_noticed(places: Places) -> None:
    fill(places)
    expected = snapshot(places.discover(index=True))
    [file] = index_files(places)
    content = file.read_bytes()
    for step in range(50):
        damaged = bytearray(content)
        damaged[len(content) * step // 50] ^= 0x15
        file.write_bytes(damaged)
        assert snapshot(places.discover(index=True)) == expected, step


def test_a_home_that_cannot_be_written_is_no_error(places: Places) -> None:
    fill(places)
    places.write("home", "a file where the folder should be")
    found = places.discover(index=True)
    assert snapshot(found) == snapshot(places.discover())
    assert found.save() is False


def test_names_that_are_not_utf8_are_kept(places: Places) -> None:
    places.folder_plugin("fine")
    (places.plugins / os.fsdecode(b"b\xffd")).mkdir()
    first = [(p.name, p.is_failed) for p in places.discover(index=True).plugins]
    assert first == [(p.name, p.is_failed) for p in places.discover(index=True).plugins]
    assert first == [(os.fsdecode(b"b\xffd"), True), ("fine", False)]


# Several -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_path_and_each_set_of_roots_has_its_own_index_and_old_ones_go(places: Places) -> None:
    fill(places)
    for number in range(20):
        (places.root / f"extra{number}").mkdir()
        places.discover(index=True, paths=[places.site, places.root / f"extra{number}"])
    assert len(index_files(places)) == 16
    places.discover(index=True, roots=[])
    assert len(index_files(places)) == 16


def test_many_may_look_at_once(places: Places) -> None:
    fill(places)
    expected = snapshot(places.discover())
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: snapshot(places.discover(index=True)), range(24)))
    assert all(result == expected for result in results)
    assert [p.name for p in places.home.iterdir()] == [f.name for f in index_files(places)]


@pytest.mark.slow
def test_several_processes_share_one_home(places: Places) -> None:
    fill(places)
    program = f"""
from pathlib import Path
from tavern_core.kernel.discovery.discovery import discover
from tavern_core.kernel.discovery.distributions import current_entry
for _ in range(5):
    found = discover(roots=[Path({str(places.plugins)!r})], index_file=Path({str(places.home / "index.json")!r}),
                     sys_path=[{str(places.site)!r}])
    assert [p.name for p in found.plugins] == ["bare", "broken", "files", "text"], found.plugins
    found._index.is_changed = True
    assert found.save()
"""
    running = [ForkedProgram(["-c", program], cwd=ROOT) for _ in range(4)]
    assert [process.wait() for process in running] == [0, 0, 0, 0]
    assert len(index_files(places)) == 1


# What code offered -------------------------------------------------------------------------------------------------------


def spec(name: str, **more: object) -> ToolSpec:
    return ToolSpec.from_json({"id": name, "description": "counts", "inputSchema": {"type": "object"}, **more})


@pytest.mark.usefixtures("later")
def test_the_specs_of_an_activation_are_known_at_the_next_start(places: Places) -> None:
    folder = places.installed_plugin("text", DECLARED)
    found = places.discover(index=True)
    [plugin] = found.plugins
    assert plugin.specs() == ()
    artifact = plugin.artifact_hash()
    found.store_code(plugin, [spec("text:count"), spec("text:undeclared")])
    assert [s.to_json() for s in plugin.specs()] == [spec("text:count").to_json()]
    assert found.save()
    [again] = places.discover(index=True).plugins
    assert [s.to_json() for s in again.specs()] == [spec("text:count").to_json()]
    assert again.artifact_hash() == artifact
    wait_for_the_clock(folder / "__init__.py")
    (folder / "__init__.py").write_text("changed = True\n")
    [edited] = places.discover(index=True).plugins
    assert edited.specs() == ()
    assert edited.artifact_hash() != artifact


@pytest.mark.usefixtures("later")
def test_specs_survive_an_edit_of_the_manifest_only_as_long_as_files_say_so(places: Places) -> None:
    folder = places.installed_plugin("text", DECLARED)
    found = places.discover(index=True)
    found.store_code(found.plugins[0], [spec("text:count")])
    found.save()
    wait_for_the_clock(folder / "plugin.yaml")
    (folder / "plugin.yaml").write_text(f'name: text\nversion: "1.0"\ndescription: new\n{DECLARED}')
    [plugin] = places.discover(index=True).plugins
    assert (plugin.facts.description, plugin.specs()) == ("new", ())


def test_specs_that_are_no_json_are_not_kept(places: Places) -> None:
    places.installed_plugin("text", DECLARED)
    found = places.discover(index=True)
    odd = ToolSpec("text:count", input_schema={"type": "object", "default": object()})
    found.store_code(found.plugins[0], [odd])
    assert found.plugins[0].specs() == ()
    assert found.save()
