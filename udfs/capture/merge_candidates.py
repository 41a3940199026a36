"""Which remainders of a four-tuple may be of one connection, and are merged.

A remainder that waits for nothing is of a connection that its capture saw to its end. It is merged only with what is
near in time: of the very many connections that use the same ports one after the other, a new one would else be merged
with each of the others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from udfs.capture.open_connections import CLOSED_CONNECTION_RETENTION_NS, four_tuple_key
from udfs.columns.absent import NEVER_NS, NO_TIME
from udfs.rows import RowDict
from udfs.tcp.time_limits import TimeLimits

CANDIDATE_COLUMNS: Final = (
    "capture_id", "client_address", "client_port", "server_address", "server_port", "waits_for", "first_time_ns",
    "last_time_ns",
)  # fmt: skip
"""The columns of ``bronze.pending`` that ``merge_candidates`` needs."""
_ANY_TIME: Final = NO_TIME, NEVER_NS


def merge_candidates(
    pending: Sequence[RowDict], limits: TimeLimits, removed: Iterable[RowDict] = ()
) -> dict[str, list[int]]:
    """Return the indexes of the remainders to merge, by four-tuple (``four_tuple_key``): all that wait for something.

    Of the others those that have another remainder near in time; two that one capture saw to their end are two
    connections. ``removed`` remainders count as such, but are not returned: without them a connection may be another
    one, also that of the same capture, which is read again.
    """
    rows = [*pending, *removed]
    places: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        places[four_tuple_key(row)].append(place)
    reach_ns, found = ended_reach_ns(limits), {}
    for name, of_four_tuple in places.items():
        spans = [_span(rows[place]) for place in of_four_tuple]
        ended = [place < len(pending) and not rows[place]["waits_for"] for place in of_four_tuple]
        every, by_capture = _Spans(spans), defaultdict(list)
        for place, span, has_ended in zip(of_four_tuple, spans, ended, strict=True):
            if has_ended:
                by_capture[rows[place]["capture_id"]].append(span)
        of_capture = {capture_id: _Spans(own) for capture_id, own in by_capture.items()}
        found[name] = [
            place
            for place, (first, last), has_ended in zip(of_four_tuple, spans, ended, strict=True)
            if place < len(pending)
            and (
                not has_ended
                or every.count_in(first - reach_ns, last + reach_ns)
                > of_capture[rows[place]["capture_id"]].count_in(first - reach_ns, last + reach_ns)
            )
        ]
    return found


def ended_reach_ns(limits: TimeLimits) -> int:
    """Return how far apart captures can show a connection that one of them saw to its end, in ns."""
    return max(limits.max_clock_skew_ns, CLOSED_CONNECTION_RETENTION_NS)


def _span(row: RowDict) -> tuple[int, int]:
    """Return the times of a remainder's first and last packet, in ns; any time where one of them is not known."""
    first, last = row["first_time_ns"], row["last_time_ns"]
    return _ANY_TIME if NO_TIME in (first, last) else (first, last)


class _Spans:
    """Spans of time of some remainders: counts those that meet another span."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        spans = list(spans)
        self._firsts, self._lasts = sorted(first for first, _ in spans), sorted(last for _, last in spans)

    def count_in(self, low: int, high: int) -> int:
        """Return how many have any time from ``low`` to ``high``, both included."""
        return bisect_right(self._firsts, high) - bisect_left(self._lasts, low)
