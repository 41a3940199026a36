"""What a queue requires of a target: the columns of the view ``estate_queues`` that show it, and the fact it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from pipeline.text import format_age

QueueRow = Mapping[str, Any]
"""A row of ``estate_queues`` by column; null where nothing was seen, 0 where messages were seen and none has it."""


_HEADERS: Final = ("headers_known",)
_PROPERTIES: Final = ("properties_known",)
_SECURITY: Final = ("security_known",)


class Needed(NamedTuple):
    """What was seen: the least value of the fact that does for it, and a sentence with figures, without a full stop.

    ``encoded``: the least value where bodies are encoded as text, which grows them.
    """

    value: float
    sentence: str
    encoded: float | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A property of queues, and the fact on a target that decides on it.

    ``needed`` reads the property from a row, None where it was not seen. ``basis``: the columns whose sum is the number
    of messages or reads (``noun``) in which it would have been seen. ``change`` says what is possible beyond a limit of
    any target, with ``{limit}`` in it.
    """

    title: str
    fact: str
    needed: Callable[[QueueRow], Needed | None]
    basis: tuple[str, ...]
    noun: str = "messages"
    change: str | None = None


def count_of(row: QueueRow, columns: tuple[str, ...]) -> int:
    """Return the sum of some counts of a row; those that are null count as 0."""
    return sum(row.get(name) or 0 for name in columns)


def _share(
    title: str, fact: str, doing: Mapping[str, str], basis: tuple[str, ...], noun: str = "messages"
) -> Requirement:
    """Return the requirement of what messages or reads do; ``doing`` says it, by the column with their number."""
    return Requirement(title, fact, partial(_count_needed, doing, basis, noun), basis, noun)


def _count_needed(doing: Mapping[str, str], basis: tuple[str, ...], noun: str, row: QueueRow) -> Needed | None:
    counts = {name: count for name in doing if (count := row.get(name))}
    if not counts:
        return None
    total = max(count_of(row, basis), *counts.values())
    if len(counts) > 1:
        parts = ", ".join(f"{count:,} {doing[name]}" for name, count in counts.items())
        return Needed(1, f"Of {total:,} {noun} that were seen {parts}")
    ((name, count),) = counts.items()
    return Needed(1, f"{_percent(count, total)} of the {noun} that were seen ({count:,} of {total:,}) {doing[name]}")


def _percent(count: int, total: int) -> str:
    percent = 100 * count / total
    if percent < 1:
        return "Less than 1 %"
    return "More than 99 %" if 99 < percent < 100 else f"{percent:.0f} %"


def _message_bytes(row: QueueRow) -> Needed | None:
    if (size := row.get("largest_packet_bytes")) is None:
        return None
    encoded = -(-size * 4 // 3)
    sentence = (
        f"The largest body and properties have {_megabytes(size)} ({size:,} bytes), "
        f"{_megabytes(encoded)} where a text encoding grows by 4/3"
    )
    return Needed(size, sentence, encoded)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def _time_to_live(row: QueueRow) -> Needed | None:
    if (
        endless := _count_needed({"without_time_to_live": "have no time to live"}, _HEADERS, "messages", row)
    ) is not None:
        return endless._replace(value=math.inf)
    if (seconds := row.get("largest_time_to_live_s")) is None:
        return None
    return Needed(seconds, f"The longest time to live is {format_age(timedelta(seconds=seconds))}")


def _order(row: QueueRow) -> Needed | None:
    if not (count := row.get("sequences")):
        return None
    kind = "an exactly-once sequence relies" if count == 1 else f"{count:,} exactly-once sequences rely"
    return Needed(1, f"Order is relied on: {kind} on it")


def _priorities(row: QueueRow) -> Needed | None:
    if not (found := row.get("priorities")):
        return None
    names = ", ".join(map(str, found))
    several = f"{len(found)} priorities are in use ({names})"
    return Needed(len(found), f"Priority {names} alone is in use" if len(found) == 1 else several)


def _subqueues(row: QueueRow) -> Needed | None:
    if not (found := row.get("subqueues")):
        return None
    return Needed(1, f"Subqueues were seen: {', '.join(found)}")


def _rate(row: QueueRow) -> Needed | None:
    if not (count := row.get("peak_per_minute")):
        return None
    return Needed(count / 60, f"In the busiest minute {count:,} messages were sent, {count / 60:,.1f} a second")


def _queue_bytes(row: QueueRow) -> Needed | None:
    if (size := row.get("largest_depth_bytes")) is None:
        return None
    return Needed(size, f"At most {_megabytes(size)} ({size:,} bytes) were seen to wait in the queue")


REQUIREMENTS: Final = (
    Requirement("largest message", "message_bytes", _message_bytes, ("messages",)),
    _share("binary bodies", "binary_bodies", {"binary_bodies": "have a body that is not text"}, ("bodies_known",)),
    Requirement(
        "time to live",
        "time_to_live",
        _time_to_live,
        _HEADERS,
        change="Receive each message within {limit}: it is removed after that.",
    ),
    Requirement("order", "order", _order, _HEADERS),
    _share(
        "transactions of several messages",
        "transactional_sends",
        {"in_larger_transactions": "were sent in a transaction with other messages"},
        _HEADERS,
    ),
    _share(
        "transactional remote receives",
        "distributed_transactions",
        {"transactional_receives": "are remote and transactional"},
        ("receives",),
        "receives",
    ),
    _share(
        "exactly once",
        "duplicate_detection",
        {"transactional": "are transactional, so they are delivered exactly once"},
        _HEADERS,
    ),
    Requirement("priorities", "priorities", _priorities, _HEADERS),
    _share("dead letters", "dead_letters", {"dead_letter_asked": "ask to be kept as dead letters"}, _HEADERS),
    _share(
        "acknowledgements of arrival",
        "arrival_receipts",
        {
            "ack_arrival": "ask for an acknowledgement that they arrived",
            "ack_not_arrived": "ask for an acknowledgement that they did not arrive",
        },
        _PROPERTIES,
    ),
    _share(
        "acknowledgements of receipt",
        "read_receipts",
        {
            "ack_receive": "ask for an acknowledgement that they were received",
            "ack_not_received": "ask for an acknowledgement that they were not received",
        },
        _PROPERTIES,
    ),
    _share("replies", "replies", {"with_response_queue": "name a queue for replies"}, _HEADERS),
    _share(
        "authentication",
        "sender_identity",
        {"signed": "are signed", "authenticated": "were authenticated"},
        _SECURITY,
    ),
    _share("encryption", "encryption", {"encrypted": "are encrypted"}, _SECURITY),
    _share(
        "several receivers",
        "publishing",
        {
            "multicast_messages": "are sent by multicast",
            "list_messages": "are sent to a distribution list or to several queues",
        },
        _HEADERS,
    ),
    _share("peeks", "peeks", {"peeks": "are peeks"}, ("receives", "peeks"), "remote reads"),
    _share(
        "reads by identifier",
        "reads_by_identifier",
        {"lookups": "name the message by its lookup identifier"},
        ("receives", "peeks"),
        "remote reads",
    ),
    Requirement("subqueues", "subqueues", _subqueues, ("messages",)),
    _share(
        "COM+ queued components",
        "queued_components",
        {"comqc": "have calls of COM+ queued components"},
        ("messages",),
    ),
    Requirement("peak rate", "messages_per_second", _rate, ("sendings",)),
    Requirement("waiting messages", "queue_bytes", _queue_bytes, ("messages",)),
)
