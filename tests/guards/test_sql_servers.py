"""The guard against real databases: what it lets through, a user who may do everything runs, and nothing is changed."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guards.conftest import Desk, refusal
from tests.guards.servers import CANARY, STARTED, Database
from tests.guards.sql_executed import HOSTILE, ORDINARY
from tests.guards.sql_refused import REFUSED
from tests.guards.test_sql import NEVER, READS, WRITES, schema

DIALECTS = tuple(STARTED)
MUTANTS = 1_500


@pytest.fixture(scope="module", params=DIALECTS)
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    # Not below pytest's own folder: nobody but its owner may enter that, and a server runs as another user than root.
    with tempfile.TemporaryDirectory(prefix="tavern-db-") as folder:
        running = STARTED[request.param](Path(folder))
        yield running
        running.end()


@pytest.fixture
def dialect(request: pytest.FixtureRequest, database: Database) -> str:
    return next(name for name, kind in STARTED.items() if type(database) is kind)


def lines(texts: str) -> list[str]:
    return [line.replace(r"\n", "\n") for line in texts.strip().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
def test_hostile_statements_are_refused_with_and_without_a_dialect(desk: Desk, dialect: str) -> None:
    named, unnamed = desk.tool(schema(dialect=dialect), "read:db"), desk.tool(schema(), "read:db")
    for text in lines(HOSTILE[dialect]):
        refusal(named({"q": text}))
        refusal(unnamed({"q": text}))


@pytest.mark.slow
def test_ordinary_questions_are_let_through_and_the_database_executes_them(
    desk: Desk, database: Database, dialect: str
) -> None:
    ask = desk.tool(schema(dialect=dialect), "read:db")
    before = database.state()
    for text in lines(ORDINARY[dialect]):
        result = ask({"q": text})
        assert result.ok, (text, result.error)
        assert database.run(text)[1] == "", text
    assert database.state() == before


def mutants(dialect: str) -> Iterator[str]:
    """Statements of all corpora, cut and joined at their words."""
    draw = random.Random(f"sql:{dialect}")
    good = lines(ORDINARY[dialect])
    bad = [*lines(HOSTILE[dialect]), *REFUSED[dialect], *NEVER[:-3], *WRITES]
    pieces = [re.findall(r"\w+|\s+|--|/\*|\*/|[^\w\s]", text) for text in [*good, *bad]]
    words = [word for piece in pieces for word in piece] + [
        "wipe()",
        ".wipe",
        "into",
        "outfile",
        "'",
        '"',
        "\\",
        "--",
        "#",
        "/*",
        "*/",
        ";",
        "(",
        ")",
        "::evil",
        "\n",
    ]
    for _ in range(MUTANTS):
        base = list(draw.choice(pieces[: len(good)] if draw.random() < 0.6 else pieces))
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(base) + 1)
            other = draw.choice(pieces)
            begin = draw.randrange(len(other) + 1)
            put = draw.choice(
                ([draw.choice(words)], other[begin : begin + draw.randint(1, 8)], [" ", draw.choice(words), " "])
            )
            base[at : at + draw.choice((0, 0, 1, 3))] = put
        yield "".join(base)


@pytest.mark.slow
def test_whatever_is_let_through_changes_nothing_and_reads_no_file(
    desk: Desk, database: Database, dialect: str
) -> None:
    ask = desk.tool(schema(dialect=dialect), "read:db")
    before = database.state()
    tried = 0
    texts = [*lines(HOSTILE[dialect]), *REFUSED[dialect], *READS, *WRITES, *NEVER, *mutants(dialect)]
    for text in texts:
        # A field of a row, or of what a column holds, may be a function that the application has defined for it: text alone cannot tell.
        if not ask({"q": text}).ok or re.search(r"[\w)\]\"]\s*\.\s*\"?wipe", text, re.IGNORECASE):
            continue
        tried += 1
        assert CANARY not in database.run(text)[0], text
        if tried % 25 == 0:
            assert database.state() == before, text
    assert database.state() == before
    assert tried > MUTANTS / 10


@pytest.mark.slow
def test_an_attack_that_is_not_refused_would_be_seen(database: Database, dialect: str) -> None:
    """The measure itself: without the guard these statements change the database, or show the file."""
    attacks = {
        "postgres": [
            "select ('x'::text).wipe",
            "SELECT ('canary'::text).pg_read_file",
            "select 1::evil",
            "select setval('s', 5)",
        ],
        "mysql": [
            "select wipe()",
            f"select 'x', 1 --1 into outfile '{database.folder}/out/made'",
            f"select load_file('{database.folder}/out/canary')",
        ],
        "sqlite": ["select wipe()", "select 1; insert into t values (9, 'x')"],
    }[dialect]
    for text in attacks:
        before = database.state()
        answer, error = database.run(text)
        assert CANARY in answer or database.state() != before, (text, error)


def test_functions_that_the_operator_lists_may_be_called(desk: Desk) -> None:
    listed = {"sql": {"functions": ["net_price", "App.Tax", "mood"]}}
    ask, other = (
        desk.tool(schema(dialect="postgres"), "read:db", **listed),
        desk.tool(schema(dialect="postgres"), "read:db"),
    )
    for text in (
        "select net_price(a) from t",
        "select app.tax(a) from t",
        "select 'x'::mood",
        "select NET_PRICE(a) from t",
    ):
        assert ask({"q": text}).ok, text
        error = other({"q": text}).error
        assert error is not None
        assert error.kind == "POLICY_DENIED"
    assert "sql: {functions:" in (other({"q": "select net_price(a) from t"}).error or error).fix
    for text in ("select tax(a) from t", "select other.net_price(a) from t", "select pg_sleep(1)"):
        refusal(ask({"q": text}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "helps"),
    [("select [a] from [t]", True), ("select a:b::int from t", True), ("select 1; select 2", False)],
)
def test_a_refusal_without_a_dialect_says_to_name_it_if_that_helps(desk: Desk, text: str, helps: bool) -> None:
    error = desk.tool(schema(), "read:db")({"q": text}).error
    assert error is not None
    assert ("name the dialect" in error.fix) is helps
