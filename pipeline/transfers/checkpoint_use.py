"""Which checkpoints of sessions hold: nothing up to them changed, and nothing that is new changes what was said."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.arrow_rows import is_in, table_to_rows
from pipeline.lake.incremental import IncrementalUpdate, commits_with_provenance
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import POST_IMAGES
from pipeline.silver.update import STUBS_EMPTIED_PROVENANCE
from pipeline.transfers.checkpoints import Checkpoint, read_checkpoints
from pipeline.transfers.connection_packets import CLIENT, HANDSHAKE_KINDS, SERVER, SIDES, ConnectionPackets
from pipeline.transfers.side_losses import gaps_are_holes
from schemas.sessions import SESSION_PACKETS
from schemas.table import Table
from udfs.columns.absent import NO_TIME

_CHANGED_PACKETS: Final = f"""
SELECT connection_id, packet_key, bool_or(_change_type IN ({", ".join(map(repr, POST_IMAGES))})) AS present,
  min(sent_by) AS sent_by, min(stream_offset) AS stream_offset, min(unix_micros(sent_at)) AS sent_at_us
FROM {{feed}} WHERE {{emptied}} GROUP BY connection_id, packet_key"""
_NO_CHANGES: Final = pa.schema({
    "connection_id": pa.string(), "packet_key": pa.string(), "present": pa.bool_(), "sent_by": pa.string(),
    "stream_offset": pa.int64(), "sent_at_us": pa.int64(),
}).empty_table()  # fmt: skip
_SAID_OF_ALL: Final = ("initiator_queue_manager", "acceptor_queue_manager")
"""Columns of silver.sessions that stand in all rows of silver.order_acks or silver.sendings."""


@dataclass(frozen=True, slots=True)
class ChangedPackets:
    """Where changed packets of each connection are, by connection_id: their earliest time, and each side's first byte.

    ``NO_TIME`` where one has no time. Packets that are gone count, and how packets were before.
    """

    earliest: Mapping[str, int]
    offsets: Mapping[tuple[str, str], int]

    @staticmethod
    def of(packets: pa.Table) -> ChangedPackets:
        """``packets`` has connection_id, sent_by, stream_offset and sent_at_us of each changed packet."""
        if not packets.num_rows:
            return ChangedPackets({}, {})
        filled = packets["sent_at_us"].fill_null(NO_TIME)
        at = packets.set_column(packets.column_names.index("sent_at_us"), "sent_at_us", filled)
        times = at.group_by("connection_id").aggregate([("sent_at_us", "min")]).to_pylist()
        offsets = at.group_by(["connection_id", "sent_by"]).aggregate([("stream_offset", "min")]).to_pylist()
        return ChangedPackets(
            {row["connection_id"]: row["sent_at_us_min"] for row in times},
            {(row["connection_id"], row["sent_by"]): row["stream_offset_min"] for row in offsets},
        )

    def lie_behind(self, checkpoint: Checkpoint) -> bool:
        """Whether all changed packets of its connection lie behind what a checkpoint rests on."""
        name = checkpoint.connection_id
        later = self.earliest.get(name, checkpoint.settled_until + 1) > checkpoint.settled_until
        return later and all(
            self.offsets.get((name, SIDES[side]), before.settled_offset) >= before.settled_offset
            for side, before in enumerate(checkpoint.sides)
        )


def changed_packets(step: IncrementalUpdate) -> pa.Table | None:
    """Return the packets that changed since a step's last commit, for ``ChangedPackets``; None where they are unknown.

    Columns: connection_id, packet_key, present (it is there now), sent_by, stream_offset, sent_at_us. Packets that only
    lost their bytes (``store.stubs``) are no change.
    """
    if step.feeds.is_unchanged(SESSION_PACKETS):
        return _NO_CHANGES
    since = step.provenance_before.get(str(SESSION_PACKETS))
    skipped = commits_with_provenance(step.lake, SESSION_PACKETS, since, STUBS_EMPTIED_PROVENANCE)
    emptied = f"_commit_version NOT IN ({', '.join(map(str, skipped))})" if skipped else "TRUE"
    return step.feeds.table(SESSION_PACKETS, _CHANGED_PACKETS.replace("{emptied}", emptied))


def usable_checkpoints(lake: Lake, table: Table, names: pa.Array, packets: pa.Table) -> dict[str, Checkpoint]:
    """Return the checkpoints of some connections in a table that no changed packet concerns (``changed_packets``)."""
    found = read_checkpoints(lake, table, names)
    changes = ChangedPackets.of(packets.filter(is_in(packets, "connection_id", found.keys())))
    return {name: each for name, each in found.items() if changes.lie_behind(each)}


def outdated_checkpoints(
    found: ConnectionPackets, stored: Collection[str], connections: pa.Table, sessions: pa.Table, before: pa.Table,
    packets: Mapping[str, int],
) -> set[str]:  # fmt: skip
    """Return the connections whose checkpoints do not hold, now that what is behind them was read.

    ``stored``: those with a checkpoint of the table; what this run made holds. ``connections``: rows with
    ``LOSS_COLUMNS`` and closed_at; ``sessions``: rows of silver.sessions as they come out, ``before``: as they are;
    ``packets``: how many each connection has in all.
    """
    rows, now, then = (
        {row["connection_id"]: row for row in table_to_rows(each)} for each in (connections, sessions, before)
    )
    return {
        name
        for name in stored
        if name not in rows
        or name not in then
        or not still_holds(found, found.connection_ids.index(name), rows[name], packets.get(name, 0))
        or _differ(now[name], then[name])
    }


def _differ(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether a session says something else of all its packets than before."""
    return any(now[name] != then[name] for name in _SAID_OF_ALL) or (
        (now["overlapping_captures"] is None) != (then["overlapping_captures"] is None)
    )


def still_holds(found: ConnectionPackets, place: int, connection: Mapping[str, Any], packets: int) -> bool:
    """Whether a connection's packets up to its checkpoint are as they were, and count as they did.

    ``connection`` is its row of bronze.connections; ``packets``: how many packets it has in all.
    """
    checkpoint = found.checkpoint(place)
    if checkpoint is None:
        return True
    rows = [found.rows_of(place, side) for side in (CLIENT, SERVER)]
    span = slice(rows[CLIENT].first, rows[SERVER].end)
    kept, later = found.kept[span], found.later_of(place)
    if int(kept.sum()) != len(checkpoint.kept_packets):
        return False
    read = int((~kept).sum()) + sum(side.packets for side in checkpoint.sides)
    if read + (later.packets if later else 0) != packets:
        return False
    closed = connection["closed_at"]
    if closed is not None and closed <= checkpoint.settled_until:
        return False
    if np.any(found.is_kind_in(span, *HANDSHAKE_KINDS) & ~kept) or (later and later.has_handshakes):
        return False  # what they say, they say of all packets
    has_gaps = any(side.bytes_between for side in checkpoint.sides)
    return not has_gaps or gaps_are_holes(found, place, connection) == checkpoint.gaps_are_holes
