"""Variables of the host's environment: a fixed list, then a permission each, and never those that make programs load code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Tavern
from tavern_core.__main__ import main

from ..host.workshop import Workshop

PLANTED = "planted-value-17"
SCRIPT = "import json, os\nprint(json.dumps(dict(os.environ)))\n"
CODE = """
import os
from tavern_core import hookimpl, tool

@tool
def seen() -> dict:
    "Its environment."
    return dict(os.environ)

@hookimpl
def tavern_register_tools():
    return [seen]
"""
ORDINARY = ("MY_PROXY", "DATABASE_URL", "HTTPS_PROXY", "my_proxy", "SSH_AUTH_SOCK", "NODE_ENV")
LOADERS = (
    "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "GCONV_PATH", "LOCPATH", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP",
    "PYTHONWARNINGS", "PYTHONBREAKPOINT", "NODE_OPTIONS", "NODE_PATH", "npm_config_node_options", "BUN_OPTIONS", "DENO_DIR", "BASH_ENV", "ENV",
    "SHELLOPTS", "PS4", "ZDOTDIR", "PERL5OPT", "PERL5LIB", "PERL5DB", "RUBYOPT", "RUBYLIB", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS",
    "JDK_JAVA_OPTIONS", "CLASSPATH", "LUA_INIT", "PHPRC", "R_PROFILE_USER", "JULIA_LOAD_PATH", "ERL_AFLAGS", "DOTNET_STARTUP_HOOKS",
    "GIT_SSH_COMMAND", "psqlrc", "RSYNC_RSH", "TS_NODE_PROJECT", "CUDA_INJECTION64_PATH", "GI_TYPELIB_PATH", "ODBCSYSINI", "GIT_CONFIG_COUNT", "GIT_EXEC_PATH", "OPENSSL_CONF", "LESSOPEN", "MAKEFLAGS", "TAVERN_HOME",
)  # fmt: skip
TIERS = ("none", "process")


def script(shop: Workshop, name: str, env: Sequence[str], head: str) -> Path:
    """A plugin with a script that names `env`."""
    tool = {
        "id": "run",
        "description": "x",
        "parameters": {"type": "object"},
        "implementation": {"type": "script", "command": "python run.py", "env": list(env)},
    }
    return shop.folder(name, None, f"tools: [{json.dumps(tool)}]\n{head}", **{"run.py": SCRIPT})


def plugin(shop: Workshop, env: Sequence[str], asks: Sequence[str], tier: str) -> None:
    """A plugin with a script that names `env`, and one with code of its own that asks for the same."""
    wants = json.dumps([f"env:{name}" for name in asks])
    head = f"permissions: {{capabilities: {wants}}}\nisolation: {tier}\n"
    script(shop, "p", env, head)
    (
        shop.folder("q", None, f"tools: [{{id: seen, implementation: {{type: python}}}}]\n{head}") / "__init__.py"
    ).write_text(CODE)


def leaked(value: Any) -> set[str]:
    """The names of planted variables in an environment."""
    return {name for name, text in value.items() if PLANTED in text}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {*ORDINARY, *LOADERS} - {
        "TAVERN_HOME",
        "LD_PRELOAD",
        "LD_AUDIT",
        "GCONV_PATH",
        "LOCPATH",
    }:  # those would change this test's own programs
        monkeypatch.setenv(name, PLANTED)


@pytest.mark.slow
@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("granted", [False, True])
def test_a_variable_takes_its_permission(workshop: Workshop, tier: str, granted: bool) -> None:
    plugin(workshop, ORDINARY, ORDINARY, tier)
    if granted:
        workshop.grant("p", "q")
    host = workshop.open()
    result = host.invoke_sync("p:run")
    if granted:
        assert result.ok, result.error
        assert leaked(result.value) - {"HTTPS_PROXY"} == set(ORDINARY) - {"HTTPS_PROXY"}
    else:
        assert result.error is not None
        assert (result.error.kind, set(result.error.details["missing"])) == (
            "POLICY_DENIED",
            {f"env:{name}" for name in ORDINARY},
        )
        assert "tavern plugins grant p" in str(result.error.fix) and "env:DATABASE_URL" in str(result.error.fix)
    if tier == "process":
        assert leaked(host.invoke_sync("q:seen").value) == (set(ORDINARY) if granted else set())


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("tier", TIERS)
def test_naming_a_variable_without_asking_for_it_gives_nothing(workshop: Workshop, tier: str) -> None:
    plugin(workshop, ["DATABASE_URL"], ["MY_PROXY"], tier)
    workshop.grant("p")
    host = workshop.open()
    error = host.invoke_sync("p:run").error
    assert error is not None
    assert (error.kind, error.details["missing"]) == ("POLICY_DENIED", ["env:DATABASE_URL"])


@pytest.mark.slow
@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("tier", TIERS)
def test_what_the_fixed_list_has_takes_none(workshop: Workshop, tier: str) -> None:
    plugin(workshop, ["PATH", "LANG", "LC_ALL", "TZ"], [], tier)
    value = workshop.open().invoke_sync("p:run").value
    assert leaked(value) == set()
    assert value["PATH"] == os.environ["PATH"]


@pytest.mark.slow
@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("tier", TIERS)
def test_a_variable_that_loads_code_is_refused_before_anything_runs(workshop: Workshop, tier: str) -> None:
    for number, name in enumerate(LOADERS):
        script(workshop, f"names-{number}", [name], f"isolation: {tier}")
        workshop.folder(f"asks-{number}", None, f"permissions: {{capabilities: ['env:{name}']}}")
    host = workshop.open()
    for number, name in enumerate(LOADERS):
        assert not host.invoke_sync(f"names-{number}:run").ok, name
        assert not host.plugins[f"names-{number}"].requested, name
        asking = host.plugins[f"asks-{number}"]
        assert (asking.state, asking.error_code) == ("failed", "MANIFEST_INVALID"), name


@pytest.mark.parametrize("name", LOADERS)
def test_the_check_names_a_variable_that_loads_code(
    workshop: Workshop, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    asking = workshop.folder("asks", None, f"permissions: {{capabilities: ['env:{name}']}}")
    for folder in (script(workshop, "names", [name], ""), asking):
        assert main(["plugins", "check", str(folder)]) != 0
        reported = capsys.readouterr()
        assert name in reported.out + reported.err and "never passed on" in reported.out + reported.err


@pytest.mark.parametrize("tier", TIERS)
def test_an_edited_lock_file_passes_no_variable_that_loads_code(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    plugin(workshop, ["MY_PROXY"], ["MY_PROXY"], tier)
    workshop.grant("p", "q")
    monkeypatch.setenv("PYTHONPATH", PLANTED)
    lock = workshop.home / "tavern.lock"
    lock.write_text(lock.read_text().replace("env:MY_PROXY", "env:PYTHONPATH"))
    host = workshop.open()
    assert not host.invoke_sync("p:run").ok
    if tier == "process":
        assert leaked(host.invoke_sync("q:seen").value) == set()


@pytest.mark.slow
@pytest.mark.usefixtures("planted")
def test_a_caller_needs_it_too(workshop: Workshop) -> None:
    plugin(workshop, ["MY_PROXY"], ["MY_PROXY"], "none")
    workshop.grant("p")
    host = workshop.open()
    for permissions, is_ok in ((set(), False), ({"env:OTHER"}, False), ({"env:MY_PROXY"}, True)):
        result = host.invoke_sync("p:run", context=CallContext(principal="guest", permissions=permissions))
        assert result.ok == is_ok, result.error
    denied = workshop.open(config={"capabilities": {"deny": ["env:*"]}})
    assert not denied.invoke_sync("p:run").ok


def test_the_review_shows_it_with_its_risk(workshop: Workshop) -> None:
    plugin(workshop, ["MY_PROXY"], ["MY_PROXY"], "none")
    host = workshop.open(activate="none")
    request = next(r for r in host.review("p").requests() if r.permission.id == "env:MY_PROXY")
    assert (request.permission.risk, request.state) == ("high", "pending")
    assert "'MY_PROXY'" in request.permission.sentence and "MY_PROXY" in request.permission.sentence_zh
    assert "env:MY_PROXY" in next(s for s in host.tools.list() if s.id == "p:run").capabilities


@pytest.mark.parametrize("name", ["A=B", "", "A B", "1A", "A\n", "Ä", "*", "A" * 200])
def test_what_is_no_name_is_no_permission(workshop: Workshop, name: str) -> None:
    workshop.folder("p", None, f"permissions: {{capabilities: [{json.dumps('env:' + name)}]}}")
    status = workshop.open().plugins["p"]
    assert (status.state, status.requested) == ("failed", frozenset())


@pytest.mark.slow
def test_a_revoked_variable_is_gone_from_a_worker(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PROXY", PLANTED)
    plugin(workshop, [], ["MY_PROXY"], "process")
    workshop.grant("q")
    host = workshop.open()
    assert leaked(host.invoke_sync("q:seen").value) == {"MY_PROXY"}
    host.revoke("q", "env:MY_PROXY")
    assert leaked(host.invoke_sync("q:seen").value) == set()


# Other places where a plugin could name one -------------------------------------------------------------------------------

GREEDY = """
@tool
def got() -> str:
    "What its setting is."
    return str(CTX[0].get_config("where"))

CTX = []

@hookimpl
def tavern_register_tools(ctx):
    CTX.append(ctx)
    return [got]

@hookimpl
def tavern_before_save_settings(changes):
    return {**changes, "extensions.p.where": {"$env": "MY_PROXY"}}
"""


def opened(shop: Workshop, default: str) -> Tavern:
    shop.folder("p", GREEDY, f"""
        tools: [{{id: got, implementation: {{type: python}}}}]
        permissions: {{hooks: ["hook:client:settings:before-save"]}}
        configOptions:
          - {{key: extensions.p.where, type: string, defaultValue: {default}}}
          - {{key: extensions.p.other, type: string, defaultValue: ""}}
    """)  # fmt: skip
    shop.grant("p")
    return shop.open()


@pytest.mark.parametrize("reference", ["{$env: MY_PROXY}", "{$file: secret.txt}"])
def test_the_default_of_a_setting_is_no_reference(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.setenv("MY_PROXY", PLANTED)
    (workshop.home).mkdir(exist_ok=True)
    (workshop.home / "secret.txt").write_text(PLANTED)
    result = opened(workshop, reference).invoke_sync("p:got")
    assert PLANTED not in str(result)


@pytest.mark.slow
def test_a_hook_makes_no_setting_a_reference(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PROXY", PLANTED)
    host = opened(workshop, '""')
    assert host.invoke_sync("p:got").ok
    with pytest.raises(Exception, match="made a reference by a hook"):
        host.settings.save({"extensions.p.other": "x"})
    assert PLANTED not in str(host.invoke_sync("p:got"))
    host.settings.save({"extensions.p.where": {"$env": "MY_PROXY"}})  # a person's own is what it was
    assert host.invoke_sync("p:got").value == "***"  # it is behind the reference, and masked as what may be a secret
