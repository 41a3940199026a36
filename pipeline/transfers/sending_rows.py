"""Rows of silver.sendings: each user message as it was sent in a session, and what acknowledged it there. No Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.silver.decode_packets import USER_MESSAGE
from pipeline.transfers.connection_packets import (
    CLIENT,
    SERVER,
    SIDES,
    ConnectionPackets,
    window_sizes,
)
from pipeline.transfers.holes import may_hold_acknowledgement
from pipeline.transfers.numbers.flow_control import DEFAULT_WINDOW, surely_acknowledged
from pipeline.transfers.numbers.packet_numbers import NO_NUMBER
from pipeline.transfers.side_losses import LOSS_COLUMNS, SideLoss, side_losses
from schemas.sessions import SENDINGS
from schemas.table import EVENT_DATE, RUN_ID
from udfs.array_types import Bools, Ints
from udfs.columns.absent import NONE
from udfs.columns.arrays import from_ints
from udfs.sessions.packet_layouts import DECODER_VERSION

SENDINGS_SCHEMA: Final = SENDINGS.schema()
_US_PER_MS: Final = 1000


def sending_rows(found: ConnectionPackets, connections: pa.Table, sessions: pa.Table, run_id: str | None) -> pa.Table:
    """Return a row of silver.sendings for each user message that is ``to_write``.

    ``connections`` has ``LOSS_COLUMNS``, ``sessions`` are the rows of silver.sessions; both of all connections of
    ``found``.
    """
    facts = _SendingFacts.of(found, connections)
    rows = np.flatnonzero(facts.is_message)
    table = found.table.take(pa.array(rows))
    place = pc.index_in(table["connection_id"], sessions["connection_id"].combine_chunks())
    by_client = pc.equal(table["sent_by"], SIDES[CLIENT])
    ends = {
        "sender": (("client", "server"), ("initiator", "acceptor")),
        "receiver": (("server", "client"), ("acceptor", "initiator")),
    }
    columns: dict[str, Any] = {name: table[name] for name in table.column_names if name in SENDINGS.names}
    for end, (addresses, managers) in ends.items():
        columns[f"{end}_address"] = pc.if_else(by_client, *(table[f"{each}_address"] for each in addresses))
        known = (sessions[f"{each}_queue_manager"].take(place) for each in managers)
        columns[f"{end}_queue_manager"] = pc.if_else(by_client, *known)
    columns |= found.number_columns(rows)
    for name, carriers in (("session_acked", found.acknowledged_by), ("stored", found.stored_by)):
        carrier = from_ints(carriers[rows])
        columns[f"{name}_at"] = found.table["sent_at"].take(carrier)
        columns[f"{name}_by"] = found.table["packet_key"].take(carrier)
        columns[f"{name}_in"] = found.table["capture_id"].take(carrier)
    columns["transmit_ms"] = _transmit_ms(table, sessions["overlapping_captures"].take(place))
    columns |= {name: pa.array(values[rows]) for name, values in facts.columns().items()}
    columns[EVENT_DATE] = pc.floor_temporal(table["sent_at"], unit="day").cast(pa.timestamp("us"))
    none = pa.array(np.zeros(len(rows) + 1, np.int32)), pa.array([], SENDINGS_SCHEMA.field("errors").type.value_type)
    columns["errors"] = pa.ListArray.from_arrays(*none)
    columns["decoder_version"] = pa.repeat(pa.scalar(DECODER_VERSION), len(rows))
    columns[RUN_ID] = pa.repeat(pa.scalar(run_id, pa.string()), len(rows))
    return pa.table([columns[field.name].cast(field.type) for field in SENDINGS_SCHEMA], SENDINGS_SCHEMA)


def _transmit_ms(table: pa.Table, overlaps: pa.ChunkedArray) -> pa.Array:
    """Return how long packets were on the wire, milliseconds; null unless complete, and where that may be negative.

    A packet that no capture alone has whole has times of several: where captures of its connection ran side by side,
    their clocks may differ.
    """
    took = pc.subtract(_micros(table["sent_done_at"]), _micros(table["sent_at"]))
    unclear = pc.or_(pc.less(took, 0), pc.and_(table["put_together"], overlaps.is_valid()))
    return pc.divide(pc.if_else(unclear, None, took).cast(pa.float64()), float(_US_PER_MS))


def _micros(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())


@dataclass(slots=True)
class _SendingFacts:
    """What each packet's side and the other side show of it, an element for each packet of ``found``."""

    found: ConnectionPackets
    is_message: Bools
    sizes: Ints  # WindowSize that packets say, or -1
    surely_acknowledged: Bools
    may_be_missing: Bools
    unnumbered_by_loss: Bools
    handshake_seen: Bools

    @staticmethod
    def of(found: ConnectionPackets, connections: pa.Table) -> _SendingFacts:
        is_message = found.is_kind(USER_MESSAGE) & found.to_write
        flags = (np.zeros(len(is_message), np.bool_) for _ in range(4))
        facts = _SendingFacts(found, is_message, window_sizes(found), *flags)
        names = connections["connection_id"].to_pylist()
        losses = connections.select(LOSS_COLUMNS).to_pylist()
        of_connection = dict(zip(names, losses, strict=True))
        for place in np.unique(found.packets.side[is_message] // 2).tolist():
            facts._fill_connection(place, of_connection[found.connection_ids[place]])
        return facts

    def columns(self) -> dict[str, Bools]:
        """Return the columns of the table, by name."""
        return {
            "surely_acknowledged": self.surely_acknowledged,
            "acknowledgement_may_be_missing": self.may_be_missing,
            "unnumbered_by_loss": self.unnumbered_by_loss,
            "handshake_seen": self.handshake_seen,
        }

    def _fill_connection(self, place: int, loss: dict[str, Any]) -> None:
        """Fill what is known of the messages of one connection."""
        sides = side_losses(self.found, place, loss)
        checkpoint = self.found.checkpoint(place)
        both = slice(sides[CLIENT].rows.first, sides[SERVER].rows.end)
        largest = self.sizes[both].max(initial=NONE if checkpoint is None else checkpoint.largest_window)
        window = max(int(largest), DEFAULT_WINDOW)
        for ours, theirs in (sides, sides[::-1]):
            span = slice(ours.rows.first, ours.rows.end)
            messages = np.flatnonzero(self.is_message[span]) + span.start
            if not len(messages):
                continue
            numbered = self.found.numbers.session[span] != NO_NUMBER
            self.surely_acknowledged[span] = self._surely(ours, theirs, window)
            self.may_be_missing[messages] = _may_be_missing(self.found, messages, theirs)
            self.unnumbered_by_loss[span] = ~numbered & ours.has_loss
            every = self.found.rows_of(place, ours.side)
            self.handshake_seen[span] = bool(self.found.packets.establishes[every.first : every.end].any())

    def _surely(self, ours: SideLoss, theirs: SideLoss, window: int) -> Bools:
        """Return which messages without a number are surely acknowledged."""
        packets, span = self.found.packets, slice(ours.rows.first, ours.rows.end)
        counted = span.start + np.flatnonzero(packets.counted[span])
        wanted = self.is_message[counted] & (self.found.numbers.session[counted] == NO_NUMBER)
        out = np.zeros(span.stop - span.start, np.bool_)
        if wanted.any():
            stretch, sent_at = self.found.numbers.stretch[counted], packets.sent_at[counted]
            headers, acks = packets.sent_at[theirs.carriers], packets.ack[theirs.carriers]
            out[counted - span.start] = surely_acknowledged(wanted, stretch, sent_at, headers, acks, window)
        return out


def _may_be_missing(found: ConnectionPackets, messages: Ints, theirs: SideLoss) -> Bools:
    """Return for each message whether a hole of the other side may hold its session acknowledgement."""
    carriers = found.acknowledged_by[messages]
    header = np.where(carriers == NONE, NONE, np.searchsorted(theirs.carriers, carriers))
    return may_hold_acknowledgement(
        found.packets.sent_at[messages], header, theirs.sent_at, theirs.offset, theirs.length,
        theirs.carriers - theirs.rows.first, theirs.may_have_header, theirs.holes,
    )  # fmt: skip
