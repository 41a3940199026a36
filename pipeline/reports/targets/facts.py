"""The facts on a target that verdicts rest on: their names in the files, and how their values are written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

UNKNOWN: Final = "unknown"
UNLIMITED: Final = "unlimited"
_UNITS: Final[Mapping[str, Mapping[str, int]]] = {
    "size": {"bytes": 1}
    | {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)}
    | {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
    "duration": {"s": 1, "min": 60, "h": 3600, "d": 86400},
}


class FactKind(Enum):
    """How the value of a fact is written, and what it is compared as: bytes, seconds, a number; 1 for yes, 0 for no."""

    SIZE = "size"
    DURATION = "duration"
    NUMBER = "number"
    OFFERED = "offered"

    @property
    def expected(self) -> str:
        """What a value looks like, for errors."""
        units = ", ".join(_UNITS.get(self.value, ()))
        forms = {
            FactKind.SIZE: f"a number and its unit ({units}), like 256 KB",
            FactKind.DURATION: f"a number and its unit ({units}), like 14 d",
            FactKind.NUMBER: "a whole number",
        }
        return f"{forms[self]}, {UNLIMITED} or {UNKNOWN}" if self in forms else f"yes, no or {UNKNOWN}"

    def parse(self, text: str) -> float | None:
        """Return a value, infinite without a limit, None if it is unknown; ValueError for another text."""
        if text == UNKNOWN:
            return None
        if self is FactKind.OFFERED:
            return ("no", "yes").index(text)
        if text == UNLIMITED:
            return math.inf
        number, _, unit = text.partition(" ")
        units = _UNITS.get(self.value, {"": 1})
        if not re.fullmatch(r"[0-9]{1,12}", number) or unit not in units:
            raise ValueError(text)
        return int(number) * units[unit]


class Fact(NamedTuple):
    """A fact: how its value is written, and what it says."""

    kind: FactKind
    about: str


FACTS: Final[Mapping[str, Fact]] = {
    "message_bytes": Fact(FactKind.SIZE, "largest message, with its properties"),
    "binary_bodies": Fact(FactKind.OFFERED, "a body may be any bytes, not only text"),
    "time_to_live": Fact(FactKind.DURATION, "longest time that a message is kept for its receiver"),
    "order": Fact(FactKind.OFFERED, "messages are received in the order in which they were sent"),
    "transactional_sends": Fact(FactKind.OFFERED, "several messages are sent together or not at all"),
    "distributed_transactions": Fact(
        FactKind.OFFERED, "a message is received in one transaction with a database or another resource (MSDTC)"
    ),
    "duplicate_detection": Fact(FactKind.OFFERED, "a message that is sent twice arrives once"),
    "priorities": Fact(FactKind.NUMBER, "number of priorities of messages in one queue"),
    "dead_letters": Fact(FactKind.OFFERED, "messages that nobody could receive are kept in a queue for dead letters"),
    "arrival_receipts": Fact(FactKind.OFFERED, "the sender is told that a message arrived, or that it did not"),
    "read_receipts": Fact(FactKind.OFFERED, "the sender is told that a message was received, or that it was not"),
    "replies": Fact(FactKind.OFFERED, "a message names the queue for replies and what it answers"),
    "sender_identity": Fact(FactKind.OFFERED, "the receiver learns, proved by the product, who sent a message"),
    "encryption": Fact(FactKind.OFFERED, "messages are encrypted on their way"),
    "publishing": Fact(FactKind.OFFERED, "one message goes to several queues"),
    "peeks": Fact(FactKind.OFFERED, "messages are looked at without removal"),
    "reads_by_identifier": Fact(FactKind.OFFERED, "one message is received by its identifier"),
    "subqueues": Fact(FactKind.OFFERED, "a queue has parts that are received from one by one"),
    "queued_components": Fact(FactKind.OFFERED, "COM+ queued components send and receive through it"),
    "messages_per_second": Fact(FactKind.NUMBER, "most messages sent to one queue in a second"),
    "queue_bytes": Fact(FactKind.SIZE, "most bytes that wait in one queue"),
}
