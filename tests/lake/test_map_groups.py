"""What is computed of groups of rows is the same in memory and in tasks, whichever is chosen."""

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from lake.writes import rows
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, GroupedQuery
from schemas.bronze import QUARANTINE

pytestmark = pytest.mark.spark

OUT = StructType().add("key", StringType()).add("texts", StringType()).add("total", LongType())
SCHEMA = pa.schema({"key": pa.string(), "texts": pa.string(), "total": pa.int64()})
TEXTS = pa.table({"key": ["a", "b", None, "a", "c"], "other": pa.array([1] * 5, pa.int32()),
                  "value": ["x", None, "y", "z", "w"]})  # fmt: skip
NUMBERS = pa.table({"key": ["a", None, "a", "d"], "other": pa.array([1] * 4, pa.int32()),
                    "value": pa.array([1, 2, 3, None], pa.int64())})  # fmt: skip
PARTS = {
    "texts": BoundQuery("SELECT key, other, value FROM {rows}", {"rows": TEXTS}),
    "numbers": BoundQuery("SELECT key, other, value FROM {rows} WHERE other IN {ones}", {"rows": NUMBERS, "ones": {1}}),
}
EXPECTED = [
    {"key": None, "texts": "y", "total": 2}, {"key": "a", "texts": "x,z", "total": 4},
    {"key": "b", "texts": "None", "total": 0}, {"key": "c", "texts": "w", "total": 0},
    {"key": "d", "texts": "", "total": 0},
]  # fmt: skip


def summing(sizes):
    """A function of groups: the texts and the sum of the numbers of each key. ``sizes``: the rows of each call here."""

    def summed(parts):
        sizes.append(sum(part.num_rows for part in parts.values()))
        assert [part.column_names for part in parts.values()] == [["key", "other", "value"]] * 2
        texts, numbers = (part.to_pylist() for part in parts.values())
        found = []
        for key in {row["key"] for row in (*texts, *numbers)}:
            named = sorted(str(row["value"]) for row in texts if row["key"] == key)
            total = sum(row["value"] or 0 for row in numbers if row["key"] == key)
            found.append({"key": key, "texts": ",".join(named), "total": total})
        rows = pa.Table.from_pylist(found, SCHEMA)
        yield rows.slice(0, 1)
        yield rows.slice(1)

    return summed


def in_order(table):
    return sorted(table.to_pylist(), key=str)


@pytest.mark.parametrize("store", ["delta-rs", "spark"])
@pytest.mark.parametrize("limit", ["MAX_ROWS_IN_MEMORY", "MAX_BYTES_IN_MEMORY"])
def test_groups_come_out_the_same_in_memory_and_in_tasks(spark, tmp_path, monkeypatch, store, limit):
    lake, sizes = Lake(spark, str(tmp_path / "lake"), store=store), []
    query = GroupedQuery(PARTS, ("key", "other"), summing(sizes), OUT)
    with lake.map_groups(query) as here:
        assert isinstance(here, pa.Table)
    assert sizes == [9]
    monkeypatch.setattr(lake_module, limit, 3)
    with lake.map_groups(query) as there:
        assert not isinstance(there, pa.Table)
        assert in_order(lake.collect(there, OUT)) == in_order(here) == sorted(EXPECTED, key=str)
        more = lake.collect(lake.concat(there, here), OUT)
    assert in_order(more) == sorted([*EXPECTED, *EXPECTED], key=str)
    assert in_order(lake.map_few_groups(query)) == in_order(here)
    assert sizes == [9]
    assert not [*(lake.folder / "_runs").entries()]


def test_a_part_without_rows_has_its_columns(spark, tmp_path, monkeypatch):
    lake = Lake(spark, str(tmp_path / "lake"))
    none = BoundQuery("SELECT key, other, value FROM {rows} WHERE value > 99", {"rows": NUMBERS})
    query = GroupedQuery(PARTS | {"numbers": none}, ("key",), summing([]), OUT)
    here = lake.map_few_groups(query)
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", -1)
    assert in_order(here) == in_order(lake.map_few_groups(query))
    nothing = query._replace(parts=dict.fromkeys(PARTS, none))
    assert lake.map_few_groups(nothing).num_rows == 0


def test_an_answer_of_long_texts_is_not_read_to_its_end(spark, tmp_path):
    lake = Lake(spark, str(tmp_path / "lake"))
    lake.append(QUARANTINE, rows(spark, *map(str, range(20))))
    long = "SELECT repeat(quarantine_key, 5000000) AS text FROM {rows}"
    assert lake.query_at_most(long, 20, rows=QUARANTINE).num_rows == 20
    assert lake.query_at_most(f"{long} WHERE quarantine_key < 'b'", 19, rows=QUARANTINE) is None
    longer = "SELECT repeat(quarantine_key, 20000000) AS text FROM {rows}"
    assert lake.query_at_most(longer, 20, rows=QUARANTINE) is None
