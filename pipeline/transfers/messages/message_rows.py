"""Arrow rows of gold.message_transfers, from sendings with their messages and acknowledgements. No Spark session.

All is computed on whole columns: sendings are sorted by row, and a row is where its first sending stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import times_to_us
from pipeline.bronze.across_captures.capture_ends import values_of_servers
from pipeline.transfers.hops.address_queue_managers import AddressQueueManagers
from pipeline.transfers.hops.hop_keys import HOP_COLUMNS, hop_keys
from pipeline.transfers.hops.missing_packets import HopHoles, acknowledged_directly
from pipeline.transfers.messages.acknowledgement_matches import (
    MessageRows,
    first_administration_acks,
    first_final_acks,
    first_order_acks,
    reports_of_rows,
)
from pipeline.transfers.messages.evidence_lists import EvidenceLists
from pipeline.transfers.messages.message_inputs import APPLICATION_IDS, TransferInputs
from pipeline.transfers.messages.sender_clocks import clocks_differ
from pipeline.transfers.messages.transfer_context import TransferContext
from schemas.table import EVENT_DATE, RUN_ID, TIMESTAMP, UINT64
from schemas.transfers import MESSAGE_TRANSFERS, REPORT_SIGHTING
from udfs.array_types import Bools, Ints
from udfs.codes import MQMSG_CLASS_ACK_RECEIVE, NEGATIVE_CLASS_BIT, RECEIVE_CLASS_BIT
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL, NONE
from udfs.columns.arrays import from_groups, from_ints, from_times, one_array, to_flags, to_ints, to_times
from udfs.columns.codes import dictionary_codes, row_codes
from udfs.columns.groups import group_bounds, group_starts, is_group_start, sorted_distinct, take_or
from udfs.columns.time_index import TimeIndex
from udfs.keys import encode_key_fields, key, keys_of_texts
from udfs.messages.header_layouts import SESSION_HEADER_BYTES
from udfs.sessions.packet_layouts import MIN_ACKNOWLEDGEMENT_BYTES, MIN_MESSAGE_BYTES
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS
from udfs.times import timedelta_to_us

TRANSFERS_SCHEMA: Final = MESSAGE_TRANSFERS.schema()
ROW_COLUMNS: Final = ("message_key", "destination_queue", "sender_address", "receiver_address")
"""The columns whose key is transfer_key."""
TRANSFER_OUTCOMES: Final = (
    "rejected", "received", "delivered", "transferred", "unknown", "expired", "in_flight", "unacknowledged"
)  # fmt: skip
_DELIVERED, _TRANSFERRED, _EXPIRED, _IN_FLIGHT = (
    TRANSFER_OUTCOMES.index(each) for each in ("delivered", "transferred", "expired", "in_flight")
)
_REASONS: Final = (
    "capture_begins", "capture_ends", "capture_loss", "clock_step", "clocks_differ", "damaged", "decode_error",
    "one_direction",
)  # fmt: skip
_MOST: Final = 1000  # elements of an array
_REACHED_QUEUE: Final = 0x0002
_OF_RECEIVE: Final = 2 | 8  # bits of acknowledgement_requested: that it was received, or was not
_DEAD_LETTER: Final = 1  # bit of journaling
_US, _US_PER_MS = 1_000_000, 1000
_MAX_CLOCK_SKEW_US = DEFAULT_TIME_LIMITS.max_clock_skew_us  # of captures that saw a connection side by side
# Of a message, as its first sending has them that has any.
_OF_MESSAGE: Final = (
    "message_kind", "class", "class_name", "source_queue_manager", "destination_queue_manager", "delivery",
    "transactional", "body_bytes", "acknowledgement_requested", "journaling", "hop_count", "transaction_number",
    "sequence_id", "message_ordinal", "message_sent_at", "time_to_reach_queue_s", *APPLICATION_IDS,
)  # fmt: skip


def message_transfer_rows(inputs: TransferInputs, context: TransferContext) -> pa.Table:
    """Return a row of gold.message_transfers for each message, destination queue and hop."""
    if not inputs.sendings.num_rows:
        return TRANSFERS_SCHEMA.empty_table()
    return _Transfers.of(inputs, context).rows()


@dataclass(slots=True)
class _TimeSource:
    """The event that sets one of the times of rows: when (``AFTER_ALL``: none), by what, and where it was captured."""

    at: Ints
    by: pa.Array
    connections: pa.Array
    captures: pa.Array

    @staticmethod
    def of(events: pa.Table, found: Ints) -> _TimeSource:
        """Take the events that rows found, or ``NONE``."""
        place = from_ints(found)
        at = take_or(to_times(events["seen_at"], AFTER_ALL), found, AFTER_ALL)
        by, connections, captures = (
            one_array(events[name].take(place)) for name in ("seen_by", "connection_id", "capture_id")
        )
        return _TimeSource(at, by, connections.cast(pa.string()), captures.cast(pa.string()))

    def taken_from(self, other: Ints, since: Ints) -> _TimeSource:
        """Return the events of rows, where there is none that of another row; ``NONE`` for no other row.

        An event before ``since`` does not belong to a row.
        """
        rows = np.arange(len(other))
        takes = (other != NONE) & (self.at == AFTER_ALL) & (self.at[other] >= since)
        place = np.where(takes, other, rows)
        values = (each.take(pa.array(place)) for each in (self.by, self.connections, self.captures))
        return _TimeSource(self.at[place], *values)


@dataclass(slots=True)
class _Transfers:
    """Rows that are being made. ``sendings`` are sorted by row; ``starts`` is where the first one of each stands."""

    inputs: TransferInputs
    context: TransferContext
    sendings: pa.Table
    starts: Ints
    row: Ints  # of each sending
    sent_at: Ints  # of each sending
    columns: dict[str, Any] = field(default_factory=dict)
    events: dict[str, _TimeSource] = field(default_factory=dict)
    classes: dict[str, Ints] = field(default_factory=dict)
    across_clocks: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))  # rows that lack a duration by that
    first_unclear: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))  # likewise: which sending was first

    @staticmethod
    def of(inputs: TransferInputs, context: TransferContext) -> _Transfers:
        """Sort sendings into rows; those that come later than transfers.wait are left out."""
        sendings, starts, row = _split_rows(inputs.sendings)
        sent_at = to_times(sendings["sent_at"], AFTER_ALL)
        taken = sent_at <= sent_at[starts][row] + timedelta_to_us(context.settings.wait)
        if not taken.all():
            sendings, starts, row = _split_rows(sendings.filter(pa.array(taken)))
            sent_at = to_times(sendings["sent_at"], AFTER_ALL)
        return _Transfers(inputs, context, sendings, starts, row, sent_at)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def first_at(self) -> Ints:
        """When the first sending of each row was sent."""
        return self.sent_at[self.starts]

    def rows(self) -> pa.Table:
        """Return the rows."""
        self._describe_message()
        self.columns["hop_key"] = hop_keys([self.columns[name] for name in HOP_COLUMNS], self.context.clones)
        self._describe_sendings()
        reports = self._find_acknowledgements()
        outcome = self._outcomes()
        other = self._acknowledged_on(outcome)
        outcome = np.where(other == NONE, outcome, np.minimum(outcome, outcome[other]))
        self.columns["counts_on_hop"] = pa.array(self._counts_on_hop(outcome, other))
        for name in ("session_ack", "store"):
            self.events[name] = self.events[name].taken_from(other, self.first_at)
        self._set_latencies()
        missing = self._missing(outcome, other)
        self.columns |= {
            "outcome": pa.array(TRANSFER_OUTCOMES).take(pa.array(outcome)),
            "evidence": self._evidence(reports),
            "missing": _lists_of_reasons().take(pa.array(missing)),
            "confidence": pc.if_else(pa.array(missing == 0), "complete", "partial"),
            "errors": _empty_lists(len(self), TRANSFERS_SCHEMA.field("errors").type),
            EVENT_DATE: pc.floor_temporal(self.columns["first_sent_at"], unit="day").cast(pa.timestamp("us")),
            RUN_ID: pa.repeat(pa.scalar(self.context.run_id, pa.string()), len(self)),
        }
        self.columns |= self._keys()
        self.columns["acknowledged_on"] = self.columns["transfer_key"].take(from_ints(other))
        arrays = [self.columns[each.name].cast(each.type) for each in TRANSFERS_SCHEMA]
        return pa.table(arrays, TRANSFERS_SCHEMA)

    # The message, and its sendings

    def _describe_message(self) -> None:
        """Set what is of the message, and the hop."""
        first = self.sendings.take(pa.array(self.starts))
        self.columns |= {name: one_array(first[name]) for name in (*ROW_COLUMNS, "message_id")}
        self.columns |= {name: self._first_known(name) for name in _OF_MESSAGE}
        known: AddressQueueManagers | None = None
        for end in ("sender", "receiver"):
            name = f"{end}_queue_manager"
            found = one_array(first[name])
            if found.null_count:
                handshakes, expire = self.context.handshakes, timedelta_to_us(self.context.settings.expire)
                known = known or AddressQueueManagers.of(handshakes, expire)
                found = pc.coalesce(found, known.at(self.columns[f"{end}_address"], self.first_at))
            self.columns[name] = found
        self.columns["transaction_sequence_id"] = self.columns["sequence_id"].cast(UINT64)
        sent, reach = times_to_us(self.columns["message_sent_at"]), self.columns["time_to_reach_queue_s"]
        self.columns["sent_at"] = self.columns["message_sent_at"]
        expires_at = pc.add(sent, pc.multiply(reach.cast(pa.int64()), _US))
        self.columns["expires_at"] = expires_at.cast(pa.timestamp("us")).cast(TIMESTAMP)

    def _first_known(self, name: str) -> pa.Array:
        """Return for each row the first value of a column that is not null."""
        column = one_array(self.sendings[name])
        places = np.arange(len(self.row))
        if column.null_count:
            known = np.asarray(column.is_valid())
            first = np.minimum.reduceat(np.where(known, places, len(places)), self.starts)
            return column.take(pa.array(first, mask=first == len(places)))
        return column.take(pa.array(self.starts))

    def _describe_sendings(self) -> None:
        """Set counts, sizes and times of sendings, and their session acknowledgements."""
        count = np.diff(np.append(self.starts, len(self.row)))
        last = self.starts + count - 1
        sizes = to_ints(self.sendings["length_bytes"])
        connections = dictionary_codes(self.sendings["connection_id"])
        pairs = sorted_distinct(self.row * (int(connections.max()) + 1) + connections) // (int(connections.max()) + 1)
        acked = to_times(self.sendings["session_acked_at"], AFTER_ALL)
        self.columns |= {
            "packet_bytes": pa.array(sizes[self.starts]),
            "resent_bytes": pa.array(np.add.reduceat(sizes, self.starts) - sizes[self.starts]),
            "transmit_ms": self.sendings["transmit_ms"].take(pa.array(self.starts)),
            "sendings": pa.array(count),
            "sessions": pa.array(np.bincount(pairs, minlength=len(self))),
            "first_sent_at": from_times(self.first_at, AFTER_ALL),
            "last_sent_at": from_times(self.sent_at[last], AFTER_ALL),
            "acknowledged_sendings": pa.array(np.add.reduceat((acked != AFTER_ALL).astype(np.int64), self.starts)),
        }
        self.events["session_ack"] = self._earliest_of_sendings(acked, "session_acked")
        self.events["store"] = self._earliest_of_sendings(to_times(self.sendings["stored_at"], AFTER_ALL), "stored")

    def _earliest_of_sendings(self, at: Ints, name: str) -> _TimeSource:
        """Return the earliest of what acknowledged the sendings of each row; ``at`` are times of sendings."""
        least = np.minimum.reduceat(at, self.starts)
        places = np.where(at == least[self.row], np.arange(len(at)), len(at))
        place = np.minimum.reduceat(places, self.starts)
        chosen = pa.array(place, mask=least == AFTER_ALL)
        names = (f"{name}_by", "connection_id", f"{name}_in")
        return _TimeSource(least, *(one_array(self.sendings[each].take(chosen)) for each in names))

    def _any(self, flags: Bools) -> Bools:
        """Return whether any sending of each row has a flag."""
        return np.logical_or.reduceat(flags, self.starts)

    def _flags(self, name: str) -> Bools:
        return to_flags(self.sendings[name])

    # What acknowledged it

    def _find_acknowledgements(self) -> tuple[Ints, Ints]:
        """Set acknowledgements and reports; return the reports, by row."""
        names = ("message_id", "message_ordinal", "source_queue_manager", "destination_queue", "sequence_id",
                 "destination_queue_manager", "transaction_number", "sender_address", "receiver_address",
                 "receiver_queue_manager")  # fmt: skip
        named = pa.table({name: self.columns[name] for name in names})
        until = self.first_at + timedelta_to_us(self.context.settings.wait)
        since = self._since()
        has_copies = self._has_copies()
        order_acks = self.inputs.order_acks.filter(pc.equal(self.inputs.order_acks["kind"], "order_ack"))
        found, elsewhere = first_order_acks(MessageRows(named, since, until, has_copies), order_acks)
        self.events["order_ack"] = _TimeSource.of(order_acks, found)
        self.columns["order_acked_elsewhere"] = pa.array(elsewhere, mask=found == NONE)
        rows = MessageRows(named, since, np.minimum(until, self._until_ordinal_begins_anew()), has_copies)
        final_acks = self.inputs.order_acks.filter(pc.equal(self.inputs.order_acks["kind"], "final_ack"))
        self._set_classes("final", final_acks, first_final_acks(rows, final_acks))
        acks = self.inputs.administration_acks
        is_receive = pc.not_equal(pc.bit_wise_and(acks["class"].cast(pa.int64()), RECEIVE_CLASS_BIT), 0)
        for stage, of_stage in (("arrival", pc.invert(is_receive)), ("receive", is_receive)):
            events = acks.filter(of_stage)
            self._set_classes(stage, events, first_administration_acks(rows, events))
        of_row, reports = reports_of_rows(rows, self.inputs.reports, _MOST)
        self.columns["reports"] = self._report_lists(of_row, reports)
        return of_row, reports

    def _since(self) -> Ints:
        """Return from when on acknowledgements of each row may be, also by a clock that was set back or is behind."""
        since = self.first_at
        connections, captures = (
            one_array(self.sendings[name].take(pa.array(self.starts))) for name in ("connection_id", "capture_id")
        )
        pairs = {(row["connection_id"], name) for row in self.context.overlaps.to_pylist() if row["clocks_differ"]
                 for pair in row["overlapping_captures"] for name in pair.values()}  # fmt: skip
        if pairs:
            beside = pc.is_in(
                pc.binary_join_element_wise(connections, captures, "\n"), pa.array(["\n".join(each) for each in pairs])
            )
            since = np.where(np.asarray(beside, np.bool_), since - _MAX_CLOCK_SKEW_US, since)
        for name, begin, end in self.context.steps:
            ours = to_flags(pc.equal(captures, name))
            since = np.where(ours & (begin <= since) & (since <= end), begin, since)
        return since

    def _set_classes(self, stage: str, acks: pa.Table, found: Ints) -> None:
        """Set what the acknowledgements of a stage say."""
        self.events[f"{stage}_ack"] = _TimeSource.of(acks, found)
        place = from_ints(found)
        classes = one_array(acks["class"].take(place)).cast(pa.int64())
        self.columns[f"{stage}_class"] = classes
        self.columns[f"{stage}_class_name"] = acks["class_name"].take(place)
        self.classes[stage] = to_ints(classes, NONE)

    def _has_copies(self) -> Bools:
        """Return for each row whether its message went to more than one destination queue, or says that it does."""
        message = dictionary_codes(self.columns["message_key"])
        queue = dictionary_codes(self.columns["destination_queue"])
        most = int(queue.max(initial=0)) + 1
        pairs = sorted_distinct((message * most + queue)[queue != NONE]) // most
        several: Bools = np.bincount(pairs, minlength=int(message.max()) + 1)[message] > 1
        return several | self._any(self._flags("names_copies"))

    def _until_ordinal_begins_anew(self) -> Ints:
        """Return for each row the last time before another message of its message_id was first sent on this hop."""
        codes = self._codes("message_id", "sender_address", "receiver_address")
        message = dictionary_codes(self.columns["message_key"])
        order = np.lexsort((self.first_at, message, codes))
        first = order[is_group_start(codes[order], message[order])]  # of each message on its hop the first row
        at = self.first_at[first]
        found = TimeIndex(codes[first], at).first_after(codes, self.first_at)
        return take_or(at, found, AFTER_ALL) - 1

    def _report_lists(self, of_row: Ints, reports: Ints) -> pa.Array:
        taken = self.inputs.reports.take(pa.array(reports, pa.int64()))
        columns = (taken["seen_at"], taken["queue_manager"], taken["hop_count"], taken["next_hop"])
        types = [each.type for each in TRANSFERS_SCHEMA.field("reports").type.value_type]
        values = [one_array(column).cast(kind) for column, kind in zip(columns, types, strict=True)]
        structs = pa.StructArray.from_arrays(values, REPORT_SIGHTING.names)
        return from_groups(group_bounds(of_row, len(self)), structs, empty=False)

    # What follows

    def _set_latencies(self) -> None:
        """Set the times of acknowledgements, and how long after the first sending they came."""
        first = [one_array(self.sendings[name].take(pa.array(self.starts))) for name in ("connection_id", "capture_id")]
        overlaps = _overlap_texts(self.context.overlaps)
        self.across_clocks, self.first_unclear = np.zeros(len(self), np.bool_), self._is_first_unclear()
        for name, event in self.events.items():
            column = {"session_ack": "session_acked_at", "store": "stored_at"}.get(name, f"{name}ed_at")
            self.columns[column] = from_times(event.at, AFTER_ALL)
            took = event.at - self.first_at
            unknown = (event.at == AFTER_ALL) | (self.first_at == AFTER_ALL) | (took < 0)
            for step in self.context.steps:
                crosses = ~unknown & _crosses(first[1], self.first_at, event, step)
                unknown |= crosses
                self.across_clocks |= crosses
            unknown |= self.first_unclear
            if len(overlaps):
                unknown |= _side_by_side(first[0], first[1], event, overlaps)
            self.columns[f"{name}_ms"] = pa.array(took / _US_PER_MS, mask=unknown)

    def _is_first_unclear(self) -> Bools:
        """Return for each row whether another sending may have been sent before the one with the earliest time."""
        out = np.zeros(len(self), np.bool_)
        order, keys = self.context.order, self.sendings["packet_key"].to_pylist()
        if order.packets:
            for place, row in enumerate(self.row.tolist()):
                first = keys[self.starts[row]]
                if place != self.starts[row] and keys[place] in order.packets:
                    out[row] |= not order.is_certain(first, keys[place])
        return out

    def _outcomes(self) -> Ints:
        """Return the outcome of each row, its place in ``TRANSFER_OUTCOMES``; and set dead_letter_class."""
        final, arrival, receive = (self.classes[stage] for stage in ("final", "arrival", "receive"))
        negative = [(each != NONE) & (each & NEGATIVE_CLASS_BIT != 0) for each in (final, arrival, receive)]
        dead = np.select(negative, [final, arrival, receive], NONE)
        journaling = to_ints(self.columns["journaling"])
        kept = (dead != NONE) & (journaling & _DEAD_LETTER != 0)
        self.columns["dead_letter_class"] = pa.array(dead, mask=~kept)
        no_number = np.asarray(self.sendings["session_number"].is_null())
        expires = to_times(self.columns["expires_at"], AFTER_ALL)
        unclear = self._any(no_number | self._flags("acknowledgement_may_be_missing"))
        holds = [
            np.logical_or.reduce(negative),
            (final == MQMSG_CLASS_ACK_RECEIVE) | (receive == MQMSG_CLASS_ACK_RECEIVE),
            (self.events["order_ack"].at != AFTER_ALL) | (arrival == _REACHED_QUEUE),
            self._is_acknowledged(),
            unclear,
            expires < self._capture_ends(),
            self._any(self._flags("is_open")),
        ]
        return np.select(holds, np.arange(len(holds)), len(holds)).astype(np.int64)

    def _is_acknowledged(self) -> Bools:
        """Return for each row whether the next machine acknowledged a sending in its session."""
        surely = self._any(self._flags("surely_acknowledged"))
        acknowledged: Bools = (self.events["session_ack"].at != AFTER_ALL) | surely
        return acknowledged

    def _may_have_expired(self) -> Bools:
        """Return for each row whether it expired before the captures end, if the capture's clock was right then."""
        if not self.context.set_by:
            return np.zeros(len(self), np.bool_)
        set_by = to_ints(self._of_servers(self.context.set_by))
        most = np.maximum.reduceat(set_by, self.starts)
        may_have: Bools = (most > 0) & (to_times(self.columns["expires_at"], AFTER_ALL) < self._capture_ends() + most)
        return may_have

    def _of_servers(self, values: Mapping[str, int]) -> pa.Array:
        return values_of_servers(self.sendings["server_address"], values)

    def _capture_ends(self) -> Ints:
        """Return the latest capture end of each row's sendings."""
        ends = self._of_servers(self.context.capture_ends)
        ends = pc.coalesce(ends, one_array(times_to_us(self.sendings["last_packet_at"])))
        return np.maximum.reduceat(to_ints(ends, BEFORE_ALL), self.starts)

    # The same message between the same queue managers, from or to another address

    def _acknowledged_on(self, outcome: Ints) -> Ints:
        """Return for each row that no session acknowledged the row of its message, queue and hop_key whose it takes.

        Of several the one with a session acknowledgement, then with the first outcome, then that was sent first;
        ``NONE`` where none has an acknowledgement.
        """
        codes = self._codes("message_key", "destination_queue", "hop_key")
        lacks = ~self._is_acknowledged()
        known = np.flatnonzero(outcome <= _TRANSFERRED)
        order = known[np.lexsort((self.first_at[known], outcome[known], lacks[known], codes[known]))]
        best = order[group_starts(codes[order])]
        of_code = np.full(len(self), NONE)
        of_code[codes[best]] = best
        found = of_code[codes]
        takes = lacks & (found != NONE) & ((outcome > _TRANSFERRED) | ~lacks[found])
        return np.where(takes, found, NONE)

    def _counts_on_hop(self, outcome: Ints, other: Ints) -> Bools:
        """Return which row of each message, queue and hop_key counts.

        That is one that was acknowledged, or may have been; by itself, not on the row ``other``; and of these first.
        """
        codes = self._codes("message_key", "destination_queue", "hop_key")
        acked, last = self.events["session_ack"].at, np.append(self.starts[1:], len(self.row)) - 1
        at = np.where(acked == AFTER_ALL, self.sent_at[last], acked)
        order = np.lexsort((at, other != NONE, np.maximum(outcome, _TRANSFERRED), codes))
        out = np.zeros(len(self), np.bool_)
        out[order[group_starts(codes[order])]] = True
        return out

    def _may_take(self, outcome: Ints, chosen: Bools) -> Bools:
        """Return the rows without an acknowledgement of which a chosen row of the same message may be the same hop.

        So it is where a handshake that was not captured would tell: no end is known to be two queue managers.
        """
        out = np.zeros(len(self), np.bool_)
        codes = self._codes("message_key", "destination_queue")
        several = np.flatnonzero(np.bincount(codes)[codes] > 1)
        ends = [self.columns[name].take(pa.array(several)).to_pylist() for name in HOP_COLUMNS[:2]]
        hops: dict[int, list[tuple[int, tuple[str | None, ...]]]] = {}
        for place, hop in zip(several.tolist(), zip(*ends, strict=True), strict=True):
            if not set(hop) & {*self.context.clones}:
                hops.setdefault(int(codes[place]), []).append((place, hop))
        for rows in hops.values():
            others = [(place, hop) for place, hop in rows if chosen[place]]
            for place, hop in rows:
                if outcome[place] > _TRANSFERRED:
                    out[place] = any(_may_be_one_hop(hop, other) for at, other in others if at != place)
        return out

    def _on_hop(self, lost: Bools, outcome: Ints, other: Ints) -> Bools:
        """Return which rows rest on a row with a loss: themselves, the one that they take from, or might have."""
        codes = self._codes("message_key", "destination_queue", "hop_key")
        of_hop = np.bincount(codes, lost) > 0
        taken = (other != NONE) & lost[other]
        out: Bools = lost | taken | ((outcome > _TRANSFERRED) & of_hop[codes])
        return out

    def _codes(self, *names: str) -> Ints:
        return row_codes([self.columns[name] for name in names])

    def _missing(self, outcome: Ints, other: Ints) -> Ints:
        """Return the reasons of each row as bits, in the order of ``_REASONS``.

        ``other``: the row whose acknowledgement it takes. Without one it is as sure as the other rows of its hop.
        """
        complete = self._flags("complete")
        lost = self._any(self._flags("acknowledgement_may_be_missing") | self._flags("unnumbered_by_loss"))
        lost = (lost & (outcome > _TRANSFERRED)) | self._may_be_otherwise(outcome, self.context.holes)
        unseen = self.context.holes.filter(self.context.holes["one_sided"])
        one_sided = lost & self._may_be_otherwise(outcome, unseen)
        doubtful = self._may_take(outcome, (outcome <= _TRANSFERRED) | lost) & (other == NONE)
        reasons = (
            self._any(~self._flags("handshake_seen")) | doubtful,
            outcome == _IN_FLIGHT,
            self._on_hop(lost, outcome, other),
            self.across_clocks | ((outcome > _EXPIRED) & self._may_have_expired()),
            ((outcome >= _EXPIRED) & self._expires_by_another_clock()) | self.first_unclear,
            self._any(~complete),
            self._any(complete & self._flags("has_errors")),
            self._on_hop(one_sided, outcome, other),
        )
        bits: Ints = np.sum([holds.astype(np.int64) << bit for bit, holds in enumerate(reasons)], axis=0)
        return bits

    def _expires_by_another_clock(self) -> Bools:
        """Return for each row whether it expires by the clock of a source that differs from the capture's."""
        clocks = self.context.clocks
        at_least = self.context.settings.max_clock_difference
        apart = clocks.filter(pa.array(clocks_differ(clocks["least_transit_us"], at_least)))
        day = pc.floor_temporal(self.columns["first_sent_at"], unit="day").cast(pa.timestamp("us")).cast(pa.date32())
        known = pc.binary_join_element_wise(apart["source_queue_manager"], apart["event_date"].cast(pa.string()), " ")
        named = pc.binary_join_element_wise(self.columns["source_queue_manager"], day.cast(pa.string()), " ")
        return to_flags(pc.and_(pc.is_in(named, known.combine_chunks()), self.columns["expires_at"].is_valid()))

    def _may_be_otherwise(self, outcome: Ints, of_sessions: pa.Table) -> Bools:
        """Return for each row whether holes may hold a packet with which its outcome would be another one.

        Up to transfers.wait after its first sending: an acknowledgement that it may still get; without a session
        acknowledgement also another sending, from whatever address, which the next machine may have acknowledged.
        """
        holes = HopHoles.of(of_sessions, self.context.clones)
        until = self.first_at + timedelta_to_us(self.context.settings.wait)
        asked, journaling = (to_ints(self.columns[name]) for name in ("acknowledgement_requested", "journaling"))
        final = to_flags(self._first_known("final_acknowledgement_requested"), default=True)
        in_sequence = np.asarray(self.columns["sequence_id"].is_valid(), np.bool_)
        is_delivered = outcome == _DELIVERED
        arrived = np.minimum(np.minimum(self.events["order_ack"].at, self.events["arrival_ack"].at), until)
        may_come = (asked & _OF_RECEIVE != 0) | (in_sequence & (final | (journaling != 0)))
        # What says that it did not arrive comes when it arrives, asked for or not.
        rejected = (asked != 0) | in_sequence
        size = np.where(asked != 0, MIN_MESSAGE_BYTES, MIN_ACKNOWLEDGEMENT_BYTES)
        expects = np.where(is_delivered, may_come, rejected) & (outcome >= _DELIVERED)
        found = np.zeros(len(self), np.bool_)
        direct = self._is_acknowledged_directly(asked != 0)
        for which, end in ((expects, until), (is_delivered & rejected, arrived)):
            found |= which & holes.may_hold_acknowledgement(self.columns, direct, size, self.first_at, end)
        least = np.minimum.reduceat(to_ints(self.sendings["length_bytes"]), self.starts)
        again = holes.may_hold(self.columns, least - SESSION_HEADER_BYTES, self.first_at, until)
        found |= again & (outcome > _TRANSFERRED)
        return found

    def _is_acknowledged_directly(self, asked: Bools) -> Bools:
        """Return for each row whether its acknowledgements come from the receiver of the hop to the sender.

        So they do where these are its source and its destination, as far as that is known, and where the source has the
        queue that administration acknowledgements, where it ``asked`` for them, are sent to.
        """
        names = ("destination_queue_manager", "receiver_queue_manager", "hop_count")
        direct = acknowledged_directly(*(self.columns[name] for name in names))
        source = self.columns["source_queue_manager"].cast(pa.string())
        queue = one_array(self._first_known("admin_queue")).cast(pa.string())
        owner = pc.replace_substring_regex(queue, r"\\.*", "")
        at_source = to_flags(pc.equal(owner, source))
        return direct & (at_source | ~asked)

    def _evidence(self, reports: tuple[Ints, Ints]) -> pa.Array:
        """Return the packets, or calls, that each row rests on."""
        lists = EvidenceLists(len(self), _MOST)
        lists.add(self.row, self.sent_at, one_array(self.sendings["packet_key"]))
        for event in self.events.values():
            rows = np.flatnonzero(event.at != AFTER_ALL)
            lists.add(rows, event.at[rows], event.by.take(pa.array(rows)))
        of_row, report = reports
        taken = self.inputs.reports.take(pa.array(report, pa.int64()))
        lists.add(of_row, to_times(taken["seen_at"], AFTER_ALL), one_array(taken["seen_by"]).cast(pa.string()))
        return lists.arrays()

    def _keys(self) -> dict[str, pa.Array]:
        """Return the keys of rows and of their sequences."""
        hops = [*zip(*(self.columns[name].to_pylist() for name in ROW_COLUMNS[1:]), strict=True)]
        ends = {each: encode_key_fields(*each) for each in set(hops)}
        transfers = keys_of_texts(self.columns["message_key"].to_pylist(), (ends[each] for each in hops))
        names = ("source_queue_manager", "destination_queue", "sequence_id", "sender_address", "receiver_address")
        transactional = np.flatnonzero(self.columns["sequence_id"].is_valid())
        named = [self.columns[name].take(pa.array(transactional)).to_pylist() for name in names]
        of_rows = [*zip(*named, strict=True)]
        known = {each: key(*each) for each in set(of_rows)}
        sequences = np.full(len(self), None, np.object_)
        sequences[transactional] = [known[each] for each in of_rows]
        return {"transfer_key": pa.array(transfers, pa.string()), "sequence_key": pa.array(sequences, pa.string())}


def _split_rows(sendings: pa.Table) -> tuple[pa.Table, Ints, Ints]:
    """Return sendings, where their rows begin, and the row of each."""
    begins = is_group_start(*(dictionary_codes(sendings[name]) for name in ROW_COLUMNS))
    return sendings, np.flatnonzero(begins), np.cumsum(begins) - 1


def _may_be_one_hop(one: tuple[str | None, ...], other: tuple[str | None, ...]) -> bool:
    """Whether queue managers of two hops, some of them not known, may be the same."""
    pairs = [*zip(one, other, strict=True)]
    return any(None in pair for pair in pairs) and all(None in pair or pair[0] == pair[1] for pair in pairs)


def _overlap_texts(overlaps: pa.Table) -> pa.Array:
    """Return connections with two captures that saw them side by side, as texts."""
    texts = [
        "\n".join((row["connection_id"], pair["one"], pair["other"]))
        for row in overlaps.to_pylist()
        for pair in row["overlapping_captures"]
    ]
    return pa.array(texts, pa.string())


def _crosses(captures: pa.Array, first_at: Ints, event: _TimeSource, step: tuple[str, int, int]) -> Bools:
    """Return for each row whether a clock may have been set between its first sending and an event.

    From one capture to another one that may be any clock: the files of a ring have one.
    """
    name, since, until = step
    of_one = pc.equal(captures, event.captures)
    either = ~to_flags(pc.and_(of_one, pc.not_equal(captures, name)))
    low, high = np.minimum(first_at, event.at), np.maximum(first_at, event.at)
    crosses: Bools = either & (event.at != AFTER_ALL) & (low <= until) & (high >= since)
    return crosses


def _side_by_side(connections: pa.Array, captures: pa.Array, event: _TimeSource, overlaps: pa.Array) -> Bools:
    """Return for each row whether the captures of its first sending and of an event saw a connection side by side.

    That is the connection of one of the two.
    """
    out = np.zeros(len(captures), np.bool_)
    rows = np.flatnonzero(to_flags(pc.not_equal(captures, event.captures)))
    if not len(rows):
        return out
    one, other = captures.take(pa.array(rows)), event.captures.take(pa.array(rows))
    swapped = pc.greater(one, other)
    low, high = pc.if_else(swapped, other, one), pc.if_else(swapped, one, other)
    for each in (connections, event.connections):
        texts = pc.binary_join_element_wise(each.take(pa.array(rows)), low, high, "\n")
        out[rows] |= np.asarray(pc.is_in(texts, overlaps), np.bool_)
    return out


def _lists_of_reasons() -> pa.Array:
    """Return the lists of reason codes by their bits."""
    lists = [[reason for bit, reason in enumerate(_REASONS) if bits >> bit & 1] for bits in range(1 << len(_REASONS))]
    return pa.array(lists, pa.list_(pa.string()))


def _empty_lists(count: int, kind: pa.DataType) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], kind.value_type))
