"""The lake: tables with their comments, written whole or not at all, wherever they live."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from hostile import TEXTS
from pipeline.lake.date_filters import dates_condition
from pipeline.lake.engine import codegen, frames
from pipeline.lake.engine.frames import arrow_to_frame
from pipeline.lake.engine.sessions import LazySession, own_session, session_for_groups
from pipeline.lake.errors import LakeNameError, SchemaError
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import MAX_IN_LIST, ChangeFeedError
from pipeline.lake.schema_enforcement import conform_frame
from pipeline.lake.storage import delta_spark
from pipeline.lake.storage.log import NO_PROVENANCE
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, QUARANTINE, WATERMARKS
from schemas.table import DOUBLE, STRING, Column
from tests.support.lakes import changes

pytestmark = pytest.mark.spark


def quarantine(spark, *rows):
    """Rows of bronze.quarantine: (key, run, seen_at), the rest null, without event_date."""
    names = ("quarantine_key", "run_id", "seen_at")
    full = [{**dict.fromkeys(QUARANTINE.names), **dict(zip(names, row, strict=True))} for row in rows]
    schema = QUARANTINE.struct(without=("event_date",))
    return spark.createDataFrame([[row[name] for name in schema.names] for row in full], schema)


def stored(lake):
    return sorted(
        tuple(row) for row in lake.read(QUARANTINE).select("quarantine_key", "run_id", "event_date").collect()
    )


NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)


def test_a_table_that_does_not_exist_yet_reads_as_empty_and_is_not_made_by_reading(lake, spark):
    assert not lake.exists(QUARANTINE)
    assertDataFrameEqual(lake.read(QUARANTINE), spark.createDataFrame([], QUARANTINE.struct()))
    assert not lake.exists(QUARANTINE)


def files(lake):
    """The files of a table, its log's among them."""
    return [path for path in Path(lake.path(QUARANTINE)).rglob("*") if path.is_file()]


def test_a_local_lake_has_no_files_of_checksums_and_asks_for_none_that_an_earlier_version_left(lake, spark):
    lake.append(QUARANTINE, quarantine(spark, ("a", "r", NOON)))
    assert not [path for path in files(lake) if path.name.startswith(".")]
    for path in files(lake):
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0\0\0\x02\0nothing that fits")
    again = Lake(spark, lake.root)
    again.append(QUARANTINE, quarantine(spark, ("b", "r", NOON)))
    assert stored(again) == [("a", "r", NOON.date()), ("b", "r", NOON.date())]


def test_a_page_that_changed_on_disk_is_an_error(lake, spark):
    lake.append(QUARANTINE, quarantine(spark, ("a", "r", NOON)).coalesce(1))
    (file,) = Path(lake.path(QUARANTINE)).glob("*.parquet")
    column = pq.read_metadata(file).row_group(0).column(QUARANTINE.names.index("quarantine_key"))
    content = bytearray(file.read_bytes())
    content[(column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 1] ^= 1
    file.write_bytes(content)
    with pytest.raises((PySparkException, Py4JJavaError), match="CRC checksum verification failed"):
        stored(lake)


def test_a_created_table_has_the_declared_schema_and_comments(lake, spark):
    for table in (CAPTURE_FILES, RECEIVE_ATTEMPTS):
        lake.create(table)
        lake.create(table)
        again = Lake(spark, lake.root)
        assert again.exists(table)
        assert again.read(table).schema == table.struct()
        detail = spark.sql(f"DESCRIBE DETAIL {lake.sql_name(table)}").first()
        assert detail["description"] == table.comment


def test_a_lake_of_an_earlier_version_is_upgraded_by_the_next_run_and_no_other(lake, spark, monkeypatch):
    """Columns that were declared since are added, and null before; what cannot be taken over is said, not tried."""
    later = replace(QUARANTINE, columns=(*QUARANTINE.columns[:4], Column("news", STRING, "n"), *QUARANTINE.columns[4:]))
    lake.append(QUARANTINE, quarantine(spark, ("a", "1", NOON)))
    reader = Lake(spark, lake.root)
    assert [row.news for row in reader.read(later).collect()] == [None]
    assert "news" not in Lake(spark, lake.root).read(QUARANTINE).columns  # who only reads changes nothing
    monkeypatch.setattr("pipeline.lake.lake.ALL_TABLES", (later, WATERMARKS))
    for writer in (
        reader,
        Lake(spark, lake.root),
    ):  # one that had read it before it held the lake, and one that had not
        with writer.hold_exclusive_access(lambda: None):
            rows = quarantine(spark, ("b", "2", NOON)).withColumn("news", F.lit("x"))
            writer.append(later, rows)
            writer.append(later, rows.withColumn("news", F.lit(None).cast("string")))
            writer.delete(later, "quarantine_key = 'b' AND news IS NULL")
    found = Lake(spark, lake.root).read(later).select("quarantine_key", "news")
    assert sorted(map(tuple, found.collect()), key=str) == [("a", None), ("b", "x"), ("b", "x")]
    with pytest.raises(SchemaError, match=r"by a later version of this program \(columns news\): run that"):
        Lake(spark, lake.root).read(QUARANTINE)
    other = replace(
        later, columns=tuple(replace(c, type=DOUBLE) if c.name == "packet_number" else c for c in later.columns)
    )
    with pytest.raises(
        SchemaError, match=r"packet_number is bigint, not double\): have run_all read the captures into a new"
    ):
        Lake(spark, lake.root).exists(other)


def test_append_adds_and_replace_makes_the_rows_all_there_is(lake, spark):
    lake.append(QUARANTINE, quarantine(spark, ("a", "1", NOON)))
    lake.append(QUARANTINE, quarantine(spark, ("b", "2", NOON), ("c", "2", None)))
    day = date(2024, 2, 29)
    assert stored(lake) == [("a", "1", day), ("b", "2", day), ("c", "2", None)]
    lake.replace(QUARANTINE, lake.read(QUARANTINE).where("quarantine_key <> 'b'").withColumn("run_id", F.lit("3")))
    assert stored(lake) == [("a", "3", day), ("c", "3", None)]
    assert lake.read(QUARANTINE).schema == QUARANTINE.struct()


EVE = datetime(2024, 2, 28, 12, tzinfo=UTC)


def changed(lake, since):
    rows = changes(lake, QUARANTINE, since).select("quarantine_key", "run_id", "_change_type", "_commit_version")
    return sorted(tuple(row) for row in rows.collect())


@pytest.fixture(params=["path", pytest.param("catalog", marks=pytest.mark.long)])
def filled(request, spark, tmp_path):
    """A lake with three rows, two of which have a date, as version 1."""
    catalog = {"catalog": "spark_catalog", "prefix": "filled_"} if request.param == "catalog" else {}
    lake = Lake(spark, str(tmp_path / "the `lake`"), **catalog)
    lake.append(QUARANTINE, quarantine(spark, ("a", "1", EVE), ("b", "1", NOON), ("c", "1", None)))
    yield lake
    spark.sql("DROP SCHEMA IF EXISTS spark_catalog.filled_bronze CASCADE")


def test_rows_behind_a_part_without_any_are_written_too(lake, spark):
    rows = quarantine(spark, ("a", "one", NOON), ("b", "one", NOON)).toArrow()
    parts = pa.concat_tables([rows.slice(0, 0), rows.slice(0, 1), rows.slice(0, 0), rows.slice(1, 1)])
    lake.append(QUARANTINE, arrow_to_frame(spark, parts))
    assert [key for key, *_ in stored(lake)] == ["a", "b"]


def test_a_table_without_rows_says_its_schema(spark):
    rows = quarantine(spark, ("a", "one", NOON)).toArrow()

    class LikeConnect:  # which finds no schema in a table without rows
        def createDataFrame(self, data, schema=None):  # noqa: N802 - Spark's name
            assert len(data) or schema is not None
            return spark.createDataFrame(data, schema)

    made = arrow_to_frame(LikeConnect(), rows.slice(0, 0))
    assert made.schema == arrow_to_frame(spark, rows).schema
    assert made.collect() == []


def test_more_rows_than_serverless_compute_takes_go_to_spark_in_parts(monkeypatch):
    monkeypatch.setattr(frames, "_MAX_GIVEN_BYTES", 2000)
    rows = pa.table({"number": range(1000), "text": ["x" * (700 if number == 3 else 1) for number in range(1000)]})
    given = []
    monkeypatch.setattr(frames.DataFrame, "union", lambda one, other: one + other)
    spark = Mock(createDataFrame=lambda part, _: given.append(part) or part.num_rows)
    assert arrow_to_frame(spark, rows) == 1000
    assert max(part.nbytes for part in given) <= 2000
    assert pa.concat_tables(given) == rows
    assert arrow_to_frame(spark, rows.slice(3, 1)) == 1  # a row is not divided


def test_a_table_of_no_rows_tells_what_it_was_made_of_too(lake, spark):
    lake.replace(QUARANTINE, quarantine(spark), provenance="nothing")
    assert lake.versions.provenance_json(QUARANTINE) == "nothing"
    version = lake.version(QUARANTINE)
    lake.replace(QUARANTINE, quarantine(spark), provenance="nothing else")
    assert (lake.versions.provenance_json(QUARANTINE), stored(lake)) == ("nothing else", [])
    assert lake.version(QUARANTINE) == version + 1


@pytest.mark.parametrize("most", [MAX_IN_LIST, 0], ids=["few", "many"])
def test_a_change_replaces_adds_and_deletes_rows_with_all_that_was_said(filled, spark, monkeypatch, most):
    """Where Spark stores the table in one commit: an overwrite of few rows, a MERGE of many."""
    monkeypatch.setattr(delta_spark, "MAX_IN_LIST", most)
    rows = quarantine(spark, ("a", "2", NOON), ("c", "2", NOON), ("d", "2", None)).toArrow()
    day = date(2024, 2, 29)
    these = {"names": {text: text for text in TEXTS}}
    before = filled.version(QUARANTINE)
    filled.delete_and_insert(
        QUARANTINE, "quarantine_key", ["a", "b", "c", "e"], rows, dates={EVE.date(), day, None},
        provenance=json.dumps(these),
    )  # fmt: skip
    assert stored(filled) == [("a", "2", day), ("c", "2", day), ("d", "2", None)]
    assert filled.versions.provenance(QUARANTINE) == these
    if filled.store_name == "spark":
        assert filled.version(QUARANTINE) == before + 1
    filled.note_provenance(QUARANTINE, json.dumps({"now": these}))
    assert filled.versions.provenance(QUARANTINE) == {"now": these}
    filled.append(QUARANTINE, quarantine(spark, ("f", "3", NOON)))
    assert (
        filled.versions.provenance_json(QUARANTINE) == NO_PROVENANCE
    )  # what one commit was made of is not said of the next


def test_what_changes_nothing_commits_nothing(filled, spark):
    filled.delete(QUARANTINE, "quarantine_key = 'x'")
    filled.update(QUARANTINE, {"reason": "'r'"}, "quarantine_key = 'x'")
    filled.restore(QUARANTINE, 1)
    filled.append(QUARANTINE, quarantine(spark))
    assert filled.version(QUARANTINE) == 1


def test_a_table_tells_what_changed_since_a_version(filled, spark):
    filled.update(QUARANTINE, {"run_id": "'it''s'", "reason": "NULL"}, "quarantine_key = 'a'", provenance="an update")
    assert filled.versions.provenance_json(QUARANTINE) == "an update"
    filled.delete(QUARANTINE, "quarantine_key = 'b'")
    updated = [("a", "1", "delete", 2), ("a", "it's", "insert", 2)]  # few rows: either store overwrites them
    assert changed(filled, 1) == [*updated, ("b", "1", "delete", 3)]
    assert changed(filled, 0) == sorted(
        [*updated, ("b", "1", "delete", 3), *((key, "1", "insert", 1) for key in "abc")]
    )
    assert changed(filled, 3) == []
    assert changes(filled, QUARANTINE, 1, 2).count() == 2
    with pytest.raises(ChangeFeedError, match="has no version 4: it is at 3"):
        changes(filled, QUARANTINE, 4)


def test_a_restored_table_is_as_it_was_and_tells_the_way_back(filled, spark):
    before = stored(filled)
    new = quarantine(spark, ("a", "2", EVE), ("d", "2", NOON)).toArrow()
    filled.delete_and_insert(QUARANTINE, "quarantine_key", ["a"], new, dates=None)
    filled.delete(QUARANTINE, "quarantine_key = 'c'")
    filled.restore(QUARANTINE, 1)
    assert stored(filled) == before
    newest = filled.version(QUARANTINE)
    feed = changed(filled, newest - 1)  # delta-rs tells of all rows of the files that come and go
    inserted, deleted = ({row[:2] for row in feed if row[2] == kind} for kind in ("insert", "delete"))
    assert (inserted - deleted, deleted - inserted) == ({("a", "1"), ("c", "1")}, {("a", "2"), ("d", "2")})
    filled.restore(QUARANTINE, None)
    assert stored(filled) == []


def test_a_table_that_is_not_there_has_no_version_and_nothing_to_delete_or_restore(lake):
    assert lake.version(QUARANTINE) is None
    lake.delete(QUARANTINE, "TRUE")
    lake.update(QUARANTINE, {"reason": "NULL"}, "TRUE")
    lake.restore(QUARANTINE, None)
    with pytest.raises(ChangeFeedError):
        changes(lake, QUARANTINE, 0)
    assert not lake.exists(QUARANTINE)


def test_dates_are_named_one_by_one_and_very_many_as_a_range():
    assert dates_condition([date(2024, 3, 1), None, date(2024, 2, 29)], "d") == (
        "(d IS NULL OR d IN (DATE'2024-02-29', DATE'2024-03-01'))"
    )
    assert dates_condition([date.fromordinal(day) for day in range(1, 502)]) == (
        "(event_date BETWEEN DATE'0001-01-01' AND DATE'0002-05-16')"
    )
    assert dates_condition([]) == "FALSE"


def test_rows_named_by_any_text_can_be_taken_out(filled, spark):
    filled.append(QUARANTINE, quarantine(spark, *((text, text, NOON) for text in TEXTS)))
    filled.delete(QUARANTINE, "run_id IN {several} OR run_id = {one}", several=TEXTS[1:], one=TEXTS[0])
    assert [key for key, *_ in stored(filled)] == ["a", "b", "c"]


def test_a_name_that_spark_would_replace_is_refused(tmp_path):
    path = str(tmp_path)
    for root, catalog, prefix in (
        (f"{path}/${{env:HOME}}", None, ""), (f"{path}/\udcff", None, ""), (path, "${a}", ""), (path, "a", "b${c}"),
    ):  # fmt: skip
        with pytest.raises(LakeNameError, match="rename the lake"):
            Lake(None, root, catalog=catalog, prefix=prefix)


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland", "America/Los_Angeles"])
def test_event_date_is_the_utc_date_whatever_the_sessions_zone(spark, zone):
    times = [datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), datetime(2024, 2, 29, 0, 0, tzinfo=UTC), None]
    rows = quarantine(spark, *((str(index), "r", when) for index, when in enumerate(times)))
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", zone)
        dates = [
            row[0] for row in conform_frame(QUARANTINE, rows).orderBy("quarantine_key").select("event_date").collect()
        ]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert dates == [date(1969, 12, 31), date(2024, 2, 29), None]


def test_a_frame_of_another_schema_is_refused_and_every_difference_named(lake, spark):
    rows = (
        quarantine(spark, ("a", "1", NOON)).drop("reason").withColumn("size_bytes", F.lit(1)).withColumn("x", F.lit(""))
    )
    with pytest.raises(SchemaError) as error:
        lake.append(QUARANTINE, rows)
    assert str(error.value) == (
        "bronze.quarantine: size_bytes: int instead of bigint; reason: missing instead of string; "
        "x: string instead of nothing"
    )
    assert not lake.exists(QUARANTINE)


def test_a_catalogs_tables(spark, tmp_path):
    lake = Lake(spark, str(tmp_path), catalog="spark_catalog", prefix="test_")
    try:
        assert not lake.exists(QUARANTINE)
        lake.append(QUARANTINE, quarantine(spark, ("a", "1", NOON)))
        lake.replace(QUARANTINE, quarantine(spark, ("b", "2", NOON)))
        assert Lake(spark, "elsewhere", catalog="spark_catalog", prefix="test_").exists(QUARANTINE)
        assert lake.path(QUARANTINE) == "spark_catalog.test_bronze.quarantine"
        assert spark.table("spark_catalog.test_bronze.quarantine").select("quarantine_key").collect() == [("b",)]
    finally:
        spark.sql("DROP SCHEMA IF EXISTS spark_catalog.test_bronze CASCADE")


def test_nothing_is_written_once_the_lease_is_lost(lake, spark):
    lake.append(QUARANTINE, quarantine(spark, ("a", "one", NOON)))

    def lost():
        raise RuntimeError("the lease is lost")

    writes = (
        lambda: lake.append(QUARANTINE, quarantine(spark, ("b", "two", NOON))),
        lambda: lake.replace(QUARANTINE, quarantine(spark, ("b", "two", NOON))),
        lambda: lake.delete(QUARANTINE, "TRUE"),
        lambda: lake.delete_values(QUARANTINE, "quarantine_key", ["a"], dates=[NOON.date()]),
        lambda: lake.update(QUARANTINE, {"reason": "'other'"}, "TRUE"),
        lambda: lake.restore(QUARANTINE, 0),
    )
    exclusive = lake.hold_exclusive_access(lost)
    exclusive.__enter__()
    for write in writes:
        with pytest.raises(RuntimeError, match="the lease is lost"):
            write()
    with pytest.raises(RuntimeError, match="the lease is lost"):  # nor what the tables are made of
        exclusive.__exit__(None, None, None)
    assert stored(lake) == [("a", "one", date(2024, 2, 29))]


def test_what_is_known_of_the_newest_commit_follows_ones_own(lake, spark):
    with lake.hold_exclusive_access(lambda: None):
        assert lake.version(QUARANTINE) is None
        lake.append(QUARANTINE, quarantine(spark, ("a", "one", NOON)), provenance="a")
        first = lake.version(QUARANTINE)
        assert (lake.versions.provenance_json(QUARANTINE), lake.versions.rows_written(QUARANTINE)) == ("a", 1)
        lake.delete_values(QUARANTINE, "quarantine_key", ["a"], dates=[NOON.date()], provenance="b")
        assert (lake.version(QUARANTINE), lake.versions.provenance_json(QUARANTINE)) == (first + 1, "b")
        Lake(spark, lake.root).append(QUARANTINE, quarantine(spark, ("c", "one", NOON)), provenance="c")
        assert lake.versions.provenance_json(QUARANTINE) == "b"  # it was said that nobody else writes
    assert lake.versions.provenance_json(QUARANTINE) == "c"


def codegen_settings(spark):
    return [spark.conf.get(name) for name in codegen.OFF_SETTINGS]


def test_queries_are_compiled_where_much_is_read(spark):
    session = LazySession.of(spark.newSession())  # the tests' own session has compiled where it read much
    off = codegen_settings(session.spark)
    assert off == list(codegen.OFF_SETTINGS.values())
    session.expect_to_read(codegen.MIN_READ_BYTES - 1)
    with own_session(session.spark) as other:
        assert codegen_settings(other) == off
    session.expect_to_read(codegen.MIN_READ_BYTES)
    with own_session(session.spark) as other:
        assert codegen_settings(session.spark) == codegen_settings(other) == ["true", "FALLBACK"]
    assert codegen_settings(spark.newSession()) == off


def test_to_expect_much_starts_no_session(spark):
    made = []
    session = LazySession(lambda: made.append(True) or spark.newSession())
    session.expect_to_read(codegen.MIN_READ_BYTES)
    assert not made
    assert codegen_settings(session.spark) == ["true", "FALLBACK"]


def test_what_somebody_else_chose_for_compiling_stays(spark):
    other = spark.newSession()
    other.conf.set("spark.sql.codegen.wholeStage", "true")
    LazySession.of(other).expect_to_read(codegen.MIN_READ_BYTES)
    assert other.conf.get("spark.sql.codegen.factoryMode") == "NO_CODEGEN"


def test_batches_for_python_are_not_measured_where_groups_are_computed_and_elsewhere_they_are(spark):
    name = "spark.sql.execution.arrow.maxBytesPerBatch"
    with session_for_groups(spark) as own:
        assert own.conf.get(name) == str(2**31 - 1) != spark.conf.get(name)
    with own_session(spark) as again:
        assert again.conf.get(name) == spark.conf.get(name)


def test_what_names_have_no_row_of_is_passed_over(lake, spark):
    """Row groups are small, their dictionaries tell what they hold, and times have statistics."""
    count, each = 60_000, 300
    schema = QUARANTINE.schema(without=("event_date",))
    keyed = ({"quarantine_key": f"{n:032x}", "run_id": f"r{n // each}", "seen_at": NOON} for n in range(count))
    lake.append(QUARANTINE, arrow_to_frame(spark, pa.Table.from_pylist([*keyed], schema)).coalesce(1))
    files = map(pq.read_metadata, Path(lake.path(QUARANTINE)).glob("*.parquet"))
    groups = [told.row_group(n) for told in files for n in range(told.num_row_groups)]
    assert [group.num_rows for group in groups] == [20_000] * 3
    seen_at = groups[0].column(schema.get_field_index("seen_at"))
    assert (seen_at.path_in_schema, seen_at.physical_type, seen_at.statistics.min) == ("seen_at", "INT64", NOON)

    found = lake.read(QUARANTINE).where(F.col("run_id").isin([f"r{n}" for n in range(60)])).select("quarantine_key")
    assert len(found.collect()) == 60 * each
    scan = found._jdf.queryExecution().executedPlan().collectLeaves().head()
    assert scan.metrics().apply("numOutputRows").value() == groups[0].num_rows
