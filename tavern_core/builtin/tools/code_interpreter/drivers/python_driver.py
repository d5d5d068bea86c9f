"""``python -I python_driver.py main.py value.json``: run a file as a notebook runs a cell."""

from __future__ import annotations

import ast
import json
import sys
import traceback
import types


def main(file: str, answer: str) -> int:
    """Run `file`; the value of a last line that is an expression goes to `answer`, as JSON or as its repr. Returns the exit code."""
    with open(file, encoding="utf-8", errors="surrogatepass") as opened:  # noqa: PTH123 - imports are kept to a minimum
        code = opened.read()
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__dict__["__file__"] = file
    sys.argv = [file]
    sys.path.insert(0, file.rpartition("/")[0])
    try:
        tree = ast.parse(code, file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, file, "exec"), module.__dict__)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), module.__dict__)
            if value is not None:
                keep(value, answer)
    except Exception as error:  # noqa: BLE001 - any error of the code is printed as Python prints it
        error.__traceback__ = theirs(error.__traceback__, file)
        traceback.print_exception(error)
        return 1
    return 0


def theirs(found: types.TracebackType | None, file: str) -> types.TracebackType | None:
    """A traceback without the frames of this driver."""
    while found is not None and found.tb_frame.f_code.co_filename != file:
        found = found.tb_next
    return found


def keep(value: object, answer: str) -> None:
    """Write a value for the host."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        try:
            text = json.dumps(repr(value))
        except Exception:  # noqa: BLE001 - any error of its class, or too deep to write
            text = json.dumps(f"<{type(value).__name__}>")
    with open(answer, "w", encoding="utf-8") as opened:  # noqa: PTH123
        opened.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
