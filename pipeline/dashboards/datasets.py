"""What the pages show, as SQL over the lake's tables: each dataset once, whole rows and sums over all of them.

In the texts ``{name}`` stands for a table, ``{step}`` for the length of the pieces of time that sums are made of,
seconds. Sums have the names of the rows that they stand for, and ``n``, how many these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.table import literal
from udfs.codes import FAILURE
from udfs.dcerpc.interfaces import BY_NAME

STEPS: Final = (1, 10, 60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400, 100 * 366 * 86_400)
MOST_EVIDENCE: Final = 12  # keys of evidence that travel with a row; ``evidence_count`` says how many there are


@dataclass(frozen=True, slots=True)
class Dataset:
    """One dataset: where from, its rows, and, for when they are too many, which come first and what sums are made.

    ``table`` is the one that gives the rows, ``needs`` others without which there are none. ``each`` are the groups of
    which every one keeps its first rows by ``first``. ``groups`` and ``sums`` make the sums over all rows, by pieces of
    ``time``; ``summed`` is their SQL where it is not just that, and ``guess`` how many rows that gives.
    """

    name: str
    table: str
    rows: str
    first: str
    chosen: str
    each: str = ""
    time: str = ""
    groups: str = ""
    sums: str = ""
    summed: str = ""
    guess: str = ""
    needs: tuple[str, ...] = ()

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables that the SQL names."""
        return (self.table, *self.needs)


class Last(NamedTuple):
    """A dataset of the newest rows by ``time`` of another one, one for each of ``each``; the rest as in Dataset."""

    name: str
    of: str
    each: str
    time: str
    first: str
    chosen: str


def _named(opnum: str) -> str:
    """SQL for a method's name, of the columns interface_name and opnum of ``opnum``'s table."""
    names = ", ".join(
        f"{literal(f'{interface.name}:{number}')}, {literal(method)}"
        for interface in BY_NAME.values()
        for number, method in enumerate(interface.methods)
    )
    return f"try_element_at(map({names}), concat({opnum}.interface_name, ':', {opnum}.opnum))"


_EVIDENCE: Final = (
    f"confidence, missing, slice(evidence, 1, {MOST_EVIDENCE}) AS evidence, size(evidence) AS evidence_count"
)
_QUEUE: Final = "queue, queue_manager, queue_format_name"
_TRANSFER: Final = (
    "snapshot_id, source, observed_at, sequence_id, last_acked_number, first_unacked_number, last_unacked_number, "
    "next_number, unacked_count, unread_count, last_ack_at, resend_count, resend_interval_s, next_resend_at, "
    "ladder_step, ladder_interval_s, acked_per_s, sent_per_s, in_flight_s, stalled_since, sequence_reset, condition"
)
_ANSWER_MS: Final = "(unix_micros(c.response_at) - unix_micros(c.request_at)) / 1000D"
_NOT_A_FAILURE: Final = "'MQ_ERROR_IO_TIMEOUT'"  # a receive that waited in vain did what it was asked
_RESULTS: Final = " UNION ALL ".join(
    f"SELECT call_key, hresult, hresult_name FROM {{{name}}}"
    for name in ("remote_read_calls", "management_calls", "client_calls")
)

CALLS: Final = Dataset(
    "calls",
    "bronze.rpc_calls",
    f"""SELECT c.call_key, c.connection_id, c.interface_name, {_named("c")} AS method, c.opnum,
       c.client_address, c.client_port, c.server_address, c.server_port, c.request_at, c.response_at,
       {_ANSWER_MS} AS answer_ms, c.outcome, c.fault_status, r.hresult_name,
       CASE WHEN c.outcome = 'fault' THEN concat('fault ', format_string('0x%08X', c.fault_status))
            WHEN c.outcome <> 'ok' THEN c.outcome ELSE coalesce(r.hresult_name, 'ok') END AS result,
       c.outcome IN ('fault', 'no_response', 'damaged')
         OR coalesce(r.hresult >= {FAILURE} AND r.hresult_name <> {_NOT_A_FAILURE}, FALSE) AS failed,
       c.sealed, c.opened_by, c.closed_reason, c.capture_id, c.request_packet, c.response_capture_id,
       c.response_packet
FROM {{rpc_calls}} c LEFT JOIN ({_RESULTS}) r ON c.call_key = r.call_key""",
    first="request_at DESC, call_key",
    chosen="the newest of each method, server and result",
    each="interface_name, method, server_address, result",
    time="request_at",
    groups=(
        "interface_name, method, server_address, client_address, outcome, result, failed, "
        "pow(2, (floor(log2(greatest(answer_ms, 0.001)) * 4) + 0.5) / 4) AS answer_ms"
    ),
    sums="count(*) AS n, max(answer_ms) AS answer_ms_max",
    needs=("silver.remote_read_calls", "silver.management_calls", "silver.client_calls"),
)

DATASETS: Final = (
    Dataset(
        "intervals",
        "gold.queue_history",
        f"""SELECT {_QUEUE}, interval_key, valid_from, valid_to, state, message_count, bytes, journal_count,
       journal_bytes, received, peeked, nacked, moved_in, moved_out, purged, paused, expected_message_count,
       unexplained_change, source, {_EVIDENCE}
FROM {{queue_history}}""",
        first="valid_from DESC, interval_key",
        chosen="the newest of each queue",
        each=_QUEUE,
        summed=f"""SELECT {_QUEUE}, timestamp_seconds(place * {{step}}) AS valid_from,
       timestamp_seconds((place + 1) * {{step}}) AS valid_to,
       max_by(state, least(unix_micros(valid_to), (place + 1) * {{step}} * 1000000)
                     - greatest(unix_micros(valid_from), place * {{step}} * 1000000)) AS state,
       max(message_count) AS message_count, max(bytes) AS bytes, max(journal_count) AS journal_count,
       max(journal_bytes) AS journal_bytes, count(*) AS n
FROM {{queue_history}} LATERAL VIEW explode(sequence(
       unix_seconds(valid_from) div {{step}}, (unix_micros(valid_to) - 1) div 1000000 div {{step}})) AS place
GROUP BY {_QUEUE}, place""",
        guess=f"""SELECT approx_count_distinct(struct({_QUEUE}))
  * (1 + (unix_seconds(max(valid_to)) - unix_seconds(min(valid_from))) / {{step}}) FROM {{queue_history}}""",
    ),
    Dataset(
        "transfer_points",
        "gold.eod_transfers",
        f"SELECT {_QUEUE}, {_TRANSFER}, {_EVIDENCE} FROM {{eod_transfers}}",
        first="observed_at DESC, snapshot_id",
        chosen="the newest of each queue",
        each=f"{_QUEUE}, source",
        time="observed_at",
        groups=f"{_QUEUE}, source",
        sums=(
            "max(unacked_count) AS unacked_count, max(resend_count) AS resend_count, max(in_flight_s) AS in_flight_s, "
            "avg(acked_per_s) AS acked_per_s, avg(sent_per_s) AS sent_per_s, "
            "max_by(condition, observed_at) AS condition, count(*) AS n"
        ),
    ),
    Dataset(
        "sources",
        "gold.eod_sources",
        f"""SELECT last.*
FROM (SELECT max_by(struct(queue, queue_manager, sender_queue_manager, sender_format_name, sender_queue, source,
        observed_at, sequence_id, last_number, last_access_at, reject_count, disagrees_with_sender, source_key,
        snapshot_id, {_EVIDENCE}), struct(observed_at, source_key)) AS last
      FROM {{eod_sources}} GROUP BY queue, queue_manager, sender_queue_manager, sender_format_name, source)""",
        first="disagrees_with_sender NULLS LAST, reject_count DESC NULLS LAST, queue",
        chosen="those that disagree or reject first",
    ),
    Dataset(
        "attempts",
        "gold.receive_attempts",
        f"""SELECT attempt_key, protocol, queue, inferred_queue, server_address, server_port, client_address,
       client_port, action_name, is_receive, transactional, started_at, returned_at, ended_at, wait_ms, hold_ms,
       timeout_ms, lookup_id, message_key, message_bytes, start_hresult, end_hresult, outcome, ack_refused,
       ack_unanswered, {_EVIDENCE}
FROM {{receive_attempts}}""",
        first="started_at DESC, attempt_key",
        chosen="the newest of each queue, server and outcome",
        each="queue, inferred_queue, server_address, outcome",
        time="started_at",
        groups="protocol, queue, inferred_queue, server_address, client_address, outcome",
        sums="count(*) AS n, max(wait_ms) AS wait_ms, max(hold_ms) AS hold_ms",
    ),
    Dataset(
        "sequences",
        "gold.ack_sequences",
        f"""SELECT sequence_key, queue, inferred_queue, server_address, lookup_id, message_key, attempts, peeks,
       outcomes, readers, first_attempt_at, settled_at, fate, redelivered, loss_risk, moved_to, removed_at,
       slice(attempt_keys, 1, {MOST_EVIDENCE}) AS attempt_keys, {_EVIDENCE}
FROM {{ack_sequences}}""",
        first="loss_risk NULLS LAST, redelivered DESC, first_attempt_at DESC, sequence_key",
        chosen="the newest of each queue, fate and risk, those at risk first",
        each="queue, inferred_queue, fate, loss_risk",
        time="first_attempt_at",
        groups="queue, inferred_queue, server_address, fate, loss_risk, redelivered",
        sums="count(*) AS n",
    ),
    Dataset(
        "operations",
        "gold.queue_operations",
        f"""SELECT call_key, operation, protocol, queue, target_queue, client_address, server_address, lookup_id,
       requested_at, responded_at, hresult, outcome, {_EVIDENCE}
FROM {{queue_operations}}""",
        first="requested_at DESC, call_key",
        chosen="the newest",
    ),
    CALLS,
    Dataset(
        "comqc",
        "silver.comqc_calls",
        """SELECT q.sighting_key, q.call_index, q.message_key, q.call_key, q.seen_at, m.queue, m.inferred_queue,
       m.label, m.message_id, m.source_queue_manager, q.header, q.target_clsid, q.target_text, q.partition_id,
       q.interface_id, q.is_dispatch, q.opnum, q.dispatch_id, q.dispatch_flags, q.marshaled_bytes, q.arguments, q.errors
FROM {comqc_calls} q LEFT JOIN {messages} m ON q.sighting_key = m.sighting_key""",
        first="seen_at DESC, sighting_key, call_index",
        chosen="the newest of each class, interface and method",
        each="target_clsid, interface_id, opnum, dispatch_id",
        time="seen_at",
        groups="queue, inferred_queue, target_clsid, interface_id, is_dispatch, opnum, dispatch_id",
        sums="count(*) AS n, sum(marshaled_bytes) AS marshaled_bytes",
        needs=("silver.messages",),
    ),
    Dataset(
        "findings",
        "gold.findings",
        f"""SELECT finding_key, rule_id, source, severity, subject, server_address, scope, observed_at, message,
       expected, actual, call_key, {_EVIDENCE}
FROM {{findings}}""",
        first="severity, observed_at DESC, finding_key",
        chosen="the newest of each rule and subject",
        each="rule_id, subject",
        time="observed_at",
        groups="rule_id, source, severity, subject, server_address, scope",
        sums="count(*) AS n",
    ),
    Dataset(
        "alerts",
        "gold.alerts",
        f"""SELECT alert_key, condition, severity, subject, queue, queue_manager, since, until, last_seen_at, message,
       suggestion, {_EVIDENCE}
FROM {{alerts}}""",
        first="until IS NOT NULL, severity, since DESC, alert_key",
        chosen="those that hold first, then the newest",
    ),
    Dataset(
        "quality",
        "gold.quality_results",
        """SELECT result_key, run_at, run_id, `table`, suite, expectation, severity, success, evaluated, unexpected,
       observed, scope
FROM (SELECT *, rank() OVER (PARTITION BY suite ORDER BY run_at DESC, run_id DESC) AS _place FROM {quality_results})
WHERE _place = 1""",
        first="success, severity, `table`, expectation, result_key",
        chosen="those that failed first",
    ),
    Dataset(
        "coverage",
        "gold.coverage",
        "SELECT hour, server_address, layer, measure, value FROM {coverage}",
        first="hour DESC, layer, measure, server_address",
        chosen="the newest",
        time="hour",
        groups="server_address, layer, measure",
        sums="sum(value) AS value, count(*) AS n",
    ),
    Dataset(
        "captures",
        "bronze.capture_files",
        """SELECT capture_id, path, format, compression, status, error, size_bytes, packets, packets_used,
       packets_binary_protocol, packets_other, packets_damaged, packets_truncated, packets_dropped, first_packet_at,
       last_packet_at
FROM {capture_files}""",
        first="status = 'complete', last_packet_at DESC, path",
        chosen="those that are not complete first, then the newest",
    ),
)  # fmt: skip

LAST: Final = (
    Last("queues", "intervals", _QUEUE, "valid_from", "message_count DESC NULLS LAST, queue, queue_manager",
         "those that hold the most messages"),
    Last("transfers", "transfer_points", f"{_QUEUE}, source", "observed_at",
         "unacked_count DESC NULLS LAST, queue, queue_manager", "those with the most that is not acknowledged"),
)  # fmt: skip
"""What was told last: of the rows of a dataset the newest of each group."""

LABELS: Final = """SELECT message_key, first.*
FROM (SELECT message_key, min_by(struct(label, message_id, class_name, sent_at,
       source_queue_manager, body_bytes), struct(seen_at, sighting_key)) AS first
FROM {messages} WHERE message_key IN (SELECT key FROM {wanted}) GROUP BY message_key)"""
"""Of the messages that shown rows name: what they are called."""

PATHS: Final = """SELECT capture_id, path FROM {capture_files} WHERE capture_id IN (SELECT key FROM {wanted})"""
"""Of the captures that shown calls are in: their files."""

SNAPSHOTS: Final = """SELECT snapshot_id, queue_manager, object_type, format_name, asked_at, error, source_path,
       source_line
FROM {snapshots_raw} WHERE snapshot_id IN (SELECT key FROM {wanted})"""
"""Of the snapshots that shown rows rest on: file and line."""

HOSTS: Final = """SELECT host_key, queue_manager_id, host_name, address, source, first_seen_at, last_seen_at, sightings
FROM {hosts} WHERE host_key IN (SELECT key FROM {wanted})"""
"""Of the names and addresses that shown rows rest on: what was seen together, and when."""
