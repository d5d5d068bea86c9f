"""What a tool file may name as a script's command, folder and environment."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tavern_core.builtin.executors.script.command import check_names, environment, read_command
from tavern_core.builtin.executors.script.executor import ScriptExecutor
from tavern_core.errors import ToolFileInvalid
from tavern_core.model.tool import ToolSpec
from tests.rows import each_row

from .workbench import Scripts, home

WHERE: Callable[[str], str | None] = {"python": "/py", "node": "/node", "bun": "/bun", "deno": "/deno"}.get


@pytest.fixture(scope="module")
def plugin() -> Iterator[Path]:
    """A folder that the tests only read."""
    with tempfile.TemporaryDirectory() as folder:
        yield made(Path(folder))


def made(folder: Path) -> Path:
    root = folder / "plug-in"
    for name in ("scripts/a.py", "scripts/a b.py", "src/m.ts", "bin/tool", "脚本.py", "-c"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (root / "bin/tool").chmod(0o755)
    outside = folder / "plug-in-evil"
    outside.mkdir()
    (outside / "x.py").write_text("")
    (root / "link.py").symlink_to(outside / "x.py")
    (root / "linked").symlink_to(outside)
    (root / "own.py").symlink_to(root / "scripts/a.py")
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "fifo")
    return root


@each_row(
    ("command", "argv"),
    [
        ("python scripts/a.py", "/py {}/scripts/a.py"),
        ("python3 ./scripts/a.py --x", "/py {}/scripts/a.py --x"),
        ("python -u -X utf8 脚本.py", None),
        ("python -u -Xutf8 -Wignore 脚本.py", "/py -u -Xutf8 -Wignore {}/脚本.py"),
        ("python 'scripts/a b.py' '' \"x y\"", "/py|{}/scripts/a b.py||x y"),
        (["python", "scripts/a.py", "; rm -rf /"], "/py|{}/scripts/a.py|; rm -rf /"),
        ("python scripts/a.py -c -m -e", "/py {}/scripts/a.py -c -m -e"),
        ("node --no-warnings src/m.ts", "/node --no-warnings {}/src/m.ts"),
        ("bun run src/m.ts", "/bun run {}/src/m.ts"),
        ("bun src/m.ts", "/bun {}/src/m.ts"),
        ("deno run -A --allow-net=api.example src/m.ts", "/deno run -A --allow-net=api.example {}/src/m.ts"),
        ("bin/tool -x", "{}/bin/tool -x"),
        ("python own.py", "/py {}/scripts/a.py"),
    ],
)
def test_a_runner_with_a_file_or_a_file_of_the_plugin(plugin: Path, command: Any, argv: str | None) -> None:
    if argv is None:
        with pytest.raises(ToolFileInvalid):
            read_command("p:t", command, None, plugin)
        return
    words = argv.split("|") if "|" in argv else argv.split()
    read = read_command("p:t", command, None, plugin)
    assert read.argv(WHERE) == tuple(word.format(plugin) for word in words)
    assert read.folder == plugin


@each_row(
    ("command", "words"),
    [
        ("bash -c ls", "'bash' is neither a known runner nor a file of the plugin"),
        ("sh scripts/a.py", "'sh' is neither"),
        ("pyhton scripts/a.py", "'pyhton' is neither"),
        ("/usr/bin/python3 scripts/a.py", "leads out of the plugin"),
        ("../plug-in-evil/x.py", "leads out of the plugin"),
        ("python ../plug-in-evil/x.py", "leads out of the plugin"),
        ("python scripts/../../plug-in-evil/x.py", "leads out of the plugin"),
        ("python /etc/passwd", "leads out of the plugin"),
        ("python .git/hook.py", "does not belong to a plugin"),
        ("__pycache__/hook.py", "does not belong to a plugin"),
        ("python link.py", "a link that leads out"),
        ("python linked/x.py", "a link that leads out"),
        ("python loop", "'loop'"),
        ("python fifo", "no file 'fifo'"),
        ("python scripts", "no file 'scripts'"),
        ("python scripts/b.py", "no file 'scripts/b.py'"),
        ("python -c print(1)", "option '-c' of python is not allowed"),
        ("python -cprint(1)", "is not allowed"),
        ("python -uc print(1)", "is not allowed"),
        ("python -m http.server", "option '-m' of python is not allowed"),
        ("python -i scripts/a.py", "is not allowed"),
        ("python - scripts/a.py", "is not allowed"),
        ("python -- scripts/a.py", "is not allowed"),
        ("node -e 1", "option '-e' of node is not allowed"),
        ("node --eval=1", "is not allowed"),
        ("node -r ./src/m.ts src/m.ts", "is not allowed"),
        ("node --require=/tmp/x.js src/m.ts", "is not allowed"),
        ("node --import=data:text/javascript,1 src/m.ts", "is not allowed"),
        ("node --env-file=/etc/x src/m.ts", "is not allowed"),
        ("bun -e 1", "is not allowed"),
        ("bun x cowsay", "no file 'x'"),
        ("bun --preload ./x src/m.ts", "is not allowed"),
        ("deno eval 1", "deno needs `run`"),
        ("deno run https://evil.example/x.ts", "no file 'https://evil.example/x.ts'"),
        ("deno run --import-map=x src/m.ts", "is not allowed"),
        ("python", "is given no file"),
        ("python -u", "is given no file"),
        ("scripts/a.py", "'scripts/a.py' is not executable"),
        ("", "is empty"),
        ("   ", "is empty"),
        ([], "is empty"),
        (["", "x"], "is empty"),
        ("python 'scripts/a.py", "No closing quotation"),
        (None, "must be a string"),
        (7, "must be a string"),
        (["python", 7], "must be a string"),
        (["python", "scripts/a.py", "a\0b"], "NUL"),
        (["python", "scripts/\0.py"], "NUL"),
        ("python ~/x.py", "no file '~/x.py'"),
        ("python $HOME/x.py", "no file '$HOME/x.py'"),
        (["python", "x" * 5000], "no file 'xxx"),
        (["python", "\ud800.py"], "p:t"),
    ],
)
def test_everything_else_is_refused_with_a_repair(plugin: Path, command: Any, words: str) -> None:
    with pytest.raises(ToolFileInvalid) as caught:
        read_command("p:t", command, None, plugin)
    assert words in caught.value.message
    assert caught.value.message.startswith("tool p:t: implementation.command: ")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("pyhton scripts/a.py", "did you mean 'python'"),
        ("python script/a.py", ""),
        ("python scripts/aa.py", "did you mean 'scripts/a"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(plugin: Path, command: str, hint: str) -> None:
    with pytest.raises(ToolFileInvalid) as caught:
        read_command("p:t", command, None, plugin)
    assert hint in caught.value.hint


@pytest.mark.slow
@given(st.text(max_size=60) | st.lists(st.text(max_size=20), max_size=4))
def test_no_command_does_more_than_be_refused(command: Any) -> None:
    with pytest.raises(ToolFileInvalid):
        read_command("p:t", command, None, Path("/proc/self/fdinfo"))


@each_row(
    ("cwd", "words"),
    [
        ("..", "leads out"),
        ("/", "leads out"),
        ("linked", "a link that leads out"),
        ("nowhere", "not a folder"),
        (3, "must be a string"),
    ],
)
def test_the_working_directory_stays_inside_the_plugin(plugin: Path, cwd: Any, words: str) -> None:
    with pytest.raises(ToolFileInvalid, match=words):
        read_command("p:t", "python scripts/a.py", cwd, plugin)
    assert read_command("p:t", "python scripts/a.py", "bin", plugin).folder == plugin / "bin"


def test_a_tree_of_links_made_by_an_editable_install_is_the_plugin_itself(tmp_path: Path) -> None:
    plugin = made(tmp_path)
    (plugin / "plugin.yaml").write_text("name: x")
    tree = tmp_path / "links"
    (tree / "scripts").mkdir(parents=True)
    for name in ("plugin.yaml", "scripts/a.py"):
        (tree / name).symlink_to(plugin / name)
    (tree / "other.py").symlink_to(plugin / "scripts/a.py")
    assert read_command("p:t", "python scripts/a.py", None, tree).file == plugin / "scripts/a.py"
    with pytest.raises(ToolFileInvalid, match="leads out"):
        read_command("p:t", "python other.py", None, tree)


@pytest.mark.parametrize(
    ("keys", "words", "hint"),
    [
        ({"protocol": "http"}, "protocol 'http' does not exist", "stdio"),
        ({"comand": "x"}, "a script has no 'comand'", "did you mean 'command'?"),
        ({"timeout": -1}, "timeout must be", ""),
        ({"timeout": True}, "timeout must be", ""),
        ({"timeout": "3s"}, "timeout must be", ""),
        ({"env": "PATH"}, "env must be a list", ""),
        ({"env": ["OPENAI_API_KEY"]}, "may hold a secret", '{"$env": "OPENAI_API_KEY"}'),
        ({"env": ["GITHUB_TOKEN"]}, "may hold a secret", "configSchema"),
        ({"env": ["DB_PASS"]}, "may hold a secret", "configSchema"),
        ({"env": ["TAVERN_HOME"]}, "may hold a secret", "configSchema"),
        ({"env": ["A=B"]}, "not the name of an environment variable", ""),
        ({"env": [5]}, "not the name of an environment variable", ""),
    ],
)
def test_other_keys_are_checked_too(scripts: Scripts, keys: dict[str, Any], words: str, hint: str) -> None:
    with pytest.raises(ToolFileInvalid) as caught:
        scripts.bind(f"python {scripts.write('a.py', '')}", **keys)
    assert words in caught.value.message
    assert hint in caught.value.hint


def test_what_a_tool_file_leaves_out_is_fine(scripts: Scripts) -> None:
    empty = {
        "protocol": None,
        "env": (),
        "cwd": None,
        "timeout": None,
        "service": None,
        "nodeType": None,
        "handler": None,
    }
    bound = scripts.bind(f"python {scripts.write('a.py', '')}", **empty)
    assert (bound.is_async, bound.blocking, bound.stoppable, bound.wants_call) == (True, False, True, True)


def test_a_plugin_without_a_folder_has_no_scripts() -> None:
    tool = ToolSpec("p:t", kind="script", implementation={"type": "script", "command": "python a.py"})
    with pytest.raises(ToolFileInvalid, match="needs a plugin folder"):
        ScriptExecutor().bind(tool, home(None))


def test_a_host_on_another_system_says_so(scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ToolFileInvalid, match="need Linux, this is win32"):
        scripts.bind(f"python {scripts.write('a.py', '')}")


def test_the_environment_is_an_allow_list() -> None:
    names = check_names("p:t", ["HTTPS_PROXY", "EDITOR"])
    host = {"PATH": "/bin", "LC_TIME": "C", "HTTPS_PROXY": "p", "TOKEN": "t", "BASH_ENV": "b", "NODE_OPTIONS": "-r x"}
    found = environment(host, names, "p:t", "c-1")
    assert found.items() >= {"PATH": "/bin", "LC_TIME": "C", "HTTPS_PROXY": "p", "TAVERN_TOOL": "p:t"}.items()
    assert not {"TOKEN", "BASH_ENV", "NODE_OPTIONS", "EDITOR"} & found.keys()
