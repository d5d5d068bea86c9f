"""Tools of LangChain packages and of plugins of `llm`, and ours for LangChain's agents."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, tool
from tavern_core.errors import TavernError

DISTRIBUTION = {
    "toolkit_of_tests/__init__.py": '''\
from types import SimpleNamespace
from langchain_core.callbacks import CallbackManagerForToolRun
from langchain_core.tools import ToolException, tool

@tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b

@tool(response_format="content_and_artifact")
def draw(what: str) -> tuple[str, dict]:
    """Draw something."""
    return f"a picture of {what}", {"pixels": [1, 2, 3]}

@tool
def fail(how: str) -> str:
    """Fail."""
    raise ToolException(how) if how == "politely" else ValueError(how)

@tool
def where_it_runs(seconds: float = 0) -> str:
    """Blocks its thread."""
    import threading, time
    time.sleep(seconds)
    return threading.current_thread().name

class Shape:
    """No LangChain at all, but its shape."""
    name, description, args_schema = "shape", "Has the shape of a tool.", {"type": "object", "properties": {"n": {"type": "integer"}}}
    def invoke(self, given):
        return {"given": given}

class Proxy:
    """As those of web frameworks: nothing is behind it outside of a request."""
    def __getattr__(self, name):
        raise RuntimeError("working outside of a request")

class Exits(Shape):
    """Ends the program when it is looked at."""
    @property
    def description(self):
        raise SystemExit(3)

class Indescribable(Shape):
    name = "indescribable"
    @property
    def tool_call_schema(self):
        raise SystemExit(3)

class Raises(Shape):
    def __init__(self, error):
        self.name, self.error = f"raises_{error.__name__.lower()}", error
    def invoke(self, given):
        raise self.error("now")

class RaisesLater(Raises):
    def __init__(self, error):
        super().__init__(error)
        self.name += "_later"
    async def ainvoke(self, given):
        raise self.error("now")

def raising():
    return [make(error) for make in (Raises, RaisesLater) for error in (KeyboardInterrupt, SystemExit)]

exits, indescribable = Exits(), Indescribable()
shape = Shape()
request = Proxy()
not_a_tool = SimpleNamespace(name="no")

def make():
    return [add]

async def make_later():
    return [add]

kit = SimpleNamespace(get_tools=lambda: [None, add, 5, SimpleNamespace(get_tools=lambda: 1 / 0)])
later_kit = SimpleNamespace(get_tools=make_later)

class Where(Shape):
    name = "where"
    async def ainvoke(self, given):
        import asyncio
        return id(asyncio.get_running_loop())

def where():
    return Where()

def make_and_exit():
    raise SystemExit(3)
''',
    "toolkit_of_tests-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: toolkit-of-tests\nVersion: 1.5\n",
    "toolkit_of_tests-1.5.dist-info/top_level.txt": "toolkit_of_tests\n",
    "llm_of_tests.py": '''\
import asyncio
import llm

class Notes(llm.Toolbox):
    """Needs to be prepared."""
    def __init__(self, owner: str = "nobody"):
        self.owner = owner
    def prepare(self):
        self.notes = []
        self.add_tool(self.count_notes)
    async def prepare_async(self):
        await asyncio.sleep(0)
        self.is_ready = True
    def count_notes(self) -> int:
        """How many there are."""
        return len(self.notes)
    def add(self, text: str) -> str:
        """Add a note."""
        self.notes.append(text)
        return f"{self.owner} has {len(self.notes)}, {self.is_ready}"

class Needs(llm.Toolbox):
    def __init__(self, url: str):
        self.url = url
    def fetch(self) -> str:
        """Fetch it."""
        return self.url

class Exits(llm.Toolbox):
    def __init__(self):
        raise SystemExit(3)

class HalfWay(llm.Toolbox):
    def good(self) -> str:
        """Good."""
        return "good"
    @property
    def odd(self):
        raise SystemExit(3)

def plain(number: int) -> int:
    """A plain function."""
    return number + 1

def interrupts() -> str:
    raise KeyboardInterrupt

class Interrupted(llm.Toolbox):
    def prepare(self):
        raise KeyboardInterrupt

def drawn(path: str, count: int = 1):
    """Answer with attachments."""
    png = llm.Attachment(content=b"\\x89PNG\\r\\n\\x1a\\n pixel", type="image/png")
    odd = [llm.Attachment(path=path), llm.Attachment(url="https://example.org/a.mp3", type="audio/mpeg"), llm.Attachment(), 3]
    return llm.ToolOutput({"drawn": count}, [png] * count + odd)

async def said():
    """Answer with one attachment, as text."""
    return llm.ToolOutput("a note", [llm.Attachment(content=b"hello", type="text/plain")])

class Evil:
    def __getattr__(self, name):
        raise SystemExit(3)

@llm.hookimpl
def register_tools(register):
    for thing in (Exits, Interrupted, Evil(), HalfWay, Notes, Needs, interrupts, plain, drawn, said):
        register(thing)
    raise SystemExit(3)
''',
    "llm_of_tests-2.dist-info/METADATA": "Metadata-Version: 2.1\nName: llm-of-tests\nVersion: 2\n",
    "llm_of_tests-2.dist-info/entry_points.txt": "[llm]\nof_tests = llm_of_tests\n",
    "toolkit_of_tests/needs.py": "import toolkit_of\n",
    "broken_of_tests/__init__.py": "raise RuntimeError('broken at import')\n",
    "broken_of_tests-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: broken-of-tests\nVersion: 1\n",
    "broken_of_tests-1.dist-info/top_level.txt": "broken_of_tests\n",
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """Installed distributions."""
    folder = tmp_path / "site"
    for name, text in DISTRIBUTION.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in ("toolkit_of_tests", "broken_of_tests", "llm_of_tests"):
        sys.modules.pop(name, None)


def opened(home: Path, granted: bool = True, **entry: Any) -> Tavern:
    config = {"plugins": {"entryPoints": False}, "upstreams": {"lc": {"kind": "langchain", **entry}}}
    host = Tavern.open(config, home=home)
    if granted:
        with ThreadPoolExecutor(1) as threads:  # the test may be inside an event loop
            threads.submit(host.grant, "lc", "process:host").result()
    return host


@pytest.mark.slow
def test_the_tools_of_an_installed_package_are_tools_of_the_host(site: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "home", package="toolkit-of-tests") as host:
        status = host.upstreams.connect_sync("lc")
        assert status.tools == ("lc:add", "lc:draw", "lc:fail", "lc:shape", "lc:where_it_runs")
        assert status.latency_ms is not None
        assert host.tools["lc:add"].version == "1.5" and host.tools["lc:add"].resource_id == "add"
        assert host.tools.get("lc:add").input_schema["required"] == ["a"]
        assert host.tools["lc:add"].input_schema["properties"]["a"]["title"] == "A"
        assert host.invoke_sync("lc:add", {"a": 1}).value == 3
        assert host.invoke_sync("lc:shape", {"n": 1}).value == {"given": {"n": 1}}
        drawn = host.invoke_sync("lc:draw", {"what": "a cat"})
    assert drawn.value == "a picture of a cat" and drawn.meta["artifact"] == {"pixels": [1, 2, 3]}


FAILURES = {
    "politely": ({"how": "politely"}, "TOOL_ERROR", "politely"),
    "rudely": ({"how": "rudely"}, "UPSTREAM_ERROR", "ValueError"),
    "wrong arguments": ({"how": 1}, "INPUT_SCHEMA_INVALID", "how"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_of_a_tool_is_an_error_of_the_call(case: str, site: Path, tmp_path: Path) -> None:
    arguments, kind, word = FAILURES[case]
    with opened(tmp_path / "home", package="toolkit-of-tests") as host:
        result = host.invoke_sync("lc:fail", arguments)
    assert result.error is not None and (result.error.kind, word in result.error.message) == (kind, True)


def test_a_tool_in_this_process_runs_on_the_loop_of_its_caller(site: Path, tmp_path: Path) -> None:
    async def calls() -> None:
        objects = {"objects": ["toolkit_of_tests:where"]}
        async with opened(tmp_path / "home", package="toolkit-of-tests", settings=objects) as host:
            assert (await host.invoke("lc:where", {})).value == id(asyncio.get_running_loop())
            assert host.upstreams["lc"].state == "open"

    asyncio.run(calls())


OBJECTS = {
    "a tool": (["toolkit_of_tests:add"], ("lc:add",)),
    "a function that makes tools": (["toolkit_of_tests:make"], ("lc:add",)),
    "two": (["toolkit_of_tests:add", "toolkit_of_tests:shape"], ("lc:add", "lc:shape")),
    "a toolkit with something else in it": (["toolkit_of_tests:kit"], ("lc:add",)),
    "one beside those that fail": (
        [
            "toolkit_of_tests:make_and_exit",
            "toolkit_of_tests:nothing",
            "toolkit_of_tests:exits",
            "toolkit_of_tests:add",
        ],
        ("lc:add",),
    ),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_named_objects_are_taken_instead_of_a_scan(case: str, site: Path, tmp_path: Path) -> None:
    objects, tools = OBJECTS[case]
    with opened(tmp_path / "home", package="toolkit-of-tests", settings={"objects": objects}) as host:
        assert host.upstreams.connect_sync("lc").tools == tools


UNUSABLE = {
    "not installed": ({"package": "no-such-package"}, "not installed", "pip install no-such-package"),
    "broken at import": ({"package": "broken-of-tests"}, "broken at import", ""),
    "a module that needs what is not there": (
        {"package": "toolkit-of-tests", "settings": {"objects": ["toolkit_of_tests.needs:tool"]}},
        "No module named 'toolkit_of'",
        "python -c",
    ),
    "no such object": (
        {"package": "toolkit-of-tests", "settings": {"objects": ["toolkit_of_tests:nothing"]}},
        "nothing",
        "objects",
    ),
    "no tool": (
        {"package": "toolkit-of-tests", "settings": {"objects": ["toolkit_of_tests:not_a_tool"]}},
        "not a tool",
        "",
    ),
    "an object that ends the program": (
        {"package": "toolkit-of-tests", "settings": {"objects": ["toolkit_of_tests:make_and_exit"]}},
        "toolkit_of_tests:make_and_exit cannot be used: SystemExit",
        "",
    ),
    "an async function": (
        {"package": "toolkit-of-tests", "settings": {"objects": ["toolkit_of_tests:make_later"]}},
        "is async",
        "sync function",
    ),
    "an async toolkit": (
        {"package": "toolkit-of-tests", "settings": {"objects": ["toolkit_of_tests:later_kit"]}},
        "is async",
        "sync function",
    ),
    "a url instead": ({"url": "http://a.example"}, "reached by `package`", ""),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_cannot_be_scanned_says_why(case: str, site: Path, tmp_path: Path) -> None:
    entry, message, hint = UNUSABLE[case]
    config = {"plugins": {"entryPoints": False}, "upstreams": {"lc": {"kind": "langchain", **entry}}}
    with Tavern.open(config, home=tmp_path / "home", activate="none") as host:
        host.grant("lc", all_requested=True)
    with Tavern.open(config, home=tmp_path / "home") as host, pytest.raises(Exception, match=message) as error:
        host.upstreams.connect_sync("lc")
    assert hint in str(getattr(error.value, "hint", ""))


def test_a_package_is_not_imported_before_it_was_granted(site: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "home", granted=False, package="toolkit-of-tests") as host:
        assert not host.invoke_sync("lc:add", {"a": 1}).ok
        assert host.upstreams["lc"].state == "pending_consent"
        with pytest.raises(Exception, match="process:host"):
            host.upstreams.connect_sync("lc")
    assert "toolkit_of_tests" not in sys.modules


@pytest.mark.slow
def test_sync_tools_run_in_the_threads_for_tools_and_are_given_up_at_their_deadline(site: Path, tmp_path: Path) -> None:
    tools = {"where_it_runs": {"timeoutMs": 200}}
    with opened(tmp_path, package="toolkit-of-tests", tools=tools) as host:
        host.upstreams.connect_sync("lc")

        async def calls() -> tuple[Any, Any]:
            quick = await host.invoke("lc:where_it_runs")
            return quick.value, (await host.invoke("lc:where_it_runs", {"seconds": 1})).error

        thread, error = asyncio.run(calls())
    assert thread.startswith("tavern-tool")
    assert (error.kind, error.details["stopped"], error.outcome) == ("TIMEOUT", False, "unknown")


def test_callbacks_of_a_surrounding_run_reach_the_tool(site: Path, tmp_path: Path) -> None:
    from langchain_core.callbacks import BaseCallbackHandler

    seen: list[str] = []

    class Seen(BaseCallbackHandler):
        def on_tool_start(self, serialized: Any, input_str: str, **_: Any) -> None:
            seen.append(serialized["name"])

    async def run() -> None:
        async with opened(tmp_path / "home", package="toolkit-of-tests") as host:
            await host.upstreams.connect("lc")
            (ours,) = host.langchain_tools({"tool_ids_inventory": ["lc:add"]})
            call = {"type": "tool_call", "name": ours.name, "args": {"a": 5}, "id": "1"}
            message = await ours.ainvoke(call, config={"callbacks": [Seen()]})
            assert message.content == "7" and message.artifact.ok

    asyncio.run(run())
    assert seen == ["lc__add", "add"]


@tool
def half(number: int, config: str = "none", run_manager: int = 2) -> float:
    """Halve a number; its parameters have names that LangChain uses itself."""
    return number / run_manager


@tool(requires_approval=True)
def send() -> str:
    """Send it."""
    return "sent"


def test_our_tools_serve_the_agents_of_langchain(tmp_path: Path) -> None:
    from langchain_core.tools import ToolException

    with Tavern.open(home=tmp_path, plugins=[Plugin([half, send], name="t")]) as host:
        (ours,) = host.langchain_tools({"tool_ids_inventory": ["t:half"]})
        assert ours.name == "t__half" and ours.args_schema["required"] == ["number"]
        assert ours.invoke({"number": 3}) == "1.5"
        message = ours.invoke(
            {"type": "tool_call", "name": ours.name, "args": {"number": 4, "run_manager": 4}, "id": "1"}
        )
        assert (message.content, message.artifact.value) == ("1.0", 1.0)
        with pytest.raises(ToolException, match="INPUT_SCHEMA_INVALID"):
            ours.invoke({"number": "many"})
        with pytest.raises(ToolException, match="needs approval") as refused:
            (host.langchain_tools({"tool_ids_inventory": ["t:send"]}))[0].invoke({})
        assert "ask the user" in str(refused.value) and "Tavern.open" not in str(refused.value)
        (mine,) = host.langchain_tools({"tool_ids_inventory": ["t:half"]}, context=CallContext(principal="ann"))
        assert mine.invoke({"number": 8}) == "4.0"


@tool(job=True)
def brew() -> str:
    """Takes as long as tea does."""
    return "tea"


@pytest.mark.parametrize("config", [{}, {"tools": {"deny": ["jobs:getResult"]}}])
def test_an_agent_of_langchain_gets_the_result_of_a_job_as_it_is_asked_to(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    with Tavern.open({"language": "en"} | config, home=tmp_path, plugins=[Plugin([half, brew], name="t")]) as host:
        ann = CallContext(principal="user:ann")
        ours = {one.name: one for one in host.langchain_tools({"tool_ids_inventory": ["t:brew"]}, context=ann)}
        begun = ours["t__brew"].invoke({"type": "tool_call", "name": "t__brew", "args": {}, "id": "1"})
        job = begun.artifact.job
        assert (
            ("jobs__getResult" in ours) == (f"call jobs__getResult with jobId {job}" in begun.content) == (not config)
        )
        assert {"jobs__getStatus", "jobs__cancel", "jobs__answer"} < ours.keys()
        host.wait(host.jobs.wait(job, 10))
        if not config:
            assert '"tea"' in ours["jobs__getResult"].invoke({"jobId": job})


@pytest.mark.slow
def test_of_two_tools_with_one_name_the_one_that_is_described_is_called(site: Path, tmp_path: Path) -> None:
    (site / "toolkit_of_tests" / "again.py").write_text(
        "from langchain_core.tools import tool\n\n"
        "@tool('add')\ndef add_again(c: int) -> str:\n    'Another.'\n    return 'another'\n"
    )
    settings = {"objects": ["toolkit_of_tests:add", "toolkit_of_tests.again:add_again"]}
    with opened(tmp_path / "home", package="toolkit-of-tests", settings=settings) as host:
        host.upstreams.connect_sync("lc")
        assert "b" in host.tools.get("lc:add").input_schema["properties"]
        assert host.invoke_sync("lc:add", {"a": 1}).value == 3


PACKAGES = {
    "one module of another name": ({"other_of_tests.py": "TOOL"}, ("lc:shape",), ""),
    "a module beside a package": (
        {"beside_of_tests.py": "TOOL", "package_of_tests/__init__.py": ""}, ("lc:shape",), ""
    ),
    "a package of a namespace": ({"space_of_tests/inner/__init__.py": "TOOL"}, ("lc:shape",), ""),
    "async code alone": (
        {"later_of_tests.py": "TOOL\n    ainvoke, invoke = Shape.later, None\nshape = Later()"}, ("lc:shape",), ""
    ),
    "nothing at its top level": ({"nothing_of_tests.py": ""}, (), "settings.objects"),
    "two of one name": ({"two_of_tests.py": "TOOL\n    pass\nsecond = Later()"}, ("lc:shape",), "has this name"),
}  # fmt: skip
SHAPE = """
class Shape:
    name, description, args_schema = "shape", "Has the shape of a tool.", None
    def invoke(self, given):
        return "done"
    async def later(self, given):
        return "done"
shape = Shape()
class Later(Shape):
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", PACKAGES)
def test_a_package_of_any_layout_is_scanned(case: str, site: Path, tmp_path: Path) -> None:
    files, tools, why = PACKAGES[case]
    about = site / "layout_of_tests-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: layout-of-tests\nVersion: 1.0\n")
    (about / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        end = "" if "class" in text or "\n" in text else "\n    pass"
        (site / name).write_text(text.replace("TOOL", SHAPE.rstrip() + end))
    try:
        with opened(tmp_path / "home", package="layout-of-tests") as host:
            status = host.upstreams.connect_sync("lc")
            assert status.tools == tools
            assert why in " ".join(status.left_out.values()) and bool(status.left_out) is bool(why)
            assert not tools or host.invoke_sync("lc:shape").value == "done"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0].endswith("_of_tests")]:
            sys.modules.pop(name)


SCHEMAS = """
from typing import Annotated, Any
from datetime import date
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId, tool
from pydantic import v1
import pydantic as v2

class Old(v1.BaseModel):
    number: int = v1.Field(..., ge=0)

class Older(BaseTool):
    name: str = "older"
    description: str = "Its parameters are a model of pydantic 1."
    args_schema: Any = Old
    def _run(self, number):
        return number

older = Older()

@tool
def of_agents(text: str, user: Annotated[str, InjectedToolArg]) -> str:
    "Needs what only an agent of LangChain has."
    return text

@tool
def with_id(text: str, call: Annotated[str, InjectedToolCallId]) -> bool:
    "LangChain gives it the id."
    return bool(call)

@tool
def on(day: date) -> str:
    "Checks more than its schema says."
    return str(day)

class Answer(v2.BaseModel):
    number: int

@tool
def parse(text: str) -> int:
    "Reads what it has got."
    return Answer(number=text).number
"""


@pytest.mark.slow
def test_parameters_of_every_kind_are_described_or_the_tool_is_left_out(site: Path, tmp_path: Path) -> None:
    (site / "toolkit_of_tests" / "schemas.py").write_text(SCHEMAS)
    objects = [f"toolkit_of_tests.schemas:{name}" for name in ("older", "of_agents", "with_id", "on", "parse")]
    with opened(tmp_path / "home", package="toolkit-of-tests", settings={"objects": objects}) as host:
        status = host.upstreams.connect_sync("lc")
        assert status.tools == ("lc:older", "lc:on", "lc:parse", "lc:with_id")
        assert status.left_out == {objects[1]: "only an agent of LangChain can give user"}
        assert host.tools.get("lc:older").input_schema["properties"]["number"]["minimum"] == 0
        assert host.invoke_sync("lc:older", {"number": 3}).value == 3
        assert host.invoke_sync("lc:with_id", {"text": "a"}).ok
        error = host.invoke_sync("lc:on", {"day": "today"}).error
        assert error is not None and "/day: " in error.message and "errors.pydantic.dev" not in error.message
        assert [problem["pointer"] for problem in error.details["problems"]] == ["/day"]
        error = host.invoke_sync("lc:parse", {"text": "what the tool has got"}).error
        assert error is not None and (error.kind, error.outcome) == ("UPSTREAM_ERROR", "unknown")


@pytest.mark.slow
def test_a_tool_that_cannot_be_looked_at_costs_no_other(site: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "home", package="toolkit-of-tests") as host:
        status = host.upstreams.connect_sync("lc")
        assert "lc:shape" in status.tools and "lc:exits" not in status.tools
        assert "SystemExit" in status.left_out["indescribable"]


@pytest.mark.parametrize("error", ["keyboardinterrupt", "systemexit"])
@pytest.mark.parametrize("when", ["", "_later"])
def test_a_tool_that_ends_or_interrupts_the_program_fails_its_call_alone(
    error: str, when: str, site: Path, tmp_path: Path
) -> None:
    settings = {"objects": ["toolkit_of_tests:raising", "toolkit_of_tests:add"]}
    with opened(tmp_path / "home", package="toolkit-of-tests", settings=settings) as host:
        result = host.invoke_sync(f"lc:raises_{error}{when}", {})
        assert result.error is not None and (result.error.kind, result.error.outcome) == ("UPSTREAM_ERROR", "unknown")
        assert error in result.error.message.lower()
        assert host.invoke_sync("lc:add", {"a": 1}).value == 3


def opened_llm(home: Path, **entry: Any) -> Tavern:
    config = {
        "plugins": {"entryPoints": False},
        "upstreams": {"box": {"kind": "llm", "package": "llm-of-tests", **entry}},
    }
    with Tavern.open(config, home=home, activate="none") as host:
        host.grant("box", "process:host")
    return Tavern.open(config, home=home)


@pytest.mark.slow
def test_a_toolbox_is_prepared_and_costs_no_other_where_it_fails(site: Path, tmp_path: Path) -> None:
    toolboxes = {"Notes": {"owner": "ann"}, "Note": {}}
    with opened_llm(tmp_path / "home", settings={"toolboxes": toolboxes}) as host:
        status = host.upstreams.connect_sync("box")
        names = (
            "HalfWay_good",
            "Notes_add",
            "Notes_count_notes",
            "count_notes",
            "drawn",
            "interrupts",
            "plain",
            "said",
        )
        assert status.tools == tuple(f"box:{name}" for name in names)
        why = {
            "Exits": "SystemExit",
            "Interrupted": "KeyboardInterrupt",
            "HalfWay": "SystemExit",
            "Needs": "'url'",
            "Note": "correct settings.toolboxes",
            "Evil": "SystemExit",
            "llm_of_tests": "SystemExit",
        }
        assert status.left_out.keys() == why.keys()
        assert all(text in status.left_out[name] for name, text in why.items())
        assert host.invoke_sync("box:plain", {"number": 1}).value == 2
        assert host.invoke_sync("box:Notes_add", {"text": "a"}).value == "ann has 1, True"
        assert host.invoke_sync("box:count_notes", {}).value == 1
        interrupted = host.invoke_sync("box:interrupts", {})
        assert interrupted.error is not None and "KeyboardInterrupt" in interrupted.error.message


@pytest.mark.slow
def test_attachments_become_artifacts_of_the_caller_and_links(site: Path, tmp_path: Path) -> None:
    file = tmp_path / "voice.txt"
    file.write_text("a voice")
    with opened_llm(tmp_path / "home") as host:
        ann = CallContext(principal="user:ann", permissions=frozenset({"process:host"}))
        result = host.invoke_sync("box:drawn", {"path": str(file)}, context=ann)
        assert result.value == {"drawn": 1}
        text, png, voice, link, empty, odd = result.content
        assert text["text"] == '{"drawn": 1}' and (png["mimeType"], voice["mimeType"]) == ("image/png", "text/plain")
        assert host.artifacts.read(png["uri"], context=ann).startswith(b"\x89PNG")
        assert host.artifacts.read(voice["uri"], context=ann) == b"a voice" and voice["name"] == "voice.txt"
        assert link == {
            "type": "resource_link",
            "uri": "https://example.org/a.mp3",
            "name": "drawn-3",
            "mimeType": "audio/mpeg",
        }
        assert "neither content nor path nor address" in empty["text"] and "cannot be read" in odd["text"]
        with pytest.raises(TavernError):
            host.artifacts.read(png["uri"], context=CallContext(principal="user:bob"))
        missing = host.invoke_sync("box:drawn", {"path": str(tmp_path / "none")}, context=ann)
        assert missing.ok and "cannot be read" in missing.content[2]["text"]
        too_many = host.invoke_sync("box:drawn", {"path": str(file), "count": 200}, context=ann).error
        assert too_many is not None and (too_many.kind, too_many.outcome) == ("OUTPUT_TOO_LARGE", "done")
        note = asyncio.run(host.invoke("box:said", {}, context=ann))
        assert (note.value, [block["type"] for block in note.content]) == ("a note", ["text", "resource_link"])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["pipe", "device", "folder", "loop"])
def test_an_attachment_that_is_no_file_costs_no_thread(site: Path, tmp_path: Path, what: str) -> None:
    place = tmp_path / "thing"
    if what == "pipe":
        os.mkfifo(place)
    elif what == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero" if what == "device" else place)
    with opened_llm(tmp_path / "home") as host:
        result = host.invoke_sync("box:drawn", {"path": str(place)})
        assert result.ok and "is not a file" in result.content[2]["text"]


@pytest.mark.slow
def test_a_caller_with_credentials_has_a_toolbox_of_its_own(site: Path, tmp_path: Path) -> None:
    own = {"user:ann": {"settings": {"toolboxes": {"Notes": {"owner": "ann"}}}}}
    with opened_llm(tmp_path / "home", credentials=own) as host:
        said = []
        for user in ("ann", "bob", "ann"):
            context = CallContext(principal=f"user:{user}", permissions=frozenset({"process:host"}))
            said.append(host.invoke_sync("box:Notes_add", {"text": "x"}, context=context).value)
    assert said == ["ann has 1, True", "nobody has 1, True", "ann has 2, True"]


@pytest.mark.slow
def test_the_tools_of_a_plugin_of_llm_are_tools_of_the_host(tmp_path: Path) -> None:
    config = {
        "plugins": {"entryPoints": False},
        "upstreams": {
            "calc": {"kind": "llm", "package": "llm-tools-simpleeval"},
            "no": {"kind": "llm", "package": "pluggy"},
        },
    }
    with Tavern.open(config, home=tmp_path, activate="none") as host:
        host.grant("calc", "process:host")
        host.grant("no", "process:host")
    with Tavern.open(config, home=tmp_path) as host:
        assert host.upstreams.connect_sync("calc").tools == ("calc:simple_eval",)
        assert host.invoke_sync("calc:simple_eval", {"expression": "6 * 7"}).value in (42, "42")
        with pytest.raises(Exception, match="not a plugin of llm"):
            host.upstreams.connect_sync("no")
