"""The worked cases, whole and in pieces. One function touches the API."""

from __future__ import annotations

import pytest

from tavern_core import tam
from tests.rows import each_row
from tests.tam.cases import CASES, TOOLS, Case


def check(case: Case) -> None:
    document = tam.parse(case.text)
    plan = tam.bind(document, TOOLS)
    calls = [(call.index, call.tool, dict(call.arguments), call.block) for call in plan.calls]
    wanted = [call if len(call) == 4 else (*call, 1) for call in case.calls]
    problems = "\n".join(map(str, plan.problems))
    assert calls == wanted, problems
    assert sorted(p.code for p in plan.problems if p.severity == "error") == sorted(case.errors), problems
    assert sorted(p.code for p in plan.problems if p.severity == "warning") == sorted(case.warnings), problems


@each_row("case", CASES, ids=[case.says for case in CASES])
def test_case(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 20])
def test_every_case_is_the_same_in_pieces(size: int) -> None:
    for case in CASES:
        whole, pieces = tam.Scanner(), tam.Scanner()
        at_once = whole.feed(case.text) + whole.close()
        piecemeal = [
            event for at in range(0, len(case.text), size) for event in pieces.feed(case.text[at : at + size])
        ] + pieces.close()
        assert piecemeal == at_once, case.says
        assert pieces.document == whole.document == tam.parse(case.text), case.says


def test_there_are_enough_cases_and_no_two_say_the_same() -> None:
    assert len(CASES) > 200
    assert len({case.says for case in CASES}) == len(CASES)
