"""Exactly-once delivery: observations of queues -> how their transfers go. Plain rows in, plain rows out; no Spark.

What is believed, with [MS-MQQB] 3.1.1.5, 3.1.1.6.2, 3.1.5.8.6 and the fact sheet on packets, 2.12, 5.4 to 5.6:

* A sequence is known by its id, TimeStamp above Ordinal. The TimeStamp is that of the sender's installation or
  restoration; the Ordinal grows whenever all messages of the sequence are gone, and numbers begin at 1 again.
* EOD_LAST_ACK is told while something is not acknowledged; that of an earlier sequence says nothing of this one.

A series are the observations of one queue manager's queue by one source: the wire may show the collector's own
questions, half a millisecond apart, in which nothing can have moved. Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

Row = dict[str, Any]
Series = tuple[str | None, str | None, str | None, str | None]

SERIES: Final = ("queue_manager", "queue", "queue_format_name", "source")
# The fact sheet on packets, 2.12: seconds before each try, the last one for all further ones
LADDER_S: Final = (30.0,) * 3 + (300.0,) * 3 + (1800.0,) * 3 + (21600.0,)
EOD_VALUES: Final = (
    "eod_last_ack", "eod_first_non_ack", "eod_last_non_ack", "eod_next_seq", "eod_last_ack_time", "eod_last_ack_count",
    "eod_no_read_count", "eod_no_ack_count", "eod_resend_time", "eod_resend_interval", "eod_resend_count",
)  # fmt: skip
_US: Final = 1_000_000
TIME_STAMP: Final = 32  # where it begins in a sequence's id, in bits


def is_transfer(snapshot: Mapping[str, Any]) -> bool:
    """Whether a successful snapshot is of an outgoing transactional queue, or tells anything of exactly-once delivery.

    EOD_SOURCE_INFO is told of incoming queues: it makes ``sources``.
    """
    outgoing = (snapshot["location"] or "").upper() == "REMOTE" and (snapshot["xact"] or "").upper() == "YES"
    return outgoing or any(snapshot[name] is not None for name in EOD_VALUES)


def series_of(row: Mapping[str, Any]) -> Series:
    """Return what tells which observations are compared with each other."""
    manager, queue, name, source = (row[part] for part in SERIES)
    return manager, queue, name, source


def transfers(
    snapshots: Iterable[Mapping[str, Any]],
    earlier: Iterable[Mapping[str, Any]] = (),
    *,
    resend_rise: int,
    ladder_s: Sequence[float] = LADDER_S,
    max_gap: int,
) -> list[Row]:
    """Return a row for each snapshot that ``is_transfer``, of whatever series, in order of series and time.

    ``earlier`` are rows of before, as this returns them, of which each series needs the last one and those back to
    where its oldest unacknowledged number was first in flight.
    """
    every = [_observed(snapshot) for snapshot in snapshots if is_transfer(snapshot)]
    before: defaultdict[Series, list[Row]] = defaultdict(list)
    for row in sorted(earlier, key=order):
        before[series_of(row)].append(dict(row))
    out: list[Row] = []
    for series, rows in groupby(sorted(every, key=lambda row: (_texts(row), *order(row))), key=series_of):
        known = before[series]
        for row in rows:
            _compare(row, known, resend_rise, max_gap)
            row["ladder_step"], row["ladder_interval_s"] = _step(row["resend_count"], ladder_s)
            known.append(row)
            out.append(row)
    return out


def order(row: Mapping[str, Any]) -> tuple[int, str]:
    """Order observations by time."""
    return row["observed_at"], row["snapshot_id"]


def _texts(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] or "" for name in SERIES)


def _observed(snapshot: Mapping[str, Any]) -> Row:
    """Return what one snapshot tells by itself."""
    last, first, newest, following = (
        snapshot[name] for name in ("eod_last_ack", "eod_first_non_ack", "eod_last_non_ack", "eod_next_seq")
    )
    sequence = next((int(each["sequence_id"]) for each in (following, first, newest, last) if each is not None), None)

    def number(of: Mapping[str, Any] | None, name: str = "sequence_number") -> int | None:
        return None if of is None or int(of["sequence_id"]) != sequence else of[name]

    missing = {"decode_error"} if snapshot["errors"] else set()
    return {
        **{name: snapshot[name] for name in (*SERIES, "snapshot_id", "observed_at")},
        "sequence_id": sequence,
        "last_acked_number": number(last),
        "first_unacked_number": number(first),
        "last_unacked_number": number(newest),
        "next_number": number(following),
        "first_unacked_previous_number": number(first, "previous_number"),
        "unacked_count": snapshot["eod_no_ack_count"],
        "unread_count": snapshot["eod_no_read_count"],
        "last_ack_at": snapshot["eod_last_ack_time"],
        "resend_count": snapshot["eod_resend_count"],
        "resend_interval_s": snapshot["eod_resend_interval"],
        "next_resend_at": snapshot["eod_resend_time"],
        "acked_per_s": None,
        "sent_per_s": None,
        "in_flight_s": None,
        "stalled_since": None,
        "sequence_reset": False,
        "condition": None,
        "evidence": [snapshot["snapshot_id"]],
        "missing": missing,
        "errors": list(snapshot["errors"] or ()),
    }


def acknowledged(row: Mapping[str, Any]) -> int | None:
    """Return the acknowledged number: as told, else the one before the oldest that is not, else before the next."""
    if row["last_acked_number"] is not None:
        return int(row["last_acked_number"])
    after = row["first_unacked_number"] if row["first_unacked_number"] is not None else row["next_number"]
    return None if after is None else after - 1


def _pending(row: Mapping[str, Any]) -> bool | None:
    """Whether something is not acknowledged; None where that was not told."""
    if row["unacked_count"] is not None:
        return bool(row["unacked_count"] > 0)
    return True if row["first_unacked_number"] is not None else None


def _compare(row: Row, known: Sequence[Row], resend_rise: int, max_gap: int) -> None:
    """Fill in what a row is against those before it of its series."""
    previous = known[-1] if known else None
    if previous is not None:
        row["evidence"] = [previous["snapshot_id"], row["snapshot_id"]]
        if row["observed_at"] - previous["observed_at"] > max_gap:
            row["missing"].add("no_snapshot")
        _rates(row, previous)
        row["sequence_reset"] = _went_back(row, previous)
        if _stands_still(row, previous) and not row["sequence_reset"]:
            since = previous["stalled_since"] if previous["stalled_since"] is not None else previous["observed_at"]
            row["stalled_since"] = since
    since = _in_flight_since(row, known)
    row["in_flight_s"] = None if since is None else (row["observed_at"] - since) / _US
    row["condition"] = _condition(row, previous, resend_rise)
    row["confidence"] = "partial" if row["missing"] else "complete"
    row["missing"] = sorted(row["missing"])


def _rates(row: Row, previous: Row) -> None:
    seconds = (row["observed_at"] - previous["observed_at"]) / _US
    if seconds <= 0 or row["sequence_id"] is None or row["sequence_id"] != previous["sequence_id"]:
        return
    numbers = {
        "acked_per_s": (acknowledged(row), acknowledged(previous)),
        "sent_per_s": (row["next_number"], previous["next_number"]),
    }
    for name, (now, then) in numbers.items():
        row[name] = None if now is None or then is None else (now - then) / seconds


def _went_back(row: Row, previous: Row) -> bool:
    """Whether the sequence is another one, but for a grown Ordinal, or a number of it went back.

    Numbers are compared with those told as the same: expired messages leave gaps, in which the numbers next to them are
    not those that were acknowledged.
    """
    now, then = row["sequence_id"], previous["sequence_id"]
    if now is None or then is None:
        return False
    if now != then:
        return bool(now >> TIME_STAMP != then >> TIME_STAMP or now < then)
    told = ((row[name], previous[name]) for name in ("last_acked_number", "first_unacked_number", "next_number"))
    return any(new is not None and old is not None and new < old for new, old in told)


def _stands_still(row: Row, previous: Row) -> bool:
    same = all(row[name] == previous[name] for name in ("sequence_id", "last_ack_at"))
    return bool(_pending(row) and _pending(previous)) and same and acknowledged(row) == acknowledged(previous)


def _in_flight_since(row: Row, known: Sequence[Row]) -> int | None:
    """Return the first observation of this sequence that showed the oldest unacknowledged number as given out."""
    first, following = row["first_unacked_number"], row["next_number"]
    if first is None or following is None or not first < following:
        return None
    since, oldest = row["observed_at"], first
    for each in reversed(known):
        if each["sequence_id"] != row["sequence_id"] or each["in_flight_s"] is None:
            break
        if each["next_number"] <= first or each["first_unacked_number"] > oldest:
            break
        since, oldest = each["observed_at"], each["first_unacked_number"]
        if oldest == first:
            return needs_since(each)
    return int(since)


def needs_since(row: Mapping[str, Any]) -> int:
    """Return how far back ``transfers`` must know what was before, given a series' last row of before."""
    back = 0 if row["in_flight_s"] is None else round(row["in_flight_s"] * _US)
    return int(row["observed_at"] - back)


def _condition(row: Row, previous: Row | None, resend_rise: int) -> str | None:
    def rose(name: str) -> int:
        now, then = row[name], None if previous is None else previous[name]
        return 0 if now is None or then is None else now - then

    if row["sequence_reset"]:
        return "reset"
    if row["stalled_since"] is not None:
        return "stalled"
    if rose("resend_count") >= resend_rise:
        return "resending"
    if rose("unacked_count") > 0:
        return "slow"
    pending = _pending(row)
    if pending or _moved(row, previous):
        return "flowing"
    return None if pending is None else "idle"


def _moved(row: Row, previous: Row | None) -> bool:
    """Whether the next number is another one than before."""
    if previous is None or None in (row["next_number"], previous["next_number"]):
        return False
    names = ("sequence_id", "next_number")
    return any(row[name] != previous[name] for name in names)


def _step(count: int | None, ladder_s: Sequence[float]) -> tuple[int | None, float | None]:
    """Return the step of the ladder that a try stands on, from 1, and its interval; equal intervals are one step."""
    if not count or not ladder_s:
        return None, None
    place = min(count, len(ladder_s)) - 1
    steps = 1 + sum(ladder_s[each] != ladder_s[each - 1] for each in range(1, place + 1))
    return steps, ladder_s[place]
