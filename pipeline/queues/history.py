"""What is known of one queue -> the intervals of its life. Plain rows in, plain rows out; no Spark.

What is believed, with [MS-MQMR] 3.1.4.2, [MS-MQDMPR] 3.1.7.1 and the fact sheet on RPC interfaces, 4.3 and 4.4:

* A snapshot reports values; each holds until it is reported again, at most ``max_gap``. What a queue manager answered
  as not available (VT_NULL) is not known from then on, what it was not asked for is as it was.
* An answered pause or resume holds until a state is reported, a purge leaves no message but those that a reader holds
  (PurgePending: they go when the read ends, either way). Both hold as long as an observation does.
* What is expected goes on from the last report of the count, through intervals that begin without one.
* A purge, move or read is done to a queue, whatever name it was opened by; snapshots, pauses and resumes are of one
  name (which is part of an outgoing queue's identity). So a purge cuts the histories of the names that something is
  known of when it comes, and has one of its own, by the name it was opened by, where nothing is.

All of it looks back no further than ``max_gap``: a history can be computed from any of its cuts on.
Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Literal

Kind = Literal[
    "pause", "resume", "purge", "snapshot", "received", "peeked", "nacked", "moved_in", "moved_out", "purged", "doubt"
]
Row = dict[str, Any]

VALUES: Final = ("state", "message_count", "bytes", "journal_count", "journal_bytes")
COUNTED: Final = ("received", "peeked", "nacked", "moved_in", "moved_out", "purged")
UNKNOWN: Final = "UNKNOWN"
ON_HOLD: Final = "ONHOLD"
NOT_CONNECTED: Final = ("WAITING", "NEED VALIDATION", "DISCONNECTED", "DISCONNECTING", "LOCKED")
"""States of an outgoing queue that has no connection and was not told to have none: it tries, has no address yet, is
cut off, shuts down, or may not. INACTIVE does not try, ONHOLD was paused ([MS-MQDMPR] 3.1.1.3, [MS-MQMR] 3.1.4.1)."""
OPERATIONS: Final = "operations"
_RANK: Final = {"pause": 0, "resume": 1, "purge": 2, "snapshot": 3}  # of what is told of one moment
_OWN: Final = frozenset({"snapshot", "pause", "resume"})


@dataclass(frozen=True, slots=True)
class Event:
    """Something that tells of a queue: a snapshot, what was done to it, or what is in doubt (``missing`` says why).

    A ``purged`` is a purge that cuts no history that is asked for: it is counted alone. ``name`` is the format name
    that a snapshot, pause or resume is of, of a purge the one it was opened by; ``values`` are those that a snapshot
    reports, None what was not available. ``held_since``: when a reader got the message.
    """

    at: int
    kind: Kind
    key: str
    name: str | None = None
    source: str = OPERATIONS
    values: Mapping[str, Any] = field(default_factory=dict)
    held_since: int | None = None
    missing: tuple[str, ...] = ()
    errors: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a history is taken up: rows are wanted from ``since`` on; from ``unknown_since`` on nothing is known."""

    since: int
    unknown_since: int | None = None


def histories(
    events: Iterable[Event], max_gap: int, taken_up: Mapping[str | None, Cut] | None = None
) -> dict[str | None, list[Row]]:
    """Return the intervals of each name of a queue, of all that is told of it.

    Where a history is ``taken_up``, ``events`` need to be only those from twice ``max_gap`` before there on, and those
    of names from three times on: which names something is known of, when a purge comes, takes another ``max_gap``.
    Earlier purges may only come as ``purged``.
    """
    taken_up = taken_up or {}
    told = sorted(events, key=_order)
    own: dict[str | None, list[Event]] = {name: [] for name in taken_up}
    shared: list[Event] = []
    for event in told:
        if event.kind in _OWN:
            own.setdefault(event.name, []).append(event)
        elif event.kind != "purge":
            shared.append(event)
    purges = [event for event in told if event.kind == "purge"]
    cuts = {name: list(mine) for name, mine in own.items()}
    times = {name: [event.at for event in mine] for name, mine in own.items()}
    for purge in purges:
        known = [name for name, at in times.items() if _tells(at, purge.at, max_gap)]
        for name in known or [purge.name]:
            cuts.setdefault(name, []).append(purge)
    counted = sorted([*shared, *purges], key=attrgetter("at"))
    return {name: _Life(mine, counted, max_gap, taken_up.get(name)).rows() for name, mine in cuts.items()}


def _order(event: Event) -> tuple[int, int, str, str]:
    """Order events by time; of one moment what was done comes first and what is reported last."""
    return event.at, _RANK.get(event.kind, len(_RANK)), event.source, event.key


def _tells(times: Sequence[int], at: int, max_gap: int) -> bool:
    """Whether the newest of these times, in order, up to another is not too long ago."""
    place = bisect_right(times, at)
    return place > 0 and times[place - 1] > at - max_gap


@dataclass(slots=True)
class _Known:
    """A value, and what told it."""

    value: Any
    at: int
    event: Event


class _Life:
    """One history, walked through from its first cut to its end."""

    def __init__(self, cuts: Iterable[Event], counted: Sequence[Event], max_gap: int, cut: Cut | None) -> None:
        self.cut = cut or Cut(-(1 << 63))
        gone = self.cut.unknown_since
        self.cuts = [event for event in sorted(cuts, key=_order) if gone is None or event.at >= gone]
        self.counted = counted
        self.max_gap = max_gap
        self.known: dict[str, _Known] = {}  # VALUES, paused, base (what is expected goes on from it), told (anything)
        self._next = 0  # of self.counted

    def rows(self) -> list[Row]:
        """Return the intervals, in order of time."""
        out: list[Row] = []
        for begin, end in self._spans():
            row = self._row(begin, end)
            if out:
                self._explain(out[-1], begin)
            out.append(row)
        return [row for row in out if row["valid_from"] >= self.cut.since]

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Yield the intervals' bounds, what is known brought to each one's beginning."""
        moments = [(at, list(events)) for at, events in groupby(self.cuts, key=attrgetter("at"))]
        if not moments:
            return
        gone = self.cut.unknown_since
        if gone is not None and gone < moments[0][0]:
            yield gone, moments[0][0]
        ends = [*(at for at, _ in moments[1:]), moments[-1][0] + self.max_gap]
        for (begin, events), following in zip(moments, ends, strict=True):
            for event in events:
                self._learn(event)
            at = begin
            while at < following:
                self.known = {name: known for name, known in self.known.items() if at < known.at + self.max_gap}
                end = min([following, *(known.at + self.max_gap for known in self.known.values())])
                yield at, end
                at = end

    def _learn(self, event: Event) -> None:
        def known(name: str, value: Any) -> None:  # noqa: ANN401 - of whichever column
            self.known[name] = _Known(value, event.at, event)

        known("told", None)
        if event.kind == "purge":
            known("base", 0)
        elif event.kind in ("pause", "resume"):
            known("paused", event.kind == "pause")
        for name, value in event.values.items():
            known(name, value)
        if event.values.get("state") is not None:
            known("paused", event.values["state"] == ON_HOLD)
        if "message_count" in event.values:
            known("base", event.values["message_count"])

    def _row(self, begin: int, end: int) -> Row:
        """Return the interval; what was counted in it goes into what is expected of the next."""
        counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        within: list[Event] = []
        base = self.known.get("base")
        change = 0
        while self._next < len(self.counted) and self.counted[self._next].at < end:
            event = self.counted[self._next]
            self._next += 1
            if event.at < begin:
                continue
            within.append(event)
            if event.kind != "doubt":
                counts["purged" if event.kind == "purge" else event.kind] += 1
            change += self._change(event, base)
        if base is not None and base.value is not None:
            base = self.known["base"] = _Known(base.value + change, base.at, base.event)
        rests_on = {known.event.key: known.event for known in self.known.values()}
        events = sorted([*rests_on.values(), *within], key=lambda event: (event.at, event.key))
        missing = {code for event in (*rests_on.values(), *within) for code in event.missing}
        if any(name not in self.known for name in ("state", "message_count")):
            missing.add("no_snapshot")
        errors = [dict(error) for event in rests_on.values() for error in event.errors]
        if errors:
            missing.add("decode_error")
        values = {name: self._value(name) for name in VALUES}
        return {
            "valid_from": begin,
            "valid_to": end,
            **values,
            "state": values["state"] or UNKNOWN,
            **{name: counts[name] for name in COUNTED},
            "paused": self._value("paused"),
            "expected_message_count": None if base is None else base.value,
            "unexplained_change": None,
            "source": max(rests_on.values(), key=_order).source if rests_on else None,
            "evidence": list(dict.fromkeys(event.key for event in events)),
            "confidence": _confidence(missing),
            "missing": sorted(missing),
            "errors": errors,
        }

    def _value(self, name: str) -> Any:  # noqa: ANN401 - of whichever column
        return self.known[name].value if name in self.known else None

    @staticmethod
    def _change(event: Event, base: _Known | None) -> int:
        """Return what an event does to the number of messages, as the one that is expected goes on from a base."""
        if event.kind == "moved_in":
            return 1
        if event.kind == "moved_out":
            return -1
        if event.kind != "received":
            return 0
        purged = base is not None and base.event.kind == "purge"
        if purged and base is not None and event.held_since is not None and event.held_since <= base.event.at:
            return 0  # a message that was held when its queue was purged went with it
        return -1

    def _explain(self, before: Row, at: int) -> None:
        """Compare what was expected with the count that is reported at a time, if one is."""
        count = self.known.get("message_count")
        expected = before["expected_message_count"]
        if count is not None and count.at == at and count.value is not None and expected is not None:
            before["unexplained_change"] = count.value - expected


def _confidence(missing: set[str]) -> str:
    if not missing:
        return "complete"
    return "provisional" if missing == {"transaction_open"} else "partial"


DEAD: Final = re.compile(r";dead(letter|xact)$|_deadqueue$")

JOURNAL: Final = ";journal"
