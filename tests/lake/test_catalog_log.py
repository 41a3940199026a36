"""Logs of tables in a catalog: read in the folders of its schemas where these are, else told by Spark."""

import pytest

from engines import without_spark
from lake.writes import rows
from pipeline.lake.lake import Lake
from pipeline.lake.queries import answer
from pipeline.lake.storage.catalog_log import CatalogFileLog
from pipeline.lake.storage.file_log import FileLog
from pipeline.lake.storage.spark_log import SparkLog
from schemas.bronze import CAPTURE_FILES, QUARANTINE

PREFIX = "Own_"


@pytest.mark.parametrize(
    ("where", "read_log", "kind"),
    [
        ({"catalog": "spark_catalog"}, "auto", CatalogFileLog),
        ({"catalog": "spark_catalog"}, "spark", SparkLog),
        ({"catalog": "main"}, "auto", SparkLog),  # newest commits may not be in the folder: Unity Catalog
        ({"catalog": "main"}, "files", CatalogFileLog),
        ({"store": "spark"}, "auto", FileLog),
        ({"store": "spark"}, "spark", SparkLog),
    ],
)
def test_who_tells_of_logs(tmp_path, where, read_log, kind):
    assert type(Lake(without_spark(), str(tmp_path), read_log=read_log, **where)._log) is kind


@pytest.fixture(params=[pytest.param("warehouse", marks=pytest.mark.long), "own place (1) 100% ü"])
def open_lake(request, spark, tmp_path):
    """Open a lake in a catalog; its schema may have a folder of its own, made by somebody else."""
    if request.param != "warehouse":
        folder = tmp_path / request.param
        spark.sql(f"CREATE SCHEMA spark_catalog.{PREFIX}bronze LOCATION '{folder}'")
    yield lambda read_log="auto": Lake(
        spark, str(tmp_path / "work"), catalog="spark_catalog", prefix=PREFIX, read_log=read_log
    )
    spark.sql(f"DROP SCHEMA IF EXISTS spark_catalog.{PREFIX}bronze CASCADE")


def keys(lake):
    return sorted(lake.select(QUARANTINE, "TRUE", ["quarantine_key"])["quarantine_key"].to_pylist())


@pytest.mark.spark
def test_the_log_in_a_schemas_folder_says_what_spark_does(open_lake, spark):
    lake = open_lake()
    assert not lake.exists(QUARANTINE)
    lake.append(QUARANTINE, rows(spark, "a", "b"), provenance="made of this")
    lake.append(QUARANTINE, rows(spark, "c"))
    told = open_lake("spark")
    assert lake.versions.newest_commit(QUARANTINE) == told.versions.newest_commit(QUARANTINE)
    assert lake._log.commits_since(QUARANTINE, -1) == told._log.commits_since(QUARANTINE, -1)
    for ask in (lambda of: of._log.size_bytes(QUARANTINE), lambda of: of._log.columns(QUARANTINE), keys):
        assert ask(lake) == ask(told)
    assert lake._log.files(QUARANTINE) is not None  # read in this process

    spark.sql(f"DROP TABLE {lake.sql_name(QUARANTINE)}")
    assert not open_lake().exists(QUARANTINE)
    again = open_lake()
    again.append(QUARANTINE, rows(spark, "d"))
    again.append(QUARANTINE, rows(spark, "e"))
    assert keys(again) == keys(lake) == ["d", "e"]  # another table in the same folder, at the same version


@pytest.mark.spark
def test_what_a_table_without_rows_is_made_of_is_kept(open_lake, spark):
    lake = open_lake("spark")
    with lake.hold_exclusive_access(lambda: None):
        lake.append(CAPTURE_FILES, lake.select(CAPTURE_FILES, "TRUE"), provenance="made first")
        lake.append(QUARANTINE, rows(spark, "a").toArrow())
        for provenance in ("made later", "made at last"):  # Delta makes no commit of rows that are not there
            lake.append(CAPTURE_FILES, lake.select(CAPTURE_FILES, "TRUE"), provenance=provenance)
            assert lake.versions.provenance_json(CAPTURE_FILES) == provenance
    for read_log in ("auto", "spark"):
        newest = open_lake(read_log).versions.newest_commit(CAPTURE_FILES)
        assert (newest.version, newest.provenance_json) == (0, "made at last")
        assert open_lake(read_log).versions.provenance_since(CAPTURE_FILES, -1)[0] == "made first"


@pytest.mark.spark
def test_where_spark_tells_of_logs_rows_are_read_by_the_names_of_tables(open_lake, spark, monkeypatch):
    """So the platform's lineage knows of them; no file is read by its path, nor by this process."""
    lake = open_lake("spark")
    lake.append(QUARANTINE, rows(spark, "a"))
    lake.append(QUARANTINE, rows(spark, "b"))
    monkeypatch.setattr(answer, "MAX_HELD_ROWS", 0)  # all tables are large
    sql = "SELECT quarantine_key FROM {rows}"
    assert keys(lake) == ["a", "b"]
    for frame in (lake.read(QUARANTINE), lake.frame(sql, rows=QUARANTINE)):
        plan = frame._jdf.queryExecution().analyzed().toString().lower()
        assert f"spark_catalog.{PREFIX}bronze.quarantine".lower() in plan
