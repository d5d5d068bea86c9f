"""Shell completion with the names that this host knows. Runs no plugin code and prints no messages.

The scripts are click's, except for bash: bash breaks words at colons, so ``text:count`` is three words. There, the line is
read as a whole, and an answer starts after the last break.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import BashComplete, CompletionItem, ShellComplete, get_completion_class, split_arg_string

from tavern_core.cli.output import one_line
from tavern_core.cli.session import CliSession

if TYPE_CHECKING:
    from tavern_core.host import Tavern

PROGRAM: Final = "tavern"
COMPLETION_VARIABLE: Final = "_TAVERN_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")
_BASH: Final = """\
%(complete_func)s() {
    local IFS=$'\\n' type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(_TAVERN_WORD="${COMP_WORDS[COMP_CWORD]}" COMP_WORDS="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Bash(BashComplete):
    """Completion for bash, also of words with colons."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        begun = "" if not words or line[-1:].isspace() else words.pop()
        return words[1:], begun

    def format_completion(self, item: CompletionItem) -> str:
        _, begun = self.get_completion_args()
        replaced = os.environ.get("_TAVERN_WORD", begun)  # the word that bash replaces by the answer
        stays = begun.removesuffix("" if replaced in (":", "=") else replaced)
        return f"{item.type},{item.value.removeprefix(stays)}"


def shell_completion(shell: str, app: click.Command, session: CliSession) -> ShellComplete | None:
    """The completion of one shell; None for an unknown shell."""
    made = _Bash if shell == "bash" else get_completion_class(shell)
    return None if made is None else made(app, {"obj": session}, PROGRAM, COMPLETION_VARIABLE)


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _known(names: Callable[[Tavern, click.Context], Iterable[str | tuple[str, str]]]) -> Complete:
    """Completion by names, with or without a description, from a host that activates nothing; none if it cannot be opened."""

    def complete(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        session = ctx.ensure_object(CliSession)
        logging.disable(logging.CRITICAL)
        try:
            found = [(name, "") if isinstance(name, str) else name for name in names(session.host("none"), ctx)]
        except Exception:  # noqa: BLE001 - errors do not belong in the prompt; the command itself reports them
            return []
        finally:
            logging.disable(logging.NOTSET)
        entered = ctx.params.get(parameter.name or "") or ()
        # For zsh, a colon starts the description, so names with a colon have none.
        return [
            CompletionItem(name, help=one_line(description) if ":" not in name and description else None)
            for name, description in found
            if name.startswith(begun) and (parameter.nargs == 1 or name not in entered)
        ]

    return complete


def _or_path(complete: Complete, kind: str) -> Complete:
    """The names; if none fits, files or folders, as `kind` is ``file`` or ``dir``."""

    def completed(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        return complete(ctx, parameter, begun) or [CompletionItem(begun, type=kind)]

    return completed


def _plugins(host: Tavern, _: click.Context) -> Iterable[tuple[str, str]]:
    return sorted((s.name, s.state) for s in host.plugins.values() if s.source != "builtin")


def _permissions(host: Tavern, ctx: click.Context) -> Iterable[str]:
    return sorted(request.permission.id for request in host.review(ctx.params["name"]).requests())


def _config_keys(host: Tavern, _: click.Context) -> Iterable[tuple[str, str]]:
    from tavern_core.kernel.config.config_key_lookup import leaves
    from tavern_core.model.config import HostConfig

    defaults = leaves(HostConfig().model_dump(mode="json", by_alias=True))
    settings = ((setting.key, setting.item.label) for setting in host.describe_settings())
    return sorted([*((".".join(path), "") for path, _ in defaults), *settings])


def _hooks(*_: Any) -> Iterable[tuple[str, str]]:
    from tavern_core.contract.hookspecs import HOOKS

    return ((hook.name, hook.kind) for hook in HOOKS.values())


plugins: Final = _known(_plugins)
plugins_or_folders: Final = _or_path(plugins, "dir")
profiles: Final = _or_path(_known(lambda host, _: host.agents.profiles()), "file")
workflows: Final = _or_path(_known(lambda host, _: host.workflows.list()), "file")
tools: Final = _known(lambda host, _: host.tools.known_ids())
permissions: Final = _known(_permissions)
hooks: Final = _known(_hooks)
nodes: Final = _known(lambda host, _: sorted(spec.type for spec in host.nodes.known() or host.nodes.list()))
upstreams: Final = _known(lambda host, _: ((one.name, one.state) for one in host.upstreams.values()))
skills: Final = _known(lambda host, _: ((skill.name, skill.state) for skill in host.skills.list()))
llms: Final = _known(lambda host, _: host.config.llms)
runs: Final = _known(lambda host, _: ((run.run_id, run.workflow) for run in host.workflows.kept()))
jobs: Final = _known(lambda host, _: ((job.id, f"{job.status} {job.tool}") for job in host.jobs.list()))
approvals: Final = _known(lambda host, _: ((one.id, one.request["tool"]) for one in host.approvals.list()))
artifacts: Final = _known(lambda host, _: ((one.id, one.name) for one in host.artifacts.list()))
tokens: Final = _known(lambda host, _: ((token.id, token.principal) for token in host.tokens.list()))
config_keys: Final = _known(_config_keys)
agent_runs: Final = _known(lambda host, _: ((run.run_id, run.profile) for run in host.agents.runs()))


def first_tool(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The id of a tool as the first of several words."""
    return [] if ctx.params.get(parameter.name or "") else tools(ctx, parameter, begun)
