"""Whether the tests notice small mistakes in the code that decides: mutants drawn by a seed, and what becomes of each.

    make mutants                                     200 mutants of seed 1
    make mutants MUTANTS_FLAGS='--count 20 --seed 7'  others
    make mutants MUTANTS_FLAGS='--only 15,73'         some of them again

A mutant is one file with one change: a comparison turned round, a condition negated, a statement left out, a number one larger.
It runs in a copy of the checkout, against those tests that reach its function. Which do, a run of all tests with coverage says;
it is kept in `.mutants` and made anew when it is missing. A test that fails, or does not end, has caught the mutant. Those
that nothing catches are printed as a diff: a missing test, or a change without an effect.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.programs import Program

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".mutants"
DATA = PLACE / "coverage"
SECONDS = 200
"""How long the tests of one mutant may take: an endless loop is a mistake that was noticed."""
TARGETS = (
    "kernel/calls/pipeline.py", "kernel/calls/call_preview.py", "kernel/calls/approvals.py", "kernel/grants/*.py", "kernel/files/safe_paths.py", "schema/redact.py",
    "schema/secret*.py", "tam/fields.py", "flow/engine/scheduler.py", "kernel/access/approval_rules.py", "builtin/policies/sql/*.py",
)  # fmt: skip
FOLDERS = {
    "calls": "host guards",
    "grants": "state discovery",
    "files": "views",
    "schema": "schema",
    "tam": "tam",
    "engine": "engine",
    "access": "guards catalogue",
    "sql": "guards",
}
"""Tests of code that no test was seen to reach, because it runs in a process of its own: the folders of its area."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file; `function` is the outermost definition that holds it."""

    file: Path
    line: int
    function: str
    what: str
    text: str


def changed(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """What may stand in the place of `node`; None leaves a statement out."""
    made = copy.deepcopy(node)
    match made:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            made.ops = [SWAPS[type(op)]()]  # type: ignore[list-item]
            yield "comparison", made
        case ast.BoolOp(op=op):
            made.op = SWAPS[type(op)]()  # type: ignore[assignment]
            yield "and, or", made
        case ast.BinOp(op=ast.Add() | ast.Sub() as op):
            made.op = SWAPS[type(op)]()  # type: ignore[assignment]
            yield "plus, minus", made
        case ast.UnaryOp(op=ast.Not()):
            yield "without not", made.operand
        case ast.Constant(value=bool()):
            yield "truth value", ast.Constant(not made.value)
        case ast.Constant(value=int()):
            yield "number", ast.Constant(made.value + 1)  # type: ignore[operator]
        case ast.If() | ast.IfExp() | ast.While():
            made.test = ast.UnaryOp(ast.Not(), made.test)
            yield "condition", made
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            made.value = ast.Constant(None)
            yield "returns nothing", made
        case (
            ast.Raise()
            | ast.AugAssign()
            | ast.Expr(value=ast.Call() | ast.Await())
            | ast.Assign(targets=[ast.Subscript() | ast.Attribute()])
        ):
            yield "left out", ast.Pass()
        case ast.Break() | ast.Continue():
            yield "left out", ast.Pass()


def is_prose(node: ast.AST) -> bool:
    """Whether only messages depend on it: an f-string, a keyword `hint`, `fix` or `message`, a decorator, an annotation."""
    return isinstance(node, ast.JoinedStr | ast.arguments) or (
        isinstance(node, ast.keyword) and node.arg in ("hint", "fix", "message", "details")
    )


def mutants_of(file: Path) -> list[Mutant]:
    source = file.read_text("utf-8")
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []

    def walk(node: ast.AST, function: str) -> None:
        if is_prose(node):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}" if function else node.name
        if function and isinstance(node, ast.stmt | ast.expr):
            begin, end = (
                starts[node.lineno - 1] + node.col_offset,
                starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0),
            )
            for what, other in changed(node):
                indent = b" " * node.col_offset
                body = ast.unparse(ast.fix_missing_locations(other or ast.Pass()))
                new = ("\n" + indent.decode()).join(body.splitlines()) if isinstance(node, ast.stmt) else f"({body})"
                text = (source.encode()[:begin] + new.encode() + source.encode()[end:]).decode()
                try:
                    compile(text, str(file), "exec")
                except (SyntaxError, ValueError):
                    continue
                found.append(Mutant(file.relative_to(ROOT), node.lineno, function, what, text))
        for name, value in ast.iter_fields(node):
            if name in ("decorator_list", "annotation", "returns"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    walk(child, function)

    walk(ast.parse(source), "")
    return found


def drawn(count: int, seed: int) -> list[Mutant]:
    files = sorted({f for pattern in TARGETS for f in (ROOT / "tavern_core").glob(pattern)})
    every = [mutant for file in files for mutant in mutants_of(file)]
    return random.Random(seed).sample(every, min(count, len(every)))


# Running ----------------------------------------------------------------------------------------------------------------


def survey() -> None:
    """Run all tests once, and keep which test reaches which line."""
    PLACE.mkdir(exist_ok=True)
    settings = PLACE / "settings.ini"  # not coverage.*: those are data, which coverage removes
    settings.write_text(f"[run]\nsource = tavern_core\ndata_file = {DATA}\n", "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "worksteal",
        "--cov",
        f"--cov-config={settings}",
        "--cov-context=test",
        "--cov-report=",
    ]
    subprocess.run(command, cwd=ROOT, check=True)


class Reached:
    """Which tests reach a function."""

    def __init__(self) -> None:
        import coverage

        measured = coverage.Coverage(data_file=str(DATA))
        measured.load()
        self._data = measured.get_data()
        self._files = {Path(f): f for f in self._data.measured_files()}

    def tests(self, mutant: Mutant) -> list[str]:
        """Ids of tests, those of few others first: by how many lines of the function they reach."""
        file = next(
            (f for path, f in self._files.items() if path.parts[-len(mutant.file.parts) :] == mutant.file.parts), None
        )
        if file is None:
            return []
        source = (ROOT / mutant.file).read_text("utf-8")
        lines: set[int] = set()

        def walk(node: ast.AST, function: str) -> None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    name = f"{function}.{child.name}" if function else child.name
                    if mutant.function == name and not isinstance(child, ast.ClassDef):
                        lines.update(range(child.body[0].lineno, (child.end_lineno or 0) + 1))
                    walk(child, name)
                else:
                    walk(child, function)

        walk(ast.parse(source), "")
        reached: dict[str, int] = {}
        exact: set[str] = set()
        for line, contexts in self._data.contexts_by_lineno(file).items():
            for context in contexts if line in lines else ():
                if context:
                    test = context.partition("|")[0]
                    reached[test] = reached.get(test, 0) + 1
                    if line == mutant.line:
                        exact.add(test)
        return sorted(reached, key=lambda test: (test not in exact, -reached[test], test))


def verdict(mutant: Mutant, tests: list[str], copy_: Path) -> str:
    """``caught``, ``survived`` or ``no end``."""
    place = copy_ / mutant.file
    original = place.read_text("utf-8")
    place.write_text(mutant.text, "utf-8")
    folders = [
        f"tests/{name}" for part, names in FOLDERS.items() if part in mutant.file.parts for name in names.split()
    ]
    # Quick tests and those that reach the very line first; a test of a few seconds last.
    rounds = (
        [
            [*tests[:150], "-m", "not slow and not soak"],
            [*tests[:600], "-m", "not slow and not soak"],
            [*tests[:600], "-m", "slow"],
        ]
        if tests
        else []
    )
    rounds.append([*folders, "-m", "not slow and not soak"])
    try:
        for number, words in enumerate(rounds):
            listed = PLACE / f"{copy_.name}.txt"
            listed.write_text("\n".join(words), "utf-8")
            command = [
                str(copy_ / "python"),
                "-m",
                "pytest",
                "-x",
                "-q",
                "-n",
                "0",
                "-p",
                "no:cacheprovider",
                f"@{listed}",
            ]
            with Program(
                command, cwd=copy_, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
            ) as running:
                try:
                    running.communicate(timeout=SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(running.pid, signal.SIGKILL)
                    return "no end"
            if running.returncode not in (0, 5):  # 5: none of these tests was chosen
                return f"caught, round {number + 1}"
        return "survived"
    finally:
        place.write_text(original, "utf-8")


def copied(number: int) -> Path:
    """A copy of the checkout whose own package is imported."""
    place = PLACE / f"copy{number}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(
        ROOT,
        place,
        ignore=shutil.ignore_patterns(".venv", ".git", ".mutants", ".demo", ".bench", ".*_cache", ".hypothesis"),
        symlinks=True,
    )
    wrapper = place / "python"
    wrapper.write_text(
        f"#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH='{place}' exec '{sys.executable}' \"$@\"\n", "utf-8"
    )
    wrapper.chmod(0o755)
    return place


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="numbers of mutants, separated by commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if not DATA.exists():
        survey()
    reached = Reached()
    mutants = list(enumerate(drawn(options.count, options.seed)))
    if options.only:
        mutants = [pair for pair in mutants if str(pair[0]) in options.only.split(",")]
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(options.jobs):
        copies.put(copied(number))

    def judged(pair: tuple[int, Mutant]) -> tuple[int, Mutant, str]:
        number, mutant = pair
        place = copies.get()
        try:
            found = verdict(mutant, reached.tests(mutant), place)
        finally:
            copies.put(place)
        print(f"{number:3} {found:<16} {mutant.file}:{mutant.line} {mutant.function}: {mutant.what}", flush=True)
        return number, mutant, found

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(judged, mutants))
    left = [(number, mutant) for number, mutant, found in results if found == "survived"]
    for number, mutant in left:
        diff = subprocess.run(
            ["diff", "-u", str(ROOT / mutant.file), "-"], input=mutant.text, capture_output=True, text=True, check=False
        )
        print(f"\n{number}: {mutant.function}\n{diff.stdout}")
    caught = len(results) - len(left)
    print(
        f"{caught} of {len(results)} mutants of seed {options.seed} were caught ({caught / max(1, len(results)):.1%})."
    )
    return int(caught < 0.95 * len(results))


if __name__ == "__main__":
    sys.exit(main())
