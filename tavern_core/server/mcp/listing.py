"""The list of tools for one caller: names on the wire and back, and the pages of the list as bytes.

A list is computed when a client requests it and something has changed since. Its pages are kept as the JSON that goes over the wire,
so that a client that asks again costs nothing but the bytes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from tavern_core.errors import ProfileInvalid, ToolNotFound
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.access.profiles import CALL_TOOL
from tavern_core.kernel.catalogue.descriptions import export_for_model
from tavern_core.model.message_translation import Language, of_the_locale
from tavern_core.model.naming_rules import SEARCH_TOOLS, UNLISTED_TOOLS
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.provider_tool_export import wire_name
from tavern_core.server.request_access import tools_stamp

if TYPE_CHECKING:
    from tavern_core.host import Tavern
    from tavern_core.kernel.access.profiles import Profile
    from tavern_core.kernel.access.tokens import Token
    from tavern_core.model.call import CallContext

_log: Final = logging.getLogger("tavern.mcp")
_CALL: Final[Mapping[str, Any]] = {
    "name": CALL_TOOL,
    "description": "Calls a tool that the search has found, by its id and with arguments that fit its parameters.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "tool": {"type": "string", "maxLength": 300, "description": "Its id, as the search returned it."},
            "arguments": {"type": "object", "description": "By name, as its parameters say."},
        },
        "required": ["tool"],
        "additionalProperties": False,
    },
}
_OF_THE_SEARCH: Final[Mapping[str, str]] = {CALL_TOOL: CALL_TOOL, wire_name(SEARCH_TOOLS): SEARCH_TOOLS}


@dataclass(frozen=True, slots=True)
class ToolListing:
    """The tools of one caller."""

    specs: Mapping[str, ToolSpec]
    """Id → tool, all that the caller may call."""
    ids: Mapping[str, str]
    """Name on the wire → id."""
    exports: Mapping[str, Mapping[str, Any]]
    """Id → the tool as it is listed."""
    pages: tuple[bytes, ...]
    """JSON arrays of the tools that are listed: not those that are behind a resource or prompt, nor those that this caller can never use."""
    language: Language = "en"
    """The language of sentences for the caller."""
    profile: Profile | None = None

    def tool_id(self, name: str) -> str | None:
        """The id behind a name; None when this caller has no such tool."""
        found = self.ids.get(name)
        return name if found is None and name in self.specs else found

    def name_of(self, tool: str) -> str | None:
        """The name of a tool for this caller; None when it has no such tool."""
        return next((name for name, id_ in self.ids.items() if id_ == tool), tool if tool in self.specs else None)

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """The parameters of a tool as they are listed; None when it is not there."""
        tool = self.tool_id(name)
        return None if tool is None else self.exports[tool]["inputSchema"]


class ToolListings:
    """The lists of all callers of one host.

    Args:
        page: number of tools on a page.
    """

    def __init__(self, tavern: Tavern, page: int) -> None:
        self._tavern = tavern
        self._page = page
        self._kept: dict[str, tuple[tuple[Any, ...], ToolListing]] = {}

    def known(self, holder: Token) -> ToolListing | None:
        """The stored list of a caller; None if there is none, or something has changed since."""
        entry = self._kept.get(holder.id)
        try:
            stamp = tools_stamp(self._tavern, holder)
        except ProfileInvalid:
            return None
        return entry[1] if entry is not None and entry[0] == stamp else None

    async def of(self, holder: Token) -> ToolListing:
        """The list of a caller. Raises MCPError: its profile cannot be used (-32603)."""
        if (listing := self.known(holder)) is not None:
            return listing
        try:
            return await asyncio.to_thread(self.make, holder)
        except ProfileInvalid as error:
            _log.error("%s", error)  # names files of this machine
            text = f"the list of tools cannot be made: the profile {holder.profile!r:.100} cannot be used"
            raise MCPError(INTERNAL_ERROR, text) from error

    def make(self, holder: Token) -> ToolListing:
        """The list of a caller as things are now. Plugins of which only ids are known are activated: call it in a thread.

        Raises:
            ProfileInvalid: the caller's profile cannot be used (PROFILE_INVALID).
        """
        if (stored := self.known(holder)) is not None:
            return stored
        stamp = tools_stamp(self._tavern, holder)
        tavern, context = self._tavern, holder.context()
        profile = None if holder.profile is None else tavern.profile(holder.profile)
        found = tavern.tool_specs(context=context)
        behind_offers = {
            offered.tool for section in ("resources", "prompts") for offered in tavern.contributions(section).values()
        }
        unlisted = self._unlisted(context)
        specs = {spec.id: spec for spec in (*found, *unlisted.values())}
        is_search = profile is not None and profile.listing == "search"
        names = _names(specs, {} if profile is None else profile.wire_names, _OF_THE_SEARCH if is_search else {})
        specs = {id_: specs[id_] for id_ in names}
        exports = {id_: {**self._exported(specs[id_]), "name": name} for id_, name in names.items()}
        lacking = tavern.tools.lacking(found, context=context)
        hidden = (
            behind_offers
            | (unlisted.keys() - {spec.id for spec in found})
            | {id_ for id_, need in lacking.items() if need.is_certain}
        )
        shown = [export for id_, export in exports.items() if id_ not in hidden]
        if is_search:
            specs, names, exports, shown = self._search_only(specs, names, exports)
        pages = tuple(_page_json(shown[at : at + self._page]) for at in range(0, max(len(shown), 1), self._page))
        profile_language = None if profile is None else profile.language
        language = profile_language or tavern.config.language or of_the_locale(os.environ)
        listing = ToolListing(specs, {name: id_ for id_, name in names.items()}, exports, pages, language, profile)
        if len(self._kept) >= 1_000:
            self._kept.pop(next(iter(self._kept)))
        self._kept[holder.id] = stamp, listing
        return listing

    def _unlisted(self, context: CallContext) -> dict[str, ToolSpec]:
        """The tools for jobs, which a caller may call by name but is not listed."""
        tools = self._tavern.tools
        named = (id_ for id_ in UNLISTED_TOOLS if id_ != SEARCH_TOOLS and tools.why(id_, context=context))
        return {id_: spec for id_ in named if (spec := tools.get(id_)) is not None}

    def _exported(self, spec: ToolSpec) -> dict[str, Any]:
        """A tool as it is listed; without the schema of its answer where that may be the handle of a job or the beginning of an artifact."""
        exported = export_for_model(spec, "mcp")
        if spec.job or spec.limits.inline_ms is not None or self._tavern.config.artifacts.over is not None:
            exported.pop("outputSchema", None)
        return exported

    def _search_only(
        self, specs: dict[str, ToolSpec], names: dict[str, str], exports: dict[str, dict[str, Any]]
    ) -> tuple[dict[str, ToolSpec], dict[str, str], dict[str, dict[str, Any]], list[Any]]:
        """The tools of a caller who is listed the search alone."""
        try:
            search = self._tavern.tools[SEARCH_TOOLS]
        except ToolNotFound:  # the host's own plugin for it is off
            return specs, names, exports, list(exports.values())
        name = wire_name(SEARCH_TOOLS)
        export = {**export_for_model(search, "mcp"), "name": name}
        return (
            {**specs, SEARCH_TOOLS: search},
            {**names, SEARCH_TOOLS: name},
            {**exports, SEARCH_TOOLS: export},
            [export, _CALL],
        )


def _names(
    specs: Mapping[str, ToolSpec], profile_names: Mapping[str, str], reserved: Mapping[str, str]
) -> dict[str, str]:
    """Id → name on the wire. A tool whose id was made to have the name of another one is left out.

    Args:
        profile_names: id → name, of the profile.
        reserved: name → id of the only tool that may have it.
    """
    names: dict[str, str] = {}
    taken = dict(reserved)
    for id_ in specs:
        name = profile_names.get(id_) or wire_name(id_)
        if (other := taken.setdefault(name, id_)) == id_:
            names[id_] = name
        else:
            _log.error("%s is not listed: %s has the same name, %s", id_, other, name)
    return names


def _page_json(tools: list[Any]) -> bytes:
    return json.dumps(tools, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def cursor_of(number: int) -> str:
    """The text that identifies a page in `nextCursor`."""
    return base64.urlsafe_b64encode(f"page:{number}".encode()).decode()


def page_number(cursor: Any, pages: int) -> int:
    """The page that a cursor means. Raises MCPError: it is not one of ours (-32602)."""
    if cursor is None:
        return 0
    try:
        word, _, number = base64.urlsafe_b64decode(str(cursor)[:64].encode()).decode().partition(":")
        found = int(number)
    except ValueError:
        word, found = "", -1
    if word != "page" or not 0 < found < pages:
        raise MCPError(INVALID_PARAMS, "this cursor does not belong to this list; begin again without one")
    return found
