"""SQL in arguments: one statement that only reads, unless writing is granted."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.guards.conftest import Desk, refusal
from tests.rows import each_row


def schema(**options: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"q": {"type": "string", "x-tavern": {"guard": "sql", **options}}}}


READS = [
    "select 1",
    "SELECT * FROM t WHERE a = 'x;y' -- ; drop table t",
    "select * from t;",
    "select * from t /* ; drop table t */ where 1 = 1",
    "with recent as (select * from t order by d desc limit 5) select count(*) from recent",
    "with recursive c(n) as (select 1 union all select n + 1 from c where n < 9) select n from c",
    "(select 1) union all (select 2)",
    "values (1), (2)",
    'select "update", \'delete\' from "drop"',
    "select replace(a, 'x', 'y'), count(*) over (partition by b) from t",
    "select a from t where b in (select b from u where exists (select 1 from v))",
    "select case when a > 1 then 'insert' else 'x' end from t",
    "explain select * from t",
    "explain query plan select * from t",
    "explain analyze select 1",
    "select upper(a) || lower(b), coalesce(c, 0), date('now') from t",
    "select pg_size_pretty(pg_total_relation_size('t'))",
    "select '中文；' as x",
    "select " + "1 + " * 1000 + "1",
]
WRITES = [
    "insert into t values (1)",
    "insert into t select * from u",
    "update t set a = 1",
    "delete from t",
    "merge into t using u on t.a = u.a when matched then delete",
    "create table t (a int)",
    "create table t as select * from u",
    "create view v as select 1",
    "create trigger x after insert on t begin delete from u; end",
    "select * into t from u",
    "with gone as (delete from t returning *) select * from gone",
    "with x as (insert into t values (1) returning a) select a from x",
    "select * from (delete from t returning *) x",
    "select * from t for update",
    "explain analyze delete from t",
    "drop table t",
    "truncate table t",
    "alter table t add column b int",
    "replace into t values (1)",
]
NEVER = [
    "select 1; select 2",
    "select 1; drop table t",
    "select 1;; drop table t",
    "; drop table t",
    "select '\\'; drop table t; -- '",
    "select $$; drop table t; --$$",
    "select 'a''; drop table t; --",
    "select 1 /*! ; drop table t */",
    "select /*!50000 sleep(5) */ 1",
    "select /*M!100000 sleep(5) */ 1",
    "select 1 # ; \n ; drop table t",
    "pragma journal_mode = wal",
    "pragma table_info(t)",
    "attach database '/etc/x' as y",
    "detach database y",
    "vacuum into '/tmp/x'",
    "copy t to '/tmp/x'",
    "copy t to program 'id'",
    "copy (select 1) to program 'id'",
    "select 1 into outfile '/tmp/x'",
    "select 1 into dumpfile '/tmp/x'",
    "load data infile '/etc/passwd' into table t",
    "call f()",
    "exec xp_cmdshell 'id'",
    "execute immediate 'drop table t'",
    "do $$ begin delete from t; end $$",
    "begin",
    "commit",
    "set role admin",
    "set global general_log = 1",
    "grant all on t to u",
    "revoke all on t from u",
    "use other",
    "kill 1",
    "lock table t",
    "listen x",
    "prepare x as select 1",
    "handler t open",
    "reset all",
    "select load_extension('x')",
    "select readfile('/etc/passwd')",
    "select writefile('/tmp/x', 'y')",
    "select load_file('/etc/passwd')",
    "select pg_read_file('/etc/passwd')",
    "select pg_catalog.pg_read_file('/etc/passwd')",
    "select \"pg_read_file\"('/etc/passwd')",
    "select PG_SLEEP(100)",
    "select sleep(100)",
    "select benchmark(1000000000, md5('x'))",
    "select pg_terminate_backend(1)",
    "select lo_import('/etc/passwd')",
    "select * from dblink('host=x', 'select 1') as t(a int)",
    "select set_config('role', 'admin', false)",
    "select query_to_xml('delete from t', true, true, '')",
    "select * from openrowset('x', 'y', 'z')",
    "select a from t where b = (select pg_advisory_lock(1))",
    "select * from t order by sleep(1)",
    "select utl_http.request('http://x')",
    "select dbms_pipe.receive_message('x', 10) from dual",
    "select * from read_csv('/etc/passwd')",
    "select * from '/etc/passwd'",
    "select * from url('http://x', csv)",
    "select * from file('/etc/passwd')",
    "select * from fsdir('/')",
    "select * from crosstab('delete from t')",
    "select eval('drop table t')",
    "select reflect('java.lang.Runtime', 'exec', 'id')",
    "select * from external_query('c', 'drop table t')",
    'select U&"\\0070g_sleep"(10)',
    "select u&\"pg\\005fread_file\"('/etc/passwd')",
    "select @a := 1",
    "select system$abort_session(1)",
    "select brin_summarize_new_values('x')",
    "not sql at all",
    "select from where",
    "select * from t where a = 'open",
    "select (((",
    "",
    " ",
    "--",
    "/* */",
    "select 1\0; drop table t",
    "(" * 5000 + "select 1" + ")" * 5000,
    "select '" + "x" * 30_000 + "'",
]


@each_row("text", READS, ids=range(len(READS)))
def test_one_statement_that_only_reads_is_let_through(desk: Desk, text: str) -> None:
    result = desk.tool(schema(), "read:db")({"q": text})
    assert result.ok, result.error


@each_row("text", [*WRITES, *NEVER])
def test_anything_else_is_refused_and_the_tool_does_not_run(desk: Desk, text: str) -> None:
    assert "argument /q: the SQL" in refusal(desk.tool(schema(), "read:db")({"q": text}))
    assert not desk.ran


@each_row("text", [*READS, *WRITES[:8], "select * into t from u", "select nextval('s')"])
def test_with_write_db_one_statement_may_change_rows_and_add_tables(desk: Desk, text: str) -> None:
    result = desk.tool(schema(), "read:db", "write:db")({"q": text})
    assert result.ok, result.error


@pytest.mark.parametrize(
    ("permissions", "fix"),
    [(("read:db",), "send one statement that only reads"), (("read:db", "write:db"), "send one plain statement")],
)
def test_the_fix_of_a_refused_statement_fits_what_the_caller_may_do(
    desk: Desk, permissions: tuple[str, ...], fix: str
) -> None:
    error = desk.tool(schema(dialect="postgres"), *permissions)({"q": "select 1; select 2"}).error
    assert error is not None
    assert error.fix == fix


@each_row("text", ["select a" + "[1]" * 201 + " from t", "select " + "a[1], " * 200 + "array[1]"])
def test_a_statement_with_more_brackets_than_the_parser_reads_quickly_is_refused_unread(desk: Desk, text: str) -> None:
    assert "more than 200 opening brackets" in refusal(desk.tool(schema(dialect="postgres"), "read:db")({"q": text}))
    assert desk.tool(schema(dialect="postgres"), "read:db")({"q": text.replace("[1]", "", 1)}).ok


def test_taking_a_lock_counts_as_writing(desk: Desk) -> None:
    assert desk.tool(schema(dialect="postgres"), "read:db", "write:db")({"q": "select * from t for update"}).ok
    assert "FOR UPDATE" in refusal(
        desk.tool(schema(dialect="postgres"), "read:db")({"q": "select * from t for update"})
    )


@each_row("text", NEVER)
def test_with_write_db_nothing_beyond_the_rows_is_let_through(desk: Desk, text: str) -> None:
    refusal(desk.tool(schema(), "read:db", "write:db")({"q": text}))


@pytest.mark.parametrize("text", ["drop table t", "truncate table t", "alter table t drop column a"])
def test_destroying_needs_the_right_or_an_approval(desk: Desk, text: str) -> None:
    asked = desk.tool(schema(), "read:db", "write:db")({"q": text})
    assert asked.error is not None
    assert asked.error.kind == "APPROVAL_REQUIRED"
    assert desk.tool(schema(), "read:db", "write:db", "danger:destructive")({"q": text}).ok


def test_the_caller_must_have_write_db_too(desk: Desk) -> None:
    call = desk.tool(schema(), "read:db", scopes={"write:db": ["main"]})
    assert call({"q": "delete from t where a = 1"}, permissions={"read:db", "write:db"}).ok
    assert "needs write:db" in refusal(call({"q": "delete from t where a = 1"}, permissions={"read:db"}))


def test_a_parameter_for_reading_stays_one_whatever_is_granted(desk: Desk) -> None:
    call = desk.tool(schema(mode="read"), "read:db", "write:db")
    assert "for reading only" in refusal(call({"q": "delete from t"}))


@each_row(
    ("dialect", "text", "fine"),
    [
        ("mysql", "show tables", True),
        ("mysql", "select 'a\\'; drop table t; -- '", True),
        ("sqlite", "select 'a\\'; drop table t; -- '", False),
        ("postgres", "select $$; drop table t$$", True),
        ("sqlite", "select $$; drop table t$$", False),
        ("postgres", "table t", True),
        ("duckdb", "select * from 'file.csv'", False),
        ("no-such-dialect", "select 1", False),
    ],
)
def test_a_mark_may_name_the_dialect(desk: Desk, dialect: str, text: str, fine: bool) -> None:
    assert desk.tool(schema(dialect=dialect), "read:db")({"q": text}).ok is fine


def test_without_the_parser_every_statement_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    result = desk.tool(schema(), "read:db")({"q": "select 1"})
    assert "sqlglot is not installed" in refusal(result)
    assert result.error is not None
    assert result.error.fix == "pip install 'tavern-core[sql]'"


@pytest.mark.slow
def test_sqlite_itself_agrees_that_what_is_let_through_only_reads(desk: Desk) -> None:
    """The database is asked: a connection whose authorizer allows reading only runs everything that was let through."""
    import sqlite3

    base = sqlite3.connect(":memory:", check_same_thread=False)
    base.executescript(
        'create table t (a, b, c, d); create table u (a, b); create table v (a); create table "drop" ("update")'
    )
    allowed = {sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
    base.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY)
    call = desk.tool(schema(dialect="sqlite"), "read:db")
    for text in [*READS, *WRITES, *NEVER]:
        if call({"q": text}).ok:
            said = ""
            try:
                base.execute(text)
            except sqlite3.DatabaseError as error:
                said = str(error)
            assert "not authorized" not in said, text
