"""Files that DuckDB reads through pyarrow, as on an object store: the rows that it reads of the files itself."""

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.duckdb_sql import DataFiles, DuckDbSql
from pipeline.lake.queries.remote_files import remote_dataset

SCHEMA = pa.schema({
    "key": pa.string(), "bytes": pa.binary(), "texts": pa.list_(pa.string()), "day": pa.date32(),
    "time": pa.timestamp("us", "UTC"), "number": pa.decimal128(20, 0), "added": pa.string(),
})  # fmt: skip
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
CONDITIONS = (
    "key = 'b'", "key IN ('a', 'merged')", "key > 'a' AND key < 'c'", "bytes = 'b'::BLOB", "day = DATE'2024-02-29'",
    "day IS NULL OR key = 'b'", "time >= TIMESTAMPTZ'2024-02-29 12:00:01Z'", "number > 1", "added IS NULL",
    "added = 'x'", "key = 'nobody'", "list_contains(texts, 'b')", "key LIKE '%e%'", "coalesce(key, 'b') = 'b'", "TRUE",
)  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files as pyarrow writes them, and as delta-rs does, with views."""
    folder = tmp_path_factory.mktemp("table")

    def rows(*keys):
        found = [
            {"key": key, "bytes": key and key.encode(), "texts": [key], "day": NOON.date() if key != "c" else None,
             "time": NOON + dt.timedelta(seconds=number), "number": number}
            for number, key in enumerate(keys)
        ]  # fmt: skip
        return pa.Table.from_pylist(found, pa.schema(list(SCHEMA)[:-1]))

    write_deltalake(folder, rows("a", "b", None))
    table = DeltaTable(folder)
    merger = table.merge(rows("b", "merged"), "s.key = t.key", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()
    paths = [folder / name for name in pa.table(DeltaTable(folder).get_add_actions())["path"].to_pylist()]
    assert pa.string_view() in pq.read_schema(paths[0]).types
    pq.write_table(rows("a", "c", "e"), folder / "own.parquet", store_schema=False)
    return [LakePath(str(path)) for path in (*paths, folder / "own.parquet")]


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("columns", ["*", "texts", "count(*)", "max(time), min(key)"])
def test_answers_are_those_of_local_files(files, condition, columns, monkeypatch):
    sql = f"SELECT {columns} FROM {{rows}} WHERE {condition}"
    here = DuckDbSql().answer(sql, {"rows": DataFiles(SCHEMA, files)})
    monkeypatch.setattr(DataFiles, "sql", lambda _, register, __: f"(FROM {register(remote_dataset(files, SCHEMA))})")
    there = DuckDbSql().answer(sql, {"rows": DataFiles(SCHEMA, files)})
    assert there.schema == here.schema
    assert sorted(map(str, there.to_pylist())) == sorted(map(str, here.to_pylist()))


def test_many_questions_at_once_wait_for_none_of_the_others(files, monkeypatch):
    monkeypatch.setattr(DataFiles, "sql", lambda _, register, __: f"(FROM {register(remote_dataset(files, SCHEMA))})")
    engine, rows, threads = DuckDbSql(), DataFiles(SCHEMA, files), pa.io_thread_count()

    def ask(_):
        return engine.answer("SELECT key FROM {rows} WHERE key = 'b' OR key = 'e'", {"rows": rows})

    pa.set_io_thread_count(1)
    try:
        with ThreadPoolExecutor(16) as pool:
            assert [found.num_rows for found in pool.map(ask, range(64))] == [2] * 64
    finally:
        pa.set_io_thread_count(threads)
