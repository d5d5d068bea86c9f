"""`tavern plugins check` against loading: what the one accepts loads, what the other refuses is found, all of it at once.

Each row is a plugin with one mistake (or none), written as files; it is checked without running it, then loaded and its tools called.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tavern_core import Tavern
from tavern_core.__main__ import main
from tavern_core.review.plugin_check import CheckReport, check_plugin
from tests.rows import each_row

YAML = """\
name: notes
version: "1.0"
description: Keeps notes.
tools:
  - {id: add, description: Add., implementation: {type: python}}
"""
CODE = """\
from tavern_core import Command, Service, hookimpl, read_only, tool


@tool
def add(text: str = "x", times: int = 1) -> str:
    \"\"\"Add.\"\"\"
    return text * times


@hookimpl
def tavern_register_tools(ctx):
    return [add]
"""
BOX = (
    CODE.replace("return [add]", "return [Box(ctx)]")
    + """

class Box:
    def __init__(self, ctx):
        self.ctx = ctx

    @tool
    def add(self, text: str = "x") -> str:
        \"\"\"Add.\"\"\"
        return text
"""
)
CLOCK = (
    CODE
    + """

class Clock:
    @read_only
    def now(self):
        return 1


@hookimpl
def tavern_register_services(ctx):
    return [Service("clock", Clock())]
"""
)
IMPL = CODE.partition("@hookimpl")[0]
HOOK = "from tavern_core import hookimpl\nfrom .impl import *\n\n@hookimpl\ndef tavern_register_tools(ctx):\n    return [add]\n"
HANDLER = YAML.replace("{type: python}", "{type: python, handler: 'code_x:add'}")
TYPED = HANDLER.replace(
    "description: Add.,", "description: Add., parameters: {type: object, properties: {text: {type: string}}},"
)
ADD = "def add(text: str = 'x') -> str:\n    'Add.'\n    return text\n"
SERVED = (
    YAML + "  - {id: now, description: N., parameters: {type: object, properties: {}}, "
    "implementation: {type: service, service: clock, method: now}}\nservices: [clock]\n"
)
SCRIPT = YAML + (
    "  - {id: sh, description: S., parameters: {type: object, properties: {n: SCHEMA}}, implementation: {type: script, command: [python, run.py]}}\n"
)
Files = Mapping[str, str | None]


def code(text: str, **more: str | None) -> Files:
    return {"__init__.py": text, **{f"{name}.py": content for name, content in more.items()}}


def manifest(text: str, init: str | None = CODE, **more: str | None) -> Files:
    return {"plugin.yaml": text, **code(init or "", **more), **({"__init__.py": None} if init is None else {})}


FINE: dict[str, Files] = {
    "as it is": {},
    "a toolbox": code(BOX),
    "a toolbox with a base": code(BOX.replace("[Box(ctx)]", "[Sub(ctx)]") + "\n\nclass Sub(Box):\n    pass\n"),
    "a toolbox made at module level": code(BOX.replace("[Box(ctx)]", "[BOX]") + "\n\nBOX = Box(None)\n"),
    "a toolbox of another module": code(
        CODE.replace("return [add]", "return [impl.Box(ctx)]").replace("import", "import", 1)
        + "\nfrom . import impl\n",
        impl=BOX,
    ),
    "a function that makes the list": code(
        CODE.replace("return [add]", "return make()") + "\n\ndef make():\n    return [add]\n"
    ),
    "a local list": code(CODE.replace("return [add]", "tools = [add]\n    return tools")),
    "a star import of the host's": code(CODE.replace("import Command, Service, hookimpl, read_only, tool", "import *")),
    "a star import of hooks": code("from .impl import *\n", impl=CODE),
    "a star import of tools": code(HOOK, impl=IMPL),
    "a handler": manifest(HANDLER, "", code_x=ADD),
    "a handler with parameters": manifest(TYPED, "", code_x=ADD),
    "a handler that was imported": manifest(HANDLER, "", code_x="from .inner import add\n", inner=ADD),
    "a service": manifest(YAML + "services: [clock]\n", CLOCK),
    "a tool of a service": manifest(SERVED, CLOCK),
    "a tool in one return or another": code(
        CODE.replace("    return [add]", "    if ctx:\n        return [add]\n    return [add]")
    ),
    "a pattern that is no regular expression": code(
        CODE.replace('text: str = "x"', "text: Annotated[str, Glob(pattern='*.py')] = 'x'")
        .replace("@tool", "class Glob:\n    def __init__(self, pattern):\n        pass\n\n\n@tool", 1)
        .replace("from tavern_core", "from typing import Annotated\nfrom tavern_core", 1)
    ),
    "hooks that calls make": manifest(
        YAML + "services: [clock]\n",
        CLOCK.replace("def tavern_register_tools(ctx)", "def make_tools(ctx)")
        .replace("def tavern_register_services(ctx)", "def make_services(ctx)")
        .replace("@hookimpl\n", "")
        + "\n\ndef hook(make):\n    return hookimpl(lambda ctx: make(ctx))\n\n\n"
        "tavern_register_tools, tavern_register_services = hook(make_tools), hook(make_services)\n",
    ),
    "workflows of a folder and of code": {
        **manifest(
            YAML + "workflows: {entry: flows}\n",
            CODE + "\n@hookimpl\ndef tavern_register_workflows():\n    return {}\n",
        ),
        "flows/read.me": "",
    },
    "types that are unknown here": code(
        CODE.replace("times: int = 1", "times: Count = 1").replace("@tool", "Count = int\n\n\n@tool", 1)
    ),
}
BROKEN: dict[str, tuple[Files, str]] = {
    "a toolbox without the declared tool": (code(BOX.replace("def add(self", "def plus(self")), "does not return it"),
    "a class instead of an instance": (code(BOX.replace("Box(ctx)]", "Box]")), "the class Box is not a tool"),
    "a toolbox without marks": (code(BOX.replace("    @tool\n", "")), "none of its methods is marked"),
    "a function without its mark": (code(CODE.replace("@tool\n", "")), "the function add is not a tool"),
    "a name that is nowhere": (code(HOOK.replace("[add]", "[ad]"), impl=IMPL), "'ad' is defined nowhere"),
    "a function that makes too little": (
        code(CODE.replace("return [add]", "return make()") + "\n\ndef make():\n    return []\n"),
        "does not return it",
    ),
    "a generator": (code(CODE.replace("return [add]", "yield add")), "is a generator"),
    "the same tool twice": (code(CODE.replace("[add]", "[add, add]")), "two tools are called"),
    "a star import without the tool": (
        code(CODE.replace("import Command, Service, hookimpl, read_only, tool", "import *").replace("add", "plus")),
        "does not return it",
    ),
    "a star import of nothing": (code("from .nowhere import *\n" + CODE), "'.nowhere' is not a module of the plugin"),
    "an import of no module": (code("from .nowhere import x\n" + CODE), "'.nowhere' is not a module of the plugin"),
    "an import of no name": (code("from .impl import nothing\n" + CODE, impl="x = 1\n"), "'.impl' has no 'nothing'"),
    "an import of no name, one module on": (
        code(HOOK, impl="from .deep import ad as add\n", deep=IMPL),
        "'.deep' has no 'ad'",
    ),
    "a handler in no module": (
        manifest(HANDLER.replace("code_x:", "code_y:"), "", code_x=ADD),
        "names no module of the plugin",
    ),
    "a handler that is not there": (
        manifest(HANDLER.replace(":add'", ":ad'"), "", code_x=ADD),
        "there is no handler",
    ),
    "a handler with parameters that is not there": (
        manifest(TYPED.replace(":add'", ":ad'"), "", code_x=ADD),
        "there is no handler",
    ),
    "a handler that is a number": (manifest(HANDLER, "", code_x="add = 5\n"), "is not a function"),
    "a handler that takes something else": (
        manifest(TYPED, "", code_x=ADD.replace("text", "txt")),
        "the schema declares 'text', which add does not take",
    ),
    "a handler without a package": (manifest(HANDLER, None, code_x=ADD), "no package in which"),
    "a service under another name": (manifest(YAML + "services: [watch]\n", CLOCK), "the service 'clock' is offered"),
    "a service without a section": (code(CLOCK), "no section 'services'"),
    "a method that is not there": (
        manifest(SERVED.replace("method: now", "method: noww"), CLOCK),
        "has no method 'noww'",
    ),
    "a command under another name": (
        manifest(
            YAML + "commands: [greet]\n",
            CODE + "\n@hookimpl\ndef tavern_register_commands():\n    return [Command('great', lambda: 1)]\n",
        ),
        "the command 'great' is offered",
    ),
    "a default of another type": (
        code(CODE.replace("times: int = 1", "times: int = 'lots'")),
        "the default does not fit",
    ),
    "a default that is not a choice": (
        code(
            CODE.replace("times: int = 1", "times: Literal['a', 'b'] = 'c'").replace(
                "from tavern_core", "from typing import Literal\nfrom tavern_core", 1
            )
        ),
        "the default does not fit",
    ),
    "a default inside a list": (
        code(CODE.replace("times: int = 1", "times: 'list[int] | None' = ['a']")),
        "the default does not fit",
    ),
    "a default of written parameters": (
        code(
            CODE.replace(
                "@tool\n",
                "@tool(parameters={'type': 'object', 'properties': {'text': {'type': 'string', 'default': 5}}})\n",
            )
        ),
        "the default does not fit",
    ),
    "a pattern in a signature that cannot be tried": (
        code(
            CODE.replace('text: str = "x"', "text: Annotated[str, Field(pattern='^(?!x)')] = 'y'").replace(
                "from tavern_core", "from typing import Annotated\nfrom pydantic import Field\nfrom tavern_core", 1
            )
        ),
        "look-around, including",
    ),
    "a pattern in the annotation of an answer that cannot be tried": (
        code(
            CODE.replace("-> str:", "-> Annotated[str, Field(pattern='(?=x)')]:", 1).replace(
                "from tavern_core", "from typing import Annotated\nfrom pydantic import Field\nfrom tavern_core", 1
            )
        ),
        "look-around, including",
    ),
    "a pattern of an answer that cannot be tried": (
        code(CODE.replace("@tool\n", "@tool(output={'type': 'string', 'pattern': '(?!x)'})\n")),
        "look-around, including",
    ),
    "a pattern in a tool that is a mapping": (
        code(
            CODE.replace("    return [add]", "    if ctx:\n        return [add, *more()]\n    return [add, *more()]")
            + "\n\ndef more():\n    return [{'id': 'sub', 'kind': 'python', 'impl': add, 'inputSchema': "
            "{'type': 'object', 'properties': {'text': {'pattern': '(?!x)'}}}}]\n",
        ),
        "look-around, including",
    ),
    "written parameters that nobody takes": (
        code(
            CODE.replace("@tool\n", "@tool(parameters={'type': 'object', 'properties': {'txt': {'type': 'string'}}})\n")
        ),
        "the schema declares 'txt', which add does not take",
    ),
    "a default in plugin.yaml": (
        {"plugin.yaml": SCRIPT.replace("SCHEMA", "{type: integer, default: lots}"), "run.py": "print('{}')"},
        "the default does not fit",
    ),
    "a default of a setting": (
        manifest(YAML + "configOptions: [{key: extensions.notes.n, type: number, defaultValue: abc}]\n"),
        "the default must be a number",
    ),
    "an option that there is not": (
        code(CODE.replace("@tool\n", "@tool(readonly=True)\n")),
        "@tool has no option 'readonly'",
    ),
    "any number of arguments": (code(CODE.replace('text: str = "x", times', "*text: str, times")), "it takes `*text`"),
    "an argument without a name": (code(CODE.replace('text: str = "x",', 'text: str = "x", /,')), "is positional-only"),
    "a reserved command": (
        manifest(
            YAML + "commands: [serve]\n",
            CODE + "\n@hookimpl\ndef tavern_register_commands():\n    return [Command('serve', lambda: 1)]\n",
        ),
        "the command 'serve' is reserved",
    ),
    "a reserved name": (manifest(YAML.replace("name: notes", "name: core-notes")), "is reserved for the host"),
    "a capability that there is not": (code(CODE.replace("@tool\n", "@tool(capabilities=['raed:fs'])\n")), "raed:fs"),
    "a hook that there is not": (
        code(CODE + "\n@hookimpl\ndef tavern_chek_call(call):\n    pass\n"),
        "there is no hook",
    ),
    "a hook that was not asked for": (
        code(CODE + "\n@hookimpl\ndef tavern_check_call(call):\n    pass\n"),
        "does not request it",
    ),
    "an argument that a hook has not": (code(CODE.replace("(ctx)", "(context)")), "has no argument 'context'"),
    "no Python": (code(CODE + "def (:\n"), "not Python"),
    "a script that is not there": (
        {"plugin.yaml": SCRIPT.replace("SCHEMA", "{type: integer}")},
        "there is no 'run.py'",
    ),
    "no folder of nodes": (manifest(YAML + "nodes: {entry: nodes}\n"), "there is no 'nodes'"),
    "a node that nobody brings": (
        manifest(YAML + "  - {id: nn, description: N., implementation: {type: node, nodeType: 'notes:X'}}\n"),
        "the plugin has no node 'X'",
    ),
    "a tool with an odd name": (code(CODE.replace("@tool\n", "@tool(name='add it!')\n")), "is not a tool name"),
    "a tool of another plugin": (code(CODE.replace("@tool\n", "@tool(name='other:add')\n")), "other"),
}
LOADS_ALL_THE_SAME = {"a method that is not there"}
"""Only a call of the tool shows it: the plugin loads."""


def write(folder: Path, files: Files, names: Mapping[str, str] | None = None) -> Path:
    """The files of a plugin; `names`: what is called otherwise in all of them."""
    for name, text in {"plugin.yaml": YAML, "__init__.py": CODE, **files}.items():
        if text is not None:
            for old, new in (names or {}).items():
                text = text.replace(old, new)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, "utf-8")
    return folder


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """Whether each plugin is active after everything was granted, with tools that can be used.

    All are in one host, where each has a name, a service and commands of its own.
    """
    root = tmp_path_factory.mktemp("all")
    names = {case: f"notes{number}" for number, case in enumerate([*FINE, *BROKEN])}
    for case, name in names.items():
        files = FINE[case] if case in FINE else BROKEN[case][0]
        write(root / "plugins" / name, files, {"notes": name, "clock": f"{name}-clock"})
    config = {
        "plugins": {"roots": [str(root / "plugins")], "entryPoints": False, "probe": "never"},
        "tools": {"allow": [*names.values()]},
    }
    with Tavern.open(config, home=root / "home", activate="all") as tavern:
        found = {s.name.removeprefix("core-"): s for s in tavern.plugins.values() if s.source == "folder"}
        assert found.keys() == {*names.values()}
        failed = {d.plugin for d in tavern.diagnostics if d.severity == "error"}
        active = {name for name, s in found.items() if s.state == "active" and s.name not in failed}

        def work(name: str) -> bool:
            tools = [tool for tool in tavern.tools.known_ids() if tool.startswith(f"{name}:")]
            results = [tavern.invoke_sync(tool, {}) for tool in tools]
            broken = ("UPSTREAM_ERROR", "INTERNAL", "TOOL_NOT_FOUND")
            return all(
                r.error is None or (r.error.kind not in broken and "handler" not in r.error.message) for r in results
            )

        return {case: name in active and work(name) for case, name in names.items()}


def check(folder: Path) -> CheckReport:
    """What check says; nothing of the plugin is imported by it."""
    report = check_plugin(folder)
    assert not [
        name
        for name, module in list(sys.modules.items())
        if str(getattr(module, "__file__", "")).startswith(str(folder))
    ]
    return report


@pytest.mark.parametrize("case", FINE)
def test_what_check_accepts_loads(tmp_path: Path, loads: dict[str, bool], case: str) -> None:
    folder = write(tmp_path / "plugins" / "notes", FINE[case])
    assert (check(folder).findings, loads[case]) == ((), True)


@each_row("case", BROKEN)
def test_what_does_not_load_is_found_with_its_place_and_repair(
    tmp_path: Path, loads: dict[str, bool], case: str
) -> None:
    files, said = BROKEN[case]
    folder = write(tmp_path / "plugins" / "notes", files)
    errors = [f for f in check(folder).findings if f.severity == "error"]
    assert any(said in f.message for f in errors), errors
    assert not [f for f in errors if errors.count(f) > 1]
    assert all(f.code and f.where is not None and f.where.file and f.where.line and f.where.column for f in errors), (
        errors
    )
    assert all(f.hint for f in errors) or case in ("no Python", "a default of a setting"), errors
    assert all(f.where is not None and (folder / f.where.file).is_file() for f in errors)
    assert loads[case] is (case in LOADS_ALL_THE_SAME)


@pytest.mark.parametrize(
    "code_of_plugin", [CODE, CODE + "\n@hookimpl\ndef tavern_register_services():\n    return []\n"]
)
def test_what_is_declared_and_offered_by_no_code_is_a_warning(tmp_path: Path, code_of_plugin: str) -> None:
    files = manifest(YAML + "services: [clock]\nchannels: [mail]\n", code_of_plugin)
    found = {f.message: f for f in check(write(tmp_path / "plugins" / "notes", files)).findings}
    for name in ("service 'clock'", "channel 'mail'"):
        finding = found[f"plugin.yaml declares the {name}, but no hook offers it"]
        assert (finding.severity, finding.where.file, finding.hint) == (
            "warning", "plugin.yaml", "offer it, or delete the declaration",
        )  # fmt: skip


UNSEEN: dict[str, Files] = {
    "a function of another package": code(
        "import json\n" + CODE.replace("return [add]", "return [add, json.loads(x)]")
    ),
    "a loop": code(CODE.replace("return [add]", "return [each for each in (add,)]")),
    "a list that grows": code(CODE.replace("return [add]", "tools = []\n    tools.append(add)\n    return tools")),
    "an unknown decorator": code(
        CODE.replace("@tool\n", "@register\n")
        .replace("@hookimpl", "def register(f):\n    return tool(f)\n\n\n@hookimpl", 1)
        .replace("@register", "@__import__('tavern_core').tool")
    ),
    "a factory without names": code(
        CODE.replace("return [add]", "return [factory(lambda ctx: add)]").replace(
            "import Command", "import factory, Command"
        )
    ),
    "a name that is put together": code(
        CODE.replace("return [add]", "return [Tool('a' + 'dd', add)]").replace("import Command", "import Tool, Command")
    ),
    "a base of another package": code(
        "from collections import UserDict\n" + BOX.replace("class Box:", "class Box(UserDict):")
    ),
}


@each_row("case", UNSEEN)
def test_where_check_cannot_see_it_says_so_and_concludes_nothing(tmp_path: Path, case: str) -> None:
    report = check(write(tmp_path / "plugins" / "notes", UNSEEN[case]))
    (said,) = report.findings
    assert (said.code, said.severity, said.where is not None and said.where.file) == (
        "CODE_UNSEEN",
        "info",
        "__init__.py",
    )
    assert report.is_ok


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = (
        "name: notes\nversion: [1]\ncolour: red\ncommands: [serve]\nrequires: {host: '~~1'}\n"
        "permissions: {hooks: ['hook:server:tool:chek'], capabilities: ['raed:fs']}\n"
        "tools:\n  - {id: add, description: 5, implementation: {type: python}}\n  - {id: 'no name!', implementation: {type: python}}\n"
        "  - {id: gone, implementation: {type: python}}\n"
    )
    folder = write(
        tmp_path / "plugins" / "notes",
        {
            "plugin.yaml": text,
            "__init__.py": CODE.replace("times: int = 1", "times: int = 'x'")
            + "\n@hookimpl\ndef tavern_chek(): pass\n",
        },
    )
    errors = {
        f.where.line if f.where else 0: f.message
        for f in check(folder).findings
        if f.severity == "error" and f.where and f.where.file == "plugin.yaml"
    }
    for line, said in (
        (2, "must be text"), (3, "unknown key 'colour'"), (4, "'serve' is reserved"), (5, "not a version range"), (6, "not a capability"),
        (8, "must be text"), (9, "not a tool name"), (10, "does not return it"),
    ):  # fmt: skip
        assert said in errors[line], errors
    messages = " ".join(f.message for f in check(folder).findings)
    for said in ("unknown hook permission", "the default does not fit", "there is no hook 'tavern_chek'"):
        assert said in messages
    assert "unnamed" not in messages


# Projects ------------------------------------------------------------------------------------------------------------------

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "tavern-plugin-notes"
version = "1.0"
dependencies = ["tavern-core"]

[project.entry-points."tavern.plugins"]
notes = "tavern_plugin_notes"
"""
SETUPTOOLS = PROJECT.replace("hatchling.build", "setuptools.build_meta").replace("hatchling", "setuptools")
DATA = '\n[tool.setuptools.package-data]\ntavern_plugin_notes = ["plugin.yaml"]\n'
PROJECTS: dict[str, tuple[str, Files, str, str]] = {
    "as it is": (PROJECT, {}, "", ""),
    "below src": (PROJECT, {"": "src"}, "", ""),
    "not TOML": (PROJECT + "[", {}, "error", "not TOML"),
    "no entry point": (
        PROJECT.partition("[project.entry-points")[0],
        {},
        "error",
        "no entry point in the group 'tavern.plugins'",
    ),
    "a misspelt group": (
        PROJECT.replace('"tavern.plugins"', '"tavern.plugin"'),
        {},
        "error",
        "there is 'tavern.plugin'",
    ),
    "a group without quotes": (
        PROJECT.replace('"tavern.plugins"', "tavern.plugins"),
        {},
        "error",
        "no entry point in the group",
    ),
    "a misspelt target": (
        PROJECT.replace('= "tavern_plugin_notes"', '= "tavern_plugin_note"'),
        {},
        "error",
        "names no package of the project",
    ),
    "an object": (
        PROJECT.replace('= "tavern_plugin_notes"', '= "tavern_plugin_notes:plugin"'),
        {},
        "error",
        "names an object",
    ),
    "a bare module": (
        PROJECT.replace('= "tavern_plugin_notes"', '= "single"'),
        {"../single.py": ""},
        "error",
        "names a bare module",
    ),
    "a folder that is not a package": (
        PROJECT.replace('= "tavern_plugin_notes"', '= "folder"'),
        {"../folder/x.txt": ""},
        "error",
        "without __init__.py",
    ),
    "another package": (
        PROJECT.replace('= "tavern_plugin_notes"', '= "other"'),
        {"../other/__init__.py": ""},
        "error",
        "without plugin.yaml",
    ),
    "a misspelt name": (
        PROJECT.replace('notes = "', 'note = "'),
        {},
        "warning",
        "the entry point is called 'note', the plugin 'notes'",
    ),
    "another version": (
        PROJECT.replace('"1.0"', '"1.1"'),
        {},
        "warning",
        "plugin.yaml says version 1.0, pyproject.toml says 1.1",
    ),
    "the same version in other words": (PROJECT.replace('"1.0"', '"1.0.0"'), {}, "", ""),
    "a version in a file": (
        PROJECT.replace('version = "1.0"', 'dynamic = ["version"]')
        + '\n[tool.hatch.version]\npath = "tavern_plugin_notes/__init__.py"\n',
        {"__init__.py": '__version__ = "2.0"\n' + CODE},
        "warning",
        "pyproject.toml says 2.0",
    ),
    "a version of an attribute": (
        SETUPTOOLS.replace('version = "1.0"', 'dynamic = ["version"]')
        + DATA
        + '\n[tool.setuptools.dynamic]\nversion = {attr = "tavern_plugin_notes.__version__"}\n',
        {"__init__.py": '__version__ = "1.0"\n' + CODE},
        "",
        "",
    ),
    "a version that is computed": (
        PROJECT.replace('version = "1.0"', 'dynamic = ["version"]') + '\n[tool.hatch.version]\nsource = "vcs"\n',
        {},
        "info",
        "version: computed by hatchling.build",
    ),
    "setuptools without data": (SETUPTOOLS, {}, "error", "the wheel leaves out files of the plugin: plugin.yaml"),
    "setuptools with data": (SETUPTOOLS + DATA, {}, "", ""),
    "setuptools with half of the data": (
        SETUPTOOLS + DATA,
        {"tools/a.json": "{}"},
        "warning",
        "leaves out files of the plugin: tools/a.json",
    ),
    "setuptools with all data": (SETUPTOOLS + DATA.replace('"plugin.yaml"', '"**/*"'), {"tools/a.json": "{}"}, "", ""),
    "setuptools with MANIFEST.in": (SETUPTOOLS, {"../MANIFEST.in": "graft tavern_plugin_notes\n"}, "", ""),
    "setuptools with other packages": (
        SETUPTOOLS + DATA + '\n[tool.setuptools]\npackages = ["other"]\n',
        {},
        "error",
        "the wheel leaves out tavern_plugin_notes",
    ),
    "setuptools-scm": (
        SETUPTOOLS.replace('["setuptools"]', '["setuptools", "setuptools-scm"]'),
        {},
        "info",
        "package data: computed by setuptools-scm",
    ),
    "hatch with other packages": (
        PROJECT + '\n[tool.hatch.build.targets.wheel]\npackages = ["other"]\n',
        {},
        "error",
        "the wheel leaves out tavern_plugin_notes",
    ),
    "hatch that excludes": (
        PROJECT + '\n[tool.hatch.build.targets.wheel]\nexclude = ["*.yaml"]\n',
        {},
        "error",
        "leaves out files of the plugin: plugin.yaml",
    ),
    "another name of the project": (
        PROJECT.replace('"tavern-plugin-notes"', '"my-notes"'),
        {},
        "error",
        "the wheel leaves out tavern_plugin_notes",
    ),
    "flit": (PROJECT.replace("hatchling.build", "flit_core.buildapi").replace("hatchling", "flit_core"), {}, "", ""),
    "a backend that nobody knows": (
        PROJECT.replace("hatchling.build", "own_build").replace("hatchling", "own"),
        {},
        "info",
        "package data: computed by own_build",
    ),
}


@pytest.mark.parametrize("case", PROJECTS)
def test_the_project_of_a_plugin_is_checked(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, files, severity, said = PROJECTS[case]
    project = tmp_path / "project"
    write(
        project / files.get("", "") / "tavern_plugin_notes", {name: content for name, content in files.items() if name}
    )  # type: ignore[operator]
    (project / "pyproject.toml").write_text(text, "utf-8")
    code_ = main(["plugins", "check", str(project), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code_ == (4 if severity == "error" else 0), found
    if not severity:
        assert found["findings"] == []
        return
    assert [(f["severity"], said in f["message"]) for f in found["findings"] if f["severity"] == severity] == [
        (severity, True)
    ], found["findings"]
    assert all(f["file"] and f["line"] and f["column"] and f["hint"] for f in found["findings"])


def test_an_installed_distribution_that_is_no_plugin_is_named_as_such(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name, group, files in (
        ("lonely", "", ""),
        ("misspelt", "[tavern.plugin]\nx = x\n", ""),
        ("shipped", "", "shipped/plugin.yaml,,\n"),
    ):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
        (info / "RECORD").write_text(files, "utf-8")
        if group:
            (info / "entry_points.txt").write_text(group, "utf-8")
    (site / "shipped").mkdir()
    (site / "shipped/plugin.yaml").touch()  # from Python 3.12 on, files that are missing are not listed

    def checked(name: str) -> Any:
        (finding,) = check_plugin(name, sys_path=[str(site)]).findings
        return finding

    for name, hint in (("lonely", 'lonely"'), ("Misspelt", "did you mean 'tavern.plugin'?"), ("shipped", '"shipped"')):
        finding = checked(name)
        assert "is installed and has no entry point in the group 'tavern.plugins'" in finding.message
        assert (finding.code, hint in finding.hint) == ("MANIFEST_INVALID", True)
    assert "ships shipped/plugin.yaml" in checked("shipped").message
    assert (checked("lonley").code, "'lonely'" in checked("lonley").hint) == ("PLUGIN_NOT_FOUND", True)
