"""Scripts of plugins in their box, through a whole host: what was granted is there, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.box.descriptor_passing import LONGEST_WAIT_S
from tavern_core.box.policy import LAYERS
from tavern_core.box.protected_path_splitting import unprotected_entries
from tavern_core.isolation.closed_paths import Mount, read_mounts, with_mount_aliases
from tavern_core.kernel.execution import sync_async_drivers
from tests.rows import each_row

from ..executors.workbench import processes_with
from .conftest import EACH, Place, Shared, too_many_files_on_their_way

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


READ, WRITE = "answer = open(granted + '/note').read()", "open(granted + '/new', 'w').write('x')"
READ_OUTSIDE, WRITE_OUTSIDE = "open(outside + '/secret').read()", "open(outside + '/new', 'w')"
SHELL = "answer = subprocess.run(['/bin/sh', '-c', 'echo $((6*7))'], capture_output=True, text=True).stdout"
ITSELF = "answer = subprocess.run([sys.executable, '-c', 'print(42)'], capture_output=True, text=True).stdout"
CONNECT = "socket.create_connection(('127.0.0.1', port)).close()"
HERE = [{"name": name, "scope": ["./granted"]} for name in ("read:fs", "write:fs")]


MAY = [
    ([], "answer = open('own').read()", True),
    ([], "open('own', 'a')", False),
    ([], "open('new', 'w')", False),
    ([], READ, False),
    ([], READ_OUTSIDE, False),
    ([], "os.listdir(home)", False),
    ([], "open('/etc/passwd')", False),
    ([], "open(os.environ['HOME'] + '/x', 'w').write('x'); tempfile.mkstemp(); assert os.environ['HOME'] == tempfile.gettempdir()", True),
    ([], CONNECT, False),
    ([], "socket.socket(socket.AF_UNIX)", False),
    ([], SHELL, False),
    ([], ITSELF, True),
    ([], "import asyncio; asyncio.run(asyncio.sleep(0))", True),
    ([], "assert parent == 1 and all(int(n) < 40 for n in os.listdir('/proc') if n.isdigit())", True),
    (HERE[:1], READ, True),
    (HERE[:1], WRITE, False),
    (HERE[:1], READ_OUTSIDE, False),
    (HERE[1:], READ, False),
    (HERE[1:], WRITE, True),
    (HERE[1:], WRITE_OUTSIDE, False),
    (HERE, f"{WRITE}; {READ}; os.remove(granted + '/new')", True),
    (HERE, "os.symlink('/etc/passwd', granted + '/link')", False),
    (HERE, "os.mkfifo(granted + '/fifo')", False),
    (HERE, "os.chmod(granted + '/note', 0o777)", False),
    (HERE, "os.rename(granted + '/note', outside + '/note')", False),
    (["read:fs"], f"{READ}; {READ_OUTSIDE}", True),
    (["read:fs"], "open(home + '/audit/audit.jsonl')", False),
    (["read:fs", "write:fs"], WRITE_OUTSIDE, True),
    (["read:fs", "write:fs"], "open(lock, 'r+')", False),
    (["read:fs", "write:fs"], "open(project + '/tavern.yaml', 'r+')", False),
    (["read:fs", "write:fs"], "os.rename(project + '/tavern.yaml', outside + '/y')", False),
    (["read:fs", "write:fs"], "open(home + '/settings.json', 'w')", False),
    ([{"name": "write:fs", "scope": ["$data"]}, {"name": "read:fs", "scope": ["$data"]}], "open(data + '/x', 'w'); os.listdir(data)", True),
    ([{"name": "write:fs", "scope": ["$data"]}], "open(home + '/data/other', 'w')", False),
    (["network"], CONNECT, False),
    (["read:web"], CONNECT, False),
    (["network:host"], CONNECT, True),
    (["network"], "socket.socket(socket.AF_UNIX)", False),
    (["network"], "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)", False),
    (["process:spawn"], SHELL, True),
    (["process:spawn"], "subprocess.run(['/bin/cat', outside + '/secret'], check=True, capture_output=True)", None),
    ([{"name": "process:spawn", "scope": ["expr"]}], "answer = subprocess.run(['expr', '6', '*', '7'], capture_output=True, text=True).stdout", True),
    ([{"name": "process:spawn", "scope": ["expr"]}], SHELL, False),
]  # fmt: skip
"""Capabilities, what a script tries, and whether it may; None when the outcome is for the program that it starts."""


TIERS = ("none", "process")
Outcomes = Callable[[str, list[Any], str], Any]


@pytest.fixture(scope="module")
def tried(module_folder: Path) -> Iterator[Outcomes]:
    """`tried(tier, capabilities, code)`: what came of a row of `MAY`: whether it was done, and the answer.

    Opening a host and starting what starts its scripts takes longer than the scripts: one has a plugin for each tier and grant.
    """
    place = Place(module_folder / "may")
    kinds = [(tier, grants) for tier in TIERS for grants in {str(row[0]): row[0] for row in MAY}.values()]
    names = {str(kind): f"demo-{number}" for number, kind in enumerate(kinds)}
    for tier, grants in kinds:
        folder = shutil.copytree(place.plugin, place.plugin.parent / names[str((tier, grants))])
        (folder / "plugin.yaml").write_text(json.dumps({**place.manifest(*grants, tier=tier), "name": folder.name}))
        (place.home / "data" / folder.name).mkdir(parents=True)
    shutil.rmtree(place.plugin)
    found: dict[str, dict[str, Any]] = {}

    def outcome(tier: str, capabilities: list[Any], code: str) -> Any:
        name = names[str((tier, capabilities))]
        if name not in found:
            codes = [tried for given, tried, _ in MAY if given == capabilities]
            facts = {**place.facts, "codes": codes, "data": str(place.home / "data" / name)}
            with socket.create_server(("127.0.0.1", 0)) as server:
                facts["port"] = server.getsockname()[1]
                result = tavern.invoke_sync(f"{name}:try", {"code": EACH, "facts": facts})
            assert result.ok, result.error
            assert not [d for d in tavern.diagnostics if d.code == "ISOLATION_WEAK"]
            found[name] = dict(zip(codes, result.value["answer"], strict=True))
        return found[name][code]

    config = place.root / "tavern.yaml"
    config.write_text("plugins: {entryPoints: false}\n")
    with Tavern.open(config, home=place.home) as tavern:
        for name in names.values():
            if tavern.plugins[name].requested:
                tavern.grant(name, all_requested=True)
        yield outcome


@each_row(("capabilities", "code", "may"), MAY)
@each_row("tier", TIERS)
def test_a_script_may_what_its_plugin_was_granted(
    tried: Outcomes, capabilities: list[Any], code: str, may: bool | None, tier: str
) -> None:
    did, answer = tried(tier, capabilities, code)
    assert did is may, answer
    if may and "answer" in code:
        assert answer in ("text", "42\n")


def each(place: Place, tavern: Tavern, *codes: str) -> dict[str, Any]:
    """Whether each could be done."""
    place.facts["codes"] = list(codes)
    result = place.run(tavern, EACH)
    assert result.ok, result.error
    return {code: did for code, (did, _) in zip(codes, result.value["answer"], strict=True)}


WITHOUT_A_GRANT = {
    READ_OUTSIDE: True,
    WRITE_OUTSIDE: True,
    SHELL: True,
    CONNECT: True,
    "os.chmod(outside + '/secret', 0o600); os.utime(outside + '/secret')": True,
    "open(home + '/settings.json', 'w')": False,
    "os.listdir(home)": False,
    "open(lock, 'r+')": False,
}


def test_scripts_of_a_plugin_whose_code_runs_in_the_host_may_no_more_than_was_granted_unless_the_operator_says_so(
    place: Place,
) -> None:
    """With `isolation.scripts: tier` they are kept from the host's own files only."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place.facts["port"] = server.getsockname()[1]
        with place.open(tier="none", isolation={"scripts": "tier"}) as tavern:
            assert each(place, tavern, *WITHOUT_A_GRANT) == WITHOUT_A_GRANT
        with place.open(tier="none") as tavern:
            assert each(place, tavern, *WITHOUT_A_GRANT) == dict.fromkeys(WITHOUT_A_GRANT, False)


def test_what_was_asked_for_and_not_granted_is_not_there(place: Place) -> None:
    place.facts["port"] = 9
    with place.open("read:fs", "network", "process:spawn", grant=False) as tavern:
        assert each(place, tavern, READ, CONNECT, SHELL) == dict.fromkeys((READ, CONNECT, SHELL), False)


@pytest.mark.parametrize(
    ("permissions", "may"), [(["read:fs"], True), (["read:*"], True), (["write:fs"], False), ([], False)]
)
def test_a_script_has_at_most_the_rights_of_its_caller(demo: Shared, permissions: list[str], may: bool) -> None:
    place, tavern = demo("read:fs", tier="process")
    result = place.run(tavern, READ, principal="user:guest", permissions=frozenset(permissions))
    assert result.ok, result.error
    assert result.value["did"] is may


def test_the_workspace_of_the_call_is_part_of_the_scope(place: Place) -> None:
    scope = {"name": "read:fs", "scope": ["$workspace"]}
    who = {"principal": "user:a", "permissions": frozenset({"read:fs"})}
    with place.open(scope) as tavern:
        assert place.run(tavern, READ, workspace_dir=str(place.granted), **who).value["did"] is True
        assert place.run(tavern, READ, **who).value["did"] is False


def test_a_script_gets_the_paths_of_its_granted_folders(place: Place) -> None:
    look = "answer = [os.environ.get('TAVERN_DATA_DIR'), os.environ.get('TAVERN_WORKSPACE')]"
    keep = "open(os.environ['TAVERN_DATA_DIR'] + '/kept', 'a').write('x'); answer = open(os.environ['TAVERN_DATA_DIR'] + '/kept').read()"
    scope = [{"name": name, "scope": ["$data", "$workspace"]} for name in ("read:fs", "write:fs")]
    who = {
        "principal": "user:a",
        "permissions": frozenset({"read:fs", "write:fs"}),
        "workspace_dir": str(place.granted),
    }
    with place.open(tier="none") as tavern:
        assert place.run(tavern, look, **who).value["answer"] == [None, None]
    assert not (place.home / "data" / "demo").exists()
    with place.open(*scope, tier="none") as tavern:
        assert place.run(tavern, look, **who).value["answer"] == [str(place.home / "data" / "demo"), str(place.granted)]
        assert place.run(tavern, look).value["answer"] == [str(place.home / "data" / "demo"), None]
        assert [place.run(tavern, keep).value["answer"] for _ in range(2)] == ["x", "xx"]
        refused = {**who, "permissions": frozenset()}
        assert place.run(tavern, look, **refused).value["answer"] == [None, None]


def test_each_call_has_a_folder_of_its_own_that_is_gone_afterwards(demo: Shared) -> None:
    code = "answer = [os.environ['HOME'], os.listdir(os.environ['HOME'])]; os.makedirs(os.environ['HOME'] + '/a/b'); open(os.environ['HOME'] + '/a/b/c', 'w')"
    place, tavern = demo(tier="process")
    folders = [place.run(tavern, code).value["answer"] for _ in range(3)]
    assert len({folder for folder, _ in folders}) == 3
    assert all(found == [] for _, found in folders)
    assert not any(Path(folder).exists() for folder, _ in folders)


@pytest.mark.parametrize(("layer", "level"), [*((layer, "required") for layer in LAYERS), ("landlock", None)])
def test_without_a_layer_a_script_that_requires_it_is_refused_by_name(
    place: Place, layer: str, level: str | None
) -> None:
    """Nobody looked at this plugin, so it needs the whole box unless the operator says otherwise."""
    with place.open(isolation={"without": [layer], **({"level": level} if level else {})}) as tavern:
        error = place.run(tavern, "open('x', 'w')").error
    assert error is not None
    assert (error.kind, error.details["layer"], error.outcome) == ("POLICY_DENIED", layer, "none")
    assert f"no {layer} layer" in error.message
    assert "isolation: {level: best-effort}" in error.fix


def test_a_script_of_a_trusted_plugin_misses_no_layer_that_it_is_not_meant_to_have(place: Place) -> None:
    with place.open(isolation={"level": "required", "scripts": "tier"}, tier="none") as tavern:
        assert place.run(tavern, f"{READ_OUTSIDE}; {WRITE_OUTSIDE}; {SHELL}").value == {"did": True, "answer": "42\n"}
        assert place.run(tavern, "os.listdir(home)").value["did"] is False


@pytest.mark.parametrize(("layer", "how"), [*((layer, "level") for layer in LAYERS), ("landlock", "review")])
def test_best_effort_runs_without_and_says_so_once(place: Place, layer: str, how: str) -> None:
    asked = ["read:fs"] if how == "review" else []
    level = {"level": "best-effort"} if how == "level" else {}
    with place.open(*asked, isolation={"without": [layer], **level}) as tavern:
        assert all(place.run(tavern, "answer = 1").ok for _ in range(2))
        reported = [d for d in tavern.diagnostics if d.code == "ISOLATION_WEAK"]
    assert len(reported) == 1
    assert (reported[0].plugin, layer in reported[0].message, "required" in reported[0].hint) == ("demo", True, True)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_script_of_a_plugin_in_the_host_runs_without_a_layer_unless_the_operator_requires_it(
    place: Place, layer: str
) -> None:
    with place.open(tier="none", isolation={"without": [layer]}) as tavern:
        assert place.run(tavern, "answer = 1").value == {"did": True, "answer": 1}
        assert [layer in d.message for d in tavern.diagnostics if d.code == "ISOLATION_WEAK"] == [True]
    with place.open(tier="none", isolation={"without": [layer], "level": "required"}) as tavern:
        error = place.run(tavern, "answer = 1").error
    assert error is not None
    assert (error.kind, error.details["layer"]) == ("POLICY_DENIED", layer)


def test_without_a_box_a_script_has_what_the_host_has(place: Place) -> None:
    with place.open(isolation={"level": "none"}) as tavern:
        assert place.run(tavern, f"{READ_OUTSIDE}; {WRITE_OUTSIDE}; {SHELL}").value == {"did": True, "answer": "42\n"}


def test_a_script_that_never_stops_starting_others_ends_with_its_call(place: Place) -> None:
    marker = f"mark-{os.getpid()}-{place.root.name}"
    bomb = "\n".join((
        "import time",
        "me = [sys.executable, '-S', '-c', 'import time; time.sleep(60)', marker]",
        "count = 0",
        "try:",
        "    while count < 2000:",
        "        if count % 10 == 0: subprocess.Popen(me, start_new_session=True)",
        "        elif os.fork() == 0: os.setsid(); time.sleep(60); os._exit(0)",
        "        count += 1",
        "except BlockingIOError: answer = count",
    ))  # fmt: skip
    place.facts["marker"] = marker
    with place.open(isolation={"processes": 20}) as tavern:
        result = place.run(tavern, bomb)
    assert processes_with(marker) == []
    assert processes_with(str(place.plugin)) == []  # its copies
    assert result.ok, result.error
    assert result.value["answer"] is None or result.value["answer"] < 400


def test_another_call_is_out_of_reach(demo: Shared) -> None:
    """Two calls of one plugin at once: neither sees the other's processes or folder."""
    import asyncio

    code = "import time; answer = [os.environ['HOME'], os.listdir('/proc')]; time.sleep(0.2)"

    _, tavern = demo(tier="process")

    async def both() -> list[Any]:
        calls = [tavern.invoke("demo:try", {"code": code, "facts": {}}) for _ in range(2)]
        return [result.value["answer"] for result in await asyncio.gather(*calls)]

    one, other = asyncio.run(both())
    assert one[0] != other[0]
    assert all(len([n for n in found if n.isdigit()]) == 2 for _, found in (one, other))


# The rule that a folder with something shut in it is given entry by entry -----------------------------------------------

TREE = {
    "/": ["etc", "home", "proc", "srv"],
    "/home": ["ann", "bob"],
    "/home/ann": [".local", "notes", "project"],
    "/home/ann/.local": ["state", "bin"],
    "/home/ann/.local/state": ["settings.json", "data"],
    "/home/ann/.local/state/data": ["demo", "other"],
}


@each_row(
    ("path", "given"),
    [
        ("/srv", ["/srv"]),
        ("/home/bob", ["/home/bob"]),
        ("/home/ann/.local/state", []),
        ("/home/ann/.local/state/settings.json", []),
        ("/home/ann/.local/state/data/demo", ["/home/ann/.local/state/data/demo"]),
        ("/home/ann/.local/state/data/demo/x", ["/home/ann/.local/state/data/demo/x"]),
        ("/home/ann/.local/state/data/other", []),
        ("/home/ann/.local/state-of-things", ["/home/ann/.local/state-of-things"]),
        ("/home/ann", ["/home/ann/.local/bin", "/home/ann/notes", "/home/ann/project"]),
        ("/", ["/etc", "/home/ann/.local/bin", "/home/ann/notes", "/home/ann/project", "/home/bob", "/srv"]),
    ],
)
def test_what_is_shut_stays_shut_and_its_neighbours_are_given(path: str, given: list[str]) -> None:
    state = "/home/ann/.local/state"
    assert list(unprotected_entries(path, [state], f"{state}/data/demo", lambda folder: TREE[folder])) == given


def test_a_link_beside_what_is_shut_leads_nowhere(tmp_path: Path) -> None:
    for folder in ("state", "notes"):
        (tmp_path / folder).mkdir()
    (tmp_path / "link").symlink_to("state")
    (tmp_path / "upwards").symlink_to(".")
    assert list(unprotected_entries(str(tmp_path), [str(tmp_path / "state")], "/none")) == [str(tmp_path / "notes")]


def test_a_folder_that_cannot_be_listed_gives_nothing() -> None:
    def listed(folder: str) -> list[str]:
        raise PermissionError(folder)

    assert list(unprotected_entries("/home", ["/home/ann"], "/home/ann/own", listed)) == []


@each_row(
    ("mounts", "path", "shut"),
    [
        ([("1", "/", "/")], "/srv/state", ["/srv/state"]),
        ([("1", "/", "/"), ("1", "/", "/old")], "/srv/state", ["/srv/state", "/old/srv/state"]),
        ([("1", "/", "/"), ("1", "/srv", "/mnt")], "/srv/state", ["/srv/state", "/mnt/state"]),
        ([("1", "/", "/"), ("1", "/srv/state/data", "/mnt")], "/srv/state", ["/srv/state", "/mnt"]),
        ([("1", "/", "/"), ("2", "/vol/srv", "/srv"), ("2", "/vol", "/vol")], "/srv/state", ["/srv/state", "/vol/srv/state"]),
        ([("1", "/", "/"), ("2", "/", "/srv"), ("1", "/srv", "/mnt")], "/srv/state", ["/srv/state"]),
        ([("1", "/", "/"), ("2", "/a", "/srv"), ("3", "/b", "/srv"), ("3", "/", "/three")], "/srv/state", ["/srv/state", "/three/b/state"]),
        ([], "/srv/state", ["/srv/state"]),
    ],
)  # fmt: skip
def test_what_is_mounted_twice_is_shut_twice(mounts: list[tuple[str, str, str]], path: str, shut: list[str]) -> None:
    assert with_mount_aliases([path], [Mount(*row) for row in mounts]) == shut


def test_mounts_are_read_with_their_escapes(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("36 35 98:0 / /a\\040b rw - ext4 x rw\n37 35 98:0 /x /c rw - ext4 x rw\nbroken\n")
    assert read_mounts(tmp_path / "mounts") == [Mount("98:0", "/", "/a b"), Mount("98:0", "/x", "/c")]
    assert read_mounts(tmp_path / "none") == []
    assert read_mounts()


def test_a_script_writes_also_while_its_user_passes_on_more_files_than_it_may_open(place: Place) -> None:
    with place.open(*HERE) as tavern, too_many_files_on_their_way() as take_all:
        late = threading.Timer(0.3, take_all)
        late.start()
        result = place.run(tavern, WRITE)
        late.join()
        assert result.value["did"], result.value


def test_a_script_that_writes_nothing_ends_also_while_too_many_files_are_on_their_way(place: Place) -> None:
    place.limit(4_000)  # less than what waits for them
    with place.open(*HERE) as tavern, too_many_files_on_their_way():
        assert place.run(tavern, "answer = 42").value == {"did": True, "answer": 42}


def test_the_deadline_of_a_script_holds_also_while_too_many_files_are_on_their_way(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half of what both descriptors may take. On a busy machine, the usual quarter of a second may be over before a script has ended.
    monkeypatch.setattr(sync_async_drivers, "GRACE_S", LONGEST_WAIT_S)
    place.limit(1_000)
    with place.open(*HERE, {"name": "read:web", "scope": ["example.org"]}) as tavern, too_many_files_on_their_way():
        result = place.run(tavern, "import time; time.sleep(600)")
        assert result.error is not None
        assert "it was stopped" in result.error.message
        assert not processes_with(str(place.plugin / "try.py"))
