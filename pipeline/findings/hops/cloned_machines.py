"""Two machines with one queue manager identifier, as their handshakes show (O07). No Spark.

EstablishConnection says how long the initiator's machine has been running ([MS-MQQB] 2.2.3): the time less that is when
it was started. One machine has one such time, until it starts again and never comes back to the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from udfs.times import DAY_US, MINUTE_US

_UPTIME_MODULUS_MS: Final = 1 << 32  # TimeStamp is 32 bits of milliseconds
_SAME_START_MS: Final = 60_000
_OVERLAP_US: Final = MINUTE_US


class HandshakeRequest(NamedTuple):
    """An EstablishConnection request: when it was sent, the uptime it says, and the initiator's last packet. us, ms."""

    packet_key: str
    requested_at: int
    uptime_ms: int
    last_sent_at: int


class CloneEvidence(NamedTuple):
    """The request that shows two machines, how, and the keys of the requests that prove it."""

    request: HandshakeRequest
    actual: str
    evidence: tuple[str, ...]


def find_clones(requests: Sequence[HandshakeRequest], clocks_apart_us: int = 0) -> Iterator[CloneEvidence]:
    """Yield, one for each UTC day, the requests of one identifier that complete the proof of two machines.

    Either requests of two machine starts take turns three times (1, 2, 1, 2) within 24 hours; or a session of the one,
    begun before a request of the other, has a packet of its initiator 60 s or more after that request. More by
    ``clocks_apart_us``: by how much the clocks of the captures may differ, microseconds.
    """
    ordered = sorted(requests, key=lambda each: (each.requested_at, each.packet_key))
    days: set[int] = set()
    runs: list[
        tuple[int, HandshakeRequest, HandshakeRequest]
    ] = []  # requests of one start in a row: which, the first and the last one
    longest: dict[int, HandshakeRequest] = {}  # by start, of the two whose sessions last longest
    for start, request in zip(_machine_starts(ordered, clocks_apart_us // 1000), ordered, strict=True):
        if runs and runs[-1][0] == start:
            runs[-1] = (start, runs[-1][1], request)
        else:
            runs.append((start, request, request))
        found = _taking_turns(runs[-4:]) or _overlapping(longest, start, request, clocks_apart_us)
        if found is not None and request.requested_at // DAY_US not in days:
            days.add(request.requested_at // DAY_US)
            yield found
        before = longest.get(start)
        if before is None or request.last_sent_at > before.last_sent_at:
            longest[start] = request
            if len(longest) > 2:
                del longest[min(longest, key=lambda each: longest[each].last_sent_at)]


def _machine_starts(requests: Sequence[HandshakeRequest], clocks_apart_ms: int) -> list[int]:
    """Return for each request which start of a machine it shows, numbered as they are first seen."""
    starts: list[int] = []
    out = []
    for request in requests:
        at = (request.requested_at // 1000 - request.uptime_ms) % _UPTIME_MODULUS_MS
        apart = [min((at - each) % _UPTIME_MODULUS_MS, (each - at) % _UPTIME_MODULUS_MS) for each in starts[-64:]]
        first = max(len(starts) - 64, 0)
        if apart and min(apart) < _SAME_START_MS + clocks_apart_ms:
            place = first + apart.index(min(apart))
            starts[place] = at  # clocks drift
        else:
            place = len(starts)
            starts.append(at)
        out.append(place)
    return out


def _taking_turns(runs: Sequence[tuple[int, HandshakeRequest, HandshakeRequest]]) -> CloneEvidence | None:
    """Return the evidence where the last four runs are of two starts in turns, within 24 hours."""
    if len(runs) < 4 or (runs[0][0], runs[1][0]) != (runs[2][0], runs[3][0]):
        return None
    last = runs[3][2]
    if last.requested_at - runs[0][2].requested_at > DAY_US:
        return None
    keys = (runs[0][2].packet_key, runs[1][1].packet_key, runs[2][1].packet_key, last.packet_key)
    return CloneEvidence(last, "requests of two machine starts take turns", keys)


def _overlapping(
    longest: dict[int, HandshakeRequest], start: int, request: HandshakeRequest, clocks_apart_us: int
) -> CloneEvidence | None:
    """Return the evidence where a session of another start goes on for 60 s or more behind a request."""
    others = [each for name, each in longest.items() if name != start]
    other = max(others, key=lambda each: each.last_sent_at, default=None)
    if other is None or other.last_sent_at < request.requested_at + _OVERLAP_US + clocks_apart_us:
        return None
    actual = "a session of another machine start goes on behind this request"
    return CloneEvidence(request, actual, (other.packet_key, request.packet_key))
