"""Views of queue managers: their state, what their queues hold, and what administrators had them do."""

from __future__ import annotations

from typing import Final

from pipeline.queues.last_reports import LAST_MACHINE_REPORTS_SQL
from pipeline.reports.views.evidence import CALLS, MACHINE_REPORTS, all_of
from pipeline.reports.views.scope import ScopeColumns
from pipeline.reports.views.trend import TREND_COLUMNS, TREND_LIMITATIONS, TREND_MEANING, with_trends
from pipeline.reports.views.view import View

_LAST_REPORTS: Final = LAST_MACHINE_REPORTS_SQL.replace(
    "{machine_history}", "(SELECT * FROM gold.machine_history CROSS JOIN setting.now WHERE valid_from <= now)"
)

MACHINE_VIEWS: Final = (
    View(
        "administrator_actions", 1,
        "an action that an administrator asked of a queue manager (R_QMMgmtAction)",
        "Why a queue or a whole queue manager is not connected: somebody paused or disconnected it. `state_before` and "
        "`state_after` are those of the nearest snapshots, if no other action lies between. `authenticated` is false "
        "where the caller proved no identity, null where the bind was not captured.",
        "Actions on the machine itself (in its management console) are not on the network. The states are only known "
        "where snapshots were taken within `history.max_gap`.",
        """
        SELECT coalesce(requested_at, responded_at) AS asked_at, action, queue_manager, queue, queue_format_name,
          client_address, auth_level_name, auth_level > 1 AS authenticated, outcome,
          coalesce(hresult_name, fault_name) AS result, state_before, state_after, state_after_at, call_key
        FROM gold.management_actions
        WHERE setting.scope
        ORDER BY asked_at, call_key
        """,
        ("queue_manager",), ("asked_at",), all_of(CALLS),
        ScopeColumns("coalesce(requested_at, responded_at)", "coalesce(requested_at, responded_at)",
                     ("queue_manager", "server_address", "client_address"), ("queue", "queue_format_name")),
    ),
    View(
        "machines", 3,
        "a queue manager",
        "Its last known `state` (DISCONNECTED: taken off network and directory), `since` when it is in that state "
        "without a gap, and `known_until`, when the last report of it expires. `bytes` are those of all its queues, as "
        "last reported at `reported_at`; `used_share` is their share of the quota in `quotas.machine` or "
        "`quotas.machines`, null without quota. " + TREND_MEANING,
        "CONNECTED means that nobody took the queue manager offline, not that its directory server answers. Nothing is "
        "known of queue managers that nobody asks. This interface does not report quotas: they come from the "
        "configuration. A queue manager that does not report the bytes of all its queues has no trend: the queues that "
        "are reported need not be all. " + TREND_LIMITATIONS,
        """
        WITH last AS (
          SELECT * FROM (""" + _LAST_REPORTS + """)
        ), quotas AS (
          SELECT last.queue_manager, max_by(quotas.bytes, quotas.queue_manager IS NOT NULL) AS quota_bytes
          FROM last JOIN setting.machine_quotas AS quotas
            ON (quotas.queue_manager = last.queue_manager OR quotas.queue_manager IS NULL) AND quotas.bytes IS NOT NULL
          GROUP BY last.queue_manager
        ), limits AS (
          SELECT * FROM last LEFT JOIN quotas USING (queue_manager)
        ), reported AS (
          SELECT queue_manager, valid_from, bytes_in_all_queues AS bytes FROM gold.machine_history
          WHERE setting.since IS NULL OR valid_from >= setting.since
        )
        SELECT queue_manager, state, since, known_until, known_until <= now AS expired, directory_server, reported_at,
          bytes_in_all_queues AS bytes, quota_bytes,
          CAST(bytes_in_all_queues AS double) / nullif(quota_bytes, 0) AS used_share,
          active_queues, private_queues, sources, """ + TREND_COLUMNS + """
        FROM """ + with_trends("limits", "reported", ("queue_manager",)) + """ CROSS JOIN setting.now
        WHERE setting.scope
        ORDER BY used_share DESC NULLS LAST, bytes DESC NULLS LAST, queue_manager
        """,
        ("queue_manager",), ("reported_at",), all_of(MACHINE_REPORTS),
        ScopeColumns("since", "known_until - INTERVAL 1 MICROSECOND", ("queue_manager",)),
    ),
)  # fmt: skip
"""The views of queue managers."""
