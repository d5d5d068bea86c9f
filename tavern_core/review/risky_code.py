"""Which expressions and loops, where they run while a module is imported, might hang or end the process. Pure: it looks at syntax trees.

risk_of(node, names)  →  "calls os._exit", "has a loop without an end", "" for nothing to say
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

_ENDS: Final = frozenset(
    {"_exit", "abort", "kill", "killpg", "pthread_kill", "fork", "forkpty", "execv", "execve", "execvp", "execvpe", "execl", "execle",
     "execlp", "execlpe", "raise_signal", "interrupt_main", "_sigsegv", "string_at", "memset", "memmove", "CDLL", "PyDLL", "pause",
     "alarm", "setitimer", "setrlimit", "setrecursionlimit", "closerange", "CodeType"}
)  # fmt: skip
"""Names of functions that end, copy or break a process; to hold one is reason enough."""
_NATIVE: Final = frozenset({"ctypes", "_ctypes", "cffi", "_cffi_backend", "faulthandler", "_testcapi"})
"""Modules whose calls can crash a process."""
_TEXTS: Final = frozenset({"exec", "eval", "runpy.run_path", "runpy.run_module"})
"""What runs code that this module cannot read."""
_WAITS: Final = frozenset(
    {"sleep", "wait", "join", "acquire", "input", "recv", "accept", "communicate", "urlopen", "check_output", "check_call", "run_forever",
     "run_until_complete", "serve_forever", "select", "get", "result", "system", "popen", "getoutput", "getstatusoutput", "waitpid", "sigwait",
     "asyncio.run", "anyio.run", "trio.run", "subprocess.run", "subprocess.call", "sys.stdin.read", "sys.stdin.readline", "os.read",
     "requests.get", "requests.post", "httpx.get", "httpx.post", "create_connection"}
)  # fmt: skip
"""Functions that may wait for ever, by their last name or, where that says too little, by their whole one."""
_WITHOUT_LIMIT: Final = frozenset({"get", "result", "wait", "acquire"})
"""Methods that wait for ever when they are given no time."""
_EXHAUST: Final = frozenset(
    {"list", "tuple", "set", "frozenset", "sum", "max", "min", "sorted", "dict", "collections.deque"}
)
_ENDLESS: Final = frozenset({"itertools.count", "itertools.cycle", "itertools.repeat"})
_MANY: Final = 10**8
"""Rounds of a loop that take longer than an import should."""
_POWER: Final = 100_000


def risk_of(node: ast.AST, names: Mapping[str, str]) -> str:
    """What is dangerous about this node itself, or an empty text.

    Args:
        names: what the imports of the module call things: local name → whole name.
    """
    if isinstance(node, ast.While):
        return "has a loop without an end" if _is_endless(node) else ""
    if isinstance(node, ast.For | ast.AsyncFor):
        return "has a loop without an end" if _never_ends(node.iter, names) and not _has_way_out(node) else ""
    if isinstance(node, ast.comprehension):
        return "has a loop without an end" if _never_ends(node.iter, names) else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        power = _number(node.right)
        is_giant = power > _POWER if power is not None else isinstance(node.right, ast.BinOp)
        return "computes a giant number" if is_giant else ""
    if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
        name = node.attr if isinstance(node, ast.Attribute) else names.get(node.id, node.id).rpartition(".")[2]
        return f"calls {_shown(node)}" if name in _ENDS else ""
    return _call(node, names) if isinstance(node, ast.Call) else ""


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Local name → whole name, of everything that a module imports."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({item.asname: item.name for item in node.names if item.asname})
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.update({item.asname or item.name: f"{node.module}.{item.name}" for item in node.names})
        elif isinstance(node, ast.ImportFrom):
            names.update({item.asname: item.name for item in node.names if item.asname})
    return names


def last_name(function: ast.AST, names: Mapping[str, str]) -> str:
    """The last part of the name of what is called: ``b.c()`` is ``c``."""
    return _whole(function, names).rpartition(".")[2]


def _call(node: ast.Call, names: Mapping[str, str]) -> str:
    whole = _whole(node.func, names)
    name = whole.rpartition(".")[2]
    if isinstance(node.func, ast.Subscript) and any(_is_text(word, _ENDS) for word in ast.walk(node.func)):
        return f"calls {ast.unparse(node.func)[-60:]}"
    if whole.partition(".")[0] in _NATIVE or (name == "getattr" and any(_is_text(word, _ENDS) for word in node.args)):
        return f"calls {_shown(node.func)}"
    if whole in _TEXTS:
        return f"runs code out of {_shown(node.func)}"
    if (name in _WAITS and _may_wait(node, name)) or (whole in _WAITS and name not in _WAITS):
        return f"waits for {_shown(node.func)}"
    if (whole in _EXHAUST or name == "join") and any(_never_ends(argument, names) for argument in node.args):
        return "has a loop without an end"
    return ""


_LONG_S: Final = 5.0
"""Seconds of a pause that a start can bear."""


def _may_wait(call: ast.Call, name: str) -> bool:
    if name == "sleep":  # a short pause ends by itself
        pause = call.args[0] if call.args else None
        return isinstance(pause, ast.Constant) and isinstance(pause.value, int | float) and pause.value > _LONG_S
    if name == "join":  # of texts and paths it never waits
        return isinstance(call.func, ast.Attribute) and not call.args and not isinstance(call.func.value, ast.Constant)
    if name in _WITHOUT_LIMIT:
        is_unlimited = all(isinstance(value, ast.Constant) and value.value in (None, True) for value in _given(call))
        return isinstance(call.func, ast.Attribute) and is_unlimited
    return True


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(item.value for item in call.keywords)]


def _never_ends(series: ast.expr, names: Mapping[str, str]) -> bool:
    """Whether it is known that this can be gone through for ever, or nearly so."""
    if not isinstance(series, ast.Call):
        return isinstance(series, ast.GeneratorExp) and any(_never_ends(part.iter, names) for part in series.generators)
    whole = _whole(series.func, names)
    if whole == "iter":
        return len(series.args) == 2
    if whole == "range":
        return any((_number(argument) or 0) > _MANY for argument in series.args)
    if whole in ("zip", "enumerate", "map", "filter"):
        return all(_never_ends(argument, names) for argument in series.args[whole in ("map", "filter") :]) and bool(
            series.args
        )
    return whole in _ENDLESS and not (whole == "itertools.repeat" and len(_given(series)) > 1)


def _is_endless(loop: ast.While) -> bool:
    """A ``while`` whose end is not to be seen: no way out, and nothing in it changes what its condition asks for."""
    if _has_way_out(loop):
        return False
    if isinstance(loop.test, ast.Constant):
        return bool(loop.test.value)
    asked = {node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)}
    if any(
        isinstance(node, ast.NamedExpr) and not isinstance(node.value, ast.Constant) for node in ast.walk(loop.test)
    ):
        return False
    return not asked & {name for statement in loop.body for name in _changed(statement)}


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement binds, or whose methods, items or attributes it may change."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute | ast.Subscript):
            is_change = isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load)
            yield from (name.id for name in ast.walk(node) if is_change and isinstance(name, ast.Name))
        elif isinstance(node, ast.Call):
            yield from (name.id for value in _given(node) for name in ast.walk(value) if isinstance(name, ast.Name))


def _has_way_out(loop: ast.While | ast.For | ast.AsyncFor) -> bool:
    """A ``break`` of its own, ``return`` or ``raise``."""
    queue: list[tuple[ast.AST, bool]] = [(statement, True) for statement in loop.body]
    while queue:
        node, is_own = queue.pop()
        if isinstance(node, ast.Return | ast.Raise) or (isinstance(node, ast.Break) and is_own):
            return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.While | ast.For | ast.AsyncFor):
            queue += [(child, False) for child in node.body]
            queue += [(child, is_own) for child in node.orelse]
            continue
        queue += [(child, is_own) for child in ast.iter_child_nodes(node)]
    return False


def _number(node: ast.expr) -> int | None:
    """What a sum, product or power of whole numbers comes to; None where it is something else or giant."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None or max(abs(left), abs(right)) > 10**30:
        return None
    match node.op:
        case ast.Add():
            return left + right
        case ast.Mult():
            return left * right
        case ast.Pow() if 0 <= right <= 100:
            return int(left**right)
        case ast.LShift() if 0 <= right <= 100:
            return left << right
    return None


def _is_text(node: ast.AST, words: frozenset[str]) -> bool:
    return isinstance(node, ast.Constant) and node.value in words


def _shown(function: ast.expr) -> str:
    return _whole(function, {}).lstrip(".")[-60:]


def _whole(function: ast.AST, names: Mapping[str, str]) -> str:
    """The dotted name of an expression, as the modules call it that it was imported from; ``.x`` where it begins with something else."""
    parts: list[str] = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    parts.append(names.get(function.id, function.id) if isinstance(function, ast.Name) else "")
    return ".".join(reversed(parts))
