"""Every hook needs to be declared and granted: by its name or `specname`, in any order it asks for, with every argument."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tavern_core import Tavern
from tavern_core.contract.hookspecs import HOOKS, Hook
from tavern_core.kernel.manifest.manifest_reader import read_manifest
from tests.rows import each_row

from .workshop import Workshop, codes, reported

PERMITTED = [hook for hook in HOOKS.values() if hook.permissions]
CALLED = [hook for hook in PERMITTED if hook.is_called]
SECTIONS = [hook for hook in HOOKS.values() if hook.section and hook.is_called and hook.section != "tools"]
FORMS = ["specname", "tryfirst", "trylast", "async"]


def in_some_forms(hooks: list[Hook]) -> dict[str, tuple[Hook, str]]:
    """Each hook in the plain form and in another one, so that each form is that of several hooks; by a name for a plugin."""
    forms = [(hook, form) for at, hook in enumerate(hooks) for form in ("plain", FORMS[at % len(FORMS)])]
    return {f"p{number}": pair for number, pair in enumerate(forms)}


def code(hook: Hook, form: str = "plain", arguments: str = "") -> str:
    options = {"specname": f'specname="{hook.name}"', "tryfirst": "tryfirst=True", "trylast": "trylast=True"}.get(
        form, ""
    )
    name = "another_name" if form == "specname" else hook.name
    word = "async def" if form == "async" else "def"
    return f"@hookimpl({options})\n{word} {name}({arguments}):\n    note('ran {hook.name}')\n"


def manifest(hook: Hook, *, tryfirst: bool = False, data: str = "") -> str:
    lines = [
        f'  hooks: ["{hook.permissions[0]}"]',
        *(["  tryfirst: true"] if tryfirst else []),
        *([f'  data: ["{data}"]'] if data else []),
    ]
    return "start: true\npermissions:\n" + "\n".join(lines)


def opened(workshop: Workshop, text: str, said: str, *granted: str) -> Tavern:
    workshop.folder("asks", text, said)
    if granted:
        with workshop.made(activate="none") as host:
            host.grant("asks", *granted)
    return workshop.open()


def line_of(workshop: Workshop, plugin: str = "asks") -> str:
    """Where the hookimpl stands: file and line."""
    file = workshop.plugins / plugin / "__init__.py"
    number = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if line.startswith("@hookimpl"))
    return f"{file}:{number}"


@pytest.mark.slow
def test_an_undeclared_hook_fails_the_plugin_with_place_and_line(workshop: Workshop) -> None:
    asking = in_some_forms(PERMITTED)
    for name, (hook, form) in asking.items():
        workshop.folder(name, code(hook, form), "start: true")
    host = workshop.open()
    for name, (hook, form) in asking.items():
        status = host.plugins[name]
        assert (status.state, status.error_code) == ("failed", "HOOK_REFUSED"), (hook.name, form)
        assert line_of(workshop, name) in status.reason
        assert f'- "{hook.permissions[0]}"' in status.reason
        assert name not in host.hooks.get(hook.name, ())


@pytest.mark.slow
def test_a_declared_hook_is_used_when_it_is_granted(workshop: Workshop) -> None:
    asking = in_some_forms(CALLED)
    for name, (hook, form) in asking.items():
        for plugin in (name, f"{name}-declared"):
            workshop.folder(plugin, code(hook, form), manifest(hook, tryfirst=form == "tryfirst"))
    workshop.grant(*asking)
    host = workshop.open()
    for name, (hook, form) in asking.items():
        assert name in host.hooks[hook.name], (hook.name, form)
        assert "HOOK_NOT_GRANTED" not in codes(host, name), (hook.name, form)
        declared = f"{name}-declared"
        assert declared not in host.hooks[hook.name]
        said = reported(host, "HOOK_NOT_GRANTED") + host.plugins[declared].reason
        assert f"tavern plugins grant {declared} {hook.permissions[0]}" in said


@pytest.mark.slow
@pytest.mark.parametrize("hook", SECTIONS, ids=lambda hook: hook.name)
def test_a_contribution_without_its_section_is_refused(workshop: Workshop, hook: Hook) -> None:
    status = opened(workshop, code(hook), "start: true").plugins["asks"]
    assert (status.state, status.error_code) == ("failed", "HOOK_REFUSED")
    assert line_of(workshop) in status.reason
    assert f"`{hook.section}: [<names>]`" in status.reason


@each_row("hook", SECTIONS)
@each_row("said", ["[first, second]", "true"])
def test_the_line_that_a_contribution_needs_is_accepted(hook: Hook, said: str) -> None:
    text = f'name: asks\nversion: "1"\n{hook.section}: {said}\n'
    assert read_manifest(text, "plugin.yaml", strict=True).findings == ()


HOOK = HOOKS["tavern_check_call"]
WRAPPERS = {
    "wrapper": "import pluggy\n@pluggy.HookimplMarker('tavern')(wrapper=True)\ndef tavern_check_call(call):\n    yield",
    "old wrapper": "import pluggy\n@pluggy.HookimplMarker('tavern')(hookwrapper=True)\ndef tavern_check_call(call):\n    yield",
    "wrapper by specname": "import pluggy\n@pluggy.HookimplMarker('tavern')(wrapper=True, specname='tavern_check_call')\ndef x(call):\n    yield",
    "hookimpl(wrapper=True)": "@hookimpl(wrapper=True)\ndef tavern_check_call(call):\n    yield",
}


@pytest.mark.parametrize("what", WRAPPERS)
def test_wrappers_are_refused_though_declared_and_granted(workshop: Workshop, what: str) -> None:
    host = opened(workshop, WRAPPERS[what], manifest(HOOK), HOOK.permissions[0])
    assert host.plugins["asks"].state == "failed"
    assert "wrapper" in host.plugins["asks"].reason
    assert "__init__.py:" in host.plugins["asks"].reason


def test_tryfirst_must_be_declared_and_does_nothing_ungranted(workshop: Workshop) -> None:
    status = opened(workshop, code(HOOK, "tryfirst"), manifest(HOOK), HOOK.permissions[0]).plugins["asks"]
    assert (status.state, "tryfirst: true" in status.reason, line_of(workshop) in status.reason) == (
        "failed",
        True,
        True,
    )


def test_tryfirst_without_its_grant_runs_in_its_usual_place(workshop: Workshop) -> None:
    host = opened(workshop, code(HOOK, "tryfirst"), manifest(HOOK, tryfirst=True), HOOK.permissions[0])
    assert "asks" in host.hooks["tavern_check_call"]
    assert "tavern plugins grant asks tryfirst" in reported(host, "HOOK_NOT_GRANTED")


SENSITIVE = HOOKS["tavern_before_prompt"]


@pytest.mark.parametrize(
    ("arguments", "data", "refused"),
    [("prompt", "", False), ("prompt, conversation", "", True), ("prompt, conversation", "data:conversation", False)],
)
def test_a_sensitive_argument_must_be_declared(workshop: Workshop, arguments: str, data: str, refused: bool) -> None:
    status = opened(
        workshop, code(SENSITIVE, arguments=arguments), manifest(SENSITIVE, data=data), SENSITIVE.permissions[0]
    ).plugins["asks"]
    assert (status.error_code == "HOOK_REFUSED") == refused
    if refused:
        assert 'data: ["data:conversation"]' in status.reason
        assert line_of(workshop) in status.reason


@pytest.mark.parametrize(("right", "used"), [(False, False), (True, True)])
@pytest.mark.parametrize("kind", ["data:secrets", "data:conversation"])
def test_a_sensitive_argument_must_be_granted(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, kind: str, right: bool, used: bool
) -> None:
    monkeypatch.setitem(HOOKS, HOOK.name, replace(HOOK, sensitive={"call": kind}))  # any hook, any right
    grants = (HOOK.permissions[0], *([kind] if right else []))
    host = opened(workshop, code(HOOK, arguments="call"), manifest(HOOK, data=kind), *grants)
    assert ("asks" in host.hooks["tavern_check_call"]) == used
    if not used:
        assert f"tavern plugins grant asks {kind}" in reported(host, "HOOK_NOT_GRANTED")


def test_a_revoked_hook_is_not_called_any_more(workshop: Workshop) -> None:
    host = opened(workshop, code(HOOK), manifest(HOOK), HOOK.permissions[0])
    host.invoke_sync("system:get_current_time")
    host.revoke("asks", HOOK.permissions[0])
    assert host.invoke_sync("system:get_current_time").ok
    assert workshop.notes().count("ran tavern_check_call") == 1
