"""Hostile and ordinary statements for databases that really run: what is refused must be, and what is let through must work.

The tables are ``t (a int, b text)`` and ``u (a int, b text)``; ``wipe`` is a function of the application that writes, whatever it is given.
"""

from __future__ import annotations

from typing import Final

HOSTILE: Final[dict[str, str]] = {
    "postgres": r"""
SELECT ('/etc/passwd'::text).pg_read_file
SELECT (cast('/etc/passwd' as text)).pg_read_file
SELECT ('/etc/passwd'::text)."pg_read_file"
SELECT (a).pg_read_file FROM (SELECT '/etc/passwd'::text a) s
SELECT s.a.pg_read_file FROM (SELECT '/etc/passwd'::text a) s
SELECT (s.a).pg_read_file FROM (SELECT '/etc/passwd'::text a) s
SELECT f.pg_read_file FROM unnest(array['/etc/passwd']) AS f
SELECT f.wipe FROM unnest(array['/etc/passwd']) AS f
SELECT f.wipe FROM lower('x') AS f(a)
SELECT f.wipe FROM generate_series(1,2) f
SELECT ((1)).pg_sleep
SELECT (1).pg_sleep
SELECT (row(1)).pg_sleep
SELECT (select 'x').wipe
SELECT ('x'::text).wipe
SELECT (upper('x')).wipe
SELECT (array['x'])[1].wipe
SELECT ((array['x'])[1]).wipe
select wipe()
select public.wipe()
select public.lower('x')
select "LOWER"('x')
select * from wipe()
select * from public.wipe() w
select 1 from t where wipe()
select count(*) filter (where wipe()) from t
select wipe(a) over () from t
select 'x'::evil
select cast('x' as public.evil)
select evil 'x'
select a operator(public.@@) b from t
select a @@@ b from t
select * from xmltable('/a' passing query_to_xml('x',true,true,'') columns a text)
select * from rows from (wipe())
select array(select wipe())
select exists(select wipe())
values (wipe())
table t; drop table t
select 1 into temp x
select lo_get(1)
select currval('s'), setval('s', 1)
explain analyze select wipe()
explain (analyze) values (nextval('s'))
create table x as select wipe()
select * from dblink('x','y') as t(a int)
select t.nextval from t
select pg_catalog.pg_ls_dir('.')
select (pg_stat_file('x')).size
select (pg_ls_dir('.')).x
select xmlparse(document wipe())
select * from json_table('{}', '$' columns (a text path '$' default wipe() on empty))
select now() at time zone wipe()
select a from t order by a using wipe
select count(*) from t group by wipe()
select current_setting('x', wipe())
merge into t using u on true when matched then do nothing
with x as (select 1) update t set a=1
select case when wipe() then 1 end
select interval wipe()
select extract(year from wipe())
select a between wipe() and 1 from t
select a in (wipe()) from t
select * from t limit wipe()
select * from t fetch first (wipe()) rows only
select * from t for update skip locked
select * from (values (wipe())) v
select * from lateral wipe() x
select * from t join lateral wipe() x on true
select sum(a) over (order by wipe()) from t
select sum(a) over w from t window w as (partition by wipe())
select grouping(wipe()) from t
select array[wipe()]
select (array[1])[wipe()]
select row(wipe())
select cast(wipe() as int)
select trim(wipe())
select substring(wipe() from 1)
select overlay(wipe() placing 'a' from 1)
select position(wipe() in 'a')
select coalesce(wipe(),1)
select E'\'||wipe()||E'\'
select U&'\0061' uescape '!'
select 'a' 'b'; drop table t
select $x$ $x$; drop table t
prepare x as select 1
execute x
declare x cursor with hold for select 1
lock table t
""",
    "mysql": r"""
SELECT 'x', 1 --1 INTO OUTFILE '/x'
select 1--(select sleep(1))
select a from t procedure analyse()
select 1 into outfile '/x'
select 1 into dumpfile '/x'
select 1 into @x
select load_file('/x')
select nextval(s)
select next value for s
select previous value for s
select setval(s,1)
select app.wipe()
select wipe()
select `wipe`()
select sys_exec('x')
select /*!sleep(1)*/ 1
select /*M!sleep(1)*/ 1
select /* /* */ sleep(1) */ 1
select @x:=1
select @@global.x:=1
do sleep(1)
handler t open
execute immediate 'x'
analyze select 1
analyze format=json delete from t
table t into outfile '/x'
values row(1) into outfile '/x'
select * from t into outfile '/x'
(select 1) into outfile '/x'
select 1 union select 2 into outfile '/x'
select get_lock('a',1)
select benchmark(1,1)
select uuid(), sleep(1)
select last_insert_id(4)
select 1 limit 1 procedure analyse(1)
select * from t for update
select * from t lock in share mode
select name_const('a',1)
select master_gtid_wait('x')
select extractvalue(1,concat(0x7e,wipe()))
select json_value('x',wipe())
select 'a\'; drop table t; -- '; drop table t
select 1;delete from t
start transaction
xa recover
select * from t partition (wipe())
select convert(wipe() using utf8)
select spider_direct_sql('x','y','z')
select 1 /*! into outfile '/x' */
""",
    "sqlite": r"""
select wipe()
select load_extension('x')
select optimize(f) from f
select 1 /* /* */ ; drop table t -- */
pragma x
select * from pragma_user_version(1)
select writefile('x','y')
attach 'x' as y
vacuum into 'x'
insert into t values (1) returning a
with x as (select 1) delete from t
replace into t values (1)
select fts3_tokenizer('x')
select fts5(1)
select rtreecheck('x')
select * from wipe('x')
select * from csv('x')
select a from t where wipe(a)
select count(*) filter (where wipe()) from t
values (wipe())
explain query plan delete from t
select json_group_array(wipe()) from t
select zipfile('a','b')
select edit('x')
analyze
reindex
select * from t indexed by wipe()
""",
}
"""Statements, one a line."""
ORDINARY: Final[dict[str, str]] = {
    "postgres": r"""
select 1
select a, b from t where a > 1 and b is not null order by a desc limit 1 offset 0
select t.a, u.b from t join u on t.a = u.a left join u v on v.b = t.b
select count(*), sum(a), avg(a)::numeric(10,2), string_agg(b, ',' order by a) from t group by b having count(*) >= 1
select distinct on (a) a, b from t order by a, b
with x as (select a from t), y as (select a from x where a > 0) select * from y
with recursive n(i) as (select 1 union all select i + 1 from n where i < 5) select i from n
select * from generate_series(1, 3) g(i) cross join lateral (select i * 2 as d) x
select e.key, e.value from jsonb_each('{"a": 1}') as e
select x.a from unnest(array[1, 2]) as x(a)
select row_number() over (partition by b order by a), lag(a) over (order by a) from t
select case when a > 1 then 'delete' else 'drop table t' end from t
select coalesce(b, 'x'), nullif(a, 1), greatest(a, 2), least(a, 2) from t
select a from t union all select a from u except select 9 intersect select 9
select '{"a": [1, 2]}'::jsonb -> 'a' ->> 0, '{"a": 1}'::jsonb @> '{"a": 1}'
select to_char(now(), 'YYYY-MM-DD'), date_trunc('day', now()), extract(epoch from interval '1 day'), now() - interval '1 day'
select upper(b), lower(b), length(b), substring(b from 1 for 1), position('x' in b), replace(b, 'x', 'y'), b || '!' from t
select b like 'x%', b ilike 'X%', b ~ '^x', b !~* 'y' from t
select array_agg(a), array[1, 2] && array[2], (array[1, 2, 3])[1:2], 1 = any(array[1, 2]) from t
values (1, 'a'), (2, 'b')
table t
explain select * from t
explain (format json) select a from t
explain analyze select count(*) from t
select current_user, current_date, version(), current_database(), pg_typeof(1), current_setting('server_version')
select exists (select 1 from t), (select max(a) from t), a in (select a from u) from t
select * from (values (1, 'a')) as v(n, s)
select count(*) filter (where a > 1), percentile_cont(0.5) within group (order by a) from t
select grouping(b), sum(a) from t group by rollup (b)
select relname from pg_catalog.pg_class where relname = 't'
select column_name from information_schema.columns where table_name = 't'
select pg_size_pretty(pg_relation_size('t'::regclass))
select $$it's; drop table t$$, E'a\'b', 'x;y' -- ; drop table t
select /* drop table t */ 1
select md5(b), encode(sha256(b::bytea), 'hex') from t
select * from t fetch first 1 rows only
select a::text::int, cast(a as bigint), a::numeric / 3 from t
select regexp_replace(b, 'x', 'y', 'g'), split_part(b, ',', 1), trim(both ' ' from b) from t
select to_tsvector('english', b) @@ to_tsquery('x') from t
select "t"."a" as "A b" from "t" as "t"
""",
    "mysql": r"""
select 1
select a, b from t where a > 1 and b is not null order by a desc limit 1 offset 0
select t.a, u.b from t join u on t.a = u.a left join u v on v.b = t.b
select count(*), sum(a), avg(a), group_concat(b order by a separator ',') from t group by b having count(*) >= 1
with x as (select a from t), y as (select a from x where a > 0) select * from y
with recursive n(i) as (select 1 union all select i + 1 from n where i < 5) select i from n
select row_number() over (partition by b order by a), lag(a) over (order by a) from t
select case when a > 1 then 'delete' else 'drop table t' end from t
select coalesce(b, 'x'), nullif(a, 1), greatest(a, 2), least(a, 2), ifnull(b, ''), if(a > 1, 'x', 'y') from t
select a from t union all select a from u
select json_extract('{"a": [1, 2]}', '$.a[0]'), json_object('a', 1), json_valid('{}')
select date_format(now(), '%Y'), date_add(now(), interval 1 day), datediff(now(), now()), curdate(), unix_timestamp(), year(now())
select upper(b), lower(b), char_length(b), substring(b, 1, 1), locate('x', b), replace(b, 'x', 'y'), concat(b, '!'), concat_ws(',', a, b) from t
select b like 'x%', b regexp '^x', b rlike 'y' from t
select cast(a as char), cast(a as unsigned), convert(b using utf8mb4) from t
values (1, 'a'), (2, 'b')
explain select * from t
show tables
show columns from t
describe t
show create table t
select user(), database(), version(), connection_id(), @@version
select exists (select 1 from t), (select max(a) from t), a in (select a from u) from t
select a, sum(a) from t group by a with rollup
select * from information_schema.columns where table_name = 't'
select 'a\'b; drop table t', "x;y" -- ; drop table t
select 1 # ; drop table t
select /* drop table t */ 1
select md5(b), sha2(b, 256), hex(b), to_base64(b) from t
select a div 2, a mod 2, a xor 1, a << 1, a & 1, ~a, !a from t
select `t`.`a` as `A b` from `t` as `t`
select distinct a from t limit 0, 1
select * from t use index () where a = 1
select find_in_set('x', b), field(a, 1, 2), elt(1, b), substring_index(b, ',', 1), lpad(b, 3, ' ') from t
select * from json_table('[1]', '$[*]' columns (n int path '$')) as j
select last_insert_id(), row_count(), found_rows()
select uuid() is not null, rand() >= 0, inet_ntoa(1), crc32(b) from t
""",
    "sqlite": r"""
select 1
select a, b from t where a > 1 and b is not null order by a desc limit 1 offset 0
select t.a, u.b from t join u on t.a = u.a left join u v on v.b = t.b
select count(*), sum(a), total(a), avg(a), group_concat(b, ',') from t group by b having count(*) >= 1
with x as (select a from t), y as (select a from x where a > 0) select * from y
with recursive n(i) as (select 1 union all select i + 1 from n where i < 5) select i from n
select row_number() over (partition by b order by a), lag(a) over (order by a) from t
select case when a > 1 then 'delete' else 'drop table t' end from t
select coalesce(b, 'x'), nullif(a, 1), max(a, 2), min(a, 2), ifnull(b, ''), iif(a > 1, 'x', 'y') from t
select a from t union all select a from u except select 9
select json_extract('{"a": [1, 2]}', '$.a[0]'), '{"a": 1}' ->> 'a', json_object('a', 1), json_group_array(a) from t
select e.key, e.value from json_each('{"a": 1}') e
select * from json_tree('{"a": [1]}')
select strftime('%Y', 'now'), date('now', '-1 day'), datetime(0, 'unixepoch'), julianday('now') > 1
select upper(b), lower(b), length(b), substr(b, 1, 1), instr(b, 'x'), replace(b, 'x', 'y'), b || '!', trim(b), hex(b), quote(b) from t
select b like 'x%', b glob 'x*', typeof(a), cast(a as text), printf('%d', a), abs(a), round(a, 2) from t
values (1, 'a'), (2, 'b')
explain select * from t
explain query plan select * from t
select name from sqlite_master where type = 'table'
select name, type from pragma_table_info('t')
select exists (select 1 from t), (select max(a) from t), a in (select a from u) from t
select 'it''s; drop table t', "a", [b], `a` from t -- ; drop table t
select /* drop table t */ 1
select rowid, * from t where rowid between 1 and 5
select a collate nocase from t order by a collate nocase desc nulls last
select sum(a) filter (where a > 1) over w from t window w as (partition by b)
select last_insert_rowid(), changes(), sqlite_version(), random() is not null
select x'00ff', 1e5, 0x1f, a is not null, b isnull, a % 2, a << 1, ~a from t
select unicode('a'), char(65), zeroblob(2), likelihood(a > 1, 0.5) from t
""",
}
"""Statements, one a line, that each database executes."""
