"""Functions that do more than compute: they write, wait, lock, read files, run programs, or run SQL that is given as text.

Only those of the usual databases can be known here; functions that an application has defined itself are its own business.
"""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = frozenset({
    "load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "nextval", "setval", "set_config",
    "txid_current", "query_to_xml", "query_to_xmlschema", "query_to_xml_and_xmlschema", "cursor_to_xml",
    "cursor_to_xmlschema", "table_to_xml", "schema_to_xml", "database_to_xml", "ts_stat", "load_file", "sleep",
    "benchmark", "get_lock", "release_lock", "release_all_locks", "sys_exec", "sys_eval", "name_const",
    "master_pos_wait", "source_pos_wait", "wait_for_executed_gtid_set", "last_insert_id", "openrowset",
    "opendatasource", "openquery", "openxml", "read_csv", "read_csv_auto", "read_parquet", "parquet_scan",
    "read_json", "read_json_auto", "read_ndjson", "read_text", "read_blob", "csv_scan", "glob", "sniff_csv", "getenv",
    "httpuritype", "xmltype", "bfilename", "fsdir", "eval", "crosstab", "crosstabn", "connectby", "gin_clean_pending_list",
    "sqlite_scan", "iceberg_scan", "delta_scan", "external_query", "reflect", "reflect2", "java_method", "next_value_for",
})  # fmt: skip
_FAMILIES: Final = re.compile(r"(pg_|lo_|dblink|xp_|sp_|fn_|dbms_|utl_|sys_|http_|postgres_|mysql_|brin_|system\$|sqlite_attach)")
_HARMLESS: Final = re.compile(
    r"pg_(get_\w+|\w+_size|size_\w+|typeof|is_\w+|\w+_is_visible|has_role|backend_pid|client_encoding|\w+_to_\w+|\w+_start_time|collation_for)\Z"
)
_IN_FROM: Final = frozenset({"file", "url", "s3", "remote", "executable", "hdfs", "jdbc", "odbc", "mysql", "postgresql", "cluster"})
"""Table functions that read elsewhere; as ordinary names they are common."""
WRITES_ONLY: Final = frozenset({"nextval", "setval", "last_insert_id", "next_value_for"})
"""Change the database and nothing beyond it: fine where writing is."""


def does_more(name: str, *, in_from: bool, writing: bool) -> bool:
    """True when the function `name` is known to do more than compute."""
    name = name.lower()
    if writing and name in WRITES_ONLY:
        return False
    if name in _NAMES or (in_from and name in _IN_FROM):
        return True
    return _FAMILIES.match(name) is not None and _HARMLESS.match(name) is None
