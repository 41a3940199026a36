"""Rounds in which a run reads connections with very many packets: no task has more than some of them at a time.

What no checkpoint has counted of a connection is cut into portions of about ``ROUND_PACKETS`` packets each, in the
order of time. A round reads the first of them, and makes a checkpoint; the next round reads what lies behind that, and
one portion more. A round that finds no place for a checkpoint is followed by one that reads twice as many more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.arrow_rows import table_to_rows
from pipeline.lake.lake import Lake
from pipeline.transfers.checkpoints import NOTHING_LATER, Checkpoint, LaterOfSide, LaterPackets
from pipeline.transfers.connection_packets import COUNTED_KINDS, HANDSHAKE_KINDS, SIDES
from pipeline.transfers.connection_parts import ConnectionsToRead, unread_rows
from pipeline.transfers.side_by_side import overlapping_captures
from schemas.bronze import CONNECTIONS
from schemas.sessions import SESSION_PACKETS
from udfs.capture.clock_steps import ClockSteps
from udfs.columns.absent import AFTER_ALL
from udfs.messages.header_layouts import BASE_HEADER

ROUND_PACKETS: Final = 200_000
_WITH_MANY_BYTES: Final = """
SELECT connection_id, unix_micros(closed_at) AS closed_at FROM {rows}
WHERE connection_id IN {names} AND coalesce(client_bytes, 0) + coalesce(server_bytes, 0) > {least}"""
_WITH_MANY_PACKETS: Final = """
SELECT connection_id FROM {answer} AS unread GROUP BY connection_id HAVING count(*) > {most}"""
_COUNTED_COLUMNS: Final = """
SELECT connection_id, sent_at, sent_by, capture_id, kind, stream_offset, length_bytes, seen_bytes, sightings
FROM {rows} WHERE {chosen}"""
_PORTIONS: Final = f"""
SELECT connection_id, portion, sent_by, capture_id, count(*) AS packets, count(sent_at) AS with_time,
  count(sightings) AS in_several_captures, min(sent_at) AS first_at, max(sent_at) AS last_at,
  sum(CASE WHEN kind IN {COUNTED_KINDS} THEN 1 ELSE 0 END) AS counted,
  sum(CASE WHEN kind IN {HANDSHAKE_KINDS} THEN 1 ELSE 0 END) AS handshakes,
  sum(seen_bytes) AS seen_bytes, sum(length_bytes - seen_bytes) AS bytes_cut, min(stream_offset) AS first_offset,
  max(stream_offset + length_bytes) AS end_offset, max_by(length_bytes - seen_bytes, stream_offset) AS last_cut
FROM (
  SELECT *, floor((rank() OVER (PARTITION BY connection_id ORDER BY sent_at) - 1) / {{most}}) AS portion
  FROM {{answer}} AS unread
) AS ranked GROUP BY connection_id, portion, sent_by, capture_id"""


@dataclass(frozen=True, slots=True)
class ConnectionRounds:
    """How far a round reads a connection: to the end, or up to one of ``ends``.

    ``ends``: what lies behind the first portion, behind the first two, and so on. ``place``: of the end in ``ends``;
    ``step``: how many portions this round reads more than the one before.
    """

    ends: Sequence[LaterPackets]
    place: int = 0
    step: int = 1

    @property
    def later(self) -> LaterPackets | None:
        """What a round leaves unread; None where it reads to the end."""
        return self.ends[self.place] if self.place < len(self.ends) else None

    def next_round(self, *, has_new_checkpoint: bool) -> ConnectionRounds:
        """Return how far the next round reads."""
        step = 1 if has_new_checkpoint else 2 * self.step
        return replace(self, place=self.place + step, step=step)


def plan_rounds(
    lake: Lake, names: pa.Array, checkpoints: Mapping[str, Checkpoint], steps: ClockSteps
) -> dict[str, ConnectionRounds]:
    """Return the connections that are read in rounds, of some: those with many packets behind their checkpoint.

    Not those whose times are of several clocks: of packets without a time, in captures whose clocks were set
    (``steps``), and of captures that saw the connection side by side. They have no checkpoint.
    """
    sql = _WITH_MANY_BYTES.replace("{least}", str(ROUND_PACKETS * BASE_HEADER.itemsize))
    found = table_to_rows(lake.query(sql, rows=CONNECTIONS, names=names)) if len(names) else []
    closed = {row["connection_id"]: row["closed_at"] for row in found}
    if not closed:
        return {}
    many = _ask(lake, _WITH_MANY_PACKETS, closed, checkpoints)
    if not many:
        return {}
    groups = defaultdict[str, list[dict[str, Any]]](list)
    for row in _ask(lake, _PORTIONS, [row["connection_id"] for row in many], checkpoints):
        groups[row["connection_id"]].append(row)
    set_clocks = {*steps.places()}
    return {
        name: ConnectionRounds(_ends(rows, AFTER_ALL if closed[name] is None else closed[name]))
        for name, rows in groups.items()
        if _has_one_clock(rows, checkpoints.get(name), set_clocks)
    }


def _ask(lake: Lake, sql: str, names: Collection[str], checkpoints: Mapping[str, Checkpoint]) -> list[dict[str, Any]]:
    stored = {name: checkpoints[name] for name in names if name in checkpoints}
    read = ConnectionsToRead(pa.array(sorted(names), pa.string()), stored)
    query = unread_rows(_COUNTED_COLUMNS, SESSION_PACKETS, read, "sent_at")
    query = query.wrap(sql.replace("{most}", str(ROUND_PACKETS)))
    return table_to_rows(lake.query(query.sql, **query.inputs))


def _has_one_clock(rows: Sequence[Mapping[str, Any]], checkpoint: Checkpoint | None, set_clocks: set[str]) -> bool:
    """Whether all times of a connection's packets are of one clock; ``rows`` as ``_PORTIONS`` returns them."""
    if any(row["with_time"] < row["packets"] or row["in_several_captures"] for row in rows):
        return False
    captures = [row["capture_id"] for row in rows]
    if not set_clocks.isdisjoint(captures):
        return False
    times = np.array([row[name] for name in ("first_at", "last_at") for row in rows], np.int64)
    before = () if checkpoint is None else checkpoint.captures
    return not overlapping_captures(pa.array(2 * captures, pa.string()), times, before)


def _ends(rows: Iterable[Mapping[str, Any]], closed_at: int) -> list[LaterPackets]:
    """Return what lies behind each portion of a connection but the last one; ``rows`` as ``_PORTIONS`` returns them."""
    portions = defaultdict[int, list[Mapping[str, Any]]](list)
    for row in rows:
        portions[int(row["portion"])].append(row)
    later, ends = [NOTHING_LATER, NOTHING_LATER], list[LaterPackets]()
    for number in sorted(portions, reverse=True):
        ends.append(LaterPackets(max(row["last_at"] for row in portions[number]), closed_at, (later[0], later[1])))
        for row in portions[number]:
            side = SIDES.index(row["sent_by"])
            of_row = LaterOfSide(*(int(row[each.name]) for each in fields(LaterOfSide)))
            later[side] = later[side].with_others(of_row)
    return ends[:0:-1]
