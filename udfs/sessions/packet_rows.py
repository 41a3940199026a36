"""Rows of ``bronze.session_packets``: kind, class and SessionHeader of framed packets, with keys, as Arrow."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any, Final

import numpy as np
import pyarrow as pa

from schemas.sessions import SESSION_PACKETS
from schemas.table import RUN_COLUMNS
from udfs.array_types import Bools, Ints, Octets
from udfs.columns.absent import NO_TIME
from udfs.keys import encode_key_fields
from udfs.messages.header_layouts import (
    BASE_FLAG_IN,
    BASE_FLAG_SH,
    DIRECT_NAME_TYPE,
    QUEUE_NAME_BYTES,
    QUEUE_NAME_FIELDS,
    SECURITY_HEADER,
    SESSION_HEADER,
    SESSION_HEADER_BYTES,
    TRANSACTION_FLAG_CG,
    TRANSACTION_HEADER,
    USER_FLAG_CQ,
    USER_FLAG_SH,
    USER_FLAG_TH,
)
from udfs.rpc.call_schema import timestamp_column
from udfs.rpc.connection_identity import connection_identity, four_tuple
from udfs.sessions.packet_framing import FramedPackets
from udfs.sessions.packet_headers import CHECKED_HEADER_BYTES, PACKET_TYPE_BITS, SESSION_ACK, USER_FLAGS_AT
from udfs.tcp.connections import TcpConnection
from udfs.tcp.octets import gather_bytes, u16_little, u32_little
from udfs.times import DAY_NS

SESSION_HEADER_TYPE: Final = SESSION_PACKETS.column("session_header").type
PACKET_SIGHTING_TYPE: Final = SESSION_PACKETS.column("sightings").type.value_type
SESSION_PACKETS_SCHEMA: Final = SESSION_PACKETS.schema(without=RUN_COLUMNS)
_INTERNAL_KINDS: Final = ("unknown", "session_ack", "establish_connection", "connection_parameters")  # by PT
PACKET_KINDS: Final = (*_INTERNAL_KINDS, "user_message", "order_ack", "final_ack")
_UNKNOWN = 0
_USER_MESSAGE, _ORDER_ACK, _FINAL_ACK = range(len(_INTERNAL_KINDS), len(PACKET_KINDS))
_CLASS_ORDER_ACK, _FIRST_CLASS_FINAL_ACK = 0x00FF, 0x4000  # [MS-MQMQ] 2.2.18.1.6, [MS-MQQB] 2.2.4, 2.2.5
_ACK_LABEL: Final = "QM Ordering Ack\0".encode("utf-16-le")  # [MS-MQQB] 2.2.4
_ORDER_QUEUE_ID: Final = 4  # PrivateQueueIdentifier of order_queue$
_ORDER_QUEUE_NAME: Final = "order_queue$"
_DQ_SHIFT: Final = QUEUE_NAME_FIELDS[0][2]
_NAME_BYTES: Final = np.array(QUEUE_NAME_BYTES, np.int64)
_LABEL_AT, _LABEL_LENGTH_AT, _CLASS_AT = 56, 1, 2  # in the MessagePropertiesHeader
_KEY_DIGITS: Final = 32


class SessionPacketRows:
    """Makes rows of framed packets. ``unfinished_keys``: by connection index, of rows that other captures may change.

    ``capture_id``: of the capture that is read.
    """

    def __init__(self) -> None:
        self.capture_id = ""
        self.unfinished_keys: dict[int, list[str]] = defaultdict(list)

    def build_rows(self, framed: FramedPackets, connections: list[TcpConnection]) -> pa.RecordBatch:
        """Return the rows of packets, one for each."""
        octets = np.frombuffer(framed.buffer, np.uint8)
        head = gather_bytes(octets, framed.start, CHECKED_HEADER_BYTES)
        flags, size = u16_little(head, 2), u32_little(head, 8)
        kind, classes = _classify(framed, octets, head, flags)
        columns, sequence, keys = _identity_columns(framed, connections)
        for place in np.nonzero(framed.provisional)[0].tolist():
            self.unfinished_keys[int(framed.connection_index[place])].append(keys[place].as_py())
        complete, count = framed.seen == framed.length, len(keys)
        every = np.ones(count, bool)
        columns |= {
            "packet_key": keys,
            "tcp_sequence": pa.array(sequence),
            "capture_id": pa.repeat(pa.scalar(self.capture_id, pa.string()), count),
            "packet_number": pa.array(framed.packet_number),
            "byte_offset": pa.array(framed.file_offset),
            "sent_at": timestamp_column(framed.time_ns, every),
            "sent_done_at": timestamp_column(framed.end_time_ns, complete),
            "kind": pa.DictionaryArray.from_arrays(pa.array(kind, pa.int8()), pa.array(PACKET_KINDS)).cast(pa.string()),
            "version": pa.array(head[:, 0]).cast(pa.int32()),
            "flags": pa.array(flags).cast(pa.int32()),
            "packet_size": pa.array(size),
            "length_bytes": pa.array(framed.length),
            "seen_bytes": pa.array(framed.seen),
            "complete": pa.array(complete),
            "message_class": pa.array(np.maximum(classes, 0), mask=classes < 0).cast(pa.int32()),
            "session_header": _session_headers(framed, octets, flags, kind),
            "packet": _packet_bytes(framed),
            "observations": pa.repeat(pa.scalar(1, pa.int32()), count),
            "sightings": pa.nulls(count, SESSION_PACKETS_SCHEMA.field("sightings").type),
            "event_date": pa.array(
                framed.time_ns // DAY_NS, pa.int64(), mask=framed.time_ns == NO_TIME
            ).cast(pa.int32()).cast(pa.date32()),
        }  # fmt: skip
        return pa.RecordBatch.from_arrays(
            [columns[each.name] for each in SESSION_PACKETS_SCHEMA], schema=SESSION_PACKETS_SCHEMA
        )


def _identity_columns(
    framed: FramedPackets, connections: list[TcpConnection]
) -> tuple[dict[str, pa.Array], Ints, pa.StringArray]:
    """Return the columns that connection and side give, the sequence numbers, and the keys of the packets."""
    sides, number = np.unique(framed.connection_index * 2 + framed.side, return_inverse=True)
    rows: list[tuple[Any, ...]] = []
    prefixes, bases, firsts = [], [], []
    for name in sides.tolist():
        connection = connections[name >> 1]
        direction, client = connection.directions[name & 1], connection.likely_client_side()
        tuples = four_tuple(connection)
        is_client = client == name & 1
        ends = tuples if is_client else (*tuples[2:], *tuples[:2])
        tunnel = connection.tunnel_identifier
        prefixes.append(encode_key_fields(*ends, *(() if tunnel is None else (tunnel,))))
        bases.append(direction.base_sequence or 0)
        firsts.append(direction.first_offset)
        sent_by = "client" if is_client else "server"
        rows.append((connection_identity(connection).connection_id, *tuples, sent_by, tunnel))
    names = ("connection_id", "client_address", "client_port", "server_address", "server_port", "sent_by",
             "tunnel_identifier")  # fmt: skip
    take = pa.array(number)
    columns = {
        name: pa.array([row[place] for row in rows], SESSION_PACKETS_SCHEMA.field(name).type).take(take)
        for place, name in enumerate(names)
    }
    sequence = (np.array(bases, np.int64)[number] + framed.stream_offset) & 0xFFFFFFFF
    columns["stream_offset"] = pa.array(framed.stream_offset - np.array(firsts, np.int64)[number])
    return columns, sequence, _packet_keys(prefixes, number, sequence, framed.time_ns)


def _packet_keys(prefixes: list[bytes], number: Ints, sequence: Ints, time_ns: Ints) -> pa.StringArray:
    """Return the keys of packets (``udfs.keys``): both ends, the sender first, sequence number, time in us."""
    sha = hashlib.sha256
    moments = {time: encode_key_fields(None if time == NO_TIME else time // 1000) for time in set(time_ns.tolist())}
    texts = [b"%d" % each for each in sequence.tolist()]
    digests = b"".join(
        [
            sha(b"%b%c\0\0\0%b%b" % (prefixes[which], len(text), text, moments[time])).digest()
            for which, text, time in zip(number.tolist(), texts, time_ns.tolist(), strict=True)
        ]
    )
    digits = np.frombuffer(digests, np.uint8).reshape(-1, sha().digest_size)[:, : _KEY_DIGITS // 2].tobytes().hex()
    offsets = np.arange(len(texts) + 1, dtype=np.int32) * _KEY_DIGITS
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(digits.encode()))


def _classify(framed: FramedPackets, octets: Octets, head: Octets, flags: Ints) -> tuple[Ints, Ints]:
    """Return kind and MessageClass of each packet, -1 for no class: by what lies before its first hole."""
    available = framed.available
    internal = flags & BASE_FLAG_IN != 0
    packet_type = u16_little(head, 18) & PACKET_TYPE_BITS
    known = (available >= 20) & (packet_type < len(_INTERNAL_KINDS))
    kind = np.where(internal, np.where(known, packet_type, _UNKNOWN), _USER_MESSAGE)
    classes = np.full(len(kind), -1, np.int64)
    rows = np.nonzero(~internal & (available >= CHECKED_HEADER_BYTES))[0]
    if not len(rows):
        return kind, classes
    start, seen = framed.start[rows], available[rows]
    user_flags = u32_little(head[rows], USER_FLAGS_AT)
    properties = _properties_offset(octets, start, seen, user_flags)
    there = properties + _CLASS_AT + 2 <= seen
    first = gather_bytes(octets, start + np.where(there, properties, 0), 4)
    found = u16_little(first, _CLASS_AT)
    classes[rows[there]] = found[there]
    label_ends = properties + _LABEL_AT + len(_ACK_LABEL) <= seen
    is_ack = there & label_ends & ((found == _CLASS_ORDER_ACK) | (found >= _FIRST_CLASS_FINAL_ACK))
    is_ack &= first[:, _LABEL_LENGTH_AT] == len(_ACK_LABEL) // 2
    for place in np.nonzero(is_ack)[0].tolist():
        at = int(start[place])
        label = at + int(properties[place]) + _LABEL_AT
        is_labelled = framed.buffer[label : label + len(_ACK_LABEL)] == _ACK_LABEL
        if is_labelled and _is_order_queue(framed.buffer, at, int(seen[place]), int(user_flags[place])):
            kind[rows[place]] = _ORDER_ACK if found[place] == _CLASS_ORDER_ACK else _FINAL_ACK
    return kind, classes


def _properties_offset(octets: Octets, start: Ints, seen: Ints, user_flags: Ints) -> Ints:
    """Return where the MessagePropertiesHeader of each packet begins, from its start; behind ``seen`` if not seen."""
    at = np.full(len(start), CHECKED_HEADER_BYTES, np.int64)

    def read(rows: Bools, width: int) -> Octets:
        """Return ``width`` octets at ``at``; where they are not seen, ``at`` is moved behind the packet."""
        at[rows & (at + width > seen)] = 1 << 40
        return gather_bytes(octets, np.where(at < 1 << 40, start + at, 0), width)

    for _, _, shift, _ in QUEUE_NAME_FIELDS:
        kinds = user_flags >> shift & 7
        size = _NAME_BYTES[kinds]
        direct = kinds == DIRECT_NAME_TYPE
        if direct.any():
            size = np.where(direct, (2 + u16_little(read(direct, 2), 0) + 3) & ~3, size)
        at += size
    at += np.where(user_flags & USER_FLAG_CQ != 0, 16, 0)
    transaction = user_flags & USER_FLAG_TH != 0
    if transaction.any():
        connector = read(transaction, 4)[:, 0] & TRANSACTION_FLAG_CG != 0
        at += np.where(transaction, TRANSACTION_HEADER.itemsize + np.where(connector, 16, 0), 0)
    secured = user_flags & USER_FLAG_SH != 0
    if secured.any():
        header = read(secured, SECURITY_HEADER.itemsize)
        sizes = [u16_little(header, 2), u16_little(header, 4), u16_little(header, 6), u32_little(header, 8),
                 u32_little(header, 12)]  # fmt: skip
        data = sum((each + 3) & ~3 for each in sizes)
        at += np.where(secured, SECURITY_HEADER.itemsize + data, 0)
    return at


def _is_order_queue(data: bytes, at: int, seen: int, user_flags: int) -> bool:
    """Whether a packet is for the order queue: PrivateQueueIdentifier 4, or a direct name that ends so (sheet 2.9)."""
    kind = user_flags >> _DQ_SHIFT & 7
    name = at + CHECKED_HEADER_BYTES
    if kind == 3:  # a private queue of the receiver
        return seen >= CHECKED_HEADER_BYTES + 4 and int.from_bytes(data[name : name + 4], "little") == _ORDER_QUEUE_ID
    if kind != DIRECT_NAME_TYPE or seen < CHECKED_HEADER_BYTES + 2:
        return False
    count = int.from_bytes(data[name : name + 2], "little")
    if CHECKED_HEADER_BYTES + 2 + count > seen:
        return False
    text = data[name + 2 : name + 2 + count].decode("utf-16-le", "replace").split("\0")[0]
    return text.rsplit("\\", 1)[-1].lower() == _ORDER_QUEUE_NAME


def _session_headers(framed: FramedPackets, octets: Octets, flags: Ints, kind: Ints) -> pa.Array:
    """Return the SessionHeaders ([MS-MQMQ] 2.2.20.4): the last 16 octets of session acks and of others with SH."""
    has = (framed.tail >= 0) & ((kind == SESSION_ACK) | (flags & (BASE_FLAG_IN | BASE_FLAG_SH) == BASE_FLAG_SH))
    has &= framed.length >= SESSION_HEADER_BYTES
    found = gather_bytes(octets, np.where(has, framed.tail, 0), SESSION_HEADER_BYTES).view(SESSION_HEADER).reshape(-1)
    return pa.StructArray.from_arrays(
        [
            pa.array(found[name]).cast(column.type)
            for name, column in zip(SESSION_HEADER.names or (), SESSION_HEADER_TYPE, strict=False)
        ],
        fields=list(SESSION_HEADER_TYPE), mask=pa.array(~has),
    )  # fmt: skip


def _packet_bytes(framed: FramedPackets) -> pa.Array:
    """Return the captured bytes of each packet up to its first hole."""
    start, end = framed.start, framed.start + framed.available
    # Packets that follow one another are copied at once.
    heads = np.nonzero(np.append(True, start[1:] != end[:-1]))[0]
    lasts = np.append(heads[1:], len(start)) - 1
    memory = memoryview(framed.buffer)
    data = b"".join(memory[low:high] for low, high in zip(start[heads].tolist(), end[lasts].tolist(), strict=True))
    offsets = np.append(0, np.cumsum(framed.available))
    wide = pa.Array.from_buffers(
        pa.large_binary(), len(start), [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data)]
    )
    return wide.cast(pa.binary())
