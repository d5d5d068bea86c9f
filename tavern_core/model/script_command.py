"""The words of a script's command before its file: a known interpreter, and those of its options that load no other code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

RUNNERS: Final = ("python", "python3", "node", "bun", "deno")
"""Programs a script tool may be run by; anything else must be a file of the plugin (SECURITY §5)."""
_FLAGS: Final = {
    "python": r"-[uBOEsSIPq]+|-OO|-[WX][\w:.,=-]+",
    "node": r"--(no-warnings|enable-source-maps|experimental-strip-types|experimental-transform-types|trace-warnings|trace-uncaught"
    r"|no-deprecation|max-old-space-size=\d+|stack-size=\d+)",
    "bun": r"--(bun|smol|no-install|silent)",
    "deno": r"-A|-q|--quiet|--no-(prompt|check|remote|npm|config|lock)|--cached-only|--(allow|deny)-[a-z-]+(=.+)?"
    r"|--unstable(-[a-z-]+)?",
}
"""Options of a runner that are allowed before the file; each changes how the file runs, none loads other code."""


@cache
def _flags(runner: str) -> re.Pattern[str]:
    return re.compile(_FLAGS[runner])


def words_before_file(argv: Sequence[str]) -> tuple[int, str, str]:
    """(number of words of a command before its file, problem with them, its repair); without a problem, empty texts.

    Args:
        argv: at least one word.
    """
    if argv[0] not in RUNNERS:
        return 0, "", ""
    runner = "python" if argv[0] == "python3" else argv[0]
    count = 1
    if runner in ("bun", "deno") and list(argv[1:2]) == ["run"]:
        count = 2
    elif runner == "deno":
        return count, "deno needs `run` before the file", '"command": "deno run scripts/tool.ts"'
    for word in argv[count:]:
        if not word.startswith("-"):
            return count, "", ""
        if _flags(runner).fullmatch(word) is None:
            hint = "put the code into a file of the plugin and name that file; words after the file are the script's arguments"
            return count, f"option {word!r:.120} of {runner} is not allowed", hint
        count += 1
    return count, f"{argv[0]} is given no file to run", f'"command": "{argv[0]} scripts/tool.py"'
