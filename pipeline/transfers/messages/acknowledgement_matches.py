"""Which acknowledgements and reports belong to which rows of messages. No Spark.

Rows are messages to a queue on a hop; events are in order of time, of equal times by their keys. Each function returns
for each row the place of its first event among those given, or ``NONE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.transfers.messages.first_events import earliest, first_at_least
from pipeline.transfers.sequences.order_ack_matches import ADDRESS, match_order_acks
from udfs.array_types import Bools, Ints
from udfs.columns.absent import NONE
from udfs.columns.arrays import Column, to_ints, to_times
from udfs.columns.codes import row_codes, row_codes_of_both
from udfs.columns.groups import expand_ranges, take_or
from udfs.columns.time_index import TimeIndex

_HOP: Final = ("sender_address", "receiver_address")
_WAY_BACK: Final = ("receiver_address", "sender_address")
_SEQUENCE_COLUMNS: Final = (
    "sequence_id", "source_queue_manager", "destination_queue_manager", "receiver_queue_manager", *_HOP,
)  # fmt: skip
"""What of a row says which order acks are of its sequence."""
_PREFIX_DIGITS: Final = 4  # of the source's GUID, in labels of reports


@dataclass(frozen=True, slots=True)
class MessageRows:
    """Rows whose acknowledgements are looked for.

    ``names`` has message_id, message_ordinal, source_queue_manager, destination_queue, destination_queue_manager,
    sequence_id, transaction_number, both addresses and receiver_queue_manager. An event counts from ``since`` to
    ``until``, microseconds. ``has_copies``: the message went to several queues.
    """

    names: pa.Table
    since: Ints
    until: Ints
    has_copies: Bools

    def __len__(self) -> int:
        return len(self.since)

    def some(self, rows: Ints) -> MessageRows:
        """Return some of the rows."""
        names = self.names.take(pa.array(rows))
        return MessageRows(names, self.since[rows], self.until[rows], self.has_copies[rows])

    def columns(self, *names: str) -> list[Column]:
        """Return columns by their names."""
        return [self.names[name] for name in names]

    def known(self, name: str) -> Bools:
        """Return which rows have a value in a column."""
        return np.asarray(self.names[name].is_valid())


def first_order_acks(rows: MessageRows, acks: pa.Table) -> tuple[Ints, Bools]:
    """Return the first order ack of each row, and whether it is of another hop.

    ``acks`` are rows of silver.order_acks, with both addresses and ``seen_at``. An order ack is of the row's sequence
    (``match_order_acks``), and its number is not below the row's. Those of the same hop come first.
    """
    found, elsewhere = np.full(len(rows), NONE), np.zeros(len(rows), np.bool_)
    numbered = np.flatnonzero(rows.known("sequence_id") & rows.known("transaction_number"))
    if not acks.num_rows or not len(numbered):
        return found, elsewhere
    ours = rows.some(numbered)
    sequence = row_codes(ours.columns(*_SEQUENCE_COLUMNS))
    first = np.unique(sequence, return_index=True)[1]
    of_sequence, of_ack, same_hop = match_order_acks(ours.names.take(pa.array(first)), acks, hop_by=(ADDRESS,))
    index = TimeIndex(2 * of_sequence + ~same_hop, _times(acks)[of_ack])
    numbers, least = _numbers(acks)[of_ack], _numbers(ours.names)
    matched = np.full(len(ours), NONE)
    for is_elsewhere in (0, 1):
        span = index.span(2 * sequence + is_elsewhere, ours.since, ours.until)
        matched = np.where(matched == NONE, first_at_least(index, numbers, span, least), matched)
    found[numbered] = take_or(of_ack, matched, NONE)
    elsewhere[numbered] = ~take_or(same_hop, matched, default=True)
    return found, elsewhere


def _numbers(named: pa.Table) -> Ints:
    return to_ints(named["transaction_number"])


def first_final_acks(rows: MessageRows, acks: pa.Table) -> Ints:
    """Return the first final ack of each row: it names the message, of copies also the sequence; same hop first.

    ``acks`` are rows of silver.order_acks, with both addresses and ``seen_at``.
    """
    found = np.full(len(rows), NONE)
    if not acks.num_rows:
        return found
    at = _times(acks)
    in_sequence = rows.has_copies & rows.known("sequence_id")
    for which, names in ((~rows.has_copies, ("message_id",)), (in_sequence, ("message_id", "sequence_id"))):
        for ours, theirs in (((*names, *_HOP), (*names, *_WAY_BACK)), (names, names)):
            left = np.flatnonzero(which & (found == NONE))
            if len(left):
                found[left] = _first(rows.some(left), ours, [acks[name] for name in theirs], at)
    return found


def first_administration_acks(rows: MessageRows, acks: pa.Table) -> Ints:
    """Return the first administration ack of each row: of copies one that has the row's queue, or none, as response.

    ``acks`` are sightings in silver.messages: ``message_id`` (the acknowledged one), response_queue, seen_at.
    """
    found = np.full(len(rows), NONE)
    if not acks.num_rows:
        return found
    at = _times(acks)
    plain, copies = np.flatnonzero(~rows.has_copies), np.flatnonzero(rows.has_copies)
    if len(plain):
        found[plain] = _first(rows.some(plain), ("message_id",), [acks["message_id"]], at)
    if len(copies):
        ours, columns = rows.some(copies), [acks["message_id"], acks["response_queue"]]
        for queue in (ours.names["destination_queue"], pa.nulls(len(copies), pa.string())):
            codes, of_acks = row_codes_of_both([ours.names["message_id"], queue], columns)
            first = TimeIndex(of_acks, at).first_within(codes, ours.since, ours.until)
            found[copies] = earliest(found[copies], first)
    return found


def reports_of_rows(rows: MessageRows, reports: pa.Table, most: int) -> tuple[Ints, Ints]:
    """Return the reports of rows, at most so many of each, the last ones: rows, ascending, and reports.

    ``reports`` has prefix and ordinal of the traced message, and seen_at.
    """
    if not reports.num_rows:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    prefix = pc.utf8_slice_codeunits(rows.names["source_queue_manager"], 0, _PREFIX_DIGITS)
    ordinal = rows.names["message_ordinal"].cast(pa.string())
    codes, of_reports = row_codes_of_both([prefix, ordinal], [reports["prefix"], reports["ordinal"]])
    index = TimeIndex(of_reports, _times(reports))
    low, high = index.span(codes, rows.since, rows.until)
    low = np.maximum(low, high - most)
    count = high - low
    return np.repeat(np.arange(len(rows)), count), index.order[expand_ranges(low, count)]


def _first(rows: MessageRows, names: Sequence[str], events: list[Column], at: Ints) -> Ints:
    codes, of_events = row_codes_of_both(rows.columns(*names), events)
    return TimeIndex(of_events, at).first_within(codes, rows.since, rows.until)


def _times(events: pa.Table) -> Ints:
    return to_times(events["seen_at"])
