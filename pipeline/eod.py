"""Exactly-once delivery: observations of queues -> how their transfers go. Plain rows in, plain rows out; no Spark.

What is believed, with [MS-MQQB] 3.1.1.5, 3.1.1.6.2, 3.1.5.8.6 and the fact sheet on packets, 2.12, 5.4 to 5.6:

* A sequence is known by its id, TimeStamp above Ordinal. The TimeStamp is that of the sender's installation or
  restoration; the Ordinal grows whenever all messages of the sequence are gone, and numbers begin at 1 again.
* EOD_LAST_ACK is told while something is not acknowledged; that of an earlier sequence says nothing of this one.
* A receiver takes (id, number) with the number before it if it knows the id and number > its last >= the one before, or
  if the id is newer than its own and there is none before (0). What is rejected is sent again, and rejected again.

A series are the observations of one queue manager's queue by one source: the wire may show the collector's own
questions, half a millisecond apart, in which nothing can have moved. Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby, product
from typing import Any, Final

Row = dict[str, Any]
Series = tuple[str | None, str | None, str | None, str | None]

SERIES: Final = ("queue_manager", "queue", "queue_format_name", "source")
# [MS-MQQB] 3.1.1.3, the fact sheet on packets 2.12: seconds before each try, the last one for all further ones
LADDER_S: Final = (30.0,) * 3 + (300.0,) * 3 + (1800.0,) * 3 + (21600.0,)
EOD_VALUES: Final = (
    "eod_last_ack", "eod_first_non_ack", "eod_last_non_ack", "eod_next_seq", "eod_last_ack_time", "eod_last_ack_count",
    "eod_no_read_count", "eod_no_ack_count", "eod_resend_time", "eod_resend_interval", "eod_resend_count",
)  # fmt: skip
_US: Final = 1_000_000
_HIGH: Final = 32  # bits of the Ordinal, below the TimeStamp


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
    for row in sorted(earlier, key=_order):
        before[series_of(row)].append(dict(row))
    out: list[Row] = []
    for series, rows in groupby(sorted(every, key=lambda row: (_texts(row), *_order(row))), key=series_of):
        known = before[series]
        for row in rows:
            _compare(row, known, resend_rise, max_gap)
            row["ladder_step"], row["ladder_interval_s"] = _step(row["resend_count"], ladder_s)
            known.append(row)
            out.append(row)
    return out


def _order(row: Mapping[str, Any]) -> tuple[int, str]:
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
    """Return the acknowledged number: the one told, else the one before the oldest that is not, else before the next."""
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
        return bool(now >> _HIGH != then >> _HIGH or now < then)
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


class Senders:
    """What senders reported of their outgoing queues."""

    def __init__(self, observed: Iterable[Mapping[str, Any]]) -> None:
        """``observed`` are rows of ``transfers``, or of the table."""
        self._rows: defaultdict[Hashable, list[Mapping[str, Any]]] = defaultdict(list)
        self._times: defaultdict[Hashable, list[int]] = defaultdict(list)
        for row in sorted((row for row in observed if row["sequence_id"] is not None), key=_order):
            name = (row["queue_format_name"] or "").lower()
            for place in product((row["queue_manager"],), (row["queue"],), (name, None), (row["source"], None)):
                self._rows[place].append(row)
                self._times[place].append(row["observed_at"])

    def around(self, manager: str, receiver: Mapping[str, Any], max_gap: int) -> list[Mapping[str, Any] | None]:
        """Return the last report up to a receiver's, and the first from then on, neither further off than ``max_gap``.

        Those of the very format name that the receiver knows count before those of the same queue, and those of the
        same source, whose clock is the same, before others. Nothing where there is none.
        """
        name, at = (receiver["sender_format_name"] or "").lower(), receiver["observed_at"]
        for place in product((manager,), (receiver["sender_queue"],), (name, None), (receiver["source"], None)):
            times, rows = self._times.get(place, []), self._rows.get(place, [])
            before, after = bisect_right(times, at) - 1, bisect_left(times, at)
            earlier = rows[before] if before >= 0 and times[before] >= at - max_gap else None
            later = rows[after] if after < len(rows) and times[after] <= at + max_gap else None
            if earlier is not None or later is not None:
                return [earlier, later]
        return []


def sources(
    snapshots: Iterable[Mapping[str, Any]],
    senders: Senders,
    names: Mapping[str, Iterable[str]],
    *,
    max_gap: int,
) -> list[Row]:
    """Return a row for each incoming sequence of each snapshot, compared with its sender's own reports.

    ``names`` are the queue managers that a GUID may be (a cloned machine shares its own); the snapshots' sources have
    their ``sender_queue``, canonical.
    """
    out: list[Row] = []
    for snapshot in sorted(snapshots, key=_order):
        for place, told in enumerate(snapshot["eod_source_info"] or ()):
            row: Row = {
                **{name: snapshot[name] for name in (*SERIES, "snapshot_id", "observed_at")},
                "place": place,
                **told,
                "disagrees_with_sender": None,
                "evidence": [snapshot["snapshot_id"]],
                "missing": {"decode_error"} if snapshot["errors"] else set(),
                "errors": list(snapshot["errors"] or ()),
            }
            _confront(row, senders, sorted(names.get(told["sender_queue_manager"], ())), max_gap)
            row["confidence"] = "partial" if row["missing"] else "complete"
            row["missing"] = sorted(row["missing"])
            out.append(row)
    return out


def _confront(row: Row, senders: Senders, managers: Sequence[str], max_gap: int) -> None:
    """Compare a receiver's record with its sender's reports; of machines with one GUID the one whose sequence it is."""
    candidates = [found for manager in managers if (found := senders.around(manager, row, max_gap))]
    if len(candidates) > 1:
        stamp = row["sequence_id"] >> _HIGH
        same = [c for c in candidates if any(each and each["sequence_id"] >> _HIGH == stamp for each in c)]
        candidates = same if len(same) == 1 else []
    if not candidates:
        row["missing"].add("no_snapshot")
        return
    for seen in candidates[0]:
        if seen is not None and seen["snapshot_id"] not in row["evidence"]:
            row["evidence"].append(seen["snapshot_id"])
    row["disagrees_with_sender"] = disagreement(row["sequence_id"], row["last_number"], *candidates[0])


def disagreement(
    ident: int, last: int, earlier: Mapping[str, Any] | None, later: Mapping[str, Any] | None
) -> str | None:
    """Return how a receiver that took ``last`` of sequence ``ident`` rejects its sender for good; None: it does not.

    Both ends move on between two observations. What the sender had acknowledged before the receiver was asked, the
    receiver must have; and what it gives out after that must be above what the receiver has.
    """
    if later is not None:
        if later["sequence_id"] < ident:
            return f"sequence_behind: the sender is at sequence {later['sequence_id']}, the receiver has had {ident}"
        if later["sequence_id"] == ident and later["next_number"] is not None and later["next_number"] <= last:
            return f"number_behind: the sender goes on with {later['next_number']}, the receiver has had {last}"
    if earlier is None or earlier["first_unacked_previous_number"] is None:
        return None
    first, before = earlier["first_unacked_number"], earlier["first_unacked_previous_number"]
    if earlier["sequence_id"] == ident and before > last:
        return f"gap: the sender's oldest message {first} follows {before}, the receiver has had {last} only"
    if earlier["sequence_id"] > ident and before > 0:
        return (
            f"sequence_unknown: the sender's oldest message {first} of sequence {earlier['sequence_id']} follows "
            f"{before}, the receiver has had {last} of {ident}"
        )
    return None
