"""Resources, prompts and completion: what plugins and skills offer besides tools, and the caller's artifacts.

A tool is behind every resource and prompt of a plugin or a skill. A caller who may call the tool may read the
resource or get the prompt; both are calls like any other.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CompleteRequestParams,
    EmptyResult,
    GetPromptRequestParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ResourceTemplateReference,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)

from tavern_core.contract.protocols import Prompt, Resource
from tavern_core.errors import ArtifactNotFound, StateDamaged
from tavern_core.model.artifact import SCHEME
from tavern_core.model.naming_rules import split_id
from tavern_core.model.result import ToolResult
from tavern_core.model.skill import RUN
from tavern_core.model.tool import ToolSpec
from tavern_core.schema.text_coercion import coerce_text
from tavern_core.server.mcp.calls import McpCalls, is_modern
from tavern_core.server.mcp.changes import MOST_WATCHED, ChangeNotifier
from tavern_core.server.mcp.content import complete, error_text, in_ascii, prompt_messages, resource_contents
from tavern_core.server.mcp.listing import ToolListing, ToolListings, cursor_of, page_number
from tavern_core.server.mcp.request_state import holder_of

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server

    from tavern_core.host import Tavern

_SECTIONS: Final = {Resource: "resources", Prompt: "prompts"}
Offered = TypeVar("Offered", bound=Resource | Prompt)
_NOT_FOUND_OF_2025: Final = -32002
_TTL_MS: Final = 60_000
_MOST_SUGGESTIONS: Final = 100
_LONGEST_URI: Final = 2_000
"""The longest URI of a watched resource."""
_LARGEST_ARTIFACT: Final = 16_000_000


class Offers:
    """The resources and prompts of one host."""

    def __init__(
        self, tavern: Tavern, page: int, listings: ToolListings, calls: McpCalls, changes: ChangeNotifier
    ) -> None:
        self._tavern = tavern
        self._page_size = page
        self._listings = listings
        self._calls = calls
        self._changes = changes
        self._listen = ListenHandler(changes.bus)

    def offer(self, server: Server[Any]) -> None:
        """Let a server answer the methods for resources and prompts."""
        changes = self._changes
        server.add_request_handler("resources/list", PaginatedRequestParams, self.list_resources)
        server.add_request_handler("resources/templates/list", PaginatedRequestParams, self.list_templates)
        server.add_request_handler("resources/read", ReadResourceRequestParams, self.read)
        server.add_request_handler("resources/subscribe", SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, changes.unsubscribe)
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self.listen)
        server.add_request_handler("prompts/list", PaginatedRequestParams, self.list_prompts)
        server.add_request_handler("prompts/get", GetPromptRequestParams, self.get_prompt)
        server.add_request_handler("completion/complete", CompleteRequestParams, self.complete)

    # Resources -----------------------------------------------------------------------------------------------------------

    async def list_resources(
        self, ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams
    ) -> dict[str, Any]:
        """`resources/list`: those of plugins and skills, then the caller's artifacts, newest first."""
        listing = await self._listings.of(holder_of(ctx))
        found = [_listed(each, "uri", listing) for each in await self._offered(ctx, Resource) if not each.is_template]
        kept = self._tavern.artifacts.list(context=holder_of(ctx).context())
        return self._page("resources", [*found, *(_artifact(each.link()) for each in kept)], params.cursor)

    async def list_templates(
        self, ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams
    ) -> dict[str, Any]:
        """`resources/templates/list`."""
        listing = await self._listings.of(holder_of(ctx))
        found = [
            _listed(each, "uriTemplate", listing) for each in await self._offered(ctx, Resource) if each.is_template
        ]
        return self._page("resourceTemplates", found, params.cursor)

    async def read(self, ctx: ServerRequestContext[Any, Any], params: ReadResourceRequestParams) -> dict[str, Any]:
        """`resources/read`: an artifact of the caller, or the answer of the tool behind a resource."""
        uri = str(params.uri)
        if uri.startswith(SCHEME):
            return complete(contents=[await self._artifact(ctx, uri)], ttlMs=_TTL_MS, cacheScope="private")
        for resource in await self._offered(ctx, Resource):
            if (arguments := _arguments(resource, uri)) is not None:
                return await self._read_by_tool(ctx, params, resource, uri, arguments)
        raise _unknown(ctx, uri)

    async def subscribe(self, ctx: ServerRequestContext[Any, Any], params: SubscribeRequestParams) -> EmptyResult:
        """`resources/subscribe`, of what the caller may read."""
        if not self._is_offered(ctx, uri := str(params.uri), await self._offered(ctx, Resource)):
            raise _unknown(ctx, uri)
        return await self._changes.subscribe(ctx, params)

    async def listen(
        self, ctx: ServerRequestContext[Any, Any], params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """`subscriptions/listen`: of resources, to those that the caller may read."""
        requested, resources = params.notifications, await self._offered(ctx, Resource)
        wanted = islice(requested.resource_subscriptions or (), MOST_WATCHED)
        found = [uri for uri in wanted if self._is_offered(ctx, str(uri), resources)]
        honoured = requested.model_copy(update={"resource_subscriptions": found})
        return await self._listen(ctx, params.model_copy(update={"notifications": honoured}))

    def _is_offered(self, ctx: ServerRequestContext[Any, Any], uri: str, resources: Sequence[Resource]) -> bool:
        if len(uri) > _LONGEST_URI:
            return False
        if uri.startswith(SCHEME):
            with suppress(ArtifactNotFound):
                return bool(self._tavern.artifacts.get(uri, context=holder_of(ctx).context()))
            return False
        return any(_arguments(resource, uri) is not None for resource in resources)

    async def _read_by_tool(
        self,
        ctx: ServerRequestContext[Any, Any],
        params: ReadResourceRequestParams,
        resource: Resource,
        uri: str,
        arguments: Mapping[str, Any],
    ) -> dict[str, Any]:
        def shape(result: ToolResult) -> dict[str, Any]:
            _must_be_ok(result, uri=uri)
            shown = skill_text(result) if listing.specs[resource.tool].kind == "skill" else result
            contents = resource_contents(uri, resource.media_type, shown)
            return complete(contents=contents, ttlMs=0, cacheScope="private")

        listing = await self._listings.of(holder_of(ctx))
        typed = _typed(listing, resource.tool, arguments)
        return await self._calls.answered(ctx, params, listing, resource.tool, typed, shape=shape)

    async def _artifact(self, ctx: ServerRequestContext[Any, Any], uri: str) -> dict[str, Any]:
        artifacts, context = self._tavern.artifacts, holder_of(ctx).context()
        try:
            artifact = artifacts.get(uri, context=context)
            if artifact.size > _LARGEST_ARTIFACT:
                raise MCPError(INTERNAL_ERROR, f"{uri} has {artifact.size:,} bytes; `tavern artifacts get` fetches it")
            data = await anyio.to_thread.run_sync(lambda: artifacts.read(uri, context=context))
        except ArtifactNotFound:
            raise _unknown(ctx, uri) from None
        except StateDamaged as error:
            raise MCPError(INTERNAL_ERROR, f"{uri} cannot be read: {error.message}") from None
        if artifact.media_type.startswith("text/") or artifact.media_type == "application/json":
            return {"uri": uri, "mimeType": artifact.media_type, "text": data.decode("utf-8", "replace")}
        return {"uri": uri, "mimeType": artifact.media_type, "blob": base64.b64encode(data).decode()}

    # Prompts -------------------------------------------------------------------------------------------------------------

    async def list_prompts(self, ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams) -> dict[str, Any]:
        """`prompts/list`: the parameters of the tool behind a prompt are its arguments."""
        listing = await self._listings.of(holder_of(ctx))
        found = [_prompt(prompt, listing) for prompt in await self._offered(ctx, Prompt)]
        return self._page("prompts", found, params.cursor)

    async def get_prompt(self, ctx: ServerRequestContext[Any, Any], params: GetPromptRequestParams) -> dict[str, Any]:
        """`prompts/get`."""
        for prompt in await self._offered(ctx, Prompt):
            if prompt.name == params.name:
                break
        else:
            raise MCPError(INVALID_PARAMS, f"there is no prompt {params.name!r:.200}", {"name": params.name[:200]})

        def shape(result: ToolResult) -> dict[str, Any]:
            _must_be_ok(result, name=prompt.name)
            shown = skill_text(result) if is_skill else result
            return complete(description=prompt.description, messages=prompt_messages(shown))

        listing = await self._listings.of(holder_of(ctx))
        is_skill = listing.specs[prompt.tool].kind == "skill"
        arguments = {} if is_skill else _typed(listing, prompt.tool, params.arguments or {})
        return await self._calls.answered(ctx, params, listing, prompt.tool, arguments, shape=shape)

    async def complete(self, ctx: ServerRequestContext[Any, Any], params: CompleteRequestParams) -> dict[str, Any]:
        """`completion/complete`: the choices that the parameter's schema gives and that begin like this."""
        listing = await self._listings.of(holder_of(ctx))
        values: Sequence[Any] = ()
        ref, name = params.ref, params.argument.name
        if isinstance(ref, ResourceTemplateReference):
            tools = [each.tool for each in await self._offered(ctx, Resource) if each.uri == ref.uri]
        else:
            tools = [each.tool for each in await self._offered(ctx, Prompt) if each.name == ref.name]
        if not tools:
            raise MCPError(INVALID_PARAMS, "there is no such prompt or resource template", {"ref": ref.model_dump()})
        for tool in tools[:1]:
            schema = listing.specs[tool].input_schema.get("properties", {}).get(name, {})
            values = [str(value) for value in schema.get("enum", ()) if str(value).startswith(params.argument.value)]
        shown = values[:_MOST_SUGGESTIONS]
        return complete(completion={"values": shown, "total": len(values), "hasMore": len(values) > len(shown)})

    # Who may see what ----------------------------------------------------------------------------------------------------

    async def _offered(self, ctx: ServerRequestContext[Any, Any], kind: type[Offered]) -> list[Offered]:
        """The resources or prompts that plugins and skills offer and this caller may have."""
        listing = await self._listings.of(holder_of(ctx))
        found = await anyio.to_thread.run_sync(self._tavern.contributions, _SECTIONS[kind])
        of_plugins = (thing for _, thing in sorted(found.items()) if thing.tool in listing.specs)
        skills = (spec for _, spec in sorted(listing.specs.items()) if spec.kind == "skill")
        of_skills = (thing for spec in skills for thing in offers_of_skill(spec))
        return [thing for thing in (*of_plugins, *of_skills) if isinstance(thing, kind)]

    def _page(self, name: str, items: list[dict[str, Any]], cursor: str | None) -> dict[str, Any]:
        size = self._page_size
        pages = max(-(-len(items) // size), 1)
        number = page_number(cursor, pages)
        answer = complete(ttlMs=_TTL_MS, cacheScope="private", **{name: items[number * size : (number + 1) * size]})
        if number + 1 < pages:
            answer["nextCursor"] = cursor_of(number + 1)
        return answer


def _listed(resource: Resource, key: str, listing: ToolListing) -> dict[str, Any]:
    return {"name": resource.name, key: resource.uri, **_described(resource, listing, mimeType=resource.media_type)}


def _described(offer: Resource | Prompt, listing: ToolListing, **more: str) -> dict[str, str]:
    """Title, description and further members of a resource or prompt, without empty ones."""
    members = {"title": offer.title, "description": offer.description or listing.specs[offer.tool].description, **more}
    return {name: text for name, text in members.items() if text}


def _artifact(link: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in link.items() if name != "type"}


def _prompt(prompt: Prompt, listing: ToolListing) -> dict[str, Any]:
    spec = listing.specs[prompt.tool]
    schema = {} if spec.kind == "skill" else spec.input_schema
    required = schema.get("required", ())
    arguments = [
        {"name": name, "description": str(member.get("description", "")), "required": name in required}
        for name, member in schema.get("properties", {}).items()
        if isinstance(member, Mapping)
    ]
    return {"name": prompt.name, "arguments": arguments, **_described(prompt, listing)}


def offers_of_skill(spec: ToolSpec) -> list[Resource | Prompt]:
    """A skill as a prompt, its instructions as a resource, and its files as a template. Nothing for the tool that runs its scripts."""
    local = split_id(spec.id)[1]
    if local.endswith(RUN):
        return []
    name, address = spec.display_name or local, f"skill:///{quote(local, safe='')}"
    return [
        Prompt(spec.id, spec.id, spec.description, name),
        Resource(name, address, spec.id, spec.description, media_type="text/markdown"),
        Resource(f"{name}: files", f"{address}/{{+file}}", spec.id, f"A file of the skill {name}."),
    ]


def skill_text(result: ToolResult) -> ToolResult:
    """The answer of a skill's tool as a text."""
    value = result.value
    if not isinstance(value, Mapping):
        return result
    if "instructions" not in value:
        next_offset = value.get("nextOffset")
        rest = "" if next_offset is None else f"\n… it goes on: call the tool of the skill with offset {next_offset}"
        return ToolResult(True, f"{value.get('content', '')}{rest}")
    files = "\n".join(f"- {file['path']}" for file in value.get("files", ()))
    return ToolResult(
        True, f"{value['instructions']}\n\nFiles of the skill:\n{files}" if files else value["instructions"]
    )


def _arguments(resource: Resource, uri: str) -> dict[str, Any] | None:
    """The arguments in an address; None: it is not this resource's."""
    if not resource.is_template:
        return {} if in_ascii(resource.uri) == in_ascii(uri) else None
    try:
        return UriTemplate.parse(in_ascii(resource.uri)).match(in_ascii(uri))
    except InvalidUriTemplate:
        return None


def _typed(listing: ToolListing, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments in the types that the tool declares: a client has only texts. One that fits no type stays, for the call to refuse."""
    texts = {name: text for name, text in arguments.items() if isinstance(text, str)}
    values, _ = coerce_text(listing.specs[tool].input_schema, texts)
    return {**arguments, **values}


def _must_be_ok(result: ToolResult, **data: Any) -> None:
    if result.error is not None:
        is_callers = result.error.kind == "INPUT_SCHEMA_INVALID"
        raise MCPError(INVALID_PARAMS if is_callers else INTERNAL_ERROR, error_text(result.error), data)


def _unknown(ctx: ServerRequestContext[Any, Any], uri: str) -> MCPError:
    code = INVALID_PARAMS if is_modern(ctx) else _NOT_FOUND_OF_2025
    return MCPError(code, f"there is no resource {uri!r:.300}", {"uri": uri})
