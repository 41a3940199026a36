"""Rows of one call that several captures saw -> the one row that it has (tables.md, rpc_calls).

The row is the sighting with the most whole halves, then the most whose end was seen, then the earliest. What a row was
made of stands in its ``sightings``, so that rows which come later find the same as if all had come at once: those that
a capture finished alone (``settled``) stay, the others are made anew whenever their connection is joined. Of settled
calls both halves are whole, so their stubs are the same; where and when they were seen is kept of each.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

from udfs.keys import key

Row = dict[str, Any]
CHAIN: Final = dt.timedelta(seconds=60)
_FOUR_TUPLE: Final = ("client_address", "client_port", "server_address", "server_port")
_TIMES: Final = ("request_at", "request_done_at", "response_at", "response_done_at")
_PLACES: Final = ("capture_id", "request_packet", "response_capture_id", "response_packet", "byte_offset")
# What opening gives a call, together: what was opened once stays open, whatever other captures saw of it closed.
_OPENED: Final = (
    "request_stub",
    "response_stub",
    "request_pieces",
    "response_pieces",
    "opened_by",
    "closed_reason",
    "verified_by",
    "outcome",
)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_AROUND: Final = 24  # octets of a fragment's header at least
_NO_TIME: Final = 1 << 62
HALVES: Final = ("request", "response")


def merged(rows: list[Row], fresh: list[Row]) -> list[Row]:
    """Return one row for each call of connections that several captures saw at the same time.

    ``rows`` are all their rows without those that joining replaces, ``fresh`` those of joining. What joining made
    of a call before does not count any more.
    """
    settled = [_noted(row, settled=True) for row in map(restored, rows) if row is not None]
    return [_one(group) for group in _groups(settled + [_noted(row, settled=False) for row in fresh])]


def restored(row: Row) -> Row | None:
    """Return a row as only captures that finished the call alone make it; None if there are none."""
    if not row["sightings"]:
        return row
    settled = [seen for seen in row["sightings"] if seen["settled"]]
    return _one([{**row, "sightings": settled}]) if settled else None


def left_by(row: Row, captures: Collection[str]) -> Row | None:
    """Return a row as it is when captures are taken out that saw the call; None if no other finished it alone."""
    places = ("capture_id", "response_capture_id")
    rest = [seen for seen in row["sightings"] if not any(seen[place] in captures for place in places)]
    return restored({**row, "sightings": rest}) if rest else None


def as_sighting(row: Row, *, settled: bool) -> Row:
    """Return a row as a sighting."""
    whole = row["request_stub"] is not None, row["response_stub"] is not None or row["fault_status"] is not None
    return {
        **{name: row[name] for name in _PLACES},
        **{name: _us(row[name]) for name in _TIMES},
        "request": 0 if not row["request_fragments"] else 2 if whole[0] else 1,
        "response": 0 if not row["response_fragments"] else 2 if whole[1] else 1,
        "settled": settled,
    }


def _noted(row: Row, *, settled: bool) -> Row:
    return row if row["sightings"] else {**row, "sightings": [as_sighting(row, settled=settled)]}


def _us(time: dt.datetime | None) -> int | None:
    return None if time is None else (time - _EPOCH) // dt.timedelta(microseconds=1)


def _time(us: int | None) -> dt.datetime | None:
    return None if us is None else _EPOCH + dt.timedelta(microseconds=us)


def _rank(seen: Row) -> tuple[int, int, int, str, int]:
    """Smallest is the row's: the most whole halves, then the most whose end was seen, then the earliest."""
    whole = sum(seen[half] == 2 for half in HALVES)
    ended = sum(seen[f"{half}_done_at"] is not None for half in HALVES)
    half = "request" if seen["request"] else "response"
    at = seen[f"{half}_at"]
    return -whole, -ended, _NO_TIME if at is None else at, seen["capture_id"], seen[f"{half}_packet"] or 0


def _groups(rows: list[Row]) -> list[list[Row]]:
    """Rows with the same first byte of a half, each within 60 s of the next."""
    parent = list(range(len(rows)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for half in HALVES:
        by_byte: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for index, row in enumerate(rows):
            if row[f"{half}_sequence"] is not None:
                name = (*(row[column] for column in _FOUR_TUPLE), row["call_id"], row[f"{half}_sequence"])
                by_byte[name] += [(seen[f"{half}_at"] or 0, index) for seen in row["sightings"] if seen[half]]
        for members in by_byte.values():
            for (at, index), (later, other) in pairwise(sorted(members)):
                if later - at <= CHAIN // dt.timedelta(microseconds=1):
                    parent[root(other)] = root(index)
        for index, other in _inside(rows, half):
            parent[root(other)] = root(index)
    found: dict[int, list[Row]] = defaultdict(list)
    for index, row in enumerate(rows):
        found[root(index)].append(row)
    return list(found.values())


def _inside(rows: list[Row], half: str) -> Iterator[tuple[int, int]]:
    """Yield pairs of rows: one that has a half whole, and one of whose half a capture lost the first fragments."""
    whole: dict[Any, list[int]] = defaultdict(list)
    some: dict[Any, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row[f"{half}_sequence"] is not None:
            best = max(seen[half] for seen in row["sightings"])
            name = (*(row[column] for column in _FOUR_TUPLE), row["call_id"])
            (whole if best == 2 else some)[name].append(index)
    for name, indexes in some.items():
        for other in indexes:
            for index in whole.get(name, ()):
                ahead = (rows[other][f"{half}_sequence"] - rows[index][f"{half}_sequence"]) & 0xFFFFFFFF
                if 0 < ahead < _span(rows[index], half):
                    yield index, other


def _span(row: Row, half: str) -> int:
    """Return the bytes of the stream from a whole half's first to its last; lakes of before 2026-12 do not say it."""
    said = row[f"{half}_span"]
    return int(len(row[f"{half}_stub"] or b"") + _AROUND * row[f"{half}_fragments"] if said is None else said)


def _one(rows: list[Row]) -> Row:
    seen = _each_once(one for row in rows for one in row["sightings"])
    best = min(rows, key=lambda row: (min(map(_rank, row["sightings"])), row["call_key"]))
    base = seen[0]
    opened = next((row for row in rows if _by_key(row) and _as_whole(row) == _as_whole(best)), best)
    row = {
        **best,
        **{name: opened[name] for name in _OPENED},
        **{name: base[name] for name in _PLACES},
        **{name: _time(base[name]) for name in _TIMES},
        "bind_seen": any(one["bind_seen"] for one in rows),
        "observations": max(
            len({one[place] for one in seen if one[half]})
            for half, place in (("request", "capture_id"), ("response", "response_capture_id"))
        ),
        "sightings": seen if len(seen) > 1 or not base["settled"] else None,
    }
    for name in ("cancelled_at", "orphaned_at"):
        row[name] = min((one[name] for one in rows if one[name] is not None), default=None)
    half = "request" if base["request"] else "response"
    row["call_key"] = key(
        *(row[name] for name in _FOUR_TUPLE), row["call_id"], row[f"{half}_sequence"], base[f"{half}_at"]
    )
    times = (row["request_at"], row["response_at"])
    row["event_date"] = next((time.date() for time in times if time is not None), None)
    return row


def _by_key(row: Row) -> bool:
    """Tell whether a key opened or verified a row."""
    return row["opened_by"] is not None or row["verified_by"] is not None


def _as_whole(row: Row) -> tuple[bool, ...]:
    """Tell which stubs a row has: what was opened stands for a row only if it has the same."""
    return tuple(row[f"{half}_stub"] is not None for half in HALVES)


def _each_once(sightings: Iterable[Row]) -> list[Row]:
    """Sightings in the order of their rank."""
    found = {tuple(sorted((name, str(value)) for name, value in seen.items())): seen for seen in sightings}
    return [found[name] for name in sorted(found, key=lambda name: (_rank(found[name]), name))]
