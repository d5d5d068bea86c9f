"""Finds tools by id, name and description.

    exact id  >  exact name  >  beginning of an id or name  >  words, ranked by BM25

Registering tools costs nothing here: the first search builds the index, which follows changes from then on.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Iterator, Mapping, Sized
from threading import Lock
from typing import Any, Final

from tavern_core.kernel.catalogue.full_text import Fits, FullText
from tavern_core.kernel.catalogue.tokenizer import is_spaceless, query_words, words_of
from tavern_core.model.naming_rules import spellings
from tavern_core.model.nearest import fold
from tavern_core.model.tool import ToolSpec

MOST_RESULTS: Final = 1_000
EXACT_ID, EXACT_NAME, BEGINNING = 3_000.0, 2_000.0, 1_000.0
"""Added to the word score: an exact match always ranks above a mention."""
_LONGEST_NAME: Final = 300
_MOST_BEGINNINGS: Final = 200
_MOST_TEXT: Final = 4_000
_MOST_PARAMETERS: Final = 200


class ToolIndex:
    """All tools of a host, searchable. Safe for threads.

    Args:
        tools: the initial content.
    """

    def __init__(self, tools: Iterable[ToolSpec] = ()) -> None:
        self._tools: dict[str, ToolSpec] = {}
        self._words: FullText | None = None
        self._indexed: dict[str, ToolSpec] = {}
        self._changed: set[str] = set()
        self._names: list[tuple[str, str]] = []
        self._lock = Lock()
        self.add(*tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, tool_id: object) -> bool:
        return tool_id in self._tools

    def add(self, *tools: ToolSpec) -> None:
        """Add tools; a tool with an existing id replaces the earlier one."""
        with self._lock:
            for tool in tools:
                self._tools[tool.id] = tool
                self._changed.add(tool.id)

    def sync(self, tools: Iterable[ToolSpec]) -> None:
        """Make `tools` the whole content; unchanged tools are not indexed again."""
        wanted = {tool.id: tool for tool in tools}
        with self._lock:
            self._changed.update(tool_id for tool_id in self._tools if tool_id not in wanted)
            for tool_id, tool in wanted.items():
                known = self._tools.get(tool_id)
                if known is not tool and known != tool:
                    self._changed.add(tool_id)
            self._tools = wanted

    def search(
        self,
        query: str,
        *,
        capability: str | None = None,
        tag: str | None = None,
        limit: int = 20,
        among: Container[str] | None = None,
    ) -> list[tuple[str, float]]:
        """The tools that fit, best first, as (id, score); equal scores by id. Never raises, whatever the query.

        Args:
            query: an id, a name, the beginning of one, or words in any language; blank: all tools by id.
            capability: only tools that need it; ``read:*``: any capability with that prefix.
            tag: only tools with this tag, ignoring case.
            limit: at most this many (never more than 1,000).
            among: only these ids, such as those that the caller may see.
        """
        limit = min(limit, MOST_RESULTS)
        if limit <= 0:
            return []
        with self._lock:
            fits = _filter(self._tools, capability, tag, among)
            # a hint that hardly any tool can fit
            few = isinstance(among, Sized) and len(among) * 10 < len(self._tools)
            if not query.strip():
                return [(tool_id, 0.0) for tool_id in sorted(filter(fits, self._tools))][:limit]
            index = self._refresh()
            named = {tool_id: score for tool_id, score in self._named(query.strip()) if fits(tool_id)}
            scores = {**named}
            for tool_id, score in self._worded(index, query, limit + len(named), fits, few=few):
                scores[tool_id] = named.get(tool_id, 0.0) + score
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:limit]

    @staticmethod
    def _worded(index: FullText, query: str, wanted: int, fits: Fits, *, few: bool) -> Iterable[tuple[str, float]]:
        words = query_words(query)
        if found := index.rank(words, wanted, fits, few=few):
            return found
        characters = dict.fromkeys(character for word in words if is_spaceless(word) for character in word)
        return index.rank(list(characters), wanted, fits, few=few)

    def _named(self, query: str) -> Iterator[tuple[str, float]]:
        """Tools whose id or name is the query, or begins with it. Exact ones come last, so that they overwrite."""
        if len(query) > _LONGEST_NAME or not (wanted := fold(query)):
            return
        at = bisect_left(self._names, (wanted, ""))
        beginnings = self._names[at : at + _MOST_BEGINNINGS] if len(wanted) > 1 else []
        yield from ((tool_id, BEGINNING) for name, tool_id in beginnings if name.startswith(wanted))
        while at < len(self._names) and self._names[at][0] == wanted:
            yield self._names[at][1], EXACT_NAME
            at += 1
        for written in spellings(query):
            if written in self._tools:
                yield written, EXACT_ID

    def _refresh(self) -> FullText:
        """Update the index with tools that were added and removed since the last search."""
        index = self._words = self._words or FullText()
        stale = [tool_id for tool_id in self._changed if tool_id in self._indexed]
        fresh = [self._tools[tool_id] for tool_id in self._changed if tool_id in self._tools]
        if stale:
            index.drop(stale)
            stale_ids = set(stale)
            self._names = [entry for entry in self._names if entry[1] not in stale_ids]
            for tool_id in stale:
                del self._indexed[tool_id]
        if fresh:
            index.put([(tool.id, document_of(tool)) for tool in fresh])
            names = [(name, tool.id) for tool in fresh for name in _names_of(tool)]
            if len(names) < 100:
                for entry in names:
                    insort(self._names, entry)
            else:
                self._names = sorted(self._names + names)
            self._indexed.update((tool.id, tool) for tool in fresh)
        self._changed.clear()
        return index


def _filter(
    tools: Mapping[str, ToolSpec], capability: str | None, tag: str | None, among: Container[str] | None
) -> Fits:
    """Whether a tool may be among the results."""
    wanted_tag = None if tag is None else tag.casefold()

    def fits(tool_id: str) -> bool:
        if among is not None and tool_id not in among:
            return False
        tool = tools[tool_id]
        if wanted_tag is not None and all(tag.casefold() != wanted_tag for tag in tool.tags):
            return False
        return (
            capability is None
            or capability in tool.capabilities
            or (capability.endswith("*") and any(name.startswith(capability[:-1]) for name in tool.capabilities))
        )

    return fits


def document_of(tool: ToolSpec) -> dict[str, list[str]]:
    """The words of a tool, column by column (`full_text.COLUMNS`), bounded in size."""
    texts = {
        "id": tool.id,
        "name": " ".join((tool.display_name, tool.local_name, *_own_name(tool), *tool.aliases)),
        "tags": " ".join(tool.tags),
        "parameters": " ".join(_parameter_texts(tool.input_schema)),
        "description": tool.description,
        "examples": " ".join(_example_texts(tool)),
        "plugin": tool.plugin,
    }
    return {column: words_of(text[:_MOST_TEXT]) for column, text in texts.items()}


def _names_of(tool: ToolSpec) -> set[str]:
    names = (tool.id, tool.local_name, tool.display_name, *_own_name(tool), *tool.aliases)
    return {fold(name[:_LONGEST_NAME]) for name in names} - {""}


def _own_name(tool: ToolSpec) -> tuple[str, ...]:
    """Its name in the system behind it, if different."""
    own = tool.resource_id
    return () if not own or own in (tool.local_name, tool.display_name) else (own,)


def _parameter_texts(schema: Mapping[str, Any]) -> Iterator[str]:
    """Names, descriptions and choices of all parameters, nested ones included, outermost first."""
    waiting: list[Any] = [schema]
    for _ in range(_MOST_PARAMETERS):
        if not waiting:
            return
        part = waiting.pop(0)
        if not isinstance(part, Mapping):
            continue
        yield from (part[key] for key in ("title", "description") if isinstance(part.get(key), str))
        choices = part.get("enum")
        yield from (choice for choice in (choices if isinstance(choices, list) else [])[:50] if isinstance(choice, str))
        if isinstance(properties := part.get("properties"), Mapping):
            yield from (name for name in properties if isinstance(name, str))
            waiting += properties.values()
        waiting.append(part.get("items"))


def _example_texts(tool: ToolSpec) -> Iterator[str]:
    for example in tool.examples[:20]:
        yield example.description
        try:
            yield json.dumps(dict(example.arguments), ensure_ascii=False, default=str)[:_MOST_TEXT]
        except (TypeError, ValueError, RecursionError):
            continue  # an example that is not JSON is still found by its description
