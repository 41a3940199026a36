"""Each question has one answer, whether Spark gives it or DuckDB."""

import datetime as dt
import gc
import re
from collections import Counter
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from threading import Barrier, Thread
from time import sleep

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.merge.cutting import cut, evenly, plain
from end_to_end.lakes import run
from hostile import LONG, TEXTS
from jobs import ingest_snapshots
from lake.answers import told
from lake.writes import log_of, rows, writes
from pcapgen.record import sample_captures
from pipeline.lake.engine.frames import files_to_frame
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries import duckdb_sql
from pipeline.lake.queries.duckdb_sql import DataFiles, DuckDbSql
from pipeline.lake.queries.inputs import (
    MAX_IN_LIST,
    ChangeFeedError,
    ChangesSince,
    UnknownSqlError,
    values_array,
)
from pipeline.reports.views.catalog import VIEWS_BY_NAME, LakeViews
from pipeline.text import cut_text, cut_text_sql
from schemas.bronze import QUARANTINE

pytestmark = pytest.mark.spark


@pytest.fixture
def twice(monkeypatch):
    """Ask each question of both engines; what was asked, by its text without numbers, with the most rows it had."""
    asked, query, query_at_most, map_groups = Counter(), Lake.query, Lake.query_at_most, Lake.map_groups
    replace_by_query = Lake.replace_by_query

    def check(lake, sql, found, of):
        if lake.store_name == "delta-rs" and found is not None:
            assert told(lake.frame(sql, **of).toArrow()) == told(found), sql
            asked[re.sub(r"\d+", "0", sql)] |= found.num_rows
        return found

    def ask(lake, sql, /, **of):
        return check(lake, sql, query(lake, sql, **of), of)

    def ask_at_most(lake, sql, limit, /, **of):
        return check(lake, sql, query_at_most(lake, sql, limit, **of), of)

    def ask_by_groups(lake, grouped):
        for part in grouped.parts.values():
            ask(lake, part.sql, **part.inputs)
        return map_groups(lake, grouped)

    def ask_for_a_table(lake, table, sql, /, *, provenance=None, **of):
        ask(lake, sql, **of)
        return replace_by_query(lake, table, sql, provenance=provenance, **of)

    monkeypatch.setattr(Lake, "map_groups", ask_by_groups)
    monkeypatch.setattr(Lake, "replace_by_query", ask_for_a_table)
    monkeypatch.setattr(Lake, "query", ask)
    monkeypatch.setattr(Lake, "query_at_most", ask_at_most)
    return asked


@pytest.mark.long
@pytest.mark.parametrize("parts", [1, 4])
def test_what_runs_ask_has_one_answer(spark, project, tmp_path, twice, parts):
    """Runs over sample and estate, with more of them each time, ask all that the layers ask of what changed."""
    lake = Lake(spark, str(tmp_path / "lake"))
    some = sample_captures()
    many = next(path for path in some if path.name.startswith("10-"))
    some.remove(many)
    content = plain(many)
    files = [tmp_path / f"{number}.pcap" for number in range(parts + 1)]
    for file, piece in zip(files, cut(content, evenly(content, parts + 1)), strict=True):
        file.write_bytes(piece)
    estate = project / "data" / "estate"
    run(lake, some[0], some[2], files[0])
    assert ingest_snapshots.main(["--lake", lake.root, "--snapshots", str(estate / "snapshots")]) == 0
    for number in range(1, parts):
        run(lake, *some[: 5 * number], *files[: number + 1])
    run(lake, *some, *files, *sorted((estate / "wire").iterdir()))
    for view in VIEWS_BY_NAME:
        LakeViews(lake).answer(view)
    assert len(twice) > 138
    assert sum(most > 0 for most in twice.values()) > 70


def test_what_changed_is_what_spark_tells(lake, twice):
    for write, *_ in writes(lake):
        write()
    newest = lake.version(QUARANTINE)
    for since in range(newest):
        feed = lake.query("SELECT * FROM {feed}", feed=ChangesSince(QUARANTINE, since, newest))
        assert feed.column_names == [*QUARANTINE.names, "_change_type", "_commit_version"]
    assert max(twice.values()) > 10


def test_changes_that_nobody_can_tell_any_more_are_an_error(lake, spark):
    lake.append(QUARANTINE, rows(spark, "a").coalesce(1))
    since = lake.version(QUARANTINE)
    lake.append(QUARANTINE, rows(spark, "b").coalesce(1))
    lake.replace(QUARANTINE, rows(spark, "c").coalesce(1))
    newest = lake.version(QUARANTINE)
    told = lake.query("SELECT quarantine_key FROM {feed}", feed=ChangesSince(QUARANTINE, since, newest))
    assert sorted(told["quarantine_key"].to_pylist()) == ["a", "b", "b", "c"]
    lake.vacuum(QUARANTINE)
    with pytest.raises(ChangeFeedError, match="is not known"):
        lake.query("SELECT * FROM {feed}", feed=ChangesSince(QUARANTINE, since, newest))
    (log_of(lake) / f"{newest:020}.json").unlink()
    with pytest.raises(ChangeFeedError, match="is not known"):
        lake.query("SELECT * FROM {feed}", feed=ChangesSince(QUARANTINE, since, newest))


AT = dt.datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=dt.UTC)
VALUES = pa.table(
    {
        "place": pa.array(range(5), pa.int64()),
        "moment": pa.array([AT, None, dt.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=dt.UTC), AT, AT]),
        "text": ["it's \\ {one}", "", None, "b;journal", "A\u00dc\U0001f600"],
        "number": pa.array([1, None, -5, 1 << 62, 0], pa.int64()),
        "large": pa.array([Decimal(2**64 - 1), None, Decimal(0), Decimal(7), Decimal(1 << 56)], pa.decimal128(20, 0)),
        "list": pa.array([["a", "b"], [], None, [None, "c"], ["a"]], pa.list_(pa.string())),
        "bytes": pa.array([b"0123456789abcdef", b"", None, b"abc", b"\x00\xff"], pa.binary()),
        "flag": pa.array([True, False, None, True, True]),
    }
)


@pytest.mark.parametrize(
    "sql",
    [
        "unix_micros(moment)",
        "timestamp_micros(number % 1000000)",
        "CAST(floor(unix_micros(moment) / 3600000000) * 3600000000 AS bigint)",
        "date_from_unix_date(CAST(floor(unix_micros(moment) / 86400000000) AS int))",
        "coalesce(size(list), -1)",
        "try_element_at(list, -1)",
        "substring(bytes, 1, 4)",
        "substring(text, 2, 3)",
        "substr(text, 3)",
        "slice(list, 1, 1)",
        "slice(list, 2, 5)",
        "size(sequence(place, place + 2))",
        "size(array_intersect(list, array('a', 'b'))) = size(array_distinct(list))",
        "text || '{{2}}'",
        "sha2(text, 256)",
        "sha2(unhex('20000000' || hex(text)), 256)",
        "'0x' || lpad(hex(abs(number)), 8, '0')",
        cut_text_sql("text", 5),
        "substring(bytes, -12, 12)",
        "octet_length(bytes)",
        "split_part(text, ';', 1)",
        "concat_ws('|', text, number, NULL)",
        "least(text, 'b')",
        "greatest(text, 'b')",
        "nullif(CAST(large % 72057594037927936 AS bigint), 0)",
        "array_position(list, 'a') BETWEEN 1 AND size(list) - 1",
        "right(text, 7) = 'journal'",
        "upper(text)",
        "array(text, CAST(number AS string), NULL)",
        "'text ' || text || ' ' || CAST(number AS string)",
        "CAST(large AS string)",
        "left(md5(concat_ws(' ', text, NULL)), 2)",
        "text IS DISTINCT FROM 'b;journal'",
        "flag IS NOT TRUE",
        "number IN {numbers}",
        "text IN {texts}",
        "text = {one}",
        "CASE WHEN text IN {many} THEN 1 END",
        "CASE WHEN text IN {none} THEN 1 END",
        "regexp_like(text, ';(journal|deadletter)$|^A')",
        "array_join(list, ', ')",
        "transform(list, each -> each || '!')",
        "filter(list, each -> each IS NULL)",
        "number / nullif(place, 0)",
    ],
)
def test_an_expression_has_one_value(lake, sql):
    of = {"numbers": {1, 0}, "texts": ["it's \\ {one}", "A\u00dc\U0001f600"], "one": "it's \\ {one}",
          "many": [*map(str, range(6000)), "b;journal"], "none": []}  # fmt: skip
    of = {"rows": VALUES} | {name: each for name, each in of.items() if f"{{{name}}}" in sql}
    found = [
        by(f"SELECT place, {sql} AS found FROM {{rows}}", of)
        for by in (lambda sql, of: lake.frame(sql, **of).toArrow(), here)
    ]
    assert told(found[0]) == told(found[1])


@pytest.mark.parametrize("given", [list, pa.array])
@pytest.mark.parametrize("more", [0, MAX_IN_LIST], ids=["few", "many"])
def test_no_text_is_more_than_a_text(lake, given, more):
    texts = [*TEXTS, LONG]
    rows = pa.table({"text": texts})
    one = {f"text{place}": text for place, text in enumerate(texts)}
    cases = " ".join(f"WHEN text = {{{name}}} THEN {place}" for place, name in enumerate(one))
    sql = f"SELECT text, CASE {cases} END AS place FROM {{rows}} WHERE text IN {{texts}}"
    of = {"rows": rows, "texts": given([*texts, *map(str, range(more))]), **one}
    expected = {text: place for place, text in enumerate(texts)}
    for found in (here(sql, of), lake.frame(sql, **of).toArrow()):
        assert dict(zip(found["text"].to_pylist(), found["place"].to_pylist(), strict=True)) == expected


def test_a_name_of_a_folder_is_no_pattern(spark, tmp_path):
    schema = pa.schema([("text", pa.string())])
    names = ("a[2]{3,4}?* $x 'q'", "a23bc $x 'q'")  # as a pattern, the first stands for the second too
    for name in names:
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"text": [name]}, schema), tmp_path / name / "rows.parquet")
    for name in names:
        rows = DataFiles(schema, {LakePath(str(tmp_path / name / "rows.parquet")): 1})
        assert here("SELECT text FROM {rows}", {"rows": rows})["text"].to_pylist() == [name]
        assert files_to_frame(spark, rows).collect() == [(name,)]


def test_files_with_other_columns_are_read_as_if_they_had_all(tmp_path):
    """Files of before a column was added, and those in which columns stand in another order, in whatever order."""
    nested = pa.list_(pa.struct([("text", pa.int64())]))
    schema = pa.schema([("number", pa.int64()), ("text", pa.string()), ("parts", nested)])
    rows = pa.table({"number": [1, 2], "text": ["one", "two"], "parts": [[{"text": 1}], None]}, schema)
    kept = [["number", "text", "parts"], ["number", "parts"], ["text", "number", "parts"], ["number", "text", "parts"]]
    files, expected = {}, []
    for place, columns in enumerate(kept):
        path = tmp_path / f"{place}.parquet"
        pq.write_table(rows.select(columns), path)
        files[LakePath(str(path))] = path.stat().st_size
        expected += [dict.fromkeys(schema.names) | {name: row[name] for name in columns} for row in rows.to_pylist()]
    engine = DuckDbSql()
    for each in permutations(files):
        given = DataFiles(schema, {file: files[file] for file in each})
        found = engine.answer("SELECT * FROM {rows}", {"rows": given}).to_pylist()
        assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_a_column_that_no_file_has_is_null_and_has_its_type(tmp_path):
    schema = pa.schema([("number", pa.int64()), ("text", pa.string()), ("seen_at", pa.timestamp("us", "UTC"))])
    pq.write_table(pa.table({"number": [1, 2]}), tmp_path / "rows.parquet")
    given = DataFiles(schema, {LakePath(str(tmp_path / "rows.parquet")): 1})
    for sql in (
        "SELECT text, seen_at FROM {rows}",
        "SELECT upper(text) AS text, max(seen_at) AS seen_at FROM {rows} GROUP BY ALL",
    ):
        found = DuckDbSql().answer(sql, {"rows": given.for_query(sql)})
        assert found.schema == pa.schema([schema.field("text"), schema.field("seen_at")])
        assert {*found.to_pylist()[0].values()} == {None}
    sql = "SELECT text FROM {rows}"
    assert DuckDbSql().answer(sql, {"rows": given.for_query(sql)}).num_rows == 2


@pytest.mark.parametrize(
    ("sql", "where", "names"),
    [
        ("SELECT number FROM {rows}", None, ("number",)),
        ("SELECT number FROM {rows}", "text IS NULL", ("number", "text")),
        ("SELECT count(*) FROM {rows}", None, ("number",)),
        ("SELECT rows.* FROM {rows} AS rows", None, ("number", "text", "seen_at")),
    ],
)
def test_a_query_reads_the_columns_that_it_names(sql, where, names):
    schema = pa.schema([("number", pa.int64()), ("text", pa.string()), ("seen_at", pa.timestamp("us", "UTC"))])
    assert tuple(DataFiles(schema, {}, where).for_query(sql).column_names) == names


def test_the_metadata_of_a_file_is_kept_for_all_queries_while_the_file_is_the_same(tmp_path):
    engine, file = DuckDbSql(), LakePath(str(tmp_path / "rows.parquet"))
    found = engine.answer("SELECT current_setting('parquet_metadata_cache') AS is_kept", {})
    assert found["is_kept"].to_pylist() == [True]
    for number in range(3):
        pq.write_table(pa.table({"number": [number]}), tmp_path / "rows.parquet")
        given = DataFiles(pa.schema([("number", pa.int64())]), {file: 1})
        found = engine.answer("SELECT min(number) AS least FROM {rows}", {"rows": given})
        assert found["least"].to_pylist() == [number]


def test_the_columns_of_a_file_are_looked_at_once(tmp_path, monkeypatch):
    schema, engine = pa.schema([("number", pa.int64())]), DuckDbSql()
    files = {}
    for place in range(3):
        pq.write_table(pa.table({"number": [place]}, schema), tmp_path / f"{place}.parquet")
        files[LakePath(str(tmp_path / f"{place}.parquet"))] = 1
    sql = "SELECT count(*) AS n FROM {rows}"
    assert engine.answer(sql, {"rows": DataFiles(schema, files)})["n"].to_pylist() == [3]
    monkeypatch.setattr(duckdb_sql, "_FILE_COLUMNS_SQL", "SELECT no_function()")
    assert engine.answer(sql, {"rows": DataFiles(schema, files)})["n"].to_pylist() == [3]


def test_what_does_not_fit_in_memory_goes_to_a_private_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = DuckDbSql()
    found = engine.answer("SELECT current_setting('temp_directory') AS folder", {})["folder"][0].as_py()
    assert Path(found).parent == tmp_path
    assert Path(found).stat().st_mode & 0o777 == 0o700
    del engine
    gc.collect()
    assert not [*tmp_path.iterdir()]


def here(sql, of):
    given = {name: each if isinstance(each, pa.Table | DataFiles) else values_array(each) for name, each in of.items()}
    return DuckDbSql().answer(sql, given)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT explode(list) AS each FROM {rows}",
        "SELECT flag, count(*) AS n, min(moment) AS one, CAST(sum(place) AS bigint) AS two FROM {rows} GROUP BY ALL",
        "SELECT count_if(size(list) > 0) AS n, bool_or(flag) AS any, max(text) AS most FROM {rows} GROUP BY ALL",
        "SELECT size(collect_set(CASE WHEN flag THEN text END)) AS n FROM {rows}",
        "SELECT text FROM (SELECT *, row_number() OVER (PARTITION BY flag ORDER BY place) n FROM {rows}) WHERE n < 2",
        "SELECT one.text FROM {rows} AS one LEFT JOIN {rows} AS two USING (place) WHERE two.flag",
        "SELECT explode(sequence(place, place + 1)) AS each FROM {rows}",
        "SELECT place, explode_outer(list) AS each FROM {rows}",
        "SELECT flag, max_by(text, place) AS one, min_by(text, place) AS two FROM {rows} GROUP BY flag",
        "SELECT max_by(text, place) FILTER (WHERE place < 3) AS one, min_by(place, number) AS two FROM {rows}",
        "SELECT max_by(place, struct(flag, text)) AS one FROM {rows} WHERE flag IS NOT NULL",
        "SELECT flag, count_if(number > 0) AS n FROM {rows} GROUP BY flag",
        "SELECT array_sort(collect_list(struct(text, place))) AS all FROM {rows} WHERE text IS NOT NULL",
        "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY place) AS half FROM {rows} WHERE place < 4",
        "SELECT place FROM {rows} AS every ANTI JOIN {rows} AS one ON every.text = one.text AND one.place = 0",
        "SELECT array_sort(array_agg(coalesce(text, 'z'))) AS all FROM {rows}",
        "SELECT number FROM {rows} ORDER BY number LIMIT 1",
        "SELECT number FROM {rows} ORDER BY number DESC LIMIT 1",
        "SELECT `text` FROM (SELECT *, rank() OVER (PARTITION BY flag ORDER BY text) AS n FROM {rows}) WHERE n = 1",
    ],
)
def test_a_question_has_one_answer(lake, sql):
    of = {"rows": VALUES}
    assert told(lake.frame(sql, **of).toArrow()) == told(here(sql, of))


@pytest.mark.parametrize("sql", ["no_function(text)", "no_column", "place <=> 1", "exists(list, one -> one = 'a')"])
def test_what_duckdb_does_not_know_is_said(sql):
    with pytest.raises(UnknownSqlError):
        here(f"SELECT {sql} FROM {{rows}}", {"rows": VALUES})


def test_long_texts_are_cut_in_sql_as_elsewhere(lake):
    texts = ["a" * 500, "é" * 501, "\U0001f600" * 1000 + "x", None]
    of = {"rows": pa.table({"number": range(len(texts)), "text": texts})}
    sql = f"SELECT {cut_text_sql('`text`')} AS text FROM {{rows}} ORDER BY number"
    for found in (lake.frame(sql, **of).toArrow(), here(sql, of)):
        assert found["text"].to_pylist() == [text and cut_text(text, distinct=True) for text in texts]


def test_a_query_that_all_memory_is_too_little_for_has_what_duckdb_takes_of_a_machine(monkeypatch):
    monkeypatch.setattr("pipeline.lake.queries.duckdb_sql._MEMORY_MB", 300)
    engine = DuckDbSql()
    engine._cursor().execute("SET threads = 1")
    sql = "SELECT repeat(text, 20_000_000) AS text FROM {rows}"

    def ask():
        with engine.read_answer(sql, {"rows": pa.table({"text": [*map(str, range(20))]})}) as batches:
            return sum(map(len, batches))

    with pytest.raises((duckdb.OutOfMemoryException, OSError), match="Out of Memory"):
        ask()
    assert engine.with_enough_memory(ask) == 20
    with pytest.raises(OSError, match="no such file"):
        engine.with_enough_memory(lambda: raise_error(OSError("no such file")))
    assert engine.answer("SELECT current_setting('memory_limit') AS most", {})["most"].to_pylist() == ["300.0 MiB"]


def test_one_query_at_a_time_has_the_memory_of_a_machine(monkeypatch):
    engine, asked, begun = DuckDbSql(), [], []
    monkeypatch.setattr(engine, "_limit_memory", asked.append)

    def ask():
        begun.append(asked[-1:])
        if len(begun) < 3:  # both, with the memory of all queries
            both.wait()
            raise OSError("Out of Memory")
        sleep(0.1)
        return asked[-1]

    both, found = Barrier(2), []
    others = [Thread(target=lambda: found.append(engine.with_enough_memory(ask))) for _ in range(2)]
    for each in others:
        each.start()
    for each in others:
        each.join()
    assert found == [None, None]
    assert asked == [None, 2048, None, 2048]


def test_a_query_is_answered_also_where_the_memory_cannot_be_less_again(monkeypatch):
    engine, asked = DuckDbSql(), []

    def limit(megabytes):
        asked.append(megabytes)
        if megabytes is not None:
            raise duckdb.OutOfMemoryException("could not free up enough memory")

    def ask():
        if not asked:
            raise OSError("Out of Memory")
        return 1

    monkeypatch.setattr(engine, "_limit_memory", limit)
    assert engine.with_enough_memory(ask) == 1
    assert asked == [None, 2048]


def raise_error(error):
    raise error
