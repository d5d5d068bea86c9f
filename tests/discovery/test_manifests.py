"""plugin.yaml: what is accepted, and that every refusal names line, column, pointer and repair."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tavern_core.contract.permissions import describe_permission, requested_permissions
from tavern_core.kernel.manifest.manifest_reader import manifest_from_data, read_manifest
from tests.rows import each_row

EVERYTHING = """\
# yaml-language-server: $schema=plugin.schema.json
name: my-awesome-plugin
displayName: 我的超棒插件
version: 1.0.0
description: 提供一些超棒的功能
author: Ada
license: MIT
homepage: https://example.org
keywords: [words, 文字]
nodes:
  entry: ./nodes
tools:
  - id: doSomething
    displayName: 执行某个操作
    parameters:
      type: object
      properties:
        strength: {type: number, defaultValue: 0.7}
      required: [strength]
    implementation: {type: script, command: node src/run.js, protocol: stdio, timeout: 15000}
    configSchema:
      - {key: cookie, type: string, label: Cookie}
  - id: my-awesome-plugin:count
    implementation: {type: python}
frontend:
  type: vite
  dev: {entry: web/index.ts}
  build:
    entry: dist/index.js
    styles: [dist/style.css]
    outputDir: dist
configOptions:
  - key: extensions.my-awesome-plugin.enableFeatureX
    type: boolean
    label: 启用功能 X
    defaultValue: true
    categoryKey: features
    category: 功能开关
  - {key: extensions.my-awesome-plugin.maxItems, type: number, defaultValue: 10, min: 1, max: 50, step: 1}
  - {key: extensions.my-awesome-plugin.mode, type: select, defaultValue: b, options: [a, {value: b, label: B}]}
  - {key: extensions.my-awesome-plugin.volume, type: slider, defaultValue: 0.3, min: 0, max: 1, step: 0.1}
  - {key: extensions.my-awesome-plugin.notes, type: textarea, rows: 4, defaultValue: ""}
  - {key: extensions.my-awesome-plugin.face, type: avatar}
  - {key: extensions.my-awesome-plugin.side, type: button-group, options: [left, right], defaultValue: left}
  - {key: extensions.my-awesome-plugin.reset, type: action-button, action: reset}
permissions:
  hooks:
    - "hook:server:tool:check"
    - "settings:save:before"
  ui:
    wrap: ["ui:BaseNode"]
    inject: ["node:header:right", "sidebar:panel:header[nodes]", "modal:footer"]
    override: []
  services:
    use: [clock]
    override: [workflowManager]
  capabilities:
    - read:fs
    - name: network
      scope: [api.example.org]
      reason: to ask the weather
    - secrets:api_key
    - danger:destructive
    - acme/read:sensors
  data: ["data:secrets"]
  tryfirst: true
requires: {host: ">=1", tested: "<3"}
dependsOn: {other-plugin: ">=1,<2", another: ""}
before: [late]
after: [early]
aliases: {"MyAwesome:do": doSomething}
start: true
isolation: none
slots: [memory]
services: [clock, {name: calendar, description: dates}]
commands: true
"""


def findings_of(text: str, *, strict: bool = True) -> list[str]:
    return [f"{f.severity} {f}" for f in read_manifest(text, "plugin.yaml", strict=strict).findings]


def minimal(more: str = "") -> str:
    return f'name: text\nversion: "1.0"\n{more}'


def test_every_field_is_read() -> None:
    reading = read_manifest(EVERYTHING, "plugin.yaml", strict=True)
    assert [f for f in reading.findings if f.severity != "info"] == []
    manifest = reading.manifest
    assert manifest is not None
    assert (manifest.name, manifest.display_name, manifest.start) == ("my-awesome-plugin", "我的超棒插件", True)
    assert manifest.services is not None
    assert [s.name for s in manifest.services] == ["clock", "calendar"]
    assert manifest.commands == ()
    assert manifest.channels is None
    assert [c.name for c in manifest.permissions.capabilities][:2] == ["read:fs", "network"]


def test_what_is_asked_for_has_canonical_names_risks_and_sentences() -> None:
    manifest = read_manifest(EVERYTHING, "plugin.yaml", strict=True).manifest
    assert manifest is not None
    asked = requested_permissions(manifest)
    assert asked == {
        "hook:server:tool:check", "hook:client:settings:before-save", "ui:wrap:ui:BaseNode",
        "ui:inject:node:header:right", "ui:inject:sidebar:panel:header[nodes]", "ui:inject:modal:footer",
        "service:use:clock", "service:override:workflowManager", "read:fs", "network", "secrets:api_key",
        "danger:destructive", "acme/read:sensors", "data:secrets", "tryfirst",
    }  # fmt: skip
    rows = [describe_permission(permission) for permission in asked]
    assert all(row.sentence and row.sentence_zh for row in rows)
    assert describe_permission("service:override:workflowManager").risk == "highest"
    assert describe_permission("ui:inject:node:footer").risk == "low"


@each_row(
    "text",
    [
        "name: my-theme-only\nversion: '1'\nfrontend: {type: vanilla, vanilla: {entry: theme.css}}\n",
        "name: empty\nversion: '0'\n",
        "name: empty\nversion: '0'\ndescription:\npermissions:\n  hooks:\nfrontend:\ntools:\n",
        "name: a\nversion: 1.0.0rc1\npermissions: {}\n",
        "name: nodes-only\nversion: 0.1.0\nnodes: {entry: ./nodes}\n",
        "name: bilibili-fetcher\ndisplayName: Bilibili 内容获取器\nversion: 0.1.0\ntools:\n  entry: ./tools\n",
    ],
)
def test_small_manifests_are_whole(text: str) -> None:
    assert findings_of(text) == []


WRONG = [
    # identity
    ("version: '1'\n", "error plugin.yaml:1:1: name: the key 'name' is missing (add `name: …`)"),
    ("name: a\n", "error plugin.yaml:1:1: version: the key 'version' is missing (add `version: …`)"),
    ("name: MyPlugin\nversion: '1'\n",
     "error plugin.yaml:1:7: name: 'MyPlugin' is not a plugin name: use words of a-z and 0-9 joined by '-' (write my-plugin)"),
    ("name: system\nversion: '1'\n",
     "error plugin.yaml:1:7: name: the name 'system' is reserved for the host (choose another name)"),
    ("name: a\nversion: 1.0\n",
     'error plugin.yaml:2:10: version: the version is a number (write it in quotes: version: "1.0")'),
    ("name: a\nversion: v-one\n",
     "error plugin.yaml:2:10: version: 'v-one' is not a version (write it like 1.2.0 or 1.2.0rc1 (PEP 440))"),
    ("[]", "error plugin.yaml:1:1: plugin.yaml must be a mapping of keys to values "
     "(begin with `name: my-plugin` and `version: 1.0.0`)"),
    ("", "error plugin.yaml:1:1: the file is empty (begin with `name: my-plugin` and `version: 1.0.0`)"),
    # keys and types
    (minimal("descripton: x\n"), "error plugin.yaml:3:1: descripton: unknown key 'descripton' (did you mean 'description'?)"),
    (minimal("permissions:\n  hoks: []\n"),
     "error plugin.yaml:4:3: permissions.hoks: unknown key 'hoks' (did you mean 'hooks'?)"),
    (minimal("tools:\n  - id: x\n    implementation: {type: python}\n    descripton: y\n"),
     "error plugin.yaml:6:5: tools.0.descripton: unknown key 'descripton' (did you mean 'description'?)"),
    (minimal("tools:\n  - {id: x, handler: 'a:b', entry: ./tools}\n"),
     "error plugin.yaml:4:29: tools.0.entry: unknown key 'entry' (write `tools: {entry: ./tools}`)"),
    (minimal("start: yes\n"),
     "error plugin.yaml:3:8: start: must be true or false, got 'yes' (write true; yes is text in YAML 1.2)"),
    (minimal("displayName: 5\n"), 'error plugin.yaml:3:14: displayName: must be text, got the number 5 (put it in quotes: "5")'),
    (minimal("tools: 5\n"), "error plugin.yaml:3:8: tools: must be a mapping or a list, got the number 5 (write `tools: {entry: ./tools}`)"),
    (minimal("before: other\n"),
     "error plugin.yaml:3:9: before: must be a list, got 'other' (write it as a list: [\"other\"])"),
    (minimal("permissions: [a]\n"), "error plugin.yaml:3:14: permissions: must be a mapping, got a list (write `permissions: {hooks: [...], capabilities: [...]}`)"),
    (minimal("isolation: proces\n"),
     "error plugin.yaml:3:12: isolation: 'proces' is not one of none, process (did you mean 'process'?)"),
    (minimal("tools:\n  - {id: x, implementation: {type: script, command: 5}}\n"),
     "error plugin.yaml:4:53: tools.0.implementation.command: must be text or a list, got the number 5"),
    (minimal("tools:\n  - {id: x, timeout: -1, handler: 'a:b'}\n"),
     "error plugin.yaml:4:22: tools.0.timeout: must be greater than 0, got the number -1"),
    # versions
    (minimal('requires: {host: "^1.2"}\n'),
     "error plugin.yaml:3:18: requires.host: '^1.2' is not a version range (write \">=1.2,<2\")"),
    (minimal('dependsOn: {b: "*"}\n'),
     "error plugin.yaml:3:16: dependsOn.b: '*' is not a version range (write \"\" for any version)"),
    (minimal('dependsOn: {b: "1.2"}\n'),
     "error plugin.yaml:3:16: dependsOn.b: '1.2' is not a version range (write \">=1.2\" or \"==1.2\")"),
    (minimal('dependsOn: {text: ""}\n'),
     "error plugin.yaml:3:13: dependsOn.text: the plugin depends on itself (delete the line)"),
    (minimal("after: [text]\n"), "error plugin.yaml:3:9: after.0: the plugin is after itself (delete the line)"),
    # permissions
    ('name: text\nversion: "1.0"\n# what we ask for\n\n\npermissions:\n  hooks:\n    - "hook:server:tools:before-register"\n'
     '    - "hook:server:tool:chek"\n',
     "error plugin.yaml:9:7: permissions.hooks.1: unknown hook permission 'hook:server:tool:chek' "
     "(did you mean 'hook:server:tool:check'?)"),
    (minimal("permissions: {hooks: [tavern_check_call]}\n"),
     "error plugin.yaml:3:23: permissions.hooks.0: unknown hook permission 'tavern_check_call' "
     "(write the permission, not the function: 'hook:server:tool:check')"),
    (minimal("permissions: {hooks: [tavern_start]}\n"),
     "error plugin.yaml:3:23: permissions.hooks.0: unknown hook permission 'tavern_start' "
     "(delete the line: this hook needs no permission)"),
    *(
        (minimal(f"permissions: {{hooks: ['{written}']}}\n"),
         f"error plugin.yaml:3:23: permissions.hooks.0: unknown hook permission {written!r} (write {meant!r})")
        for written, meant in {
            "settings:before-save": "hook:client:settings:before-save",
            "hook:client:settings:save:before": "hook:client:settings:before-save",
            "tool:before-execute": "hook:server:tool:before-execute",
            "hook:client:tool:check": "hook:server:tool:check",
        }.items()
    ),
    (minimal("capabilities: [network]\n"),
     "error plugin.yaml:3:1: capabilities: unknown key 'capabilities' "
     "(write it under `permissions`: `permissions: {capabilities: …}`)"),
    *(
        (minimal(f"tools: [{{id: count, {key}: true, implementation: {{type: python}}}}]\n"),
         f"error plugin.yaml:3:21: tools.0.{key}: unknown key {key!r} (write `securityContext: {{{meant}: …}}`)")
        for key, meant in {"requires_approval": "requiresApproval", "readOnly": "readOnly"}.items()
    ),
    (minimal("tools: [count]\n"),
     "error plugin.yaml:3:9: tools.0: must be a mapping, got 'count' "
     "(write `{id: count, implementation: {type: python}}`)"),
    (minimal("permissions: {ui: {wrap: [BaseNode]}}\n"),
     "error plugin.yaml:3:27: permissions.ui.wrap.0: unknown component 'BaseNode' (did you mean 'ui:BaseNode'?)"),
    (minimal("permissions: {ui: {inject: ['node:header:rigth']}}\n"),
     "error plugin.yaml:3:29: permissions.ui.inject.0: unknown outlet 'node:header:rigth' "
     "(did you mean 'node:header:right'?)"),
    (minimal("permissions: {ui: {inject: ['node:footer[x]']}}\n"),
     "error plugin.yaml:3:29: permissions.ui.inject.0: unknown outlet 'node:footer[x]' (did you mean 'node:footer'?)"),
    (minimal("permissions: {ui: {inject: ['sidebar:panel:header[{panelId}]']}}\n"),
     "error plugin.yaml:3:29: permissions.ui.inject.0: unknown outlet 'sidebar:panel:header[{panelId}]' "
     "(write the id of a panel, such as sidebar:panel:header[nodes]; for every panel, write sidebar:panel:header)"),
    (minimal("permissions: {capabilities: [red:fs]}\n"),
     "error plugin.yaml:3:30: permissions.capabilities.0: 'red:fs' is not a capability (did you mean 'read:fs'?)"),
    (minimal("permissions: {capabilities: [{name: read:fs, scop: [a]}]}\n"),
     "error plugin.yaml:3:46: permissions.capabilities.0.scop: unknown key 'scop' (did you mean 'scope'?)"),
    (minimal("permissions: {capabilities: ['read:*']}\n"),
     "error plugin.yaml:3:30: permissions.capabilities.0: 'read:*' is not a capability (did you mean 'read:db'?)"),
    # settings
    (minimal("configOptions:\n  - {key: enable, type: boolean}\n"),
     "error plugin.yaml:4:11: configOptions.0.key: the key 'enable' is not of the form extensions.text.<option> "
     "(write extensions.text.enable)"),
    (minimal("configOptions:\n  - {key: extensions.other.x, type: boolean}\n"),
     "error plugin.yaml:4:11: configOptions.0.key: the setting 'extensions.other.x' belongs to the plugin 'other', "
     "not to 'text' (write extensions.text.x)"),
    (minimal("configOptions:\n  - {key: extensions.text.x, type: checkbox}\n"),
     "error plugin.yaml:4:36: configOptions.0.type: 'checkbox' is not one of string, number, boolean, select, textarea, "
     "slider, avatar, button-group, action-button"),
    (minimal("configOptions:\n  - {key: extensions.text.x, type: number, defaultValue: 60, max: 50}\n"),
     "error plugin.yaml:4:58: configOptions.0.defaultValue: the default 60 is larger than max 50"),
    (minimal("configOptions:\n  - {key: extensions.text.x, type: number, defaultValue: 0.25, step: 0.1, min: 0}\n"),
     "error plugin.yaml:4:58: configOptions.0.defaultValue: the default 0.25 is not reached in steps of 0.1 from 0"),
    (minimal("configOptions:\n  - {key: extensions.text.x, type: boolean, defaultValue: 1}\n"),
     "error plugin.yaml:4:59: configOptions.0.defaultValue: the default must be true or false, got the number 1"),
    (minimal("configOptions:\n  - {key: extensions.text.x, type: select, options: [1, 2], defaultValue: true}\n"),
     "error plugin.yaml:4:75: configOptions.0.defaultValue: the default true is not one of 1, 2"),
    (minimal("configOptions:\n  - {key: extensions.text.x, type: select}\n"),
     "error plugin.yaml:4:5: configOptions.0.options: a select needs options (add `options: [a, b]`)"),
    (minimal("configOptions:\n  - {key: extensions.text.x, type: string, defaultValue: 5}\n"),
     'error plugin.yaml:4:58: configOptions.0.defaultValue: the default must be text, got the number 5 (put it in quotes: "5")'),
    (minimal("configOptions:\n  - {key: extensions.text.x, type: number, min: 5, max: 1}\n"),
     "error plugin.yaml:4:49: configOptions.0.min: min 5 is larger than max 1 (give min the smaller number)"),
    (minimal("configOptions:\n  - {key: extensions.text.x, type: string, step: 2}\n"),
     "error plugin.yaml:4:50: configOptions.0.step: step has no effect for a setting of type string (remove step, or make it a setting of type number or slider)"),
    # tools and aliases
    (minimal("tools:\n  - {id: 'other:x', implementation: {type: python}}\n"),
     "error plugin.yaml:4:10: tools.0.id: the prefix 'other' of 'other:x' is not this plugin's name (text) "
     '(write text:x, or keep the id with `aliases: {"other:x": x}` in plugin.yaml)'),
    (minimal("tools:\n  - {id: 'jobs:x', implementation: {type: python}}\n"),
     "error plugin.yaml:4:10: tools.0.id: the namespace 'jobs' belongs to the host (write text:x)"),
    (minimal("tools:\n  - {id: a_b, implementation: {type: python}}\n  - {id: AB, implementation: {type: python}}\n"),
     "error plugin.yaml:5:10: tools.1.id: 'AB' is the same tool as 'a_b' above (rename or delete one)"),
    (minimal('aliases: {"system:x": y}\n'),
     "error plugin.yaml:3:11: aliases.system:x: the namespace 'system' belongs to the host (delete the alias)"),
    (minimal('aliases: {"a:b": "other:c"}\n'),
     "error plugin.yaml:3:18: aliases.a:b: 'other:c' is a tool of another plugin (write c)"),
    (minimal('aliases: {"a:b": "c d"}\n'),
     "error plugin.yaml:3:18: aliases.a:b: 'c d' is not a tool name (use 1 to 64 of A-Z a-z 0-9 _ . -)"),
    # frontend
    (minimal("frontend: {dev: {entry: web/index.ts}}\n"),
     "warning plugin.yaml:3:1: frontend: a frontend of type vite has no `build`; the console ignores this plugin "
     "(add `build: {entry: …}`)"),
    (minimal("frontend: {type: vanilla, build: {entry: dist/index.js}}\n"),
     "warning plugin.yaml:3:1: frontend: a frontend of type vanilla has no `vanilla`; the console ignores this "
     "plugin (add `vanilla: {entry: …}`)"),
]  # fmt: skip


@each_row(("text", "expected"), WRONG)
def test_one_mistake_gives_one_finding_with_place_and_repair(text: str, expected: str) -> None:
    assert findings_of(text) == [expected]


@each_row(
    ("path", "reason"),
    [
        ("../other", "'..' leaves"),
        ("a/../../b", "'..' leaves"),
        ("/etc/passwd", "must be relative"),
        ("~/x", "must be relative"),
        ("C:/x", "must be relative"),
        ("c:x", "must be relative"),
        ("a\\b", "write / between folders"),
        ("..\\x", "write / between folders"),
        ("\\\\server\\share", "write / between folders"),
        ("a/file:stream", "holds no ':'"),
        (".git/x.py", "is not part of a plugin"),
        ("a/__pycache__/x.pyc", "is not part of a plugin"),
        ("   ", "empty"),
        ("x" * 501, "longer than"),
    ],
)
def test_no_path_leaves_the_plugin(path: str, reason: str) -> None:
    section = f"nodes: {{entry: {path!r}}}\ntools: {{entry: {path!r}}}\nfrontend: {{build: {{entry: {path!r}}}}}\n"
    found = findings_of(minimal(section))
    assert len(found) == 3
    assert all(reason in f for f in found)


@pytest.mark.parametrize("sign", ["\\0", "\\x1f", "\\x7f"])
def test_no_path_holds_a_control_character(sign: str) -> None:
    [found] = findings_of(minimal(f'tools: {{entry: "a{sign}b"}}\n'))
    assert "control character" in found


def test_an_unknown_key_is_a_warning_when_loading_and_the_rest_loads() -> None:
    text = minimal("zukunft: 1\npermissions: {hooks: [hook:server:tool:check], futureThing: {a: 1}}\ntools:\n"
                   "  - {id: x, implementation: {type: python}, later: true}\n")  # fmt: skip
    reading = read_manifest(text, "plugin.yaml", strict=False)
    assert reading.manifest is not None
    assert requested_permissions(reading.manifest) == {"hook:server:tool:check"}
    assert [(f.severity, str(f.where)) for f in reading.findings] == [
        ("warning", "plugin.yaml:3:1: zukunft"),
        ("warning", "plugin.yaml:4:48: permissions.futureThing"),
        ("warning", "plugin.yaml:6:45: tools.0.later"),
    ]
    assert read_manifest(text, "plugin.yaml", strict=True).manifest is None


def test_wrong_values_are_errors_when_loading_too_beside_unknown_keys() -> None:
    found = findings_of("name: A\nversion: '1'\nzz: 1\nstart: 1\n", strict=False)
    assert [f.split(" ")[0] for f in found] == ["error", "warning", "error"]


def test_needless_entries_are_reported_to_authors() -> None:
    text = minimal(
        "permissions:\n  hooks: [auth:login, 'hook:client:auth:login', 'hook:server:plugin:before-install']\n  data: [data:conversation]\n"
    )
    assert [f.split(": ", 2)[2] for f in findings_of(text)] == [
        "'hook:client:auth:login' requests 'hook:client:auth:login' again (delete the line)",
        "this host does not call the hooks of 'hook:server:plugin:before-install' yet (keep it for a later host)",
        "no requested hook has the arguments that 'data:conversation' protects (delete the line)",
    ]


def test_a_replaced_part_of_the_console_gets_a_hint_about_gentler_ways() -> None:
    text = minimal("permissions:\n  ui: {wrap: ['ui:BaseNode'], override: ['ui:MainMenu']}\n")
    [found] = [f for f in findings_of(text) if "override" in f]
    assert found.startswith("info")
    assert "replaces all of ui:MainMenu" in found
    assert "ui.inject" in found
    assert "ui.wrap" in found


def test_a_manifest_that_is_data_is_judged_alike() -> None:
    reading = manifest_from_data(
        {"name": "a", "version": "1", "permissions": {"hooks": ["x"]}}, "object a", strict=False
    )
    assert reading.manifest is None
    assert [str(f.where) for f in reading.findings] == ["object a: permissions.hooks.0"]
    assert manifest_from_data({"name": "a", "version": "1"}, "object a", strict=False).manifest is not None


def test_the_name_is_known_even_when_the_rest_is_wrong() -> None:
    assert read_manifest("name: text\nstart: 7\n", "plugin.yaml", strict=False).written_name == "text"


def test_yaml_errors_are_manifest_errors() -> None:
    [finding] = read_manifest("name: a\nversion: [1\n", "plugin.yaml", strict=False).findings
    assert (finding.code, finding.severity) == ("MANIFEST_INVALID", "error")
    assert finding.where is not None
    assert finding.where.line >= 2


TOKENS = [
    "true",
    "5",
    "''",
    "[]",
    "{}",
    "- x",
    "null",
    "\n",
    "  ",
    ":",
    "&a",
    "*a",
    "../x",
    "中",
    '"\\0"',
    "1e999",
    "name",
]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_a_mutated_manifest_is_answered_with_located_findings(seed: int, strict: bool) -> None:
    rng = random.Random(seed)
    lines = EVERYTHING.splitlines()
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        line = lines[at]
        match rng.randrange(5):
            case 0:
                lines[at] = line.partition(":")[0] + ": " + rng.choice(TOKENS)
            case 1:
                lines[at] = (
                    line[: rng.randrange(len(line) + 1)] + rng.choice(TOKENS) + line[rng.randrange(len(line) + 1) :]
                )
            case 2:
                lines[at] = " " * rng.randrange(6) + line.strip()
            case 3:
                lines.insert(rng.randrange(len(lines)), line)
            case _:
                del lines[at]
    reading = read_manifest("\n".join(lines), "plugin.yaml", strict=strict)
    assert (reading.manifest is None) == any(f.severity == "error" for f in reading.findings)
    for finding in reading.findings:
        assert finding.message
        assert finding.where is not None
        assert finding.where.line >= 1, finding


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.dictionaries(
    st.sampled_from(["name", "version", "tools", "permissions", "frontend", "configOptions", "aliases", "dependsOn",
                     "services", "profiles", "requires", "before", "x"]),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                 lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                     st.sampled_from(["id", "entry", "hooks", "ui", "wrap", "type", "implementation", "key", "name",
                                      "build", "host", "a b", ""]), inner, max_size=3), max_leaves=8), max_size=6))  # fmt: skip
def test_any_data_is_answered(data: dict[str, object]) -> None:
    reading = manifest_from_data(data, "object", strict=True)
    assert reading.manifest is not None or any(f.severity == "error" for f in reading.findings)
