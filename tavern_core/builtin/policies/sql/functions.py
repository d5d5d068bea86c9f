"""Functions that do more than compute: they write, wait, lock, read files, run programs, or run SQL that is given as text.

Only those of the usual databases can be known here; functions that an application has defined itself are its own business.
"""

from __future__ import annotations

import re
from typing import Final

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
_HARMLESS: Final = re.compile(
    r"(pg_(get_\w+|\w+_size|size_\w+|typeof|is_\w+|\w+_is_visible|has_role|backend_pid|client_encoding|\w+_to_\w+|\w+_start_time"
    r"|collation_for|stat_get_\w+|stat_statements|my_temp_schema|is_other_temp_schema|current_wal_\w*lsn|wal_lsn_diff"
    r"|last_wal_\w+_lsn|last_xact_replay_timestamp|conf_load_time|\w*blocking_pids|describe_object|identify_object\w*|input_\w+"
    r"|timezone_\w+|available_extension\w*|index\w*_has_property|relation_filepath|filenode_relation|show_all_settings"
    r"|lock_status|cursor|prepared_\w+|trigger_depth|jit_available|xact_status|partition_\w+|listening_channels)"
    r"|sys_(context|guid|connect_by_path|extract_utc|typeid|op_\w+)"
    r"|system\$(typeof|estimate_\w+|clustering_\w+|pipe_status|last_change_commit_time|stream_has_data|explain_\w+)"
    r"|pragma_(table_\w+|index_\w+|foreign_key_list|foreign_key_check|function_list|module_list|collation_list|database_list"
    r"|pragma_list|compile_options|encoding|page_count|freelist_count|integrity_check|quick_check|data_version|version|show))\Z"
)
_OUTSIDE: Final = re.compile(
    r"(file|url|s3|gcs|remote|executable|hdfs|jdbc|odbc|mysql|postgresql|cluster|sqlite|mongodb|redis|azureblobstorage|deltalake"
    r"|iceberg|hudi|paimon|input|arrowflight|ytsaurus|csv)(local|s3|azure|hdfs|secure|cluster|allreplicas)*\Z"
)
"""Table functions that read elsewhere; as ordinary names they are common."""
_PACKAGES: Final = frozenset({"cron", "aws_s3", "aws_lambda", "aws_commons", "ctxsys", "ordsys", "system"})
"""Schemas and packages whose functions act; `system` is what Trino hands a statement through."""
_REMOTE_TABLES: Final = frozenset({"openrowset", "openquery", "opendatasource"})
WRITES_ONLY: Final = frozenset({"nextval", "setval", "last_insert_id", "next_value_for"})
"""Change the database and nothing beyond it: fine where writing is."""


def does_more(name: str, *, in_from: bool, writing: bool, arguments: int = 1, dialect: str = "") -> bool:
    """True when the function `name` is known to do more than compute.

    Args:
        in_from: it stands where a table may.
        writing: changing the database is fine.
        arguments: how many it is given.
        dialect: whose function it is; empty: unknown.
    """
    name = name.lower()
    if writing and name in WRITES_ONLY:
        return False
    if name == "last_insert_id":
        return arguments > 0  # without an argument it tells, with one it sets
    if name in _NAMES or (in_from and _OUTSIDE.match(name) is not None) or (name == "file" and dialect == "clickhouse"):
        return True
    return _FAMILIES.match(name) is not None and _HARMLESS.match(name) is None


def is_acting_package(name: str) -> bool:
    """True for a schema or package that holds functions which act."""
    name = name.lower()
    return name in _PACKAGES or (
        _FAMILIES.match(name) is not None and not name.startswith(("pg_", "sys_", "read_", "http_"))
    )


def is_remote_table(name: str) -> bool:
    """True for a name that is another server's table wherever it stands."""
    return name.lower() in _REMOTE_TABLES
