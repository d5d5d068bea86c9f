"""The pytest plugin, in projects of its own: what an author sees, and what others never notice."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest
from _pytest.config import default_plugins

from tests.forked_programs import run_forked

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

MANIFEST = """
name: text
version: "1.0"
tools:
  - id: shout
    implementation: {type: python}
  - id: remove
    implementation: {type: python}
configOptions:
  - key: extensions.text.mark
    type: string
    label: Mark
    defaultValue: "!"
permissions:
  hooks: ["hook:server:tool:check"]
  capabilities: [read:fs, danger:destructive]
"""
CODE = """
from tavern_core import deny, hookimpl, tool

class Tools:
    def __init__(self, ctx):
        self.ctx = ctx

    @tool(capabilities=["read:fs"])
    def shout(self, text: str) -> str:
        "Say it louder."
        return text.upper() + self.ctx.get_config("mark")

    @tool(destructive=True)
    def remove(self, name: str) -> str:
        "Remove something."
        return name

@hookimpl
def tavern_register_tools(ctx):
    return [Tools(ctx)]

@hookimpl
def tavern_check_call(call):
    if "secret" in str(call.arguments):
        return deny("no secrets")
"""
PYPROJECT = '[project]\nname = "tavern-plugin-text"\nversion = "1.0"\n[project.entry-points."tavern.plugins"]\ntext = "tavern_plugin_text"\n'
IMPORTED = (
    "pytest", *(f"_pytest.{name}" for name in default_plugins), "anyio.pytest_plugin", "anyio._backends._asyncio",
    "tavern_core.testing.plugin", "tavern_core.testing.hosts", "tavern_core.testing.under_test",
)  # fmt: skip
"""What every run of pytest with a host imports."""
Project = Callable[..., pytest.RunResult]


@pytest.fixture(autouse=True)
def without_the_plugins_of_this_project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what a process of these tests does would be importing them."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:xdist -p no:langsmith_plugin")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Make a project with the plugin `text`, installed or not, and run its tests."""

    def make(
        tests: str, *flags: str, installed: bool = True, manifest: str = MANIFEST, code: str = CODE, conftest: str = ""
    ) -> pytest.RunResult:
        site = pytester.mkdir("site")
        package = site / "tavern_plugin_text"
        package.mkdir()
        (package / "plugin.yaml").write_text(manifest, "utf-8")
        (package / "__init__.py").write_text(code, "utf-8")
        if installed:
            info = site / "tavern_plugin_text-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tavern-plugin-text\nVersion: 1.0\n", "utf-8")
            (info / "entry_points.txt").write_text("[tavern.plugins]\ntext = tavern_plugin_text\n", "utf-8")
        monkeypatch.setenv("PYTHONPATH", str(site))
        folder = pytester.mkdir("project")
        (folder / "pyproject.toml").write_text(PYPROJECT, "utf-8")
        (folder / "tests").mkdir()
        (folder / "tests" / "test_it.py").write_text(textwrap.dedent(tests), "utf-8")
        if conftest:
            (folder / "conftest.py").write_text(textwrap.dedent(conftest), "utf-8")
        command = ["-W", "error", "-p", "no:cacheprovider", "--rootdir", str(folder), *flags, str(folder)]
        return forked_pytest(pytester, *command)

    return make


def forked_pytest(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    """A run of pytest in a process that has imported it and tavern_core already, which pytest is not to mind."""
    command = ["-m", "pytest", *words, "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    done = run_forked(command, cwd=pytester.path, imports=IMPORTED)
    return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)


def test_a_project_needs_no_configuration(project: Project) -> None:
    done = project(
        """
        def test_value(call_tool):
            assert call_tool("shout", {"text": "hi"}).value == "HI!"

        def test_full_id(call_tool):
            assert call_tool("text:shout", {"text": "hi"}).value == "HI!"

        def test_refused(call_tool):
            assert call_tool.refused("shout", {"text": 7}, kind="INPUT_SCHEMA_INVALID").details["problems"]

        def test_facts(installed_plugin):
            plugin = installed_plugin
            assert (plugin.name, plugin.version, plugin.package) == ("text", "1.0", "tavern_plugin_text")
            assert plugin.folder.joinpath("plugin.yaml").is_file()
            assert plugin.manifest.name == "text" and plugin.findings == ()
        """
    )
    done.assert_outcomes(passed=4)


def test_async_tests_use_the_same_fixture(project: Project) -> None:
    done = project(
        """
        import asyncio, pytest

        @pytest.mark.anyio
        async def test_with_anyio(tavern):
            result = await tavern.invoke("text:shout", {"text": "a"})
            assert result.value == "A!"

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        def test_with_a_loop_of_its_own(tavern):
            async def many():
                return await asyncio.gather(*(tavern.invoke("text:shout", {"text": t}) for t in "abc"))
            assert [r.value for r in asyncio.run(many())] == ["A!", "B!", "C!"]
        """
    )
    done.assert_outcomes(passed=2)


def test_everything_is_granted_unless_the_test_says_otherwise(project: Project) -> None:
    done = project(
        """
        import pytest
        from tavern_core import CallContext

        def test_all(call_tool, tavern):
            assert tavern.plugins["text"].missing == frozenset()
            call_tool.refused("shout", {"text": "secret"}, kind="POLICY_DENIED")
            caller = CallContext(permissions={"danger:destructive"})
            assert call_tool("remove", {"name": "x"}, context=caller).value == "x"

        def test_destructive_tools_are_still_refused_for_the_host_itself(call_tool):
            call_tool.refused("remove", {"name": "x"}, kind="POLICY_DENIED")

        @pytest.mark.tavern(grants=[])
        def test_none(call_tool, tavern):
            assert tavern.plugins["text"].state == "pending_consent"
            error = call_tool.refused("shout", {"text": "x"}, kind="POLICY_DENIED")
            assert "tavern plugins grant text" in error.fix

        @pytest.mark.tavern(grants=["read:fs"])
        def test_one(call_tool):
            assert call_tool("shout", {"text": "secret"}).value == "SECRET!"
        """
    )
    done.assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("flags", "passed"),
    [
        ((), 0),
        (("--tavern-core-grants=none",), 1),
        (("--tavern-core-grants=read:fs",), 0),
        (("-o", "tavern_core_grants=none"), 1),
    ],
)
def test_grants_come_from_the_command_line_and_the_ini_file_too(
    project: Project, flags: tuple[str, ...], passed: int
) -> None:
    done = project("def test_it(tavern):\n    assert not tavern.plugins['text'].granted\n", *flags)
    done.assert_outcomes(passed=passed, failed=1 - passed)


def test_settings_and_configuration_of_the_project_and_of_one_test(project: Project) -> None:
    done = project(
        """
        import pytest

        def test_of_the_project(call_tool, tavern):
            assert call_tool("shout", {"text": "a"}).value == "A?"
            assert tavern.config.limits.depth == 3

        @pytest.mark.tavern(settings={"mark": "…"}, config={"limits": {"threads": 2}})
        def test_of_one_test(call_tool, tavern):
            assert call_tool("shout", {"text": "a"}).value == "A…"
            assert (tavern.config.limits.depth, tavern.config.limits.threads) == (3, 2)

        def test_of_one_host(open_tavern):
            hosts = [open_tavern(settings={"mark": mark}) for mark in "12"]
            assert [h.invoke_sync("text:shout", {"text": "a"}).value for h in hosts] == ["A1", "A2"]
        """,
        conftest="""
        import pytest

        @pytest.fixture
        def tavern_settings():
            return {"mark": "?"}

        @pytest.fixture
        def tavern_config():
            return {"limits": {"depth": 3}}
        """,
    )
    done.assert_outcomes(passed=3)


def test_nothing_of_the_machine_shines_through(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("TAVERN_DISABLE_PLUGINS", "text")
    monkeypatch.setenv("TAVERN_LIMITS__DEPTH", "2")
    monkeypatch.setenv("TAVERN_HOME", str(tmp_path))
    done = project(
        """
        import os
        import pytest
        from tavern_core import Plugin, tool

        @tool
        def one() -> int:
            "One."
            return 1

        def test_environment(tavern, call_tool, tavern_home):
            assert call_tool("shout", {"text": "a"}).ok
            assert tavern.config.limits.depth == 16
            assert (tavern_home / "audit" / "audit.jsonl").is_file()
            assert not [n for n in os.environ if n.startswith("TAVERN_")]

        def test_other_plugins_are_off(tavern):
            others = {n: s.state for n, s in tavern.plugins.items() if n != "text" and s.source != "builtin"}
            assert set(others.values()) <= {"disabled"}

        def test_further_plugins(open_tavern):
            tavern = open_tavern(Plugin([one], name="more"))
            assert tavern.invoke_sync("more:one").value == 1

        def test_they_are_not_given_by_name(open_tavern):
            with pytest.raises(TypeError, match="plugins"):
                open_tavern(plugins=[Plugin([one], name="more")])
        """
    )
    done.assert_outcomes(passed=4)


def test_events_are_recorded(project: Project) -> None:
    done = project(
        """
        def test_it(call_tool, tavern_events):
            call_tool("shout", {"text": "a"})
            kinds = [event.type for event in tavern_events]
            assert kinds[-2:] == ["TOOL_CALLED", "TOOL_RESULT"]
            assert tavern_events[-2].data["arguments"] == {"text": "a"}
        """
    )
    done.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"installed": False}, "is not installed in this environment*"),
        ({"manifest": "name: text\nversoin: 1\n"}, "the plugin under test is failed: *"),
    ],
)
def test_what_is_wrong_with_the_plugin_is_reported_in_one_line(
    project: Project, changes: dict[str, object], reported: str
) -> None:
    done = project("def test_it(call_tool):\n    call_tool('shout', {'text': 'a'})\n", **changes)
    assert done.parseoutcomes().get("passed", 0) == 0
    done.stdout.fnmatch_lines([f"*{reported}"])
    assert "site-packages/tavern_core/testing" not in done.stdout.str()


def test_code_that_cannot_be_imported_is_reported_with_its_place(project: Project) -> None:
    done = project(
        "def test_it(call_tool):\n    call_tool('shout', {'text': 'a'})\n", code="import nothing_of_this_name\n"
    )
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*tavern_plugin_text/__init__.py:1: ModuleNotFoundError*", "*hint: pip install*"])
    assert "Traceback" not in done.stdout.str()


def test_invalid_options_are_reported(project: Project) -> None:
    marks = {
        "grant=[]": "has no 'grant'",
        "'text'": "takes its values by name",
        "plugin='txet'": "'txet' is not installed",
        "config={'limit': {}}": "unknown key 'limit'",
        "settings={'mrak': '?'}": "extensions.text.mrak: there is no such setting",
        "settings={'mark': 5}": "extensions.text.mark: must be text, got the number 5",
        "grants=['read:sf']": "'read:sf' is not a permission",
    }
    tests = (f"@pytest.mark.tavern({mark})\ndef test_{at}(tavern):\n    pass\n" for at, mark in enumerate(marks))
    done = project("import pytest\n" + "\n".join(tests))
    done.assert_outcomes(errors=len(marks))
    done.stdout.fnmatch_lines([f"*{reported}*" for reported in marks.values()])


def test_a_call_that_fails_says_everything(project: Project) -> None:
    done = project("def test_it(call_tool):\n    call_tool('shuot', {'text': 'a'})\n")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*text:shuot(*) failed with TOOL_NOT_FOUND*", "*fix: did you mean 'text:shout'?*"])


def test_a_folder_plugin_is_found_by_its_manifest(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("words")
    (folder / "plugin.yaml").write_text(
        MANIFEST.replace("name: text", "name: words").replace("extensions.text", "extensions.words"), "utf-8"
    )
    (folder / "__init__.py").write_text(CODE, "utf-8")
    (folder / "checks").mkdir()
    (folder / "checks" / "test_words.py").write_text(
        "def test_it(call_tool, installed_plugin):\n"
        "    assert installed_plugin.is_folder_plugin\n"
        "    assert call_tool('shout', {'text': 'a'}).value == 'A!'\n",
        "utf-8",
    )
    command = ["-W", "error", "--import-mode=importlib", "--rootdir", str(pytester.path), str(folder / "checks")]
    forked_pytest(pytester, *command).assert_outcomes(passed=1)
    elsewhere = pytester.makepyfile("def test_it(call_tool):\n    assert call_tool('shout', {'text': 'a'}).ok\n")
    forked_pytest(pytester, "--tavern-core-plugin=./words", str(elsewhere)).assert_outcomes(passed=1)


def test_other_peoples_tests_do_not_notice(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_imported():
            assert not [m for m in sys.modules if m.startswith("tavern_core.") and "testing" not in m]

        def test_without_fixtures(request):
            assert not [name for name in request.fixturenames if "tavern" in name]
        """
    )
    done = pytester.runpytest_subprocess("-W", "error", "--strict-markers", "--strict-config")
    done.assert_outcomes(passed=2)
    pytester.runpytest_subprocess("-p", "no:tavern_core").assert_outcomes(passed=2)


def test_a_test_without_a_plugin_has_a_host_with_what_it_brings(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from tavern_core import Plugin, tool

        @tool
        def hello() -> str:
            "Say hello."
            return "hello"

        def test_the_host_is_open_and_holds_no_plugin(tavern, tavern_home, tmp_path):
            assert all(status.source == "builtin" for status in tavern.plugins.values())
            assert tavern.invoke_sync("system:get_current_time", {}).ok
            assert tavern_home.is_relative_to(tmp_path)

        @pytest.mark.tavern(plugins=[Plugin([hello], name="greeter")])
        def test_what_it_brings_is_there(tavern, call_tool, tavern_events):
            assert call_tool("greeter:hello").value == "hello"
            assert tavern_events

        def test_another_host(open_tavern):
            assert open_tavern(Plugin([hello], name="greeter")).tools.get("greeter:hello")
        """
    )
    forked_pytest(pytester).assert_outcomes(passed=3)


def test_without_a_project_the_plugin_under_test_says_what_to_do(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_it(installed_plugin):
            pass

        @pytest.mark.tavern(settings={"most": 3})
        def test_settings(tavern):
            pass
        """
    )
    done = forked_pytest(pytester)
    done.assert_outcomes(errors=2)
    done.stdout.fnmatch_lines(["*no plugin is under test*", "*--tavern-core-plugin=name*", "*whose setting 'most'*"])


def test_options_and_fixtures_are_described(pytester: pytest.Pytester) -> None:
    reported = forked_pytest(pytester, "--help").stdout.str()
    for option in ("--tavern-core-plugin", "--tavern-core-grants", "tavern_core_plugin", "tavern_core_grants"):
        assert option in reported
    fixtures = forked_pytest(pytester, "--fixtures").stdout.str()
    for name in (
        "tavern",
        "call_tool",
        "open_tavern",
        "installed_plugin",
        "tavern_home",
        "tavern_events",
        "fake_endpoint",
    ):
        assert f"\n{name} " in fixtures or f"\n{name}\n" in fixtures
    assert "no docstring available" not in fixtures.partition("tavern_core.testing.plugin")[2].partition("\n---")[0]
