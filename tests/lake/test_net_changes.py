"""What a change feed comes to: the same in DuckDB and in Spark."""

from typing import NamedTuple
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from engines import shared_sql
from example_counts import examples
from pipeline.lake.net_changes import net_changes
from pipeline.lake.queries.answer import query_in_spark
from pipeline.lake.queries.inputs import ChangeFeedError

SCHEMA = pa.schema({"k": pa.string(), "fact": pa.int32(), "_change_type": pa.string(), "_commit_version": pa.int64()})
RECORDS = {"insert": (None, "insert"), "delete": ("delete", None), "update": ("update_preimage", "update_postimage")}


@st.composite
def feeds(draw):
    """Rows of a change feed in which each key lives as rows of a table do: it comes, changes, goes, and comes again."""
    rows = []
    for name in "abcdef"[: draw(st.integers(1, 6))]:
        there = old = draw(st.one_of(st.none(), st.integers(0, 9)))
        for version in sorted(draw(st.sets(st.integers(1, 5), max_size=4))):
            steps = draw(st.sampled_from(("update", "delete", "delete insert"))) if there is not None else "insert"
            for step in steps.split():
                before, after = RECORDS[step]
                new = draw(st.integers(0, 9))
                rows += [(name, old, before, version)] if before else []
                rows += [(name, new, after, version)] if after else []
                there = old = new if after else None
    return draw(st.permutations(rows))


class DuckDb:
    """Answers queries over a feed as a lake in a folder does."""

    def query(self, sql, *, feed):
        return shared_sql().answer(sql, {"feed": feed})


class Spark(NamedTuple):
    """Answers them as a lake does whose tables Spark stores."""

    spark: SparkSession

    def query(self, sql, *, feed):
        return query_in_spark(self.spark, sql, {"feed": feed}).toArrow()


def net_of(lake, rows):
    """The net changes of a feed: facts by key of the rows before, and of those now."""
    feed = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
    found = net_changes(lake, feed, "k", {"fact": "fact", "odd": "fact % 2 = 1"}, "k <> 'f'")
    if found is None:
        return None
    assert set(found.keys.to_pylist()) == {row[0] for row in rows} - {"f"}
    assert all(row["odd"] == (row["fact"] % 2 == 1) for side in found[:2] for row in side.to_pylist())
    sides = [sorted((row["k"], row["fact"]) for row in side.to_pylist()) for side in found[:2]]
    assert [len(dict(side)) for side in sides] == [len(side) for side in sides]
    return [*map(dict, sides)]


def model(rows):
    """What a feed comes to, read one key at a time in the order of its commits."""
    order = ("delete", "update_preimage", "insert", "update_postimage")
    before, now = {}, {}
    for name in {row[0] for row in rows} - {"f"}:
        own = sorted((row for row in rows if row[0] == name), key=lambda row: (row[3], order.index(row[2])))
        if own[-1][2] in ("insert", "update_postimage"):
            now[name] = own[-1][1]
        if own[0][2] in ("delete", "update_preimage"):
            before[name] = own[0][1]
    return [before, now]


@settings(max_examples=examples(20), deadline=None)
@given(rows=feeds())
def test_of_each_key_the_row_before_and_the_row_now_are_found(rows):
    assert net_of(DuckDb(), rows) == model(rows)


@pytest.mark.spark
@settings(max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=feeds())
def test_spark_finds_the_same(spark, rows):
    assert net_of(Spark(spark), rows) == model(rows)


def test_changes_that_cannot_be_read_are_not_known(monkeypatch):
    monkeypatch.setattr(DuckDb, "query", Mock(side_effect=ChangeFeedError))
    assert net_of(DuckDb(), [("a", 1, "insert", 3)]) is None
