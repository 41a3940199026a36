"""Columns of acknowledgements: bodies of OrderAck and FinalAck packets; [MS-MQQB] 2.2.4, 2.2.5."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from schemas.sessions import ORDER_ACKS
from schemas.table import ERRORS
from udfs import codes
from udfs.columns.arrays import to_flags
from udfs.messages.header_layouts import PROTOCOL_BINARY
from udfs.messages.message_decoder import decode_messages
from udfs.sessions import packet_layouts as layouts
from udfs.sessions.fixed_records import FixedRecords
from udfs.stubs.arrow_primitives import concat_lists

_BODY_FIELD: Final = "MessagePropertiesHeader.MessageBody"


def order_ack_columns(packets: pa.Array) -> dict[str, pa.Array]:
    r"""Decode OrderAck and FinalAck packets, [MS-MQQB] 2.2.4 and 2.2.5: one row each, null where not seen.

    ``packets`` is binary, each value a packet up to its first missing byte. Of its headers: ``class``, ``class_name``,
    ``queue_manager`` (SourceQueueManager), ``addressed_queue_manager`` (QueueManagerAddress; null when zero),
    ``destination_queue``, ``body_type`` and ``body_bytes`` (as declared), ``acknowledgement_requested``. Of its body:
    ``transaction_sequence_id``, ``transaction_number``, ``previous_transaction_number``; of a FinalAck (another class
    than 0x00FF) ``acknowledged_source`` (SourceGUID), ``acknowledged_ordinal``, ``acknowledged_message_id``.
    ``errors`` say where the packet ends before its body does; offsets are bytes from its start.
    """
    decoded = decode_messages(packets, PROTOCOL_BINARY, bodies=True, hashes=False, keys=False)
    body = decoded.get("body", pa.nulls(len(packets), pa.binary()))
    sequence = FixedRecords.read(body, layouts.ACKNOWLEDGED_SEQUENCE)
    message = FixedRecords.read(body, layouts.ACKNOWLEDGED_MESSAGE, layouts.ACKNOWLEDGED_SEQUENCE.itemsize)
    final = to_flags(pc.not_equal(decoded["class"], codes.MQMSG_CLASS_ORDER_ACK))
    source, ordinal = message.guids("SourceGUID", final, zero=True), message.numbers("MessageID", pa.int64(), final)
    return {
        **{name: decoded[name] for name in ("class", "class_name", "destination_queue", "body_type", "body_bytes")},
        "acknowledgement_requested": decoded["acknowledgement_requested"],
        "queue_manager": decoded["source_queue_manager"],
        "addressed_queue_manager": decoded["destination_queue_manager"],
        **{
            name: sequence.numbers(field, ORDER_ACKS.column(name).type)
            for name, _, field, _ in layouts.ACKNOWLEDGEMENT_COLUMNS
        },
        "acknowledged_source": source,
        "acknowledged_ordinal": ordinal,
        "acknowledged_message_id": pc.binary_join_element_wise(source, pc.cast(ordinal, pa.string()), "\\"),
        "errors": concat_lists(decoded["errors"], _short_bodies(body, decoded["errors"], packets)),
    }


def _short_bodies(body: pa.Array, errors: pa.Array, packets: pa.Array) -> pa.Array:
    """Return an error for each packet whose headers are well and whose body is shorter than an acknowledgement's."""
    short = pc.less(pc.fill_null(pc.binary_length(body), 0), layouts.ACKNOWLEDGEMENT_BODY_BYTES)
    clean = pc.equal(pc.list_value_length(errors), 0)
    rows = to_flags(pc.and_(short, clean))
    ends = pc.binary_length(packets).to_pylist()
    return pa.array(
        [
            [{"code": "truncated", "field": _BODY_FIELD, "offset": end}] if wrong else []
            for wrong, end in zip(rows.tolist(), ends, strict=True)
        ],
        ERRORS,
    )
