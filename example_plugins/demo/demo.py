"""What `make demo` shows: a host, the plugins that pip installed, and what a model wrote run through it.

    python demo.py FOLDER        state, workspace and audit log go there

It uses nothing but the public API of tavern_core: this is how an application embeds it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tavern_plugin_bilibili_fetcher.fake_endpoint import FakeEndpoint

from tavern_core import CallContext, Tavern, ToolResult, __version__

HERE = Path(__file__).parent
OURS = (
    "my-plugin",
    "context-plugin",
    "optional-plugin",
    "call-guard",
    "file-operator",
    "bilibili-fetcher",
    "service-override",
    "text-nodes",
    "creation-assistant",
)
NEED_GRANTS = ("call-guard", "file-operator", "bilibili-fetcher", "creation-assistant")
WIDTH = 100
out = Console(width=WIDTH, highlight=False, soft_wrap=False)


def main(folder: Path) -> int:
    """Run the demo; 0 when everything came out as it should."""
    with FakeEndpoint() as endpoint:  # so that the demo needs no network
        config = {
            "plugins": {"roots": [], "load": list(OURS)},
            "settings": {"extensions.bilibili-fetcher.getSubtitle.endpoint": endpoint.url},
            # The endpoint is on this machine, where no scope of the plugin leads: without this line its script is refused there.
            "isolation": {"scripts": "tier"},
        }
        with Tavern.open(config, home=folder / "home") as tavern:
            title(f"tavern_core {__version__} opened a host and found these plugins")
            show_plugins(tavern)
            title("Without a grant, nothing is allowed")
            grant(tavern)
            title("A model writes; the host reads the tool calls in it")
            text = (HERE / "transcript.txt").read_text("utf-8")
            caller = CallContext(
                principal="agent:demo",
                permissions=frozenset(
                    {"read:fs", "write:fs", "read:web", "network"}
                ),  # the summary asks a language model
                workspace_dir=str(folder / "workspace"),
            )
            outcome = tavern.run_text_sync(text, context=caller)
            show_calls(outcome.results)
            title("What goes back to the model")
            out.print(Text(outcome.feedback), soft_wrap=True)
            show_diagnostics(tavern)
    title("What is left on the disk")
    show_files(folder)
    return 0 if [result.ok for result in outcome.results] == EXPECTED else 1


EXPECTED = [True, True, True, True, True, True, False, False, False, False]
"""Write, append, read, subtitles, their summary, greeting; then refused, damaged, unknown, switched off."""


def title(text: str) -> None:
    out.print()
    out.print(Text(f"── {text} ".ljust(WIDTH, "─"), style="bold"))


def show_plugins(tavern: Tavern) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("plugin", "version", "state", "asks for", "tools"):
        table.add_column(column, no_wrap=column != "tools")
    for name in OURS:
        status = tavern.plugins[name]
        tools = [tool.partition(":")[2] for tool in status.provides.get("tools", ())]
        table.add_row(name, status.version, status.state, "\n".join(sorted(status.requested)), ", ".join(tools))
    out.print(table)


def grant(tavern: Tavern) -> None:
    for name in NEED_GRANTS:
        asked = ", ".join(sorted(tavern.plugins[name].requested))
        tavern.grant(name, all_requested=True)
        out.print(Text(f"tavern plugins grant {name}".ljust(40) + asked))


def show_calls(results: Iterable[ToolResult]) -> None:
    for result in results:
        tool = result.meta.get("tool") or "(nothing was run)"
        if (error := result.error) is None:
            value = json.dumps(result.value, ensure_ascii=False)
            one_line(Text("✓ ", "green").append(f"{tool}  ", "bold").append(value, "not bold default"))
        else:
            one_line(Text("✗ ", "red").append(f"{tool}  ", "bold").append(error.kind, "red"))
            out.print(Text(f"    {error.message}"))
            if error.fix:
                out.print(Text(f"    fix: {error.fix}"))


def show_files(folder: Path) -> None:
    for path in sorted((folder / "workspace").rglob("*")):
        if path.is_file():
            one_line(Text(f"{path.relative_to(folder)}: {json.dumps(path.read_text('utf-8'), ensure_ascii=False)}"))
    log = folder / "home" / "audit" / "audit.jsonl"
    one_line(Text(f"{log.relative_to(folder)}: each call and its outcome, among {count(log)} records"))
    for written in log.read_text("utf-8").splitlines():
        record = json.loads(written)
        if record["type"] == "TOOL_RESULT":
            came_of = "ok" if record["ok"] else record["error"]["kind"]
            one_line(Text(f"  {record['seq']:>3}  {record['tool']:<34} {came_of}"))


def show_diagnostics(tavern: Tavern) -> None:
    for diagnostic in tavern.diagnostics:
        out.print(Text(f"{diagnostic.severity}: {diagnostic.message}"))


def count(log: Path) -> int:
    return len(log.read_text("utf-8").splitlines())


def one_line(text: Text) -> None:
    """A line, cut off where the screen ends."""
    out.print(text, no_wrap=True, overflow="ellipsis")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
