"""`plugins check` remarks on permissions that nothing uses, as far as the source shows, and on no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tavern_core.review.plugin_check import check_plugin
from tests.rows import each_row

HEAD = "from tavern_core import hookimpl, tool\n\n\n"
TOOL = (
    HEAD
    + "@tool(capabilities=['read:fs'])\ndef count() -> int:\n    return 1\n\n\n@hookimpl\ndef tavern_register_tools(ctx):\n    return [count]\n"
)
GATE = TOOL + "\n\n@hookimpl\ndef tavern_check_call(call):\n    return None\n"
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    # permissions, code, what is remarked on ("": nothing)
    "a hook that is not implemented": ({"hooks": ["hook:server:tool:check"]}, TOOL, "no tavern_check_call is implemented"),
    "a hook that is": ({"hooks": ["hook:server:tool:check"]}, GATE, ""),
    "a capability of no tool": ({"capabilities": ["read:fs", "gpu"]}, TOOL, "requests 'gpu', but no tool says"),
    "a capability of a tool": ({"capabilities": ["read:fs"]}, TOOL, ""),
    "tools that are computed": ({"capabilities": ["gpu"]}, TOOL.replace("[count]", "make()"), ""),
    "a service that nobody names": ({"services": {"use": ["clock"]}}, TOOL, "use the service 'clock', but nothing names it"),
    "a service by name": ({"services": {"use": ["clock"]}}, GATE + "\n\ndef now(ctx):\n    return ctx.service('clock').now()\n", ""),
    "a service by another name": ({"services": {"use": ["clock"]}}, GATE + "\n\ndef now(ctx):\n    return ctx.service('block')\n", "'clock'"),
    "a service that nobody changes": ({"services": {"write": ["clock"]}}, TOOL, "write the service 'clock', but nothing names it"),
    "a service that is changed by name": ({"services": {"write": ["clock"]}}, GATE + "\n\ndef now(ctx):\n    return ctx.service('clock').now()\n", ""),
    "a service twice": ({"services": {"use": ["clock"], "write": ["clock"]}}, GATE + "\n\ndef now(ctx):\n    return ctx.service('clock')\n", "which it asks to write"),
    "a service that is computed": ({"services": {"use": ["clock"]}}, GATE + "\n\ndef now(ctx, name):\n    return ctx.service(name)\n", ""),
    "a service that is computed by keyword": ({"services": {"use": ["clock"]}}, GATE + "\n\ndef now(ctx, n):\n    return ctx.service(name=n)\n", ""),
    "a service by an alias of the method": ({"services": {"use": ["clock"]}}, GATE + "\n\ndef now(ctx):\n    get = ctx.service\n    return get('clock')\n", ""),
    "a service that is not replaced": ({"services": {"override": ["workflowManager"]}}, TOOL, "replace the service 'workflowManager'"),
    "a secret that nobody names": ({"capabilities": ["read:fs", "secrets:key"]}, TOOL, "nothing names that secret"),
    "a secret by name": ({"capabilities": ["read:fs", "secrets:key"]}, TOOL + "\n\ndef key(ctx):\n    return ctx.secret('key')\n", ""),
    "a secret that is computed": ({"capabilities": ["read:fs", "secrets:key"]}, TOOL + "\n\ndef key(ctx, n):\n    return ctx.secret(n)\n", ""),
    "tryfirst that no hook wants": ({"hooks": ["hook:server:tool:check"], "tryfirst": True}, GATE, "no hook wants to be first"),
    "tryfirst that one wants": ({"hooks": ["hook:server:tool:check"], "tryfirst": True}, GATE.replace("@hookimpl\ndef tavern_check", "@hookimpl(tryfirst=True)\ndef tavern_check"), ""),
    "a sensitive argument that is not taken": ({"hooks": ["hook:server:agent:before-prompt"], "data": ["data:conversation"]}, HEAD + "@hookimpl\ndef tavern_before_prompt(prompt):\n    return None\n", "no hook takes 'conversation'"),
    "a sensitive argument that is taken": ({"hooks": ["hook:server:agent:before-prompt"], "data": ["data:conversation"]}, HEAD + "@hookimpl\ndef tavern_before_prompt(prompt, conversation):\n    return None\n", ""),
    "a part of the console without a frontend": ({"ui": {"wrap": ["ui:BaseNode"]}}, TOOL, "has no browser part"),
    "source that cannot be read": ({"hooks": ["hook:server:tool:check"], "services": {"use": ["clock"]}}, "def (:\n", ""),
}  # fmt: skip


@each_row("what", CASES)
def test_what_nothing_uses_is_remarked_on(tmp_path: Path, what: str) -> None:
    permissions, code, expected = CASES[what]
    tools = [{"id": "count", "implementation": {"type": "python"}}] if "def count" in code else []
    manifest = {"name": "text", "version": "1", "tools": tools, "permissions": permissions}
    if "read:fs" in code:
        permissions = {**permissions, "capabilities": list({"read:fs", *permissions.get("capabilities", ())})}
        manifest["permissions"] = permissions
    (tmp_path / "plugin.yaml").write_text(json.dumps(manifest, indent=1))
    (tmp_path / "__init__.py").write_text(code)
    report = check_plugin(tmp_path)
    remarks = [f for f in report.findings if f.severity == "info" and ("asks" in f.message or "requests" in f.message)]
    assert [expected in f.message for f in remarks] == ([True] if expected else []), report.findings
    for finding in remarks:
        assert finding.where is not None
        assert finding.where.line > 1
        assert "delete the line" in finding.hint
