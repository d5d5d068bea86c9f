"""Asking a person at the terminal: one question at a time, while other output pauses; a schema defines the types of answers.

Without a terminal on both ends, no one can answer, and nothing is approved. Questions of nodes and approvals of calls come
from several threads; the asking thread owns the terminal until it has the answer.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from tavern_core.cli.output import json_text, one_line, visible, write
from tavern_core.cli.stdout import is_open
from tavern_core.errors import InputInvalid
from tavern_core.model.safe_printing import listed

if TYPE_CHECKING:
    from tavern_core.flow.engine.run_options import NodeQuestion
    from tavern_core.flow.run_handle import RunHandle
    from tavern_core.model.approval import Approval, ApprovalRequest, Approver

_YES: Final = frozenset({"y", "yes", "是"})
_NO: Final = frozenset({"n", "no", "否"})
_MOST_CHOICES: Final = 20
_LONGEST_SHOWN: Final = 2_000
"""Characters of the arguments of a call that needs approval."""
_one_at_a_time = threading.Lock()
_typed_ahead = bytearray()
shown: Final[list[Redrawable]] = []
"""Displays that are drawn on the terminal now."""


class Redrawable(Protocol):
    """A display that is redrawn."""

    def pause(self) -> None: ...

    def go_on(self) -> None: ...


class QuestionWithdrawn(Exception):
    """The answer is not needed any more."""


def has_person() -> bool:
    """Whether input and output are a terminal, so that a person can answer."""
    return is_open(sys.stdin) and is_open(sys.stderr) and sys.stdin.isatty() and sys.stderr.isatty()


@contextmanager
def alone() -> Iterator[None]:
    """Keep out other questions and all drawing while a question is open."""
    with _one_at_a_time:
        aside = list(shown)
        for each in aside:
            each.pause()
        try:
            yield
        finally:
            for each in aside:
                each.go_on()


def read_line(text: str, *, is_hidden: bool = False, wake: int | None = None) -> str | None:
    """Show `text` and read one line; None at the end of the input (Ctrl-D).

    Args:
        is_hidden: input is not echoed.
        wake: a descriptor; once it is readable, the answer is not needed any more.

    Raises:
        QuestionWithdrawn: by `wake`.
    """
    source = sys.stdin.fileno()
    with _no_echo(source) if is_hidden else nullcontext():
        write(sys.stderr, text)
        sys.stderr.flush()
        while b"\n" not in _typed_ahead:
            ready, _, _ = select.select([source] if wake is None else [source, wake], [], [])
            if wake in ready:
                _drop_typed(source)
                raise QuestionWithdrawn
            if not (part := os.read(source, 65_536)):
                _typed_ahead.clear()
                return None
            _typed_ahead.extend(part)
    line, _, rest = bytes(_typed_ahead).partition(b"\n")
    _typed_ahead[:] = rest
    if is_hidden:
        write(sys.stderr, "\n")
    return line.decode("utf-8", "replace").removesuffix("\r")


def _drop_typed(terminal: int) -> None:
    """Discard partial input before the next question."""
    import termios

    _typed_ahead.clear()
    termios.tcflush(terminal, termios.TCIFLUSH)


@contextmanager
def _no_echo(terminal: int) -> Iterator[None]:
    import termios

    before = termios.tcgetattr(terminal)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


# Answers by a schema -------------------------------------------------------------------------------------------------------


def typed(schema: Mapping[str, Any], text: str) -> tuple[Any, str]:
    """The input converted for the schema, and its problem; empty if there is none."""
    from tavern_core.schema.secret_names import is_secret_schema
    from tavern_core.schema.text_coercion import coerce_text

    if not text.strip() and "default" in schema:
        return schema["default"], ""
    kinds = _parts(schema).keys()
    if "null" in kinds and not text.strip() and "string" not in kinds:
        return None, ""
    if "boolean" in kinds and "string" not in kinds:
        word = text.strip().lower()
        text = "true" if word in _YES else "false" if word in _NO else word
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    values, problems = coerce_text({"properties": {"answer": schema}, **definitions}, {"answer": text})
    if not problems:
        return values["answer"], ""
    problem = problems[0]
    if is_secret_schema(schema):
        return None, f"must be {problem.expected}"
    return None, f"{problem.message} ({problem.hint})" if problem.hint else problem.message


def _parts(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Each type that an answer may have, with its part of the schema: unions and references split."""
    from tavern_core.schema.alternatives_expansion import SchemaRoot

    found: dict[str, Mapping[str, Any]] = {}
    for part in SchemaRoot(schema).alternatives(schema):
        kind = part.get("type") if isinstance(part, Mapping) else None
        for name in (kind,) if isinstance(kind, str) else kind if isinstance(kind, list) else ():
            found.setdefault(str(name), part)
    return found


def wanted(schema: Mapping[str, Any]) -> str:
    """The expected input, in a few words; empty for a text."""
    from tavern_core.schema.alternatives_expansion import SchemaRoot, literals_of

    alternatives = SchemaRoot(schema).alternatives(schema)
    literals = literals_of(schema) or [value for part in alternatives for value in literals_of(part) or ()]
    if literals:
        return "one of: " + listed(literals, _MOST_CHOICES, lambda one: one if isinstance(one, str) else json_text(one))
    parts = _parts(schema)
    kinds = [kind for kind in parts if kind != "null"]
    kind = kinds[0] if len(kinds) == 1 else ""
    if kind == "boolean":
        return "yes or no"
    if kind in ("integer", "number"):
        low, high = parts[kind].get("minimum"), parts[kind].get("maximum")
        begin = "" if low is None else f" from {low}"
        end = "" if high is None else f" to {high}" if begin else f" up to {high}"
        return kind + begin + end
    return {"array": "JSON: [1, 2]", "object": 'JSON: {"key": value}'}.get(kind, "")


def answered(question: NodeQuestion, give: Callable[[Any], bool], wake: int | None = None) -> bool:
    """Ask one question until an answer fits; False: the person does not answer (Ctrl-D).

    Args:
        give: accepts an answer; False: another answer came first.

    Raises:
        QuestionWithdrawn: as `read_line`.
    """
    from tavern_core.schema.secret_names import is_secret_schema

    schema = question.schema
    is_hidden = is_secret_schema(schema)
    words = question.prompt or str(schema.get("title") or schema.get("description") or "") or "?"
    title = f"{one_line(question.path)}: {visible(words)}"
    title += f" ({one_line(hint)})" if (hint := wanted(schema)) else ""
    title += f" [{one_line(json_text(schema['default']))}]" if "default" in schema and not is_hidden else ""
    while True:
        line = read_line(f"{title}: ", is_hidden=is_hidden, wake=wake)
        if line is None:
            write(sys.stderr, "\n")
            return False
        value, why = typed(schema, line)
        if not why:
            try:
                if not give(value):
                    write(sys.stderr, "  another person has answered\n")
                return True
            except InputInvalid as error:
                found = str((error.details.get("problems") or [{}])[0].get("message") or error.message)
                why = found if not is_hidden else "does not fit"
        write(sys.stderr, f"  the answer {one_line(why)}\n")


class QuestionPrompter:
    """Asks the questions of a run one after the other, while the run continues. Without a person, the run stays waiting."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle
        self._answered: set[str] = set()
        self._has_left = False
        self._now = ""
        """The current question."""
        self._wake = -1
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Handle an event of the run."""
        open_ = {question.id: question for question in self._handle.questions}
        if self._now and self._now not in open_:
            self._withdraw()
        if not open_.keys() - self._answered or self._now or self._has_left:
            return
        if has_person():
            self._begin(next(question for name, question in open_.items() if name not in self._answered))
        else:
            self._leave()

    def close(self) -> None:
        """End the questions of a run that is over."""
        self._has_left = True
        self._withdraw()
        if self._thread is not None:
            self._thread.join(2)

    def _leave(self) -> None:
        self._has_left = True
        self._handle.leave()

    def _begin(self, question: NodeQuestion) -> None:
        self._now = question.id
        asleep, self._wake = os.pipe()
        done: Future[bool] = Future()
        asyncio.wrap_future(done).add_done_callback(self._over)
        self._thread = threading.Thread(
            target=self._ask, args=(question, asleep, done), name="tavern-question", daemon=True
        )
        self._thread.start()

    def _ask(self, question: NodeQuestion, asleep: int, done: Future[bool]) -> None:
        try:
            with alone():
                done.set_result(answered(question, lambda value: self._handle.answer(question.id, value), asleep))
        except QuestionWithdrawn:
            write(sys.stderr, "\n")
            done.set_result(True)
        except BaseException as error:  # noqa: BLE001 - the terminal may close
            done.set_exception(error)
        finally:
            os.close(asleep)

    def _over(self, done: asyncio.Future[bool]) -> None:
        """Handle that the person has answered or declined."""
        self._answered.add(self._now)
        self._now = ""
        self._withdraw()
        if done.cancelled() or done.exception() is not None or not done.result():
            self._leave()
        else:
            self.look()

    def _withdraw(self) -> None:
        if self._wake >= 0:
            with suppress(OSError):
                os.write(self._wake, b"x")
            os.close(self._wake)
            self._wake = -1


# Approvals --------------------------------------------------------------------------------------------------------------


def terminal_approver() -> Approver | None:
    """The callback for `Tavern.open(approve=...)`; None without a terminal."""
    return ask if has_person() else None


def ask(request: ApprovalRequest) -> Approval:
    """Show one call and read the answer; anything but an explicit yes is no."""
    from tavern_core.kernel.plugins.consent import user_name

    with alone():
        write(sys.stderr, _shown(request))
        said = (read_line("Let it run? Type yes to approve, anything else refuses: ") or "").strip().lower()
    by = f"user:{user_name()}"
    return request.approve(by=by) if said in ("y", "yes") else request.reject("refused at the terminal", by=by)


def _shown(request: ApprovalRequest) -> str:
    arguments = visible(json_text(dict(request.arguments), indent=2))
    if len(arguments) > _LONGEST_SHOWN:
        arguments = arguments[:_LONGEST_SHOWN] + f"\n… ({len(arguments):,} characters)"
    rows = [
        f"\n{one_line(request.tool)} needs approval: {one_line(request.reason)}",
        f"  caller     {one_line(request.principal)}"
        + (f" (profile {one_line(request.profile)})" if request.profile else ""),
        f"  risk       {request.risk}" + (f" ({', '.join(request.capabilities)})" if request.capabilities else ""),
        *([f"  purpose    {one_line(request.purpose)}"] if request.purpose else []),
        f"  call       {request.fingerprint}",
        "  arguments  " + arguments.replace("\n", "\n             "),
    ]
    return "\n".join(rows) + "\n"
