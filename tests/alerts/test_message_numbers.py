"""Every number in the message of an alert is the answer to a query on the lake's tables, one for each condition."""

import re
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial

import pyarrow as pa
import pytest

from alerts.scenario import LIMITS
from alerts.test_update import NOW, Below, queues, scenario
from pipeline.alerts.conditions import CONDITIONS
from pipeline.alerts.update import current_alerts
from queue_states.queue_events import MINUTE, incoming, outgoing, snapshot
from reports.questions.in_memory_lake import history_tables, rows
from schemas import catalog
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS
from schemas.queue_history import QUEUE_HISTORY
from schemas.sessions import SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS

LOCAL = "LOCAL CONNECTION"
STUCK, HELD, JOURNAL, UNREAD, GAP, DOWN_TOO = (
    f"srv1\\private$\\{name}" for name in ("stuck", "held", "journal", "unread", "gap", "down too")
)
DEAD = "srv1\\system$;deadletter"
LIMITS_HERE = replace(LIMITS, quotas={JOURNAL: (None, 25_000)}, machine_quotas={"srv1": 110})


def local_report(at, queue, **values):
    return snapshot(at * MINUTE, f"{queue} {at}", queue=queue, name=queue, **values)


def reports():
    """Reports of queues with each condition that the other scenario lacks."""
    for at in range(0, NOW + 1, 5):
        local = partial(local_report, at)
        yield local(STUCK, state=LOCAL, message_count=5, bytes=512)
        yield local(HELD, state="ONHOLD", message_count=2, bytes=64)
        yield local(DEAD, state=LOCAL, message_count=2 + 5 * (at >= 120), bytes=70)
        yield local(JOURNAL, state=LOCAL, message_count=0, bytes=0, journal_count=10 * at, journal_bytes=100 * at)
        yield outgoing(at * MINUTE, 50, 0, key=f"{UNREAD} {at}", queue=UNREAD, name=UNREAD, unread=3)
        told = outgoing(at * MINUTE, 30, 6, previous=100, key=f"{DOWN_TOO} {at}", queue=DOWN_TOO, name=DOWN_TOO)
        told["snapshot"] |= {"state": "DISCONNECTED", "message_count": 0}
        yield told
        yield incoming(at * MINUTE, ("b1", 7, 20, {"reject_count": at // 5}), key=f"{GAP} {at}", queue=GAP, name=GAP)


@cache
def lake():
    tables = scenario()
    refused = {"attempt_key": "b", "is_receive": True, "returned_at": 228, "ended_at": 229, "outcome": "failed",
               "ack_refused": True, "end_hresult": 0xC00E0088, "lookup_id": 2, "client_address": "10.0.0.8",
               "server_address": "10.0.0.1"}  # fmt: skip
    tables |= history_tables([*queues(0, NOW + 1), *reports()])
    session = {"connection_id": "refused again", "client_address": "10.0.0.1", "server_address": "10.0.0.2",
               "first_packet_at": 220, "last_packet_at": 221, "closed_at": 221}  # fmt: skip
    more = {
        RECEIVE_ATTEMPTS: refused, SESSIONS: session | {"outcome": "refused", "ended": "refused"},
        CONNECTIONS: session | {"kind": "binary_protocol", "server_port": 1801, "missing_bytes": 0},
        MESSAGE_TRANSFERS: {
            "transfer_key": "slow", "message_key": "slow", "sender_address": "10.0.0.1", "receiver_address": "10.0.0.2",
            "first_sent_at": 219, "last_sent_at": 219, "session_acked_at": 221, "session_ack_ms": 120_000.0,
            "sendings": 1, "destination_queue": "q", "hop_key": "h",
        },
    }  # fmt: skip
    tables |= {table: pa.concat_tables([tables[table], rows(table, row)]) for table, row in more.items()}
    made = {QUEUE_HISTORY: {"names": {"10.0.0.1": "srv1"}}, RECEIVE_ATTEMPTS: {"ends": {"10.0.0.1": NOW * 60_000_000}}}
    return Below(None, tables, made)


NEWEST = "SELECT * FROM {0} QUALIFY row_number() OVER (PARTITION BY queue ORDER BY {1} DESC) = 1"
STATES, SENT = NEWEST.format("gold.queue_history", "valid_from"), NEWEST.format("gold.eod_transfers", "observed_at")
GOT = NEWEST.format("gold.eod_sources", "observed_at")
TIME = "strftime({}, '%Y-%m-%d %H:%M:%S')"
COUNTS = "max_by({0}, valid_from), max_by({0}, valid_from) - min({0})"
QUERIES = {
    "queue_disconnected": f"""
        SELECT nullif(h.message_count, 0), CASE WHEN h.message_count > 0 THEN h.bytes END, t.unacked_count,
          s.nexthops[1]
        FROM ({STATES}) AS h LEFT JOIN gold.eod_transfers AS t ON t.queue = h.queue AND t.observed_at = h.valid_from
        LEFT JOIN silver.queue_snapshots AS s ON s.snapshot_id = h.evidence[-1]
        WHERE h.state IN ('WAITING', 'DISCONNECTED')""",
    "machine_disconnected": "SELECT DISTINCT state FROM gold.machine_history WHERE state = 'DISCONNECTED'",
    "sessions_refused": """
        SELECT server_address, count(*) FROM silver.sessions WHERE outcome = 'refused'
        GROUP BY client_address, server_address""",  # the client has a name
    "queue_on_hold": f"SELECT message_count FROM ({STATES}) WHERE state = 'ONHOLD'",
    "machine_nearly_full": """
        SELECT held, {machine_quota}, CAST(round(100 * held / {machine_quota}) AS int)
        FROM (SELECT max(bytes_in_all_queues) AS held FROM gold.machine_history)""",
    "queue_stuck": f"SELECT message_count, bytes FROM ({STATES}) WHERE queue LIKE '%stuck'",
    "messages_unacknowledged": f"SELECT unacked_count, first_unacked_number FROM ({SENT}) WHERE unacked_count > 0",
    "messages_unread": f"SELECT unread_count FROM ({SENT}) WHERE unread_count > 0",
    "transfer_stalled": f"SELECT unacked_count, first_unacked_number FROM ({SENT}) WHERE condition = 'stalled'",
    "order_acks_stalled": """
        SELECT stall.waiting, stall.first_number, transaction_sequence_id,
          CAST(epoch(stall.ended_at) - epoch(stall.began_at) AS int), stall.sendings
        FROM (SELECT transaction_sequence_id, unnest(stalls) AS stall FROM gold.transfer_sequences)""",
    "sequence_refused": """
        SELECT first_waiting_number, transaction_sequence_id, acknowledged_number, waiting
        FROM gold.transfer_sequences WHERE condition = 'refused'""",
    "sequence_gap": f"SELECT reject_count, last_number, sequence_id FROM ({GOT}) WHERE reject_count > 0",
    "ends_disagree": f"""
        SELECT t.first_unacked_number, t.first_unacked_previous_number, g.last_number
        FROM ({SENT}) AS t JOIN ({GOT}) AS g ON g.queue = t.queue
        WHERE t.first_unacked_previous_number > g.last_number""",
    "window_full": """
        SELECT CAST(greatest(client_window_full_ms, server_window_full_ms) / 1000 AS decimal(9, 1))
        FROM silver.sessions WHERE greatest(client_window_full_ms, server_window_full_ms) > 0""",
    "transfers_slow": """
        SELECT count(*), {slow_s} FROM gold.message_transfers WHERE session_ack_ms >= 1000 * {slow_s}""",
    "resend_storm": """
        SELECT count(*) - 1, count(*), {window_min}, CAST(round(100 * (count(*) - 1) / count(*)) AS int)
        FROM silver.sendings WHERE packet_key LIKE 'again%'""",
    "negative_acknowledgements": """
        SELECT count(DISTINCT message_key) FROM silver.messages
        WHERE class & 32768 <> 0 AND coalesce(queue, destination_queue) NOT LIKE '%;deadletter'
        UNION ALL
        SELECT count(DISTINCT acknowledged_message_id) FROM silver.order_acks""",
    "dead_letters_growing": f"""
        SELECT {COUNTS.format("message_count")},
          {TIME.format("max(CASE WHEN message_count = least THEN valid_from END)")}
        FROM (SELECT *, min(message_count) OVER () AS least FROM gold.queue_history WHERE queue LIKE '%;deadletter')""",
    "journal_growing": f"""
        SELECT {COUNTS.format("journal_count")},
          {TIME.format("max(CASE WHEN journal_count = least THEN valid_from END)")}
        FROM (SELECT *, min(journal_count) OVER () AS least FROM gold.queue_history WHERE journal_count IS NOT NULL)""",
    "nearly_full": """
        SELECT most, {journal_quota}, CAST(round(100 * most / {journal_quota}) AS int),
          CAST(({journal_quota} - most) / (most - least) * hours / 24 AS decimal(9, 1))
        FROM (
          SELECT max(journal_bytes) AS most, min(journal_bytes) AS least,
            (epoch(max(valid_from)) - epoch(min(valid_from))) / 3600 AS hours
          FROM gold.queue_history WHERE journal_bytes IS NOT NULL
        )""",
    "receives_not_ended": """
        SELECT count(*), CAST(epoch(max(last_packet_at)) - epoch(max(returned_at)) AS int)
        FROM gold.receive_attempts CROSS JOIN bronze.capture_files WHERE outcome = 'in_flight'""",
    "ends_refused": "SELECT count(*) FROM gold.receive_attempts WHERE ack_refused",
    "calls_failing": """
        SELECT count(*) FROM bronze.rpc_calls WHERE outcome = 'fault'
        UNION ALL SELECT count(*) FROM silver.remote_read_calls WHERE hresult = 3222143013
        UNION ALL SELECT count(*) FROM silver.management_calls WHERE hresult = 5""",
    "duplicate_queue_manager": "SELECT subject FROM gold.findings WHERE rule_id IN ('O01', 'O07')",
    "clocks_differ": """
        SELECT actual FROM gold.findings WHERE rule_id = 'O02'
        UNION ALL
        SELECT CAST(max(unix_micros(sent_at) - unix_micros(first_sent_at)) // 1000000 AS varchar)
        FROM gold.message_transfers WHERE sent_at > first_sent_at GROUP BY source_queue_manager""",
    "containers_rejected": """
        SELECT count(DISTINCT message_key), max(comqc_rejected) FROM silver.messages
        WHERE comqc_rejected IS NOT NULL""",
    "application_failing": """
        SELECT count(DISTINCT message_key) FROM silver.messages WHERE exception_type IS NOT NULL""",
    "capture_lost": f"""
        SELECT {TIME.format("hour")}, lost, lost + seen, CAST(100 * lost / (lost + seen) AS decimal(9, 1))
        FROM (
          SELECT hour, sum(value) FILTER (WHERE measure = 'bytes_missing') AS lost,
            sum(value) FILTER (WHERE measure = 'bytes') AS seen FROM gold.coverage GROUP BY hour
        )""",
    "snapshots_missing": f"""
        SELECT {TIME.format("min(date_trunc('hour', asked_at))")}, count(error), count(*) FROM bronze.snapshots_raw""",
}  # fmt: skip
"""What the numbers of a condition's messages are, in their order; a row for each message."""


def numbers(*texts):
    """The numbers in texts, times and addresses among them, as they are written; not those within names."""
    found = (re.findall(r"(?<![\w.])\d+(?:[.:]\d+)*", str(text)) for text in texts if text is not None)
    return [number for each in found for number in each]


@cache
def messages():
    found = {}
    for row in current_alerts(lake(), LIMITS_HERE).to_pylist():
        found.setdefault(row["condition"], []).append(row["message"])
    return found


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_numbers_of_a_message_are_those_of_the_tables(condition):
    limits = LIMITS_HERE
    settings = {
        "machine_quota": limits.machine_quotas["srv1"], "journal_quota": limits.quotas[JOURNAL][1],
        "slow_s": f"{limits.slow_after.total_seconds():g}", "window_min": limits.resend_window // timedelta(minutes=1),
    }  # fmt: skip
    sql = QUERIES[condition]
    for name, value in settings.items():
        sql = sql.replace(f"{{{name}}}", str(value))
    used = set(re.findall(r"\b(?:bronze|silver|gold)\.\w+", sql))
    tables = {name.replace(".", "_"): catalog.table(name) for name in used}
    for name in used:
        sql = sql.replace(name, f"{{{name.replace('.', '_')}}}")
    expected = sorted(numbers(*row.values()) for row in lake().query(sql, **tables).to_pylist())
    assert sorted(map(numbers, messages()[condition])) == expected
