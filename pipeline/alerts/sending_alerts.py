"""Alerts of messages on their way between queue managers (questions 7, 9, 12, 13). No Spark.

They are found in rows of gold.transfer_sequences, and in counts of sendings. Rows are dictionaries with times in
microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil
from operator import itemgetter
from typing import Any, Final

from pipeline.alerts.conditions import CONDITIONS, FAILURE_CAUSES, Thresholds
from pipeline.alerts.episodes import (
    ERROR,
    Alert,
    ConditionHistory,
    Ends,
    Episode,
    EventCount,
    Observation,
    episodes_from_events,
)
from pipeline.text import format_count, format_time
from udfs.queues.alias_groups import canonical_queue_name
from udfs.rows import RowDict
from udfs.times import MINUTE_US, datetime_to_us, timedelta_to_us

ALERT_SEQUENCE_COLUMNS: Final = (
    "source_queue_manager", "destination_queue", "hop_key", "sender_address", "receiver_address",
    "transaction_sequence_id",
    "first_sent_at", "last_packet_at", "acknowledged_number", "acknowledged_at", "waiting", "first_waiting_number",
    "stalls", "longest_stall_s", "stalled_since", "condition", "evidence", "missing",
    "progress_at", "accepted_number", "accepted_reported_at", "refused_until", "followed_at",
    "first_sender", "first_receiver", "failed_since", "failed_until", "failed_client", "failed_cause",
)  # fmt: skip
"""The columns that ``sequence_alerts`` needs: of gold.transfer_sequences, of ``with_progress``, and those below.

``followed_at``: when the next sequence of the series (``SERIES``) began.
"""

SERIES: Final = ("source_queue_manager", "destination_queue", "hop_key")
"""What sequences have in common of which one follows the other."""

REFUSED: Final = "refused"

FIRST_ADDRESSES: Final = ("first_sender", "first_receiver")
"""The addresses of the first sequence of all on the hop."""

FAILURE_COLUMNS: Final = ALERT_SEQUENCE_COLUMNS[-4:]
"""Of connections between both ends that were not established since the first sending: when the first and the last one
began, and of the last one the client's address and why; null where there is none, or no stall."""

SENDING_COUNT_COLUMNS: Final = (
    "sender_address", "receiver_address", "clock", "minute", "sendings", "resends", "first_at", "last_at", "evidence",
)  # fmt: skip
"""The columns of sendings counted by hop, clock and minute; times and evidence are of resends, null without one."""

SLOW_COUNT_COLUMNS: Final = ("sender_address", "receiver_address", "at", "last", "count", "evidence")
"""The columns of slow messages counted by hop and minute; the first two are the key."""

_HOP: Final = ("sender_address", "receiver_address")


def sequence_alerts(
    rows: Iterable[Mapping[str, Any]],
    limits: Thresholds,
    now: int,
    names: Mapping[str, str],
    canonical_queues: Mapping[str, str],
) -> Iterator[Alert]:
    """Yield the alerts of sequences that wait for order acknowledgements, or whose receiver refuses them.

    Rows have ``ALERT_SEQUENCE_COLUMNS``. ``names`` are the names of queue managers by address, ``canonical_queues`` the
    canonical names of queues by those on the wire.
    """
    for each in sorted(rows, key=lambda row: (*(row[name] or "" for name in SERIES), row["first_sent_at"])):
        row, source, destination = dict(each), each["source_queue_manager"], each["destination_queue"]
        sender, receiver = (row[name] for name in FIRST_ADDRESSES)
        queue = canonical_queue_name(destination, canonical_queues)
        subject = f"messages of {source} to {queue} from {sender} to {receiver}"
        manager, observed = names.get(sender, sender), _stalls(row, limits, now)
        stalls = ConditionHistory("order_acks_stalled", subject, observed, error_after=limits.error_after)
        for alert in stalls.alerts(now, limits.merge_within, queue, manager, Ends(sender, receiver)):
            yield _with_failed_connections(alert, row)
        if row["condition"] == REFUSED and row["waiting"] >= limits.refused_messages:
            episode = _refused_episode(row, now)
            yield Alert("sequence_refused", subject, episode, queue, manager, ends=Ends(sender, receiver))


def _with_failed_connections(alert: Alert, row: RowDict) -> Alert:
    """Return the alert of a stall; where connections failed meanwhile, with these as what to look at."""
    episode = alert.episode
    if row["failed_cause"] not in FAILURE_CAUSES:
        return alert
    if row["failed_until"] < episode.since or (episode.until is not None and row["failed_since"] > episode.until):
        return alert
    client = row["failed_client"]
    server = row["receiver_address"] if client == row["sender_address"] else row["sender_address"]
    episode.message += (
        f"; the session worked, and then {client} could not connect to {server}: {FAILURE_CAUSES[row['failed_cause']]}"
    )
    return alert._replace(suggestion=CONDITIONS["sessions_refused"].suggestion, cause=row["failed_cause"])


def _stalls(row: RowDict, limits: Thresholds, now: int) -> Iterator[Observation]:
    """Yield the beginning and the end of each stall.

    One that has not ended does where another sequence follows, or where something else than an order acknowledgement
    shows that its first number is acknowledged.
    """
    for stall in row["stalls"] or ():
        began = datetime_to_us(stall["began_at"])
        ended = None if stall["ended_at"] is None else datetime_to_us(stall["ended_at"])
        if began > now:
            continue
        until = _earliest(row["followed_at"], row["progress_at"]) if ended is None else ended
        seen = _observed_until(row, began, limits) if until is None else max(until, began)
        seen = min(seen, now)
        message = (
            f"{format_count(stall['waiting'], 'message')} from number {stall['first_number']} of sequence "
            f"{row['transaction_sequence_id']} on wait for an order acknowledgement, for {(seen - began) / 1e6:.0f} s; "
            f"sent {format_count(stall['sendings'], 'time')} since"
        )
        if ended is None and (row["accepted_number"] or 0) >= stall["first_number"]:
            message += (
                f"; the receiver has number {row['accepted_number']}, as it reported at "
                f"{format_time(row['accepted_reported_at'])}: the acknowledgement does not come"
            )
        evidence, missing = tuple(row["evidence"] or ())[-1:], tuple(row["missing"] or ())
        seen_first = Observation(
            began, is_met=True, valid_until=seen, message=message, evidence=evidence, missing=missing
        )
        yield seen_first
        yield seen_first._replace(observed_at=seen, valid_until=now)
        if until is not None and until <= now:
            yield Observation(max(until, began), is_met=False, valid_until=now)


def _observed_until(row: RowDict, began: int, limits: Thresholds) -> int:
    """Return until when a stall that has not ended was observed.

    The longest stall lasts until the capture ends, if it is this one. Any has lasted ``transfers.stall_after``.
    """
    lasted = [
        timedelta_to_us(stall["ended_at"] - stall["began_at"])
        for stall in row["stalls"]
        if stall["ended_at"] is not None
    ]
    longest = round((row["longest_stall_s"] or 0) * 1e6)
    is_longest = longest > max(lasted, default=0)
    least = began + (longest if is_longest else timedelta_to_us(limits.stall_after))
    return max(least, row["last_packet_at"] or 0)


def _earliest(*times: int | None) -> int | None:
    return min((at for at in times if at is not None), default=None)


def _refused_episode(row: RowDict, now: int) -> Episode:
    """Return the episode in which a sequence is refused, until its first waiting number is not, or another follows."""
    starts = (row["stalled_since"], row["acknowledged_at"], row["first_sent_at"])
    since = next(at for at in starts if at is not None)
    last = min(row["last_packet_at"] or since, now)
    acknowledged = "nothing" if row["acknowledged_number"] is None else f"number {row['acknowledged_number']}"
    message = (
        f"number {row['first_waiting_number']} of sequence {row['transaction_sequence_id']} is sent again and again, "
        f"the receiver acknowledges {acknowledged}: {format_count(row['waiting'], 'message')} waiting"
    )
    over = _earliest(row["followed_at"], row["refused_until"])
    until = max(over, since) if over is not None and over <= now else None
    seen = max(last if until is None else min(last, until), since)
    episode = Episode(since, seen, seen, ERROR, message, until)
    episode.add_evidence(tuple(row["evidence"] or ())[-1:], row["missing"] or ())
    return episode


def resend_alerts(
    rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, names: Mapping[str, str]
) -> Iterator[Alert]:
    """Yield the alerts of hops on which too many sendings within ``resend_window`` were resends.

    Rows have ``SENDING_COUNT_COLUMNS``. The window is a number of whole minutes, rounded up, that ends with a minute
    in which there was a resend. It has the sendings of one clock.
    """
    for (sender, receiver), series in _group(rows, _HOP):
        stormy: dict[int, tuple[float, str]] = {}  # by minute of a resend, the worst window that has it
        events = []
        for _, of_clock in _group(series, ("clock",)):
            minutes = sorted(of_clock, key=itemgetter("minute"))
            found = _stormy_minutes(minutes, limits)
            for minute, worst in found.items():
                stormy[minute] = max(stormy.get(minute, (0.0, "")), worst)
            events += [
                EventCount(row["first_at"], row["last_at"], row["resends"], tuple(row["evidence"] or ()))
                for row in minutes
                if row["minute"] in found
            ]
        events.sort(key=lambda event: event[:2])
        for run in episodes_from_events(events, now, window=limits.resend_window):
            run.message = max(
                found for minute, found in stormy.items()
                if run.since // MINUTE_US <= minute <= run.last_seen_at // MINUTE_US
            )[1]  # fmt: skip
            yield _hop_alert("resend_storm", sender, receiver, run, names)


def _stormy_minutes(minutes: Sequence[Mapping[str, Any]], limits: Thresholds) -> dict[int, tuple[float, str]]:
    """Return the minutes with resends in too bad a window, each with the share and a text of the worst one."""
    width = max(ceil(limits.resend_window.total_seconds() / 60), 1)
    stormy: dict[int, tuple[float, str]] = {}
    first = 0
    for place, row in enumerate(minutes):
        while minutes[first]["minute"] <= row["minute"] - width:
            first += 1
        inside = minutes[first : place + 1]
        resends, sendings = (sum(each[name] for each in inside) for name in ("resends", "sendings"))
        share = resends / sendings
        if not row["resends"] or resends < limits.resends or share < limits.resend_share:
            continue
        text = f"{resends} of {sendings} sendings within {width} min were resends ({share:.0%})"
        for each in inside:
            if each["resends"]:
                stormy[each["minute"]] = max(stormy.get(each["minute"], (0.0, "")), (share, text))
    return stormy


def slow_transfer_alerts(
    rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, names: Mapping[str, str]
) -> Iterator[Alert]:
    """Yield the alerts of hops on which messages were acknowledged too late. Rows have ``SLOW_COUNT_COLUMNS``."""
    late = f"{limits.slow_after.total_seconds():g} s or more after the first sending"
    for (sender, receiver), series in _group(rows, _HOP):
        events = [EventCount(row["at"], row["last"], row["count"], tuple(row["evidence"] or ())) for row in series]
        for run in episodes_from_events(events, now, window=limits.failure_window):
            run.message = f"{format_count(run.count, 'message')} acknowledged {late}"
            yield _hop_alert("transfers_slow", sender, receiver, run, names)


def _hop_alert(condition: str, sender: str, receiver: str, run: Episode, names: Mapping[str, str]) -> Alert:
    subject, manager = f"messages from {sender} to {receiver}", names.get(sender, sender)
    return Alert(condition, subject, run, None, manager, ends=Ends(sender, receiver))


def _group(
    rows: Iterable[Mapping[str, Any]], names: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], list[Mapping[str, Any]]]]:
    ordered = sorted(rows, key=lambda row: tuple(row[name] or "" for name in names))
    for values, series in groupby(ordered, key=itemgetter(*names)):
        yield values, list(series)
