"""Reports on estates of known content, as the views of a lake would give them, without a lake."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache
from random import Random

import pyarrow as pa

from memory_lake import MemoryLake
from pipeline.dashboards.estate.report import REPORT_VIEWS, EstateReport
from pipeline.reports.targets.target_file import bundled_targets
from pipeline.reports.targets.verdicts import Fit, PropertyVerdict, TargetVerdict, judge_queues
from pipeline.reports.views.catalog import LakeViews

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
SINCE = NOON - timedelta(days=30)
FIRST_MINUTE = datetime(2024, 4, 24, tzinfo=UTC)  # of the seven days that were captured
SOURCE = "https://example.com/limits"


@cache
def nothing_of(view):
    """The answer of a view of an empty lake, and that nothing was seen of its evidence."""
    views = LakeViews(MemoryLake(), as_of=NOON)
    return views.answer(view), views.evidence(view)


def rows_of(view, rows):
    """Rows with the columns and types of a view; what they do not have is null."""
    schema = nothing_of(view)[0].schema
    unknown = {name for row in rows for name in row} - set(schema.names)
    assert not unknown, f"{view} has no column {unknown}"
    return pa.Table.from_pylist(rows, schema)


def queue(name, number=1, **more):
    return {
        "queue": name, "holders": ["server1"], "senders": ["client1"], "sender_count": 1, "readers": ["reader1"],
        "reader_count": 1, "messages": 100 * number, "sent_messages": 90 * number, "read_messages": 50 * number,
        "sendings": 95 * number, "resendings": 5 * number, "sent_bytes": 100_000 * number, "receives": 40 * number,
        "transactional_receives": 10 * number, "peeks": 10 * number, "lookups": 0, "purges": 0, "moves": 0,
        "captured_minutes": 10_080, "mean_per_minute": 95 * number / 10_080, "p95_per_minute": number,
        "peak_per_minute": 2 * number, "peak_at": FIRST_MINUTE, "body_p50_bytes": 500, "body_p99_bytes": 5_000,
        "largest_body_bytes": 6_000, "largest_packet_bytes": 7_000, "headers_known":
        100 * number, "properties_known": 100 * number, "security_known": 0, "express": 20 * number,
        "recoverable": 80 * number, "transactional": 14 * number, "in_larger_transactions": 0, "sequences": 2,
        "priorities": [3, 5], "smallest_time_to_live_s": 60, "largest_time_to_live_s": 86_400,
        "without_time_to_live": 70 * number, "dead_letter_asked": 7 * number, "source_journal": 0, "acks_asked": 4,
        "ack_arrival": 4, "admin_queues": ["client1\\private$\\admin"], "response_queues": [], "with_correlation": 3,
        "format_names": ["direct_name"], "first_seen_at": FIRST_MINUTE, "last_seen_at": NOON, **more,
    }  # fmt: skip


def flow(sender, receiver, name, size, **more):
    return {
        "sender": sender, "receiver": receiver, "queue": name, "way": "tcp_1801", "messages": size // 1000,
        "sendings": size // 1000, "bytes": size, "first_at": FIRST_MINUTE, "last_at": NOON, **more,
    }  # fmt: skip


def machine(name, **more):
    return {
        "machine": name, "host_names": [name], "queue_manager_ids": [], "addresses": ["10.0.0.1"], "roles": ["sends"],
        "versions": ["10.0"], "sent_messages": 10, "sent_bytes": 10_000, "last_seen_at": NOON, **more,
    }  # fmt: skip


def growth(view, **more):
    """A row of a view of growth: rising, and full in 50 days."""
    of = {"queue_manager": "server1", **({} if view == "machines" else {"queue": "server1\\private$\\orders"})}
    level = {"bytes" if view == "machines" else "last_bytes": 1 << 30}
    return {
        **of, **level, "trend_days": 20, "trend": "rising", "trend_bytes_per_day": 1e7, "trend_low": 8e6,
        "trend_high": 2e7, "trend_quota_bytes": 8 << 30, "quota_assumed": True, "trend_days_until_full": 50.0,
        "trend_full_low": 40.0, "trend_full_high": 90.0, **more,
    }  # fmt: skip


def judged(name, target, *found):
    """What a move of a queue to a target needs, of (property, verdict, evidence)."""
    return TargetVerdict(name, target, tuple(
        PropertyVerdict(title, verdict, evidence, "Split it." if verdict == Fit.CHANGE else None, SOURCE,
                        date(2024, 4, 1)) for title, verdict, evidence in found
    ))  # fmt: skip


def report(**views):
    """A report of rows by view; views that are not given are empty. ``verdicts`` and ``time_zone`` may be given."""
    fields = {name: views.pop(name) for name in ("verdicts", "time_zone", "targets") if name in views}
    answers = {name: rows_of(name, views.get(name, [])) for name in REPORT_VIEWS}
    evidence = {name: nothing_of(name)[1] for name in REPORT_VIEWS}
    return EstateReport("/data/lake", "--lake /data/lake", SINCE, NOON, NOON, fields.get("time_zone", UTC), answers,
                        evidence, fields.get("targets", bundled_targets()), fields.get("verdicts", []))  # fmt: skip


def estate(machines, queues=None, seed=1):
    """A report on an estate of so many machines: a tenth hold queues, all send to some of them, some read remotely."""
    random = Random(seed)
    count = queues or 3 * machines
    names = [f"{('web', 'app', 'db', 'edge')[number % 4]}{number:03}.corp.example" for number in range(machines)]
    servers = names[: max(1, machines // 10)]
    queue_names = [f"{servers[number % len(servers)]}\\private$\\orders.{number:04}" for number in range(count)]
    flows, hours = [], []
    for number, name in enumerate(queue_names):
        holder = servers[number % len(servers)]
        size = round(random.paretovariate(0.9) * 100_000)
        senders = random.sample(names, min(len(names), 1 + number % 4))
        flows += [flow(sender, holder, name, size // len(senders)) for sender in senders]
        if number % 3 == 0:
            flows.append(flow(holder, random.choice(names), name, size // 2, way="rpc_read", sendings=None))
        hours += [{"queue": name, "start_at": FIRST_MINUTE + timedelta(hours=hour), "sendings": 1 + hour % 24}
                  for hour in range(7, 7 * 24, 1 + number % 5)]  # fmt: skip
    queue_rows = [queue(name, 1 + number % 90, holders=[servers[number % len(servers)]],
                        largest_packet_bytes=7_000 + 300_000 * (number % 9), comqc=int(number % 4 == 0))
                  for number, name in enumerate(queue_names)]  # fmt: skip
    return report(
        estate_queues=queue_rows,
        estate_flows=flows, estate_hours=hours,
        estate_machines=[machine(name, roles=["sends", *(("holds_queues",) if name in servers else ())])
                         for name in names],
        estate_coverage=[captured := {"first_at": FIRST_MINUTE, "until_at": FIRST_MINUTE + timedelta(days=7),
                                      "minutes": 10_080}],
        estate_queue_coverage=[{"queue": name, **captured} for name in queue_names],
        depth_growth=[growth("depth_growth", queue=name, trend_days_until_full=50.0 + number)
                      for number, name in enumerate(queue_names)],
        journal_growth=[growth("journal_growth", queue=queue_names[0], quota_assumed=False, trend_full_high=None)],
        machines=[growth("machines", queue_manager=name, trend="no trend", trend_days_until_full=None)
                  for name in servers],
        verdicts=judge_queues(queue_rows, bundled_targets(), "30 days"),
    )  # fmt: skip
