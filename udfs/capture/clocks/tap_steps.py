"""Where clocks were set, as two captures of the same packets show: the column ``tap_steps`` of their ledger rows.

The difference of two captures' clocks changes slowly, except where one of them was set. It is looked at in the first
bytes of requests and responses and in packets of the binary protocol that both have: in each connection, and in all
connections together where those that cross the place agree. (A file may be made of captures of several machines, whose
clocks differ.) A place counts for all of both captures, since it is not known which clock was set.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, islice, pairwise
from statistics import median_low
from typing import Final, NamedTuple

import pyarrow as pa

from udfs.capture.clock_steps import NO_STEPS, ClockSteps, TapStep
from udfs.capture.record_order import MAX_STEPS
from udfs.capture.tap_clocks import LEAST_JUMP_US, NEAREST, SeenTwice, between_jumps
from udfs.columns.tuples import iter_tuples, tuples_to_table
from udfs.rows import RowDict
from udfs.rpc.call_schema import HALVES
from udfs.times import datetime_to_us

_PAIR: Final = (0, 1)
_MOST_TOGETHER: Final = 100  # places that all connections together show; clocks are set rarely
_CAPTURE_OF_HALF: Final = dict(zip(HALVES, ("capture_id", "response_capture_id"), strict=True))


class _Seen(NamedTuple):
    """A packet in a capture: number and time (us); number of the clock, and the time as if it had not been set."""

    packet: int
    at: int
    clock: int
    corrected: int


_Common = Sequence[tuple[_Seen, _Seen]]
"""Packets of one connection or of all, as each of two captures has them."""
COMMON_PACKETS_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("capture_id", "other_capture_id", "connection_id")),
        *((f"{of}{name}", pa.int64()) for of in ("", "other_") for name in _Seen._fields),
    ]
)
"""Packets that a pair of captures has in common: the columns of a ``_Seen`` for each of both."""


class _Jump(NamedTuple):
    """A place where the difference of two clocks jumped, ``by_us``: as each of both captures has it.

    ``around``: in each the last packet before and the first one behind, by number.
    """

    around: tuple[tuple[_Seen, _Seen], tuple[_Seen, _Seen]]
    by_us: int

    @property
    def width(self) -> int:
        """How long it took, by the clock that went on less."""
        return min(first.corrected - last.corrected for last, first in self.around)

    def overlaps(self, other: _Jump) -> bool:
        """Whether the clock may have been set at one place between the packets of both."""
        return any(
            last.packet < other_first.packet and other_last.packet < first.packet
            for (last, first), (other_last, other_first) in zip(self.around, other.around, strict=True)
        )


def _of_each_connection() -> defaultdict[str, list[tuple[_Seen, _Seen]]]:
    return defaultdict(list)


@dataclass(slots=True)
class CommonPackets:
    """The packets that pairs of captures have in common, by connection (``seen``).

    ``steps_alone``: where captures show themselves that their clocks were set.
    """

    steps_alone: ClockSteps = NO_STEPS
    seen: defaultdict[tuple[str, str], defaultdict[str, list[tuple[_Seen, _Seen]]]] = field(
        default_factory=lambda: defaultdict(_of_each_connection)
    )

    def add_calls(self, rows: Iterable[RowDict]) -> None:
        """Add merged calls, with what each tap shows of them (``sightings``)."""
        for row in rows:
            for half, capture in _CAPTURE_OF_HALF.items():
                seen = [each for each in row["sightings"] or () if each[half]]
                places = ((each[capture], each[f"{half}_packet"], each[f"{half}_at"]) for each in seen)
                self._add(row["connection_id"], places)

    def add_packets(self, rows: Iterable[RowDict]) -> None:
        """Add packets of the binary protocol, with their places in captures that have them whole (``sightings``)."""
        for row in rows:
            seen = row["sightings"] or ()
            places = ((each["capture_id"], each["packet_number"], datetime_to_us(each["sent_at"])) for each in seen)
            self._add(row["connection_id"], places)

    def _add(self, connection_id: str, places: Iterable[tuple[str | None, int | None, int | None]]) -> None:
        found: dict[str, _Seen] = {}
        for name, packet, at in places:
            if name is None or packet is None or at is None or self.steps_alone.is_out_of_order(name):
                continue
            clock = self.steps_alone.shown_alone(name, packet)
            seen = _Seen(packet, at, clock.clock, at + clock.us)
            found[name] = min(found.get(name, seen), seen)
        for one, other in combinations(sorted(found), 2):
            self.seen[one, other][connection_id].append((found[one], found[other]))

    def table(self) -> pa.Table:
        """Return the packets as rows (``COMMON_PACKETS_SCHEMA``)."""
        rows = [
            (*pair, name, *one, *other)
            for pair, by_connection in self.seen.items()
            for name, common in by_connection.items()
            for one, other in common
        ]
        return tuples_to_table(rows, COMMON_PACKETS_SCHEMA)

    @staticmethod
    def from_table(rows: pa.Table) -> CommonPackets:
        """Return what ``table`` made rows of, of several such tables together."""
        found = CommonPackets()
        for one, other, name, *seen in iter_tuples(rows, COMMON_PACKETS_SCHEMA.names):
            half = len(seen) // 2
            found.seen[one, other][name].append((_Seen(*seen[:half]), _Seen(*seen[half:])))
        return found

    def steps(self) -> dict[str, list[TapStep]]:
        """Return the places by capture, at most 1,000 for each other capture that shows them."""
        found: defaultdict[str, list[TapStep]] = defaultdict(list)
        for pair, by_connection in sorted(self.seen.items()):
            connections = [sorted(common) for _, common in sorted(by_connection.items())]
            together = islice(_jumps([*chain.from_iterable(connections)]), _MOST_TOGETHER)
            confirmed = (jump for jump in together if _is_confirmed(jump, connections))
            jumps = _distinct([*chain.from_iterable(map(_jumps, connections)), *confirmed])
            for place in _PAIR if jumps else ():
                found[pair[place]] += _at_most(_tap_step(jump, place, pair[1 - place]) for jump in jumps)
        return dict(found)


def with_tap_steps(row: RowDict, found: Iterable[TapStep], read: Collection[str]) -> RowDict:
    """Return a row of the ledger with the places that a run found in it; what earlier runs found stays.

    ``read``: captures that the run read from their beginning: nothing that was known of these before.
    """
    steps = [TapStep.from_row(each) for each in row["tap_steps"] or () if row["capture_id"] not in read]
    steps = [each for each in steps if each.other_capture_id not in read]
    new = [each for each in found if not any(each.overlaps(one) for one in steps)]
    return {**row, "tap_steps": [each.row() for each in sorted((*steps, *new))] or None}


def _jumps(common: _Common) -> Iterator[_Jump]:
    """Yield the places, but those at which one of the captures shows itself that its clock was set."""
    seen = {SeenTwice(one.corrected, other.corrected): (one, other) for one, other in common}
    for before, behind in pairwise(between_jumps(seen)):
        near = [[seen[each] for each in part] for part in (before[-NEAREST:], behind[:NEAREST])]
        around = tuple((max(each[place] for each in near[0]), min(each[place] for each in near[1])) for place in _PAIR)
        if all(last.clock == first.clock for last, first in around):
            yield _Jump((around[0], around[1]), _change(*near))


def _change(before: _Common, behind: _Common) -> int:
    """Return by how much further the first clock is ahead of the other one than before, us."""
    usual = (median_low(one.corrected - other.corrected for one, other in part) for part in (behind, before))
    return next(usual) - next(usual)


def _is_confirmed(jump: _Jump, connections: Iterable[_Common]) -> bool:
    """Whether most connections that have packets on both sides of a place show it too. Packets are in order."""
    last, first = jump.around[0]
    agree = 0
    for common in connections:
        before, behind = bisect_right(common, last.packet, key=_number), bisect_left(common, first.packet, key=_number)
        if 0 < before <= behind < len(common):
            change = _change(common[max(before - NEAREST, 0) : before], common[behind : behind + NEAREST])
            agree += 1 if abs(change - jump.by_us) < LEAST_JUMP_US else -1
    return agree > 0


def _number(common: tuple[_Seen, _Seen]) -> int:
    return common[0].packet


def _distinct(jumps: Iterable[_Jump]) -> list[_Jump]:
    """Return the jumps of a pair of captures, without those that narrower ones of other connections explain."""
    found: list[_Jump] = []
    for jump in sorted(jumps, key=lambda jump: (jump.width, jump)):
        known = sum(each.by_us for each in found if each.overlaps(jump))
        if abs(jump.by_us - known) >= LEAST_JUMP_US:
            found.append(jump)
    return sorted(found)


def _tap_step(jump: _Jump, place: int, other_capture_id: str) -> TapStep:
    last, first = sorted(jump.around[place])
    return TapStep(other_capture_id, last.packet, last.at, first.packet, first.at, abs(jump.by_us))


def _at_most(steps: Iterable[TapStep]) -> list[TapStep]:
    """Return places; where there are very many, those behind the first ones together as one."""
    found = list(steps)
    kept = found[:MAX_STEPS]
    for each in found[MAX_STEPS:]:
        kept[-1] = kept[-1].joined(each)
    return kept
