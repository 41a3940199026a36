"""Rows of gold as plain values, and as Arrow: times in microseconds and dates in days since the epoch. No Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows as a table; what they hold beside its columns is left out."""
    return pa.Table.from_arrays([_array([row[f.name] for row in rows], f.type) for f in schema], schema=schema)


def one_of(rows: pa.Table | pa.RecordBatch, column: str, values: Collection[str]) -> Any:  # noqa: ANN401 - of either's kind
    """Tell which rows have one of some texts in a column."""
    return pc.is_in(rows.column(column), pa.array(sorted(values), pa.string()))


def day_of(*times: int | None) -> int | None:
    """Return the day of the first time that is known."""
    first = next((time for time in times if time is not None), None)
    return None if first is None else first // _DAY_US


def us(span: timedelta) -> int:
    """Return a span in microseconds."""
    return span // timedelta(microseconds=1)


def us_of(moment: datetime) -> int:
    """Return a moment in microseconds since the epoch; one without a zone is UTC."""
    return us((moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment) - _EPOCH)


def moment_of(at: int) -> datetime:
    """Return the moment of a time in microseconds since the epoch, UTC; of one beyond the calendar its last, or first.

    A capture can say any time.
    """
    return _EPOCH + timedelta(microseconds=min(max(at, _FIRST_US), _LAST_US))


def microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as microseconds since the epoch."""
    return column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())


def _array(values: list[Any], to: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(to):
        return pa.array(values, pa.int64()).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")).cast(to)
    if pa.types.is_date(to):
        return pa.array(values, pa.int32()).cast(to)
    return pa.array(values, to)
