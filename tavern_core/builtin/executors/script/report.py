"""The result of an ended script: its answer, or one error."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Final

from tavern_core.box.fork_server_client import ending
from tavern_core.box.output import ScriptOutcome
from tavern_core.box.policy import BoxLimits, BoxPolicy, BoxUnavailable
from tavern_core.builtin.executors.script.masking import ScriptMasking
from tavern_core.builtin.executors.script.script_output import Unreadable, error_in, excerpt, parse, vcp_answer
from tavern_core.contract.protocols import Sandbox
from tavern_core.errors import CallTimeout, ConnectionLost, Outcome, OutputTooLarge, PolicyDenied, UpstreamError
from tavern_core.frozen_dataclass import dataclass
from tavern_core.model.call import Rights
from tavern_core.model.config import LimitsConfig
from tavern_core.model.tool import ToolSpec

_LOOKED_AT: Final = 4096
"""Bytes of the output for an excerpt."""


@dataclass(frozen=True, slots=True)
class ScriptDeadline:
    """The time limit of a script, and the setting that it comes from."""

    ms: int
    limit: str


class ScriptReport:
    """The report of an ended script.

    Args:
        ended: its end and its output.
        file: the name of the file that ran, for messages.
        deadline: the time it had.
        masking: redacts its secrets in everything reported here.
        box: the box that it ran in; None: none.
    """

    def __init__(
        self,
        tool: ToolSpec,
        ended: ScriptOutcome,
        masking: ScriptMasking,
        limits: LimitsConfig,
        *,
        file: str,
        deadline: ScriptDeadline,
        box: ScriptBox | None = None,
    ) -> None:
        self._name = tool.name
        self._outcome: Outcome = "none" if tool.read_only else "unknown"
        self._ended = ended
        self._masking = masking
        self._limits = limits
        self._file = file
        self._deadline = deadline
        self._box = box
        self._protocol = tool.implementation.get("protocol")

    def answer(self) -> Any:
        """The value on stdout.

        Raises:
            ToolFailed: the script reports a failure (TOOL_ERROR).
            CallTimeout: its time was over (TIMEOUT).
            OutputTooLarge: it printed more than the limit (OUTPUT_TOO_LARGE).
            PolicyDenied: it must run in a box that this machine does not have (POLICY_DENIED).
            ConnectionLost: its guard was killed (CONNECTION_LOST).
            UpstreamError: it crashed, was killed, or did not print JSON (UPSTREAM_ERROR).
        """
        match self._ended.reason:
            case "time":
                raise self._timed_out()
            case "flood":
                limit = self._limits.output_bytes
                raise OutputTooLarge(
                    f"{self._name} printed more than {limit:,} bytes and was stopped",
                    hint="ask for less, raise limits.outputBytes, or let it write files to the folder TAVERN_OUTPUT",
                    outcome=self._outcome,
                    limit=limit,
                )
            case "lost" | "untaken" | "stop" | "kill":
                raise ConnectionLost(
                    f"{self._name}: the process that watches over the script went away",
                    outcome="none" if self._ended.reason == "untaken" else self._outcome,
                    **self._stderr(),
                )
            case "boxless":
                raise self._boxless()
            case "failed":
                raise self._not_started()
            case "exit":
                return self._exited()

    def _exited(self) -> Any:
        code = os.waitstatus_to_exitcode(self._ended.status)
        if self._protocol == "text":
            stdout = self._masking.text(self._ended.stdout.decode("utf-8", "replace"))
            return {"exitCode": code, "stdout": stdout, "stderr": self._stderr().get("stderr", "")}
        try:
            value = parse(self._ended.stdout)
            value = self._masking.value(vcp_answer(value) if self._protocol == "vcp" else value)
        except Unreadable as error:
            if code:
                raise self._crashed(code) from None
            raise self._unreadable(str(error)) from None
        if (failed := error_in(value, self._outcome)) is not None:
            if code:
                failed.details.setdefault("exitCode", code)
            failed.hint = self._hint(failed.hint, failed.message)
            raise failed
        if code:
            raise self._crashed(code)
        return value

    def _timed_out(self) -> CallTimeout:
        ms, limit = self._deadline.ms, self._deadline.limit
        return CallTimeout(
            f"{self._name} did not end within {ms} ms ({limit})",
            hint=f"ask for less, or raise {limit}",
            outcome=self._outcome,
            stopped=not self._ended.left,
            limit=limit,
            timeoutMs=ms,
            **self._stderr(),
        )

    def _boxless(self) -> PolicyDenied:
        box = BoxUnavailable(*(self._ended.missing or ("", "")))
        return PolicyDenied(
            f"{self._name} was not run: {box.message}",
            hint=box.hint,
            side="isolation",
            layer=box.layer,
            reason=box.reason,
        )

    def _not_started(self) -> UpstreamError:
        return UpstreamError(
            f"{self._name}: {self._file} cannot be started: {os.strerror(self._ended.errno)}",
            hint="check that the file exists, may be executed and begins with a `#!` line that names an installed program",
            errno=self._ended.errno,
        )

    def _crashed(self, code: int) -> UpstreamError:
        how = f"was ended by {ending(code)}" if code < 0 else f"ended with exit code {code}"
        which = {"signal": ending(code)} if code < 0 else {"exitCode": code}
        details: dict[str, Any] = {**which, **self._stderr(), **self._stdout()}
        last = str(details.get("stderr", "")).rstrip().rpartition("\n")[2]
        return UpstreamError(
            f"{self._name} {how}{f': {excerpt(last)}' if last else ''}",
            hint=self._hint("details.stderr has what it said; print one JSON value and end with exit code 0", how),
            outcome=self._outcome,
            **details,
        )

    def _unreadable(self, why: str) -> UpstreamError:
        return UpstreamError(
            f"{self._name} gave no JSON answer: {self._masking.text(why)}",
            hint=self._hint("print exactly one JSON value to stdout, and everything else to stderr"),
            outcome=self._outcome,
            exitCode=0,
            **self._stdout(),
            **self._stderr(),
        )

    def _hint(self, hint: str, reason: str = "") -> str:
        """`hint`, with a note about the box if the output suggests that it was the reason."""
        if self._box is None:
            return hint
        stderr = self._ended.stderr
        output = (stderr.tail or stderr.head)[-_LOOKED_AT:].decode("utf-8", "replace")
        note = self._masking.text(self._box.hint(f"{reason}\n{output}"))  # a program may use a secret as a host name
        return "; ".join(filter(None, (hint, note)))

    def _stdout(self) -> dict[str, Any]:
        output = self._ended.stdout
        text = output[:_LOOKED_AT].decode("utf-8", "replace")
        shown = self._masking.text(text) if len(output) <= _LOOKED_AT else self._masking.beginning(text)
        return {"stdout": excerpt(shown)} if shown.strip() else {}

    def _stderr(self) -> dict[str, Any]:
        """The beginning and the end of stderr, as far as the limit allows."""
        stderr = self._ended.stderr
        if stderr.dropped:
            head, tail = (part.decode("utf-8", "replace") for part in (stderr.head, stderr.tail))
            left_out = f"\n… {stderr.dropped:,} bytes left out …\n"
            text = f"{self._masking.beginning(head)}{left_out}{self._masking.end(tail)}" if head else ""
        else:
            text = self._masking.text((stderr.head + stderr.tail).decode("utf-8", "replace"))
        return {"stderr": text} if text.strip() else {}


# Denial hints ---------------------------------------------------------------------------------------------------------
# Signs in the output of a failed script that its box may have refused something, and the hint about it.
#
# It guesses from words, so it says "if": a server or the mode of a file may also have caused the refusal.

_FILES: Final = ("read:fs", "write:fs", "process:spawn")
_SIGNS: Final[Sequence[tuple[re.Pattern[str], tuple[str, ...]]]] = (
    (re.compile(r"Errno 13\b|EACCES|Permission denied|PermissionDenied|os error 13\b"), _FILES),
    # followed by a file name, it concerns the file's mode, owner or time
    (
        re.compile(r"Errno 1\](?! Operation not permitted: )|EPERM(?!: operation not permitted, )|os error 1\b"),
        ("network",),
    ),
    (
        re.compile(
            r"Errno -[235]\]|EAI_AGAIN|ENOTFOUND|name resolution|Name or service not known|Could not resolve|getaddrinfo"
            r"|Network is unreachable|ENETUNREACH|dns error"
        ),
        ("network",),
    ),
)
"""Output of a program → capabilities, one of which may be missing."""
_NO_GRANT: Final = re.compile(
    r"Errno 1\] Operation not permitted: |EPERM: operation not permitted, |Errno 18\]|EXDEV|(?:[Pp]ermission denied).* -> "
)
_AROUND: Final = re.compile(
    r"Errno (101|111|-[235])\]|Errno 1\](?! Operation not permitted: )|ECONNREFUSED|ENETUNREACH|EAI_AGAIN|ENOTFOUND|name resolution|resolve host"
)
"""Output of programs that do not use the gateway of their box."""
_MOST_REFUSED: Final = 3
_BOUNDS: Final[Sequence[tuple[re.Pattern[str], str, str, str]]] = (
    (
        re.compile(r"MemoryError|ENOMEM|Cannot allocate memory|heap out of memory|bad_alloc|Errno 12\]"),
        "memory_bytes", "bytes of memory", "memoryBytes",
    ),
    (re.compile(r"EMFILE|Too many open files|Errno 24\]"), "open_files", "open files", "openFiles"),
    (re.compile(r"EFBIG|File too large|Errno 27\]|SIGXFSZ"), "file_bytes", "bytes in one file", "fileBytes"),
    (
        re.compile(r"can't start new thread|BlockingIOError: \[Errno 11\]|fork: .*Resource temporarily unavailable|spawn \S+ EAGAIN"),
        "processes", "processes and threads", "processes",
    ),
)  # fmt: skip
"""Output of a program → the limit that it may have reached: its field, its unit, its setting."""


class ScriptBox:
    """The box of one script.

    Args:
        rights: of the call.
    """

    def __init__(self, sandbox: Sandbox, rights: Rights, policy: BoxPolicy) -> None:
        self._sandbox = sandbox
        self._rights = rights
        self._limits: BoxLimits = policy.limits
        self._is_filtered = "seccomp" not in policy.left_out
        self._has_gateway = policy.has_gateway
        self.refused: list[str] = []
        """The refusals of its gateway."""

    def hint(self, output: str) -> str:
        """The hint about the box for a failed script; empty if the box does not seem to be the reason.

        Refusals of the gateway come first, because they are certain.

        Args:
            output: its error and its stderr.
        """
        wanted = [name for sign, names in _SIGNS if sign.search(output) for name in names]
        reported = self.refused[:_MOST_REFUSED]
        if wanted:
            reported.append(self._sandbox.what_would_allow(self._rights, tuple(dict.fromkeys(wanted))))
        if self._is_filtered and _NO_GRANT.search(output):
            reported.append(
                "no grant lets a script change modes, owners, times or attributes of files, make symbolic links, or move files between folders that were granted differently"
            )
        if self._has_gateway and not self.refused and _AROUND.search(output):
            reported.append(
                "its box has no way to the network but the proxy that HTTP_PROXY and HTTPS_PROXY name, which looks up names, too"
            )
        for sign, field, unit, setting in _BOUNDS:
            bound = getattr(self._limits, field)
            if bound is not None and sign.search(output):
                reported.append(f"its box has at most {bound:,} {unit} (isolation.{setting} in tavern.yaml)")
        return "; ".join(filter(None, reported))
