"""Untrusted content: which tools bring it in, which calls it must not cause, and what was read of it.

Anyone may have written what upstreams, the web, files and other agents answer. A model that reads it may follow what it says.
So calls that write, send or destroy need approval afterwards (`CallContext.after_untrusted`). Reading an address that was
composed since then is sending, too: the address may carry data of the conversation.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from tavern_core.errors import UsageError
from tavern_core.model.capability import CAPABILITIES, Effect, describe, is_dangerous
from tavern_core.model.safe_printing import seen

if TYPE_CHECKING:
    from tavern_core.model.tool import ToolSpec

AfterUntrusted = Literal["allow", "ask", "deny"]
"""What happens to calls with an effect after untrusted content was read."""
STRICTNESS: Final[Mapping[str, int]] = {"allow": 0, "ask": 1, "deny": 2}
MARK: Final = "untrusted"
"""Key of `ToolResult.meta`: the sources of untrusted content that the result may hold."""
_READS: Final = frozenset({"read:web", "read:fs", "network"})
"""Capabilities to read what others wrote."""
_AGENTS: Final = frozenset({"agent", "llm", "mcp", "langchain", "n8n", "comfyui"})
"""Kinds of tools behind which another system writes the answer, wherever they are declared."""
_MOST_SOURCES: Final = 100
_LONGEST_NAME: Final = 200
_MOST_ADDRESSES: Final = 4_000
_MOST_TEXT: Final = 200_000
"""Characters of one value in which addresses are looked for; what follows stays unknown."""
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s<>\"'`\\^{}|]{1,4000}")
_BARE: Final = re.compile(r"(?<![\w@/.-])(?:[\w-]{1,63}\.){1,10}[^\W\d_]{2,24}(?:[:/?][^\s<>\"'`\\^{}|]{0,4000})?")
"""An address without a scheme, as people write it: ``example.com/news``."""
_BRACKETS: Final = re.compile(r"[()\[\]]")
_ENDING: Final = ".,;:!?)]}>'\"*_~。，；：！？）】》」"


def stricter(one: AfterUntrusted, other: AfterUntrusted) -> AfterUntrusted:
    """The stricter of two values."""
    return max(one, other, key=STRICTNESS.__getitem__)


def is_source(spec: ToolSpec) -> bool:
    """Whether the answers of a tool are untrusted content."""
    return bool(spec.untrusted or spec.described_by or spec.kind in _AGENTS or brings_in(spec.capabilities))


def brings_in(capabilities: Collection[str]) -> bool:
    """Whether something with these capabilities reads what others wrote."""
    return not _READS.isdisjoint(capabilities)


_WORST_FIRST: Final[tuple[Effect, ...]] = ("destroys", "writes", "sends", "starts")
_BELIEVED: Final = frozenset({"sends", "starts"})
"""Effects that a tool which says that it only reads does not have."""
CHANGES_WORKFLOWS: Final = "service:write:workflowManager"
"""The permission to change workflows, which run later with rights of their own."""


def effect_of(spec: ToolSpec, requested: Collection[str] = ()) -> Effect:
    """The effect of a tool's call outside, according to its definition.

    A tool that may change workflows writes, unless it only reads.

    `read_only` is believed of requests to the network and of programs, where writing has no capability of its own, and of
    capabilities that plugins have named; never of tools that may write or destroy. A tool of an upstream does anything,
    unless it is known to only read.
    """
    if spec.destructive:
        return "destroys"
    effect = effect_with(spec.capabilities, read_only=spec.read_only)
    if not effect and not spec.read_only and CHANGES_WORKFLOWS in requested:
        return "writes"
    return effect if effect in ("destroys", "writes") or not spec.described_by or spec.read_only else "unknown"


def effect_with(capabilities: Collection[str], *, read_only: bool = False) -> Effect:
    """The effect that these capabilities allow; see `effect_of`.

    The table of capabilities says what each allows. One that is not in it allows to write, unless `read_only`.
    """
    effects = {describe(name).effect for name in capabilities}
    if read_only:
        known_names = (name for name in capabilities if name in CAPABILITIES or is_dangerous(name))
        effects = {describe(name).effect for name in known_names} - _BELIEVED
    return next((effect for effect in _WORST_FIRST if effect in effects), "")


def reads_addresses(spec: ToolSpec) -> bool:
    """Whether a call of a tool may read an address that is among its arguments."""
    return bool(spec.described_by or spec.capabilities & {"read:web", "network"})


def addresses_in(text: str) -> Iterator[str]:
    """Every address that a reader may see in a text, in one spelling (`spelling_of`); one that ends a sentence in several forms.

    >>> sorted(addresses_in("See https://Example.com/a, or (example.org)."))
    ['example.com/a', 'example.com/a,', 'example.org']
    """
    for pattern in (_ADDRESS, _BARE):
        for match in pattern.finditer(text):
            address = match.group()
            yield from {spelling_of(form) for form in (address, address.rstrip(_ENDING), _BRACKETS.split(address)[0])}


def links_in(text: str) -> Iterator[tuple[str, ...]]:
    """Every address with a scheme in a text, as written, without the punctuation that ends a sentence; and the text itself, if it is one without a scheme."""
    if _BARE.fullmatch(text.strip()):
        yield (text.strip(),)
    for match in _ADDRESS.finditer(text):
        yield match.group(), match.group().rstrip(_ENDING)


def spelling_of(address: str) -> str:
    """The one spelling of an address; see `addresses_in`."""
    rest = address.partition("://")[2] or address
    end = min((at for sign in "/?#" if (at := rest.find(sign)) >= 0), default=len(rest))
    return (rest[:end].lower() + rest[end:]).rstrip("/")


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys included."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            pending += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            pending += part


def sources_in(mark: object) -> tuple[str, ...]:
    """The sources that a mark names, whatever a plugin or a file put there; ``?`` for a mark that names none."""
    if mark is None or mark is False:
        return ()
    named = [mark] if isinstance(mark, str) else mark if isinstance(mark, list | tuple | Mapping) else []
    found = [seen(name[:_LONGEST_NAME]) for name in islice(named, _MOST_SOURCES) if isinstance(name, str) and name]
    return tuple(dict.fromkeys(found)) or ("?",)


class ContentRead:
    """A record of the untrusted content that was read under one context: sources and addresses. Safe for threads.

    Addresses are kept as digests, because this is stored with jobs and runs and an address may hold a secret.
    """

    __slots__ = ("_addresses", "_sources")

    def __init__(self, sources: Mapping[str, float] | None = None, addresses: Iterable[str] = ()) -> None:
        self._sources: dict[str, float] = dict(sources or {})
        self._addresses: dict[str, None] = dict.fromkeys(islice(addresses, _MOST_ADDRESSES))

    @property
    def sources(self) -> Mapping[str, float]:
        """Source of untrusted content → when it was first read, in seconds since the epoch, UTC."""
        return self._sources

    def __bool__(self) -> bool:
        return bool(self._sources or self._addresses)

    def add(self, sources: Iterable[str], at: float) -> None:
        """Record that untrusted content was read.

        Args:
            at: seconds since the epoch, UTC.
        """
        for source in sources:
            if len(self._sources) < _MOST_SOURCES:
                self._sources.setdefault(source, at)

    def trust(self, *values: Any) -> None:
        """Let addresses in these texts (of the task, of prompts, of content that was read) be read without approval."""
        self.learn(values, ())

    def learn(self, values: Iterable[Any], without: Collection[str]) -> None:
        """As `trust`, except for the addresses in `without`, which stay unknown."""
        remaining = _MOST_TEXT
        for text in texts_in(list(values)):
            for address in islice(addresses_in(text[:remaining]), _MOST_ADDRESSES):
                if address not in without:
                    self._know(_digest(address))
            if (remaining := remaining - len(text)) <= 0:
                return

    def _know(self, digest: str) -> None:
        self._addresses.pop(digest, None)
        self._addresses[digest] = None
        if len(self._addresses) > _MOST_ADDRESSES:
            self._addresses.pop(next(iter(self._addresses)), None)

    def take_over(self, other: ContentRead) -> None:
        """Add everything that was read under another context."""
        for source, at in other._sources.items():
            self.add((source,), at)
        for digest in other._addresses:
            self._know(digest)

    def knows(self, address: str) -> bool:
        """Whether an address occurred in one of the texts."""
        return _digest(spelling_of(address)) in self._addresses

    def to_json(self) -> dict[str, Any]:
        return {"sources": dict(self._sources), "addresses": list(self._addresses)}

    @classmethod
    def from_json(cls, data: object) -> ContentRead:
        """The inverse of `to_json`. Raises UsageError: it is something else (USAGE)."""
        members = data if isinstance(data, Mapping) else {}
        sources, addresses = members.get("sources", {}), members.get("addresses", [])
        fits = (
            isinstance(data, Mapping)
            and isinstance(sources, Mapping)
            and all(isinstance(at, int | float) for at in sources.values())
            and isinstance(addresses, list | tuple)
            and all(isinstance(one, str) for one in addresses)
        )
        if not fits:
            raise UsageError("what was read is a mapping of `sources` and a list of `addresses`")
        return cls({str(name): float(at) for name, at in sources.items()}, addresses)


def _digest(address: str) -> str:
    return hashlib.sha256(address.encode("utf-8", "surrogatepass")).hexdigest()[:16]
