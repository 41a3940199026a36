"""Tests of the rules on what becomes of a message, as all its readers see it. No Spark.

``rules_messages`` looks at one association; here two readers of different ones got the same message. From the answer
that brought it until its End was taken for an acknowledgement, not in a transaction, the first one had it, and from
then on it was gone: nobody else can be given it. That is sure where

* the same queue of the same queue manager returned the same number, header and time of arrival;
* the first reader's part was seen whole, and its End came within the five minutes after which a read is given up;
* both were captured together and within a day, so that they have one clock, and the second one asked after the first
  had its answer;
* the second reader's connection stood before the message was acknowledged, and still does: the queue manager was not
  started anew in between, which may bring back what was not yet on its disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pipeline.findings.rules.conversations import SLACK_US
from pipeline.findings.rules.queue_facts import DAY_US, Limits, Read, Told
from pipeline.findings.rules.registry import Sign, of_queue
from udfs.dcerpc.interfaces import QM, RR

_CLEANUP_US: Final = 300_000_000
_SEEN: Final = (
    "across associations: both readers were captured together, the first one's part whole, and the second one's "
    "connection stood when the message was acknowledged; both returned its number, header and time of arrival"
)


def _twice(told: Told) -> Iterator[tuple[Read, Read]]:
    """Yield a reader that acknowledged a message with the next one that was given it."""
    found: defaultdict[tuple[object, ...], list[Read]] = defaultdict(list)
    for read in told.reads:
        if read["is_receive"] and read.message is not None and None not in (read["returned_at"], read["started_at"]):
            found[read.message].append(read)
    for reads in found.values():
        reads.sort(key=lambda read: (read["returned_at"], read["attempt_key"]))
        for first, second in pairwise(reads):
            if _sure(first) and _apart(first, second) and _together(first, second):
                yield first, second


def _sure(first: Read) -> bool:
    """Tell whether a reader surely had the message, and acknowledged it."""
    if first["outcome"] != "acked" or first["transactional"] or first["missing"] or first["errors"]:
        return False
    if first["ack_refused"] or first["ack_unanswered"] or first["ended_at"] is None:
        return False
    return bool(first["ended_at"] - first["returned_at"] < _CLEANUP_US - SLACK_US)


def _apart(first: Read, second: Read) -> bool:
    """Tell whether two reads are surely of different associations."""
    if first["connection_id"] == second["connection_id"]:
        return False
    groups = {read.connection.get("association_group_id") or None for read in (first, second)}
    return first["client_address"] != second["client_address"] or (len(groups) == 2 and None not in groups)


def _together(first: Read, second: Read) -> bool:
    stood = second.connection.get("first_packet_at")
    if second["returned_at"] - first["ended_at"] > DAY_US:
        return False
    same = first.captures == second.captures and len(first.captures) == 1 and None not in first.captures
    return same and second["started_at"] > first["returned_at"] and stood is not None and stood < first["ended_at"]


def _found(told: Told, _: Limits, *, protocol: str, held: bool | None) -> Iterator[Sign]:
    for first, second in _twice(told):
        still = second["returned_at"] < first["ended_at"]
        if second["protocol"] != protocol or (held is not None and held != still):
            continue
        how = "is held by" if still else "was acknowledged by"
        call = {name: second[name] for name in ("connection_id", "server_address", "run_id")}
        yield Sign(
            second["returned_at"],
            f"message {second['lookup_id']} of {told.queue} {how} {first['client_address']}",
            tuple(dict.fromkeys((*first["evidence"], second.start))),
            f"server {second['server_address']}",
            call=call | {"call_key": second.start},
        )


@of_queue("Q22", _SEEN)
def came_back(told: Told, limits: Limits) -> Iterator[Sign]:
    """A receive of another reader returns a message that was acknowledged."""
    yield from _found(told, limits, protocol=QM, held=False)


@of_queue("Q24", _SEEN)
def while_held(told: Told, limits: Limits) -> Iterator[Sign]:
    """A receive of another reader returns a message that a read holds, which acknowledges it then."""
    yield from _found(told, limits, protocol=QM, held=True)


@of_queue("R53", _SEEN)
def either(told: Told, limits: Limits) -> Iterator[Sign]:
    """A receive of another reader returns a message that was acknowledged, or that a read holds."""
    yield from _found(told, limits, protocol=RR, held=None)
