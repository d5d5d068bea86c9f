"""Statements by dialect: what only asks is let through, what does more is not."""

from __future__ import annotations

import logging

import pytest

from tests.guards.conftest import Desk, refusal
from tests.guards.sql_allowed import ALLOWED, COMMON
from tests.guards.sql_refused import REFUSED
from tests.guards.test_sql import schema
from tests.rows import each_row

UNKNOWN_HERE = {
    "mysql": ("intersect", "except"),
    "tsql": ("intersect", "except"),
    "oracle": ("intersect", "except"),
    "spark": ("intersect", "except"),
    "bigquery": ("intersect", "except", "union", "it''s"),
    "clickhouse": ("intersect", "except", "union"),
}
"""Words by which a common question is not one of that dialect."""
CHANGES = {
    "postgres": ["insert into t values (1) on conflict do nothing", "create temp table x (a int) with (fillfactor = 70)", "create index i on t (a)"],
    "mysql": ["insert into t set a = 1", "update a, b set a.x = b.y", "insert into t values (1) on duplicate key update a = 2"],
    "sqlite": ["insert or replace into t values (1)", "create virtual table x using fts5(a)"],
    "tsql": ["insert into t output inserted.a values (1)", "delete top (5) from t", "select next value for s", "update t with (tablockx) set a = 1", "create table #x (a int)"],
    "oracle": ["select seq.nextval from dual"],
    "clickhouse": ["create table x (a int) engine = ReplacingMergeTree(v) order by a", "insert into t values (1)"],
    "snowflake": ["create table x clone y"],
}  # fmt: skip
REPLACES = {
    "postgres": ["create or replace view v as select 1"],
    "snowflake": ["create or replace table t as select 1"],
    "spark": ["insert overwrite table t select 1"],
    "mysql": ["create or replace table t (a int)"],
}
BEYOND_ROWS = {
    "postgres": [
        "create function f() returns int language plpython3u as $$import os$$", "create extension plpython3u", "create role x", "create database x",
        "create trigger x after insert on t execute function f()", "insert into t select 1 returning pg_sleep(1)", "alter role x superuser",
        "update t set a = pg_read_file('x')", "delete from t using dblink('x', 'y') d", "alter system set x = 1",
    ],
    "mysql": ["create function f returns string soname 'x.so'", "create procedure p() delete from t", "create table x (a int) connection = 'mysql://x'", "create user x"],
    "sqlite": ["create virtual table x using csv", "create trigger x after insert on t begin delete from u; end"],
    "tsql": [
        "insert into t values (1) shutdown", "update t set a = 1 from t shutdown", "delete from t shutdown", "insert into openrowset('x', 'y', 'z') select 1",
        "insert into linked.db.dbo.t select 1", "create login x with password = 'y'",
    ],
    "clickhouse": [
        "create table x (a int) engine = URL('http://x', CSV)", "create table x engine = S3('http://x') as select 1", "insert into function file('x') select 1",
        "insert into table function remote('x', 'y') select 1", "create dictionary d (a int) primary key a source(http(url 'x'))",
    ],
    "spark": ["create table x using csv location '/etc'", "create table x using csv options (path '/etc')", "insert overwrite directory '/x' select 1", "create function f as 'java.class'"],
    "snowflake": ["create stage s url = 's3://x'", "create external function f() returns int as 'x'"],
    "bigquery": ["create external table x options(uris = ['gs://x'])"],
    "oracle": ["insert into t@link values (1)", "create database link l using 'z'"],
    "duckdb": ["create macro m(a) as a + 1", "insert into t select * from read_text('x')", "create table x as from 'x.csv'"],
}  # fmt: skip


@pytest.mark.parametrize("dialect", ["", *ALLOWED])
def test_ordinary_questions_are_let_through(desk: Desk, dialect: str) -> None:
    ask = desk.tool(schema(dialect=dialect) if dialect else schema(), "read:db")
    common = [text for text in COMMON if not any(word in text for word in UNKNOWN_HERE.get(dialect, ()))]
    results = {text: ask({"q": text}) for text in [*common, *ALLOWED.get(dialect, ())]}
    assert {text: result.error for text, result in results.items() if not result.ok} == {}


@pytest.mark.parametrize("dialect", REFUSED)
def test_what_does_more_than_ask_is_refused(desk: Desk, dialect: str) -> None:
    ask = desk.tool(schema(dialect=dialect), "read:db")
    assert [text for text in REFUSED[dialect] if ask({"q": text}).ok] == []
    assert not desk.ran
    for text in REFUSED[dialect][:10]:
        assert "argument /q: the SQL" in refusal(ask({"q": text}))


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["sqlite", "postgres", "mysql", "tsql"])
def test_without_a_dialect_what_does_more_in_a_usual_one_is_refused(desk: Desk, dialect: str) -> None:
    ask = desk.tool(schema(), "read:db")
    for text in REFUSED[dialect]:
        refusal(ask({"q": text}))
        assert not desk.ran, text


@pytest.mark.parametrize("dialect", CHANGES)
def test_rows_and_tables_may_be_changed_with_write_db_alone(desk: Desk, dialect: str) -> None:
    ask, may = desk.tool(schema(dialect=dialect), "read:db"), desk.tool(schema(dialect=dialect), "read:db", "write:db")
    assert [text for text in CHANGES[dialect] if ask({"q": text}).ok or not may({"q": text}).ok] == []


@each_row("dialect", REPLACES)
def test_replacing_what_is_there_destroys_it(desk: Desk, dialect: str) -> None:
    for text in REPLACES[dialect]:
        error = desk.tool(schema(dialect=dialect), "read:db", "write:db")({"q": text}).error
        assert error is not None
        assert error.kind == "APPROVAL_REQUIRED", text


@pytest.mark.parametrize("dialect", BEYOND_ROWS)
def test_write_db_reaches_no_further_than_rows_and_tables(desk: Desk, dialect: str) -> None:
    ask = desk.tool(schema(dialect=dialect), "read:db", "write:db", "danger:destructive")
    assert [text for text in BEYOND_ROWS[dialect] if ask({"q": text}).ok] == []


@pytest.mark.parametrize("dialect", ["postgres", "tsql", "mysql"])
@pytest.mark.parametrize(
    "text",
    [
        "create user x identified by 'PLANTED'",
        "create login x with password = 'PLANTED'",
        "select 'PLANTED' 'x' 'PLANTED'",
        "select from 'PLANTED",
        "update or fail 'PLANTED'",
    ],
)
def test_a_statement_never_appears_in_logs(
    desk: Desk, dialect: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        result = desk.tool(schema(dialect=dialect), "read:db")({"q": text})
    assert "PLANTED" not in repr(result)
    assert "\x1b" not in repr(result)
    assert "PLANTED" not in caplog.text
