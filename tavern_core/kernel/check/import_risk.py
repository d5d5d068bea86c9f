"""Does a plugin's source look as if importing it might hang or end the process? Read as text, nothing is run.

What a module does at its top level, and what its own functions do that are called there, is searched for loops without an end,
for calls that end or copy a process, and for calls that wait. What is found is no verdict: it is a reason to try the import in a
process of its own first. A plugin of functions, classes and constants, as nearly all are, gives none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MOST_FILES: Final = 300
LARGEST_FILE: Final = 1_000_000
_ENDS: Final = frozenset(
    {"_exit", "abort", "kill", "killpg", "fork", "forkpty", "execv", "execve", "execvp", "execl", "execlp", "raise_signal", "_sigsegv",
     "string_at", "memset", "memmove", "CDLL", "PyDLL", "pause", "alarm", "setrlimit"}
)  # fmt: skip
"""Names of functions that end, copy or break a process."""
_WAITS: Final = frozenset(
    {"sleep", "wait", "join", "acquire", "input", "recv", "accept", "communicate", "urlopen", "check_output", "check_call", "run_forever",
     "run_until_complete", "select", "get", "result"}
)  # fmt: skip
"""Names of functions that may wait for ever; `get` and `result` count as methods without arguments only."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def import_risk(folder: Path) -> str:
    """Why importing the plugin in `folder` may hang or end the process, with its place; empty when nothing suggests it."""
    for file in _sources(folder):
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            continue  # it raises when it is imported, which costs nobody but the plugin
        for line, what in _risks(tree):
            return f"{file.name}:{line} {what} while it is imported"
    return ""


def _sources(folder: Path) -> Iterator[Path]:
    count = 0
    for file in sorted(folder.rglob("*.py")):
        if "tests" in file.relative_to(folder).parts or not file.is_file() or file.stat().st_size > LARGEST_FILE:
            continue
        count += 1
        if count > MOST_FILES:
            return
        yield file


def _risks(tree: ast.Module) -> Iterator[tuple[int, str]]:
    own = {node.name: node for node in ast.walk(tree) if isinstance(node, _Function)}
    queue: list[ast.AST] = [*tree.body]
    called: set[str] = set()
    while queue:
        node = queue.pop(0)
        if isinstance(node, _Function | ast.Lambda):
            queue.extend(getattr(node, "decorator_list", ()))
            continue  # its body runs when it is called
        if isinstance(node, ast.If) and _is_main(node.test):
            queue.extend(node.orelse)
            continue
        if isinstance(node, ast.While) and _is_endless(node):
            yield node.lineno, "has a loop without an end"
        if isinstance(node, ast.Call):
            name = _name(node.func)
            if name in _ENDS:
                yield node.lineno, f"calls {ast.unparse(node.func)[:60]}"
            elif name in _WAITS and _may_wait(node, name):
                yield node.lineno, f"waits for {ast.unparse(node.func)[:60]}"
            elif isinstance(node.func, ast.Name) and name in own and name not in called:
                called.add(name)
                queue.extend(own[name].body)
        queue.extend(ast.iter_child_nodes(node))


def _may_wait(call: ast.Call, name: str) -> bool:
    if name == "join":  # of texts and paths it never waits
        return isinstance(call.func, ast.Attribute) and not call.args and not isinstance(call.func.value, ast.Constant)
    if name in ("get", "result", "wait", "acquire"):
        return isinstance(call.func, ast.Attribute) and not call.args and not call.keywords
    return True


def _is_endless(loop: ast.While) -> bool:
    """``while True`` without a way out of its own."""
    if not (isinstance(loop.test, ast.Constant) and loop.test.value):
        return False
    return not any(isinstance(node, ast.Break | ast.Return | ast.Raise) for node in ast.walk(loop))


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
