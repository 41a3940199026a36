"""The sources of alerts: for each a query over tables, and the function that finds alerts in its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from pipeline.alerts import (
    call_alerts,
    machine_alerts,
    queue_alerts,
    sending_alerts,
    session_alerts,
    transfer_alerts,
)
from pipeline.alerts.conditions import FAILURE_CAUSES, Thresholds
from pipeline.alerts.episodes import Alert
from pipeline.lake.queries.inputs import BoundQuery, FilteredTable, QueryInput
from pipeline.queues.ended_receives import with_known_ends
from pipeline.queues.history import is_dead_letter
from pipeline.queues.messages_read import next_receipts, waiting_intervals
from pipeline.silver.application_sql import FAILED_ENDPOINT_SQL, IS_FAILED_SQL
from pipeline.silver.canonical_queues import with_canonical_queues
from pipeline.transfers.hops.hop_sql import first_addresses, hop_rows_sql
from pipeline.transfers.messages.sender_clocks import LONG_TRANSIT
from pipeline.transfers.sequences.sequence_progress import ProgressEvidence, acknowledged_after, with_progress
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.coverage import COVERAGE
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import MACHINE_HISTORY, QUEUE_HISTORY
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from schemas.table import EVENT_DATE, TIMESTAMP, Table
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from udfs.call_results import succeeded_sql
from udfs.capture.record_order import CLOCK_SET
from udfs.codes import NEGATIVE_CLASS_BIT
from udfs.dcerpc.interfaces import QMMGMT_NAME
from udfs.rows import RowMapping
from udfs.stubs import method_registry
from udfs.times import HOUR_US, timedelta_to_us


class AlertContext(NamedTuple):
    """What alerts use beside rows: names of queue managers, ends of captures in microseconds, canonical queue names.

    The first two are by server address, the third by the names of queues in silver. ``skipped``: by server address the
    spans that clocks left out when they were set forward, microseconds.
    """

    queue_manager_names: Mapping[str, str]
    capture_ends: Mapping[str, int]
    canonical_queues: Mapping[str, str]
    skipped: Mapping[str, Sequence[tuple[int, int]]] = MappingProxyType({})


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


def _selected(table: Table, columns: Iterable[str], *more_times: str) -> str:
    """Return the SQL of columns; those that a table has as times, and ``more_times``, in microseconds."""
    times = {*more_times, *(column.name for column in table.columns if column.type == TIMESTAMP)}
    return ", ".join(f"unix_micros({name}) AS {name}" if name in times else name for name in columns)


def _select_rows(table: Table, columns: Iterable[str], where: str) -> BoundQuery:
    """Return a query for columns of a table, times in microseconds."""
    return BoundQuery(f"SELECT {_selected(table, columns)} FROM {{rows}} WHERE {where}", {"rows": table})


def _queue_history_query(limits: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query for states of queues, with what each report says of messages on their way."""
    history = FilteredTable(QUEUE_HISTORY, window.filter_sql("valid_from", "valid_to"))
    since = None if window.since is None else window.since - timedelta_to_us(limits.max_gap)
    sql = f"""
WITH history AS (SELECT {_selected(QUEUE_HISTORY, queue_alerts.HISTORY_COLUMNS)} FROM {{history}} AS every), sent AS (
  SELECT queue_manager, queue, queue_format_name, unix_micros(observed_at) AS valid_from,
    max(unacked_count) AS unacked_count
  FROM {{transfers}} WHERE {window._replace(since=since).filter_sql("observed_at")} GROUP BY ALL
)
SELECT history.*, sent.unacked_count FROM history LEFT JOIN sent
  ON sent.queue = history.queue AND sent.valid_from = history.valid_from
    AND sent.queue_manager IS NOT DISTINCT FROM history.queue_manager
    AND sent.queue_format_name IS NOT DISTINCT FROM history.queue_format_name"""
    return BoundQuery(sql, {"history": history, "transfers": EOD_TRANSFERS})


def _waits_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query for the intervals in which messages wait in queues and nothing shows that any was read."""
    waiting = waiting_intervals("{history}", "{transfers}", "{aliases}", f"timestamp_micros({window.now})")
    columns = _selected(QUEUE_HISTORY, queue_alerts.WAITING_COLUMNS, "waits_since", "waits_until")
    history = FilteredTable(QUEUE_HISTORY, window.filter_sql("valid_from", "valid_to"))
    inputs = {"history": history, "transfers": MESSAGE_TRANSFERS, "aliases": QUEUE_ALIASES}
    return BoundQuery(f"SELECT {columns} FROM {waiting} AS waiting", inputs)


def _machine_history_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    return _select_rows(MACHINE_HISTORY, machine_alerts.MACHINE_COLUMNS, window.filter_sql("valid_from", "valid_to"))


def _eod_transfers_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query for reports of outgoing queues, and what acknowledgements were captured after each."""
    now = f"timestamp_micros({window.now})"
    acks = acknowledged_after("{reports}", "{sequences}", "{aliases}", now)
    receipts = next_receipts("{reports}", "snapshot_id", "observed_at", "{transfers}", "{aliases}", now)
    columns = _selected(EOD_TRANSFERS, transfer_alerts.EOD_TRANSFER_COLUMNS, "acknowledged_at", "next_received_at")
    sql = f"""
SELECT {columns} FROM {{reports}} AS reports
  LEFT JOIN (SELECT snapshot_id AS acknowledged, acknowledged_at FROM {acks} AS every) AS acks
    ON acknowledged = snapshot_id
  LEFT JOIN {receipts} AS receipts ON of_row = snapshot_id"""
    inputs: dict[str, QueryInput] = {"reports": FilteredTable(EOD_TRANSFERS, window.filter_sql("observed_at"))}
    inputs |= {"sequences": TRANSFER_SEQUENCES, "transfers": MESSAGE_TRANSFERS, "aliases": QUEUE_ALIASES}
    return BoundQuery(sql, inputs)


def _eod_sources_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    return _select_rows(EOD_SOURCES, transfer_alerts.EOD_SOURCE_COLUMNS, window.filter_sql("observed_at"))


def _overdue_receives_query(limits: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query for receives that were held too long or until their reader was gone, or whose end was refused.

    It includes receives that are still open however old they are: their duration grows with the capture. Those that
    ended although no call shows it are left out.
    """
    long = f"hold_ms >= {timedelta_to_us(limits.unacknowledged_read_after) / 1000}"
    trouble = f"outcome IN ('in_flight', 'expired', 'rundown', 'failed') OR ack_refused OR {long}"
    in_trouble = FilteredTable(RECEIVE_ATTEMPTS, f"is_receive AND returned_at IS NOT NULL AND ({trouble})")
    where = window.filter_sql("returned_at", "ended_at", or_sql="outcome = 'in_flight'")
    rows = _select_rows(RECEIVE_ATTEMPTS, call_alerts.ATTEMPT_COLUMNS, f"{where} AND NOT ended_anyway")
    known = with_known_ends("{attempts}", "{transfers}", "{history}", "{sequences}", f"timestamp_micros({window.now})")
    sql = rows.sql.replace("{rows}", f"{known} AS known")
    inputs: dict[str, QueryInput] = {"attempts": in_trouble, "transfers": MESSAGE_TRANSFERS, "history": QUEUE_HISTORY}
    return BoundQuery(sql, inputs | {"sequences": ACK_SEQUENCES})


def _negative_acknowledgements_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query that counts negative acknowledgements (bit 15 of the class) per minute, when first seen.

    A dead letter has such a class too, and is no acknowledgement. A final acknowledgement is the same on each hop.
    """
    is_negative = f"class & {NEGATIVE_CLASS_BIT} <> 0"
    not_later = window._replace(since=None).filter_sql("sent_at")
    sql = f"""
SELECT class_name, queue_manager AS source_queue_manager, CAST(NULL AS string) AS queue,
  CAST(NULL AS string) AS inferred_queue, TRUE AS is_final, unix_micros(sent_at) AS `at`, packet_key AS key,
  coalesce(acknowledged_message_id || ' ' || class_name || ' ' || coalesce(queue_manager, ''), packet_key) AS subject
FROM {{order_acks}} WHERE kind = 'final_ack' AND {is_negative} AND {not_later}"""
    queues = {"read_from": "coalesce(rows.queue, rows.inferred_queue)", "own_queue": "rows.dead_letter_queue"}
    named = with_canonical_queues("{rows}", queues, "rows.*", "{aliases}")
    negative = BoundQuery(
        f"(SELECT * FROM {named} AS named WHERE NOT {is_dead_letter('read_from', 'own_queue')})",
        {"rows": FilteredTable(MESSAGES, is_negative), "aliases": QUEUE_ALIASES},
    )
    return _count_messages(
        call_alerts.NACK_COUNT_COLUMNS, negative, window, ("FALSE AS is_final",),
        BoundQuery(sql, {"order_acks": ORDER_ACKS}),
    )  # fmt: skip


def _rejected_containers_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query that counts COM+ messages that servers must reject per minute, when first seen."""
    rejected = BoundQuery("{rows}", {"rows": FilteredTable(MESSAGES, "comqc_rejected IS NOT NULL")})
    return _count_messages(call_alerts.REJECTED_COUNT_COLUMNS, rejected, window)


def _failed_messages_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query that counts messages that an endpoint could not process per minute, when first seen."""
    failure = f"concat_ws(': ', {FAILED_ENDPOINT_SQL}, coalesce(exception_type, 'no exception named')) AS failure"
    failed = BoundQuery(f"(SELECT *, {failure} FROM {{rows}})", {"rows": FilteredTable(MESSAGES, IS_FAILED_SQL)})
    return _count_messages(call_alerts.FAILED_COUNT_COLUMNS, failed, window)


def _count_messages(
    columns: tuple[str, ...],
    sightings: BoundQuery,
    window: TimeWindow,
    constants: tuple[str, ...] = (),
    others: BoundQuery | None = None,
) -> BoundQuery:
    """Return a query that counts messages per minute by the key of ``columns``, each when it was first seen.

    ``sightings`` are rows of silver.messages, as a relation: one that was captured on TCP 1801 counts for its
    destination queue. ``constants`` are further columns of the key. ``others`` has further rows to count: the key, the
    time ``at``, the call or packet ``key``, and ``subject``, which repeats where the same thing was seen again.
    """
    names = call_alerts.key_columns(columns)
    fields = ", ".join((*names, "`at`", "key", "subject"))
    not_later = window._replace(since=None).filter_sql("seen_at")
    every = f"""
SELECT {", ".join((names[0], "source_queue_manager", "inferred_queue", *constants))},
  CASE WHEN packet_key IS NULL THEN queue ELSE destination_queue END AS queue, unix_micros(seen_at) AS `at`,
  coalesce(call_key, packet_key) AS key, coalesce(message_key, sighting_key) AS subject
FROM {sightings.sql} AS sightings WHERE {not_later}"""
    inputs = dict(sightings.inputs)
    if others is not None:
        every = f"SELECT {fields} FROM ({every}) UNION ALL SELECT {fields} FROM ({others.sql})"
        inputs |= others.inputs
    seen = f"""
SELECT {fields}, row_number() OVER (
    PARTITION BY subject, {names[0]} ORDER BY `at` NULLS FIRST, key NULLS FIRST
  ) AS place
FROM ({every})"""
    since = "" if window.since is None else f" AND `at` >= {window.since}"
    first = BoundQuery(f"SELECT {', '.join(names)}, `at`, key FROM ({seen}) WHERE place = 1{since}", inputs)
    return _count_by_minute(first, *names)


def _sessions_query(limits: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query for sessions and connections that failed, or whose window was full too long.

    Beside a row stands when its client and its machines had opened other connections, or did next.
    """
    full_ms = timedelta_to_us(limits.window_full_after) / 1000
    long = " OR ".join(f"coalesce({side}_window_full_ms >= {full_ms}, FALSE)" for side in ("client", "server"))
    not_opened = "coalesce(outcome IN ('refused', 'unanswered'), FALSE)"
    failed = f"coalesce(not_established IN ({', '.join(map(repr, FAILURE_CAUSES))}), FALSE)"
    where = window.filter_sql("first_packet_at", "last_packet_at")
    of_session = ("establish_requested_at", "outcome", "ended", "client_window_full_ms", "server_window_full_ms")
    of_both = ("connection_id", "client_address", "server_address", "server_port", "first_packet_at", "last_packet_at",
               "closed_at", "not_established", "missing_bytes")  # fmt: skip
    before = "ORDER BY first_packet_at, connection_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    after = "ORDER BY first_packet_at, connection_id ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING"
    pair = "client_address, server_address"
    times = {name: f"unix_micros({name})" for name in session_alerts.SESSION_COLUMNS if name.endswith("_at")}
    selected = ", ".join(
        f"{times[name]} AS {name}" if name in times else name for name in session_alerts.SESSION_COLUMNS
    )
    sql = f"""
WITH sessions AS (
  SELECT connection_id, client_address, {", ".join(of_session)}, {not_opened} AS was_refused
  FROM {{sessions}} WHERE {where}
), found AS (
  SELECT {", ".join(of_both)}, kind, server_bytes FROM {{connections}} WHERE {where}
), clients AS (
  SELECT client_address FROM sessions WHERE was_refused OR {long}
  UNION SELECT client_address FROM found WHERE {failed}
), every AS (
  SELECT {", ".join(f"found.{name}" for name in of_both)}, {", ".join(of_session)},
    {failed} OR coalesce(was_refused, FALSE) OR {long} AS is_chosen,
    coalesce(outcome = 'open', FALSE) OR (kind = 'rpc' AND not_established IS NULL AND server_bytes > 0) AS opened
  FROM found LEFT JOIN sessions ON sessions.connection_id = found.connection_id
  WHERE found.client_address IN (SELECT client_address FROM clients)
), placed AS (
  SELECT *,
    unix_micros(max(CASE WHEN opened THEN last_packet_at END) OVER (PARTITION BY {pair} {before})) AS worked_until,
    unix_micros(max(CASE WHEN opened THEN first_packet_at END) OVER (PARTITION BY {pair}, server_port {before}))
      AS opened_before,
    unix_micros(max(CASE WHEN opened THEN first_packet_at END) OVER (PARTITION BY client_address {before}))
      AS client_opened_before,
    unix_micros(min(CASE WHEN opened THEN first_packet_at END) OVER (PARTITION BY client_address {after}))
      AS client_opened_after
  FROM every
)
SELECT {selected} FROM placed WHERE is_chosen"""
    return BoundQuery(sql, {"sessions": SESSIONS, "connections": CONNECTIONS})


def sequences_in_trouble_sql(sequences: str, now: str) -> str:
    """Return a subquery for rows of gold.transfer_sequences that stalled or are refused, with ``followed_at``.

    That is when another sequence of the same series (``sending_alerts.SERIES``) began after it, as known ``now``.
    """
    series = f"PARTITION BY {', '.join(sending_alerts.SERIES)} ORDER BY first_sent_at, sequence_key"
    is_other = f"transaction_sequence_id IS DISTINCT FROM lag(transaction_sequence_id) OVER ({series})"
    later = f"({series} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)"
    return f"""(
  SELECT * FROM (
    SELECT *, min(CASE WHEN is_other THEN first_sent_at END) OVER {later} AS followed_at
    FROM (SELECT *, {is_other} AS is_other FROM {sequences} WHERE first_sent_at <= {now})
  ) WHERE stalls IS NOT NULL OR condition = '{sending_alerts.REFUSED}'
)"""


def _sequences_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query for sequences in trouble, what shows their progress, and connections that failed meanwhile.

    Each has the first addresses of its hop.
    """
    beside = (*sending_alerts.FIRST_ADDRESSES, *sending_alerts.FAILURE_COLUMNS)
    columns = [name for name in sending_alerts.ALERT_SEQUENCE_COLUMNS if name not in beside]
    times = ("progress_at", "accepted_reported_at", "refused_until", "followed_at")
    now = f"timestamp_micros({window.now})"
    selected = _selected(TRANSFER_SEQUENCES, ["sequence_key", *columns], *times)
    progress = with_progress(sequences_in_trouble_sql("{rows}", now), ProgressEvidence(now=now))
    rows = FilteredTable(TRANSFER_SEQUENCES, window.filter_sql("first_sent_at", "last_packet_at"))
    failed = f"not_established IN ({', '.join(map(repr, FAILURE_CAUSES))})"
    sql = f"""
WITH found AS (SELECT {selected} FROM {progress} AS every), failed AS (
  SELECT client_address, server_address, not_established, unix_micros(first_packet_at) AS `at`,
    lpad(CAST(unix_micros(first_packet_at) AS string), 20, '0') || connection_id AS place
  FROM {{connections}}
  WHERE {failed} AND kind = 'binary_protocol' AND first_packet_at <= timestamp_micros({window.now})
), between_ends AS (
  SELECT found.sequence_key, min(`at`) AS failed_since, max(`at`) AS failed_until,
    max_by(client_address, place) AS failed_client, max_by(not_established, place) AS failed_cause
  FROM found JOIN failed ON `at` >= found.first_sent_at
    AND ((client_address = sender_address AND server_address = receiver_address)
      OR (client_address = receiver_address AND server_address = sender_address))
  WHERE found.stalls IS NOT NULL GROUP BY found.sequence_key
), hops AS (
  SELECT hop_key, min_by(sender_address, place) AS first_sender, min_by(receiver_address, place) AS first_receiver
  FROM (SELECT *, struct(first_sent_at, sequence_key) AS place FROM {{sequences}})
  WHERE hop_key IN (SELECT hop_key FROM found) GROUP BY hop_key
)
SELECT {", ".join(f"found.{name}" for name in columns)}, {", ".join(beside)}
FROM found LEFT JOIN between_ends ON between_ends.sequence_key = found.sequence_key
  JOIN hops ON hops.hop_key = found.hop_key"""
    inputs: dict[str, QueryInput] = {"rows": rows, "message_transfers": MESSAGE_TRANSFERS}
    inputs |= {"eod_transfers": EOD_TRANSFERS, "eod_sources": EOD_SOURCES, "queue_aliases": QUEUE_ALIASES}
    return BoundQuery(sql, inputs | {"connections": CONNECTIONS, "sequences": TRANSFER_SEQUENCES})


def _resends_query(limits: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query that counts sendings and resends per hop and minute, of hops with enough resends for an alert.

    A hop is between two queue managers (``hop_key``); it has the addresses that sent first. Only messages that were
    sent again, which are few, are joined with their packets: by one address more than once, or by several.

    Times of several clocks are counted apart: ``clock`` is that of a capture which saw a session side by side with
    another one, or whose clock was set, as far as other captures show before a place or behind it; null is the one of
    all others. What was sent at times that a clock showed twice is left out.
    """
    sql = f"""
WITH pairs AS (
  SELECT sender_address, receiver_address, hop_key, unix_micros(min(first_sent_at)) AS since FROM {{transfers}}
  GROUP BY sender_address, receiver_address, hop_key
), of_pairs AS (
  SELECT sender_address, receiver_address, min(hop_key) AS hop_key FROM pairs GROUP BY sender_address, receiver_address
), several AS (SELECT hop_key FROM pairs GROUP BY hop_key HAVING count(*) > 1),
chosen AS (
  SELECT *, coalesce(destination_queue, '') AS queue FROM {{transfers}}
  WHERE (sendings > 1 OR hop_key IN (SELECT hop_key FROM several))
    AND {window.filter_sql("first_sent_at", "last_sent_at")}
), again AS (
  SELECT message_key, queue, hop_key, sum(sendings) - 1 AS resends, unix_micros(min(first_sent_at)) AS first_sent_us
  FROM chosen GROUP BY message_key, queue, hop_key HAVING sum(sendings) > 1
), hops AS (
  SELECT hop_key, {first_addresses("place")}
  FROM (SELECT *, struct(since, sender_address, receiver_address) AS place FROM pairs)
  WHERE hop_key IN (SELECT hop_key FROM again GROUP BY hop_key HAVING sum(resends) >= {limits.resends})
  GROUP BY hop_key
), packets AS (
  SELECT messages.packet_key, chosen.sender_address, chosen.receiver_address, again.first_sent_us
  FROM again JOIN chosen ON chosen.message_key = again.message_key AND chosen.queue = again.queue
    AND chosen.hop_key = again.hop_key
  JOIN {{messages}} AS messages ON messages.message_key = again.message_key
    AND coalesce(messages.destination_queue, '') = again.queue
), pairs_of_taps AS (
  SELECT explode(overlapping_captures) AS pair FROM {{sessions}} WHERE overlapping_captures IS NOT NULL
), own_steps AS (
  SELECT capture_id, explode(times_go_back) AS step FROM {{captures}} WHERE times_go_back IS NOT NULL
), steps_of_taps AS (
  SELECT capture_id, explode(tap_steps) AS step FROM {{captures}} WHERE tap_steps IS NOT NULL
), clocks AS (
  SELECT pair.one AS capture_id FROM pairs_of_taps UNION SELECT pair.other FROM pairs_of_taps
  UNION SELECT capture_id FROM own_steps UNION SELECT capture_id FROM steps_of_taps
), found AS (
  SELECT packet_key, sender_address, receiver_address, hop_key, capture_id, unix_micros(sent_at) AS `at`
  FROM {{sendings}} JOIN of_pairs USING (sender_address, receiver_address)
  WHERE hop_key IN (SELECT hop_key FROM hops) AND {window.filter_sql("sent_at")}
), passed AS (
  SELECT found.packet_key, count(*) AS places FROM found JOIN steps_of_taps
    ON steps_of_taps.capture_id = found.capture_id AND unix_micros(step.first_at) <= found.`at`
  GROUP BY found.packet_key
), twice AS (
  SELECT DISTINCT found.packet_key FROM found JOIN own_steps
    ON own_steps.capture_id = found.capture_id AND found.`at` BETWEEN unix_micros(step.`at`)
      AND unix_micros(step.`at`) + step.back_us
  WHERE step.back_us > 0 AND step.cause = '{CLOCK_SET}'
), sent AS (
  SELECT found.*, clocks.capture_id || ' ' || CAST(coalesce(passed.places, 0) AS string) AS clock
  FROM found LEFT JOIN clocks ON clocks.capture_id = found.capture_id
    LEFT JOIN passed ON passed.packet_key = found.packet_key
    LEFT JOIN twice ON twice.packet_key = found.packet_key
  WHERE twice.packet_key IS NULL
), judged AS (
  SELECT sent.packet_key, sent.hop_key, sent.clock, sent.`at`,
    coalesce(sent.`at` > packets.first_sent_us, FALSE) AS is_resend,
    lpad(CAST(sent.`at` AS string), 20, '0') || sent.packet_key AS place
  FROM sent LEFT JOIN packets ON packets.packet_key = sent.packet_key
    AND packets.sender_address = sent.sender_address AND packets.receiver_address = sent.receiver_address
)
SELECT hops.sender_address, hops.receiver_address, clock, CAST(floor(`at` / 60000000) AS bigint) AS minute,
  count(*) AS sendings, count_if(is_resend) AS resends,
  min(`at`) FILTER (WHERE is_resend) AS first_at, max(`at`) FILTER (WHERE is_resend) AS last_at,
  array(substr(min(place) FILTER (WHERE is_resend), 21), substr(max(place) FILTER (WHERE is_resend), 21)) AS evidence
FROM judged JOIN hops ON hops.hop_key = judged.hop_key
GROUP BY hops.sender_address, hops.receiver_address, clock, CAST(floor(`at` / 60000000) AS bigint)"""
    inputs: dict[str, QueryInput] = {"messages": FilteredTable(MESSAGES, "packet_key IS NOT NULL")}
    inputs |= {"sendings": SENDINGS, "transfers": MESSAGE_TRANSFERS, "sessions": SESSIONS, "captures": CAPTURE_FILES}
    return BoundQuery(sql, inputs)


def _slow_transfers_query(limits: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query that counts messages per hop and minute whose session acknowledgement came too late.

    A hop is between two queue managers (``hop_key``); it has the addresses that sent first.
    """
    slow = FilteredTable(MESSAGE_TRANSFERS, f"session_ack_ms >= {timedelta_to_us(limits.slow_after) / 1000}")
    acked = f"(SELECT * FROM {{rows}} WHERE session_acked_at IS NOT NULL AND {window.filter_sql('session_acked_at')})"
    sql = f"""
SELECT hops.sender_address, hops.receiver_address, unix_micros(session_acked_at) AS `at`,
  try_element_at(evidence, 1) AS key
FROM {hop_rows_sql(acked, "hop_key, session_acked_at, evidence")} AS slow JOIN (
  SELECT hop_key, {first_addresses("struct(first_sent_at, transfer_key)")} FROM {{rows}} GROUP BY hop_key
) AS hops ON hops.hop_key = slow.hop_key"""
    return _count_by_minute(
        BoundQuery(sql, {"rows": slow}), *call_alerts.key_columns(sending_alerts.SLOW_COUNT_COLUMNS)
    )


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
    return _count_by_minute(BoundQuery(every, tables), *call_alerts.key_columns(call_alerts.FAILURE_COUNT_COLUMNS))


def _call_results_sql(rows: str, interface: str, result: str, times: tuple[str, str], where: str) -> str:
    return (
        f"SELECT server_address, {interface} AS interface_name, opnum, {result},"
        f" unix_micros(coalesce({', '.join(times)})) AS `at`, call_key AS key FROM {{{rows}}} WHERE {where}"
    )


def _findings_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    names = ("rule_id", "subject", "observed_at", "actual", "evidence")
    return _select_rows(FINDINGS, names, f"rule_id IN ('O01', 'O02', 'O07') AND {window.filter_sql('observed_at')}")


def _clocks_query(limits: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query for what the messages of each queue manager and day show of its clock."""
    sql = f"""
SELECT source_queue_manager, count(*) AS messages, min(transit) AS least_transit_us, min(`at`) AS first_at,
  max(`at`) AS last_at, min_by(key, transit) AS evidence, count_if(is_ahead) AS ahead_count,
  min(CASE WHEN is_ahead THEN `at` END) AS first_ahead_at, max(CASE WHEN is_ahead THEN `at` END) AS last_ahead_at
FROM (
  SELECT source_queue_manager, {EVENT_DATE}, unix_micros(first_sent_at) AS `at`, try_element_at(evidence, 1) AS key,
    unix_micros(first_sent_at) - unix_micros(sent_at) AS transit,
    unix_micros(sent_at) - unix_micros(first_sent_at) >= {timedelta_to_us(limits.max_clock_difference)} AS is_ahead
  FROM {{rows}} WHERE sent_at IS NOT NULL AND source_queue_manager IS NOT NULL
    AND {window.filter_sql("first_sent_at")}
) GROUP BY source_queue_manager, {EVENT_DATE}
HAVING min(transit) <= 0 OR min(transit) >= {timedelta_to_us(LONG_TRANSIT)}"""
    return BoundQuery(sql, {"rows": MESSAGE_TRANSFERS})


def _capture_loss_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query for the bytes captured and missing per server and hour, of hours that lack any."""
    names = ("bytes", "bytes_missing")
    sums = ", ".join(f"CAST(sum(CASE WHEN measure = '{name}' THEN value END) AS bigint) AS {name}" for name in names)
    where = f"layer = 'transport' AND server_address IS NOT NULL AND {window.filter_sql('hour')}"
    every = f"SELECT server_address, unix_micros(hour) AS hour, {sums} FROM {{rows}} WHERE {where} GROUP BY ALL"
    return BoundQuery(f"SELECT * FROM ({every}) WHERE bytes_missing > 0", {"rows": COVERAGE})


def _missing_snapshots_query(_: Thresholds, window: TimeWindow) -> BoundQuery:
    """Return a query that counts expected and failed snapshots per queue manager and hour, of hours with failures."""
    hour = f"CAST(floor(unix_micros(asked_at) / {HOUR_US}) * {HOUR_US} AS bigint) AS hour"
    counts = "count(*) AS expected, count(error) AS missing, max(error) AS error"
    every = f"SELECT queue_manager, {hour}, {counts} FROM {{rows}} WHERE {window.filter_sql('asked_at')} GROUP BY ALL"
    return BoundQuery(f"SELECT * FROM ({every}) WHERE missing > 0", {"rows": SNAPSHOTS_RAW})


ALERT_SOURCES: Final = {
    "history": AlertSource(
        _queue_history_query,
        ("queue_manager", "queue"),
        lambda rows, limits, now, _: queue_alerts.history_alerts(rows, limits, now),
        ("queue_disconnected", "queue_on_hold", "dead_letters_growing", "journal_growing", "nearly_full"),
    ),
    "waits": AlertSource(
        _waits_query,
        ("queue_manager", "queue"),
        lambda rows, limits, now, _: queue_alerts.waiting_alerts(rows, limits, now),
        ("queue_stuck",),
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
    "sessions": AlertSource(
        _sessions_query,
        ("client_address",),
        lambda rows, limits, now, context: session_alerts.session_alerts(
            rows, limits, now, context.queue_manager_names
        ),
        ("sessions_refused", "window_full"),
    ),
    "sequences": AlertSource(
        _sequences_query,
        ("source_queue_manager", "destination_queue", "hop_key"),
        lambda rows, limits, now, context: sending_alerts.sequence_alerts(
            rows, limits, now, context.queue_manager_names, context.canonical_queues
        ),
        ("order_acks_stalled", "sequence_refused"),
    ),
    "resends": AlertSource(
        _resends_query,
        ("sender_address", "receiver_address"),
        lambda rows, limits, now, context: sending_alerts.resend_alerts(
            rows, limits, now, context.queue_manager_names
        ),
        ("resend_storm",),
    ),
    "slow_transfers": AlertSource(
        _slow_transfers_query,
        ("sender_address", "receiver_address"),
        lambda rows, limits, now, context: sending_alerts.slow_transfer_alerts(
            rows, limits, now, context.queue_manager_names
        ),
        ("transfers_slow",),
    ),
    "attempts": AlertSource(
        _overdue_receives_query,
        ("server_address", "client_address"),
        lambda rows, limits, now, context: call_alerts.receive_alerts(
            rows, limits, now, context.queue_manager_names, context.capture_ends, context.skipped
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
    "failed_messages": AlertSource(
        _failed_messages_query,
        ("failure", "source_queue_manager"),
        lambda rows, limits, now, context: call_alerts.failed_message_alerts(
            rows, limits, now, context.canonical_queues
        ),
        ("application_failing",),
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
    "clocks": AlertSource(
        _clocks_query,
        ("source_queue_manager",),
        lambda rows, limits, now, _: call_alerts.clock_alerts(rows, limits, now),
        ("clocks_differ",),
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
