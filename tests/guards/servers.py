"""Real databases for a test: PostgreSQL and MariaDB of Debian, started on a socket in a temporary folder, and SQLite.

Each is spoken to through its own C library, which sends a text as it is: a command-line client would split it into statements first.
The user that asks may do everything; each database holds the same two tables, a function of its own that writes, and nothing else.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sqlite3
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_char_p, c_uint, c_ulong, c_void_p, create_string_buffer
from pathlib import Path
from typing import Any

import pytest

CANARY = "canary-5f1c"
"""The text of a file beside the database: no answer may show it."""
TABLES = [
    "create table t (a int, b varchar(20))",
    "create table u (a int, b varchar(20))",
    "insert into t values (1, 'x'), (2, 'y')",
    "insert into u values (1, 'z')",
]


def needed(*programs: str) -> list[str]:
    """Where these programs are."""
    folders = os.pathsep.join(
        [
            *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)),
            os.environ.get("PATH", ""),
            "/usr/sbin",
        ]
    )
    found = [shutil.which(program, path=folders) for program in programs]
    if None in found:
        missing = " and ".join(program for program, place in zip(programs, found, strict=True) if place is None)
        pytest.fail(
            f"{missing} not found; as root `make test` installs them, else: apt install postgresql mariadb-server"
        )
    return [path for path in found if path is not None]


def server_user(name: str) -> dict[str, Any]:
    """Servers do not run as root; root runs them as the user of their package."""
    return {} if os.getuid() else {"user": name, "group": name, "extra_groups": []}


def given_to(folder: Path, user: dict[str, Any]) -> Path:
    """A folder that belongs to the user of a server."""
    folder.mkdir(exist_ok=True)
    if user:
        shutil.chown(folder, user["user"], user["group"])
    return folder


def started(command: list[str], how: dict[str, Any], ready: str) -> subprocess.Popen[str]:
    """A server that has said that it is ready."""
    server = subprocess.Popen(command, **how | {"stderr": subprocess.PIPE}, text=True)
    assert server.stderr is not None
    said = []
    for line in server.stderr:
        said.append(line)
        if ready in line:
            return server
    raise AssertionError("".join(said))


def ended(server: subprocess.Popen[str], how: int) -> None:
    server.send_signal(how)
    server.communicate()


class Database(ABC):
    """One database: `run` sends a text and returns what comes back, `state` shows what would have changed."""

    folder: Path

    @abstractmethod
    def run(self, text: str) -> tuple[str, str]:
        """The answer as one text and the error; one of them is empty."""

    @abstractmethod
    def state(self) -> list[str]:
        """What is in it, and in the folder that it may write to."""

    @abstractmethod
    def end(self) -> None:
        """Stop it."""


class Sqlite(Database):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._base = sqlite3.connect(folder / "base.db", isolation_level=None, check_same_thread=False)
        self._base.executescript(";".join([*TABLES, "create table log (a)"]))
        self._base.create_function("wipe", -1, lambda *_: (folder / "wiped").write_text("x") and 1)
        (folder / "canary").write_text(CANARY)

    def run(self, text: str) -> tuple[str, str]:
        try:
            # The interface of Python takes one statement only; what is behind it shows that there were more.
            return repr(self._base.execute(text).fetchmany(200)), ""
        except (sqlite3.Error, sqlite3.Warning, UnicodeError, OverflowError) as error:
            if "one statement at a time" in str(error):
                with suppress(sqlite3.Error):
                    self._base.executescript(text)
            return "", f"{type(error).__name__}: {error}"

    def state(self) -> list[str]:
        return [
            *self._base.iterdump(),
            *sorted(p.name for p in self.folder.iterdir() if not p.name.startswith("base.db-")),
        ]

    def end(self) -> None:
        self._base.close()


class Postgres(Database):
    def __init__(self, folder: Path) -> None:
        initdb, server = needed("initdb", "postgres")
        user = server_user("postgres")
        self.folder = given_to(folder, user)
        how: dict[str, Any] = {**user, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        subprocess.run(
            [
                initdb,
                "-D",
                str(folder / "data"),
                "-A",
                "trust",
                "-U",
                "tester",
                "--no-sync",
                "-E",
                "UTF8",
                "--locale=C",
            ],
            **how,
            check=True,
        )
        options = [
            "-k",
            str(folder),
            "-c",
            "listen_addresses=",
            "-F",
            "-c",
            "statement_timeout=5s",
            "-c",
            "log_min_error_statement=panic",
            "-c",
            "log_min_messages=log",
        ]
        self._server = started([server, "-D", str(folder / "data"), *options], how, "ready to accept connections")
        self._pq = ctypes.CDLL("libpq.so.5")
        for name in ("PQconnectdb", "PQexec"):
            getattr(self._pq, name).restype = c_void_p
        for name in ("PQresultErrorMessage", "PQerrorMessage", "PQgetvalue"):
            getattr(self._pq, name).restype = c_char_p
        self._link = c_void_p(self._pq.PQconnectdb(f"host={folder} user=tester dbname=postgres".encode()))
        (folder / "data" / "canary").write_text(CANARY)
        wipe = "language plpgsql as $$ begin insert into log values (1); return 1; end $$"
        made = [
            "create table log (a int)",
            "create type evil as enum ('x')",
            "create sequence s",
            "select lo_create(7)",
            f"create function wipe() returns int {wipe}",
        ]
        made += [f"create function wipe({kind}) returns int {wipe}" for kind in ("text", "int", "int[]", "anyelement")]
        made += [
            f'create function "LOWER"(text) returns int {wipe}',
            f"create function cast_evil(int) returns evil {wipe.replace('return 1', chr(39).join(('return ', 'x', '')))}",
        ]
        made += [
            "create cast (int as evil) with function cast_evil(int)",
            f"create function join_evil(int, int) returns int {wipe}",
        ]
        made += [
            "create operator @@@# (leftarg = int, rightarg = int, procedure = join_evil)",
            "create function net_price(int) returns int language sql as 'select $1 * 2'",
        ]
        for text in [*TABLES, *made]:
            assert self.run(text)[1] == "", self.run(text)

    def run(self, text: str) -> tuple[str, str]:
        result = c_void_p(self._pq.PQexec(self._link, text.encode("utf-8", "replace").replace(b"\0", b"?")))
        said = (self._pq.PQresultErrorMessage(result) or b"").decode("utf-8", "replace")
        rows, columns = self._pq.PQntuples(result), self._pq.PQnfields(result)
        shown = "\n".join(
            (self._pq.PQgetvalue(result, r, c) or b"").decode("utf-8", "replace")
            for r in range(min(rows, 200))
            for c in range(columns)
        )
        self._pq.PQclear(result)
        if self._pq.PQtransactionStatus(self._link):  # whatever was begun is over
            self._pq.PQclear(c_void_p(self._pq.PQexec(self._link, b"rollback")))
        return ("", said) if said else (shown, "")

    def state(self) -> list[str]:
        texts = [
            "select * from t", "select * from u", "select * from log", "select last_value, is_called from s", "select count(*) from pg_largeobject_metadata",
            "select relname from pg_class where relnamespace = 'public'::regnamespace order by 1", "select rolname, rolsuper from pg_roles order by 1",
            "select proname from pg_proc where pronamespace = 'public'::regnamespace order by 1", "select count(*) from pg_locks where locktype = 'advisory'",
            "select count(*) from pg_class", "select name, setting from pg_settings where name not like '%transaction%' order by 1",
        ]  # fmt: skip
        found = [self.run(text) for text in texts]
        assert not any(error for _, error in found), found
        return [*(answer for answer, _ in found), *sorted(p.name for p in self.folder.iterdir())]

    def end(self) -> None:
        self._pq.PQfinish(self._link)
        ended(self._server, signal.SIGINT)


class MariaDb(Database):
    def __init__(self, folder: Path) -> None:
        install, server = needed("mariadb-install-db", "mariadbd")
        user = server_user("mysql")
        self.folder = given_to(folder, user)
        out = given_to(folder / "out", user)
        how: dict[str, Any] = {**user, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        places = ["--no-defaults", f"--datadir={folder}/data"]
        subprocess.run(
            [install, *places, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"],
            **how,
            check=True,
        )
        (folder / "out" / "canary").write_text(CANARY)
        (folder / "out" / "canary").chmod(0o644)
        options = [
            "--skip-networking",
            "--secure-file-priv=",
            "--max-statement-time=5",
            "--innodb-flush-method=nosync",
            "--innodb-buffer-pool-size=8M",
        ]
        self._server = started(
            [server, *places, f"--socket={folder}/s", f"--pid-file={folder}/pid", *options],
            how,
            "ready for connections",
        )
        self._out = out
        self._lib = ctypes.CDLL("libmariadb.so.3")
        for name in ("mysql_init", "mysql_real_connect", "mysql_store_result", "mysql_fetch_row"):
            getattr(self._lib, name).restype = c_void_p
        self._lib.mysql_error.restype = c_char_p
        self._lib.mysql_real_connect.argtypes = [
            c_void_p,
            c_char_p,
            c_char_p,
            c_char_p,
            c_char_p,
            c_uint,
            c_char_p,
            c_ulong,
        ]
        self._lib.mysql_real_query.argtypes = [c_void_p, c_char_p, c_ulong]
        self._link = c_void_p(self._lib.mysql_init(None))
        several = 65536 | 131072  # statements and results
        assert self._lib.mysql_real_connect(
            self._link, None, b"root", None, b"mysql", 0, f"{folder}/s".encode(), several
        ), self._lib.mysql_error(self._link)
        made = [
            "set global log_bin_trust_function_creators = 1",
            "create database app",
            "use app",
            *TABLES,
            "create table log (a int)",
            "create sequence s",
        ]
        made += ["create function wipe() returns int begin insert into log values (1); return 1; end"]
        for text in made:
            answer = self.run(text)
            assert answer[1] == "", answer

    def run(self, text: str) -> tuple[str, str]:
        raw = text.encode("utf-8", "replace")
        failed = self._lib.mysql_real_query(self._link, create_string_buffer(raw, len(raw) + 1), len(raw))
        shown, said = [], ""
        while True:
            if failed:
                said = (self._lib.mysql_error(self._link) or b"?").decode("utf-8", "replace") or "failed"
                break
            result = c_void_p(self._lib.mysql_store_result(self._link))
            if result:
                fields = self._lib.mysql_num_fields(result)
                while row := self._lib.mysql_fetch_row(result):
                    values = ctypes.cast(row, ctypes.POINTER(c_char_p))
                    shown += [(values[n] or b"").decode("utf-8", "replace") for n in range(fields)]
                self._lib.mysql_free_result(result)
            more = self._lib.mysql_next_result(self._link)
            if more < 0:
                break
            failed = more > 0
        return ("", said) if said else ("\n".join(shown[:400]), "")

    def state(self) -> list[str]:
        texts = [
            "select * from app.t", "select * from app.u", "select * from app.log", "select next_not_cached_value from app.s",
            "select table_schema, table_name from information_schema.tables order by 1, 2", "select name from mysql.proc order by 1", "select user, host from mysql.user",
            "select count(*) from information_schema.processlist", "select is_used_lock('a')", "select variable_name, variable_value from information_schema.global_variables"
            " where variable_name in ('GENERAL_LOG', 'SECURE_FILE_PRIV', 'SQL_MODE', 'EVENT_SCHEDULER') order by 1", "select @@session.sql_mode, @@session.autocommit",
        ]  # fmt: skip
        found = [self.run(text) for text in texts]
        assert not any(error for _, error in found), found
        return [
            *(answer for answer, _ in found),
            *sorted(p.name for p in self._out.iterdir()),
            *sorted(p.name for p in (self.folder / "data" / "app").iterdir()),
        ]

    def end(self) -> None:
        self._lib.mysql_close(self._link)
        ended(self._server, signal.SIGTERM)


STARTED: dict[str, Callable[[Path], Database]] = {"sqlite": Sqlite, "postgres": Postgres, "mysql": MariaDb}
