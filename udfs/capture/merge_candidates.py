"""Which remainders of a four-tuple may be of one connection, and are merged.

A remainder that waits for nothing is of a connection that its capture saw to its end. It is merged only with what is
near in time: of the very many connections that use the same ports one after the other, a new one would else be merged
with each of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from udfs.capture.open_connections import CLOSED_CONNECTION_RETENTION_NS, four_tuple_key
from udfs.files.capture_file import NO_TIME
from udfs.rows import RowDict
from udfs.tcp.time_limits import TimeLimits

CANDIDATE_COLUMNS = (
    "capture_id", "client_address", "client_port", "server_address", "server_port", "waits_for", "first_time_ns",
    "last_time_ns",
)  # fmt: skip
"""The columns of ``bronze.pending`` that ``merge_candidates`` needs."""


def merge_candidates(
    pending: Sequence[RowDict], limits: TimeLimits, removed: Iterable[RowDict] = ()
) -> dict[str, list[int]]:
    """Return the indexes of the remainders to merge, by four-tuple (``four_tuple_key``): all that wait for something.

    Of the others those that have another remainder near in time. ``removed`` remainders count as such, but are not
    returned: without them a connection may be another one.
    """
    rows = [*pending, *removed]
    places: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        places[four_tuple_key(row)].append(place)
    reach_ns = ended_reach_ns(limits)

    def is_candidate(place: int, others: Sequence[int]) -> bool:
        row = rows[place]
        return bool(row["waits_for"]) or any(
            _are_near(row, rows[other], reach_ns) for other in others if other != place
        )

    return {
        name: [place for place in found if place < len(pending) and is_candidate(place, found)]
        for name, found in places.items()
    }


def ended_reach_ns(limits: TimeLimits) -> int:
    """Return how far apart captures can show a connection that one of them saw to its end, in ns."""
    return max(limits.max_clock_skew_ns, CLOSED_CONNECTION_RETENTION_NS)


def _are_near(ended: RowDict, other: RowDict, reach_ns: int) -> bool:
    if ended["capture_id"] == other["capture_id"] and not other["waits_for"]:
        return False  # one capture, two connections
    if NO_TIME in (row[name] for row in (ended, other) for name in ("first_time_ns", "last_time_ns")):
        return True
    apart = max(ended["first_time_ns"] - other["last_time_ns"], other["first_time_ns"] - ended["last_time_ns"])
    return bool(apart <= reach_ns)
