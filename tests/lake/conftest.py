"""What tests of the lake share."""

import pytest

from pipeline.lake.lake import Lake


@pytest.fixture
def lake(spark, tmp_path):
    """An empty lake in a folder whose name holds what a folder's name may hold."""
    return Lake(spark, str(tmp_path / "a `lake`'s {1} (2) * $x 100% ü"))


@pytest.fixture(params=["delta-rs", "spark"])
def lake_of_each_store(request, spark, tmp_path):
    """An empty lake: in a folder, which delta-rs stores, and in a catalog, which Spark does."""
    if request.param == "delta-rs":
        yield request.getfixturevalue("lake")
        return
    yield Lake(spark, str(tmp_path), catalog="spark_catalog", prefix="each_")
    spark.sql("DROP SCHEMA IF EXISTS spark_catalog.each_bronze CASCADE")
