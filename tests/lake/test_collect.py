"""Answers of Spark: nothing that looks at them ends the process, as it does where lists have no offsets."""

import pyarrow as pa
import pytest

from pipeline.lake.engine.collect import collect, whole_lists

TEXTS = pa.list_(pa.string())
NESTED = pa.list_(pa.struct({"texts": TEXTS}))


def without_rows(kind):
    """Return an array as Java sends it of which there is no value: without offsets."""
    if pa.types.is_struct(kind):
        return pa.Array.from_buffers(kind, 0, [None], children=[without_rows(field.type) for field in kind])
    if pa.types.is_map(kind):
        return pa.Array.from_buffers(kind, 0, [None, None], children=[without_rows(kind.field(0).type)])
    if pa.types.is_list(kind):
        return pa.Array.from_buffers(kind, 0, [None, None], children=[without_rows(kind.value_type)])
    return pa.array([], kind)


def empty_lists(kind, count):
    """Return lists without values, whose own lists have no offsets."""
    return pa.Array.from_buffers(
        kind, count, [None, pa.py_buffer(bytes(4 * (count + 1)))], children=[without_rows(kind.value_type)]
    )


def look_at(rows):
    """Do what reads offsets, of the lists within lists too; each of it would end the process."""
    for column in rows.columns:
        assert column.nbytes >= 0
        whole = pa.concat_arrays([column.combine_chunks(), *column.chunks])
        whole.validate(full=True)
        while pa.types.is_list(whole.type):
            whole = whole.flatten()


KINDS = (TEXTS, NESTED, pa.list_(TEXTS), pa.struct({"texts": TEXTS}), pa.map_(pa.string(), TEXTS), pa.string())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_lists_of_an_answer_without_rows_get_offsets(kind):
    field = pa.field("x", kind, metadata={"comment": "kept"})
    for chunks in ([], [without_rows(kind)], [without_rows(kind)] * 2):
        found = whole_lists(pa.table([pa.chunked_array(chunks, kind)], pa.schema([field])))
        look_at(found)
        assert found.num_rows == 0
        assert found.schema.equals(pa.schema([field]), check_metadata=True)


def test_lists_within_empty_lists_get_offsets_and_other_values_stay():
    some = pa.array([[{"texts": ["a", None]}], None, [{"texts": None}], []], NESTED)
    rows = pa.table({"key": range(7), "x": pa.chunked_array([empty_lists(NESTED, 3), some])})
    found = whole_lists(rows)
    look_at(found)
    assert found["x"].to_pylist() == [[], [], [], *some.to_pylist()]
    assert found["key"].to_pylist() == [*range(7)]
    assert found.schema == rows.schema


@pytest.mark.spark
def test_what_spark_answers_is_whole(spark):
    for sql in (
        "SELECT array('a') AS x WHERE false",
        "SELECT filter(array(named_struct('texts', array('b'))), each -> false) AS x FROM range(3)",
        "SELECT filter(array(array('b')), each -> false) AS x FROM range(3)",
    ):
        look_at(collect(spark.sql(sql)))
