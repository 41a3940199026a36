"""Where alerts come from: questions for what gold and silver tell, and what finds alerts in the answers' rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from pipeline.alerts import call_alerts, queue_alerts, transfer_alerts
from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import Alert
from pipeline.lake.arrow_rows import us
from pipeline.lake.queries import Question, Standing
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.coverage import COVERAGE
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.queue_history import QUEUE_HISTORY
from schemas.receive_attempts import RECEIVE_ATTEMPTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import TIMESTAMP, Table
from udfs.codes import FAILURE
from udfs.dcerpc.interfaces import MG
from udfs.stubs import methods

_HOUR_US: Final = 3_600_000_000

Plain = Mapping[str, Any]


class Known(NamedTuple):
    """What the commits of gold tell beside their rows: names of queue managers by address, ends of captures."""

    names: Mapping[str, str]
    ends: Mapping[str, int]


class Span(NamedTuple):
    """The time that is asked about: from ``since`` (None: the beginning) to ``now``, microseconds."""

    since: int | None
    now: int

    def holds(self, *times: str, also: str = "FALSE") -> str:
        """Return the condition of rows of which a time is in it, or another condition holds and they are not later.

        Files that hold none are not read.
        """
        until = f"coalesce({', '.join((*times, 'NULL'))}) <= timestamp_micros({self.now})"
        if self.since is None:
            return until
        recent = " OR ".join((*(f"{name} >= timestamp_micros({self.since})" for name in times), also))
        return f"({until} AND ({recent}))"


class Source(NamedTuple):
    """A question for what is told, the columns that all rows of one subject share, and the alerts of such rows."""

    rows: Callable[[Thresholds, Span], Question]
    subject: tuple[str, ...]
    alerts: Callable[[Iterable[Plain], Thresholds, int, Known], Iterable[Alert]]
    conditions: tuple[str, ...]


def _of(table: Table, columns: Iterable[str], where: str) -> Question:
    """Ask for columns of rows of a table, times in microseconds."""
    names = (f"unix_micros({name}) AS {name}" if table.column(name).type == TIMESTAMP else name for name in columns)
    return Question(f"SELECT {', '.join(names)} FROM {{rows}} WHERE {where}", {"rows": table})


def _history(_: Thresholds, span: Span) -> Question:
    return _of(QUEUE_HISTORY, queue_alerts.COLUMNS, span.holds("valid_from", "valid_to"))


def _transfers(_: Thresholds, span: Span) -> Question:
    return _of(EOD_TRANSFERS, transfer_alerts.TRANSFERS, span.holds("observed_at"))


def _sources(_: Thresholds, span: Span) -> Question:
    return _of(EOD_SOURCES, transfer_alerts.SOURCES, span.holds("observed_at"))


def _attempts(limits: Thresholds, span: Span) -> Question:
    """Ask for the receives that were held too long, to their reader's end, or whose end was refused.

    Those that are not ended are asked for however old they are: how long that is known goes on with the capture.
    """
    long = f"hold_ms >= {us(limits.held_after) / 1000}"
    trouble = f"outcome IN ('in_flight', 'expired', 'rundown', 'failed') OR ack_refused OR {long}"
    in_trouble = Standing(RECEIVE_ATTEMPTS, f"is_receive AND returned_at IS NOT NULL AND ({trouble})")
    told = span.holds("returned_at", "ended_at", also="outcome = 'in_flight'")
    return _of(RECEIVE_ATTEMPTS, call_alerts.ATTEMPTS, told)._replace(of={"rows": in_trouble})


def _negative(_: Thresholds, span: Span) -> Question:
    """Ask for negative acknowledgements (classes with the highest bit), each at its first sighting, by minutes."""
    names, until = ", ".join(call_alerts.NEGATIVE[:4]), span._replace(since=None).holds("seen_at")
    seen = f"""
SELECT {names}, unix_micros(seen_at) AS `at`, call_key AS key, row_number() OVER (
    PARTITION BY coalesce(message_key, sighting_key), {names} ORDER BY seen_at NULLS FIRST, call_key NULLS FIRST
  ) AS place
FROM {{rows}} WHERE {until} AND class >= 32768"""
    since = "" if span.since is None else f" AND `at` >= {span.since}"
    first = Question(f"SELECT {names}, `at`, key FROM ({seen}) WHERE place = 1{since}", {"rows": MESSAGES})
    return _by_minute(first, *call_alerts.NEGATIVE[:4])


def _failing(limits: Thresholds, span: Span) -> Question:
    """Ask for calls with a failure as result, and faults, by minutes."""
    answered, captured = ("responded_at", "requested_at"), ("response_at", "request_at")
    failed = f"hresult >= {FAILURE} AND {span.holds(*answered)}"
    ours = ", ".join(map(repr, methods.ALL))
    fault = f"outcome = 'fault' AND fault_status IS NOT NULL AND interface_name IN ({ours}) AND {span.holds(*captured)}"
    parts = (
        _results("reads", "protocol", "hresult AS result, FALSE AS is_fault", answered, failed),
        _results("management", f"'{MG}'", "hresult AS result, FALSE AS is_fault", answered, failed),
        _results("clients", "interface_name", "hresult AS result, FALSE AS is_fault", answered, failed),
        _results("calls", "interface_name", "fault_status AS result, TRUE AS is_fault", captured, fault),
    )
    every = f"SELECT * FROM ({' UNION ALL '.join(parts)})"
    if limits.ignored_results:
        every += f" WHERE result NOT IN ({', '.join(map(str, limits.ignored_results))})"
    of = {"reads": REMOTE_READ_CALLS, "management": MANAGEMENT_CALLS, "clients": CLIENT_CALLS, "calls": RPC_CALLS}
    return _by_minute(Question(every, of), *call_alerts.FAILING[:5])


def _results(rows: str, interface: str, result: str, times: tuple[str, str], where: str) -> str:
    return (
        f"SELECT server_address, {interface} AS interface_name, opnum, {result},"
        f" unix_micros(coalesce({', '.join(times)})) AS `at`, call_key AS key FROM {{{rows}}} WHERE {where}"
    )


def _judged(_: Thresholds, span: Span) -> Question:
    names = ("rule_id", "subject", "observed_at", "actual", "evidence")
    return _of(FINDINGS, names, f"rule_id IN ('O01', 'O02') AND {span.holds('observed_at')}")


def _lost(_: Thresholds, span: Span) -> Question:
    """Ask for what captures have and lack of each server, by hours; hours that lack nothing are left out."""
    names = ("bytes", "bytes_missing")
    sums = ", ".join(f"CAST(sum(CASE WHEN measure = '{name}' THEN value END) AS bigint) AS {name}" for name in names)
    where = f"layer = 'transport' AND server_address IS NOT NULL AND {span.holds('hour')}"
    every = f"SELECT server_address, unix_micros(hour) AS hour, {sums} FROM {{rows}} WHERE {where} GROUP BY ALL"
    return Question(f"SELECT * FROM ({every}) WHERE bytes_missing > 0", {"rows": COVERAGE})


def _unanswered(_: Thresholds, span: Span) -> Question:
    """Ask how many snapshots of each queue manager there should be, and failed, by hours where any did."""
    hour = f"CAST(floor(unix_micros(asked_at) / {_HOUR_US}) * {_HOUR_US} AS bigint) AS hour"
    counts = "count(*) AS expected, count(error) AS missing, max(error) AS error"
    every = f"SELECT queue_manager, {hour}, {counts} FROM {{rows}} WHERE {span.holds('asked_at')} GROUP BY ALL"
    return Question(f"SELECT * FROM ({every}) WHERE missing > 0", {"rows": SNAPSHOTS_RAW})


SOURCES: Final = {
    "history": Source(
        _history,
        ("queue_manager", "queue"),
        lambda found, limits, now, _: queue_alerts.queues(found, limits, now),
        ("queue_disconnected", "queue_on_hold", "queue_stuck", "dead_letters_growing", "journal_growing",
         "nearly_full"),
    ),
    "transfers": Source(
        _transfers,
        ("queue_manager", "queue"),
        lambda found, limits, now, _: transfer_alerts.transfers(found, limits, now),
        ("transfer_stalled", "messages_unacknowledged", "messages_unread"),
    ),
    "sources": Source(
        _sources,
        ("queue_manager", "queue"),
        lambda found, limits, now, _: transfer_alerts.sources(found, limits, now),
        ("sequence_gap", "ends_disagree"),
    ),
    "attempts": Source(
        _attempts,
        ("server_address", "client_address"),
        lambda found, limits, now, known: call_alerts.receives(found, limits, now, known.names, known.ends),
        ("receives_not_ended", "ends_refused"),
    ),
    "negative": Source(
        _negative,
        ("class_name", "source_queue_manager"),
        lambda found, limits, now, _: call_alerts.negative(found, limits, now),
        ("negative_acknowledgements",),
    ),
    "failing": Source(
        _failing,
        ("server_address", "interface_name", "opnum", "result"),
        lambda found, limits, now, known: call_alerts.failing(found, limits, now, known.names),
        ("calls_failing",),
    ),
    "judged": Source(
        _judged,
        ("rule_id", "subject"),
        lambda found, limits, now, _: call_alerts.judged(found, limits, now),
        ("duplicate_queue_manager", "clocks_differ"),
    ),
    "lost": Source(
        _lost,
        ("server_address",),
        lambda found, limits, now, known: call_alerts.lost(found, limits, now, known.names),
        ("capture_lost",),
    ),
    "unanswered": Source(
        _unanswered,
        ("queue_manager",),
        lambda found, _, now, __: call_alerts.unanswered(found, now),
        ("snapshots_missing",),
    ),
}  # fmt: skip
"""Where alerts come from."""


def _by_minute(found: Question, *kind: str) -> Question:
    """Ask how many there are of each kind in each minute, from when to when, and for the keys of the first and last."""
    names, one = ", ".join(kind), f"PARTITION BY {', '.join(kind)}, floor(`at` / 60000000)"
    placed = f"""
SELECT {names}, floor(`at` / 60000000) AS minute, `at`, key,
  row_number() OVER ({one} ORDER BY `at` ASC NULLS FIRST, key ASC NULLS FIRST) AS place,
  row_number() OVER ({one} ORDER BY `at` DESC NULLS LAST, key DESC NULLS LAST) AS place_from_last
FROM {{answer}}"""
    ends = ", ".join(f"max(CASE WHEN {place} = 1 THEN key END)" for place in ("place", "place_from_last"))
    counts = f"min(`at`) AS `at`, max(`at`) AS last, count(*) AS count, array({ends}) AS evidence"
    return found.within(f"SELECT {names}, {counts} FROM ({placed}) GROUP BY {names}, minute")
