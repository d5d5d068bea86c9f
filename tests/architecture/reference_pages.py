"""Writes docs/hooks.md, docs/errors.md and docs/permissions.md from the tables in the code; a test fails when a page is behind.

python tests/architecture/reference_pages.py        write the pages again
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tavern_core import errors
from tavern_core.contract.hookspecs import BROWSER_PERMISSIONS, HOOKS, Hook
from tavern_core.contract.permissions import RISKS, Permission, permission_table
from tavern_core.errors import ERROR_CODES, CallError, TavernError
from tavern_core.tam import PROBLEM_CODES

ROOT: Final = Path(__file__).parents[2]
MADE: Final = "<!-- Made by tests/architecture/reference_pages.py from {source}; edit that and run the script. -->"

HOOKS_INTRO: Final = """# Hooks

A plugin implements a hook by writing a function of that name, marked with `@hookimpl`:

```python
from tavern_core import deny, hookimpl


@hookimpl
def tavern_check_call(call, tool, ctx):
    if "secret" in str(call.arguments):
        return deny("no secrets in arguments")
```

An implementation names the arguments it wants and may leave out the others; it is `def` or `async def`. A sync function runs in a
worker thread, unless `@hookimpl(fast=True)` says that it never blocks. `@hookimpl(when=lambda tool: ...)` is asked once per tool
and leaves the implementation out where it answers False: what is left out costs nothing.

| kind | what it may return | when it fails or takes too long (`limits.hookTimeoutMs`) |
|---|---|---|
| contribute | what the plugin offers | the plugin fails to activate; all others go on |
| modify | a changed copy, None, or `deny(why)` | the change is dropped, with a diagnostic; before a call the call is refused |
| gate | None, `deny(why)` or `require_approval(why)` | the call is refused |
| observe | ignored | a diagnostic, nothing else |
| claim | the first answer that is not None wins | skipped, with a diagnostic |

**Permission.** Contribute-hooks are allowed by the section of `plugin.yaml` that declares what they return. Every other hook needs
its permission twice: asked for under `permissions.hooks`, and granted by the operator (`tavern plugins grant`). A hook that is not
asked for fails the plugin, with the line to add; one that is not granted is left out, with a diagnostic.

**Order.** `tryfirst` (needs `permissions.tryfirst`), then `before`/`after` of `plugin.yaml`, then the plugin's name, then
`trylast`; the same for any order of installation. Modify-hooks are chained: each sees what the one before returned. A denial is
final. pluggy's wrappers are refused, and so are marked objects that are called like functions (`functools.partial`, `__call__`).

**Quarantine.** An implementation that fails or takes too long `limits.hookFailures` times in a row is left alone for
`limits.hookRestMs`, each by itself: an observer and a result hook are skipped, a gate and a before-hook refuse at once. Then it is tried once.
The failures of all processes that share the state folder count together, so those of single commands, too; a success of one that knows of them
begins anew, as do seven days without a failure.
`tavern plugins info` and `doctor` show reason and expiry, HOOK_QUARANTINED and HOOK_RELEASED are in the log; `tavern plugins reload`
and `enable` end it.

**What they changed** stands in the audit log, place by place and with secrets masked: `tavern logs explain CALL_ID`.

**What they see.** `call`, `tool` and `result` are values that do not change: return a changed copy. `ctx` is the plugin's own
`PluginContext`: its settings, its data folder, the services it may use; never the host.
"""

ERRORS_INTRO: Final = """# Errors

Every problem has a code. In Python the code is `error.code` of an exception, or `result.error.kind` of a call; on the command line
it stands in brackets: `error[MANIFEST_INVALID]: …`, followed by the place and a hint. Calls never raise: a `ToolResult` comes back,
and its `error` says what happened (`message`), what a program can act on (`details`), how to repair it (`fix`), whether the same
call may work later (`retryable`, `retry_after_ms`), and what the failed call may have changed (`outcome`: `none`, `done` or
`unknown`).
"""

PERMISSIONS_INTRO: Final = """# Permissions

What a plugin may ask for. It is used only if plugin.yaml asks for it **and** the operator granted it; what nobody decided on is not used,
a refusal beats a grant, and an empty list allows nothing. `tavern plugins review` shows what waits, `tavern plugins grant NAME PERMISSION`
grants. What grants are bound to and where they are kept: [configuration.md](configuration.md#the-lock-file). What they promise and what
not: [security.md](security.md).

```yaml
permissions:
  hooks: ["hook:server:tool:check"]
  ui: {wrap: ["ui:BaseNode"], inject: ["node:header:right"], override: []}
  services: {use: [clock], override: []}
  capabilities:
    - read:web
    - {name: network, scope: [api.example.org, "*.example.net:8443"], reason: asks the weather service}
    - {name: "read:fs", scope: [$data, ./reports]}
  data: ["data:conversation"]
  tryfirst: true
```

The permission is the name by which the lock file, `grant`, `revoke` and every message call it; beside it stands how plugin.yaml asks
for it. Names of hooks have older spellings, told in [hooks.md](hooks.md); plugin.yaml and `grant` accept them, and the lock file has the
name below. An unknown name is an error in plugin.yaml and a warning in the lock file; it never allows anything.

One permission has no line in plugin.yaml: `tier:host`, to run in the host's own process, waits where a plugin was granted for a process of its
own and no longer asks for one ([security.md](security.md#declared-granted-locked)).

| risk | |
|---|---|
| highest | decides for everybody, sees secrets, or cannot be undone |
| high | changes or sees what others do, writes, or leaves the machine |
| medium | reads, or changes what only it is responsible for |
| low | adds, or looks at what is public |

`tavern plugins grant NAME 'hook:*'` is expanded when it is granted: what a later version of the plugin or of the host brings is not in it.
`danger:...` must be named literally; no pattern covers it.
"""

SCOPES: Final = """## Scopes

A capability may be limited in plugin.yaml: `{name: network, scope: [api.example.org]}`. Without `scope` it is asked for as a whole; an empty
`scope` asks for nothing. An entry that cannot be understood reaches nothing and is a warning. A scope that grows with an upgrade waits
for consent, and what was granted works meanwhile; one that shrinks carries over.

| scope of | entry | reaches |
|---|---|---|
| paths | `/srv/reports` | this file, or everything beneath this folder; no patterns, no `..` |
| paths | `./reports` | the same, in the folder of the project (where `tavern.yaml` is; without one the working folder) |
| paths | `$data`, `$plugin`, `$workspace` | the plugin's data folder, its own files, the workspace of the call |
| paths | `~/reports` | in the home folder of the host's user |
| hosts | `example.org` | this name, ports 80 and 443 |
| hosts | `*.example.org` | every name below it, not the name itself |
| hosts | `example.org:8443`, `example.org:*` | another port, all ports |
| hosts | `10.0.0.0/8:443`, `[::1]:8080`, `192.0.2.7` | addresses; only an entry like this reaches one |
| hosts | `*`, `*:*` | every name, at ports 80 and 443 or at all; no address |
| names | `orders` | the database, workflow or program of exactly this name |

No scope at all is, for hosts, what `*` is.
"""

DIAGNOSTICS: Final = {
    "AUDIT_FAILED": "The audit log could not be written. Calls go on unless `audit.required` is set. Make room, or correct the rights of the folder.",
    "ANSWER_NOT_KEPT": "What came of a call with an idempotency key could not be written. Until the host is closed it knows the answer; later the "
    "outcome is unknown. Make room for the state folder.",
    "CACHE_IGNORED": "A tool has `cacheMs` and is not `read_only`: its answers are not kept.",
    "CALLS_STILL_RUNNING": "A plugin was stopped while calls of it were still running after `limits.drainMs`.",
    "CODE_CHANGED": "A plugin has other code or another plugin.yaml than when it was reviewed, under the same version. Its grants carry over; `tavern plugins review` shows them.",
    "EXECUTOR_CLOSE_FAILED": "An executor failed while the host closed; everything else was closed all the same.",
    "FACTORY_FAILED": "The factory of a tool raised an error; its tool does not exist for that caller, others are unaffected.",
    "FACTORY_NAMES": "A factory made a tool that its `names` do not promise, or did not make one that they do.",
    "GRANTS_CARRIED_OVER": "A plugin has another version than when it was reviewed; what was granted and is still asked for works. `tavern plugins lock` notes the new version.",
    "HOOK_FAILED": "A hook implementation failed or took too long; see the table of kinds in [hooks.md](hooks.md) for what that means.",
    "HOOK_NOT_GRANTED": "A hook is asked for and not granted, so it is not called: `tavern plugins grant`.",
    "THREADS_STUCK": "Sync code goes on though its time is over or its caller was cancelled, and keeps a thread. Give what it waits for a time limit of its own.",
    "HOOK_QUARANTINED": "A hook failed `limits.hookFailures` times in a row and is left alone for `limits.hookRestMs`; a gate refuses meanwhile. Correct it and reload the plugin.",
    "HOOK_RESERVED": "A plugin implements a hook that this version of the host does not call yet.",
    "NAMESPACE_FAILED": "The resolver of a namespace failed, hung or answered no tool; its tools cannot be used, others are unaffected.",
    "NODE_CHANGED": "A plugin changed the definition of another plugin's node, as it was granted to.",
    "NODE_LEFT_OUT": "A plugin's hook left a node out, or changed it in a way that cannot be taken.",
    "WORKFLOW_NAME": "A workflow's file name cannot be a tool's id; it runs, but is no tool.",
    "WORKFLOW_UNDESCRIBED": "A workflow has no description, so a model cannot know what its tool is for.",
    "HOOK_UNMARKED": "A function has the name of a hook and no `@hookimpl`; probably forgotten.",
    "HOST_CHANGED": "`tavern plugins check --trace`: the plugin puts code of its own in the place of the host's or of Python's.",
    "HOST_UNTESTED": "The plugin's `requires.tested` does not include this version of the host.",
    "IMPORT_NOT_PURE": "`tavern plugins check --trace`: merely importing the plugin writes files outside of it, connects, or starts threads or programs.",
    "ISOLATION_WEAK": "Programs of the plugin run in a box that lacks layers; the level allows it. `tavern doctor` lists the layers.",
    "NETWORK_REFUSED": "A program in its box wanted to connect to a place that was not granted to its plugin or that the caller may not reach. It says which, and what allows it.",
    "SERVICE_NOT_GRANTED": "A plugin brings a service in the place of another and was not granted that, so it is not used: `tavern plugins grant`.",
    "SERVICE_OVERRIDES_NOTHING": "A plugin replaces a service that is not there; its own is used as it is.",
    "SERVICE_OVERRIDE_CONFLICT": "Several plugins replace the same service. One is used, by the order of precedence; the others stand by.",
    "SERVICE_OVERRIDE_MISFIT": "A service that came after its replacement cannot be replaced by it: a method or parameter is missing. The original is used.",
    "PROBE_UNAVAILABLE": "The import of a plugin could not be tried in a process of its own first, because none can be started. It was imported untried.",
    "SERVICE_STOP_FAILED": "A service failed while it was stopped; everything else was stopped all the same.",
    "CODE_UNSEEN": "`tavern plugins check` reads source and pyproject.toml without running anything; here something is computed, so nothing was compared.",
    "SERVICE_UNMARKED": "A service does not say of some of its methods whether they only look. They count as changing: `service:use` does not reach them. Mark them with `@read_only` or `@mutates`.",
    "SLOT_UNFILLED": "`slots` of tavern.yaml names a plugin that does not offer this slot.",
    "SUBSCRIBER_FAILED": "A function that subscribed to events failed; nothing else was affected.",
    "TRACE_INCOMPLETE": "`tavern plugins check --trace`: the plugin's tests failed, did not end or are missing, so not everything was seen.",
    "TOOL_CHANGED": "A plugin changed the definition of another plugin's tool, as it was granted to.",
    "TOOL_LEFT_OUT": "A `tavern_before_register_tool` hook left a tool out.",
    "TOOLS_UNDECLARED": "A plugin returns tools and declares no ids, so it is activated at open to know them. `tavern plugins check --write` adds the ids.",
    "TOOL_UNDECLARED": "A plugin returned a tool whose id is not in its plugin.yaml; it was not registered. `tavern plugins check --write` adds it.",
    "USE_UNDECLARED": "`tavern plugins check --trace`: the plugin's own code used what its plugin.yaml does not ask for, or not that far.",
    "USE_UNSEEN": "`tavern plugins check --trace`: plugin.yaml asks for something that nothing in the plugin's tests used.",
}
"""Codes that only diagnostics have: things a person should know, that stop nothing."""


def hooks_page() -> str:
    """docs/hooks.md."""
    lines = [MADE.format(source="tavern_core/contract/hookspecs.py"), "", HOOKS_INTRO]
    for heading, chosen in (
        ("## Hooks that are called", [h for h in HOOKS.values() if h.is_called]),
        (
            "## Reserved names\n\nNot called by this version; implementing one is a diagnostic.",
            [h for h in HOOKS.values() if not h.is_called],
        ),
    ):
        lines.append(heading + "\n")
        for hook in chosen:
            lines += _hook(hook)
    lines.append("## In the browser only\n")
    for permission, aliases in BROWSER_PERMISSIONS.items():
        lines.append(f"`{permission}`, also written {_code(aliases)}: observe.")
    return "\n".join(lines).rstrip() + "\n"


def _hook(hook: Hook) -> Iterator[str]:
    yield f"### `{hook.name}({', '.join(hook.arguments)})`\n"
    facts = [hook.kind]
    if hook.permissions:
        facts.append(f"permission {' or '.join(f'`{p}`' for p in hook.permissions)}")
    if hook.aliases:
        facts.append(f"also written {_code(hook.aliases)}")
    if hook.section:
        facts.append(f"section `{hook.section}` of plugin.yaml")
    for argument, right in (hook.sensitive or {}).items():
        facts.append(f"`{argument}` needs `{right}`")
    if hook.sentence:
        facts.append(f"risk {hook.risk}: {hook.sentence} ({hook.sentence_zh})")
    if hook.is_called:
        facts.append(f"since {hook.since}")
    yield " · ".join(facts) + "\n"
    yield hook.contract + "\n"


def errors_page() -> str:
    """docs/errors.md."""
    lines = [MADE.format(source="tavern_core/errors.py"), "", ERRORS_INTRO]
    lines += [
        "## Of calls\n\nThe values of `ToolResult.error.kind`.\n",
        "| code | what it means | what to do | exit code |",
        "|---|---|---|---|",
    ]
    lines += [_error(code) for code, row in ERROR_CODES.items() if row.call]
    lines += [
        "\n## Of plugins, files and configuration\n",
        "| code | what it means | what to do | exit code |",
        "|---|---|---|---|",
    ]
    lines += [_error(code) for code, row in ERROR_CODES.items() if not row.call]
    lines += ["\n## Exceptions\n", "```", *_tree(TavernError, 0), "```"]
    lines += ["\n## In text (TAM)\n\nAn error takes all calls of its block away; a warning takes nothing.\n"]
    lines += ["| code | | becomes | what it means | what to do |", "|---|---|---|---|---|"]
    for code, problem in PROBLEM_CODES.items():
        becomes = f"`{problem.error_kind}`" if problem.severity == "error" else ""
        lines.append(
            f"| `{code}` | {problem.severity} | {becomes} | {_cell(problem.meaning)} | {_cell(problem.repair)} |"
        )
    lines += [
        "\n## Diagnostics\n\n`tavern doctor` shows them; they stop nothing. Codes of the tables above appear among them too.\n"
    ]
    lines += ["| code | what it means |", "|---|---|"]
    lines += [f"| `{code}` | {text} |" for code, text in DIAGNOSTICS.items()]
    return "\n".join(lines) + "\n"


FAMILIES: Final = (
    (
        "Hooks",
        "permissions.hooks",
        "What each hook does: [hooks.md](hooks.md). Hooks that register something need the section of plugin.yaml, not a permission.",
    ),
    ("Wrapping parts of the console", "permissions.ui.wrap", ""),
    (
        "Adding to the console",
        "permissions.ui.inject",
        "An outlet of a panel may name it: `sidebar:panel:header[nodes]`.",
    ),
    ("Replacing parts of the console", "permissions.ui.override", ""),
    ("Services", "permissions.services", ""),
    ("Sensitive arguments of hooks", "permissions.data", ""),
    ("Order of hooks", "permissions.tryfirst", ""),
    (
        "Capabilities",
        "permissions.capabilities",
        "What the tools of the plugin may do to the world. `@tool(destructive=True)` adds `danger:destructive`.",
    ),
)


def permissions_page() -> str:
    """docs/permissions.md."""
    rows = list(permission_table().values())
    lines = [MADE.format(source="tavern_core/contract/permissions.py"), "", PERMISSIONS_INTRO]
    for heading, section, text in FAMILIES:
        family = [row for row in rows if row.section == section or row.section.startswith(f"{section}.")]
        lines.append(f"## {heading}\n")
        lines += [text + "\n"] if text else []
        scoped = any(row.scope for row in family)
        lines += [
            f"| permission | risk | a person consents to | plugin.yaml |{' scope |' if scoped else ''}",
            "|---|---|---|---|" + ("---|" if scoped else ""),
        ]
        for row in sorted(family, key=lambda row: RISKS.index(row.risk)):
            lines.append(_permission(row) + (f" {row.scope or '–'} |" if scoped else ""))
        lines.append("")
        rows = [row for row in rows if row not in family]
    assert not rows, rows
    return "\n".join([*lines, SCOPES])


def _permission(row: Permission) -> str:
    return f"| `{row.id}` | {row.risk} | {_cell(row.sentence)} {_cell(row.sentence_zh)} | `{row.yaml}` |"


def _error(code: str) -> str:
    row = ERROR_CODES[code]
    return f"| `{code}` | {_cell(row.meaning)} | {_cell(row.fix)} | {row.exit_code} |"


def _tree(cls: type[TavernError], depth: int) -> Iterator[str]:
    code = "" if cls in (TavernError, CallError) else cls.code
    yield (f"{'    ' * depth}{cls.__name__}".ljust(36) + code).rstrip()
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child, depth + 1)


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def told_codes() -> set[str]:
    """Every code that some call of `diagnostics.add("CODE", ...)` or `Diagnostic("CODE", ...)` in the package tells."""
    found = set()
    for path in (ROOT / "tavern_core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and node.args and _tells(node.func):
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.add(first.value)
    return found


def _tells(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in ("Diagnostic", "Finding", "notice")
    if isinstance(function, ast.Attribute) and function.attr == "add":
        owner = function.value
        return (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")).endswith("diagnostics")
    return False


PAGES: Final = {"hooks.md": hooks_page, "errors.md": errors_page, "permissions.md": permissions_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (ROOT / "docs" / name).write_text(make(), "utf-8")
        print(ROOT / "docs" / name)
