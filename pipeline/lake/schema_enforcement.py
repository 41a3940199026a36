"""Schema enforcement: rows must be as the table declares them; a write never casts or drops silently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from pipeline.arrow_rows import distinct_texts
from pipeline.lake.errors import SchemaError
from schemas.table import EVENT_DATE, INGESTED_AT, RUN_ID, Table
from udfs.columns.arrays import Column, one_array
from udfs.times import DAY_US


def conform_frame(table: Table, rows: DataFrame) -> DataFrame:
    """Return a frame with exactly the table's columns, as ``conform_table`` does."""
    if table.event_date_columns and EVENT_DATE not in rows.columns:
        micros = F.unix_micros(F.coalesce(*table.event_date_columns))  # whatever the session's time zone
        rows = rows.withColumn(EVENT_DATE, F.date_from_unix_date(F.floor(micros / F.lit(DAY_US)).cast("int")))
    _check_columns(table, {each.name: each.dataType.simpleString() for each in rows.schema.fields})
    return rows.select(*table.names)


def columns_with_statistics(table: Table) -> list[str]:
    """Return the columns of a table that files have statistics of: those by which rows are looked up."""
    return list(dict.fromkeys((*table.layout, *table.key, *table.event_date_columns)))


def conform_table(table: Table, rows: pa.Table) -> pa.Table:
    """Return an Arrow table with exactly the table's columns, in order; event_date is computed where it is missing.

    SchemaError for columns that are missing, unknown, or of another type.
    """
    if table.event_date_columns and EVENT_DATE not in rows.column_names:
        rows = rows.append_column(EVENT_DATE, _dates(rows, table.event_date_columns))
    _check_columns(table, {each.name: _type_name(each.type) for each in rows.schema})
    return rows.select(table.names).cast(table.schema())


def _check_columns(table: Table, given: Mapping[str, str]) -> None:
    """Compare columns, with their types as Spark's simple strings, with those of a table."""
    declared = {column.name: column.sql_type for column in table.columns}
    differs = [
        f"{name}: {given.get(name, 'missing')} instead of {declared.get(name, 'nothing')}"
        for name in dict.fromkeys((*declared, *given))
        if declared.get(name) != given.get(name)
    ]
    if differs:
        raise SchemaError(f"{table}: {'; '.join(differs)}")


@lru_cache
def _type_name(kind: pa.DataType) -> str:
    """Return an Arrow type as Spark's simple string: names and nullability of list elements are not in it."""
    try:
        return from_arrow_type(kind).simpleString()
    except PySparkException:
        return str(kind)


def _dates(rows: pa.Table, times: Iterable[str]) -> pa.ChunkedArray:
    """Return the UTC date of the first time that is not null."""
    first = pc.coalesce(*(rows[name].cast(pa.timestamp("us", "UTC")) for name in times))
    return pc.floor_temporal(first, unit="day").cast(pa.timestamp("us")).cast(pa.date32())


def changed_keys(rows: pa.Table, there: pa.Table, key: str) -> tuple[pa.Array, pa.Array]:
    """Compare rows with those of a table by key: return the keys to write, and the keys to delete, each once.

    Both tables have the columns of ``rows``. Columns of the run (run_id, ingested_at) are not compared.
    """
    facts = [column for column in rows.schema.names if column not in (RUN_ID, INGESTED_AT)]
    places = pc.index_in(rows[key], there[key].combine_chunks())
    is_known, places = places.is_valid(), places.drop_null()
    known = rows[key].filter(is_known)
    same = pc.is_valid(known)
    for name in facts:
        before = there[name].cast(rows.schema.field(name).type).take(places)
        same = pc.and_(same, alike(rows[name].filter(is_known), before))
    is_gone = pc.invert(pc.is_in(there[key], rows[key].combine_chunks()))
    other = known.filter(pc.invert(same))
    new, gone = rows[key].filter(pc.invert(is_known)), there[key].filter(is_gone)
    return distinct_texts(new, other), distinct_texts(other, gone)


def alike(one: Column, other: Column) -> Column:
    """Return where two columns of one type have equal values; two nulls are equal."""
    if not pa.types.is_nested(one.type):
        both_null = pc.and_(pc.is_null(one), pc.is_null(other))
        return pc.or_(both_null, pc.fill_null(pc.equal(one, other), False))  # noqa: FBT003 - Arrow's
    one, other = one_array(one), one_array(other)
    if pa.types.is_struct(one.type):
        fields = (alike(*(pc.struct_field(each, [place]) for each in (one, other))) for place in range(len(one.type)))
        return reduce(pc.and_, fields, pc.equal(one.is_valid(), other.is_valid()))
    if pa.types.is_map(one.type):
        entries = pa.list_(pa.struct([one.type.key_field, one.type.item_field]))
        one, other = one.cast(entries), other.cast(entries)
    same = np.array(pc.equal(*(pc.fill_null(pc.list_value_length(each), -1) for each in (one, other))), np.bool_)
    as_long = [each.filter(pa.array(same)) for each in (one, other)]
    differs = pc.invert(alike(*map(pc.list_flatten, as_long)))
    same[np.flatnonzero(same)[pc.list_parent_indices(as_long[0]).filter(differs)]] = False
    return pa.array(same)


def select_fields(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return some fields of a schema, in their order."""
    return pa.schema([schema.field(name) for name in names])


def cast_to(table: Table, rows: pa.Table, columns: Sequence[str] = ()) -> pa.Table:
    """Return columns of rows, all of a table's by default, with the types that the table has."""
    schema = select_fields(table.schema(), columns or table.names)
    return rows.select(schema.names).cast(schema)
