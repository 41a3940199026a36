"""Views of the estate: who sends to whom, which machines there are, when queues are busy, and when was captured."""

from __future__ import annotations

from typing import Final

from pipeline.queues.history import STATE_LOCAL
from pipeline.reports.views.estate_sightings import captured_sql, owning_queue, reads_sql, sightings_sql
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
from pipeline.reports.views.machine_names import MACHINE_NAMES_SQL, with_machines
from pipeline.reports.views.scope import ScopeColumns
from pipeline.reports.views.view import View
from schemas.table import literal

_ACT: Final = (
    "machine", "identifier", "role", "first_at", "last_at", "message", "queue", "bytes", "version", "server_class",
    "ahead_us",
)  # fmt: skip


def _acts(rows: str, identifier: str, **columns: str) -> str:
    """Return a query of what machines did: of each row with an identifier; what is not in ``columns`` is null."""
    every = {"machine": "machine", "identifier": "identifier"} | columns
    named = with_machines(f"(SELECT *, {identifier} AS identifier FROM {rows} AS acts)",
                          {"machine": "rows.identifier"}, "rows.*")
    selected = (f"{every.get(name, 'NULL')} AS {name}" for name in _ACT)
    return f"SELECT {', '.join(selected)} FROM {named} AS named"


_IS_ADDRESS: Final = "regexp_like(identifier, '^[0-9]+[.][0-9]+[.][0-9]+[.][0-9]+$|:')"
_IS_GUID: Final = "identifier LIKE '________-____-____-____-____________'"
_CALL_TIMES: Final = {
    "first_at": "coalesce(requested_at, responded_at)",
    "last_at": "coalesce(responded_at, requested_at)",
}
_SEEN_TIMES: Final = {"first_at": "first_seen_at", "last_at": "last_seen_at"}
_ACTS_SQL: Final = " UNION ALL ".join((
    _acts(
        f"(SELECT *, explode(array('sends', 'routes', 'receives', 'holds_queues')) AS role "
        f"FROM {sightings_sql('hop_count')} AS seen)",
        "CASE role WHEN 'sends' THEN source_queue_manager WHEN 'routes' THEN hop_sender "
        "WHEN 'receives' THEN hop_receiver ELSE CASE WHEN is_to_owner THEN hop_receiver END END",
        role="CASE WHEN role <> 'routes' OR hop_count > 0 THEN role ELSE 'hands_over' END", first_at="seen_at",
        last_at="seen_at", message="message", queue="queue", bytes="sent_bytes",
    ),
    _acts(
        f"(SELECT *, explode(array('serves_reads', 'reads_remotely')) AS role "
        f"FROM {reads_sql('server_address, client_address')} AS reads)",
        "CASE role WHEN 'serves_reads' THEN server_address ELSE client_address END",
        role="role", first_at="first_at", last_at="last_at", message="message", queue="queue",
    ),
    _acts(
        "(SELECT *, explode(array('answers_qmmgmt', 'asks_qmmgmt')) AS role FROM silver.management_calls)",
        "CASE WHEN role = 'asks_qmmgmt' THEN client_address WHEN responded_at IS NOT NULL THEN server_address END",
        role="role", **_CALL_TIMES,
    ),
    _acts(
        "(SELECT * FROM silver.remote_read_calls WHERE version_major IS NOT NULL)",
        "CASE protocol WHEN 'RemoteRead' THEN client_address ELSE server_address END",
        version="concat_ws('.', CAST(version_major AS string), CAST(version_minor AS string), "
        "CAST(build_number AS string))",
        **_CALL_TIMES,
    ),
    _acts(
        "(SELECT *, explode(array(1, 2, 3)) AS part FROM silver.hosts)",
        "CASE part WHEN 1 THEN queue_manager_id WHEN 2 THEN address ELSE host_name END", **_SEEN_TIMES,
    ),
    _acts(
        "silver.machine_snapshots", "lower(queue_manager)", role="CASE WHEN hresult = 0 THEN 'reports' END",
        version="type", first_at="observed_at", last_at="observed_at",
    ),
    _acts(
        f"(SELECT *, {owning_queue('queue')} AS owned FROM gold.queue_history WHERE state = {literal(STATE_LOCAL)})",
        "lower(queue_manager)", role="'holds_queues'", queue="owned", first_at="valid_from",
        last_at="coalesce(reported_at, valid_from)",
    ),
    _acts(
        "(SELECT * FROM silver.sessions WHERE server_class IS NOT NULL)", "client_address", server_class="server_class",
        first_at="first_packet_at", last_at="last_packet_at",
    ),
    _acts(
        "(SELECT *, unix_micros(sent_at) - unix_micros(first_sent_at) AS ahead_us FROM gold.message_transfers)",
        "source_queue_manager", ahead_us="ahead_us", first_at="first_sent_at", last_at="last_sent_at",
    ),
))  # fmt: skip
"""What machines did, and what is known of them: one row for each machine that an event names."""


def _messages_of(role: str) -> str:
    """Return the SQL of how many messages a machine had a role for; null for none."""
    return f"nullif(count(DISTINCT CASE WHEN role = '{role}' THEN message END), 0)"


def _bytes_of(*roles: str) -> str:
    wanted = ", ".join(map(literal, roles))
    return f"CAST(sum(CASE WHEN role IN ({wanted}) THEN bytes END) AS bigint)"


def _set_of(value: str, where: str = "TRUE") -> str:
    return f"array_sort(collect_set(CASE WHEN {where} THEN {value} END))"


ESTATE_TRAFFIC_VIEWS: Final = (
    View(
        "estate_flows", 28,
        "a way on which messages of a queue go from one machine to another",
        "TODO",
        "TODO",
        f"""
        WITH {MACHINE_NAMES_SQL}, flows AS (
          SELECT 'tcp_1801' AS way, sender, receiver, queue, message, 1 AS sendings, sent_bytes AS bytes,
            seen_at AS first_at, seen_at AS last_at
          FROM {sightings_sql("message_key")} AS sent WHERE is_sent
          UNION ALL
          SELECT 'rpc_read', sender, receiver, queue, message, NULL, message_bytes, first_at, last_at
          FROM {reads_sql("message_bytes")} AS reads
          UNION ALL
          SELECT 'http', source, owner, queue, message, NULL, max(body_bytes), min(seen_at), max(seen_at)
          FROM {sightings_sql("body_bytes, is_srmp, call_key")} AS received LEFT JOIN {
              with_machines("silver.remote_read_calls", {"owner": "rows.server_address"}, "call_key")
          } AS calls USING (call_key)
          WHERE is_srmp GROUP BY source, owner, queue, message
        )
        SELECT sender, receiver, queue, way, count(DISTINCT message) AS messages,
          CAST(sum(sendings) AS bigint) AS sendings, CAST(sum(bytes) AS bigint) AS bytes, min(first_at) AS first_at,
          max(last_at) AS last_at
        FROM flows CROSS JOIN setting.now
        WHERE coalesce(first_at <= now, TRUE) AND setting.scope
        GROUP BY sender, receiver, queue, way
        ORDER BY bytes DESC NULLS LAST, messages DESC, queue, sender, receiver, way
        """,
        (), ("first_at", "last_at"), any_of(SESSIONS_SEEN, READS),
        ScopeColumns("first_at", "last_at", ("sender", "receiver"), ("queue",)),
    ),
    View(
        "estate_machines", 28,
        "a machine",
        "TODO",
        "TODO",
        f"""
        WITH {MACHINE_NAMES_SQL}, acts AS (
          SELECT every.* FROM ({_ACTS_SQL}) AS every CROSS JOIN setting.now
          WHERE machine IS NOT NULL AND coalesce(first_at <= now, TRUE) AND setting.scope
        )
        SELECT machine, {_set_of("identifier", f"NOT ({_IS_ADDRESS} OR {_IS_GUID})")} AS host_names,
          {_set_of("identifier", _IS_GUID)} AS queue_manager_ids, {_set_of("identifier", _IS_ADDRESS)} AS addresses,
          {_set_of("role", "role <> 'hands_over'")} AS roles, {_set_of("version")} AS versions,
          max(server_class) AS server_class, {_messages_of("sends")} AS sent_messages,
          {_messages_of("receives")} AS received_messages, {_messages_of("routes")} AS routed_messages,
          {_messages_of("reads_remotely")} AS read_messages, {_messages_of("serves_reads")} AS served_messages,
          {_bytes_of("hands_over", "routes")} AS sent_bytes, {_bytes_of("receives")} AS received_bytes,
          nullif(count(DISTINCT CASE WHEN role IN ('holds_queues', 'serves_reads') THEN queue END), 0) AS queues_held,
          max(CASE WHEN ahead_us > 0 THEN ahead_us END) / 1e6 AS clock_ahead_s, min(first_at) AS first_seen_at,
          max(last_at) AS last_seen_at
        FROM acts
        GROUP BY machine
        ORDER BY sent_messages DESC NULLS LAST, received_messages DESC NULLS LAST, machine
        """,
        (), ("first_seen_at", "last_seen_at"),
        any_of(SESSIONS_SEEN, CALLS, MACHINE_REPORTS, QUEUE_REPORTS),
        ScopeColumns("first_at", "last_at", ("machine", "identifier")),
    ),
    View(
        "estate_hours", 28,
        "a quarter of an hour in which messages of a queue were sent",
        "TODO",
        "TODO",
        f"""
        WITH {MACHINE_NAMES_SQL}, sendings AS (
          SELECT queue, seen_at, source, sender, receiver,
            coalesce(hop_count, 0) = max(coalesce(hop_count, 0)) OVER (PARTITION BY queue, message) AS is_last_hop
          FROM {sightings_sql("hop_count")} AS sent WHERE is_sent AND queue IS NOT NULL
        )
        SELECT queue, timestamp_micros(unix_micros(seen_at) - unix_micros(seen_at) % 900000000) AS start_at,
          count(*) AS sendings
        FROM sendings CROSS JOIN setting.now
        WHERE is_last_hop AND seen_at <= now AND setting.scope
        GROUP BY queue, timestamp_micros(unix_micros(seen_at) - unix_micros(seen_at) % 900000000)
        ORDER BY queue, start_at
        """,
        (), ("start_at",), all_of(SESSIONS_SEEN),
        ScopeColumns("seen_at", "seen_at", ("source", "sender", "receiver"), ("queue",)),
    ),
    View(
        "estate_coverage", 28,
        "a stretch of time in which captures ran without a gap",
        "TODO",
        "TODO",
        f"""
        SELECT timestamp_micros(first_minute * 60000000) AS first_at,
          timestamp_micros(end_minute * 60000000) AS until_at, end_minute - first_minute AS minutes
        FROM {captured_sql("setting.scope")} AS stretches
        ORDER BY first_at
        """,
        (), ("first_at", "until_at"), all_of(PACKETS), ScopeColumns("first_packet_at", "last_packet_at"),
    ),
)  # fmt: skip
"""The views of the estate by flows and time."""
