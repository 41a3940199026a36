"""What receivers of exactly-once delivery know of their senders -> where they disagree. Plain rows; no Spark.

A receiver takes (id, number), with the number before it, if it knows the id and number > its last one >= the one
before, or if the id is newer than its own and there is none before (0) ([MS-MQQB] 3.1.5.8.6; the fact sheet on
packets, 2.12).
What is rejected is sent again, and rejected again: that is found by laying the reports of both ends side by side.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from itertools import product
from typing import Any

from pipeline.queues.eod_transfers import SERIES, TIME_STAMP, Row, order


class Senders:
    """What senders reported of their outgoing queues."""

    def __init__(self, observed: Iterable[Mapping[str, Any]]) -> None:
        """``observed`` are rows of ``transfers``, or of the table."""
        self._rows: defaultdict[Hashable, list[Mapping[str, Any]]] = defaultdict(list)
        self._times: defaultdict[Hashable, list[int]] = defaultdict(list)
        self._managers: defaultdict[str | None, set[str]] = defaultdict(set)
        for row in sorted((row for row in observed if row["sequence_id"] is not None), key=order):
            self._managers[row["queue"]].add(row["queue_manager"])
            name = (row["queue_format_name"] or "").lower()
            for place in product((row["queue_manager"],), (row["queue"],), (name, None), (row["source"], None)):
                self._rows[place].append(row)
                self._times[place].append(row["observed_at"])

    def managers(self, receiver: Mapping[str, Any]) -> set[str]:
        """Return the queue managers that reported the outgoing queue to a receiver."""
        return self._managers[receiver["sender_queue"]] | self._managers[receiver["queue"]]

    def around(self, manager: str, receiver: Mapping[str, Any], max_gap: int) -> list[Mapping[str, Any] | None]:
        """Return the last report up to a receiver's, and the first from then on, neither further off than ``max_gap``.

        Those of the queue that the receiver says its sender uses count before those of the queue that it is itself,
        those of that very format name before others, and those of the same source, whose clock is the same. Nothing
        where there is none.
        """
        name, at = (receiver["sender_format_name"] or "").lower(), receiver["observed_at"]
        queues = dict.fromkeys((receiver["sender_queue"], receiver["queue"]))
        for place in product((manager,), queues, (name, None), (receiver["source"], None)):
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

    ``names`` are the queue managers that a GUID may be (a cloned machine shares its own); of a GUID that is not known
    it is one that reported the queue and of which no other GUID is known, if the TimeStamp is its sequence's. The
    snapshots' sources have their ``sender_queue``, canonical.
    """
    named = {manager for managers in names.values() for manager in managers}
    out: list[Row] = []
    for snapshot in sorted(snapshots, key=order):
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
            known = set(names.get(told["sender_queue_manager"], ()))
            _confront(row, senders, known or senders.managers(row) - named, max_gap, sure=len(known) == 1)
            row["confidence"] = "partial" if row["missing"] else "complete"
            row["missing"] = sorted(row["missing"])
            out.append(row)
    return out


def _confront(row: Row, senders: Senders, managers: Iterable[str], max_gap: int, *, sure: bool) -> None:
    """Compare a receiver's record with its sender's reports; who that is, is not ``sure`` before the sequence tells."""
    candidates = [found for manager in sorted(managers) if (found := senders.around(manager, row, max_gap))]
    if not sure:
        stamp = row["sequence_id"] >> TIME_STAMP
        same = [c for c in candidates if any(each and each["sequence_id"] >> TIME_STAMP == stamp for each in c)]
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
