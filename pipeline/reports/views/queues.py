"""Views of queue states, and of exactly-once transfers between queues."""

from __future__ import annotations

from typing import Final

from pipeline.queues.history import (
    DEAD_LETTER_QUEUES_SQL,
    NOT_CONNECTED_STATES,
    STATE_ON_HOLD,
)
from pipeline.queues.last_reports import LAST_TRANSFERS_SQL
from pipeline.queues.messages_read import waiting_intervals
from pipeline.reports.views.evidence import (
    DEAD_LETTER_REPORTS,
    JOURNAL_REPORTS,
    QUEUE_REPORTS,
    READS,
    RECEIVER_REPORTS,
    SESSIONS_SEEN,
    TRANSFER_REPORTS,
    all_of,
)
from pipeline.reports.views.scope import ScopeColumns
from pipeline.reports.views.trend import TREND_COLUMNS, TREND_LIMITATIONS, TREND_MEANING, with_trends
from pipeline.reports.views.view import View
from pipeline.transfers.sequences.sequence_progress import acknowledged_after
from schemas.table import literal

_STATE_EXPIRES: Final = (
    "An observation is valid for `history.max_gap`. After that the state is UNKNOWN: a row of its own, not a good sign."
)

_SOURCES: Final = "What captures and collector both saw counts once; `sources` names them."
_LAST_TRANSFERS: Final = LAST_TRANSFERS_SQL.replace(
    "{eod_transfers}", "(SELECT * FROM gold.eod_transfers WHERE setting.scope)"
).replace("{max_gap_s}", "setting.max_gap_s")
_QUEUES: Final = ("queue", "queue_format_name")
_QUEUE_KEY: Final = ("queue_manager", *_QUEUES)
_REPORTED: Final = ScopeColumns("valid_from", "valid_from", ("queue_manager",), _QUEUES)
_OBSERVED: Final = ScopeColumns("observed_at", "observed_at", ("queue_manager",), _QUEUES)
_NO_SHORT_RATES: Final = "Rates are null if the reports are less than `history.max_gap` apart."


def _time_until_full(span: str) -> str:
    """Return the SQL of the time until ``quota_bytes`` is reached, at the growth within a span of time.

    It is null without growth, quota or span.
    """
    # Not greatest(): it ignores nulls, so that an unknown quota would count as full.
    return f"""CASE WHEN last_bytes > first_bytes THEN CASE WHEN last_bytes >= quota_bytes THEN 0 * {span}
            ELSE (quota_bytes - last_bytes) * {span} / (last_bytes - first_bytes) END END"""


_NOW: Final = "(SELECT now FROM setting.now)"
_WAITING: Final = waiting_intervals("gold.queue_history", "gold.message_transfers", "silver.queue_aliases", _NOW)
_ACKED_LATER: Final = acknowledged_after("gold.eod_transfers", "gold.transfer_sequences", "silver.queue_aliases", _NOW)
_NOT_CONNECTED_SQL: Final = ", ".join(map(literal, (*NOT_CONNECTED_STATES, STATE_ON_HOLD)))

QUEUE_VIEWS: Final = (
    View(
        "outgoing_not_connected", 1,
        "a period in which an outgoing queue was not connected",
        "`until` is when another state was reported, else the last report that shows this one. `still` is true if the "
        "newest report shows the state and is valid, null if that expired and none followed. A period ends with a "
        "message that was handed over to the next machine (TCP 1801), whatever the last report says. `why` is the last "
        "entry of the queue manager's connection history, null if it keeps none (before Windows Vista) or was not "
        "asked for it. ONHOLD means that somebody paused the queue: it was reported, or the call was captured.",
        _STATE_EXPIRES + " Only the last entry of the connection history is known. Nothing is known of queue managers "
        "that nobody asks.",
        """
        WITH told AS (
          SELECT *, CASE WHEN paused THEN """ + literal(STATE_ON_HOLD) + """
              WHEN state = """ + literal(STATE_ON_HOLD) + """ AND NOT paused THEN 'RESUMED' ELSE state END AS held_state
          FROM gold.queue_history CROSS JOIN setting.now WHERE valid_from <= now
        ), changes AS (
          SELECT *, coalesce(held_state <> lag(held_state) OVER queue_in_time OR lag(departed) OVER queue_in_time > 0,
              TRUE) AS changed,
            CASE WHEN departed = 0 AND lead(state) OVER queue_in_time <> 'UNKNOWN' THEN valid_to ELSE reported_at END
              AS told_until,
            CASE WHEN departed > 0 OR lead(state) OVER queue_in_time <> 'UNKNOWN' THEN FALSE
              WHEN lead(state) OVER queue_in_time IS NULL AND valid_to > now THEN TRUE END AS lasts
          FROM told
          WINDOW queue_in_time AS (PARTITION BY queue_manager, queue, queue_format_name ORDER BY valid_from)
        ), runs AS (
          SELECT *, sum(CAST(changed AS int)) OVER queue_in_time AS run
          FROM changes
          WINDOW queue_in_time AS (PARTITION BY queue_manager, queue, queue_format_name ORDER BY valid_from)
        ), down AS (
          SELECT queue_manager, queue, queue_format_name, held_state AS state, min(valid_from) AS since,
            greatest(min(valid_from), max(told_until)) AS until, max_by(lasts, valid_from) AS still,
            max(valid_to) AS valid_to,
            max_by(message_count, valid_from) AS message_count, max_by(bytes, valid_from) AS bytes,
            max_by(try_element_at(evidence, -1), valid_from) AS snapshot_id
          FROM runs
          WHERE held_state IN (""" + _NOT_CONNECTED_SQL + """)
          GROUP BY queue_manager, queue, queue_format_name, held_state, run
        ), reasons AS (
          SELECT snapshot_id, nexthops, try_element_at(connection_history, -1) AS last FROM silver.queue_snapshots
        )
        SELECT down.queue_manager, down.queue, down.queue_format_name, down.state, down.since,
          least(down.until, clock.now) AS until, down.still, down.message_count, down.bytes,
          reasons.last.status_name AS why, reasons.last.error_name AS error, reasons.last.changed_at AS failed_at,
          reasons.nexthops
        FROM down LEFT JOIN reasons USING (snapshot_id) CROSS JOIN setting.now AS clock
        WHERE setting.scope
        ORDER BY still IS FALSE, still DESC, down.since, down.queue_manager, down.queue, down.queue_format_name
        """,
        ("queue_manager",), ("since", "until"), all_of(QUEUE_REPORTS, beside=(SESSIONS_SEEN,)),
        ScopeColumns("down.since", "CASE WHEN down.still IS FALSE THEN down.until ELSE down.valid_to END",
                     ("down.queue_manager",), ("down.queue", "down.queue_format_name")),
    ),
    View(
        "time_in_state", 2,
        "a state of a queue, UNKNOWN included",
        "`seconds` is the total time in the state from the first evidence until now, `share` its share of that "
        "period, `times` how often the queue entered the state. `last_at` is until when it counts. Of hours that are "
        "asked for, only the time within them counts.",
        _STATE_EXPIRES,
        """
        WITH told AS (
          SELECT queue_manager, queue, queue_format_name, state, valid_from, least(valid_to, now) AS valid_to, now
          FROM gold.queue_history CROSS JOIN setting.now WHERE valid_from <= now
        ), steps AS (
          SELECT *, coalesce(state <> lag(state) OVER queue_in_time, TRUE) AND valid_from = counted_from AS entered,
            (unix_micros(valid_to) - unix_micros(counted_from)) / 1e6 AS seconds
          FROM (SELECT *, greatest(valid_from, setting.since) AS counted_from FROM (
            SELECT * FROM told
            UNION ALL
            SELECT queue_manager, queue, queue_format_name, 'UNKNOWN', max(valid_to), max(now), max(now)
            FROM told GROUP BY queue_manager, queue, queue_format_name HAVING max(valid_to) < max(now)
          )) AS every
          WINDOW queue_in_time AS (PARTITION BY queue_manager, queue, queue_format_name ORDER BY valid_from)
        )
        SELECT queue_manager, queue, queue_format_name, state, sum(seconds) AS seconds,
          sum(seconds) / nullif(sum(sum(seconds)) OVER (PARTITION BY queue_manager, queue, queue_format_name), 0)
            AS share,
          count_if(entered) AS times, min(counted_from) AS first_at, max(valid_to) AS last_at
        FROM steps
        WHERE setting.scope
        GROUP BY queue_manager, queue, queue_format_name, state
        ORDER BY queue_manager, queue, queue_format_name, seconds DESC, state
        """,
        ("queue_manager",), ("first_at", "last_at"), all_of(QUEUE_REPORTS),
        # An interval does not include its end. One that begins at now is empty, and counts.
        ScopeColumns(
            "valid_from", "greatest(valid_from, valid_to - INTERVAL 1 MICROSECOND)", ("queue_manager",), _QUEUES
        ),
    ),
    View(
        "depth_over_time", 3,
        "an hour of a queue",
        "The minimum, maximum and last number of messages and bytes that were reported in the hour. `received` counts "
        "captured receives. `unexplained` is the change that no captured call explains (senders, local readers).",
        _STATE_EXPIRES + " The number between two reports is unknown.",
        """
        SELECT queue_manager, queue, queue_format_name, date_trunc('hour', valid_from) AS hour,
          min(message_count) AS least_messages, max(message_count) AS most_messages,
          max_by(message_count, valid_from) FILTER (WHERE message_count IS NOT NULL) AS last_messages,
          max(bytes) AS most_bytes, max_by(bytes, valid_from) FILTER (WHERE bytes IS NOT NULL) AS last_bytes,
          sum(received) AS received, sum(unexplained_change) AS unexplained
        FROM gold.queue_history
        WHERE state <> 'UNKNOWN' AND setting.scope
        GROUP BY queue_manager, queue, queue_format_name, date_trunc('hour', valid_from)
        ORDER BY queue_manager, queue, queue_format_name, hour
        """,
        ("queue_manager",), ("hour",), all_of(QUEUE_REPORTS), _REPORTED,
    ),
    View(
        "depth_growth", 3,
        "a queue, over the day before now, or the hours asked for",
        "Growth per hour from the first to the last report of that time; `span_s` is the time between them. "
        "`hours_until_full` extrapolates that rate to the quota in `quotas.*`; null without growth or quota. "
        + TREND_MEANING,
        "This interface does not report quotas: they come from the configuration. " + _NO_SHORT_RATES
        + " " + TREND_LIMITATIONS,
        """
        WITH reported AS (
          SELECT queue_manager, queue, queue_format_name, valid_from, message_count, bytes
          FROM gold.queue_history WHERE setting.scope
        ), reports AS (
          SELECT queue_manager, queue, queue_format_name, min(valid_from) AS first_at, max(valid_from) AS last_at,
            min_by(message_count, valid_from) AS first_messages, max_by(message_count, valid_from) AS last_messages,
            min_by(bytes, valid_from) AS first_bytes, max_by(bytes, valid_from) AS last_bytes
          FROM reported CROSS JOIN setting.now
          WHERE message_count IS NOT NULL AND valid_from <= now
            AND (setting.since IS NOT NULL OR valid_from > now - INTERVAL 1 DAY)
          GROUP BY queue_manager, queue, queue_format_name
        ), limits AS (
          SELECT reports.*, max_by(quotas.messages, quotas.queue IS NOT NULL) AS quota_bytes,
            (unix_micros(last_at) - unix_micros(first_at)) / 1e6 AS span_s
          FROM reports LEFT JOIN setting.quotas AS quotas
            ON (quotas.queue = reports.queue OR quotas.queue IS NULL) AND quotas.messages IS NOT NULL
          GROUP BY ALL
        ), rates AS (
          SELECT *, CASE WHEN span_s >= setting.max_gap_s THEN span_s / 3600 END AS hours FROM limits
        )
        SELECT queue_manager, queue, queue_format_name, first_at, last_at, span_s, last_messages, last_bytes,
          (last_messages - first_messages) / nullif(hours, 0) AS messages_per_hour,
          (last_bytes - first_bytes) / nullif(hours, 0) AS bytes_per_hour, quota_bytes,
          """ + _time_until_full("hours") + """ AS hours_until_full, """ + TREND_COLUMNS + """
        FROM """ + with_trends("rates", "reported", _QUEUE_KEY) + """
        ORDER BY hours_until_full NULLS LAST, messages_per_hour DESC NULLS LAST, queue_manager, queue, queue_format_name
        """,
        ("queue_manager",), ("first_at", "last_at"), all_of(QUEUE_REPORTS, hours=24), _REPORTED,
    ),
    View(
        "stuck_queues", 4,
        "a period in which messages waited in a local queue, neither journal nor for dead letters, and nothing shows "
        "that any was read",
        "`minutes` is the time from `since` to `until`, `observed_minutes` is how much of it reports show: filter by "
        "`observed_minutes >= 15`, as the alert queue_stuck does. A period ends with a captured "
        "receive (also one that gave the message back), with a move or a purge, with an acknowledgement on TCP 1801 "
        "that a message of the queue was received, and when there are fewer messages or bytes than expected: then "
        "somebody read on the machine itself. `until` is when it ended, else the last report that shows it; one report "
        "alone shows no period. `still` is true if the newest report shows it and is valid, null if that expired and "
        "none followed. `last_attempt_at` and `last_reader` are those of the newest captured Start call at the queue.",
        "Readers on the machine itself are visible only where the number of messages falls, or where an "
        "acknowledgement of the receive was asked for and captured. " + _STATE_EXPIRES,
        """
        WITH readers AS (
          SELECT queue, max(started_at) AS last_attempt_at, max_by(client_address, started_at) AS last_reader
          FROM gold.receive_attempts WHERE queue IS NOT NULL GROUP BY queue
        ), found AS (
          SELECT queue_manager, queue, queue_format_name, waits_since AS since, waits_until AS until, may_last,
            observed_us, max(valid_to) AS valid_to, max_by(message_count, valid_from) AS message_count,
            max_by(bytes, valid_from) AS bytes
          FROM """ + _WAITING + """ AS waiting
          GROUP BY queue_manager, queue, queue_format_name, waits_since, waits_until, may_last, observed_us
        )
        SELECT queue_manager, queue, queue_format_name, since, until,
          CASE WHEN NOT may_last THEN FALSE WHEN valid_to > now THEN TRUE END AS still,
          (unix_micros(until) - unix_micros(since)) / 6e7 AS minutes, observed_us / 6e7 AS observed_minutes,
          message_count, bytes, last_attempt_at, last_reader
        FROM found LEFT JOIN readers USING (queue) CROSS JOIN setting.now
        WHERE until > since AND setting.scope
        ORDER BY still IS FALSE, still DESC, minutes DESC, queue_manager, queue, queue_format_name
        """,
        ("queue_manager",), ("since", "until"), all_of(QUEUE_REPORTS, beside=(READS, SESSIONS_SEEN)),
        ScopeColumns("since", "CASE WHEN may_last THEN valid_to ELSE until END", ("queue_manager",), _QUEUES),
    ),
    View(
        "outgoing_backlog", 6,
        "the newest observation of an outgoing transactional queue",
        "`not_sent` messages wait for a connection or their turn, `unacknowledged` ones were sent and not "
        "acknowledged, `unread` ones arrived and were not read as far as acknowledgements show. `in_flight_s` is how "
        "long the oldest unacknowledged message has been in flight. " + _SOURCES,
        "Outgoing queues that are not transactional report no acknowledgements. Values that were not asked for are "
        "null.",
        """
        WITH newest AS (
          SELECT last.*, snapshot.message_count - last.unacked_count AS others
          FROM (""" + _LAST_TRANSFERS + """) AS last LEFT JOIN silver.queue_snapshots AS snapshot USING (snapshot_id)
        )
        SELECT queue_manager, queue, queue_format_name, sources, observed_at, if(others < 0, 0, others) AS not_sent,
          unacked_count AS unacknowledged, unread_count AS unread, in_flight_s, condition
        FROM newest
        ORDER BY unacknowledged DESC NULLS LAST, not_sent DESC NULLS LAST, queue_manager, queue, queue_format_name
        """,
        ("queue_manager",), ("observed_at",), all_of(TRANSFER_REPORTS), _OBSERVED,
    ),
    View(
        "transfer_stalls", 7,
        "a stall of an outgoing transactional queue",
        "No message was acknowledged from `since` to `last_seen_at`. `resend_count` says how often the oldest message "
        "was tried, `ladder_step` how long the pauses are by now (gold.eod_transfers in docs/reference/tables.md), "
        "`next_resend_at` when the next resend is due. `still` is true if no later observation shows progress, and no "
        "order acknowledgement of the oldest message was captured later (TCP 1801). " + _SOURCES,
        "Changes between two observations are not seen. The queue manager counts the resends. Stalls that TCP 1801 "
        "shows are in gold.transfer_sequences (`stalls`) and in the view never_acknowledged.",
        """
        WITH seen AS (
          SELECT *, max(CASE WHEN condition <> 'stalled' AND size(evidence) > 1 THEN observed_at END) OVER (
            PARTITION BY queue_manager, queue, lower(queue_format_name)
          ) AS progress_at
          FROM gold.eod_transfers CROSS JOIN setting.now WHERE observed_at <= now
        ), of_sources AS (
          SELECT queue_manager, queue, lower(queue_format_name) AS name, source, stalled_since AS since,
            max(observed_at) AS last_seen_at
          FROM seen WHERE condition = 'stalled' GROUP BY ALL
        ), begun AS (
          SELECT *, coalesce(since > max(last_seen_at) OVER (
            PARTITION BY queue_manager, queue, name ORDER BY since, source
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
          ), TRUE) AS begins
          FROM of_sources
        ), stalls AS (
          SELECT *, min(since) OVER (PARTITION BY queue_manager, queue, name, stall) AS stall_since
          FROM (SELECT *, sum(CAST(begins AS int)) OVER (
            PARTITION BY queue_manager, queue, name ORDER BY since, source
          ) AS stall FROM begun)
        ), found AS (
          SELECT seen.queue_manager, seen.queue, max(seen.queue_format_name) AS queue_format_name,
            array_join(array_sort(collect_set(seen.source)), ', ') AS sources, stall_since AS since,
            max(observed_at) AS last_seen_at, coalesce(max(observed_at) > max(progress_at), TRUE)
              AND max_by(acks.acknowledged_at, observed_at) IS NULL AS still,
            max_by(first_unacked_number, observed_at) AS first_unacked_number,
            max_by(unacked_count, observed_at) AS unacknowledged, min(resend_count) AS first_resend_count,
            max_by(resend_count, observed_at) AS resend_count, max_by(ladder_step, observed_at) AS ladder_step,
            max_by(ladder_interval_s, observed_at) AS ladder_interval_s,
            max_by(next_resend_at, observed_at) AS next_resend_at
          FROM seen JOIN stalls ON seen.queue_manager IS NOT DISTINCT FROM stalls.queue_manager
            AND seen.queue IS NOT DISTINCT FROM stalls.queue AND lower(seen.queue_format_name) IS NOT DISTINCT FROM name
            AND seen.source = stalls.source AND stalled_since = stalls.since
            LEFT JOIN """ + _ACKED_LATER + """ AS acks ON acks.snapshot_id = seen.snapshot_id
          WHERE condition = 'stalled'
          GROUP BY seen.queue_manager, seen.queue, name, stall_since
        )
        SELECT * FROM found
        WHERE setting.scope
        ORDER BY still DESC, since, queue_manager, queue, queue_format_name
        """,
        ("queue_manager",), ("since", "last_seen_at"), all_of(TRANSFER_REPORTS, beside=(SESSIONS_SEEN,)),
        ScopeColumns("since", "CASE WHEN NOT still THEN last_seen_at END", ("queue_manager",), _QUEUES),
    ),
    View(
        "sequence_gaps", 9,
        "a sequence of which a receiver rejected messages",
        "`rejected` is the last reported number of messages rejected since the receiver last accepted one. `still` is "
        "true if the newest report shows it. `disagrees_with_sender` compares the receiver's report with the "
        "sender's. " + _SOURCES,
        "The receiver's count restarts when it accepts a message: a gap that opened and closed between two "
        "observations is not seen. Which numbers lack is in the view gaps_on_the_wire, where TCP 1801 was captured.",
        """
        WITH seen AS (
          SELECT *, lead(observed_at) OVER (
            PARTITION BY queue_manager, queue, sender_queue_manager, sender_format_name
            ORDER BY observed_at, source_key
          ) IS NULL AS is_last
          FROM gold.eod_sources CROSS JOIN setting.now WHERE observed_at <= now
        ), found AS (
          SELECT queue_manager, queue, max_by(queue_format_name, observed_at) AS queue_format_name,
            array_join(array_sort(collect_set(source)), ', ') AS sources, sender_queue_manager, sender_format_name,
            sequence_id, last_number,
            max_by(reject_count, observed_at) AS rejected, max(reject_count) AS most_rejected,
            min(observed_at) AS first_seen_at, max(observed_at) AS last_seen_at, max(is_last) AS still,
            max_by(disagrees_with_sender, observed_at) AS disagrees_with_sender
          FROM seen
          WHERE reject_count > 0 OR disagrees_with_sender LIKE 'gap:%'
          GROUP BY queue_manager, queue, sender_queue_manager, sender_format_name, sequence_id, last_number
        )
        SELECT * FROM found
        WHERE setting.scope
        ORDER BY still DESC, rejected DESC, queue_manager, queue, sender_queue_manager, sender_format_name, sequence_id,
          last_number
        """,
        ("queue_manager",), ("first_seen_at", "last_seen_at"), all_of(RECEIVER_REPORTS),
        ScopeColumns("first_seen_at", "CASE WHEN NOT still THEN last_seen_at END",
                     ("queue_manager", "sender_queue_manager"), (*_QUEUES, "sender_format_name")),
    ),
    View(
        "ends_that_disagree", 11,
        "a way in which sender and receiver of a sequence disagree",
        "`how` is `sequence_behind`, `number_behind`, `gap` or `sequence_unknown`; `last_told` gives the numbers. The "
        "receiver rejects all messages that follow: waiting does not help. `observations` counts those of the source "
        "that has most. " + _SOURCES,
        "Checked only where both ends were observed within `history.max_gap` of each other. Elsewhere the rows of "
        "gold.eod_sources have no sender (`missing` contains no_snapshot).",
        """
        WITH found AS (
          SELECT queue_manager, queue, max_by(queue_format_name, observed_at) AS queue_format_name,
            array_join(array_sort(collect_set(source)), ', ') AS sources, sender_queue_manager, sender_queue,
            sequence_id, split_part(disagrees_with_sender, ':', 1) AS how, min(observed_at) AS first_seen_at,
            max(observed_at) AS last_seen_at,
            greatest(count_if(source = 'collector'), count_if(source = 'wire')) AS observations,
            max_by(disagrees_with_sender, observed_at) AS last_told
          FROM gold.eod_sources CROSS JOIN setting.now
          WHERE disagrees_with_sender IS NOT NULL AND observed_at <= now
          GROUP BY queue_manager, queue, sender_queue_manager, sender_queue, sequence_id,
            split_part(disagrees_with_sender, ':', 1)
        )
        SELECT * FROM found
        WHERE setting.scope
        ORDER BY last_seen_at DESC, queue_manager, queue, sender_queue_manager, sender_queue, sequence_id, how
        """,
        ("queue_manager",), ("first_seen_at", "last_seen_at"), all_of(RECEIVER_REPORTS, TRANSFER_REPORTS),
        ScopeColumns("first_seen_at", "last_seen_at", ("queue_manager", "sender_queue_manager"),
                     (*_QUEUES, "sender_queue")),
    ),
    View(
        "resends", 13,
        "a day of an outgoing transactional queue",
        "`resends` is the sum of the increases of the resend count, `sent` the sum of the increases of the next "
        "number; `share` is `resends` divided by both together. Each is that of the source that saw most of it. "
        + _SOURCES,
        "The count is of tries of the oldest message and restarts with each acknowledgement: what rose and fell "
        "between two observations is not counted, so `resends` is a lower bound. The view resent_messages counts "
        "messages and bytes, where TCP 1801 was captured.",
        """
        WITH steps AS (
          SELECT *, lag(sequence_id) OVER series AS id_before,
            resend_count - lag(resend_count) OVER series AS again, next_number - lag(next_number) OVER series AS fresh
          FROM gold.eod_transfers
          WINDOW series AS (
            PARTITION BY queue_manager, queue, queue_format_name, source ORDER BY observed_at, snapshot_id
          )
        ), of_sources AS (
          SELECT queue_manager, queue, queue_format_name, source, date_trunc('day', observed_at) AS day,
            sum(if(again < 0, 0, again)) AS resends,
            sum(CASE WHEN sequence_id = id_before THEN if(fresh < 0, 0, fresh) END) AS sent
          FROM steps WHERE setting.scope GROUP BY ALL
        ), days AS (
          SELECT queue_manager, queue, max(queue_format_name) AS queue_format_name,
            array_join(array_sort(collect_set(source)), ', ') AS sources, day, max(resends) AS resends,
            max(sent) AS sent
          FROM of_sources GROUP BY queue_manager, queue, lower(queue_format_name), day
        )
        SELECT *, resends / nullif(resends + sent, 0) AS share FROM days
        ORDER BY day, resends DESC, queue_manager, queue, queue_format_name
        """,
        ("queue_manager",), ("day",), all_of(TRANSFER_REPORTS), _OBSERVED,
    ),
    View(
        "dead_letter_growth", 16,
        "a day of a dead-letter queue, or of the dead queue of a queued component",
        "Number of messages in its first and last report, the maximum, and the growth per day at that rate.",
        f"{_STATE_EXPIRES} {_NO_SHORT_RATES} Dead-letter queues are known only if the collector asks for them "
        "(`collector.machines`, `queues`).",
        """
        WITH days AS (
          SELECT queue_manager, queue, queue_format_name, date_trunc('day', valid_from) AS day,
            min_by(message_count, valid_from) AS first_messages, max_by(message_count, valid_from) AS last_messages,
            max(message_count) AS most_messages, max_by(bytes, valid_from) AS last_bytes,
            (unix_micros(max(valid_from)) - unix_micros(min(valid_from))) / 1e6 AS span_s
          FROM gold.queue_history
          WHERE message_count IS NOT NULL AND regexp_like(queue, """ + DEAD_LETTER_QUEUES_SQL + """) AND setting.scope
          GROUP BY ALL
        )
        SELECT *, last_messages - first_messages AS growth,
          CASE WHEN span_s >= setting.max_gap_s
            THEN (last_messages - first_messages) * 86400 / nullif(span_s, 0) END AS growth_per_day
        FROM days ORDER BY day DESC, growth DESC, queue_manager, queue, queue_format_name
        """,
        ("queue_manager",), ("day",), all_of(DEAD_LETTER_REPORTS), _REPORTED,
    ),
    View(
        "journal_growth", 17,
        "a day of a queue's journal",
        "Number of messages and bytes in its first and last report. `days_until_full` extrapolates the day's rate to "
        "the quota in `quotas.*`; null without growth or quota. " + TREND_MEANING + " Only the row of a journal's "
        "newest day has a trend.",
        _STATE_EXPIRES + " Quotas come from the configuration. " + _NO_SHORT_RATES + " " + TREND_LIMITATIONS,
        """
        WITH reports AS (
          SELECT queue_manager, queue, queue_format_name, valid_from, journal_count AS messages, journal_bytes AS bytes
          FROM gold.queue_history WHERE journal_count IS NOT NULL AND NOT queue LIKE '%;journal'
          UNION ALL
          SELECT queue_manager, replace(queue, ';journal', ''), queue_format_name, valid_from, message_count, bytes
          FROM gold.queue_history WHERE message_count IS NOT NULL AND queue LIKE '%;journal'
        ), reported AS (
          SELECT * FROM reports WHERE setting.scope
        ), days AS (
          SELECT queue_manager, queue, queue_format_name, date_trunc('day', valid_from) AS day,
            min_by(messages, valid_from) AS first_messages, max_by(messages, valid_from) AS last_messages,
            min_by(bytes, valid_from) AS first_bytes, max_by(bytes, valid_from) AS last_bytes,
            (unix_micros(max(valid_from)) - unix_micros(min(valid_from))) / 1e6 AS span_s
          FROM reported GROUP BY ALL
        ), limits AS (
          SELECT days.*, max_by(quotas.journal, quotas.queue IS NOT NULL) AS quota_bytes
          FROM days LEFT JOIN setting.quotas AS quotas
            ON (quotas.queue = days.queue OR quotas.queue IS NULL) AND quotas.journal IS NOT NULL
          GROUP BY ALL
        ), rates AS (
          SELECT *, CASE WHEN span_s >= setting.max_gap_s THEN span_s / 86400 END AS days FROM limits
        )
        SELECT queue_manager, queue, queue_format_name, day, first_messages, last_messages, last_bytes,
          last_messages - first_messages AS growth, span_s,
          (last_bytes - first_bytes) / nullif(days, 0) AS bytes_per_day, quota_bytes,
          """ + _time_until_full("days") + """ AS days_until_full, """ + TREND_COLUMNS + """
        FROM """ + with_trends("rates", "reported", _QUEUE_KEY, "rows.day = date_trunc('day', trends.last_at)") + """
        WHERE last_messages > 0 OR first_messages > 0
        ORDER BY day DESC, days_until_full NULLS LAST, growth DESC, queue_manager, queue, queue_format_name
        """,
        ("queue_manager",), ("day",), all_of(JOURNAL_REPORTS),
        ScopeColumns("valid_from", "valid_from", ("queue_manager",), (*_QUEUES, "queue || ';journal'")),
    ),
)  # fmt: skip
