"""The sources of alerts: for each a query over tables, and the function that finds alerts in its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from pipeline.alerts import call_alerts, machine_alerts, queue_alerts, transfer_alerts
from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import Alert
from pipeline.lake.arrow_rows import timedelta_to_us
from pipeline.lake.queries import BoundQuery, FilteredTable
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.coverage import COVERAGE
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.queue_history import MACHINE_HISTORY, QUEUE_HISTORY
from schemas.receive_attempts import RECEIVE_ATTEMPTS
from schemas.table import TIMESTAMP, Table
from udfs.call_results import succeeded_sql
from udfs.dcerpc.interfaces import QMMGMT_NAME
from udfs.rows import RowMapping
from udfs.stubs import method_registry

_HOUR_US: Final = 3_600_000_000


class AlertContext(NamedTuple):
    """What alerts use beside rows: names of queue managers, ends of captures in microseconds, canonical queue names.

    The first two are by server address, the last by the names of queues in silver.
    """

    queue_manager_names: Mapping[str, str]
    capture_ends: Mapping[str, int]
    canonical_queues: Mapping[str, str]


class TimeWindow(NamedTuple):
    """The period that a query covers, in microseconds: from ``since`` (None: the beginning) to ``now``."""

    since: int | None
    now: int

    def filter_sql(self, *times: str, or_sql: str = "FALSE") -> str:
        """Return the SQL condition that one of ``times`` lies in the window, or ``or_sql`` holds and none is later.

        The condition lets Delta skip files without such rows.
        """
        not_later = f"coalesce({', '.join((*times, 'NULL'))}) <= timestamp_micros({self.now})"
        if self.since is None:
            return not_later
        recent = " OR ".join((*(f"{name} >= timestamp_micros({self.since})" for name in times), or_sql))
        return f"({not_later} AND ({recent}))"


class AlertSource(NamedTuple):
    """A query, and the function that finds alerts of some ``conditions`` in its rows.

    All rows of one subject have the same values in ``grouping_columns``, so that Spark can process subjects apart.
    """

    query: Callable[[Thresholds, TimeWindow], BoundQuery]
    grouping_columns: tuple[str, ...]
    find_alerts: Callable[[Iterable[RowMapping], Thresholds, int, AlertContext], Iterable[Alert]]
    conditions: tuple[str, ...]


def _select_rows(table: Table, columns: Iterable[str], where: str) -> BoundQuery:
    """Return a query for columns of a table, times in microseconds."""
    names = (f"unix_micros({name}) AS {name}" if table.column(name).type == TIMESTAMP else name for name in columns)
    return BoundQuery(f"SELECT {', '.join(names)} FROM {{rows}} WHERE {where}", {"rows": table})


def _queue_history_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    return _select_rows(QUEUE_HISTORY, queue_alerts.HISTORY_COLUMNS, window.filter_sql("valid_from", "valid_to"))


def _machine_history_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    return _select_rows(MACHINE_HISTORY, machine_alerts.MACHINE_COLUMNS, window.filter_sql("valid_from", "valid_to"))


def _eod_transfers_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    return _select_rows(EOD_TRANSFERS, transfer_alerts.EOD_TRANSFER_COLUMNS, window.filter_sql("observed_at"))


def _eod_sources_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    return _select_rows(EOD_SOURCES, transfer_alerts.EOD_SOURCE_COLUMNS, window.filter_sql("observed_at"))


def _overdue_receives_query(limits: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query for receives that were held too long or until their reader was gone, or whose end was refused.

    It includes receives that are still open however old they are: their duration grows with the capture.
    """
    long = f"hold_ms >= {timedelta_to_us(limits.unacknowledged_read_after) / 1000}"
    trouble = f"outcome IN ('in_flight', 'expired', 'rundown', 'failed') OR ack_refused OR {long}"
    in_trouble = FilteredTable(RECEIVE_ATTEMPTS, f"is_receive AND returned_at IS NOT NULL AND ({trouble})")
    where = window.filter_sql("returned_at", "ended_at", or_sql="outcome = 'in_flight'")
    return _select_rows(RECEIVE_ATTEMPTS, call_alerts.ATTEMPT_COLUMNS, where)._replace(inputs={"rows": in_trouble})


def _negative_acknowledgements_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query that counts negative acknowledgements (bit 15 of the class) per minute, when first seen."""
    return _count_messages(call_alerts.NACK_COUNT_COLUMNS, "class >= 32768", window)


def _rejected_containers_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query that counts COM+ messages that servers must reject per minute, when first seen."""
    return _count_messages(call_alerts.REJECTED_COUNT_COLUMNS, "comqc_rejected IS NOT NULL", window)


def _count_messages(columns: tuple[str, ...], condition: str, window: TimeWindow) -> BoundQuery:
    """Return a query that counts messages per minute by the first four ``columns``, each when it was first seen."""
    names = ", ".join(columns[:4])
    not_later = window._replace(since=None).filter_sql("seen_at")
    seen = f"""
SELECT {names}, unix_micros(seen_at) AS `at`, call_key AS key, row_number() OVER (
    PARTITION BY coalesce(message_key, sighting_key), {names} ORDER BY seen_at NULLS FIRST, call_key NULLS FIRST
  ) AS place
FROM {{rows}} WHERE {not_later} AND {condition}"""
    since = "" if window.since is None else f" AND `at` >= {window.since}"
    first = BoundQuery(f"SELECT {names}, `at`, key FROM ({seen}) WHERE place = 1{since}", {"rows": MESSAGES})
    return _count_by_minute(first, *columns[:4])


def _failing_calls_query(limits: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query that counts calls with a failure as result, and faults, per minute."""
    answered, captured = ("responded_at", "requested_at"), ("response_at", "request_at")
    results = {"reads": (REMOTE_READ_CALLS, "protocol"), "management": (MANAGEMENT_CALLS, f"'{QMMGMT_NAME}'"),
               "clients": (CLIENT_CALLS, "interface_name")}  # fmt: skip
    ours = ", ".join(map(repr, method_registry.ALL_METHODS))
    fault = f"outcome = 'fault' AND fault_status IS NOT NULL AND interface_name IN ({ours})"
    fault += f" AND {window.filter_sql(*captured)}"
    parts = [
        _call_results_sql(
            rows, interface, "hresult AS result, FALSE AS is_fault", answered,
            f"NOT {succeeded_sql(interface)} AND {window.filter_sql(*answered)}",
        )
        for rows, (_, interface) in results.items()
    ]  # fmt: skip
    parts.append(
        _call_results_sql("calls", "interface_name", "fault_status AS result, TRUE AS is_fault", captured, fault)
    )
    every = f"SELECT * FROM ({' UNION ALL '.join(parts)})"
    if limits.ignored_results:
        every += f" WHERE result NOT IN ({', '.join(map(str, limits.ignored_results))})"
    tables = {rows: table for rows, (table, _) in results.items()} | {"calls": RPC_CALLS}
    return _count_by_minute(BoundQuery(every, tables), *call_alerts.FAILURE_COUNT_COLUMNS[:5])


def _call_results_sql(rows: str, interface: str, result: str, times: tuple[str, str], where: str) -> str:
    return (
        f"SELECT server_address, {interface} AS interface_name, opnum, {result},"
        f" unix_micros(coalesce({', '.join(times)})) AS `at`, call_key AS key FROM {{{rows}}} WHERE {where}"
    )


def _findings_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    names = ("rule_id", "subject", "observed_at", "actual", "evidence")
    return _select_rows(FINDINGS, names, f"rule_id IN ('O01', 'O02') AND {window.filter_sql('observed_at')}")


def _capture_loss_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query for the bytes captured and missing per server and hour, of hours that lack any."""
    names = ("bytes", "bytes_missing")
    sums = ", ".join(f"CAST(sum(CASE WHEN measure = '{name}' THEN value END) AS bigint) AS {name}" for name in names)
    where = f"layer = 'transport' AND server_address IS NOT NULL AND {window.filter_sql('hour')}"
    every = f"SELECT server_address, unix_micros(hour) AS hour, {sums} FROM {{rows}} WHERE {where} GROUP BY ALL"
    return BoundQuery(f"SELECT * FROM ({every}) WHERE bytes_missing > 0", {"rows": COVERAGE})


def _missing_snapshots_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query that counts expected and failed snapshots per queue manager and hour, of hours with failures."""
    hour = f"CAST(floor(unix_micros(asked_at) / {_HOUR_US}) * {_HOUR_US} AS bigint) AS hour"
    counts = "count(*) AS expected, count(error) AS missing, max(error) AS error"
    every = f"SELECT queue_manager, {hour}, {counts} FROM {{rows}} WHERE {window.filter_sql('asked_at')} GROUP BY ALL"
    return BoundQuery(f"SELECT * FROM ({every}) WHERE missing > 0", {"rows": SNAPSHOTS_RAW})


ALERT_SOURCES: Final = {
    "history": AlertSource(
        _queue_history_query,
        ("queue_manager", "queue"),
        lambda rows, limits, now, _: queue_alerts.history_alerts(rows, limits, now),
        ("queue_disconnected", "queue_on_hold", "queue_stuck", "dead_letters_growing", "journal_growing",
         "nearly_full"),
    ),
    "machines": AlertSource(
        _machine_history_query,
        ("queue_manager",),
        lambda rows, limits, now, _: machine_alerts.machine_alerts(rows, limits, now),
        ("machine_disconnected", "machine_nearly_full"),
    ),
    "transfers": AlertSource(
        _eod_transfers_query,
        ("queue_manager", "queue"),
        lambda rows, limits, now, _: transfer_alerts.eod_transfer_alerts(rows, limits, now),
        ("transfer_stalled", "messages_unacknowledged", "messages_unread"),
    ),
    "sources": AlertSource(
        _eod_sources_query,
        ("queue_manager", "queue"),
        lambda rows, limits, now, _: transfer_alerts.eod_source_alerts(rows, limits, now),
        ("sequence_gap", "ends_disagree"),
    ),
    "attempts": AlertSource(
        _overdue_receives_query,
        ("server_address", "client_address"),
        lambda rows, limits, now, context: call_alerts.receive_alerts(
            rows, limits, now, context.queue_manager_names, context.capture_ends
        ),
        ("receives_not_ended", "ends_refused"),
    ),
    "negative_acknowledgements": AlertSource(
        _negative_acknowledgements_query,
        ("class_name", "source_queue_manager"),
        lambda rows, limits, now, context: call_alerts.negative_acknowledgement_alerts(
            rows, limits, now, context.canonical_queues
        ),
        ("negative_acknowledgements",),
    ),
    "rejected_containers": AlertSource(
        _rejected_containers_query,
        ("comqc_rejected", "source_queue_manager"),
        lambda rows, limits, now, context: call_alerts.rejected_container_alerts(
            rows, limits, now, context.canonical_queues
        ),
        ("containers_rejected",),
    ),
    "failing_calls": AlertSource(
        _failing_calls_query,
        ("server_address", "interface_name", "opnum", "result"),
        lambda rows, limits, now, context: call_alerts.failing_call_alerts(
            rows, limits, now, context.queue_manager_names
        ),
        ("calls_failing",),
    ),
    "findings": AlertSource(
        _findings_query,
        ("rule_id", "subject"),
        lambda rows, limits, now, _: call_alerts.finding_alerts(rows, limits, now),
        ("duplicate_queue_manager", "clocks_differ"),
    ),
    "capture_loss": AlertSource(
        _capture_loss_query,
        ("server_address",),
        lambda rows, limits, now, context: call_alerts.capture_loss_alerts(
            rows, limits, now, context.queue_manager_names
        ),
        ("capture_lost",),
    ),
    "missing_snapshots": AlertSource(
        _missing_snapshots_query,
        ("queue_manager",),
        lambda rows, _, now, __: call_alerts.missing_snapshot_alerts(rows, now),
        ("snapshots_missing",),
    ),
}  # fmt: skip
"""All sources of alerts, by name."""


def _count_by_minute(events: BoundQuery, *key_columns: str) -> BoundQuery:
    """Return a query that counts events per key and minute, with first and last time and the calls as evidence."""
    names = ", ".join(key_columns)
    one = f"PARTITION BY {names}, floor(`at` / 60000000)"
    placed = f"""
SELECT {names}, floor(`at` / 60000000) AS minute, `at`, key,
  row_number() OVER ({one} ORDER BY `at` ASC NULLS FIRST, key ASC NULLS FIRST) AS place,
  row_number() OVER ({one} ORDER BY `at` DESC NULLS LAST, key DESC NULLS LAST) AS place_from_last
FROM {{answer}}"""
    ends = ", ".join(f"max(CASE WHEN {place} = 1 THEN key END)" for place in ("place", "place_from_last"))
    counts = f"min(`at`) AS `at`, max(`at`) AS last, count(*) AS count, array({ends}) AS evidence"
    return events.wrap(f"SELECT {names}, {counts} FROM ({placed}) GROUP BY {names}, minute")
