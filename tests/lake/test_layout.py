"""Tables are laid out by what they are looked up by: maintenance orders files, and alters tables of an older lake."""

import dataclasses
import datetime as dt
import itertools
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.lake.date_filters import DateSpan
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import ChangesSince, RowsOfDates
from pipeline.lake.schema_enforcement import conform_table
from pipeline.lake.storage import data_files
from pipeline.lake.storage.delta_spark import SparkStore
from pipeline.lake.storage.store import statistics_property
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import QUARANTINE
from schemas.catalog import ALL_TABLES

pytestmark = pytest.mark.spark

NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
OLD = dataclasses.replace(QUARANTINE, looked_up_by=())
"""The table as earlier versions made it: laid out by its date alone."""
RETAIN = dt.timedelta(days=1)


def rows(days, connections):
    """A row of bronze.quarantine for each connection on each day."""
    told = [
        {"quarantine_key": f"{day} {name}", "connection_id": name, "seen_at": NOON + dt.timedelta(days=day)}
        for name, day in itertools.product(connections, days)
    ]
    schema = QUARANTINE.schema(without=("event_date",))
    return conform_table(QUARANTINE, pa.Table.from_pylist(told, schema))


def stored(lake):
    return sorted(lake.select(QUARANTINE, "TRUE", ("quarantine_key", "event_date")).to_pylist(), key=str)


def found(lake, connection):
    """What a look-up by connection finds."""
    return sorted(lake.select_by_values(QUARANTINE, [connection], column="connection_id")["quarantine_key"].to_pylist())


def ranges(lake):
    """The least and the greatest date and connection of each file, as the log has them."""
    files = pa.table(DeltaTable(lake.location(QUARANTINE)).get_add_actions(flatten=True)).to_pylist()
    columns = ("event_date", "connection_id")
    return sorted(tuple((file[f"min.{name}"], file[f"max.{name}"]) for name in columns) for file in files)


def clustering(lake):
    (row,) = lake.spark.sql(f"DESCRIBE DETAIL {lake.sql_name(QUARANTINE)}").select("clusteringColumns").collect()
    return tuple(row[0])


def test_files_are_joined_in_order_of_date_and_connection(lake, monkeypatch):
    monkeypatch.setattr(data_files, "MAX_FILE_ROWS", 4)
    for name in "dbcaea":
        lake.append(QUARANTINE, rows((3, 1), name))
    before, version = stored(lake), lake.version(QUARANTINE)
    lake.maintain(QUARANTINE, RETAIN)
    first, last = (dt.date(2024, 3, day) for day in (1, 3))
    assert ranges(lake) == [
        ((first, first), ("a", "c")), ((first, last), ("a", "e")), ((last, last), ("b", "e")),
    ]  # fmt: skip
    assert stored(lake) == before
    assert found(lake, "c") == ["1 c", "3 c"]
    newest = lake.version(QUARANTINE)
    feed = ChangesSince(QUARANTINE, version, newest)
    assert lake.query("SELECT quarantine_key FROM {feed}", feed=feed).num_rows == 0
    lake.maintain(QUARANTINE, RETAIN)
    assert lake.version(QUARANTINE) == newest  # large files stay as they are


def test_files_of_other_dates_are_not_opened(lake):
    """Rows without a time are of no date; a file whose times the log does not know may have any."""
    undated = rows((1,), "u").set_column(0, QUARANTINE.schema().field(0), [["undated"]])
    times = QUARANTINE.schema().get_field_index("seen_at"), QUARANTINE.schema().get_field_index("event_date")
    for place in times:
        field = QUARANTINE.schema().field(place)
        undated = undated.set_column(place, field, pa.nulls(1, field.type))
    for each in (rows((1,), "a"), rows((2,), "a"), rows((5, 7), "a"), undated):
        lake.append(QUARANTINE, each)
    days = {day: (NOON + dt.timedelta(days=day)).date() for day in (1, 2, 6, 7)}

    def opened(*dates):
        return files(dates)

    def files(dates):
        return len(lake._answers._bound("", RowsOfDates(QUARANTINE, dates)).files)

    def read(*dates):
        return keys(dates)

    def keys(dates):
        return sorted(lake.select(QUARANTINE, "TRUE", ("quarantine_key",), dates)["quarantine_key"].to_pylist())

    assert (opened(days[1]), opened(days[6]), opened(None), opened()) == (1, 1, 1, 0)
    assert read(days[1]) == ["1 a"]
    assert read(days[6]) == []
    assert read(days[7], None, days[2]) == ["2 a", "7 a", "undated"]
    assert lake.select(QUARANTINE, "TRUE", (), None).num_rows == 5
    assert (files(DateSpan(days[2])), keys(DateSpan(days[2]))) == (2, ["2 a", "5 a", "7 a"])
    assert (files(DateSpan(days[2], days[6])), keys(DateSpan(days[2], days[6]))) == (2, ["2 a", "5 a"])
    assert (files(DateSpan(days[1], days[1])), keys(DateSpan(days[1], days[1]))) == (1, ["1 a"])
    for file in lake._answers._bound("", RowsOfDates(QUARANTINE, [days[2], days[7], None])).files:
        file.remove_file()
    assert lake.select_by_values(QUARANTINE, ["1 a", "2 a"], dates=[days[1]])["quarantine_key"].to_pylist() == ["1 a"]


def test_a_run_looks_for_the_files_of_a_table_once_until_it_changes_it(lake, monkeypatch):
    asked, look = [], lake._log.files
    monkeypatch.setattr(lake._log, "files", lambda table: asked.append(table) or look(table))
    lake.append(QUARANTINE, rows((1,), "a"))
    with lake.hold_exclusive_access(lambda: None):
        assert [found(lake, name) for name in "aab"] == [["1 a"], ["1 a"], []]
        first = asked.count(QUARANTINE)
        lake.append(QUARANTINE, rows((1,), "b"))
        assert [found(lake, name) for name in "bab"] == [["1 b"], ["1 a"], ["1 b"]]
        assert (first, asked.count(QUARANTINE)) == (1, 3)  # a commit looks too
    assert [found(lake, name) for name in "ab"] == [["1 a"], ["1 b"]]
    assert asked.count(QUARANTINE) == 5


def test_files_of_any_table_are_joined_as_they_were_written(lake):
    for table in ALL_TABLES:
        each = [pa.Table.from_pylist([{table.key[0]: key}], table.schema()) for key in "ba"]
        for row in each:
            lake.append(table, row)
        lake.maintain(table, RETAIN)
        assert lake.select(table, "TRUE") == pa.concat_tables(reversed(each)), table
        assert len(DeltaTable(lake.location(table)).file_uris()) == 1


def test_columns_of_others_stay(lake):
    for name in "ab":
        lake.append(QUARANTINE, rows((1,), name))
    delta = DeltaTable(lake.location(QUARANTINE))
    theirs = rows((1,), "c").append_column("theirs", pa.array(["x"]))
    write_deltalake(delta, theirs, mode="append", schema_mode="merge")
    lake.maintain(QUARANTINE, RETAIN)
    joined = DeltaTable(lake.location(QUARANTINE))
    assert len(joined.file_uris()) == 1
    assert sorted(map(str, joined.to_pyarrow_table()["theirs"].to_pylist())) == ["None", "None", "x"]


def kill_before(operation, monkeypatch):
    """Have whoever does an operation be killed before it; return what was begun by then, as it is done."""
    run, begun = SparkStore._run, []

    def stop(self, each, *given):
        begun.append(each)
        if each == operation:
            raise KeyboardInterrupt
        run(self, each, *given)

    monkeypatch.setattr(SparkStore, "_run", stop)
    return begun


def test_a_lake_of_before_is_altered_once_and_what_was_killed_goes_on(lake_of_each_store, monkeypatch):
    lake = lake_of_each_store
    lake.create(OLD)
    lake.append(OLD, rows((1, 2), "ba"))
    assert found(lake, "a") == ["1 a", "2 a"]  # right without it
    if lake.store_name == "spark":
        monkeypatch.setattr(SparkStore, "_vacuum", lambda *_: True)  # which takes long
        with monkeypatch.context() as patch:
            begun = kill_before("CLUSTER BY", patch)
            with pytest.raises(KeyboardInterrupt):
                lake.maintain(QUARANTINE, RETAIN)
        assert (begun, clustering(lake)) == (["SET TBLPROPERTIES", "CLUSTER BY"], OLD.layout)
    lake.maintain(QUARANTINE, RETAIN)
    assert statistics_property(QUARANTINE).items() <= lake._log.properties(QUARANTINE).items()
    if lake.store_name == "spark":
        assert clustering(lake) == QUARANTINE.layout
    assert [row["quarantine_key"] for row in stored(lake)] == ["1 a", "1 b", "2 a", "2 b"]

    again = Lake(lake.session, lake.root, catalog=lake.catalog, prefix=lake.prefix)
    done = []
    monkeypatch.setattr(again, "_store", SimpleNamespace(maintain=lambda table, *_: done.append(table)))
    again.maintain(QUARANTINE, RETAIN)  # it asks nothing of the store but this
    assert done == [QUARANTINE]


def test_texts_of_the_layout_have_bloom_filters_and_bounds(lake):
    """Of long names the log has the beginning: a bound, whatever follows it."""
    queues = ["b" * 40, "\U00020000" * 40, "c" * 40 + "z"]
    told = [{"attempt_key": name[0], "queue": name} for name in queues]
    lake.append(RECEIVE_ATTEMPTS, pa.Table.from_pylist(told, RECEIVE_ATTEMPTS.schema()))
    delta = DeltaTable(lake.location(RECEIVE_ATTEMPTS))
    (action,) = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    assert (action["min.queue"], action["max.queue"]) == ("b" * 32, "\U00020000" * 32 + "\U0010ffff")
    (file,) = Path(lake.path(RECEIVE_ATTEMPTS)).glob("*.parquet")
    sql = "SELECT path_in_schema FROM parquet_metadata(?) WHERE bloom_filter_offset IS NOT NULL"
    columns = {name for (name,) in duckdb.execute(sql, [str(file)]).fetchall()}
    assert {*RECEIVE_ATTEMPTS.looked_up_by, "attempt_key", "connection_id"} <= columns
    for name in queues:
        assert [row["attempt_key"] for row in spark_rows(lake, RECEIVE_ATTEMPTS, "queue", name)] == [name[0]]


def test_a_text_too_long_for_bounds_has_none(lake):
    told = [{"attempt_key": name[0], "queue": name} for name in ("m", "z" * 10_000)]
    lake.append(RECEIVE_ATTEMPTS, pa.Table.from_pylist(told, RECEIVE_ATTEMPTS.schema()))
    (action,) = pa.table(DeltaTable(lake.location(RECEIVE_ATTEMPTS)).get_add_actions(flatten=True)).to_pylist()
    assert (action["null_count.queue"], action["min.queue"], action["max.queue"]) == (0, None, None)
    assert [row["attempt_key"] for row in spark_rows(lake, RECEIVE_ATTEMPTS, "queue", "z" * 10_000)] == ["z"]


def spark_rows(lake, table, column, value):
    """What Spark finds, which asks the log for the files."""
    frame = lake.spark.read.format("delta").load(lake.path(table))
    return frame.where(frame[column] == value).collect()
