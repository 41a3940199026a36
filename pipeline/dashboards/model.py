"""What a page is made of, as plain data: rows of datasets, what was cut, and where the rest is. No Spark."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.arrow_rows import microseconds, us_of
from pipeline.quality.coverage_gaps import NOT_SEEN
from pipeline.queues.history import NOT_CONNECTED, UNKNOWN

MICROSECOND: Final = pa.timestamp("us", tz="UTC")
SAFE_WHOLE: Final = 2**53 - 1  # whole numbers beyond are not exact in JavaScript, and travel as text
_HALF: Final = re.compile("[\ud800-\udfff]")  # of a surrogate pair
_FEWER: Final = 0.7  # a column is worth a dictionary when its distinct values are less than this share of it


@dataclass(frozen=True, slots=True)
class Data:
    """Rows of one dataset, or that it could not be computed.

    ``rows`` are the rows that travel; ``total`` is how many there are. Where they are fewer, ``chosen`` says which
    were taken, ``query`` brings all of them, and ``summed`` holds sums over all: one row per group with its number
    of rows in ``n``, under the names that the single rows have; ``step_s`` is the length of its pieces of time.
    """

    rows: pa.Table | None
    total: int = 0
    query: str = ""
    chosen: str = ""
    summed: pa.Table | None = None
    step_s: int | None = None
    note: str = ""  # why there are no rows, or what was left out of the sums

    @property
    def cut(self) -> bool:
        """Whether there are more rows than travel."""
        return self.rows is not None and self.total > self.rows.num_rows

    def plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        if self.rows is None:
            return {"computed": False, "note": self.note}
        made: dict[str, Any] = {
            "computed": True,
            "total": self.total,
            "query": self.query,
            "note": self.note,
            **columns_of(self.rows),
        }
        if self.cut:
            made["chosen"] = self.chosen
        if self.summed is not None:
            made["summed"] = {"step_s": self.step_s, **columns_of(self.summed)}
        return made


@dataclass(frozen=True, slots=True)
class Site:
    """All that the pages show. ``as_of`` is the time of the newest packet or snapshot; None: nothing was read."""

    lake: str
    as_of: datetime | None
    published_at: datetime
    data: Mapping[str, Data]
    meanings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # dataset: column: what it holds

    def plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "lake": self.lake,
            "as_of": None if self.as_of is None else us_of(self.as_of),
            "published_at": us_of(self.published_at),
            "not_connected": list(NOT_CONNECTED),
            "not_seen": [each._asdict() for each in NOT_SEEN],
            "data": {name: data.plain() for name, data in self.data.items()},
            "meanings": {name: dict(columns) for name, columns in self.meanings.items()},
        }


def state_now(row: Mapping[str, Any], as_of: datetime | None) -> str:
    """Return a queue's state at the time of the newest evidence: what was last told, as long as that holds."""
    over = as_of is not None and row["valid_to"] is not None and row["valid_to"] <= as_of
    return UNKNOWN if over or row["state"] is None else str(row["state"])


def columns_of(rows: pa.Table) -> dict[str, Any]:
    """Return a table as ``{"count": n, "columns": {name: {"kind", "values" | "words" and "places"}}}``.

    Times are microseconds since the epoch, UTC. Texts that repeat travel once, as ``words``, and ``places`` says which
    word stands where (-1: null).
    """
    return {
        "count": rows.num_rows,
        "columns": {name: _column(rows.column(name)) for name in rows.schema.names},
    }


def _column(column: pa.ChunkedArray) -> dict[str, Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return {"kind": "time", "values": microseconds(column).to_pylist()}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _texts(column)
    if pa.types.is_boolean(kind):
        return {"kind": "flag", "values": column.to_pylist()}
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return {"kind": "number", "values": [plain(value) for value in column.to_pylist()]}
    return {"kind": "other", "values": [plain(value) for value in column.to_pylist()]}


def _texts(column: pa.ChunkedArray) -> dict[str, Any]:
    coded = pc.dictionary_encode(column.combine_chunks())
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    words = coded.dictionary.to_pylist()
    if len(words) > _FEWER * len(column):
        return {"kind": "text", "values": column.to_pylist()}
    return {"kind": "text", "words": words, "places": pc.fill_null(coded.indices, -1).to_pylist()}


def plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value as JSON knows it: exact where JavaScript's numbers are, else as text; NaN and infinity as null."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Decimal):
        return plain(int(value)) if value == value.to_integral_value() else float(value)
    if isinstance(value, int):
        return value if abs(value) <= SAFE_WHOLE else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return base64.b16encode(value).decode().lower()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return str(value)


def script_json(value: object) -> str:
    """Return JSON that stays inside a script element, whatever texts it holds: no ``<``, ``>``, ``&`` stands in it.

    A lone half of a surrogate pair, which UTF-8 cannot write, stays an escape.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return _HALF.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
