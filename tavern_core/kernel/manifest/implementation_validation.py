"""Checks the `implementation` of each kind of tool by its text alone: (key, message, hint).

`check` verifies that the files exist; the executor, that they may run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from tavern_core.kernel.files.safe_paths import path_problem
from tavern_core.model.environment_variables import is_name, is_refused
from tavern_core.model.safe_printing import quoted_address
from tavern_core.model.script_command import RUNNERS, words_before_file
from tavern_core.model.tool import ENDPOINT_KINDS
from tavern_core.model.toolfile import Implementation
from tavern_core.schema.secret_names import is_secret_variable

Problems = Iterator[tuple[str, str, str]]
_METHODS: Final = ("POST", "GET", "PUT", "PATCH", "DELETE", "HEAD")
_SHELL_SIGN = re.compile(r"\d?[|&;<>].*|.*[|&;]", re.DOTALL)
"""A word with an operator at its beginning or end; within a word it may be part of an address."""
_HANDLER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z", re.ASCII)


def split_command(command: str | Sequence[str]) -> tuple[str, ...]:
    """The argument list of a script; a string is split as a shell would, and no shell ever sees it.

    Raises:
        ValueError: a quote is not closed.
    """
    return tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)


def shell_signs(command: str | Sequence[str] | None) -> list[str]:
    """Words with an operator of a shell, outside of quotes, in a command that is written as one line: they are arguments like others."""
    if not isinstance(command, str):
        return []
    words = shlex.shlex(command)  # quotes stay, so what is quoted begins and ends with one
    words.whitespace_split, words.commenters = True, ""
    try:
        return [word for word in words if _SHELL_SIGN.fullmatch(word)]
    except ValueError:  # a quote is not closed, which is an error
        return []


def _script_problems(implementation: Implementation) -> Problems:
    if implementation.command is None:
        yield "command", "a script needs a `command`", 'write `command: ["python", "scripts/run.py"]`'
        return
    try:
        argv = split_command(implementation.command)
    except ValueError:
        yield "command", "a quote in the command is not closed", "write the command as a list"
        return
    if not argv or not argv[0].strip():
        yield "command", "the command is empty", 'write `command: ["python", "scripts/run.py"]`'
        return
    if any("\0" in word for word in argv):
        yield "command", "the command holds a NUL character", "delete it"
    if argv[0] not in RUNNERS and (problem := _program_problem(argv[0])):
        hint = f"use one of {', '.join(RUNNERS)}, or a file inside the plugin"
        yield "command", f"{argv[0]!r:.120} may not run scripts: {problem}", hint
    _, problem, hint = words_before_file(argv)
    if problem:
        yield "command", problem, hint
    if implementation.cwd is not None and (problem := path_problem(implementation.cwd)):
        yield "cwd", f"{implementation.cwd!r:.120}: {problem}", "name a folder inside the plugin"
    for name in implementation.env:
        if not is_name(name):
            yield "env", f"{name!r:.80} is not the name of an environment variable", "list names, not values"
        elif why := withheld(name):
            yield "env", f"{name} {why[0]}", why[1]


def withheld(name: str) -> tuple[str, str] | None:
    """Why no program gets a variable of the host, whatever is granted, and the repair; None: it may get it."""
    if is_secret_variable(name):
        hint = f'declare it in configSchema with "secret": true and set it to {{"$env": "{name}"}}'
        return "may hold a secret and is not passed on", hint
    if is_refused(name):
        return "is never passed on: it makes programs load code, or is the host's own", "delete it"
    return None


def _program_problem(program: str) -> str:
    if "/" not in program and "." not in program:
        return "it is neither a known runner nor a file of the plugin"  # `sh` must not look like a file called sh
    return path_problem(program)


def _service_problems(implementation: Implementation) -> Problems:
    for key, value in (("service", implementation.service), ("method", implementation.method)):
        if not value:
            yield key, f"a tool of type service needs `{key}`", "write `service: name` and `method: name`"
    method = implementation.method or ""
    if method and not method.isidentifier():
        yield "method", f"{method!r:.80} is not a method name", ""
    elif method.startswith("_"):
        yield "method", f"{method!r:.80} is private", "name a public method of the service"


def _node_problems(implementation: Implementation) -> Problems:
    if not implementation.node_type:
        yield "nodeType", "a tool of type node needs `nodeType`", "write `nodeType: my-plugin:MyNode`"


def _workflow_problems(implementation: Implementation) -> Problems:
    if not implementation.workflow_id:
        yield "workflowId", "a tool of type workflow needs `workflowId`", "name a file inside the plugin"
    elif problem := path_problem(implementation.workflow_id):
        yield "workflowId", f"{implementation.workflow_id!r:.120}: {problem}", "name a file inside the plugin"


def _python_problems(implementation: Implementation) -> Problems:
    handler = implementation.handler
    if handler is not None and (_HANDLER.match(handler) is None or len(handler) > 300):
        yield "handler", f"{handler!r:.120} is not of the form module:function", "write `handler: tools.text:count`"


def endpoint_problems(kind: str, endpoint: str, implementation: Mapping[str, Any]) -> Problems:
    """The problems of a tool that names the address of its system (`ENDPOINT_KINDS`)."""
    from pydantic import ValidationError

    from tavern_core.contract.guards.addresses import BadUrl, read_url
    from tavern_core.model.upstream_config import endpoint_config

    try:
        read_url(endpoint)
    except BadUrl as error:
        yield "endpoint", f"{quoted_address(endpoint)} {error}", error.hint
        return
    if "?" in endpoint or "#" in endpoint:
        yield "endpoint", f"{quoted_address(endpoint)} has a query or a fragment", "leave out ? or #, and what follows"
    if urlsplit(endpoint).path.strip("/") == "":
        hint = "copy the production URL of the webhook: https://n8n.example.com/webhook/..."
        yield "endpoint", f"{quoted_address(endpoint)} is not the address of a webhook", hint
    method = implementation.get("method")
    if kind == "n8n" and method is not None and method not in _METHODS:
        yield "method", f"{method!r:.40} is not a method of a webhook", f"use one of {', '.join(_METHODS)}"
    try:
        endpoint_config(kind, endpoint, implementation)
    except ValidationError as error:
        for flaw in error.errors(include_url=False):
            key = str(flaw["loc"][0]) if flaw["loc"] else "url"
            yield "endpoint" if key == "url" else key, flaw["msg"], str(flaw.get("ctx", {}).get("hint", ""))


def _endpoint_problems(implementation: Implementation) -> Problems:
    kind = implementation.type
    if implementation.endpoint is None:
        hint = f'write `endpoint: "https://..."`, or an entry of kind {kind} below `upstreams` in tavern.yaml'
        yield "endpoint", f"a tool of type {kind} needs `endpoint`", hint
        return
    data = implementation.model_dump(by_alias=True, exclude_none=True)
    yield from endpoint_problems(kind, implementation.endpoint, data)


KINDS: Final[Mapping[str, Callable[[Implementation], Problems]]] = {
    "script": _script_problems,
    "service": _service_problems,
    "node": _node_problems,
    "workflow": _workflow_problems,
    "python": _python_problems,
    **dict.fromkeys(ENDPOINT_KINDS, _endpoint_problems),
}
"""The built-in kinds; others are checked by the executor that a plugin contributes."""
