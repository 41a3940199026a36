"""Exactly-once delivery at senders: the progress of transfers, from snapshots of outgoing queues. No Spark.

The rules, from [MS-MQQB] 3.1.1.5, 3.1.1.6.2, 3.1.5.8.6 and the fact sheet on packets, 2.12, 5.4 to 5.6:

* A sequence id is a TimeStamp (upper bits) and an Ordinal. The TimeStamp is that of the sender's installation or
  restoration. The Ordinal grows when all messages of the sequence are gone; numbers then begin at 1 again.
* EOD_LAST_ACK is filled while something is unacknowledged. That of an earlier sequence says nothing about this one.

A series is the observations of one queue manager's queue by one source. Sources stay apart, because captures may show
the collector's own requests half a millisecond apart, when nothing can have changed. Times are microseconds since the
epoch (UTC).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from pipeline.settings import EodConfig
from udfs.rows import RowDict
from udfs.times import SECOND_US

SeriesKey = tuple[str | None, str | None, str | None, str | None]

SERIES_COLUMNS: Final = ("queue_manager", "queue", "queue_format_name", "source")
# The fact sheet on packets, 2.12: seconds before each retry; the last one applies to all further ones.
_RESEND_LADDER_S: Final = tuple(each.total_seconds() for each in EodConfig.resend_ladder)
TROUBLED_CONDITIONS: Final = ("stalled", "reset", "resending")
EOD_PROPERTIES: Final = (
    "eod_last_ack", "eod_first_non_ack", "eod_last_non_ack", "eod_next_seq", "eod_last_ack_time", "eod_last_ack_count",
    "eod_no_read_count", "eod_no_ack_count", "eod_resend_time", "eod_resend_interval", "eod_resend_count",
)  # fmt: skip


def is_transfer_snapshot(snapshot: Mapping[str, Any]) -> bool:
    """Return whether a snapshot is of an outgoing transactional queue or has any exactly-once property of a sender.

    EOD_SOURCE_INFO does not count: it is a property of incoming queues (``eod_sources``).
    """
    outgoing = (snapshot["location"] or "").upper() == "REMOTE" and (snapshot["xact"] or "").upper() == "YES"
    return outgoing or any(snapshot[name] is not None for name in EOD_PROPERTIES)


_IS_OUTGOING: Final = "upper(location) = 'REMOTE' AND upper(xact) = 'YES'"
IS_TRANSFER_SNAPSHOT_SQL: Final = f"({_IS_OUTGOING} OR {' OR '.join(f'{name} IS NOT NULL' for name in EOD_PROPERTIES)})"
"""The SQL condition of rows of silver.queue_snapshots for ``is_transfer_snapshot``."""


def series_key(row: Mapping[str, Any]) -> SeriesKey:
    """Return the key of the series that an observation belongs to."""
    manager, queue, name, source = (row[part] for part in SERIES_COLUMNS)
    return manager, queue, name, source


def compute_transfers(
    snapshots: Iterable[Mapping[str, Any]],
    earlier_rows: Iterable[Mapping[str, Any]] = (),
    *,
    resend_rise: int,
    ladder_s: Sequence[float] = _RESEND_LADDER_S,
    max_gap: int,
) -> list[RowDict]:
    """Return a row of gold.eod_transfers for each transfer snapshot, in order of series and time.

    ``earlier_rows`` are rows from an earlier computation. Each series needs its last one, and those since its oldest
    unacknowledged number was first in flight (``number_sent_since``).
    """
    every = [_snapshot_row(snapshot) for snapshot in snapshots if is_transfer_snapshot(snapshot)]
    before: defaultdict[SeriesKey, list[RowDict]] = defaultdict(list)
    for row in sorted(earlier_rows, key=observation_order):
        before[series_key(row)].append(dict(row))
    out: list[RowDict] = []
    for series, rows in groupby(
        sorted(every, key=lambda row: (_sort_key(row), *observation_order(row))), key=series_key
    ):
        known = _InFlight()
        previous: RowDict | None = None
        for previous in before[series]:
            known.add(previous)
        for row in rows:
            _compare(row, previous, known, resend_rise, max_gap)
            row["ladder_step"], row["ladder_interval_s"] = _ladder_step(row["resend_count"], ladder_s)
            known.add(row)
            previous = row
            out.append(row)
    return out


class _InFlight:
    """The last rows of a series in which the oldest unacknowledged number of one sequence was in flight and rose."""

    def __init__(self) -> None:
        self._rows: list[RowDict] = []
        # Next numbers, each lower than all that come later, with the index of its row: the last one below a number is
        # found by bisection.
        self._next_numbers: list[tuple[int, int]] = []

    def add(self, row: RowDict) -> None:
        """Add the next row of the series."""
        if row["in_flight_s"] is None or (self._rows and not self._continues(row)):
            self._rows, self._next_numbers = [], []
        if row["in_flight_s"] is None:
            return
        while self._next_numbers and self._next_numbers[-1][0] >= row["next_number"]:
            self._next_numbers.pop()
        self._next_numbers.append((row["next_number"], len(self._rows)))
        self._rows.append(row)

    def _continues(self, row: RowDict) -> bool:
        last = self._rows[-1]
        rises = bool(last["first_unacked_number"] <= row["first_unacked_number"])
        return rises and bool(last["sequence_id"] == row["sequence_id"])

    def since(self, row: RowDict) -> int | None:
        """Return the time of the first observation that showed a row's oldest unacknowledged number as sent, if any."""
        first, following = row["first_unacked_number"], row["next_number"]
        if first is None or following is None or not first < following:
            return None
        if not self._rows or not self._continues(row):
            return int(row["observed_at"])
        last = self._rows[-1]
        if last["first_unacked_number"] == first and last["next_number"] > first:
            return number_sent_since(last)
        place = bisect_right(self._next_numbers, (first, len(self._rows)))
        begin = self._next_numbers[place - 1][1] + 1 if place else 0
        return int((self._rows[begin] if begin < len(self._rows) else row)["observed_at"])


def sequence_timestamp(sequence_id: int) -> int:
    """Return the TimeStamp of a sequence id, its upper 32 bits."""
    return sequence_id >> 32


def observation_order(row: Mapping[str, Any]) -> tuple[int, str]:
    """Return the sort key of an observation: its time, then its snapshot id."""
    return row["observed_at"], row["snapshot_id"]


def _sort_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] or "" for name in SERIES_COLUMNS)


def _snapshot_row(snapshot: Mapping[str, Any]) -> RowDict:
    """Return the row of a snapshot without the columns that depend on earlier ones."""
    last, first, newest, following = (
        snapshot[name] for name in ("eod_last_ack", "eod_first_non_ack", "eod_last_non_ack", "eod_next_seq")
    )
    sequence = next((int(each["sequence_id"]) for each in (following, first, newest, last) if each is not None), None)

    def number(position: Mapping[str, Any] | None, name: str = "sequence_number") -> int | None:
        return None if position is None or int(position["sequence_id"]) != sequence else position[name]

    missing = {"decode_error"} if snapshot["errors"] else set()
    return {
        **{name: snapshot[name] for name in (*SERIES_COLUMNS, "snapshot_id", "observed_at")},
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


def acknowledged_number(row: Mapping[str, Any]) -> int | None:
    """Return the last acknowledged number of a transfer row.

    As reported, else the number before the oldest unacknowledged one, else before the next one; None without any.
    """
    if row["last_acked_number"] is not None:
        return int(row["last_acked_number"])
    after = row["first_unacked_number"] if row["first_unacked_number"] is not None else row["next_number"]
    return None if after is None else after - 1


def _has_unacked(row: Mapping[str, Any]) -> bool | None:
    """Return whether messages are unacknowledged; None if not reported."""
    if row["unacked_count"] is not None:
        return bool(row["unacked_count"] > 0)
    return True if row["first_unacked_number"] is not None else None


def _compare(row: RowDict, previous: RowDict | None, known: _InFlight, resend_rise: int, max_gap: int) -> None:
    """Set the columns of a row that depend on the earlier rows of its series."""
    if previous is not None:
        row["evidence"] = [previous["snapshot_id"], row["snapshot_id"]]
        if row["observed_at"] - previous["observed_at"] > max_gap:
            row["missing"].add("no_snapshot")
        _set_rates(row, previous)
        row["sequence_reset"] = _is_reset(row, previous)
        if _is_stalled(row, previous) and not row["sequence_reset"]:
            since = previous["stalled_since"] if previous["stalled_since"] is not None else previous["observed_at"]
            row["stalled_since"] = since
    since = known.since(row)
    row["in_flight_s"] = None if since is None else (row["observed_at"] - since) / SECOND_US
    row["condition"] = _condition(row, previous, resend_rise)
    row["confidence"] = "partial" if row["missing"] else "complete"
    row["missing"] = sorted(row["missing"])


def _set_rates(row: RowDict, previous: RowDict) -> None:
    seconds = (row["observed_at"] - previous["observed_at"]) / SECOND_US
    if seconds <= 0 or row["sequence_id"] is None or row["sequence_id"] != previous["sequence_id"]:
        return
    numbers = {
        "acked_per_s": (acknowledged_number(row), acknowledged_number(previous)),
        "sent_per_s": (row["next_number"], previous["next_number"]),
    }
    for name, (now, then) in numbers.items():
        row[name] = None if now is None or then is None else (now - then) / seconds


def _is_reset(row: RowDict, previous: RowDict) -> bool:
    """Return whether the sequence was replaced (other than by a higher Ordinal), or one of its numbers decreased.

    Each number is compared with the same property, because expired messages leave gaps: the number before the oldest
    unacknowledged one need not be acknowledged.
    """
    now, then = row["sequence_id"], previous["sequence_id"]
    if now is None or then is None:
        return False
    if now != then:
        return sequence_timestamp(now) != sequence_timestamp(then) or bool(now < then)
    pairs = ((row[name], previous[name]) for name in ("last_acked_number", "first_unacked_number", "next_number"))
    return any(new is not None and old is not None and new < old for new, old in pairs)


def _is_stalled(row: RowDict, previous: RowDict) -> bool:
    same = all(row[name] == previous[name] for name in ("sequence_id", "last_ack_at"))
    same = same and acknowledged_number(row) == acknowledged_number(previous)
    return same and bool(_has_unacked(row) and _has_unacked(previous))


def number_sent_since(row: Mapping[str, Any]) -> int:
    """Return the time from which ``compute_transfers`` needs the earlier rows of a series, given its last one."""
    back = 0 if row["in_flight_s"] is None else round(row["in_flight_s"] * SECOND_US)
    return int(row["observed_at"] - back)


def _condition(row: RowDict, previous: RowDict | None, resend_rise: int) -> str | None:
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
    unacked = _has_unacked(row)
    if unacked or _next_number_changed(row, previous):
        return "flowing"
    return None if unacked is None else "idle"


def _next_number_changed(row: RowDict, previous: RowDict | None) -> bool:
    if previous is None or None in (row["next_number"], previous["next_number"]):
        return False
    return any(row[name] != previous[name] for name in ("sequence_id", "next_number"))


def _ladder_step(count: int | None, ladder_s: Sequence[float]) -> tuple[int | None, float | None]:
    """Return the step of the resend ladder after a number of resends, from 1, and its interval in seconds.

    Equal intervals are one step.
    """
    if not count or not ladder_s:
        return None, None
    place = min(count, len(ladder_s)) - 1
    steps = 1 + sum(ladder_s[each] != ladder_s[each - 1] for each in range(1, place + 1))
    return steps, ladder_s[place]
