"""bronze and silver -> gold.coverage: per hour and server, how much was seen at each layer, and how much was not.

An hour is that of the row's own time: a capture's and a connection's first packet, a call's request (else its answer),
the answer that brought a message, or the packet that is one, the question of a snapshot. So each row counts in one hour
of its own date, and what changed is counted again date by date. Counts of 0 have no row, but for what the layer begins
with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.lake.date_filters import utc_date_sql
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate, UnknownChangesError
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import BoundQuery, RowsOfDates
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, QUARANTINE, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.coverage import COVERAGE
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from schemas.table import EVENT_DATE, Table
from udfs.call_results import QMMGMT_SUCCEEDED_SQL
from udfs.keys import key
from udfs.times import HOUR_US

COUNTED_OUTCOMES: Final = ("ok", "fault", "no_response", "no_request", "damaged", "encrypted", "unbound")
# Silver has the dates of its calls; but a message gets its queue by what opened it, which may be of another date.
_FOLLOWED: Final = (CAPTURE_FILES, CONNECTIONS, RPC_CALLS, SESSION_PACKETS, QUARANTINE, SNAPSHOTS_RAW, MESSAGES)
_DECODED_CALLS: Final = (REMOTE_READ_CALLS, CLIENT_CALLS, MANAGEMENT_CALLS)
_COVERAGE: Final = DerivedTable(
    COVERAGE, (*_FOLLOWED, *_DECODED_CALLS), code_version="3", needs=(CAPTURE_FILES, SNAPSHOTS_RAW)
)
_ANSWERED_ON: Final = utc_date_sql("response_at")
_SCHEMA: Final = COVERAGE.schema()

CountedDates = set[date | None] | None


class CoverageSource(NamedTuple):
    """What is counted of one table: its layer, the time that gives the hour, and its measures by name, in SQL.

    The first measure is shown where it is 0 too.
    """

    layer: str
    rows: Callable[[CountedDates], BoundQuery]
    hour: str
    measures: Mapping[str, str]


def _sums(*names: str, **renamed: str) -> dict[str, str]:
    return {name: f"sum({name})" for name in names} | {name: f"sum({column})" for name, column in renamed.items()}


def _counts(**conditions: str) -> dict[str, str]:
    return {name: f"count_if({condition})" for name, condition in conditions.items()}


def _table(table: Table, *columns: str) -> Callable[[CountedDates], BoundQuery]:
    server = "server_address" if "server_address" in table.names else "CAST(NULL AS string) AS server_address"

    def rows(dates: CountedDates) -> BoundQuery:
        return BoundQuery(f"SELECT {', '.join((server, *columns))} FROM {{rows}}", {"rows": RowsOfDates(table, dates)})

    return rows


def _of_connections(table: Table, where: str, *columns: str) -> Callable[[CountedDates], BoundQuery]:
    """Ask for a table's rows with server and kind of their connection, where they have one."""

    def rows(dates: CountedDates) -> BoundQuery:
        there = f"SELECT connection_id, {', '.join(columns)} FROM {{rows}} WHERE {where}"
        ends = "SELECT connection_id, server_address, kind FROM {connections}"
        names = ", ".join(("server_address", "kind", *columns))
        sql = f"SELECT {names} FROM ({there}) AS part LEFT JOIN ({ends}) AS ends USING (connection_id)"
        return BoundQuery(sql, {"rows": RowsOfDates(table, dates), "connections": CONNECTIONS})

    return rows


def _bad_lines(dates: CountedDates) -> BoundQuery:
    """Ask for lines of snapshot files that are none; they have no time of their own."""
    columns = "CAST(NULL AS string) AS server_address, seen_at"
    sql = f"SELECT {columns} FROM {{rows}} WHERE capture_id IS NULL"
    return BoundQuery(sql, {"rows": RowsOfDates(QUARANTINE, dates)})


def _not_read(dates: CountedDates) -> BoundQuery:
    """Ask for the packets of captures that are not read, by what they are."""
    columns = "CAST(NULL AS string) AS server_address, first_packet_at"
    unnested = f"SELECT {columns}, explode(packets_not_read) AS part FROM {{rows}}"
    sql = f"SELECT server_address, first_packet_at, part.packets AS packets FROM ({unnested}) AS parts"
    return BoundQuery(sql, {"rows": RowsOfDates(CAPTURE_FILES, dates)})


_DECODED: Final = {"decoded": "count_if(size(errors) = 0)", "undecoded": "count_if(size(errors) > 0)"}
_TIME: Final = "coalesce(requested_at, responded_at) AS `at`"
_CAPTURED: Final = "coalesce(request_at, response_at) AS `at`"
PARTS: Final = (
    CoverageSource(
        "capture",
        _table(
            CAPTURE_FILES, "first_packet_at", "status", "packets", "packets_used", "packets_binary_protocol",
            "packets_other", "packets_damaged", "packets_truncated", "packets_dropped", "bytes_read", "times_go_back",
            "tap_steps",
        ),
        "first_packet_at",
        _sums("packets", "packets_used", "packets_binary_protocol", "packets_other", "packets_damaged",
              "packets_truncated", "packets_dropped", bytes="bytes_read")
        | {"files": "count(*)"} | _counts(files_partial="status = 'partial'", files_unreadable="status = 'unreadable'",
                  files_times_go_back="times_go_back IS NOT NULL OR tap_steps IS NOT NULL"),
    ),
    CoverageSource("capture", _not_read, "first_packet_at", _sums(packets_not_read="packets")),
    CoverageSource(
        "transport",
        _table(
            CONNECTIONS, "first_packet_at", "kind", "syn_seen", "packets", "client_bytes + server_bytes AS bytes",
            "uncaptured_side", "missing_bytes", "retransmitted_bytes", "conflicting_bytes",
        ),
        "first_packet_at",
        _sums("bytes", "packets", bytes_missing="missing_bytes", bytes_retransmitted="retransmitted_bytes",
              bytes_conflicting="conflicting_bytes")
        | {"connections": "count(*)", "bytes_binary_protocol": "sum(CASE WHEN kind = 'binary_protocol' THEN bytes END)"}
        | _counts(connections_binary_protocol="kind = 'binary_protocol'", connections_half_seen="NOT syn_seen",
                  connections_one_direction="uncaptured_side IS NOT NULL"),
    ),
    CoverageSource(
        "transport", _of_connections(QUARANTINE, "capture_id IS NOT NULL", "seen_at", "size_bytes"), "seen_at",
        {"quarantined": "sum(size_bytes)", "quarantined_runs": "count(*)"},
    ),
    CoverageSource(
        "rpc",
        _table(RPC_CALLS, _CAPTURED, "outcome", "sealed", "opened_by", "observations"),
        "`at`",
        {"calls": "count(*)"}
        | {f"calls_{outcome}": f"count_if(outcome = '{outcome}')" for outcome in COUNTED_OUTCOMES}
        | _counts(sealed="sealed AND opened_by IS NULL", opened="opened_by IS NOT NULL",
                  calls_half_seen="outcome IN ('no_response', 'no_request', 'damaged')",
                  calls_seen_twice="observations > 1"),
    ),
    CoverageSource("stub", _table(REMOTE_READ_CALLS, _TIME, "errors"), "`at`", _DECODED),
    CoverageSource("stub", _table(CLIENT_CALLS, _TIME, "errors"), "`at`", _DECODED),
    CoverageSource("stub", _table(MANAGEMENT_CALLS, _TIME, "errors"), "`at`", _DECODED),
    CoverageSource(
        "session",
        _table(SESSION_PACKETS, "sent_at", "complete", "seen_bytes"),
        "sent_at",
        {"packets": "count(*)", "bytes": "sum(seen_bytes)"} | _counts(packets_incomplete="NOT complete"),
    ),
    CoverageSource(
        "session", _of_connections(MESSAGES, "packet_key IS NOT NULL", "seen_at", "session_number"), "seen_at",
        {"messages": "count(*)"} | _counts(messages_unnumbered="session_number IS NULL"),
    ),
    CoverageSource(
        "session", _of_connections(QUARANTINE, "capture_id IS NOT NULL", "seen_at", "size_bytes"), "seen_at",
        {"quarantined": "sum(CASE WHEN kind = 'binary_protocol' THEN size_bytes END)"},
    ),
    CoverageSource(
        "message",
        _of_connections(MESSAGES, "TRUE", "seen_at", "errors", "body_complete", "queue", "message_key", "packet_key"),
        "seen_at",
        {"messages": "count(*)"}
        | _counts(undecoded="size(errors) > 0", unidentified="message_key IS NULL",
                  bodies_incomplete="NOT coalesce(body_complete, FALSE)",
                  queue_unknown="queue IS NULL AND packet_key IS NULL"),  # on its way a message is in no queue
    ),
    CoverageSource(
        "snapshot",
        _table(SNAPSHOTS_RAW, "asked_at", "error", "hresult"),
        "asked_at",
        {"snapshots_expected": "count(*)"}
        | _counts(snapshots_seen="error IS NULL", snapshots_missing="error IS NOT NULL",
                  snapshots_refused=f"error IS NULL AND NOT {QMMGMT_SUCCEEDED_SQL}"),
    ),
    CoverageSource("snapshot", _bad_lines, "seen_at", {"quarantined": "count(*)"}),
)  # fmt: skip


def update(lake: Lake, run_id: str | None = None) -> int:
    """Recount the dates on which a row of the inputs changed; return how many rows are written."""
    step = _COVERAGE.begin(lake)
    if step is None:
        return 0

    def recompute(dates: CountedDates) -> int:
        current = lake.select(COVERAGE, "TRUE", (), dates)
        return step.replace_changed(counted(lake, dates, run_id), current)

    return step.recompute(partial(_changed_dates, step), recompute)


def counted(lake: Lake, dates: CountedDates, run_id: str | None = None) -> pa.Table:
    """Return what there is of some dates, or of all, as rows of the table."""
    counts = [_counts_of(place, part, dates) for place, part in enumerate(PARTS)]
    inputs = {name: rows for each in counts for name, rows in each.inputs.items()}
    totals: dict[tuple[datetime | None, str | None, str, str], int] = {}
    for row in lake.query(" UNION ALL ".join(each.sql for each in counts), **inputs).to_pylist():
        part, hour = PARTS[row["place"]], row["hour"]
        at = None if hour is None else datetime.fromtimestamp(hour / 1_000_000, UTC)
        for name, value in _shown(part, row["measured"]):
            of = (at, row["server_address"], part.layer, name)
            totals[of] = totals.get(of, 0) + value
    return coverage_table(totals, run_id)


def coverage_table(totals: Mapping[tuple[datetime | None, str | None, str, str], int], run_id: str | None) -> pa.Table:
    """Return totals by hour, server, layer and measure as rows of the table."""
    rows = []
    for (hour, server, layer, measure), value in totals.items():
        micros = None if hour is None else round(hour.timestamp()) * 1_000_000
        day = None if hour is None else hour.astimezone(UTC).date()
        rows.append(
            {"coverage_key": key(micros, server, layer, measure), "hour": hour, "server_address": server,
             "layer": layer, "measure": measure, "value": value, EVENT_DATE: day, "run_id": run_id}
        )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _counts_of(place: int, part: CoverageSource, dates: CountedDates) -> BoundQuery:
    """Ask for what is ``measured`` in each hour, with the ``place`` of the part; names of inputs end with it."""
    sql, inputs = part.rows(dates)
    for name in inputs:
        sql = sql.replace(f"{{{name}}}", f"{{{name}_{place}}}")
    hour = f"CAST(floor(unix_micros({part.hour}) / {HOUR_US}) * {HOUR_US} AS bigint) AS hour"
    measured = ", ".join(f"CAST({measure} AS bigint)" for measure in part.measures.values())
    counted = f"SELECT {hour}, server_address, array({measured}) AS measured FROM ({sql}) GROUP BY ALL"
    named = {f"{name}_{place}": rows for name, rows in inputs.items()}
    return BoundQuery(f"SELECT {place} AS place, hour, server_address, measured FROM ({counted})", named)


def _shown(part: CoverageSource, measured: Sequence[int | None]) -> Iterable[tuple[str, int]]:
    """Yield the measures of a row that are to be shown; unreported ones are left out."""
    for place, (name, value) in enumerate(zip(part.measures, measured, strict=True)):
        if value is not None and (value or place == 0):
            yield name, value


def _changed_dates(step: IncrementalUpdate) -> set[date | None]:
    """Return the dates of rows that changed since the last update, before and after; UnknownChangesError."""
    changed = step.changed_inputs(_FOLLOWED)
    if step.changed_inputs(_DECODED_CALLS) and RPC_CALLS not in changed:
        raise UnknownChangesError  # all calls were decoded again, by other decoders
    found = step.all_changed_rows([(table, _dates(table)) for table in changed])
    return set() if found is None else {*found["day"].to_pylist()}


def _dates(table: Table) -> str:
    """Ask for the dates of rows of a table's feed; of calls for those of their answers too."""
    days = f"array({EVENT_DATE}, {_ANSWERED_ON})" if table is RPC_CALLS else f"array({EVENT_DATE})"
    return f"SELECT DISTINCT explode({days}) AS day FROM {{feed}}"
