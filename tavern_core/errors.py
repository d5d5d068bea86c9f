"""Every error the framework raises or reports, in one tree, each class with its code.

    TavernError
    ├── UsageError                 USAGE                  the API was called in a way that cannot work
    │   └── ApprovalNotFound       APPROVAL_NOT_FOUND     no request or rule of approvals has this id
    ├── PluginError                PLUGIN_FAILED          one plugin cannot be used; the host goes on without it
    │   ├── ManifestInvalid        MANIFEST_INVALID       plugin.yaml is missing or wrong
    │   ├── ToolFileInvalid        TOOL_FILE_INVALID      a *.tool.json file is wrong
    │   ├── SkillInvalid           SKILL_INVALID          the SKILL.md of a skill is wrong
    │   ├── SchemaInvalid          SCHEMA_INVALID         a JSON Schema is wrong or not allowed here
    │   ├── NameConflict           NAME_CONFLICT          two plugins claim one name
    │   ├── DependencyUnmet        DEPENDENCY_UNMET       a needed plugin or host version is missing
    │   ├── HookRefused            HOOK_REFUSED           a hookimpl is unknown, undeclared, ungranted or malformed
    │   ├── LockMismatch           LOCK_MISMATCH          a plugin differs from the lock file of a locked host
    │   ├── ActivationFailed       ACTIVATION_FAILED      importing or registering the plugin failed
    │   └── PluginNotFound         PLUGIN_NOT_FOUND       no plugin has this name
    ├── ConfigInvalid              CONFIG_INVALID         tavern.yaml, config.yaml or an environment value is wrong
    ├── SettingsInvalid            SETTINGS_INVALID       a setting was refused, with an error per key
    ├── ProfileInvalid             PROFILE_INVALID        an agent profile is wrong
    ├── WorkflowInvalid            WORKFLOW_INVALID       a workflow file is wrong; every problem is reported
    ├── WorkflowNotFound           WORKFLOW_NOT_FOUND     no workflow has this id
    ├── NodeNotFound               NODE_NOT_FOUND         no node type has this name
    ├── RunNotFound                RUN_NOT_FOUND          no run has this id
    ├── JobNotFound                JOB_NOT_FOUND          no job of this caller has this id
    ├── HookNotFound               HOOK_NOT_FOUND         no hook has this name
    ├── SkillNotFound              SKILL_NOT_FOUND        no skill has this name
    ├── UpstreamNotFound           UPSTREAM_NOT_FOUND     tavern.yaml has no upstream with this name
    ├── TokenNotFound              TOKEN_NOT_FOUND        no token has this id
    ├── StateDamaged               STATE_DAMAGED          a state file (lock, index, audit log) cannot be read
    └── CallError                  (becomes ToolResult.error; the code is the wire value `kind`)
        ├── ToolNotFound           TOOL_NOT_FOUND
        ├── ArtifactNotFound       ARTIFACT_NOT_FOUND
        ├── InputInvalid           INPUT_SCHEMA_INVALID
        ├── PolicyDenied           POLICY_DENIED
        ├── ApprovalRequired       APPROVAL_REQUIRED
        ├── InputRequired          INPUT_REQUIRED
        ├── ApprovalRejected       APPROVAL_REJECTED
        ├── BudgetExceeded         BUDGET_EXCEEDED
        ├── CallTimeout            TIMEOUT
        ├── CircuitOpen            CIRCUIT_OPEN
        ├── ToolQuarantined        TOOL_QUARANTINED
        ├── IdempotencyConflict    IDEMPOTENCY_CONFLICT
        ├── CallCancelled          CANCELLED
        ├── ConnectionLost         CONNECTION_LOST
        ├── UpstreamError          UPSTREAM_ERROR
        ├── ToolFailed             TOOL_ERROR
        ├── OutputInvalid          OUTPUT_SCHEMA_INVALID
        ├── OutputTooLarge         OUTPUT_TOO_LARGE
        ├── TamSyntax              TAM_SYNTAX
        ├── CallMisused            USAGE
        └── InternalError          INTERNAL

`ERROR_CODES` is the one table of codes: meaning, the exit code of the command line, and how to repair it.
The manual page docs/errors.md is checked against it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Final, Literal

from tavern_core.frozen_dataclass import dataclass

Outcome = Literal["none", "done", "unknown"]
"""The effects that a failed call may have had: none, all, or not known."""
Severity = Literal["error", "warning", "info"]


MOST_SAID: Final = 1_000
"""Maximum characters of one message, because a message may quote input of any length."""
HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Invisible characters with an effect: controls, direction marks, zero-width signs, tags, surrogates; except line feeds and tabs."""


def sayable(text: str, longest: int = MOST_SAID) -> str:
    """`text` fit for a terminal, a log and JSON: not too long; control characters, hidden characters and surrogates written as escapes."""
    if len(text) <= longest and (text.isprintable() or HIDDEN.search(text) is None):
        return text
    text = HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text[: longest + 1])
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file. `line` and `column` count from 1; 0 means the whole file."""

    file: str
    line: int = 0
    column: int = 0
    pointer: str = ""
    """JSON pointer or dotted path of the value inside the document, e.g. ``permissions.hooks.1``."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return sayable(f"{place}: {self.pointer}" if self.pointer else place)


class Problem:
    """Base of all problems.

    Each kind is a frozen dataclass that adds its place and, where there is a table, its code.
    """

    __slots__ = ()
    message: str
    hint: str
    """The way to repair it."""
    severity: Severity

    @property
    def located(self) -> str:
        """The message with its place, without the hint: for callers that print the hint separately."""
        return self.message

    def __str__(self) -> str:
        return f"{self.located} ({self.hint})" if self.hint else self.located

    def escape(self, *names: str) -> None:
        """For `__post_init__`: these fields, made fit for a terminal, a log and JSON."""
        for name in names:
            object.__setattr__(self, name, sayable(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class Finding(Problem):
    """A problem in a file or a set of values."""

    code: str
    message: str
    hint: str = ""
    where: Location | None = None
    severity: Severity = "error"
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.escape("message", "hint")

    @property
    def located(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    @property
    def in_text(self) -> str:
        """The message with its line and column, for a text that is in no file."""
        where = self.where
        return f"line {where.line}, column {where.column}: {self.message}" if where and where.line else self.message

    def to_json(self) -> dict[str, Any]:
        where = self.where
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "hint": self.hint or None,
            "file": where.file if where else None,
            "line": where.line if where else None,
            "column": where.column if where else None,
            "pointer": where.pointer if where else None,
        }


class TavernError(Exception):
    """Catch this to catch everything the framework raises.

    Args:
        message: who, what and which value.
        hint: the line or command that repairs it; a traceback shows it below the message.
        findings: for files and settings: every single problem, located.
        details: what a program can act on.
    """

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, hint: str = "", findings: tuple[Finding, ...] = (), **details: Any) -> None:
        super().__init__(message)
        self.message: str = message if isinstance(message, str) else _text(message)
        self.hint: str = hint if isinstance(hint, str) else _text(hint)
        self.findings = findings
        self.details: dict[str, Any] = details
        if self.hint:
            self.add_note(sayable(self.hint))


def _text(message: object) -> str:
    """The message of a plugin as text. It may be an exception, the error of a web API or a number."""
    try:
        return "" if message is None else str(message)[:MOST_SAID]
    except Exception:  # noqa: BLE001 - a hostile __str__
        return type(message).__name__


class UsageError(TavernError):
    """The API was called in a way that cannot work, e.g. `invoke_sync` inside a running event loop."""

    code = "USAGE"


class ApprovalNotFound(UsageError):
    """No stored request for approval, or rule, has this id."""

    code = "APPROVAL_NOT_FOUND"


class PluginError(TavernError):
    """One plugin cannot be used; the host continues without it."""

    code = "PLUGIN_FAILED"


class ManifestInvalid(PluginError):
    """plugin.yaml is missing, unreadable or does not fit its schema."""

    code = "MANIFEST_INVALID"


class ToolFileInvalid(PluginError):
    """A *.tool.json file or an inline tool definition is wrong."""

    code = "TOOL_FILE_INVALID"


class SkillInvalid(PluginError):
    """The SKILL.md of a skill cannot be used."""

    code = "SKILL_INVALID"


class SchemaInvalid(PluginError):
    """A JSON Schema is wrong, too large, or uses a keyword that is not allowed here."""

    code = "SCHEMA_INVALID"


class NameConflict(PluginError):
    """Two plugins claim one name."""

    code = "NAME_CONFLICT"


class DependencyUnmet(PluginError):
    """A plugin or host version that this plugin needs is missing, failed or disabled."""

    code = "DEPENDENCY_UNMET"


class HookRefused(PluginError):
    """A hookimpl is unknown, undeclared, ungranted or malformed."""

    code = "HOOK_REFUSED"


class LockMismatch(PluginError):
    """The host is locked, and this plugin differs from its lock file."""

    code = "LOCK_MISMATCH"


class ActivationFailed(PluginError):
    """Importing the plugin or registering what it offers failed; no part of it stays registered."""

    code = "ACTIVATION_FAILED"


class PluginNotFound(PluginError):
    """No plugin has this name."""

    code = "PLUGIN_NOT_FOUND"


class ConfigInvalid(TavernError):
    """tavern.yaml, config.yaml, [tool.tavern] or a TAVERN_* variable is wrong."""

    code = "CONFIG_INVALID"


class SettingsInvalid(TavernError):
    """A settings change was refused; `findings` holds an error per key."""

    code = "SETTINGS_INVALID"


class ProfileInvalid(TavernError):
    """An agent profile cannot be read."""

    code = "PROFILE_INVALID"


class WorkflowInvalid(TavernError):
    """A workflow cannot be read or compiled; `findings` holds every problem, `details["problems"]` the same as JSON."""

    code = "WORKFLOW_INVALID"


class WorkflowNotFound(TavernError):
    """No workflow has this id."""

    code = "WORKFLOW_NOT_FOUND"


class NodeNotFound(TavernError):
    """No active plugin provides this node type."""

    code = "NODE_NOT_FOUND"


class RunNotFound(TavernError):
    """No run has this id, in this process or in the store."""

    code = "RUN_NOT_FOUND"


class JobNotFound(TavernError):
    """No job has this id, or it belongs to another caller."""

    code = "JOB_NOT_FOUND"


class HookNotFound(TavernError):
    """No hook has this name."""

    code = "HOOK_NOT_FOUND"


class SkillNotFound(TavernError):
    """No skill has this name."""

    code = "SKILL_NOT_FOUND"


class UpstreamNotFound(TavernError):
    """tavern.yaml has no upstream with this name."""

    code = "UPSTREAM_NOT_FOUND"


class TokenNotFound(TavernError):
    """No token has this id."""

    code = "TOKEN_NOT_FOUND"


class StateDamaged(TavernError):
    """A state file of the host cannot be read; the corrupt file is saved next to the new one."""

    code = "STATE_DAMAGED"


class CallError(TavernError):
    """One tool call failed in a way its caller can understand.

    Tools may raise these too. `outcome` says what the failed call may have changed, `retryable` whether the same call
    may work later, `retry_after_ms` when.
    """

    code = "UPSTREAM_ERROR"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        retryable: bool = False,
        outcome: Outcome = "none",
        retry_after_ms: int | None = None,
        findings: tuple[Finding, ...] = (),
        **details: Any,
    ) -> None:
        super().__init__(message, hint=hint, findings=findings, **details)
        self.retryable = retryable
        self.outcome: Outcome = outcome
        self.retry_after_ms = retry_after_ms


class ToolNotFound(CallError):
    code = "TOOL_NOT_FOUND"


class ArtifactNotFound(CallError):
    """No artifact has this id, it has expired, or it belongs to another caller."""

    code = "ARTIFACT_NOT_FOUND"


class InputInvalid(CallError):
    code = "INPUT_SCHEMA_INVALID"


class PolicyDenied(CallError):
    code = "POLICY_DENIED"


class ApprovalRequired(CallError):
    code = "APPROVAL_REQUIRED"


class InputRequired(CallError):
    """A tool asks something: `details["questions"]` says what. The call is made again with the answers."""

    code = "INPUT_REQUIRED"


class ApprovalRejected(CallError):
    code = "APPROVAL_REJECTED"


class BudgetExceeded(CallError):
    code = "BUDGET_EXCEEDED"


class CallTimeout(CallError):
    code = "TIMEOUT"


class CircuitOpen(CallError):
    code = "CIRCUIT_OPEN"


class ToolQuarantined(CallError):
    code = "TOOL_QUARANTINED"


class IdempotencyConflict(CallError):
    code = "IDEMPOTENCY_CONFLICT"


class CallCancelled(CallError):
    code = "CANCELLED"

    def __init__(self, message: str, *, hint: str = "", outcome: Outcome = "none", **more: Any) -> None:
        default_hint = (
            "call it again if it is still needed"
            if outcome == "none"
            else "check what it has changed before you repeat it"
        )
        super().__init__(message, hint=hint or default_hint, outcome=outcome, **more)


class ConnectionLost(CallError):
    code = "CONNECTION_LOST"


class UpstreamError(CallError):
    code = "UPSTREAM_ERROR"


class ToolFailed(CallError):
    code = "TOOL_ERROR"


class OutputInvalid(CallError):
    code = "OUTPUT_SCHEMA_INVALID"


class OutputTooLarge(CallError):
    code = "OUTPUT_TOO_LARGE"


class TamSyntax(CallError):
    code = "TAM_SYNTAX"


class CallMisused(CallError):
    """A call was made in a way that cannot work: on a closed host, or with something that is not a context. Nothing was run."""

    code = "USAGE"


class InternalError(CallError):
    code = "INTERNAL"


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """A row of `ERROR_CODES`."""

    meaning: str
    exit_code: int
    fix: str
    call: bool = False
    """True where the code is a `ToolResult.error.kind`."""
    fix_for: Literal["operator", "caller"] = "operator"
    """Who can apply the `fix` of such an error. A model reads only fixes for callers; `details["fixFor"]` of one error may differ."""


ERROR_CODES: Mapping[str, ErrorCode] = {
    "USAGE": ErrorCode(
        "The API or the command line was used in a way that cannot work.",
        2,
        "Read the message: it names the call to use instead.",
        True,
    ),
    "PLUGIN_FAILED": ErrorCode(
        "One plugin cannot be used; other plugins are not affected.",
        4,
        "Run `tavern doctor`; it shows the reason and the fix for each plugin.",
    ),
    "MANIFEST_INVALID": ErrorCode(
        "plugin.yaml is missing, unreadable or does not fit its schema.",
        4,
        "Go to the named line and column; `tavern schema manifest` prints the schema an editor can use.",
    ),
    "TOOL_FILE_INVALID": ErrorCode(
        "A *.tool.json file or an inline tool is wrong.",
        4,
        "Go to the named line and pointer; `tavern schema tool` prints the schema.",
    ),
    "SKILL_INVALID": ErrorCode(
        "The SKILL.md of a skill is wrong.",
        4,
        "Correct the file at the named place; `tavern skills check` shows all findings.",
    ),
    "SCHEMA_INVALID": ErrorCode(
        "A JSON Schema is wrong, too large, refers to another file or has a dangerous pattern.",
        4,
        "Correct the keyword at the named pointer; only `$ref`s inside the same schema are followed.",
    ),
    "NAME_CONFLICT": ErrorCode(
        "Two plugins claim the same name; the named one won.", 4, "Rename one, or disable the plugin you do not want."
    ),
    "DEPENDENCY_UNMET": ErrorCode(
        "A plugin or host version that this plugin needs is missing, failed or disabled.",
        4,
        "Install, enable or upgrade what the message names.",
    ),
    "HOOK_REFUSED": ErrorCode(
        "A hookimpl is unknown, malformed, undeclared in plugin.yaml or not granted.",
        4,
        "Correct the name, add the YAML line the message prints, or grant the permission.",
    ),
    "LOCK_MISMATCH": ErrorCode(
        "The host is locked, and the plugin differs from its lock file in version, plugin.yaml, code or permissions.",
        3,
        "`tavern plugins review NAME` shows what changed; to accept it, run `tavern plugins lock`.",
    ),
    "ACTIVATION_FAILED": ErrorCode(
        "Importing the plugin or registering what it offers failed; no part of it stays registered.",
        4,
        "Correct the error at the named file and line, then `tavern plugins reload NAME`.",
    ),
    "PLUGIN_NOT_FOUND": ErrorCode(
        "No plugin has this name.", 5, "`tavern plugins list` shows the names; the message names the nearest."
    ),
    "CONFIG_INVALID": ErrorCode(
        "tavern.yaml, config.yaml, [tool.tavern] or a TAVERN_* variable is wrong.",
        2,
        "Correct the value at the named place; `tavern config show --origin` shows where each value comes from.",
    ),
    "SETTINGS_INVALID": ErrorCode("A setting was refused.", 1, "Each key has its own error; no value was saved."),
    "PROFILE_INVALID": ErrorCode("An agent profile cannot be read.", 2, "Correct the file at the named place."),
    "WORKFLOW_INVALID": ErrorCode(
        "A workflow file is invalid; it was not run.",
        4,
        "Correct each problem at the named node, slot or edge; `tavern workflows check FILE` shows all.",
    ),
    "WORKFLOW_NOT_FOUND": ErrorCode(
        "No workflow has this id.", 5, "`tavern workflows list` shows the ids; the message names the nearest."
    ),
    "NODE_NOT_FOUND": ErrorCode(
        "No active plugin provides this node type.",
        5,
        "`tavern nodes list` shows the types; the message names the nearest.",
    ),
    "RUN_NOT_FOUND": ErrorCode("No run has this id.", 5, "`tavern workflows runs` shows the stored runs."),
    "APPROVAL_NOT_FOUND": ErrorCode(
        "No stored request for approval, or rule, has this id.",
        5,
        "`tavern approvals list` shows the requests, `tavern approvals rules` the rules.",
    ),
    "JOB_NOT_FOUND": ErrorCode("No job of this caller has this id.", 5, "`tavern jobs list` shows the jobs."),
    "HOOK_NOT_FOUND": ErrorCode(
        "No hook has this name.", 5, "`tavern hooks` shows the names; the message names the nearest."
    ),
    "SKILL_NOT_FOUND": ErrorCode(
        "No skill has this name.", 5, "`tavern skills list` shows the names; the message names the nearest."
    ),
    "UPSTREAM_NOT_FOUND": ErrorCode(
        "tavern.yaml has no upstream with this name.", 5, "`tavern upstreams list` shows the upstreams."
    ),
    "TOKEN_NOT_FOUND": ErrorCode(
        "No token has this id.", 5, "`tavern tokens list` shows the tokens; the message names the nearest."
    ),
    "STATE_DAMAGED": ErrorCode(
        "A state file of the host is corrupt.",
        1,
        "The host saved the corrupt file next to the new one; `tavern doctor` names it.",
    ),
    "TOOL_NOT_FOUND": ErrorCode(
        "No tool has this id, or the caller may not see it.",
        5,
        "Use one of the nearest ids in `details.nearest`; `tavern tools why ID` says why a tool is hidden.",
        True,
    ),
    "ARTIFACT_NOT_FOUND": ErrorCode(
        "No artifact of this caller has this id, or it has expired.",
        5,
        "`tavern artifacts list` shows the artifacts.",
        True,
    ),
    "INPUT_SCHEMA_INVALID": ErrorCode(
        "The arguments do not fit the tool's parameters.",
        1,
        "`details.problems` names each argument, what was expected and the nearest name.",
        True,
        "caller",
    ),
    "POLICY_DENIED": ErrorCode(
        "A policy, a hook, the caller's rights or the agent profile refuses the call.",
        3,
        "`details` names who refused, what was missing, and the grant that would allow it.",
        True,
    ),
    "APPROVAL_REQUIRED": ErrorCode(
        "The call needs approval.", 3, "Approve it, then repeat the call with the same arguments.", True
    ),
    "INPUT_REQUIRED": ErrorCode(
        "The tool asked a question that could not be answered here.",
        3,
        "Make the call as a job and answer it with `tavern jobs answer`, or call from an MCP client that can be asked.",
        True,
    ),
    "APPROVAL_REJECTED": ErrorCode(
        "The call was not approved, or no one answered in time.", 3, "Do not repeat the same call.", True
    ),
    "BUDGET_EXCEEDED": ErrorCode(
        "A limit on calls, depth, rate or concurrency is reached.",
        1,
        "Wait `retryAfterMs` if given, or raise the budget.",
        True,
    ),
    "TIMEOUT": ErrorCode(
        "The deadline passed. `details.limit` names the limit, `details.stopped` says whether the work was stopped.",
        124,
        "Give more time (`budget.timeoutMs`, the tool's `timeout`) or ask for less.",
        True,
    ),
    "CIRCUIT_OPEN": ErrorCode(
        "The tool failed several times in a row, so its calls are paused.", 1, "Wait `retryAfterMs`.", True
    ),
    "TOOL_QUARANTINED": ErrorCode(
        "The tool is pinned, and its definition has changed since the review.",
        3,
        "`tavern tools pins` shows what changed; to accept it, run `tavern tools pin ID`.",
        True,
    ),
    "IDEMPOTENCY_CONFLICT": ErrorCode(
        "The idempotency key was used before with other arguments.",
        1,
        "Use a new key for a different call.",
        True,
        "caller",
    ),
    "CANCELLED": ErrorCode(
        "The call was cancelled.", 130, "Nothing to repair; `outcome` says what may have happened.", True
    ),
    "CONNECTION_LOST": ErrorCode(
        "The connection to the process or server that ran the tool was lost.",
        1,
        "Check `outcome` before you repeat the call.",
        True,
    ),
    "UPSTREAM_ERROR": ErrorCode(
        "The tool's own back end failed: exit code, exception or bad answer.",
        1,
        "`details` has the exit code, the end of stderr or the exception.",
        True,
    ),
    "TOOL_ERROR": ErrorCode(
        "The tool reports that it could not do what the call requested.",
        1,
        "Read the tool's message; it is meant for the caller.",
        True,
        "caller",
    ),
    "OUTPUT_SCHEMA_INVALID": ErrorCode(
        "The answer of the tool does not fit its output schema, or is not JSON.",
        1,
        "Report it to the plugin's author; `details.problems` names each place.",
        True,
    ),
    "OUTPUT_TOO_LARGE": ErrorCode(
        "The answer of the tool exceeds the limit.", 1, "Ask for less, or raise `limits.outputBytes`.", True
    ),
    "TAM_SYNTAX": ErrorCode(
        "A TAM block is invalid; it was not run.",
        1,
        "Each problem names the field and the repair; write the block again.",
        True,
        "caller",
    ),
    "INTERNAL": ErrorCode(
        "The framework itself failed.", 1, "Please report it with the call id and the log line that names it.", True
    ),
}


def call_error_of(kind: str) -> type[CallError]:
    """The error class for the `kind` of a result; UpstreamError if no class has it."""
    return _call_errors().get(kind, UpstreamError)


@functools.cache
def _call_errors() -> dict[str, type[CallError]]:
    classes: dict[str, type[CallError]] = {}
    queue: list[type[CallError]] = [CallError]
    for cls in queue:  # grows while it is read
        queue += cls.__subclasses__() if cls.__module__ == __name__ else []
        if cls.__module__ == __name__ and cls is not CallError:
            classes.setdefault(cls.code, cls)
    return classes
