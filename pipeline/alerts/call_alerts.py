"""Alerts from calls, messages, findings and coverage (questions 14, 19, 21, 22, 23, 25, 26). No Spark.

Rows are dictionaries with times in microseconds. Frequent events come as counts per minute.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import ERROR, WARNING, Alert, Ends, Episode, EventCount, episodes_from_events
from pipeline.text import format_count, format_time
from pipeline.transfers.messages.sender_clocks import LONG_TRANSIT
from udfs.call_results import call_succeeded
from udfs.codes import result_name
from udfs.dcerpc.interfaces import REMOTE_READ_NAME
from udfs.queues.alias_groups import canonical_queue_name
from udfs.rows import RowDict
from udfs.stubs import method_registry
from udfs.times import DAY_US, HOUR_US, timedelta_to_us

ATTEMPT_COLUMNS: Final = (
    "queue", "inferred_queue", "server_address", "client_address", "returned_at", "ended_at", "outcome", "end_hresult",
    "lookup_id", "message_key", "ack_refused", "given_back", "evidence", "missing",
)  # fmt: skip
"""The columns of gold.receive_attempts, and of ``with_known_ends`` over it, that ``receive_alerts`` needs."""

_COUNT_COLUMNS: Final = ("at", "last", "count", "evidence")
NACK_COUNT_COLUMNS: Final = (
    "class_name", "source_queue_manager", "queue", "inferred_queue", "is_final", *_COUNT_COLUMNS,
)  # fmt: skip
"""The columns of negative acknowledgements counted per minute; the first five are the key."""
REJECTED_COUNT_COLUMNS: Final = (
    "comqc_rejected", "source_queue_manager", "queue", "inferred_queue", *_COUNT_COLUMNS,
)  # fmt: skip
"""The columns of rejected COM+ messages counted per minute; the first four are the key."""
FAILED_COUNT_COLUMNS: Final = ("failure", *REJECTED_COUNT_COLUMNS[1:])
"""The columns of messages that an endpoint could not process, counted per minute; ``failure``: endpoint, exception."""

FAILURE_COUNT_COLUMNS: Final = ("server_address", "interface_name", "opnum", "result", "is_fault", *_COUNT_COLUMNS)
"""The columns of failed calls counted per minute; the first five are the key."""


def key_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the columns of counts by which is counted."""
    return tuple(name for name in columns if name not in _COUNT_COLUMNS)


_CLOCK_DIFFERENCE: Final = re.compile(r"at least (\d+) s")  # in the text of rule O02


def negative_acknowledgement_alerts(
    rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, canonical_queues: Mapping[str, str]
) -> Iterator[Alert]:
    """Yield alerts of repeated negative acknowledgements. Rows are counts per minute (``NACK_COUNT_COLUMNS``).

    ``canonical_queues`` are the canonical names of queues, by the names that messages have in silver. Final
    acknowledgements go from queue manager to queue manager and are in no queue.
    """
    counts = [dict(row) for row in rows]
    groups = _group_messages((row for row in counts if not row["is_final"]), "class_name", canonical_queues)
    yield from _message_alerts(
        "negative_acknowledgements", groups, "of class {}", limits, now, limits.negative_acknowledgements
    )
    for (kind, sender), series in _group_rows((row for row in counts if row["is_final"]), *NACK_COUNT_COLUMNS[:2]):
        for run in episodes_from_events(
            _event_counts(series), now, window=limits.failure_window, min_count=limits.negative_acknowledgements
        ):
            run.message = f"{format_count(run.count, 'final acknowledgement')} of class {kind}"
            subject = f"{kind} from queue manager {sender} of transactional messages"
            yield Alert("negative_acknowledgements", subject, run, ends=Ends(sender), cause=kind)


def rejected_container_alerts(
    rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, canonical_queues: Mapping[str, str]
) -> Iterator[Alert]:
    """Yield alerts of COM+ messages that servers must reject. Rows are counts per minute (``REJECTED_COUNT_COLUMNS``).

    ``canonical_queues`` are the canonical names of queues, by the names that messages have in silver.
    """
    groups = _group_messages(rows, "comqc_rejected", canonical_queues)
    for alert in _message_alerts(
        "containers_rejected", groups, "with lost calls ({})", limits, now, limits.rejected_containers
    ):
        alert.episode.severity = ERROR
        yield alert


def failed_message_alerts(
    rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, canonical_queues: Mapping[str, str]
) -> Iterator[Alert]:
    """Yield alerts of messages that an endpoint could not process. Rows are counts per minute.

    The rows have ``FAILED_COUNT_COLUMNS``; ``canonical_queues`` are the canonical names of queues, by the names that
    messages have in silver. No alert has a ``cause``: that column holds codes, and the class may be private.
    """
    groups = _group_messages(rows, "failure", canonical_queues)
    for alert in _message_alerts(
        "application_failing", groups, "not processed ({})", limits, now, limits.failed_messages
    ):
        if alert.episode.last_seen_at - alert.episode.since >= timedelta_to_us(limits.error_after):
            alert.episode.severity = ERROR
        yield alert._replace(cause=None)


def _group_messages(
    rows: Iterable[Mapping[str, Any]], kind: str, canonical_queues: Mapping[str, str]
) -> Iterator[tuple[tuple[Any, ...], list[RowDict]]]:
    """Yield counts of messages by kind (the column of that name), sender and canonical queue."""
    names = ("queue", "inferred_queue")
    named = ({**row, **{name: canonical_queue_name(row[name], canonical_queues) for name in names}} for row in rows)
    return _group_rows(named, kind, "source_queue_manager", *names)


def _message_alerts(
    condition: str, groups: Iterable[tuple[tuple[Any, ...], list[RowDict]]], what: str, limits: Thresholds, now: int,
    min_count: int,
) -> Iterator[Alert]:  # fmt: skip
    """Yield the alerts of messages of one kind, sender and queue; ``what`` says what they are, the kind in braces."""
    for (kind, sender, queue, inferred), series in groups:
        for run in episodes_from_events(_event_counts(series), now, window=limits.failure_window, min_count=min_count):
            place = queue or inferred or "an unknown queue"
            run.message = f"{format_count(run.count, 'message')} {what.format(kind)} in {place}"
            if queue is None:
                run.missing.add("queue_unknown")
            subject = f"{kind} from queue manager {sender} in {queue or inferred}"
            is_inferred = queue is None and bool(inferred)
            yield Alert(condition, subject, run, queue, queue_inferred=is_inferred, ends=Ends(sender), cause=kind)


def failing_call_alerts(
    rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, names: Mapping[str, str]
) -> Iterator[Alert]:
    """Yield alerts of methods that fail repeatedly with one result. Rows are counts per minute.

    The rows have ``FAILURE_COUNT_COLUMNS``; ``names`` are the names of queue managers by address.
    """
    for place, series in _group_rows(rows, *FAILURE_COUNT_COLUMNS[:5]):
        server, interface, opnum, result, is_fault = place
        if result in limits.ignored_results:
            continue
        known = method_registry.ALL_METHODS.get(interface, {}).get(opnum)
        method = f"opnum {opnum}" if known is None else known.name
        text = result_name(result)
        for run in episodes_from_events(
            _event_counts(series), now, window=limits.failure_window, min_count=limits.failed_calls
        ):
            how = "faults with" if is_fault else "returns"
            run.message = f"{interface} {method} {how} {text}: {format_count(run.count, 'call')}"
            subject = f"{interface} {method} at {server}: {text}"
            manager = names.get(server, server)
            yield Alert("calls_failing", subject, run, None, manager, ends=Ends(to_machine=server))


def receive_alerts(
    rows: Iterable[Mapping[str, Any]],
    limits: Thresholds,
    now: int,
    names: Mapping[str, str],
    capture_ends: Mapping[str, int],
    skipped: Mapping[str, Sequence[tuple[int, int]]] = MappingProxyType({}),
) -> Iterator[Alert]:
    """Yield alerts of receives that were not ended in time or whose end was refused, per reader and queue.

    Rows have ``ATTEMPT_COLUMNS``. ``names`` are the names of queue managers, ``capture_ends`` the times at which the
    captures of a server end, both by address; ``skipped`` are spans that clocks of these captures left out.
    """
    for place, series in _group_rows(rows, "server_address", "client_address", "queue", "inferred_queue"):
        server, client, queue, inferred = place
        subject = f"reader {client} of {queue or inferred or 'an unknown queue'} at {server}"
        capture_end = min(capture_ends.get(server, now), now)
        left_out = skipped.get(server, ())
        found = [
            ("receives_not_ended", episode) for episode in _overdue_episodes(series, limits, capture_end, now, left_out)
        ]
        found += [("ends_refused", episode) for episode in _refused_end_episodes(series, limits, now)]
        for condition, episode in found:
            if queue is None:
                episode.missing.add("queue_unknown")
            is_inferred = queue is None and bool(inferred)
            manager = names.get(server, server)
            yield Alert(condition, subject, episode, queue, manager, is_inferred, ends=Ends(client, server))


def _overdue_episodes(
    series: Iterable[RowDict], limits: Thresholds, capture_end: int, now: int, left_out: Sequence[tuple[int, int]]
) -> Iterator[Episode]:
    """Yield the episodes in which one reader held messages too long, or until the reader was gone.

    Spans that clocks left out did not pass.
    """
    overdue: list[tuple[int, int | None, RowDict]] = []
    for row in series:
        since, until = row["returned_at"], row["ended_at"]
        if since is None or since > now or row["given_back"]:
            continue
        if row["outcome"] == "failed" and not _returned_message(row):
            continue
        until = until if until is None or until <= now else None  # still held at that time
        if row["outcome"] == "expired" and until is None:
            until = since + timedelta_to_us(limits.cleanup_interval)
        held_us = _passed_us(since, capture_end if until is None else until, left_out)
        if row["outcome"] in ("expired", "rundown") or held_us >= timedelta_to_us(limits.unacknowledged_read_after):
            overdue.append((since, until if until is None or until <= now else None, row))
    out: list[Episode] = []
    for since, until, row in sorted(overdue, key=lambda each: (each[0], each[2]["evidence"] or [])):
        episode = out[-1] if out else None
        if episode is None or (
            episode.until is not None and since > episode.until + timedelta_to_us(limits.merge_within)
        ):
            episode = Episode(since, since, since, WARNING, until=until, count=0)
            out.append(episode)
        episode.until = None if episode.until is None or until is None else max(episode.until, until)
        seen = capture_end if until is None else until
        episode.last_seen_at = max(episode.last_seen_at, seen)
        episode.count += 1
        how = _OVERDUE_TEXT.get(row["outcome"], "held for {0:.0f} s").format(_passed_us(since, seen, left_out) / 1e6)
        episode.message = f"{format_count(episode.count, 'message')} got and not ended in time; the last one {how}"
        episode.add_evidence(row["evidence"] or (), row["missing"] or ())
    yield from out


def _passed_us(since: int, until: int, left_out: Iterable[tuple[int, int]]) -> int:
    """Return how much time passed, without spans that the clock left out."""
    return until - since - sum(max(min(until, end) - max(since, begin), 0) for begin, end in left_out)


_OVERDUE_TEXT: Final = {
    "rundown": "given back when the reader's connection was gone",
    "expired": "given back by the clean-up timer",
    "in_flight": "held for {0:.0f} s when it was last seen",
}


def _refused_end_episodes(series: Iterable[RowDict], limits: Thresholds, now: int) -> Iterator[Episode]:
    """Yield the episodes in which the server refused the end of receives that had returned a message."""
    refused = []
    results = []
    for row in sorted(series, key=lambda each: (each["returned_at"] or 0, list(each["evidence"] or ()))):
        ended = row["ended_at"] if row["ended_at"] is not None else row["returned_at"]
        failed = row["outcome"] == "failed" and call_succeeded(REMOTE_READ_NAME, row["end_hresult"]) is False
        if ended is not None and (row["ack_refused"] or (failed and _returned_message(row))):
            refused.append(EventCount(ended, ended, 1, tuple(row["evidence"] or ()), tuple(row["missing"] or ())))
            results.append(row["end_hresult"])
    names = sorted({result_name(result) for result in results if result})
    for run in episodes_from_events(refused, now, window=limits.failure_window):
        run.severity = ERROR
        run.message = f"{format_count(run.count, 'end')} of a receive refused: {', '.join(names) or 'fault'}"
        yield run


def _returned_message(row: RowDict) -> bool:
    return row["lookup_id"] is not None or row["message_key"] is not None


def finding_alerts(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield alerts of duplicate queue managers (rules O01, O07) and of clocks that differ (rule O02).

    Rows are findings with ``rule_id``, ``subject``, ``observed_at``, ``actual`` and ``evidence``.
    """
    for (rule, subject), series in _group_rows(rows, "rule_id", "subject"):
        seen = sorted(
            (row for row in series if row["observed_at"] <= now), key=lambda row: (row["observed_at"], row["actual"])
        )
        if rule in ("O01", "O07"):
            for row in seen[:1]:
                message = f"{subject}: {seen[-1]['actual']}"
                episode = Episode(row["observed_at"], seen[-1]["observed_at"], now, ERROR, message)
                episode.add_evidence(row["evidence"] or (), ())
                ends = Ends(to_machine=subject.removeprefix("queue manager "))
                yield Alert("duplicate_queue_manager", subject, episode, ends=ends)
            continue
        apart = [row for row in seen if _clock_difference_us(row) >= timedelta_to_us(limits.max_clock_difference)]
        events = [EventCount(row["observed_at"], row["observed_at"], 1, tuple(row["evidence"] or ())) for row in apart]
        message = max(((_clock_difference_us(row), row["actual"]) for row in apart), default=(0, ""))[1]
        for run in episodes_from_events(events, now, window=limits.growth_window):
            run.message = message
            yield Alert("clocks_differ", subject, run)


def clock_alerts(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield alerts of queue managers whose clocks differ from the capture's, as the messages that they sent show.

    Rows are of one queue manager and day each, with ``least_transit_us`` of their ``messages``, its ``evidence``, and
    how many (``ahead_count``) were sent after they were captured. A clock that is behind cannot be told from messages
    that waited.
    """
    for (manager,), series in _group_rows(rows, "source_queue_manager"):
        subject = f"clocks of queue manager {manager} and the capture"
        ahead = [row for row in series if row["ahead_count"]]
        events = [
            EventCount(row["first_ahead_at"], row["last_ahead_at"], row["ahead_count"], (row["evidence"],))
            for row in ahead
        ]
        for run in episodes_from_events(events, now, window=limits.growth_window):
            most = max(-each["least_transit_us"] for each in ahead if _is_in(run, each["first_ahead_at"]))
            run.message = f"queue manager {manager} is ahead of the capture by at least {most // 1_000_000} s"
            yield Alert("clocks_differ", subject, run)
        late = [row for row in series if row["least_transit_us"] >= timedelta_to_us(LONG_TRANSIT)]
        events = [EventCount(row["first_at"], row["last_at"], row["messages"], (row["evidence"],)) for row in late]
        for run in episodes_from_events(events, now, window=limits.growth_window):
            least = min(each["least_transit_us"] for each in late if _is_in(run, each["first_at"]))
            run.message = (
                f"no message of queue manager {manager} was captured within {least // DAY_US} days of when it "
                "says that it was sent: this clock is behind, or they waited"
            )
            yield Alert("clocks_differ", subject, run)


def _is_in(run: Episode, at: int) -> bool:
    return run.since <= at <= run.last_seen_at


def _clock_difference_us(row: Mapping[str, Any]) -> int:
    found = _CLOCK_DIFFERENCE.search(row["actual"] or "")
    return int(found[1]) * 1_000_000 if found else 0


def capture_loss_alerts(
    rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, names: Mapping[str, str]
) -> Iterator[Alert]:
    """Yield alerts of servers of which captures lack bytes.

    Rows have ``server_address``, ``hour``, ``bytes`` and ``bytes_missing``; ``names`` are the names of queue managers
    by address.
    """
    for (server,), series in _group_rows(rows, "server_address"):
        bad = []
        for row in sorted(series, key=lambda each: each["hour"]):
            whole = (row["bytes"] or 0) + (row["bytes_missing"] or 0)
            share = (row["bytes_missing"] or 0) / whole if whole else 0.0
            if row["bytes_missing"] and share >= limits.max_lost_share:
                lack = f"{row['bytes_missing']} of {whole} bytes ({share:.1%})"
                bad.append((row["hour"], f"in the hour from {format_time(row['hour'])} captures lack {lack}"))
        for run in _hourly_episodes(bad, now):
            manager = names.get(server, server)
            yield Alert("capture_lost", f"server {server}", run, None, manager, ends=Ends(to_machine=server))


def missing_snapshot_alerts(rows: Iterable[Mapping[str, Any]], now: int) -> Iterator[Alert]:
    """Yield alerts of queue managers that do not answer half of the collector's snapshots in an hour.

    Rows have ``queue_manager``, ``hour``, ``expected``, ``missing`` and ``error``.
    """
    for (manager,), series in _group_rows(rows, "queue_manager"):
        bad = []
        for row in sorted(series, key=lambda each: each["hour"]):
            if row["missing"] * 2 >= row["expected"]:
                lack = f"{row['missing']} of {format_count(row['expected'], 'snapshot')} not answered ({row['error']})"
                bad.append((row["hour"], f"in the hour from {format_time(row['hour'])} {lack}"))
        for run in _hourly_episodes(bad, now):
            run.missing.add("no_snapshot")
            yield Alert(
                "snapshots_missing", f"snapshots of {manager}", run, None, manager, ends=Ends(to_machine=manager)
            )


def _hourly_episodes(bad: list[tuple[int, str]], now: int) -> Iterator[Episode]:
    """Yield the episodes of successive bad hours, each with the message of its last hour; ``bad``: (hour, message)."""
    events = [EventCount(hour, hour + HOUR_US) for hour, _ in bad]
    hours = [hour for hour, _ in bad]
    for run in episodes_from_events(events, now, window=timedelta(microseconds=HOUR_US)):
        run.message = bad[bisect_right(hours, min(run.last_seen_at, now)) - 1][1]
        yield run


def _group_rows(rows: Iterable[Mapping[str, Any]], *names: str) -> Iterator[tuple[tuple[Any, ...], list[RowDict]]]:
    """Yield the rows grouped by some columns, each group with its values of these."""
    found: defaultdict[tuple[Hashable, ...], list[RowDict]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(dict(row))
    yield from found.items()


def _event_counts(series: Iterable[RowDict]) -> Iterator[EventCount]:
    return (EventCount(row["at"], row["last"], row["count"], tuple(row["evidence"] or ())) for row in series)
