"""Views of the estate: who sends to whom, which machines there are, when queues are busy, and when was captured."""

from __future__ import annotations

from typing import Final

from pipeline.queues.history import STATE_LOCAL
from pipeline.reports.views.estate_sightings import (
    QUEUE_STRETCHES_SQL,
    READS_SQL,
    SIGHTINGS_SQL,
    by_queue,
    captured_sql,
)
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
from pipeline.reports.views.machine_names import with_machines
from pipeline.reports.views.scope import ScopeColumns
from pipeline.reports.views.view import View
from schemas.table import literal

_FLOWS: Final = with_machines(
    by_queue("ways", "way, hop_sender, hop_receiver, message, sendings, bytes, first_at, last_at"),
    {"sender": "rows.hop_sender", "receiver": "rows.hop_receiver"},
    "rows.queue, way, message, sendings, bytes, first_at, last_at",
)
_SENT: Final = by_queue(
    f"(SELECT * FROM {SIGHTINGS_SQL} AS seen WHERE is_sent)",
    "message, seen_at, hop_count, source_queue_manager, hop_sender, hop_receiver",
)
_ACT: Final = (
    "identifier", "role", "first_at", "last_at", "message", "found_in", "bytes", "version", "server_class", "ahead_us",
)  # fmt: skip


def _acts(rows: str, identifier: str, **columns: str) -> str:
    """Return a query of acts: of the machine that each row names; what is not in ``columns`` is null."""
    selected = (f"{({'identifier': identifier} | columns).get(name, 'NULL')} AS {name}" for name in _ACT)
    return f"SELECT {', '.join(selected)} FROM {rows} AS acts"


_QUARTER: Final = "timestamp_micros(unix_micros(seen_at) - unix_micros(seen_at) % 900000000)"
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
        f"FROM {SIGHTINGS_SQL} AS seen)",
        "CASE role WHEN 'sends' THEN source_queue_manager WHEN 'routes' THEN hop_sender "
        "WHEN 'receives' THEN hop_receiver ELSE CASE WHEN is_to_owner THEN hop_receiver END END",
        role="CASE WHEN role <> 'routes' OR hop_count > 0 THEN role ELSE 'hands_over' END", first_at="seen_at",
        last_at="seen_at", message="message", found_in="found_in", bytes="packet_bytes",
    ),
    _acts(
        f"(SELECT *, explode(array('serves_reads', 'reads_remotely')) AS role "
        f"FROM {READS_SQL} AS reads)",
        "CASE role WHEN 'serves_reads' THEN server_address ELSE client_address END",
        role="role", first_at="first_at", last_at="last_at", message="message", found_in="found_in",
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
        f"(SELECT * FROM gold.queue_history WHERE state = {literal(STATE_LOCAL)})",
        "lower(queue_manager)", role="'holds_queues'", found_in="queue", first_at="valid_from",
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
_MACHINES_SQL: Final = with_machines(
    by_queue(f"({_ACTS_SQL})", ", ".join(name for name in _ACT if name != "found_in")),
    {"machine": "rows.identifier"},
    "rows.*",
)


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
        "`way` is `tcp_1801` (one hop between two machines), `rpc_read` (remote receives and peeks, from the owner "
        "of the queue to the reader) or `http` (messages that came to the queue by HTTP, from the machine that first "
        "accepted them to the owner). A machine has its host name, else its GUID, else its address; it is null where "
        "it was not seen. `messages` are distinct, `sendings` are packets of TCP 1801, resends too; `bytes` are "
        "those of all sendings, of the bodies that were read, and of the bodies of `http`.",
        "Local reads, and messages that stay on one machine, are never seen. HTTP itself is not read: messages show "
        "that they came so when they are read remotely.",
        f"""
        WITH ways AS (
          SELECT 'tcp_1801' AS way, hop_sender, hop_receiver, found_in, message, 1 AS sendings, packet_bytes AS bytes,
            seen_at AS first_at, seen_at AS last_at
          FROM {SIGHTINGS_SQL} AS sent WHERE is_sent
          UNION ALL
          SELECT 'rpc_read', server_address, client_address, found_in, message, NULL, message_bytes, first_at, last_at
          FROM {READS_SQL} AS reads
          UNION ALL
          SELECT 'http', source_queue_manager, owner, found_in, message, NULL, max(body_bytes), min(seen_at),
            max(seen_at)
          FROM {SIGHTINGS_SQL} AS received
          WHERE is_srmp GROUP BY source_queue_manager, owner, found_in, message
        ), flows AS (
          SELECT * FROM {_FLOWS} AS named
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
        "`host_names`, `queue_manager_ids` and `addresses` are its identifiers, as far as they were seen. `roles`: "
        "`sends` (its queue manager first accepted messages), `receives` (from others, on TCP 1801), `routes` "
        "(passes messages of others on), `holds_queues`, `serves_reads` and `reads_remotely` (RPC), `reports` (its "
        "state was reported), `answers_qmmgmt` and `asks_qmmgmt`. Messages are distinct for each role; `sent_bytes` "
        "and `received_bytes` are those of packets on TCP 1801, resends and routed ones too. `versions` are those "
        "that it says, `server_class` whether its handshake says so. `clock_ahead_s` is how far at least its clock "
        "was ahead of the captures' (view clock_differences).",
        "What has several names, as a cloned GUID or an address behind NAT, is a machine of its own. A clock that is "
        "behind cannot be proved. Roles are those that were seen: local reads never are.",
        f"""
        WITH acts AS (
          SELECT every.* FROM {_MACHINES_SQL} AS every CROSS JOIN setting.now
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
        "`start_at` is its beginning, UTC. `sendings` are those of estate_queues. Quarters without a row had none, "
        "where estate_coverage has them; otherwise nothing is known.",
        "Only TCP 1801 counts: messages that were only read do not say when they came.",
        f"""
        WITH sendings AS (
          SELECT *, {_QUARTER} AS start_at,
            coalesce(hop_count, 0) = max(coalesce(hop_count, 0)) OVER (PARTITION BY queue, message) AS is_last_hop
          FROM {_SENT} AS sent WHERE queue IS NOT NULL
        )
        SELECT queue, start_at, count(*) AS sendings
        FROM sendings CROSS JOIN setting.now
        WHERE is_last_hop AND seen_at <= now AND setting.scope
        GROUP BY queue, start_at
        ORDER BY queue, start_at
        """,
        (), ("start_at",), all_of(SESSIONS_SEEN),
        ScopeColumns("seen_at", "seen_at", ("source_queue_manager", "hop_sender", "hop_receiver"), ("queue",)),
    ),
    View(
        "estate_coverage", 28,
        "a stretch of time in which captures ran without a gap",
        "From `first_at` until `until_at`, whole minutes of UTC in which any capture had packets. Within the hours "
        "asked for, and until now.",
        "A capture that ran saw only its own part of the network.",
        f"""
        SELECT timestamp_micros(first_minute * 60000000) AS first_at,
          timestamp_micros(end_minute * 60000000) AS until_at, end_minute - first_minute AS minutes
        FROM {captured_sql("setting.scope")} AS stretches
        ORDER BY first_at
        """,
        (), ("first_at", "until_at"), all_of(PACKETS), ScopeColumns("first_packet_at", "last_packet_at"),
    ),
    View(
        "estate_queue_coverage", 28,
        "a stretch of time in which captures ran without a gap that could show a queue",
        "From `first_at` until `until_at`, whole minutes of UTC. Those captures could show a queue that are in a "
        "folder in which any capture of a message sent to it is; folders of days and hours are one. In these minutes "
        "no row of estate_hours means that nothing was sent to the queue.",
        "Queues of which no message was captured on TCP 1801 have no row.",
        f"""
        SELECT * FROM (
          SELECT queue, timestamp_micros(first_minute * 60000000) AS first_at,
            timestamp_micros(end_minute * 60000000) AS until_at, end_minute - first_minute AS minutes
          FROM {QUEUE_STRETCHES_SQL} AS stretches
        ) AS times
        WHERE setting.scope
        ORDER BY queue, first_at
        """,
        (), ("first_at", "until_at"), all_of(SESSIONS_SEEN),
        ScopeColumns("first_at", "until_at - INTERVAL 1 MICROSECOND", (), ("queue",)),
    ),
)  # fmt: skip
"""The views of the estate by flows and time."""
