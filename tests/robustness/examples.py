"""The files that get damaged: those of the example plugins and the template, and what a host itself writes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "example_plugins"
TEMPLATE = ROOT / "plugin_template"

PROFILE = """\
{
  "name": "writer",
  "displayName": "写作助手",
  "description": "Writes logs and greets people",
  "tool_ids_inventory": ["my-plugin:greet", "FileOperator.WriteFile", "system:get_current_time", "file-operator:*"],
  "capabilities": ["read:fs", "write:fs"],
  "prompt": "Tools:\\n{{{system:available_tools}}}"
}
"""
CONFIG = """\
# the project of these tests
language: en
plugins:
  roots: [plugins]
  entryPoints: false
  disable: []
  onFailure: {call-guard: open}
tools:
  allow: [optional-plugin:dangerous_tool, "group:mine"]
  deny: ["nobody:*"]
  groups:
    mine: [my-plugin:greet, bilibili-fetcher]
callers:
  user:guest: {allow: [my-plugin:greet], deny: []}
capabilities: {allow: ["read:*", "write:fs"], deny: [gpu]}
limits: {timeoutMs: 5000, depth: 4, outputBytes: 100000}
audit: {enabled: true, fsync: false}
tam: {}
profiles: [profiles]
settings:
  extensions.file-operator.maxBytes: 1000
  extensions.call-guard: {maskEmails: true}
secrets:
  key: {$env: HOME}
config:
  myFeature: {enabled: true}
"""
ANSWER = """\
{"content": [{"type": "text", "text": "字幕"}], "details": {"bvid": "BV1xx411c7mD", "lines": [{"from": 0.5, "to": 1.25}]},
 "error": {"message": "no subtitles", "code": "NONE", "retryable": true, "retryAfterMs": 1500, "details": {"page": 1}}}
"""
ANSWER_ERROR = """\
{"ok": false, "status": "error", "isError": true,
 "error": {"message": "no subtitles", "code": "NONE", "hint": "try page 2", "outcome": "done", "retryable": true, "retryAfterMs": 1500}}
"""
SECOND_DIALECT = """\
Some prose, then
<|[REQUEST_TOOL]|>
request_id:»»»r-1«««
command_1:»»»file-operator:WriteFile«««
file_path_1:»»»
  /logs/a.txt
«««
type_hint_content_1:»»»text«««
content_1:»»»
    one
      two
«««
on_error_1:»»»continue«««
retry_1:»»»2«««
command_2:»»»my-plugin:greet«««
common_name:>>>Ada<<<
comment:»»»说明«««
<|[END_TOOL]|>
<think><|[REQUEST_TOOL]|>command:「始」x「末」<|[END_TOOL]|></think>
<|[REQUEST_TOOL]|>
command：「始ESCAPE」my-plugin:greet「末ESCAPE」，
name:「始」「始」nested「末」末日「末」 // a note
<|[END_TOOL]|>
"""


@cache
def manifests() -> dict[str, bytes]:
    """Plugin → the content of its plugin.yaml."""
    return {path.parts[-3]: path.read_bytes() for path in sorted(PLUGINS.glob("*/*/plugin.yaml"))}


@cache
def tool_files() -> dict[str, bytes]:
    """Name → content of every tool file."""
    return {path.name: path.read_bytes() for path in sorted(PLUGINS.glob("**/*.tool.json"))}


@cache
def transcripts() -> dict[str, bytes]:
    """Texts with tool calls in both dialects."""
    return {"first": (PLUGINS / "demo" / "transcript.txt").read_bytes(), "second": SECOND_DIALECT.encode()}


@cache
def project_files() -> dict[str, bytes]:
    """The pyproject.toml of every example plugin."""
    return {path.parts[-2]: path.read_bytes() for path in sorted(PLUGINS.glob("*/pyproject.toml"))}


def package_of(plugin: str) -> Path:
    """The folder with the plugin.yaml of an example plugin."""
    return next((PLUGINS / plugin).glob("*/plugin.yaml")).parent
