"""A model of the identity rules of tables.md: which sightings are one call, which stretches one connection.

There are no bytes and no tables. A sighting is what one capture shows of a call, a stretch what it shows of a
connection. ``calls`` and ``connections`` are functions of the set of them. ``Known`` is the minimum to keep of
sightings so that later ones can be merged as if all had come at once; ``Known.joined`` is associative and commutative.

Times are seconds; sequence numbers do not wrap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

CHAIN_S = 60
JUMP = 16 << 20


# -- calls -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Half:
    """A request or a response as one capture shows it; ``acked``: client bytes acknowledged when it was sent."""

    sequence: int
    at: float
    packet: int
    whole: bool = True
    acked: int = 0


@dataclass(frozen=True)
class Sighting:
    """What one capture shows of one call of a four-tuple."""

    capture: str
    call_id: int
    request: Half | None = None
    response: Half | None = None

    @property
    def rank(self) -> tuple[int, float, str, int, str]:
        """Sort key, smallest first: most whole halves, then the earliest (time, capture, packet).

        A packet may carry several first bytes; the other fields decide between them, so that a state does not depend on
        the order.
        """
        halves = [half for half in (self.request, self.response) if half is not None]
        return -sum(half.whole for half in halves), halves[0].at, self.capture, halves[0].packet, repr(self)


Span = tuple[float, float]
NAMES = ("request", "response")


def _half(sighting: Sighting, name: str) -> Half | None:
    return sighting.request if name == "request" else sighting.response


@dataclass(frozen=True)
class Known:
    """What is kept of sightings that are one call: time spans per first byte, the best sighting, the observers.

    A span stands for all times in it, because they form a chain: a time within 60 s of a time inside is within 60 s of
    one of its ends or of a neighbour in it. ``best`` has, for "any", and for each half "whole" and "seen", the best
    sighting with that property. Each is a minimum, and minima can be combined in any order.
    """

    call_id: int
    spans: frozenset[tuple[str, int, Span]]
    best: frozenset[tuple[str, Sighting]]
    captures: frozenset[tuple[str, str]]

    @staticmethod
    def of(sighting: Sighting) -> Known:
        spans, captures, best = set(), set(), {("any", sighting)}
        for name in NAMES:
            half = _half(sighting, name)
            if half is None:
                continue
            spans.add((name, half.sequence, (half.at, half.at)))
            captures.add((name, sighting.capture))
            best.add((f"{name} seen", sighting))
            if half.whole:
                best.add((f"{name} whole", sighting))
        return Known(sighting.call_id, frozenset(spans), frozenset(best), frozenset(captures))

    def linked(self, other: Known) -> bool:
        """Whether some first byte is the same, and the times are near enough."""
        return self.call_id == other.call_id and any(
            (name, sequence) == (other_name, other_sequence)
            and one[0] - CHAIN_S <= two[1]
            and two[0] - CHAIN_S <= one[1]
            for name, sequence, one in self.spans
            for other_name, other_sequence, two in other.spans
        )

    def joined(self, other: Known) -> Known:
        """What is kept of both."""
        chosen: dict[str, Sighting] = {}
        for what, sighting in self.best | other.best:
            if what not in chosen or sighting.rank < chosen[what].rank:
                chosen[what] = sighting
        return Known(
            self.call_id, _chains(self.spans | other.spans), frozenset(chosen.items()), self.captures | other.captures
        )

    def has(self, name: str) -> bool:
        return any(seen == name for seen, _ in self.captures)

    def first(self, name: str) -> int:
        """The smallest first byte of a half."""
        return min(sequence for half, sequence, _ in self.spans if half == name)


def _chains(spans: Iterable[tuple[str, int, Span]]) -> frozenset[tuple[str, int, Span]]:
    """Join the spans of one first byte that are near enough."""
    by_byte = defaultdict(list)
    for name, sequence, span in spans:
        by_byte[name, sequence].append(span)
    out = set()
    for (name, sequence), each in by_byte.items():
        each.sort()
        low, high = each[0]
        for begin, end in each[1:]:
            if begin - high > CHAIN_S:
                out.add((name, sequence, (low, high)))
                low = begin
                high = end
            high = max(high, end)
        out.add((name, sequence, (low, high)))
    return frozenset(out)


State = frozenset[Known]


def merged(*states: State) -> State:
    """Merge states until no two of them are linked."""
    out: set[Known] = set()
    for known in (known for state in states for known in state):
        while near := {other for other in out if known.linked(other)}:
            out -= near
            for other in near:
                known = known.joined(other)  # noqa: PLW2901 - it grows until nothing is near it
        out.add(known)
    return frozenset(out)


def groups(sightings: Iterable[Sighting]) -> list[list[Sighting]]:
    """The rule itself, without a summary: connected components of "same first byte, within 60 s of the next"."""
    taken = sorted(set(sightings), key=lambda each: (each.rank, each.call_id))
    parent = list(range(len(taken)))

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    for name in NAMES:
        same_byte = defaultdict(list)
        for index, sighting in enumerate(taken):
            half = _half(sighting, name)
            if half is not None:
                same_byte[sighting.call_id, half.sequence].append((half.at, index))
        for members in same_byte.values():
            for (at, index), (later, other) in pairwise(sorted(members)):
                if later - at <= CHAIN_S:
                    parent[root(other)] = root(index)
    found = defaultdict(list)
    for index, sighting in enumerate(taken):
        found[root(index)].append(sighting)
    return list(found.values())


@dataclass(frozen=True)
class Call:
    """A row: its halves, and the number of captures that saw it."""

    call_id: int
    request: Half | None
    response: Half | None
    observations: int

    @property
    def key(self) -> tuple[int, int, float]:
        half = self.request or self.response
        assert half is not None
        return self.call_id, half.sequence, half.at


def row(known: Known) -> Call:
    """Return the row of a state: the best sighting; halves that are not whole come from the next best."""
    best = dict(known.best)

    def half(name: str) -> Half | None:
        for what in (f"{name} whole", f"{name} seen"):
            own = _half(best["any"], name)
            if own is not None and (own.whole or what.endswith("seen")):
                return own
            if what in best:
                return _half(best[what], name)
        return None

    counts = [sum(name == seen for seen, _ in known.captures) for name in NAMES]
    return Call(known.call_id, half("request"), half("response"), max(counts))


Pairing = Callable[[State], State]


def by_acknowledgement(state: State) -> State:
    """Pair lone requests with lone responses: a response belongs to the last request acknowledged by then.

    Whole calls count as requests too: a lone response to one of them does not belong to an older request.
    """
    asked = [known for known in state if known.has("request")]
    answers = [known for known in state if not known.has("request")]
    joined = {known: known for known in asked}
    left = set()
    for answer in sorted(answers, key=lambda known: (known.first("response"), sorted(known.spans))):
        acked = max(half.acked for _, sighting in answer.best if (half := sighting.response) is not None)
        before = [each for each in asked if each.call_id == answer.call_id and each.first("request") < acked]
        last = max((each.first("request") for each in before), default=None)
        theirs = [each for each in before if each.first("request") == last and not each.has("response")]
        if not theirs:
            left.add(answer)
        for each in theirs:
            joined[each] = joined[each].joined(answer)
    # Requests alone of one first byte, seen by clocks far apart, are one call by their common answer.
    out: set[Known] = set(left)
    for known in set(joined.values()):
        out.add(known)
    return _common(frozenset(out))


def _common(state: State) -> State:
    """Join calls that share a response."""
    out: list[Known] = []
    for known in sorted(state, key=lambda each: sorted(each.spans)):
        answers = {span for span in known.spans if span[0] == "response"}
        for index, other in enumerate(out):
            if other.call_id == known.call_id and answers & other.spans:
                out[index] = other.joined(known)
                break
        else:
            out.append(known)
    return frozenset(out)


def literally(state: State) -> State:
    """Pair all lone requests and responses of a call id, as the rule says literally."""
    alone = defaultdict(list)
    out = set()
    for known in state:
        if known.has("request") and known.has("response"):
            out.add(known)
        else:
            alone[known.call_id].append(known)
    for each in alone.values():
        if all(any(known.has(name) for known in each) for name in NAMES):
            first, *others = each
            for other in others:
                first = first.joined(other)
            out.add(first)
        else:
            out.update(each)
    return frozenset(out)


def calls(sightings: Iterable[Sighting], pairing: Pairing = by_acknowledgement) -> frozenset[Call]:
    """Return the rows of a set of sightings. Pairs are computed from what is kept, and never kept themselves."""
    return frozenset(map(row, pairing(merged(*(frozenset([Known.of(each)]) for each in set(sightings))))))


# -- connections -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Stretch:
    """What one capture shows of one connection: times, and the sequence number range of each direction."""

    first_at: float
    capture: str
    last_at: float
    client: tuple[int, int]
    server: tuple[int, int]
    syn: int | None = None  # the client's initial sequence number, when its SYN is there


@dataclass
class Connection:
    """Stretches that are one connection, in order of time."""

    stretches: list[Stretch] = field(default_factory=list)

    def goes_on(self, stretch: Stretch) -> bool:
        """Whether the stretch is no other connection: no other SYN, and some direction's numbers continue."""
        syns = {each.syn for each in self.stretches if each.syn is not None}
        if stretch.syn is not None and syns:
            return stretch.syn in syns
        near = [
            min(each[0] for each in ranges) - JUMP <= new[1] and new[0] <= max(each[1] for each in ranges) + JUMP
            for ranges, new in (
                ([each.client for each in self.stretches], stretch.client),
                ([each.server for each in self.stretches], stretch.server),
            )
        ]
        if stretch.syn is not None:  # it begins here: what was before has other numbers, or the same SYN was lost
            return near[0] and min(each.client[0] for each in self.stretches) >= stretch.syn
        return any(near)


def connections(stretches: Iterable[Stretch]) -> list[frozenset[Stretch]]:
    """Return the connections of one four-tuple; each stretch continues the newest connection that it can."""
    found: list[Connection] = []
    for stretch in sorted(set(stretches)):
        for connection in reversed(found):
            if connection.goes_on(stretch):
                connection.stretches.append(stretch)
                break
        else:
            found.append(Connection([stretch]))
    return [frozenset(connection.stretches) for connection in found]
