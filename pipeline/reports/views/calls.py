"""Views of calls and remote reads: times, failures, readers; and of gaps in what was captured."""

from __future__ import annotations

from typing import Final

from pipeline.queues.ended_receives import with_known_ends
from pipeline.reports.views.evidence import (
    CALLS,
    MACHINE_REPORTS,
    PACKETS,
    QUEUE_REPORTS,
    READS,
    SESSIONS_SEEN,
    all_of,
    any_of,
)
from pipeline.reports.views.scope import ScopeColumns
from pipeline.reports.views.view import View
from pipeline.silver.canonical_queues import with_canonical_queues
from udfs.call_results import response_ms_sql, succeeded_sql

_SUCCEEDED_SQL: Final = succeeded_sql("interface_name", "hresult", "returned_port")
_START_SUCCEEDED_SQL: Final = succeeded_sql("protocol", "start_hresult")
_CALL_COLUMNS: Final = (
    "call_key, interface_name, method, server_address, client_address, requested_at, responded_at, clocks, "
    "hresult, hresult_name, fault_name, returned_port"
)

_CALLS_SQL: Final = (
    """
        WITH raw AS (
          SELECT call_key, protocol AS interface_name, method, server_address, client_address, requested_at,
            responded_at, clocks, hresult, hresult_name, fault_name, returned_port, queue FROM silver.remote_read_calls
          UNION ALL
          SELECT call_key, 'qmmgmt', method, server_address, client_address, requested_at, responded_at, clocks,
            hresult, hresult_name, fault_name, CAST(NULL AS bigint), queue FROM silver.management_calls
          UNION ALL
          SELECT call_key, interface_name, method, server_address, client_address, requested_at, responded_at, clocks,
            hresult, hresult_name, fault_name, returned_port, queue FROM silver.client_calls
        ), named AS (
          SELECT * FROM """
    + with_canonical_queues("raw", {"queue": "rows.queue"}, _CALL_COLUMNS)
    + """
        ), starts AS (
          SELECT attempt_key, coalesce(queue, inferred_queue) AS read_from FROM gold.receive_attempts
        ), ends AS (
          SELECT call_key, outcome FROM bronze.rpc_calls
        ), calls AS (
          SELECT named.*, coalesce(read_from, queue) AS of_queue, outcome,
            CASE WHEN outcome = 'fault' THEN coalesce('fault ' || fault_name, 'fault')
              WHEN hresult_name IS NOT NULL THEN hresult_name
              WHEN returned_port = 0 THEN 'port 0'
              WHEN outcome = 'ok' THEN 'answered'
              ELSE outcome END AS result,
            outcome = 'fault' OR coalesce(NOT """
    + _SUCCEEDED_SQL
    + """, FALSE) AS failed
          FROM named JOIN ends USING (call_key)
          LEFT JOIN starts ON attempt_key = left(sha2(unhex('20000000' || hex(call_key)), 256), 32)
          WHERE setting.scope
        )
"""
)
"""Common table expression ``calls``: calls of all decoded interfaces within the scope, with queue and result.

The queue of a Start call is that of its attempt. ``attempt_key`` is the key of the call key (docs/reference/tables.md):
SHA-256 over the length of the call key, 32, and the call key itself.
"""
_CALLS_SCOPE: Final = ScopeColumns(
    "coalesce(requested_at, responded_at)",
    "coalesce(responded_at, requested_at)",
    ("server_address", "client_address"),
    ("coalesce(read_from, queue)",),
)


def _percentiles_sql(name: str) -> str:
    """Return the SQL of three percentiles of a duration in milliseconds."""
    return ", ".join(f"percentile_disc({at / 100}) WITHIN GROUP (ORDER BY {name}) AS p{at}_ms" for at in (50, 95, 99))


COVERAGE_COUNTS_SQL: Final = """
          sum(value) FILTER (WHERE layer = 'transport' AND measure = 'bytes') AS bytes,
          sum(value) FILTER (WHERE layer = 'transport' AND measure = 'bytes_binary_protocol') AS bytes_binary_protocol,
          sum(value) FILTER (WHERE layer = 'transport' AND measure = 'bytes_missing') AS bytes_missing,
          sum(value) FILTER (WHERE layer = 'capture' AND measure = 'packets_dropped') AS packets_dropped,
          sum(value) FILTER (WHERE layer = 'capture' AND measure = 'packets_not_read') AS packets_not_read,
          sum(value) FILTER (WHERE layer = 'transport' AND measure = 'connections_half_seen') AS connections_half_seen,
          sum(value) FILTER (WHERE layer = 'transport' AND measure = 'connections_one_direction')
            AS connections_one_direction,
          sum(value) FILTER (WHERE layer = 'rpc' AND measure = 'calls') AS calls,
          sum(value) FILTER (WHERE layer = 'rpc' AND measure = 'calls_half_seen') AS calls_half_seen,
          sum(value) FILTER (WHERE layer = 'rpc' AND measure = 'sealed') AS sealed,
          sum(value) FILTER (WHERE layer IN ('stub', 'message') AND measure = 'undecoded') AS undecoded,
          sum(value) FILTER (WHERE layer = 'transport' AND measure = 'quarantined') AS quarantined_bytes,
          sum(value) FILTER (WHERE layer = 'message' AND measure = 'queue_unknown') AS queue_unknown,
          sum(value) FILTER (WHERE layer = 'snapshot' AND measure = 'snapshots_expected') AS snapshots_expected,
          sum(value) FILTER (WHERE layer = 'snapshot' AND measure = 'snapshots_missing') AS snapshots_missing"""
"""The columns of counts over rows of gold.coverage."""

CALL_VIEWS: Final = (
    View(
        "response_times", 18,
        "a method of a server with one result, per queue if the queue is known",
        "Time from the first byte of the request to the first byte of the response, in milliseconds. Calls that wait "
        "for a message (R_StartReceive and similar) spend most of it waiting; the view receive_times separates the "
        "two. `result` is the HRESULT, a fault, or the outcome of a call whose response cannot be read (no_response, "
        "encrypted, ...).",
        "Times are measured where the capture was taken. Calls of which only one half was captured count in `calls`, "
        "but have no time.",
        _CALLS_SQL + """
        SELECT server_address, interface_name, method, of_queue AS queue, result, count(*) AS calls,
          count(ms) AS answered, """ + _percentiles_sql("ms") + """, max(ms) AS max_ms,
          min(coalesce(requested_at, responded_at)) AS first_at, max(coalesce(requested_at, responded_at)) AS last_at
        FROM (SELECT *, """ + response_ms_sql("requested_at", "responded_at", "clocks") + """ AS ms FROM calls)
        GROUP BY server_address, interface_name, method, of_queue, result
        ORDER BY server_address, interface_name, method, calls DESC, queue, result
        """,
        ("server_address",), ("first_at", "last_at"), all_of(CALLS), _CALLS_SCOPE,
    ),
    View(
        "receive_times", 18,
        "a way of waiting for a message, of one queue at one server",
        "`waited` is `poll` (time-out 0: cannot wait), `message_there` (the message arrived at least one second "
        "before the request, so the time is the server's own), `for_a_message` (the message arrived during the wait), "
        "`in_vain` (timed out, cancelled or failed) or `not_told` (undecided). Times are in milliseconds. `hold` is "
        "the time from the message to the end of the receive, which the application takes.",
        "Arrival times are whole seconds of the owner's clock (view clock_differences): if they do not show whether "
        "the message was there, `waited` is `not_told`. Attempts without a response have no time.",
        """
        WITH arrivals AS (
          SELECT message_key, max(arrived_at) AS arrived_at FROM silver.messages
          WHERE message_key IS NOT NULL GROUP BY message_key
        ), reads AS (
          SELECT a.*, coalesce(queue, inferred_queue) AS of_queue,
            CASE WHEN """ + _START_SUCCEEDED_SQL + """ AND is_receive THEN hold_ms END AS held_ms,
            CASE WHEN timeout_ms = 0 THEN 'poll'
              WHEN NOT """ + _START_SUCCEEDED_SQL + """ OR outcome IN ('timed_out', 'cancelled') THEN 'in_vain'
              WHEN arrived_at <= started_at - INTERVAL 1 SECOND THEN 'message_there'
              WHEN arrived_at >= started_at THEN 'for_a_message'
              ELSE 'not_told' END AS waited
          FROM gold.receive_attempts AS a LEFT JOIN arrivals USING (message_key)
        )
        SELECT server_address, of_queue AS queue, protocol, action_name, waited, count(*) AS attempts,
          """ + _percentiles_sql("wait_ms") + """, max(wait_ms) AS max_ms,
          percentile_disc(0.5) WITHIN GROUP (ORDER BY held_ms) AS hold_p50_ms, max(held_ms) AS hold_max_ms,
          min(started_at) AS first_at, max(started_at) AS last_at
        FROM reads
        WHERE setting.scope
        GROUP BY server_address, of_queue, protocol, action_name, waited
        ORDER BY server_address, queue, attempts DESC, protocol, action_name, waited
        """,
        ("server_address",), ("first_at", "last_at"), all_of(READS),
        ScopeColumns("coalesce(started_at, returned_at, ended_at)", "coalesce(returned_at, ended_at, started_at)",
                     ("server_address", "client_address"), ("of_queue",)),
    ),
    View(
        "receives_not_ended", 19,
        "a receive that returned a message and did not end normally",
        "`how` is `never` (not ended in the capture), `given_back` (the message was handed out again: how the receive "
        "ended was not captured), `expired` (ended by the clean-up timer), `reader_gone` (the connection ended) or "
        "`refused` (the end was refused although the message had been handed out). `fate` and `loss_risk` are those of "
        "the message (gold.ack_sequences). A receive is not shown where the queue was reported to be empty since, or "
        "where an acknowledgement on TCP 1801 says that the message was received before the end that is shown.",
        "`never` means: not before the end of what was captured of that server.",
        """
        WITH sequences AS (
          SELECT explode(attempt_keys) AS attempt_key, fate, loss_risk FROM gold.ack_sequences
        ), unended AS (
          SELECT *, coalesce(queue, inferred_queue) AS of_queue,
            CASE WHEN given_back THEN 'given_back' WHEN outcome = 'in_flight' THEN 'never'
              WHEN outcome = 'expired' THEN 'expired' WHEN outcome = 'rundown' THEN 'reader_gone'
              ELSE 'refused' END AS how
          FROM """ + with_known_ends(
            "gold.receive_attempts", "gold.message_transfers", "gold.queue_history", "gold.ack_sequences",
            "(SELECT now FROM setting.now)",
          ) + """ AS attempts
          WHERE is_receive AND returned_at IS NOT NULL AND (lookup_id IS NOT NULL OR message_key IS NOT NULL)
            AND (outcome IN ('in_flight', 'expired', 'rundown', 'failed') OR ack_refused)
        )
        SELECT how, server_address, client_address, of_queue AS queue, returned_at, ended_at, hold_ms / 1e3 AS held_s,
          lookup_id, message_key, end_hresult, end_hresult_name, fate, loss_risk, attempt_key, confidence, missing
        FROM unended LEFT JOIN sequences USING (attempt_key)
        WHERE (how = 'refused' OR NOT ended_anyway) AND setting.scope
        ORDER BY returned_at, attempt_key
        """,
        ("server_address",), ("returned_at", "ended_at"), all_of(READS, beside=(SESSIONS_SEEN, QUEUE_REPORTS)),
        ScopeColumns("returned_at", "CASE WHEN how <> 'never' THEN coalesce(ended_at, returned_at) END",
                     ("server_address", "client_address"), ("of_queue",)),
    ),
    View(
        "reader_load", 20,
        "a reader of a queue",
        "`share` is the reader's share of all messages that were received remotely from the queue: a reader far above "
        "the others starves them. `polls_in_vain` are receives with time-out 0 that found nothing, which is load "
        "without benefit.",
        "Readers on the server itself are not captured. One address may stand for many applications.",
        """
        WITH readers AS (
          SELECT server_address, coalesce(queue, inferred_queue) AS queue, client_address,
            count_if(is_receive) AS receives, count_if(NOT is_receive) AS peeks,
            count_if(is_receive AND message_key IS NOT NULL) AS messages,
            count_if(outcome = 'acked') AS acked, count_if(outcome IN ('nacked', 'expired', 'rundown')) AS given_back,
            count_if(outcome = 'empty') AS polls_in_vain, sum(message_bytes) AS bytes,
            count_if(is_receive AND message_key IS NOT NULL)
              / nullif(sum(count_if(is_receive AND message_key IS NOT NULL))
                OVER (PARTITION BY server_address, coalesce(queue, inferred_queue)), 0) AS share,
            min(started_at) AS first_at, max(started_at) AS last_at
          FROM gold.receive_attempts CROSS JOIN setting.now
          WHERE (setting.since IS NULL OR started_at >= setting.since)
            AND coalesce(started_at <= now, setting.since IS NULL)
          GROUP BY server_address, coalesce(queue, inferred_queue), client_address
        )
        SELECT * FROM readers
        WHERE setting.scope
        ORDER BY server_address, queue, messages DESC, client_address
        """,
        ("server_address",), ("first_at", "last_at"), all_of(READS),
        ScopeColumns("first_at", "last_at", ("server_address", "client_address"), ("queue",)),
    ),
    View(
        "receives_waiting", 20,
        "an hour of a server in which a receive or peek started or returned",
        "The largest number of receives and peeks that waited at the same time, and when. Each of them occupies a "
        "call of the server.",
        "Attempts whose end was not captured are left out, because nobody knows how long they waited. Attempts that "
        "still wait when the capture ends are included.",
        """
        WITH known AS (
          SELECT server_address, started_at, coalesce(returned_at, ended_at) AS done_at FROM gold.receive_attempts
          WHERE started_at IS NOT NULL AND (coalesce(returned_at, ended_at) IS NOT NULL OR outcome = 'in_flight')
        ), steps AS (
          SELECT server_address, started_at AS moment, 1 AS step FROM known
          UNION ALL
          SELECT server_address, done_at, -1 FROM known WHERE done_at IS NOT NULL
        ), running AS (
          SELECT *, -unix_micros(moment) AS earliness, sum(step) OVER (
            PARTITION BY server_address ORDER BY moment, step ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
          ) AS waiting FROM steps
        )
        SELECT server_address, date_trunc('hour', moment) AS hour, max(waiting) AS most_waiting,
          max_by(moment, struct(waiting, earliness)) AS most_at, count_if(step = 1) AS begun
        FROM running
        WHERE setting.scope
        GROUP BY server_address, date_trunc('hour', moment)
        ORDER BY server_address, hour
        """,
        ("server_address",), ("hour",), all_of(READS), ScopeColumns("moment", "moment", ("server_address",)),
    ),
    View(
        "failures", 21,
        "a result with which a method fails at a server, per queue if the queue is known",
        "`share` is the share of all calls of that method at that server. `still` is true if the last such call is at "
        "most one hour old. Time-outs, empty queues and cancelled waits are results too; the alert calls_failing "
        "ignores them.",
        "Encrypted calls and calls without a captured response may have failed or not: they count only in the total "
        "behind `share` (view not_known).",
        _CALLS_SQL + """
        , methods AS (
          SELECT server_address, interface_name, method, count(*) AS of_method FROM calls GROUP BY ALL
        )
        SELECT server_address, interface_name, method, of_queue AS queue, result, count(*) AS calls,
          count(*) / max(of_method) AS share, min(coalesce(responded_at, requested_at)) AS first_at,
          max(coalesce(responded_at, requested_at)) AS last_at,
          max(coalesce(responded_at, requested_at)) > max(now) - INTERVAL 1 HOUR AS still,
          slice(array_sort(collect_set(client_address)), 1, 10) AS clients
        FROM calls JOIN methods USING (server_address, interface_name, method) CROSS JOIN setting.now
        WHERE failed
        GROUP BY server_address, interface_name, method, of_queue, result
        ORDER BY still DESC, calls DESC, server_address, interface_name, method, queue, result
        """,
        ("server_address",), ("first_at", "last_at"), all_of(CALLS), _CALLS_SCOPE,
    ),
    View(
        "sharing_violations", 21,
        "an open of a queue that was refused because another open held the queue, and one open that held it",
        "The columns `holder_...` say who held the queue then, how it was opened (`holder_access`, "
        "`holder_share_mode`), since when, until when, and how that ended. `principal` and `workstation` are what the "
        "client claims, or its key proves. Where several opens held the queue, each has a row.",
        "`holder` is null where its open was not captured or is encrypted: `missing` says so. Opens by programs on the "
        "queue's own machine are never captured.",
        """
        WITH refused AS (
          SELECT *, explode_outer(blocked_by) AS holder FROM gold.queue_opens
          WHERE result_name = 'MQ_ERROR_SHARING_VIOLATION'
        )
        SELECT refused.queue, refused.server_address, refused.requested_at AS refused_at, refused.client_address,
          refused.principal, refused.workstation, refused.access_name AS access, refused.share_mode_name AS share_mode,
          held.client_address AS holder_address, held.principal AS holder_principal,
          held.workstation AS holder_workstation, held.access_name AS holder_access,
          held.share_mode_name AS holder_share_mode, held.opened_at AS holder_opened_at,
          held.closed_at AS holder_closed_at, held.ended_by AS holder_ended_by, refused.call_key, refused.holder,
          refused.confidence, refused.missing
        FROM refused LEFT JOIN gold.queue_opens AS held ON held.call_key = refused.holder
        WHERE setting.scope
        ORDER BY refused_at DESC, refused.call_key, holder_opened_at, refused.holder
        """,
        ("server_address",), ("refused_at",), all_of(CALLS),
        ScopeColumns("refused.requested_at", "refused.requested_at",
                     ("refused.server_address", "refused.client_address", "held.client_address"), ("refused.queue",)),
    ),
    View(
        "shared_identifiers", 22,
        "an identifier of a queue manager that two machines share",
        "Each rule that shows it has a row, O07 one for each day. With rule O01, `machines` are two machines of "
        "different names, and `source` says where names and identifier were seen together (silver.hosts). With rule "
        "O07 (`source` `transfers`), `machines` says how handshakes of TCP 1801 show two machine starts under one "
        "identifier, in turns or at the same time. `names` and `addresses` are those with which it was seen.",
        "Machines whose names are unknown cannot be told apart by names: two addresses may be one machine. Behind NAT "
        "many identifiers share an address. Handshakes tell machines apart only while both are running.",
        """
        WITH found AS (
          SELECT f.subject, f.rule_id, f.actual AS machines, f.observed_at,
            CASE f.rule_id WHEN 'O07' THEN 'transfers'
              ELSE array_join(array_sort(collect_set(h.source)), ', ') END AS source,
            array_sort(collect_set(h.host_name)) AS names, array_sort(collect_set(h.address)) AS addresses,
            min(h.first_seen_at) AS first_seen_at, max(h.last_seen_at) AS last_seen_at
          FROM gold.findings AS f LEFT JOIN silver.hosts AS h ON f.subject = 'queue manager ' || h.queue_manager_id
          WHERE f.rule_id IN ('O01', 'O07')
          GROUP BY f.subject, f.rule_id, f.actual, f.observed_at
        )
        SELECT * FROM found
        WHERE setting.scope
        ORDER BY observed_at, subject, rule_id, machines
        """,
        (), ("first_seen_at", "last_seen_at"), any_of(SESSIONS_SEEN, CALLS, MACHINE_REPORTS),
        ScopeColumns("CASE rule_id WHEN 'O07' THEN observed_at ELSE coalesce(first_seen_at, observed_at) END",
                     "CASE rule_id WHEN 'O07' THEN observed_at ELSE coalesce(last_seen_at, observed_at) END",
                     ("replace(subject, 'queue manager ', '')",)),
    ),
    View(
        "retransmitted", 13,
        "a server and kind of connection (`rpc`, or `binary_protocol` for TCP 1801)",
        "Bytes that TCP retransmitted, and their share of all payload bytes. They show packet loss in the network, "
        "not the resends of Message Queuing (views resent_messages and resends).",
        "What the capture lost is not counted, nor what was sent again before its first copy reached the capture.",
        """
        SELECT server_address, kind, count(*) AS connections, sum(client_bytes + server_bytes) AS bytes,
          sum(retransmitted_bytes) AS retransmitted_bytes,
          sum(retransmitted_bytes) / nullif(sum(client_bytes + server_bytes + retransmitted_bytes), 0) AS share,
          min(first_packet_at) AS first_at, max(last_packet_at) AS last_at
        FROM bronze.connections
        WHERE setting.scope
        GROUP BY server_address, kind
        ORDER BY share DESC NULLS LAST, server_address, kind
        """,
        ("server_address",), ("first_at", "last_at"), any_of(SESSIONS_SEEN, CALLS),
        ScopeColumns("first_packet_at", "last_packet_at", ("server_address", "client_address")),
    ),
    View(
        "not_known", 25,
        "an hour of a server (null: not of one server)",
        "What was captured, and beside it what is missing: bytes missing from the captures, packets dropped by the "
        "capturing machine, packets of protocols that are not read, connections whose start was not captured, calls "
        "with one half missing, encrypted calls, calls and messages that could not be decoded, bytes in quarantine, "
        "and requests of the collector that failed. `bytes_binary_protocol` is what was captured of TCP 1801: where "
        "it is null, nothing is known of messages on their way. docs/reference/quality.md defines each count and its "
        "hour.",
        "Traffic that nobody captured leaves no trace: no count includes it.",
        """
        SELECT hour, server_address,""" + COVERAGE_COUNTS_SQL + """
        FROM gold.coverage
        WHERE setting.scope
        GROUP BY hour, server_address
        ORDER BY hour, server_address
        """,
        ("server_address",), ("hour",), any_of(PACKETS, MACHINE_REPORTS, QUEUE_REPORTS),
        ScopeColumns("hour", "hour + INTERVAL 1 HOUR - INTERVAL 1 MICROSECOND", ("server_address",), everywhere=True),
    ),
)  # fmt: skip
