"""The tables of a statement: files, tables of other servers, locked tables, created tables."""

from __future__ import annotations

import re
from typing import Any, Final

from tavern_core.builtin.policies.sql.functions import does_more, is_remote_table

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
        given = getattr(node.this, "expressions", ()) if dialect in ("tsql", "fabric") else ()
        return next((name for one in given if (name := str(one.name).upper()) in _LOCKS), "")
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
