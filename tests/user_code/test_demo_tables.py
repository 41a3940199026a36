"""The tables of the demo's lake hold what their declarations say."""

from engines import without_spark
from pipeline.lake.lake import Lake
from schemas.catalog import ALL_TABLES


def test_the_date_of_a_row_is_that_of_the_first_of_its_times(demo_lake):
    """Queries of some dates choose files by these times (``RowsOfDates``)."""
    lake, checked = Lake(without_spark(), str(demo_lake)), 0
    for table in ALL_TABLES:
        if table.event_date_columns and lake.exists(table):
            first = f"coalesce({', '.join(table.event_date_columns)}, NULL)"
            sql = f"SELECT {first} AS first, event_date FROM {{rows}}"
            for row in lake.query(sql, rows=table).to_pylist():
                assert row["event_date"] == (row["first"] and row["first"].date()), table
                checked += 1
    assert checked > 10_000
