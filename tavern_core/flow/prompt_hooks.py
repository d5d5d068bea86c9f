"""The `tavern_before_prompt` hooks around a request to a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tavern_core.errors import PluginError, PolicyDenied
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.calls.running_call import current
from tavern_core.kernel.hooks.table import HookImplementation
from tavern_core.kernel.plugins.lifecycle import Lifecycle
from tavern_core.schema.bounded_json_copying import json_copy, json_or

_HOOK: Final = "tavern_before_prompt"
_KEYS: Final = frozenset({"system", "model", "tools", "purpose", "conversation"})
_ROLES: Final = frozenset({"user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to a model."""

    model: str
    messages: list[dict[str, Any]]
    options: dict[str, Any]
    purpose: str

    @property
    def system(self) -> str:
        """The system messages, joined."""
        return "\n\n".join(str(m.get("content") or "") for m in self.messages if m.get("role") == "system")

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """All other messages."""
        return [message for message in self.messages if message.get("role") != "system"]

    def prompt(self) -> dict[str, Any]:
        """The data that a hook sees besides the conversation."""
        shown: dict[str, Any] = {"system": self.system, "model": self.model, "purpose": self.purpose}
        return shown | {"tools": self.options["tools"]} if self.options.get("tools") else shown


PromptChange = tuple[str, str]
"""(plugin, the names of its changes)"""


class PromptHooks:
    """Calls the hooks for one host."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def change(
        self, request: ModelRequest, asker: str, is_known: Callable[[str], bool]
    ) -> tuple[ModelRequest, list[PromptChange]]:
        """The request after all hooks; each gets a copy of what the one before it made.

        Args:
            asker: the plugin that makes the request; its own hooks do not see it, or they would call themselves.
            is_known: whether there is a model of a name.

        Raises:
            PolicyDenied: one denied, failed, took too long or returned something else (POLICY_DENIED).
        """
        changes: list[PromptChange] = []
        for impl in await self._implementations():
            if impl.plugin == asker:
                continue
            tables = self._lifecycle.tables
            arguments = {"prompt": json_or(request.prompt(), None), "conversation": json_or(request.conversation, None)}
            answer = await tables.calls.guard(
                impl, arguments, tables.mode, f"the request to {request.model or 'the language model'}"
            )
            if answer is None:
                continue
            changed = _changed(impl, request, answer, is_known)
            if names := _difference(request, changed):
                changes.append((impl.plugin, names))
                request = changed
        return request, changes

    async def _implementations(self) -> Iterable[HookImplementation]:
        try:
            await self._lifecycle.hooks_ready(wait=current.get() is None)
        except PluginError as error:
            raise PolicyDenied(
                f"the request to a language model was refused: {error.message}", hint=error.hint, retryable=True
            ) from error
        return self._lifecycle.tables.hooks.of(_HOOK)


def _changed(
    impl: HookImplementation, request: ModelRequest, answer: Any, is_known: Callable[[str], bool]
) -> ModelRequest:
    if not isinstance(answer, Mapping) or not all(isinstance(key, str) for key in answer):
        raise _refused(impl, f"answered {type(answer).__name__}")
    copy, problem = json_copy(dict(answer))
    if problem is not None:
        raise _refused(impl, f"answered with something that is not JSON: {problem}")
    if unknown := sorted(copy.keys() - _KEYS):
        raise _refused(impl, f"answered with the unknown key {unknown[0]!r:.60}")
    if copy.get("purpose", request.purpose) != request.purpose:
        raise _refused(impl, "tried to change the purpose")
    model, system = copy.get("model", request.model), copy.get("system", request.system)
    if not isinstance(model, str) or (model != request.model and not is_known(model)):
        raise _refused(impl, f"chose the model {model!r:.60}, which does not exist")
    if not isinstance(system, str):
        raise _refused(impl, "answered with a `system` that is not a text")
    options = request.options
    if "tools" in copy:
        tools = copy["tools"] or []
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise _refused(impl, "answered with `tools` that are not a list of tools")
        options = {**options, "tools": tools} if tools else {k: v for k, v in options.items() if k != "tools"}
    conversation = _conversation(impl, copy["conversation"]) if "conversation" in copy else request.conversation
    messages = request.messages
    if system != request.system or conversation != request.conversation:
        messages = [*([{"role": "system", "content": system}] if system else []), *conversation]
    return ModelRequest(model, messages, options, request.purpose)


def _conversation(impl: HookImplementation, written: Any) -> list[dict[str, Any]]:
    if "conversation" not in impl.arguments:
        raise _refused(impl, "changed the conversation, which it does not take as an argument")
    if not isinstance(written, list) or not written:
        raise _refused(impl, "answered with a `conversation` that is not a list of messages")
    for message in written:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise _refused(impl, "answered with a `conversation` that holds something else than messages")
    return written


def _difference(old: ModelRequest, new: ModelRequest) -> str:
    pairs = {
        "model": (old.model, new.model),
        "system": (old.system, new.system),
        "tools": (old.options.get("tools"), new.options.get("tools")),
        "conversation": (old.conversation, new.conversation),
    }
    return ", ".join(name for name, (before, after) in pairs.items() if before != after)


def _refused(impl: HookImplementation, why: str) -> PolicyDenied:
    return PolicyDenied(
        f"the request to a language model was refused: {impl.plugin} {why} from {_HOOK}",
        hint=f"return a changed copy of the prompt, deny(...) or None; see {impl.where}",
        plugin=impl.plugin,
    )
