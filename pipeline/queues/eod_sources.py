"""Exactly-once delivery at receivers: where a receiver and its sender disagree. No Spark.

A receiver accepts a message if it has the sequence id and number > its last number >= the message's previous number, or
if the id is newer than its own and the message has no previous number (0) ([MS-MQQB] 3.1.5.8.6; the fact sheet on
packets, 2.12). A sender sends what was rejected again, and it is rejected again. This module finds such deadlocks by
comparing the reports of both ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from itertools import product
from typing import Any

from pipeline.queues.eod_transfers import SERIES_COLUMNS, observation_order, sequence_timestamp
from udfs.rows import RowDict


class SenderReports:
    """The reports of senders about their outgoing queues, indexed by queue and time."""

    def __init__(self, transfers: Iterable[Mapping[str, Any]]) -> None:
        """Index rows of gold.eod_transfers."""
        self._rows: defaultdict[Hashable, list[Mapping[str, Any]]] = defaultdict(list)
        self._times: defaultdict[Hashable, list[int]] = defaultdict(list)
        self._managers: defaultdict[str | None, set[str]] = defaultdict(set)
        for row in sorted((row for row in transfers if row["sequence_id"] is not None), key=observation_order):
            self._managers[row["queue"]].add(row["queue_manager"])
            name = (row["queue_format_name"] or "").lower()
            for index_key in product((row["queue_manager"],), (row["queue"],), (name, None), (row["source"], None)):
                self._rows[index_key].append(row)
                self._times[index_key].append(row["observed_at"])

    def reporting_managers(self, receiver: Mapping[str, Any]) -> set[str]:
        """Return the queue managers that reported an outgoing queue to this receiver."""
        return self._managers[receiver["sender_queue"]] | self._managers[receiver["queue"]]

    def nearest_reports(
        self, manager: str, receiver: Mapping[str, Any], max_gap: int
    ) -> list[Mapping[str, Any] | None]:
        """Return a manager's last report up to the receiver's and its first from then on, each within ``max_gap``.

        Reports of the queue name that the sender uses (as the receiver says) take precedence over those of the
        receiver's own queue name, then those with the same format name, then those of the same source, which has the
        same clock. The result is empty if there are none.
        """
        name, at = (receiver["sender_format_name"] or "").lower(), receiver["observed_at"]
        queues = dict.fromkeys((receiver["sender_queue"], receiver["queue"]))
        for index_key in product((manager,), queues, (name, None), (receiver["source"], None)):
            times, rows = self._times.get(index_key, []), self._rows.get(index_key, [])
            before, after = bisect_right(times, at) - 1, bisect_left(times, at)
            earlier = rows[before] if before >= 0 and times[before] >= at - max_gap else None
            later = rows[after] if after < len(rows) and times[after] <= at + max_gap else None
            if earlier is not None or later is not None:
                return [earlier, later]
        return []


def compute_sources(
    snapshots: Iterable[Mapping[str, Any]],
    senders: SenderReports,
    names_by_guid: Mapping[str, Iterable[str]],
    *,
    max_gap: int,
) -> list[RowDict]:
    """Return a row for each incoming sequence of each snapshot, compared with its sender's own reports.

    The entries of ``eod_source_info`` have the canonical ``sender_queue``. ``names_by_guid`` are the queue managers
    that have a GUID (clones share one). If the GUID is unknown, the sender is the queue manager that reported the
    queue, has no known GUID, and whose sequence has the same TimeStamp.
    """
    identified = {manager for managers in names_by_guid.values() for manager in managers}
    out: list[RowDict] = []
    for snapshot in sorted(snapshots, key=observation_order):
        for place, entry in enumerate(snapshot["eod_source_info"] or ()):
            row: RowDict = {
                **{name: snapshot[name] for name in (*SERIES_COLUMNS, "snapshot_id", "observed_at")},
                "place": place,
                **entry,
                "disagrees_with_sender": None,
                "evidence": [snapshot["snapshot_id"]],
                "missing": {"decode_error"} if snapshot["errors"] else set(),
                "errors": list(snapshot["errors"] or ()),
            }
            known = set(names_by_guid.get(entry["sender_queue_manager"], ()))
            _compare_with_sender(
                row, senders, known or senders.reporting_managers(row) - identified, max_gap, certain=len(known) == 1
            )
            row["confidence"] = "partial" if row["missing"] else "complete"
            row["missing"] = sorted(row["missing"])
            out.append(row)
    return out


def _compare_with_sender(
    row: RowDict, senders: SenderReports, managers: Iterable[str], max_gap: int, *, certain: bool
) -> None:
    """Compare a receiver's record with its sender's reports; if the sender is not ``certain``, the sequence decides."""
    candidates = [found for manager in sorted(managers) if (found := senders.nearest_reports(manager, row, max_gap))]
    if not certain:
        stamp = sequence_timestamp(row["sequence_id"])
        same = [c for c in candidates if any(each and sequence_timestamp(each["sequence_id"]) == stamp for each in c)]
        candidates = same if len(same) == 1 else []
    if not candidates:
        row["missing"].add("no_snapshot")
        return
    for report in candidates[0]:
        if report is not None and report["snapshot_id"] not in row["evidence"]:
            row["evidence"].append(report["snapshot_id"])
    row["disagrees_with_sender"] = describe_disagreement(row["sequence_id"], row["last_number"], *candidates[0])


def describe_disagreement(
    sequence_id: int, last_number: int, earlier: Mapping[str, Any] | None, later: Mapping[str, Any] | None
) -> str | None:
    """Return why a receiver will reject all messages of its sender, None if it will not.

    ``sequence_id`` and ``last_number`` are the receiver's; ``earlier`` and ``later`` the sender's reports before and
    after. Both ends proceed between two observations: what was acknowledged to the sender before the receiver's
    observation, the receiver must have; what the sender assigns after it must be above what the receiver has.
    """
    if later is not None:
        if later["sequence_id"] < sequence_id:
            return (
                f"sequence_behind: the sender is at sequence {later['sequence_id']}, the receiver has had {sequence_id}"
            )
        if (
            later["sequence_id"] == sequence_id
            and later["next_number"] is not None
            and later["next_number"] <= last_number
        ):
            return f"number_behind: the sender goes on with {later['next_number']}, the receiver has had {last_number}"
    if earlier is None or earlier["first_unacked_previous_number"] is None:
        return None
    first, before = earlier["first_unacked_number"], earlier["first_unacked_previous_number"]
    if earlier["sequence_id"] == sequence_id and before > last_number:
        return f"gap: the sender's oldest message {first} follows {before}, the receiver has had {last_number} only"
    if earlier["sequence_id"] > sequence_id and before > 0:
        return (
            f"sequence_unknown: the sender's oldest message {first} of sequence {earlier['sequence_id']} follows "
            f"{before}, the receiver has had {last_number} of {sequence_id}"
        )
    return None
