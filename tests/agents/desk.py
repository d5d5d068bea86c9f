"""A host with tools for agents, and models that say what a test has written down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tavern_core import LLMAnswer, Plugin, ScriptedLLM, Tavern, hookimpl, tool
from tavern_core.agents.agents import Agents
from tavern_core.contract.llm import ModelCall, Price
from tavern_core.model.agent_run import AgentOutcome

Answers = Sequence[str | LLMAnswer] | Callable[[Sequence[Mapping[str, Any]]], str | LLMAnswer]
ONLY_GIVEN = {"plugins": {"entryPoints": False}}
"""Configuration of a host that has the plugins it is given, and looks for no others."""
PROFILE = {"name": "clerk", "tool_ids_inventory": ["desk:add", "desk:note", "desk:long", "desk:broken", "desk:slow"]}


def block(name: str, **arguments: Any) -> str:
    """A TAM block that calls a tool of the desk."""
    fields = "".join(f"{key}:「始」{value}「末」\n" for key, value in arguments.items())
    return f"<|[REQUEST_TOOL]|>\ncommand:「始」desk:{name}「末」\n{fields}<|[END_TOOL]|>"


def native(*calls: tuple[str, Any], text: str = "", **more: Any) -> LLMAnswer:
    """An answer with native calls of tools of the desk."""
    made = tuple(
        ModelCall(f"c{n}", f"desk__{name}", arguments if isinstance(arguments, str) else json.dumps(arguments))
        for n, (name, arguments) in enumerate(calls)
    )
    return LLMAnswer(text, "tool_calls", {"input": 10, "output": 5}, "scripted", made)


class Desk:
    """The plugin: tools, and one model named ``m``."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.notes: list[str] = []
        self.most_at_once = 0
        self._now = 0

    @hookimpl
    def tavern_register_llms(self) -> Any:
        return {"m": self.model}

    @hookimpl
    def tavern_register_tools(self) -> Any:
        @tool(read_only=True)
        def add(a: int, b: int = 1) -> int:
            """Add two numbers."""
            return a + b

        @tool
        def note(text: str) -> str:
            """Write a note."""
            self.notes.append(text)
            return f"note {len(self.notes)}"

        @tool(read_only=True)
        def long(lines: int = 3000) -> str:
            """A long text."""
            return "\n".join(f"line {number}" for number in range(lines))

        @tool(read_only=True)
        def broken(how: str = "") -> str:
            """Never works."""
            raise ValueError("the printer is out of paper")

        @tool(read_only=True)
        async def slow(n: int = 0) -> int:
            """Takes its time."""
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            for _ in range(5):
                await asyncio.sleep(0)
            self._now -= 1
            return n

        return [add, note, long, broken, slow]


class Priced(ScriptedLLM):
    """A scripted model that costs one unit per thousand tokens, both ways."""

    price = Price(1000.0, 1000.0)


class Office:
    """Runs agents on a host of its own; several hosts may share a home."""

    def __init__(self, home: Path, answers: Answers = ("done",), **config: Any) -> None:
        self.home = home
        self.config = config
        self.approve: Any = None
        self.model: Any = ScriptedLLM(answers)
        self.desk = Desk(self.model)

    def answers(self, answers: Answers, kind: type[ScriptedLLM] = ScriptedLLM) -> Office:
        """Another model."""
        self.model = self.desk.model = kind(answers)
        return self

    def host(self) -> Tavern:
        config = ONLY_GIVEN | self.config
        return Tavern.open(config, plugins=[Plugin(self.desk, "desk")], home=self.home, approve=self.approve)

    def run(self, task: str = "the task", profile: Mapping[str, Any] | None = None, **options: Any) -> AgentOutcome:
        """Give a task to the clerk."""
        with self.host() as tavern:
            return tavern.agents.run_sync({**PROFILE, **(profile or {})}, task, **options)

    def within(self, do: Callable[[Agents], Any]) -> Any:
        """What a function says of the agents of a new host of the same home."""
        with self.host() as tavern:
            return do(tavern.agents)

    def said(self, request: int = -1) -> list[str]:
        """The contents of the messages of one request to the model, without the system prompt."""
        return [str(message["content"]) for message in self.model.asked[request][1:]]


class OpenOffice(Office):
    """Runs the agents of several tests on one host, which stays open: what a test changes is its model and its notes.

    The model is given to each run instead of registered, so `host` opens a host in which profiles name it.
    """

    tavern: Tavern

    @classmethod
    @contextmanager
    def open(cls, home: Path) -> Iterator[OpenOffice]:
        office = cls(home)
        with office.host() as office.tavern:
            yield office

    def empty(self) -> OpenOffice:
        """As for the first test."""
        self.desk.notes.clear()
        self.desk.most_at_once = 0
        self.answers(["done"])
        return self

    def run(self, task: str = "the task", profile: Mapping[str, Any] | None = None, **options: Any) -> AgentOutcome:
        return self.tavern.agents.run_sync({**PROFILE, **(profile or {})}, task, **{"model": self.model, **options})

    def within(self, do: Callable[[Agents], Any]) -> Any:
        return do(self.tavern.agents)
