"""What the official conformance suites call: tools, resources and prompts of one plugin, under exactly their names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import Field

from tavern_core import (
    Plugin,
    PluginContext,
    Prompt,
    Question,
    Resource,
    Tavern,
    ToolContext,
    ToolResult,
    hookimpl,
    tool,
)
from tavern_core.contract.core_services import JOB_MANAGER
from tavern_core.errors import InternalError, ToolFailed

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CAPITAL = "What is the capital of France?"


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def blocks(*content: Any) -> dict[str, Any]:
    return {"content": list(content)}


def embedded(uri: str, media_type: str, words: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": media_type, "text": words}}


# Content -----------------------------------------------------------------------------------------------------------------


@tool(read_only=True)
def test_simple_text() -> str:
    """Answer with a text."""
    return "This is a simple text response for testing."


@tool(read_only=True)
def test_image_content() -> dict[str, Any]:
    """Answer with an image."""
    return blocks(IMAGE)


@tool(read_only=True)
def test_audio_content() -> dict[str, Any]:
    """Answer with a sound."""
    return blocks({"type": "audio", "data": WAV, "mimeType": "audio/wav"})


@tool(read_only=True)
def test_embedded_resource() -> dict[str, Any]:
    """Answer with a resource."""
    return blocks(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))


@tool(read_only=True)
def test_multiple_content_types() -> dict[str, Any]:
    """Answer with a text, an image and a resource."""
    resource = embedded("test://mixed-content-resource", "application/json", '{"test": "data", "value": 123}')
    return blocks(text("Multiple content types test:"), IMAGE, resource)


@tool(read_only=True)
def test_error_handling() -> None:
    """Fail."""
    raise ToolFailed("This tool intentionally returns an error for testing")


@tool(read_only=True)
async def test_tool_with_progress(ctx: ToolContext) -> str:
    """Say how far it is."""
    for done in (0, 50, 100):
        ctx.progress(done, 100)
        await asyncio.sleep(0.06)
    return "done"


@tool(read_only=True)
async def test_tool_with_logging(ctx: ToolContext) -> str:
    """Say what it does."""
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        ctx.log(line)
        await asyncio.sleep(0.05)
    return "done"


@tool(read_only=True)
def test_logging_tool(ctx: ToolContext) -> str:
    """Write lines of every level."""
    for level in ("debug", "info", "warning", "error"):
        ctx.log(f"a line of level {level}", level)
    return "done"


@tool(read_only=True)
async def test_reconnection() -> str:
    """Take longer than the stream of a call stays open."""
    await asyncio.sleep(0.6)
    return "the answer came after the client had come back"


@tool(
    read_only=True,
    parameters={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
def json_schema_2020_12_tool(**given: Any) -> str:
    """Take parameters of a schema with everything in it."""
    return "ok"


@tool(
    read_only=True,
    parameters={
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    },
)
def test_x_mcp_header(region: str) -> str:
    """Take a parameter that also stands in a header."""
    return f"region {region}"


# Asking ------------------------------------------------------------------------------------------------------------------


@tool
async def test_sampling(prompt: str, ctx: ToolContext) -> str:
    """Ask the client's model."""
    answer = await ctx.complete(prompt, max_tokens=100)
    return f"LLM response: {answer['content']['text']}"


@tool
async def test_elicitation(message: str, ctx: ToolContext) -> str:
    """Ask the person at the client."""
    schema = {"type": "object", "properties": {"response": {"type": "string"}}, "required": ["response"]}
    return f"User response: {await ctx.ask(message, schema)}"


@tool
async def test_elicitation_sep1034_defaults(ctx: ToolContext) -> str:
    """Ask with defaults."""
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return f"Elicitation completed: {await ctx.ask('Please review', {'type': 'object', 'properties': properties})}"


@tool
async def test_elicitation_sep1330_enums(ctx: ToolContext) -> str:
    """Ask for choices."""
    options = ["option1", "option2", "option3"]
    titled = [
        {"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate(("First", "Second", "Third"), 1)
    ]
    properties = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return f"Elicitation completed: {await ctx.ask('Please choose', {'type': 'object', 'properties': properties})}"


@tool
async def test_streaming_elicitation(ctx: ToolContext) -> str:
    """Ask while the stream of the call is open."""
    ctx.log("about to ask")
    return str(await ctx.ask("What is your name?", NAME, key="name"))


@tool
async def test_missing_capability(ctx: ToolContext) -> str:
    """Ask the client's model, which it need not have."""
    return str((await ctx.complete("Hello"))["content"])


@tool
async def test_input_required_result_elicitation(ctx: ToolContext) -> str:
    """Ask for a name."""
    answer = await ctx.ask("What is your name?", NAME, key="user_name")
    return f"Hello, {(answer or {}).get('name')}!"


@tool
async def test_input_required_result_sampling(ctx: ToolContext) -> str:
    """Ask the client's model."""
    answer = await ctx.complete(CAPITAL, max_tokens=100, key="capital_question")
    return f"The model said: {answer['content']['text']}"


@tool
async def test_input_required_result_list_roots(ctx: ToolContext) -> str:
    """Ask for folders."""
    roots = await ctx.roots(key="client_roots")
    return f"Roots: {', '.join(root['uri'] for root in roots)}"


CONFIRM = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


@tool
async def test_input_required_result_request_state(ctx: ToolContext) -> str:
    """Ask with a state."""
    await ctx.ask("Please confirm", CONFIRM, key="confirm")
    return "state-ok"


@tool
async def test_input_required_result_tampered_state(ctx: ToolContext) -> str:
    """Ask with a state that is protected."""
    await ctx.ask("Please confirm", CONFIRM, key="confirm")
    return "state-ok"


@tool
async def test_input_required_result_multiple_inputs(ctx: ToolContext) -> str:
    """Ask three things at once."""
    answers = await ctx.ask_all(
        {
            "user_name": Question.form("What is your name?", NAME),
            "greeting": Question.completion("Make a greeting", max_tokens=50),
            "client_roots": Question.roots(),
        }
    )
    return f"All of {', '.join(answers)}"


@tool
async def test_input_required_result_multi_round(ctx: ToolContext) -> str:
    """Ask two things, one after the other."""
    name = await ctx.ask("Step 1: What is your name?", NAME, key="step1")
    color = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    liked = await ctx.ask("Step 2: What is your favorite color?", color, key="step2")
    return f"{name} likes {liked}"


@tool
async def test_input_required_result_capabilities(ctx: ToolContext) -> str:
    """Ask only what the client can be asked."""
    questions = {}
    if ctx.can_ask("form"):
        questions["name"] = Question.form("What is your name?", NAME)
    if ctx.can_ask("completion"):
        questions["capital"] = Question.completion(CAPITAL)
    return str(await ctx.ask_all(questions))


# Tasks -------------------------------------------------------------------------------------------------------------------


@tool(read_only=True)
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


@tool(job=True)
async def slow_compute(seconds: Annotated[float, Field(ge=0, le=60)], label: str = "") -> str:
    """Take its time."""
    await asyncio.sleep(seconds)
    return f"computed {label}"


@tool(job=True, limits={"inline_ms": 0})
async def failing_job() -> None:
    """Fail after a second."""
    await asyncio.sleep(1)
    raise ToolFailed("the job failed on purpose")


@tool(job=True)
async def protocol_error_job() -> None:
    """End in an error of the host."""
    raise InternalError("something broke in the middle of it")


@tool(job=True, destructive=False)
async def confirm_delete(filename: str, ctx: ToolContext) -> str:
    """Ask before it goes on."""
    schema = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
    answer = await ctx.ask(f"Delete {filename}?", schema, key="confirm")
    return f"deleted {filename}" if answer and answer["confirm"] else f"kept {filename}"


@tool(job=True)
async def multi_input(ctx: ToolContext) -> str:
    """Ask two things at once."""
    answers = await ctx.ask_all(
        {"first": Question.form("First name?", NAME), "second": Question.form("Second name?", NAME)}
    )
    return f"got {answers}"


@tool(job=True)
async def greet_later(name: str) -> str:
    """Greet somebody in the background."""
    await asyncio.sleep(0.2)
    return f"Hello, {name}!"


# Resources and prompts ---------------------------------------------------------------------------------------------------


@tool(read_only=True)
def static_text() -> str:
    """The text of a resource."""
    return "This is the content of the static text resource."


@tool(read_only=True)
def static_binary() -> dict[str, Any]:
    """The bytes of a resource."""
    return blocks(IMAGE)


@tool(read_only=True)
def template_data(id: str) -> dict[str, Any]:  # noqa: A002 - the variable of the address
    """The data of a resource with a variable in its address."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@tool(read_only=True)
def simple_prompt() -> str:
    """A prompt."""
    return "This is a simple prompt for testing."


@tool(read_only=True)
def prompt_with_arguments(
    arg1: Annotated[str, Field(description="First test argument")],
    arg2: Annotated[str, Field(description="Second test argument")],
) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@tool(read_only=True)
def prompt_with_resource(resourceUri: str) -> dict[str, Any]:  # noqa: N803 - as the suites call it
    """A prompt with a resource."""
    resource = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    return blocks(resource, text("Please process the embedded resource above."))


@tool(read_only=True)
def prompt_with_image() -> dict[str, Any]:
    """A prompt with an image."""
    return blocks(IMAGE, text("Please analyze the image above."))


@tool(read_only=True)
async def asking_prompt(ctx: ToolContext) -> str:
    """A prompt that asks first."""
    schema = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
    answer = await ctx.ask("What is the context?", schema, key="user_context")
    return f"Context: {(answer or {}).get('context')}"


TOOLS: list[Callable[..., Any]] = [
    found for found in list(globals().values()) if callable(found) and hasattr(found, "__tavern_tool__")
]
RESOURCES = [
    Resource("static-text", "test://static-text", "static_text", "A text.", media_type="text/plain"),
    Resource("static-binary", "test://static-binary", "static_binary", "An image.", media_type="image/png"),
    Resource("watched-resource", "test://watched-resource", "static_text", "A text that is watched."),
    Resource("template-data", "test://template/{id}/data", "template_data", "Data.", media_type="application/json"),
]
PROMPTS = [
    Prompt("test_simple_prompt", "simple_prompt", "A simple prompt"),
    Prompt("test_prompt_with_arguments", "prompt_with_arguments", "A prompt with arguments"),
    Prompt("test_prompt_with_embedded_resource", "prompt_with_resource", "A prompt with a resource"),
    Prompt("test_prompt_with_image", "prompt_with_image", "A prompt with an image"),
    Prompt("test_input_required_result_prompt", "asking_prompt", "A prompt that asks"),
]


class Further:
    """A plugin with one more prompt; it is switched on and off while clients look."""

    @tool(read_only=True)
    def more(self) -> str:
        """Another prompt."""
        return "more"

    @hookimpl
    def tavern_register_tools(self, ctx: PluginContext) -> Iterable[Any]:
        return [self.more]

    @hookimpl
    def tavern_register_prompts(self, ctx: PluginContext) -> Iterable[Prompt]:
        return [Prompt("further", "more")]


class Fixtures:
    """The plugin; it changes its host, as only tests do."""

    tavern: Tavern
    count = 0

    @hookimpl
    def tavern_register_tools(self, ctx: PluginContext) -> Iterable[Any]:
        @tool
        async def test_tool_with_task(call: ToolContext) -> ToolResult:
            """Ask for a name, then go on in the background."""
            answer = await call.ask("What is your name?", NAME, key="user_name")
            arguments = {"name": (answer or {}).get("name", "")}
            job = await ctx.service(JOB_MANAGER).start("fixtures:greet_later", arguments)
            return ToolResult(True, job, status="job", job=job["jobId"])

        return [*TOOLS, test_tool_with_task, self.test_trigger_tool_change, self.test_trigger_prompt_change]

    @tool
    async def test_trigger_tool_change(self) -> str:
        """Add a tool."""
        Fixtures.count += 1

        @tool(name=f"added-{Fixtures.count}")
        def added() -> str:
            """Added while clients look."""
            return "added"

        await asyncio.to_thread(self.tavern.tools.register, added)
        return "a tool was added"

    @tool
    async def test_trigger_prompt_change(self) -> str:
        """Take a prompt away, or bring it back."""
        plugins = self.tavern.plugins
        await (plugins.disable("further") if plugins["further"].state == "active" else plugins.enable("further"))
        return "a prompt was changed"

    @hookimpl
    def tavern_register_resources(self, ctx: PluginContext) -> Iterable[Resource]:
        return RESOURCES

    @hookimpl
    def tavern_register_prompts(self, ctx: PluginContext) -> Iterable[Prompt]:
        return PROMPTS


def profile() -> dict[str, Any]:
    """The agent profile of the suites: every tool, under the name that they call it."""
    names = [each.__name__ for each in TOOLS]
    names += ["test_tool_with_task", "test_trigger_tool_change", "test_trigger_prompt_change"]
    wire = {f"fixtures:{name}": name for name in names}
    return {"tool_ids_inventory": [*wire, "further:more"], "wire_names": wire}


def plugins(fixtures: Fixtures) -> list[Plugin]:
    """What `Tavern.open` takes."""
    return [Plugin(fixtures, name="fixtures"), Plugin(Further(), name="further")]
