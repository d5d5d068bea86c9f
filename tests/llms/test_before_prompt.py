"""`tavern_before_prompt`: what it sees, what it may change, and who may see the conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, NodeContext, Plugin, Tavern, deny, hookimpl, node, tool
from tavern_core.contract.llm import LLMAnswer
from tavern_core.errors import CallError

from .conftest import Open

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "t"}}


class Echo:
    """A model that answers with what it gets."""

    async def complete(self, messages: Any, /, **options: Any) -> LLMAnswer:
        return LLMAnswer(
            "", data={"messages": [dict(m) for m in messages], "options": options}, usage={"input": 1, "output": 1}
        )


class Models:
    @hookimpl
    def tavern_register_llms(self) -> Any:
        return {"echo": Echo(), "other": Echo()}


def hook(answer: Any, seen: list[Any] | None = None) -> Plugin:
    """A plugin that answers so."""

    class Hooks:
        @hookimpl
        def tavern_before_prompt(self, prompt: Any, conversation: Any) -> Any:
            if seen is not None:
                seen.append((prompt, conversation))
            return answer(prompt, conversation) if callable(answer) else answer

    return Plugin(Hooks(), name="watcher")


class Result:
    """What came of one request to `echo`."""

    def __init__(self, opened: Open, *plugins: Plugin, **options: Any) -> None:
        self.events: list[Any] = []
        self.error: CallError | None = None
        self.got: Any = None
        host = opened({}, [Plugin(Models(), name="models"), *plugins])
        host.events.subscribe(lambda event: self.events.append(event.to_json()), "MODEL_CALLED")
        with host:
            try:
                self.got = host.wait(host.llms.complete(ASKED, "echo", options, purpose="to greet")).data
            except CallError as error:
                self.error = error


def test_a_hook_sees_the_prompt_and_the_conversation_apart(opened: Open) -> None:
    seen: list[Any] = []
    assert Result(opened, hook(None, seen), tools=[TOOL], temperature=0).error is None
    assert seen == [
        (
            {"system": "Be brief.", "model": "echo", "purpose": "to greet", "tools": [TOOL]},
            [{"role": "user", "content": "hi"}],
        )
    ]


@node("asks:Ask")
async def ask_node(ctx: NodeContext) -> str:
    """Ask."""
    return (await ctx.llm("echo").complete(ASKED)).text


class AsksEverywhere:
    """A plugin that asks from a node and from a tool."""

    @hookimpl
    def tavern_register_nodes(self) -> Any:
        return [ask_node]

    @hookimpl
    def tavern_register_tools(self, ctx: Any) -> Any:
        @tool
        async def ask() -> str:
            """Ask."""
            return str((await ctx.service("llms").complete(ASKED, "echo"))["text"])

        return [ask]


def test_requests_of_nodes_plugins_and_programs_all_pass_the_hook(opened: Open) -> None:
    seen: list[Any] = []
    plugins = [Plugin(Models(), name="models"), Plugin(AsksEverywhere(), name="asks"), hook(None, seen)]
    core = {"id": "c", "type": "core:LLM", "inputValues": {"prompt": "hi", "system": "Be brief.", "model": "echo"}}
    with opened({}, plugins) as host:
        result = host.workflows.run_sync({"nodes": [core, {"id": "n", "type": "asks:Ask"}], "edges": []})
        called = host.invoke_sync("asks:ask")
        host.wait(host.llms.complete(ASKED, "echo"))
    assert (result.state, called.ok) == ("complete", True)
    assert [conversation for _, conversation in seen] == [ASKED[1:]] * 4
    purposes = [prompt["purpose"].split(" of ")[0] for prompt, _ in seen]
    assert sorted(purposes) == ["", "asks asks a language model", "node c", "node n"]


CHANGES: dict[str, tuple[dict[str, Any], list[Any], Any, str]] = {
    "the system prompt": (
        {"system": "Be kind."},
        [{"role": "system", "content": "Be kind."}, ASKED[1]], [TOOL], "system",
    ),
    "no system prompt": ({"system": ""}, ASKED[1:], [TOOL], "system"),
    "the conversation": (
        {"conversation": [{"role": "user", "content": "hello"}]},
        [ASKED[0], {"role": "user", "content": "hello"}], [TOOL], "conversation",
    ),
    "fewer tools": ({"tools": []}, ASKED, None, "tools"),
    "another model": ({"model": "other"}, ASKED, [TOOL], "model"),
    "nothing": ({"system": "Be brief."}, ASKED, [TOOL], ""),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_made_and_recorded_with_its_plugin(opened: Open, what: str) -> None:
    change, messages, tools, names = CHANGES[what]
    result = Result(opened, hook(lambda prompt, _: {**prompt, **change}), tools=[TOOL])
    assert result.error is None
    assert (result.got["messages"], result.got["options"].get("tools")) == (messages, tools)
    [event] = result.events
    assert event.get("changedBy") == ([{"plugin": "watcher", "changed": names}] if names else None)
    assert event["name"] == change.get("model", "echo")


WRONG: dict[str, tuple[Any, str]] = {
    "denies": (deny("not today", hint="ask tomorrow"), "not today"),
    "answers a text": ("Be kind.", "answered str"),
    "answers an unknown key": ({"sytem": "x"}, "unknown key 'sytem'"),
    "answers no text": ({"system": 5}, "`system` that is not a text"),
    "chooses a model that does not exist": ({"model": "echoo"}, "chose the model 'echoo'"),
    "changes the purpose": ({"purpose": "else"}, "tried to change the purpose"),
    "answers no messages": ({"conversation": "hi"}, "not a list of messages"),
    "answers an empty conversation": ({"conversation": []}, "not a list of messages"),
    "hides a system message": ({"conversation": [{"role": "system", "content": "x"}]}, "something else than messages"),
    "answers no tools": ({"tools": ["t"]}, "not a list of tools"),
    "answers no JSON": ({"system": object()}, "not JSON"),
    "fails": (lambda *_: 1 / 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_denial_and_everything_wrong_refuse_the_request(opened: Open, what: str) -> None:
    answer, said = WRONG[what]
    result = Result(opened, hook(answer))
    assert result.error is not None
    assert (result.error.code, result.got) == ("POLICY_DENIED", None)
    assert said in result.error.message
    assert "watcher" in result.error.message
    [event] = result.events
    assert (event["ok"], event["error"], event["tokens"]) == (False, "POLICY_DENIED", {"input": 0, "output": 0})


def test_what_a_hook_writes_into_its_copy_changes_nothing(opened: Open) -> None:
    def write(prompt: Any, conversation: Any) -> None:
        prompt["system"] = "else"
        conversation[0]["content"] = "else"

    assert Result(opened, hook(write)).got["messages"] == ASKED


def test_a_request_that_a_hook_makes_itself_does_not_come_back_to_it(opened: Open) -> None:
    seen: list[str] = []

    class Asks:
        @hookimpl
        async def tavern_before_prompt(self, prompt: Any, ctx: Any) -> Any:
            seen.append(prompt["purpose"])
            await ctx.service("llms").complete([{"role": "user", "content": "is that fine?"}], "other")

    assert Result(opened, Plugin(Asks(), name="asks")).error is None
    assert seen == ["to greet"]


MANIFEST = """\
name: watcher
version: "1"
permissions:
  hooks: ["hook:server:agent:before-prompt"]
  data: ["data:conversation"]
"""
CODE = """\
from tavern_core import hookimpl

@hookimpl
def tavern_before_prompt(prompt, ARGUMENTS):
    return {**prompt, "system": "seen"CHANGE}
"""
HOOK = "hook:server:agent:before-prompt"
RIGHTS: dict[str, tuple[str, str, list[str], str]] = {
    "without the conversation": ("ctx", "", [HOOK], "seen"),
    "with the conversation and its right": (
        "conversation", ', "conversation": [{**m, "content": m["content"] + "!"} for m in conversation]',
        [HOOK, "data:conversation"], "seen hi!",
    ),
    "with the conversation and not its right": ("conversation", "", [HOOK], "Be brief. hi"),
    "a change of what it does not see": ("ctx", ', "conversation": [{"role": "user", "content": "x"}]', [HOOK], "POLICY_DENIED"),
    "no grant": ("ctx", "", [], "Be brief. hi"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("what", RIGHTS)
def test_only_a_plugin_with_the_right_sees_and_changes_the_conversation(
    opened: Open, tmp_path: Path, what: str, isolated: bool
) -> None:
    arguments, change, grants, expected = RIGHTS[what]
    folder = tmp_path / "plugins" / "watcher"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(MANIFEST)
    (folder / "__init__.py").write_text(CODE.replace("ARGUMENTS", arguments).replace("CHANGE", change))
    isolation = {"level": "best-effort", "plugins": ["watcher"] if isolated else []}

    def host() -> Tavern:
        return opened({}, [Plugin(Models(), name="models")], roots=[folder.parent], isolation=isolation)

    if grants:
        with host() as first:
            first.wait(first.plugins.grant("watcher", *grants))
    with host() as tavern:
        try:
            found = tavern.wait(tavern.llms.complete(ASKED, "echo", context=CallContext(permissions={"network"}))).data
            said = " ".join(message["content"] for message in found["messages"])
        except CallError as error:
            said = error.code
    assert said == expected.replace("seen", "seen hi") if expected == "seen" else said == expected
