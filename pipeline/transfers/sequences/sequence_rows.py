"""Arrow rows of gold.transfer_sequences, from sendings and order acks. No Spark session is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import combinations, groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import times_to_us
from pipeline.bronze.across_captures.capture_ends import values_of_servers
from pipeline.lake.stage_groups import each_once
from pipeline.transfers.hops.address_queue_managers import AddressQueueManagers
from pipeline.transfers.hops.hop_keys import HOP_COLUMNS, hop_keys
from pipeline.transfers.hops.missing_packets import HopHoles, acknowledged_directly
from pipeline.transfers.sequences.order_ack_matches import match_order_acks
from pipeline.transfers.sequences.sequence_context import SequenceContext
from pipeline.transfers.sequences.sequence_events import (
    SequenceEvents,
    SequenceOrderAcks,
    TransactionalSendings,
    take_in,
)
from pipeline.transfers.sequences.sequence_inputs import CLOCK_SLACK_US
from pipeline.transfers.sequences.stalls import LeftOut, last_rows
from pipeline.transfers.sequences.transfer_sequences import TransferSequences, describe_sequences
from schemas.table import EVENT_DATE, RUN_ID, UINT64
from schemas.transfers import NUMBER_GAP, STALL, TRANSFER_SEQUENCES
from udfs.array_types import Bools, Ints
from udfs.columns.absent import AFTER_ALL, NO_TIME, NONE
from udfs.columns.arrays import from_groups, from_ints, from_times, one_array, to_flags, to_ints, to_times, utc_dates
from udfs.columns.codes import codes_and_values, dictionary_codes, row_codes
from udfs.columns.groups import first_of, group_bounds, group_starts, is_group_start
from udfs.keys import key
from udfs.sessions.packet_layouts import MIN_ACKNOWLEDGEMENT_BYTES, MIN_TRANSACTIONAL_BYTES
from udfs.times import SECOND_US, timedelta_to_us

SEQUENCES_SCHEMA: Final = TRANSFER_SEQUENCES.schema()
FLOW_COLUMNS: Final = ("source_queue_manager", "destination_queue", "hop_key")
"""A flow is what one source sends to one queue on one hop: sequences that follow one another."""
_ADDRESSES: Final = HOP_COLUMNS[2:]
SEQUENCE_COLUMNS: Final = (*FLOW_COLUMNS[:2], "sequence_id", *_ADDRESSES)
"""The columns whose key is sequence_key; ``sequence_id`` is transaction_sequence_id as text."""
_GAPS: Final = 1000  # of a row: the last ones
_EVIDENCE: Final = 1000
_ORDINAL: Final = (1 << 32) - 1
_EPOCH_BITS: Final = 32


def sequence_rows(sendings: pa.Table, acks: pa.Table, context: SequenceContext) -> pa.Table:
    """Return a row of gold.transfer_sequences for each sequence and hop, without how it began.

    ``sendings`` are all sendings of some sequences: ``SEQUENCE_COLUMNS``, destination_queue_manager, hop_count,
    packet_key, connection_id, capture_id, stream_offset, sent_at, server_address, number, previous, length_bytes,
    complete, acknowledged, message_sent_at, begun_unseen, of_several_clocks (packets of its connection have times of
    clocks that differ), and the queue managers of both ends.
    ``acks`` are all order acks that name one of these sequences: packet_key, sequence_id, number, capture_id, sent_at,
    queue_manager, acknowledged_queue_manager, both addresses, and the queue managers of both ends of its session.
    """
    if not sendings.num_rows:
        return SEQUENCES_SCHEMA.empty_table()
    settings, clones, holes = context.settings, context.clones, context.holes
    sequence, sendings = _in_order(sendings)
    first = group_starts(sequence)
    names = _with_queue_managers(sendings.take(pa.array(first)), context)
    acks = each_once(acks.sort_by("packet_key"), "packet_key")
    known = _first_known(sequence, sendings["destination_queue_manager"], len(first))
    names = names.set_column(names.column_names.index("destination_queue_manager"), "destination_queue_manager", known)
    of_sequence, of_ack, same_hop = match_order_acks(names, acks, clones)
    none = np.zeros(len(sequence), np.bool_)
    sent = TransactionalSendings(
        sequence, to_ints(sendings["sent_at"]), to_ints(sendings["number"]), to_ints(sendings["previous"]),
        to_ints(sendings["length_bytes"]), to_flags(sendings["complete"]), to_flags(sendings["acknowledged"]),
        none, none, to_flags(sendings["begun_unseen"]), _capture_ends(sendings, context.capture_ends),
    )  # fmt: skip
    acked = SequenceOrderAcks(of_sequence, to_ints(acks["sent_at"])[of_ack], to_ints(acks["number"])[of_ack], same_hop)
    sent, acked, rows, ack_rows = take_in(sent, acked, timedelta_to_us(settings.wait))
    made_at = to_times(sendings["message_sent_at"].take(pa.array(rows)), AFTER_ALL)
    sent = replace(
        sent,
        has_loss=_may_be_otherwise(sent, acked, made_at, holes, names, settings.wait)[sent.sequence],
        one_sided=_may_be_otherwise(sent, acked, made_at, holes.of_one_side(), names, settings.wait)[sent.sequence],
    )
    names = names.append_column("hop_key", hop_keys([names[name] for name in HOP_COLUMNS], clones))
    stall_after_us, wait_us = timedelta_to_us(settings.stall_after), timedelta_to_us(settings.wait)
    hop = row_codes(names.select((*SEQUENCE_COLUMNS[:3], "hop_key")).columns)
    elsewhere = _may_go_on_elsewhere(names, hop)

    def of_capture(name: str) -> Bools:
        return np.asarray(pc.equal(sendings["capture_id"], name), np.bool_)

    uncertain = {*context.steps.perhaps_skipped()}
    left_out = [
        LeftOut(np.unique(sequence[of_capture(name)]), since, until, (name, since, until) not in uncertain)
        for name, since, until in context.steps.skipped()
    ]
    found = describe_sequences(
        sent, acked, stall_after_us=stall_after_us, wait_us=wait_us, hop=hop, goes_elsewhere=elsewhere,
        left_out=left_out, several_clocks=_are_of_several_clocks(sequence, sendings, of_sequence, acks, of_ack),
    )  # fmt: skip
    sent_keys = sendings["packet_key"].take(pa.array(rows))
    evidence = _evidence(found.events, sent_keys, acks["packet_key"].take(pa.array(of_ack[ack_rows])))
    return _rows(names, found, evidence, context.run_id)


def _with_queue_managers(first_sendings: pa.Table, context: SequenceContext) -> pa.Table:
    """Return sendings with the queue managers of both ends, where their own sessions do not show them.

    These are the ones that all handshakes of the address show at most pending.expire before or after.
    """
    known = AddressQueueManagers.of(context.handshakes, timedelta_to_us(context.settings.expire))
    at = to_ints(first_sendings["sent_at"])
    for end in ("sender", "receiver"):
        name, addresses = f"{end}_queue_manager", one_array(first_sendings[f"{end}_address"])
        filled = pc.coalesce(one_array(first_sendings[name]), known.at(addresses, at))
        first_sendings = first_sendings.set_column(first_sendings.column_names.index(name), name, filled)
    return first_sendings


def _capture_ends(sendings: pa.Table, capture_ends: Mapping[str, int]) -> Ints:
    """Return when the captures of each sending's server end, by default when it was sent; microseconds."""
    ends = values_of_servers(sendings["server_address"], capture_ends)
    return to_ints(pc.coalesce(ends, one_array(times_to_us(sendings["sent_at"]))))


def _are_of_several_clocks(
    sequence: Ints, sendings: pa.Table, of_sequence: Ints, acks: pa.Table, of_ack: Ints
) -> Bools:
    """Return which sequences have times of several captures whose clocks differ: their order is not known."""
    count = int(sequence[-1]) + 1
    flagged = np.bincount(sequence[to_flags(sendings["of_several_clocks"])], minlength=count) > 0
    if not flagged.any():
        return flagged
    taken = acks["capture_id"].take(pa.array(of_ack))
    captures = dictionary_codes(pa.chunked_array([*sendings["capture_id"].chunks, *taken.chunks], pa.string()))
    pairs = np.unique(np.stack([np.concatenate([sequence, of_sequence]), captures]), axis=1)
    return flagged & (np.bincount(pairs[0], minlength=count) > 1)


def _may_go_on_elsewhere(names: pa.Table, hop: Ints) -> Bools:
    """Return which sequences another row may have more of, on the same hop: where handshakes do not show both ends.

    ``names`` has a row for each sequence, ``hop`` numbers of their hops.
    """
    found = np.zeros(len(hop), np.bool_)
    sequence = row_codes(names.select(SEQUENCE_COLUMNS[:3]).columns)
    hops_of_each = np.bincount(np.unique(np.stack([sequence, hop]), axis=1)[0])
    several = np.flatnonzero(hops_of_each[sequence] > 1)
    rows = names.select(HOP_COLUMNS[:2]).take(pa.array(several)).to_pylist()
    ends = {place: tuple(row.values()) for place, row in zip(several.tolist(), rows, strict=True)}
    for _, group in groupby(sorted(ends, key=lambda place: sequence[place]), key=lambda place: sequence[place]):
        for one, other in combinations(group, 2):
            both = [*zip(ends[one], ends[other], strict=True)]
            is_unclear = any(None in pair for pair in both) and all(None in pair or len({*pair}) == 1 for pair in both)
            if is_unclear and hop[one] != hop[other]:
                found[[one, other]] = True
    return found


def _may_be_otherwise(
    sent: TransactionalSendings, acked: SequenceOrderAcks, made_at: Ints, holes: HopHoles, names: pa.Table,
    wait: timedelta,
) -> Bools:  # fmt: skip
    """Return for each sequence whether holes may hold a packet with which something else would be said of it.

    That is one of its messages, or another sending of one, from when the first one was made (``made_at``, by its
    source's clock) until all are acknowledged: then the sequence has emptied, and the next message begins another one.
    A message whose last sending has no session acknowledgement may be sent again later. Of a sequence that waits also
    an order ack may be missing. ``names`` has a row for each sequence.
    """
    starts = group_starts(sent.sequence)
    since = np.minimum.reduceat(np.minimum(sent.sent_at, made_at - CLOCK_SLACK_US), starts)
    first, last = sent.sent_at[starts], np.maximum.reduceat(sent.number, starts)
    ends = np.append(starts[1:], len(sent)) - 1
    until = sent.sent_at[ends] + timedelta_to_us(wait)
    highest = np.full(len(starts), NONE, np.int64)
    np.maximum.at(highest, acked.sequence, acked.number)
    raising = acked.number == highest[acked.sequence]
    at = np.full(len(starts), AFTER_ALL, np.int64)
    np.minimum.at(at, acked.sequence[raising], acked.sent_at[raising])
    waits, sent_again = highest < last, np.zeros(len(starts), np.bool_)
    by_number = np.lexsort((sent.sent_at, sent.number, sent.sequence))
    backwards = by_number[::-1]
    is_last = is_group_start(sent.sequence[backwards], sent.number[backwards])[::-1]
    sent_again[sent.sequence[by_number[is_last & ~sent.acknowledged[by_number]]]] = True
    until = np.where(waits | sent_again, until, np.maximum(at, sent.sent_at[ends]))
    sizes = np.full(len(starts), MIN_TRANSACTIONAL_BYTES), np.full(len(starts), MIN_ACKNOWLEDGEMENT_BYTES)
    hops = {name: names[name] for name in HOP_COLUMNS}
    columns = ("destination_queue_manager", "receiver_queue_manager", "hop_count")
    direct = acknowledged_directly(*(names[name].combine_chunks() for name in columns))
    found = holes.may_hold(hops, sizes[0], since, until)
    return found | (holes.may_hold_acknowledgement(hops, direct, sizes[1], first, until) & waits)


def _in_order(sendings: pa.Table) -> tuple[Ints, pa.Table]:
    """Return sendings by sequence and in order, and their sequences as numbers from 0 on.

    The order is that of their times. Packets that begin in one captured packet have one time: they are in the order of
    their stream. Of several connections with equal times the smaller identifier comes first.
    """
    codes, connections = codes_and_values(sendings["connection_id"])
    connection = np.argsort(np.argsort(np.array(connections, np.object_)))[codes]
    sequence = row_codes(sendings.select(SEQUENCE_COLUMNS).columns)
    order = np.lexsort((to_ints(sendings["stream_offset"]), connection, to_ints(sendings["sent_at"]), sequence))
    return sequence[order], sendings.take(pa.array(order))


def _first_known(sequence: Ints, values: pa.ChunkedArray, count: int) -> pa.Array:
    """Return for each sequence the first value that is not null."""
    known = np.flatnonzero(np.asarray(values.is_valid()))
    return one_array(values).take(from_ints(first_of(sequence[known], known, count)))


def _evidence(events: SequenceEvents, sent_keys: pa.ChunkedArray, ack_keys: pa.ChunkedArray) -> pa.Array:
    """Return the packet keys of each sequence's sendings and order acks, the last ones, by time."""
    kept = np.flatnonzero(last_rows(events.sequence, _EVIDENCE))
    place = events.row[kept] + np.where(events.is_ack[kept], len(sent_keys), 0)
    keys = pa.chunked_array([*sent_keys.chunks, *ack_keys.chunks], pa.string()).take(pa.array(place))
    return from_groups(group_bounds(events.sequence[kept], len(events.starts) - 1), one_array(keys))


def _rows(names: pa.Table, found: TransferSequences, evidence: pa.Array, run_id: str) -> pa.Table:
    """Return the rows of sequences: their names, what was found, and their evidence."""
    count = names.num_rows
    ids = sequence_ids(names["sequence_id"])
    keys = zip(*(names[name].to_pylist() for name in SEQUENCE_COLUMNS), strict=True)
    missing = _missing(found.reasons, count)
    epochs = (ids >> np.uint64(_EPOCH_BITS)).astype(np.int64) * SECOND_US
    longest = found.stalls.longest_us
    columns: dict[str, Any] = {
        "sequence_key": pa.array([key(*each) for each in keys], pa.string()),
        **{name: names[name] for name in (*FLOW_COLUMNS, *HOP_COLUMNS)},
        "transaction_sequence_id": names["sequence_id"].cast(UINT64),
        "sequence_ordinal": pa.array((ids & np.uint64(_ORDINAL)).astype(np.int64)),
        "sequence_epoch_at": from_times(np.where(epochs == 0, NO_TIME, epochs)),
        **{name: pa.array(getattr(found, name)) for name in _COUNTS},
        **{name: from_ints(getattr(found, name)) for name in _NUMBERS},
        **{
            name: from_times(getattr(found, name))
            for name in ("first_sent_at", "last_sent_at", "last_packet_at", "acknowledged_at")
        },
        "gaps": _gaps(found, count),
        "stalls": _stalls(found, count),
        "longest_stall_s": pa.array(longest / SECOND_US, mask=longest == NONE),
        "stalled_since": from_times(found.stalls.since),
        "previous_sequence_id": pa.nulls(count, UINT64),
        "began": pa.nulls(count, pa.string()),
        "condition": pa.array(found.condition.tolist(), pa.string()),
        "evidence": evidence,
        "confidence": pa.array(["partial" if codes else "complete" for codes in missing], pa.string()),
        "missing": pa.array(missing, pa.list_(pa.string())),
        "errors": pa.array([[]] * count, SEQUENCES_SCHEMA.field("errors").type),
        EVENT_DATE: utc_dates(found.first_sent_at),
        RUN_ID: pa.repeat(pa.scalar(run_id, pa.string()), count),
    }
    return pa.table([columns[field.name].cast(field.type) for field in SEQUENCES_SCHEMA], SEQUENCES_SCHEMA)


_COUNTS: Final = (
    "messages", "sendings", "sent_bytes", "resends", "resent_bytes", "first_number", "last_number", "missing_numbers",
    "out_of_order", "order_acks", "waiting",
)  # fmt: skip
_NUMBERS: Final = ("refusals", "acknowledged_number", "first_waiting_number")


def sequence_ids(texts: pa.ChunkedArray | pa.Array) -> Any:  # noqa: ANN401 - an array of NumPy, uint64
    """Return sequence ids, as text, as numbers of 64 bits without a sign."""
    return np.asarray(pc.cast(texts, pa.uint64()))


def _missing(reasons: dict[str, Bools], count: int) -> list[list[str]]:
    """Return the reason codes of each sequence, sorted."""
    names = sorted(reasons)
    if not count:
        return []
    flags = np.stack([reasons[name] for name in names], axis=1)
    combinations = {
        row.tobytes(): [name for name, holds in zip(names, row, strict=True) if holds]
        for row in np.unique(flags, axis=0)
    }
    return [combinations[row.tobytes()] for row in flags]


def _lists(sequence: Ints, count: int, values: pa.Array) -> pa.Array:
    """Return values as a list for each sequence, null where there is none; ``sequence`` ascends."""
    return from_groups(group_bounds(sequence, count), values, empty=False)


def _gaps(found: TransferSequences, count: int) -> pa.Array:
    kept = last_rows(found.gaps.sequence, _GAPS)
    values = (found.gaps.first, found.gaps.last, found.gaps.bridged)
    structs = pa.StructArray.from_arrays([pa.array(each[kept]) for each in values], NUMBER_GAP.names)
    return _lists(found.gaps.sequence[kept], count, structs)


def _stalls(found: TransferSequences, count: int) -> pa.Array:
    stalls = found.stalls
    values = [from_times(stalls.began_at), from_times(stalls.ended_at)]
    values += [pa.array(each) for each in (stalls.first_number, stalls.waiting, stalls.sendings)]
    return _lists(stalls.sequence, count, pa.StructArray.from_arrays(values, STALL.names))
