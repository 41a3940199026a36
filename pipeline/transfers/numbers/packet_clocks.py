"""Times of packets as one clock would have shown them, for their order: corrected where clocks are known to differ.

A capture whose clock was set back shows times again. Where another capture shows that a clock was set, time between two
packets of a connection that lie around the place counts only as far as it passed by either clock. Captures that have
one direction of a connection each have two clocks: the four packets of the handshake, each sent after the one before
it, show by how much they differ. Where a capture lacks packets of a connection that another one has, its packets have
times of both: those that both have show by how much their clocks differ. The times in tables stay those of the captured
packets. No Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa

from udfs.array_types import Bools, Ints
from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.capture.clocks.tap_offsets import TapOffsets
from udfs.columns.absent import NO_TIME
from udfs.columns.codes import codes_and_values
from udfs.rows import RowDict
from udfs.times import datetime_to_us

_HANDSHAKE: Final = ("establish_connection", "connection_parameters")


def ordered_times(table: pa.Table, side: Ints, sent_at: Ints, steps: ClockSteps = NO_STEPS) -> Ints:
    """Return the times of packets in microseconds, on one clock for each connection; ``NO_TIME`` stays.

    ``table`` is sorted by ``side`` (2 k is the client's of connection k, 2 k + 1 the server's) and stream offset. It
    has capture_id, packet_number and kind; and sightings, if several captures may have the same packets.
    """
    if not len(side):
        return sent_at
    number, captures = codes_and_values(table["capture_id"])
    found = _as_if_not_set(table, sent_at, steps)
    if "sightings" in table.column_names:
        found = _taps_on_one_clock(table, side, number, captures, found, steps)
    found = _directions_on_one_clock(table["kind"], side, number, found)
    for place, name in enumerate(captures):
        for since, until, by_us in steps.perhaps_set(name):
            found = _without_step(found, sent_at, side, number == place, (since, until), by_us)
    return found


def _as_if_not_set(table: pa.Table, sent_at: Ints, steps: ClockSteps) -> Ints:
    """Return times as if no clock had been set that its own capture shows."""
    if not steps:
        return sent_at
    places = zip(table["capture_id"].to_pylist(), table["packet_number"].to_pylist(), strict=True)
    lacks = np.array([steps.before(*place).us for place in places], np.int64)
    return np.where(sent_at == NO_TIME, NO_TIME, sent_at + lacks)


def _taps_on_one_clock(
    table: pa.Table, side: Ints, captures: Ints, names: Sequence[str], sent_at: Ints, steps: ClockSteps
) -> Ints:
    """Return times; in a connection whose packets several captures show, by the clock of the one that shows most.

    ``captures`` are codes of ``names``.
    """
    if (captures == captures[0]).all():
        return sent_at
    connections = np.unique(np.stack([side // 2, captures]), axis=1)[0]
    out = sent_at.copy()
    for connection in np.flatnonzero(np.bincount(connections) > 1).tolist():
        rows = slice(*np.searchsorted(side, [2 * connection, 2 * connection + 2]))
        of_capture = captures[rows]
        shown = np.bincount(of_capture[of_capture >= 0])
        seen = table["sightings"].slice(rows.start, rows.stop - rows.start).to_pylist()
        packets = (
            (number % 2, {each["capture_id"]: _at(each, steps) for each in places if each["sent_at"] is not None})
            for number, places in zip(side[rows].tolist(), seen, strict=True)
            if places
        )
        codes = np.flatnonzero(shown).tolist()
        most = max(codes, key=lambda code: (shown[code], names[code]))
        offsets = TapOffsets(packets, names[most])
        for code in codes:
            ours = rows.start + np.flatnonzero((of_capture == code) & (sent_at[rows] != NO_TIME))
            out[ours] -= offsets.ahead(names[code], sent_at[ours])
    return out


def _at(place: RowDict, steps: ClockSteps) -> int:
    """Return the time of a packet in a capture as if its clock had not been set, as the capture shows itself; us."""
    sent_at: datetime | None = place["sent_at"]
    at = NO_TIME if sent_at is None else datetime_to_us(sent_at)
    return at + steps.before(place["capture_id"], place["packet_number"]).us


def _without_step(
    found: Ints, shown_at: Ints, side: Ints, of_capture: Bools, span: tuple[int, int], by_us: int
) -> Ints:
    """Return times without what the clock of a capture may have left out within a span, up to ``by_us``.

    Packets of a connection stay in their order. ``shown_at`` are the times in the capture.
    """
    since, until = span
    out = found.copy()
    for connection in np.unique(side[of_capture] // 2).tolist():
        rows = slice(*np.searchsorted(side, [2 * connection, 2 * connection + 2]))
        in_time = rows.start + np.argsort(found[rows], kind="stable")
        in_time = in_time[found[in_time] != NO_TIME]
        before, behind = in_time[:-1], in_time[1:]
        across = (of_capture[before] | of_capture[behind]) & (shown_at[before] <= until) & (shown_at[behind] >= since)
        left_out = np.where(across, np.minimum(found[behind] - found[before], by_us), 0)
        out[before] += np.cumsum(left_out[::-1])[::-1]
    return out


def _directions_on_one_clock(kinds: pa.ChunkedArray, side: Ints, captures: Ints, sent_at: Ints) -> Ints:
    """Return times of connections of which captures have one direction each as one clock would have shown them."""
    if (captures == captures[0]).all():
        return sent_at
    bounds = np.searchsorted(side, np.arange(0, int(side[-1]) + 3))
    for client in range(0, int(side[-1]) + 1, 2):
        ours, theirs = slice(bounds[client], bounds[client + 1]), slice(bounds[client + 1], bounds[client + 2])
        if ours.start == ours.stop or theirs.start == theirs.stop:
            continue
        if np.isin(captures[ours], captures[theirs]).any():
            continue
        firsts = [_handshake(kinds, sent_at, rows) for rows in (ours, theirs)]
        ahead = _ahead(*firsts)
        if ahead:
            shown = sent_at[theirs]
            sent_at = sent_at.copy()
            sent_at[theirs] = np.where(shown == NO_TIME, NO_TIME, shown - ahead)
    return sent_at


def _handshake(kinds: pa.ChunkedArray, sent_at: Ints, rows: slice) -> Mapping[str, int]:
    """Return when a side sent its two packets of the handshake, which are its first ones."""
    first = range(rows.start, min(rows.start + len(_HANDSHAKE), rows.stop))
    found = {kinds[row].as_py(): int(sent_at[row]) for row in first}
    return {kind: at for kind, at in found.items() if kind in _HANDSHAKE and at != NO_TIME}


def _ahead(client: Mapping[str, int], server: Mapping[str, int]) -> int:
    """Return by how much the clock of the server's captures is ahead of that of the client's, at least; us.

    An answer comes after its request, and the second request after the first answer. 0 where the times agree with that.
    """
    most = min((server[kind] - client[kind] for kind in _HANDSHAKE if kind in client and kind in server), default=0)
    establish, parameters = _HANDSHAKE
    known = establish in server and parameters in client
    least = server[establish] - client[parameters] if known else min(most, 0)
    return 0 if least <= 0 <= most else (least + most) // 2
