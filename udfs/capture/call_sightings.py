"""Merges the rows of one call that several captures saw into one row of ``rpc_calls`` (tables.md, rpc_calls).

The row is the sighting with the most whole halves, then the most halves whose end was seen, then the earliest. The
column ``sightings`` records what a row was made of, so that the result does not depend on the order of the captures.
Sightings that one capture finished alone (``finished``) stay; the others are computed again whenever their connection
is merged. Both halves of a finished call are whole, so that its stubs are equal in all captures; only places and times
are kept per sighting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.capture.disjoint_sets import DisjointSets
from udfs.capture.overlapping_captures import MAX_AT_ONCE, nearest_before
from udfs.capture.tap_clocks import set_clocks
from udfs.capture.taps import ConnectionTaps
from udfs.columns.absent import AFTER_ALL
from udfs.keys import key
from udfs.rows import RowDict
from udfs.rpc.call_schema import CALL_TIME_COLUMNS, GIVEN_UP_COLUMNS, HALVES, IN_PART, NOT_SEEN, WHOLE, has_whole_half
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from udfs.times import datetime_to_us, us_to_datetime

_FOUR_TUPLE_COLUMNS: Final = ("client_address", "client_port", "server_address", "server_port")
_TIME_COLUMNS: Final = ("request_at", "request_done_at", "response_at", "response_done_at")
_POSITION_COLUMNS: Final = ("capture_id", "request_packet", "response_capture_id", "response_packet", "byte_offset")
# Columns that decryption sets together. A decrypted row keeps them when it is merged with rows that are not decrypted.
_DECRYPTION_COLUMNS: Final = (
    "request_stub",
    "response_stub",
    "request_signed_bytes",
    "response_signed_bytes",
    "opened_by",
    "closed_reason",
    "verified_by",
    "outcome",
)
_MIN_HEADER_BYTES: Final = 24  # bytes, the minimum size of a fragment's header


def merge_sightings(
    rows: list[RowDict],
    fresh: list[RowDict],
    taps: Mapping[str, ConnectionTaps],
    limits: TimeLimits = DEFAULT_TIME_LIMITS,
    steps: ClockSteps = NO_STEPS,
) -> list[RowDict]:
    """Return one row for each call of connections that several captures saw at the same time.

    ``rows``: the existing rows of these connections, except those that the merge replaces. ``fresh``: the rows of the
    merge. ``taps``: by connection_id, what each tap shows of calls that no capture of it finished alone. Sightings that
    an earlier merge added to ``rows`` are ignored. ``steps``: where the clocks of captures were set back.
    """
    restored = (restore_single_capture_row(row, steps) for row in rows)
    finished = [_with_sighting(row) for row in restored if row is not None]
    unfinished = [{**row, "sightings": _seen_by_taps(row, taps) or [to_sighting(row, finished=False)]} for row in fresh]
    merged = [_merge_rows(group, taps) for group in _group_by_call(finished + unfinished, limits.max_clock_skew_us)]
    by_connection: dict[str, list[RowDict]] = defaultdict(list)
    for row in merged:
        by_connection[row["connection_id"]].append(row)
    for name in by_connection.keys() & taps.keys():
        set_clocks(by_connection[name], taps[name].tap_of, steps)
    for row in (row for name in by_connection.keys() - taps.keys() for row in by_connection[name]):
        row["clocks"] = steps.clocks(row)
    return [_without_own_sighting(row) for row in merged]


def restore_single_capture_row(row: RowDict, steps: ClockSteps = NO_STEPS) -> RowDict | None:
    """Reduce a row to sightings of captures that finished the call alone; None if there are none."""
    if row["sightings"]:
        finished = [seen for seen in row["sightings"] if seen["finished"]]
        if not finished:
            return None
        row = _without_own_sighting(_merge_rows([{**row, "sightings": finished}], {}))
    return {**row, "clocks": steps.clocks(row)}


def row_without_captures(row: RowDict, captures: Collection[str], steps: ClockSteps = NO_STEPS) -> RowDict | None:
    """Return a row without the sightings of some captures; None if no other capture finished the call alone."""
    if not row["sightings"]:
        return None if row["capture_id"] in captures else restore_single_capture_row(row, steps)
    places = ("capture_id", "response_capture_id")
    remaining = [seen for seen in row["sightings"] if not any(seen[place] in captures for place in places)]
    return restore_single_capture_row({**row, "sightings": remaining}, steps) if remaining else None


def to_sighting(row: RowDict, *, finished: bool) -> RowDict:
    """Return the sighting (struct of ``rpc_calls.sightings``) of a row.

    ``finished``: one capture alone finished the call.
    """
    return {
        **{name: row[name] for name in _POSITION_COLUMNS},
        **{name: datetime_to_us(row[name]) for name in CALL_TIME_COLUMNS},
        **{
            half: NOT_SEEN if not row[f"{half}_fragments"] else WHOLE if has_whole_half(row, half) else IN_PART
            for half in HALVES
        },
        "finished": finished,
    }


def _with_sighting(row: RowDict) -> RowDict:
    """Return a row that one or several captures finished alone, with its sightings."""
    return row if row["sightings"] else {**row, "sightings": [to_sighting(row, finished=True)]}


def _rank(seen: RowDict) -> tuple[int, int, int, str, int]:
    """Sort key, the best sighting first: most whole halves, then most halves whose end was seen, then the earliest."""
    whole = sum(seen[half] == WHOLE for half in HALVES)
    ended = sum(seen[f"{half}_done_at"] is not None for half in HALVES)
    half = "request" if seen["request"] else "response"
    at = seen[f"{half}_at"]
    return -whole, -ended, AFTER_ALL if at is None else at, seen["capture_id"], seen[f"{half}_packet"] or 0


def _group_by_call(rows: list[RowDict], max_skew_us: int) -> list[list[RowDict]]:
    """Group rows of the same call: the same first byte of a half, each within the largest skew of the next.

    Of one connection, whatever the times: a clock may have been set.
    """
    sets = DisjointSets(len(rows))

    def are_one(one: int, other: int) -> bool:
        return bool(rows[one]["connection_id"] == rows[other]["connection_id"])

    for half in HALVES:
        by_byte: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for index, row in enumerate(rows):
            if row[f"{half}_sequence"] is not None:
                name = (*(row[column] for column in _FOUR_TUPLE_COLUMNS), row["call_id"], row[f"{half}_sequence"])
                by_byte[name] += [(seen[f"{half}_at"] or 0, index) for seen in row["sightings"] if seen[half]]
        for members in by_byte.values():
            ordered = sorted(members)
            for place, (later, other) in enumerate(ordered):
                before = (ordered[earlier] for earlier in range(place - 1, max(place - 1 - MAX_AT_ONCE, -1), -1))
                near = (index for at, index in before if later - at <= max_skew_us or are_one(index, other))
                same = next((index for index in near if not _have_other_bytes(rows[index], rows[other])), None)
                if same is not None:
                    sets.join(other, same)
        for index, other in _pairs_with_lost_start(rows, half):
            sets.join(other, index)
    return [[rows[index] for index in group] for group in sets.groups()]


def _have_other_bytes(one: RowDict, two: RowDict) -> bool:
    """Whether a half that two rows have whole is not the same; of emptied and decrypted stubs the size tells."""
    for half in HALVES:
        stub, other = one[f"{half}_stub"], two[f"{half}_stub"]
        if stub is None or other is None:
            continue
        if one[f"{half}_span"] != two[f"{half}_span"]:
            return True
        if stub and other and not one["sealed"] and stub != other:
            return True
    return False


def _pairs_with_lost_start(rows: list[RowDict], half: str) -> Iterator[tuple[int, int]]:
    """Yield pairs of row indexes: one row has a half whole, of the other one a capture lost the first fragments."""
    whole: dict[Any, list[int]] = defaultdict(list)
    some: dict[Any, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if row[f"{half}_sequence"] is not None:
            best = max(seen[half] for seen in row["sightings"])
            name = (*(row[column] for column in _FOUR_TUPLE_COLUMNS), row["call_id"])
            (whole if best == WHOLE else some)[name].append(index)
    for name, indexes in some.items():
        begins = sorted((rows[index][f"{half}_sequence"], index) for index in whole.get(name, ()))
        for other in indexes:
            for ahead, (_, index) in nearest_before(begins, rows[other][f"{half}_sequence"]):
                if 0 < ahead < _stream_span(rows[index], half):
                    yield index, other


def _stream_span(row: RowDict, half: str) -> int:
    """Return the stream bytes of a whole half; estimated for rows from before 2026-12, which have no ``*_span``."""
    span = row[f"{half}_span"]
    return int(len(row[f"{half}_stub"] or b"") + _MIN_HEADER_BYTES * row[f"{half}_fragments"] if span is None else span)


def _merge_rows(rows: list[RowDict], taps: Mapping[str, ConnectionTaps]) -> RowDict:
    """Merge the rows of one call."""
    best = min(rows, key=lambda row: (min(map(_rank, row["sightings"])), row["call_key"]))
    found = [seen for row in rows for seen in row["sightings"]]
    if by_taps := _seen_by_taps(best, taps):
        found = [*by_taps, *(seen for seen in found if seen["finished"])]
    sightings = _distinct_sightings(found)
    places = _compose_places(sightings)
    decrypted = next((row for row in rows if _is_decrypted(row) and _present_stubs(row) == _present_stubs(best)), best)
    row = {
        **best,
        **{name: decrypted[name] for name in _DECRYPTION_COLUMNS},
        **places,
        **{name: us_to_datetime(places[name]) for name in _TIME_COLUMNS},
        "bind_seen": any(one["bind_seen"] for one in rows),
        "observations": max(
            len({one[place] for one in sightings if one[half]})
            for half, place in (("request", "capture_id"), ("response", "response_capture_id"))
        ),
        "sightings": sightings,
        "clocks": None,
    }
    for name in GIVEN_UP_COLUMNS:
        seen_at = next((seen[name] for seen in sightings if seen[name] is not None), None)
        row[name] = us_to_datetime(seen_at)
        if seen_at is None:  # of a tap that saw nothing else of the call
            unfinished = (one for one in rows if not all(seen["finished"] for seen in one["sightings"]))
            row[name] = min((one[name] for one in unfinished if one[name] is not None), default=None)
    half = "request" if any(seen["request"] for seen in sightings) else "response"
    place = *(row[name] for name in _FOUR_TUPLE_COLUMNS), row["tunnel_identifier"]
    call = row["call_id"], row[f"{half}_sequence"], places[f"{half}_at"]
    row["call_key"] = key(*(place[:-1] if place[-1] is None else place), *call)
    times = (row[name] for name in CALL_TIME_COLUMNS)
    row["event_date"] = next((time.date() for time in times if time is not None), None)
    return row


def _without_own_sighting(row: RowDict) -> RowDict:
    """Return a row; without sightings if one capture finished the call, and no other saw it."""
    only_own = len(row["sightings"]) == 1 and row["sightings"][0]["finished"]
    return {**row, "sightings": None} if only_own else row


def _seen_by_taps(row: RowDict, taps: Mapping[str, ConnectionTaps]) -> list[RowDict]:
    """Return the sightings of a call by the taps of its connection."""
    return taps[row["connection_id"]].sightings(row) if row["connection_id"] in taps else []


def _compose_places(sightings: list[RowDict]) -> RowDict:
    """Return places and times of a call: those of the best sighting, and of a half that is not whole there the next's.

    ``sightings`` are sorted, the best first.
    """
    sources = {half: _best_of_half(sightings, half) for half in HALVES}
    first = sources["request"] if sources["request"]["request"] else sources["response"]
    done = {
        half: source[f"{half}_done_at"] if source[half] == WHOLE else _latest_done(sightings, half)
        for half, source in sources.items()
    }
    return {
        **{name: first[name] for name in ("capture_id", "byte_offset")},
        **{name: sources["request"][name] for name in ("request_packet", "request_at")},
        **{name: sources["response"][name] for name in ("response_capture_id", "response_packet", "response_at")},
        **{f"{half}_done_at": at for half, at in done.items()},
    }


def _best_of_half(sightings: list[RowDict], half: str) -> RowDict:
    """Return the first sighting that has most of a half, and its first byte."""
    return min(sightings, key=lambda seen: (-seen[half], seen[f"{half}_at"] is None))


def _latest_done(sightings: list[RowDict], half: str) -> int | None:
    """Return when a half that no sighting has whole was complete: several together have its bytes."""
    return max((at for seen in sightings if (at := seen[f"{half}_done_at"]) is not None), default=None)


def _is_decrypted(row: RowDict) -> bool:
    """Whether a key decrypted or verified a row."""
    return row["opened_by"] is not None or row["verified_by"] is not None


def _present_stubs(row: RowDict) -> tuple[bool, ...]:
    """Return which stubs a row has; decrypted columns apply only to rows with the same stubs."""
    return tuple(row[f"{half}_stub"] is not None for half in HALVES)


def _distinct_sightings(sightings: Iterable[RowDict]) -> list[RowDict]:
    """Return the distinct sightings, the best first."""
    found = {tuple(sorted((name, str(value)) for name, value in seen.items())): seen for seen in sightings}
    return [found[name] for name in sorted(found, key=lambda name: (_rank(found[name]), name))]
