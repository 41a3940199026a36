"""Reported values, each valid until it is reported again, at most ``max_gap``; and the intervals between changes.

Times are microseconds since the epoch (UTC). No Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar


class Event(Protocol):
    """Something that happened at a time, and can report values."""

    @property
    def at(self) -> int:
        """The time."""


EventT = TypeVar("EventT", bound=Event)


@dataclass(slots=True)
class ValidValue(Generic[EventT]):
    """A value and the event that reported it."""

    value: Any
    at: int
    event: EventT


def valid_intervals(
    events: Sequence[EventT],
    valid: dict[str, ValidValue[EventT]],
    apply: Callable[[EventT], None],
    max_gap: int,
    unknown_since: int | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each interval in which the same values are valid, after updating ``valid`` to its beginning.

    ``events`` are in order of time; ``apply`` adds what one reports to ``valid``. The last interval ends ``max_gap``
    after the last event. An interval without any valid value begins where the last one expired, or at
    ``unknown_since``.
    """
    moments = [(at, list(together)) for at, together in groupby(events, key=attrgetter("at"))]
    if not moments:
        return
    if unknown_since is not None and unknown_since < moments[0][0]:
        yield unknown_since, moments[0][0]
    ends = [*(at for at, _ in moments[1:]), moments[-1][0] + max_gap]
    for (begin, together), following in zip(moments, ends, strict=True):
        for event in together:
            apply(event)
        at = begin
        while at < following:
            for name in [name for name, each in valid.items() if at >= each.at + max_gap]:
                del valid[name]
            end = min([following, *(each.at + max_gap for each in valid.values())])
            yield at, end
            at = end
