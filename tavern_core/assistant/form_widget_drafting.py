"""A form layout, by rule and changed by a model through the same cycle of patches as a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tavern_core.assistant.form_widgets import OUTPUT_WIDGETS, mismatches, properties_of, proposed_layout, widgets_for
from tavern_core.assistant.model_answers import ParsedAnswer
from tavern_core.assistant.model_requests import ModelRequests
from tavern_core.assistant.prompt import layout_messages, prompt_tokens
from tavern_core.assistant.proposal import Panel
from tavern_core.assistant.repair_cycle import PatchVerdict, negotiate
from tavern_core.errors import UsageError
from tavern_core.graph.json_patch import apply_patch
from tavern_core.graph.patch_problems import PatchRefused
from tavern_core.model.message_translation import Language
from tavern_core.model.tool import ToolSpec

_ONLY: Final = "result"
"""The name of a result that is not an object."""


def _with_widgets(inputs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The properties of a schema, each with the widgets that fit it."""
    required = inputs.get("required") or ()
    return {
        name: {**schema, "widgets": widgets_for(schema), "required": name in required}
        for name, schema in properties_of(inputs).items()
    }


async def panel(
    subject: ToolSpec,
    request: str,
    requests: ModelRequests,
    layout: Mapping[str, Any] | None,
    rounds: int,
    language: Language,
) -> Panel:
    """See `Assistant.panel`."""
    inputs, outputs = dict(subject.input_schema), _outputs(subject.output_schema)
    if layout is not None and (wrong := mismatches(layout, inputs, outputs)):
        raise UsageError(
            f"the layout does not fit {subject.id}: {wrong[0].message}",
            hint=wrong[0].hint,
            problems=[problem.to_json() for problem in wrong],
        )
    current = layout or proposed_layout(subject.display_name or subject.id, subject.description, inputs, outputs)
    if not request.strip():
        return Panel(True, current, inputs, outputs)

    async def judge(answered: ParsedAnswer) -> PatchVerdict[Mapping[str, Any]]:
        try:
            changed = apply_patch(current, list(answered.patch))
        except PatchRefused as refused:
            return PatchVerdict(None, refused.problems)
        problems = mismatches(changed, inputs, outputs)
        return PatchVerdict(None if problems else changed, problems)

    tokens = prompt_tokens(requests.context_tokens)
    shown = {name: {**schema, "widgets": OUTPUT_WIDGETS} for name, schema in outputs.items()}
    messages = layout_messages(request, current, _with_widgets(inputs), shown, language, tokens=tokens)
    ended = await negotiate(requests.ask, messages, judge, rounds=rounds, language=language)
    found = ended.result
    return Panel(
        found is not None, current if found is None else found, inputs, outputs,
        ended.answered.reason if ended.answered is not None else "", ended.declined, ended.problems,
        tuple(ended.rounds), requests.spent,
    )  # fmt: skip


def _outputs(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Output → its schema."""
    properties = schema.get("properties") if schema is not None else None
    if isinstance(properties, Mapping):
        return {name: each if isinstance(each, Mapping) else {} for name, each in properties.items()}
    return {_ONLY: dict(schema or {})}
