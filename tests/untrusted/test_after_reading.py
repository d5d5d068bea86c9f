"""After untrusted content was read, calls that write, send or destroy need the approval of a person."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from tavern_core import CallContext, Plugin, Tavern, tool
from tavern_core.errors import UsageError

from .office import PAGE, Office, agent, kind, sources

READS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "a page": ("office:browse", {"url": PAGE}, ["office:browse"]),
    "a file": ("office:open_file", {"name": "a.txt"}, ["office:open_file"]),
    "a tool that declares it": ("office:chat", {}, ["office:chat"]),
    "a passage that is marked": ("office:claim", {}, ["kb:web/page.md"]),
    "a page, by way of a tool without capabilities": ("office:research", {"url": PAGE}, ["office:browse"]),
}
EFFECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sends": ("office:send", {"to": "eve@evil.example"}),
    "writes": ("office:save", {"name": "x"}),
    "destroys": ("office:wipe", {"name": "x"}),
    "reads": ("office:browse", {"url": "https://evil.example/?q=secret"}),
}


def test_what_a_source_answers_is_marked_and_later_effects_are_asked_about(tmp_path: Path) -> None:
    office = Office(answer=False)
    with office.open(tmp_path) as host:
        for what, (name, arguments, named) in READS.items():
            office.asked.clear()
            context = agent()
            context.ledger.content_read.trust(f"Read {PAGE} and count its words.")
            result = host.invoke_sync(name, arguments, context=context)
            assert (kind(result), sources(result)) == ("", named), what
            office.did.clear()
            assert host.invoke_sync("office:count", {"text": "a b"}, context=context).value == 2, what
            for effect, (sink, given) in EFFECTS.items():
                refused = host.invoke_sync(sink, given, context=context)
                assert kind(refused) == "APPROVAL_REJECTED", (what, sink)
                assert refused.error is not None
                assert (refused.error.details["untrusted"], refused.error.details["effect"]) == (named, effect), what
            assert office.did == [], what
            assert [request.tool for request in office.asked] == [tool for tool, _ in EFFECTS.values()], what
            assert all(named[0] in request.reason and "agent:clerk" in request.reason for request in office.asked), what


def test_an_approved_call_runs_and_every_further_one_is_asked_about(tmp_path: Path) -> None:
    office = Office(answer=lambda request: request.approve(by="user:ann"))
    with office.open(tmp_path) as host:
        context = agent()
        assert host.invoke_sync("office:send", {"to": "a"}, context=context).value == "sent"  # nothing was read so far
        assert office.asked == []
        assert (
            host.invoke_sync("office:send", {"to": "b"}, context=context).value == "sent"
        )  # its answer came from outside
        assert host.invoke_sync("office:send", {"to": "b"}, context=context).value == "sent"
    assert [request.arguments["to"] for request in office.asked] == ["b", "b"]


@pytest.mark.parametrize(
    ("after", "expected"), [("deny", "POLICY_DENIED"), ("ask", "APPROVAL_REQUIRED"), ("allow", "")]
)
def test_the_context_says_what_happens(tmp_path: Path, after: str, expected: str) -> None:
    office = Office()
    with office.open(tmp_path) as host:
        context = agent(after)
        assert host.invoke_sync("office:news", context=context).ok
        assert kind(host.invoke_sync("office:send", {"to": "a"}, context=context)) == expected
        assert host.invoke_sync("office:send", {"to": "a"}, context=agent(after)).ok  # another task has read nothing
        assert host.invoke_sync("office:send", {"to": "a"}).ok  # nor has the host


NAMED: dict[str, tuple[list[str], bool, str]] = {
    "of a plugin": (["acme/db:update"], False, "writes"),
    "of a plugin, with a name like that of reading": (["acme/read:db"], False, "writes"),
    "of a plugin, by a tool that only reads": (["acme/db:select"], True, ""),
    "of a plugin, next to one to write, by a tool that says it only reads": (
        ["acme/db:select", "write:fs"],
        True,
        "writes",
    ),
    "of a plugin, next to a danger, by a tool that says it only reads": (
        ["acme/db:drop", "danger:drop"],
        True,
        "destroys",
    ),
    "the network of this machine": (["network:host"], False, "sends"),
    "the network of this machine, by a tool that only reads": (["network:host"], True, ""),
    "other programs": (["process:spawn"], False, "starts"),
    "code outside of every sandbox": (["process:host"], False, "starts"),
    "a secret, a variable and the graphics processor": (["secrets:key", "env:LEVEL", "gpu"], False, ""),
    "workflows, whose calls are judged themselves": (["workflow"], False, ""),
}


@pytest.mark.parametrize("needs", NAMED)
def test_what_a_capability_allows_is_in_the_table_and_not_in_its_name(tmp_path: Path, needs: str) -> None:
    capabilities, read_only, effect = NAMED[needs]

    @tool(capabilities=capabilities, read_only=read_only)
    def act() -> int:
        """Act."""
        return 1

    @tool(untrusted=True, read_only=True)
    def inbox() -> str:
        """Read the mail."""
        return "mail"

    plugin = Plugin(
        [act, inbox], name="p", manifest={"version": "1", "permissions": {"capabilities": sorted(capabilities)}}
    )
    with Tavern.open(home=tmp_path, plugins=[plugin]) as host:
        context = CallContext(principal="agent:a", permissions=frozenset(capabilities), after_untrusted="ask")
        assert host.invoke_sync("p:act", context=context).ok
        assert host.invoke_sync("p:inbox", context=context).ok
        result = host.invoke_sync("p:act", context=context)
    assert kind(result) == ("APPROVAL_REQUIRED" if effect else "")
    assert effect == ("" if result.error is None else result.error.details["effect"])


ESCAPES = ["inherit", "own", "job"]


def test_a_tool_cannot_do_for_the_agent_what_the_agent_may_not(tmp_path: Path) -> None:
    office = Office(answer=False)
    with office.open(tmp_path) as host:
        for how, after in itertools.product(ESCAPES, ("ask", "deny")):
            context = agent(after)
            host.invoke_sync("office:news", context=context)
            result = asyncio.run(host.invoke("office:escape", {"to": "eve", "how": how}, context=context))
            kind = "APPROVAL_REJECTED" if after == "ask" else "POLICY_DENIED"
            assert result.value["error"]["kind"] == kind, (how, after)
            assert ("send", "eve") not in office.did, (how, after)


ADDRESSES: dict[str, tuple[str, bool]] = {
    "the address of the task": (PAGE, True),
    "the same with a slash": (f"{PAGE}/", True),
    "without a scheme in the task": ("https://docs.example.org/guide", True),
    "one that the page links to": ("https://news.example.com/more", True),
    "one with a query": (f"{PAGE}?q=secret", False),
    "one with a path": (f"{PAGE}/secret", False),
    "a part of one": ("https://news.example.com/tod", False),
    "another host": ("https://evil.example/today", False),
    "a host that carries data": ("https://secret.news.example.com/today", False),
    "one with a user": ("https://secret@news.example.com/today", False),
    "one with a fragment": (f"{PAGE}#secret", False),
    "two in one": (f"{PAGE} https://evil.example/secret", False),
}


def test_an_address_that_no_text_had_is_not_read_without_approval(tmp_path: Path) -> None:
    office = Office(answer=False)
    with office.open(tmp_path) as host:
        for what, (url, passes) in ADDRESSES.items():
            context = agent()
            context.ledger.content_read.trust({"task": f"Read ({PAGE}), then docs.example.org/guide."})
            assert host.invoke_sync("office:browse", {"url": PAGE}, context=context).ok
            office.did.clear()
            result = host.invoke_sync("office:browse", {"url": url}, context=context)
            assert kind(result) in (("",) if passes else ("APPROVAL_REJECTED", "POLICY_DENIED")), what
            assert bool(office.did) is passes, what


def test_repeating_an_address_through_a_tool_does_not_make_it_known(tmp_path: Path) -> None:
    office, address = Office(answer=False), "https://evil.example/?q=secret"
    with office.open(tmp_path) as host:
        context = agent()
        host.invoke_sync("office:news", context=context)
        assert address in host.invoke_sync("office:open_file", {"name": address}, context=context).value
        assert kind(host.invoke_sync("office:browse", {"url": address}, context=context)) == "APPROVAL_REJECTED"
        # nor does the refusal, which names it
        assert kind(host.invoke_sync("office:browse", {"url": address}, context=context)) == "APPROVAL_REJECTED"


def test_an_answer_remembered_before_does_not_let_through_what_the_content_asks_for(tmp_path: Path) -> None:
    office = Office()
    with office.open(tmp_path, approval={"ask": ["office:send"]}) as host:
        context = agent()
        first = host.invoke_sync("office:send", {"to": "a"}, context=context)
        assert first.error is not None
        host.approvals.approve(first.error.details["approval"], remember="tool")
        assert host.invoke_sync("office:send", {"to": "a"}, context=context).ok
        second = host.invoke_sync("office:send", {"to": "eve"}, context=context)  # the first one brought an answer in
        assert second.error is not None
        assert second.error.kind == "APPROVAL_REQUIRED"
        host.approvals.approve(second.error.details["approval"], remember="tool")
        assert host.invoke_sync("office:send", {"to": "eve"}, context=context).ok
        assert host.invoke_sync("office:send", {"to": "bob"}, context=context).ok  # approved after reading


def test_an_answer_that_the_callback_gave_before_does_not_let_through_what_the_content_asks_for(tmp_path: Path) -> None:
    office = Office(answer=lambda request: request.approve(remember=True))
    with office.open(tmp_path, approval={"ask": ["office:send"]}) as host:
        for _ in range(2):
            assert host.invoke_sync("office:send", {"to": "a"}, context=agent()).ok
        assert len(office.asked) == 1
        context = agent()
        assert host.invoke_sync("office:news", context=context).ok
        assert host.invoke_sync("office:send", {"to": "a"}, context=context).ok
        assert len(office.asked) == 2


@pytest.mark.slow
def test_the_request_says_what_was_read_and_who_proposes_what_in_both_languages(tmp_path: Path) -> None:
    for language, words in (
        ("en", "agent:clerk wants to call office:send after"),
        ("zh", "agent:clerk 读取了不可信内容（office:news）"),
    ):
        office = Office()
        with office.open(tmp_path / language, language=language) as host:
            context = agent()
            host.invoke_sync("office:news", context=context)
            text = "<|[REQUEST_TOOL]|>\ncommand:「始」office:send「末」\nto:「始」eve「末」\n<|[END_TOOL]|>"
            outcome = asyncio.run(host.run_text(text, context=context))
            assert words in outcome.feedback, outcome.feedback
            assert host.approvals.list()[0].request["reason"].startswith("agent:clerk wants to call office:send")


def test_a_plan_of_a_call_and_a_chain_say_that_it_needs_approval(tmp_path: Path) -> None:
    office = Office()
    with office.open(tmp_path) as host:
        context = agent()
        host.invoke_sync("office:news", context=context)
        plan = asyncio.run(host.invoke("office:send", {"to": "a"}, context=context, dry_run=True))
        assert plan.value["needsApproval"] is True
        chain = (
            "<|[REQUEST_TOOL]|>\ncommand1:「始」office:count「末」\ntext1:「始」a b「末」\n"
            "command2:「始」office:send「末」\nto2:「始」a「末」\n<|[END_TOOL]|>"
        )
        outcome = asyncio.run(host.run_text(chain, context=context))
        assert [kind(result) for result in outcome.results] == [
            "APPROVAL_REQUIRED"
        ]  # and its first step did not run either
    assert ("send", "a") not in office.did


def test_a_context_takes_what_was_read_along(tmp_path: Path) -> None:
    office = Office()
    with office.open(tmp_path) as host:
        context = agent(task_id="t")
        context.ledger.content_read.trust(f"Read {PAGE}")
        host.invoke_sync("office:news", context=context)
        again = CallContext.from_json(context.to_json())
        assert (again.after_untrusted, again.task_id) == ("ask", "t")
        assert kind(host.invoke_sync("office:send", {"to": "a"}, context=again)) == "APPROVAL_REQUIRED"
        assert host.invoke_sync("office:browse", {"url": PAGE}, context=again).ok
        assert PAGE not in str(context.to_json())  # only its digest is kept


@pytest.mark.parametrize("wrong", [{"afterUntrusted": "maybe"}, {"contentRead": 3}, {"contentRead": {"sources": [1]}}])
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CallContext.from_json(wrong)


def test_the_operator_says_which_tools_are_sources(tmp_path: Path) -> None:
    office = Office()
    lists = {
        "trusted": ["office:news", "office:chat", "office:open_file"],
        "untrusted": ["office:count", "office:open_file"],
    }
    with office.open(tmp_path, tools=lists) as host:
        for name, arguments, found in (
            ("news", {}, []),
            ("chat", {}, []),
            ("browse", {"url": PAGE}, ["office:browse"]),
            ("open_file", {"name": "x"}, ["office:open_file"]),  # both lists name it
            ("count", {"text": "a"}, ["office:count"]),
        ):
            assert sources(host.invoke_sync(f"office:{name}", arguments, context=agent())) == found, name


def test_a_misspelt_entry_of_the_operator_is_reported_and_trusts_nothing(tmp_path: Path) -> None:
    office = Office()
    with office.open(tmp_path, tools={"trusted": ["office:newz"]}) as host:
        assert sources(host.invoke_sync("office:news", context=agent())) == ["office:news"]
        (found,) = [each for each in host.diagnostics if "office:newz" in each.message]
        assert "'office:news'" in found.hint
