"""Commands that plugins bring: known unimported, one plugin activated, a broken one harms nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tavern_core.cli.app import COMMANDS
from tavern_core.model.naming_rules import RESERVED_COMMANDS
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow


def test_help_names_them_without_importing_their_plugins(tavern: Run, tmp_path: Path) -> None:
    reported = tavern("--help").out
    for name in ("greet", "grumble", "numb", "boom"):
        assert name in reported
    assert "from the plugin greeter" in reported
    assert not (tmp_path / "bomb-trace").exists()


@pytest.mark.slow
def test_a_command_runs_with_its_own_words_and_exit_code(tavern: Run, tmp_path: Path) -> None:
    assert tavern("greet").out == "Hello, World\n"
    assert tavern("greet", "张三", "--loud").out == "Hello, 张三!\n"
    assert tavern("greet", "nobody").code == 3
    assert "--loud" in tavern("greet", "--help").out
    assert tavern("greet", "--lod").code == 2
    assert not (tmp_path / "bomb-trace").exists()  # only the plugin of the command is activated


def test_a_broken_command_is_a_message_when_it_is_used(tavern: Run, project: Path) -> None:
    (project / "plugins" / "mute").mkdir()
    (project / "plugins" / "mute" / "plugin.yaml").write_text('name: mute\nversion: "1"\ncommands: [报告]\n', "utf-8")
    (project / "plugins" / "mute" / "__init__.py").touch()
    broken = [("grumble", "cannot build"), ("numb", "not a click command"), ("boom", "SystemExit")]
    for name, said in (*broken, ("报告", "mute declares the command '报告', but does not offer it")):
        answer = tavern(name)
        assert (answer.code, "error[ACTIVATION_FAILED]" in answer.err, said in answer.err) == (4, True, True), answer
        assert "Traceback" not in answer.err
    assert tavern("--help").code == 0


def test_a_command_of_a_plugin_that_is_off_is_not_there(tavern: Run) -> None:
    tavern("plugins", "disable", "greeter")
    assert "greet" not in tavern("--help").out
    missing = tavern("greet")
    assert (missing.code, "greeter, which adds it, is disabled" in missing.err) == (2, True)
    assert "is disabled" not in tavern("gret").err
    assert tavern("--safe-mode", "boom").code == 2
    assert "boom" not in tavern("--no-plugins", "--help").out


def test_commands_of_the_host_cannot_be_taken(tavern: Run, project: Path) -> None:
    not_reserved = set(COMMANDS) - RESERVED_COMMANDS
    assert not_reserved == set(), "add it to RESERVED_COMMANDS in tavern_core/model/naming_rules.py"
    thief = project / "plugins" / "aaa-thief"
    thief.mkdir()
    (thief / "plugin.yaml").write_text('name: aaa-thief\nversion: "1"\ncommands: [tools, cluster, steal]\n', "utf-8")
    (thief / "__init__.py").write_text(
        "from tavern_core import Command, hookimpl\nimport click\n"
        "@hookimpl\ndef tavern_register_commands():\n"
        "    return [Command('tools', lambda: click.Command('tools')), Command('steal', lambda: click.Command('steal'))]\n",
        "utf-8",
    )
    assert "text:count" in tavern("tools", "list").out
    assert tavern("cluster").code == 2
    taken = tavern("steal")
    assert (taken.code, "reserved" in taken.err) == (4, True)


def test_a_command_of_click_itself_is_refused_by_its_full_name(tavern: Run, project: Path) -> None:
    (folder := project / "plugins" / "click-er").mkdir()
    (folder / "plugin.yaml").write_text('name: click-er\nversion: "1"\ncommands: [wink]\n', "utf-8")
    source = "from tavern_core import hookimpl\nimport click\n@hookimpl\ndef tavern_register_commands():\n"
    (folder / "__init__.py").write_text(f"{source}    return [click.Command('wink')]\n", "utf-8")
    refused = tavern("wink")
    assert (refused.code, "click.core.Command is not a Command" in refused.err) == (4, True)
    assert 'hint: return [Command("name", build)]' in refused.err


def test_two_plugins_with_one_command_are_settled_by_name(tavern: Run, project: Path) -> None:
    other = project / "plugins" / "zz-greeter"
    other.mkdir()
    (other / "plugin.yaml").write_text('name: zz-greeter\nversion: "1"\ncommands: [greet]\n', "utf-8")
    assert tavern("greet").out == "Hello, World\n"
