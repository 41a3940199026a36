"""The lake: tables with their comments, written whole or not at all, wherever they live."""

from datetime import UTC, date, datetime

import pytest
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from pipeline.lake import Lake, SchemaError, conform
from schemas.bronze import CAPTURE_FILES, QUARANTINE
from schemas.gold import RECEIVE_ATTEMPTS

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark, tmp_path):
    # A folder's name may hold anything.
    return Lake(spark, str(tmp_path / "a `lake`'s 100%20 ü"))


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


def test_a_created_table_has_the_declared_schema_and_comments(lake, spark):
    for table in (CAPTURE_FILES, RECEIVE_ATTEMPTS):
        lake.create(table)
        lake.create(table)
        again = Lake(spark, lake.root)
        assert again.exists(table)
        assert again.read(table).schema == table.struct()
        detail = spark.sql(f"DESCRIBE DETAIL {lake.sql_name(table)}").first()
        assert detail["description"] == table.comment
        assert detail["clusteringColumns"] == ["event_date"]


def test_append_adds_and_replace_makes_the_rows_all_there_is(lake, spark):
    lake.append(QUARANTINE, quarantine(spark, ("a", "1", NOON)))
    lake.append(QUARANTINE, quarantine(spark, ("b", "2", NOON), ("c", "2", None)))
    day = date(2024, 2, 29)
    assert stored(lake) == [("a", "1", day), ("b", "2", day), ("c", "2", None)]
    lake.replace(QUARANTINE, lake.read(QUARANTINE).where("quarantine_key <> 'b'").withColumn("run_id", F.lit("3")))
    assert stored(lake) == [("a", "3", day), ("c", "3", None)]
    assert lake.read(QUARANTINE).schema == QUARANTINE.struct()
    detail = spark.sql(f"DESCRIBE DETAIL {lake.sql_name(QUARANTINE)}").first()
    assert detail["clusteringColumns"] == ["event_date"]


def test_a_runs_rows_can_be_taken_back(lake, spark):
    lake.delete_run(QUARANTINE, "nothing there yet")
    lake.append(QUARANTINE, quarantine(spark, ("a", "it's \\ one", NOON), ("b", "two", NOON)))
    lake.delete_run(QUARANTINE, "it's \\ one")
    assert stored(lake) == [("b", "two", date(2024, 2, 29))]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland", "America/Los_Angeles"])
def test_event_date_is_the_utc_date_whatever_the_sessions_zone(spark, zone):
    times = [datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), datetime(2024, 2, 29, 0, 0, tzinfo=UTC), None]
    rows = quarantine(spark, *((str(index), "r", when) for index, when in enumerate(times)))
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", zone)
        dates = [row[0] for row in conform(QUARANTINE, rows).orderBy("quarantine_key").select("event_date").collect()]
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
