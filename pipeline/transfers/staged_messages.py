"""What tasks stage of messages when the packets of a connection are in order: numbers, and which are to be decoded.

Messages are mostly decoded before, while their packets are written (``pipeline/silver/decode_packets.py``).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.lake_path import LakePath
from pipeline.lake.schema_enforcement import select_fields
from pipeline.lake.staging_files import StagingWriter, read_staged
from pipeline.silver.decode_packets import NUMBERS, PACKET_NUMBERS, USER_MESSAGE
from pipeline.transfers.connection_packets import ConnectionPackets
from schemas.messages import MESSAGES
from schemas.sessions import SENDINGS, SESSION_PACKETS
from schemas.table import EVENT_DATE
from udfs.array_types import Bools, Ints
from udfs.columns.arrays import to_flags, to_ints, utc_dates

TAKEN, DECODE, GONE, RENUMBERED, NOW_STORED = "taken", "decode", "gone", "renumbered", "now_stored"
_MESSAGE_KEYS: Final = select_fields(MESSAGES.schema(), ("sighting_key", EVENT_DATE))
_SCHEMAS: Final = {
    TAKEN: PACKET_NUMBERS,
    DECODE: pa.schema([
        *select_fields(SESSION_PACKETS.schema(), (
            "packet_key", "connection_id", "sent_at", "sent_by", "client_address", "server_address",
        )),
        ("packet_bytes", pa.int64()), *(PACKET_NUMBERS.field(name) for name in NUMBERS),
    ]),
    GONE: _MESSAGE_KEYS,
    RENUMBERED: pa.schema([*_MESSAGE_KEYS, *(PACKET_NUMBERS.field(name) for name in NUMBERS)]),
    NOW_STORED: select_fields(SENDINGS.schema(), ("packet_key", "stored_at", "stored_by", "stored_in", EVENT_DATE)),
}  # fmt: skip
"""What is staged, by kind.

``TAKEN``: numbers of new messages that were decoded before. ``DECODE``: packets of messages that are to be decoded.
``GONE``: messages that are to be deleted. ``RENUMBERED``: other numbers of messages that stay. ``NOW_STORED``: when
messages up to a checkpoint were stored, as a packet behind it tells.
"""


def stage_messages(
    staging: StagingWriter, found: ConnectionPackets, decoded: pa.Table, changed: pa.Table | None,
    decoded_before: pa.Table | None,
) -> None:  # fmt: skip
    """Stage what is to be done with the messages of some connections.

    ``decoded``: what ``silver.messages`` has of them; ``changed``: packet_key of their changed packets, None where all
    are to be decoded again; ``decoded_before``: packet_key of those that were decoded, None without any.
    """
    table = found.table
    message = found.is_kind(USER_MESSAGE) & found.to_write
    old, has_bytes = _is_in(table, decoded), ~to_flags(table["bare"])
    again = has_bytes if changed is None else has_bytes & _is_in(table, changed)
    taken = np.zeros(len(old), np.bool_) if decoded_before is None else message & has_bytes & ~old
    if decoded_before is not None:
        taken &= _is_in(table, decoded_before)
    decode = message & (again | (~old & has_bytes)) & ~taken
    stays = pc.is_in(decoded["packet_key"], table["packet_key"].combine_chunks())
    staged = {
        TAKEN: found.numbers_of(np.flatnonzero(taken)),
        DECODE: _with_numbers(found, np.flatnonzero(decode)),
        GONE: decoded.filter(pc.invert(stays)),
        RENUMBERED: _renumbered(found, np.flatnonzero(message & old & ~decode), decoded),
        NOW_STORED: _now_stored(found),
    }
    for kind, rows in staged.items():
        staging.add_table(kind, rows.select(_SCHEMAS[kind].names).cast(_SCHEMAS[kind]))


def read_messages(folder: LakePath, kind: str) -> pa.Table:
    """Return what was staged of messages."""
    return read_staged(folder / kind, _SCHEMAS[kind])


def _is_in(table: pa.Table, others: pa.Table) -> Bools:
    """Return which packets are among others."""
    return to_flags(pc.is_in(table["packet_key"], others["packet_key"].combine_chunks()))


def _with_numbers(found: ConnectionPackets, rows: Ints) -> pa.Table:
    table = found.table.take(pa.array(rows))
    for name, column in found.number_columns(rows).items():
        table = table.append_column(name, column)
    return table


def _renumbered(found: ConnectionPackets, rows: Ints, decoded: pa.Table) -> pa.Table:
    """Return the numbers of messages whose packets are in some rows, as far as they differ from those they have."""
    place = pc.index_in(found.table["packet_key"].take(pa.array(rows)), decoded["packet_key"].combine_chunks())
    before, now = decoded.take(place.combine_chunks()), found.number_columns(rows)
    differs = np.zeros(len(rows), np.bool_)
    for name, column in now.items():
        differs |= to_ints(before[name]) != to_ints(column)
    return pa.table({**{name: before[name] for name in _MESSAGE_KEYS.names}, **now}).filter(pa.array(differs))


def _now_stored(found: ConnectionPackets) -> pa.Table:
    every = [each for side in found.now_stored.values() for each in side]
    carriers = found.table.take(pa.array([each.carrier for each in every], pa.int64()))
    return pa.table({
        "packet_key": pa.array([each.packet.packet_key for each in every], pa.string()),
        "stored_at": carriers["sent_at"],
        "stored_by": carriers["packet_key"],
        "stored_in": carriers["capture_id"],
        EVENT_DATE: utc_dates(np.array([each.packet.sent_at_us for each in every], np.int64)),
    })  # fmt: skip
