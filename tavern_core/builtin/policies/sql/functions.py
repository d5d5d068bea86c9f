"""The allowed functions: those known to compute or look something up, and those that the operator lists.

Another list has functions that write, wait, lock, read files, run programs, or run SQL from text: for places
where a name may be a column or a function, and for functions that only change the database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tavern_core.builtin.policies.sql.allowlists import CALLS, DIALECT_CALLS, is_known

_NAMES: Final = frozenset({
    # SQLite, its shell and the usual extensions
    "load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "fsdir", "lsdir", "zipfile", "eval", "sha3_query",
    "blobfromfile", "blobtofile", "xb_storexml",
    # PostgreSQL and its extensions
    "nextval", "setval", "set_config", "txid_current", "query_to_xml", "query_to_xmlschema", "query_to_xml_and_xmlschema",
    "cursor_to_xml", "cursor_to_xmlschema", "table_to_xml", "schema_to_xml", "database_to_xml", "ts_stat", "ts_rewrite",
    "crosstab", "crosstabn", "connectby", "gin_clean_pending_list", "lowrite", "loread", "currtid", "currtid2", "http",
    # MySQL
    "load_file", "sleep", "benchmark", "get_lock", "release_lock", "release_all_locks", "sys_exec", "sys_eval", "name_const",
    "master_pos_wait", "source_pos_wait", "wait_for_executed_gtid_set", "wait_until_sql_thread_after_gtids",
    # SQL Server
    "openrowset", "opendatasource", "openquery", "openxml", "next_value_for", "dm_os_file_exists", "dm_os_enumerate_filesystem",
    "fn_get_audit_file", "fn_dblog", "fn_dump_dblog", "fn_full_dblog",
    # Oracle
    "httpuritype", "dburitype", "xdburitype", "uritype", "xmltype", "bfilename",
    # DuckDB, Spark, BigQuery, ClickHouse, SAP
    "glob", "sniff_csv", "getenv", "query", "query_table", "write_log", "which_secret", "duckdb_secrets", "st_read", "st_read_meta",
    "json_execute_serialized_sql", "from_substrait", "from_substrait_json", "external_query", "reflect", "reflect2", "try_reflect",
    "java_method", "ai_query", "raw_query", "sleepeachrow", "catboostevaluate",
})  # fmt: skip
_FAMILIES: Final = re.compile(
    r"(pg_|lo_|dblink|xp_|sp_|dbms_|utl_|sys_|http_|postgres_|mysql_|brin_|system\$|sqlite_(attach|rename)|binary_upgrade_|pragma_"
    r"|fn_(trace|xe)_|fileio_|shell_|read_|keyring_|group_replication_|asynchronous_connection_|audit_(api|log)_|version_tokens_"
    r"|service_(get|release)_|lib_mysqludf|ps_(kill|setup|truncate)|(export|import)(shp|dbf|xls|dxf|geojson|kml|wfs|zip)"
    r"|parquet_\w*(scan|metadata|schema)|csv_scan|(sqlite|postgres|mysql|iceberg|delta|arrow|pandas|duckdb)_scan)"
)
_OUTSIDE: Final = re.compile(
    r"(file|url|s3|gcs|remote|executable|hdfs|jdbc|odbc|mysql|postgresql|cluster|sqlite|mongodb|redis|azureblobstorage|deltalake"
    r"|iceberg|hudi|paimon|input|arrowflight|ytsaurus|csv)(local|s3|azure|hdfs|secure|cluster|allreplicas)*\Z"
)
"""Table functions that read from elsewhere; as ordinary names they are common."""
_REMOTE_TABLES: Final = frozenset({"openrowset", "openquery", "opendatasource"})
WRITES_ONLY: Final = frozenset({"nextval", "setval", "last_insert_id", "next_value_for"})
"""They only change the database: allowed if writing is."""


ATTRIBUTES: Final = frozenset({"", "postgres", "redshift", "materialize", "risingwave"})
"""Dialects in which a field may be a function call: ``(x).f`` and ``t.f`` are ``f(x)``; empty: unknown."""
_SCHEMAS: Final = frozenset({"pg_catalog", "information_schema", "sys", "net", "ml", "safe"})
"""Schemas of the databases themselves; others are unknown."""
_SERVERS: Final = frozenset({"tsql", "fabric"})
"""Functions defined in SQL Server cannot change anything, because the server refuses that."""
_UNNAMED: Final = frozenset(
    {"Anonymous", "AnonymousAggFunc", "CombinedAggFunc", "CombinedParameterizedAgg", "ParameterizedAgg"}
)


def call_flaw(node: Any, dialect: str, writing: bool, listed: frozenset[str]) -> str:
    """Why the function of `node` may not be called; empty if it may.

    Args:
        writing: changing the database is allowed.
        listed: names that the operator allows, in lower case.
    """
    kind = type(node).__name__
    if kind not in _UNNAMED:
        if kind == "NextValueFor":
            return "" if writing else f"calls {node.sql_name()}, which does more than compute"
        if kind in CALLS or kind in DIALECT_CALLS.get(dialect, ()):
            return ""
        return f"calls {node.sql_name()[:60]}, which is not known to only compute"
    spelling = str(node.name or node.this).strip('"`[]')
    name, packages = spelling.lower(), _packages(node)
    if ".".join((*packages, name)) in listed:
        return ""
    in_from = _is_in_from(node)
    if does_more(name, in_from=in_from, writing=writing, arguments=len(node.expressions), dialect=dialect):
        return f"calls {spelling[:60]}, which does more than compute"
    if writing and name in WRITES_ONLY and not packages:
        return ""
    if dialect in _SERVERS and (packages or in_from):
        return ""
    is_quoted = type(node.this).__name__ == "Identifier" and node.this.args.get("quoted")
    if (
        not set(packages) <= _SCHEMAS
        or not is_known(name)
        or (is_quoted and dialect in ATTRIBUTES and spelling != name)
    ):
        return f"calls {'.'.join((*packages, spelling))[:90]}, which is not known to only compute"
    return ""


def attribute_flaw(node: Any, dialect: str, aliases: Mapping[str, frozenset[str]]) -> str:
    """Why `node`, a field or column, may be a function call; empty if it is not.

    Args:
        aliases: of functions in FROM, with the columns that they name: the alias itself is a value there, and its field may be a call.
    """
    if dialect not in ATTRIBUTES or (type(node).__name__ == "Dot" and type(node.expression).__name__ != "Identifier"):
        return ""
    if type(node).__name__ == "Dot":
        name = node.expression.name.lower()
        is_field = _is_of_columns(node.this) or name in _OUTPUTS
    else:
        name, table = node.name.lower(), node.table.lower()
        is_field = table not in aliases or name in aliases[table] | _OUTPUTS | {table}
        if not table:
            return ""
    if is_field and not does_more(name, in_from=False, writing=False):
        return ""
    return f"may call {name[:60]} as if it were a field; call a function with its arguments, or name the columns: AS x({name[:60]})"


_OUTPUTS: Final = frozenset({"key", "value", "ordinality"})
"""Columns of common PostgreSQL functions."""


def _is_of_columns(node: Any) -> bool:
    """True for a value that only comes from columns: ``(a).b``, ``(t.a[1]).b``."""
    return all(
        type(one).__name__ in ("Column", "Identifier", "Paren", "Dot", "Bracket", "Literal", "Star")
        for one in node.walk()
    )


def does_more(name: str, *, in_from: bool, writing: bool, arguments: int = 1, dialect: str = "") -> bool:
    """True if the function `name` is known to do more than compute.

    Args:
        in_from: it is in a place for tables.
        writing: changing the database is allowed.
        arguments: their number.
        dialect: the dialect of the function; empty: unknown.
    """
    name = name.lower()
    if writing and name in WRITES_ONLY:
        return False
    if name == "last_insert_id":
        return arguments > 0  # without an argument it reads, with one it sets
    if name in _NAMES or (in_from and _OUTSIDE.match(name) is not None) or (name == "file" and dialect == "clickhouse"):
        return True
    return _FAMILIES.match(name) is not None and not is_known(name)


def is_remote_table(name: str) -> bool:
    """True for a name that always means another server's table."""
    return name.lower() in _REMOTE_TABLES


def _packages(node: Any) -> list[str]:
    """The qualifiers of the function: packages, schemas; in lower case."""
    parent = node.parent
    if type(parent).__name__ == "Dot" and parent.expression is node:
        parts = list(parent.this.walk())
        is_named = all(type(part).__name__ in ("Identifier", "Column", "Dot") for part in parts)
        return [str(part.name).lower() for part in parts if type(part).__name__ == "Identifier"] if is_named else []
    if type(parent).__name__ == "Table" and parent.this is node:
        return [str(part).lower() for part in (parent.catalog, parent.db) if part]
    return []


def _is_in_from(node: Any) -> bool:
    parent = node.parent
    while type(parent).__name__ == "Dot":
        parent = parent.parent
    return type(parent).__name__ in ("Table", "From", "Join", "Lateral", "Insert")


# Tables ---------------------------------------------------------------------------------------------------------------
# The tables of a statement: files, tables of other servers, locked tables, created tables.

_FILE: Final = re.compile(
    r"\.(csv|tsv|txt|parquet|jsonl?|ndjson|geojson|xlsx?|db|sqlite3?|duckdb|avro|orc|arrow|feather|gpkg|shp|gz|zst|bz2|xz|zip)\Z",
    re.IGNORECASE,
)
_FORMATS: Final = frozenset({"csv", "json", "parquet", "orc", "text", "avro", "delta", "binaryfile", "iceberg", "hudi"})
"""Spark: ``FROM csv.`/data/x` `` names a folder, not a table of a schema."""
_SPARK: Final = ("spark", "spark2", "databricks", "hive")
_QUIET_HINTS: Final = frozenset({
    "NOLOCK", "READUNCOMMITTED", "READCOMMITTED", "READCOMMITTEDLOCK", "READPAST", "SNAPSHOT", "NOEXPAND", "FORCESEEK",
    "FORCESCAN", "INDEX", "NOWAIT", "ROWLOCK", "SPATIAL_WINDOW_MAX_CELLS",
})  # fmt: skip
_LOCKS: Final = frozenset(
    {"UPDLOCK", "XLOCK", "TABLOCK", "TABLOCKX", "PAGLOCK", "HOLDLOCK", "SERIALIZABLE", "REPEATABLEREAD"}
)
_MADE: Final = frozenset({"TABLE", "VIEW", "INDEX", "SCHEMA", "SEQUENCE", "TYPE"})
_ENGINES: Final = re.compile(
    r"(\w*MergeTree|Memory|Log|TinyLog|StripeLog|Null|Set|Join|Buffer|InnoDB|MyISAM|Aria|RocksDB|Heap|Archive|Blackhole)\Z",
    re.IGNORECASE,
)
_MODULES: Final = frozenset({"fts3", "fts4", "fts5", "fts5vocab", "rtree", "rtree_i32", "geopoly"})
_OUTSIDE_SETTING: Final = re.compile(r"\w*(connection|url|uris?|path|location|directory|server)\Z", re.IGNORECASE)


def table_flaw(table: Any, dialect: str) -> str:
    """Why `table` may not be named; empty if it may."""
    if "/" in table.name or "\\" in table.name or _FILE.search(table.name):
        return "reads a file as a table"
    if dialect in _SPARK and str(table.db).lower() in _FORMATS:
        return "reads a file as a table"
    if is_remote_table(table.name):
        return f"calls {table.name[:60]}, which does more than compute"
    if dialect in ("tsql", "fabric") and len(table.parts) > 3:
        return "names a table of another server"
    if _is_called(table) and does_more(table.name, in_from=True, writing=False):
        return f"calls {table.name[:60]}, which does more than compute"
    if table.name.lower().startswith("pragma_") and does_more(table.name, in_from=True, writing=False):
        return f"reads {table.name[:60]}, which does more than tell"
    return ""


def locks(node: Any, dialect: str) -> str:
    """The first of SQL Server's hints on a table that takes a lock or is unknown; empty if none does.

    Args:
        node: ``WITH (XLOCK)``, or the table of ``t (XLOCK, ROWLOCK)``, which is read as a function.
    """
    if type(node).__name__ == "Table":
        hints = getattr(node.this, "expressions", ()) if dialect in ("tsql", "fabric") else ()
        return next((name for one in hints if (name := str(one.name).upper()) in _LOCKS), "")
    names = [str(one.name or one.sql()).upper() for one in node.expressions]
    return next((name for name in names if name.partition("(")[0].strip() not in _QUIET_HINTS), "")


def made_flaw(create: Any) -> str:
    """Why the object of `create` may not be created; empty if it may."""
    kind = str(create.args.get("kind") or "").upper()
    if kind not in _MADE:
        return f"makes a {kind or 'thing'}; tables, views and indexes may be made"
    properties = create.args.get("properties")
    for one in properties.walk() if properties is not None else ():
        name = type(one).__name__
        if name in ("LocationProperty", "ExternalProperty"):
            return "makes a table that is stored elsewhere"
        if name == "Property" and _OUTSIDE_SETTING.match(str(one.name)):
            return f"makes a table that is stored elsewhere ({one.name})"
        if name == "EngineProperty" and not _ENGINES.match(str(one.this.name)):
            return f"makes a table of the engine {str(one.this.name)[:60]!r}"
        if name == "ModuleProperty" and str(one.name).lower() not in _MODULES:
            return f"makes a table of the module {str(one.name)[:60]!r}"
    return ""


def _is_called(table: Any) -> bool:
    """``FROM file('x')``, which is read as a table with a column of that name and no other name."""
    alias = table.args.get("alias")
    return alias is not None and alias.args.get("this") is None and bool(alias.args.get("columns"))
