"""Describes tools to a model: schemas in the dialects of model APIs, and the manual."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from tavern_core.errors import PluginError, ToolNotFound, UsageError
from tavern_core.kernel.catalogue.profile_resolution import Inventories
from tavern_core.kernel.catalogue.tool_spec_cache import ToolSpecs
from tavern_core.kernel.catalogue.tools import Tools
from tavern_core.model.call import CallContext
from tavern_core.model.message_translation import Language, of_the_locale
from tavern_core.model.naming_rules import JOB_RESULT, JOB_TOOLS, SEARCH_TOOLS, UNLISTED_TOOLS
from tavern_core.model.nearest import did_you_mean
from tavern_core.model.tool import ToolSpec

if TYPE_CHECKING:
    from tavern_core.kernel.access.profiles import ProfileLike

MOST_MADE = 10_000


class Descriptions:
    """Describes the tools of one host."""

    def __init__(self, tools: Tools, specs: ToolSpecs, inventories: Inventories) -> None:
        self._tools = tools
        self._specs = specs
        self._profiles = inventories.resolved_sync
        self._config = specs.base.config
        self._diagnostics = specs.base.diagnostics
        self._unregistered_ids: dict[str, None] = {}
        """Ids of described tools that are not registered: from namespaces, and from factories for one caller."""

    def tool_schema(self, tool: str | ToolSpec, dialect: str) -> dict[str, Any]:
        from tavern_core.schema.provider_tool_export import DIALECTS

        if not isinstance(dialect, str) or dialect not in DIALECTS:
            raise UsageError(
                f"there is no dialect {dialect!r}", hint=did_you_mean(dialect, DIALECTS) or ", ".join(DIALECTS)
            )
        spec = tool if isinstance(tool, ToolSpec) else self._tools[tool]
        if spec.id not in self._tools and len(self._unregistered_ids) < MOST_MADE:
            self._unregistered_ids[spec.id] = None
        return export_for_model(spec, dialect)

    def tool_id(self, wire_name: str) -> str:
        from tavern_core.schema.provider_tool_export import WireNames

        if not isinstance(wire_name, str):
            raise ToolNotFound(f"a wire name is text, got {type(wire_name).__name__}")
        names = WireNames(dict.fromkeys((*self._tools.known_ids(), *UNLISTED_TOOLS, *self._unregistered_ids)))
        found = names.tool_id(wire_name)
        if found is None:
            raise ToolNotFound(
                f"no tool has the wire name {wire_name!r:.200}",
                hint=did_you_mean(wire_name, names.all()),
                fixFor="caller",
            )
        return found

    def callable_name(self, tool: str, context: CallContext | None) -> str | None:
        """The wire name of a tool that no list contains; None: the caller cannot call it."""
        from tavern_core.schema.provider_tool_export import wire_name

        return wire_name(tool) if self._tools.why(tool, context=context) else None

    def whole(self, profile: ProfileLike | None, context: CallContext | None) -> list[ToolSpec]:
        """The tools that a caller may see, each with its parameters: plugins that only declare tools are activated.

        A plugin that cannot be activated loses only its own tools; its status and a diagnostic give the reason.
        """
        listed = self._tools.list(profile, context=context)
        known = {
            spec.id for spec in listed if self._specs.is_whole(spec.id)
        }  # read before the activation for one tool completes the plugin's others
        found: list[ToolSpec] = []
        for spec in listed:
            try:
                found.append(spec if spec.id in known else self._tools[spec.id])
            except (PluginError, ToolNotFound) as error:
                self._diagnostics.add(error.code, error.message, plugin=spec.plugin, hint=error.hint, severity="error")
        return found

    def with_job_tools(self, profile: ProfileLike | None, context: CallContext | None) -> list[ToolSpec]:
        """`whole`; if one of the tools may become a job, also the tools for jobs that the caller can call."""
        tools = self.whole(profile, context)
        if not any(spec.job or spec.limits.inline_ms is not None for spec in tools):
            return tools
        known = {spec.id for spec in tools}
        callable_ = (id_ for id_ in JOB_TOOLS if self._tools.why(id_, profile=profile, context=context))
        return tools + [self._tools[id_] for id_ in callable_ if id_ not in known]

    def in_order(self, profile: ProfileLike | None, context: CallContext | None) -> list[ToolSpec]:
        """`whole`, in the order of the profile's inventory."""
        whole = self.whole(profile, context)
        if profile is not None:
            order = {tool_id: i for i, tool_id in enumerate(self._profiles(profile).tools)}
            whole.sort(key=lambda s: order.get(s.id, len(order)))
        return whole

    def language(self, profile: ProfileLike | None, context: CallContext | None) -> Language:
        """The language of texts for an agent: its profile's, else the configured one, else that of the locale."""
        agent = profile if profile is not None or context is None else context.profile
        own = None if agent is None else self._profiles(agent).language
        return own or self._config.language or of_the_locale(os.environ)

    def manual(
        self,
        profile: ProfileLike | None,
        context: CallContext | None,
        query: str | None,
        language: Literal["zh", "en"] | None,
        max_chars: int | None,
    ) -> str:
        from tavern_core.kernel.catalogue.manual import Obstacles, how_to_search, render_manual, tam_rules

        if language not in (None, "zh", "en"):
            raise UsageError(f"the labels of the manual are there in zh and en, not in {language!r:.40}")
        if max_chars is not None and (not isinstance(max_chars, int) or max_chars < 1):
            raise UsageError(f"max_chars= takes a number of characters from 1 up, got {max_chars!r:.40}")
        if query is not None and not isinstance(query, str):
            raise UsageError(f"query= takes words, got {type(query).__name__}")
        listed_tools = self.in_order(profile, context)
        spoken = language or self.language(profile, context)
        limit = max_chars or self._config.limits.manual_chars
        lacking = {
            tool: need.missing
            for tool, need in self._tools.lacking(listed_tools, profile=profile, context=context).items()
        }
        policy = self._specs.policy()
        asks = {spec.id for spec in listed_tools if policy.approval(spec) is not None}
        rules = (
            tam_rules(spoken, listed_tools, references=self._config.tam.references, max_chars=limit // 2)
            if listed_tools
            else ""
        )
        room = limit - len(rules) - 2 if rules else limit
        hint = how_to_search(spoken) if self._tools.why(SEARCH_TOOLS, profile=profile, context=context) else ""
        has_results = bool(self._tools.why(JOB_RESULT, profile=profile, context=context))
        obstacles = Obstacles(lacking, asks, has_results)
        tools = render_manual(
            listed_tools, max_chars=room, language=spoken, query=query, obstacles=obstacles, search_hint=hint
        )
        return f"{tools}\n\n{rules}" if rules else tools

    def fill_prompt(self, prompt: str, profile: ProfileLike | None, context: CallContext | None) -> str:
        from tavern_core.kernel.catalogue.manual import AVAILABLE_TOOLS, fill_prompt

        if not isinstance(prompt, str):
            raise UsageError(f"a prompt is text, got {type(prompt).__name__}")
        if "{{{" not in prompt:
            return prompt
        return fill_prompt(prompt, {AVAILABLE_TOOLS: self.manual(profile, context, None, None, None)})


def export_for_model(spec: ToolSpec, dialect: str) -> dict[str, Any]:
    """`export_tool` for a model: texts in upstreams' schemas are changed so that they cannot be read as calls.
    Calls are validated against the unchanged schemas."""
    from tavern_core.schema.provider_tool_export import export_tool

    if spec.described_by:
        from tavern_core.tam import neutralise_json

        answers = None if spec.output_schema is None else neutralise_json(spec.output_schema)
        spec = replace(spec, input_schema=neutralise_json(spec.input_schema), output_schema=answers)
    return export_tool(spec, dialect)
