"""Files that Arrow writes for a table are those that Spark writes, as far as the log and readers tell."""

import datetime as dt
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lake.errors import SchemaError
from pipeline.lake.frames import arrow_to_frame
from pipeline.lake.lake import Lake
from pipeline.lake.local import deletion_vectors
from pipeline.lake.local.deletion_vectors import rows_gone, vector_of
from pipeline.lake.local.table_files import listing
from pipeline.lake.local.table_writer import TableWriter
from pipeline.lake.parquet_options import MAX_ROW_GROUP_ROWS
from pipeline.lake.schema_enforcement import arrow_schema, conform_table
from pipeline.lake.tasks import PartitionedRows
from schemas.bronze import CAPTURE_FILES, QUARANTINE
from schemas.catalog import ALL_TABLES
from schemas.messages import MESSAGES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS

SCHEMA = arrow_schema(QUARANTINE)
TIMES = [
    None,
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    dt.datetime(2024, 2, 29, 0, 0, 0, 1, tzinfo=dt.UTC),
    dt.datetime(2024, 2, 29, 12, 0, 0, 123999, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
]


def quarantine(*rows):
    """Rows of (key, time, bytes)."""
    told = [{"quarantine_key": key, "seen_at": at, "sample": sample} for key, at, sample in rows]
    return conform_table(
        QUARANTINE, pa.Table.from_pylist(told, pa.schema([f for f in SCHEMA if f.name != "event_date"]))
    )


def added(lake):
    """What the log says of the table's files."""
    return [*listing(lake._local.folder(QUARANTINE) / "_delta_log").files.values()]


@pytest.mark.spark
@pytest.mark.parametrize("seed", range(4))
def test_the_log_says_of_a_file_what_delta_says(lake, spark, tmp_path, seed):
    pick = random.Random(seed)
    times = TIMES if seed else [None]
    rows = quarantine(*((f"{pick.randrange(1000):032}", pick.choice(times), b"x") for _ in range(50)))
    lake.append(QUARANTINE, rows)
    other = Lake(spark, str(tmp_path / "other"))
    other.append(QUARANTINE, arrow_to_frame(spark, rows).coalesce(1))
    ours, theirs = ([json.loads(file["stats"]) for file in added(each)] for each in (lake, other))
    assert [each | {"tightBounds": True} for each in ours] == theirs
    read = [sorted(each.read(QUARANTINE).collect(), key=str) for each in (lake, other)]
    assert read[0] == read[1]


@pytest.mark.spark
def test_files_of_any_table_are_read_by_spark_as_they_were_written(lake, spark):
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
        lake.create(table)
        rows = pa.Table.from_pylist([{table.key[0]: "a", **made.get(table, {})}, {}], arrow_schema(table))
        lake.append(table, rows)
        assert lake.read(table).toArrow().cast(rows.schema).to_pylist() == rows.to_pylist()
        assert lake.select(table, "TRUE").to_pylist() == rows.to_pylist()


@pytest.mark.spark
@pytest.mark.parametrize("little", [True, False])
def test_rows_of_tasks_are_written_here_or_in_tasks_of_spark(lake, little):
    def rows(number):
        return quarantine(*((f"{number} {row}", TIMES[2], b"") for row in range(number))).to_batches()

    tasks = PartitionedRows(4, 0 if little else 1 << 40, rows)
    lake.append(QUARANTINE, tasks, provenance="tasks")
    assert len(added(lake)) == (1 if little else 3)
    assert lake.read(QUARANTINE).count() == lake.count_rows_written(QUARANTINE) == 1 + 2 + 3
    assert lake.provenance_json(QUARANTINE) == "tasks"


def test_rows_come_in_groups_without_statistics_or_dictionaries_that_nobody_asks_for(tmp_path):
    writer = TableWriter(tmp_path, QUARANTINE)
    rows = quarantine(*((f"{row:05}", TIMES[2], b"same") for row in range(MAX_ROW_GROUP_ROWS // 2)))
    for _ in range(5):
        writer.add(rows.to_batches()[0])
    said = writer.close()
    told = pq.read_metadata(tmp_path / said["path"])
    assert [told.row_group(group).num_rows for group in range(3)] == [
        MAX_ROW_GROUP_ROWS,
        MAX_ROW_GROUP_ROWS,
        MAX_ROW_GROUP_ROWS // 2,
    ]
    assert json.loads(said["stats"])["numRecords"] == told.num_rows
    with pytest.raises(OSError, match="CRC"):
        spoilt(tmp_path / said["path"])


def spoilt(path):
    """Read a file of which a page changed on disk."""
    column = pq.read_metadata(path).row_group(0).column(SCHEMA.names.index("quarantine_key"))
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    return pq.read_table(path, page_checksum_verification=True)


def test_without_a_row_there_is_no_file(tmp_path):
    writer = TableWriter(tmp_path, QUARANTINE)
    writer.add(quarantine().to_batches()[0] if quarantine().num_rows else pa.RecordBatch.from_pylist([], SCHEMA))
    assert writer.close() is None
    assert [*tmp_path.iterdir()] == []


def test_rows_of_another_schema_are_refused_and_every_difference_named():
    rows = pa.table({"quarantine_key": [1], "x": ["y"]}).append_column("seen_at", pa.array(["now"]))
    with pytest.raises(
        SchemaError, match=r"bronze.quarantine: quarantine_key: int64 instead of string; capture_id: missing"
    ):
        conform_table(QUARANTINE, rows.append_column("event_date", pa.array([None], pa.date32())))


@given(st.sets(st.integers(0, 2**40), max_size=300))
def test_a_vector_of_rows_that_are_gone_is_what_was_put_into_it(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("table")
    vector = vector_of(pa.array(sorted(rows), pa.int64()).to_numpy(), folder)
    assert vector["storageType"] == "u"  # Delta's VACUUM fails on a table with a vector in its log
    assert rows_gone(vector, folder).tolist() == sorted(rows)
    data = next(folder.iterdir()).read_bytes()[5:-4]
    text = deletion_vectors._encoded(data + bytes(-len(data) % 4))
    inline = vector | {"storageType": "i", "pathOrInlineDv": text}  # as an earlier version wrote it
    assert rows_gone(inline, folder).tolist() == sorted(rows)
    with pytest.raises(ValueError, match="deletion vector"):
        rows_gone(vector | {"cardinality": len(rows) + 1}, folder)


@pytest.mark.parametrize("change", [{"sizeInBytes": 5000}, {"offset": 0}, {"storageType": "x"}])
def test_a_file_that_holds_no_such_vector_is_an_error(tmp_path, change):
    vector = vector_of(pa.array([1, 2]).to_numpy(), tmp_path)
    with pytest.raises(ValueError, match="deletion vector"):
        rows_gone(vector | change, tmp_path)
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        rows_gone(vector, tmp_path)
