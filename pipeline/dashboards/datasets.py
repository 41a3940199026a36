"""SQL of the dashboard datasets (``Dataset``); those of the binary protocol are in ``transfer_datasets.py``."""

from __future__ import annotations

from typing import Final

from pipeline.dashboards.dataset_definition import EVIDENCE_COLUMNS, MAX_EVIDENCE_KEYS, Dataset, log_bucket_midpoint_sql
from pipeline.dashboards.transfer_datasets import TRANSFER_DATASETS
from pipeline.queues.last_reports import (
    LAST_MACHINE_REPORTS_SQL,
    LAST_QUEUE_REPORTS_SQL,
    LAST_SENDERS_SQL,
    LAST_TRANSFERS_SQL,
)
from pipeline.reports.packet_export.evidence import TABLES_WITH_PACKETS
from pipeline.silver.canonical_queues import with_canonical_queues
from pipeline.text import cut_text_sql
from schemas.table import literal
from udfs.call_results import response_ms_sql, succeeded_sql
from udfs.codes import MQ_ERROR_IO_TIMEOUT, MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT
from udfs.dcerpc.interfaces import INTERFACES_BY_NAME

QUALITY_RUNS: Final = 12  # the newest checks of a suite, whose results are shown one beside the other


def _method_name_sql(alias: str) -> str:
    """Return SQL for the method name of a row, from ``interface_name`` and ``opnum`` of a table alias."""
    names = " ".join(
        f"WHEN {literal(f'{interface.name}:{number}')} THEN {literal(method)}"
        for interface in INTERFACES_BY_NAME.values()
        for number, method in enumerate(interface.methods)
    )
    return f"CASE {alias}.interface_name || ':' || CAST({alias}.opnum AS string) {names} END"


_QUEUE_COLUMNS: Final = "queue, queue_manager, queue_format_name"
_TRANSFER_COLUMNS: Final = (
    "snapshot_id, observed_at, sequence_id, last_acked_number, first_unacked_number, last_unacked_number, "
    "next_number, unacked_count, unread_count, last_ack_at, resend_count, resend_interval_s, next_resend_at, "
    "ladder_step, ladder_interval_s, acked_per_s, sent_per_s, in_flight_s, stalled_since, sequence_reset, condition"
)
_MESSAGES_SQL: Final = with_canonical_queues(
    "{messages}",
    {"queue": "rows.queue", "inferred_queue": "rows.inferred_queue"},
    "sighting_key, label, message_id, source_queue_manager",
    "{queue_aliases}",
)
_RESPONSE_MS: Final = response_ms_sql("c.request_at", "c.response_at", "c.clocks")
# Not failures: the receive waited for as long as requested, or until its client cancelled it.
_ENDS_OF_A_WAIT: Final = f"({MQ_ERROR_IO_TIMEOUT}, {MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT})"
_RESULTS_SQL: Final = " UNION ALL ".join(
    f"SELECT call_key, hresult, {port} AS returned_port, hresult_name, fault_name FROM {{{name}}}"
    for name, port in (
        ("remote_read_calls", "returned_port"),
        ("management_calls", "CAST(NULL AS bigint)"),
        ("client_calls", "returned_port"),
    )
)
_SUCCEEDED_SQL: Final = succeeded_sql("c.interface_name", "r.hresult", "r.returned_port")

CALLS_DATASET: Final = Dataset(
    "calls",
    "bronze.rpc_calls",
    f"""SELECT c.call_key, c.connection_id, c.interface_name, {_method_name_sql("c")} AS method, c.opnum,
       c.client_address, c.client_port, c.server_address, c.server_port, c.request_at, c.response_at,
       {_RESPONSE_MS} AS response_ms, c.outcome, c.fault_status, r.hresult_name,
       CASE WHEN c.outcome = 'fault'
              THEN concat_ws(' ', 'fault', coalesce(r.fault_name, '0x' || lpad(hex(c.fault_status), 8, '0')))
            WHEN c.outcome <> 'ok' THEN c.outcome
            WHEN r.returned_port = 0 THEN 'port 0' ELSE coalesce(r.hresult_name, 'ok') END AS result,
       c.outcome IN ('fault', 'no_response', 'damaged')
         OR coalesce(NOT {_SUCCEEDED_SQL} AND coalesce(r.hresult NOT IN {_ENDS_OF_A_WAIT}, TRUE), FALSE) AS failed,
       c.sealed, c.opened_by, c.closed_reason, c.capture_id, c.request_packet, c.response_capture_id,
       c.response_packet
FROM {{rpc_calls}} c LEFT JOIN ({_RESULTS_SQL}) r ON c.call_key = r.call_key""",
    order_by="request_at DESC, call_key",
    selection="the newest of each method, server and result",
    partition_by="interface_name, method, server_address, result",
    time_column="request_at",
    group_by=(
        "interface_name, method, server_address, client_address, outcome, result, failed, "
        f"{log_bucket_midpoint_sql('response_ms')} AS response_ms"
    ),
    aggregates="count(*) AS n, max(response_ms) AS response_ms_max",
    other_tables=("silver.remote_read_calls", "silver.management_calls", "silver.client_calls"),
)

DATASETS: Final = (
    Dataset(
        "intervals",
        "gold.queue_history",
        f"""SELECT {_QUEUE_COLUMNS}, interval_key, valid_from, valid_to, state, message_count, bytes, journal_count,
       journal_bytes, received, peeked, nacked, moved_in, moved_out, purged, paused, expected_message_count,
       unexplained_change, source, {EVIDENCE_COLUMNS}
FROM {{queue_history}}""",
        order_by="valid_from DESC, interval_key",
        selection="the newest of each queue",
        partition_by=_QUEUE_COLUMNS,
        summary_sql=f"""SELECT {_QUEUE_COLUMNS}, timestamp_micros(place * {{step_us}}) AS valid_from,
       timestamp_micros((place + 1) * {{step_us}}) AS valid_to,
       max_by(state, least(unix_micros(valid_to), (place + 1) * {{step_us}})
                     - greatest(unix_micros(valid_from), place * {{step_us}})) AS state,
       max(message_count) AS message_count, max(bytes) AS bytes, max(journal_count) AS journal_count,
       max(journal_bytes) AS journal_bytes, count(*) AS n
FROM (SELECT *, explode(sequence(
       CAST(floor(unix_micros(valid_from) / {{step_us}}) AS bigint),
       CAST(floor((unix_micros(valid_to) - 1) / {{step_us}}) AS bigint))) AS place FROM {{queue_history}})
GROUP BY {_QUEUE_COLUMNS}, place""",
        summary_size_sql=f"""SELECT approx_count_distinct(concat_ws('|', {_QUEUE_COLUMNS}))
  * (1 + (unix_micros(max(valid_to)) - unix_micros(min(valid_from))) / {{step_us}}) FROM {{queue_history}}""",
    ),
    Dataset(
        "transfer_points",
        "gold.eod_transfers",
        f"SELECT {_QUEUE_COLUMNS}, source, {_TRANSFER_COLUMNS}, {EVIDENCE_COLUMNS} FROM {{eod_transfers}}",
        order_by="observed_at DESC, snapshot_id",
        selection="the newest of each queue",
        partition_by=f"{_QUEUE_COLUMNS}, source",
        time_column="observed_at",
        group_by=f"{_QUEUE_COLUMNS}, source",
        aggregates=(
            "max(unacked_count) AS unacked_count, max(resend_count) AS resend_count, max(in_flight_s) AS in_flight_s, "
            "avg(acked_per_s) AS acked_per_s, avg(sent_per_s) AS sent_per_s, "
            "max_by(condition, observed_at) AS condition, count(*) AS n"
        ),
    ),
    Dataset(
        "queues",
        "gold.queue_history",
        f"""SELECT {_QUEUE_COLUMNS}, interval_key, state, known_until, reported_at, message_count, bytes, journal_count,
       journal_bytes, paused, sources, {EVIDENCE_COLUMNS} FROM ({LAST_QUEUE_REPORTS_SQL})""",
        order_by="message_count DESC NULLS LAST, queue, queue_manager, interval_key",
        selection="queues with the most messages",
    ),
    Dataset(
        "machines",
        "gold.machine_history",
        f"""SELECT queue_manager, interval_key, state, since, known_until, reported_at,
       try_cast(bytes_in_all_queues AS bigint) AS bytes_in_all_queues, active_queues, private_queues, directory_server,
       sources, {EVIDENCE_COLUMNS} FROM ({LAST_MACHINE_REPORTS_SQL})""",
        order_by="bytes_in_all_queues DESC NULLS LAST, queue_manager",
        selection="queue managers with the most bytes",
    ),
    Dataset(
        "actions",
        "gold.management_actions",
        f"""SELECT call_key, action, object_type, queue_manager, queue, queue_format_name, client_address,
       auth_level_name, requested_at, responded_at, outcome, coalesce(hresult_name, fault_name) AS result, state_before,
       state_after, state_after_at, {EVIDENCE_COLUMNS}
FROM {{management_actions}}""",
        order_by="requested_at DESC, call_key",
        selection="the newest",
    ),
    Dataset(
        "transfers",
        "gold.eod_transfers",
        f"SELECT {_QUEUE_COLUMNS}, sources, {_TRANSFER_COLUMNS}, {EVIDENCE_COLUMNS} FROM ({LAST_TRANSFERS_SQL})",
        order_by="unacked_count DESC NULLS LAST, queue, queue_manager, snapshot_id",
        selection="transfers with most unacknowledged messages",
    ),
    Dataset(
        "sources",
        "gold.eod_sources",
        f"""SELECT queue, queue_manager, queue_format_name, sender_queue_manager, sender_format_name, sender_queue,
       sources, observed_at, sequence_id, last_number, last_access_at, reject_count, disagrees_with_sender, source_key,
       snapshot_id, {EVIDENCE_COLUMNS} FROM ({LAST_SENDERS_SQL})""",
        order_by="disagrees_with_sender NULLS LAST, reject_count DESC NULLS LAST, queue",
        selection="sequences that disagree or are rejected first",
    ),
    Dataset(
        "attempts",
        "gold.receive_attempts",
        f"""SELECT attempt_key, protocol, queue, inferred_queue, server_address, server_port, client_address,
       client_port, action_name, is_receive, transactional, started_at, returned_at, ended_at, wait_ms, hold_ms,
       timeout_ms, lookup_id, message_key, message_bytes, start_hresult_name, end_hresult_name, outcome,
       ack_refused, ack_unanswered, {EVIDENCE_COLUMNS}
FROM {{receive_attempts}}""",
        order_by="started_at DESC, attempt_key",
        selection="the newest of each queue, server and outcome",
        partition_by="queue, inferred_queue, server_address, outcome",
        time_column="started_at",
        group_by="protocol, queue, inferred_queue, server_address, client_address, outcome",
        aggregates="count(*) AS n, max(wait_ms) AS wait_ms, max(hold_ms) AS hold_ms",
    ),
    Dataset(
        "sequences",
        "gold.ack_sequences",
        f"""SELECT sequence_key, queue, inferred_queue, server_address, lookup_id, message_key, attempts, peeks,
       outcomes, readers, first_attempt_at, settled_at, fate, redelivered, loss_risk, moved_to, removed_at,
       slice(attempt_keys, 1, {MAX_EVIDENCE_KEYS}) AS attempt_keys, {EVIDENCE_COLUMNS}
FROM {{ack_sequences}}""",
        order_by="loss_risk NULLS LAST, redelivered DESC, first_attempt_at DESC, sequence_key",
        selection="the newest of each queue, fate and risk, messages at risk first",
        partition_by="queue, inferred_queue, fate, loss_risk",
        time_column="first_attempt_at",
        group_by="queue, inferred_queue, server_address, fate, loss_risk, redelivered",
        aggregates="count(*) AS n",
    ),
    Dataset(
        "operations",
        "gold.queue_operations",
        f"""SELECT call_key, operation, protocol, queue, target_queue, client_address, server_address, lookup_id,
       requested_at, responded_at, hresult_name, outcome, {EVIDENCE_COLUMNS}
FROM {{queue_operations}}""",
        order_by="requested_at DESC, call_key",
        selection="the newest",
    ),
    Dataset(
        "opens",
        "gold.queue_opens",
        f"""SELECT o.call_key, o.protocol, o.method, o.queue, o.client_address, o.server_address, o.principal,
       o.workstation, o.access_name, o.share_mode_name, o.requested_at, o.opened_at, o.closed_at, o.outcome,
       o.result_name, o.ended_by, o.cursors, holders.held_by, size(o.blocks) AS blocks, {EVIDENCE_COLUMNS}
FROM {{queue_opens}} o LEFT JOIN (
  SELECT refused.call_key, array_sort(array_agg({cut_text_sql("held.holder_text")})) AS held_by
  FROM (SELECT call_key, explode(blocked_by) AS holder FROM {{queue_opens}}) refused
  JOIN (SELECT call_key, concat_ws(' ', client_address, principal, access_name, share_mode_name) AS holder_text
    FROM {{queue_opens}}) held ON held.call_key = refused.holder GROUP BY refused.call_key) holders
  ON o.call_key = holders.call_key""",
        order_by="result_name IS NOT DISTINCT FROM 'MQ_ERROR_SHARING_VIOLATION' DESC, requested_at DESC, call_key",
        selection="sharing violations first, then the newest",
    ),
    CALLS_DATASET,
    Dataset(
        "comqc",
        "silver.comqc_calls",
        f"""SELECT q.sighting_key, q.call_index, q.message_key, q.call_key, q.seen_at, m.queue, m.inferred_queue,
       m.label, m.message_id, m.source_queue_manager, q.header, q.target_clsid, q.target_text, q.partition_id,
       q.interface_id, q.is_dispatch, q.opnum, q.dispatch_id, q.dispatch_flags, q.marshaled_bytes, q.arguments, q.errors
FROM {{comqc_calls}} q LEFT JOIN {_MESSAGES_SQL} m ON q.sighting_key = m.sighting_key""",
        order_by="seen_at DESC, sighting_key, call_index",
        selection="the newest of each class, interface and method",
        partition_by="target_clsid, interface_id, opnum, dispatch_id",
        time_column="seen_at",
        group_by="queue, inferred_queue, target_clsid, interface_id, is_dispatch, opnum, dispatch_id",
        aggregates="count(*) AS n, CAST(sum(marshaled_bytes) AS bigint) AS marshaled_bytes",
        other_tables=("silver.messages", "silver.queue_aliases"),
    ),
    Dataset(
        "findings",
        "gold.findings",
        f"""SELECT finding_key, rule_id, source, severity, subject, server_address, scope, observed_at, message,
       expected, actual, call_key, {EVIDENCE_COLUMNS}
FROM {{findings}}""",
        order_by="severity, observed_at DESC, finding_key",
        selection="the newest of each rule and subject",
        partition_by="rule_id, subject",
        time_column="observed_at",
        group_by="rule_id, source, severity, subject, server_address, scope",
        aggregates="count(*) AS n",
    ),
    Dataset(
        "alerts",
        "gold.alerts",
        f"""SELECT alert_key, condition, severity, subject, subject_text, queue, queue_manager, from_machine,
       to_machine, cause, since, until, last_seen_at, message, suggestion, {EVIDENCE_COLUMNS}
FROM {{alerts}}""",
        order_by="until IS NOT NULL, severity, since DESC, alert_key",
        selection="active alerts first, then the newest",
    ),
    Dataset(
        "quality",
        "gold.quality_results",
        """SELECT result_key, run_at, run_id, `table`, suite, expectation, description, limits, severity, success,
       evaluated, unexpected, observed, unit, scope, key_column, failed_keys
FROM (SELECT *, rank() OVER (PARTITION BY suite ORDER BY run_at DESC, run_id DESC) AS _place FROM {quality_results})
WHERE _place = 1""",
        order_by="success, severity, `table`, expectation, result_key",
        selection="failed checks first",
    ),
    Dataset(
        "quality_history",
        "gold.quality_results",
        f"""SELECT result_key, run_at, suite, expectation, severity, success, evaluated, unexpected, scope
FROM (SELECT *, rank() OVER (PARTITION BY suite ORDER BY run_at DESC, run_id DESC) AS _place
      FROM {{quality_results}})
WHERE _place <= {QUALITY_RUNS}""",
        order_by="run_at DESC, suite, expectation, result_key",
        selection="the newest",
    ),
    Dataset(
        "coverage",
        "gold.coverage",
        "SELECT hour, server_address, layer, measure, value FROM {coverage}",
        order_by="hour DESC, layer, measure, server_address",
        selection="the newest",
        time_column="hour",
        group_by="server_address, layer, measure",
        aggregates="CAST(sum(value) AS bigint) AS value, count(*) AS n",
    ),
    Dataset(
        "captures",
        "bronze.capture_files",
        """SELECT capture_id, path, format, compression, status, error, size_bytes, packets, packets_used,
       packets_binary_protocol, packets_other, packets_damaged, packets_truncated, packets_dropped, first_packet_at,
       last_packet_at
FROM {capture_files}""",
        order_by="status = 'complete', last_packet_at DESC, path",
        selection="incomplete captures first, then the newest",
    ),
    *TRANSFER_DATASETS,
)  # fmt: skip
PACKET_TABLES: Final = {
    each.name: (each.table, TABLES_WITH_PACKETS[each.table].key[0])
    for each in DATASETS
    if each.table.startswith("gold.") and each.table in TABLES_WITH_PACKETS
}
"""The table and its key column, by dataset: rows of these lead to packets."""

MESSAGE_LABELS_SQL: Final = """SELECT message_key, label, message_id, class_name, sent_at, source_queue_manager,
       body_bytes, framework, application_message_id, conversation_id, related_to,
       array_join(sent_types, ', ') AS sent_types, originating_endpoint,
       processing_endpoint, failed_queue, exception_type, immediate_retries, delayed_retries
FROM (SELECT *, row_number() OVER (PARTITION BY message_key ORDER BY seen_at, sighting_key) AS place
      FROM {rows} WHERE message_key IN {keys}) WHERE place = 1"""
"""Labels and identifiers of messages by ``message_key``, and what their application's headers say."""

CAPTURE_PATHS_SQL: Final = "SELECT capture_id, path FROM {rows} WHERE capture_id IN {keys}"
"""Paths of captures by ``capture_id``."""

SNAPSHOT_LINES_SQL: Final = """SELECT snapshot_id, queue_manager, object_type, format_name, asked_at, error,
       source_path, source_line
FROM {rows} WHERE snapshot_id IN {keys}"""
"""File and line of snapshots by ``snapshot_id``."""

HOST_ROWS_SQL: Final = """SELECT host_key, queue_manager_id, host_name, address, source, first_seen_at, last_seen_at,
       sightings
FROM {rows} WHERE host_key IN {keys}"""
"""Names and addresses that were seen together, by ``host_key``."""

PACKETS_SQL: Final = """SELECT packet_key, client_address, client_port, server_address, server_port, sent_by, kind,
       sent_at, length_bytes, complete, capture_id, packet_number
FROM {rows} WHERE packet_key IN {keys}"""
"""Packets of the binary protocol by ``packet_key``."""

QUEUE_MANAGER_NAMES_SQL: Final = """SELECT queue_manager_id, max_by(host_name, last_seen_at) AS host_name
FROM {rows} WHERE queue_manager_id IN {keys} AND host_name IS NOT NULL GROUP BY queue_manager_id"""
"""The newest name of the machine of each queue manager, by ``queue_manager_id``."""
