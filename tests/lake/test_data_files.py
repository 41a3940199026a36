"""Files that Arrow writes for a table: every reader finds the same rows in them, and passes over the right ones."""

import datetime as dt
import json
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from pipeline.lake.engine.frames import arrow_to_frame
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.errors import SchemaError
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.schema_enforcement import conform_table
from pipeline.lake.storage import data_files
from pipeline.lake.storage.data_files import write_data_files
from pipeline.lake.storage.parquet import MAX_ROW_GROUP_ROWS
from schemas.bronze import CAPTURE_FILES, PENDING, QUARANTINE
from schemas.catalog import ALL_TABLES
from schemas.messages import MESSAGES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS

SCHEMA = QUARANTINE.schema()
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
TIMES = [
    None,
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    dt.datetime(2024, 2, 28, 0, 0, 0, 1, tzinfo=dt.UTC),
    dt.datetime(2024, 2, 29, 12, 0, 0, 123999, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
]


def quarantine(*rows):
    """Rows of (key, time)."""
    told = [{"quarantine_key": key, "seen_at": at, "sample": b"x"} for key, at in rows]
    return conform_table(
        QUARANTINE, pa.Table.from_pylist(told, pa.schema([f for f in SCHEMA if f.name != "event_date"]))
    )


def delta(lake, table=QUARANTINE):
    return DeltaTable(lake.location(table))


def lake_without_spark(folder):
    from engines import without_spark  # noqa: PLC0415 - Spark's workers import this module without that one

    return Lake(without_spark(), str(folder / "lake"))


def spark_delta(lake, table=QUARANTINE):
    """The table as Spark reads it that asks Delta for the files."""
    return lake.spark.read.format("delta").load(lake.path(table))


@pytest.mark.spark
def test_files_of_any_table_are_read_as_they_were_written(lake):
    """Nested columns too, with and without values."""
    made = {
        MESSAGES: {"header_sizes": [("BaseHeader", 16)], "errors": [{"code": "c", "field": None, "offset": 5}]},
        QUEUE_SNAPSHOTS: {
            "property_states": [("state", "value")],
            "eod_next_seq": {"sequence_id": 2**64 - 1, "sequence_number": 1, "previous_number": None},
            "eod_source_info": [{"sender_format_name": "DIRECT=OS:a\\q", "last_access_at": TIMES[1]}],
            "connection_history": [{"status": 1, "addresses": ["10.0.0.1", None], "changed_at": None}],
            "nexthops": [],
        },
        CAPTURE_FILES: {"link_types": [1, 113], "other_paths": ["a"]},
    }
    for table in ALL_TABLES:
        rows = pa.Table.from_pylist([{table.key[0]: "a", **made.get(table, {})}, {}], table.schema())
        for given in (rows, arrow_to_frame(lake.spark, rows)) if table in made else (rows,):
            lake.replace(table, given)
            read = [lake.select(table, "TRUE"), delta(lake, table).to_pyarrow_table()]
            if table in made:
                read += [lake.read(table).toArrow(), spark_delta(lake, table).toArrow()]
            for found in read:
                assert sorted(found.cast(rows.schema).to_pylist(), key=str) == sorted(rows.to_pylist(), key=str), table


@pytest.mark.spark
def test_readers_pass_over_the_files_that_hold_no_such_row(lake):
    """Also at the edge of a millisecond: statistics that Spark writes have no more of a time."""
    for number, at in enumerate(TIMES):
        lake.append(QUARANTINE, quarantine((f"{number}", at), (f"{number}+", at)))
    dataset = delta(lake).to_pyarrow_dataset()

    def between(name, least, most):
        """The keys of such rows, as Spark and delta-rs find them, and how many files they read."""
        kind = SCHEMA.field(name).type
        by_spark = spark_delta(lake).where(F.col(name).between(least, most))
        met = (pc.field(name) >= pa.scalar(least, kind)) & (pc.field(name) <= pa.scalar(most, kind))
        keys = {row.quarantine_key for row in by_spark.collect()}
        assert {*dataset.to_table(["quarantine_key"], met)["quarantine_key"].to_pylist()} == keys
        return keys, len(by_spark.inputFiles()), len([*dataset.get_fragments(met)])

    for number, at in enumerate(TIMES[1:], 1):
        one, both = {f"{number}"}, {f"{number}", f"{number}+"}
        for least in (at, at - dt.timedelta(microseconds=1)):
            assert between("seen_at", least, at) == (both, 1, 1)
        assert between("event_date", at.date(), at.date()) == (both, 1, 1)
        assert between("quarantine_key", f"{number}", f"{number}") == (one, 1, 1)
    without = spark_delta(lake).where("seen_at IS NULL")
    assert (without.count(), len(without.inputFiles())) == (2, 1)
    assert dataset.to_table(filter=pc.field("seen_at").is_null()).num_rows == 2


@pytest.mark.spark
@pytest.mark.parametrize("little", [True, False])
def test_rows_of_tasks_are_written_here_or_in_tasks_of_spark(lake, little):
    def rows(number):
        return quarantine(*((f"{number} {row}", NOON) for row in range(number))).to_batches()

    tasks = PartitionedRows(4, 0 if little else 1 << 40, rows)
    lake.append(QUARANTINE, tasks, provenance="tasks")
    assert len(delta(lake).file_uris()) == (1 if little else 3)
    assert lake.read(QUARANTINE).count() == lake.versions.rows_written(QUARANTINE) == 1 + 2 + 3
    assert lake.versions.provenance_json(QUARANTINE) == "tasks"


def test_rows_come_in_groups_of_pages_with_checksums(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "MAX_FILE_ROWS", 3 * MAX_ROW_GROUP_ROWS)
    rows = quarantine(*((f"{row:05}", NOON) for row in range(MAX_ROW_GROUP_ROWS // 2)))
    (file,) = write_data_files(LakePath(str(tmp_path)), QUARANTINE, rows.to_batches() * 5)
    told = pq.read_metadata(tmp_path / file.name)
    assert [told.row_group(group).num_rows for group in range(3)] == [
        MAX_ROW_GROUP_ROWS,
        MAX_ROW_GROUP_ROWS,
        MAX_ROW_GROUP_ROWS // 2,
    ]
    assert (file.row_count, file.size) == (told.num_rows, (tmp_path / file.name).stat().st_size)
    with pytest.raises(OSError, match="CRC"):
        spoilt(tmp_path / file.name)


def spoilt(path):
    """Read a file of which a page changed on disk."""
    column = pq.read_metadata(path).row_group(0).column(SCHEMA.names.index("quarantine_key"))
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    return pq.read_table(path, page_checksum_verification=True)


@pytest.mark.parametrize(("limit", "most"), [("MAX_FILE_BYTES", 1), ("MAX_FILE_ROWS", 2)])
def test_files_end_where_they_are_large_enough(tmp_path, monkeypatch, limit, most):
    monkeypatch.setattr(data_files, limit, most)
    batches = [quarantine((f"{number}", NOON)).to_batches()[0] for number in range(3)]
    monkeypatch.setattr(data_files, "MAX_ROW_GROUP_ROWS", 2)
    files = write_data_files(LakePath(str(tmp_path)), QUARANTINE, batches)
    assert [pq.read_table(tmp_path / file.name)["quarantine_key"].to_pylist() for file in files] == [["0", "1"], ["2"]]
    least = [json.loads(file.statistics_json)["minValues"]["quarantine_key"] for file in files]
    assert (least, [file.row_count for file in files]) == (["0", "2"], [2, 1])


@pytest.mark.parametrize("merged", [False, True])
def test_row_groups_have_bloom_filters_of_what_rows_are_looked_for_by(tmp_path, merged):
    lake = lake_without_spark(tmp_path)
    lake.append(QUARANTINE, quarantine(("a", NOON), ("b", NOON)))
    if merged:
        lake.update(QUARANTINE, {"capture_id": "'other'"}, "quarantine_key = 'a'")
    (path,) = delta(lake).file_uris()
    sql = "SELECT path_in_schema FROM parquet_metadata(?) WHERE bloom_filter_offset IS NOT NULL"
    found = duckdb.execute(sql, [unquote(urlsplit(path).path)]).fetchall()
    assert {name for (name,) in found} == {"quarantine_key", "connection_id"}


def test_files_of_remainders_are_small():
    assert data_files.max_file_rows(PENDING) < data_files.max_file_rows(QUARANTINE) == data_files.MAX_FILE_ROWS


def test_rows_are_counted_by_the_log(tmp_path):
    lake = lake_without_spark(tmp_path)
    lake.append(QUARANTINE, quarantine(("a", NOON), ("b", NOON)))
    lake.append(QUARANTINE, quarantine(("c", NOON)))
    lake.delete(QUARANTINE, "quarantine_key = 'a'")
    assert lake._answers.count_rows(QUARANTINE) == 2


def test_without_a_row_there_is_no_file(tmp_path):
    assert write_data_files(LakePath(str(tmp_path)), QUARANTINE, [pa.RecordBatch.from_pylist([], SCHEMA)]) == []
    assert [*tmp_path.iterdir()] == []


def test_statistics_have_the_beginning_of_long_texts_and_say_nothing_of_times_beyond_the_calendar(tmp_path):
    rows = quarantine(("k" * 33, NOON), ("k", None), (None, None))
    beyond = pa.array([1 << 60, None, None], pa.int64()).cast(SCHEMA.field("seen_at").type)
    rows = rows.set_column(SCHEMA.get_field_index("seen_at"), SCHEMA.field("seen_at"), beyond)
    (file,) = write_data_files(LakePath(str(tmp_path)), QUARANTINE, rows.to_batches())
    day = NOON.date().isoformat()
    assert json.loads(file.statistics_json) == {
        "numRecords": 3,
        "minValues": {"event_date": day, "quarantine_key": "k"},
        "maxValues": {"event_date": day, "quarantine_key": "k" * 32 + "\U0010ffff"},
        "nullCount": {"event_date": 2, "connection_id": 3, "quarantine_key": 1, "seen_at": 2},
    }  # fmt: skip


def test_rows_of_another_schema_are_refused_and_every_difference_named():
    rows = pa.table({"quarantine_key": [1], "x": ["y"]}).append_column("seen_at", pa.array(["now"]))
    with pytest.raises(
        SchemaError, match=r"bronze.quarantine: quarantine_key: bigint instead of string; capture_id: missing"
    ):
        conform_table(QUARANTINE, rows.append_column("event_date", pa.array([None], pa.date32())))
