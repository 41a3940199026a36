"""What is told of one queue at one queue manager, as the rules on queues take it. Plain rows; no Spark.

Times are microseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from pipeline.queues.growth import Point
from udfs.codes import MQ_OK
from udfs.keys import key

Row = Mapping[str, Any]

DAY_US: Final = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that rules on queues go by: spans in microseconds, numbers of messages."""

    slow_window: int = DAY_US
    dead_letters: int = 1
    journal_messages: int = 1000
    clock_difference: int = 5_000_000
    max_gap: int = 900_000_000

    def said(self) -> dict[str, int]:
        """Return them as a commit tells what rows are made of."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True)
class Read:
    """A row of gold.receive_attempts with the calls that it rests on, by their keys.

    A call tells ``capture_id``, ``arrived_at`` of the message that it brought, ``cursor_handle`` of its request; the
    connection ``first_packet_at`` and ``association_group_id``.
    """

    row: Row
    calls: Mapping[str, Row] = field(default_factory=dict)
    connection: Row = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - of whichever column
        return self.row[name]

    @cached_property
    def start(self) -> str:
        """The key of the Start."""
        named = (each for each in self.row["evidence"] or () if key(each) == self.row["attempt_key"])
        return next(named, "")

    @property
    def begin(self) -> Row:
        """What the Start tells."""
        return self.calls.get(self.start, {})

    @cached_property
    def message(self) -> tuple[Any, ...] | None:
        """What tells the message from all others that its queue ever held; None where not all of that was seen.

        A queue manager that was set up anew gives the same numbers again, but not at the same time.
        """
        known = (self["server_address"], self["lookup_id"], self["message_key"], self.begin.get("arrived_at"))
        return None if None in known else known

    @property
    def captures(self) -> set[str | None]:
        """Where its calls were captured."""
        return {call.get("capture_id") for call in self.calls.values()} or {None}

    def holds(self, at: int, slack: int = 0) -> bool:
        """Whether the message was in this reader's hands at a time, as far as can be known, or may have been."""
        if self["is_receive"] is False or self["start_hresult"] not in (None, MQ_OK):
            return False
        if self["returned_at"] is None or self["returned_at"] > at + slack:
            return False
        return self["ended_at"] is None or self["ended_at"] >= at - slack


@dataclass(frozen=True)
class Told:
    """All that is told of a queue.

    ``counts`` are reports of how many messages it holds, ``journal`` of how many its journal does, both in order of
    time, each by the snapshot's id; ``reports`` are rows of silver.queue_snapshots with ``capture_id`` and
    ``asked_at``, of the queue where it is local; ``sources`` are rows of gold.eod_sources that disagree.
    """

    queue_manager: str | None
    queue: str
    counts: list[Point] = field(default_factory=list)
    journal: list[Point] = field(default_factory=list)
    reports: list[Row] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    sources: list[Row] = field(default_factory=list)

    @property
    def subject(self) -> str:
        """What findings are about."""
        return f"queue {self.queue} at {self.queue_manager}"
