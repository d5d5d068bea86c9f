"""The allowed parts of a statement: kinds of nodes, and functions that only compute or look something up.

Everything else is refused: a node of a newer sqlglot, a function that a database or an application defines. The
operator may add functions (`sql.functions` of tavern.yaml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KINDS: Final = _words(
    """
    Add Adjacent Alias Aliases All Any AtIndex AtTimeZone Between BitString BitwiseAnd BitwiseLeftShift BitwiseNot BitwiseOr
    BitwiseRightShift BitwiseXor Boolean Bracket ByteString CTE CharacterSet Cluster Column ColumnDef Comprehension Connect Cube DPipe
    DataType DataTypeParam Describe Distance Distinct Distribute Div Dot EQ Escape Except Fetch Filter Final ForClause ForIn
    FormatJson FormatPhrase From FromTimeZone GT GTE Glob Group GroupingSets Having HavingMax HexString Hint HistoricalData ILike
    Identifier IgnoreNulls In IndexTableHint IntDiv Intersect Interval IntervalSpan Introducer Is JSON JSONColumnDef JSONExtractQuote
    JSONKeyValue JSONPath JSONPathFilter JSONPathKey JSONPathPart JSONPathRecursive JSONPathRoot JSONPathScript JSONPathSelector
    JSONPathSlice JSONPathSubscript JSONPathUnion JSONPathWildcard JSONSchema JSONValue Join JoinHint Kwarg LT LTE Lambda Lateral Like
    Limit LimitOptions Literal Match MatchRecognize MatchRecognizeMeasure Mod Mul NEQ National Neg NestedJSONSelect Not Null
    NullSafeEQ NullSafeNEQ ObjectIdentifier Offset OnCondition OpenJSONColumnDef Order Ordered OverflowTruncateBehavior Overlaps
    Parameter Paren Partition PartitionId PartitionRange Pivot PivotAlias PivotAny Placeholder PositionalColumn PreWhere Prior
    PropertyEQ Pseudocolumn Qualify QueryOption RawString RecursiveWithSearch RespectNulls Rollup Select SessionParameter SetOperation
    Show SimilarTo SkipJSONColumn Slice Sort Star Sub Subquery Table TableAlias TableColumn TableFromRows TableSample Tuple
    UnicodeString Union UnpivotColumns Values Var Version Where Window WindowSpec With WithFill WithTableHint WithinGroup
    XMLKeyValueOption XMLNamespace
    """
)
"""Nodes of sqlglot that read, except functions."""
CHANGING_KINDS: Final = _words(
    """
    AddConstraint AlterColumn AlterRename AutoIncrementColumnConstraint BinaryColumnConstraint CharacterSetColumnConstraint
    CharacterSetProperty Check CheckColumnConstraint Clone CollateColumnConstraint CollateProperty ColumnConstraint ColumnPosition
    CommentColumnConstraint ComputedColumnConstraint Constraint DefaultColumnConstraint DropPartition DropPrimaryKey EngineProperty
    ForeignKey GeneratedAsIdentityColumnConstraint GeneratedAsRowColumnConstraint Index IndexColumnConstraint IndexConstraintOption
    IndexParameters InheritsProperty InlineLengthColumnConstraint LikeProperty MaterializedProperty ModifyColumn ModuleProperty
    NotNullColumnConstraint OnConflict OnProperty OnUpdateColumnConstraint Opclass PrimaryKey PrimaryKeyColumnConstraint Properties
    Property Reference RenameColumn Returning Schema SchemaCommentProperty SequenceProperties TemporaryProperty TransientProperty
    UniqueColumnConstraint UnloggedProperty ViewAttributeProperty VirtualProperty When Whens WithDataProperty WithOperator
    ZeroFillColumnConstraint AutoIncrementProperty PartitionedByProperty PartitionByListProperty PartitionByRangeProperty
    PartitionBoundSpec PartitionedOfProperty OnCommitProperty SetProperty RowFormatProperty FileFormatProperty ClusteredByProperty
    UppercaseColumnConstraint
    """
)
"""Nodes inside statements that change rows or tables."""
CALLS: Final = _words(
    """
    Abs Acos Acosh AddMonths And AnyValue ApproxDistinct ApproxPercentileAccumulate ApproxPercentileCombine ApproxPercentileEstimate
    ApproxQuantile ApproxQuantiles ApproxTopK ApproxTopKAccumulate ApproxTopKCombine ApproxTopKEstimate ApproxTopSum
    ApproximateSimilarity ArgMax ArgMin Array ArrayAgg ArrayAll ArrayAny ArrayAppend ArrayCompact ArrayConcat ArrayConcatAgg
    ArrayConstructCompact ArrayContainedBy ArrayContains ArrayContainsAll ArrayDistinct ArrayExcept ArrayFilter ArrayFirst ArrayInsert
    ArrayIntersect ArrayLast ArrayMax ArrayMin ArrayOverlaps ArrayPosition ArrayPrepend ArrayRemove ArrayRemoveAt ArrayReverse
    ArraySize ArraySlice ArraySort ArraySum ArrayToString ArrayUnionAgg ArrayUniqueAgg ArraysZip Ascii Asin Asinh Atan Atan2 Atanh Avg
    Base64DecodeBinary Base64DecodeString Base64Encode BitLength BitmapBitPosition BitmapBucketNumber BitmapConstructAgg BitmapCount
    BitmapOrAgg BitwiseAndAgg BitwiseCount BitwiseOrAgg BitwiseXorAgg Booland Boolnot Boolor BoolxorAgg ByteLength Case Cast
    CastToStrType Cbrt Ceil CheckJson CheckXml Chr CityHash64 Coalesce CodePointsToBytes CodePointsToString Collate Concat ConcatWs
    ConnectByRoot Contains Convert ConvertTimezone ConvertToCharset Corr Cos Cosh CosineDistance Cot Coth Count CountIf CovarPop
    CovarSamp Csc Csch CumeDist CurrentAccount CurrentAccountName CurrentAvailableRoles CurrentCatalog CurrentClient CurrentDatabase
    CurrentDate CurrentDatetime CurrentIpAddress CurrentOrganizationName CurrentOrganizationUser CurrentRegion CurrentRole
    CurrentRoleType CurrentSchema CurrentSchemas CurrentSecondaryRoles CurrentSession CurrentTime CurrentTimestamp CurrentTimestampLTZ
    CurrentTimezone CurrentTransaction CurrentUser CurrentUserId CurrentVersion CurrentWarehouse Date DateAdd DateBin DateDiff
    DateFromParts DateFromUnixDate DateStrToDate DateSub DateToDateStr DateToDi DateTrunc Datetime DatetimeAdd DatetimeDiff
    DatetimeSub DatetimeTrunc Day DayOfMonth DayOfWeek DayOfWeekIso DayOfYear Dayname Decode DecodeCase DecompressBinary
    DecompressString Degrees DenseRank DiToDate DotProduct Elt Encode EndsWith EqualNull EuclideanDistance Exists Exp Explode
    ExplodingGenerateSeries Extract Factorial FarmFingerprint First FirstValue Flatten Float64 Floor Format FromBase FromBase32
    FromBase64 FromISO8601Date FromISO8601Timestamp FromISO8601TimestampNanos FromJson GenerateDateArray GenerateSeries
    GenerateTimestampArray Generator GetIgnoreCase Getbit Greatest GroupConcat Grouping GroupingId Hex HexDecodeString Hll Host Hour
    If Initcap Inline Int64 IsArray IsAscii IsInf IsNan IsNullValue JSONArray JSONArrayAgg JSONArrayAppend JSONArrayContains
    JSONArrayInsert JSONBContains JSONBContainsAllTopKeys JSONBContainsAnyTopKeys JSONBContainsTopKey JSONBDeleteAtPath JSONBExists
    JSONBExtract JSONBExtractScalar JSONBObjectAgg JSONBPathExists JSONBool JSONCast JSONExists JSONExtract JSONExtractArray
    JSONExtractScalar JSONFormat JSONKeys JSONKeysAtDepth JSONObject JSONObjectAgg JSONRemove JSONSet JSONStripNulls JSONTable
    JSONType JSONValueArray JarowinklerSimilarity JustifyDays JustifyHours JustifyInterval Kurtosis Lag Last LastDay LastValue LaxBool
    LaxFloat64 LaxInt64 LaxString Lead Least Left Length Levenshtein List Ln Localtime Localtimestamp Log LogicalAnd LogicalOr Lower
    LowerHex MD5 MD5Digest MD5NumberLower64 MD5NumberUpper64 MakeInterval ManhattanDistance Map MapCat MapContainsKey MapDelete
    MapFromEntries MapInsert MapKeys MapPick MapSize MatchAgainst Max Median Min Minhash MinhashCombine Minute Mode Month Monthname
    MonthsBetween Nanvl Negative NextDay Normal Normalize NthValue Ntile Nullif NumberToStr Nvl2 ObjectAgg ObjectId ObjectInsert
    OpenJSON Or Overlay Pad ParseBignumeric ParseDatetime ParseIp ParseJSON ParseNumeric ParseTime ParseUrl PercentRank PercentileCont
    PercentileDisc Pi Posexplode PosexplodeOuter Pow PreviousDay Quantile Quarter Radians Rand Randn Randstr RangeBucket RangeN Rank
    Reduce RegDomain RegexpCount RegexpExtract RegexpExtractAll RegexpFullMatch RegexpILike RegexpInstr RegexpLike RegexpReplace
    RegexpSplit RegexpSubstr RegrAvgx RegrAvgy RegrCount RegrIntercept RegrR2 RegrSlope RegrSxx RegrSxy RegrSyy RegrValx RegrValy
    Repeat Replace Reverse Right Rint Round RowNumber RtrimmedLength SHA SHA1Digest SHA2 SHA2Digest SafeAdd SafeConvertBytesToString
    SafeDivide SafeMultiply SafeNegate SafeSubtract Sec Sech Second Seq1 Seq2 Seq4 Seq8 SessionUser Sign Sin Sinh Skewness Soundex
    SoundexP123 Space Split SplitPart SplitToTable Sqrt StDistance StPoint Stack StandardHash StarMap StartsWith Stddev StddevPop
    StddevSamp StrPosition StrToDate StrToMap StrToTime StrToUnix String StringToArray StripNullValue Strtok StrtokSplitToTable
    StrtokToArray Struct StructExtract Stuff Substring SubstringIndex Sum Systimestamp Tan Tanh Time TimeAdd TimeDiff TimeFromParts
    TimeSlice TimeStrToDate TimeStrToTime TimeStrToUnix TimeSub TimeToStr TimeToTimeStr TimeToUnix TimeTrunc Timestamp TimestampAdd
    TimestampDiff TimestampFromParts TimestampLtzFromParts TimestampSub TimestampTrunc TimestampTzFromParts ToArray ToBase32 ToBase64
    ToBinary ToBoolean ToChar ToCodePoints ToDays ToDecfloat ToDouble ToMap ToNumber ToVariant Translate Trim Trunc Try
    TryBase64DecodeBinary TryBase64DecodeString TryCast TryHexDecodeBinary TryHexDecodeString TryToDecfloat TsOrDiToDi TsOrDsAdd
    TsOrDsDiff TsOrDsToDate TsOrDsToDateStr TsOrDsToDatetime TsOrDsToTime TsOrDsToTimestamp Typeof Unhex Unicode Uniform UnixDate
    UnixMicros UnixMillis UnixSeconds UnixToStr UnixToTime UnixToTimeStr Unnest Upper UtcDate UtcTime UtcTimestamp Uuid VarMap
    Variance VariancePop Week WeekOfYear WeekStart WeightString WidthBucket XMLElement Xor Year YearOfWeek YearOfWeekIso Zipf
    """
)
"""Functions that sqlglot itself knows, by the name of their node."""
DIALECT_CALLS: Final[Mapping[str, frozenset[str]]] = {
    "bigquery": frozenset({"NetFunc", "Predict", "Search", "SafeFunc"}),
    "clickhouse": frozenset({"CombinedAggFunc", "CombinedParameterizedAgg", "ParameterizedAgg"}),
    "duckdb": frozenset({"Columns", "Transform"}),
    "mysql": frozenset({"Compress", "Collation"}),
    "snowflake": frozenset({"Compress", "Columns", "Transform"}),
    "spark": frozenset({"Transform", "Shuffle"}),
    "databricks": frozenset({"Transform", "Shuffle"}),
    "trino": frozenset({"Transform", "Shuffle"}),
    "presto": frozenset({"Transform", "Shuffle"}),
}
"""Functions whose names an application may use for something else if they are not built in."""
NAMES: Final = _words(
    """
    abs acos ascii asin atan atan2 avg bit_length ceil ceiling char char_length character_length coalesce concat concat_ws cos cot
    count current_date current_time current_timestamp date datetime day degrees domain exp floor format greatest hex hour if ifnull
    instr isnull least left length ln log log10 log2 lower lpad ltrim max md5 min minute mod month now nullif numbers nvl octet_length
    pi position pow power radians rand random range repeat replace reverse right round rpad rtrim second sha1 sign sin soundex space
    sqrt substr substring sum table tan time timestamp total translate trim trunc truncate typeof upper user values_ year
    abbrev age akeys area array_agg array_append array_cat array_dims array_fill array_length array_lower array_ndims array_position
    array_positions array_prepend array_remove array_replace array_sample array_shuffle array_to_json array_to_string array_upper
    atan2d avals bit_count bool_and bool_or box broadcast btrim cardinality cbrt center chr clock_timestamp col_description
    convert_from convert_to corr cosine_distance covar_pop crypt cume_dist current_catalog current_database current_query
    current_schema current_schemas current_setting currval date_bin date_part date_trunc daterange decode dense_rank diagonal diameter
    difference digest dmetaphone each encode enum_first enum_last enum_range erf every extract factorial family first_value
    format_type gcd gen_random_uuid gen_salt generate_series generate_subscripts get_bit get_byte getdatabaseencoding grouping
    has_any_column_privilege has_column_privilege has_database_privilege has_function_privilege has_role has_schema_privilege
    has_sequence_privilege has_table_privilege height hmac host hostmask hstore in_range inet_client_addr inet_client_port inet_merge
    inet_same_family inet_server_addr inet_server_port initcap inner_product int4range int8range isclosed isempty isfinite isopen
    json_agg json_array_elements json_array_elements_text json_array_length json_build_array json_build_object json_each
    json_each_text json_exists json_extract_path json_extract_path_text json_object json_object_agg json_object_keys
    json_populate_record json_populate_recordset json_query json_scalar json_serialize json_strip_nulls json_to_record
    json_to_recordset json_typeof json_value jsonb_agg jsonb_array_elements jsonb_array_elements_text jsonb_array_length
    jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path jsonb_extract_path_text jsonb_insert
    jsonb_object jsonb_object_agg jsonb_object_keys jsonb_path_exists jsonb_path_match jsonb_path_query jsonb_path_query_array
    jsonb_path_query_first jsonb_populate_record jsonb_populate_recordset jsonb_pretty jsonb_set jsonb_set_lax jsonb_strip_nulls
    jsonb_to_record jsonb_to_recordset jsonb_to_tsvector jsonb_typeof justify_days justify_hours justify_interval l2_distance lag
    last_value lastval lcm lead levenshtein localtime localtimestamp log1p lower_inc lower_inf make_date make_interval make_time
    make_timestamp make_timestamptz masklen merge_action metaphone min_scale mode multirange netmask network normalize npoints
    nth_value ntile num_nonnulls num_nulls numnode numrange obj_description overlay parse_ident percent_rank percentile_cont
    percentile_disc phraseto_tsquery plainto_tsquery point polygon querytree quote_ident quote_literal quote_nullable radius range_agg
    range_merge rank regexp_count regexp_instr regexp_like regexp_match regexp_matches regexp_replace regexp_split_to_array
    regexp_split_to_table regexp_substr row row_number row_security_active row_to_json scale session_user set_bit set_byte set_masklen
    setseed setweight sha224 sha256 sha384 sha512 shobj_description show_trgm similarity skeys slope split_part statement_timestamp
    stddev stddev_pop stddev_samp strict_word_similarity string_agg string_to_array string_to_table strip strpos svals time_bucket
    timeofday timezone to_ascii to_char to_date to_hex to_json to_jsonb to_number to_regclass to_regnamespace to_regproc
    to_regprocedure to_regrole to_regtype to_timestamp to_tsquery to_tsvector transaction_timestamp trim_array trim_scale ts_debug
    ts_delete ts_filter ts_headline ts_lexize ts_parse ts_rank ts_rank_cd tsquery_phrase tsrange tstzrange tsvector_to_array unaccent
    unistr unnest upper_inc upper_inf uuid_generate_v1 uuid_generate_v4 uuidv4 uuidv7 var_pop var_samp variance vector_dims version
    websearch_to_tsquery width width_bucket word_similarity xml_is_well_formed xmlagg xmlconcat xmlelement xmlexists xmlforest xpath
    xpath_exists
    adddate addtime any_value bin bin_to_uuid charset coercibility collation compress connection_id conv convert_tz crc32 curdate
    curtime database date_add date_format date_sub dayname dayofmonth dayofweek dayofyear elt export_set field find_in_set
    format_bytes found_rows from_base64 from_days from_unixtime get_format group_concat icu_version inet6_aton inet6_ntoa inet_aton
    inet_ntoa insert interval is_free_lock is_ipv4 is_ipv6 is_used_lock is_uuid json_array json_array_append json_array_insert
    json_arrayagg json_compact json_contains json_contains_path json_depth json_detailed json_equals json_extract json_insert
    json_keys json_length json_loose json_merge json_merge_patch json_merge_preserve json_normalize json_objectagg json_overlaps
    json_pretty json_quote json_remove json_replace json_schema_valid json_search json_set json_storage_size json_table json_type
    json_unquote json_valid last_day last_insert_id lcase locate make_set makedate maketime match max_execution_time microsecond mid
    monthname natural_sort_key no_index_merge oct ord password period_add period_diff quarter quote regexp_instr row_count schema
    sec_to_time sformat sha sha2 st_astext std str_to_date strcmp subdate substring_index subtime sysdate system_user time_format
    time_to_sec timediff timestampadd timestampdiff to_base64 to_days to_seconds ucase uncompress uncompressed_length unhex
    unix_timestamp utc_date utc_time utc_timestamp uuid uuid_short uuid_to_bin validate_password_strength values var_pop week weekday
    weekofyear weight_string yearweek
    bm25 changes concat_ws glob group_concat highlight iif json json_each json_error_position json_group_array json_group_object
    json_patch json_tree jsonb julianday last_insert_rowid like likelihood likely match matchinfo median octet_length offsets
    percentile printf quote randomblob sha3 snippet sqlite_compileoption_get sqlite_compileoption_used sqlite_source_id sqlite_version
    strftime string_agg timediff total_changes unicode unistr_quote unixepoch unlikely uuid_blob uuid_str zeroblob
    app_name applock_test charindex checksum choose col_length col_name columns_updated databasepropertyex datalength dateadd datediff
    datefromparts datename datepart datetrunc db_id db_name difference eomonth error_message error_number exist getdate getutcdate
    has_perms_by_name hashbytes host_id host_name ident_current ident_incr ident_seed index_col indexproperty is_member is_rolemember
    is_srvrolemember isdate isjson isnumeric json_modify json_path_exists len nchar newid newsequentialid nodes object_definition
    object_id object_name object_schema_name objectproperty openjson original_login parse parsename patindex quotename replicate
    rowcount_big schema_id schema_name scope_identity serverproperty session_context sql_variant_property stats_date str string_escape
    string_split stuff suser_id suser_name suser_sname switchoffset sysdatetime sysdatetimeoffset sysutcdatetime todatetimeoffset
    trigger_nestlevel try_convert try_parse type_id type_name typeproperty user_id user_name value
    add_months arraydistinct arrayexists arrayfilter arrayjoin arraymap arraysort arraysum avgif cast_to_string
    collect_list collect_set columns countdistinct cutqueryparameter cutquerystring dateadd datediff dbtimezone dictget
    dictgetordefault domainwithoutwww dump element_at empty epoch epoch_ms explode extractvalue farm_fingerprint flatten
    formatdatetime formatreadablesize fromunixtimestamp generator get_json_object getvariable grouparray groupuniqarray iff initcap
    iscontiguous json_extract_scalar jsonextract jsonextractint jsonextractstring keep lag list list_aggregate list_contains
    list_filter list_sort list_transform listagg map months_between multiif named_struct new_time next_day nls_lower nls_upper
    notempty numtodsinterval numtoyminterval nvl2 object_construct ora_hash parse_json path quantile quantiles regexp_extract
    result_scan row_number rowidtochar sequence sessiontimezone size split stack standard_hash strptime struct struct_pack sum_map
    summerge sys_connect_by_path sys_context sys_extract_utc sys_guid sys_typeid system$typeof to_clob to_dsinterval to_nchar
    to_varchar to_variant to_yminterval tochar todate todatetime tofloat64 toint32 toint64 tostartofday tostartofhour tostartofmonth
    tostartofweek tostartofyear tostring tounixtimestamp toyear toyyyymm transform_keys try_to_date try_to_number tupleelement uniq
    uniqexact upper_utf8 userenv validate_utf8 vsize xmlcast xmlparse xmlroot xmlserialize zeroifnull
    """
)
"""Functions by the names under which databases know them: common ones, then those of PostgreSQL, MySQL, SQLite, SQL Server, and others."""

_LOOKS: Final = re.compile(
    r"(pg_(get_\w+|\w+_size|size_\w+|typeof|is_\w+|\w+_is_visible|has_role|backend_pid|client_encoding|char_to_encoding|encoding_to_char|\w+_start_time"
    r"|collation_for|stat_get_\w+|stat_statements|my_temp_schema|current_wal_\w*lsn|wal_lsn_diff|last_wal_\w+_lsn|last_xact_replay_timestamp|conf_load_time"
    r"|\w*blocking_pids|describe_object|identify_object\w*|input_\w+|timezone_\w+|available_extension\w*|index\w*_has_property|relation_filenode|options_to_table"
    r"|lock_status|cursor|prepared_\w+|trigger_depth|jit_available|xact_status|partition_\w+|listening_channels|column_compression|sequence_parameters)"
    r"|st_(as|geomfrom|geogfrom|make|is|num|x|y|z|m|srid|area|length|distance|dwithin|intersect|contain|within|overlap|touch|cross|equal|buffer|centroid|envelope"
    r"|union|collect|transform|setsrid|point|polygon|line|simplify|start|end|perimeter|azimuth|dump|extent|geometr|boundary|convexhull|covers|coveredby|disjoint"
    r"|force|snap|translate|rotate|scale|closest|shortest|summary|valid|hausdorff|frechet|subdivide|voronoi|tile|bounding|expand|difference|symdifference|relate)\w*"
    r"|system\$(typeof|estimate_\w+|clustering_\w+|pipe_status|last_change_commit_time|stream_has_data|explain_\w+)"
    r"|pragma_(table_\w+|index_\w+|foreign_key_list|foreign_key_check|function_list|module_list|collation_list|database_list"
    r"|pragma_list|compile_options|encoding|page_count|freelist_count|integrity_check|quick_check|data_version|version|show))\Z"
)
"""Families of functions that look something up, and those of PostGIS that compute."""
TYPES: Final = _words(
    """
    citext geography geometry halfvec hstore inet ltree macaddr macaddr8 name oid pg_lsn point polygon regclass regconfig regnamespace regoper regoperator
    regproc regprocedure regrole regtype sparsevec tid tsquery tsvector txid_snapshot vector xid xid8 box circle line lseg path cid cidr bit sysname hierarchyid sql_variant
    """
)
"""Types of databases and common extensions; a cast to any other may run code of the application."""


def is_known(name: str) -> bool:
    """True for the name of a function that only computes or looks something up."""
    return name in NAMES or _LOOKS.match(name) is not None
