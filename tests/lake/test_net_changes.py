"""What a change feed comes to: the same, whether its records are put together here or in Spark."""

from datetime import date

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from example_counts import examples
from pipeline.lake import net_changes as lake_net_changes
from pipeline.lake.net_changes import net_changes

pytestmark = pytest.mark.spark

SCHEMA = "k string, day date, fact int, text string, _change_type string, _commit_version long"
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


def feed_of(spark, rows):
    told = [(name, date(2026, 1, 1 + fact), fact, f"t{fact}", kind, version) for name, fact, kind, version in rows]
    return spark.createDataFrame(told, SCHEMA)


def net_of(spark, rows):
    """All that ``Net`` says of a feed, as plain values."""
    feed = feed_of(spark, rows)
    net = net_changes(feed, "k", [F.col("day")], {"fact": F.col("fact")})
    return {
        "rows": sorted(map(tuple, net.rows.collect())),
        "settled": sorted((row.asDict() for row in net.changed_keys.collect()), key=lambda row: row["k"]),
        "dates": net.dates,
    }, net.keys_before


def model(rows):
    """What a feed comes to, read one key at a time in the order of its commits."""
    order = ("delete", "update_preimage", "insert", "update_postimage")
    left, was = [], {}
    for name in {row[0] for row in rows}:
        own = sorted((row for row in rows if row[0] == name), key=lambda row: (row[3], order.index(row[2])))
        if own[-1][2] in ("insert", "update_postimage"):
            left.append((name, date(2026, 1, 1 + own[-1][1]), own[-1][1], f"t{own[-1][1]}"))
        if own[0][2] in ("delete", "update_preimage"):
            was[name] = own[0][1]
    return sorted(left), was


@settings(max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=feeds())
def test_a_feed_comes_to_the_same_here_and_in_spark(spark, monkeypatch, rows):
    left, was = model(rows)
    here, were = net_of(spark, rows)
    assert here["rows"] == left
    assert {name: row["fact"] for name, row in were.items()} == was
    assert here["dates"] == {date(2026, 1, 1 + fact) for fact in was.values()}
    with monkeypatch.context() as patch:
        patch.setattr(lake_net_changes, "MAX_ROWS_IN_DRIVER", 0 if rows else -1)
        there, named = net_of(spark, rows)
    assert there == here
    assert not rows or named is None


def test_what_was_only_added_is_told_by_its_rows_alone(spark):
    net = net_changes(feed_of(spark, [("a", 1, "insert", 3)]), "k", [F.col("day")], {})
    assert (net.has_earlier_keys, net.dates, net.changed_keys.count(), net.rows.count()) == (False, frozenset(), 0, 1)
