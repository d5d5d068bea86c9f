"""What npm brings is tested wherever it is installed (`make mcp-servers`), and always in CI."""

import os

from tests.mcp_server.conformance import FOLDER, is_installed

_IS_CI = os.environ.get("CI") == "true"
collect_ignore = [] if _IS_CI or is_installed() else ["test_mcp_conformance.py"]
if not _IS_CI and not (FOLDER / "node_modules" / ".bin" / "mcp-server-everything").exists():
    collect_ignore.append("test_mcp_npm_servers.py")
