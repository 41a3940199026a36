"""Data of the dashboards as Arrow tables and JSON values: rows of datasets, aggregates, notes. No Spark."""

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

from pipeline.arrow_rows import times_to_us
from pipeline.quality.coverage_gaps import GAP_MEASURES
from pipeline.queues.eod_transfers import TROUBLED_CONDITIONS
from pipeline.queues.history import NOT_CONNECTED_STATES, STATE_UNKNOWN
from pipeline.silver.machines import UNNAMED, Machines
from udfs.capture.openings import FAILED
from udfs.columns.codes import codes_and_values
from udfs.times import datetime_to_us

MAX_DATASET_ROWS: Final = 5_000  # of each dataset in the page, by default
MAX_DATASET_BYTES: Final = 8 << 20  # of the rows of each dataset, and of the sums over all of its rows
MAX_SAFE_INTEGER: Final = 2**53 - 1  # larger integers are not exact in JavaScript: they are sent as text
NEVER_ARRIVED: Final = "never_arrived"
"""The value of ``not_delivered`` (dataset ``message_transfers``) of a message that never reached its queue."""
NOT_READ: Final = "not_read"
"""Its value for a message that reached its queue, and was not read there: it expired, or was purged."""
STUCK_CONDITIONS: Final = ("stalled", "refused")
"""Conditions in ``gold.transfer_sequences`` in which numbers wait and are not acknowledged."""
FAILED_SESSION_OUTCOMES: Final = ("refused", "unanswered")
"""Outcomes in ``silver.sessions`` of sessions that the other machine did not open. Beside them are the connections that
were not established for certain (``not_established`` is one of ``FAILED``)."""
Story = dict[str, Any]
"""What is said of an entry, a queue, a machine or a message, as JSON values."""
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MAX_DISTINCT_SHARE: Final = 0.7  # columns with a larger share of distinct values are not dictionary-encoded


@dataclass(frozen=True, slots=True)
class DatasetRows:
    """Rows of one dataset; None if the dataset could not be computed, ``note`` then says why.

    ``total_rows`` is the number of rows that ``query`` returns. If ``rows`` has fewer, ``selection`` says which ones,
    and ``summary`` holds aggregates over all of them: one row per group, with the number of its rows in ``n`` and
    otherwise the same column names. ``summary_step_s`` is the length of the time buckets; ``note`` says if groups are
    left out.
    """

    rows: pa.Table | None
    total_rows: int = 0
    query: str = ""
    selection: str = ""
    summary: pa.Table | None = None
    summary_step_s: int | None = None
    note: str = ""

    @property
    def truncated(self) -> bool:
        """Whether the query has more rows than ``rows``."""
        return self.rows is not None and self.total_rows > self.rows.num_rows

    def to_json(self) -> dict[str, Any]:
        """Return the dataset as JSON values."""
        if self.rows is None:
            return {"computed": False, "note": self.note}
        values: dict[str, Any] = {
            "computed": True,
            "total": self.total_rows,
            "query": self.query,
            "note": self.note,
            **encode_table(self.rows),
        }
        if self.truncated:
            values["selection"] = self.selection
        if self.summary is not None:
            values["summary"] = {"step_s": self.summary_step_s, **encode_table(self.summary)}
        return values


@dataclass(frozen=True, slots=True)
class Stories:
    """What is in trouble, the worst first, as JSON values.

    ``queues`` are by canonical name, ``messages`` by message key. ``left_out`` says how many of each kind are in
    trouble and not here.
    """

    entries: Sequence[Story] = ()
    queues: Mapping[str, Story] = field(default_factory=dict)
    machines: Sequence[Story] = ()
    messages: Mapping[str, Story] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return them as JSON values."""
        return {
            "entries": list(self.entries),
            "queues": dict(self.queues),
            "machines": list(self.machines),
            "messages": dict(self.messages),
            "left_out": dict(self.left_out),
        }


@dataclass(frozen=True, slots=True)
class DashboardData:
    """All data of a dashboard. ``as_of`` is the time of the newest packet or snapshot; None if the lake is empty.

    ``lake_options`` are those of commands that name the lake, quoted for a shell.
    ``newest_by_source`` is the same of each source, by its kind (captures, snapshots) and name. ``packet_tables``: the
    table of gold and its key column, by dataset, of those whose rows lead to packets (``msmq export_packets --row``).
    """

    lake_name: str
    lake_options: str
    as_of: datetime | None
    published_at: datetime
    datasets: Mapping[str, DatasetRows]
    column_comments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by dataset and column
    stories: Stories = field(default_factory=Stories)
    machines: Machines = UNNAMED
    newest_by_source: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    packet_tables: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return all data as JSON values."""
        return {
            "lake": self.lake_name,
            "lake_options": self.lake_options,
            "as_of": None if self.as_of is None else datetime_to_us(self.as_of),
            "published_at": datetime_to_us(self.published_at),
            "not_connected": list(NOT_CONNECTED_STATES),
            "troubled": list(TROUBLED_CONDITIONS),
            "stuck": list(STUCK_CONDITIONS),
            "failed_sessions": list(FAILED_SESSION_OUTCOMES),
            "failed_connections": list(FAILED),
            "stories": self.stories.to_json(),
            "machine_names": dict([*self.machines.texts().items()][:MAX_DATASET_ROWS]),
            "packet_tables": {name: list(table) for name, table in self.packet_tables.items()},
            "coverage_gaps": [gap._asdict() for gap in GAP_MEASURES],
            "data": {name: data.to_json() for name, data in self.datasets.items()},
            "column_comments": {name: dict(columns) for name, columns in self.column_comments.items()},
        }


def current_state(row: Mapping[str, Any], as_of: datetime | None) -> str:
    """Return the state of a row of ``queues`` as of a time: the last known state while it is valid, else UNKNOWN."""
    known_until = row["known_until"]
    expired = known_until is None or (as_of is not None and known_until <= as_of)
    return STATE_UNKNOWN if expired else str(row["state"])


def encode_table(rows: pa.Table) -> dict[str, Any]:
    """Return a table as JSON values: ``{"count": n, "columns": {name: {"kind": kind, "values": [...]}}}``.

    Times are microseconds since the epoch, UTC. Columns of repeated texts are dictionary-encoded: they have
    ``dictionary`` and ``indices`` (-1: null) instead of ``values``.
    """
    return {
        "count": rows.num_rows,
        "columns": {name: _encode_column(rows.column(name)) for name in rows.schema.names},
    }


def _encode_column(column: pa.ChunkedArray) -> dict[str, Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return {"kind": "time", "values": times_to_us(column).to_pylist()}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _encode_texts(column)
    if pa.types.is_boolean(kind):
        return {"kind": "flag", "values": column.to_pylist()}
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return {"kind": "number", "values": [to_json_value(value) for value in column.to_pylist()]}
    return {"kind": "other", "values": [to_json_value(value) for value in column.to_pylist()]}


def _encode_texts(column: pa.ChunkedArray) -> dict[str, Any]:
    codes, dictionary = codes_and_values(column)
    if len(dictionary) > _MAX_DISTINCT_SHARE * len(column):
        return {"kind": "text", "values": column.to_pylist()}
    return {"kind": "text", "dictionary": dictionary, "indices": codes.tolist()}


def to_json_value(value: Any) -> Any:  # noqa: ANN401
    """Return a value as JSON value: integers that JavaScript would round as text, NaN and infinity as null."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Decimal):
        return to_json_value(int(value)) if value == value.to_integral_value() else float(value)
    if isinstance(value, int):
        return value if abs(value) <= MAX_SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return base64.b16encode(value).decode().lower()
    if isinstance(value, Mapping):
        return {str(key): to_json_value(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [to_json_value(each) for each in value]
    return str(value)


def json_for_script(value: object) -> str:
    """Return JSON that is safe inside a script element: ``<``, ``>``, ``&`` and line separators are escaped.

    Lone surrogates are escaped too, because UTF-8 cannot encode them.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
