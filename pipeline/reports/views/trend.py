"""SQL of trends: how the daily maxima of reported bytes grow, and when they reach a quota.

The slope is that of Theil and Sen: the median of the slopes of all pairs of days. Its interval of 95 % is that of Sen
(1968): slopes whose ranks follow from the variance of Kendall's S, with its correction for equal values. A day without
reports is in no pair.
"""

from __future__ import annotations

from typing import Final

TREND_COLUMNS: Final = (
    "trend_days, trend, trend_bytes_per_day, trend_low, trend_high, trend_quota_bytes, quota_assumed, "
    "trend_days_until_full, trend_full_low, trend_full_high"
)
TREND_MEANING: Final = (
    "`trend_days` counts the UTC days with reports, of the newest 90 days within the hours asked for. From 7 days on, "
    "`trend_bytes_per_day` is the Theil-Sen slope of their maxima, `trend_low` to `trend_high` its interval of 95 %, "
    "and `trend` is `rising` or `falling`, or `no trend` if the interval holds 0. Where it is rising, "
    "`trend_days_until_full` is the time from now until `trend_quota_bytes`, with the interval `trend_full_low` to "
    "`trend_full_high`; 0 where the last report shows as much."
)
TREND_LIMITATIONS: Final = (
    "A trend says how it was, not how it will be; the maximum of a day is that of its reports. Where `quotas.*` names "
    "no quota, neither its own nor that of the queue manager, 8 GiB are assumed (`quota_assumed`): the default for a "
    "computer with Windows Server 2003. Other versions have other defaults, and administrators change them."
)
_DAYS: Final = 90  # 4,005 pairs; those of a year would take Spark minutes for 1,000 queues
_LEAST_DAYS: Final = 7
_NORMAL_QUANTILE: Final = "1.959963984540054e0"  # of 97.5 %; with an exponent it is a double in Spark too
# https://learn.microsoft.com/en-us/previous-versions/windows/desktop/msmq/ms706976(v=vs.85), PROPID_Q_QUOTA: 8 GB for a
# computer with Windows Server 2003, and no limit for a queue.
_DEFAULT_QUOTA: Final = 8 << 30
_DAY_US: Final = 86_400_000_000


def with_trends(rows: str, reports: str, keys: tuple[str, ...], condition: str = "TRUE") -> str:
    """Return a subquery of rows with ``TREND_COLUMNS``; its other columns are for no use.

    ``rows`` and ``reports`` are names of relations that both have the columns ``keys``, of which one is
    ``queue_manager``. Rows have ``quota_bytes``, reports ``valid_from`` and ``bytes``. Rows that do not meet the
    condition, which may name ``trends.last_at``, have no trend.
    """
    same = " AND ".join(f"rows.{key} IS NOT DISTINCT FROM trends.{key}" for key in keys)

    def days_until_full(slope: str) -> str:
        left = f"(trend_quota_bytes - level) / {slope}"
        return f"CASE WHEN trend = 'rising' THEN greatest(0e0, {left} - days_ago) END"

    return f"""(
          SELECT *, {days_until_full("trend_bytes_per_day")} AS trend_days_until_full,
            {days_until_full("trend_high")} AS trend_full_low, {days_until_full("trend_low")} AS trend_full_high
          FROM (
            SELECT rows.*, trend_days, trend, trend_bytes_per_day, trend_low, trend_high, level, days_ago,
              CASE WHEN trend_days > 0 THEN coalesce(quota_bytes, own.bytes, every.bytes, {_DEFAULT_QUOTA}) END
                AS trend_quota_bytes,
              CASE WHEN trend_days > 0 THEN coalesce(quota_bytes, own.bytes, every.bytes) IS NULL END AS quota_assumed
            FROM {rows} AS rows LEFT JOIN ({_trends(reports, ", ".join(keys))}) AS trends ON {same} AND {condition}
              LEFT JOIN setting.machine_quotas AS own ON own.queue_manager = rows.queue_manager
              CROSS JOIN (SELECT max(bytes) AS bytes FROM setting.machine_quotas WHERE queue_manager IS NULL) AS every
          )
        )"""


def _trends(reports: str, keys: str) -> str:
    """Return the SQL of the trend of each series of reports, with its last level and how many days ago that was."""
    deviation = f"{_NORMAL_QUANTILE} * sqrt((days * (days - 1) * (2 * days + 5) - ties) / 18e0)"
    return f"""
            SELECT *, CASE WHEN trend_low > 0 THEN 'rising' WHEN trend_high < 0 THEN 'falling'
                WHEN trend_days >= {_LEAST_DAYS} THEN 'no trend' END AS trend
            FROM (
              SELECT {keys}, days AS trend_days, last_at, level, days_ago,
                (try_element_at(slopes, CAST(ceil(pairs / 2e0) AS int))
                  + try_element_at(slopes, CAST(floor(pairs / 2e0) AS int) + 1)) / 2 AS trend_bytes_per_day,
                try_element_at(slopes, CAST(greatest(round((pairs - deviation) / 2e0), 1) AS int)) AS trend_low,
                try_element_at(slopes, CAST(least(round((pairs + deviation) / 2e0) + 1, pairs) AS int)) AS trend_high
              FROM (
                SELECT *, days * (days - 1) / 2e0 AS pairs, {deviation} AS deviation,
                  CASE WHEN days >= {_LEAST_DAYS} THEN array_sort(flatten(transform(points, one -> transform(
                    filter(points, two -> two.day > one.day),
                    two -> (two.most - one.most) / (two.day - one.day))))) END AS slopes
                FROM (
                  SELECT {keys}, count(*) AS days, max(last_at) AS last_at, max_by(last_bytes, last_at) AS level,
                    (unix_micros(max(now)) - unix_micros(max(last_at))) / {_DAY_US}e0 AS days_ago,
                    sum((alike - 1) * (2 * alike + 5)) AS ties, collect_list(struct(day, most)) AS points
                  FROM (SELECT *, count(*) OVER (PARTITION BY {keys}, most) AS alike FROM (
                    SELECT {keys}, CAST(floor(unix_micros(valid_from) / {_DAY_US}e0) AS bigint) AS day,
                      max(now) AS now, CAST(max(bytes) AS double) AS most, max(valid_from) AS last_at,
                      CAST(max_by(bytes, valid_from) AS double) AS last_bytes
                    FROM {reports} CROSS JOIN setting.now
                    WHERE bytes IS NOT NULL AND valid_from <= now AND valid_from > now - INTERVAL {_DAYS} DAY
                    GROUP BY ALL
                  ))
                  GROUP BY {keys}
                )
              )
            )"""
